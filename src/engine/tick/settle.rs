//! Settles the reports of a tick: each is applied to the job that it names.

use std::collections::HashMap;

use super::{
    Candidates, TickCache, TickContext, TickInput, TickOutcome,
    plan::{JobChange, TickPlan},
};
use crate::{Catalog, Engine, Error, jobs::report::Settled, request::Report};
use tidegate_core::{
    job::{Job, JobId, QueueName, Revision, Version},
    port::job_store::StoredJob,
    time::Timestamp,
};

/// The jobs that the reports name, as this process last saw them.
#[derive(Default)]
pub(super) struct KnownJobs {
    jobs: HashMap<JobId, StoredJob>,
    /// The revisions in the store of those that are unclaimed dispatches, which were read before
    /// the jobs. A later revision may be that of a change which these values do not have.
    dispatched: HashMap<JobId, Revision>,
}

impl KnownJobs {
    /// Replaces a job by what the store has.
    pub(super) fn insert(&mut self, id: &JobId, stored: StoredJob) {
        self.dispatched.remove(id);
        self.jobs.insert(id.clone(), stored);
    }

    /// The job that a report names.
    ///
    /// # Errors
    ///
    /// 404 `job_not_found`; [`Error::Unreadable`].
    pub(super) fn get(&self, id: &JobId) -> Result<Job, Error> {
        self.jobs.get(id).cloned().unwrap_or(Ok(None))?.ok_or_else(|| Error::no_job(id))
    }
}

impl Engine {
    /// The jobs that `reports` name, from the cache or the store.
    pub(super) async fn known_jobs(&self, reports: &[Report]) -> Result<KnownJobs, Error> {
        let attempts: Vec<(JobId, u16)> =
            reports.iter().map(|report| (report.id.clone(), report.attempt)).collect();
        let revision = |(id, _): &(JobId, u16)| Some((id.clone(), self.unclaimed.revision(id)?));
        let dispatched = attempts.iter().filter_map(revision).collect();
        let jobs =
            if attempts.is_empty() { Vec::new() } else { self.cached_attempts(&attempts).await? };
        let jobs = attempts.into_iter().map(|(id, _)| id).zip(jobs).collect();
        Ok(KnownJobs { jobs, dispatched })
    }

    /// Settles the reports of jobs of `queue` and admits nothing, for a caller that leaves ticks to
    /// other processes. The slots become free when a tick takes the hints in [`TickOutcome::left`].
    ///
    /// # Errors
    ///
    /// The store's; repeating the reports is harmless.
    pub async fn report(
        &self,
        queue: &QueueName,
        reports: Vec<Report>,
    ) -> Result<TickOutcome, Error> {
        let mut known = self.known_jobs(&reports).await?;
        self.settle_without_ledger(queue, reports, &mut known).await
    }

    /// Settles each report in a transaction of its own, and does not touch the ledger if there is
    /// one. What the reports release is returned as hints.
    pub(super) async fn settle_without_ledger(
        &self,
        queue: &QueueName,
        reports: Vec<Report>,
        known: &mut KnownJobs,
    ) -> Result<TickOutcome, Error> {
        let running = |job: &Job| job.life.running().map(|_| job.life.version);
        let before: Vec<Option<Version>> =
            reports.iter().map(|report| running(&known.get(&report.id).ok()?)).collect();
        let input = TickInput { reports, ..TickInput::default() };
        let catalog = self.recent_catalog().await?;
        let limits = catalog.limits(queue);
        let context = TickContext {
            queue,
            input: &input,
            catalog: &catalog,
            limits: &limits,
            from_cache: false,
            closed: &[],
        };
        let cache = &mut TickCache::default();
        let mut outcome = self.tick_unlimited(&context, cache, known, Candidates::Due).await?;
        let settled = outcome.reports.iter().zip(before);
        outcome.left = settled
            .filter_map(|(answer, version)| Some((answer.as_ref().ok()?, version?)))
            .filter(|(job, version)| job.life.version > *version)
            .map(|(job, version)| (job.id.clone(), version))
            .collect();
        Box::pin(self.forget_after(&input.reports, &outcome)).await;
        Ok(outcome)
    }

    /// Applies each report to its job: adds the changes to the plan and returns the answers.
    pub(super) fn settle_all(
        &self,
        input: &TickInput,
        known: &KnownJobs,
        catalog: &Catalog,
        plan: &mut TickPlan,
        now: Timestamp,
    ) -> Vec<Result<Job, Error>> {
        // The indices in `plan.before`.
        let mut settled: HashMap<&JobId, usize> = HashMap::new();
        input
            .reports
            .iter()
            .enumerate()
            .map(|(index, report)| {
                let job = match settled.get(&report.id) {
                    Some(index) => plan.before[*index].job.clone(),
                    None => known.get(&report.id)?,
                };
                match self.settle(&job, report, catalog, now)? {
                    Settled::Repeated => {
                        plan.repeated.insert(index);
                        Ok(job)
                    }
                    Settled::Changed(after) => {
                        let unnamed = job.object_keys();
                        let unnamed =
                            unnamed.filter(|key| !after.object_keys().any(|named| named == *key));
                        let unnamed = unnamed.map(|key| (job.id.clone(), key.to_owned()));
                        plan.unnamed_objects.extend(unnamed);
                        let was = known.dispatched.get(&report.id).copied();
                        let was = was.unwrap_or(job.life.revision);
                        let mut after = *after;
                        after.life.revision = Revision(was.0 + 1);
                        settled.insert(&report.id, plan.before.len());
                        plan.before.push(JobChange { job: after.clone(), was });
                        Ok(after)
                    }
                }
            })
            .collect()
    }

    /// Removes reported jobs from the cache, except unclaimed dispatches, which only it has.
    pub(super) fn forget(&self, input: &TickInput) {
        let mut running = self.running.lock();
        for report in
            input.reports.iter().filter(|report| !self.unclaimed.is_dispatched(&report.id))
        {
            running.remove(&report.id);
        }
    }
}
