//! `tidegate plugin trace`: the history of a live queue, as a scenario for `simulate`.

use serde_json::Value as Json;

use crate::cli::{Context, ExitCode, args, pages};
use tidegate_engine::simulate::trace::{Live, LiveJob};

/// The options of `tidegate plugin trace`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A trace has the jobs of the queue with their attributes, the time of each \
    enqueue, and the duration of each attempt.\n\
    A job that has run does not keep its due time: the trace uses the time of its enqueue.\n\n\
    Example:\n  \
    tidegate plugin trace mail --since -1h > mail.json\n  \
    tidegate simulate mail.json --plugin mine.wasm --picture mail.svg"
)]
pub struct Args {
    /// The queue.
    queue: String,
    /// Only jobs enqueued at this instant or later: RFC 3339, or a span before now such as 1h
    /// [default: all stored jobs].
    #[arg(long, value_parser = since, allow_hyphen_values = true, value_name = "WHEN")]
    since: Option<args::When>,
    /// The maximum number of jobs, latest first.
    #[arg(
        long,
        default_value_t = 100_000,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000),
    )]
    limit: u32,
    /// The maximum number of jobs that the workers ran at once, if it was below the limits.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    workers: Option<u32>,
    /// Include data of up to 1 KiB per job, for plugins that read it.
    #[arg(long)]
    with_data: bool,
}

/// Reads an instant. A span without a sign is before now.
fn since(text: &str) -> Result<args::When, String> {
    args::span(text).map(|span| args::When::Ago(span.duration())).or_else(|_| args::when(text))
}

/// Writes the trace.
///
/// # Errors
///
/// The server is unreachable, or the queue does not exist.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let now = ctx.now();
    let since = args.since.map(|since| since.at(now));
    let config: Json = client.get(&["queues", &args.queue]).send().await?.read()?;
    let types = pages::collect(|client| client.get(&["job-types"]), &client, usize::MAX)
        .await?
        .read(&client)?;
    let from = since.map(|at| at.to_string());
    let request = |client| {
        let request = crate::cli::Client::get(client, &["jobs"]).query("queue", &args.queue);
        match &from {
            Some(from) => request.query("created_from", from),
            None => request,
        }
    };
    let jobs: Vec<LiveJob> =
        pages::collect(request, &client, args.limit as usize).await?.read(&client)?;
    let live =
        Live { queue: args.queue.parse()?, config, types, jobs, now, with_data: args.with_data };
    let mut scenario = live.scenario()?;
    if let Some(workers) = args.workers {
        scenario.workers = workers;
    }
    ctx.print(serde_json::to_string_pretty(&scenario)?)?;
    Ok(ExitCode::Ok)
}
