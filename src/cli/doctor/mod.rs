//! `tidegate doctor`: finds present and future problems of a server or a data directory, with
//! advice.
//!
//! It changes nothing, except that a deployment on AWS gets a no-op message in each SQS queue. The
//! pure [`config`] checks queues and types, read over HTTP ([`server`]) or from the file ([`dir`]).

mod bodies;
mod config;
mod dir;
mod leader;
mod server;

pub use self::{dir::Served, leader::Leader};

use std::{io, path::PathBuf};

use serde_json::json;

use super::{Context, ExitCode, UsageError, output};
use tidegate_core::port::health_check::{Check as Finding, CheckLevel};

/// The options of `tidegate doctor`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code 0 means that no finding is an error, 1 that one is.\n\nExamples:\n  \
    tidegate doctor                             the server at --url\n  \
    tidegate doctor --url URL --all             a deployment, passed checks included\n  \
    tidegate doctor --data /var/lib/tidegate    the files, with or without a running server"
)]
pub struct Args {
    /// Check this data directory instead of the server.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Also show passed checks.
    #[arg(long)]
    all: bool,
}

/// The checks and their findings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DoctorReport {
    /// The number of checks.
    pub checks: usize,
    /// The findings.
    pub findings: Vec<Finding>,
    /// The passed checks.
    pub good: Vec<Finding>,
}

impl DoctorReport {
    /// Adds the health checks of a deployment mode.
    pub fn add_checks(&mut self, checks: Vec<Finding>) {
        self.checks += checks.len();
        let (good, bad): (Vec<_>, Vec<_>) =
            checks.into_iter().partition(|check| check.level == CheckLevel::Ok);
        self.good.extend(good);
        self.findings.extend(bad);
    }

    /// Counts a check and adds its finding.
    pub fn check(&mut self, finding: Option<Finding>) {
        self.checks += 1;
        self.findings.extend(finding);
    }

    /// The number of errors.
    pub fn errors(&self) -> usize {
        self.count(CheckLevel::Error)
    }

    fn count(&self, level: CheckLevel) -> usize {
        self.findings.iter().filter(|found| found.level == level).count()
    }

    /// Prints the findings as a table, with the passed checks if `all` is set.
    ///
    /// # Errors
    ///
    /// The reader is gone.
    pub fn print(&self, all: bool, ctx: &Context) -> io::Result<()> {
        let good = if all { &self.good[..] } else { &[] };
        if self.findings.is_empty() && good.is_empty() {
            return ctx.print(format_args!("{} checks, nothing found", self.checks));
        }
        let rows = self.findings.iter().chain(good).map(|found| {
            [
                found.level.word().to_owned(),
                found.about.clone(),
                found.found.clone(),
                found.advice.clone(),
            ]
        });
        let titles = ["level", "about", "finding", "what to do"];
        ctx.print_tables(output::table(ctx.look, titles, rows))?;
        ctx.print(format_args!(
            "\n{} checks: {} errors, {} warnings, {} notes",
            self.checks,
            self.errors(),
            self.count(CheckLevel::Warning),
            self.count(CheckLevel::Note)
        ))
    }

    /// Adds another report.
    pub fn add(&mut self, other: Self) {
        self.checks += other.checks;
        self.findings.extend(other.findings);
        self.good.extend(other.good);
    }
}

/// A finding.
pub fn finding(
    level: CheckLevel,
    about: impl Into<String>,
    found: impl Into<String>,
    advice: impl Into<String>,
) -> Finding {
    Finding::new(level, about, found, advice)
}

/// Runs the checks and prints the findings.
///
/// # Errors
///
/// The server is unreachable or denies access.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let mut report = match args.data {
        Some(data) => {
            if !data.is_dir() {
                let missing = format!("{} is no directory: see --data", data.display());
                return Err(UsageError(missing).into());
            }
            let now = ctx.now();
            tokio::task::spawn_blocking(move || dir::look(&data, now)).await?
        }
        None => check_server(ctx).await?,
    };
    report.findings.sort_by_key(|finding| finding.level);
    let errors = report.errors();
    if ctx.json() {
        let mut said =
            json!({"ok": errors == 0, "checks": report.checks, "findings": report.findings});
        if args.all {
            said["good"] = json!(report.good);
        }
        ctx.print(said)?;
    } else {
        report.print(args.all, ctx)?;
    }
    Ok(if errors == 0 { ExitCode::Ok } else { ExitCode::Refused })
}

/// Checks the server of the options, and sorts the findings.
///
/// # Errors
///
/// The server is unreachable, or the token does not permit to read queues and types.
pub async fn check_server(ctx: &Context) -> anyhow::Result<DoctorReport> {
    let mut report = server::look(ctx).await?;
    report.findings.sort_by_key(|finding| finding.level);
    Ok(report)
}

#[cfg(test)]
mod tests;
