//! The partitions of a queue that have waiting jobs, and the running jobs of a queue.

use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt, future, stream};

use super::{DynamoStore, bucket::Bucket, due::PAGE_ENTRIES, partition::Reader};
use tidegate_core::{
    job::{Job, JobId, QueueName, TypeName},
    port::{StoreError, job_store::UnreadableJob},
};

/// Partitions that are read at once.
const MAX_CONCURRENT_READS: usize = 16;

impl DynamoStore {
    pub(super) async fn waiting_partitions(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        let due = self.open(queue, None, None, false);
        let late = self.open(queue, None, None, true);
        let (due, late) = future::try_join(due, late).await?;
        let mut partitions: BTreeMap<String, Vec<Bucket>> = BTreeMap::new();
        for bucket in due.into_iter().chain(late) {
            let is_after = after.is_none_or(|after| after < bucket.partition.as_str());
            if is_after && bucket.is_of(types) {
                partitions.entry(bucket.partition.clone()).or_default().push(bucket);
            }
        }
        let waiting = partitions.into_iter().map(|(name, buckets)| async move {
            let waits = self.has_waiting(queue, types, &name, buckets).await?;
            Ok(waits.then_some(name))
        });
        let waiting: Vec<_> = waiting.collect();
        let found = stream::iter(waiting).buffered(MAX_CONCURRENT_READS);
        let found = found.try_filter_map(future::ok).take(limit);
        found.try_collect().await
    }

    /// Whether a job waits in one of `buckets`, which are the buckets of `partition`.
    async fn has_waiting(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        partition: &str,
        buckets: Vec<Bucket>,
    ) -> Result<bool, StoreError> {
        for bucket in buckets {
            let mut reader = Reader::new(self, bucket, None, None).behind_passed();
            let mut size = 8;
            while let Some(seen) = reader.page(size).await? {
                let waits = |job: &Job| {
                    job.life.run_at().is_some()
                        && job.spec.queue == *queue
                        && types.contains(&job.spec.job_type)
                        && job.spec.partition == partition
                };
                if seen.iter().filter_map(|seen| seen.job.as_ref()).any(waits) {
                    return Ok(true);
                }
                size = (size * 4).min(PAGE_ENTRIES);
            }
        }
        Ok(false)
    }

    pub(super) async fn running_jobs(
        &self,
        queue: &QueueName,
        after: Option<&JobId>,
        limit: usize,
    ) -> Result<Vec<Result<Job, UnreadableJob>>, StoreError> {
        let mut buckets = self.open(queue, None, None, false).await?;
        buckets.extend(self.open(queue, None, None, true).await?);
        let mut running: BTreeMap<String, Result<Job, UnreadableJob>> = BTreeMap::new();
        for bucket in buckets {
            let reader = Reader::new(self, bucket, None, None).with_running();
            for seen in self.read_whole(reader).await? {
                let runs = |job: &Job| job.life.running().is_some() && job.spec.queue == *queue;
                if let Some(job) = seen.job.filter(runs) {
                    running.insert(job.id.to_string(), Ok(job));
                }
                // Neither its state nor its queue is known.
                if let Some(unreadable) = seen.unreadable {
                    running.insert(unreadable.id.clone(), Err(unreadable));
                }
            }
        }
        running.retain(|id, _| after.is_none_or(|after| after.as_str() < id.as_str()));
        Ok(running.into_values().take(limit).collect())
    }
}
