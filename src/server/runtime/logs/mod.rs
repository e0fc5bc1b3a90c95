//! Log lines of attempts: what workers write while they work, next to the jobs and apart from their
//! state.
//!
//! The lines of a job are records of the store, which [`ring`] fills. Nothing depends on log lines.
//! Additions for one job at the same time may lose lines of one of them.

mod ring;

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use sha2::{Digest as _, Sha256};

use self::ring::{Head, SLOTS, page, read};
use super::Server;
use tidegate_api::{LogLine, LogPage, NewLogLine};
use tidegate_core::{
    job::{Job, JobId, State, TypeName},
    port::{
        Txn, Write,
        job_store::{Record, RecordKind, RecordQuery},
    },
};
use tidegate_engine::{Engine, Error};

/// How long lines are kept at least.
const MIN_RETENTION: Duration = Duration::from_hours(1);
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
    /// The store's. A repeat adds lines that all have times only once.
    pub(crate) async fn add_log(&self, logs: Vec<AttemptLog>) -> Result<(), Error> {
        if logs.is_empty() {
            return Ok(());
        }
        let (store, now) = (&self.inner.engine.ports().store, self.now());
        let mut by_job: HashMap<String, Vec<AttemptLog>> = HashMap::new();
        for log in logs {
            by_job.entry(log.group.clone()).or_default().push(log);
        }
        let queries: Vec<RecordQuery> =
            by_job.keys().map(|group| query(head_name(group), 1)).collect();
        let heads = store.records(&queries).await?;
        let mut txns: Vec<Txn> = Vec::new();
        for ((group, logs), head) in by_job.into_iter().zip(heads) {
            let mut head: Head = read(head.first());
            let before = head.clone();
            let mut until = now;
            let mut slots: BTreeMap<u32, Vec<LogLine>> = BTreeMap::new();
            for AttemptLog { attempt, retention, lines, .. } in logs {
                until = until.max(now + retention);
                slots.extend(head.add(attempt, lines, now));
            }
            if head == before {
                continue;
            }
            let put = |name, bytes: serde_json::Result<Vec<u8>>| {
                let bytes = bytes.map_err(|error| Error::Internal(error.to_string()))?;
                Ok(Write::PutRecord(Record { kind: RecordKind::Log, name, until, bytes }))
            };
            let slots = slots
                .iter()
                .map(|(slot, lines)| put(slot_name(&group, *slot), serde_json::to_vec(lines)));
            let head = put(head_name(&group), serde_json::to_vec(&head));
            txns.push(slots.chain([head]).collect::<Result<_, Error>>()?);
        }
        if !txns.is_empty() {
            store.commit(txns).await?;
        }
        Ok(())
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
