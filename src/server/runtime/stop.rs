//! The stop of a server: it finishes what runs, stores what is not stored yet, and ends the tasks.

use std::time::Duration;

use super::{Server, StopPhase};
use tidegate_core::time::Timestamp;

/// How long a stop waits for the commits that are under way when the tasks end.
const COMMIT_TIME: Duration = Duration::from_secs(5);

impl Server {
    /// Stops the server: [drains](Self::drain) it, stores what is not stored yet, and ends every task.
    /// Returns when they have ended; handlers of attempts that did not finish are dropped. The next start
    /// finds these attempts.
    pub async fn stop(&self) {
        self.drain().await;
        let step = async {
            if !self.inner.shares_store() {
                self.inner.end_step(true).await;
            }
        };
        // At once: a commit on a log takes a PUT, and a standby waits for all of them.
        tokio::join!(Box::pin(step), Box::pin(self.store_recorded()));
        let clock = &self.inner.engine.ports().clock;
        if !self.inner.is_serverless() {
            tokio::select! {
                () = self.inner.store_parts(true) => {}
                () = clock.sleep(COMMIT_TIME) => {
                    tracing::warn!("what was counted last was not stored: the store is slow");
                }
            }
        }
        self.inner.stopping.send_replace(StopPhase::Stopped);
        self.inner.tasks.close();
        tokio::select! {
            () = self.inner.tasks.wait() => {}
            () = clock.sleep(COMMIT_TIME) => {
                tracing::warn!("some tasks had not ended after the stop: the store is slow");
            }
        }
    }

    /// Stores what triggers did and the recorded calls of plugins. Without a call of this, a task does so
    /// every few seconds, and a stop does. A failure is logged.
    ///
    /// A caller that serves requests calls it between [`Self::drain`] and the end of its listener: then
    /// [`Self::stop`] has less to store while requests are refused.
    pub async fn store_recorded(&self) {
        let triggers = async {
            if !self.inner.shares_store() {
                self.inner.store_all_trigger_statuses().await;
            }
        };
        let calls = async {
            if !self.inner.is_serverless() {
                self.inner.store_plugin_calls().await;
            }
        };
        tokio::join!(triggers, calls);
    }

    /// Ends the waits for results: their jobs have not ended, and their callers repeat the request.
    ///
    /// A caller that serves requests calls it when it accepts no more of them. A wait, of up to a minute,
    /// would delay the end of its listener otherwise.
    pub fn refuse(&self) {
        self.inner.stopping.send_if_modified(|phase| {
            let refuses_now = *phase < StopPhase::Refusing;
            if refuses_now {
                *phase = StopPhase::Refusing;
            }
            refuses_now
        });
    }

    /// Begins a stop: the server admits no more jobs, answers the requests that wait for some, and waits
    /// for running attempts until `options.shutdown` after the first call. It still takes reports and
    /// heartbeats. Returns when that time ends, which every call returns the same.
    ///
    /// A caller that serves requests finishes their answers between this and [`Self::stop`]: a lease in an
    /// answer that is not received is handed back, and that is work of the tasks that `stop` ends.
    pub async fn drain(&self) -> Timestamp {
        let begin = |phase: &mut StopPhase| {
            let begins = *phase == StopPhase::Serving;
            if begins {
                *phase = StopPhase::Draining;
            }
            begins
        };
        self.inner.stopping.send_if_modified(begin);
        let deadline = self.now() + self.inner.options.shutdown;
        let deadline = *self.inner.stop_deadline.get_or_init(|| deadline);
        self.inner.busy.close();
        tokio::select! {
            biased;
            () = self.inner.busy.wait() => {}
            () = self.inner.engine.ports().clock.sleep_until(deadline) => {
                // A drain and the stop after it wait for the same jobs.
                if self.inner.late_at_stop.set(()).is_ok() {
                    tracing::warn!("some jobs were still running at the stop");
                }
            }
        }
        deadline
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use object_store::memory::InMemory;
    use serde_json::json;
    use tokio::{sync::watch, task::JoinHandle};

    use super::*;
    use crate::runtime::testing::{builder_on, send_event, until};
    use tidegate_core::{
        event::TriggerConfig,
        job::type_config::TypeConfig,
        port::{
            Committed, StoreLayer, Txn, Write,
            job_store::{JobStore, StoreError},
        },
    };
    use tidegate_engine::{
        memory::{FakeClock, MemoryStore},
        testkit::builders::name,
    };

    /// A store that counts the commits with records. While it holds them, they wait.
    struct HoldingStore {
        store: MemoryStore,
        holds: watch::Sender<bool>,
        begun: AtomicUsize,
    }

    impl HoldingStore {
        fn begun(&self) -> usize {
            self.begun.load(Ordering::Relaxed)
        }
    }

    impl StoreLayer for HoldingStore {
        fn inner(&self) -> &dyn JobStore {
            &self.store
        }

        async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
            let is_record = |write: &Write| matches!(write, Write::PutRecord(_));
            if txns.iter().flatten().any(is_record) {
                self.begun.fetch_add(1, Ordering::Relaxed);
                let _ = self.holds.subscribe().wait_for(|holds| !holds).await;
            }
            self.store.commit(txns).await
        }
    }

    /// A server with a job and an event that are in no record yet, and the number of commits until then.
    async fn with_unstored() -> (Server, Arc<HoldingStore>, usize) {
        let clock = Arc::new(FakeClock::default());
        let store = Arc::new(HoldingStore {
            store: MemoryStore::new(),
            holds: watch::Sender::new(false),
            begun: AtomicUsize::new(0),
        });
        let builder = builder_on(&clock, Arc::clone(&store) as _, Arc::new(InMemory::new()));
        let server = builder.start().await.unwrap();
        server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
        let trigger = json!({"filter": {"type": "put"}, "enqueue": {"type": "work"}});
        let trigger: TriggerConfig = serde_json::from_value(trigger).unwrap();
        server.put_trigger(&name("uploads"), trigger, None).await.unwrap();
        send_event(&server, "1").await;
        until("its step and its status are stored", async || {
            let are_stored = store.begun() >= 2;
            if !are_stored {
                clock.advance(Duration::from_secs(1));
            }
            are_stored
        })
        .await;
        // No time passes from now on, so no task stores this one.
        send_event(&server, "2").await;
        let begun = store.begun();
        (server, store, begun)
    }

    fn stopping(server: &Server) -> JoinHandle<()> {
        let server = server.clone();
        tokio::spawn(async move { server.stop().await })
    }

    #[tokio::test]
    async fn a_stop_waits_once_for_all_that_it_stores() {
        let (server, store, begun) = with_unstored().await;
        store.holds.send_replace(true);
        let stopping = stopping(&server);
        until("both commits are under way", async || store.begun() == begun + 2).await;
        store.holds.send_replace(false);
        stopping.await.unwrap();
    }

    #[tokio::test]
    async fn a_stop_does_not_store_again_what_is_stored() {
        let (server, store, begun) = with_unstored().await;
        server.store_recorded().await;
        assert_eq!(store.begun(), begun + 1, "the status of the trigger");
        server.stop().await;
        assert_eq!(store.begun(), begun + 2, "the step of the history");
    }
}
