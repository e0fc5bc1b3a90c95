//! The schedules that may occur, as they were read last, and the next step of each.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{Error, config::configure::bytes, jobs::enqueue::EnqueueWrites};
use tidegate_core::{
    job::{Revision, ScheduleName},
    port::{Txn, Write, job_store::ItemKind},
    schedule::{FAR_AHEAD, ScheduleItem, ScheduleState, Step},
    time::Timestamp,
};

/// How long a schedule is suspended after an occurrence that created no job.
const RETRY_AFTER_ERROR: Duration = Duration::from_secs(10);
/// How long a schedule is suspended if the store did not answer.
const RETRY_AFTER_UNAVAILABLE: Duration = Duration::from_secs(1);
/// Most schedules of one commit.
const MAX_STEPS_PER_COMMIT: usize = 1000;

/// The schedules with the next occurrence of each, as they were read last.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    /// The version of the catalog that it was built from; 0 forces a rebuild.
    pub(super) catalog: u64,
    pub(super) schedules: BTreeMap<ScheduleName, Planned>,
}

#[derive(Debug)]
pub(super) struct Planned {
    pub(super) item: Arc<ScheduleItem>,
    /// The version of the stored state, 0 if there is none.
    pub(super) was: u64,
    pub(super) state: ScheduleState,
    /// The next occurrence.
    pub(super) next: Option<Timestamp>,
    /// Suspended until then, after an error.
    pub(super) suspended_until: Timestamp,
    /// Whether it was logged that the clock was set back behind what is done.
    is_behind: bool,
}

impl Planned {
    pub(super) fn new(item: Arc<ScheduleItem>, was: u64, state: ScheduleState) -> Self {
        let suspended_until = Timestamp::EPOCH;
        let mut planned = Self { item, was, state, next: None, suspended_until, is_behind: false };
        planned.plan();
        planned
    }

    pub(super) fn plan(&mut self) {
        self.next = self.item.recurrence().and_then(|recurrence| recurrence.after(self.state.upto));
    }

    /// Records that the state was written.
    pub(super) fn written(&mut self, state: ScheduleState) {
        self.was += 1;
        self.state = state;
        self.plan();
    }

    /// When the next occurrence must be processed.
    pub(super) fn next_due_at(&self, lookahead: Duration) -> Option<Timestamp> {
        self.next.map(|next| (next - lookahead).max(self.suspended_until))
    }

    /// The conditions under which its state is written, and the write.
    pub(super) fn writes(
        &self,
        name: &ScheduleName,
        state: &ScheduleState,
    ) -> Result<EnqueueWrites, Error> {
        let revision = Some(Revision(self.item.rule));
        let (was, version, bytes) = (self.was, self.was + 1, Some(bytes(state)?));
        let require = vec![
            Write::RequireItem {
                kind: ItemKind::Schedule,
                name: name.clone().into(),
                version: self.item.version,
            },
            Write::RequireItem {
                kind: ItemKind::ScheduleState,
                name: name.clone().into(),
                version: was,
            },
        ];
        let (kind, name) = (ItemKind::ScheduleState, name.to_string());
        let then = vec![Write::SetItem { kind, name, was, version, bytes }];
        Ok(EnqueueWrites { require, then, revision, ..EnqueueWrites::default() })
    }
}

/// The step of one schedule in a pass.
pub(super) struct DueStep {
    pub(super) name: ScheduleName,
    pub(super) step: Step,
}

impl Agenda {
    /// The steps of the due schedules, the longest waiting first.
    pub(super) fn due_steps(&mut self, now: Timestamp, horizon: Timestamp) -> Vec<DueStep> {
        // If the clock was far ahead and is correct again, the schedule must not wait until that
        // time.
        for planned in
            self.schedules.values_mut().filter(|planned| planned.state.upto > horizon + FAR_AHEAD)
        {
            planned.state.upto = now;
            planned.plan();
        }
        for (name, planned) in &mut self.schedules {
            let is_behind = planned.state.upto > horizon && planned.next.is_some();
            if is_behind && !planned.is_behind {
                tracing::warn!(
                    schedule = %name,
                    until = %planned.state.upto,
                    next = ?planned.next.map(|next| next.to_string()),
                    "the clock was set back: what was created until then is not created again"
                );
            }
            planned.is_behind = is_behind;
        }
        let mut candidates: Vec<(Timestamp, &ScheduleName, &Planned)> = self
            .schedules
            .iter()
            .filter(|(_, planned)| planned.suspended_until <= now)
            .filter_map(|(name, planned)| {
                Some((planned.next.filter(|next| *next <= horizon)?, name, planned))
            })
            .collect();
        candidates.sort_unstable_by_key(|(next, ..)| *next);
        candidates.truncate(MAX_STEPS_PER_COMMIT);
        let due_step = |(_, name, planned): (_, &ScheduleName, &Planned)| {
            Some(DueStep {
                name: name.clone(),
                step: planned.item.step(planned.state.upto, now, horizon)?,
            })
        };
        candidates.into_iter().filter_map(due_step).collect()
    }
}

/// States that are written without a job.
#[derive(Default)]
pub(super) struct StateWrites {
    pub(super) txns: Vec<Txn>,
    pub(super) steps: Vec<(DueStep, ScheduleState)>,
}

impl StateWrites {
    pub(super) fn add(
        &mut self,
        planned: &Planned,
        due_step: DueStep,
        state: ScheduleState,
    ) -> Result<(), Error> {
        let EnqueueWrites { require, then, .. } = planned.writes(&due_step.name, &state)?;
        self.txns.push([require, then].concat());
        self.steps.push((due_step, state));
        Ok(())
    }

    /// Suspends a schedule whose occurrence made no job. Its state records the reason, unless the
    /// store did not answer.
    pub(super) fn add_failure(
        &mut self,
        planned: &mut Planned,
        due_step: &DueStep,
        error: &Error,
        now: Timestamp,
    ) -> Result<(), Error> {
        let store = matches!(error, Error::Unavailable { .. });
        planned.suspended_until =
            now + if store { RETRY_AFTER_UNAVAILABLE } else { RETRY_AFTER_ERROR };
        let step = Step { skipped: 0, ..due_step.step };
        if let Some(at) = step.occurrence.filter(|_| !store)
            && let Some(state) = planned.state.failed(at, &error.to_string(), now)
        {
            self.add(planned, DueStep { name: due_step.name.clone(), step }, state)?;
        }
        Ok(())
    }
}
