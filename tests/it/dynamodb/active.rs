//! The list of queues with open buckets, on a table that refuses requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tidegate_backends::dynamodb::{
    DynamoStore, Key,
    memory::MemoryTable,
    table::{Change, Exchange, Item, Page, PageQuery, Table},
};
use tidegate_core::{
    port::{Clock, JobStore, StoreError, Write, job_store::DueQuery},
    queue::{Order, QueueConfig},
};
use tidegate_engine::{
    memory::{FakeClock, SeededEntropy},
    testkit::builders::{job, name},
};

/// A table that refuses reads of one registry, or deletions.
#[derive(Default)]
struct RefusingTable {
    table: MemoryTable,
    refuses_registry: AtomicBool,
    refuses_deletions: AtomicBool,
}

fn throttled() -> StoreError {
    StoreError::Throttled { retry_after: Duration::from_millis(50), message: "too much".into() }
}

#[async_trait]
impl Table for RefusingTable {
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, StoreError> {
        self.table.get(keys).await
    }

    async fn query(&self, query: &PageQuery) -> Result<Page, StoreError> {
        if self.refuses_registry.load(Ordering::SeqCst) && query.p == "R#ended" {
            return Err(throttled());
        }
        self.table.query(query).await
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: u32,
    ) -> Result<Page, StoreError> {
        self.table.scan(prefix, after, limit).await
    }

    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        let is_deletion = |change: &Change| matches!(change, Change::Delete { .. });
        if self.refuses_deletions.load(Ordering::SeqCst) && changes.iter().any(is_deletion) {
            return Err(throttled());
        }
        self.table.write(changes).await
    }

    async fn together(&self, changes: &[Change]) -> Result<bool, StoreError> {
        self.table.together(changes).await
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Option<Item>, StoreError> {
        self.table.exchange(exchange).await
    }
}

#[tokio::test]
async fn a_refused_request_hides_no_other_active_queue() {
    let (table, clock) = (Arc::new(RefusingTable::default()), Arc::new(FakeClock::default()));
    let entropy = Arc::new(SeededEntropy::new(1));
    let store = DynamoStore::new(Arc::clone(&table) as _, Arc::clone(&clock) as _, entropy);
    let add = async |queue: &str| {
        let due = clock.now();
        let mut job = job(&format!("{queue:0>26}")).queue(queue).due(due.millis()).build();
        job.id = store.assign_id(job.id.clone(), &job.spec, due);
        store.commit(vec![vec![Write::AddJob(job.clone())]]).await.unwrap();
        job
    };
    let ended = add("ended").await;
    let remove = Write::RemoveJob { id: ended.id.clone(), was: ended.life.revision };
    store.commit(vec![vec![remove]]).await.unwrap();
    clock.advance(Duration::from_hours(2));
    add("busy").await;
    let active = async || store.active_queues(clock.now()).await.unwrap();
    assert_eq!(active().await, [name("busy"), name("ended")].into());
    // A reader closes the bucket.
    let query = DueQuery {
        queue: name("ended"),
        critical: false,
        types: vec![ended.spec.job_type.clone()],
        partition: None,
        order: Order::of(&QueueConfig::default()),
        until: clock.now(),
        after: None,
        limit: 1,
        granted: None,
    };
    store.due(&[query]).await.unwrap();
    table.refuses_registry.store(true, Ordering::SeqCst);
    assert_eq!(active().await, [name("busy"), name("ended")].into(), "it was not checked");
    table.refuses_registry.store(false, Ordering::SeqCst);
    table.refuses_deletions.store(true, Ordering::SeqCst);
    assert_eq!(active().await, [name("busy")].into());
    table.refuses_deletions.store(false, Ordering::SeqCst);
    let listed = || table.table.items().into_iter().filter(|item| item.key.s.ends_with("#ended"));
    assert_eq!(listed().count(), 1, "its listing stays until it can be removed");
    assert_eq!(active().await, [name("busy")].into());
    assert_eq!(listed().count(), 0);
}
