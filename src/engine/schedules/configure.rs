//! What owners say of schedules: made, changed, paused, run out of turn. What comes of it is [`crate::schedules::materialize`]'s.
//!
//! ```text
//!   nothing made ahead:   one write of one item
//!   jobs made ahead:      the item as it is to be, with what it replaces ─▶ take back that one's jobs ─▶ the item alone, or none
//! ```
//!
//! The one thing to know: a change is done with its **first write**, on the condition that the schedule and its state are as they
//! were read. That a rule begins anew is said in the item itself, by the version at which it did, so that the state of the old
//! rule, stored apart, counts for nothing from that write on. If jobs were made ahead of their time and are to be others, or none,
//! that write also says what made them. Nothing occurs while it says so, and whoever comes next, be it a repeat, another change or
//! [`Engine::materialize`], first does what is left: takes them back, as if they had never been made.
//!
//! Any number may do that at once and at any time, for only the jobs of the rule that is over are removed: a job begins with its
//! rule as its revision, and a removal names that revision. So what the new rule made, what somebody changed and what a client put in
//! its place are never removed. Where transactions are not atomic, an occurrence whose writes were under way may add one job more
//! after that: it stays, and stands for its occurrence.

use std::sync::Arc;
use tidegate_core::error_code::ErrorCode;

use crate::{
    Catalog, Engine, Error,
    config::configure::{bytes, contended},
    jobs::enqueue::{digest, fault, is_reserved},
    plugins::registry::Checked,
    request::{Enqueued, NewJob},
    schedules::materialize::occurrence,
};
use tidegate_core::{
    job::{Job, JobId, Payload, Revision, ScheduleName, State, payload::MAX_DEPTH},
    port::{Committed, Txn, Write, job_store::ItemKind},
    schedule::{
        FAR_AHEAD, MAX_SCHEDULES, Replaced, SCHEDULE_DATA_BYTES, ScheduleConfig, ScheduleItem,
        ScheduleState, occurrence_id, run_id,
    },
    time::Timestamp,
    validate,
};

/// How often a change is tried against others'.
const TRIES: usize = 16;
/// Jobs that are taken back together.
const TOGETHER: usize = 100;

impl Engine {
    /// Sets a schedule as a whole. The item, and whether it is new.
    ///
    /// If when it occurs changes, or whether it is paused, it begins anew with what occurs from now on. So it does if something else changes
    /// and jobs were made ahead: those are taken back and made anew. Else it goes on where it is.
    ///
    /// # Errors
    ///
    /// 400 for a bad value, of its jobs too; 404 for their type; 409 `too_many_schedules`; 412 if `if_match` is not its version;
    /// 413 for its data; 503 if a plugin cannot be asked about their retry strategy.
    pub async fn put_schedule(
        &self,
        name: &ScheduleName,
        config: ScheduleConfig,
        data: Payload,
        if_match: Option<u64>,
    ) -> Result<(Arc<ScheduleItem>, bool), Error> {
        validate::check_schedule(&config).map_err(fault)?;
        if data.bytes.len() > SCHEDULE_DATA_BYTES {
            return Err(Error::TooLarge { field: "data", limit: SCHEDULE_DATA_BYTES });
        }
        data.check(MAX_DEPTH).map_err(|malformed| Error::malformed("data", &malformed))?;
        for _ in 0..TRIES {
            let (catalog, standing) = self.finished(name).await?;
            let was = standing.as_ref().map_or(0, |item| item.version);
            if if_match.is_some_and(|version| version != was) {
                return Err(Error::Stale { version: was });
            }
            self.check_occurrence(&catalog, name, &config, &data).await?;
            if let Some(item) = self.write_schedule(&catalog, name, Some((&config, &data))).await? {
                return Ok((item, was == 0));
            }
        }
        Err(contended(name.as_str()))
    }

    /// The configuration, once nothing is left to do of an earlier change of this schedule; and the schedule in it.
    async fn finished(
        &self,
        name: &ScheduleName,
    ) -> Result<(Arc<Catalog>, Option<Arc<ScheduleItem>>), Error> {
        for _ in 0..TRIES {
            let catalog = self.catalog().await?;
            let standing = catalog.schedules.get(name).cloned();
            match standing.as_ref().filter(|item| item.replaced.is_some()) {
                Some(half_done) => self.finish_schedule(name, half_done).await.map(drop)?,
                None => return Ok((catalog, standing)),
            }
        }
        Err(contended(name.as_str()))
    }

    /// Writes a schedule in the place of the one in `catalog`, which is finished; or removes it, where it is to be nothing. The item as it
    /// stands then, or stood last. None if something else stands there by now.
    async fn write_schedule(
        &self,
        catalog: &Catalog,
        name: &ScheduleName,
        to_be: Option<(&ScheduleConfig, &Payload)>,
    ) -> Result<Option<Arc<ScheduleItem>>, Error> {
        let standing = catalog.schedules.get(name);
        let (state_version, state) = self.schedule_states().await?.remove(name).unwrap_or_default();
        let now = self.now();
        let is = standing.map(|item| (&item.config, &item.data));
        let made_ahead =
            standing.filter(|item| is != to_be && item.state(state.clone()).upto > now);
        let version = match standing {
            Some(item) => item.version + 1,
            None => first_version(catalog, &state)?,
        };
        let recurs = |config: &ScheduleConfig| {
            to_be.is_some_and(|(to_be, _)| to_be.recurrence() == config.recurrence())
        };
        let goes_on = standing.filter(|item| made_ahead.is_none() && recurs(&item.config));
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
        // What would be made ahead in between was not reckoned with.
        let (kind, was) = (ItemKind::ScheduleState, standing.map_or(0, |item| item.version));
        let require = Write::RequireItem { kind, name: name.to_string(), version: state_version };
        let stays = to_be.is_some() || item.replaced.is_some();
        if !self.write_item(name, was, &item, stays, Some(require)).await? {
            return Ok(None);
        }
        self.finish_schedule(name, &item).await.map(Some)
    }

    /// Writes the item in the place of the one of version `was`, or, if it does not stay, removes that one. False if something else stands there.
    async fn write_item(
        &self,
        name: &ScheduleName,
        was: u64,
        item: &ScheduleItem,
        stays: bool,
        require: Option<Write>,
    ) -> Result<bool, Error> {
        let bytes = stays.then(|| bytes(item)).transpose()?;
        let set = Write::SetItem {
            kind: ItemKind::Schedule,
            name: name.to_string(),
            was,
            version: item.version,
            bytes,
        };
        let txn = require.into_iter().chain([set]).collect();
        if !matches!(self.ports.store.commit(vec![txn]).await?.pop(), Some(Committed::All)) {
            return Ok(false);
        }
        if !stays {
            // What is left behind if this fails is known by its rule, which a new schedule of the name has not.
            self.put_item(ItemKind::ScheduleState, name.as_str(), None).await?;
        }
        Ok(true)
    }

    /// Does what is left of the change that `item` is: takes back what was made ahead for what it replaced, and has it occur from then on,
    /// or be gone. The item then. A repeat does nothing, and whoever finds it done, or changed further, leaves it.
    pub(crate) async fn finish_schedule(
        &self,
        name: &ScheduleName,
        item: &Arc<ScheduleItem>,
    ) -> Result<Arc<ScheduleItem>, Error> {
        let Some(replaced) = &item.replaced else {
            return Ok(Arc::clone(item));
        };
        self.take_back(name, replaced).await?;
        let finished =
            ScheduleItem { version: item.version + 1, replaced: None, ..(**item).clone() };
        self.write_item(name, item.version, &finished, !replaced.removed, None).await?;
        Ok(Arc::new(finished))
    }

    /// Removes the jobs that a schedule made ahead and whose time has not come: each as it was made, waiting. They leave nothing
    /// behind, so that whatever the schedule is to do from now on makes its own under the same ids.
    async fn take_back(&self, name: &ScheduleName, replaced: &Replaced) -> Result<(), Error> {
        let Replaced { config, data, rule, upto, .. } = replaced;
        let Some(recurrence) = config.recurrence() else {
            return Ok(());
        };
        let now = self.now();
        let upto = (*upto).min(now + FAR_AHEAD);
        // The job of the next one may be there, and not yet be noted.
        let last = recurrence.after(upto).unwrap_or(upto);
        let times: Vec<Timestamp> =
            recurrence.all_after(now).take_while(|at| *at <= last).collect();
        for times in times.chunks(TOGETHER) {
            let ids: Vec<JobId> = times.iter().map(|at| occurrence_id(name, *at)).collect();
            let found = self.ports.store.get(&ids).await?.into_iter().zip(times);
            let as_made = |job: &Job, at: Timestamp| {
                let waits =
                    matches!(job.life.state, State::Scheduled { run_at, .. } if run_at > now);
                waits
                    && job.life.revision == Revision(*rule)
                    && job.spec.request_digest == digest(&occurrence(name, config, data, at))
            };
            let jobs: Vec<Job> =
                found.filter_map(|(job, at)| job.filter(|job| as_made(job, *at))).collect();
            if jobs.is_empty() {
                continue;
            }
            let remove =
                |job: &Job| vec![Write::RemoveJob { id: job.id.clone(), was: job.life.revision }];
            let txns: Vec<Txn> = jobs.iter().map(remove).collect();
            for (job, committed) in jobs.iter().zip(self.ports.store.commit(txns).await?) {
                // One that was changed meanwhile stays; of one that is gone somebody else sees to the rest.
                if matches!(committed, Committed::All) {
                    Box::pin(self.forget_objects(job)).await;
                }
            }
        }
        Ok(())
    }

    /// Checks that the jobs of a schedule would be accepted as things stand.
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
        let reserved = is_reserved(job_type.as_str());
        match catalog.types.get(job_type).filter(|_| !reserved) {
            Some(item) => {
                let now = self.now();
                self.resolve(&occurrence(name, config, data, now), catalog, item, [0; 16], now)
                    .map(drop)
            }
            None if self.rules.create_unknown_types && !reserved => Ok(()),
            None => Err(Error::NotFound {
                code: ErrorCode::JobTypeNotFound,
                what: format!("job type {job_type}"),
            }),
        }
    }

    /// Pauses a schedule, or lets it go on from now. While it is paused there are none of its jobs but those whose time had come.
    ///
    /// # Errors
    ///
    /// 404 `schedule_not_found`.
    pub async fn pause_schedule(
        &self,
        name: &ScheduleName,
        paused: bool,
    ) -> Result<Arc<ScheduleItem>, Error> {
        for _ in 0..TRIES {
            let (catalog, item) = self.finished(name).await?;
            let item = item.ok_or_else(|| missing(name))?;
            if item.config.paused == paused {
                return Ok(item);
            }
            let config = ScheduleConfig { paused, ..item.config.clone() };
            if let Some(item) =
                self.write_schedule(&catalog, name, Some((&config, &item.data))).await?
            {
                return Ok(item);
            }
        }
        Err(contended(name.as_str()))
    }

    /// A schedule, and how far it has come.
    ///
    /// # Errors
    ///
    /// 404 `schedule_not_found`.
    pub async fn schedule(
        &self,
        name: &ScheduleName,
    ) -> Result<(Arc<ScheduleItem>, ScheduleState), Error> {
        let item = self
            .catalog()
            .await?
            .schedules
            .get(name)
            .filter(|item| !item.is_removed())
            .cloned()
            .ok_or_else(|| missing(name))?;
        let stored = self.schedule_states().await?.remove(name).unwrap_or_default().1;
        let state = item.state(stored);
        Ok((item, state))
    }

    /// Every schedule and how far it has come, by name.
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
                let stored = states.remove(name).unwrap_or_default().1;
                (name.clone(), (Arc::clone(item), item.state(stored)))
            });
        Ok(all.collect())
    }

    /// Removes a schedule. The jobs that it made stay, but for those whose time has not come. A repeat does what is left to do.
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
        for _ in 0..TRIES {
            let (catalog, item) = self.finished(name).await?;
            let item = item.ok_or_else(|| missing(name))?;
            if if_match.is_some_and(|wanted| wanted != item.version) {
                return Err(Error::Stale { version: item.version });
            }
            if self.write_schedule(&catalog, name, None).await?.is_some() {
                return Ok(());
            }
        }
        Err(contended(name.as_str()))
    }

    /// Makes a job of a schedule now, beside its occurrences, paused or not. A repeat under the same key is answered with the
    /// first one's job.
    ///
    /// # Errors
    ///
    /// 404 `schedule_not_found`; as an enqueue.
    pub async fn run_schedule(
        &self,
        name: &ScheduleName,
        idempotency_key: Option<String>,
    ) -> Result<Enqueued, Error> {
        let (item, _) = self.schedule(name).await?;
        let id = idempotency_key.map(|key| run_id(name, &key));
        let job =
            NewJob { id, run_at: None, ..occurrence(name, &item.config, &item.data, self.now()) };
        match self.enqueue(vec![job]).await.pop() {
            Some(Err(Error::Conflict { code: ErrorCode::IdTaken, holder: Some(id), .. })) => {
                Ok(Enqueued { job: self.job(&id, None).await?, new: false })
            }
            answer => {
                answer.unwrap_or_else(|| Err(Error::Internal("an enqueue went unanswered".into())))
            }
        }
    }
}

/// The version of a new schedule: past that of an older one of the name whose `state` was left behind.
fn first_version(catalog: &Catalog, state: &ScheduleState) -> Result<u64, Error> {
    if catalog.schedules.len() >= MAX_SCHEDULES {
        let message = format!("there are {MAX_SCHEDULES} schedules already");
        return Err(Error::Conflict { code: ErrorCode::TooManySchedules, message, holder: None });
    }
    Ok(state.rule + 1)
}

fn missing(name: &ScheduleName) -> Error {
    Error::NotFound { code: ErrorCode::ScheduleNotFound, what: format!("schedule {name}") }
}
