//! The store of an engine in front of a log: that of the node which led when the engine began.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tidegate_core::port::{
    StoreLayer,
    job_store::{Committed, JobStore, StoreError, Txn},
    store_layer::Operation,
};

use super::{Life, Log, LogBug};

/// How long an engine waits for the log at most. What it wrote may happen later.
const MAX_WAIT: Duration = Duration::from_secs(20);

/// The store of an engine.
pub struct LogStore {
    log: Arc<Log>,
    life: Arc<Life>,
}

impl LogStore {
    /// The store of an engine that begins now.
    pub fn new(log: &Arc<Log>) -> Self {
        Self { life: log.leading(), log: Arc::clone(log) }
    }

    /// Lets the nodes go on until `call` is answered.
    async fn wait<T: Send>(
        &self,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let executor = &self.log.executor;
        let give_up_at = executor.scheduler.now() + MAX_WAIT;
        let mut call = pin!(call);
        loop {
            executor.turn();
            if self.life.is_over() {
                return Err(StoreError::unavailable("the node has ended"));
            }
            let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(answer) = polled {
                return answer;
            }
            // A request is sent by the poll, and received in this turn.
            executor.turn();
            if executor.scheduler.now() >= give_up_at {
                return Err(StoreError::unavailable("the log did not answer"));
            }
            executor.scheduler.elapse_until(executor.next_at()).await;
        }
    }
}

impl StoreLayer for LogStore {
    fn inner(&self) -> &dyn JobStore {
        &*self.life.store
    }

    async fn around<T: Send>(
        &self,
        _: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        self.wait(call).await
    }

    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        let is_early = self.log.bug == Some(LogBug::AnsweredBeforeDurable);
        if !is_early || !self.log.bucket.has_faults() {
            return self.wait(self.inner().commit(txns)).await;
        }
        let answers = txns.iter().map(|_| Committed::All).collect();
        let (life, number) = (Arc::clone(&self.life), self.life.number);
        self.log.executor.spawn(number, async move {
            // The caller has its answer.
            let _ = life.store.commit(txns).await;
        });
        Ok(answers)
    }
}
