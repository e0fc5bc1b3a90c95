//! `tidegate enqueue`: enqueues one job, or many with their due times spread over a span.

use std::{collections::BTreeMap, path::PathBuf};

use clap::ArgGroup;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    Context, ExitCode,
    args::{self, Fields, Json, When},
    client::{ApiResponse, Client},
    context::print_error,
    unique::UniqueArgs,
};
use tidegate_api::{BatchResult, ShortView};
use tidegate_core::{
    job::{
        spec::{Attributes, Value},
        unique::Merged,
    },
    time::{Seconds, Timestamp},
};

/// Most jobs in one request.
const MAX_BATCH_JOBS: usize = 1000;
/// Most bytes of data in one request with several jobs.
const MAX_BATCH_BYTES: usize = 4 << 20;

/// The options of `tidegate enqueue`.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("what").args(["data", "data_file"]))]
#[command(after_help = "Examples:\n  \
    tidegate enqueue --type mail --data '{\"to\": \"ann\"}' --delay 10m\n  \
    tidegate enqueue --type mail --count 50 --spread 20s")]
pub struct Args {
    /// The job's type.
    #[arg(long = "type", value_name = "TYPE")]
    job_type: String,
    /// The job's data, JSON; `-` reads standard input [default: null].
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// A file with the job's data, JSON; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    data_file: Option<PathBuf>,
    /// The priority: lower values start first [default: the type's].
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i32>,
    /// Capacity units that the job occupies [default: the type's].
    #[arg(long)]
    weight: Option<u32>,
    /// Earliest start from now, for example 20s or 1h30m.
    #[arg(long, value_name = "SPAN", value_parser = args::span, conflicts_with = "run_at")]
    delay: Option<Seconds>,
    /// Earliest start: RFC 3339, or a span from now such as +10m.
    #[arg(long, value_name = "INSTANT", value_parser = args::when, allow_hyphen_values = true)]
    run_at: Option<When>,
    /// The job expires if it has not started by then: RFC 3339, or a span from now such as +1h.
    #[arg(long, value_name = "INSTANT", value_parser = args::when, allow_hyphen_values = true)]
    expires_at: Option<When>,
    /// Your own id: a second enqueue with it changes nothing.
    #[arg(long, conflicts_with = "count")]
    id: Option<String>,
    /// An attribute for limits and searches; repeatable.
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = args::attribute)]
    attributes: Vec<(String, Value)>,
    /// The key that matches a later reply with this job.
    #[arg(long, value_name = "KEY")]
    correlation_key: Option<String>,
    #[command(flatten)]
    unique: UniqueArgs,
    /// Bypasses the limits of the queue; needs a token with `enqueue:critical`.
    #[arg(long)]
    critical: bool,
    /// Any other field of a job, for example `keep_result="once"`; repeatable.
    #[arg(long = "field", value_name = "NAME=JSON", value_parser = args::field)]
    fields: Vec<(String, Json)>,
    /// The number of jobs.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    /// Spreads the due times of the jobs evenly over this span.
    #[arg(long, value_name = "SPAN", value_parser = args::span, default_value = "0")]
    spread: Seconds,
}

/// Enqueues the jobs and prints their ids.
///
/// # Errors
///
/// The data is not JSON, or the server is unreachable or rejects the request.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let data = args::json_from(args.data.as_deref(), args.data_file.as_deref())
        .await?
        .unwrap_or_else(Json::null);
    let now = ctx.now();
    let mut job = Fields::default();
    job.set("data", &data);
    job.maybe("priority", args.priority);
    job.maybe("weight", args.weight);
    job.maybe("expires_at", args.expires_at.map(|at| at.at(now)));
    let attributes: Attributes = args.attributes.iter().cloned().collect();
    job.maybe("attributes", Some(attributes).filter(|attributes| !attributes.is_empty()));
    job.maybe("correlation_key", args.correlation_key.as_deref());
    job.maybe("unique", args.unique.unique());
    job.maybe("critical", args.critical.then_some(true));
    job.extend(&args.fields);

    let due =
        Due { run_at: args.run_at.map(|at| at.at(now)), delay: args.delay.unwrap_or_default() };
    match args.id {
        Some(id) => {
            due.set(&mut job, Seconds::default());
            one(&client.put(&["jobs", &args.job_type, &id]).json(&job).send().await?, ctx)
        }
        None if args.count == 1 => {
            due.set(&mut job, Seconds::default());
            job.set("type", &args.job_type);
            one(&client.post(&["jobs"]).json(&job).send().await?, ctx)
        }
        None => {
            job.set("type", &args.job_type);
            let per_request =
                (MAX_BATCH_BYTES / data.0.get().len().max(1)).clamp(1, MAX_BATCH_JOBS);
            many(&client, &job, &due, spread(args.count, args.spread), per_request, ctx).await
        }
    }
}

fn one(answer: &ApiResponse, ctx: &Context) -> anyhow::Result<ExitCode> {
    if ctx.json() {
        ctx.print_body(&answer.body)?;
    } else {
        let job = answer.read::<ShortView<'_>>()?;
        match job.merged {
            Some(Merged::Replaced) => ctx.note(format_args!("a waiting job was replaced")),
            Some(Merged::Debounced) => ctx.note(format_args!("a waiting job was debounced")),
            None => {}
        }
        ctx.print(job.id)?;
    }
    Ok(ExitCode::Ok)
}

/// When the first job is due.
struct Due {
    run_at: Option<Timestamp>,
    delay: Seconds,
}

impl Due {
    /// Sets the due time of `job`, `later` than that of the first. The server's clock resolves a
    /// delay.
    fn set(&self, job: &mut Fields, later: Seconds) {
        let delay = Seconds::from_millis(self.delay.millis() + later.millis());
        match self.run_at {
            Some(at) => job.set("run_at", at + later.duration()),
            None => job.maybe("delay_seconds", Some(delay).filter(|delay| delay.millis() > 0)),
        }
    }
}

/// Returns the offset of each of `count` due times from the first: equal steps that fill `span`.
/// The same command, run again at the end of the span, continues the pattern.
fn spread(count: u32, span: Seconds) -> impl ExactSizeIterator<Item = Seconds> {
    (0..count).map(move |n| {
        Seconds::from_millis((u128::from(span.millis()) * u128::from(n) / u128::from(count)) as u64)
    })
}

#[derive(Serialize)]
struct Batch {
    jobs: Vec<Fields>,
}

#[derive(Default, Serialize, Deserialize)]
struct BatchAnswer {
    results: Vec<Box<RawValue>>,
}

async fn many(
    client: &Client,
    job: &Fields,
    due: &Due,
    offsets: impl ExactSizeIterator<Item = Seconds>,
    per_request: usize,
    ctx: &Context,
) -> anyhow::Result<ExitCode> {
    let bar = ctx.progress(offsets.len() as u64, "enqueue");
    let offsets: Vec<Seconds> = offsets.collect();
    let mut all = BatchAnswer::default();
    let mut rejected: BTreeMap<String, usize> = BTreeMap::new();
    for chunk in offsets.chunks(per_request) {
        let jobs = chunk.iter().map(|later| {
            let mut job = job.clone();
            due.set(&mut job, *later);
            job
        });
        let answer =
            client.post(&["jobs", "batch"]).json(&Batch { jobs: jobs.collect() }).send().await?;
        for raw in answer.read::<BatchAnswer>()?.results {
            match answer.read_part(&raw)? {
                BatchResult { job: Some(job), .. } if !ctx.json() => {
                    bar.suspend(|| ctx.print(job.id()))?;
                }
                BatchResult { error: Some(problem), .. } => {
                    *rejected.entry(problem.to_string()).or_default() += 1;
                }
                BatchResult { status, .. } if status >= 400 => {
                    *rejected.entry(format!("status {status}")).or_default() += 1;
                }
                BatchResult { .. } => {}
            }
            all.results.push(raw);
        }
        bar.inc(chunk.len() as u64);
    }
    bar.finish_and_clear();
    for error in error_lines(&rejected) {
        print_error(error);
    }
    let rejected: usize = rejected.values().sum();
    if ctx.json() {
        ctx.print(serde_json::to_string(&all)?)?;
    } else if rejected > 0 {
        ctx.note(format_args!("{rejected} of {} jobs were rejected", all.results.len()));
    }
    Ok(if rejected == 0 { ExitCode::Ok } else { ExitCode::Refused })
}

/// Returns each error once, with the number of its jobs if there are several.
fn error_lines(rejected: &BTreeMap<String, usize>) -> impl Iterator<Item = String> {
    rejected.iter().map(|(error, count)| {
        if *count == 1 {
            format!("error: {error}")
        } else {
            format!("error: {error} ({count} jobs)")
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::testing::{FakeServer, sample};

    #[test]
    fn due_times_are_spread_evenly() {
        let millis: Vec<u64> = spread(50, Seconds::new(20)).map(Seconds::millis).collect();
        assert_eq!((millis.len(), millis[0], millis[1], millis[49]), (50, 0, 400, 19_600));
        assert!(millis.windows(2).all(|pair| pair[1] - pair[0] == 400));
        assert!(spread(3, Seconds::default()).all(|later| later.millis() == 0));
        let last = spread(1_000_000, Seconds::new(31_557_600_000)).last().unwrap();
        assert_eq!(last.millis(), 31_557_568_442_400);
    }

    #[tokio::test]
    async fn one_job_is_sent_with_its_options() {
        let server = FakeServer::answering(|_| (201, sample::job(json!({})))).await;
        let args = "enqueue --type mail --data {\"to\":1} --priority -5 --weight 2 --delay 1m \
                    --attribute region=east --attribute size=3 --unique-key k --unique-period 1h \
                    --critical --field keep_result=\"once\"";
        let (code, out) = server.run(&args.split_whitespace().collect::<Vec<_>>()).await;
        assert_eq!((code, out.as_str()), (ExitCode::Ok, "j1\n"));
        let seen = server.seen();
        assert_eq!(seen[0].line(), "POST /v1/jobs");
        assert_eq!(
            seen[0].body,
            json!({
                "type": "mail", "data": {"to": 1}, "priority": -5, "weight": 2,
                "delay_seconds": 60, "critical": true, "keep_result": "once",
                "attributes": {"region": "east", "size": 3},
                "unique": {"key": "k", "while": "live", "period_seconds": 3600},
            })
        );
    }

    #[tokio::test]
    async fn a_replacement_and_a_debounce_are_part_of_the_unique_key() {
        let server =
            FakeServer::answering(|_| (200, sample::job(json!({"merged": "debounced"})))).await;
        for (args, unique) in [
            (
                "--on-conflict replace",
                json!({"key": "k", "while": "live", "on_conflict": "replace"}),
            ),
            (
                "--unique-while scheduled --debounce 30s --debounce-max 5m --debounce-merge first",
                json!({
                    "key": "k", "while": "scheduled",
                    "debounce": {"seconds": 30, "max_seconds": 300, "merge": "first"},
                }),
            ),
        ] {
            let args = format!("enqueue --type mail --unique-key k {args}");
            let (code, out) = server.run(&args.split_whitespace().collect::<Vec<_>>()).await;
            assert_eq!((code, out.as_str()), (ExitCode::Ok, "j1\n"));
            assert_eq!(server.seen().last().unwrap().body["unique"], unique);
        }
    }

    #[tokio::test]
    async fn own_id_is_part_of_the_route() {
        let server = FakeServer::answering(|_| (200, json!({"id": "order:17"}))).await;
        let (code, out) =
            server.run(&["enqueue", "--type", "mail", "--id", "order:17", "--json"]).await;
        assert_eq!((code, out.as_str()), (ExitCode::Ok, "{\"id\":\"order:17\"}\n"));
        assert_eq!(server.seen()[0].line(), "PUT /v1/jobs/mail/order:17");
        assert_eq!(server.seen()[0].body, json!({"data": null}));
    }

    #[tokio::test]
    async fn many_jobs_go_in_batches_of_a_thousand() {
        let server = FakeServer::answering(|seen| {
            let jobs = seen.body["jobs"].as_array().unwrap();
            let results = jobs.iter().map(|job| match job["delay_seconds"].as_f64() {
                Some(2.4) => json!({"status": 400, "error": {"title": "Bad", "code": "bad"}}),
                later => {
                    let id = format!("j{}", later.unwrap_or_default());
                    json!({"status": 201, "job": sample::job(json!({"id": id}))})
                }
            });
            (200, json!({ "results": results.collect::<Vec<_>>() }))
        })
        .await;
        let (code, out) =
            server.run(&["enqueue", "--type", "a", "--count", "2500", "--spread", "1000s"]).await;
        assert_eq!(code, ExitCode::Refused);
        assert_eq!(out.lines().count(), 2499);
        assert_eq!(out.lines().nth(1), Some("j0.4"));
        let sizes: Vec<usize> =
            server.seen().iter().map(|seen| seen.body["jobs"].as_array().unwrap().len()).collect();
        assert_eq!(sizes, [1000, 1000, 500]);
    }

    #[test]
    fn an_error_of_many_jobs_is_printed_once() {
        let rejected = [
            ("job type mail is not there".to_owned(), 100),
            ("weight: must be positive".to_owned(), 1),
        ]
        .into();
        let lines: Vec<String> = error_lines(&rejected).collect();
        assert_eq!(
            lines,
            ["error: job type mail is not there (100 jobs)", "error: weight: must be positive"]
        );
    }

    #[tokio::test]
    async fn data_that_is_not_json_is_not_sent() {
        let server = FakeServer::answering(|_| (201, json!({}))).await;
        let (code, _) = server.run(&["enqueue", "--type", "a", "--data", "hello"]).await;
        assert_eq!(code, ExitCode::Usage);
        assert!(server.seen().is_empty());
    }
}
