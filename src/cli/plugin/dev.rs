//! `tidegate plugin dev`: builds, tests and simulates a project after each change, and compares it
//! with the live version.
//!
//! It looks at the times of the project's files, and so needs no service of the system. What tools
//! write (`target`, `node_modules`, hidden folders, components, pictures) is no source.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::bail;

use super::{Named, build, differences, push, test};
use crate::cli::{
    Context, ExitCode, UsageError,
    context::{pause, print_error},
    simulate,
};
use tidegate_api::ShadowView;
use tidegate_core::queue::plugin::Role;

/// How often it looks for changes.
const INTERVAL: Duration = Duration::from_millis(300);
/// How often it looks for new differences.
const COMPARISON_INTERVAL: Duration = Duration::from_secs(2);
/// Most files of a project.
const MAX_FILES: usize = 10_000;

/// The options of `tidegate plugin dev`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "After each change of a file it builds the project, runs its cases, and simulates \
    scenario.json. A step that fails ends the round, and the next change begins another. Ctrl-C \
    ends the command.\n\n\
    With --push, each component whose cases hold becomes the shadow version of the plugin, which \
    decides nothing. The decisions that differ from the live version's are shown as they come.\n\n\
    Examples:\n  \
    tidegate plugin dev\n  \
    tidegate plugin dev --push region-share\n  \
    tidegate plugin dev --once                 exit code 1 if a step fails"
)]
pub struct Args {
    /// The project's folder.
    #[arg(default_value = ".")]
    project: PathBuf,
    /// The plugin whose shadow version the project becomes.
    #[arg(long, value_name = "NAME")]
    push: Option<String>,
    /// Do it once, and do not wait for changes.
    #[arg(long)]
    once: bool,
}

/// The sources of a project: the size and the time of each file.
type Sources = BTreeMap<PathBuf, (u64, Option<SystemTime>)>;

/// Watches the project.
///
/// # Errors
///
/// The folder cannot be read, or has more than [`MAX_FILES`] files.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let watched = async {
        let (mut before, mut repeated) = (sources(&args.project)?, false);
        loop {
            let code = round(&args, ctx).await;
            if args.once {
                return Ok(code);
            }
            let after = sources(&args.project)?;
            // The author has changed a file meanwhile, or a tool has: that once.
            let is_edited =
                |(path, was): (&PathBuf, &_)| after.get(path).is_some_and(|now| now != was);
            if !repeated && before.iter().any(is_edited) {
                (before, repeated) = (after, true);
                continue;
            }
            ctx.note("waiting for a change; Ctrl-C ends");
            (before, repeated) = (changed(&args, after, ctx).await?, false);
        }
    };
    tokio::select! {
        ended = watched => ended,
        done = tokio::signal::ctrl_c() => {
            done?;
            Ok(if args.once { ExitCode::Refused } else { ExitCode::Ok })
        }
    }
}

/// Builds, tests, simulates and pushes the project. A step that fails is printed, and ends it.
async fn round(args: &Args, ctx: &Context) -> ExitCode {
    match steps(args, ctx).await {
        Ok(code) => code,
        Err(error) => {
            print_error(format_args!("{error:#}"));
            ExitCode::Refused
        }
    }
}

async fn steps(args: &Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let project = &args.project;
    let (component, roles) = build::project(project, ctx).await?;
    let cases = project.join("cases");
    if cases.is_dir() {
        let code = test::run(test::Args::of(component.clone(), cases), ctx).await?;
        if code != ExitCode::Ok {
            return Ok(code);
        }
    }
    let scenario = project.join("scenario.json");
    if scenario.is_file() {
        let throttler = roles.contains(&Role::Throttler).then(|| component.clone());
        let retry = roles.contains(&Role::Retry).then(|| component.clone());
        let simulate = simulate::Args::of(scenario, throttler, retry);
        let code = Box::pin(simulate::run(simulate, ctx)).await?;
        if code != ExitCode::Ok {
            return Ok(code);
        }
    }
    match &args.push {
        Some(name) => push::run(push::Args::shadow(name.clone(), component), ctx).await,
        None => Ok(ExitCode::Ok),
    }
}

/// Waits until the sources differ from `seen`, and returns them. Meanwhile it shows new differences
/// of the pushed version.
async fn changed(args: &Args, seen: Sources, ctx: &Context) -> anyhow::Result<Sources> {
    let (mut shown, mut waited, mut problem) = (None, Duration::ZERO, String::new());
    loop {
        pause(INTERVAL).await;
        let now = sources(&args.project)?;
        if now != seen {
            // An editor may write several files: they belong to one change.
            let mut last = now;
            loop {
                pause(INTERVAL).await;
                let now = sources(&args.project)?;
                if now == last {
                    return Ok(now);
                }
                last = now;
            }
        }
        waited += INTERVAL;
        if waited >= COMPARISON_INTERVAL
            && let Some(name) = &args.push
        {
            waited = Duration::ZERO;
            let shown = show_differences(name, &mut shown, ctx).await;
            let now = shown.err().map(|error| format!("{error:#}")).unwrap_or_default();
            if !now.is_empty() && now != problem {
                print_error(&now);
            }
            problem = now;
        }
    }
}

/// Shows the differences of the shadow version if there are more than were `shown`.
async fn show_differences(
    name: &str,
    shown: &mut Option<(u64, u64)>,
    ctx: &Context,
) -> anyhow::Result<()> {
    let answer = ctx.client()?.get(&["plugins", name, "differences"]).send().await?;
    let found: ShadowView = answer.read()?;
    let now = (found.different, found.failed);
    if found.version.is_some() && found.compared > 0 && *shown != Some(now) {
        *shown = Some(now);
        differences::run(&Named { name: name.to_owned() }, ctx).await?;
    }
    Ok(())
}

/// The sources below `folder`.
fn sources(folder: &Path) -> anyhow::Result<Sources> {
    let unreadable =
        |error: std::io::Error| UsageError(format!("{} cannot be read: {error}", folder.display()));
    let (mut found, mut folders) = (Sources::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        let entries = match std::fs::read_dir(&next) {
            // A tool has removed it meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound && next != folder => continue,
            entries => entries.map_err(unreadable)?,
        };
        for entry in entries {
            let entry = entry.map_err(unreadable)?;
            let path = entry.path();
            // A file may be gone again.
            let Ok(metadata) = entry.metadata() else { continue };
            if !is_source(&path) {
                continue;
            }
            if metadata.is_dir() {
                folders.push(path);
            } else {
                found.insert(path, (metadata.len(), metadata.modified().ok()));
            }
            if found.len() + folders.len() > MAX_FILES {
                let folder = folder.display();
                bail!(UsageError(format!("{folder} has more than {MAX_FILES} files")));
            }
        }
    }
    Ok(found)
}

/// Whether a file or folder belongs to the sources.
fn is_source(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let made = ["target", "node_modules", "__pycache__", "package-lock.json", "Cargo.lock"];
    let ends = ["wasm", "svg"];
    let end = path.extension().unwrap_or_default();
    !name.starts_with('.') && !made.contains(&&*name) && !ends.iter().any(|made| end == *made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tools_write_is_no_source() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("plugin.js", "1");
        write("cases/first.json", "[]");
        let before = sources(dir.path()).unwrap();
        assert_eq!(before.len(), 2);
        for made in ["a.wasm", "picture.svg", "target/x", "node_modules/a/b", ".venv/bin/python"] {
            write(made, "made");
        }
        assert_eq!(sources(dir.path()).unwrap(), before);
        write("cases/first.json", "[1]");
        assert_ne!(sources(dir.path()).unwrap(), before);
        assert!(sources(&dir.path().join("none")).is_err());
    }
}
