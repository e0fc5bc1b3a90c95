//! `tidegate plugin dev`: builds, tests and simulates a project after each change, and compares it
//! with the live version.
//!
//! ```text
//!   a change ─▶ build ─▶ cases ─▶ scenario ─▶ push as the shadow version ─▶ what the server shows of it
//! ```

mod news;
mod shadow;
mod sources;

use std::{io, path::PathBuf, time::Duration};

use tokio::signal::unix::{Signal, SignalKind, signal};

use self::{
    shadow::PushedShadow,
    sources::{Sources, sources},
};
use super::{build, test};
use crate::cli::{
    Context, ExitCode,
    context::{pause, print_error},
    simulate,
};
use tidegate_core::queue::plugin::Role;

/// How often it looks for changes.
const INTERVAL: Duration = Duration::from_millis(300);
/// How often it requests what is new of the shadow version.
const NEWS_INTERVAL: Duration = Duration::from_secs(1);

/// The options of `tidegate plugin dev`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "After each change of a file it builds the project, runs its cases, and simulates \
    scenario.json. A step that fails ends the round, and the next change begins another. Ctrl-C \
    ends the command.\n\n\
    With --push, each component whose cases hold becomes the shadow version of the plugin, which \
    decides nothing. What the server shows of it is printed as it comes: decisions that differ from \
    the live version's, log lines, and calls that failed. At the end the version that was the shadow \
    before becomes it again, or there is none; the pushed versions stay, and `tidegate plugin \
    promote NAME --to N` makes one live. With --once, and if the command is killed, the shadow \
    stays.\n\n\
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

/// Ctrl-C and SIGTERM.
struct Stops {
    interrupt: Signal,
    terminate: Signal,
}

impl Stops {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next one.
    async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Watches the project.
///
/// # Errors
///
/// The folder cannot be read, or has too many files.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let mut stops = Stops::new()?;
    let mut shadow = args.push.clone().map(PushedShadow::new);
    let ended = tokio::select! {
        ended = watch(&args, shadow.as_mut(), ctx) => Some(ended),
        () = stops.wait() => None,
    };
    if args.once {
        return ended.unwrap_or(Ok(ExitCode::Refused));
    }
    let restored = match &shadow {
        Some(shadow) => tokio::select! {
            restored = shadow.end(ctx) => restored,
            // A second Ctrl-C does not wait for the server.
            () = stops.wait() => ExitCode::Refused,
        },
        None => ExitCode::Ok,
    };
    ended.unwrap_or(Ok(restored))
}

/// Does all steps after each change, or once.
async fn watch(
    args: &Args,
    mut shadow: Option<&mut PushedShadow>,
    ctx: &Context,
) -> anyhow::Result<ExitCode> {
    let (mut before, mut repeated) = (sources(&args.project)?, false);
    loop {
        let code = round(args, shadow.as_deref_mut(), ctx).await;
        if args.once {
            return Ok(code);
        }
        let after = sources(&args.project)?;
        // The author has changed a file meanwhile, or a tool has: that once.
        let is_edited = |(path, was): (&PathBuf, &_)| after.get(path).is_some_and(|now| now != was);
        if !repeated && before.iter().any(is_edited) {
            (before, repeated) = (after, true);
            continue;
        }
        ctx.note("waiting for a change; Ctrl-C ends");
        (before, repeated) = (changed(args, after, shadow.as_deref_mut(), ctx).await?, false);
    }
}

/// Builds, tests, simulates and pushes the project. A step that fails is printed, and ends it.
async fn round(args: &Args, shadow: Option<&mut PushedShadow>, ctx: &Context) -> ExitCode {
    match steps(args, shadow, ctx).await {
        Ok(code) => code,
        Err(error) => {
            print_error(format_args!("{error:#}"));
            ExitCode::Refused
        }
    }
}

async fn steps(
    args: &Args,
    shadow: Option<&mut PushedShadow>,
    ctx: &Context,
) -> anyhow::Result<ExitCode> {
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
    if let Some(shadow) = shadow {
        shadow.push(component, ctx).await?;
    }
    Ok(ExitCode::Ok)
}

/// Waits until the sources differ from `seen`, and returns them. Meanwhile it shows what is new of
/// the pushed version.
async fn changed(
    args: &Args,
    seen: Sources,
    mut shadow: Option<&mut PushedShadow>,
    ctx: &Context,
) -> anyhow::Result<Sources> {
    let mut waited = Duration::ZERO;
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
        if waited >= NEWS_INTERVAL
            && let Some(shadow) = &mut shadow
        {
            waited = Duration::ZERO;
            shadow.show_news(ctx).await?;
        }
    }
}
