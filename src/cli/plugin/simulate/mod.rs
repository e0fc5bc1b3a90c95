//! `tidegate plugin simulate`: a queue under virtual time, before its throttler is trusted with a live one.
//!
//! Nothing of it needs a server: the component is compiled here, and the engine runs here.

mod table;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use object_store::memory::InMemory;
use serde::Serialize;
use serde_json::Value as Json;

use super::component;
use crate::cli::{Context, ExitCode, UsageError, args};
use tidegate_backends::{
    system::SystemClock,
    wasm::{PluginHost, Run, compile::Compiler},
};
use tidegate_core::{
    job::{PluginName, retry::Retry},
    port::policy::Plugin,
    queue::plugin::{OnFailure, Role, Throttler},
};
use tidegate_engine::{
    plugins::registry::{NewCode, NewVersion},
    simulate::{
        self, Agreement, By, Difference, Plugins, Scenario, Simulation, SimulationReport, picture,
    },
};

/// What the throttler is called where the scenario does not name it.
const UNNAMED: &str = "simulated";

/// The options of `tidegate plugin simulate`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A scenario is JSON: the queue, its job types, which jobs arrive when, how long they take, what is expected. \
docs/simulate.md has every field. A trace of a live queue (`tidegate plugin trace`) is one, too.

The table has, for each value of --by: jobs, how they ended, how long they waited from their due time to their first attempt, the \
weight that ran at most and on average, and how much of the limit that is.

Examples:
  tidegate plugin simulate day.json --plugin region-share.wasm --picture day.svg
  tidegate plugin simulate day.json --plugin old.wasm --against new.wasm --by region
  tidegate plugin simulate trace.json --plugin mine.wasm --limit 100 --limit east=40 --by region --picture trace.svg

Exit code 1: something expected was not so."
)]
pub struct Args {
    /// The scenario or trace, JSON; `-` reads standard input.
    scenario: PathBuf,
    /// The queue's throttler.
    #[arg(long, value_name = "FILE.wasm")]
    plugin: Option<PathBuf>,
    /// The throttler's configuration, JSON (default: the scenario's).
    #[arg(long, value_name = "JSON")]
    config: Option<String>,
    /// The retry strategy of every job type.
    #[arg(long, value_name = "FILE.wasm")]
    retry_plugin: Option<PathBuf>,
    /// The retry strategy's configuration, JSON, for types that have none for a plugin of theirs (default {}).
    #[arg(long, value_name = "JSON", requires = "retry_plugin")]
    retry_config: Option<String>,
    /// Another version of the throttler (or, without one, of the retry strategy), shown side by side.
    #[arg(long, value_name = "FILE.wasm")]
    against: Option<PathBuf>,
    /// The configuration of the other version, JSON (default: the same).
    #[arg(long, value_name = "JSON", requires = "against")]
    against_config: Option<String>,
    /// The most weight that may run at once, of all jobs or of one value of --by: shown in table and picture, and expected like the scenario's
    /// `max_running`. May be given again.
    #[arg(long, value_name = "[VALUE=]N", value_parser = limit)]
    limit: Vec<(Option<String>, u64)>,
    /// By what jobs are told apart: an attribute, or `type` (default: what the throttler or the queue groups by).
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Where the picture goes: a file that ends in .svg.
    #[arg(long, value_name = "OUT.svg")]
    picture: Option<PathBuf>,
    /// Another seed than the scenario's.
    #[arg(long)]
    seed: Option<u64>,
}

/// A limit, and the value whose jobs it is for; none for all.
fn limit(text: &str) -> Result<(Option<String>, u64), &'static str> {
    let (value, most) =
        text.rsplit_once('=').map_or((None, text), |(value, most)| (Some(value.to_owned()), most));
    Ok((value, most.parse().map_err(|_| "a number is expected, or value=number")?))
}

/// What `--json` prints.
#[derive(Serialize)]
struct Printed<'a> {
    simulated: &'a SimulationReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<&'a SimulationReport>,
    /// How many jobs the plugins of the two decided differently about.
    #[serde(skip_serializing_if = "Option::is_none")]
    differing_jobs: Option<u64>,
    /// The first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    differences: Option<&'a [Difference]>,
    /// What the live queue did, if the scenario is a trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    real: Option<&'a SimulationReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agreement: Option<&'a Agreement>,
}

/// Simulates.
///
/// # Errors
///
/// The scenario or a component is not sound, or the simulated queue refuses them.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    if let Some(file) = args
        .picture
        .as_ref()
        .filter(|file| file.extension().is_none_or(|end| !end.eq_ignore_ascii_case("svg")))
    {
        let message = format!(
            "--picture {} must end in .svg: the picture is SVG, which browsers show and most tools convert",
            file.display()
        );
        return Err(UsageError(message).into());
    }
    let mut scenario = scenario(&args).await?;
    let (config, retry_config) = (args.config.as_deref(), args.retry_config.as_deref());
    let (throttler, retry) = (
        args.plugin.as_deref().map(|file| (file, config)),
        args.retry_plugin.as_deref().map(|file| (file, retry_config)),
    );
    let plugins = plugins(&scenario, throttler, retry).await?;
    let by = by(&args, &scenario, &plugins);
    for (value, most) in &args.limit {
        let key = value.as_ref().map_or_else(String::new, |value| format!("{}={value}", by.name()));
        scenario.expect.max_running.insert(key, *most);
    }
    let one = simulated(&scenario, &plugins, &by, ctx).await?;
    let other = match &args.against {
        None => None,
        Some(file) => {
            let other = |same| Some((file.as_path(), args.against_config.as_deref().or(same)));
            let (throttler, retry) = if throttler.is_some() {
                (other(config), retry)
            } else {
                (None, other(retry_config))
            };
            let plugins = self::plugins(&scenario, throttler, retry).await?;
            Some(simulated(&scenario, &plugins, &by, ctx).await?)
        }
    };
    let names = names(&args);
    if let Some(file) = &args.picture {
        let real = one.real.as_ref().map(|(real, _)| ("what the queue really did", real));
        let simulated = [(names[0].as_str(), Some(&one)), (names[1].as_str(), other.as_ref())];
        let panels: Vec<(&str, &SimulationReport)> = real
            .into_iter()
            .chain(
                simulated
                    .into_iter()
                    .filter_map(|(name, simulation)| Some((name, &simulation?.report))),
            )
            .collect();
        tokio::fs::write(file, picture::draw(&panels))
            .await
            .with_context(|| format!("{} cannot be written", file.display()))?;
    }
    let differences = other.as_ref().map(|other| one.differences(other));
    if ctx.json() {
        let printed = Printed {
            simulated: &one.report,
            against: other.as_ref().map(|other| &other.report),
            differing_jobs: differences.as_ref().map(|(_, count)| *count),
            differences: differences.as_ref().map(|(first, _)| first.as_slice()),
            real: one.real.as_ref().map(|(real, _)| real),
            agreement: one.real.as_ref().map(|(_, agreement)| agreement),
        };
        ctx.print(serde_json::to_string(&printed)?)?;
    } else {
        ctx.print(table::render(&one, other.as_ref(), differences.as_ref(), &names, ctx.look))?;
    }
    let reports =
        [Some(&one), other.as_ref()].into_iter().flatten().map(|simulation| &simulation.report);
    let met = reports.flat_map(|report| &report.expectations).all(|expectation| expectation.met);
    Ok(if met { ExitCode::Ok } else { ExitCode::Refused })
}

async fn scenario(args: &Args) -> anyhow::Result<Scenario> {
    let text = args::json_from(None, Some(&args.scenario))
        .await?
        .ok_or_else(|| UsageError("give a scenario".to_owned()))?;
    let file = args.scenario.display();
    let mut scenario =
        Scenario::read(text.0.get()).map_err(|bad| UsageError(format!("{file}: {bad}")))?;
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    if args.against.is_some() && args.plugin.is_none() && args.retry_plugin.is_none() {
        return Err(UsageError(
            "--against needs a --plugin or a --retry-plugin to be compared with".to_owned(),
        )
        .into());
    }
    if let Some(throttler) = scenario.queue.throttler.as_ref().filter(|_| args.plugin.is_none()) {
        let message = format!(
            "{file}: its queue has the throttler {}; give the component with --plugin",
            throttler.plugin
        );
        return Err(UsageError(message).into());
    }
    let retried = scenario.types.iter().find_map(|(name, config)| match &config.retry {
        Retry::Plugin(plugin, _) => Some((name, plugin)),
        Retry::Exponential(_) => None,
    });
    if let Some((name, plugin)) = retried.filter(|_| args.retry_plugin.is_none()) {
        let message = format!(
            "{file}: its type {name} has the retry strategy {plugin}; give the component with --retry-plugin"
        );
        return Err(UsageError(message).into());
    }
    Ok(scenario)
}

/// A component, and the configuration that it is given in place of the scenario's.
type Given<'a> = Option<(&'a Path, Option<&'a str>)>;

/// The plugins of a simulation, compiled here.
async fn plugins(
    scenario: &Scenario,
    throttler: Given<'_>,
    retry: Given<'_>,
) -> anyhow::Result<Plugins> {
    if throttler.is_none() && retry.is_none() {
        return Ok(Plugins::default());
    }
    let objects = Arc::new(InMemory::new());
    let host = Arc::new(PluginHost::new(objects.clone(), Arc::new(SystemClock), Run::Here)?);
    let throttler = match throttler {
        None => None,
        Some((file, given)) => {
            let version = compiled(&host, file, Role::Throttler).await?;
            let mut named = scenario.queue.throttler.clone().unwrap_or_else(|| Throttler {
                plugin: UNNAMED.parse::<PluginName>().expect("a good name"),
                config: Arc::new(Json::Object(serde_json::Map::new())),
                on_failure: OnFailure::default(),
            });
            if let Some(config) = config(given).await? {
                named.config = config;
            }
            Some((version, named))
        }
    };
    let retry = match retry {
        None => None,
        Some((file, given)) => {
            let none = || Arc::new(Json::Object(serde_json::Map::new()));
            Some((
                compiled(&host, file, Role::Retry).await?,
                config(given).await?.unwrap_or_else(none),
            ))
        }
    };
    let metered = Arc::clone(&host);
    let meter = Arc::new(move |plugin: &Plugin| metered.last(&plugin.name));
    Ok(Plugins { policy: host, objects, throttler, retry, meter: Some(meter) })
}

async fn config(text: Option<&str>) -> anyhow::Result<Option<Arc<Json>>> {
    let Some(json) = args::json_from(text, None).await? else {
        return Ok(None);
    };
    Ok(Some(Arc::new(serde_json::from_str(json.0.get())?)))
}

async fn compiled(host: &PluginHost, file: &Path, role: Role) -> anyhow::Result<NewVersion> {
    let wasm = component(file).await?;
    let refused = || format!("{} cannot be used as a plugin", file.display());
    let artifact = host.compile(wasm.into(), &Compiler::Here).await.with_context(refused)?;
    let (throttler, retry) = (artifact.throttler, artifact.retry);
    match role {
        Role::Throttler if throttler.is_none() => {
            return Err(UsageError(format!("{} is no throttler", file.display())).into());
        }
        Role::Retry if retry.is_none() => {
            return Err(UsageError(format!("{} is no retry strategy", file.display())).into());
        }
        _ => {}
    }
    let code = vec![NewCode {
        target: artifact.compiled.target,
        engine: artifact.compiled.engine,
        code: artifact.code,
    }];
    Ok(NewVersion { wasm: artifact.wasm, throttler, retry, code })
}

/// By what jobs are told apart: as was asked; else by the attribute that the throttler's configuration names or that it
/// declares, or by which the queue itself divides them.
fn by(args: &Args, scenario: &Scenario, plugins: &Plugins) -> By {
    let declared = plugins.throttler.as_ref().and_then(|(version, throttler)| {
        let configured =
            throttler.config.get("attribute").and_then(Json::as_str).map(str::to_owned);
        let groups = version.throttler.iter().flat_map(|says| &says.group_by);
        configured.or_else(|| groups.into_iter().find(|name| *name != "*").cloned())
    });
    let queue = &scenario.queue;
    let divided = || {
        queue
            .constraints
            .iter()
            .find_map(|constraint| constraint.per.clone())
            .or_else(|| queue.partition_by.clone())
    };
    args.by
        .as_deref()
        .map(By::named)
        .or_else(|| declared.or_else(divided).map(By::Attribute))
        .unwrap_or(By::Type)
}

async fn simulated(
    scenario: &Scenario,
    plugins: &Plugins,
    by: &By,
    ctx: &Context,
) -> anyhow::Result<Simulation> {
    let bar = ctx.progress(scenario.job_count(), "simulated jobs");
    let done =
        simulate::simulate(scenario, plugins, by.clone(), &mut |ended| bar.set_position(ended))
            .await;
    bar.finish_and_clear();
    Ok(done?)
}

/// What the two simulations are called: by their files, or where those have one name, by their place.
fn names(args: &Args) -> [String; 2] {
    let name = |file: Option<&PathBuf>| {
        file.and_then(|file| file.file_name()).map_or_else(
            || "the queue's own limits".to_owned(),
            |name| name.to_string_lossy().into_owned(),
        )
    };
    let (one, other) =
        (name(args.plugin.as_ref().or(args.retry_plugin.as_ref())), name(args.against.as_ref()));
    if one == other { [format!("{one} (1)"), format!("{other} (2)")] } else { [one, other] }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::testing::FakeServer;

    const CONFIG: &str =
        r#"{"attribute": "region", "limit": 10, "shares": {"east": 40, "north": 30, "west": 30}}"#;

    /// A component that is shipped.
    fn shipped(name: &str) -> String {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("plugins/dist")
            .join(name)
            .to_str()
            .expect("a plain path")
            .to_owned()
    }

    /// Runs the command on a scenario; its exit code and what it wrote. No server is asked.
    async fn ran(scenario: &Json, args: &[&str]) -> (ExitCode, String) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), scenario.to_string()).unwrap();
        let server = FakeServer::answering(|_| (500, Json::Null)).await;
        let ran = server
            .run(&[&["plugin", "simulate", file.path().to_str().unwrap()], args].concat())
            .await;
        assert!(server.seen().is_empty());
        ran
    }

    fn regions() -> Json {
        json!({
            "queue": {"concurrency": 10},
            "arrivals": [{"type": "t", "count": 60, "attributes": {"region": {"east": 5, "north": 3, "west": 2}}}],
            "service": [{"seconds": 10}],
            "expect": {"max_running": {"region=east": 4, "region=north": 3, "region=west": 3}, "done_by_seconds": 200},
        })
    }

    #[tokio::test]
    async fn a_component_is_simulated_and_its_shares_hold() {
        let (code, out) =
            ran(&regions(), &["--plugin", &shipped("region-share.wasm"), "--config", CONFIG]).await;
        assert_eq!(code, ExitCode::Ok, "{out}");
        // How long calls took is this machine's.
        let kept: Vec<&str> = out
            .lines()
            .filter(|line| !line.starts_with("throttler ") && !line.contains("fuel median"))
            .collect();
        insta::assert_snapshot!(kept.join("\n"));
    }

    #[tokio::test]
    async fn what_is_expected_and_not_so_ends_with_code_1() {
        let (code, out) = ran(&regions(), &["--by", "region"]).await;
        assert_eq!(code, ExitCode::Refused);
        assert!(out.contains("NOT MET"), "{out}");
    }

    #[tokio::test]
    async fn a_picture_is_svg_and_goes_into_no_file_of_another_kind() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["out.png", "out", "svg"] {
            let picture = dir.path().join(name);
            let (code, _) = ran(
                &regions(),
                &[
                    "--plugin",
                    &shipped("region-share.wasm"),
                    "--picture",
                    picture.to_str().unwrap(),
                ],
            )
            .await;
            assert!(code == ExitCode::Usage && !picture.exists(), "{name}");
        }
    }

    #[tokio::test]
    async fn two_versions_are_shown_side_by_side_in_table_and_picture() {
        let dir = tempfile::tempdir().unwrap();
        let picture = dir.path().join("out.svg");
        let args = [
            "--plugin",
            &shipped("region-share.wasm"),
            "--against",
            &shipped("rate-limit.wasm"),
            "--picture",
            picture.to_str().unwrap(),
        ];
        let json = json!({"queue": {"concurrency": 10}, "arrivals": [{"type": "t", "count": 3}]});
        let (code, out) = ran(&json, &args).await;
        // The configuration that one of them takes, the other refuses.
        assert_eq!((code, out.as_str()), (ExitCode::Refused, ""), "{out}");
        let args = [
            "--plugin",
            &shipped("region-share.wasm"),
            "--against",
            &shipped("region-share.wasm"),
            "--config",
            CONFIG,
        ];
        let (code, out) =
            ran(&regions(), &[&args[..], &["--picture", picture.to_str().unwrap()]].concat()).await;
        assert_eq!(code, ExitCode::Ok, "{out}");
        assert!(
            out.contains("region-share.wasm (2)")
                && out.contains("0 jobs were decided differently"),
            "{out}"
        );
        let drawn = std::fs::read_to_string(&picture).unwrap();
        assert_eq!(drawn.matches("running, by region").count(), 2);
        let (_, out) = ran(&regions(), &[&args[..], &["--json"]].concat()).await;
        let printed: Json = serde_json::from_str(&out).unwrap();
        assert_eq!(printed["differing_jobs"], 0);
        assert_eq!(printed["simulated"]["groups"][0]["most_running"], 4);
        assert!(
            printed["simulated"]["calls"]["throttler"]["fuel"]["most"].as_u64() > Some(0),
            "{}",
            printed["simulated"]["calls"]
        );
    }

    #[tokio::test]
    async fn two_configurations_of_one_component_are_shown_side_by_side() {
        let other = CONFIG.replace("\"limit\": 10", "\"limit\": 5");
        let share = shipped("region-share.wasm");
        let args = [
            "--plugin",
            &share,
            "--config",
            CONFIG,
            "--against",
            &share,
            "--against-config",
            &other,
            "--json",
        ];
        let (_, out) = ran(&regions(), &args).await;
        let printed: Json = serde_json::from_str(&out).unwrap();
        let most = |side: &str| printed[side]["groups"][0]["most_running"].clone();
        assert_eq!((most("simulated"), most("against")), (json!(4), json!(2)));
    }

    #[tokio::test]
    async fn a_limit_that_is_given_is_drawn_and_expected() {
        let dir = tempfile::tempdir().unwrap();
        let picture = dir.path().join("out.svg");
        let mut trace = regions();
        trace.as_object_mut().unwrap().remove("expect");
        let share = shipped("region-share.wasm");
        let args = [
            "--plugin",
            &share,
            "--config",
            CONFIG,
            "--picture",
            picture.to_str().unwrap(),
            "--limit",
            "10",
        ];
        let (code, _) = ran(&trace, &[&args[..], &["--limit", "east=4"]].concat()).await;
        assert_eq!(code, ExitCode::Ok);
        let drawn = std::fs::read_to_string(&picture).unwrap();
        assert!(drawn.contains(">limit 4<") && drawn.contains(">limit 10<"), "{drawn}");
        let (code, out) = ran(&trace, &[&args[..], &["--limit", "east=3"]].concat()).await;
        assert!(code == ExitCode::Refused && out.contains("max_running region=east"), "{out}");
        assert!(limit("east").is_err() && limit("east=").is_err());
    }

    #[tokio::test]
    async fn a_retry_strategy_is_simulated() {
        let scenario = json!({
            "arrivals": [{"type": "t", "count": 4}], "service": [{"seconds": 1, "failure": {"rate": 1}}], "expect": {"failed": 4},
        });
        let (code, out) =
            ran(&scenario, &["--retry-plugin", &shipped("exponential.wasm"), "--json"]).await;
        assert_eq!(code, ExitCode::Ok, "{out}");
        let printed: Json = serde_json::from_str(&out).unwrap();
        assert_eq!(
            (
                &printed["simulated"]["all"]["retries"],
                &printed["simulated"]["calls"]["retry"]["calls"]
            ),
            (&json!(8), &json!(8))
        );
    }

    #[tokio::test]
    async fn what_cannot_be_simulated_is_wrong_usage() {
        let throttled = json!({"queue": {"throttler": {"plugin": "region-share"}}});
        for (scenario, args) in [
            (json!({"sed": 1}), &[][..]),
            (throttled, &[]),
            (json!({"types": {"t": {"retry": {"plugin": "by-error"}}}}), &[]),
            (json!({}), &["--against", "a.wasm"]),
            (json!({}), &["--plugin", "/no/such.wasm"]),
            (json!({}), &["--plugin", &shipped("exponential.wasm")]),
        ] {
            assert_eq!(ran(&scenario, args).await.0, ExitCode::Usage, "{scenario} {args:?}");
        }
    }
}
