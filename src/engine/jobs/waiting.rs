//! Counting what waits, as a part of the sweep, for the throttlers that need it.
//!
//! One pass counts the partitions of a queue, a page at a time. A pass that has read too much, or
//! that has no more time, leaves the other partitions to the next one. On a store with atomic
//! transactions only this process ticks, so the estimate stays in its memory. Otherwise it is a
//! record, which the ticks of other processes read again after [`MAX_AGE`].

use std::{collections::HashMap, fmt::Write as _, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::{Catalog, Engine, Error};
use tidegate_core::{
    job::{QueueName, TypeName},
    port::job_store::{Record, RecordKind, RecordQuery, Write},
    queue::{
        Limits,
        plugin::Description,
        waiting::{UnfinishedCount, WaitingCount, WaitingEstimate},
    },
    time::Timestamp,
};

/// The shortest time between the passes over a queue.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// A pass ends after the page with which the pause behind it becomes this long.
const PAUSE_LIMIT: Duration = Duration::from_hours(1);
/// The longest pause: [`PAUSE_LIMIT`], and what the last page may add. A pass that is planned for
/// later was planned by a clock that was ahead.
const MAX_PAUSE: Duration = Duration::from_hours(6);
/// How long a process uses an estimate that another process may have replaced.
const MAX_AGE: Duration = Duration::from_secs(10);
/// How long the record of an estimate is kept.
const RETENTION: Duration = Duration::from_hours(24);
/// Partitions that one pass counts.
const MAX_COUNTED_PARTITIONS: usize = 10_000;
/// How many partitions a queue that was never counted is supposed to have.
const ASSUMED_PARTITIONS: u32 = 8;
/// Partitions of a page. A table reads the registrations of all partitions again for each page.
const MAX_PAGE_PARTITIONS: u64 = 1000;
/// Jobs that are counted of each partition, even if the pass has read what it may.
const MIN_COUNTED: u64 = 4;

/// The estimates that an engine has.
#[derive(Default)]
pub(crate) struct WaitingEstimates(Mutex<HashMap<QueueName, KeptEstimate>>);

#[derive(Clone)]
struct KeptEstimate {
    estimate: Arc<WaitingEstimate>,
    /// When the next pass may begin.
    next_at: Timestamp,
    /// When this process counted or read it.
    known_at: Timestamp,
}

/// An estimate as a record.
#[derive(Serialize, Deserialize)]
struct StoredEstimate {
    counted_at: Option<Timestamp>,
    next_at: Timestamp,
    /// Each as name, jobs, weight, oldest due time, and whether there may be more.
    partitions: Vec<(String, u32, u64, Timestamp, bool)>,
    others: Option<WaitingCount>,
    unfinished: Option<UnfinishedCount>,
}

impl StoredEstimate {
    fn of(estimate: &WaitingEstimate, next_at: Timestamp) -> Self {
        let stored = |(name, count): (&String, &WaitingCount)| {
            let WaitingCount { jobs, weight, oldest_due_at, at_least } = *count;
            (name.clone(), jobs, weight, oldest_due_at, at_least)
        };
        Self {
            counted_at: estimate.counted_at,
            next_at,
            partitions: estimate.partitions.iter().map(stored).collect(),
            others: estimate.others,
            unfinished: estimate.unfinished.clone(),
        }
    }

    fn estimate(self) -> WaitingEstimate {
        let count = |(name, jobs, weight, oldest_due_at, at_least)| {
            (name, WaitingCount { jobs, weight, oldest_due_at, at_least })
        };
        WaitingEstimate {
            counted_at: self.counted_at,
            partitions: self.partitions.into_iter().map(count).collect(),
            others: self.others,
            unfinished: self.unfinished,
        }
    }
}

/// Whether a version of a queue's throttler that is called, live or as a shadow, groups the waiting
/// jobs.
pub(crate) fn groups_waiting(catalog: &Catalog, limits: &Limits) -> bool {
    let Some(throttler) = &limits.queue.throttler else { return false };
    let shadow = catalog.plugins.get(&throttler.plugin);
    let shadow = shadow.and_then(|item| item.numbered(item.shadow?));
    let versions = limits.throttler.iter().chain(shadow);
    versions.filter_map(|version| version.throttler.as_ref()).any(Description::groups_waiting)
}

impl Engine {
    /// Counts what waits in the queues whose throttlers group the waiting jobs, as far as they are
    /// due to be counted, until `until`. Returns when the next one is; none if there is no such
    /// queue. The configuration is the one that this process has read last, so that an idle sweep
    /// costs nothing.
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub async fn count_waiting(&self, until: Timestamp) -> Result<Option<Timestamp>, Error> {
        let known = self.catalog.load_full();
        let catalog = if known.version == 0 { self.catalog().await? } else { known };
        let mut next_at: Option<Timestamp> = None;
        let mut queues = Vec::new();
        for queue in catalog.queues.keys() {
            if groups_waiting(&catalog, &catalog.limits(queue)) {
                queues.push(queue.clone());
            }
        }
        self.waiting.0.lock().retain(|queue, _| queues.contains(queue));
        for queue in queues {
            let kept = self.kept_estimate(&queue, Duration::ZERO).await?;
            let now = self.now();
            let planned = kept.as_ref().map(|kept| kept.next_at);
            let at = match planned.filter(|at| now < *at && *at <= now + MAX_PAUSE) {
                Some(at) => at,
                None if now >= until => now,
                None => {
                    let previous = kept.map(|kept| kept.estimate).unwrap_or_default();
                    self.count_waiting_in(&catalog, &queue, &previous, until).await?
                }
            };
            next_at = next_at.into_iter().chain([at]).min();
        }
        Ok(next_at)
    }

    /// Makes one pass over the partitions of `queue`, from where the `previous` one ended. Returns
    /// when the next pass may begin.
    async fn count_waiting_in(
        &self,
        catalog: &Catalog,
        queue: &QueueName,
        previous: &WaitingEstimate,
        until: Timestamp,
    ) -> Result<Timestamp, Error> {
        let store = &self.ports.store;
        let (may_read, pause) = store.capabilities().waiting_pass;
        let types: Vec<TypeName> = catalog.types_of(queue).map(|(name, _)| name.clone()).collect();
        let began_at = self.now();
        let mut counts = Vec::new();
        let mut after = previous.unfinished.as_ref().map(|count| count.end.clone());
        let mut read: u64 = 0;
        let expected = u32::try_from(previous.partitions.len()).unwrap_or(u32::MAX);
        let expected = if expected == 0 { ASSUMED_PARTITIONS } else { expected };
        let most_of_each = u64::from(may_read / expected).max(MIN_COUNTED);
        let wait = loop {
            // Once the pass has read what it may, it reads the beginnings of the other partitions.
            let left = u64::from(may_read).saturating_sub(read);
            let most = most_of_each.min(left).max(MIN_COUNTED);
            let limit = (left / most).clamp(1, MAX_PAGE_PARTITIONS);
            let limit = if left == 0 { MAX_PAGE_PARTITIONS } else { limit };
            let (limit, most) = (limit as u32, u32::try_from(most).unwrap_or(u32::MAX));
            let page =
                store.count_waiting(queue, &types, began_at, after.as_deref(), limit, most).await?;
            read += page.read;
            let wait = pause.saturating_mul(read.try_into().unwrap_or(u32::MAX));
            counts.extend(page.counts);
            after = page.next;
            let is_long = counts.len() >= MAX_COUNTED_PARTITIONS || wait >= PAUSE_LIMIT;
            if after.is_none() || is_long || self.now() >= until {
                break wait;
            }
        };
        let next_at = began_at + wait.clamp(MIN_INTERVAL, MAX_PAUSE);
        let estimate = Arc::new(previous.after_pass(counts, after, began_at));
        if !store.capabilities().is_exclusive() {
            let stored = StoredEstimate::of(&estimate, next_at);
            let bytes =
                serde_json::to_vec(&stored).map_err(|error| Error::Internal(error.to_string()))?;
            let record = Record {
                kind: RecordKind::Waiting,
                name: record_name(queue),
                until: began_at + RETENTION,
                bytes,
            };
            store.commit(vec![vec![Write::PutRecord(record)]]).await?;
        }
        let kept = KeptEstimate { estimate, next_at, known_at: self.now() };
        self.waiting.0.lock().insert(queue.clone(), kept);
        Ok(next_at)
    }

    /// What waits in `queue` by the last count; empty if it was not counted yet. It costs one read at
    /// most, and none within [`MAX_AGE`].
    pub(crate) async fn waiting(&self, queue: &QueueName) -> Result<Arc<WaitingEstimate>, Error> {
        let kept = self.kept_estimate(queue, MAX_AGE).await?;
        Ok(kept.map(|kept| kept.estimate).unwrap_or_default())
    }

    /// The estimate of `queue`, read again if this process has known it for longer than `max_age`.
    async fn kept_estimate(
        &self,
        queue: &QueueName,
        max_age: Duration,
    ) -> Result<Option<KeptEstimate>, Error> {
        let kept = self.waiting.0.lock().get(queue).cloned();
        let now = self.now();
        let is_new = |kept: &KeptEstimate| kept.known_at <= now && now < kept.known_at + max_age;
        let store = &self.ports.store;
        if store.capabilities().is_exclusive() || kept.as_ref().is_some_and(is_new) {
            return Ok(kept);
        }
        let name = record_name(queue);
        let query =
            RecordQuery { kind: RecordKind::Waiting, prefix: name.clone(), after: None, limit: 1 };
        let found = store.records(&[query]).await?.pop().and_then(|mut found| found.pop());
        let stored = found.filter(|record| record.name == name).and_then(|record| {
            let read = serde_json::from_slice::<StoredEstimate>(&record.bytes);
            read.inspect_err(|error| tracing::warn!(%queue, %error, "counting what waits again"))
                .ok()
        });
        let kept = match stored {
            Some(stored) => {
                let next_at = stored.next_at;
                KeptEstimate { next_at, estimate: Arc::new(stored.estimate()), known_at: now }
            }
            // It is read again after its time, although there is none.
            None => KeptEstimate { estimate: Arc::default(), next_at: now, known_at: now },
        };
        self.waiting.0.lock().insert(queue.clone(), kept.clone());
        Ok(Some(kept))
    }
}

/// The name of the record of a queue's estimate. Names of records have fewer letters than queues'.
fn record_name(queue: &QueueName) -> String {
    let mut name = String::with_capacity(2 * queue.as_str().len());
    for byte in queue.as_str().bytes() {
        let _ = write!(name, "{byte:02x}");
    }
    name
}
