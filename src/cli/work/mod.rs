//! `tidegate work`: a pull worker that runs a command for each job.
//!
//! ```text
//!   worker (leases, carries reports) ──▶ attempt (heartbeats) ──▶ command (the process)
//! ```
//!
//! The worker loses no attempt that it knows of: told to stop, it ends the lease request in flight, runs
//! what that brought and what runs already, and reports all of it.

mod attempt;
mod command;
mod lease;
mod worker;

use std::time::Duration;

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use super::{Context, ExitCode, args};
use tidegate_core::time::Seconds;
use worker::Worker;

/// The options of `tidegate work`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The command gets the job's data on standard input as JSON, and in its environment TIDEGATE_JOB_ID, TIDEGATE_JOB_TYPE, \
    TIDEGATE_JOB_QUEUE, TIDEGATE_JOB_ATTEMPT, TIDEGATE_JOB_MAX_ATTEMPTS and TIDEGATE_JOB_ATTRIBUTES (JSON), and TRACEPARENT and TRACESTATE \
    if it has a trace.\n\n\
    Exit code 0 means succeeded; what it wrote to standard output is the result: JSON if it is, else a text. \
    Exit code 100 means failed for good. Every other one means failed, to be tried again. The end of standard error is the message. \
    A line `::progress 40 halfway` on standard error tells how far it is.\n\n\
    A cancelled job's command gets SIGTERM, and SIGKILL 5 s later. \
    SIGTERM or Ctrl-C stops the worker when what runs has finished; a second one kills what runs.\n\n\
    Example:\n  tidegate work --type mail --concurrency 4 -- ./send-mail"
)]
pub struct Args {
    /// Lease jobs of this type; may be given again.
    #[arg(long = "type", value_name = "TYPE", required_unless_present = "queue")]
    types: Vec<String>,
    /// Lease jobs of this queue.
    #[arg(long)]
    queue: Option<String>,
    /// How many commands run at once: a number, or `auto` for what the backlog of the queue, or of the types' queues, asks for.
    #[arg(long, value_name = "N|auto", default_value = "1", value_parser = concurrency)]
    concurrency: Concurrency,
    /// With `--concurrency auto`, how many at most.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1000))]
    max: u16,
    /// How long the server waits for this worker's next heartbeat [default: the type's].
    #[arg(long, value_name = "SECONDS", value_parser = args::span)]
    lease_seconds: Option<Seconds>,
    /// How long one request waits for jobs, 5s to 20s; a stop takes up to as long.
    #[arg(long, value_name = "SPAN", default_value = "5s", value_parser = wait)]
    wait: Seconds,
    /// What this worker is called in the server's answers [default: work-PID].
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// The command to run for each job, and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// How many commands run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Concurrency {
    /// As many as the queue's backlog asks for.
    Auto,
    /// So many.
    Fixed(u16),
}

fn concurrency(text: &str) -> Result<Concurrency, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(Concurrency::Auto),
        (_, Ok(count @ 1..=1000)) => Ok(Concurrency::Fixed(count)),
        _ => Err("a number from 1 to 1000, or `auto`, is expected".to_owned()),
    }
}

fn wait(text: &str) -> Result<Seconds, String> {
    let wait = args::span(text)?;
    if (5000..=20_000).contains(&wait.millis()) {
        Ok(wait)
    } else {
        Err("5s to 20s is expected".to_owned())
    }
}

/// What a worker does, settled.
#[derive(Clone, Debug)]
struct WorkPlan {
    types: Vec<String>,
    queue: Option<String>,
    /// How many commands run at once; with `auto` at most, and at first one.
    concurrency: usize,
    auto: bool,
    lease: Option<Seconds>,
    wait: Seconds,
    worker: String,
    command: Vec<String>,
    /// From SIGTERM to SIGKILL.
    grace: Duration,
    /// Between two looks at how many workers the queue asks for.
    look: Duration,
}

/// Leases jobs and runs the command for each, until a signal.
///
/// # Errors
///
/// The server is not there at the start, or refuses; later the worker waits for it to come back.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let auto = args.concurrency == Concurrency::Auto;
    let plan = WorkPlan {
        types: args.types,
        queue: args.queue,
        concurrency: usize::from(if let Concurrency::Fixed(count) = args.concurrency {
            count
        } else {
            args.max
        }),
        auto,
        lease: args.lease_seconds,
        wait: args.wait,
        worker: args.worker.unwrap_or_else(|| format!("work-{}", std::process::id())),
        command: args.command,
        grace: Duration::from_secs(5),
        look: Duration::from_secs(5),
    };
    Worker::new(plan, ctx)?.run(stops()?).await
}

/// One message per SIGTERM or Ctrl-C.
fn stops() -> anyhow::Result<mpsc::Receiver<()>> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (tell, told) = mpsc::channel(2);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if tell.send(()).await.is_err() {
                return;
            }
        }
    });
    Ok(told)
}

#[cfg(test)]
mod tests;
