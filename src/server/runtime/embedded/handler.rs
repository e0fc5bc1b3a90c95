//! In-process handlers: a program that embeds the server runs jobs of a type itself.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use crate::runtime::{AttemptLog, Server};
use tidegate_api::NewLogLine;
use tidegate_core::job::{
    Body, Job, Payload,
    lifecycle::{Failure, HandBack, Reason},
};
use tidegate_engine::{
    Error,
    request::{Heartbeat, HeartbeatAnswer},
};

/// A job handed to a handler: running, its data inline.
#[derive(Clone)]
pub struct Call {
    /// The job.
    pub job: Job,
    pub(super) server: Server,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("job", &self.job).finish_non_exhaustive()
    }
}

impl Call {
    /// The data of the job.
    pub fn data(&self) -> Option<&Payload> {
        self.job.data.inline()
    }

    /// What an earlier attempt has stored for this one.
    pub fn checkpoint(&self) -> Option<Payload> {
        self.job.life.checkpoint.as_ref().and_then(|kept| kept.body().inline().cloned())
    }

    /// Stores what the next attempt needs to go on, at most 64 KiB, and says whether the job is to
    /// be cancelled. A success of the job clears it.
    ///
    /// # Errors
    ///
    /// 413 for a larger one; 409 `stale_attempt` if the attempt is over; the store's.
    pub async fn store_checkpoint(&self, checkpoint: Payload) -> Result<HeartbeatAnswer, Error> {
        let beat = Heartbeat {
            id: self.job.id.clone(),
            job_type: None,
            attempt: self.job.life.attempt,
            token: self.job.life.running().map(|run| run.token),
            lease_seconds: None,
            progress: None,
            checkpoint: Some(Body::Inline(checkpoint)),
        };
        self.server.heartbeat(beat).await
    }

    /// Adds log lines to the job.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn log(&self, lines: Vec<NewLogLine>) -> Result<(), Error> {
        let log = AttemptLog::new(&self.job, self.job.life.attempt, lines);
        self.server.add_log(log.into_iter().collect()).await
    }
}

/// The result of a handler.
#[derive(Clone, Debug, PartialEq)]
pub enum Handled {
    /// The job succeeded, with this result.
    Succeeded(Option<Payload>),
    /// The attempt failed.
    Failed {
        /// The reason.
        failure: Failure,
        /// Whether another attempt makes sense.
        retryable: bool,
    },
    /// The attempt is handed back unharmed, at once or until a time.
    HandedBack(HandBack),
}

impl Handled {
    /// A failure that may be retried.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed { failure: Failure::new(Reason::Failed, message), retryable: true }
    }
}

/// The work of one call.
pub type Work = Pin<Box<dyn Future<Output = Handled> + Send>>;

/// Runs jobs of a type.
#[derive(Clone)]
pub struct Handler {
    /// Most calls at once.
    pub(super) concurrency: u32,
    /// Creates the work of a call.
    pub(super) run: Arc<dyn Fn(Call) -> Work + Send + Sync>,
}

impl Handler {
    pub(in crate::runtime) fn new(
        concurrency: u32,
        run: impl Fn(Call) -> Work + Send + Sync + 'static,
    ) -> Self {
        Self { concurrency, run: Arc::new(run) }
    }
}
