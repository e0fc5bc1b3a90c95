//! Store connections: every engine has its own, with its own faults. All lead to one store, and the
//! [`Model`] observes every commit in order.

use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_core::{
    port::{
        StoreLayer,
        job_store::{
            Atomicity, Committed, CurrentRecord, DuePage, DueQuery, JobStore, Key, SharedStore,
            StoreCapabilities, StoreError, Txn, Write,
        },
        store_layer::Operation,
    },
    time::Timestamp,
};
use tidegate_engine::testkit::faults::{Faults, FaultyStore};

use super::{bugs::Bug, model::Model, releases::Release, scheduler::Scheduler, shared::Adapter};

/// The store as one of its servers sees it. Its commits are observed.
pub struct ObservedStore {
    pub store: SharedStore,
    pub model: Arc<Mutex<Model>>,
    pub scheduler: Arc<Scheduler>,
    /// Whether writes arrive one by one, with time between them.
    pub slow: bool,
    /// The number of claims in progress.
    pub claiming: AtomicUsize,
    /// Since when keys point to their current jobs. The servers of a store share it.
    pub keyed: Arc<Mutex<HashMap<Key, Timestamp>>>,
    /// What counts the commits, if the store has several servers.
    pub commits: Option<&'static str>,
}

/// Increments a counter for as long as it lives.
struct InProgress<'a>(&'a AtomicUsize);

impl<'a> InProgress<'a> {
    fn count(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs a future without giving up the turn: the store answers at once, or on a thread of its own.
pub fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

/// The connection of one engine to the store.
pub struct EngineStore {
    inner: SharedStore,
    cutting: Option<Arc<FaultyStore>>,
    /// The adapter, if the engine is one of several servers.
    adapter: Option<Arc<Adapter>>,
    scheduler: Arc<Scheduler>,
    faults: Mutex<Faults>,
    release: Mutex<Release>,
    bug: Option<Bug>,
    in_flight: Duration,
    model: Arc<Mutex<Model>>,
    /// Whether the process of the engine has died.
    is_dead: AtomicBool,
}

impl EngineStore {
    /// A connection to `observed`, without faults yet. If that is slow, transactions are split into
    /// single writes.
    pub fn new(
        observed: &Arc<ObservedStore>,
        seed: u64,
        in_flight: Duration,
        bug: Option<Bug>,
    ) -> Arc<Self> {
        let cutting = observed
            .slow
            .then(|| Arc::new(FaultyStore::new(Arc::clone(observed) as SharedStore, seed)));
        let inner = cutting
            .clone()
            .map_or_else(|| Arc::clone(observed) as SharedStore, |cutting| cutting as SharedStore);
        let (scheduler, model) = (Arc::clone(&observed.scheduler), Arc::clone(&observed.model));
        Arc::new(Self {
            inner,
            cutting,
            adapter: None,
            scheduler,
            faults: Mutex::default(),
            release: Mutex::new(Release::This),
            bug,
            in_flight,
            model,
            is_dead: AtomicBool::new(false),
        })
    }

    /// A connection by an adapter, without faults yet.
    pub fn by(adapter: Arc<Adapter>, observed: &ObservedStore, bug: Option<Bug>) -> Arc<Self> {
        let (scheduler, model) = (Arc::clone(&observed.scheduler), Arc::clone(&observed.model));
        Arc::new(Self {
            inner: Arc::clone(&adapter) as SharedStore,
            cutting: None,
            adapter: Some(adapter),
            scheduler,
            faults: Mutex::default(),
            release: Mutex::new(Release::This),
            bug,
            in_flight: Duration::ZERO,
            model,
            is_dead: AtomicBool::new(false),
        })
    }

    /// A connection to a store that has its own faults.
    pub fn direct(
        store: SharedStore,
        observed: &ObservedStore,
        in_flight: Duration,
        bug: Option<Bug>,
    ) -> Arc<Self> {
        let (scheduler, model) = (Arc::clone(&observed.scheduler), Arc::clone(&observed.model));
        Arc::new(Self {
            inner: store,
            cutting: None,
            adapter: None,
            scheduler,
            faults: Mutex::default(),
            release: Mutex::new(Release::This),
            bug,
            in_flight,
            model,
            is_dead: AtomicBool::new(false),
        })
    }

    /// Ends the connection: the process of the engine has died, and with it the requests that it was
    /// answering.
    pub fn close(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
    }

    /// Runs `call` until the process dies.
    async fn while_alive<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let mut call = pin!(call);
        poll_fn(|context| {
            if self.is_dead.load(Ordering::Relaxed) {
                return Poll::Ready(Err(StoreError::unavailable("the process has died")));
            }
            call.as_mut().poll(context)
        })
        .await
    }

    /// Sets the release of the engine.
    pub fn set_release(&self, release: Release) {
        *self.release.lock() = release;
    }

    /// Sets the faults from now on; `cut` is the probability that a commit stops half way.
    pub fn set_faults(&self, faults: Faults) {
        *self.faults.lock() = faults;
        if let Some(cutting) = &self.cutting {
            cutting.set_faults(Faults { cut: faults.cut, ..Faults::default() });
        }
        if let Some(adapter) = &self.adapter {
            adapter.set_doubt(faults.cut);
        }
    }

    async fn read(&self) -> Result<(), StoreError> {
        self.scheduler.step().await;
        let lost = self.faults.lock().reads;
        if self.scheduler.happens(lost) {
            Err(StoreError::unavailable("the read was not answered"))
        } else {
            Ok(())
        }
    }
}

impl StoreLayer for EngineStore {
    fn inner(&self) -> &dyn JobStore {
        &*self.inner
    }

    async fn around<T: Send>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let call = async {
            self.read().await?;
            let answer = call.await;
            // A tick decides on these two: other processes may act between the read and the
            // decision.
            if matches!(operation, Operation::Due | Operation::Ledger) {
                self.scheduler.step().await;
            }
            answer
        };
        self.while_alive(call).await
    }

    async fn due(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError> {
        let mut pages = self.around(Operation::Due, self.inner.due(queries)).await?;
        if let Some(bug) = self.bug {
            let now = self.scheduler.now();
            for page in &mut pages {
                bug.spoil_page(page, now);
            }
        }
        Ok(pages)
    }

    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        self.while_alive(self.commit_alive(txns)).await
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            atomicity: Atomicity::from_max_in_flight_write(self.in_flight),
            ..self.inner.capabilities()
        }
    }
}

impl EngineStore {
    /// Commits `txns` with faults.
    async fn commit_alive(&self, mut txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        self.scheduler.step().await;
        if let Some(bug) = self.bug {
            bug.spoil(&mut txns, &self.model.lock());
        }
        self.release.lock().encode(&mut txns);
        let faults = *self.faults.lock();
        if self.scheduler.happens(faults.unavailable) {
            return Err(StoreError::unavailable("the commit was not answered"));
        }
        if self.scheduler.happens(faults.throttled) {
            return Err(StoreError::Throttled {
                retry_after: Duration::from_millis(100),
                message: "too much at once".into(),
            });
        }
        // A skewed clock measures the same period as slightly longer, so the store promises a
        // shorter one.
        let longest = Duration::from_secs(4);
        let answer = self.scheduler.bounded(longest, self.inner.commit(txns)).await?;
        self.scheduler.step().await;
        if self.scheduler.happens(faults.lose_answer) {
            return Err(StoreError::unavailable("the commit's answer was lost"));
        }
        Ok(answer)
    }
}

impl StoreLayer for ObservedStore {
    fn inner(&self) -> &dyn JobStore {
        &*self.store
    }

    async fn around<T: Send>(
        &self,
        _: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        at_once(call)
    }

    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        let mut answers = Vec::with_capacity(txns.len());
        for txn in txns {
            if self.slow {
                let claims = txn.iter().any(is_claim);
                let claiming = claims.then(|| InProgress::count(&self.claiming));
                self.scheduler.linger().await;
                drop(claiming);
            }
            let mut model = self.model.lock();
            let mut answer = at_once(self.store.commit(vec![txn.clone()]))?;
            let mut keyed = self.keyed.lock();
            match &mut answer[..] {
                [Committed::All] => {
                    model.observe(&txn, self.scheduler.now());
                    if let Some(commits) = self.commits {
                        model.count(commits);
                    }
                    let set = txn.iter().filter_map(|write| {
                        if let Write::SetKey { key, .. } = write { Some(key.clone()) } else { None }
                    });
                    keyed.extend(set.map(|key| (key, self.scheduler.now())));
                }
                [Committed::Conflict { step, current: CurrentRecord::Key { since, .. } }] => {
                    if let Write::SetKey { key, .. } = &txn[*step] {
                        *since = keyed.get(key).copied();
                    }
                }
                _ => {}
            }
            answers.extend(answer);
        }
        Ok(answers)
    }
}

fn is_claim(write: &Write) -> bool {
    matches!(write, Write::SetJob { job, .. } if job.life.running().is_some())
}
