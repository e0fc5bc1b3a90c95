//! Index entries and timers: what is written before a job so that it is found later.
//!
//! **Timer before state.** A job that is scheduled for some time has an entry at that time before
//! its row states it. An entry counts only if its write was answered before the low watermark can
//! have passed it: within [`MAX_ENTRY_DELAY`] of its instant, while low watermarks stay
//! [`LOW_WATERMARK_LAG`] behind the time. A later entry is written again, into a *late* bucket of
//! the present hour, which readers always read as a whole.

use std::{collections::BTreeMap, time::Duration};

use sha2::{Digest, Sha256};

use super::{
    DynamoStore, MAX_KNOWN_RECORDS,
    key::{self, Hour, JobLocation, Key, Partition},
    retention, row,
    table::{Change, Item, Val},
    timer_bucket::{TIMER_SHARDS, TimerBucket},
    upkeep,
};
use crate::blob::encode;
use tidegate_core::{
    job::{Job, JobId, QueueName, Spec, State},
    port::StoreError,
    record,
    stored::UnknownFields,
    time::Timestamp,
};

/// How long after its instant the write of an entry may be answered.
pub(super) const MAX_ENTRY_DELAY: Duration = Duration::from_secs(4);
/// How far low watermarks stay behind the time. Two clocks may differ by what this exceeds
/// [`MAX_ENTRY_DELAY`].
pub(super) const LOW_WATERMARK_LAG: Duration = Duration::from_secs(10);
/// Maximum writes of an entry. It is written again if a write was answered too late.
const MAX_ENTRY_ATTEMPTS: usize = 4;
/// Maximum jobs of one timer, which keeps its item below a kilobyte.
const MAX_JOBS_PER_TIMER: usize = 12;

/// The attributes of an open bucket that describe its jobs.
pub(super) const TYPE: char = 't';
pub(super) const CRITICAL: char = 'c';
pub(super) const PARTITION: char = 'a';
/// The priority of its jobs, as [`priority_number`] encodes it; absent if they have several.
pub(super) const PRIORITY: char = 'y';

/// A request for an index entry: `id` must be found at `at`.
#[derive(Clone, Debug)]
pub(super) struct EntryRequest {
    pub id: JobId,
    pub revision: u64,
    pub at: Timestamp,
    pub kind: EntryKind,
}

/// The readers of an entry.
#[derive(Clone, Debug)]
pub(super) enum EntryKind {
    /// Those of due jobs.
    Due {
        index_partition: Partition,
        queue: QueueName,
        job_type: Val,
        critical: bool,
        partition: String,
        priority: Option<i32>,
    },
    /// Those of overdue jobs.
    Timer,
}

impl EntryRequest {
    /// The entry of a job that is scheduled for `at`.
    pub(super) fn due(
        index_partition: Partition,
        id: &JobId,
        spec: &Spec,
        revision: u64,
        at: Timestamp,
    ) -> Self {
        let kind = EntryKind::Due {
            index_partition,
            queue: spec.queue.clone(),
            job_type: Val::S(spec.job_type.to_string()),
            critical: spec.critical,
            partition: spec.partition.clone(),
            priority: key::own_priority(spec.priority),
        };
        Self { id: id.clone(), revision, at, kind }
    }

    /// The timer of a job that must be checked by `at`.
    pub(super) fn timer(id: &JobId, revision: u64, at: Timestamp) -> Self {
        Self { id: id.clone(), revision, at, kind: EntryKind::Timer }
    }

    /// Whether an entry at its own instant may be written too late at `now`.
    fn is_late(&self, now: Timestamp) -> bool {
        is_late(self.at, now)
    }
}

fn is_late(at: Timestamp, now: Timestamp) -> bool {
    at + MAX_ENTRY_DELAY / 2 < now
}

/// A job of a timer.
#[derive(Clone)]
pub(super) struct TimedJob {
    pub id: JobId,
    /// The revision that it was written for.
    pub revision: u64,
    at: Timestamp,
    unknown: UnknownFields,
}

record!(TimedJob { id, revision, at });

/// The timer of these jobs at `key`.
pub(super) fn timer_item(key: Key, jobs: &[TimedJob]) -> Result<Item, StoreError> {
    let list = (row::LIST, Val::B(encode(&jobs, &key.s)?.into()));
    Ok(Item::new(key, [list]))
}

/// When a job must be checked, apart from its due time, if this change of the job at `now` needs a
/// timer for it. `whole` states whether the spec may have changed too.
///
/// An existing timer is never later than needed, but it is removed if its time comes while a grant
/// watches the job. So a job that waits again after that time gets another one; the clock of the
/// process that removed it may have been ahead.
pub(super) fn timer_of(job: &Job, whole: bool, now: Timestamp) -> Option<Timestamp> {
    if job.life.ended().is_some() {
        return retention::sweep_at(job);
    }
    let at = job.life.wake_at(&job.spec)?;
    let is_past =
        matches!(job.life.state, State::Scheduled { .. }) && at <= now + LOW_WATERMARK_LAG;
    (whole || is_past || renews_timer(job)).then_some(at)
}

/// Whether each change that leads a live job to this state writes a timer for it.
pub(super) fn renews_timer(job: &Job) -> bool {
    match &job.life.state {
        State::Scheduled { .. } => job.life.awaits_retry_decision(),
        State::Running(run) => !run.granted,
        State::Ended { .. } => false,
    }
}

impl DynamoStore {
    /// Writes the requested entries until they count, each at its instant, or now if that is past.
    pub(super) async fn announce(&self, mut requests: Vec<EntryRequest>) -> Result<(), StoreError> {
        for _ in 0..MAX_ENTRY_ATTEMPTS {
            if requests.is_empty() {
                return Ok(());
            }
            let now = self.now();
            let buckets = requests.iter().map(|one| self.open_bucket(one, one.is_late(now), now));
            self.register(buckets.collect()).await?;
            // An existing entry was written by another engine for the same job.
            self.table.write(&self.entries(&requests, now)?).await?;
            let answered = self.now();
            requests.retain(|one| one.at.max(now) + MAX_ENTRY_DELAY < answered);
        }
        if requests.is_empty() {
            Ok(())
        } else {
            Err(StoreError::unavailable("the table takes too long to write an entry"))
        }
    }

    /// The items of `requests`, by key.
    fn entries(
        &self,
        requests: &[EntryRequest],
        now: Timestamp,
    ) -> Result<Vec<Change>, StoreError> {
        let mut changes = Vec::with_capacity(requests.len());
        let mut timers: BTreeMap<i64, Vec<TimedJob>> = BTreeMap::new();
        for one in requests {
            match &one.kind {
                EntryKind::Due { index_partition, .. } => {
                    let late = one.is_late(now);
                    let at = if late { now } else { one.at };
                    let key = key::entry(index_partition, at, late, &one.id, one.revision);
                    let expires = upkeep::entry_expiry(at.max(now));
                    changes.push(Change::Insert(Item::new(key, [expires])));
                }
                // Timers of the same second share an item.
                EntryKind::Timer => {
                    let second = one.at.max(now).millis() / 1000;
                    let timer = TimedJob {
                        id: one.id.clone(),
                        revision: one.revision,
                        at: one.at,
                        unknown: UnknownFields::default(),
                    };
                    timers.entry(second).or_default().push(timer);
                }
            }
        }
        for list in timers.values().flat_map(|list| list.chunks(MAX_JOBS_PER_TIMER)) {
            let instants = list.iter().map(|job| if is_late(job.at, now) { now } else { job.at });
            let at = instants.min().unwrap_or(now);
            let tie = self.entropy.bits() as u64;
            let bucket = self.timer_bucket(at, &list[0].id);
            let key = Key::new(bucket.partition(), format!("{}!{tie:016x}", key::instant(at)));
            changes.push(Change::Insert(timer_item(key, list)?));
        }
        changes.sort_by(|a, b| a.key().cmp(b.key()));
        changes.dedup_by(|a, b| a.key() == b.key());
        Ok(changes)
    }

    /// Registers the buckets that this process has not registered yet.
    pub(super) async fn register(&self, buckets: Vec<Item>) -> Result<(), StoreError> {
        let mut fresh: Vec<Item> = {
            let known = self.known.lock();
            buckets.into_iter().filter(|item| !known.registered.contains(&item.key)).collect()
        };
        if fresh.is_empty() {
            return Ok(());
        }
        let active: Vec<Item> = fresh.iter().filter_map(active).collect();
        fresh.extend(active);
        fresh.sort_by(|a, b| a.key.cmp(&b.key));
        fresh.dedup_by(|a, b| a.key == b.key);
        let changes: Vec<Change> = fresh.into_iter().map(Change::Insert).collect();
        self.table.write(&changes).await?;
        let known = &mut self.known.lock().registered;
        if known.len() >= MAX_KNOWN_RECORDS {
            known.clear();
        }
        known.extend(changes.iter().map(|change| change.key().clone()));
        Ok(())
    }

    /// The registrations of the bucket of a new job's row at `home`. `row_entry` is the job's entry
    /// if the row itself serves as one.
    pub(super) fn home_buckets(
        &self,
        job: &Job,
        home: &JobLocation,
        row_entry: Option<&EntryRequest>,
    ) -> Vec<Item> {
        let queue = &job.spec.queue;
        let mut items = vec![
            Item::new(Key::new(key::QUEUES, queue.as_str()), []),
            upkeep::listing(queue, home),
        ];
        items.extend(row_entry.map(|entry| self.open_bucket(entry, false, entry.at)));
        items
    }

    /// The partition of a timer at `at`. The first job of a process selects its shard.
    fn timer_bucket(&self, at: Timestamp, first: &JobId) -> TimerBucket {
        let shard = || Sha256::digest(first.as_str())[0] % TIMER_SHARDS;
        TimerBucket { hour: Hour::of(at), shard: Some(*self.timer_shard.get_or_init(shard)) }
    }

    /// The registration of the bucket of an entry.
    fn open_bucket(&self, request: &EntryRequest, late: bool, now: Timestamp) -> Item {
        let low_watermark = (row::LOW_WATERMARK, Val::S(String::new()));
        match &request.kind {
            EntryKind::Due { index_partition, queue, job_type, critical, partition, priority } => {
                let hour = Hour::of(if late { now } else { request.at });
                let mut attrs = vec![
                    low_watermark,
                    (TYPE, job_type.clone()),
                    (CRITICAL, Val::N((*critical).into())),
                ];
                if !partition.is_empty() {
                    attrs.push((PARTITION, Val::S(partition.clone())));
                }
                let priority = priority.map(priority_number);
                attrs.extend(priority.map(|number| (PRIORITY, Val::N(number))));
                Item::new(
                    Key::new(key::open(queue, late), key::registered(hour, index_partition)),
                    attrs,
                )
            }
            EntryKind::Timer => {
                let at = if request.is_late(now) { now } else { request.at };
                Item::new(self.timer_bucket(at, &request.id).registered(), [low_watermark])
            }
        }
    }
}

/// The listing of the queue of a bucket's registration; none for other registrations.
pub(super) fn active(registration: &Item) -> Option<Item> {
    let queue = key::queue_of_open(&registration.key)?;
    let (hour, _) = key::registered_of(&registration.key.s)?;
    Some(Item::new(Key::new(key::ACTIVE, key::active(hour, queue)), []))
}

/// A priority as a number of the table, which has no sign.
fn priority_number(priority: i32) -> u64 {
    (i64::from(priority) - i64::from(i32::MIN)) as u64
}

/// The priority that [`priority_number`] encoded; none for a number that is none.
pub(super) fn priority_of(number: u64) -> Option<i32> {
    i32::try_from(i64::try_from(number).ok()? + i64::from(i32::MIN)).ok()
}
