//! `tidegate log close`: no server leads the log again.

use serde_json::json;

use super::{
    super::{Context, ExitCode},
    address::{Address, Opened},
};
use tidegate_backends::bucket_log::{CloseError, Tail};

/// The options of `tidegate log close`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Stop all servers of the log first. A log whose last server ended it is closed at once. \
    Otherwise the command waits until a leader would have shown that it lives, up to a minute and a half or \
    the servers' takeover_seconds, and refuses with exit code 1 if one does. It cannot be undone: servers \
    refuse the log from then on. `tidegate log verify`, `show` and `restore` still read it.\n\n\
    Example:\n  \
    tidegate log close --log s3://bucket/prefix"
)]
pub struct Args {
    #[command(flatten)]
    address: Address,
}

/// Closes the log.
///
/// # Errors
///
/// No bucket is named, it cannot be used or has no log, or a server leads the log.
pub(super) async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let Opened { reader, address, .. } = args.address.open_to_close().await?;
    ctx.note("looking for a server that leads the log");
    let closed = reader.close().await.map_err(|error| match error {
        CloseError::Log(error) => anyhow::Error::from(error),
        CloseError::Led => error.into(),
    });
    let Tail { next, time, .. } = closed?;
    if ctx.json() {
        ctx.print(json!({
            "log": format!("{:032x}", reader.id().0),
            "end": {"next_slot": next.to_string(), "written_at": time},
        }))?;
    } else {
        ctx.print(format_args!(
            "{address} is closed. It ends before the slot {next}; the object before it is of {time}."
        ))?;
    }
    Ok(ExitCode::Ok)
}
