//! `tidegate demo`: the arguments of the demo in [`crate::demo`].

use std::path::PathBuf;

use super::{Context, ExitCode, args};
use crate::demo::{self, Bucket, Options};
use tidegate_core::time::Seconds;

/// `--bucket` without a URL.
const TEMPORARY: &str = "temporary";

/// The options of `tidegate demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code 1 means that a promise was broken: the table shows which.")]
pub struct Args {
    /// The approximate number of jobs, 40 to 5000.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 300,
        value_parser = clap::value_parser!(u16).range(40..=5000),
    )]
    jobs: u16,
    /// The data directory [default: a temporary one, removed at the end].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The port to listen on [default: 8080, or a free one if it is in use].
    #[arg(long)]
    port: Option<u16>,
    /// Run the server as a separate process, kill it with SIGKILL during the demo, and restart it.
    #[arg(long)]
    kill: bool,
    /// Run two servers on a replicated log. During the demo, the leader is killed with SIGKILL, its disk is
    /// removed, and the standby takes over. The log has a prefix of its own below URL (file, s3, gs or
    /// az), which stays there [default: a temporary directory].
    #[arg(
        long,
        value_name = "URL",
        num_args = 0..=1,
        default_missing_value = TEMPORARY,
        value_parser = bucket,
        conflicts_with_all = ["data", "kill"],
    )]
    bucket: Option<Bucket>,
    /// Use the server of --url or --profile and start none. The demo's queues and types stay there.
    #[arg(long, conflicts_with_all = ["data", "port", "kill", "bucket", "keep"])]
    remote: bool,
    /// Keep serving after the demo until Ctrl-C, even without a terminal.
    #[arg(long)]
    keep: bool,
    /// The largest start delay of delayed jobs at the 99th percentile.
    #[arg(long, value_name = "SPAN", default_value = "250ms", value_parser = args::span)]
    lateness: Seconds,
    /// How long to wait for the end of the jobs [default: a minute, and longer for more jobs].
    #[arg(long, value_name = "SPAN", value_parser = args::span)]
    within: Option<Seconds>,
}

fn bucket(text: &str) -> Result<Bucket, url::ParseError> {
    if text == TEMPORARY { Ok(Bucket::Temporary) } else { Ok(Bucket::At(text.parse()?)) }
}

/// Runs the demo.
///
/// # Errors
///
/// The server cannot be started, or rejects a request of the demo.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let Args { jobs, data, port, kill, bucket, remote, keep, lateness, within } = args;
    let options = Options { jobs, data, port, kill, bucket, remote, keep, lateness, within };
    demo::run(options, ctx).await
}
