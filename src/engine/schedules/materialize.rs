//! `occur`: schedules make their jobs.
//!
//! ```text
//!   due: the schedules with an occurrence up to the horizon ─▶ one commit, of a transaction each:
//!        require the schedule and its state as they were read ─▶ add the job ─▶ the state after it
//! ```
//!
//! The one thing to know: a job and the note that its occurrence is dealt with are one transaction, and the job's id follows
//! from the schedule's name and the instant. So where transactions are atomic nothing is made twice, whoever else calls this at
//! the same time and whenever a process dies; elsewhere the id keeps a second one out, for as long as the job is kept.
//!
//! An occurrence that cannot make its job (its type is gone) says why on its schedule, holds only its schedule, and is tried
//! again; once it is late enough to count as missed, that policy decides about it.

use std::{collections::BTreeMap, mem, sync::Arc, time::Duration};
use tidegate_core::error_code::ErrorCode;

use crate::{
    Catalog, Engine, Error,
    config::configure::bytes,
    jobs::enqueue::EnqueueWrites,
    request::{Enqueued, NewJob},
};
use tidegate_core::{
    job::{Payload, Revision, ScheduleName},
    port::{Committed, Txn, Write, job_store::ItemKind},
    schedule::{FAR_AHEAD, ScheduleConfig, ScheduleItem, ScheduleState, Step, occurrence_id},
    time::Timestamp,
};

/// How long a schedule whose occurrence made no job is left alone.
pub const RETRY: Duration = Duration::from_secs(10);
/// The same where the store did not answer.
const RETRY_STORE: Duration = Duration::from_secs(1);
/// Most schedules of one commit.
const BATCH: usize = 1000;
/// Most commits of one call: what is left is for the next.
const PASSES: usize = 100;

/// What a call of [`Engine::materialize`] did.
#[derive(Debug, Default)]
pub struct Materialized {
    /// The jobs that were made, each with its schedule, in the order in which they were made.
    pub made: Vec<(ScheduleName, Enqueued)>,
    /// How many missed occurrences were passed over, by schedule.
    pub missed: BTreeMap<ScheduleName, u64>,
    /// Occurrences that made no job, and why.
    pub errors: Vec<(ScheduleName, Error)>,
    /// When to call again at the latest, the same look-ahead given; none without schedules.
    pub next_at: Option<Timestamp>,
}

/// The schedules that may occur, as they were read last, and what each does next.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    /// The version of the catalog that it was made from; 0 makes it be made anew.
    catalog: u64,
    schedules: BTreeMap<ScheduleName, Planned>,
}

#[derive(Debug)]
struct Planned {
    item: Arc<ScheduleItem>,
    /// The version of the stored state, 0 if there is none.
    was: u64,
    state: ScheduleState,
    /// The next occurrence.
    next: Option<Timestamp>,
    /// Left alone until then, after an error.
    rests_until: Timestamp,
}

impl Planned {
    fn new(item: Arc<ScheduleItem>, was: u64, state: ScheduleState) -> Self {
        let mut planned = Self { item, was, state, next: None, rests_until: Timestamp::EPOCH };
        planned.plan();
        planned
    }

    fn plan(&mut self) {
        self.next = self.item.recurrence().and_then(|recurrence| recurrence.after(self.state.upto));
    }

    /// The state was written.
    fn written(&mut self, state: ScheduleState) {
        self.was += 1;
        self.state = state;
        self.plan();
    }

    /// When there is something to do about it.
    fn wants(&self, look_ahead: Duration) -> Option<Timestamp> {
        self.next.map(|next| (next - look_ahead).max(self.rests_until))
    }

    /// What must stand when its state is written, and the write.
    fn writes(&self, name: &ScheduleName, state: &ScheduleState) -> Result<EnqueueWrites, Error> {
        let (name, revision) = (name.to_string(), Some(Revision(self.item.rule)));
        let (was, version, bytes) = (self.was, self.was + 1, Some(bytes(state)?));
        let require = vec![
            Write::RequireItem {
                kind: ItemKind::Schedule,
                name: name.clone(),
                version: self.item.version,
            },
            Write::RequireItem { kind: ItemKind::ScheduleState, name: name.clone(), version: was },
        ];
        let then =
            vec![Write::SetItem { kind: ItemKind::ScheduleState, name, was, version, bytes }];
        Ok(EnqueueWrites { require, then, revision })
    }
}

/// One schedule's part of a pass.
struct Turn {
    name: ScheduleName,
    step: Step,
}

impl Engine {
    /// Has every schedule make the jobs of its occurrences up to now, and of those within `look_ahead` from now, which start
    /// at their time.
    ///
    /// Any number of engines may call it at once, and a repeat does nothing.
    ///
    /// # Errors
    ///
    /// The store's, if nothing was made before it failed.
    pub async fn materialize(&self, look_ahead: Duration) -> Result<Materialized, Error> {
        let mut told = Materialized::default();
        let mut agenda = mem::take(&mut *self.agenda.lock());
        for _ in 0..PASSES {
            match self.pass(&mut agenda, look_ahead, &mut told).await {
                Ok(true) => {}
                Ok(false) => {
                    told.next_at = agenda
                        .schedules
                        .values()
                        .filter_map(|planned| planned.wants(look_ahead))
                        .min();
                    *self.agenda.lock() = agenda;
                    return Ok(told);
                }
                Err(error) if told.made.is_empty() => return Err(error),
                // What was made is told; the next call meets the error if it still stands.
                Err(_) => break,
            }
        }
        told.next_at = Some(self.now());
        Ok(told)
    }

    /// One commit: a step of each schedule that has one. Whether there was any.
    async fn pass(
        &self,
        agenda: &mut Agenda,
        look_ahead: Duration,
        told: &mut Materialized,
    ) -> Result<bool, Error> {
        self.refresh_agenda(agenda, told).await?;
        let now = self.now();
        let turns = agenda.turns(now, now + look_ahead);
        if turns.is_empty() {
            return Ok(false);
        }
        let (mut jobs, mut with, mut made, mut notes) =
            (Vec::new(), Vec::new(), Vec::new(), Notes::default());
        for turn in turns {
            let planned = &agenda.schedules[&turn.name];
            let state = planned.state.after(&turn.name, turn.step);
            match turn.step.occurrence {
                Some(at) => {
                    jobs.push(occurrence(&turn.name, &planned.item.config, &planned.item.data, at));
                    with.push(planned.writes(&turn.name, &state)?);
                    made.push((turn, state));
                }
                None => notes.add(planned, turn, state)?,
            }
        }
        let answers = self.enqueue_with(jobs, with).await;
        let mut stale = false;
        for (answer, (turn, state)) in answers.into_iter().zip(made) {
            let planned = agenda.schedules.get_mut(&turn.name).expect("it had a turn");
            match answer {
                Ok(enqueued) if enqueued.new => {
                    told.skipped(&turn);
                    planned.written(state);
                    told.made.push((turn.name, enqueued));
                }
                // Another call added it and died before it recorded that, or its id was taken.
                Ok(Enqueued { job, .. }) => {
                    notes.add(planned, turn, ScheduleState { last_job: Some(job.id), ..state })?;
                }
                Err(Error::Conflict { code: ErrorCode::IdTaken, holder: Some(job), .. }) => {
                    notes.add(planned, turn, ScheduleState { last_job: Some(job), ..state })?;
                }
                Err(Error::Stale { .. }) => stale = true,
                Err(error) => {
                    notes.add_failure(planned, &turn, &error, now)?;
                    told.errors.push((turn.name, error));
                }
            }
        }
        if self.commit_states(notes, agenda, told).await? || stale {
            agenda.catalog = 0;
        }
        Ok(true)
    }

    /// Rebuilds the agenda if the catalog changed since.
    async fn refresh_agenda(
        &self,
        agenda: &mut Agenda,
        told: &mut Materialized,
    ) -> Result<(), Error> {
        let mut catalog = self.catalog().await?;
        if agenda.catalog != catalog.version || catalog.version == 0 {
            if self.finish_schedules(&catalog, told).await {
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
        notes: Notes,
        agenda: &mut Agenda,
        told: &mut Materialized,
    ) -> Result<bool, Error> {
        if notes.txns.is_empty() {
            return Ok(false);
        }
        let mut stale = false;
        let committed = self.ports.store.commit(notes.txns).await?;
        for (committed, (turn, state)) in committed.into_iter().zip(notes.turns) {
            match committed {
                Committed::All => {
                    told.skipped(&turn);
                    agenda.schedules.get_mut(&turn.name).expect("it had a turn").written(state);
                }
                Committed::Conflict { .. } => stale = true,
            }
        }
        Ok(stale)
    }

    /// Does what is left of changes that are under way, or died half way. Whether there were any.
    async fn finish_schedules(&self, catalog: &Catalog, told: &mut Materialized) -> bool {
        let mut any = false;
        for (name, item) in catalog.schedules.iter().filter(|(_, item)| item.replaced.is_some()) {
            any = true;
            if let Err(error) = Box::pin(self.finish_schedule(name, item)).await {
                told.errors.push((name.clone(), error));
            }
        }
        any
    }

    /// The schedules of `catalog` with their states as they are stored.
    async fn agenda(&self, catalog: &Catalog) -> Result<Agenda, Error> {
        if catalog.schedules.is_empty() {
            return Ok(Agenda { catalog: catalog.version, ..Agenda::default() });
        }
        let mut states = self.schedule_states().await?;
        let schedules = catalog.schedules.iter().map(|(name, item)| {
            let (was, state) = states.remove(name).unwrap_or_default();
            (name.clone(), Planned::new(Arc::clone(item), was, item.state(state)))
        });
        Ok(Agenda { catalog: catalog.version, schedules: schedules.collect() })
    }

    /// How far every schedule has come, with the version of what is stored.
    pub(crate) async fn schedule_states(
        &self,
    ) -> Result<BTreeMap<ScheduleName, (u64, ScheduleState)>, Error> {
        let mut states = BTreeMap::new();
        for item in self.ports.store.items(ItemKind::ScheduleState).await? {
            let name = item
                .name
                .parse()
                .map_err(|_| Error::Internal(format!("bad schedule name {:?}", item.name)))?;
            let damaged = |error| {
                Error::Internal(format!(
                    "the state of schedule {} cannot be read: {error}",
                    item.name
                ))
            };
            states.insert(
                name,
                (item.version, serde_json::from_slice(&item.bytes).map_err(damaged)?),
            );
        }
        Ok(states)
    }
}

/// State that is written without a job.
#[derive(Default)]
struct Notes {
    txns: Vec<Txn>,
    turns: Vec<(Turn, ScheduleState)>,
}

impl Notes {
    fn add(&mut self, planned: &Planned, turn: Turn, state: ScheduleState) -> Result<(), Error> {
        let EnqueueWrites { require, then, .. } = planned.writes(&turn.name, &state)?;
        self.txns.push([require, then].concat());
        self.turns.push((turn, state));
        Ok(())
    }

    /// Suspends a schedule whose occurrence made no job. Its state records the reason, unless the
    /// store did not answer.
    fn add_failure(
        &mut self,
        planned: &mut Planned,
        turn: &Turn,
        error: &Error,
        now: Timestamp,
    ) -> Result<(), Error> {
        let store = matches!(error, Error::Unavailable { .. });
        planned.rests_until = now + if store { RETRY_STORE } else { RETRY };
        let step = Step { skipped: 0, ..turn.step };
        if let Some(at) = step.occurrence.filter(|_| !store)
            && let Some(state) = planned.state.failed(at, &error.to_string(), now)
        {
            self.add(planned, Turn { name: turn.name.clone(), step }, state)?;
        }
        Ok(())
    }
}

impl Agenda {
    /// What the schedules that are due do next, those that wait longest first.
    fn turns(&mut self, now: Timestamp, horizon: Timestamp) -> Vec<Turn> {
        // A clock that was far ahead and is right again must not silence what it let occur.
        for planned in
            self.schedules.values_mut().filter(|planned| planned.state.upto > horizon + FAR_AHEAD)
        {
            planned.state.upto = now;
            planned.plan();
        }
        let mut due: Vec<(Timestamp, &ScheduleName, &Planned)> = self
            .schedules
            .iter()
            .filter(|(_, planned)| planned.rests_until <= now)
            .filter_map(|(name, planned)| {
                Some((planned.next.filter(|next| *next <= horizon)?, name, planned))
            })
            .collect();
        due.sort_unstable_by_key(|(next, ..)| *next);
        due.truncate(BATCH);
        let turn = |(_, name, planned): (_, &ScheduleName, &Planned)| {
            Some(Turn {
                name: name.clone(),
                step: planned.item.step(planned.state.upto, now, horizon)?,
            })
        };
        due.into_iter().filter_map(turn).collect()
    }
}

impl Materialized {
    fn skipped(&mut self, turn: &Turn) {
        if turn.step.skipped > 0 {
            *self.missed.entry(turn.name.clone()).or_default() += turn.step.skipped;
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
        ..NewJob::new(config.job_type.clone(), data.clone())
    }
}
