//! The history of a queue, a job type or a worker.

use std::time::Duration;

use super::{
    Context, ExitCode,
    client::{ApiResponse, Client},
    output,
};
use tidegate_api::{
    History, HistoryPoint, HistoryRange, Quantiles, WorkerHistory, WorkerHistoryPoint,
};
use tidegate_core::time::Timestamp;

/// Steps of the table, the latest ones.
const SHOWN: usize = 30;

/// A queue, a job type or a worker, and how far back its history goes.
#[derive(Debug, clap::Args)]
pub struct Show {
    /// The name.
    name: String,
    /// How far back.
    #[arg(long, value_enum, default_value_t = Range::Hour)]
    range: Range,
}

/// How far back a history goes.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Range {
    /// The last hour, in steps of 10 seconds (60 on AWS).
    Hour,
    /// The last 24 hours, in steps of 5 minutes.
    Day,
}

/// Requests the history of an item below `kind`. With `--json` it is printed, and there is no answer.
async fn request(
    client: &Client,
    kind: &str,
    Show { name, range }: &Show,
    ctx: &Context,
) -> anyhow::Result<Option<ApiResponse>> {
    let request = client.get(&[kind, name, "history"]);
    let request = match range {
        Range::Hour => request,
        Range::Day => request.query("range", HistoryRange::Day.as_str()),
    };
    let answer = request.send().await?;
    if !ctx.json() {
        return Ok(Some(answer));
    }
    ctx.print_body(&answer.body)?;
    Ok(None)
}

/// Prints the latest steps as a table.
fn print_steps<P>(
    points: &[P],
    table: impl FnOnce(&[P]) -> String,
    ctx: &Context,
) -> anyhow::Result<()> {
    if !points.is_empty() {
        let hidden = points.len().saturating_sub(SHOWN);
        ctx.print_tables(table(&points[hidden..]))?;
        if hidden > 0 {
            ctx.note(format_args!("{hidden} earlier steps; see --json"));
        }
    }
    Ok(())
}

/// Prints the history of an item below `kind`.
///
/// # Errors
///
/// There is no such queue or type, or the server is unreachable or rejects the request.
pub async fn show(
    client: &Client,
    kind: &str,
    show: &Show,
    ctx: &Context,
) -> anyhow::Result<ExitCode> {
    if let Some(answer) = request(client, kind, show, ctx).await? {
        let history: History = answer.read()?;
        ctx.print(summary(&history))?;
        print_steps(&history.points, |points| table(ctx.look, points, ctx.now()), ctx)?;
    }
    Ok(ExitCode::Ok)
}

/// Prints the history of a worker.
///
/// # Errors
///
/// There is no such worker, the server keeps no history of workers, or it is unreachable or rejects
/// the request.
pub async fn show_worker(client: &Client, show: &Show, ctx: &Context) -> anyhow::Result<ExitCode> {
    if let Some(answer) = request(client, "workers", show, ctx).await? {
        let history: WorkerHistory = answer.read()?;
        let sum = |count: fn(&_) -> u64| history.points.iter().map(count).sum::<u64>();
        ctx.print(format!(
            "{} attempts ended, {} failed in the last {}",
            sum(|point: &WorkerHistoryPoint| point.finished),
            sum(|point| point.failed),
            match show.range {
                Range::Hour => HistoryRange::Hour.as_str(),
                Range::Day => HistoryRange::Day.as_str(),
            },
        ))?;
        let rows = |points: &[WorkerHistoryPoint]| {
            let row = |point: &WorkerHistoryPoint| {
                let numbers = [point.finished, point.failed, point.running];
                let [finished, failed, running] = numbers.map(|number| number.to_string());
                [output::when(point.at, ctx.now()), finished, failed, running]
            };
            output::table(ctx.look, ["step", "out", "failed", "running"], points.iter().map(row))
        };
        print_steps(&history.points, rows, ctx)?;
    }
    Ok(ExitCode::Ok)
}

/// The throughput as one line.
fn summary(history: &History) -> String {
    let rates = history.throughput;
    let empty = match history.time_to_empty_seconds {
        Some(seconds) if seconds > 0.0 => format!("; empty in {}", took(seconds)),
        Some(_) => "; no job is due".to_owned(),
        None => "; does not empty at this rate".to_owned(),
    };
    let enqueued = rates.enqueued_per_second.map(|rate| format!("{rate:.2} jobs/s in, "));
    format!(
        "{}{:.2} jobs/s out, {:.2} failed in the last {}{empty}",
        enqueued.unwrap_or_default(),
        rates.finished_per_second,
        rates.failed_per_second,
        took(rates.over_seconds)
    )
}

/// A span for people.
fn took(seconds: f64) -> String {
    Duration::try_from_secs_f64(seconds).map_or_else(|_| output::dash(), output::took)
}

fn table(look: output::OutputStyle, points: &[HistoryPoint], now: Timestamp) -> String {
    let quantiles = |of: Option<Quantiles>| {
        of.map_or_else(output::dash, |of| format!("{} / {}", took(of.p50), took(of.p99)))
    };
    let rows = points.iter().map(|point| {
        let limit = point.limit.map_or_else(String::new, |limit| format!("/{limit}"));
        let weight = point.weight.unwrap_or(point.running);
        [
            output::when(point.at, now),
            point.enqueued.map_or_else(output::dash, |enqueued| enqueued.to_string()),
            point.started.map_or_else(output::dash, |started| started.to_string()),
            point.finished.to_string(),
            point.failed.to_string(),
            quantiles(point.start_delay_seconds),
            quantiles(point.run_seconds),
            point.ready.to_string(),
            (point.scheduled + point.retrying).to_string(),
            format!("{weight}{limit}"),
        ]
    });
    let headers = [
        "step",
        "in",
        "started",
        "out",
        "failed",
        "delay p50/p99",
        "run p50/p99",
        "ready",
        "later",
        "running",
    ];
    output::table(look, headers, rows)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::cli::{
        ExitCode,
        testing::{FakeServer, SeenRequest},
    };

    #[tokio::test]
    async fn a_history_is_a_line_and_a_table() {
        let point = |second: u32, finished: u32| {
            json!({
                "at": format!("2001-09-09T01:46:{second:02}Z"), "enqueued": 1, "started": 2,
                "finished": finished, "failed": 0, "scheduled": 1, "ready": 5, "retrying": 2,
                "running": 3, "weight": 6, "limit": 8,
                "run_seconds": {"p50": 0.25, "p95": 1.0, "p99": 2.0},
            })
        };
        let body = json!({
            "step_seconds": 10, "from": "2001-09-09T01:46:00Z",
            "points": [point(0, 4), point(10, 7)], "time_to_empty_seconds": 16.0,
            "throughput": {
                "over_seconds": 20.0, "enqueued_per_second": 0.1, "finished_per_second": 0.6,
                "failed_per_second": 0.0,
            },
        });
        let server = FakeServer::answering(move |_| (200, body.clone())).await;
        let (code, out) = server.run(&["queues", "history", "mail"]).await;
        assert_eq!(code, ExitCode::Ok);
        let first =
            "0.10 jobs/s in, 0.60 jobs/s out, 0.00 failed in the last 20.0 s; empty in 16.0 s\n";
        assert!(out.starts_with(first), "{out}");
        assert!(out.contains("250 ms / 2.0 s") && out.contains("6/8"), "{out}");
        server.run(&["types", "history", "letter", "--range", "day"]).await;
        let seen: Vec<String> = server.seen().iter().map(SeenRequest::line).collect();
        assert_eq!(
            seen,
            ["GET /v1/queues/mail/history", "GET /v1/job-types/letter/history?range=day",]
        );
    }

    #[tokio::test]
    async fn the_history_of_a_worker_counts_attempts() {
        let point = |second: u32, finished: u32, failed: u32| {
            json!({
                "at": format!("2001-09-09T01:46:{second:02}Z"),
                "finished": finished, "failed": failed, "running": 3,
            })
        };
        let body = json!({
            "step_seconds": 10, "from": "2001-09-09T01:46:00Z",
            "points": [point(0, 4, 1), point(10, 7, 0)],
        });
        let server = FakeServer::answering(move |_| (200, body.clone())).await;
        let (code, out) = server.run(&["workers", "history", "host-1", "--range", "day"]).await;
        assert_eq!(code, ExitCode::Ok);
        assert!(out.starts_with("11 attempts ended, 1 failed in the last day\n"), "{out}");
        let rows: Vec<_> = out.lines().skip(1).filter(|line| line.contains('3')).collect();
        assert_eq!(rows.len(), 2, "{out}");
        assert_eq!(server.seen()[0].line(), "GET /v1/workers/host-1/history?range=day");
    }
}
