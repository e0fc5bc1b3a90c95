//! Queues as methods of the server: their configuration, and their status.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{Server, autoscaling, embedded::queue_task::QueueSnapshot, workers::Workers};
use tidegate_core::{
    job::{QueueName, TypeName},
    port::job_store::{Depths, StateFilter},
    queue::{
        QueueConfig,
        config::{QueueItem, SCAN_BOUND},
    },
    time::Timestamp,
};
use tidegate_engine::{
    Catalog, Error,
    request::{QueueExplanation, QueueStatus},
};

/// The status of a queue says what holds this many due jobs, at most.
const MAX_STATUS_JOBS: u32 = 100;
/// Most jobs due later that a status reads, to know whether they are retries: of one queue, and of
/// each queue of a list, which dashboards ask for every other second.
const MAX_STATUS_LATER: u32 = 1000;
const MAX_LISTED_LATER: u32 = 100;
/// A list of queues says what holds their jobs as it was this long ago, at most: each answer takes
/// reads and a call of the throttler, and dashboards ask every other second.
const MAX_EXPLANATION_AGE: Duration = Duration::from_secs(1);
/// How many queues of a list are explained at the same time.
const CONCURRENT_STATUSES: usize = 8;
/// Most explanations that are kept.
const MAX_EXPLANATIONS: usize = 1000;

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
        self.inner.explanations.lock().remove(name);
        self.inner.wake(name);
        Ok(done)
    }

    /// What [`Self::put_queue`] would store, at the stored version.
    ///
    /// # Errors
    ///
    /// As [`Self::put_queue`].
    pub async fn preview_queue(
        &self,
        name: &QueueName,
        config: QueueConfig,
        if_match: Option<u64>,
    ) -> Result<QueueItem, Error> {
        self.inner.engine.preview_queue(name, config, if_match).await
    }

    /// [`Self::put_queue`], also over a stored configuration that cannot be read; the queue is then
    /// paused.
    ///
    /// # Errors
    ///
    /// As [`Self::put_queue`].
    pub async fn replace_queue(
        &self,
        name: &QueueName,
        config: QueueConfig,
        if_match: Option<u64>,
    ) -> Result<(QueueItem, bool), Error> {
        let done = self.inner.engine.replace_queue(name, config, if_match).await?;
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
        self.inner.explanations.lock().remove(name);
        self.inner.wake(name);
        Ok(item)
    }

    /// The status of a queue: depth, running weight, held jobs by rule, desired workers.
    ///
    /// # Errors
    ///
    /// 404.
    pub async fn queue_status(&self, name: &QueueName) -> Result<QueueStatus, Error> {
        let depth = self.inner.engine.ports().store.depth(Some(name)).await?;
        let workers = self.shared_workers().await?;
        let catalog = self.inner.engine.catalog().await?;
        self.status_in(name, &catalog, &depth, &workers, Duration::ZERO).await
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
        let depth = &self.inner.engine.ports().store.depth(None).await?;
        let workers = &*self.shared_workers().await?;
        let catalog = &*self.inner.engine.catalog().await?;
        let statuses = names.map(|name| async move {
            match self.status_in(name, catalog, depth, workers, MAX_EXPLANATION_AGE).await {
                Ok(status) => Ok(Some(status)),
                Err(Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        });
        stream::iter(statuses.collect::<Vec<_>>()).buffered(CONCURRENT_STATUSES).try_collect().await
    }

    /// Why a queue is idle or slow.
    ///
    /// # Errors
    ///
    /// 404; the store's.
    pub async fn explain_queue(&self, name: &QueueName) -> Result<QueueExplanation, Error> {
        let depth = self.inner.engine.ports().store.depth(Some(name)).await?;
        self.explain_in(name, &depth, SCAN_BOUND).await
    }

    /// The explanation of a queue from its first `most` due jobs.
    async fn explain_in(
        &self,
        name: &QueueName,
        depths: &Depths,
        most: u32,
    ) -> Result<QueueExplanation, Error> {
        let workers = self.inner.worker_status(name).await?;
        self.inner.engine.explain_queue(name, &depths.counts, most, &*workers).await
    }

    /// The explanation of a queue for its status, at most `max_age` old.
    pub(super) async fn explain_for_status(
        &self,
        name: &QueueName,
        depths: &Depths,
        max_age: Duration,
    ) -> Result<Arc<QueueExplanation>, Error> {
        let now = self.now();
        // One from the future was made before the clock was set back.
        let is_recent = |at: Timestamp, max_age| at <= now && now.since(at) < max_age;
        if let Some((at, kept)) = self.inner.explanations.lock().get(name)
            && is_recent(*at, max_age)
        {
            return Ok(Arc::clone(kept));
        }
        let limits = self.inner.engine.catalog().await?.limits(name);
        let most = if limits.queue.constraints.is_empty() { MAX_STATUS_JOBS } else { SCAN_BOUND };
        let explanation = Arc::new(self.explain_in(name, depths, most).await?);
        let mut kept = self.inner.explanations.lock();
        if kept.len() >= MAX_EXPLANATIONS && !kept.contains_key(name) {
            let oldest = kept.iter().min_by_key(|(_, (at, _))| *at).map(|(name, _)| name.clone());
            oldest.map(|oldest| kept.remove(&oldest));
        }
        kept.insert(name.clone(), (now, Arc::clone(&explanation)));
        Ok(explanation)
    }

    async fn status_in(
        &self,
        name: &QueueName,
        catalog: &Catalog,
        depths: &Depths,
        workers: &Workers,
        max_age: Duration,
    ) -> Result<QueueStatus, Error> {
        let engine = &self.inner.engine;
        catalog.queue(name)?;
        let mut depth: BTreeMap<&'static str, u64> = BTreeMap::new();
        let mut types: Vec<TypeName> =
            catalog.types_of(name).map(|(name, _)| name.clone()).collect();
        for one in depths.counts.iter().filter(|one| one.queue == *name) {
            *depth.entry(one.state.as_str()).or_default() += one.jobs;
            let waits = one.state == StateFilter::Scheduled && one.jobs > 0;
            if waits && !types.contains(&one.job_type) {
                types.push(one.job_type.clone());
            }
        }
        let now = engine.now();
        let store = &engine.ports().store;
        // A queue without live jobs is not read.
        let is_idle = depths.kept.as_ref().is_some_and(|kept| !kept.contains_key(name));
        let most = store.capabilities().max_counted_due;
        let due = if is_idle {
            BTreeMap::new()
        } else {
            store.count_due(name, &types, now, most).await?
        };
        let oldest = if due.is_empty() {
            None
        } else {
            let oldest = engine.oldest_due([(name.clone(), types)].into(), now).await?;
            oldest.into_values().next().flatten()
        };
        let snapshot = if is_idle {
            QueueSnapshot::default()
        } else {
            self.inner.queue_snapshot(name).await?
        };
        let explanation = if is_idle {
            Arc::default()
        } else if due.is_empty() {
            let constraints = engine.constraints_in_use(name).await?;
            Arc::new(QueueExplanation { constraints, ..QueueExplanation::default() })
        } else {
            self.explain_for_status(name, depths, max_age).await?
        };
        let most = if max_age.is_zero() { MAX_STATUS_LATER } else { MAX_LISTED_LATER };
        let counts = engine.count_phases(name, &depths.counts, Some(&due), now, most).await?;
        let mut phases: BTreeMap<&'static str, u64> = BTreeMap::new();
        for ((_, phase), jobs) in counts {
            *phases.entry(phase.as_str()).or_default() += jobs;
        }
        let QueueExplanation { held, startable, constraints, more, .. } = &*explanation;
        let ready = due.values().sum();
        let desired_workers = autoscaling::desired_workers(
            catalog,
            name,
            &due,
            (startable, *more),
            &snapshot.mean_run_seconds,
        );
        let running = depth.get(StateFilter::Running.as_str()).copied().unwrap_or_default();
        let kept = depths.kept.as_ref().map(|kept| kept.get(name).copied());
        let running_weight = match (snapshot.running_weight, kept) {
            (Some(weight), _) => weight,
            (None, Some(kept)) => kept.map_or(0, |kept| kept.running_weight),
            (None, None) => engine.running_weight(name, running).await?,
        };
        let counted_at = kept.map(|kept| kept.map_or(now, |kept| kept.at));
        let depth_at_least = kept.flatten().is_some_and(|kept| kept.at_least);
        Ok(QueueStatus {
            depth,
            phases,
            counted_at,
            depth_at_least,
            ready,
            running_weight,
            oldest_due_at: oldest,
            held: held.clone(),
            desired_workers,
            workers: self.inner.active_workers(workers, name, catalog),
            lateness_seconds: snapshot.mean_lateness_seconds,
            constraints: constraints.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::runtime::testing::builder;
    use tidegate_core::{
        job::{Payload, type_config::TypeConfig},
        time::Seconds,
    };
    use tidegate_engine::{memory::FakeClock, request::NewJob, testkit::builders::name};

    #[tokio::test]
    async fn more_due_jobs_than_a_tick_reads_are_counted() {
        let server = builder(&Arc::new(FakeClock::default())).start().await.unwrap();
        server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
        for ready in [SCAN_BOUND, 2 * SCAN_BOUND] {
            let new = || NewJob::new(name("work"), Payload::null());
            let jobs = (0..SCAN_BOUND).map(|_| new()).collect();
            assert!(server.enqueue_many(jobs).await.iter().all(Result::is_ok));
            let status = server.queue_status(&name("default")).await.unwrap();
            assert_eq!(status.ready, u64::from(ready));
        }
    }

    #[tokio::test]
    async fn a_status_counts_jobs_by_phase() {
        let server = builder(&Arc::new(FakeClock::default())).start().await.unwrap();
        server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
        let in_an_hour = Some(Seconds::new(3600));
        let new =
            |delay_seconds| NewJob { delay_seconds, ..NewJob::new(name("work"), Payload::null()) };
        let phases = async || server.queue_status(&name("default")).await.unwrap().phases;
        assert!(phases().await.is_empty());
        // Due jobs alone, then with a few later ones, then with more than are looked at.
        for (delay, jobs) in [(None, 2), (in_an_hour, 3), (in_an_hour, MAX_STATUS_LATER)] {
            let jobs = (0..jobs).map(|_| new(delay)).collect();
            assert!(server.enqueue_many(jobs).await.iter().all(Result::is_ok));
            let phases = phases().await;
            assert_eq!(phases["ready"], 2, "{phases:?}");
            let scheduled = phases.get("scheduled").copied().unwrap_or_default();
            let depth = server.queue_status(&name("default")).await.unwrap().depth;
            assert_eq!(depth["scheduled"], 2 + scheduled, "{phases:?}");
        }
    }

    #[tokio::test]
    async fn a_list_of_queues_explains_them_again_after_a_second() {
        let clock = Arc::new(FakeClock::default());
        let server = builder(&clock).start().await.unwrap();
        server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
        let queue: QueueName = name("default");
        server.pause_queue(&queue, true).await.unwrap();
        let enqueue = async || {
            server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap();
        };
        let held = |status: &QueueStatus| status.held.iter().map(|held| held.jobs).sum::<u64>();
        let listed = async || {
            let statuses = server.queue_statuses([&queue].into_iter()).await.unwrap();
            held(statuses[0].as_ref().unwrap())
        };
        enqueue().await;
        assert_eq!(listed().await, 1);
        enqueue().await;
        assert_eq!(listed().await, 1, "explained at this instant already");
        let status = server.queue_status(&queue).await.unwrap();
        assert_eq!(held(&status), 2, "a lone status is never old");
        enqueue().await;
        clock.advance(MAX_EXPLANATION_AGE);
        assert_eq!(listed().await, 3);
        clock.set(server.now() - Duration::from_mins(1));
        enqueue().await;
        assert_eq!(listed().await, 1, "made again: the others are due a minute later");
    }
}
