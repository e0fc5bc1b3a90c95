//! `tidegate plugin test`: runs test cases on a component, within the bounds of a server.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;

use super::local;
use crate::cli::{Context, ExitCode, UsageError};
use crate::plugin_testing::{Case, Component};
use tidegate_core::port::policy::Usage;

/// The options of `tidegate plugin test`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A case is a call and its expected answer, in JSON; a file has one case or a \
    list. Exit code 1: a case failed.\n\n\
    Examples:\n  \
    tidegate plugin test region-share.wasm cases               every case in a folder\n  \
    tidegate plugin faults region-share --save faults \
    && tidegate plugin test region-share.wasm faults"
)]
pub struct Args {
    /// The component.
    file: PathBuf,
    /// Files with cases, or folders of them.
    #[arg(default_value = "cases")]
    cases: Vec<PathBuf>,
    /// Show what the plugin logs in each call.
    #[arg(long)]
    log: bool,
}

impl Args {
    /// The cases in a folder, on a component.
    pub(super) fn of(file: PathBuf, cases: PathBuf) -> Self {
        Self { file, cases: vec![cases], log: false }
    }
}

/// The outcome of one case.
#[derive(Serialize)]
struct CaseOutcome {
    file: String,
    name: String,
    ok: bool,
    /// The differences from the expected answer.
    wrong: Vec<String>,
    usage: Option<Usage>,
    log: Vec<String>,
}

/// Runs the cases.
///
/// # Errors
///
/// The component is not a plugin, or a case cannot be read.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let cases = read(&args.cases).await?;
    let plugin = local::open(&args.file, ctx).await?;
    let mut outcomes = Vec::with_capacity(cases.len());
    for (file, case) in cases {
        let (wrong, usage) = made(&plugin, &case).await;
        let log = plugin.take_log();
        outcomes.push(CaseOutcome {
            file,
            name: case.name,
            ok: wrong.is_empty(),
            wrong,
            usage,
            log,
        });
    }
    let failed = outcomes.iter().filter(|outcome| !outcome.ok).count();
    if ctx.json() {
        ctx.print(json!({"ok": failed == 0, "cases": outcomes}))?;
    } else {
        for outcome in &outcomes {
            tell(outcome, args.log, ctx)?;
        }
        ctx.print(format_args!("{} cases, {failed} failed", outcomes.len()))?;
    }
    Ok(if failed == 0 { ExitCode::Ok } else { ExitCode::Refused })
}

fn tell(outcome: &CaseOutcome, log: bool, ctx: &Context) -> std::io::Result<()> {
    let used = outcome
        .usage
        .as_ref()
        .map(|usage| format!("  ({})", local::used(&usage.into())))
        .unwrap_or_default();
    ctx.print(format_args!(
        "{} {}: {}{used}",
        if outcome.ok { "ok  " } else { "FAIL" },
        outcome.file,
        outcome.name
    ))?;
    for wrong in &outcome.wrong {
        ctx.print(format_args!("       {wrong}"))?;
    }
    for line in outcome.log.iter().filter(|_| log || !outcome.ok) {
        ctx.print(format_args!("       log: {line}"))?;
    }
    Ok(())
}

/// Makes the call of `case` and returns the differences and the usage.
async fn made(plugin: &Component, case: &Case) -> (Vec<String>, Option<Usage>) {
    if !plugin.roles().any(|(role, _)| role == case.role) {
        return (
            vec![format!("the case is for a {}, which this plugin is not", local::word(case.role))],
            None,
        );
    }
    let mut wrong = match plugin.problems(case.role, &case.config()).await {
        Ok(found) => case.expect.problems(&found),
        Err(fault) => vec![format!(
            "the check of its configuration failed ({}): {fault}",
            fault.kind.as_str()
        )],
    };
    if !case.expect.decides() {
        return (wrong, Some(plugin.usage()));
    }
    let call = match case.call() {
        Ok(call) => call,
        Err(error) => return (vec![error], None),
    };
    let came = plugin.call(&call).await;
    wrong.extend(case.expect.of(case, &call, &came));
    (wrong, Some(plugin.usage()))
}

/// Reads the cases of the files and folders at `paths`, each with its file.
pub(super) async fn read(paths: &[PathBuf]) -> anyhow::Result<Vec<(String, Case)>> {
    let mut files = Vec::new();
    for path in paths {
        if tokio::fs::metadata(path).await.map_err(|error| unreadable(path, &error))?.is_dir() {
            let mut found = Vec::new();
            let mut entries =
                tokio::fs::read_dir(path).await.map_err(|error| unreadable(path, &error))?;
            while let Some(entry) = entries.next_entry().await? {
                found.push(entry.path());
            }
            found.retain(|file| file.extension().is_some_and(|end| end == "json"));
            found.sort();
            files.extend(found);
        } else {
            files.push(path.clone());
        }
    }
    let mut cases = Vec::new();
    for file in files {
        let text =
            tokio::fs::read_to_string(&file).await.map_err(|error| unreadable(&file, &error))?;
        let read = Case::read(&text)
            .map_err(|error| UsageError(format!("{}: {error}", file.display())))?;
        cases.extend(read.into_iter().map(|case| (file.display().to_string(), case)));
    }
    if cases.is_empty() {
        let places: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        return Err(UsageError(format!("no case found in {}", places.join(", "))).into());
    }
    Ok(cases)
}

fn unreadable(path: &Path, error: &std::io::Error) -> UsageError {
    UsageError(format!("{} cannot be read: {error}", path.display()))
}
