//! `reply`: what an event says of a job that waits for it, by correlation key, whichever of the two comes first.
//!
//! ```text
//!   reply ─▶ the key's job ─┬─ its attempt runs ─▶ settled, as a report would
//!                           ├─ a retry waits ─▶ a success ends it; a failure is only recorded
//!                           ├─ over: late
//!                           └─ not there yet ─▶ kept ─▶ looked at again ─▶ ... until its time is over
//! ```
//!
//! The one thing to know: nobody waits for anybody. Whoever keeps a reply looks for its job **after** the reply is stored;
//! whoever starts an attempt of a job with a correlation key looks for kept replies **after** the claim is committed. So one of
//! the two sees the other, whatever their order, and a sweep does for whoever dies between its write and its look.
//!
//! A job knows which replies it heard, those that came too late among them, and what it knows goes over to the next job under its
//! key. So a second delivery of one changes nothing, not even a later attempt or a later job. (What a job heard that was handed on
//! without a claim goes with the process that handed it on.)

use std::{collections::HashMap, sync::atomic::Ordering, time::Duration};
use tidegate_core::error_code::ErrorCode;

use crate::{
    Catalog, Engine, Error, TickOutcome,
    events::pending_replies::{StoredReply, prefix_of, record_name},
    jobs::{job_writes::note, report::Settled},
    request::{Report, ReportOutcome},
    tick::delivery,
};
use tidegate_core::{
    event::trigger::{Reply, TriggerOutcome},
    job::{
        Body, Event, Job, JobId, Revision, State, Version,
        lifecycle::{Failure, Reason, ResultBody},
    },
    port::{
        Committed, Txn, Write,
        job_store::{CurrentRecord, Key, Purged, Record, RecordKind, RecordQuery},
    },
    time::Timestamp,
};

/// How often a reply is worked out anew when its job changed meanwhile.
const TRIES: usize = 8;
/// Most kept replies; past it those with the least time left are dropped.
const MOST_KEPT: u64 = 100_000;
/// Most kept replies that one look is at.
const SWEEP: u32 = 500;
/// Most kept replies of one key that are looked at together.
const OF_ONE_KEY: u32 = 16;

/// What became of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Replied {
    /// It ended the attempt of this job.
    Settled(JobId),
    /// A retry of this job waits; the failure was recorded, and changes nothing.
    Recorded(JobId),
    /// This job had heard it before.
    Known(JobId),
    /// This job, or the attempt that it is about, was over.
    Late(JobId),
    /// Its job or its attempt is not there yet: it is kept until then, or until this instant.
    Kept(Timestamp),
}

/// Replies met with their jobs.
#[derive(Debug, Default)]
pub struct ReplyMatches {
    /// One answer per reply, in order.
    pub answers: Vec<Result<Replied, Error>>,
    /// Jobs that changed, with the version that they left.
    pub changed: Vec<(Job, Version)>,
}

/// What a look at the kept replies did.
#[derive(Debug, Default)]
pub struct SweptReplies {
    /// Jobs that changed, with the version that they left.
    pub changed: Vec<(Job, Version)>,
    /// How many replies met their jobs.
    pub met: u64,
    /// How many came too late, or were never asked for.
    pub unmatched: u64,
    /// How many are kept still.
    pub kept: u64,
    /// Where the next look starts; none at the beginning.
    pub next: Option<String>,
}

impl SweptReplies {
    /// Notes what was dropped then.
    pub fn dropped(&mut self, Purged { expired, over, left }: Purged) {
        self.unmatched += expired + over;
        self.kept = left;
    }
}

/// Where a reply finds its job.
enum ReplyMatch {
    Running,
    Waiting,
    NotYet,
    Late,
    Known,
}

/// A change of one job that replies make.
struct ReplyChange {
    /// Those that make it: one, or several that come too late.
    by: Vec<Open>,
    before: Job,
    after: Job,
    /// What each of them is answered.
    replied: Replied,
}

impl ReplyChange {
    fn is_late(&self) -> bool {
        matches!(self.replied, Replied::Late(_))
    }
}

/// A reply under way.
struct Open {
    index: usize,
    /// The record that it is kept as, if it is.
    record: Option<String>,
}

impl Open {
    /// What removes the record that it is kept as.
    fn forget(&self) -> Option<Write> {
        let name = self.record.clone()?;
        Some(Write::RemoveRecord { kind: RecordKind::Reply, name, until: None })
    }
}

impl Engine {
    /// Applies replies to their jobs, and keeps those whose job or attempt is not there yet. After `Ok` each is durable.
    ///
    /// Repeating it is harmless: a job knows which replies it heard.
    pub async fn reply(&self, replies: &[Reply]) -> ReplyMatches {
        let now = self.now();
        let mut open: Vec<Open> =
            (0..replies.len()).map(|index| Open { index, record: None }).collect();
        let mut met = ReplyMatches {
            answers: replies.iter().map(|_| Err(unanswered())).collect(),
            changed: Vec::new(),
        };
        if let Err(error) = self.meet(replies, &mut open, &mut met).await {
            return failed(met, &open, &error);
        }
        if open.is_empty() {
            return met;
        }
        // Kept first, looked for again after: an attempt that starts in between finds it, or is found.
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
            return failed(met, &open, &error.into());
        }
        // From here on it is kept whatever happens.
        for one in &open {
            met.answers[one.index] = Ok(Replied::Kept(until));
        }
        if let Err(error) = self.meet(replies, &mut open, &mut met).await {
            tracing::debug!(%error, "kept replies will be looked at later");
        }
        met
    }

    /// Applies the open ones of `replies` that fit their jobs. Those that are not there yet stay open.
    async fn meet(
        &self,
        replies: &[Reply],
        open: &mut Vec<Open>,
        met: &mut ReplyMatches,
    ) -> Result<(), Error> {
        let catalog = self.catalog().await?;
        let keys: Vec<Key> = open.iter().map(|one| key_of(&replies[one.index])).collect();
        let holders = self.ports.store.keys(&keys).await?;
        let mut ids: Vec<JobId> = holders.iter().flatten().cloned().collect();
        ids.sort_unstable();
        ids.dedup();
        let found = if ids.is_empty() { Vec::new() } else { self.ports.store.get(&ids).await? };
        let mut jobs: HashMap<JobId, Job> =
            found.into_iter().flatten().map(|job| (job.id.clone(), job)).collect();
        let mut left: Vec<(Open, JobId)> = Vec::new();
        for (one, holder) in std::mem::take(open).into_iter().zip(holders) {
            match holder.filter(|id| jobs.contains_key(id)) {
                Some(id) => left.push((one, id)),
                None => open.push(one),
            }
        }
        for _ in 0..TRIES {
            if left.is_empty() {
                return Ok(());
            }
            left = self.meet_once(replies, left, &mut jobs, &catalog, open, met).await?;
        }
        for (one, _) in left {
            met.answers[one.index] = Err(Error::Unavailable {
                retry_after: Duration::from_secs(1),
                message: "the job keeps changing".into(),
            });
        }
        Ok(())
    }

    /// One attempt to apply replies to their jobs; those whose job changed meanwhile come back.
    async fn meet_once(
        &self,
        replies: &[Reply],
        left: Vec<(Open, JobId)>,
        jobs: &mut HashMap<JobId, Job>,
        catalog: &Catalog,
        open: &mut Vec<Open>,
        met: &mut ReplyMatches,
    ) -> Result<Vec<(Open, JobId)>, Error> {
        let now = self.now();
        // Who waits for a retry is not to be handed on while a reply ends it.
        let _held = self.unclaimed.hold(left.iter().map(|(_, id)| id));
        let (mut changes, mut again): (Vec<ReplyChange>, _) = (Vec::new(), Vec::new());
        let mut known: Vec<Txn> = Vec::new();
        for (one, id) in left {
            let reply = &replies[one.index];
            // Handed on without a claim: the store does not know that it runs.
            let plain = self.unclaimed.revision(&id);
            let running = plain.and_then(|_| self.running.lock().get(&id).cloned());
            let Some(job) = running.as_ref().or_else(|| jobs.get(&id)) else {
                continue;
            };
            // One change of a job at a time: the next reply to it sees what this one made of it. All that come too late are one.
            if let Some(change) = changes.iter_mut().find(|change| change.before.id == id) {
                if change.is_late() && matches!(place(&change.after, reply), ReplyMatch::Late) {
                    change.after.life.record_late_reply(reply.id);
                    change.by.push(one);
                } else {
                    again.push((one, id));
                }
                continue;
            }
            match place(job, reply) {
                ReplyMatch::NotYet => open.push(one),
                ReplyMatch::Known => {
                    met.answers[one.index] = Ok(Replied::Known(id));
                    known.extend(one.forget().map(|write| vec![write]));
                }
                // What was handed on without a claim is not written before its end, and knows until then what it heard.
                ReplyMatch::Late if plain.is_some() => {
                    if let Some(job) = self.running.lock().get_mut(&id) {
                        job.life.record_late_reply(reply.id);
                    }
                    met.answers[one.index] = Ok(Replied::Late(id));
                    known.extend(one.forget().map(|write| vec![write]));
                }
                ReplyMatch::Late => {
                    let mut after = job.clone();
                    after.life.revision = Revision(job.life.revision.0 + 1);
                    after.life.record_late_reply(reply.id);
                    changes.push(ReplyChange {
                        by: vec![one],
                        before: job.clone(),
                        after,
                        replied: Replied::Late(id),
                    });
                }
                ReplyMatch::Running | ReplyMatch::Waiting => {
                    match self.heard(job, reply, catalog, now).await {
                        Ok((mut after, replied)) => {
                            after.life.revision =
                                Revision(plain.unwrap_or(job.life.revision).0 + 1);
                            changes.push(ReplyChange {
                                by: vec![one],
                                before: job.clone(),
                                after,
                                replied,
                            });
                        }
                        Err(error @ (Error::Unavailable { .. } | Error::Internal(_))) => {
                            return Err(error);
                        }
                        Err(error) => met.answers[one.index] = Err(error),
                    }
                }
            }
        }
        if changes.is_empty() && known.is_empty() {
            return Ok(again);
        }
        let written = changes.iter().map(|change| {
            let was = Revision(change.after.life.revision.0 - 1);
            let mut writes = if change.is_late() {
                note(was, &change.after)
            } else {
                self.change(was, &change.after, false, now)
            };
            writes.extend(change.by.iter().filter_map(Open::forget));
            writes
        });
        let outcomes = self.ports.store.commit(written.chain(known).collect()).await?;
        for (ReplyChange { by, before, after, replied }, outcome) in
            changes.into_iter().zip(outcomes)
        {
            let late = matches!(replied, Replied::Late(_));
            match outcome {
                Committed::All => {
                    self.cache_job(&after);
                    Box::pin(self.forget_replaced(&before, &after)).await;
                    jobs.insert(after.id.clone(), after.clone());
                    for one in by {
                        met.answers[one.index] = Ok(replied.clone());
                    }
                    if !late {
                        met.changed.push((after, before.life.version));
                    }
                }
                Committed::Conflict { standing, .. } => {
                    let id = after.id.clone();
                    Box::pin(self.forget_unused(&before, &after)).await;
                    self.unclaimed.forget(&id);
                    self.running.lock().remove(&id);
                    match standing {
                        CurrentRecord::Job(there) => drop(jobs.insert(id.clone(), *there)),
                        // It was removed at its end: whoever ended it was faster.
                        _ => drop(jobs.remove(&id)),
                    }
                    for one in by {
                        if jobs.contains_key(&id) {
                            again.push((one, id.clone()));
                        } else {
                            met.answers[one.index] = Ok(Replied::Late(id.clone()));
                        }
                    }
                }
            }
        }
        Ok(again)
    }

    /// What `reply` makes of `job`, whose attempt runs or whose retry waits.
    async fn heard(
        &self,
        job: &Job,
        reply: &Reply,
        catalog: &Catalog,
        now: Timestamp,
    ) -> Result<(Job, Replied), Error> {
        let verdict = match &reply.said {
            TriggerOutcome::Succeeded(result) => {
                ReportOutcome::Succeeded { result: result.clone().map(Body::Inline) }
            }
            TriggerOutcome::Failed { message, details, retryable } => {
                let failure = Failure {
                    reason: Reason::Failed,
                    message: message.clone(),
                    details: details.clone(),
                    status: None,
                };
                ReportOutcome::Failed { failure, retryable: *retryable, least_wait: Duration::ZERO }
            }
        };
        let report = Report {
            id: job.id.clone(),
            job_type: None,
            attempt: job.life.attempt,
            token: None,
            outcome: verdict,
        };
        let report = self.prepare_report(report).await?;
        let (mut after, replied) = match (&job.life.state, report.outcome.clone()) {
            (State::Running(_), _) => {
                match self.settle(job, &report, delivery(catalog, job), now)? {
                    Settled::Changed(after) => (*after, Replied::Settled(job.id.clone())),
                    Settled::Repeated => {
                        return Err(Error::Internal("a running attempt was settled before".into()));
                    }
                }
            }
            (_, ReportOutcome::Succeeded { result }) => {
                let event = Event::SucceedLate { result: result.as_ref().and_then(ResultBody::of) };
                (
                    job.apply(event, now)
                        .map_err(|refused| Error::refused(ErrorCode::NotRunning, &refused))?,
                    Replied::Settled(job.id.clone()),
                )
            }
            (_, ReportOutcome::Failed { failure, .. }) => {
                let after = job
                    .apply(Event::FailLate { failure }, now)
                    .map_err(|refused| Error::refused(ErrorCode::NotRunning, &refused))?;
                (after, Replied::Recorded(job.id.clone()))
            }
        };
        after.life.record_reply(reply.id);
        Ok((after, replied))
    }

    /// Removes the large result that a refused change would have named.
    async fn forget_unused(&self, before: &Job, after: &Job) {
        let key = |job: &Job| {
            job.life
                .result
                .as_ref()
                .and_then(|result| result.object.as_ref())
                .map(|(key, _)| key.clone())
        };
        if let Some(unused) = key(after).filter(|unused| key(before).as_ref() != Some(unused)) {
            self.forget_object(&unused).await;
        }
    }

    /// Lets the jobs that a round just claimed hear the replies that were kept for them. Whoever hears one is not handed out.
    pub(crate) async fn apply_early_replies(&self, ticked: &mut TickOutcome) {
        let claimed: Vec<&Job> = ticked.claimed.iter().map(|claimed| &claimed.job).collect();
        for (job, left) in self.hear_kept(&claimed).await {
            ticked.claimed.retain(|claimed| claimed.job.id != job.id);
            ticked.left.push((job.id.clone(), left));
            ticked.again = true;
            ticked.pending |= job.life.awaits_retry_decision();
            if job.life.ended().is_some() {
                ticked.ended.push(job);
            }
        }
    }

    /// Lets jobs whose attempts just started hear the replies that were kept for them. The jobs that changed, with the
    /// version they left; what fails here is done by a sweep.
    pub(crate) async fn hear_kept(&self, started: &[&Job]) -> Vec<(Job, Version)> {
        let prefix = |job: &&Job| {
            Some(prefix_of(job.spec.job_type.as_str(), job.spec.correlation_key.as_deref()?))
        };
        let query = |prefix| RecordQuery {
            kind: RecordKind::Reply,
            prefix,
            after: None,
            limit: OF_ONE_KEY,
        };
        let queries: Vec<RecordQuery> = started.iter().filter_map(prefix).map(query).collect();
        if queries.is_empty() {
            return Vec::new();
        }
        let heard = async {
            let records = self.ports.store.records(&queries).await?.into_iter().flatten().collect();
            let (met, late) = self.meet_records(records).await?;
            self.replies_late.fetch_add(late, Ordering::Relaxed);
            Ok(met.changed)
        };
        heard.await.unwrap_or_else(|error: Error| {
            tracing::debug!(%error, "kept replies will be looked at later");
            Vec::new()
        })
    }

    /// Replies that are kept, met with their jobs, and how many were too late. Those that are still early stay.
    async fn meet_records(&self, records: Vec<Record>) -> Result<(ReplyMatches, u64), Error> {
        let (mut replies, mut open) =
            (Vec::with_capacity(records.len()), Vec::with_capacity(records.len()));
        for record in records {
            let Some(reply) = serde_json::from_slice::<StoredReply>(&record.bytes)
                .ok()
                .and_then(StoredReply::reply)
            else {
                tracing::error!(name = record.name, "a kept reply cannot be read");
                continue;
            };
            open.push(Open { index: replies.len(), record: Some(record.name) });
            replies.push(reply);
        }
        let mut met = ReplyMatches {
            answers: replies.iter().map(|_| Err(unanswered())).collect(),
            changed: Vec::new(),
        };
        if !replies.is_empty() {
            self.meet(&replies, &mut open, &mut met).await?;
        }
        let late =
            met.answers.iter().filter(|answer| matches!(answer, Ok(Replied::Late(_)))).count()
                as u64;
        Ok((met, late))
    }

    /// Looks at a page of the kept replies, and drops those whose time is over: [`Engine::look_at_replies`], [`Engine::drop_replies`].
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub async fn sweep_replies(&self, after: Option<String>) -> Result<SweptReplies, Error> {
        let mut heard = self.look_at_replies(after).await?;
        heard.dropped(self.drop_replies(4 * SWEEP).await?);
        Ok(heard)
    }

    /// Looks at a page of the kept replies, from `after` on: for what died between a write and its look.
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub async fn look_at_replies(&self, after: Option<String>) -> Result<SweptReplies, Error> {
        let query =
            RecordQuery { kind: RecordKind::Reply, prefix: String::new(), after, limit: SWEEP };
        let page = self.ports.store.records(&[query]).await?.pop().unwrap_or_default();
        let next =
            page.last().filter(|_| page.len() as u32 == SWEEP).map(|record| record.name.clone());
        let (met, late) = self.meet_records(page).await?;
        Ok(SweptReplies {
            met: met.changed.len() as u64,
            changed: met.changed,
            unmatched: late + self.replies_late.swap(0, Ordering::Relaxed),
            kept: 0,
            next,
        })
    }

    /// Drops at most `most` (1 to 10000) of the kept replies: those whose time is over, and those that are too many.
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub async fn drop_replies(&self, most: u32) -> Result<Purged, Error> {
        Ok(self.ports.store.purge(RecordKind::Reply, self.now(), MOST_KEPT, most).await?)
    }
}

/// Where `reply` finds `job`.
fn place(job: &Job, reply: &Reply) -> ReplyMatch {
    let life = &job.life;
    if life.has_processed(reply.id) {
        return ReplyMatch::Known;
    }
    let attempt = reply.attempt.unwrap_or(life.attempt);
    match &life.state {
        State::Ended { .. } => ReplyMatch::Late,
        // Nothing was asked yet, so there is nothing that could have been answered.
        State::Scheduled { .. } if life.attempt == 0 => ReplyMatch::NotYet,
        _ if attempt > life.attempt => ReplyMatch::NotYet,
        _ if attempt < life.attempt => ReplyMatch::Late,
        State::Running(_) => ReplyMatch::Running,
        State::Scheduled { .. } => ReplyMatch::Waiting,
    }
}

fn key_of(reply: &Reply) -> Key {
    Key::Correlation(reply.job_type.clone(), reply.correlation_key.clone())
}

fn unanswered() -> Error {
    Error::Unavailable {
        retry_after: Duration::from_secs(1),
        message: "the store did not say what became of it; send it again".into(),
    }
}

/// Everything that is still open is answered with `error`.
fn failed(mut met: ReplyMatches, open: &[Open], error: &Error) -> ReplyMatches {
    let answered =
        |answer: &Result<Replied, Error>| !matches!(answer, Err(Error::Unavailable { .. }));
    for one in open {
        met.answers[one.index] = Err(error.clone());
    }
    for answer in met.answers.iter_mut().filter(|answer| !answered(answer)) {
        *answer = Err(error.clone());
    }
    met
}
