//! `tidegate plugin trace`: what a live queue did, as a scenario that `simulate` takes.

use serde_json::Value as Json;

use crate::cli::{Context, ExitCode, args, pages};
use tidegate_engine::simulate::trace::{Live, LiveJob};

/// The options of `tidegate plugin trace`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A trace has the jobs of the queue with their attributes, when each came, and how long each of its attempts took. \
    A job that ran no longer tells when it was due: one that was handed in for later counts as due when it came.\n\n\
    Example:\n  tidegate plugin trace mail --since -1h > mail.json\n  tidegate plugin simulate mail.json --plugin mine.wasm --picture mail.svg"
)]
pub struct Args {
    /// The queue.
    queue: String,
    /// Only jobs that came at this instant or later: RFC 3339, or a span such as 1h before now (default: all that are kept).
    #[arg(long, value_parser = since, allow_hyphen_values = true, value_name = "WHEN")]
    since: Option<args::When>,
    /// At most this many jobs, the latest.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    limit: u32,
    /// How many jobs workers ran at once at most, where that is less than the limits.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    workers: Option<u32>,
    /// Keep the jobs' data of up to 1 KiB, for plugins that read it.
    #[arg(long)]
    with_data: bool,
}

/// Reads an instant; a bare span means so long ago.
fn since(text: &str) -> Result<args::When, String> {
    args::span(text).map(|span| args::When::Ago(span.duration())).or_else(|_| args::when(text))
}

/// Writes the trace.
///
/// # Errors
///
/// The server is unreachable, or there is no such queue.
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
            Some(from) => request.query("from", from),
            None => request,
        }
    };
    let jobs: Vec<LiveJob> =
        pages::collect(request, &client, args.limit as usize).await?.read(&client)?;
    let live = Live {
        queue: args.queue.parse()?,
        config,
        types,
        jobs,
        since,
        now,
        with_data: args.with_data,
    };
    let mut scenario = live.scenario()?;
    if let Some(workers) = args.workers {
        scenario.workers = workers;
    }
    ctx.print(serde_json::to_string_pretty(&scenario)?)?;
    Ok(ExitCode::Ok)
}
