//! A store that fails like a remote one: writes go out one by one, answers get lost, and the process can
//! crash between any two.
//!
//! Give it a seed and probabilities for a simulation, or [`FaultyStore::crash_after`] a number of
//! writes to try every prefix of a scenario. Everything it does follows from its seed and the calls.

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

/// How often what goes wrong: probabilities from 0 to 1, per commit but for `reads`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Stops after some of the writes and answers [`StoreError::Unavailable`].
    pub cut: f64,
    /// Does everything, and the answer is lost: [`StoreError::Unavailable`].
    pub lose_answer: f64,
    /// Does nothing and answers [`StoreError::Unavailable`].
    pub unavailable: f64,
    /// Does nothing and answers [`StoreError::Throttled`].
    pub throttled: f64,
    /// Per read: answers [`StoreError::Unavailable`].
    pub reads: f64,
}

/// A store that writes one by one, yields between writes (an atomic one before each transaction), and
/// injects faults. Several of them may share one inner store: each is then the connection of one process.
pub struct FaultyStore {
    inner: SharedStore,
    atomicity: Atomicity,
    plan: Mutex<Plan>,
}

#[derive(Debug)]
struct Plan {
    faults: Faults,
    chance: StdRng,
    /// Writes left until the process dies.
    left: Option<u64>,
    writes: u64,
    failed: u64,
}

/// What becomes of one commit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Whole,
    CutAfter(usize),
    AnswerLost,
    Unavailable,
    Throttled,
}

impl FaultyStore {
    /// `inner`, written to one write at a time, without faults as yet.
    pub fn new(inner: SharedStore, seed: u64) -> Self {
        let plan = Plan {
            faults: Faults::default(),
            chance: StdRng::seed_from_u64(seed),
            left: None,
            writes: 0,
            failed: 0,
        };
        let atomicity = Atomicity::Steps { max_in_flight_write: Duration::from_secs(5) };
        Self { inner, atomicity, plan: Mutex::new(plan) }
    }

    /// The same store with this longest write in flight (default 5 s). Zero makes it an atomic
    /// store: every transaction happens whole or not at all.
    #[must_use]
    pub fn with_flight(mut self, flight: Duration) -> Self {
        self.atomicity = Atomicity::from_max_in_flight_write(flight);
        self
    }

    /// Sets the faults that happen from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.plan.lock().faults = faults;
    }

    /// Crashes the process after this many more writes: nothing is written or read until [`Self::revive`].
    pub fn crash_after(&self, writes: u64) {
        self.plan.lock().left = Some(writes);
    }

    /// Restarts the process.
    pub fn revive(&self) {
        self.plan.lock().left = None;
    }

    /// How many writes were tried so far, so that a test knows how many prefixes there are.
    pub fn writes(&self) -> u64 {
        self.plan.lock().writes
    }

    /// How many commits were answered with an injected error so far, so that a test can wait for one.
    pub fn failed(&self) -> u64 {
        self.plan.lock().failed
    }

    /// The store itself, without faults.
    pub fn inner(&self) -> &SharedStore {
        &self.inner
    }

    fn fate(&self, writes: usize) -> Fate {
        let plan = &mut *self.plan.lock();
        let Faults { cut, lose_answer, unavailable, throttled, .. } = plan.faults;
        let mut drawn: f64 = plan.chance.random();
        let mut happens = |probability: f64| {
            drawn -= probability;
            drawn < 0.0
        };
        let fate = if happens(cut) {
            Fate::CutAfter(plan.chance.random_range(0..=writes))
        } else if happens(lose_answer) {
            Fate::AnswerLost
        } else if happens(unavailable) {
            Fate::Unavailable
        } else if happens(throttled) {
            Fate::Throttled
        } else {
            return Fate::Whole;
        };
        plan.failed += 1;
        fate
    }

    /// Uses up as many writes; false if the process is dead before they are done.
    fn lives_on(&self, writes: usize) -> bool {
        let plan = &mut *self.plan.lock();
        if let Some(left) = &mut plan.left {
            let Some(rest) = left.checked_sub(writes as u64) else {
                *left = 0;
                return false;
            };
            *left = rest;
        }
        plan.writes += writes as u64;
        true
    }

    /// Whether a read is answered.
    fn reads(&self) -> Result<(), StoreError> {
        let plan = &mut *self.plan.lock();
        let fails = plan.faults.reads > 0.0 && plan.chance.random::<f64>() < plan.faults.reads;
        if fails || plan.left == Some(0) {
            Err(unavailable("the read was not answered"))
        } else {
            Ok(())
        }
    }

    /// Takes `txn` as a whole, unless that is more than `most` writes.
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

    /// Takes `txn` write by write, at most `most` of them.
    async fn one_by_one(&self, txn: Txn, most: &mut usize) -> Result<Committed, StoreError> {
        for (step, write) in txn.into_iter().enumerate() {
            if *most == 0 || !self.lives_on(1) {
                return Err(unavailable("the commit stopped half way"));
            }
            *most -= 1;
            let answer = self.inner.commit(vec![vec![write]]).await?;
            if let Some(Committed::Conflict { standing, .. }) = answer.into_iter().next() {
                return Ok(Committed::Conflict { step, standing });
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
        let fate = self.fate(txns.iter().map(Vec::len).sum());
        let mut most = match fate {
            Fate::Unavailable => return Err(unavailable("the commit was not answered")),
            Fate::Throttled => {
                return Err(StoreError::Throttled {
                    retry_after: Duration::from_millis(100),
                    message: "too much at once (injected)".into(),
                });
            }
            Fate::CutAfter(writes) => writes,
            Fate::Whole | Fate::AnswerLost => usize::MAX,
        };
        let mut answers = Vec::with_capacity(txns.len());
        for txn in txns {
            answers.push(if self.atomicity.is_atomic() {
                self.whole(txn, &mut most).await?
            } else {
                self.one_by_one(txn, &mut most).await?
            });
        }
        match fate {
            Fate::Whole => Ok(answers),
            _ => Err(unavailable("the commit's answer was lost")),
        }
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities { atomicity: self.atomicity, ..self.inner.capabilities() }
    }

    fn assign_id(&self, id: JobId, spec: &Spec, run_at: Timestamp) -> JobId {
        let placed = self.inner.assign_id(id.clone(), spec, run_at);
        if self.atomicity.is_atomic() || placed != id {
            placed
        } else {
            format!("{id}.0").parse().expect("a place is a good end of an id")
        }
    }
}
