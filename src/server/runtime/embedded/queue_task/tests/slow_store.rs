//! A store that answers the claim of a job late, when something has changed meanwhile.

use std::sync::atomic::AtomicUsize;

use tokio::sync::watch;

use super::*;
use tidegate_core::port::{
    Committed, StoreLayer, Txn, Write,
    job_store::{JobStore, StoreError},
};

/// While it is slow, claims of jobs happen, and their answers wait.
struct SlowStore {
    store: MemoryStore,
    slow: watch::Sender<bool>,
}

impl StoreLayer for SlowStore {
    fn inner(&self) -> &dyn JobStore {
        &self.store
    }

    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        let is_claim = |write: &Write| matches!(write, Write::SetJob { job, .. } if job.life.running().is_some());
        let claims = txns.iter().flatten().any(is_claim);
        let answer = self.store.commit(txns).await;
        if claims {
            let _ = self.slow.subscribe().wait_for(|slow| !slow).await;
        }
        answer
    }
}

/// A server with a job that it has claimed, without an answer yet.
struct Claimed {
    server: Server,
    store: Arc<SlowStore>,
    job: Job,
    /// How often the handler was called, which runs until `free`.
    calls: Arc<AtomicUsize>,
    free: watch::Sender<bool>,
}

async fn claimed(clock: &Arc<FakeClock>) -> Claimed {
    let store = Arc::new(SlowStore { store: MemoryStore::new(), slow: watch::Sender::new(true) });
    let (calls, free) = (Arc::new(AtomicUsize::new(0)), watch::Sender::new(false));
    let (called, freed) = (Arc::clone(&calls), free.subscribe());
    let server = builder_on(clock, Arc::clone(&store) as _, Arc::new(InMemory::new()))
        .handler(name("work"), 1, move |_| {
            called.fetch_add(1, Ordering::SeqCst);
            let mut freed = freed.clone();
            Box::pin(async move {
                freed.wait_for(|free| *free).await.unwrap();
                Handled::Succeeded(None)
            })
        })
        .start()
        .await
        .unwrap();
    let config = TypeConfig { max_attempts: Some(1), ..TypeConfig::default() };
    server.put_type(&name("work"), config, None).await.unwrap();
    let job = enqueue(&server, "work").await;
    until("it is claimed", async || {
        server.job(&job.id, None).await.unwrap().life.running().is_some()
    })
    .await;
    Claimed { server, store, job, calls, free }
}

#[tokio::test]
async fn a_stop_waits_for_a_job_that_is_claimed_meanwhile() {
    let Claimed { server, store, job, calls, free } =
        claimed(&Arc::new(FakeClock::default())).await;
    let stopping = tokio::spawn({
        let server = server.clone();
        async move { server.stop().await }
    });
    // A stop that did not wait would be over, as far as it needs no task.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert!(server.inner.busy.is_closed());
    store.slow.send_replace(false);
    until("it runs", async || calls.load(Ordering::SeqCst) == 1).await;
    free.send_replace(true);
    stopping.await.unwrap();
    let stored = store.store.get(&[job.id]).await.unwrap().remove(0).unwrap().unwrap();
    assert_eq!(stored.life.ended(), Some(Outcome::Succeeded));
}

#[tokio::test]
async fn a_job_whose_lease_is_over_before_the_answer_is_not_run() {
    let clock = Arc::new(FakeClock::default());
    let Claimed { server, store, job, calls, free } = claimed(&clock).await;
    free.send_replace(true);
    clock.advance(Duration::from_mins(10));
    store.slow.send_replace(false);
    ended(&server, &job).await;
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    server.stop().await;
}
