//! Lists of everything, for a move of the whole store.

use async_trait::async_trait;

use super::MemoryStore;
use tidegate_core::{
    job::{JobId, QueueName},
    port::{
        AllJobsPage, Movable,
        job_store::{Key, StoreError},
    },
};

#[async_trait]
impl Movable for MemoryStore {
    async fn all_jobs(&self, after: Option<&str>, limit: u32) -> Result<AllJobsPage, StoreError> {
        let records = self.records.lock();
        let is_behind = |id: &&JobId| after.is_none_or(|after| after < id.as_str());
        let mut ids: Vec<&JobId> = records.jobs.keys().filter(is_behind).collect();
        ids.sort_unstable();
        ids.truncate(limit as usize);
        let next = ids.last().filter(|_| ids.len() == limit as usize);
        let next = next.map(|id| id.as_str().to_owned());
        let jobs = ids.into_iter().map(|id| records.readable(&records.jobs[id])).collect();
        Ok(AllJobsPage { jobs, next })
    }

    async fn keys_of(&self, jobs: &[JobId]) -> Result<Vec<(Key, JobId)>, StoreError> {
        let records = self.records.lock();
        let of_jobs = records.keys.iter().filter(|(_, job)| jobs.contains(job));
        Ok(of_jobs.map(|(key, job)| (key.clone(), job.clone())).collect())
    }

    async fn ledger_queues(&self) -> Result<Vec<QueueName>, StoreError> {
        let mut queues: Vec<QueueName> = self.records.lock().ledgers.keys().cloned().collect();
        queues.sort_unstable();
        Ok(queues)
    }

    async fn complete_move(&self, least: u64) -> Result<(), StoreError> {
        let version = &mut self.records.lock().items_version;
        *version = least.max(*version);
        Ok(())
    }
}
