//! Moves that are interrupted, and go on.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use tidegate_core::{
    job::{JobId, QueueName},
    port::{
        AllJobsPage, Movable, StoreLayer,
        job_store::{Committed, JobStore, Key, StoreError, Txn},
    },
};
use tidegate_engine::memory::MemoryStore;

use super::{filled, moved, of, side, with_pages};

/// A store that fails after some commits. Of the one that fails, half of the transactions happen.
struct Cut {
    store: Arc<MemoryStore>,
    left: AtomicUsize,
}

impl Cut {
    fn after(store: &Arc<MemoryStore>, commits: usize) -> Arc<Self> {
        Arc::new(Self { store: Arc::clone(store), left: AtomicUsize::new(commits) })
    }
}

impl StoreLayer for Cut {
    fn inner(&self) -> &dyn JobStore {
        &*self.store
    }

    async fn commit(&self, mut txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        let left = self.left.load(Ordering::SeqCst);
        self.left.store(left.saturating_sub(1), Ordering::SeqCst);
        if left > 0 {
            return self.store.commit(txns).await;
        }
        txns.truncate(txns.len() / 2);
        self.store.commit(txns).await?;
        Err(StoreError::unavailable("the power is gone"))
    }
}

#[async_trait]
impl Movable for Cut {
    async fn all_jobs(&self, after: Option<&str>, limit: u32) -> Result<AllJobsPage, StoreError> {
        self.store.all_jobs(after, limit).await
    }

    async fn keys_of(&self, jobs: &[JobId]) -> Result<Vec<(Key, JobId)>, StoreError> {
        self.store.keys_of(jobs).await
    }

    async fn ledger_queues(&self) -> Result<Vec<QueueName>, StoreError> {
        self.store.ledger_queues().await
    }

    async fn complete_move(&self, least: u64) -> Result<(), StoreError> {
        self.store.complete_move(least).await
    }
}

#[tokio::test]
async fn a_move_that_ends_at_any_commit_goes_on() {
    for commits in 0.. {
        let (from, store) = (filled().await, Arc::new(MemoryStore::new()));
        let cut = side(Cut::after(&store, commits), "the target");
        let was_whole = moved(&of(&from, &cut), "one").await.is_ok();
        if was_whole {
            assert!(commits > 50, "each page has commits of its own: {commits}");
            return;
        }
        let whole = side(store, "the target");
        let whole = super::Side { objects: cut.objects, ..whole };
        let comparison = moved(&of(&from, &whole), "two").await;
        let comparison = comparison.unwrap_or_else(|error| panic!("{commits}: {error:?}"));
        assert!(comparison.is_equal(), "{commits}: {comparison:?}");
    }
}

#[tokio::test]
async fn a_move_goes_on_behind_its_last_page() {
    let (from, store) = (with_pages().await, Arc::new(MemoryStore::new()));
    // The mark, the position behind the objects, and a page of jobs with its position.
    let cut = side(Cut::after(&store, 5), "the target");
    moved(&of(&from, &cut), "one").await.unwrap_err();
    let whole = side(store, "the target");
    let this = of(&from, &super::Side { objects: cut.objects, ..whole });
    let mut begun = this.begin("two".into()).await.unwrap();
    assert!(begun.goes_on);
    let copied = this.copy(&mut begun, &|_, _| {}).await.unwrap();
    let (part, jobs) = copied[0];
    assert_eq!(part, super::Part::Jobs, "the objects are done");
    assert!(jobs < 455, "a page was done: {jobs}");
    assert!(this.compare(&|_, _| {}).await.unwrap().is_equal());
}
