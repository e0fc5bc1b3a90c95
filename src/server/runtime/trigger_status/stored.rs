//! The status of triggers in the store, so that it outlasts a restart: one record for each trigger.
//!
//! A record has the whole status, so a trigger that handles no events costs nothing. A server alone
//! writes them as follows. Every few seconds the records of the triggers that handled some are written
//! in one commit, as many as fit its bound, those first that were written longest ago. A process that is
//! killed loses what its triggers did since their last write.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::MAX_TRIGGERS;
use crate::runtime::Inner;
use tidegate_api::TriggerStatus;
use tidegate_core::{
    event::trigger::{digest, hex},
    job::TriggerName,
    port::{
        Write,
        job_store::{Record, RecordKind, RecordQuery},
    },
};
use tidegate_engine::Error;

/// How often statuses are written, if some changed.
pub(in crate::runtime) const STORE_INTERVAL: Duration = Duration::from_secs(5);
/// How long the status of a trigger is kept after its latest event.
const RETENTION: Duration = Duration::from_hours(30 * 24);
/// Most bytes of the events of one commit, as they are in memory.
const MAX_COMMIT_BYTES: usize = 1 << 20;
/// Most records of one read.
const PAGE_RECORDS: u32 = 100;
const KIND: RecordKind = RecordKind::Trigger;

/// Most records of one read by name.
const PAGE_NAMED: usize = 25;

/// A record's content.
#[derive(Serialize, Deserialize)]
pub(super) struct Stored {
    pub trigger: TriggerName,
    pub status: TriggerStatus,
}

fn record_name(trigger: &TriggerName) -> String {
    hex(&digest(&[trigger.as_str()]))
}

/// The status in a record; none if it cannot be read.
fn read(record: &Record) -> Option<Stored> {
    serde_json::from_slice(&record.bytes)
        .inspect_err(|error| tracing::warn!(%error, "the status of a trigger cannot be read"))
        .ok()
}

/// A write of a status; none for one that is too large, or without an event.
pub(super) fn write(trigger: TriggerName, status: TriggerStatus) -> Option<Write> {
    let (name, until) = (record_name(&trigger), status.last_at? + RETENTION);
    let bytes = serde_json::to_vec(&Stored { trigger, status })
        .inspect_err(|error| tracing::warn!(%error, "the status of a trigger was not stored"));
    Some(Write::PutRecord(Record { kind: KIND, name, until, bytes: bytes.ok()? }))
}

impl Inner {
    /// Stores what triggers did since the last call, or as much of it as one commit takes. Triggers
    /// that are gone are forgotten. After an error the next call tries again.
    ///
    /// # Errors
    ///
    /// The store's.
    pub(in crate::runtime) async fn store_trigger_statuses(&self) -> Result<(), Error> {
        let statuses = &self.trigger_statuses;
        // Otherwise a trigger that is deleted now would come back.
        let _storing = statuses.storing.lock().await;
        if !statuses.have_changed() {
            return Ok(());
        }
        let catalog = self.engine.catalog().await?;
        statuses.retain(|trigger| catalog.triggers.contains_key(trigger));
        let changed = statuses.take_changed(self.engine.now(), MAX_COMMIT_BYTES);
        let names: Vec<_> = changed.iter().map(|(trigger, _)| trigger.clone()).collect();
        let writes: Vec<_> =
            changed.into_iter().filter_map(|(trigger, status)| write(trigger, status)).collect();
        let stored = self.engine.ports().store.commit(vec![writes]).await;
        stored.inspect_err(|_| statuses.mark_changed(&names))?;
        Ok(())
    }

    /// Stores everything that triggers did since the last call.
    pub(in crate::runtime) async fn store_all_trigger_statuses(&self) {
        while self.trigger_statuses.have_changed() {
            if let Err(error) = self.store_trigger_statuses().await {
                tracing::warn!(%error, "what triggers did last was not stored");
                return;
            }
        }
    }

    /// Reads what the triggers did before the start.
    pub(in crate::runtime) async fn load_trigger_statuses(&self) {
        if let Err(error) = self.read_trigger_statuses().await {
            tracing::warn!(%error, "what triggers did before the start cannot be read");
        }
    }

    async fn read_trigger_statuses(&self) -> Result<(), Error> {
        let catalog = self.engine.catalog().await?;
        let mut query =
            RecordQuery { kind: KIND, prefix: String::new(), after: None, limit: PAGE_RECORDS };
        for _ in 0..MAX_TRIGGERS.div_ceil(PAGE_RECORDS as usize) {
            let store = &self.engine.ports().store;
            let page = store.records(std::slice::from_ref(&query)).await?.pop().unwrap_or_default();
            let Some(last) = page.last() else { break };
            query.after = Some(last.name.clone());
            let stored = page.iter().filter_map(read);
            for Stored { trigger, status } in stored {
                if catalog.triggers.contains_key(&trigger) {
                    self.trigger_statuses.restore(trigger, status);
                }
            }
        }
        Ok(())
    }

    /// The stored statuses of `triggers`, each with at most `most` events, in their order; none for one
    /// without a record.
    pub(super) async fn stored_statuses(
        &self,
        triggers: &[TriggerName],
        most: usize,
    ) -> Result<Vec<Option<TriggerStatus>>, Error> {
        let mut statuses = Vec::with_capacity(triggers.len());
        for names in triggers.chunks(PAGE_NAMED) {
            let query = |trigger| RecordQuery {
                kind: KIND,
                prefix: record_name(trigger),
                after: None,
                limit: 1,
            };
            let queries: Vec<RecordQuery> = names.iter().map(query).collect();
            let found = self.engine.ports().store.records(&queries).await?;
            statuses.extend(found.iter().map(|page| {
                let mut status = read(page.first()?)?.status;
                status.recent.truncate(most);
                Some(status)
            }));
        }
        Ok(statuses)
    }

    /// Forgets what a trigger did that was deleted, or that is new and has the name of an earlier
    /// one.
    pub(in crate::runtime) async fn forget_trigger_status(&self, trigger: &TriggerName) {
        if self.is_serverless() {
            return;
        }
        let _storing = self.trigger_statuses.storing.lock().await;
        self.trigger_statuses.forget(trigger);
        let write = Write::RemoveRecord { kind: KIND, name: record_name(trigger), until: None };
        if let Err(error) = self.engine.ports().store.commit(vec![vec![write]]).await {
            tracing::warn!(%error, "what a deleted trigger did was not removed from the store");
        }
    }

    /// Drops the records of triggers without an event for a long time.
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub(in crate::runtime) async fn drop_old_trigger_statuses(&self) -> Result<(), Error> {
        let store = &self.engine.ports().store;
        store.purge(KIND, self.engine.now(), MAX_TRIGGERS as u64, PAGE_RECORDS).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;
    use serde_json::json;

    use super::*;
    use crate::runtime::{
        Server,
        testing::{RefusingStore, builder_on, send_event, until},
    };
    use tidegate_core::{
        event::TriggerConfig, job::type_config::TypeConfig, port::job_store::SharedStore,
    };
    use tidegate_engine::{
        memory::{FakeClock, MemoryStore},
        testkit::builders::name,
    };

    const TRIGGER: &str = "uploads";

    async fn start(clock: &Arc<FakeClock>, store: &SharedStore) -> Server {
        builder_on(clock, Arc::clone(store), Arc::new(InMemory::new())).start().await.unwrap()
    }

    async fn put_trigger(server: &Server) {
        let config = json!({"filter": {"type": "put"}, "enqueue": {"type": "work"}});
        let config: TriggerConfig = serde_json::from_value(config).unwrap();
        server.put_trigger(&name(TRIGGER), config, None).await.unwrap();
    }

    fn status(server: &Server) -> TriggerStatus {
        server.inner.trigger_statuses.of(&name(TRIGGER), 200)
    }

    fn ids(server: &Server) -> Vec<String> {
        status(server).recent.into_iter().map(|of| of.event.id).collect()
    }

    /// The ids of the events in the store, the newest first.
    async fn stored(store: &SharedStore) -> Vec<String> {
        let query = RecordQuery { kind: KIND, prefix: String::new(), after: None, limit: 10 };
        let records = store.records(&[query]).await.unwrap().remove(0);
        let events = records.iter().filter_map(read).flat_map(|of| of.status.recent);
        events.map(|of| of.event.id).collect()
    }

    /// Lets the time pass until the store has these events.
    async fn until_stored(clock: &FakeClock, store: &SharedStore, ids: &[&str]) {
        until("the events are stored", async || {
            clock.advance(Duration::from_secs(1));
            stored(store).await == ids
        })
        .await;
    }

    /// A server with a trigger that has handled the event `1`.
    async fn with_event(clock: &Arc<FakeClock>, store: &SharedStore) -> Server {
        let server = start(clock, store).await;
        server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
        put_trigger(&server).await;
        send_event(&server, "1").await;
        server
    }

    #[tokio::test]
    async fn events_of_triggers_outlast_a_restart() {
        let clock = Arc::new(FakeClock::default());
        let store: SharedStore = Arc::new(MemoryStore::new());
        let first = with_event(&clock, &store).await;
        until_stored(&clock, &store, &["1"]).await;
        // A stop writes what came since then.
        send_event(&first, "2").await;
        first.stop().await;
        let before = status(&first);
        clock.advance(Duration::from_mins(1));
        let second = start(&clock, &store).await;
        assert_eq!(status(&second), before);
        send_event(&second, "3").await;
        let now = status(&second);
        assert_eq!((now.matched, now.enqueued, now.since), (3, 3, before.since));
        assert_eq!(ids(&second), ["3", "2", "1"]);
    }

    #[tokio::test]
    async fn a_killed_server_forgets_the_last_events_alone() {
        let clock = Arc::new(FakeClock::default());
        let store: SharedStore = Arc::new(MemoryStore::new());
        let first = with_event(&clock, &store).await;
        until_stored(&clock, &store, &["1"]).await;
        send_event(&first, "2").await;
        drop(first);
        assert_eq!(ids(&start(&clock, &store).await), ["1"]);
    }

    #[tokio::test]
    async fn a_deleted_trigger_leaves_no_events() {
        let clock = Arc::new(FakeClock::default());
        let store: SharedStore = Arc::new(MemoryStore::new());
        let first = with_event(&clock, &store).await;
        until_stored(&clock, &store, &["1"]).await;
        first.delete_trigger(&name(TRIGGER), None).await.unwrap();
        assert_eq!(stored(&store).await, [""; 0]);
        // An event that was under way.
        let event = stored_event();
        first.inner.trigger_statuses.record(name(TRIGGER), event);
        first.stop().await;
        assert_eq!(stored(&store).await, [""; 0]);
        let second = start(&clock, &store).await;
        put_trigger(&second).await;
        assert_eq!((ids(&second).len(), status(&second).matched), (0, 0));
    }

    fn stored_event() -> tidegate_api::HandledEvent {
        serde_json::from_value(json!({
            "at": "1970-01-01T00:00:01Z", "action": "late", "job": "j",
            "event": {"id": "late", "source": "/bucket", "type": "put"},
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn a_trigger_without_events_for_a_month_is_forgotten() {
        let clock = Arc::new(FakeClock::default());
        let store: SharedStore = Arc::new(MemoryStore::new());
        let server = with_event(&clock, &store).await;
        until_stored(&clock, &store, &["1"]).await;
        clock.advance(RETENTION.saturating_sub(Duration::from_mins(5)));
        server.inner.drop_old_trigger_statuses().await.unwrap();
        assert_eq!(stored(&store).await, ["1"]);
        clock.advance(Duration::from_mins(10));
        server.inner.drop_old_trigger_statuses().await.unwrap();
        assert_eq!(stored(&store).await, [""; 0]);
    }

    #[tokio::test]
    async fn many_events_are_one_write_and_none_are_no_write() {
        let clock = Arc::new(FakeClock::default());
        let refusing = RefusingStore::new(Arc::new(MemoryStore::new()));
        let store: SharedStore = Arc::clone(&refusing) as _;
        // Without a start: no task of the server writes.
        let server = builder_on(&clock, Arc::clone(&store), Arc::new(InMemory::new()));
        let server = server.start().await.unwrap();
        put_trigger(&server).await;
        for _ in 0..500 {
            server.inner.trigger_statuses.record(name(TRIGGER), stored_event());
        }
        let before = refusing.commits();
        refusing.refuse(true);
        assert!(server.inner.store_trigger_statuses().await.is_err());
        refusing.refuse(false);
        for _ in 0..3 {
            server.inner.store_trigger_statuses().await.unwrap();
        }
        assert_eq!((refusing.commits() - before, stored(&store).await.len()), (1, 200));
    }
}
