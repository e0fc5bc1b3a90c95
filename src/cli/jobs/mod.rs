//! `tidegate jobs`: lists and changes jobs, one by id or many by a filter.

mod bulk;
mod errors;
mod filter;
mod follow;
mod list;
mod log;
mod one;

use clap::Subcommand;

pub use self::errors::{Args as ErrorsArgs, run as errors};
pub(super) use self::{errors::render as render_errors, list::render as render_jobs};
use super::{Context, ExitCode, context::print_error};

/// The commands about jobs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List jobs, newest first.
    List(list::Args),
    /// Show a job and its history.
    Get(one::GetArgs),
    /// Explain why a job waits.
    Explain(one::ExplainArgs),
    /// Print the log lines that workers sent about a job.
    Log(log::Args),
    /// Print the result of a job.
    Result(one::ResultArgs),
    /// Count the latest errors of jobs by type, reason and pattern.
    Errors(errors::Args),
    /// Change a scheduled job, or every one that matches a filter.
    Patch(one::PatchArgs),
    /// Cancel a job, or every job that matches a filter.
    Cancel(bulk::CancelArgs),
    /// Run an ended job again as a new one, or every job that matches a filter.
    Replay(bulk::ReplayArgs),
}

/// Runs the command.
///
/// # Errors
///
/// The server is unreachable or rejects the request.
pub async fn run(command: Command, ctx: &Context) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(args) => list::run(args, ctx).await,
        Command::Get(args) => one::get(args, ctx).await,
        Command::Explain(args) => one::explain(args, ctx).await,
        Command::Log(args) => log::run(args, ctx).await,
        Command::Result(args) => one::result(args, ctx).await,
        Command::Errors(args) => errors::run(args, ctx).await,
        Command::Patch(args) => one::patch(args, ctx).await,
        Command::Cancel(args) => bulk::cancel(args, ctx).await,
        Command::Replay(args) => bulk::replay(args, ctx).await,
    }
}

/// Names the jobs that a list or a bulk operation left out, if there are any.
pub fn warn_of_unreadable(ids: &[String]) {
    if !ids.is_empty() {
        let (count, ids) = (ids.len(), ids.join(", "));
        print_error(format_args!("warning: {count} jobs cannot be read and are left out: {ids}"));
    }
}
