//! Why a call of a store failed.

use std::{error::Error, sync::Arc, time::Duration};

use crate::{
    error_chain::ErrorChain,
    job::{Job, JobId, Payload},
};

/// The words for a full disk.
pub const NO_ROOM: &str = "no room on the disk";

/// Why a call of a store failed. One variant per reaction of the caller.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The store is over its capacity or out of space. Nothing was written. Repeat after
    /// `retry_after`.
    #[error("the store accepts no writes at the moment: {message}")]
    Throttled {
        /// How long to wait.
        retry_after: Duration,
        /// What is exhausted.
        message: String,
    },
    /// No answer: the write may or may not have happened. Repeat what is idempotent.
    #[error("the store did not answer")]
    Unavailable(#[source] ErrorSource),
    /// Another process writes to the store. Nothing was written, and nothing will be by this call.
    /// Repeat it there.
    #[error("this server does not lead the log{}", at_leader(.leader.as_deref()))]
    NotLeader {
        /// Where that process answers requests, if it is known.
        leader: Option<String>,
    },
    /// The write was sent, and may or may not happen, or may have happened in part. Repeat what is
    /// idempotent.
    #[error("whether the change was made is not known: {message}")]
    OutcomeUnknown {
        /// Why it is not known.
        message: String,
    },
    /// The stored data is not what was written. Repeating cannot help; an operator must act.
    #[error("the store holds damaged data")]
    Corrupt(#[source] ErrorSource),
}

fn at_leader(leader: Option<&str>) -> String {
    leader.map(|leader| format!("; its leader is at {leader}")).unwrap_or_default()
}

impl StoreError {
    /// [`StoreError::Unavailable`], caused by `source`: an error or a message.
    pub fn unavailable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unavailable(Arc::from(source.into()))
    }

    /// [`StoreError::Corrupt`], caused by `source`: an error or a message.
    pub fn corrupt(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Corrupt(Arc::from(source.into()))
    }

    /// [`StoreError::Unavailable`], caused by `source` during the operation that `context` names.
    pub fn unavailable_in(
        context: impl Into<String>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::unavailable(InContext { context: context.into(), source: source.into() })
    }

    /// [`StoreError::Corrupt`], caused by `source` while the store read or wrote what `context`
    /// names.
    pub fn corrupt_in(
        context: impl Into<String>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::corrupt(InContext { context: context.into(), source: source.into() })
    }

    /// Displays the error with its causes.
    pub fn chain(&self) -> ErrorChain<'_> {
        ErrorChain(self)
    }
}

/// A job that is stored and cannot be read: its record is damaged, or a newer release wrote it.
///
/// It holds itself alone. Every call goes on with the other jobs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("job {id} cannot be read: {reason}")]
pub struct UnreadableJob {
    /// Its id, as far as that can be read.
    pub id: String,
    /// Why, for an operator.
    pub reason: String,
}

/// The id of the last job of a page, after which the next page starts. None if no id can be read.
pub fn last_id(page: &[Result<Job, UnreadableJob>]) -> Option<JobId> {
    page.iter().rev().find_map(|job| match job {
        Ok(job) => Some(job.id.clone()),
        Err(unreadable) => unreadable.id.parse().ok(),
    })
}

impl UnreadableJob {
    /// The job `id`, whose record led to `error`.
    pub fn new(id: impl Into<String>, error: &StoreError) -> Self {
        let reason = match error {
            StoreError::Corrupt(source) => ErrorChain(source).to_string(),
            other => other.chain().to_string(),
        };
        Self { id: id.into(), reason }
    }
}

/// What is stored under a job's id: the job, if there is one.
pub type StoredJob = Result<Option<Job>, UnreadableJob>;

/// The job that a key points at, if there is one; or that the key, and so its job, cannot be read.
pub type StoredKey = Result<Option<JobId>, UnreadableJob>;

/// The separate body of a job, if it has one.
pub type StoredBody = Result<Option<Payload>, UnreadableJob>;

/// The cause of a [`StoreError`], shared because one failure may answer several calls.
pub type ErrorSource = Arc<dyn Error + Send + Sync>;

/// An error with the name of the operation or the data that it concerns.
#[derive(Debug, thiserror::Error)]
#[error("{context}")]
struct InContext {
    context: String,
    source: Box<dyn Error + Send + Sync>,
}
