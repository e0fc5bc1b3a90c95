//! `tidegate repair`: repairs a data directory whose server does not run.

use std::path::PathBuf;

use serde_json::json;

use super::{Context, ExitCode, UsageError, backup::data_dir};
use tidegate_backends::{
    sqlite::{self, Damage, Repaired},
    system::SystemClock,
};
use tidegate_core::port::Clock as _;

/// The options of `tidegate repair`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Indexes, counts and columns are built again from the records. A record that \
    cannot be read is removed, after it was written to DIR/repair-TIME/damaged.jsonl next to a copy \
    of the database. A queue whose configuration was damaged is paused, and the jobs of a damaged \
    type wait until it is set again.\n\n\
    Example:\n  \
    tidegate doctor --data /var/lib/tidegate\n  \
    tidegate repair --data /var/lib/tidegate"
)]
pub struct Args {
    /// The directory of the data [default: the server's setting `data`].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// A TOML file with the server's settings.
    #[arg(long, env = "TIDEGATE_CONFIG")]
    config: Option<PathBuf>,
}

/// Repairs the data directory. Refused if some of its records are still damaged afterwards.
///
/// # Errors
///
/// The directory is in use, has no data, or cannot be read or written. Then nothing has changed.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let dir = data_dir(args.data, args.config.as_deref())?;
    if !dir.is_dir() {
        let missing = format!("{} is no directory: see --data", dir.display());
        return Err(UsageError(missing).into());
    }
    // A colon is no part of a file name on every system.
    let aside = dir.join(format!("repair-{}", SystemClock.now().to_string().replace(':', "-")));
    let folder = aside.clone();
    let repaired = tokio::task::spawn_blocking(move || sqlite::repair(&dir, &folder)).await??;
    let Repaired { damage, done, left, removed } = repaired;
    let whats = |damage: Vec<Damage>| -> Vec<String> {
        damage.into_iter().map(|damage| damage.what).collect()
    };
    let (damage, left) = (whats(damage), whats(left));
    let export = removed.then(|| aside.join("damaged.jsonl"));
    if ctx.json() {
        ctx.print(json!({"damage": damage, "done": done, "left": left, "export": export}))?;
    } else if damage.is_empty() {
        ctx.print("nothing is damaged")?;
    } else {
        for line in &done {
            ctx.print(line)?;
        }
        ctx.print(format_args!("the database as it was: {}", aside.display()))?;
        if let Some(export) = &export {
            ctx.print(format_args!("the removed records: {}", export.display()))?;
        }
        for line in &left {
            ctx.print(format_args!("still damaged: {line}"))?;
        }
    }
    Ok(if left.is_empty() { ExitCode::Ok } else { ExitCode::Refused })
}
