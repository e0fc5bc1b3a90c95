//! `tidegate plugin`: throttlers and retry strategies, from a new project to a live version.
//!
//! `new`, `build`, `dev`, `check`, `test` and `bench` work on the author's machine and need no
//! server. They run the component within the bounds of a server ([`local`]). The others are thin
//! clients of the HTTP API.

mod bench;
mod build;
mod check;
mod core_module;
mod dev;
mod differences;
mod faults;
mod list;
pub(super) mod local;
mod logs;
mod new;
mod push;
mod record;
mod replay;
mod templates;
mod test;
#[cfg(test)]
mod tests;
mod trace;
mod versions;

use std::{ffi::OsString, path::Path};

use anyhow::bail;
use clap::Subcommand;
use tokio::io::AsyncReadExt as _;

use super::{Context, ExitCode, UsageError};
use tidegate_api::PluginUser;
use tidegate_backends::wasm::COMPONENT_BYTES;

/// The commands about plugins.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create a project for a throttler or a retry strategy.
    New(new::Args),
    /// Build a project, or a core module of another compiler, into a component.
    Build(build::Args),
    /// Build, test and simulate a project after each change; compare it with the live version.
    Dev(dev::Args),
    /// Check that a component is a valid plugin, and show the cost of a call.
    Check(check::Args),
    /// Run test cases: make calls and compare the answers with the expected ones.
    Test(test::Args),
    /// Measure fuel, time and memory of calls at several sizes.
    Bench(bench::Args),
    /// Refused: it is a command of its own.
    #[command(hide = true, disable_help_flag = true)]
    Simulate {
        /// The options of that command.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
    /// Write the history of a live queue as a scenario for `tidegate simulate`.
    Trace(trace::Args),
    /// Push a component to the server, as a plugin's next version.
    Push(push::Args),
    /// List plugins with the statistics of their calls.
    List,
    /// Show a plugin with its users and the statistics of its calls.
    Get(Named),
    /// List a plugin's versions.
    Versions(Named),
    /// Make the shadow version live, or another one.
    Promote(versions::PromoteArgs),
    /// Make the previously live version live again, or an earlier one.
    Rollback(versions::RollbackArgs),
    /// Call a version for comparison with the live one, or stop that.
    Shadow(versions::ShadowArgs),
    /// Remove old versions; the live, shadow and previous versions stay.
    Prune(versions::PruneArgs),
    /// Show decisions of the shadow version that differ from the live version's.
    Differences(Named),
    /// Show what a plugin logged.
    Logs(logs::Args),
    /// Show failed calls, and save them as cases.
    Faults(faults::Args),
    /// Show recorded calls, save them as cases, and set which are stored.
    Record(record::Args),
    /// Repeat recorded calls, and show where a component decides differently.
    Replay(replay::Args),
    /// Delete a plugin that nothing uses.
    Delete(Named),
}

/// The plugin of a command.
#[derive(Debug, clap::Args)]
pub struct Named {
    /// The plugin's name.
    name: String,
}

/// Runs the command.
///
/// # Errors
///
/// The server is unreachable or rejects the request, or a file on this machine is invalid.
pub async fn run(command: Command, ctx: &Context) -> anyhow::Result<ExitCode> {
    match command {
        Command::New(args) => new::run(args, ctx).await,
        Command::Build(args) => build::run(args, ctx).await,
        Command::Dev(args) => Box::pin(dev::run(args, ctx)).await,
        Command::Check(args) => check::run(args, ctx).await,
        Command::Test(args) => test::run(args, ctx).await,
        Command::Bench(args) => bench::run(args, ctx).await,
        Command::Simulate { .. } => {
            let message = "use `tidegate simulate`, which has the same options";
            Err(UsageError(message.to_owned()).into())
        }
        Command::Trace(args) => trace::run(args, ctx).await,
        Command::Push(args) => push::run(args, ctx).await,
        Command::List => list::list(ctx).await,
        Command::Get(named) => list::get(&named, ctx).await,
        Command::Versions(named) => versions::list(&named, ctx).await,
        Command::Promote(args) => versions::promote(args, ctx).await,
        Command::Rollback(args) => versions::rollback(args, ctx).await,
        Command::Shadow(args) => versions::shadow(args, ctx).await,
        Command::Prune(args) => versions::prune(args, ctx).await,
        Command::Differences(named) => differences::run(&named, ctx).await,
        Command::Logs(args) => logs::run(args, ctx).await,
        Command::Faults(args) => faults::run(args, ctx).await,
        Command::Record(args) => record::run(args, ctx).await,
        Command::Replay(args) => Box::pin(replay::run(args, ctx)).await,
        Command::Delete(named) => versions::delete(&named, ctx).await,
    }
}

/// Reads the component in `file`, which has at most the size that a server takes.
pub(super) async fn component(file: &Path) -> anyhow::Result<Vec<u8>> {
    let unreadable = |error| UsageError(format!("{} cannot be read: {error}", file.display()));
    let mut wasm = Vec::new();
    let opened = tokio::fs::File::open(file).await.map_err(unreadable)?;
    let bytes = opened.metadata().await.map_err(unreadable)?.len();
    let read = opened.take(COMPONENT_BYTES as u64 + 1).read_to_end(&mut wasm).await;
    read.map_err(unreadable)?;
    if wasm.len() > COMPONENT_BYTES {
        bail!(UsageError(format!(
            "{} has {bytes} bytes; a plugin has at most {COMPONENT_BYTES} ({} MiB)",
            file.display(),
            COMPONENT_BYTES >> 20
        )));
    }
    Ok(wasm)
}

/// Returns a user of a plugin in words: `job type hook`.
pub fn user(user: &PluginUser) -> String {
    format!("{} {}", user.kind.replace('_', " "), user.name)
}
