//! A commit, in *waves*: the next write of every transaction that can proceed, in as few round
//! trips as possible, then the next wave.
//!
//! Each write of a transaction is answered before the next one is sent, and a refused write ends
//! its transaction. What a job needs (index entries, timers, its body, the location of its id) is
//! written before the job itself. A refused write that finds its own mark in the item has
//! succeeded: its first answer was lost, and the client sent it again.
//!
//! Read in this order: [`parts`] (what a write refers to), [`plan`] (the changes of each write),
//! [`change`] and [`cleanup`] (one write as changes), [`prerequisites`] (what is written first),
//! [`refused`] (whether a refused write has succeeded all the same).

mod change;
mod cleanup;
mod parts;
mod plan;
mod prerequisites;
mod refused;

use std::collections::HashSet;

use super::{
    DynamoStore, MAX_IN_FLIGHT_WRITE,
    entry::{EntryRequest, MAX_ENTRY_DELAY},
    key::{JobLocation, Key},
    retention::Deletions,
    table::Change,
};
use cleanup::Removal;
use parts::{added_job, key_read_by, keys_of, single_writes};
use tidegate_core::{
    job::Job,
    port::{
        StoreError,
        job_store::{Committed, CurrentRecord, Txn, Write},
    },
    time::Timestamp,
};

/// A transaction, and how far it has come.
struct Progress {
    txn: Txn,
    /// The next write.
    step: usize,
    /// The answer, once a write was refused.
    answer: Option<Committed>,
}

/// A write of a wave, with its changes.
struct PlannedWrite<'a> {
    write: &'a Write,
    /// By which a repeat of a write recognizes its first attempt, and the name of the parts of the
    /// bodies that it stores. A write without such a need has none.
    mark: u64,
    /// The idempotency keys that its transaction sets to the job that it adds.
    idempotency_keys: Vec<String>,
    /// The locations of the rows of its jobs.
    locations: Vec<JobLocation>,
    effect: Effect,
    /// Changes after a success: they delete what the job leaves behind.
    cleanup: Vec<Change>,
    /// The removals of jobs that leave something behind.
    removals: Vec<Removal>,
}

/// What decides whether a write happens.
enum Effect {
    /// The outcome is known without a request.
    Decided(Result<(), CurrentRecord>),
    /// The table decides on these changes, atomically if there are several.
    Changes(Vec<Change>),
}

impl DynamoStore {
    pub(super) async fn write(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        let give_up = self.now() + MAX_IN_FLIGHT_WRITE / 2;
        let mut txns: Vec<Progress> =
            txns.into_iter().map(|txn| Progress { txn, step: 0, answer: None }).collect();
        let mut wrote = false;
        loop {
            let wave = next_wave(&txns);
            if wave.is_empty() {
                break;
            }
            self.check_deadline(give_up)?;
            let writes: Vec<(&Write, &Txn)> = wave
                .iter()
                .map(|index| (&txns[*index].txn[txns[*index].step], &txns[*index].txn))
                .collect();
            let outcomes =
                self.wave(&writes, give_up).await.map_err(|error| after_writes(error, wrote))?;
            wrote = true;
            for (index, outcome) in wave.into_iter().zip(outcomes) {
                let txn = &mut txns[index];
                match outcome {
                    Ok(()) => txn.step += 1,
                    Err(current) => {
                        txn.answer = Some(Committed::Conflict { step: txn.step, current });
                    }
                }
            }
        }
        Ok(txns.into_iter().map(|txn| txn.answer.unwrap_or(Committed::All)).collect())
    }

    fn check_deadline(&self, give_up: Timestamp) -> Result<(), StoreError> {
        if self.now() > give_up {
            return Err(StoreError::unavailable("the commit took too long and was given up"));
        }
        Ok(())
    }

    /// Executes one write of each of several transactions. No two are about the same record.
    async fn wave(
        &self,
        writes: &[(&Write, &Txn)],
        give_up: Timestamp,
    ) -> Result<Vec<Result<(), CurrentRecord>>, StoreError> {
        let mut plan = self.plan(writes).await?;
        self.write_prerequisites(&plan).await?;
        self.check_deadline(give_up)?;
        let (mut outcomes, wrote) = self.send(&mut plan).await?;
        let with_writes = |error| after_writes(error, wrote);
        let found = self.resolve_refused(&plan, &mut outcomes).await.map_err(with_writes)?;
        self.follow_up(&plan, &outcomes, &found).await.map_err(with_writes)?;
        Ok(outcomes)
    }

    /// Sends the changes of `plan`: the outcome of each write, and whether anything was sent.
    ///
    /// A refused write has [`CurrentRecord::Nothing`], which `resolve_refused` replaces.
    async fn send(
        &self,
        plan: &mut [PlannedWrite<'_>],
    ) -> Result<(Vec<Result<(), CurrentRecord>>, bool), StoreError> {
        let single = |planned: &PlannedWrite<'_>| match &planned.effect {
            Effect::Changes(changes) if changes.len() == 1 => Some(changes[0].clone()),
            _ => None,
        };
        let changes: Vec<Change> = plan.iter().filter_map(single).collect();
        let mut wrote = !changes.is_empty();
        let singles = if wrote { self.table.write(&changes).await? } else { Vec::new() };
        let mut singles = singles.into_iter();
        let mut outcomes = Vec::with_capacity(plan.len());
        for planned in plan {
            let outcome = match &mut planned.effect {
                Effect::Decided(outcome) => std::mem::replace(outcome, Ok(())),
                Effect::Changes(changes) => {
                    let done = if changes.len() == 1 {
                        singles.next() == Some(true)
                    } else {
                        let done = self.table.together(changes).await;
                        let done = done.map_err(|error| after_writes(error, wrote))?;
                        wrote = true;
                        done
                    };
                    if done { Ok(()) } else { Err(CurrentRecord::Nothing) }
                }
            };
            outcomes.push(outcome);
        }
        Ok((outcomes, wrote))
    }

    /// Completes a wave before it is answered.
    ///
    /// A new job gets another entry if its due time has passed meanwhile, and so does a job that
    /// was found instead. What changed and removed jobs leave behind is cleaned up.
    async fn follow_up(
        &self,
        plan: &[PlannedWrite<'_>],
        outcomes: &[Result<(), CurrentRecord>],
        found: &[Option<Job>],
    ) -> Result<(), StoreError> {
        let now = self.now();
        let mut entries = Vec::new();
        for ((planned, outcome), found) in plan.iter().zip(outcomes).zip(found) {
            let writes = single_writes(planned.write).into_iter();
            let new = writes.filter_map(added_job).filter(|_| outcome.is_ok());
            for job in new.chain(found.as_ref()) {
                let is_past = |at: &Timestamp| *at + MAX_ENTRY_DELAY < now;
                if let Some(run_at) = job.life.run_at().filter(is_past) {
                    entries.push(self.due_entry(job, run_at));
                }
                // A reader may have found the timer without its job, and removed it.
                let timer = job.life.wake_at(&job.spec).filter(is_past);
                let timer = timer.filter(|_| job.life.ended().is_none());
                entries
                    .extend(timer.map(|at| EntryRequest::timer(&job.id, job.life.revision.0, at)));
            }
        }
        self.announce(entries).await?;
        let done = plan.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_ok());
        let mut cleanup = Deletions::default();
        for (planned, _) in done {
            cleanup.extend(planned.cleanup.iter().cloned());
            for write in single_writes(planned.write) {
                if let Write::RemoveJob { id, .. } = write {
                    self.forget_location(id);
                }
            }
        }
        self.delete(cleanup).await
    }

    /// The index entry of `job` at `run_at`.
    fn due_entry(&self, job: &Job, run_at: Timestamp) -> EntryRequest {
        let index_partition = self.index_partition(&job.id, &job.spec);
        EntryRequest::due(index_partition, &job.id, &job.spec, job.life.revision.0, run_at)
    }
}

/// The transactions whose next write may be sent: no earlier transaction still has to write one of
/// the records of theirs.
fn next_wave(txns: &[Progress]) -> Vec<usize> {
    let mut wave = Vec::new();
    let mut reserved: HashSet<Key> = HashSet::new();
    for (index, txn) in txns.iter().enumerate() {
        if txn.answer.is_some() || txn.step >= txn.txn.len() {
            continue;
        }
        let written: Vec<Key> = txn.txn[txn.step..].iter().flat_map(keys_of).collect();
        let read = key_read_by(&txn.txn[txn.step]);
        if written.iter().chain(&read).all(|key| !reserved.contains(key)) {
            wave.push(index);
        }
        reserved.extend(written);
    }
    wave
}

/// `error`, which must not claim that nothing was written if `wrote`.
fn after_writes(error: StoreError, wrote: bool) -> StoreError {
    match error {
        StoreError::Throttled { message, .. } if wrote => StoreError::unavailable(message),
        error => error,
    }
}
