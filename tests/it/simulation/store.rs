//! The ways to the store: every engine has its own, with its own faults, and all lead to one store whose
//! every commit the [`Model`] sees in the order in which it happened.

use std::{
    collections::HashMap,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_core::{
    port::{
        StoreLayer,
        job_store::{
            Atomicity, Committed, CurrentRecord, JobStore, Key, SharedStore, StoreCapabilities,
            StoreError, Txn, Write,
        },
        store_layer::Operation,
    },
    time::Timestamp,
};
use tidegate_engine::testkit::faults::{Faults, FaultyStore};

use super::{bugs::Bug, model::Model, scheduler::Scheduler};

/// The store itself, watched.
pub struct Watched {
    pub store: SharedStore,
    pub model: Arc<Mutex<Model>>,
    pub scheduler: Arc<Scheduler>,
    /// Whether writes arrive one by one, with time between them.
    pub slow: bool,
    /// How many claims are under way.
    pub claiming: AtomicUsize,
    /// Since when keys point where they do.
    pub keyed: Mutex<HashMap<Key, Timestamp>>,
}

/// Counts something that is under way, for as long as it lives.
struct Under<'a>(&'a AtomicUsize);

impl<'a> Under<'a> {
    fn way(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Under<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a future is worth, without giving up the turn: the store behind answers at once, or on a thread of its own.
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

/// One engine's way to the store.
pub struct Way {
    inner: SharedStore,
    cutting: Option<Arc<FaultyStore>>,
    scheduler: Arc<Scheduler>,
    faults: Mutex<Faults>,
    bug: Option<Bug>,
    flight: Duration,
    model: Arc<Mutex<Model>>,
}

impl Way {
    /// A way to `watched`, without faults as yet. Where that is slow, transactions are cut into single writes.
    pub fn new(watched: &Arc<Watched>, seed: u64, flight: Duration, bug: Option<Bug>) -> Arc<Self> {
        let cutting = watched
            .slow
            .then(|| Arc::new(FaultyStore::new(Arc::clone(watched) as SharedStore, seed)));
        let inner = cutting
            .clone()
            .map_or_else(|| Arc::clone(watched) as SharedStore, |cutting| cutting as SharedStore);
        let (scheduler, model) = (Arc::clone(&watched.scheduler), Arc::clone(&watched.model));
        Arc::new(Self { inner, cutting, scheduler, faults: Mutex::default(), bug, flight, model })
    }

    /// A way to a store that has its own faults.
    #[cfg(feature = "aws")]
    pub fn straight(
        store: SharedStore,
        watched: &Watched,
        flight: Duration,
        bug: Option<Bug>,
    ) -> Arc<Self> {
        let (scheduler, model) = (Arc::clone(&watched.scheduler), Arc::clone(&watched.model));
        Arc::new(Self {
            inner: store,
            cutting: None,
            scheduler,
            faults: Mutex::default(),
            bug,
            flight,
            model,
        })
    }

    /// From now on these faults happen, and this part of the commits stops half way.
    pub fn set_faults(&self, faults: Faults) {
        *self.faults.lock() = faults;
        if let Some(cutting) = &self.cutting {
            cutting.set_faults(Faults { cut: faults.cut, ..Faults::default() });
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

impl StoreLayer for Way {
    fn inner(&self) -> &dyn JobStore {
        &*self.inner
    }

    async fn around<T: Send>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        self.read().await?;
        let answer = call.await;
        // A tick decides on these two: others may act between the read and the decision.
        if matches!(operation, Operation::Due | Operation::Ledger) {
            self.scheduler.step().await;
        }
        answer
    }

    async fn commit(&self, mut txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        self.scheduler.step().await;
        if let Some(bug) = self.bug {
            bug.spoil(&mut txns, &self.model.lock());
        }
        let faults = *self.faults.lock();
        if self.scheduler.happens(faults.unavailable) {
            return Err(StoreError::unavailable("the commit was not answered"));
        }
        // Skewed clocks see the same stretch of time a little longer: a store promises what is left of it.
        let longest = Duration::from_secs(4);
        let answer = self.scheduler.bounded(longest, self.inner.commit(txns)).await?;
        self.scheduler.step().await;
        if self.scheduler.happens(faults.lose_answer) {
            return Err(StoreError::unavailable("the commit's answer was lost"));
        }
        Ok(answer)
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            atomicity: Atomicity::from_max_in_flight_write(self.flight),
            ..self.inner.capabilities()
        }
    }
}

impl StoreLayer for Watched {
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
                let claims = txn.iter().any(|write| matches!(write, Write::SetJob { job, .. } if job.life.running().is_some()));
                let claiming = claims.then(|| Under::way(&self.claiming));
                self.scheduler.linger().await;
                drop(claiming);
            }
            let mut model = self.model.lock();
            let mut answer = at_once(self.store.commit(vec![txn.clone()]))?;
            let mut keyed = self.keyed.lock();
            match &mut answer[..] {
                [Committed::All] => {
                    model.see(&txn, self.scheduler.now());
                    let set = txn.iter().filter_map(|write| {
                        if let Write::SetKey { key, .. } = write { Some(key.clone()) } else { None }
                    });
                    keyed.extend(set.map(|key| (key, self.scheduler.now())));
                }
                [Committed::Conflict { step, standing: CurrentRecord::Key { since, .. } }] => {
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
