//! Unclaimed dispatches: the store has the job as scheduled, and only one process knows that it
//! runs. So the world reports them, with the number of the process.
//!
//! What is promised is less than for a claim: after the death of that process the job starts again,
//! and the interrupted try is no attempt. While the process lives, the job starts once, and of a
//! dispatch and a change by the same process exactly one wins.

use std::collections::{HashMap, HashSet};

use tidegate_core::{
    job::{Job, JobId, Revision, Token, Version},
    queue::Limits,
    time::Timestamp,
};
use tidegate_engine::{Error, request::Report};

use super::{MAX_CLOCK_SKEW, Model};

/// The number of a process; its replacement has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessNumber(pub usize);

/// What is known of unclaimed dispatches.
#[derive(Default)]
pub(super) struct Unclaimed {
    /// The latest dispatch of each job, if its process lives.
    dispatches: HashMap<JobId, Dispatch>,
    /// Every job that was dispatched, at its version.
    versions: HashSet<(JobId, Version)>,
    /// The revisions that each process replaced on behalf of a client.
    changed: HashSet<(ProcessNumber, JobId, Revision)>,
}

struct Dispatch {
    process: ProcessNumber,
    /// The stored revision.
    revision: Revision,
    version: Version,
    attempt: u16,
    token: Token,
}

impl Model {
    /// `process` dispatched `job` in a tick that started at `now`, when version `promised` of the
    /// configuration was in effect.
    pub fn dispatch(&mut self, process: ProcessNumber, job: &Job, promised: u64, now: Timestamp) {
        let run = job.life.running().expect("the dispatched job runs");
        // The dispatch was computed as a claim, and a claim raises the revision by one.
        let (id, revision) = (job.id.clone(), Revision(job.life.revision.0 - 1));
        self.note(format!("{now} {id} r{} dispatched by {process:?}", revision.0));
        if self.unclaimed.changed.contains(&(process, id.clone(), revision)) {
            self.fault(format!("{id} was changed and dispatched by the same process"));
        }
        if self.unclaimed.dispatches.get(&id).is_some_and(|other| other.revision == revision) {
            self.fault(format!("{id} was dispatched twice, and no process died between"));
        }
        // A change of the limits during the tick may be noticed or not.
        let mut since = self
            .limits
            .iter()
            .filter(|((queue, version), _)| *queue == job.spec.queue && *version >= promised)
            .flat_map(|(_, shapes)| shapes);
        if promised > 0 && since.all(Limits::any) {
            self.fault(format!("I2: {id} was dispatched without a grant, in a limited queue"));
        }
        if let Some(there) = self.jobs.get(&id).filter(|there| there.life.revision == revision) {
            let early = there.life.run_at().is_none_or(|at| run.started_at + MAX_CLOCK_SKEW < at);
            let expired = there.spec.expires_at.is_some_and(|at| at <= run.started_at);
            if early || expired {
                self.fault(format!("{id} was dispatched before its time, or after it"));
            }
        }
        let (version, attempt, token) = (job.life.version, job.life.attempt, run.token);
        self.unclaimed.versions.insert((id.clone(), version));
        let dispatch = Dispatch { process, revision, version, attempt, token };
        self.unclaimed.dispatches.insert(id, dispatch);
    }

    /// `process` answered a client that `before` was changed to `after`.
    pub fn change(&mut self, process: ProcessNumber, before: &Job, after: &Job) {
        let (id, revision) = (&before.id, before.life.revision);
        if revision == after.life.revision {
            return;
        }
        let both = |other: &Dispatch| other.process == process && other.revision == revision;
        if self.unclaimed.dispatches.get(id).is_some_and(both) {
            self.fault(format!("{id} was dispatched and changed by the same process"));
        }
        self.unclaimed.changed.insert((process, id.clone(), revision));
    }

    /// A process died, and what it had dispatched is unknown.
    pub fn process_died(&mut self, process: ProcessNumber) {
        let mut interrupted = 0;
        self.unclaimed.dispatches.retain(|id, dispatch| {
            let lost = dispatch.process == process;
            let there = self.jobs.get(id).map(|job| job.life.revision);
            interrupted += u64::from(lost && there == Some(dispatch.revision));
            !lost
        });
        if interrupted > 0 {
            *self.counts.entry("unclaimed dispatches interrupted").or_default() += interrupted;
        }
    }

    /// Checks that the process that dispatched a job accepts the response, unless another process
    /// has changed the job since.
    pub fn check_response(&mut self, report: &Report, answer: &Result<Job, Error>) {
        let Err(error) = answer else { return };
        let refused = self.unchanged_dispatch(&report.id).is_some_and(|dispatch| {
            dispatch.attempt == report.attempt && Some(dispatch.token) == report.token
        });
        if refused {
            self.fault(format!(
                "the response to the unchanged dispatch of {} was refused: {error:?}",
                report.id
            ));
        }
    }

    /// Whether the job runs at this version in a living process, which may adopt it.
    pub(super) fn runs_unclaimed(&self, (id, version): &(JobId, Version)) -> bool {
        self.unclaimed.dispatches.get(id).is_some_and(|dispatch| dispatch.version == *version)
    }

    /// Whether the job was ever dispatched at this version.
    pub(super) fn was_dispatched_unclaimed(&self, key: &(JobId, Version)) -> bool {
        self.unclaimed.versions.contains(key)
    }

    /// Whether `new` is `old` with the result of its unclaimed dispatch, the first write about that
    /// attempt.
    pub(super) fn is_unclaimed_result(&mut self, old: &Job, new: &Job) -> bool {
        let recorded = new.life.history.last().filter(|entry| {
            entry.attempt == new.life.attempt && entry.attempt == old.life.attempt + 1
        });
        let Some(recorded) = recorded else { return false };
        let dispatch = self.unchanged_dispatch(&old.id);
        let reported = dispatch.is_some_and(|dispatch| dispatch.token == recorded.token);
        // A reply may end the attempt before its tick has returned.
        if reported || recorded.reply.is_some() {
            self.count("unclaimed results");
        }
        reported || recorded.reply.is_some()
    }

    /// Checks that a claim is not a second start of a job that a living process has dispatched.
    pub(super) fn check_claim_of_unclaimed(&mut self, old: &Job, token: Token) {
        let other = self.unchanged_dispatch(&old.id).is_some_and(|by| by.token != token);
        if other {
            self.fault(format!("I2: {} was claimed while an unclaimed dispatch runs", old.id));
        }
    }

    /// The dispatch of a job whose record has not changed since.
    fn unchanged_dispatch(&self, id: &JobId) -> Option<&Dispatch> {
        let dispatch = self.unclaimed.dispatches.get(id)?;
        (self.jobs.get(id)?.life.revision == dispatch.revision).then_some(dispatch)
    }
}
