//! `tidegate jobs`: look at jobs and change them, one by id or many by a filter.

mod bulk;
mod filter;
mod list;
mod one;

use clap::Subcommand;

use super::{Context, ExitCode};

/// What can be done with jobs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List jobs, newest first.
    List(list::Args),
    /// Show a job and its history.
    Get(one::GetArgs),
    /// Say why a job waits.
    Explain(one::ExplainArgs),
    /// Print a job's result.
    Result(one::ResultArgs),
    /// Change a scheduled job.
    Patch(one::PatchArgs),
    /// Cancel a job, or every job that fits a filter.
    Cancel(bulk::CancelArgs),
    /// Run an ended job again as a new one, or every job that fits a filter.
    Replay(bulk::ReplayArgs),
}

/// Runs the command.
///
/// # Errors
///
/// The server is away or refuses.
pub async fn run(command: Command, ctx: &Context) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(args) => list::run(args, ctx).await,
        Command::Get(args) => one::get(args, ctx).await,
        Command::Explain(args) => one::explain(args, ctx).await,
        Command::Result(args) => one::result(args, ctx).await,
        Command::Patch(args) => one::patch(args, ctx).await,
        Command::Cancel(args) => bulk::cancel(args, ctx).await,
        Command::Replay(args) => bulk::replay(args, ctx).await,
    }
}
