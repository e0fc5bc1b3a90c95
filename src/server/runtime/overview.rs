//! The overview of many queues: from what the sweep counts anyway, and the history in memory.
//!
//! ```text
//!   phases, weights, oldest due jobs ◀─ the latest measurement of the sweeper; on AWS of the sweep
//!   rates, minutes, start delays     ◀─ the steps of the history
//!   held jobs, desired workers       ◀─ explanations, kept for some seconds
//! ```
//!
//! An answer reads the store for at most [`MAX_EXPLAINED`] queues: those with due jobs whose
//! explanation is the oldest. So a page of hundreds of queues is as quick as one of few.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};

use super::{Error, Server, autoscaling, history::QueueHour};
use tidegate_api::{OverviewMinute, Quantiles, Throughput};
use tidegate_core::{
    job::{Phase, QueueName, TypeName},
    port::job_store::Depths,
    queue::config::QueueItem,
    time::Timestamp,
};
use tidegate_engine::{
    jobs::phases::PhaseCounts,
    request::{HeldJobs, QueueExplanation},
};

/// Most queues that an answer explains again.
const MAX_EXPLAINED: usize = 16;
/// How many of them are explained at the same time.
const CONCURRENT_EXPLANATIONS: usize = 8;
/// How old an explanation may be without being made again, in the embedded and in the serverless
/// mode, where each costs reads.
const EXPLANATION_AGE: Duration = Duration::from_secs(5);
const SERVERLESS_EXPLANATION_AGE: Duration = Duration::from_mins(1);
/// How old an explanation may be to be shown.
const MAX_SHOWN_AGE: Duration = Duration::from_mins(5);

/// The state of a queue and its last hour.
#[derive(Clone, Debug)]
pub struct QueueOverview {
    /// Its name.
    pub name: QueueName,
    /// Whether it holds every job.
    pub paused: bool,
    /// The most weight that may run at once.
    pub concurrency: Option<u32>,
    /// How many jobs are in each phase.
    pub phases: BTreeMap<Cow<'static, str>, u64>,
    /// When they were counted. None if a serverless deployment has no live job in the queue.
    pub counted_at: Option<Timestamp>,
    /// Whether there may have been more jobs.
    pub depth_at_least: bool,
    /// The weight of the running jobs.
    pub running_weight: u64,
    /// The due time of the job that has been due longest. None on a serverless server.
    pub oldest_due_at: Option<Timestamp>,
    /// What holds the first due jobs.
    pub held: Vec<HeldJobs>,
    /// How many workers would drain the due jobs in a minute.
    pub desired_workers: u64,
    /// When the two were determined. None without due jobs, or if they are not known.
    pub explained_at: Option<Timestamp>,
    /// Pull workers that share the queue.
    pub workers: u64,
    /// The start delay of the attempts of the last five minutes.
    pub start_delay_seconds: Option<Quantiles>,
    /// The rates of the last five minutes.
    pub throughput: Throughput,
    /// In how many seconds no job is due or runs any more.
    pub time_to_empty_seconds: Option<f64>,
    /// The minutes of the last hour in which something happened.
    pub minutes: Vec<OverviewMinute>,
}

/// The counts of a queue.
#[derive(Default)]
struct Counted {
    by_phase: PhaseCounts,
    at: Option<Timestamp>,
    at_least: bool,
    running_weight: u64,
    oldest_due_at: Option<Timestamp>,
}

impl Counted {
    /// The due jobs by type.
    fn due(&self) -> BTreeMap<TypeName, u64> {
        let due = self.by_phase.iter().filter(|((_, phase), _)| *phase == Phase::Ready);
        due.map(|((job_type, _), jobs)| (job_type.clone(), *jobs)).collect()
    }

    fn phases(&self) -> BTreeMap<Cow<'static, str>, u64> {
        let mut phases: BTreeMap<Cow<'static, str>, u64> = BTreeMap::new();
        for ((_, phase), jobs) in &self.by_phase {
            *phases.entry(phase.as_str().into()).or_default() += jobs;
        }
        phases
    }
}

impl Server {
    /// The overview of these queues, in their order.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn overview(
        &self,
        queues: Vec<(QueueName, QueueItem)>,
    ) -> Result<Vec<QueueOverview>, Error> {
        let names = || queues.iter().map(|(name, _)| name);
        let engine = &self.inner.engine;
        let catalog = engine.catalog().await?;
        let depths = engine.ports().store.depth(None).await?;
        let workers = self.shared_workers().await?;
        let hours = self.queue_hours(names()).await?;
        let counted = self.counted(names(), &depths).await?;
        let due: Vec<_> = counted.iter().map(Counted::due).collect();
        let with_due = names().zip(&due).filter(|(_, due)| !due.is_empty());
        self.refresh_explanations(with_due.map(|(name, _)| name), &depths).await;
        let (running, now) = (engine.running_by_worker(&[]), engine.now());
        let explanations = self.inner.explanations.lock().clone();
        let mut overviews = Vec::with_capacity(queues.len());
        for (((name, item), hour), (counted, due)) in
            queues.iter().zip(hours).zip(counted.iter().zip(&due))
        {
            let is_shown = |at: Timestamp| at <= now && now.since(at) < MAX_SHOWN_AGE;
            let kept = explanations.get(name).filter(|(at, _)| !due.is_empty() && is_shown(*at));
            let explained_at = kept.map(|(at, _)| *at);
            let explanation = kept.map(|(_, kept)| Arc::clone(kept)).unwrap_or_default();
            let QueueExplanation { held, startable, more, .. } = &*explanation;
            let means = self.inner.known_snapshot(name).mean_run_seconds;
            let desired_workers =
                autoscaling::desired_workers(&catalog, name, due, (startable, *more), &means);
            let QueueHour { minutes, throughput, time_to_empty_seconds, start_delay_seconds } =
                hour;
            let of_queue = workers.of_queue(name, &running, &catalog.drains, now);
            overviews.push(QueueOverview {
                name: name.clone(),
                paused: item.paused,
                concurrency: item.config.concurrency,
                phases: counted.phases(),
                counted_at: counted.at,
                depth_at_least: counted.at_least,
                running_weight: counted.running_weight,
                oldest_due_at: counted.oldest_due_at,
                held: held.clone(),
                desired_workers,
                explained_at,
                workers: of_queue.active(&catalog, now),
                start_delay_seconds,
                throughput,
                time_to_empty_seconds,
                minutes,
            });
        }
        Ok(overviews)
    }

    /// The counts of `queues`, in their order.
    async fn counted<'a>(
        &self,
        queues: impl Iterator<Item = &'a QueueName>,
        depths: &Depths,
    ) -> Result<Vec<Counted>, Error> {
        let (engine, mut counted) = (&self.inner.engine, Vec::new());
        if let Some(kept) = &depths.kept {
            let mut by_queue: BTreeMap<&QueueName, Vec<_>> = BTreeMap::new();
            for depth in &depths.counts {
                by_queue.entry(&depth.queue).or_default().push(depth.clone());
            }
            for queue in queues {
                let of_queue = by_queue.get(queue).map_or(&[][..], Vec::as_slice);
                let kept = kept.get(queue).copied();
                // The store has counted by phase, so nothing is read.
                let by_phase = engine.count_phases(queue, of_queue, None, engine.now(), 1).await?;
                counted.push(Counted {
                    by_phase,
                    at: kept.map(|kept| kept.at),
                    at_least: kept.is_some_and(|kept| kept.at_least),
                    running_weight: kept.map_or(0, |kept| kept.running_weight),
                    oldest_due_at: None,
                });
            }
            return Ok(counted);
        }
        let now = engine.now();
        let measured = self.inner.measurement.get(now);
        // Elsewhere the sweeper counts again.
        let is_standby = self.inner.is_standby;
        let measured =
            measured.filter(|latest| !is_standby || now.since(latest.at) < EXPLANATION_AGE);
        let measured = match measured {
            Some(measured) => measured,
            None => self.inner.measurement.set(self.inner.measure().await?),
        };
        counted.extend(queues.map(|queue| Counted {
            by_phase: measured.counts.get(queue).cloned().unwrap_or_default(),
            at: Some(measured.at),
            at_least: false,
            running_weight: measured.weights.get(queue).copied().unwrap_or_default(),
            oldest_due_at: measured.oldest_due.get(queue).copied().flatten(),
        }));
        Ok(counted)
    }

    /// Explains again what holds the jobs of `queues`, the oldest explanations first.
    async fn refresh_explanations<'a>(
        &self,
        queues: impl Iterator<Item = &'a QueueName>,
        depths: &Depths,
    ) {
        let now = self.now();
        let max_age =
            if self.inner.is_serverless() { SERVERLESS_EXPLANATION_AGE } else { EXPLANATION_AGE };
        let mut old: Vec<(Option<Timestamp>, &QueueName)> = {
            let kept = self.inner.explanations.lock();
            let made_at = |queue| kept.get(queue).map(|(at, _)| *at).filter(|at| *at <= now);
            queues.map(|queue| (made_at(queue), queue)).collect()
        };
        old.retain(|(at, _)| at.is_none_or(|at| now.since(at) >= max_age));
        old.sort_unstable();
        old.truncate(MAX_EXPLAINED);
        let explained = old.into_iter().map(|(_, queue)| async move {
            match self.explain_for_status(queue, depths, Duration::ZERO).await {
                // It was deleted meanwhile.
                Ok(_) | Err(Error::NotFound { .. }) => {}
                // The page has the other queues.
                Err(error) => tracing::warn!(%queue, %error, "a queue cannot be explained"),
            }
        });
        stream::iter(explained.collect::<Vec<_>>())
            .buffer_unordered(CONCURRENT_EXPLANATIONS)
            .collect::<()>()
            .await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;
    use crate::runtime::testing::{builder, soon};
    use tidegate_core::{
        job::{Payload, type_config::TypeConfig},
        port::{JobStore, StoreError, StoreLayer, job_store::SharedStore, store_layer::Operation},
        queue::QueueConfig,
        time::Seconds,
    };
    use tidegate_engine::{
        memory::{FakeClock, MemoryStore},
        request::NewJob,
        testkit::builders::name,
    };

    /// Counts the reads of jobs.
    struct CountingStore {
        inner: SharedStore,
        reads: Arc<AtomicUsize>,
    }

    impl StoreLayer for CountingStore {
        fn inner(&self) -> &dyn JobStore {
            &*self.inner
        }

        async fn around<T: Send>(
            &self,
            operation: Operation,
            call: impl Future<Output = Result<T, StoreError>> + Send,
        ) -> Result<T, StoreError> {
            // Numbers that the store keeps in memory, or one version.
            let is_cheap = matches!(operation, Operation::Depth | Operation::ItemsVersion);
            self.reads.fetch_add(usize::from(!is_cheap), Ordering::Relaxed);
            call.await
        }
    }

    /// A store that answers no read of jobs while it is stuck.
    struct StuckStore {
        inner: SharedStore,
        is_stuck: Arc<AtomicBool>,
    }

    impl StoreLayer for StuckStore {
        fn inner(&self) -> &dyn JobStore {
            &*self.inner
        }

        async fn around<T: Send>(
            &self,
            operation: Operation,
            call: impl Future<Output = Result<T, StoreError>> + Send,
        ) -> Result<T, StoreError> {
            let is_cheap = matches!(operation, Operation::Depth | Operation::ItemsVersion);
            if !is_cheap && self.is_stuck.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            call.await
        }
    }

    #[tokio::test]
    async fn a_late_measurement_is_shown_and_not_taken_again() {
        let (clock, is_stuck) = (Arc::new(FakeClock::default()), Arc::new(AtomicBool::new(false)));
        let mut builder = builder(&clock);
        let inner: SharedStore = Arc::new(MemoryStore::default());
        builder.ports.store = Arc::new(StuckStore { inner, is_stuck: Arc::clone(&is_stuck) });
        let server = builder.start().await.unwrap();
        server.put_type(&name("t"), TypeConfig::default(), None).await.unwrap();
        // Due later, so that nothing is explained.
        let delay_seconds = Some(Seconds::new(86_400));
        let job = NewJob { delay_seconds, ..NewJob::new(name("t"), Payload::null()) };
        server.enqueue(job).await.unwrap();
        let measured = server.inner.measurement.set(server.inner.measure().await.unwrap()).at;
        let queues = server.queues().await.unwrap();
        is_stuck.store(true, Ordering::Relaxed);
        for minutes in [1, 10, 100] {
            clock.set(measured + Duration::from_mins(minutes));
            let shown = soon("the overview", server.overview(queues.clone())).await.unwrap();
            assert_eq!(shown[0].counted_at, Some(measured), "{minutes} minutes late");
            assert_eq!(shown[0].phases, [("scheduled".into(), 1)].into());
        }
    }

    #[tokio::test]
    async fn an_overview_reads_jobs_of_few_queues() {
        let (clock, reads) = (Arc::new(FakeClock::default()), Arc::new(AtomicUsize::new(0)));
        let mut builder = builder(&clock);
        let inner: SharedStore = Arc::new(MemoryStore::default());
        builder.ports.store = Arc::new(CountingStore { inner, reads: Arc::clone(&reads) });
        let server = builder.start().await.unwrap();
        let queue = |number: usize| name::<QueueName>(&format!("q{number:03}"));
        for number in 0..60 {
            server.put_queue(&queue(number), QueueConfig::default(), None).await.unwrap();
            let config = TypeConfig { queue: queue(number), ..TypeConfig::default() };
            let job_type: TypeName = name(&format!("t{number}"));
            server.put_type(&job_type, config, None).await.unwrap();
            let later = (number % 2 == 0).then_some(Seconds::new(60));
            let job = NewJob { delay_seconds: later, ..NewJob::new(job_type, Payload::null()) };
            server.enqueue(job).await.unwrap();
        }
        // The tasks of the queues come to rest: no time passes.
        let mut before = usize::MAX;
        while before != reads.load(Ordering::Relaxed) {
            before = reads.load(Ordering::Relaxed);
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
        }
        server.inner.measurement.set(server.inner.measure().await.unwrap());
        let queues = server.queues().await.unwrap();
        let overview = async || {
            let before = reads.load(Ordering::Relaxed);
            let overview = server.overview(queues.clone()).await.unwrap();
            let held = overview.iter().filter(|of| !of.held.is_empty()).count();
            (overview, held, reads.load(Ordering::Relaxed) - before)
        };
        // No worker takes the due jobs of 30 queues.
        let (first, held, first_reads) = overview().await;
        assert_eq!(held, MAX_EXPLAINED);
        let explained = first.iter().filter(|of| of.explained_at.is_some()).count();
        assert_eq!(explained, MAX_EXPLAINED, "of the others it is not known");
        let phases = |number: usize| first[number + 1].phases.clone();
        assert_eq!(first[1].name, queue(0), "after the default queue");
        assert_eq!(
            (phases(0), phases(1)),
            ([("scheduled".into(), 1)].into(), [("ready".into(), 1)].into())
        );
        let (_, held, _) = overview().await;
        assert_eq!(held, 30, "the second answer explains the other ones");
        let (_, held, third_reads) = overview().await;
        assert_eq!((held, third_reads), (30, 0), "all is known");
        assert!(first_reads <= 10 * MAX_EXPLAINED, "{first_reads}");
    }
}
