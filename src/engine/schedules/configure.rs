//! Changes of schedules: they are set, paused, run on request and removed.
//! [`crate::schedules::materialize`] creates their jobs.
//!
//! ```text
//!   no jobs made ahead:   one write of one item
//!   jobs made ahead:      the new item with the rule that it replaces
//!                           ─▶ remove the jobs of that rule ─▶ the new item alone, or no item
//! ```
//!
//! The one thing to know: a change takes effect with its **first write**, on the condition that the
//! schedule and its state are as they were read. If the rule starts again, the item itself records
//! the version at which it started. From that write on, the separately stored state of the old rule
//! has no effect.
//!
//! If jobs were made ahead of their time and must change or go, that write also contains the rule
//! that made them. The schedule has no occurrences until the change is finished. The next caller
//! finishes it first, be it a repeat, another change or [`Engine::materialize`]: it removes those
//! jobs as if they had never been made.
//!
//! Any number of callers may finish a change, at any time, because only jobs of the old rule are
//! removed. The first revision of a job is the version of its rule, and a removal names that
//! revision. So jobs of the new rule, changed jobs and jobs that a client added under the same id
//! are never removed. Where transactions are not atomic, an occurrence whose writes were in flight
//! may add one more job afterwards. That job stays, as the job of its occurrence.

use std::sync::Arc;

use crate::{
    Catalog, Engine, Error,
    config::{
        configure::{MAX_CONFLICT_RETRIES, contended},
        unreadable::Unreadable,
    },
    jobs::enqueue::fault,
    plugins::registry::Checked,
    request::{Enqueued, NewJob, PauseOnPut, ScheduleRequest},
    schedules::materialize::occurrence,
};
use tidegate_core::{
    error_code::ErrorCode,
    job::{Origin, Payload, ScheduleName, Spec, payload::MAX_DEPTH},
    port::{Write, job_store::ItemKind},
    schedule::{
        MAX_SCHEDULES, Replaced, SCHEDULE_DATA_BYTES, ScheduleConfig, ScheduleItem, ScheduleState,
        run_id,
    },
    validate,
};

/// Checks the values of a schedule.
fn check(config: &ScheduleConfig, data: &Payload) -> Result<(), Error> {
    validate::check_schedule(config).map_err(fault)?;
    if data.bytes.len() > SCHEDULE_DATA_BYTES {
        return Err(Error::TooLarge { field: "data", limit: SCHEDULE_DATA_BYTES });
    }
    data.check(MAX_DEPTH).map_err(|malformed| Error::malformed("data", &malformed))
}

/// The configuration that `request` gives to the schedule `current`.
fn over(request: &ScheduleRequest, current: Option<&ScheduleItem>) -> ScheduleConfig {
    let paused = match request.pause {
        PauseOnPut::AsConfigured => request.config.paused,
        PauseOnPut::Keep => current.is_some_and(|item| item.config.paused),
    };
    ScheduleConfig { paused, ..request.config.clone() }
}

impl Engine {
    /// Sets a schedule as a whole. Returns the item, and whether it is new.
    ///
    /// If its recurrence changes, or whether it is paused, the rule starts again with the
    /// occurrences from now on. It also starts again if something else changes and jobs were made
    /// ahead: those are removed and made again. Otherwise it continues where it is.
    ///
    /// # Errors
    ///
    /// 400 for a bad value, also in its jobs; 404 for their type; 409 `too_many_schedules`; 412 if
    /// `if_match` is not its version; 413 for its data; 503 if the plugin of their retry strategy
    /// cannot be called.
    pub async fn put_schedule(
        &self,
        name: &ScheduleName,
        config: impl Into<ScheduleRequest>,
        data: Payload,
        if_match: Option<u64>,
    ) -> Result<(Arc<ScheduleItem>, bool), Error> {
        self.put_schedule_over(name, config.into(), data, if_match, Unreadable::Refuse).await
    }

    /// [`Self::put_schedule`], also over a stored schedule, or a stored state of it, that cannot be
    /// read. Its rule then applies from now on. Jobs that it had made ahead of time stay.
    ///
    /// # Errors
    ///
    /// As [`Self::put_schedule`].
    pub async fn replace_schedule(
        &self,
        name: &ScheduleName,
        config: impl Into<ScheduleRequest>,
        data: Payload,
        if_match: Option<u64>,
    ) -> Result<(Arc<ScheduleItem>, bool), Error> {
        self.put_schedule_over(name, config.into(), data, if_match, Unreadable::Replace).await
    }

    /// What [`Self::put_schedule`] would store, with its state. Nothing is changed: the version is
    /// the stored one, 0 of a new schedule.
    ///
    /// # Errors
    ///
    /// As [`Self::put_schedule`].
    pub async fn preview_schedule(
        &self,
        name: &ScheduleName,
        config: impl Into<ScheduleRequest>,
        data: Payload,
        if_match: Option<u64>,
    ) -> Result<(Arc<ScheduleItem>, ScheduleState), Error> {
        let request = config.into();
        check(&request.config, &data)?;
        let catalog = self.catalog().await?;
        catalog.refuse_unreadable(ItemKind::Schedule, name.as_str())?;
        let stored = match self.schedule(name).await {
            Err(Error::NotFound { .. }) => None,
            stored => Some(stored?),
        };
        let version = stored.as_ref().map_or(0, |(item, _)| item.version);
        if if_match.is_some_and(|if_match| if_match != version) {
            return Err(Error::Stale { version });
        }
        let config = over(&request, stored.as_ref().map(|(item, _)| &**item));
        self.check_occurrence(&catalog, name, &config, &data).await?;
        if !catalog.schedules.contains_key(name) {
            check_count(&catalog)?;
        }
        let now = self.now();
        let goes_on = stored.filter(|(item, _)| item.config.recurrence() == config.recurrence());
        let (rule, since, state) = match goes_on {
            Some((item, state)) => (item.rule, item.since, state),
            None => (version, now, ScheduleState { upto: now, ..ScheduleState::default() }),
        };
        let item = ScheduleItem { config, data, version, rule, since, replaced: None };
        Ok((Arc::new(item), state))
    }

    async fn put_schedule_over(
        &self,
        name: &ScheduleName,
        request: ScheduleRequest,
        data: Payload,
        if_match: Option<u64>,
        unreadable: Unreadable,
    ) -> Result<(Arc<ScheduleItem>, bool), Error> {
        check(&request.config, &data)?;
        for _ in 0..MAX_CONFLICT_RETRIES {
            let (catalog, current) = self.finished(name, unreadable).await?;
            let version = current.as_ref().map(|item| item.version);
            let kind = ItemKind::Schedule;
            let was = catalog.version_to_replace(kind, name.as_str(), version, unreadable)?;
            if if_match.is_some_and(|version| version != was) {
                return Err(Error::Stale { version: was });
            }
            let config = over(&request, current.as_deref());
            self.check_occurrence(&catalog, name, &config, &data).await?;
            let to_be = Some((&config, &data));
            if let Some(item) = self.write_schedule(&catalog, name, to_be, unreadable).await? {
                if version.is_none() && was > 0 {
                    tracing::warn!(schedule = %name, "an unreadable schedule was replaced");
                }
                return Ok((item, was == 0));
            }
        }
        Err(contended(name.as_str()))
    }

    /// Writes a schedule over the one in `catalog`, which is finished, or removes it if `to_be` is
    /// `None`. Returns the item as it is then, or as it was last. Returns `None` if another writer
    /// changed it.
    async fn write_schedule(
        &self,
        catalog: &Catalog,
        name: &ScheduleName,
        to_be: Option<(&ScheduleConfig, &Payload)>,
        unreadable: Unreadable,
    ) -> Result<Option<Arc<ScheduleItem>>, Error> {
        let current = catalog.schedules.get(name);
        let replaced_version = catalog.unreadable_version(ItemKind::Schedule, name.as_str());
        let states = &mut self.schedule_states().await?;
        let state = states.remove(name).transpose();
        let lost_state = state.is_err() && unreadable == Unreadable::Replace;
        if lost_state {
            self.put_item(ItemKind::ScheduleState, name.as_str(), None).await?;
        }
        let state = if lost_state { None } else { state? };
        let (state_version, state) = state.unwrap_or_default();
        let now = self.now();
        let is = current.map(|item| (&item.config, &item.data));
        let made_ahead = current.filter(|item| is != to_be && item.state(state.clone()).upto > now);
        let version = match (current, replaced_version) {
            (Some(item), _) => item.version + 1,
            (None, Some(version)) => version.max(state.rule) + 1,
            (None, None) => first_version(catalog, &state)?,
        };
        let recurs = |config: &ScheduleConfig| {
            to_be.is_some_and(|(to_be, _)| to_be.recurrence() == config.recurrence())
        };
        let goes_on =
            current.filter(|item| !lost_state && made_ahead.is_none() && recurs(&item.config));
        let (rule, since) = goes_on.map_or((version, now), |item| (item.rule, item.since));
        let replaced = made_ahead.map(|item| {
            let (config, data, removed) = (item.config.clone(), item.data.clone(), to_be.is_none());
            Box::new(Replaced { config, data, rule: item.rule, upto: state.upto, removed })
        });
        let Some((config, data)) = to_be.or(is) else {
            return Ok(None);
        };
        let item = Arc::new(ScheduleItem {
            config: config.clone(),
            data: data.clone(),
            version,
            rule,
            since,
            replaced,
        });
        // Refuses a concurrent `materialize`, whose jobs this change does not know.
        let was = current.map(|item| item.version).or(replaced_version).unwrap_or_default();
        let kind = ItemKind::ScheduleState;
        let require =
            Write::RequireItem { kind, name: name.clone().into(), version: state_version };
        let stays = to_be.is_some() || item.replaced.is_some();
        if !self.write_item(name, was, &item, stays, Some(require)).await? {
            return Ok(None);
        }
        self.finish_schedule(name, &item).await.map(Some)
    }

    /// Checks that the jobs of a schedule would be accepted now.
    async fn check_occurrence(
        &self,
        catalog: &Catalog,
        name: &ScheduleName,
        config: &ScheduleConfig,
        data: &Payload,
    ) -> Result<(), Error> {
        if let Some(retry) = &config.options.retry {
            self.check_retry(catalog, retry, &mut Checked::default()).await?;
        }
        let job_type = &config.job_type;
        let reserved = job_type.is_internal();
        catalog.refuse_unreadable(ItemKind::Type, job_type.as_str())?;
        match catalog.types.get(job_type).filter(|_| !reserved) {
            Some(item) => {
                let now = self.now();
                self.resolve(
                    &occurrence(name, config, data, now),
                    catalog,
                    item,
                    Spec::NO_DIGEST,
                    now,
                )
                .map(drop)
            }
            None if self.rules.create_unknown_types && !reserved => Ok(()),
            None => Err(Error::NotFound {
                code: ErrorCode::JobTypeNotFound,
                what: format!("job type {job_type}"),
            }),
        }
    }

    /// Pauses a schedule, or resumes it from now on. While it is paused, it has only the jobs whose
    /// time had come.
    ///
    /// # Errors
    ///
    /// 404 `schedule_not_found`.
    pub async fn pause_schedule(
        &self,
        name: &ScheduleName,
        paused: bool,
    ) -> Result<Arc<ScheduleItem>, Error> {
        for _ in 0..MAX_CONFLICT_RETRIES {
            let (catalog, item) = self.finished(name, Unreadable::Refuse).await?;
            let item = item.ok_or_else(|| missing(name))?;
            if item.config.paused == paused {
                return Ok(item);
            }
            let config = ScheduleConfig { paused, ..item.config.clone() };
            let to_be = Some((&config, &item.data));
            let written = self.write_schedule(&catalog, name, to_be, Unreadable::Refuse);
            if let Some(item) = written.await? {
                return Ok(item);
            }
        }
        Err(contended(name.as_str()))
    }

    /// A schedule and its state.
    ///
    /// # Errors
    ///
    /// 404 `schedule_not_found`; 503 if it cannot be read.
    pub async fn schedule(
        &self,
        name: &ScheduleName,
    ) -> Result<(Arc<ScheduleItem>, ScheduleState), Error> {
        let catalog = self.catalog().await?;
        catalog.refuse_unreadable(ItemKind::Schedule, name.as_str())?;
        let item = catalog.schedules.get(name).filter(|item| !item.is_removed()).cloned();
        let item = item.ok_or_else(|| missing(name))?;
        let states = &mut self.schedule_states().await?;
        let stored = states.remove(name).transpose()?.unwrap_or_default().1;
        let state = item.state(stored);
        Ok((item, state))
    }

    /// Every schedule and its state, by name.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn schedules(
        &self,
    ) -> Result<Vec<(ScheduleName, (Arc<ScheduleItem>, ScheduleState))>, Error> {
        let catalog = self.catalog().await?;
        let mut states = self.schedule_states().await?;
        let all =
            catalog.schedules.iter().filter(|(_, item)| !item.is_removed()).map(|(name, item)| {
                let stored = states.remove(name).and_then(Result::ok).unwrap_or_default().1;
                (name.clone(), (Arc::clone(item), item.state(stored)))
            });
        Ok(all.collect())
    }

    /// Removes a schedule. Its jobs stay, except those whose time has not come. A repeat finishes
    /// the removal.
    ///
    /// # Errors
    ///
    /// 404 `schedule_not_found`; 412.
    pub async fn delete_schedule(
        &self,
        name: &ScheduleName,
        if_match: Option<u64>,
    ) -> Result<(), Error> {
        let catalog = self.catalog().await?;
        if let Some(removed) = catalog.schedules.get(name).filter(|item| item.is_removed()) {
            return self.finish_schedule(name, removed).await.map(drop);
        }
        for _ in 0..MAX_CONFLICT_RETRIES {
            let (catalog, item) = self.finished(name, Unreadable::Refuse).await?;
            let item = item.ok_or_else(|| missing(name))?;
            if if_match.is_some_and(|wanted| wanted != item.version) {
                return Err(Error::Stale { version: item.version });
            }
            let removed = self.write_schedule(&catalog, name, None, Unreadable::Refuse);
            if removed.await?.is_some() {
                return Ok(());
            }
        }
        Err(contended(name.as_str()))
    }

    /// Creates a job of a schedule now for the caller `enqueued_by`, in addition to its occurrences,
    /// even if it is paused. A repeat under the same key returns the job of the first call.
    ///
    /// # Errors
    ///
    /// 404 `schedule_not_found`; those of an enqueue.
    pub async fn run_schedule(
        &self,
        name: &ScheduleName,
        idempotency_key: Option<String>,
        enqueued_by: Option<String>,
    ) -> Result<Enqueued, Error> {
        let (item, _) = self.schedule(name).await?;
        let id = idempotency_key.map(|key| run_id(name, &key));
        let occurrence = occurrence(name, &item.config, &item.data, self.now());
        let origin = Some(Box::new(Origin::schedule(name.clone(), None)));
        let job = NewJob { id, run_at: None, enqueued_by, origin, ..occurrence };
        match self.enqueue(vec![job]).await.pop() {
            Some(Err(Error::Conflict { code: ErrorCode::IdTaken, holder: Some(id), .. })) => {
                Ok(Enqueued::existing(self.job(&id, None).await?))
            }
            answer => {
                answer.unwrap_or_else(|| Err(Error::Internal("an enqueue has no answer".into())))
            }
        }
    }
}

/// The version of a new schedule. It follows the rule in `state`, which a removed schedule of the
/// name may have left behind.
fn first_version(catalog: &Catalog, state: &ScheduleState) -> Result<u64, Error> {
    check_count(catalog)?;
    Ok(state.rule + 1)
}

/// Checks that there may be one more schedule.
fn check_count(catalog: &Catalog) -> Result<(), Error> {
    if catalog.schedules.len() < MAX_SCHEDULES {
        return Ok(());
    }
    let message = format!("there are {MAX_SCHEDULES} schedules, which is the maximum");
    Err(Error::Conflict { code: ErrorCode::TooManySchedules, message, holder: None })
}

fn missing(name: &ScheduleName) -> Error {
    Error::NotFound { code: ErrorCode::ScheduleNotFound, what: format!("schedule {name}") }
}
