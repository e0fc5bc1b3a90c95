//! Reading buckets, and moving their low watermarks.
//!
//! What leads to no candidate at the beginning of a bucket was read for nothing. A process
//! remembers how far that goes ([`Passed`]) and begins behind it for a while, also where a running
//! job holds the low watermark.
//!
//! A low watermark passes an entry only when its job's row shows that the entry is settled: the job
//! has ended, or it is scheduled for another time or in another bucket. In the second case another
//! entry exists, because it was written first. A running job keeps its entry, and so does a job
//! whose announced change has not been written yet.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{
    DynamoStore, MAX_KNOWN_RECORDS,
    bucket::Bucket,
    entry::{EntryRequest, LOW_WATERMARK_LAG, MAX_ENTRY_DELAY},
    key::{self, Key, SortKey},
    row,
    table::{Change, Item, PageQuery, Val},
};
use tidegate_core::{
    job::{Job, JobId, State},
    port::{
        StoreError,
        job_store::{StoredJob, UnreadableJob},
    },
    time::Timestamp,
};

/// Age at which an entry without a job is settled. The enqueue that wrote it is over by then.
const MIN_ORPHAN_AGE: Duration = Duration::from_mins(15);
/// Maximum entries that are refiled at once.
const MAX_REFILED: usize = 8;

/// Interval at which the job of an entry that was seen to run is read again, so that the low
/// watermark can move.
const RECHECK_INTERVAL: Duration = Duration::from_secs(10);

/// How far behind the time a process stops to pass entries. Writers' clocks may be slower than its
/// own by what this exceeds [`MAX_ENTRY_DELAY`]; the jobs of a slower one are found once what was
/// passed is no longer [valid](Passed::is_valid).
const PASSED_LAG: Duration = MAX_ENTRY_DELAY.saturating_add(Duration::from_secs(1));
/// How long what was passed is valid at least and at most.
const PASSED_VALIDITY: (Duration, Duration) = (Duration::from_secs(30), Duration::from_mins(10));
/// How much longer it is valid for each passed entry, so that reading them again costs little.
const VALIDITY_PER_ENTRY: Duration = Duration::from_millis(50);

/// The beginning of a bucket that leads to no candidate, as one process has read it. No writer adds
/// an entry there any more, and a job that stops running gets another entry.
#[derive(Clone, Debug)]
pub(super) struct Passed {
    /// The last entry of it.
    key: String,
    /// How many entries it has.
    entries: u32,
    /// When the bucket was last read from its low watermark.
    since: Timestamp,
}

impl Passed {
    fn is_valid(&self, now: Timestamp) -> bool {
        let (least, most) = PASSED_VALIDITY;
        // After a step back of the clock, new jobs may be due before what was passed.
        self.since <= now
            && now < self.since + (least + VALIDITY_PER_ENTRY * self.entries).min(most)
    }
}

/// What a reader is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Scheduled jobs.
    Candidates,
    /// Scheduled and running jobs.
    Running,
    /// The due times of scheduled jobs. The jobs of entries are not read.
    Times,
}

/// Why an entry leads to no candidate. A rescheduled job has another entry, which was written
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exhausted {
    /// The entry is settled.
    Settled,
    /// Its job was claimed and ran at this instant. The low watermark stays before the entry until
    /// the job has stopped running.
    Running(Timestamp),
    /// Its job cannot be read. The low watermark stays before the entry until it can.
    Damaged,
}

/// An entry of a bucket, with the job that it leads to.
#[derive(Debug)]
pub(super) struct SeenEntry {
    pub at: Timestamp,
    key: Key,
    /// The revision for which it was written; none for the job's own row.
    announced: Option<u64>,
    id: Option<JobId>,
    /// None if the job does not exist, or if the entry is known to be exhausted.
    pub job: Option<Job>,
    /// The job if it cannot be read.
    pub unreadable: Option<UnreadableJob>,
    exhausted: Option<Exhausted>,
    /// Whether its job was left out, because it is granted.
    left_out: bool,
}

impl SeenEntry {
    /// Whether it leads to no candidate, as far as that is known without its job.
    pub(super) fn is_known_exhausted(&self) -> bool {
        self.exhausted.is_some()
    }

    /// Whether it is an entry of its own and not a job's row.
    pub(super) fn is_entry(&self) -> bool {
        self.announced.is_some()
    }

    /// Sets the job that the entry leads to.
    fn set(&mut self, job: StoredJob) {
        match job {
            Ok(job) => self.job = job,
            Err(unreadable) => {
                self.exhausted = Some(Exhausted::Damaged);
                self.unreadable = Some(unreadable);
            }
        }
    }
}

/// How far a reader has come.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Start,
    /// The next page begins after this key, which the table chose.
    After(Key),
    End,
}

/// Reads the entries of one bucket in order.
pub(super) struct Reader<'a> {
    store: &'a DynamoStore,
    pub bucket: Bucket,
    from: String,
    to: String,
    place: Place,
    purpose: Purpose,
    /// The granted jobs, which are left out.
    granted: Option<Arc<HashMap<JobId, Timestamp>>>,
    /// What was passed so far, if the reader began at its beginning or end.
    passed: Option<Passed>,
    /// Whether all entries so far were passed.
    is_passing: bool,
    /// Whether reading began at the low watermark.
    from_low_watermark: bool,
    /// The end of the settled entries at the start, and their number.
    settled: (Option<String>, usize),
    /// Unsettled jobs that block the low watermark and can be refiled.
    stuck: Vec<Job>,
    /// The end of the settled entries behind those, and their number.
    beyond: (Option<String>, usize),
    /// Whether all entries so far allow the low watermark to move on.
    passing: bool,
    began: Timestamp,
}

impl<'a> Reader<'a> {
    /// Reads `bucket` from `from` (or its low watermark) up to `to` (or its end).
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
            from: start,
            to,
            place: Place::Start,
            purpose: Purpose::Candidates,
            granted: None,
            passed: None,
            is_passing: true,
            from_low_watermark,
            settled: (None, 0),
            stuck: Vec::new(),
            beyond: (None, 0),
            passing: true,
            began: store.now(),
        }
    }

    /// Includes running jobs.
    pub(super) fn with_running(mut self) -> Self {
        self.purpose = Purpose::Running;
        self
    }

    /// Leaves out the jobs of entries: their due times are in the keys.
    pub(super) fn for_times(mut self) -> Self {
        self.purpose = Purpose::Times;
        self
    }

    /// Leaves out these jobs, each if its entry is at this instant or before. They stay unsettled.
    pub(super) fn leaving_out(mut self, granted: Option<Arc<HashMap<JobId, Timestamp>>>) -> Self {
        self.granted = granted;
        self
    }

    /// Begins behind what this process has passed, if reading would begin at the low watermark.
    pub(super) fn behind_passed(mut self) -> Self {
        if !self.from_low_watermark {
            return self;
        }
        let now = self.store.now();
        let passed = self.store.known.lock().passed.get(&self.bucket.registered).cloned();
        let passed = passed.filter(|passed| passed.is_valid(now) && passed.key >= self.from);
        if let Some(passed) = &passed {
            self.from = format!("{}{}", passed.key, key::FIRST);
            self.from_low_watermark = false;
        }
        let fresh = || Passed { key: self.from.clone(), entries: 0, since: now };
        self.passed = Some(passed.unwrap_or_else(fresh));
        self
    }

    /// The next entries, at most `limit`; none at the end. There may be none of them before the end.
    /// A job with several entries appears once for each.
    pub(super) async fn page(&mut self, limit: u32) -> Result<Option<Vec<SeenEntry>>, StoreError> {
        let after = match &self.place {
            Place::Start => None,
            Place::After(key) => Some(key.clone()),
            Place::End => return Ok(None),
        };
        let p = key::bucket(&self.bucket.index_partition, self.bucket.hour, self.bucket.late);
        self.began = self.store.now();
        let page = self
            .store
            .table
            .query(&PageQuery {
                p,
                from: self.from.clone(),
                to: self.to.clone(),
                limit: Some(limit),
                backward: false,
                after,
            })
            .await?;
        self.place = page.next.map_or(Place::End, Place::After);
        let granted = self.granted.as_deref();
        let seen = self.store.seen(page.items, self.purpose, granted).await?;
        for one in &seen {
            self.count(one);
        }
        self.remember(&seen);
        self.remember_passed(&seen);
        if self.is_done() {
            self.finish().await;
        }
        Ok(Some(seen))
    }

    /// Whether everything was read.
    pub(super) fn is_done(&self) -> bool {
        self.place == Place::End
    }

    /// Moves the low watermark although the bucket was not read to its end.
    pub(super) async fn leave(mut self) {
        if !self.is_done() {
            self.finish().await;
        }
    }

    /// The end of the sort key of the row up to which everything was read; empty if the position is
    /// no row.
    pub(super) fn read_until_tie(&self) -> &str {
        match &self.place {
            Place::After(key) => key::tie_of_row(&key.s).unwrap_or_default(),
            Place::Start | Place::End => "",
        }
    }

    /// The position of the reader: everything before this instant was read.
    pub(super) fn read_until(&self) -> Timestamp {
        let after = match &self.place {
            Place::Start => None,
            Place::After(key) => SortKey::parse(&key.s),
            Place::End => return self.bucket.hour.end(),
        };
        after.map_or(self.bucket.hour.start(), |key| match key {
            SortKey::Row(at) | SortKey::Entry(at, ..) => at,
        })
    }

    fn count(&mut self, seen: &SeenEntry) {
        self.passing &= seen.at + LOW_WATERMARK_LAG <= self.began;
        if !self.passing {
            return;
        }
        if self.is_settled(seen) {
            let passed = if self.stuck.is_empty() { &mut self.settled } else { &mut self.beyond };
            *passed = (Some(seen.key.s.clone()), passed.1 + 1);
        } else if let Some(job) = seen.job.as_ref().filter(|_| self.stuck.len() < MAX_REFILED) {
            self.stuck.push(job.clone());
        } else {
            self.passing = false;
        }
    }

    /// Remembers exhausted entries, so that their jobs are not read again.
    fn remember(&self, seen: &[SeenEntry]) {
        let fresh = seen.iter().filter(|one| one.exhausted.is_none()).filter_map(|one| {
            let (job, announced) = (one.job.as_ref()?, one.announced?);
            let runs = job.life.running().is_some() && job.life.revision.0 >= announced;
            let exhausted = if self.is_settled(one) {
                Some(Exhausted::Settled)
            } else {
                runs.then_some(Exhausted::Running(self.began))
            };
            Some((one.key.clone(), exhausted?))
        });
        let fresh: Vec<(Key, Exhausted)> = fresh.collect();
        let exhausted = &mut self.store.known.lock().exhausted;
        if exhausted.len() + fresh.len() >= MAX_KNOWN_RECORDS {
            exhausted.clear();
        }
        exhausted.extend(fresh);
    }

    /// Remembers how far the entries lead to no candidate.
    fn remember_passed(&mut self, seen: &[SeenEntry]) {
        let Some(mut passed) = self.passed.take() else { return };
        for one in seen {
            self.is_passing &= one.at + PASSED_LAG <= self.began && self.is_exhausted(one);
            if !self.is_passing {
                break;
            }
            (passed.key, passed.entries) = (one.key.s.clone(), passed.entries.saturating_add(1));
        }
        if passed.entries > 0 {
            let known = &mut self.store.known.lock().passed;
            if known.len() >= MAX_KNOWN_RECORDS {
                known.clear();
            }
            known.insert(self.bucket.registered.clone(), passed.clone());
        }
        self.passed = Some(passed);
    }

    /// Whether an entry can no longer lead to a candidate: it is settled, or its job runs.
    fn is_exhausted(&self, seen: &SeenEntry) -> bool {
        let runs = |job: &Job| {
            job.life.running().is_some()
                && seen.announced.is_none_or(|announced| job.life.revision.0 >= announced)
        };
        match seen.exhausted {
            Some(exhausted) => exhausted != Exhausted::Damaged,
            None => self.is_settled(seen) || seen.job.as_ref().is_some_and(runs),
        }
    }

    fn is_settled(&self, seen: &SeenEntry) -> bool {
        if seen.left_out {
            return false;
        }
        if let Some(exhausted) = seen.exhausted {
            return exhausted == Exhausted::Settled;
        }
        let Some(job) = &seen.job else {
            return seen.announced.is_none() || seen.at + MIN_ORPHAN_AGE < self.began;
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

    /// Moves the low watermark past the settled entries, or closes the bucket. It only saves reads,
    /// so a failure is ignored: a later reader repeats it.
    async fn finish(&mut self) {
        if !self.from_low_watermark {
            return;
        }
        if let Err(error) = self.try_finish().await {
            tracing::debug!(error = %error.chain(), "cannot move a low watermark");
        }
    }

    async fn try_finish(&mut self) -> Result<(), StoreError> {
        let end = self.bucket.hour.end();
        let whole = self.passing
            && self.is_done()
            && end + LOW_WATERMARK_LAG <= self.began
            && self.to.starts_with(key::LAST);
        let old = whole && end + self.store.low_watermarks.old <= self.began;
        let refile =
            !self.stuck.is_empty() && (self.beyond.1 >= self.store.low_watermarks.stuck || old);
        if refile {
            // Refiled as late entries; otherwise every read would pass all settled entries between
            // them.
            let long_ago = Timestamp::from_millis(i64::MIN / 2);
            let requests = self.stuck.iter().map(|job| {
                EntryRequest::due(
                    self.store.index_partition(&job.id, &job.spec),
                    &job.id,
                    &job.spec,
                    job.life.revision.0,
                    long_ago,
                )
            });
            self.store.announce(requests.collect()).await?;
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
    /// The entries of `items` with the jobs that `purpose` needs, except those of entries known to
    /// be exhausted, and those that are `granted`.
    async fn seen(
        &self,
        items: Vec<Item>,
        purpose: Purpose,
        granted: Option<&HashMap<JobId, Timestamp>>,
    ) -> Result<Vec<SeenEntry>, StoreError> {
        let is_granted = |id: &JobId, at: Timestamp| {
            granted.and_then(|granted| granted.get(id)).is_some_and(|granted_at| at <= *granted_at)
        };
        let now = self.now();
        let mut seen = Vec::with_capacity(items.len());
        for item in items {
            let Some(key) = SortKey::parse(&item.key.s) else {
                continue;
            };
            let one = match key {
                SortKey::Row(at) => {
                    let is_over = row::is_over(&item, now);
                    let job = if is_over { Ok(None) } else { row::stored(&item, now).map(Some) };
                    let mut one = SeenEntry {
                        at,
                        key: item.key,
                        announced: None,
                        id: None,
                        job: None,
                        unreadable: None,
                        exhausted: None,
                        left_out: false,
                    };
                    one.set(job);
                    one.id = one.job.as_ref().map(|job| job.id.clone());
                    let waits =
                        |job: &Job| job.life.run_at() == Some(at) && is_granted(&job.id, at);
                    if let Some(job) = &one.job {
                        self.correct_location(&job.id, &one.key);
                    }
                    if one.job.as_ref().is_some_and(waits) {
                        (one.job, one.left_out) = (None, true);
                    }
                    one
                }
                SortKey::Entry(at, id, revision) => {
                    let exhausted = self.known.lock().exhausted.get(&item.key).copied();
                    let exhausted = exhausted.filter(|exhausted| match exhausted {
                        Exhausted::Settled => true,
                        Exhausted::Damaged => false,
                        Exhausted::Running(seen_at) => {
                            let is_recent = *seen_at <= now && now < *seen_at + RECHECK_INTERVAL;
                            purpose != Purpose::Running && is_recent
                        }
                    });
                    SeenEntry {
                        at,
                        key: item.key,
                        announced: Some(revision),
                        left_out: is_granted(&id, at),
                        id: Some(id),
                        job: None,
                        unreadable: None,
                        exhausted,
                    }
                }
            };
            seen.push(one);
        }
        let unknown = |one: &SeenEntry| {
            purpose != Purpose::Times
                && one.announced.is_some()
                && one.exhausted.is_none()
                && !one.left_out
        };
        let pointed: Vec<JobId> =
            seen.iter().filter(|one| unknown(one)).filter_map(|one| one.id.clone()).collect();
        if !pointed.is_empty() {
            let mut found = self.found(&pointed.iter().collect::<Vec<_>>()).await?.into_iter();
            for one in seen.iter_mut().filter(|one| unknown(one)) {
                one.set(found.next().unwrap_or(Ok(None)));
            }
        }
        Ok(seen)
    }
}
