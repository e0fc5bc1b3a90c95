//! What owners say of schedules: made, changed, paused, run out of turn. What comes of it is [`super::occur`]'s.
//!
//! The one thing to know: the change is one write of one item. That a rule begins anew is said in the item itself, by the
//! version at which it did, so that the state of the old rule, stored apart, counts for nothing from that write on. Jobs that
//! were made ahead of their time are taken back after it, as if they had never been made.

use std::sync::Arc;

use super::{
    Catalog, Engine, Error,
    configure::{bytes, contended},
    enqueue::{fault, is_reserved},
    occur::occurrence,
    plugins::Checked,
    request::{Enqueued, NewJob},
};
use crate::{
    job::{Job, JobId, Payload, ScheduleName, State, payload::MAX_DEPTH},
    port::{Committed, Txn, Write, job_store::ItemKind},
    queue::{
        ScheduleConfig, check,
        schedule::{FAR_AHEAD, MAX_SCHEDULES, SCHEDULE_DATA_BYTES, ScheduleItem, ScheduleState, occurrence_id, run_id},
    },
    time::Timestamp,
};

/// How often a change is tried against others'.
const TRIES: usize = 16;
/// Jobs that are taken back together.
const TOGETHER: usize = 100;

impl Engine {
    /// Sets a schedule as a whole. The item, and whether it is new.
    ///
    /// If when it occurs changes, or whether it is paused, it begins anew with what occurs from now on; else it goes on where it is. What was
    /// made ahead of its time and is not to be any more, or not so, is taken back.
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
        check::check_schedule(&config).map_err(fault)?;
        if data.bytes.len() > SCHEDULE_DATA_BYTES {
            return Err(Error::TooLarge { field: "data", limit: SCHEDULE_DATA_BYTES });
        }
        data.check(MAX_DEPTH).map_err(|malformed| Error::malformed("data", &malformed))?;
        for _ in 0..TRIES {
            let catalog = self.catalog().await?;
            let standing = catalog.schedules.get(name);
            let was = standing.map_or(0, |item| item.version);
            if if_match.is_some_and(|version| version != was) {
                return Err(Error::Stale { version: was });
            }
            self.check_occurrence(&catalog, name, &config, &data).await?;
            if let Some(item) = self.write_schedule(&catalog, name, &config, &data).await? {
                return Ok((item, was == 0));
            }
        }
        Err(contended(name.as_str()))
    }

    /// Writes a schedule in the place of the one in `catalog`, if it stands there still.
    async fn write_schedule(
        &self,
        catalog: &Catalog,
        name: &ScheduleName,
        config: &ScheduleConfig,
        data: &Payload,
    ) -> Result<Option<Arc<ScheduleItem>>, Error> {
        let standing = catalog.schedules.get(name);
        let was = standing.map_or(0, |item| item.version);
        let version = if standing.is_some() { was + 1 } else { self.first_version(catalog, name).await? };
        let now = self.now();
        let mut goes_on = standing.filter(|item| item.config.recurrence() == config.recurrence());
        if goes_on.is_some_and(|item| item.config != *config || item.data != *data) && self.made_upto(name).await? > now {
            // The jobs that it made ahead are to be others: it makes them anew.
            goes_on = None;
        }
        let (rule, since) = goes_on.map_or((version, now), |item| (item.rule, item.since));
        let item = ScheduleItem { config: config.clone(), data: data.clone(), version, rule, since };
        let bytes = Some(bytes(&item)?);
        let write = Write::SetItem { kind: ItemKind::Schedule, name: name.to_string(), was, version, bytes };
        if !matches!(self.ports.store.commit(vec![vec![write]]).await?.pop(), Some(Committed::All)) {
            return Ok(None);
        }
        if let Some(old) = standing.filter(|_| goes_on.is_none()) {
            self.take_back(name, &old.config, self.made_upto(name).await?).await?;
        }
        Ok(Some(Arc::new(item)))
    }

    /// Up to when a schedule has made its jobs, under whichever rule.
    async fn made_upto(&self, name: &ScheduleName) -> Result<Timestamp, Error> {
        Ok(self.schedule_states().await?.remove(name).unwrap_or_default().1.upto)
    }

    /// Removes the jobs that a schedule made ahead, up to `upto`, and whose time has not come: each as it was made, waiting. They leave
    /// nothing behind, so that whatever the schedule is to do from now on makes its own under the same ids.
    async fn take_back(&self, name: &ScheduleName, config: &ScheduleConfig, upto: Timestamp) -> Result<(), Error> {
        let now = self.now();
        let upto = upto.min(now + FAR_AHEAD);
        let Some(recurrence) = (ScheduleConfig { paused: false, ..config.clone() }).recurrence().filter(|_| upto > now) else {
            return Ok(());
        };
        let ids: Vec<JobId> = recurrence.all_after(now).take_while(|at| *at <= upto).map(|at| occurrence_id(name, at)).collect();
        for ids in ids.chunks(TOGETHER) {
            let found = self.ports.store.get(ids).await?.into_iter().flatten();
            let waits = |job: &Job| matches!(job.life.state, State::Scheduled { run_at, .. } if run_at > now) && job.life.attempt == 0;
            let jobs: Vec<Job> = found.filter(waits).collect();
            if jobs.is_empty() {
                continue;
            }
            let remove = |job: &Job| vec![Write::RemoveJob { id: job.id.clone(), was: job.life.revision }];
            let txns: Vec<Txn> = jobs.iter().map(remove).collect();
            for (job, committed) in jobs.iter().zip(self.ports.store.commit(txns).await?) {
                // Of one that was changed meanwhile nothing is known: it stays.
                if matches!(committed, Committed::All) {
                    Box::pin(self.forget_objects(job)).await;
                }
            }
        }
        Ok(())
    }

    /// The version of a new schedule: past that of an older one of the name whose state was left behind.
    async fn first_version(&self, catalog: &Catalog, name: &ScheduleName) -> Result<u64, Error> {
        if catalog.schedules.len() >= MAX_SCHEDULES {
            let message = format!("there are {MAX_SCHEDULES} schedules already");
            return Err(Error::Conflict { code: "too_many_schedules", message, holder: None });
        }
        Ok(self.schedule_states().await?.get(name).map_or(0, |(_, state)| state.rule) + 1)
    }

    /// Checks that the jobs of a schedule would be accepted as things stand.
    async fn check_occurrence(&self, catalog: &Catalog, name: &ScheduleName, config: &ScheduleConfig, data: &Payload) -> Result<(), Error> {
        if let Some(retry) = &config.retry {
            self.check_retry(catalog, retry, &mut Checked::default()).await?;
        }
        let job_type = &config.job_type;
        let reserved = is_reserved(job_type.as_str());
        match catalog.types.get(job_type).filter(|_| !reserved) {
            Some(item) => {
                let now = self.now();
                self.resolve(&occurrence(name, config, data, now), catalog, item, [0; 16], now).map(drop)
            }
            None if self.rules.create_unknown_types && !reserved => Ok(()),
            None => Err(Error::NotFound { code: "job_type_not_found", what: format!("job type {job_type}") }),
        }
    }

    /// Pauses a schedule, or lets it go on from now. While it is paused there are none of its jobs but those whose time had come.
    ///
    /// # Errors
    ///
    /// 404 `schedule_not_found`.
    pub async fn pause_schedule(&self, name: &ScheduleName, paused: bool) -> Result<Arc<ScheduleItem>, Error> {
        for _ in 0..TRIES {
            let catalog = self.catalog().await?;
            let item = catalog.schedules.get(name).ok_or_else(|| missing(name))?;
            if item.config.paused == paused {
                if paused {
                    // Whoever paused it may have died before this.
                    self.take_back(name, &item.config, self.made_upto(name).await?).await?;
                }
                return Ok(Arc::clone(item));
            }
            let config = ScheduleConfig { paused, ..item.config.clone() };
            if let Some(item) = self.write_schedule(&catalog, name, &config, &item.data).await? {
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
    pub async fn schedule(&self, name: &ScheduleName) -> Result<(Arc<ScheduleItem>, ScheduleState), Error> {
        let item = self.catalog().await?.schedules.get(name).cloned().ok_or_else(|| missing(name))?;
        let stored = self.schedule_states().await?.remove(name).unwrap_or_default().1;
        let state = item.state(stored);
        Ok((item, state))
    }

    /// Every schedule and how far it has come, by name.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn schedules(&self) -> Result<Vec<(ScheduleName, (Arc<ScheduleItem>, ScheduleState))>, Error> {
        let catalog = self.catalog().await?;
        let mut states = self.schedule_states().await?;
        let all = catalog.schedules.iter().map(|(name, item)| {
            let stored = states.remove(name).unwrap_or_default().1;
            (name.clone(), (Arc::clone(item), item.state(stored)))
        });
        Ok(all.collect())
    }

    /// Removes a schedule. The jobs that it made stay, but for those whose time has not come.
    ///
    /// # Errors
    ///
    /// 404 `schedule_not_found`; 412.
    pub async fn delete_schedule(&self, name: &ScheduleName, if_match: Option<u64>) -> Result<(), Error> {
        for _ in 0..TRIES {
            let catalog = self.catalog().await?;
            let item = catalog.schedules.get(name).ok_or_else(|| missing(name))?;
            if if_match.is_some_and(|wanted| wanted != item.version) {
                return Err(Error::Stale { version: item.version });
            }
            // Paused first: if this dies half way nothing occurs any more, and a repeat removes what is left.
            let item = if item.config.paused {
                self.take_back(name, &item.config, self.made_upto(name).await?).await?;
                Arc::clone(item)
            } else {
                let paused = ScheduleConfig { paused: true, ..item.config.clone() };
                let Some(item) = self.write_schedule(&catalog, name, &paused, &item.data).await? else { continue };
                item
            };
            let (kind, was) = (ItemKind::Schedule, item.version);
            let write = Write::SetItem { kind, name: name.to_string(), was, version: was + 1, bytes: None };
            if matches!(self.ports.store.commit(vec![vec![write]]).await?.pop(), Some(Committed::All)) {
                // What is left behind if this fails is known by its rule, which a new schedule of the name has not.
                return self.put_item(ItemKind::ScheduleState, name.as_str(), None).await;
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
    pub async fn run_schedule(&self, name: &ScheduleName, idempotency_key: Option<String>) -> Result<Enqueued, Error> {
        let (item, _) = self.schedule(name).await?;
        let id = idempotency_key.map(|key| run_id(name, &key));
        let job = NewJob { id, run_at: None, ..occurrence(name, &item.config, &item.data, self.now()) };
        match self.enqueue(vec![job]).await.pop() {
            Some(Err(Error::Conflict { code: "id_taken", holder: Some(id), .. })) => {
                Ok(Enqueued { job: self.job(&id, None).await?, new: false })
            }
            answer => answer.unwrap_or_else(|| Err(Error::Internal("an enqueue went unanswered".into()))),
        }
    }
}

fn missing(name: &ScheduleName) -> Error {
    Error::NotFound { code: "schedule_not_found", what: format!("schedule {name}") }
}
