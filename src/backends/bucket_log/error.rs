//! Why a node stops. It never skips what it cannot apply: it stops at that position, and nothing is
//! lost.

use std::fmt::Display;

use super::{key::ObjectKey, replica::ReplicaError};

/// Why a node stops.
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
    /// The local store failed. The node may be started again.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
}

impl LogError {
    pub(super) fn object(key: &ObjectKey, problem: impl Display) -> Self {
        Self::Object { key: key.to_string(), problem: problem.to_string() }
    }
}
