//! A store that several servers share, with the semantics of Postgres. Each server has an adapter of its
//! own, and all lead to one store in memory.
//!
//! | in Postgres | here |
//! |---|---|
//! | a commit is atomic, and other servers commit at any time | [`ObservedStore`] |
//! | a connection ends in a commit, which happens seconds later or never | [`Adapter::commit`] |
//! | pages of due jobs start at known places; a look from the front finds the others | [`Adapter::due`] |
//! | a job is written as running before its target is called | `Rules::start_unclaimed` of the engines |
//!
//! That the real adapter behaves like this is tested next to it, on a real server. It also runs in this
//! simulation, as two servers: see [`super::postgres`].

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_core::{
    job::{JobId, State},
    port::{
        StoreLayer,
        job_store::{
            Committed, DuePage, DueQuery, JobStore, SharedStore, StoreCapabilities, StoreError,
            Txn, Write,
        },
    },
    time::Timestamp,
};

use super::{bugs::Bug, model::Model, scheduler::Scheduler, store::ObservedStore};

/// How long an adapter reads from its places until it looks from the front.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// How many seconds after its connection ended a commit may still happen.
const MAX_LATE: f64 = 15.0;

/// Counts the commits that happened after their connections had ended.
pub const LATE_COMMITS: &str = "late commits";
/// Counts the due jobs that a page left out, because another server has scheduled them.
pub const HIDDEN_JOBS: &str = "hidden jobs";

/// A planted bug in the protocol of servers that share a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedBug {
    /// A late commit replaces jobs and ledgers whatever they are by then.
    LateCommitsUnchecked,
    /// An adapter never looks from the front, not even first.
    LooksDropped,
    /// Each server starts jobs before they are written as running.
    StartsUnwritten,
}

impl SharedBug {
    pub const ALL: [Self; 3] =
        [Self::LateCommitsUnchecked, Self::LooksDropped, Self::StartsUnwritten];
}

/// What the adapters have scheduled: who scheduled a job last, and when.
#[derive(Default)]
pub struct Scheduled {
    jobs: Mutex<HashMap<JobId, (AdapterNumber, Timestamp)>>,
    adapters: AtomicUsize,
}

impl Scheduled {
    fn note(&self, by: AdapterNumber, at: Timestamp, txn: &[Write]) {
        for write in txn {
            match write {
                Write::AddJob(job) | Write::SetJob { job, .. }
                    if matches!(job.life.state, State::Scheduled { .. }) =>
                {
                    self.jobs.lock().insert(job.id.clone(), (by, at));
                }
                Write::Together(writes) => self.note(by, at, writes),
                _ => {}
            }
        }
    }
}

/// The number of an adapter; none for a commit that no adapter knows of.
type AdapterNumber = Option<usize>;

/// The adapter of one server.
pub struct Adapter {
    store: SharedStore,
    scheduler: Arc<Scheduler>,
    model: Arc<Mutex<Model>>,
    scheduled: Arc<Scheduled>,
    number: usize,
    looked_at: Mutex<Timestamp>,
    /// The probability that the connection ends in a commit.
    doubt: Mutex<f64>,
    bug: Option<SharedBug>,
}

impl Adapter {
    /// An adapter without faults yet.
    pub fn new(
        observed: &Arc<ObservedStore>,
        scheduled: &Arc<Scheduled>,
        bug: Option<SharedBug>,
    ) -> Arc<Self> {
        let scheduler = Arc::clone(&observed.scheduler);
        let never = bug == Some(SharedBug::LooksDropped);
        let looked_at = if never { Timestamp::EPOCH } else { scheduler.now() };
        Arc::new(Self {
            store: Arc::clone(observed) as SharedStore,
            model: Arc::clone(&observed.model),
            scheduled: Arc::clone(scheduled),
            number: scheduled.adapters.fetch_add(1, Ordering::Relaxed),
            looked_at: Mutex::new(looked_at),
            doubt: Mutex::new(0.0),
            scheduler,
            bug,
        })
    }

    /// Sets the probability that the connection ends in a commit.
    pub fn set_doubt(&self, probability: f64) {
        *self.doubt.lock() = probability;
    }

    /// When this adapter last looked from the front. It looks now if it is time.
    fn look(&self) -> Timestamp {
        let (mut looked_at, now) = (self.looked_at.lock(), self.scheduler.now());
        if self.bug != Some(SharedBug::LooksDropped) && *looked_at + LOOK_INTERVAL <= now {
            *looked_at = now;
        }
        *looked_at
    }

    /// The connection ends in the commit of a group: the group happens as a whole within seconds, unless
    /// one of its conditions no longer holds, or it never happens.
    fn commit_late(&self, txns: Vec<Txn>) {
        if self.scheduler.happens(0.5) {
            return;
        }
        let mut group = vec![txns.into_iter().flatten().collect::<Txn>()];
        let at = self.scheduler.now() + self.scheduler.span(MAX_LATE);
        let (store, scheduler) = (Arc::clone(&self.store), Arc::clone(&self.scheduler));
        let (model, scheduled) = (Arc::clone(&self.model), Arc::clone(&self.scheduled));
        let is_unchecked = self.bug == Some(SharedBug::LateCommitsUnchecked);
        self.scheduler.spawn(async move {
            scheduler.elapse_until(at).await;
            if is_unchecked {
                for bug in [Bug::RevisionIgnored, Bug::LedgerVersionIgnored] {
                    bug.spoil(&mut group, &model.lock());
                }
            }
            let answers = store.commit(group.clone()).await;
            if answers.is_ok_and(|answers| matches!(answers[..], [Committed::All])) {
                scheduled.note(None, scheduler.now(), &group[0]);
                model.lock().count(LATE_COMMITS);
            }
        });
    }
}

impl StoreLayer for Adapter {
    fn inner(&self) -> &dyn JobStore {
        &*self.store
    }

    async fn due(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError> {
        let looked_at = self.look();
        let mut pages = self.store.due(queries).await?;
        let scheduled = self.scheduled.jobs.lock();
        let mut hidden = 0;
        for page in &mut pages {
            page.jobs.retain(|job| {
                let is_known = |(by, at): &(AdapterNumber, Timestamp)| {
                    *by == Some(self.number) || *at <= looked_at
                };
                let is_known = scheduled.get(&job.id).is_none_or(is_known);
                hidden += usize::from(!is_known);
                is_known
            });
        }
        drop(scheduled);
        (0..hidden).for_each(|_| self.model.lock().count(HIDDEN_JOBS));
        Ok(pages)
    }

    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        let doubt = *self.doubt.lock();
        if doubt > 0.0 && self.scheduler.happens(doubt) {
            self.commit_late(txns);
            return Err(StoreError::unavailable("the connection ended in the commit"));
        }
        let answers = self.store.commit(txns.clone()).await?;
        for (txn, answer) in txns.iter().zip(&answers) {
            if matches!(answer, Committed::All) {
                self.scheduled.note(Some(self.number), self.scheduler.now(), txn);
            }
        }
        Ok(answers)
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities { shared: true, ..self.store.capabilities() }
    }
}
