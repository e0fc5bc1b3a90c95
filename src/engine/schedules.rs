//! What owners say of schedules: made, changed, paused, run out of turn. What comes of it is [`super::occur`]'s.
//!
//! The one thing to know: the change is one write of one item. That a rule begins anew is said in the item itself, by the
//! version at which it did, so that the state of the old rule, stored apart, counts for nothing from that write on.

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
    job::{Payload, ScheduleName, payload::MAX_DEPTH},
    port::{Committed, Write, job_store::ItemKind},
    queue::{
        ScheduleConfig, check,
        schedule::{MAX_SCHEDULES, SCHEDULE_DATA_BYTES, ScheduleItem, ScheduleState, run_id},
    },
};

/// How often a change is tried against others'.
const TRIES: usize = 16;

impl Engine {
    /// Sets a schedule as a whole. The item, and whether it is new.
    ///
    /// If when it occurs changes, or whether it is paused, it begins anew with what occurs from now on; else it goes on where it is.
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
        let goes_on = standing.filter(|item| item.config.recurrence() == config.recurrence());
        let (rule, since) = goes_on.map_or((version, self.now()), |item| (item.rule, item.since));
        let item = ScheduleItem { config: config.clone(), data: data.clone(), version, rule, since };
        let bytes = Some(bytes(&item)?);
        let write = Write::SetItem { kind: ItemKind::Schedule, name: name.to_string(), was, version, bytes };
        let written = matches!(self.ports.store.commit(vec![vec![write]]).await?.pop(), Some(Committed::All));
        Ok(written.then(|| Arc::new(item)))
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

    /// Pauses a schedule, or lets it go on from now.
    ///
    /// # Errors
    ///
    /// 404 `schedule_not_found`.
    pub async fn pause_schedule(&self, name: &ScheduleName, paused: bool) -> Result<Arc<ScheduleItem>, Error> {
        for _ in 0..TRIES {
            let catalog = self.catalog().await?;
            let item = catalog.schedules.get(name).ok_or_else(|| missing(name))?;
            if item.config.paused == paused {
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

    /// Removes a schedule. The jobs that it made stay.
    ///
    /// # Errors
    ///
    /// 404 `schedule_not_found`; 412.
    pub async fn delete_schedule(&self, name: &ScheduleName, if_match: Option<u64>) -> Result<(), Error> {
        for _ in 0..TRIES {
            let version = self.schedule(name).await?.0.version;
            if if_match.is_some_and(|wanted| wanted != version) {
                return Err(Error::Stale { version });
            }
            let kind = ItemKind::Schedule;
            let write = Write::SetItem { kind, name: name.to_string(), was: version, version: version + 1, bytes: None };
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
