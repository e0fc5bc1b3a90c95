//! The call of a throttler, and its answer.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    PolicyState, REASON_BYTES, cut,
    fault::{Fault, check_ahead, invalid, shown},
};
use crate::{
    job::{Attributes, Job, JobId, QueueName, TypeName},
    queue::{Grant, GrantBatch, ledger::Bits, waiting::Waiting},
    time::Timestamp,
};

/// The granted jobs of a queue at one moment, cheap to copy.
#[derive(Clone, Debug, Default)]
pub struct RunningSet {
    /// The batches that the ledger names, each with the set of its released grants.
    pub batches: Vec<(Arc<GrantBatch>, Bits)>,
    /// The grants of this tick so far.
    pub admitted: Arc<Vec<Grant>>,
}

impl RunningSet {
    /// The grants, the longest granted first.
    pub fn iter(&self) -> impl Iterator<Item = &Grant> {
        let stored = self.batches.iter().flat_map(|(batch, released)| {
            let grants = batch.grants.iter().enumerate();
            grants.filter(|(index, _)| !released.has(*index)).map(|(_, grant)| grant)
        });
        stored.chain(self.admitted.iter())
    }
}

/// An attempt that ended since the last tick.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// The job.
    pub id: JobId,
    /// The job's type.
    pub job_type: TypeName,
    /// The job's priority.
    pub priority: i32,
    /// The weight that it took.
    pub weight: u32,
    /// The job's attributes.
    pub attributes: Attributes,
    /// The name of its target, if a retry strategy chose one.
    pub retry_target: Option<String>,
    /// The attempt.
    pub attempt: u16,
    /// When it started.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// Whether it succeeded.
    pub succeeded: bool,
    /// Why it failed.
    pub reason: Option<String>,
    /// The message of its failure.
    pub message: Option<String>,
    /// The HTTP status of its target's response.
    pub status: Option<u16>,
    /// The details that its worker reported, as JSON text; of the first ones with at most
    /// [`ENDED_DETAIL_BYTES`](super::ENDED_DETAIL_BYTES) together.
    pub details: Option<String>,
    /// The earliest next attempt that its worker or target requested.
    pub not_before: Option<Timestamp>,
}

/// The hosts of the targets of each type, by the target's name; that of its own is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetHosts(BTreeMap<TypeName, BTreeMap<String, String>>);

impl TargetHosts {
    /// Adds a target of `job_type`: its own, or one of its `retry_targets`.
    pub fn insert(&mut self, job_type: &TypeName, target: Option<&str>, host: &str) {
        let hosts = self.0.entry(job_type.clone()).or_default();
        hosts.insert(target.unwrap_or_default().to_owned(), host.to_owned());
    }

    /// The host that the attempts of a job call: that of the target which a retry strategy chose, if
    /// its type still has it, else that of the type's own target, if it has one.
    pub fn of(&self, job_type: &TypeName, chosen: Option<&str>) -> Option<&str> {
        let hosts = self.0.get(job_type)?;
        let chosen = chosen.and_then(|name| hosts.get(name));
        chosen.or_else(|| hosts.get("")).map(String::as_str)
    }

    /// The name of a target of `job_type` with `host`, which is added if there is none: as the
    /// type's own if it has none. None is the type's own.
    pub fn name_of(&mut self, job_type: &TypeName, host: &str) -> Option<String> {
        let name = self.of(job_type, None).is_some_and(|own| own != host).then(|| host.to_owned());
        self.insert(job_type, name.as_deref(), host);
        name
    }
}

/// Everything that a throttler's decision depends on.
#[derive(Clone, Debug)]
pub struct ThrottleCall {
    /// The queue.
    pub queue: QueueName,
    /// The tick's time.
    pub now: Timestamp,
    /// A seed for random numbers.
    pub seed: u64,
    /// The plugin's configuration as JSON text.
    pub config: Arc<str>,
    /// The queue's own concurrency.
    pub concurrency: Option<u32>,
    /// How many jobs workers can take now.
    pub room: u32,
    /// The granted jobs.
    pub running: RunningSet,
    /// The candidates, in order.
    pub candidates: Vec<Job>,
    /// The attempts that ended, if the plugin declares that it needs them.
    pub ended: Arc<Vec<Ended>>,
    /// The latest committed state.
    pub state: Arc<PolicyState>,
    /// The candidates' data as JSON text, if the plugin declares that it needs it; at most
    /// [`DATA_BYTES`](super::DATA_BYTES) together.
    pub data: BTreeMap<JobId, String>,
    /// The hosts of the types' targets.
    pub hosts: Arc<TargetHosts>,
    /// What waits in the queue, if the plugin declares that it needs it. The candidates are
    /// included.
    pub waiting: Arc<Waiting>,
}

/// What a throttler does with one candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// It starts.
    Run,
    /// It is held, and the throttler decides again at this instant at the latest.
    Hold(Option<Timestamp>),
    /// It gets this due time, which is after the time of the call and within 366 days of it.
    Reschedule(Timestamp),
    /// It ends, as dropped.
    Drop,
}

/// An action and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The action.
    pub action: Action,
    /// For people: at most 200 bytes.
    pub reason: Option<String>,
}

/// The answer of a throttler.
#[derive(Clone, Debug, PartialEq)]
pub struct ThrottleAnswer {
    /// One per candidate, in order.
    pub decisions: Vec<Decision>,
    /// Whether later candidates may run too.
    pub more: bool,
    /// The new state, if it changed.
    pub state: Option<PolicyState>,
}

impl ThrottleAnswer {
    /// The answer, if it is valid for `call`, with its reasons cut at [`REASON_BYTES`].
    ///
    /// # Errors
    ///
    /// [`FaultKind::InvalidAnswer`](super::FaultKind::InvalidAnswer) with the invalid decision, and
    /// what is valid.
    pub fn validated(mut self, call: &ThrottleCall) -> Result<Self, Fault> {
        let (offered, decided) = (call.candidates.len(), self.decisions.len());
        if offered != decided {
            return invalid(format!(
                "answered {decided} decisions for {offered} candidates: \
                 there must be one for each, in their order"
            ));
        }
        for (index, decision) in self.decisions.iter_mut().enumerate() {
            let named = match decision.action {
                Action::Hold(Some(at)) => Some((at, "holds until")),
                Action::Reschedule(at) => Some((at, "reschedules to")),
                Action::Run | Action::Hold(None) | Action::Drop => None,
            };
            if let Some((at, does)) = named {
                let said = || {
                    format!(
                        "decision {} (job {}) {does} {}",
                        index + 1,
                        call.candidates[index].id,
                        shown(at)
                    )
                };
                if at <= call.now {
                    return invalid(format!(
                        "{}, which is not after the time of the call, {}",
                        said(),
                        call.now
                    ));
                }
                check_ahead(at, call.now, said)?;
            }
            decision.reason = decision.reason.take().map(|reason| cut(reason, REASON_BYTES));
        }
        Ok(self)
    }
}
