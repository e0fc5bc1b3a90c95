//! `tidegate simulate`: a queue under virtual time, to test limits, a throttler or a retry strategy
//! before a live queue uses them.
//!
//! It needs no server: this process runs the engine, and compiles the components, if there are any.

mod plugins;
mod table;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;
use serde_json::Value as Json;

use crate::cli::{Context, ExitCode, UsageError, args};
use plugins::Given;
use tidegate_core::job::retry::Retry;
use tidegate_engine::simulate::{
    self, Agreement, By, Difference, GoesOn, Plugins, Scenario, Simulation, SimulationReport,
    picture, policies::MAX_LOG_LINES, scenario::Outcomes,
};

/// The options of `tidegate simulate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "A scenario is JSON: the queue, its job types, arrivals, durations and \
expectations. docs/simulate.md describes every field. A trace of a live queue (`tidegate plugin \
trace`) is a scenario, too.

The table shows for each value of --by: the jobs and their outcomes, the wait from due time \
to first attempt, the maximum and mean running weight, and its share of the limit. Below it are \
the first fault of a plugin, and what the plugin logged.

Examples:
  tidegate simulate day.json --by region --picture day.svg
  tidegate simulate day.json --plugin region-share.wasm
  tidegate simulate day.json --plugin old.wasm --against new.wasm --by region
  tidegate simulate trace.json --plugin mine.wasm --limit 100 --limit east=40 \
--by region --picture trace.svg
  tidegate simulate scenarios/*.json --plugin mine.wasm

Exit code 1: an expectation was not met.")]
pub struct Args {
    /// The scenarios or traces, JSON; `-` reads standard input.
    #[arg(required = true, value_name = "SCENARIO")]
    scenarios: Vec<PathBuf>,
    /// The queue's throttler.
    #[arg(long, value_name = "FILE.wasm")]
    plugin: Option<PathBuf>,
    /// The throttler's configuration, JSON [default: the scenario's].
    #[arg(long, value_name = "JSON")]
    config: Option<String>,
    /// The retry strategy of every job type.
    #[arg(long, value_name = "FILE.wasm")]
    retry_plugin: Option<PathBuf>,
    /// The retry strategy's configuration, JSON, for types without one of their own [default: {}].
    #[arg(long, value_name = "JSON", requires = "retry_plugin")]
    retry_config: Option<String>,
    /// Another version of the throttler, or without one of the retry strategy, for a comparison.
    #[arg(long, value_name = "FILE.wasm")]
    against: Option<PathBuf>,
    /// The configuration of the other version, JSON [default: the same].
    #[arg(long, value_name = "JSON", requires = "against")]
    against_config: Option<String>,
    /// The maximum running weight, of all jobs or of one value of --by: shown in table and picture,
    /// and expected like the scenario's `max_running`. Repeatable.
    #[arg(long, value_name = "[VALUE=]N", value_parser = limit)]
    limit: Vec<(Option<String>, u64)>,
    /// What to group jobs by: an attribute, or `type` [default: that of the throttler or the
    /// queue].
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// The file for the picture of the only scenario; its name ends in .svg.
    #[arg(long, value_name = "OUT.svg")]
    picture: Option<PathBuf>,
    /// The maximum number of lines of a plugin's log to show (0 to 200).
    #[arg(
        long,
        value_name = "LINES",
        default_value_t = LOG_LINES,
        value_parser = clap::value_parser!(u16).range(..=MAX_LOG_LINES as i64),
    )]
    log: u16,
    /// How the attempts of a trace end: `job`, each job's as in the trace; `time`, as that of its
    /// type that started last before, so that an outage stays at its time [default: the
    /// scenario's].
    #[arg(long, value_name = "job|time", value_parser = outcomes)]
    outcomes: Option<Outcomes>,
    /// A seed in place of the scenario's.
    #[arg(long)]
    seed: Option<u64>,
}

/// The lines of a plugin's log that are shown without `--log`.
const LOG_LINES: u16 = 20;

impl Args {
    /// A scenario with the plugins of a project.
    pub fn of(scenario: PathBuf, plugin: Option<PathBuf>, retry_plugin: Option<PathBuf>) -> Self {
        Self {
            scenarios: vec![scenario],
            plugin,
            config: None,
            retry_plugin,
            retry_config: None,
            against: None,
            against_config: None,
            limit: Vec::new(),
            by: None,
            picture: None,
            log: LOG_LINES,
            outcomes: None,
            seed: None,
        }
    }
}

/// Reads a limit and the value that it applies to, or none for all jobs.
fn limit(text: &str) -> Result<(Option<String>, u64), &'static str> {
    let (value, most) =
        text.rsplit_once('=').map_or((None, text), |(value, most)| (Some(value.to_owned()), most));
    Ok((value, most.parse().map_err(|_| "a number is expected, or value=number")?))
}

/// Reads which attempts decide.
fn outcomes(text: &str) -> Result<Outcomes, &'static str> {
    serde_json::from_value(text.into()).map_err(|_| "job or time is expected")
}

/// The output with `--json`: a line for each scenario.
#[derive(Serialize)]
struct Printed<'a> {
    /// The scenario, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    scenario: Option<String>,
    simulated: &'a SimulationReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<&'a SimulationReport>,
    /// The number of jobs that the two decided differently.
    #[serde(skip_serializing_if = "Option::is_none")]
    differing_jobs: Option<u64>,
    /// The first differences.
    #[serde(skip_serializing_if = "Option::is_none")]
    differences: Option<&'a [Difference]>,
    /// The history of the live queue, if the scenario is a trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    real: Option<&'a SimulationReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agreement: Option<&'a Agreement>,
}

/// Simulates the scenarios, one after the other.
///
/// # Errors
///
/// A scenario or a component is invalid, or the simulated queue rejects them.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    check_picture(&args)?;
    let mut scenarios = Vec::with_capacity(args.scenarios.len());
    for file in &args.scenarios {
        scenarios.push((file, scenario(&args, file).await?));
    }
    let mut all_met = true;
    for (file, scenario) in scenarios {
        if args.scenarios.len() > 1 && !ctx.json() {
            ctx.print(format_args!("{}", file.display()))?;
        }
        all_met &= Box::pin(run_one(&args, file, scenario, ctx)).await?;
    }
    Ok(if all_met { ExitCode::Ok } else { ExitCode::Refused })
}

/// Simulates one scenario, and returns whether its expectations are met.
async fn run_one(
    args: &Args,
    file: &Path,
    mut scenario: Scenario,
    ctx: &Context,
) -> anyhow::Result<bool> {
    let plugins = plugins::plugins(&scenario, throttler(args), retry(args)).await?;
    let by = by(args, &scenario, &plugins);
    for (value, most) in &args.limit {
        let key = value.as_ref().map_or_else(String::new, |value| format!("{}={value}", by.name()));
        scenario.expect.max_running.insert(key, *most);
    }
    let one = simulated(&scenario, &plugins, &by, ctx).await?;
    let other = match other_plugins(args, &scenario).await? {
        Some(plugins) => Some(simulated(&scenario, &plugins, &by, ctx).await?),
        None => None,
    };
    if let Some(file) = &args.picture {
        draw(file, &one, other.as_ref(), &names(args)).await?;
    }
    print(args, file, &one, other.as_ref(), ctx)?;
    let reports = [Some(&one), other.as_ref()].into_iter().flatten();
    let mut expectations = reports.flat_map(|simulation| &simulation.report.expectations);
    Ok(expectations.all(|expectation| expectation.met))
}

/// Checks that the picture goes to an SVG file, and shows one scenario.
fn check_picture(args: &Args) -> Result<(), UsageError> {
    if args.picture.is_some() && args.scenarios.len() > 1 {
        return Err(UsageError("--picture shows one scenario: simulate them one by one".into()));
    }
    let is_svg =
        |file: &&PathBuf| file.extension().is_some_and(|end| end.eq_ignore_ascii_case("svg"));
    match args.picture.as_ref().filter(|file| !is_svg(file)) {
        Some(file) => Err(UsageError(format!(
            "--picture {} must end in .svg: the picture is SVG, which browsers show and most tools \
             convert",
            file.display()
        ))),
        None => Ok(()),
    }
}

/// Returns the throttler of the options.
fn throttler(args: &Args) -> Given<'_> {
    args.plugin.as_deref().map(|file| (file, args.config.as_deref()))
}

/// Returns the retry strategy of the options.
fn retry(args: &Args) -> Given<'_> {
    args.retry_plugin.as_deref().map(|file| (file, args.retry_config.as_deref()))
}

/// Returns the plugins of the other simulation: `--against` replaces the throttler, or without one
/// the retry strategy. None without `--against`.
async fn other_plugins(args: &Args, scenario: &Scenario) -> anyhow::Result<Option<Plugins>> {
    let Some(file) = args.against.as_deref() else {
        return Ok(None);
    };
    let other = args.against_config.as_deref();
    let (throttler, retry) = match (throttler(args), retry(args)) {
        (Some((_, config)), retry) => (Some((file, other.or(config))), retry),
        (None, retry) => (None, retry.map(|(_, config)| (file, other.or(config)))),
    };
    Ok(Some(plugins::plugins(scenario, throttler, retry).await?))
}

/// Draws the simulations, and the live queue if the scenario is a trace, into `file`.
async fn draw(
    file: &Path,
    one: &Simulation,
    other: Option<&Simulation>,
    names: &[String; 2],
) -> anyhow::Result<()> {
    let real = one.real.as_ref().map(|(real, _)| ("what the queue really did", real));
    let simulated = [(names[0].as_str(), Some(one)), (names[1].as_str(), other)];
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
        .with_context(|| format!("{} cannot be written", file.display()))
}

/// Prints the reports as JSON or as tables.
fn print(
    args: &Args,
    file: &Path,
    one: &Simulation,
    other: Option<&Simulation>,
    ctx: &Context,
) -> anyhow::Result<()> {
    let differences = other.map(|other| one.differences(other));
    if !ctx.json() {
        let (differences, names) = (differences.as_ref(), names(args));
        let lines = usize::from(args.log);
        let tables = table::render(one, other, differences, &names, lines, ctx.look);
        return Ok(ctx.print_tables(tables)?);
    }
    let printed = Printed {
        scenario: (args.scenarios.len() > 1).then(|| file.display().to_string()),
        simulated: &one.report,
        against: other.map(|other| &other.report),
        differing_jobs: differences.as_ref().map(|(_, count)| *count),
        differences: differences.as_ref().map(|(first, _)| first.as_slice()),
        real: one.real.as_ref().map(|(real, _)| real),
        agreement: one.real.as_ref().map(|(_, agreement)| agreement),
    };
    Ok(ctx.print(serde_json::to_string(&printed)?)?)
}

/// Reads the scenario and checks that it has a component for each plugin that it names.
async fn scenario(args: &Args, path: &Path) -> anyhow::Result<Scenario> {
    let text = args::json_from(None, Some(path))
        .await?
        .ok_or_else(|| UsageError("give a scenario".to_owned()))?;
    let file = path.display();
    let mut scenario =
        Scenario::read(text.0.get()).map_err(|bad| UsageError(format!("{file}: {bad}")))?;
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    scenario.outcomes = args.outcomes.unwrap_or(scenario.outcomes);
    check_plugins(args, path, &scenario)?;
    Ok(scenario)
}

/// Checks that the options have a component for each plugin of `scenario`.
fn check_plugins(args: &Args, path: &Path, scenario: &Scenario) -> Result<(), UsageError> {
    let file = path.display();
    if args.against.is_some() && args.plugin.is_none() && args.retry_plugin.is_none() {
        let message = "--against needs a --plugin or a --retry-plugin to be compared with";
        return Err(UsageError(message.to_owned()));
    }
    if let Some(throttler) = scenario.queue.throttler.as_ref().filter(|_| args.plugin.is_none()) {
        return Err(UsageError(format!(
            "{file}: its queue has the throttler {}; give the component with --plugin",
            throttler.plugin
        )));
    }
    let retried = scenario.types.iter().find_map(|(name, config)| match &config.retry {
        Retry::Plugin(plugin, _) => Some((name, plugin)),
        Retry::Exponential(_) => None,
    });
    match retried.filter(|_| args.retry_plugin.is_none()) {
        Some((name, plugin)) => Err(UsageError(format!(
            "{file}: its type {name} has the retry strategy {plugin}; \
             give the component with --retry-plugin"
        ))),
        None => Ok(()),
    }
}

/// Returns what jobs are grouped by: `--by`, else the attribute that the throttler's configuration
/// names or its description declares, else that of the queue's limits, else the job type.
fn by(args: &Args, scenario: &Scenario, plugins: &Plugins) -> By {
    let declared = plugins.throttler.as_ref().and_then(|(version, throttler)| {
        let configured =
            throttler.config.get("attribute").and_then(Json::as_str).map(str::to_owned);
        let groups = version.throttler.iter().flat_map(|description| &description.group_by);
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

/// Simulates `scenario` and shows the progress.
async fn simulated(
    scenario: &Scenario,
    plugins: &Plugins,
    by: &By,
    ctx: &Context,
) -> anyhow::Result<Simulation> {
    let bar = ctx.progress(scenario.job_count(), "simulated jobs");
    let done = simulate::simulate(scenario, plugins, by.clone(), &mut |ended| {
        bar.set_position(ended);
        GoesOn::Continue(())
    })
    .await;
    bar.finish_and_clear();
    Ok(done?)
}

/// Returns the names of the two simulations: their files, numbered if both have the same name.
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
mod tests;
