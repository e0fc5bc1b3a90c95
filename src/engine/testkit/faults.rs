//! A store that fails like a remote one: writes go out one by one, answers get lost, and the
//! process can crash between any two.
//!
//! Give it a seed and probabilities for a simulation, or [`FaultyStore::crash_after`] a number of
//! writes to try every prefix of a scenario. Everything it does follows from its seed and the
//! calls.

use std::time::Duration;

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use tidegate_core::{
    job::{JobId, Spec},
    port::{
        StoreLayer,
        job_store::{
            Atomicity, Committed, JobStore, SharedStore, StoreCapabilities, StoreError, Txn,
        },
        store_layer::Operation,
    },
    time::Timestamp,
};

/// The probability of each fault, from 0 to 1: per commit, or per read for `reads`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// The commit stops after some of the writes and returns [`StoreError::Unavailable`].
    pub cut: f64,
    /// The commit succeeds, but its answer is lost: [`StoreError::Unavailable`].
    pub lose_answer: f64,
    /// The commit writes nothing and returns [`StoreError::Unavailable`].
    pub unavailable: f64,
    /// The commit writes nothing and returns [`StoreError::Throttled`].
    pub throttled: f64,
    /// A read returns [`StoreError::Unavailable`].
    pub reads: f64,
}

/// A store that writes one by one and yields between writes, or, if atomic, before each
/// transaction. It injects faults. Several of them may share one inner store; each is then the
/// connection of one process.
pub struct FaultyStore {
    inner: SharedStore,
    atomicity: Atomicity,
    shared: bool,
    state: Mutex<FaultState>,
}

#[derive(Debug)]
struct FaultState {
    faults: Faults,
    rng: StdRng,
    /// Writes left until the process dies.
    left: Option<u64>,
    writes: u64,
    failed: u64,
}

/// The fault of one commit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum CommitFault {
    None,
    CutAfter(usize),
    AnswerLost,
    Unavailable,
    Throttled,
}

impl FaultyStore {
    /// `inner`, with commits of one write at a time and no faults yet.
    pub fn new(inner: SharedStore, seed: u64) -> Self {
        let state = FaultState {
            faults: Faults::default(),
            rng: StdRng::seed_from_u64(seed),
            left: None,
            writes: 0,
            failed: 0,
        };
        let atomicity = Atomicity::Steps { max_in_flight_write: Duration::from_secs(5) };
        Self { inner, atomicity, shared: false, state: Mutex::new(state) }
    }

    /// Sets the longest write in flight (default 5 s). Zero makes the store atomic: every
    /// transaction happens completely or not at all.
    #[must_use]
    pub fn with_flight(mut self, flight: Duration) -> Self {
        self.atomicity = Atomicity::from_max_in_flight_write(flight);
        self
    }

    /// Says that other processes write to the store, too.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state.lock().faults = faults;
    }

    /// Crashes the process after this many more writes: nothing is written or read until
    /// [`Self::revive`].
    pub fn crash_after(&self, writes: u64) {
        self.state.lock().left = Some(writes);
    }

    /// Restarts the process.
    pub fn revive(&self) {
        self.state.lock().left = None;
    }

    /// The number of writes so far, so that a test knows how many prefixes there are.
    pub fn writes(&self) -> u64 {
        self.state.lock().writes
    }

    /// The number of commits that got an injected error so far, so that a test can wait for one.
    pub fn failed(&self) -> u64 {
        self.state.lock().failed
    }

    /// The store itself, without faults.
    pub fn inner(&self) -> &SharedStore {
        &self.inner
    }

    fn draw_fault(&self, writes: usize) -> CommitFault {
        let state = &mut *self.state.lock();
        let Faults { cut, lose_answer, unavailable, throttled, .. } = state.faults;
        let mut drawn: f64 = state.rng.random();
        let mut happens = |probability: f64| {
            drawn -= probability;
            drawn < 0.0
        };
        let fault = if happens(cut) {
            CommitFault::CutAfter(state.rng.random_range(0..=writes))
        } else if happens(lose_answer) {
            CommitFault::AnswerLost
        } else if happens(unavailable) {
            CommitFault::Unavailable
        } else if happens(throttled) {
            CommitFault::Throttled
        } else {
            return CommitFault::None;
        };
        state.failed += 1;
        fault
    }

    /// Counts `writes` against the remaining ones. Returns false if the process dies before they
    /// are done.
    fn lives_on(&self, writes: usize) -> bool {
        let state = &mut *self.state.lock();
        if let Some(left) = &mut state.left {
            let Some(rest) = left.checked_sub(writes as u64) else {
                *left = 0;
                return false;
            };
            *left = rest;
        }
        state.writes += writes as u64;
        true
    }

    /// Returns an error if a read is not answered.
    fn reads(&self) -> Result<(), StoreError> {
        let state = &mut *self.state.lock();
        let fails = state.faults.reads > 0.0 && state.rng.random::<f64>() < state.faults.reads;
        if fails || state.left == Some(0) {
            Err(unavailable("the read was not answered"))
        } else {
            Ok(())
        }
    }

    /// Commits `txn` completely, unless it has more than `most` writes.
    async fn whole(&self, txn: Txn, most: &mut usize) -> Result<Committed, StoreError> {
        tokio::task::yield_now().await;
        if *most < txn.len() || !self.lives_on(txn.len()) {
            return Err(unavailable("the commit stopped half way"));
        }
        *most -= txn.len();
        self.inner
            .commit(vec![txn])
            .await?
            .pop()
            .ok_or_else(|| unavailable("the commit was not answered"))
    }

    /// Commits `txn` write by write, at most `most` of them.
    async fn one_by_one(&self, txn: Txn, most: &mut usize) -> Result<Committed, StoreError> {
        for (step, write) in txn.into_iter().enumerate() {
            if *most == 0 || !self.lives_on(1) {
                return Err(unavailable("the commit stopped half way"));
            }
            *most -= 1;
            let answer = self.inner.commit(vec![vec![write]]).await?;
            if let Some(Committed::Conflict { current, .. }) = answer.into_iter().next() {
                return Ok(Committed::Conflict { step, current });
            }
            tokio::task::yield_now().await;
        }
        Ok(Committed::All)
    }
}

fn unavailable(what: &str) -> StoreError {
    StoreError::unavailable(format!("{what} (injected)"))
}

impl StoreLayer for FaultyStore {
    fn inner(&self) -> &dyn JobStore {
        &*self.inner
    }

    async fn around<T: Send>(
        &self,
        _: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        self.reads()?;
        call.await
    }

    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        let fault = self.draw_fault(txns.iter().map(Vec::len).sum());
        let mut most = match fault {
            CommitFault::Unavailable => return Err(unavailable("the commit was not answered")),
            CommitFault::Throttled => {
                return Err(StoreError::Throttled {
                    retry_after: Duration::from_millis(100),
                    message: "too much at once (injected)".into(),
                });
            }
            CommitFault::CutAfter(writes) => writes,
            CommitFault::None | CommitFault::AnswerLost => usize::MAX,
        };
        let mut answers = Vec::with_capacity(txns.len());
        for txn in txns {
            answers.push(if self.atomicity.is_atomic() {
                self.whole(txn, &mut most).await?
            } else {
                self.one_by_one(txn, &mut most).await?
            });
        }
        match fault {
            CommitFault::None => Ok(answers),
            _ => Err(unavailable("the commit's answer was lost")),
        }
    }

    fn capabilities(&self) -> StoreCapabilities {
        let of_inner = self.inner.capabilities();
        let shared = self.shared || of_inner.shared;
        StoreCapabilities { atomicity: self.atomicity, shared, ..of_inner }
    }

    fn assign_id(&self, id: JobId, spec: &Spec, run_at: Timestamp) -> JobId {
        let placed = self.inner.assign_id(id.clone(), spec, run_at);
        if self.atomicity.is_atomic() || placed != id {
            placed
        } else {
            format!("{id}.0").parse().expect("an id with this suffix is valid")
        }
    }
}
