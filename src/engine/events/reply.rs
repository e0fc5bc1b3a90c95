//! `reply`: applies a reply event to the job with its correlation key, in either order of arrival.
//!
//! ```text
//!   reply ─▶ the key's job ─┬─ its attempt runs ─▶ settled, as a report would
//!                           ├─ a retry waits ─▶ a success ends it; a failure is only recorded
//!                           ├─ ended ─▶ late
//!                           └─ not there yet ─▶ pending ─▶ matched again ─▶ ... until it expires
//! ```
//!
//! The one thing to know: neither side waits for the other. A reply looks up its job **after** it
//! is stored as pending. A claim of a job with a correlation key looks up pending replies **after**
//! its commit. So one of the two finds the other in either order, and a sweep covers a crash
//! between a write and its lookup.
//!
//! A job records the replies that it processed, late ones included, and passes the record on to the
//! next job under its key. So a second delivery of a reply changes nothing, not even a later
//! attempt or a later job. (What an unclaimed dispatch has processed is lost with the process that
//! sent it.)

use std::{sync::atomic::Ordering, time::Duration};

use super::reply_match::OpenReply;
use crate::{
    Engine, Error, TickOutcome,
    events::pending_replies::{StoredReply, prefix_of, record_name},
};
use tidegate_core::{
    event::trigger::Reply,
    job::{Job, JobId, Version},
    port::{
        Txn, Write,
        job_store::{Purged, Record, RecordKind, RecordQuery},
    },
    time::Timestamp,
};

/// Most pending replies that are stored. Beyond it those that expire first are dropped.
const MAX_PENDING_REPLIES: u64 = 100_000;
/// Most pending replies that one pass of the sweep reads.
const MAX_SWEEP_PAGE: u32 = 500;
/// Most pending replies of one key that a claim reads.
const MAX_REPLIES_PER_KEY: u32 = 16;

/// The outcome of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Replied {
    /// It ended the attempt of this job.
    Settled(JobId),
    /// A retry of this job waits; the failure was recorded, and changes nothing.
    Recorded(JobId),
    /// This job had processed it before.
    AlreadyProcessed(JobId),
    /// This job, or the attempt that it names, had ended.
    Late(JobId),
    /// Its job or its attempt does not exist yet: it is pending until then, or until this instant.
    Pending(Timestamp),
}

/// Replies matched with their jobs.
#[derive(Debug, Default)]
pub struct ReplyMatches {
    /// One answer per reply, in order.
    pub answers: Vec<Result<Replied, Error>>,
    /// Jobs that changed, with the version that they left.
    pub changed: Vec<(Job, Version)>,
}

/// What a sweep of the pending replies did.
#[derive(Debug, Default)]
pub struct SweptReplies {
    /// Jobs that changed, with the version that they left.
    pub changed: Vec<(Job, Version)>,
    /// How many replies were applied to their jobs.
    pub met: u64,
    /// How many were late, or expired without a job.
    pub unmatched: u64,
    /// How many are still pending.
    pub kept: u64,
    /// Where the next page starts; none: at the beginning.
    pub next: Option<String>,
}

impl SweptReplies {
    /// Adds what a purge dropped.
    pub fn dropped(&mut self, Purged { expired, over, left }: Purged) {
        self.unmatched += expired + over;
        self.kept = left;
    }
}

impl Engine {
    /// Applies replies to their jobs, and stores those whose job or attempt does not exist yet as
    /// pending. After `Ok` each is durable.
    ///
    /// Repeating it is harmless: a job records the replies that it processed.
    pub async fn reply(&self, replies: &[Reply]) -> ReplyMatches {
        let now = self.now();
        let mut open: Vec<OpenReply> =
            (0..replies.len()).map(|index| OpenReply { index, record: None }).collect();
        let mut matches = ReplyMatches {
            answers: replies.iter().map(|_| Err(unanswered())).collect(),
            changed: Vec::new(),
        };
        if let Err(error) = self.match_replies(replies, &mut open, &mut matches).await {
            return failed(matches, &open, &error);
        }
        if open.is_empty() {
            return matches;
        }
        // Stored first, matched again after: an attempt that starts in between finds it, or is
        // found.
        let until = now + self.rules.events.reply_wait;
        let mut txns: Vec<Txn> = Vec::with_capacity(open.len());
        for one in &mut open {
            let reply = &replies[one.index];
            let name = record_name(reply);
            let bytes = serde_json::to_vec(&StoredReply::of(reply)).unwrap_or_default();
            txns.push(vec![Write::PutRecord(Record {
                kind: RecordKind::Reply,
                name: name.clone(),
                until,
                bytes,
            })]);
            one.record = Some(name);
        }
        if let Err(error) = self.ports.store.commit(txns).await {
            return failed(matches, &open, &error.into());
        }
        // From here on it is durable.
        for one in &open {
            matches.answers[one.index] = Ok(Replied::Pending(until));
        }
        if let Err(error) = self.match_replies(replies, &mut open, &mut matches).await {
            tracing::debug!(%error, "pending replies are matched by the next sweep");
        }
        matches
    }

    /// Applies pending replies to the jobs that a tick has just claimed. A job that changes is not
    /// delivered.
    pub(crate) async fn apply_early_replies(&self, outcome: &mut TickOutcome) {
        let claimed: Vec<&Job> = outcome.claimed.iter().map(|claimed| &claimed.job).collect();
        for (job, left) in self.apply_pending_replies(&claimed).await {
            outcome.claimed.retain(|claimed| claimed.job.id != job.id);
            outcome.left.push((job.id.clone(), left));
            outcome.again = true;
            outcome.pending |= job.life.awaits_retry_decision();
            if job.life.ended().is_some() {
                outcome.ended.push(job);
            }
        }
    }

    /// Applies pending replies to jobs whose attempts have just started. Returns the jobs that
    /// changed, with the version that they left. What fails here is done by a sweep.
    pub(crate) async fn apply_pending_replies(&self, started: &[&Job]) -> Vec<(Job, Version)> {
        let prefix = |job: &&Job| {
            Some(prefix_of(job.spec.job_type.as_str(), job.spec.correlation_key.as_deref()?))
        };
        let query = |prefix| RecordQuery {
            kind: RecordKind::Reply,
            prefix,
            after: None,
            limit: MAX_REPLIES_PER_KEY,
        };
        let queries: Vec<RecordQuery> = started.iter().filter_map(prefix).map(query).collect();
        if queries.is_empty() {
            return Vec::new();
        }
        let matched = async {
            let records = self.ports.store.records(&queries).await?.into_iter().flatten().collect();
            let (matches, late) = self.match_records(records).await?;
            self.replies_late.fetch_add(late, Ordering::Relaxed);
            Ok(matches.changed)
        };
        matched.await.unwrap_or_else(|error: Error| {
            tracing::debug!(%error, "pending replies are matched by the next sweep");
            Vec::new()
        })
    }

    /// Matches pending replies with their jobs, and counts those that are late. Early ones stay.
    async fn match_records(&self, records: Vec<Record>) -> Result<(ReplyMatches, u64), Error> {
        let (mut replies, mut open) =
            (Vec::with_capacity(records.len()), Vec::with_capacity(records.len()));
        for record in records {
            let Some(reply) = serde_json::from_slice::<StoredReply>(&record.bytes)
                .ok()
                .and_then(StoredReply::reply)
            else {
                tracing::error!(name = record.name, "a pending reply cannot be read");
                continue;
            };
            open.push(OpenReply { index: replies.len(), record: Some(record.name) });
            replies.push(reply);
        }
        let mut matches = ReplyMatches {
            answers: replies.iter().map(|_| Err(unanswered())).collect(),
            changed: Vec::new(),
        };
        if !replies.is_empty() {
            self.match_replies(&replies, &mut open, &mut matches).await?;
        }
        let late =
            matches.answers.iter().filter(|answer| matches!(answer, Ok(Replied::Late(_)))).count()
                as u64;
        Ok((matches, late))
    }

    /// Matches a page of the pending replies, and drops the expired ones:
    /// [`Engine::look_at_replies`] and [`Engine::drop_replies`].
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub async fn sweep_replies(&self, after: Option<String>) -> Result<SweptReplies, Error> {
        let mut swept = self.look_at_replies(after).await?;
        swept.dropped(self.drop_replies(4 * MAX_SWEEP_PAGE).await?);
        Ok(swept)
    }

    /// Matches a page of the pending replies, from `after` on: after a crash between a write and
    /// its lookup, no other code does.
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub async fn look_at_replies(&self, after: Option<String>) -> Result<SweptReplies, Error> {
        let query = RecordQuery {
            kind: RecordKind::Reply,
            prefix: String::new(),
            after,
            limit: MAX_SWEEP_PAGE,
        };
        let page = self.ports.store.records(&[query]).await?.pop().unwrap_or_default();
        let next = page
            .last()
            .filter(|_| page.len() as u32 == MAX_SWEEP_PAGE)
            .map(|record| record.name.clone());
        let (matches, late) = self.match_records(page).await?;
        Ok(SweptReplies {
            met: matches.changed.len() as u64,
            changed: matches.changed,
            unmatched: late + self.replies_late.swap(0, Ordering::Relaxed),
            kept: 0,
            next,
        })
    }

    /// Drops at most `most` (1 to 10000) of the pending replies: the expired ones, and those past
    /// the bound.
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub async fn drop_replies(&self, most: u32) -> Result<Purged, Error> {
        Ok(self.ports.store.purge(RecordKind::Reply, self.now(), MAX_PENDING_REPLIES, most).await?)
    }
}

fn unanswered() -> Error {
    Error::unavailable(Duration::from_secs(1), "the store did not answer; send it again")
}

/// Answers every reply that is still open with `error`.
fn failed(mut matches: ReplyMatches, open: &[OpenReply], error: &Error) -> ReplyMatches {
    let answered =
        |answer: &Result<Replied, Error>| !matches!(answer, Err(Error::Unavailable { .. }));
    for one in open {
        matches.answers[one.index] = Err(error.clone());
    }
    for answer in matches.answers.iter_mut().filter(|answer| !answered(answer)) {
        *answer = Err(error.clone());
    }
    matches
}
