//! Why a move does not go on.

use tidegate_core::port::{StoreError, job_store::UnreadableJob};

/// Why a move does not go on. Both stores keep their marks, unless it says otherwise: a repeat goes on
/// where it ended.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// A store cannot be read or written.
    #[error("{place} cannot be read or written")]
    Store {
        /// Which one.
        place: String,
        /// Why.
        #[source]
        error: StoreError,
    },
    /// The objects of a store cannot be read or written.
    #[error("the objects of {place} cannot be read or written")]
    Objects {
        /// Which store.
        place: String,
        /// Why.
        #[source]
        error: object_store::Error,
    },
    /// A record of the source cannot be read.
    #[error(
        "{place} has damaged data, which is not moved: see `tidegate doctor`, and repair it first"
    )]
    Damaged {
        /// Which store.
        place: String,
        /// What is damaged.
        #[source]
        what: Damage,
    },
    /// The move may not begin or go on. The message has the remedy.
    #[error("{0}")]
    Refused(String),
}

/// What is damaged.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// A job.
    #[error(transparent)]
    Job(#[from] UnreadableJob),
    /// Something else.
    #[error("{0}")]
    Other(String),
}

impl MoveError {
    /// The move is refused, with a remedy.
    pub(super) fn refused(message: impl Into<String>) -> Self {
        Self::Refused(message.into())
    }
}
