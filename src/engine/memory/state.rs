//! The records of the memory store, and how a transaction changes them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tidegate_core::{
    job::{Body, Job, JobId, QueueName},
    port::{
        InboxRequest,
        job_store::{
            Committed, CurrentRecord, DuePage, DueQuery, Expect, Item, ItemKind, Key, Purged,
            Record, RecordKind, StoreError, StoredJob, Txn, UnreadableJob, Write,
            is_stored_separately,
        },
    },
    queue::{GrantBatch, Ledger, ledger::BatchId, order::Position},
    time::Timestamp,
};

/// Every record, and the sets by which jobs are found.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// Jobs with their bodies. Readers get them through [`without_large_body`].
    pub jobs: HashMap<JobId, Job>,
    /// The jobs that a test has made unreadable.
    pub damaged: BTreeSet<JobId>,
    /// The scheduled jobs of each queue by due time.
    scheduled: HashMap<QueueName, BTreeSet<(Timestamp, JobId)>>,
    /// The running jobs of each queue.
    pub running: HashMap<QueueName, BTreeSet<JobId>>,
    /// The jobs with a `wake_at`, in its order.
    pub wakes: BTreeSet<(Timestamp, JobId)>,
    pub keys: BTreeMap<Key, JobId>,
    pub ledgers: HashMap<QueueName, Ledger>,
    pub batches: BTreeMap<(QueueName, BatchId), GrantBatch>,
    pub items: BTreeMap<(ItemKind, String), Item>,
    pub items_version: u64,
    pub kept: BTreeMap<(RecordKind, String), Record>,
    /// The requests of the inbox by number, and the number of the last one.
    pub inbox: BTreeMap<u64, InboxRequest>,
    pub inbox_newest: u64,
}

/// A copy of `job` for readers: without a body that is stored separately.
pub(super) fn without_large_body(job: &Job) -> Job {
    let data = if is_stored_separately(&job.data) {
        Body::Separate(job.data.len() as u32)
    } else {
        job.data.clone()
    };
    Job { id: job.id.clone(), spec: job.spec.clone(), data, life: job.life.clone() }
}

impl Records {
    /// The job of an id, as readers get it.
    pub(super) fn stored(&self, id: &JobId) -> StoredJob {
        self.jobs.get(id).map(|job| self.readable(job)).transpose()
    }

    /// `job` as readers get it.
    pub(super) fn readable(&self, job: &Job) -> Result<Job, UnreadableJob> {
        if self.damaged.contains(&job.id) {
            return Err(UnreadableJob::new(
                job.id.as_str(),
                &StoreError::corrupt("it was damaged"),
            ));
        }
        Ok(without_large_body(job))
    }

    /// Applies every write of `txn`, or none of them.
    pub(super) fn commit(&mut self, txn: Txn) -> Committed {
        for (step, write) in txn.iter().enumerate() {
            if let Some(current) = self.refusal(write) {
                return Committed::Conflict { step, current };
            }
        }
        for write in txn {
            self.apply(write);
        }
        Committed::All
    }

    /// The current record, if it violates the condition of `write`.
    fn refusal(&self, write: &Write) -> Option<CurrentRecord> {
        let job = |id| match self.stored(id) {
            Ok(None) => CurrentRecord::Nothing,
            Ok(Some(job)) => CurrentRecord::Job(Box::new(job)),
            Err(unreadable) => CurrentRecord::Unreadable(unreadable),
        };
        let version = |version| {
            if version == 0 { CurrentRecord::Nothing } else { CurrentRecord::Version(version) }
        };
        let item = |kind, name: &str, was| {
            let now = self.items.get(&(kind, name.to_owned())).map_or(0, |item| item.version);
            (now != was).then(|| version(now))
        };
        match write {
            Write::AddJob(new) => self.jobs.contains_key(&new.id).then(|| job(&new.id)),
            Write::SetJob { job: Job { id, .. }, was, .. } | Write::RemoveJob { id, was } => {
                (self.jobs.get(id).map(|job| job.life.revision) != Some(*was)).then(|| job(id))
            }
            Write::SetKey { key, was, .. } => {
                let now = self.keys.get(key);
                (now != expected(was)).then(|| {
                    now.map_or(CurrentRecord::Nothing, |job| CurrentRecord::Key {
                        job: job.clone(),
                        since: None,
                    })
                })
            }
            Write::SetLedger { queue, was, .. } => {
                let now = self.ledgers.get(queue).map(|ledger| ledger.version);
                (now.as_ref() != expected(was))
                    .then(|| now.map_or(CurrentRecord::Nothing, CurrentRecord::Version))
            }
            Write::RequireItem { kind, name, version: was } => item(*kind, name, *was),
            Write::SetItem { kind, name, was, .. } => item(*kind, name, *was),
            Write::SwapRecord { record, was } => {
                let now = self.kept.get(&(record.kind, record.name.clone()));
                (now != expected(was)).then(|| match now {
                    Some(_) => CurrentRecord::Record,
                    None => CurrentRecord::Nothing,
                })
            }
            Write::TakeRequest(id) => {
                let is_there = self.inbox.values().any(|request| request.id == *id);
                (!is_there).then_some(CurrentRecord::Nothing)
            }
            Write::AddBatch(..)
            | Write::RemoveBatch(..)
            | Write::Together(_)
            | Write::PutRecord(_)
            | Write::RemoveRecord { .. } => None,
        }
    }

    /// Applies one write whose condition holds.
    fn apply(&mut self, write: Write) {
        match write {
            Write::AddJob(job) => self.put(job),
            Write::SetJob { mut job, all, .. } => {
                let old = self.remove(&job.id).expect("its revision was just compared");
                if !all {
                    job.spec = old.spec;
                    job.data = old.data;
                } else if matches!(job.data, Body::Separate(_)) {
                    job.data = old.data;
                }
                self.put(job);
            }
            Write::RemoveJob { id, .. } => {
                self.remove(&id);
                self.keys.retain(|_, job| *job != id);
            }
            Write::SetKey { key, job, .. } => {
                self.keys.insert(key, job);
            }
            Write::AddBatch(queue, batch) => {
                self.batches.insert((queue, batch.id), batch);
            }
            Write::RemoveBatch(queue, id) => {
                self.batches.remove(&(queue, id));
            }
            Write::SetLedger { queue, ledger, .. } => {
                self.ledgers.insert(queue, ledger);
            }
            Write::RequireItem { .. } => {}
            Write::Together(_) => unreachable!("it was flattened"),
            Write::SetItem { kind, name, version, bytes, .. } => {
                match bytes {
                    Some(bytes) => {
                        let item = Item { name: name.clone(), version, bytes: Ok(bytes) };
                        self.items.insert((kind, name), item)
                    }
                    None => self.items.remove(&(kind, name)),
                };
                self.items_version += u64::from(kind.is_decided_under());
            }
            Write::PutRecord(record) | Write::SwapRecord { record, .. } => {
                self.kept.insert((record.kind, record.name.clone()), record);
            }
            Write::TakeRequest(id) => {
                self.inbox.retain(|_, request| request.id != id);
            }
            Write::RemoveRecord { kind, name, until } => {
                let key = (kind, name);
                if self
                    .kept
                    .get(&key)
                    .is_some_and(|record| until.is_none_or(|until| until == record.until))
                {
                    self.kept.remove(&key);
                }
            }
        }
    }

    /// Removes records; see the port.
    pub(super) fn purge(
        &mut self,
        kind: RecordKind,
        now: Timestamp,
        keep: u64,
        limit: u32,
    ) -> Purged {
        let mut all: Vec<(Timestamp, String)> = self
            .kept
            .iter()
            .filter(|((of, _), _)| *of == kind)
            .map(|((_, name), record)| (record.until, name.clone()))
            .collect();
        all.sort();
        let mut purged = Purged { left: all.len() as u64, ..Purged::default() };
        for (until, name) in all.into_iter().take(limit as usize) {
            match until <= now {
                true => purged.expired += 1,
                false if purged.left > keep => purged.over += 1,
                false => break,
            }
            purged.left -= 1;
            self.kept.remove(&(kind, name));
        }
        purged
    }

    /// Adds `job` to the map, and to the sets by which it is found.
    fn put(&mut self, job: Job) {
        if let Some(run_at) = job.life.run_at() {
            self.scheduled
                .entry(job.spec.queue.clone())
                .or_default()
                .insert((run_at, job.id.clone()));
        }
        if job.life.running().is_some() {
            self.running.entry(job.spec.queue.clone()).or_default().insert(job.id.clone());
        }
        if let Some(wake_at) = job.life.wake_at(&job.spec) {
            self.wakes.insert((wake_at, job.id.clone()));
        }
        self.jobs.insert(job.id.clone(), job);
    }

    /// Removes a job from the map and from the sets.
    fn remove(&mut self, id: &JobId) -> Option<Job> {
        let job = self.jobs.remove(id)?;
        self.damaged.remove(id);
        if let (Some(run_at), Some(set)) =
            (job.life.run_at(), self.scheduled.get_mut(&job.spec.queue))
        {
            set.remove(&(run_at, id.clone()));
        }
        if let Some(set) = self.running.get_mut(&job.spec.queue) {
            set.remove(id);
        }
        if let Some(wake_at) = job.life.wake_at(&job.spec) {
            self.wakes.remove(&(wake_at, id.clone()));
        }
        Some(job)
    }

    /// The queues that have had scheduled jobs.
    pub(super) fn queues_with_scheduled(&self) -> impl Iterator<Item = &QueueName> {
        self.scheduled.keys()
    }

    /// The scheduled jobs of `queue`, by due time.
    pub(super) fn scheduled(&self, queue: &QueueName) -> impl Iterator<Item = &Job> {
        self.scheduled.get(queue).into_iter().flatten().map(|(_, id)| &self.jobs[id])
    }

    /// The answer to `query`: the matching jobs, sorted, and limited to a page.
    pub(super) fn due(&self, query: &DueQuery) -> DuePage {
        let mut matching = self.scheduled(&query.queue).filter(|job| {
            job.spec.critical == query.critical
                && query.types.contains(&job.spec.job_type)
                && query.partition.as_ref().is_none_or(|name| *name == job.spec.partition)
        });
        let after =
            query.after.as_ref().map(|last| query.order.key(last.priority, last.run_at, &last.id));
        let (mut due, mut next_due) = (Vec::new(), None);
        for job in matching.by_ref() {
            let run_at = job.life.run_at().expect("it is scheduled");
            if run_at > query.until {
                next_due = Some(run_at);
                break;
            }
            let key = query.order.key(job.spec.priority, run_at, &job.id);
            if after.as_ref().is_none_or(|after| *after < key) && !self.damaged.contains(&job.id) {
                due.push((key, job));
            }
        }
        due.sort_by(|(a, _), (b, _)| a.cmp(b));
        let more = due.len() > query.limit as usize;
        due.truncate(query.limit as usize);
        let next = due.last().filter(|_| more).map(|(_, job)| Position::of(job));
        let jobs = due.into_iter().map(|(_, job)| without_large_body(job)).collect();
        DuePage { jobs, next, next_due }
    }
}

fn expected<T>(was: &Expect<T>) -> Option<&T> {
    match was {
        Expect::Absent => None,
        Expect::Is(value) => Some(value),
    }
}
