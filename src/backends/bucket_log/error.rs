//! Why a node or a reader stops. It never skips what it cannot apply: it stops at that position, and
//! nothing is lost.

use std::fmt::Display;

use super::{
    key::{Epoch, ObjectKey},
    replica::ReplicaError,
};

/// Why a node or a reader stops.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// An object is damaged, of a later release, or not where it belongs. An operator must act.
    #[error("the object {key} of the log cannot be used: {problem}")]
    Object {
        /// Its name.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The store did not answer a read of an object.
    #[error("the store does not answer a request for the object {key} of the log")]
    NoAnswer {
        /// Its name.
        key: String,
    },
    /// An operator has closed the log.
    #[error(
        "the log was closed with the claim of epoch {epoch}, and no server leads it again: `tidegate log \
         restore` makes a data directory of its state"
    )]
    Closed {
        /// The epoch of the claim.
        epoch: Epoch,
    },
    /// The local store failed. The node may be started again.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
}

impl LogError {
    pub(super) fn object(key: &ObjectKey, problem: impl Display) -> Self {
        Self::Object { key: key.to_string(), problem: problem.to_string() }
    }

    /// The object was there, and is no longer.
    pub(super) fn gone(key: &ObjectKey) -> Self {
        Self::object(key, "it is gone")
    }
}
