//! A replicated log in object storage: what was acknowledged is in the bucket, whatever happens to
//! the machine and its disk.
//!
//! ```text
//!   log.json                          the identity of the log
//!   epoch/0000000007                  claim: a process wants to lead epoch 7
//!   log/0000000007/000000000000       start record, records, and at last the seal of epoch 7
//!   snap/0000000006/manifest          the state behind the seal of epoch 6, in parts
//!   hint/leader, hint/standby         signs of life: the only objects that are overwritten
//! ```
//!
//! Every object but hints is created once, and claims and seals are never removed. The history is, epoch by
//! epoch, the records before the first seal. A record has the commands of one group commit. It is
//! evaluated only after it is durable, in the order of the log, by the same code on the leader, on a
//! standby and during a restore. A new leader seals every lower epoch in its first empty slot, so
//! the leader before it can acknowledge nothing more. No clock, lease or list of objects decides
//! anything.
//!
//! Read in this order. Values: [`key`], [`object`], [`body`]. Decisions: [`create`] (whose is a
//! slot), [`tail`] (what continues the log), `flight` (what is durable), `newest` (which epoch is
//! the newest), `truncate` (what may be removed). The edges: [`address`], [`bucket`], `answers` (whether
//! the bucket answers), `probe` (which stores can have a log), [`replica`], [`handle`].
//! The procedures: `follow`, `lead`, `serve`, `pace` (when a PUT starts), `hedge` (when it is sent again),
//! `handover` (to a process that replaces the leader), `fence` (what a leader reads again), `silence`
//! (whether the bucket of an idle leader answers), `snapshot` with `parts`, `audit` (whether a standby has
//! the state of its leader), `hints` and `takeover` (when to try), and [`node`], which connects them.
//! [`LogReader`] reads a log from outside, cleans and closes it, and [`seed()`] begins one with a state.

pub mod address;
mod answers;
mod audit;
pub mod body;
pub mod bucket;
pub mod create;
pub mod error;
mod fence;
mod flight;
mod follow;
pub mod handle;
mod handover;
mod hedge;
mod hints;
mod identity;
#[cfg(any(test, feature = "testkit"))]
pub mod immediate;
pub mod key;
mod lead;
#[cfg(test)]
mod metered;
mod newest;
pub mod node;
pub mod object;
mod pace;
mod parts;
mod planted;
mod probe;
mod reader;
pub mod replica;
mod requests;
mod seed;
mod serve;
mod silence;
#[cfg(test)]
mod simulation;
mod snapshot;
pub mod tail;
mod takeover;
mod truncate;

pub use address::{BadAddress, BucketAddress, BucketClients, ConnectError};
pub use bucket::{Edge, LogBucket, StoreBucket};
pub use error::LogError;
pub use handle::{Handle, LogRefusal};
pub use hints::{Hint, Hints};
pub use identity::identify;
pub use node::{Ended, Node, NodeSettings};
pub use pace::Pace;
pub use probe::{UnfitStore, check_store, probe};
pub use reader::{
    CloseError, Leftover, Leftovers, LogEntry, LogReader, RestoreError, RestoredState, SlotContent,
};
pub use replica::{Frozen, NextPart, Replica, ReplicaError, Restored, SnapshotParts};
pub use seed::{SeedError, seed};
pub use tail::{Durable, Tail};
pub use truncate::Removable;
