//! `tidegate queues simulate`: the recorded jobs of a queue, run again with a change.

use std::{collections::BTreeMap, fmt::Write as _, path::PathBuf, time::Duration};

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    Context, ExitCode, UsageError,
    args::{self, Json},
    client::Client,
    output::{self, OutputStyle},
};
use tidegate_api::{Quantiles, SimulatedGroup, SimulatedQueue, SimulatedRun};
use tidegate_core::time::{Seconds, Timestamp};

/// The constraint that a rate without a name sets.
const RATE_CONSTRAINT: &str = "rate";

/// The options of `tidegate queues simulate`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Nothing is changed. The table has the recorded run, and simulations as the \
    queue is configured and with the change.\n\n\
    Examples:\n  \
    tidegate queues simulate mail --limit 20\n  \
    tidegate queues simulate mail --rate 100/1m --order priority --by tenant\n  \
    tidegate queues simulate mail --limit tenant=5 --rate tenant=10/1s --over 15m\n  \
    tidegate queues simulate mail --plugin-version 4\n  \
    tidegate queues simulate mail --config '{\"partition_by\": \"tenant\"}' \
    --type 'letter={\"concurrency\": 2}'"
)]
pub struct Args {
    /// The queue.
    name: String,
    /// How far back the recorded jobs go, 1m to 24h.
    #[arg(long, value_name = "SPAN", value_parser = args::span, default_value = "1h")]
    over: Seconds,
    /// The limit of the queue or of a constraint; `none` removes that of the queue; repeatable.
    #[arg(long = "limit", value_name = "[CONSTRAINT=]N", value_parser = limit)]
    limits: Vec<Limit>,
    /// The rate of a constraint; without its name, of the constraint `rate`, which is added if
    /// there is none; repeatable.
    #[arg(long = "rate", value_name = "[CONSTRAINT=]COUNT/SPAN", value_parser = rate)]
    rates: Vec<RateOf>,
    /// Which candidate goes first.
    #[arg(long)]
    order: Option<Order>,
    /// The version of the throttler's plugin [default: the live one].
    #[arg(long, value_name = "NUMBER")]
    plugin_version: Option<u32>,
    /// Other settings of the queue as for `queues patch`, JSON; `-` reads standard input. The
    /// options above win.
    #[arg(long, value_name = "JSON", conflicts_with = "file")]
    config: Option<String>,
    /// A file with other settings of the queue, JSON.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Settings of a type of the queue as for `types patch`; repeatable.
    #[arg(long = "type", value_name = "TYPE=JSON", value_parser = args::field)]
    types: Vec<(String, Json)>,
    /// Group the jobs by `type` or by this attribute.
    #[arg(long, value_name = "NAME", default_value = "type")]
    by: String,
    /// How many jobs the workers run at once [default: as many as they ran at most].
    #[arg(long, value_name = "N")]
    workers: Option<u32>,
}

/// The order of candidates.
#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Order {
    /// Due time first.
    Time,
    /// Priority first.
    Priority,
}

/// A limit of the queue, or of the named constraint.
#[derive(Clone, Debug, PartialEq)]
struct Limit {
    constraint: Option<String>,
    most: Option<u32>,
}

/// A rate of the named constraint.
#[derive(Clone, Debug, PartialEq)]
struct RateOf {
    constraint: Option<String>,
    count: u32,
    per: Seconds,
}

/// The name before the last `=`, and the rest.
fn named(text: &str) -> Result<(Option<String>, &str), String> {
    match text.rsplit_once('=') {
        Some(("", _)) => Err("the constraint has no name".to_owned()),
        Some((name, rest)) => Ok((Some(name.to_owned()), rest)),
        None => Ok((None, text)),
    }
}

fn limit(text: &str) -> Result<Limit, String> {
    let (constraint, number) = named(text)?;
    let most = match number {
        "none" if constraint.is_none() => None,
        number => Some(number.parse().map_err(|_| "a number such as 20 is expected")?),
    };
    Ok(Limit { constraint, most })
}

fn rate(text: &str) -> Result<RateOf, String> {
    const HELP: &str = "a count and a span such as 100/1m is expected";
    let (constraint, rate) = named(text)?;
    let (count, per) = rate.split_once('/').ok_or(HELP)?;
    Ok(RateOf { constraint, count: count.parse().map_err(|_| HELP)?, per: args::span(per)? })
}

impl Args {
    /// The settings of `--config` or `--file`.
    ///
    /// # Errors
    ///
    /// [`UsageError`] if the file cannot be read, or the settings are no object.
    async fn given(&self) -> anyhow::Result<Map<String, Value>> {
        match args::json_from(self.config.as_deref(), self.file.as_deref()).await? {
            Some(Json(text)) => Ok(serde_json::from_str(text.get())
                .map_err(|_| UsageError("the settings must be a JSON object".to_owned()))?),
            None => Ok(Map::new()),
        }
    }

    /// The change of the queue, as a merge patch of `stored`: `patch` and the options.
    ///
    /// # Errors
    ///
    /// [`UsageError`] if a constraint does not exist.
    fn queue(&self, mut patch: Map<String, Value>, stored: &Value) -> anyhow::Result<Value> {
        let constraints = patch.get("constraints").unwrap_or(&stored["constraints"]);
        let mut constraints = constraints.as_array().cloned().unwrap_or_default();
        for Limit { constraint, most } in &self.limits {
            match constraint {
                Some(name) => self.constraint(&mut constraints, name)?["concurrency"] = json!(most),
                None => drop(patch.insert("concurrency".to_owned(), json!(most))),
            }
        }
        for RateOf { constraint, count, per } in &self.rates {
            let name = constraint.as_deref().unwrap_or(RATE_CONSTRAINT);
            if constraint.is_none() && !constraints.iter().any(|one| one["name"] == name) {
                constraints.push(json!({ "name": name }));
            }
            let rate = json!({"count": count, "per_seconds": per});
            self.constraint(&mut constraints, name)?["rate"] = rate;
        }
        let is_named = self.limits.iter().any(|limit| limit.constraint.is_some());
        if is_named || !self.rates.is_empty() {
            patch.insert("constraints".to_owned(), constraints.into());
        }
        if let Some(order) = self.order {
            patch.insert("order".to_owned(), serde_json::to_value(order)?);
        }
        Ok(patch.into())
    }

    /// The constraint of this name.
    fn constraint<'a>(
        &self,
        constraints: &'a mut [Value],
        name: &str,
    ) -> anyhow::Result<&'a mut Value> {
        let found = constraints.iter_mut().find(|one| one.is_object() && one["name"] == name);
        found.ok_or_else(|| {
            UsageError(format!("queue {} has no constraint {name}", self.name)).into()
        })
    }
}

/// Simulates the queue and shows the runs.
///
/// # Errors
///
/// A constraint does not exist; the server is unreachable or rejects the request.
pub async fn run(args: Args, client: &Client, ctx: &Context) -> anyhow::Result<ExitCode> {
    let given = args.given().await?;
    let stored: Value = client.get(&["queues", &args.name]).send().await?.read()?;
    let types: BTreeMap<&str, &Json> =
        args.types.iter().map(|(name, change)| (name.as_str(), change)).collect();
    let by = match args.by.as_str() {
        "type" => "type".to_owned(),
        attribute => format!("attribute.{attribute}"),
    };
    let mut body = json!({
        "over_seconds": args.over, "queue": args.queue(given, &stored)?, "types": types, "by": by,
    });
    if let Some(version) = args.plugin_version {
        body["throttler_version"] = version.into();
    }
    if let Some(workers) = args.workers {
        body["workers"] = workers.into();
    }
    let request = client.post(&["queues", &args.name, "simulate"]).json(&body);
    let answer = request.wait(MAX_RUN).send().await?;
    if ctx.json() {
        ctx.print_body(&answer.body)?;
    } else {
        let by = args.by.as_str();
        ctx.print_tables(render(ctx.look, &answer.read()?, by, ctx.now()))?;
    }
    Ok(ExitCode::Ok)
}

/// How long a server simulates.
const MAX_RUN: Duration = Duration::from_secs(10);

/// What was simulated, the runs, their groups, and the jobs that plugins decided differently.
fn render(look: OutputStyle, simulated: &SimulatedQueue, by: &str, now: Timestamp) -> String {
    let SimulatedQueue { jobs, from, workers, left_out, recorded, current, changed, .. } =
        simulated;
    let mut about = format!(
        "{jobs} jobs, the first of {} ({}); workers run at most {workers} at once",
        from,
        output::when(*from, now)
    );
    for left in left_out {
        let jobs = left.jobs.map_or_else(String::new, |jobs| format!("{jobs} "));
        let _ = write!(about, "\nleft out: {jobs}jobs {}", left.reason);
    }
    if simulated.stopped_early {
        about += "\na simulation took too long and ended early: so do its numbers";
    }
    let mut parts = vec![about, runs(look, recorded.as_ref(), current, changed)];
    if current.groups.len() + changed.groups.len() > 2 {
        parts.push(groups(look, by, recorded.as_ref(), current, changed));
    }
    if simulated.different_jobs > 0 {
        parts.push(format!("{} jobs were decided differently:", simulated.different_jobs));
        let rows = simulated.differences.iter().map(|one| {
            let at = took(Some(one.at_seconds));
            [at, one.job.clone(), one.value.clone(), one.current.clone(), one.changed.clone()]
        });
        parts.push(output::table(look, ["at", "job", by, "current", "changed"], rows));
    }
    parts.join("\n\n")
}

/// A row for each number of a run, a column for each run.
fn runs(
    look: OutputStyle,
    recorded: Option<&SimulatedRun>,
    current: &SimulatedRun,
    changed: &SimulatedRun,
) -> String {
    let row = |name: &str, shown: &dyn Fn(&SimulatedRun) -> String| {
        let recorded = recorded.map_or_else(output::dash, shown);
        [name.to_owned(), recorded, shown(current), shown(changed)]
    };
    let limit = |run: &SimulatedRun| run.series.points.first().and_then(|point| point.limit);
    let rows = [
        row("limit", &|run: &SimulatedRun| {
            limit(run).map_or_else(output::dash, |limit| limit.to_string())
        }),
        row("finished", &|run: &SimulatedRun| run.finished.to_string()),
        row("failed", &|run: &SimulatedRun| run.failed.to_string()),
        row("expired", &|run: &SimulatedRun| run.expired.to_string()),
        row("start delay p50", &|run: &SimulatedRun| took(run.start_delay_seconds.p50)),
        row("start delay p95", &|run: &SimulatedRun| took(run.start_delay_seconds.p95)),
        row("start delay p99", &|run: &SimulatedRun| took(run.start_delay_seconds.p99)),
        row("run time p50", &|run: &SimulatedRun| took(run.run_seconds.p50)),
        row("run time p99", &|run: &SimulatedRun| took(run.run_seconds.p99)),
        row("jobs/s", &|run: &SimulatedRun| format!("{:.2}", run.throughput_per_second)),
        row("limit used", &|run: &SimulatedRun| run.utilization.map_or_else(output::dash, percent)),
        row("all ended after", &|run: &SimulatedRun| took(run.drained_after_seconds)),
    ];
    output::table(look, ["", "recorded", "current", "changed"], rows)
}

/// A row for each value with its start delay (p50 / p99) and its share of the weight.
fn groups(
    look: OutputStyle,
    by: &str,
    recorded: Option<&SimulatedRun>,
    current: &SimulatedRun,
    changed: &SimulatedRun,
) -> String {
    let find = |run: Option<&SimulatedRun>, value: &str| -> Option<SimulatedGroup> {
        run?.groups.iter().find(|group| group.value == value).cloned()
    };
    let missing = changed.groups.iter().filter(|group| find(Some(current), &group.value).is_none());
    let rows = current.groups.iter().chain(missing).map(|group| {
        let runs = [recorded, Some(current), Some(changed)].map(|run| find(run, &group.value));
        let [recorded, current, changed] = runs.each_ref().map(|of| {
            of.as_ref().map_or_else(output::dash, |of| {
                let Quantiles { p50, p99, .. } = of.start_delay_seconds;
                format!("{} / {}", took(p50), took(p99))
            })
        });
        let [_, share, new_share] =
            runs.map(|of| of.map_or_else(output::dash, |of| percent(of.share)));
        let value = if group.value.is_empty() { output::dash() } else { group.value.clone() };
        [value, group.jobs.to_string(), recorded, current, changed, share, new_share]
    });
    let names =
        [by, "jobs", "delay recorded", "current", "changed", "share current", "share changed"];
    output::table(look, names, rows)
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// A span for people; a dash if there is none.
fn took(seconds: impl Into<Option<f64>>) -> String {
    let span = seconds.into().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    span.map_or_else(output::dash, output::took)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::testing::{FakeServer, sample};

    fn run_of(limit: Option<u32>, delay: f64) -> Value {
        let quantiles =
            |seconds: f64| json!({"p50": seconds, "p95": seconds, "p99": seconds * 2.0});
        let group = |value: &str, jobs: u64, share: f64| {
            json!({
                "value": value, "jobs": jobs, "start_delay_seconds": quantiles(delay),
                "share": share,
            })
        };
        json!({
            "finished": 12, "failed": 1, "expired": 0, "start_delay_seconds": quantiles(delay),
            "run_seconds": quantiles(0.25), "throughput_per_second": 1.5,
            "utilization": limit.map(|_| 0.75), "drained_after_seconds": 90.0,
            "series": {"step_seconds": 1, "points": [
                {"at": 0, "waiting": 3, "running": 1, "limit": limit},
            ]},
            "groups": [group("a", 8, 0.5), group("b", 4, 0.5)],
        })
    }

    fn simulated() -> Value {
        json!({
            "jobs": 12, "from": "2001-09-09T01:44:40Z", "workers": 4,
            "left_out": [
                {"reason": "enqueued before this time, and not ended", "jobs": 3},
                {"reason": "enqueued before the latest 100000", "jobs": null},
            ],
            "recorded": run_of(None, 0.5), "current": run_of(None, 0.4),
            "changed": run_of(Some(1), 61.0),
            "differences": [{
                "job": "j1", "value": "a", "at_seconds": 2.5, "current": "admit",
                "changed": "hold: full",
            }],
            "different_jobs": 1, "stopped_early": true,
        })
    }

    #[test]
    fn the_runs_are_shown_side_by_side() {
        let simulated: SimulatedQueue = serde_json::from_value(simulated()).unwrap();
        let now = Timestamp::from_millis(1_000_000_000_000);
        insta::assert_snapshot!(render(OutputStyle::default(), &simulated, "tenant", now));
    }

    #[tokio::test]
    async fn options_are_a_patch_of_the_queue() {
        let tenant = json!({"name": "tenant", "match": {}, "per": "tenant", "concurrency": 3});
        let queue = sample::queue(json!({"concurrency": 9, "constraints": [tenant]}));
        let server = FakeServer::answering(move |seen| match seen.method.as_str() {
            "GET" => (200, queue.clone()),
            _ => (200, simulated()),
        })
        .await;
        let simulate = async |options: &[&str]| {
            let (code, _) = server.run(&[&["queues", "simulate", "q"], options].concat()).await;
            (code, server.seen().last().unwrap().clone())
        };
        let (code, seen) = simulate(&[]).await;
        let body = json!({"over_seconds": 3600, "queue": {}, "types": {}, "by": "type"});
        assert_eq!((code, seen.line().as_str()), (ExitCode::Ok, "POST /v1/queues/q/simulate"));
        assert_eq!(seen.body, body);

        let all = "--over 15m --limit none --limit tenant=5 --rate tenant=10/1s --rate 100/1m \
             --order priority --plugin-version 4 --by tenant --workers 7 \
             --config {\"ageing_seconds\":60} --type letter={\"weight\":2}";
        let (_, seen) = simulate(&all.split_whitespace().collect::<Vec<_>>()).await;
        let tenant = json!({
            "name": "tenant", "match": {}, "per": "tenant", "concurrency": 5,
            "rate": {"count": 10, "per_seconds": 1},
        });
        let rate = json!({"name": "rate", "rate": {"count": 100, "per_seconds": 60}});
        let body = json!({
            "over_seconds": 900, "by": "attribute.tenant", "workers": 7, "throttler_version": 4,
            "queue": {
                "concurrency": null, "order": "priority", "ageing_seconds": 60,
                "constraints": [tenant, rate],
            },
            "types": {"letter": {"weight": 2}},
        });
        assert_eq!(seen.body, body);
    }

    #[tokio::test]
    async fn a_wrong_option_of_a_simulation_is_wrong_usage() {
        let server = FakeServer::answering(|_| (200, sample::queue(json!({})))).await;
        for options in [&["--limit", "none=3"][..], &["--rate", "tenant=5/1s"], &["--config", "[]"]]
        {
            let (code, _) = server.run(&[&["queues", "simulate", "q"], options].concat()).await;
            assert_eq!(code, ExitCode::Usage, "{options:?}");
        }
        assert!(server.seen().iter().all(|seen| seen.method == "GET"));
        for text in ["", "=3", "many", "-1", "tenant=none", "tenant="] {
            assert!(limit(text).is_err(), "{text}");
        }
        for text in ["", "100", "x/1s", "1/x", "=1/1s", "tenant=1"] {
            assert!(rate(text).is_err(), "{text}");
        }
        let named = Limit { constraint: Some("a=b".into()), most: Some(3) };
        assert_eq!(limit("a=b=3"), Ok(named));
    }
}
