//! The local state behind the log: a function of the records that were applied.
//!
//! A leader, a standby and a restore apply with the same code, in the order of the log. The state is
//! therefore at every instant the state after some prefix of the history, and never rolled back.

use std::{collections::BTreeMap, error::Error, ops::RangeInclusive, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    body::StateDigest,
    key::Epoch,
    tail::{Durable, Tail},
};

/// Why a replica could not go on. No record is ever skipped.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The local store did not do its work. It may do it later: nothing is known of what is stored.
    #[error("the local store failed")]
    Failed(#[source] Arc<dyn Error + Send + Sync>),
    /// What was read is not what was written. Repeating cannot help.
    #[error("the local store is damaged")]
    Damaged(#[source] Arc<dyn Error + Send + Sync>),
}

impl ReplicaError {
    /// [`ReplicaError::Failed`], caused by `source`: an error or a message.
    pub fn new(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed(Arc::from(source.into()))
    }

    /// [`ReplicaError::Damaged`], caused by `source`: an error or a message.
    pub fn damaged(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Damaged(Arc::from(source.into()))
    }
}

/// The local state behind the log. It stores its tail together with what it applies.
#[async_trait]
pub trait Replica: Send + Sync {
    /// The answer to a command.
    type Answer: Send + 'static;

    /// The number of the tables that records are applied to.
    fn schema(&self) -> u64;

    /// How far the log is applied.
    fn tail(&self) -> Tail;

    /// About how many bytes the state has, and so a snapshot before its compression; 0 if that is not
    /// known.
    fn bytes(&self) -> u64;

    /// Applies `objects`, which continue the log at [`Self::tail`]: one list of answers per object,
    /// one answer per command. They depend on the state and the objects alone: on no clock, random
    /// number or environment.
    async fn apply(&self, objects: Vec<Durable>) -> Result<Vec<Vec<Self::Answer>>, ReplicaError>;

    /// The number of records of these epochs, from their seals. Each epoch is sealed and applied.
    async fn sealed(
        &self,
        epochs: RangeInclusive<Epoch>,
    ) -> Result<BTreeMap<Epoch, u64>, ReplicaError>;

    /// The state as it is now, whatever is applied later.
    ///
    /// # Errors
    ///
    /// As [`Frozen::digest`].
    async fn freeze(&self) -> Result<Box<dyn Frozen>, ReplicaError>;

    /// Replaces the state by a frozen one. If a part is missing, or the parts are not
    /// [accepted](SnapshotParts::accepts), the state is what it was.
    async fn restore(&self, parts: &mut dyn SnapshotParts) -> Result<Restored, ReplicaError>;

    /// Replaces the state by that before the first record.
    async fn clear(&self) -> Result<(), ReplicaError>;
}

/// A frozen state, in parts that are read in order.
#[async_trait]
pub trait Frozen: Send {
    /// The tail of the state.
    fn tail(&self) -> Tail;

    /// The next part; none after the last one.
    async fn next(&mut self) -> Result<Option<Bytes>, ReplicaError>;

    /// The digest of its content, which depends on the applied records alone; none if the replica has no
    /// digests. It may take as long as all parts.
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Damaged`] proves that the content is another one than that of the records.
    async fn digest(&mut self) -> Result<Option<StateDigest>, ReplicaError>;
}

/// The parts of a snapshot, in order.
#[async_trait]
pub trait SnapshotParts: Send {
    /// The next part.
    async fn next(&mut self) -> NextPart;

    /// Whether the state of the snapshot has this tail. If the parts have another one, the snapshot
    /// counts as gone.
    fn accepts(&mut self, tail: &Tail) -> bool;
}

/// A part of a snapshot.
#[derive(Clone, Debug)]
pub enum NextPart {
    /// The part.
    Part(Bytes),
    /// The one before was the last.
    End,
    /// It is gone: a newer snapshot has replaced this one.
    Gone,
}

/// Whether a state was replaced by a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restored {
    /// It was.
    Done,
    /// A part was gone, or the parts are not those of the snapshot.
    Gone,
}
