//! Schedules create the jobs of their occurrences.
//!
//! ```text
//!   due: the schedules with an occurrence up to the horizon ─▶ one commit, of a transaction each:
//!        require the schedule and its state as they were read ─▶ add the job ─▶ the state after it
//! ```
//!
//! The one thing to know: one transaction adds the job and records its occurrence, and the
//! schedule's name and the instant determine the job's id. Where transactions are atomic,
//! concurrent calls and crashes create no job twice. Elsewhere the id prevents a second job, as
//! long as the first one is kept.
//!
//! An occurrence that cannot create its job, for example because its type was removed, records the
//! reason in the state of its schedule. It delays only this schedule and is tried again. Once it is
//! late enough to count as missed, the policy for missed occurrences decides.

use std::{collections::BTreeMap, mem, sync::Arc, time::Duration};

use super::agenda::{Agenda, DueStep, Planned, StateWrites};
use crate::{
    Catalog, Engine, Error,
    request::{Enqueued, NewJob},
};
use tidegate_core::{
    error_code::ErrorCode,
    job::{Origin, Payload, ScheduleName},
    port::{
        Committed,
        job_store::{Item, ItemKind},
    },
    schedule::{ScheduleConfig, ScheduleState, occurrence_id},
    time::Timestamp,
};

/// Most commits of one call. The rest is left to the next call.
const MAX_PASSES: usize = 100;

/// The outcome of [`Engine::materialize`].
#[derive(Debug, Default)]
pub struct Materialized {
    /// The jobs that were created, each with its schedule, in the order of their creation.
    pub made: Vec<(ScheduleName, Enqueued)>,
    /// How many missed occurrences were skipped, by schedule.
    pub missed: BTreeMap<ScheduleName, u64>,
    /// Occurrences that created no job, and the errors.
    pub errors: Vec<(ScheduleName, Error)>,
    /// The latest time of the next call with the same lookahead; `None` without schedules.
    pub next_at: Option<Timestamp>,
}

/// The state of each schedule with its stored version, or why it cannot be read.
pub(crate) type States = BTreeMap<ScheduleName, Result<(u64, ScheduleState), Error>>;

impl Engine {
    /// Creates the jobs of all occurrences up to now, and of those within `lookahead` from now,
    /// which start at their time.
    ///
    /// Any number of engines may call it at the same time, and a repeat does nothing.
    ///
    /// # Errors
    ///
    /// The store's, if it failed before a job was created.
    pub async fn materialize(&self, lookahead: Duration) -> Result<Materialized, Error> {
        let mut outcome = Materialized::default();
        let mut agenda = mem::take(&mut *self.agenda.lock());
        for _ in 0..MAX_PASSES {
            match self.pass(&mut agenda, lookahead, &mut outcome).await {
                Ok(true) => {}
                Ok(false) => {
                    outcome.next_at = agenda
                        .schedules
                        .values()
                        .filter_map(|planned| planned.next_due_at(lookahead))
                        .min();
                    *self.agenda.lock() = agenda;
                    return Ok(outcome);
                }
                Err(error) if outcome.made.is_empty() => return Err(error),
                // The jobs created so far are returned. The next call meets the error if it
                // persists.
                Err(_) => break,
            }
        }
        outcome.next_at = Some(self.now());
        Ok(outcome)
    }

    /// Makes one commit with a step of each due schedule. Returns false if none is due.
    async fn pass(
        &self,
        agenda: &mut Agenda,
        lookahead: Duration,
        outcome: &mut Materialized,
    ) -> Result<bool, Error> {
        self.refresh_agenda(agenda, outcome).await?;
        let now = self.now();
        let due = agenda.due_steps(now, now + lookahead);
        if due.is_empty() {
            return Ok(false);
        }
        let (mut jobs, mut with, mut made, mut writes) =
            (Vec::new(), Vec::new(), Vec::new(), StateWrites::default());
        for due_step in due {
            let planned = &agenda.schedules[&due_step.name];
            let state = planned.state.after(&due_step.name, due_step.step);
            match due_step.step.occurrence {
                Some(at) => {
                    jobs.push(occurrence(
                        &due_step.name,
                        &planned.item.config,
                        &planned.item.data,
                        at,
                    ));
                    with.push(planned.writes(&due_step.name, &state)?);
                    made.push((due_step, state));
                }
                None => writes.add(planned, due_step, state)?,
            }
        }
        let answers = self.enqueue_with(jobs, with).await;
        let mut stale = false;
        for (answer, (due_step, state)) in answers.into_iter().zip(made) {
            let planned = agenda.schedules.get_mut(&due_step.name).expect("it is on the agenda");
            stale |= record_answer(planned, due_step, state, answer, now, &mut writes, outcome)?;
        }
        if self.commit_states(writes, agenda, outcome).await? || stale {
            agenda.catalog = 0;
        }
        Ok(true)
    }

    /// Rebuilds the agenda if the catalog changed since.
    async fn refresh_agenda(
        &self,
        agenda: &mut Agenda,
        outcome: &mut Materialized,
    ) -> Result<(), Error> {
        let mut catalog = self.catalog().await?;
        if agenda.catalog != catalog.version || catalog.version == 0 {
            if self.finish_schedules(&catalog, outcome).await {
                catalog = self.catalog().await?;
            }
            *agenda = self.agenda(&catalog).await?;
        }
        Ok(())
    }

    /// Commits the states that are written without a job. Returns true if one was refused, which
    /// means that the agenda is outdated.
    async fn commit_states(
        &self,
        writes: StateWrites,
        agenda: &mut Agenda,
        outcome: &mut Materialized,
    ) -> Result<bool, Error> {
        if writes.txns.is_empty() {
            return Ok(false);
        }
        let mut stale = false;
        let committed = self.ports.store.commit(writes.txns).await?;
        for (committed, (due_step, state)) in committed.into_iter().zip(writes.steps) {
            match committed {
                Committed::All => {
                    outcome.skipped(&due_step);
                    agenda
                        .schedules
                        .get_mut(&due_step.name)
                        .expect("it is on the agenda")
                        .written(state);
                }
                Committed::Conflict { .. } => stale = true,
            }
        }
        Ok(stale)
    }

    /// Finishes changes of schedules that are in progress or whose process died. Returns whether
    /// there were any.
    async fn finish_schedules(&self, catalog: &Catalog, outcome: &mut Materialized) -> bool {
        let mut any = false;
        for (name, item) in catalog.schedules.iter().filter(|(_, item)| item.replaced.is_some()) {
            any = true;
            if let Err(error) = Box::pin(self.finish_schedule(name, item)).await {
                outcome.errors.push((name.clone(), error));
            }
        }
        any
    }

    /// The schedules of `catalog` with their stored states.
    async fn agenda(&self, catalog: &Catalog) -> Result<Agenda, Error> {
        if catalog.schedules.is_empty() {
            return Ok(Agenda { catalog: catalog.version, ..Agenda::default() });
        }
        let mut states = self.schedule_states().await?;
        let schedules = catalog.schedules.iter().filter_map(|(name, item)| {
            match states.remove(name).unwrap_or_else(|| Ok(Default::default())) {
                Ok((was, state)) => {
                    Some((name.clone(), Planned::new(Arc::clone(item), was, item.state(state))))
                }
                Err(error) => {
                    tracing::error!(schedule = %name, %error, "a schedule makes no jobs");
                    None
                }
            }
        });
        Ok(Agenda { catalog: catalog.version, schedules: schedules.collect() })
    }

    /// The state of every schedule, with its stored version. One that cannot be read is an error of
    /// its schedule alone.
    pub(crate) async fn schedule_states(&self) -> Result<States, Error> {
        let items = self.ports.store.items(ItemKind::ScheduleState).await?;
        let read = |item: Item| {
            let Ok(name) = item.name.parse() else {
                tracing::error!(name = item.name, "the state of a schedule has no valid name");
                return None;
            };
            let state = item.read().map_err(|error| {
                Error::Internal(format!("the state of schedule {name} cannot be read: {error}"))
            });
            Some((name, state.map(|state| (item.version, state))))
        };
        Ok(items.into_iter().filter_map(read).collect())
    }
}

impl Materialized {
    fn skipped(&mut self, due_step: &DueStep) {
        if due_step.step.skipped > 0 {
            *self.missed.entry(due_step.name.clone()).or_default() += due_step.step.skipped;
        }
    }
}

/// The job of an occurrence.
pub(crate) fn occurrence(
    name: &ScheduleName,
    config: &ScheduleConfig,
    data: &Payload,
    at: Timestamp,
) -> NewJob {
    NewJob {
        id: Some(occurrence_id(name, at)),
        run_at: Some(at),
        expires_at: config.expires_after_seconds.map(|span| at + span.duration()),
        options: config.options.clone(),
        origin: Some(Box::new(Origin::schedule(name.clone(), Some(at)))),
        ..NewJob::new(config.job_type.clone(), data.clone())
    }
}

/// Records the answer to the job of `due_step`. Returns true if the agenda is outdated.
fn record_answer(
    planned: &mut Planned,
    due_step: DueStep,
    state: ScheduleState,
    answer: Result<Enqueued, Error>,
    now: Timestamp,
    writes: &mut StateWrites,
    outcome: &mut Materialized,
) -> Result<bool, Error> {
    match answer {
        Ok(enqueued) if enqueued.new => {
            outcome.skipped(&due_step);
            planned.written(state);
            outcome.made.push((due_step.name, enqueued));
        }
        // Its id is taken: by a call that died before it recorded the occurrence, or by a
        // client.
        Ok(Enqueued { job, .. }) => {
            writes.add(planned, due_step, ScheduleState { last_job: Some(job.id), ..state })?;
        }
        Err(Error::Conflict { code: ErrorCode::IdTaken, holder: Some(job), .. }) => {
            writes.add(planned, due_step, ScheduleState { last_job: Some(job), ..state })?;
        }
        Err(Error::Stale { .. }) => return Ok(true),
        Err(error) => {
            writes.add_failure(planned, &due_step, &error, now)?;
            outcome.errors.push((due_step.name, error));
        }
    }
    Ok(false)
}
