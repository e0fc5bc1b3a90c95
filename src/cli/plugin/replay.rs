//! `tidegate plugin replay`: repeats recorded calls, and shows where a component decides
//! differently.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;
use tidegate_api::{CallFault, PluginView};

use super::{local, record, test};
use crate::cli::{Context, ExitCode, UsageError, client::Client};
use crate::plugin_testing::{Case, Component};
use tidegate_core::job::PluginName;

/// The options of `tidegate plugin replay`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The name of a plugin means its live version on the server, and the recorded calls of \
    that plugin. A file is a component on this machine; its calls are those of the plugin of its name, \
    or of --of, or the saved ones of the given folders.\n\n\
    A call that failed when it was recorded is the same if it fails again in the same way; a \
    repaired plugin answers it. A call is incomplete if its record lacks an input or the answer; \
    it is not compared. Exit code 1: an answer differs, or a call fails.\n\n\
    Examples:\n  \
    tidegate plugin replay region-share\n  \
    tidegate plugin replay region-share.wasm                   the calls of region-share\n  \
    tidegate plugin replay target/mine.wasm --of region-share --only filter\n  \
    tidegate plugin record region-share --save calls && \
    tidegate plugin replay region-share.wasm calls"
)]
pub struct Args {
    /// The plugin's name, or the file of a component.
    #[arg(value_name = "NAME|FILE.wasm")]
    component: PathBuf,
    /// Files with saved calls, or folders of them.
    saved: Vec<PathBuf>,
    /// The plugin whose recorded calls are repeated [default: that of the component's name].
    #[arg(long, value_name = "NAME", conflicts_with = "saved")]
    of: Option<String>,
    /// The version of a named plugin [default: the live one].
    #[arg(long, value_name = "NUMBER")]
    version: Option<u32>,
    #[command(flatten)]
    which: record::Which,
    /// Show what the plugin logs in each call.
    #[arg(long)]
    log: bool,
}

/// A call to repeat.
struct Recorded {
    /// The file, or the id on the server.
    place: String,
    case: Case,
    /// Whether the record has all that a comparison needs.
    is_whole: bool,
    /// The fault when it was recorded.
    fault: Option<CallFault>,
}

/// How a repeated call compares with its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Comparison {
    /// The answer is the same, or it fails as when it was recorded.
    Same,
    /// The answer differs.
    Different,
    /// It fails.
    Fails,
    /// It failed when it was recorded, and has an answer now.
    Repaired,
    /// Its record lacks an input or the answer.
    Incomplete,
}

impl Comparison {
    fn word(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Different => "DIFFERENT",
            Self::Fails => "FAILS",
            Self::Repaired => "repaired",
            Self::Incomplete => "incomplete",
        }
    }
}

/// A repeated call.
#[derive(Serialize)]
struct Repeated {
    call: String,
    name: String,
    comparison: Comparison,
    /// The differences, or the fault.
    differences: Vec<String>,
    log: Vec<String>,
}

/// Repeats the calls.
///
/// # Errors
///
/// The component is not a plugin, a saved call cannot be read, or the server is unreachable or does
/// not know the plugin.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let is_file = is_file(&args.component);
    if is_file && args.version.is_some() {
        return Err(UsageError("--version needs the name of a plugin".to_owned()).into());
    }
    let file = args.component.display().to_string();
    let plugin = if is_file { Some(local::open(&args.component, ctx).await?) } else { None };
    let calls = if args.saved.is_empty() {
        let of = args.of.clone().map_or_else(|| plugin_of(&args.component), Ok)?;
        fetched(&of, args.which, ctx).await?
    } else {
        let cases = test::read(&args.saved).await?.into_iter();
        let saved = |(place, case): (String, Case)| {
            let is_whole = !case.expect.is_empty();
            Recorded { place, case, is_whole, fault: None }
        };
        cases.map(saved).collect()
    };
    let plugin = match plugin {
        Some(plugin) => plugin,
        None => live(&file, args.version, &ctx.client()?, ctx).await?,
    };
    let mut repeated = Vec::with_capacity(calls.len());
    for recorded in calls {
        repeated.push(repeat(&plugin, recorded).await);
    }
    print(&repeated, args.log, ctx)
}

/// Whether the argument is a file rather than the name of a plugin: it ends in `.wasm` or has a
/// folder.
fn is_file(component: &Path) -> bool {
    component.extension().is_some_and(|end| end == "wasm") || component.components().count() > 1
}

/// The plugin of a component: the name itself, or that of the file without its end.
fn plugin_of(component: &Path) -> Result<String, UsageError> {
    let stem = if is_file(component) { component.file_stem() } else { Some(component.as_os_str()) };
    let name = stem.and_then(|stem| stem.to_str()).unwrap_or_default();
    match name.parse::<PluginName>() {
        Ok(name) => Ok(name.to_string()),
        Err(_) => Err(UsageError(format!(
            "{} is not the name of a plugin: name the plugin of the calls with --of",
            component.display()
        ))),
    }
}

/// The recorded calls of a plugin whose inputs were kept.
async fn fetched(name: &str, which: record::Which, ctx: &Context) -> anyhow::Result<Vec<Recorded>> {
    let client = ctx.client()?;
    let listed = record::list(name, which, &client).await?;
    let mut calls = Vec::with_capacity(listed.len());
    for view in record::whole(name, listed, &client, ctx).await? {
        let read = match record::case(name, &view) {
            Ok(None) => continue,
            Ok(Some((case, is_whole))) => Case::read(&case.to_string())
                .map(|cases| (cases, is_whole && (view.answer.is_some() || view.fault.is_some()))),
            Err(error) => Err(error.to_string()),
        };
        match read {
            Ok((cases, is_whole)) => calls.extend(cases.into_iter().map(|case| Recorded {
                place: view.id.clone(),
                case,
                is_whole,
                fault: view.fault.clone(),
            })),
            Err(error) => ctx.note(format_args!("{} cannot be repeated: {error}", view.id)),
        }
    }
    Ok(calls)
}

/// A version of a plugin of the server, the live one without a number.
async fn live(
    name: &str,
    version: Option<u32>,
    client: &Client,
    ctx: &Context,
) -> anyhow::Result<Component> {
    let version = if let Some(version) = version {
        version
    } else {
        let plugin: PluginView = client.get(&["plugins", name]).send().await?.read()?;
        plugin.live
    };
    let path = ["plugins", name, "versions", &version.to_string(), "component"];
    let wasm = client.get(&path).send().await?.body;
    Component::compile(name, wasm, &local::compiler(), ctx.now()).await
}

/// Makes the call again, and compares it with its record.
async fn repeat(plugin: &Component, recorded: Recorded) -> Repeated {
    let (comparison, differences) = compare(plugin, &recorded).await;
    let Recorded { place, case, .. } = recorded;
    Repeated { call: place, name: case.name, comparison, differences, log: plugin.take_log() }
}

async fn compare(plugin: &Component, recorded: &Recorded) -> (Comparison, Vec<String>) {
    let Recorded { case, is_whole, fault, .. } = recorded;
    if !plugin.roles().any(|(role, _)| role == case.role) {
        let role = local::word(case.role);
        return (Comparison::Fails, vec![format!("the plugin is no {role}")]);
    }
    let call = match case.call() {
        Ok(call) => call,
        Err(error) => return (Comparison::Fails, vec![error]),
    };
    let answer = plugin.call(&call).await;
    let now = answer.as_ref().err();
    if let (Some(now), Some(before)) = (now, fault)
        && now.kind.as_str() == before.kind
    {
        return (Comparison::Same, Vec::new());
    }
    let failed = now.map(|now| format!("it failed ({}): {now}", now.kind.as_str()));
    let before =
        fault.as_ref().map(|before| format!("recorded: {}: {}", before.kind, before.message));
    if !is_whole {
        let why = "not compared: the record lacks an input or the answer".to_owned();
        return (
            Comparison::Incomplete,
            [Some(why), failed, before].into_iter().flatten().collect(),
        );
    }
    if before.is_some() {
        let comparison = if failed.is_some() { Comparison::Fails } else { Comparison::Repaired };
        return (comparison, failed.into_iter().chain(before).collect());
    }
    let differences = case.expect.of(case, &call, &answer);
    let comparison = match (differences.is_empty(), failed.is_some()) {
        (true, _) => Comparison::Same,
        (false, true) => Comparison::Fails,
        (false, false) => Comparison::Different,
    };
    (comparison, differences)
}

/// Prints the calls that are not the same, and the counts.
fn print(repeated: &[Repeated], log: bool, ctx: &Context) -> anyhow::Result<ExitCode> {
    let count = |of: Comparison| repeated.iter().filter(|call| call.comparison == of).count();
    let [same, different, fails, repaired, incomplete] = [
        Comparison::Same,
        Comparison::Different,
        Comparison::Fails,
        Comparison::Repaired,
        Comparison::Incomplete,
    ]
    .map(count);
    if ctx.json() {
        ctx.print(json!({
            "same": same, "different": different, "fails": fails, "repaired": repaired,
            "incomplete": incomplete, "calls": repeated,
        }))?;
    } else {
        for call in repeated {
            let is_same = call.comparison == Comparison::Same;
            if is_same && !log {
                continue;
            }
            let Repeated { call: place, name, .. } = call;
            ctx.print(format_args!("{} {place}: {name}", call.comparison.word()))?;
            for line in &call.differences {
                ctx.print(format_args!("       {line}"))?;
            }
            for line in call.log.iter().filter(|_| log || call.comparison == Comparison::Fails) {
                ctx.print(format_args!("       log: {line}"))?;
            }
        }
        ctx.print(format_args!(
            "{} calls: {same} same, {different} different, {fails} failed, {repaired} repaired, \
             {incomplete} incomplete",
            repeated.len()
        ))?;
    }
    Ok(if different + fails == 0 { ExitCode::Ok } else { ExitCode::Refused })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::cli::{plugin::record::tests::recorded, testing::FakeServer};

    const SHARE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/plugins/dist/region-share.wasm");

    /// A recorded call of the shipped plugin about one job of the east.
    fn call_of_share(id: &str, answer: &Value, fault: &Value) -> Value {
        let mut call = recorded(id, answer, fault);
        call["call"] = json!({"throttle": {
            "context": {"config": {"attribute": "region", "limit": 10, "shares": {"east": 40}}},
            "candidates": [{"id": "a", "attributes": {"region": "east"}}],
        }});
        call
    }

    #[tokio::test]
    async fn a_component_is_compared_with_recorded_answers() {
        let run = json!({"decisions": [{"action": "run"}]});
        let hold = json!({"decisions": [{"action": "hold"}]});
        let fault = json!({"kind": "trapped", "message": "no"});
        let calls = [
            call_of_share("latest-1-1", &run, &Value::Null),
            call_of_share("latest-1-2", &hold, &Value::Null),
            call_of_share("fault-000-1-3", &Value::Null, &fault),
        ];
        let server = FakeServer::answering(move |seen| {
            let id = seen.path.rsplit('/').next().unwrap();
            match calls.iter().find(|call| call["id"] == id) {
                Some(call) => (200, call.clone()),
                None => (200, json!({ "calls": calls })),
            }
        })
        .await;
        let (code, out) = server.run(&["plugin", "replay", SHARE]).await;
        assert_eq!(code, ExitCode::Refused, "{out}");
        assert_eq!(server.seen()[0].path, "/v1/plugins/region-share/calls");
        assert!(out.contains("DIFFERENT latest-1-2: "), "{out}");
        assert!(out.contains("decision 1 is run; expected hold"), "{out}");
        assert!(out.contains("repaired fault-000-1-3: ") && out.contains("recorded: trapped: no"));
        assert!(
            out.ends_with("3 calls: 1 same, 1 different, 0 failed, 1 repaired, 0 incomplete\n"),
            "{out}"
        );
        let args = ["plugin", "replay", SHARE, "--of", "other", "--only", "fault", "--json"];
        let (code, out) = server.run(&args).await;
        let printed: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &printed["repaired"]), (ExitCode::Ok, &json!(1)), "{out}");
    }

    #[tokio::test]
    async fn saved_calls_need_no_server() {
        let dir = tempfile::tempdir().unwrap();
        let server = FakeServer::answering(move |seen| {
            let call = call_of_share("latest-1-1", &json!({"decisions": []}), &Value::Null);
            let is_list = seen.path.ends_with("/calls");
            (200, if is_list { json!({"calls": [call]}) } else { call })
        })
        .await;
        let saved = dir.path().to_str().unwrap();
        let (code, _) = server.run(&["plugin", "record", "share", "--save", saved]).await;
        assert_eq!(code, ExitCode::Ok);
        let sent = server.seen().len();
        let (code, out) = server.run(&["plugin", "replay", SHARE, saved]).await;
        assert_eq!(code, ExitCode::Refused);
        assert!(out.contains("1 decisions; expected 0"), "{out}");
        assert_eq!(server.seen().len(), sent);
    }

    /// The outcome of a replay of these recorded calls with the shipped plugin.
    async fn replayed(calls: Vec<Value>) -> (ExitCode, Value) {
        let server = FakeServer::answering(move |seen| {
            let id = seen.path.rsplit('/').next().unwrap();
            match calls.iter().find(|call| call["id"] == id) {
                Some(call) => (200, call.clone()),
                None => (200, json!({ "calls": calls })),
            }
        })
        .await;
        let (code, out) = server.run(&["plugin", "replay", SHARE, "--json"]).await;
        (code, serde_json::from_str(&out).unwrap())
    }

    #[tokio::test]
    async fn a_call_that_fails_as_it_was_recorded_is_the_same() {
        let fails = |id: &str, kind: &str| {
            let fault = json!({"kind": kind, "message": "no"});
            let mut call = call_of_share(id, &Value::Null, &fault);
            // The plugin cannot read its configuration.
            call["call"]["throttle"]["context"]["config"] = json!({"attribute": 1});
            call
        };
        let (code, out) = replayed(vec![fails("fault-000-1-1", "rejected")]).await;
        assert_eq!((code, &out["same"]), (ExitCode::Ok, &json!(1)), "{out}");
        let (code, out) = replayed(vec![fails("fault-000-1-1", "timeout")]).await;
        assert_eq!((code, &out["fails"]), (ExitCode::Refused, &json!(1)), "{out}");
        assert_eq!(out["calls"][0]["differences"][1], "recorded: timeout: no");
    }

    #[tokio::test]
    async fn what_cannot_be_compared_or_read_does_not_fail() {
        let hold = json!({"decisions": [{"action": "hold"}]});
        let mut lacking = call_of_share("latest-1-1", &hold, &Value::Null);
        lacking["redacted"] = json!(["state"]);
        let mut unanswered = call_of_share("latest-1-2", &Value::Null, &Value::Null);
        unanswered["redacted"] = json!([]);
        let mut unreadable = call_of_share("latest-1-3", &hold, &Value::Null);
        unreadable["call"] = json!({"throttle": {"candidates": 7, "round": {"room": "x"}}});
        let (code, out) = replayed(vec![lacking, unanswered, unreadable]).await;
        assert_eq!((code, &out["incomplete"]), (ExitCode::Ok, &json!(2)), "{out}");
        assert_eq!(out["calls"].as_array().unwrap().len(), 2, "{out}");
    }

    #[test]
    fn a_component_is_a_file_or_the_name_of_a_plugin() {
        let plugin = |text: &str| plugin_of(Path::new(text)).ok();
        assert_eq!(plugin("region-share").as_deref(), Some("region-share"));
        assert_eq!(plugin("my.plugin").as_deref(), Some("my.plugin"));
        assert_eq!(plugin("a/region-share.wasm").as_deref(), Some("region-share"));
        assert_eq!(plugin("./b c.wasm"), None);
        assert!(is_file(Path::new("x.wasm")) && is_file(Path::new("./x")));
        assert!(!is_file(Path::new("my.plugin")));
    }
}
