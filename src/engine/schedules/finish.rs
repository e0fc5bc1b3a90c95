//! The second half of a change of a schedule: it removes the jobs made ahead by the old rule.

use std::sync::Arc;

use super::materialize::occurrence;
use crate::{
    Catalog, Engine, Error,
    config::{
        configure::{MAX_CONFLICT_RETRIES, bytes, contended},
        unreadable::Unreadable,
    },
    jobs::enqueue::digest,
};
use tidegate_core::{
    job::{Job, JobId, Revision, ScheduleName, State},
    port::{Committed, Txn, Write, job_store::ItemKind},
    schedule::{FAR_AHEAD, Replaced, ScheduleItem, occurrence_id},
    time::Timestamp,
};

/// Most jobs that one commit removes.
const MAX_REMOVED_JOBS: usize = 100;

impl Engine {
    /// Finishes earlier changes of this schedule. Returns the catalog, and the schedule in it; none
    /// if it cannot be read and is to be replaced.
    pub(super) async fn finished(
        &self,
        name: &ScheduleName,
        unreadable: Unreadable,
    ) -> Result<(Arc<Catalog>, Option<Arc<ScheduleItem>>), Error> {
        for _ in 0..MAX_CONFLICT_RETRIES {
            let catalog = self.catalog().await?;
            if unreadable == Unreadable::Refuse {
                catalog.refuse_unreadable(ItemKind::Schedule, name.as_str())?;
            }
            let current = catalog.schedules.get(name).cloned();
            match current.as_ref().filter(|item| item.replaced.is_some()) {
                Some(unfinished) => self.finish_schedule(name, unfinished).await.map(drop)?,
                None => return Ok((catalog, current)),
            }
        }
        Err(contended(name.as_str()))
    }

    /// Writes the item over version `was`, or removes that version if the item does not stay.
    /// Returns false if another version is stored.
    pub(super) async fn write_item(
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
        if !self.write_items(require.into_iter().chain([set]).collect()).await? {
            return Ok(false);
        }
        if !stays {
            // If this fails, the state stays. It names its rule, which no new schedule of the name
            // has.
            self.put_item(ItemKind::ScheduleState, name.as_str(), None).await?;
        }
        Ok(true)
    }

    /// Finishes the change that `item` started: removes the jobs made ahead by the rule that it
    /// replaces, then writes the final item or removes it. Returns that item. A repeat does
    /// nothing. A caller that finds the change finished, or the item changed again, leaves it.
    pub(crate) async fn finish_schedule(
        &self,
        name: &ScheduleName,
        item: &Arc<ScheduleItem>,
    ) -> Result<Arc<ScheduleItem>, Error> {
        let Some(replaced) = &item.replaced else {
            return Ok(Arc::clone(item));
        };
        self.remove_jobs_ahead(name, replaced).await?;
        let finished =
            ScheduleItem { version: item.version + 1, replaced: None, ..(**item).clone() };
        self.write_item(name, item.version, &finished, !replaced.removed, None).await?;
        Ok(Arc::new(finished))
    }

    /// Removes the jobs that a schedule made ahead and whose time has not come, if they wait
    /// unchanged. They leave nothing behind, so that the new rule can create its jobs under the
    /// same ids.
    async fn remove_jobs_ahead(
        &self,
        name: &ScheduleName,
        replaced: &Replaced,
    ) -> Result<(), Error> {
        let Replaced { config, data, rule, upto, .. } = replaced;
        let Some(recurrence) = config.recurrence() else {
            return Ok(());
        };
        let now = self.now();
        let upto = (*upto).min(now + FAR_AHEAD);
        // The job of the next occurrence may exist although the state does not record it yet.
        let last = recurrence.after(upto).unwrap_or(upto);
        let times: Vec<Timestamp> =
            recurrence.all_after(now).take_while(|at| *at <= last).collect();
        for times in times.chunks(MAX_REMOVED_JOBS) {
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
                found.filter_map(|(job, at)| job.ok()?.filter(|job| as_made(job, *at))).collect();
            if jobs.is_empty() {
                continue;
            }
            let remove =
                |job: &Job| vec![Write::RemoveJob { id: job.id.clone(), was: job.life.revision }];
            let txns: Vec<Txn> = jobs.iter().map(remove).collect();
            for (job, committed) in jobs.iter().zip(self.ports.store.commit(txns).await?) {
                // A job that was changed meanwhile stays. The objects of a removed one are deleted
                // by the call that removed it.
                if matches!(committed, Committed::All) {
                    Box::pin(self.forget_objects(job)).await;
                }
            }
        }
        Ok(())
    }
}
