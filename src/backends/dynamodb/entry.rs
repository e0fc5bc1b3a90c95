//! What is written before a job so that it is found later, and when that counts.
//!
//! The one thing to know: **timer before state.** A job that is scheduled for some time has an entry there before it says
//! so. An entry counts only if its write was answered before the low watermark can have passed it: that is, within [`SLACK`] of its
//! instant, while low watermarks stay [`LAG`] behind the time. One that came later is written again, in a *late* bucket of the present
//! hour, which is read as a whole.

use std::time::Duration;

use super::{
    DynamoStore, MAX_KNOWN_RECORDS,
    key::{self, Hour, JobLocation, Key, Partition},
    row,
    table::{Change, Item, Val},
};
use crate::blob::encode;
use tidegate_core::{
    job::{Job, JobId, QueueName, Spec, State},
    port::StoreError,
    time::Timestamp,
};

/// How long after its instant the write of an entry may be answered.
pub(super) const SLACK: Duration = Duration::from_secs(4);
/// How far behind the time low watermarks stay. What it is more than [`SLACK`] is how wrong two clocks may be.
pub(super) const LAG: Duration = Duration::from_secs(10);
/// How often an entry that came late is written again.
const TRIES: usize = 4;
/// Most jobs that one timer names: it stays under a kilobyte.
const TIMER_JOBS: usize = 12;

/// The attributes of an open bucket that say what is in it.
pub(super) const TYPE: char = 't';
pub(super) const CRITICAL: char = 'c';
pub(super) const PARTITION: char = 'a';

/// That a job must be found at some time.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub id: JobId,
    pub revision: u64,
    pub at: Timestamp,
    pub to: To,
}

/// By whom.
#[derive(Clone, Debug)]
pub(super) enum To {
    /// By those who look for due jobs.
    Run { index_partition: Partition, queue: QueueName, of: Val, critical: bool, partition: String },
    /// By those who look for overdue ones.
    Wake,
}

impl Wanted {
    /// The entry of a job that is scheduled for `at`.
    pub(super) fn run(
        index_partition: Partition,
        id: &JobId,
        spec: &Spec,
        revision: u64,
        at: Timestamp,
    ) -> Self {
        let to = To::Run {
            index_partition,
            queue: spec.queue.clone(),
            of: Val::S(spec.job_type.to_string()),
            critical: spec.critical,
            partition: spec.partition.clone(),
        };
        Self { id: id.clone(), revision, at, to }
    }

    /// The timer of a job that must be looked at by `at`.
    pub(super) fn wake(id: &JobId, revision: u64, at: Timestamp) -> Self {
        Self { id: id.clone(), revision, at, to: To::Wake }
    }
}

/// A timer's list: id, revision that it was written for, instant.
pub(super) type Timers = Vec<(JobId, u64, Timestamp)>;

/// When a job must be looked at besides its due time, as far as this change of it needs a timer: one that stands already is
/// not later. `whole` says whether what it is may have changed too.
pub(super) fn timer_of(job: &Job, whole: bool) -> Option<Timestamp> {
    let needed = match &job.life.state {
        State::Scheduled { .. } => whole || job.life.awaits_retry_decision(),
        State::Running(run) => whole || !run.granted,
        State::Ended { .. } => false,
    };
    if needed { job.life.wake_at(&job.spec) } else { None }
}

impl DynamoStore {
    /// Writes what `wanted` asks for, each at its time or now if that is past, until it counts.
    pub(super) async fn announce(&self, mut wanted: Vec<Wanted>) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            if wanted.is_empty() {
                return Ok(());
            }
            let now = self.now();
            let late = |wanted: &Wanted| wanted.at + SLACK / 2 < now;
            self.register(
                wanted.iter().map(|wanted| open_bucket(wanted, late(wanted), now)).collect(),
            )
            .await?;
            let mut changes = Vec::with_capacity(wanted.len());
            let mut timers: std::collections::BTreeMap<i64, Timers> =
                std::collections::BTreeMap::new();
            for one in &wanted {
                match &one.to {
                    To::Run { index_partition, .. } if late(one) => {
                        changes.push(Change::Insert(Item::new(
                            key::entry(index_partition, now, true, &one.id, one.revision),
                            [],
                        )));
                    }
                    To::Run { index_partition, .. } => {
                        changes.push(Change::Insert(Item::new(
                            key::entry(index_partition, one.at, false, &one.id, one.revision),
                            [],
                        )));
                    }
                    // Those of one second share an item.
                    To::Wake => timers.entry(one.at.max(now).millis() / 1000).or_default().push((
                        one.id.clone(),
                        one.revision,
                        one.at,
                    )),
                }
            }
            for list in timers.values().flat_map(|list| list.chunks(TIMER_JOBS)) {
                let at = list
                    .iter()
                    .map(|(.., at)| if *at + SLACK / 2 < now { now } else { *at })
                    .min()
                    .unwrap_or(now);
                let tie = self.entropy.bits() as u64;
                let key =
                    Key::new(key::timers(Hour::of(at)), format!("{}!{tie:016x}", key::instant(at)));
                changes.push(Change::Insert(Item::new(
                    key,
                    [(row::LIST, Val::B(encode(&list.to_vec())?.into()))],
                )));
            }
            changes.sort_by(|a, b| a.key().cmp(b.key()));
            changes.dedup_by(|a, b| a.key() == b.key());
            // An existing entry was written by another engine for the same job.
            self.table.write(&changes).await?;
            let answered = self.now();
            wanted.retain(|one| one.at.max(now) + SLACK < answered);
        }
        if wanted.is_empty() {
            Ok(())
        } else {
            Err(StoreError::unavailable("the table takes too long to write an entry"))
        }
    }

    /// Registers buckets that are not known to be.
    pub(super) async fn register(&self, buckets: Vec<Item>) -> Result<(), StoreError> {
        let mut fresh: Vec<Item> = {
            let known = self.known.lock();
            buckets.into_iter().filter(|item| !known.registered.contains(&item.key)).collect()
        };
        if fresh.is_empty() {
            return Ok(());
        }
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

    /// What registers the bucket of a new job's row at `home`; `found` says whether the row itself is how it is found.
    pub(super) fn home_buckets(job: &Job, home: &JobLocation, found: Option<&Wanted>) -> Vec<Item> {
        let queue = &job.spec.queue;
        let registered = key::registered(Hour::of(home.at), &home.index_partition);
        let mut items = vec![
            Item::new(Key::new(key::QUEUES, queue.as_str()), []),
            Item::new(Key::new(key::all(queue), registered), []),
        ];
        items.extend(found.map(|found| open_bucket(found, false, found.at)));
        items
    }
}

/// What registers the bucket that an entry lies in.
fn open_bucket(wanted: &Wanted, late: bool, now: Timestamp) -> Item {
    let low_watermark = (row::LOW_WATERMARK, Val::S(String::new()));
    match &wanted.to {
        To::Run { index_partition, queue, of, critical, partition } => {
            let hour = Hour::of(if late { now } else { wanted.at });
            let mut attrs =
                vec![low_watermark, (TYPE, of.clone()), (CRITICAL, Val::N((*critical).into()))];
            if !partition.is_empty() {
                attrs.push((PARTITION, Val::S(partition.clone())));
            }
            Item::new(
                Key::new(key::open(queue, late), key::registered(hour, index_partition)),
                attrs,
            )
        }
        To::Wake => {
            let at = if wanted.at + SLACK / 2 < now { now } else { wanted.at };
            Item::new(Key::new(key::OPEN_TIMERS, Hour::of(at).text()), [low_watermark])
        }
    }
}
