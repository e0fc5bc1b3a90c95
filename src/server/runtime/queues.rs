//! Queues as methods of the server: their configuration, and their status.

use std::collections::BTreeMap;

use super::{Server, autoscaling};
use tidegate_core::{
    job::{QueueName, TypeName},
    port::job_store::{Depth, DueQuery, MAX_COUNTED_DUE, StateFilter},
    queue::{Order, QueueConfig, config::QueueItem},
    time::Timestamp,
};
use tidegate_engine::{Error, request::QueueStatus};

impl Server {
    /// Replaces a queue's configuration. The flag is `true` if the queue is new.
    ///
    /// # Errors
    ///
    /// 400; 403; 412 if `if_match` is not its version.
    pub async fn put_queue(
        &self,
        name: &QueueName,
        config: QueueConfig,
        if_match: Option<u64>,
    ) -> Result<(QueueItem, bool), Error> {
        let done = self.inner.engine.put_queue(name, config, if_match).await?;
        self.inner.wake(name);
        Ok(done)
    }

    /// A queue's configuration.
    ///
    /// # Errors
    ///
    /// 404.
    pub async fn queue(&self, name: &QueueName) -> Result<QueueItem, Error> {
        self.inner.engine.queue(name).await
    }

    /// Every configured queue and the default queue, by name.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn queues(&self) -> Result<Vec<(QueueName, QueueItem)>, Error> {
        let catalog = self.inner.engine.catalog().await?;
        let mut queues: BTreeMap<QueueName, QueueItem> =
            catalog.queues.iter().map(|(name, item)| (name.clone(), item.clone())).collect();
        queues
            .entry(tidegate_engine::config::configure::DEFAULT_QUEUE.parse().expect("a valid name"))
            .or_default();
        Ok(queues.into_iter().collect())
    }

    /// Removes a queue's configuration.
    ///
    /// # Errors
    ///
    /// 404; 409 `queue_has_live_jobs` or `queue_in_use`; 412.
    pub async fn delete_queue(&self, name: &QueueName, if_match: Option<u64>) -> Result<(), Error> {
        self.inner.engine.delete_queue(name, if_match).await
    }

    /// Pauses or resumes a queue.
    ///
    /// # Errors
    ///
    /// 404.
    pub async fn pause_queue(&self, name: &QueueName, paused: bool) -> Result<QueueItem, Error> {
        let item = self.inner.engine.pause_queue(name, paused).await?;
        self.inner.wake(name);
        Ok(item)
    }

    /// The status of a queue: depth, running weight, held jobs by rule, desired workers.
    ///
    /// # Errors
    ///
    /// 404.
    pub async fn queue_status(&self, name: &QueueName) -> Result<QueueStatus, Error> {
        let depth = self.inner.engine.ports().store.depth().await?;
        self.status_in(name, &depth).await
    }

    /// The status of each queue in `names`, from one read of all depths. `None`: no such queue.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn queue_statuses<'a>(
        &self,
        names: impl Iterator<Item = &'a QueueName> + Send,
    ) -> Result<Vec<Option<QueueStatus>>, Error> {
        let depth = self.inner.engine.ports().store.depth().await?;
        let mut statuses = Vec::new();
        for name in names {
            statuses.push(match self.status_in(name, &depth).await {
                Ok(status) => Some(status),
                Err(Error::NotFound { .. }) => None,
                Err(error) => return Err(error),
            });
        }
        Ok(statuses)
    }

    async fn status_in(&self, name: &QueueName, depths: &[Depth]) -> Result<QueueStatus, Error> {
        let engine = &self.inner.engine;
        engine.queue(name).await?;
        let catalog = engine.catalog().await?;
        let mut depth: BTreeMap<&'static str, u64> = BTreeMap::new();
        let mut types: Vec<TypeName> =
            catalog.types_of(name).map(|(name, _)| name.clone()).collect();
        let mut waiting = BTreeMap::new();
        for one in depths.iter().filter(|one| one.queue == *name) {
            *depth.entry(one.state.as_str()).or_default() += one.jobs;
            if one.state == StateFilter::Scheduled && one.jobs > 0 {
                if !types.contains(&one.job_type) {
                    types.push(one.job_type.clone());
                }
                waiting.insert(one.job_type.clone(), one.jobs);
            }
        }
        let now = engine.now();
        let due = engine.ports().store.count_due(name, &types, now, MAX_COUNTED_DUE).await?;
        let oldest = if due.is_empty() { None } else { self.oldest_due(name, &types, now).await? };
        let snapshot = self.inner.queue_snapshot(name).await?;
        let ready = due.values().sum();
        // Past the bound, every scheduled job counts as due.
        let all_counted = ready < u64::from(MAX_COUNTED_DUE);
        let backlog = if all_counted { due } else { waiting };
        let desired_workers =
            autoscaling::desired_workers(&catalog, name, &backlog, snapshot.mean_run_seconds);
        Ok(QueueStatus {
            depth,
            ready,
            running_weight: snapshot.running_weight,
            oldest_due_at: oldest,
            held: snapshot.held,
            desired_workers,
            lateness_seconds: snapshot.mean_lateness_seconds,
            constraints: engine.constraints_in_use(name).await?,
        })
    }

    /// The due time of the oldest due job.
    async fn oldest_due(
        &self,
        name: &QueueName,
        types: &[TypeName],
        now: Timestamp,
    ) -> Result<Option<Timestamp>, Error> {
        let (order, types) = (Order::Time { step_millis: 0 }, types.to_vec());
        let query = DueQuery {
            queue: name.clone(),
            critical: false,
            types,
            partition: None,
            order,
            until: now,
            after: None,
            limit: 1,
        };
        let queries = [DueQuery { critical: true, ..query.clone() }, query];
        let pages = self.inner.engine.ports().store.due(&queries).await?;
        Ok(pages.iter().filter_map(|page| page.jobs.first()?.life.run_at()).min())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::runtime::testing::builder;
    use tidegate_core::job::{Payload, type_config::TypeConfig};
    use tidegate_engine::{memory::FakeClock, request::NewJob, testkit::builders::name};

    #[tokio::test]
    async fn ready_jobs_are_counted_up_to_the_bound() {
        let server = builder(&Arc::new(FakeClock::default())).start().await.unwrap();
        server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
        for (jobs, ready) in [(MAX_COUNTED_DUE - 1, MAX_COUNTED_DUE - 1), (2, MAX_COUNTED_DUE)] {
            let jobs = (0..jobs).map(|_| NewJob::new(name("work"), Payload::null())).collect();
            assert!(server.enqueue_many(jobs).await.iter().all(Result::is_ok));
            let status = server.queue_status(&name("default")).await.unwrap();
            assert_eq!(status.ready, u64::from(ready));
        }
    }
}
