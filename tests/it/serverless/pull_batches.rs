//! Lease calls for at least several jobs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_core::{
    job::type_config::TypeConfig,
    port::{
        Clock, Committed, JobStore, StoreError, StoreLayer, Txn, Write,
        job_store::{Expect, SharedStore},
    },
    queue::{Ledger, QueueConfig},
    time::Timestamp,
};
use tidegate_engine::{memory::MemoryStore, request::LeaseRequest, testkit::builders::name};

use super::{
    model::{Cloud, job},
    time::Virtual,
};

/// How many jobs a call got, and when; none before it is answered.
type Answer = Arc<Mutex<Option<(usize, Timestamp)>>>;

/// A store in which another process writes the ledger of queue `q` before each of the next commits
/// that write it, from an instant on.
struct RivalStore {
    inner: SharedStore,
    time: Arc<Virtual>,
    from: Timestamp,
    left: AtomicU32,
}

impl StoreLayer for RivalStore {
    fn inner(&self) -> &dyn JobStore {
        &*self.inner
    }

    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        let writes = |write: &Write| matches!(write, Write::SetLedger { .. });
        if self.time.now() >= self.from
            && txns.iter().flatten().any(writes)
            && self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
        {
            let (ledger, _) = self.inner.ledger(&name("q")).await?.expect("the queue has one");
            let was = Expect::Is(ledger.version);
            let ledger = Ledger { version: ledger.version + 1, ..ledger };
            let write = Write::SetLedger { queue: name("q"), ledger, was };
            self.inner.commit(vec![vec![write]]).await?;
        }
        self.inner.commit(txns).await
    }
}

/// A cloud with a pulled type, and a call for 3 to 5 jobs that waits for 20 seconds.
fn gathering(concurrency: Option<u32>) -> (Cloud, Answer) {
    gathering_on(Cloud::new(33), concurrency)
}

/// As [`gathering`], on this cloud.
fn gathering_on(cloud: Cloud, concurrency: Option<u32>) -> (Cloud, Answer) {
    let limits = QueueConfig { concurrency, ..QueueConfig::default() };
    cloud.now(cloud.server.put_queue(&name("q"), limits, None)).unwrap();
    let pull = TypeConfig { queue: name("q"), ..TypeConfig::default() };
    cloud.now(cloud.server.put_type(&name("pull"), pull, None)).unwrap();
    let answer = Answer::default();
    let (server, time, result) =
        (cloud.server.clone(), Arc::clone(&cloud.time), Arc::clone(&answer));
    cloud.time.spawn(async move {
        let ask = LeaseRequest {
            queue: Some(name("q")),
            types: Vec::new(),
            max: 5,
            min: 3,
            wait: Duration::from_secs(20),
            max_pause: Duration::from_secs(10),
            call: None,
            worker: Some("w".into()),
            lease_seconds: None,
            reports: Vec::new(),
        };
        let leased = server.lease(ask).await.unwrap();
        assert_eq!(leased.pause, None);
        *result.lock() = Some((leased.jobs.len(), time.now()));
        server.flush().await.unwrap();
    });
    (cloud, answer)
}

fn attempts(cloud: &Cloud) -> Vec<u16> {
    let attempt = |number| {
        let id = name(&format!("pull-{number}"));
        cloud.now(cloud.server.job(&id, None)).unwrap().life.attempt
    };
    (0..2).map(attempt).collect()
}

#[test]
fn a_call_for_three_jobs_claims_none_before_the_third() {
    for concurrency in [None, Some(9)] {
        let (cloud, answer) = gathering(concurrency);
        let start = cloud.time.now();
        for number in 0..2 {
            cloud.enqueue_at(start + Duration::from_secs(1), job("pull", number));
        }
        cloud.time.run(start + Duration::from_secs(11));
        assert_eq!((*answer.lock(), attempts(&cloud)), (None, vec![0, 0]));
        let third_at = start + Duration::from_secs(12);
        cloud.enqueue_at(third_at, job("pull", 2));
        cloud.time.run(start + Duration::from_secs(18));
        let (count, at) = answer.lock().expect("it is answered");
        assert_eq!(count, 3);
        assert!(at.since(third_at) < Duration::from_secs(3), "{at}");
    }
}

#[test]
fn a_call_for_three_jobs_claims_fewer_at_its_end() {
    for concurrency in [None, Some(9), Some(2)] {
        let (cloud, answer) = gathering(concurrency);
        let start = cloud.time.now();
        for number in 0..2 {
            cloud.enqueue_at(start + Duration::from_secs(1), job("pull", number));
        }
        cloud.time.run(start + Duration::from_secs(19));
        assert_eq!((*answer.lock(), attempts(&cloud)), (None, vec![0, 0]));
        cloud.time.run(start + Duration::from_secs(30));
        let (count, at) = answer.lock().expect("it is answered");
        assert_eq!(count, 2);
        assert!(at >= start + Duration::from_secs(20), "{at}");
    }
}

#[test]
fn a_call_whose_last_look_loses_a_race_looks_again() {
    let time = Virtual::new();
    let from = time.now() + Duration::from_secs(20);
    let (inner, left) = (Arc::new(MemoryStore::new()), AtomicU32::new(3));
    let store = Arc::new(RivalStore { inner, time: Arc::clone(&time), from, left });
    let cloud = Cloud::on(33, time, Arc::clone(&store) as SharedStore);
    let (cloud, answer) = gathering_on(cloud, Some(9));
    let start = cloud.time.now();
    for number in 0..2 {
        cloud.enqueue_at(start + Duration::from_secs(1), job("pull", number));
    }
    cloud.time.run(start + Duration::from_secs(30));
    assert_eq!(store.left.load(Relaxed), 0, "the rival wrote");
    assert_eq!(answer.lock().expect("it is answered").0, 2);
}
