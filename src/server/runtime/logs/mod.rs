//! Log lines of attempts: what workers write while they work, next to the jobs and apart from their
//! state.
//!
//! The lines of a job are records of the store, which [`ring`] fills. Nothing depends on log lines.
//! Additions for one job at the same time are made one after the other: each is written on the
//! condition that the head is the one that it was made from.

mod ring;

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use sha2::{Digest as _, Sha256};

use self::ring::{Addition, Head, SLOTS, page, read};
use super::Server;
use tidegate_api::{LogLine, LogPage, NewLogLine};
use tidegate_core::{
    job::{Job, JobId, State, TypeName},
    port::{
        Txn, Write,
        job_store::{Committed, Expect, Record, RecordKind, RecordQuery},
    },
    time::Timestamp,
};
use tidegate_engine::{Engine, Error};

/// How long lines are kept at least.
const MIN_RETENTION: Duration = Duration::from_hours(1);
/// Most writes of the head for one addition: those that other additions make first, and one for
/// each slot that it fills.
const MAX_HEAD_WRITES: usize = 64;
/// Most records of lines that are kept where the store does not expire them: 400 MB at most.
const MAX_RECORDS: u64 = 100_000;
/// Most records that one purge drops.
const MAX_PURGED_PER_CALL: u32 = 10_000;
/// How long a request for more lines waits before it reads again.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The last lines of a job are written after the report that ends it.
const LAST_LINES: Duration = Duration::from_secs(5);

/// Lines of one attempt.
pub(crate) struct AttemptLog {
    /// Names the records of the job's lines.
    group: String,
    attempt: u16,
    retention: Duration,
    lines: Vec<NewLogLine>,
}

impl AttemptLog {
    /// The lines of this attempt of `job`; none if there are no lines.
    pub(crate) fn new(job: &Job, attempt: u16, lines: Vec<NewLogLine>) -> Option<Self> {
        let retention = job.spec.retention.duration().max(MIN_RETENTION);
        (!lines.is_empty()).then(|| Self { group: group(job), attempt, retention, lines })
    }
}

/// Lines that are added to the log of one job.
#[derive(Clone)]
struct JobAdditions {
    /// How long its records are kept.
    until: Timestamp,
    left: VecDeque<Addition>,
}

impl JobAdditions {
    fn new(until: Timestamp) -> Self {
        Self { until, left: VecDeque::new() }
    }

    /// The writes that add lines to the log whose head is `stored`, and what is left to add after
    /// them; none if all lines are there already.
    fn step(
        &self,
        group: &str,
        stored: Option<Record>,
        at_once: bool,
    ) -> Result<Option<(Txn, Self)>, Error> {
        let mut head: Head = read(stored.as_ref());
        let (before, mut after) = (head.clone(), self.clone());
        let slots = head.step(&mut after.left, at_once);
        if head == before {
            return Ok(None);
        }
        let record = |name, bytes: serde_json::Result<Vec<u8>>| {
            let bytes = bytes.map_err(|error| Error::Internal(error.to_string()))?;
            Ok(Record { kind: RecordKind::Log, name, until: self.until, bytes })
        };
        let slots = slots.iter().map(|(slot, lines)| {
            record(slot_name(group, *slot), serde_json::to_vec(lines)).map(Write::PutRecord)
        });
        let was = stored.map_or(Expect::Absent, Expect::Is);
        let head = record(head_name(group), serde_json::to_vec(&head))
            .map(|record| Write::SwapRecord { record, was });
        Ok(Some((slots.chain([head]).collect::<Result<_, Error>>()?, after)))
    }
}

/// Names the records of the lines of `job`, and not those of an earlier job with its id.
fn group(job: &Job) -> String {
    let mut hash = Sha256::new();
    hash.update(job.spec.created_at.millis().to_be_bytes());
    hash.update(job.id.as_str());
    let digest = hash.finalize();
    let (start, _) = digest.split_first_chunk().expect("a digest has 32 bytes");
    format!("{:032x}", u128::from_be_bytes(*start))
}

fn head_name(group: &str) -> String {
    format!("{group}.head")
}

fn slot_name(group: &str, slot: u32) -> String {
    format!("{group}.slot{slot:02}")
}

fn query(prefix: String, limit: u32) -> RecordQuery {
    RecordQuery { kind: RecordKind::Log, prefix, after: None, limit }
}

impl Server {
    /// Adds the lines of attempts to the logs of their jobs. Of more than fit, the oldest are
    /// dropped.
    ///
    /// # Errors
    ///
    /// The store's; 503 if other requests for one of the jobs were always first. A repeat adds
    /// lines that all have times only once.
    pub(crate) async fn add_log(&self, logs: Vec<AttemptLog>) -> Result<(), Error> {
        let (store, now) = (&self.inner.engine.ports().store, self.now());
        let at_once = store.capabilities().atomicity.is_atomic();
        let mut by_job: HashMap<String, JobAdditions> = HashMap::new();
        for AttemptLog { group, attempt, retention, lines } in logs {
            let job = by_job.entry(group).or_insert_with(|| JobAdditions::new(now));
            job.until = job.until.max(now + retention);
            job.left.push_back(Addition::new(attempt, lines, now));
        }
        for _ in 0..MAX_HEAD_WRITES {
            if by_job.is_empty() {
                return Ok(());
            }
            let queries: Vec<RecordQuery> =
                by_job.keys().map(|group| query(head_name(group), 1)).collect();
            let heads = store.records(&queries).await?;
            let (mut txns, mut steps) = (Vec::new(), Vec::new());
            for ((group, job), head) in by_job.drain().zip(heads) {
                let step = job.step(&group, head.into_iter().next(), at_once)?;
                if let Some((txn, after)) = step {
                    txns.push(txn);
                    steps.push((group, job, after));
                }
            }
            if txns.is_empty() {
                return Ok(());
            }
            for ((group, before, after), answer) in steps.into_iter().zip(store.commit(txns).await?)
            {
                let job = if matches!(answer, Committed::All) { after } else { before };
                if !job.left.is_empty() {
                    by_job.insert(group, job);
                }
            }
        }
        let message = "other requests add log lines of this job at the same time";
        Err(Error::unavailable(Duration::from_secs(1), message))
    }

    /// A page of the log lines of a job, oldest first: those from number `from` on, at most
    /// `limit`, and only of `attempt` if one is given. If there are none yet, waits for some, at
    /// most `wait`.
    ///
    /// # Errors
    ///
    /// 404 `job_not_found`; the store's.
    pub async fn log(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        attempt: Option<u16>,
        (from, limit): (u64, usize),
        wait: Duration,
    ) -> Result<LogPage, Error> {
        let clock = &self.inner.engine.ports().clock;
        let until = clock.machine_now() + wait;
        let (mut cursor, mut ended_at) = (from, None);
        loop {
            let job = self.job(id, job_type).await?;
            let is_over = match job.life.state {
                State::Ended { at, .. } => {
                    // A clock of development may be frozen.
                    let seen = *ended_at.get_or_insert_with(|| clock.machine_now());
                    at + LAST_LINES <= self.now() || seen + LAST_LINES <= clock.machine_now()
                }
                State::Scheduled { .. } | State::Running(_) => false,
            };
            let LogRange { mut lines, dropped, next, has_more } =
                self.lines(&job, cursor, limit).await?;
            cursor = next;
            lines.retain(|line| attempt.is_none_or(|attempt| attempt == line.attempt));
            let now = clock.machine_now();
            if !lines.is_empty() || dropped > 0 || has_more || is_over || now >= until {
                let next_cursor = (has_more || !is_over).then(|| cursor.to_string());
                return Ok(LogPage { lines, dropped, next_cursor });
            }
            clock.sleep_until(clock.at_machine_time(until.min(now + POLL_INTERVAL))).await;
        }
    }

    /// The lines of `job` from number `from` on, at most `limit`.
    async fn lines(&self, job: &Job, from: u64, limit: usize) -> Result<LogRange, Error> {
        let (store, group) = (&self.inner.engine.ports().store, group(job));
        let head = store.records(&[query(head_name(&group), 1)]).await?.pop().unwrap_or_default();
        let head: Head = read(head.first());
        let last = head.next;
        // All lines have expired meanwhile, and their numbers began again.
        let from = if from > last { 0 } else { from };
        let in_head = head.lines.first().map_or(last, |line| line.number);
        let slots = if from < in_head {
            let slots = query(format!("{group}.slot"), SLOTS);
            store.records(&[slots]).await?.pop().unwrap_or_default()
        } else {
            Vec::new()
        };
        let (lines, dropped) = page(head, &slots, from, limit);
        let next = from + lines.len() as u64 + dropped;
        Ok(LogRange { lines, dropped, next, has_more: next < last })
    }
}

/// Lines of a job whose numbers follow one another.
struct LogRange {
    lines: Vec<LogLine>,
    /// How many of the range are not kept.
    dropped: u64,
    /// The number after the range.
    next: u64,
    /// Whether there are lines behind the range.
    has_more: bool,
}

/// Drops a bounded number of records of lines: those that are over, and the oldest of too many.
///
/// # Errors
///
/// The store's; a repeat is harmless.
pub(super) async fn drop_old_lines(engine: &Engine) -> Result<(), Error> {
    let (kind, store) = (RecordKind::Log, &engine.ports().store);
    store.purge(kind, engine.now(), MAX_RECORDS, MAX_PURGED_PER_CALL).await?;
    Ok(())
}
