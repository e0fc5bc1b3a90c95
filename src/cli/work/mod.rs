//! `tidegate work`: a pull worker that runs a command for each job.
//!
//! ```text
//!   worker (leases, carries reports) ──▶ attempt (heartbeats) ──▶ command (the process)
//! ```
//!
//! The worker loses no attempt that it knows of. On a stop it finishes and reports every running
//! job, and hands back the jobs that the lease request in flight still brings. Then the server ends
//! the lease request in flight and forgets the worker.

mod attempt;
mod command;
mod demand;
mod lines;
mod presence;
mod report;
mod worker;

use std::time::Duration;

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use super::{Context, ExitCode, args};
use tidegate_core::{
    job::{QueueName, TypeName},
    time::Seconds,
};
use worker::Worker;

/// The options of `tidegate work`.
#[derive(Debug, clap::Args)]
#[command(after_help = "The command gets the job's data on standard input as JSON, and in its \
    environment TIDEGATE_JOB_ID, TIDEGATE_JOB_TYPE, TIDEGATE_JOB_QUEUE, TIDEGATE_JOB_ATTEMPT, \
    TIDEGATE_JOB_MAX_ATTEMPTS, TIDEGATE_JOB_ATTRIBUTES (JSON) and TIDEGATE_JOB_CHECKPOINT (JSON, \
    or empty), and TRACEPARENT and TRACESTATE \
    if it has a trace.\n\n\
    Exit code 0 means succeeded. Standard output is the result: JSON if it is valid JSON, \
    otherwise a string. Exit code 100 means failed without a retry. Every other one means failed \
    with a retry. The end of standard error is the message. A line `::progress 40 halfway` on \
    standard error reports progress, and a line `::checkpoint JSON` stores what the next attempt \
    needs to go on. With a line `::release WHY` or `::snooze 5m WHY` the job is \
    handed back when the command ends, at once or after the time, and the attempt does not \
    count.\n\n\
    A cancelled job's command gets SIGTERM, and SIGKILL 5 s later. SIGTERM or Ctrl-C stops the \
    worker after its running jobs; a second one kills them.\n\n\
    Example:\n  \
    tidegate work --type mail --concurrency 4 -- ./send-mail")]
pub struct Args {
    /// Lease jobs of this type; repeatable.
    #[arg(long = "type", value_name = "TYPE", required_unless_present = "queue")]
    types: Vec<TypeName>,
    /// Lease jobs of this queue.
    #[arg(long)]
    queue: Option<QueueName>,
    /// Commands that run at once: a number, or `auto` for the desired workers of the queue, or of
    /// the types' queues.
    #[arg(long, value_name = "N|auto", default_value = "1", value_parser = concurrency)]
    concurrency: Concurrency,
    /// The maximum with `--concurrency auto`.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 16,
        value_parser = clap::value_parser!(u16).range(1..=1000),
    )]
    max: u16,
    /// The lease: how long the server waits for the next heartbeat [default: the type's].
    #[arg(long, value_name = "SECONDS", value_parser = args::span)]
    lease_seconds: Option<Seconds>,
    /// How long one lease request waits for jobs, 5s to 20s.
    #[arg(long, value_name = "SPAN", default_value = "5s", value_parser = wait)]
    wait: Seconds,
    /// Lease at least this many jobs at once, unless the wait ends; at most `--concurrency`. It
    /// needs one queue.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=1000),
    )]
    min: u16,
    /// The longest pause between two requests while there are no jobs, 0s to 60s. Only a server
    /// that pays for held requests, as on AWS, asks for pauses.
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = max_pause)]
    max_pause: Seconds,
    /// The name of this worker, unless another one has it: workers of one name share a capacity
    /// [default: from the host, the process and the time].
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// Send what the command writes to standard error as log lines of the job, with heartbeats and
    /// reports. On AWS each of these then costs about three write units more.
    #[arg(long)]
    log: bool,
    /// The command to run for each job, and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Most characters of the host in the name of a worker, which has at most 128 bytes.
const MAX_HOST_CHARS: usize = 24;

/// The number of commands that run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Concurrency {
    /// The desired workers of the queue.
    Auto,
    /// A fixed number.
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

fn max_pause(text: &str) -> Result<Seconds, String> {
    let pause = args::span(text)?;
    if pause.millis() <= 60_000 { Ok(pause) } else { Err("0s to 60s is expected".to_owned()) }
}

/// The validated options of a worker.
#[derive(Clone, Debug)]
struct WorkPlan {
    types: Vec<TypeName>,
    queue: Option<QueueName>,
    /// Commands that run at once. With `auto` it is the maximum, and the worker starts with one.
    concurrency: usize,
    auto: bool,
    lease: Option<Seconds>,
    wait: Seconds,
    /// Fewest jobs of a lease request, unless its wait ends.
    min: u32,
    max_pause: Seconds,
    worker: String,
    /// Whether log lines are sent.
    log: bool,
    command: Vec<String>,
    /// From SIGTERM to SIGKILL.
    grace: Duration,
    /// The interval between two requests of the desired workers.
    poll_interval: Duration,
}

/// Leases jobs and runs the command for each, until a signal.
///
/// # Errors
///
/// The server is unreachable at the start, or rejects a request. Later the worker waits for the
/// server.
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
        min: u32::from(args.min),
        max_pause: args.max_pause,
        worker: args.worker.unwrap_or_else(|| unique_name(ctx)),
        log: args.log,
        command: args.command,
        grace: Duration::from_secs(5),
        poll_interval: Duration::from_secs(5),
    };
    Worker::new(plan, ctx)?.run(stops()?).await
}

/// A name that no other process has: neither in another container with the same process id, nor
/// before a restart, whose leases would count against this worker's capacity.
fn unique_name(ctx: &Context) -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let host: String = host.to_string_lossy().chars().take(MAX_HOST_CHARS).collect();
    let host = if host.is_empty() { "work" } else { &host };
    format!("{host}-{}-{:05x}", std::process::id(), ctx.now().millis() & 0xf_ffff)
}

/// One message per SIGTERM or Ctrl-C.
fn stops() -> anyhow::Result<mpsc::Receiver<()>> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (sender, receiver) = mpsc::channel(2);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if sender.send(()).await.is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

#[cfg(test)]
mod tests;
