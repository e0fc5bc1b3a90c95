//! `tidegate plugin bench`: the cost of a call, at several sizes of its input.
//!
//! Fuel and memory are the same on every machine; the time is that of this one.

use std::{path::PathBuf, time::Duration};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::local;
use crate::cli::{Context, ExitCode, UsageError, args, output, safe};
use crate::plugin_testing::{Case, Component};
use tidegate_backends::wasm::bounds;
use tidegate_core::{port::policy::Usage, queue::plugin::Role};

/// Running jobs and candidates of each size.
const THROTTLER: [(usize, usize); 6] =
    [(0, 1), (10, 10), (100, 100), (1000, 100), (10_000, 100), (10_000, 1000)];
/// Groups of what waits, by each attribute: as many as a queue has at most.
const WAITING_GROUPS: usize = 1000;
/// Earlier failures of each size.
const EARLIER_FAILURES: [usize; 3] = [0, 10, 50];

/// The options of `tidegate plugin bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    tidegate plugin bench region-share.wasm --attribute region=east,north,west \\\n    \
    --config '{\"attribute\": \"region\", \"limit\": 100, \
    \"shares\": {\"east\": 40, \"north\": 30, \"west\": 30}}'")]
pub struct Args {
    /// The component.
    file: PathBuf,
    /// The configuration of each call, JSON; `-` reads standard input.
    #[arg(long, value_name = "JSON")]
    config: Option<String>,
    /// An attribute of each job; the jobs take its values in turn. Repeatable.
    #[arg(long, value_name = "NAME=A,B,C", value_parser = attribute)]
    attribute: Vec<(String, Vec<String>)>,
    /// The number of calls of each size.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    calls: u32,
}

fn attribute(text: &str) -> Result<(String, Vec<String>), String> {
    let (name, values) = text
        .split_once('=')
        .filter(|(name, values)| !name.is_empty() && !values.is_empty())
        .ok_or("name=a,b,c is expected")?;
    Ok((name.to_owned(), values.split(',').map(str::to_owned).collect()))
}

/// The usage of the calls of one size.
#[derive(Serialize)]
struct Row {
    role: Role,
    running: usize,
    candidates: usize,
    earlier_failures: usize,
    /// Fuel of one call; every call uses the same.
    fuel: Option<u64>,
    memory_bytes: u64,
    host_calls: u32,
    median_seconds: f64,
    slowest_seconds: f64,
    /// The fault of a call, if one failed; the numbers are those of that call.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<Value>,
}

/// Measures the calls. If a call fails, the row of its size shows the fault, and the exit code is
/// 1.
///
/// # Errors
///
/// The component is not a plugin, or it rejects the configuration.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let config = match args::json_from(args.config.as_deref(), None).await? {
        Some(json) => serde_json::from_str(json.0.get())?,
        None => json!({}),
    };
    let plugin = local::open(&args.file, ctx).await?;
    let roles: Vec<Role> = plugin.roles().map(|(role, _)| role).collect();
    let mut rows = Vec::new();
    for role in roles {
        match role {
            Role::Throttler => {
                for (running, candidates) in THROTTLER {
                    let case = throttle(&config, &args.attribute, running, candidates);
                    let row = measured(&plugin, &case, args.calls).await?;
                    rows.push(Row { running, candidates, ..row });
                }
            }
            Role::Retry => {
                for earlier in EARLIER_FAILURES {
                    let row =
                        measured(&plugin, &retry(&config, &args.attribute, earlier), args.calls)
                            .await?;
                    rows.push(Row { earlier_failures: earlier, ..row });
                }
            }
        }
    }
    if ctx.json() {
        ctx.print(json!({"calls": args.calls, "bytes": plugin.bytes, "rows": rows}))?;
    } else {
        ctx.print_tables(render(&rows, ctx))?;
        let (fuel, time, memory) =
            (bounds::FUEL / 1_000_000, bounds::TIME.as_millis(), bounds::MEMORY >> 20);
        ctx.print(format_args!(
            "\nA call may use {fuel} million fuel, {time} ms and {memory} MiB. \
             {} calls of each size.",
            args.calls
        ))?;
    }
    Ok(if rows.iter().any(|row| row.fault.is_some()) { ExitCode::Refused } else { ExitCode::Ok })
}

fn render(rows: &[Row], ctx: &Context) -> String {
    let span = |seconds: f64| local::time(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let table = rows.iter().map(|row| {
        [
            local::word(row.role).to_owned(),
            shown(row),
            row.fuel.map_or_else(output::dash, |fuel| fuel.to_string()),
            span(row.median_seconds),
            span(row.slowest_seconds),
            local::size(row.memory_bytes),
            row.host_calls.to_string(),
        ]
    });
    let table = output::table(
        ctx.look,
        ["role", "shown", "fuel", "median", "slowest", "memory", "host calls"],
        table,
    );
    let faults = rows.iter().filter_map(|row| Some((row, row.fault.as_ref()?)));
    faults.fold(table, |text, (row, fault)| {
        let (kind, message) = (
            fault["kind"].as_str().unwrap_or_default(),
            fault["message"].as_str().unwrap_or_default(),
        );
        format!("{text}\n{} failed ({kind}): {}", shown(row), safe::line(message))
    })
}

/// Returns the input of a call of this size, in words.
fn shown(row: &Row) -> String {
    match row.role {
        Role::Throttler => format!("{} running, {} candidates", row.running, row.candidates),
        Role::Retry => format!("{} earlier failures", row.earlier_failures),
    }
}

/// Returns a throttler's call with `running` jobs and `candidates`.
fn throttle(
    config: &Value,
    given: &[(String, Vec<String>)],
    running: usize,
    candidates: usize,
) -> Value {
    let jobs = |word: &str, count: usize| -> Vec<Value> {
        (0..count)
            .map(|place| {
                json!({
                    "id": format!("{word}-{place}"),
                    "attributes": attributes(given, place),
                    "data": {"place": place},
                })
            })
            .collect()
    };
    let running: Vec<Value> = (0..running)
        .map(|place| {
            json!({"id": format!("running-{place}"), "attributes": attributes(given, place)})
        })
        .collect();
    json!({
        "name": "bench", "role": "throttler", "config": config, "concurrency": 20_000,
        "running": running, "candidates": jobs("job", candidates),
        "waiting": {"groups": waiting(given)},
    })
}

/// Returns what waits by each attribute: a hundred jobs of each of a thousand values, the given ones
/// first.
fn waiting(given: &[(String, Vec<String>)]) -> Map<String, Value> {
    let groups = |values: &[String]| -> Map<String, Value> {
        let further = (values.len()..WAITING_GROUPS).map(|place| format!("value-{place}"));
        let values = values.iter().take(WAITING_GROUPS).cloned().chain(further);
        values.map(|value| (value, json!({"count": 100}))).collect()
    };
    given.iter().map(|(name, values)| (name.clone(), groups(values).into())).collect()
}

/// Returns a retry strategy's call after `earlier` failures.
fn retry(config: &Value, given: &[(String, Vec<String>)], earlier: usize) -> Value {
    let failures = vec![json!({"message": "it did not go well", "status": 503}); earlier];
    let job = json!({
        "attempt": earlier + 1, "attempts": 1000, "attributes": attributes(given, 0),
        "data": {"place": 0}, "earlier": failures,
    });
    json!({
        "name": "bench", "role": "retry", "config": config, "job": job,
        "failure": {"status": 503, "message": "busy"},
    })
}

fn attributes(given: &[(String, Vec<String>)], place: usize) -> Map<String, Value> {
    given
        .iter()
        .map(|(name, values)| (name.clone(), values[place % values.len()].as_str().into()))
        .collect()
}

/// Makes `calls` calls of `case` and returns their usage.
async fn measured(plugin: &Component, case: &Value, calls: u32) -> anyhow::Result<Row> {
    let case = Case::read(&case.to_string()).map_err(anyhow::Error::msg)?.remove(0);
    if let Some(problem) = plugin.problems(case.role, &case.config()).await?.into_iter().next() {
        let place =
            if problem.path.is_empty() { String::new() } else { format!("{}: ", problem.path) };
        return Err(UsageError(format!(
            "the configuration is not good for it: {place}{}; give one with --config",
            problem.message
        ))
        .into());
    }
    let call = case.call().map_err(anyhow::Error::msg)?;
    let (mut used, mut fault): (Vec<Usage>, _) = (Vec::new(), None);
    for _ in 0..calls {
        fault = plugin.call(&call).await.err();
        used.push(plugin.usage());
        plugin.take_log();
        if fault.is_some() {
            used.drain(..used.len() - 1);
            break;
        }
    }
    used.sort_by_key(|usage| usage.took);
    let (median, slowest) = (used[used.len() / 2], used[used.len() - 1]);
    Ok(Row {
        role: case.role,
        running: 0,
        candidates: 0,
        earlier_failures: 0,
        fuel: median.fuel,
        memory_bytes: median.memory_bytes,
        host_calls: median.host_calls,
        median_seconds: median.took.as_secs_f64(),
        slowest_seconds: slowest.took.as_secs_f64(),
        fault: fault.map(|fault| json!({"kind": fault.kind.as_str(), "message": fault.message})),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_take_the_values_of_an_attribute_in_turn() {
        let given = [attribute("region=east,west").unwrap()];
        let case = throttle(&json!({}), &given, 2, 3);
        let regions: Vec<&str> = case["candidates"]
            .as_array()
            .unwrap()
            .iter()
            .map(|job| job["attributes"]["region"].as_str().unwrap())
            .collect();
        assert_eq!(regions, ["east", "west", "east"]);
        let groups = case["waiting"]["groups"]["region"].as_object().unwrap();
        assert_eq!((groups.len(), &groups["west"]["count"]), (WAITING_GROUPS, &json!(100)));
        assert!(
            attribute("region").is_err()
                && attribute("=a").is_err()
                && attribute("region=").is_err()
        );
    }

    #[test]
    fn every_size_is_a_case() {
        for (running, candidates) in THROTTLER {
            let case = Case::read(&throttle(&json!({}), &[], running, candidates).to_string())
                .unwrap()
                .remove(0);
            assert!(case.call().is_ok());
            assert_eq!(case.candidates(), candidates);
        }
        for earlier in EARLIER_FAILURES {
            let case = Case::read(&retry(&json!({}), &[], earlier).to_string()).unwrap().remove(0);
            case.call().unwrap();
        }
    }
}
