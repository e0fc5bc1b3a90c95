//! `tidegate log clean`: removes what no server needs of the snapshots of a log.

use indicatif::HumanBytes;
use serde::Serialize;
use serde_json::json;

use super::{
    super::{Context, ExitCode, output},
    address::{Address, Opened},
};
use tidegate_backends::bucket_log::{Leftover, Leftovers};
use tidegate_core::time::Timestamp;

/// The options of `tidegate log clean`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Servers remove old snapshots along the names that newer ones have of them. What they do \
    not find stays: the parts of an upload whose leader was lost or stopped (upload), and a snapshot that a \
    slow leader has completed late (snapshot). The command finds both below the epoch of the oldest snapshot \
    that servers keep, if all objects of their epoch are older than a day, by the clock of the store. \
    Nothing that a server, `log verify` or `log restore` reads is removed, and servers may run.\n\n\
    Example:\n  \
    tidegate log clean --log s3://bucket/prefix\n  \
    tidegate log clean --log s3://bucket/prefix --yes"
)]
pub struct Args {
    #[command(flatten)]
    address: Address,
    /// Remove what is found. Without this option, it is shown, and nothing changes.
    #[arg(long)]
    yes: bool,
}

/// Removes what no server needs, or shows it.
///
/// # Errors
///
/// No bucket is named, it cannot be used or has no log, a snapshot that servers keep is gone, or the store
/// does not remove an object. What was removed until then is shown.
pub(super) async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let Opened { reader, bucket, address, .. } = args.address.open().await?;
    let Leftovers { removable, young } = reader.leftovers(&bucket).await?;
    let (mut shown, mut ended) = (Vec::new(), Ok(()));
    for leftover in &removable {
        if args.yes {
            ended = reader.remove(leftover).await;
        }
        if ended.is_err() {
            break;
        }
        shown.push(Shown::of(leftover));
    }
    let objects: usize = shown.iter().map(|epoch| epoch.objects).sum();
    let bytes: u64 = shown.iter().map(|epoch| epoch.bytes).sum();
    if ctx.json() {
        ctx.print(json!({
            "log": address.to_string(), "removed": args.yes, "objects": objects, "bytes": bytes,
            "epochs": shown, "young_epochs": young,
        }))?;
    } else {
        if !shown.is_empty() {
            let titles = ["EPOCH", "KIND", "OBJECTS", "SIZE", "WRITTEN"];
            ctx.print_tables(output::table(ctx.look, titles, shown.iter().map(Shown::row)))?;
        }
        ctx.print(summary(objects, bytes, args.yes))?;
        if young > 0 {
            ctx.note(format_args!("epochs with objects that are younger than a day: {young}"));
        }
    }
    ended?;
    Ok(ExitCode::Ok)
}

/// What was removed, or would be, in a line.
fn summary(objects: usize, bytes: u64, is_removed: bool) -> String {
    let size = HumanBytes(bytes);
    match (objects, is_removed) {
        (0, true) => "nothing is removed".to_owned(),
        (0, false) => "there is nothing to remove".to_owned(),
        (objects, true) => format!("removed objects: {objects} ({size})"),
        (objects, false) => {
            format!("objects to remove: {objects} ({size}); --yes removes them")
        }
    }
}

/// What no server needs of an epoch, as it is shown.
#[derive(Debug, Serialize)]
struct Shown {
    epoch: u64,
    kind: &'static str,
    objects: usize,
    bytes: u64,
    /// When the last of the objects was written.
    written_at: Timestamp,
}

impl Shown {
    fn of(leftover: &Leftover) -> Self {
        Self {
            epoch: leftover.epoch.number(),
            kind: if leftover.is_snapshot() { "snapshot" } else { "upload" },
            objects: leftover.objects(),
            bytes: leftover.bytes,
            written_at: leftover.written_at,
        }
    }

    fn row(&self) -> [String; 5] {
        [
            self.epoch.to_string(),
            self.kind.to_owned(),
            self.objects.to_string(),
            HumanBytes(self.bytes).to_string(),
            self.written_at.to_string(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_says_whether_objects_were_removed() {
        for (objects, is_removed, line) in [
            (0, false, "there is nothing to remove"),
            (0, true, "nothing is removed"),
            (2, false, "objects to remove: 2 (5 B); --yes removes them"),
            (2, true, "removed objects: 2 (5 B)"),
        ] {
            assert_eq!(summary(objects, 5, is_removed), line);
        }
    }
}
