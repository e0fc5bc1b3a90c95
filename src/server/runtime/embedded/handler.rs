//! In-process handlers: a program that embeds the server runs jobs of a type itself.

use std::{future::Future, pin::Pin, sync::Arc};

use tidegate_core::job::{
    Job, Payload,
    lifecycle::{Failure, HandBack, Reason},
};

/// A job handed to a handler: running, its data inline.
#[derive(Clone, Debug)]
pub struct Call {
    /// The job.
    pub job: Job,
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
