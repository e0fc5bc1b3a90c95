//! The invariants of the design, checked after every write.
//!
//! The model keeps its own copy of the writes and shares no code with the engine: it computes usage
//! from the grants.

mod jobs;
mod ledgers;
mod limits;
mod line;
mod unclaimed;

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    time::Duration,
};

use tidegate_core::{
    job::{
        Job, JobId, QueueName, State, TypeName, Version,
        lifecycle::{ReplyId, word},
        type_config::TypeItem,
    },
    port::job_store::{ItemKind, Txn, Write},
    queue::{Grant, GrantBatch, Ledger, Limits, config::QueueItem, ledger::BatchId},
    time::Timestamp,
};
use tidegate_engine::CALLBACK_TYPE;

pub use self::unclaimed::ProcessNumber;
use self::{limits::Starts, unclaimed::Unclaimed};

/// The largest clock error of a process, with a margin.
pub const MAX_CLOCK_SKEW: Duration = Duration::from_secs(1);
/// Most attempts of a job that are handed back in a row.
pub const MAX_RELEASES: u16 = 2;
/// Why a server hands back a lease whose answer was lost.
pub const NOT_RECEIVED: &str = "not received";
/// Every grant is checked this often.
const AUDIT_INTERVAL: Duration = Duration::from_mins(1);

/// Grants by job and version.
type Granted = BTreeMap<(JobId, Version), Grant>;

/// The current records, and the first violated invariant.
#[derive(Default)]
pub struct Model {
    pub jobs: HashMap<JobId, Job>,
    pub ledgers: HashMap<QueueName, Ledger>,
    batches: HashMap<(QueueName, BatchId), GrantBatch>,
    queues: HashMap<QueueName, QueueItem>,
    types: HashMap<TypeName, TypeItem>,
    /// The items with a field of the next release.
    extended: HashSet<(ItemKind, String)>,
    /// Every combination of queue and types that a configuration version had. Only a store that
    /// writes one by one has several.
    limits: HashMap<(QueueName, u64), Vec<Limits>>,
    /// The configuration versions whose change was answered.
    promised: HashMap<QueueName, u64>,
    /// Jobs whose enqueue was answered.
    accepted: HashSet<JobId>,
    /// Jobs that ended and were correctly removed.
    removed: HashSet<JobId>,
    claimed: HashSet<(JobId, Version)>,
    claims: HashMap<JobId, u32>,
    /// The attempts that a worker has begun after it repeated its lease call.
    begun: HashSet<(JobId, u16)>,
    /// The jobs that run, or ran, without a claim.
    unclaimed: Unclaimed,
    starts: HashMap<(QueueName, String, String), Starts>,
    /// Since when a grant is live although its job left the version.
    idle: HashMap<(JobId, Version), Timestamp>,
    /// Whether something was written since the last audit.
    unaudited: bool,
    callbacks: HashMap<String, u32>,
    /// How many jobs carry each event about an end.
    ends: HashMap<String, u32>,
    /// The data that each job has had, in addition to its first.
    carried: HashSet<(JobId, bytes::Bytes)>,
    /// The job that replays each job.
    replays: HashMap<JobId, JobId>,
    /// The job that each reply changed.
    replied: HashMap<ReplyId, JobId>,
    pub counts: BTreeMap<&'static str, u64>,
    pub event_log: VecDeque<String>,
    pub violation: Option<String>,
}

impl Model {
    /// Records a violated invariant: the first one counts.
    pub fn fault(&mut self, what: String) {
        self.note(format!("BROKEN {what}"));
        self.violation.get_or_insert(what);
    }

    /// Adds a line to the event log.
    pub fn note(&mut self, line: String) {
        if self.event_log.len() >= 4000 {
            self.event_log.pop_front();
        }
        self.event_log.push_back(line);
    }

    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// A worker has begun the running attempt of `job`.
    pub fn begin(&mut self, job: &Job) {
        self.begun.insert((job.id.clone(), job.life.attempt));
    }

    /// An enqueue was answered.
    pub fn accept(&mut self, job: &JobId) {
        self.accepted.insert(job.clone());
        if !self.jobs.contains_key(job) && !self.removed.contains(job) {
            self.fault(format!("I5: {job} was acknowledged and is not in the store"));
        }
    }

    /// A change of the configuration was answered.
    pub fn promise(&mut self, queue: &QueueName, version: u64) {
        let promised = self.promised.entry(queue.clone()).or_default();
        *promised = version.max(*promised);
    }

    /// The newest configuration version of `queue` whose change was answered.
    pub fn promised(&self, queue: &QueueName) -> u64 {
        self.promised.get(queue).copied().unwrap_or(0)
    }

    /// The grants of `queue` that are not released.
    pub fn live(&self, queue: &QueueName) -> Granted {
        self.ledgers.get(queue).map(|ledger| self.live_of(queue, ledger)).unwrap_or_default()
    }

    fn live_of(&self, queue: &QueueName, ledger: &Ledger) -> Granted {
        unreleased(&self.batches, queue, ledger)
            .into_iter()
            .map(|grant| ((grant.job.clone(), grant.version), grant.clone()))
            .collect()
    }

    /// Records writes that happened in one transaction.
    pub fn observe(&mut self, txn: &Txn, now: Timestamp) {
        self.unaudited = true;
        for write in txn {
            match write {
                Write::AddJob(job) => self.add(job),
                Write::SetJob { job, all, .. } => self.set(job, *all, now),
                Write::RemoveJob { id, .. } => self.remove(id, now),
                Write::AddBatch(queue, batch) => self.add_batch(queue, batch),
                Write::RemoveBatch(queue, id) => self.remove_batch(queue, *id),
                Write::SetLedger { queue, ledger, .. } => self.set_ledger(queue, ledger, now),
                Write::SetItem { kind, name, bytes, version, .. } => {
                    self.configure(*kind, name, bytes.as_deref(), *version);
                }
                Write::Together(writes) => self.observe(writes, now),
                Write::SetKey { .. }
                | Write::RequireItem { .. }
                | Write::PutRecord(_)
                | Write::SwapRecord { .. }
                | Write::RemoveRecord { .. }
                | Write::TakeRequest(_) => {}
            }
        }
    }

    /// Checks what no single write shows: grants that outlive their jobs, and running jobs without
    /// a grant.
    pub fn audit(&mut self, now: Timestamp, faults_until: Timestamp) {
        // It runs whenever time passes, so it clones no grant.
        let (jobs, batches) = (&self.jobs, &self.batches);
        let granted: HashMap<&QueueName, Vec<&Grant>> = self
            .ledgers
            .iter()
            .map(|(queue, ledger)| (queue, unreleased(batches, queue, ledger)))
            .collect();
        let mut faults = Vec::new();
        for grant in granted.values().flatten() {
            if jobs.get(&grant.job).is_some_and(|job| job.life.version == grant.version) {
                continue;
            }
            let since = *self.idle.entry((grant.job.clone(), grant.version)).or_insert(now);
            if now > since.max(faults_until) + AUDIT_INTERVAL + Duration::from_secs(10) {
                faults.push(format!(
                    "the slot of {} is kept since {since}, though it left version {}",
                    grant.job, grant.version.0
                ));
            }
        }
        // Only a write starts a job or releases its grant, so no job changes until the next one.
        if std::mem::take(&mut self.unaudited) {
            let watched = |job: &Job| {
                let grants = granted.get(&job.spec.queue);
                grants.is_some_and(|grants| grants.iter().any(|grant| grant.starts(job)))
            };
            for job in jobs.values() {
                if let State::Running(run) = &job.life.state
                    && run.granted
                    && !watched(job)
                {
                    faults.push(format!("I4: {} runs, and no grant watches it", job.id));
                }
            }
        }
        for fault in faults {
            self.fault(fault);
        }
    }

    /// The accepted jobs that have not ended.
    pub fn unfinished(&self) -> Vec<&Job> {
        self.accepted
            .iter()
            .filter_map(|id| self.jobs.get(id))
            .filter(|job| job.life.ended().is_none())
            .collect()
    }

    /// Checks the final state, after all jobs have ended and every grant was audited.
    pub fn finish(&mut self) {
        let mut faults = Vec::new();
        for job in self.unfinished() {
            faults.push(format!("{} never ended: {:?}", job.id, job.life));
        }
        for queue in self.ledgers.keys() {
            for ((id, version), _) in self.live(queue) {
                faults.push(format!("the slot of {id} at version {} was never freed", version.0));
            }
        }
        for id in &self.accepted {
            if !self.jobs.contains_key(id) && !self.removed.contains(id) {
                faults.push(format!("I5: {id} was acknowledged and is gone"));
            }
        }
        for job in self
            .jobs
            .values()
            .filter(|job| job.life.ended().is_some() && job.spec.job_type.as_str() != CALLBACK_TYPE)
        {
            if job.spec.callback_url.is_some() && !self.callbacks.contains_key(job.id.as_str()) {
                faults.push(format!("no callback reported the end of {}", job.id));
            }
        }
        let of_type = |name: &'static str| {
            self.jobs.values().filter(move |job| job.spec.job_type.as_str() == name)
        };
        for job in of_type("push-once").filter(|job| job.life.ended().is_some()) {
            let event = format!("{}.{}", job.id, word(&job.life.state));
            if !self.ends.contains_key(&event) {
                faults.push(format!("no job carries the event {event}"));
            }
        }
        let made = of_type("pull").filter(|job| job.id.as_str().starts_with("ev-")).count();
        if made != self.ends.len() {
            faults.push(format!("{} ends made {made} jobs", self.ends.len()));
        }
        for fault in faults {
            self.fault(fault);
        }
    }
}

/// The grants of `ledger`, which is that of `queue`, that are not released.
fn unreleased<'a>(
    batches: &'a HashMap<(QueueName, BatchId), GrantBatch>,
    queue: &QueueName,
    ledger: &Ledger,
) -> Vec<&'a Grant> {
    let mut grants = Vec::new();
    for named in &ledger.batches {
        if let Some(batch) = batches.get(&(queue.clone(), named.id)) {
            let all = batch.grants.iter().enumerate();
            let kept = all.filter(|(index, _)| !named.released.has(*index));
            grants.extend(kept.map(|(_, grant)| grant));
        }
    }
    grants
}
