//! `tidegate log`: reads the replicated log of a server, which may run, cleans and closes one, and begins a
//! new one.

mod address;
mod clean;
mod close;
mod restore;
mod seed;

use std::collections::BTreeMap;

use clap::Subcommand;
use indicatif::HumanBytes;
use serde::Serialize;
use serde_json::json;

use self::address::{Address, Opened};
use super::{Context, ExitCode, context::print_error, output};
use tidegate_backends::bucket_log::{LogEntry, SlotContent, Tail, key::Epoch};
use tidegate_core::time::Timestamp;

/// The commands on a replicated log.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Read the whole log and check it: every object is what was written and follows the one before
    /// it, and snapshots have their parts.
    Verify(Address),
    /// List the epochs of the log, or the objects of one.
    Show {
        /// The bucket.
        #[command(flatten)]
        address: Address,
        /// List the objects of this epoch.
        #[arg(long, value_name = "NUMBER")]
        epoch: Option<u64>,
    },
    /// Make a data directory with the state as of an instant.
    Restore(restore::Args),
    /// Begin a log in an empty prefix of a bucket with the data of a directory.
    Seed(seed::Args),
    /// Remove what no server needs of the snapshots: parts whose upload has ended early, and old snapshots
    /// that no newer one names.
    Clean(clean::Args),
    /// Close a log that no server leads: none leads it again.
    Close(close::Args),
}

/// Reads the log.
///
/// # Errors
///
/// No bucket is named, it cannot be used, or it has no log.
pub async fn run(command: Command, ctx: &Context) -> anyhow::Result<ExitCode> {
    match command {
        Command::Verify(address) => verify(address, ctx).await,
        Command::Show { address, epoch: None } => epochs(address, ctx).await,
        Command::Show { address, epoch: Some(epoch) } => objects(address, epoch, ctx).await,
        Command::Restore(args) => restore::run(args, ctx).await,
        Command::Seed(args) => seed::run(args, ctx).await,
        Command::Clean(args) => clean::run(args, ctx).await,
        Command::Close(args) => close::run(args, ctx).await,
    }
}

/// What the log has.
#[derive(Debug, Default, Serialize)]
struct Total {
    epochs: usize,
    records: u64,
    transactions: u64,
    bytes: u64,
    snapshots: u64,
    snapshot_bytes: u64,
}

async fn verify(address: Address, ctx: &Context) -> anyhow::Result<ExitCode> {
    let Opened { reader, address, .. } = address.open().await?;
    let mut epochs = Epochs::default();
    let end = reader.verify(|entry| epochs.add(entry)).await?;
    let total = epochs.total();
    let Tail { next, time, .. } = end;
    if ctx.json() {
        let mut value = serde_json::to_value(&total)?;
        value["log"] = json!(format!("{:032x}", reader.id().0));
        value["end"] = json!({"next_slot": next.to_string(), "written_at": time});
        ctx.print(value)?;
        return Ok(ExitCode::Ok);
    }
    let Total { epochs, records, transactions, bytes, snapshots, snapshot_bytes } = total;
    ctx.print(format_args!(
        "{address} is intact. Epochs: {epochs}, records: {records}, transactions: {transactions} ({}), \
         snapshots: {snapshots} ({}). The next slot is {next}; the object before it is of {time}.",
        HumanBytes(bytes),
        HumanBytes(snapshot_bytes)
    ))?;
    Ok(ExitCode::Ok)
}

async fn epochs(address: Address, ctx: &Context) -> anyhow::Result<ExitCode> {
    let Opened { reader, .. } = address.open().await?;
    let mut epochs = Epochs::default();
    let read = reader.list(|entry| epochs.add(entry)).await;
    if ctx.json() {
        let epochs: Vec<&ShownEpoch> = epochs.0.values().collect();
        ctx.print(json!({"epochs": epochs}))?;
    } else {
        let titles =
            ["EPOCH", "LEADER", "BEGAN", "RECORDS", "TRANSACTIONS", "SIZE", "SEALED", "SNAPSHOT"];
        let size = |bytes| HumanBytes(bytes).to_string();
        let rows = epochs.0.values().map(|epoch| {
            [
                epoch.epoch.to_string(),
                epoch.leader.clone().unwrap_or_else(output::dash),
                output::when_known(epoch.began_at, ctx.now()),
                epoch.records.to_string(),
                epoch.transactions.to_string(),
                size(epoch.bytes),
                output::when_known(epoch.sealed_at, ctx.now()),
                epoch.snapshot_bytes.map_or_else(output::dash, size),
            ]
        });
        ctx.print_tables(output::table(ctx.look, titles, rows))?;
    }
    read?;
    Ok(ExitCode::Ok)
}

/// An object of an epoch, as it is shown.
#[derive(Debug, Serialize)]
struct ShownObject {
    slot: String,
    kind: &'static str,
    written_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    transactions: Option<usize>,
    bytes: u64,
}

async fn objects(address: Address, number: u64, ctx: &Context) -> anyhow::Result<ExitCode> {
    let Opened { reader, .. } = address.open().await?;
    let mut objects = Vec::new();
    let add = |entry| {
        let LogEntry::Object { slot, time, bytes, content } = entry else { return };
        let (kind, transactions) = match content {
            SlotContent::Start(_) => ("start", None),
            SlotContent::Record(transactions) => ("record", Some(transactions)),
            SlotContent::Seal => ("seal", None),
        };
        let slot = slot.to_string();
        objects.push(ShownObject { slot, kind, written_at: time, transactions, bytes });
    };
    let read = match Epoch::new(number) {
        Some(epoch) => reader.list_epoch(epoch, add).await,
        None => Ok(()),
    };
    if objects.is_empty() {
        read?;
        print_error(format_args!("error: the log has no objects of the epoch {number}"));
        return Ok(ExitCode::NotFound);
    }
    if ctx.json() {
        ctx.print(json!({"objects": objects}))?;
    } else {
        let rows = objects.iter().map(|object| {
            [
                object.slot.clone(),
                object.kind.to_owned(),
                object.written_at.to_string(),
                object.transactions.map_or_else(output::dash, |count| count.to_string()),
                HumanBytes(object.bytes).to_string(),
            ]
        });
        let titles = ["SLOT", "KIND", "WRITTEN", "TRANSACTIONS", "SIZE"];
        ctx.print_tables(output::table(ctx.look, titles, rows))?;
    }
    read?;
    Ok(ExitCode::Ok)
}

/// An epoch, as it is shown.
#[derive(Debug, Default, Serialize)]
struct ShownEpoch {
    epoch: u64,
    /// None if only the snapshot of the epoch is left, or no leader has begun it.
    leader: Option<String>,
    began_at: Option<Timestamp>,
    records: u64,
    transactions: u64,
    bytes: u64,
    sealed_at: Option<Timestamp>,
    snapshot_bytes: Option<u64>,
}

/// Epochs by their numbers.
#[derive(Default)]
struct Epochs(BTreeMap<u64, ShownEpoch>);

impl Epochs {
    fn add(&mut self, entry: LogEntry) {
        match entry {
            LogEntry::Object { slot, time, bytes, content } => {
                let epoch = self.epoch(slot.epoch.number());
                epoch.bytes += bytes;
                match content {
                    SlotContent::Start(leader) => {
                        (epoch.leader, epoch.began_at) = (Some(leader), Some(time));
                    }
                    SlotContent::Record(transactions) => {
                        epoch.records += 1;
                        epoch.transactions += transactions as u64;
                    }
                    SlotContent::Seal => epoch.sealed_at = Some(time),
                }
            }
            LogEntry::Snapshot { epoch, bytes } => {
                self.epoch(epoch.number()).snapshot_bytes = Some(bytes);
            }
        }
    }

    fn epoch(&mut self, number: u64) -> &mut ShownEpoch {
        self.0
            .entry(number)
            .or_insert_with(|| ShownEpoch { epoch: number, ..ShownEpoch::default() })
    }

    fn total(&self) -> Total {
        let mut total = Total::default();
        for epoch in self.0.values() {
            total.epochs += usize::from(epoch.bytes > 0);
            total.records += epoch.records;
            total.transactions += epoch.transactions;
            total.bytes += epoch.bytes;
            total.snapshots += u64::from(epoch.snapshot_bytes.is_some());
            total.snapshot_bytes += epoch.snapshot_bytes.unwrap_or(0);
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_backends::bucket_log::LogError;

    #[test]
    fn a_silent_store_is_not_taken_for_a_damaged_log() {
        let silent = LogError::NoAnswer { key: "log.json".into() };
        assert_eq!(ExitCode::of(&silent.into()), ExitCode::Unreachable);
        let damaged = LogError::Object { key: "log.json".into(), problem: "it is gone".into() };
        assert_eq!(ExitCode::of(&damaged.into()), ExitCode::Refused);
    }
}
