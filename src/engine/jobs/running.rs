//! The running jobs as this engine last saw them: saves a read per report.
//!
//! The one thing to know: a cached job may be evicted, because the store has it. An unclaimed
//! dispatch is never evicted, because the store still has it as scheduled.

use std::{collections::HashMap, num::NonZeroUsize};

use lru::LruCache;

use crate::{Engine, Error};
use tidegate_core::{
    job::{Job, JobId, QueueName},
    port::job_store::last_id,
};

/// Most jobs whose weights are added. A queue with limits runs no more.
const MAX_WEIGHED_JOBS: usize = 10_000;
/// How many running jobs one read returns.
const PAGE_JOBS: u32 = 1000;

/// Claimed jobs that one engine caches; past it the least recently used are evicted.
pub(crate) const MAX_CACHED_JOBS: NonZeroUsize = NonZeroUsize::new(16_384).expect("not zero");

/// Running jobs. A job is in one of the two maps.
pub(crate) struct RunningJobs {
    claimed: LruCache<JobId, Job>,
    unclaimed: HashMap<JobId, Job>,
}

impl Default for RunningJobs {
    fn default() -> Self {
        Self { claimed: LruCache::new(MAX_CACHED_JOBS), unclaimed: HashMap::new() }
    }
}

impl RunningJobs {
    /// The job as it was last seen; it counts as used.
    pub(crate) fn get(&mut self, id: &JobId) -> Option<&Job> {
        self.unclaimed.get(id).or_else(|| self.claimed.get(id))
    }

    pub(crate) fn get_mut(&mut self, id: &JobId) -> Option<&mut Job> {
        self.unclaimed.get_mut(id).or_else(|| self.claimed.get_mut(id))
    }

    /// Caches a job whose claim is in the store. It may evict another.
    pub(crate) fn insert(&mut self, job: Job) {
        self.unclaimed.remove(&job.id);
        self.claimed.put(job.id.clone(), job);
    }

    /// Keeps an unclaimed dispatch, until it is removed or claimed.
    pub(crate) fn insert_unclaimed(&mut self, job: Job) {
        self.claimed.pop(&job.id);
        self.unclaimed.insert(job.id.clone(), job);
    }

    pub(crate) fn remove(&mut self, id: &JobId) {
        self.unclaimed.remove(id);
        self.claimed.pop(id);
    }

    /// All jobs, in no order; none of them counts as used.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.unclaimed.values().chain(self.claimed.iter().map(|(_, job)| job))
    }
}

impl Engine {
    /// The weight of the running jobs of a queue that has no ledger, critical ones left out. Of
    /// more than 10,000 running jobs, the first count. A job that cannot be read counts as 1.
    /// `running` is how many the store has.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn running_weight(&self, queue: &QueueName, running: u64) -> Result<u64, Error> {
        let weight = |job: &Job| if job.spec.critical { 0 } else { u64::from(job.spec.weight) };
        if running == 0 {
            return Ok(0);
        }
        let (cached, sum) = {
            let cache = self.running.lock();
            let jobs = cache.iter().filter(|job| job.spec.queue == *queue);
            jobs.fold((0, 0), |(jobs, sum), job| (jobs + 1, sum + weight(job)))
        };
        if cached == running {
            return Ok(sum);
        }
        let (mut after, mut sum, mut jobs) = (None, 0, 0);
        loop {
            let page = self.ports.store.running(queue, after.as_ref(), PAGE_JOBS).await?;
            sum += page.iter().map(|job| job.as_ref().map_or(1, weight)).sum::<u64>();
            jobs += page.len();
            after = last_id(&page);
            if page.len() < PAGE_JOBS as usize || jobs >= MAX_WEIGHED_JOBS || after.is_none() {
                return Ok(sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::builders::{job, name};

    fn numbered(number: usize) -> Job {
        job(&format!("j{number}")).build()
    }

    #[test]
    fn a_full_cache_evicts_the_least_recently_used_job() {
        let mut running = RunningJobs::default();
        for number in 0..MAX_CACHED_JOBS.get() {
            running.insert(numbered(number));
        }
        assert!(running.get(&name("j0")).is_some());
        running.insert(numbered(MAX_CACHED_JOBS.get()));
        assert!(running.get(&name("j0")).is_some(), "it was used");
        assert!(running.get(&name("j1")).is_none(), "it was the oldest");
        assert_eq!(running.iter().count(), MAX_CACHED_JOBS.get());
    }

    #[test]
    fn an_unclaimed_dispatch_is_not_evicted() {
        let mut running = RunningJobs::default();
        running.insert_unclaimed(numbered(0));
        for number in 1..=MAX_CACHED_JOBS.get() {
            running.insert(numbered(number));
        }
        assert!(running.get(&name("j0")).is_some());
        assert_eq!(running.iter().count(), MAX_CACHED_JOBS.get() + 1);
        running.insert(numbered(0));
        assert_eq!(running.iter().count(), MAX_CACHED_JOBS.get(), "claimed, it counts");
    }
}
