//! Matches replies with their jobs: finds each reply's job, applies the reply and commits the
//! change.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::reply::{Replied, ReplyMatches};
use crate::{Catalog, Engine, Error, jobs::job_writes::lifecycle_write};
use tidegate_core::{
    event::trigger::Reply,
    job::{Job, JobId, Revision, State},
    port::{
        Committed, Txn, Write,
        job_store::{CurrentRecord, Key, RecordKind},
    },
    time::Timestamp,
};

/// How often a reply is computed again because its job changed meanwhile.
const MAX_MATCH_RETRIES: usize = 8;

/// A reply that is not applied yet.
pub(super) struct OpenReply {
    /// Its index in the batch.
    pub(super) index: usize,
    /// The name of its pending record, if it has one.
    pub(super) record: Option<String>,
}

impl OpenReply {
    /// The write that removes its pending record.
    fn remove_record(&self) -> Option<Write> {
        let name = self.record.clone()?;
        Some(Write::RemoveRecord { kind: RecordKind::Reply, name, until: None })
    }
}

/// The state in which a reply finds its job.
enum ReplyMatch {
    Running,
    /// A retry waits.
    Waiting,
    NotYet,
    Late,
    AlreadyProcessed,
}

/// A change that replies make to one job.
struct ReplyChange {
    /// The replies that make it: one, or several that are late.
    by: Vec<OpenReply>,
    before: Job,
    after: Job,
    /// The answer to each of them.
    replied: Replied,
}

impl ReplyChange {
    fn is_late(&self) -> bool {
        matches!(self.replied, Replied::Late(_))
    }
}

/// A batch of replies and the jobs that they match.
struct MatchBatch<'a> {
    replies: &'a [Reply],
    catalog: Arc<Catalog>,
    /// The jobs as last read.
    jobs: HashMap<JobId, Job>,
    /// Replies whose job or attempt does not exist yet.
    open: &'a mut Vec<OpenReply>,
    matches: &'a mut ReplyMatches,
}

/// What one pass over a batch changes.
#[derive(Default)]
struct MatchPass {
    changes: Vec<ReplyChange>,
    /// Removes the pending records of replies that change nothing.
    removals: Vec<Txn>,
    /// Replies for the next pass: each sees what the one before made of the job.
    again: Vec<(OpenReply, JobId)>,
}

impl MatchBatch<'_> {
    /// Answers a reply that changes nothing.
    fn answer_unchanged(&mut self, pass: &mut MatchPass, one: &OpenReply, replied: Replied) {
        self.matches.answers[one.index] = Ok(replied);
        pass.removals.extend(one.remove_record().map(|write| vec![write]));
    }
}

impl MatchPass {
    /// Adds a reply to the change of its job, or leaves it for the next pass. Returns it if this
    /// pass does not change the job yet.
    ///
    /// One change of a job at a time. All late replies to it are one change.
    fn join_change(&mut self, reply: &Reply, one: OpenReply, id: &JobId) -> Option<OpenReply> {
        let Some(change) = self.changes.iter_mut().find(|change| change.before.id == *id) else {
            return Some(one);
        };
        if change.is_late() && matches!(reply_match(&change.after, reply), ReplyMatch::Late) {
            change.after.life.record_late_reply(reply.id);
            change.by.push(one);
        } else {
            self.again.push((one, id.clone()));
        }
        None
    }
}

impl Engine {
    /// Applies those of the `open` replies that match their jobs. Those whose job or attempt does
    /// not exist yet stay open.
    pub(super) async fn match_replies(
        &self,
        replies: &[Reply],
        open: &mut Vec<OpenReply>,
        matches: &mut ReplyMatches,
    ) -> Result<(), Error> {
        let catalog = self.catalog().await?;
        let keys: Vec<Key> = open.iter().map(|one| key_of(&replies[one.index])).collect();
        let holders = self.ports.store.keys(&keys).await?;
        let mut ids: Vec<JobId> = holders.iter().flatten().flatten().cloned().collect();
        ids.sort_unstable();
        ids.dedup();
        let found = if ids.is_empty() { Vec::new() } else { self.ports.store.get(&ids).await? };
        let (mut jobs, mut unreadable) = (HashMap::new(), HashMap::new());
        for (id, job) in ids.into_iter().zip(found) {
            match job {
                Ok(Some(job)) => drop(jobs.insert(id, job)),
                Ok(None) => {}
                Err(job) => drop(unreadable.insert(id, job)),
            }
        }
        let mut left: Vec<(OpenReply, JobId)> = Vec::new();
        for (one, holder) in std::mem::take(open).into_iter().zip(holders) {
            match holder {
                Ok(Some(id)) if jobs.contains_key(&id) => left.push((one, id)),
                // Its sender sends it again, and a stored one waits.
                Ok(Some(id)) if unreadable.contains_key(&id) => {
                    matches.answers[one.index] = Err(unreadable[&id].clone().into());
                }
                Err(key) => matches.answers[one.index] = Err(key.into()),
                Ok(_) => open.push(one),
            }
        }
        let mut batch = MatchBatch { replies, catalog, jobs, open, matches };
        for _ in 0..MAX_MATCH_RETRIES {
            if left.is_empty() {
                return Ok(());
            }
            left = self.match_pass(&mut batch, left).await?;
        }
        for (one, _) in left {
            batch.matches.answers[one.index] =
                Err(Error::unavailable(Duration::from_secs(1), "the job keeps changing"));
        }
        Ok(())
    }

    /// Tries once to apply replies to their jobs. Returns those whose job changed meanwhile.
    async fn match_pass(
        &self,
        batch: &mut MatchBatch<'_>,
        left: Vec<(OpenReply, JobId)>,
    ) -> Result<Vec<(OpenReply, JobId)>, Error> {
        let now = self.now();
        // A job that waits for a retry must not be dispatched while a reply ends it.
        let _held = self.unclaimed.hold(left.iter().map(|(_, id)| id));
        let mut pass = MatchPass::default();
        for (one, id) in left {
            self.match_reply(batch, &mut pass, one, id, now).await?;
        }
        self.commit_matches(batch, &mut pass, now).await?;
        Ok(pass.again)
    }

    /// Matches one reply with the job `id`: adds its change to `pass`, or answers it.
    async fn match_reply(
        &self,
        batch: &mut MatchBatch<'_>,
        pass: &mut MatchPass,
        one: OpenReply,
        id: JobId,
        now: Timestamp,
    ) -> Result<(), Error> {
        let reply = &batch.replies[one.index];
        // The store does not know that an unclaimed dispatch runs.
        let dispatched = self.unclaimed.revision(&id);
        let running = dispatched.and_then(|_| self.running.lock().get(&id).cloned());
        let Some(job) = running.as_ref().or_else(|| batch.jobs.get(&id)) else {
            return Ok(());
        };
        let Some(one) = pass.join_change(reply, one, &id) else {
            return Ok(());
        };
        let (was, (mut after, replied)) = match reply_match(job, reply) {
            ReplyMatch::NotYet => {
                batch.open.push(one);
                return Ok(());
            }
            ReplyMatch::AlreadyProcessed => {
                batch.answer_unchanged(pass, &one, Replied::AlreadyProcessed(id));
                return Ok(());
            }
            // An unclaimed dispatch is not written before its end. Until then only the cache has
            // its replies.
            ReplyMatch::Late if dispatched.is_some() => {
                if let Some(job) = self.running.lock().get_mut(&id) {
                    job.life.record_late_reply(reply.id);
                }
                batch.answer_unchanged(pass, &one, Replied::Late(id));
                return Ok(());
            }
            ReplyMatch::Late => {
                let mut after = job.clone();
                after.life.record_late_reply(reply.id);
                (job.life.revision, (after, Replied::Late(id)))
            }
            ReplyMatch::Running | ReplyMatch::Waiting => {
                let applied = self.apply_reply(job, reply, &batch.catalog, now).await;
                match applied {
                    Ok(applied) => (dispatched.unwrap_or(job.life.revision), applied),
                    Err(error @ (Error::Unavailable { .. } | Error::Internal(_))) => {
                        return Err(error);
                    }
                    Err(error) => {
                        batch.matches.answers[one.index] = Err(error);
                        return Ok(());
                    }
                }
            }
        };
        after.life.revision = Revision(was.0 + 1);
        pass.changes.push(ReplyChange { by: vec![one], before: job.clone(), after, replied });
        Ok(())
    }

    /// Commits the changes of `pass`, each on its own, and answers their replies.
    async fn commit_matches(
        &self,
        batch: &mut MatchBatch<'_>,
        pass: &mut MatchPass,
        now: Timestamp,
    ) -> Result<(), Error> {
        if pass.changes.is_empty() && pass.removals.is_empty() {
            return Ok(());
        }
        let written = pass.changes.iter().map(|change| {
            let was = Revision(change.after.life.revision.0 - 1);
            let mut writes = if change.is_late() {
                lifecycle_write(was, &change.after)
            } else {
                self.change_writes(was, &change.after, false, now)
            };
            writes.extend(change.by.iter().filter_map(OpenReply::remove_record));
            writes
        });
        let txns: Vec<Txn> = written.chain(std::mem::take(&mut pass.removals)).collect();
        let outcomes = self.ports.store.commit(txns).await?;
        for (change, outcome) in std::mem::take(&mut pass.changes).into_iter().zip(outcomes) {
            match outcome {
                Committed::All => self.on_reply_committed(batch, change).await,
                Committed::Conflict { current, .. } => {
                    pass.again.extend(self.on_reply_refused(batch, change, current).await);
                }
            }
        }
        Ok(())
    }

    /// Answers the replies of a committed change.
    async fn on_reply_committed(&self, batch: &mut MatchBatch<'_>, change: ReplyChange) {
        let is_late = change.is_late();
        let ReplyChange { by, before, after, replied } = change;
        self.cache_job(&after);
        Box::pin(self.forget_replaced(&before, &after)).await;
        batch.jobs.insert(after.id.clone(), after.clone());
        for one in by {
            batch.matches.answers[one.index] = Ok(replied.clone());
        }
        if !is_late {
            batch.matches.changed.push((after, before.life.version));
        }
    }

    /// Returns the replies of a refused change for the next pass, or answers them as late if the
    /// job was removed at its end.
    async fn on_reply_refused(
        &self,
        batch: &mut MatchBatch<'_>,
        change: ReplyChange,
        current: CurrentRecord,
    ) -> Vec<(OpenReply, JobId)> {
        let ReplyChange { by, before, after, .. } = change;
        Box::pin(self.forget_unused(&before, &after)).await;
        let id = after.id;
        self.unclaimed.forget(&id);
        self.running.lock().remove(&id);
        if let CurrentRecord::Job(current) = current {
            batch.jobs.insert(id.clone(), *current);
            return by.into_iter().map(|one| (one, id.clone())).collect();
        }
        batch.jobs.remove(&id);
        let answer = match current {
            CurrentRecord::Unreadable(job) => Err(Error::Unreadable(job)),
            _ => Ok(Replied::Late(id)),
        };
        for one in by {
            batch.matches.answers[one.index].clone_from(&answer);
        }
        Vec::new()
    }
}

/// The state in which `reply` finds `job`.
fn reply_match(job: &Job, reply: &Reply) -> ReplyMatch {
    let life = &job.life;
    if life.has_processed(reply.id) {
        return ReplyMatch::AlreadyProcessed;
    }
    let attempt = reply.attempt.unwrap_or(life.attempt);
    match &life.state {
        State::Ended { .. } => ReplyMatch::Late,
        // No attempt has started, so no worker can have replied.
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
