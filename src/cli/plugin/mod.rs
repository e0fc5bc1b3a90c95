//! `tidegate plugin`: throttlers and retry strategies, from a new project to a version that decides.
//!
//! `new`, `build`, `check`, `test` and `bench` work on an author's machine and need no server; the component is run
//! there within the bounds that a server has ([`local`]). The others are thin clients of the HTTP API.

mod bench;
mod build;
mod check;
mod differences;
mod faults;
mod list;
mod local;
mod logs;
mod new;
mod push;
mod simulate;
mod templates;
mod test;
#[cfg(test)]
mod tests;
mod trace;
mod versions;

use std::path::Path;

use clap::Subcommand;

use super::{Context, ExitCode, UsageError};
use tidegate_api::PluginUser;

/// What can be done with plugins.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a project for a throttler or a retry strategy.
    New(new::Args),
    /// Build a project into a component.
    Build(build::Args),
    /// Find out whether a component can be a plugin, and what a call costs.
    Check(check::Args),
    /// Make calls from case files, and hold the answers against what they expect.
    Test(test::Args),
    /// Measure fuel, time and memory of calls at several sizes.
    Bench(bench::Args),
    /// See a queue at work under virtual time: a table and a picture of who ran when, two versions side by side.
    Simulate(simulate::Args),
    /// Write what a live queue did as a scenario that can be simulated.
    Trace(trace::Args),
    /// Push a component to the server, as a plugin's next version.
    Push(push::Args),
    /// List plugins and how they do.
    List,
    /// Show a plugin: who uses it, and how it does.
    Get(Named),
    /// List a plugin's versions.
    Versions(Named),
    /// Let an earlier version decide again, or one that is in the shadow.
    Rollback(versions::RollbackArgs),
    /// Ask a version beside the live one, or none any more.
    Shadow(versions::ShadowArgs),
    /// Show where the version in the shadow would have decided otherwise.
    Differences(Named),
    /// Show what a plugin logged.
    Logs(logs::Args),
    /// Show calls that gave no answer, and save them as cases.
    Faults(faults::Args),
    /// Delete a plugin that nothing uses.
    Delete(Named),
}

/// Which one.
#[derive(Debug, clap::Args)]
pub struct Named {
    /// The plugin's name.
    name: String,
}

/// Runs the command.
///
/// # Errors
///
/// The server is unreachable or rejects the request; what is on this machine is not as it must be.
pub async fn run(command: Command, ctx: &Context) -> anyhow::Result<ExitCode> {
    match command {
        Command::New(args) => new::run(args, ctx).await,
        Command::Build(args) => build::run(args, ctx).await,
        Command::Check(args) => check::run(args, ctx).await,
        Command::Test(args) => test::run(args, ctx).await,
        Command::Bench(args) => bench::run(args, ctx).await,
        Command::Simulate(args) => Box::pin(simulate::run(args, ctx)).await,
        Command::Trace(args) => trace::run(args, ctx).await,
        Command::Push(args) => push::run(args, ctx).await,
        Command::List => list::list(ctx).await,
        Command::Get(named) => list::get(&named, ctx).await,
        Command::Versions(named) => versions::list(&named, ctx).await,
        Command::Rollback(args) => versions::rollback(args, ctx).await,
        Command::Shadow(args) => versions::shadow(args, ctx).await,
        Command::Differences(named) => differences::run(&named, ctx).await,
        Command::Logs(args) => logs::run(args, ctx).await,
        Command::Faults(args) => faults::run(args, ctx).await,
        Command::Delete(named) => versions::delete(&named, ctx).await,
    }
}

/// The bytes of the component in `file`.
async fn component(file: &Path) -> anyhow::Result<Vec<u8>> {
    Ok(tokio::fs::read(file)
        .await
        .map_err(|error| UsageError(format!("{} cannot be read: {error}", file.display())))?)
}

/// Returns a user of a plugin in words: `job type hook`.
pub fn user(user: &PluginUser) -> String {
    format!("{} {}", user.kind.replace('_', " "), user.name)
}
