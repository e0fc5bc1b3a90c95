//! Reading buckets, and moving their low watermarks.
//!
//! The one thing to know: a low watermark passes an entry only when it is no longer needed, which its job's own row says: it ended; or
//! it is scheduled for another time, or as another type, in another partition, critical or not, where it has another entry, since that was written first. A job that runs keeps its
//! entry, and so does one whose announced change has not come yet.

use std::time::Duration;

use super::{
    DynamoStore, MAX_KNOWN_RECORDS,
    entry::{CRITICAL, LAG, PARTITION, TYPE, Wanted},
    key::{self, Hour, Key, Partition, SortKey},
    row,
    table::{Change, Item, PageQuery, Val},
};
use tidegate_core::{
    job::{Job, JobId, QueueName, Spec, State, TypeName},
    port::StoreError,
    time::Timestamp,
};

/// How long an entry waits for a job that is not there. The enqueue that wrote it is over by then.
const ORPHAN: Duration = Duration::from_mins(15);
/// The most entries that are refiled at once.
const FEW: usize = 8;

/// How long an entry is passed by whose job was seen to run, before it is looked at again for the low watermark's sake.
const RECHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Why an entry leads to no candidate, whatever becomes of its job: a rescheduled job has a new entry, written first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exhausted {
    /// It is settled.
    Settled,
    /// Its job was claimed, and ran at this instant: the low watermark stays before it until that is over.
    Running(Timestamp),
}

/// When it is worth a write to move a low watermark. Whatever they are, nothing gets lost.
#[derive(Clone, Copy, Debug)]
pub struct LowWatermarks {
    /// How many settled entries a low watermark must leave behind.
    pub worth: usize,
    /// How many settled entries must lie behind a few that are not, for those to be refiled.
    pub stuck: usize,
    /// How long after its hour a bucket with a few entries is closed, and they are refiled.
    pub old: Duration,
}

impl Default for LowWatermarks {
    fn default() -> Self {
        Self { worth: 24, stuck: 400, old: Duration::from_hours(6) }
    }
}

/// A bucket that has entries which are not settled, as far as is known.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    /// Its place in the registry.
    registered: Key,
    pub hour: Hour,
    pub index_partition: Partition,
    pub late: bool,
    pub job_type: String,
    pub critical: bool,
    pub partition: String,
    low_watermark: String,
}

impl Bucket {
    fn read(item: &Item, late: bool) -> Option<Self> {
        let (hour, index_partition) = key::registered_of(&item.key.s)?;
        Some(Self {
            registered: item.key.clone(),
            hour,
            index_partition,
            late,
            job_type: item.text(TYPE)?.to_owned(),
            critical: item.number(CRITICAL)? == 1,
            partition: item.text(PARTITION).unwrap_or_default().to_owned(),
            low_watermark: item.text(row::LOW_WATERMARK).unwrap_or_default().to_owned(),
        })
    }

    /// Whether a job with this spec may wait here, as far as a bucket knows. On which shard is nobody's business: others may spread jobs over more of them,
    /// or fewer.
    fn is_for(&self, spec: &Spec) -> bool {
        spec.job_type.as_str() == self.job_type
            && spec.critical == self.critical
            && spec.partition == self.partition
    }

    pub(super) fn is_of(&self, types: &[TypeName]) -> bool {
        types.iter().any(|name| name.as_str() == self.job_type)
    }
}

/// An entry of a bucket, with the job that it leads to.
#[derive(Debug)]
pub(super) struct SeenPage {
    pub at: Timestamp,
    key: Key,
    /// For which revision it was written; none for the job's own row.
    announced: Option<u64>,
    id: Option<JobId>,
    /// None if there is none, and if the entry is exhausted and no longer needed.
    pub job: Option<Job>,
    spent: Option<Exhausted>,
}

/// A way through the entries of one bucket, in order.
pub(super) struct Reader<'a> {
    store: &'a DynamoStore,
    pub bucket: Bucket,
    next: Option<String>,
    to: String,
    /// Whether jobs are wanted that run.
    running: bool,
    /// Whether it began where the bucket's unsettled entries begin.
    from_low_watermark: bool,
    /// The end of what is settled from the start on, and how many entries that is.
    settled: (Option<String>, usize),
    /// Entries in the way of the low watermark, that could be refiled.
    stuck: Vec<Job>,
    /// The end of what is settled but for those, and how many entries that is.
    beyond: (Option<String>, usize),
    passing: bool,
    began: Timestamp,
}

impl<'a> Reader<'a> {
    /// Through `bucket` from `from` on (or from its low watermark), up to `to` (or its end).
    pub(super) fn new(
        store: &'a DynamoStore,
        bucket: Bucket,
        from: Option<Timestamp>,
        to: Option<Timestamp>,
    ) -> Self {
        let from = from
            .filter(|_| !bucket.late)
            .map(key::instant)
            .filter(|from| *from > bucket.low_watermark);
        let to = to.filter(|_| !bucket.late).map_or_else(
            || key::LAST.to_string(),
            |to| format!("{}{}", key::instant(to), key::LAST),
        );
        let from_low_watermark = from.is_none();
        let start = from.unwrap_or_else(|| {
            if bucket.low_watermark.is_empty() {
                key::FIRST.into()
            } else {
                bucket.low_watermark.clone()
            }
        });
        Self {
            store,
            bucket,
            next: Some(start),
            to,
            running: false,
            from_low_watermark,
            settled: (None, 0),
            stuck: Vec::new(),
            beyond: (None, 0),
            passing: true,
            began: store.now(),
        }
    }

    /// The same, for those who look for jobs that run.
    pub(super) fn with_running(mut self) -> Self {
        self.running = true;
        self
    }

    /// The next entries, at most `limit`; none at the end. Entries of which there are more than one for a job come as often.
    pub(super) async fn page(&mut self, limit: u32) -> Result<Option<Vec<SeenPage>>, StoreError> {
        let Some(from) = self.next.take() else {
            return Ok(None);
        };
        let p = key::bucket(&self.bucket.index_partition, self.bucket.hour, self.bucket.late);
        self.began = self.store.now();
        let page = self
            .store
            .table
            .query(&PageQuery { p, from, to: self.to.clone(), limit: Some(limit), backward: false })
            .await?;
        self.next = page
            .items
            .last()
            .filter(|_| page.more)
            .map(|last| format!("{}{}", last.key.s, key::FIRST));
        let seen = self.store.seen(page.items, self.running).await?;
        for one in &seen {
            self.count(one);
        }
        self.remember(&seen);
        if self.next.is_none() {
            self.finish().await;
        }
        Ok(Some(seen))
    }

    /// Whether everything was read.
    pub(super) fn is_done(&self) -> bool {
        self.next.is_none()
    }

    /// The position of the reader: everything before this instant was read.
    pub(super) fn read_until(&self) -> Timestamp {
        self.next
            .as_deref()
            .and_then(|next| SortKey::parse(next.trim_end_matches(key::FIRST)))
            .map_or(self.bucket.hour.end(), |spot| match spot {
                SortKey::Row(at) | SortKey::Entry(at, ..) => at,
            })
    }

    fn count(&mut self, seen: &SeenPage) {
        self.passing &= seen.at + LAG <= self.began;
        if !self.passing {
            return;
        }
        if self.is_settled(seen) {
            let passed = if self.stuck.is_empty() { &mut self.settled } else { &mut self.beyond };
            *passed = (Some(seen.key.s.clone()), passed.1 + 1);
        } else if let Some(job) = seen.job.as_ref().filter(|_| self.stuck.len() < FEW) {
            self.stuck.push(job.clone());
        } else {
            self.passing = false;
        }
    }

    /// Remembers which entries need no look any more: each costs as much as a job.
    fn remember(&self, seen: &[SeenPage]) {
        let fresh = seen.iter().filter(|one| one.spent.is_none()).filter_map(|one| {
            let (job, announced) = (one.job.as_ref()?, one.announced?);
            let runs = job.life.running().is_some() && job.life.revision.0 > announced;
            let spent = if self.is_settled(one) {
                Some(Exhausted::Settled)
            } else {
                runs.then_some(Exhausted::Running(self.began))
            };
            Some((one.key.clone(), spent?))
        });
        let fresh: Vec<(Key, Exhausted)> = fresh.collect();
        let spent = &mut self.store.known.lock().spent;
        if spent.len() + fresh.len() >= MAX_KNOWN_RECORDS {
            spent.clear();
        }
        spent.extend(fresh);
    }

    fn is_settled(&self, seen: &SeenPage) -> bool {
        if let Some(spent) = seen.spent {
            return spent == Exhausted::Settled;
        }
        let Some(job) = &seen.job else {
            return seen.announced.is_none() || seen.at + ORPHAN < self.began;
        };
        if seen.announced.is_some_and(|revision| job.life.revision.0 < revision) {
            return false;
        }
        match job.life.state {
            State::Ended { .. } => true,
            State::Running(_) => false,
            State::Scheduled { .. } if !self.bucket.is_for(&job.spec) => true,
            State::Scheduled { run_at, .. } if self.bucket.late => run_at > seen.at,
            State::Scheduled { run_at, .. } => run_at != seen.at,
        }
    }

    /// Moves the low watermark past what is settled, or closes the bucket. This only saves reads: a later reader repeats it if it fails.
    async fn finish(&mut self) {
        if !self.from_low_watermark {
            return;
        }
        if let Err(error) = self.try_finish().await {
            tracing::debug!(error = %error.chain(), "a low watermark was not moved");
        }
    }

    async fn try_finish(&mut self) -> Result<(), StoreError> {
        let end = self.bucket.hour.end();
        let whole = self.passing && end + LAG <= self.began && self.to.starts_with(key::LAST);
        let old = whole && end + self.store.low_watermarks.old <= self.began;
        let refile =
            !self.stuck.is_empty() && (self.beyond.1 >= self.store.low_watermarks.stuck || old);
        if refile {
            // A few that stay are refiled as late entries; otherwise every read would pass what is between them.
            let long_ago = Timestamp::from_millis(i64::MIN / 2);
            let again = self.stuck.iter().map(|job| {
                Wanted::run(
                    self.store.index_partition(&job.id, &job.spec),
                    &job.id,
                    &job.spec,
                    job.life.revision.0,
                    long_ago,
                )
            });
            self.store.announce(again.collect()).await?;
        }
        let when = (row::LOW_WATERMARK, Val::S(self.bucket.low_watermark.clone()));
        let key = self.bucket.registered.clone();
        if whole && (refile || self.stuck.is_empty()) {
            return self
                .store
                .table
                .write(&[Change::Delete { key, when: Some(when) }])
                .await
                .map(drop);
        }
        let low_watermark = if refile {
            self.beyond.0.take()
        } else {
            self.settled.0.take().filter(|_| self.settled.1 >= self.store.low_watermarks.worth)
        };
        let Some(low_watermark) = low_watermark else { return Ok(()) };
        let change = Change::Update {
            key,
            set: vec![(row::LOW_WATERMARK, Val::S(low_watermark))],
            remove: Vec::new(),
            when,
        };
        self.store.table.write(&[change]).await.map(drop)
    }
}

impl DynamoStore {
    /// The open buckets of a queue from one hour to another, late ones with the second flag.
    pub(super) async fn open(
        &self,
        queue: &QueueName,
        from: Option<Hour>,
        to: Option<Hour>,
        late: bool,
    ) -> Result<Vec<Bucket>, StoreError> {
        let from = from.map_or_else(|| key::FIRST.to_string(), Hour::text);
        let to = to
            .map_or_else(|| key::LAST.to_string(), |hour| format!("{}{}", hour.text(), key::LAST));
        let items = self.all(key::open(queue, late), from, to).await?;
        Ok(items.iter().filter_map(|item| Bucket::read(item, late)).collect())
    }

    /// The jobs that entries lead to, but for entries that are known to be spent; with `running` none is.
    async fn seen(&self, items: Vec<Item>, running: bool) -> Result<Vec<SeenPage>, StoreError> {
        let now = self.now();
        let mut seen = Vec::with_capacity(items.len());
        for item in items {
            let Some(spot) = SortKey::parse(&item.key.s) else {
                continue;
            };
            let one = match spot {
                SortKey::Row(at) => {
                    let job =
                        if row::is_over(&item, now) { None } else { Some(row::shown(&item, now)?) };
                    SeenPage {
                        at,
                        key: item.key,
                        announced: None,
                        id: job.as_ref().map(|job| job.id.clone()),
                        job,
                        spent: None,
                    }
                }
                SortKey::Entry(at, id, revision) => {
                    let spent = self.known.lock().spent.get(&item.key).copied();
                    let spent = spent.filter(|spent| match spent {
                        Exhausted::Settled => true,
                        Exhausted::Running(seen_at) => {
                            !running && now < *seen_at + RECHECK_INTERVAL
                        }
                    });
                    SeenPage {
                        at,
                        key: item.key,
                        announced: Some(revision),
                        id: Some(id),
                        job: None,
                        spent,
                    }
                }
            };
            seen.push(one);
        }
        let unknown = |one: &SeenPage| one.announced.is_some() && one.spent.is_none();
        let pointed: Vec<JobId> =
            seen.iter().filter(|one| unknown(one)).filter_map(|one| one.id.clone()).collect();
        if !pointed.is_empty() {
            let mut jobs = self.jobs(&pointed.iter().collect::<Vec<_>>()).await?.into_iter();
            for one in seen.iter_mut().filter(|one| unknown(one)) {
                one.job = jobs.next().flatten();
            }
        }
        Ok(seen)
    }
}
