//! "What if": the recorded last hour of a queue, simulated as the queue is configured and with a
//! change.
//!
//! The simulation has a thread of its own, because it computes for seconds, and one at a time. It
//! runs on a store in memory with plugins of its own: it changes nothing, and its calls of plugins
//! count nowhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use object_store::memory::InMemory;
use tokio::sync::oneshot;

use super::{Error, Server};
use tidegate_backends::{
    system::SystemClock,
    wasm::{PluginHost, Run},
};
use tidegate_core::{
    error_code::ErrorCode,
    job::{PluginName, QueueName, TypeName, retry::Retry, type_config::TypeConfig},
    port::{
        Clock,
        job_filter::TimeRange,
        job_store::{JobFilter, ListQuery, StateFilter},
    },
    queue::{QueueConfig, config::QueueItem},
    time::Timestamp,
};
use tidegate_engine::{
    plugins::registry::NewVersion,
    simulate::{
        self, By, Difference, Failed, GoesOn, Plugins, Scenario, Simulation, Summary,
        trace::{Live, LiveJob, most_at_once},
    },
};

/// Most jobs of a simulation.
const MAX_JOBS: usize = 100_000;
/// How long each of the two simulations may take, in the time of the machine.
const MAX_TIME: Duration = Duration::from_secs(5);
/// Jobs that are read at once.
const PAGE: u32 = 1000;
/// How many jobs workers run at once if nothing is known of them.
const UNKNOWN_WORKERS: u32 = 10_000;

/// A change of a queue to simulate.
#[derive(Clone, Debug)]
pub struct WhatIf {
    /// How far back the recorded jobs go.
    pub over: Duration,
    /// The changed configuration of the queue.
    pub queue: QueueConfig,
    /// The changed configurations of types.
    pub types: BTreeMap<TypeName, TypeConfig>,
    /// The version of the changed queue's throttler. None: the live one.
    pub throttler_version: Option<u32>,
    /// How jobs are grouped.
    pub by: By,
    /// How many jobs workers run at once. None: see [`workers`].
    pub workers: Option<u32>,
}

/// The recorded and the simulated runs of a queue.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// How many jobs were simulated.
    pub jobs: u64,
    /// When the first of them was enqueued.
    pub from: Timestamp,
    /// How many jobs workers ran at once.
    pub workers: u32,
    /// Why jobs are left out, and how many, if that is known.
    pub left_out: Vec<(&'static str, Option<u64>)>,
    /// The recorded run, and the limit of the queue.
    pub recorded: Option<Summary>,
    /// The run with the current configuration.
    pub current: Summary,
    /// The run with the change.
    pub changed: Summary,
    /// The limits of the queue, now and with the change.
    pub limits: [Option<u32>; 2],
    /// The first differences between the decisions of plugins.
    pub differences: Vec<Difference>,
    /// How many jobs were decided differently.
    pub different_jobs: u64,
}

/// The recorded jobs of a queue.
struct Recorded {
    jobs: Vec<LiveJob>,
    left_out: Vec<(&'static str, Option<u64>)>,
}

impl Server {
    /// Simulates the recorded jobs of a queue as it is configured, and with a change.
    ///
    /// # Errors
    ///
    /// 404 `queue_not_found`, `plugin_version_not_found`; 409 `nothing_to_simulate`; 400 for a
    /// configuration that the simulated queue refuses; 503 `simulation_running`; the store's.
    pub async fn simulate_queue(&self, name: &QueueName, what: WhatIf) -> Result<Simulated, Error> {
        let running = Arc::clone(&self.inner.simulation).try_lock_owned();
        let Ok(running) = running else {
            let message = "another simulation runs: repeat in some seconds".to_owned();
            return Err(Error::Conflict {
                code: ErrorCode::SimulationRunning,
                message,
                holder: None,
            });
        };
        let item = self.queue(name).await?;
        let Recorded { jobs, left_out } = self.recorded_jobs(name, what.over).await?;
        if jobs.is_empty() {
            let message = "no job was enqueued in the queue in this time".to_owned();
            return Err(Error::Conflict {
                code: ErrorCode::NothingToSimulate,
                message,
                holder: None,
            });
        }
        let current = self.recorded_scenario(name, &item, jobs).await?;
        let workers = what.workers.unwrap_or_else(|| workers(&current));
        let current = Scenario { workers, ..current };
        let mut changed = Scenario { queue: what.queue, ..current.clone() };
        changed.types.extend(what.types);
        let plugins = [
            self.simulated_plugins(&current, None).await?,
            self.simulated_plugins(&changed, what.throttler_version).await?,
        ];
        let limits = [current.queue.concurrency, changed.queue.concurrency];
        let (jobs, from) = (current.job_count(), current.start);
        let (sender, receiver) = oneshot::channel();
        let clock = Arc::clone(&self.inner.engine.ports().clock);
        let run = move || {
            // Held until the thread ends, although the caller may hang up before.
            let _running = running;
            let is_left = || sender.is_closed();
            let both = both([&current, &changed], &plugins, &what.by, &*clock, &is_left);
            let _ = sender.send(both);
        };
        let failed = |what: &str| Error::Internal(format!("the simulation {what}"));
        std::thread::Builder::new()
            .name("simulation".into())
            .spawn(run)
            .map_err(|error| failed(&format!("has no thread: {error}")))?;
        let ended = receiver.await.map_err(|_| failed("ended without an answer"))?;
        let [current, changed] = ended.map_err(refused)?;
        let (differences, different_jobs) = current.differences(&changed);
        Ok(Simulated {
            jobs,
            from,
            workers,
            left_out,
            recorded: current.real_summary,
            current: current.summary,
            changed: changed.summary,
            limits,
            differences,
            different_jobs,
        })
    }

    /// The jobs that were enqueued in a queue in the time before now, the latest first.
    async fn recorded_jobs(&self, name: &QueueName, over: Duration) -> Result<Recorded, Error> {
        let now = self.now();
        let created = TimeRange { from: Some(now - over), to: None };
        let filter = JobFilter { queue: Some(name.clone()), created, ..JobFilter::default() };
        let mut query = ListQuery { filter, now, limit: PAGE, ..ListQuery::default() };
        let (mut jobs, mut unreadable) = (Vec::new(), 0);
        // One more than are simulated, to know whether there are more.
        while jobs.len() <= MAX_JOBS {
            let page = self.list(&query).await?;
            jobs.extend(page.jobs.iter().map(LiveJob::of));
            unreadable += page.unreadable.len() as u64;
            query.cursor = page.next_cursor;
            if query.cursor.is_none() {
                break;
            }
        }
        let is_cut = jobs.len() > MAX_JOBS;
        jobs.truncate(MAX_JOBS);
        let depth = self.inner.engine.ports().store.depth(Some(name)).await?;
        let is_live =
            |state: StateFilter| matches!(state, StateFilter::Scheduled | StateFilter::Running);
        let live = depth.counts.iter().filter(|depth| is_live(depth.state));
        let live: u64 = live.map(|depth| depth.jobs).sum();
        let earlier = live.saturating_sub(jobs.iter().filter(|job| job.is_live()).count() as u64);
        let mut left_out = Vec::new();
        if is_cut {
            left_out.push(("enqueued before the latest 100000", None));
        } else if earlier > 0 {
            left_out.push(("enqueued before this time, and not ended", Some(earlier)));
        }
        if unreadable > 0 {
            left_out.push(("cannot be read", Some(unreadable)));
        }
        Ok(Recorded { jobs, left_out })
    }

    /// The recorded jobs as a scenario, with the current configuration.
    async fn recorded_scenario(
        &self,
        name: &QueueName,
        item: &QueueItem,
        jobs: Vec<LiveJob>,
    ) -> Result<Scenario, Error> {
        let catalog = self.inner.engine.catalog().await?;
        let unreadable = |error: serde_json::Error| Error::Internal(error.to_string());
        let mut types = Vec::new();
        for (job_type, item) in catalog.types_of(name) {
            let mut shown = serde_json::to_value(&item.config).map_err(unreadable)?;
            shown["name"] = job_type.as_str().into();
            shown["queue"] = name.as_str().into();
            types.push(shown);
        }
        let config = serde_json::to_value(&item.config).map_err(unreadable)?;
        let now = self.now();
        let live = Live { queue: name.clone(), config, types, jobs, now, with_data: false };
        live.scenario().map_err(|bad| Error::Internal(format!("the recorded queue: {bad}")))
    }

    /// The plugins that a scenario uses: the live versions, or this version of the throttler.
    async fn simulated_plugins(
        &self,
        scenario: &Scenario,
        throttler_version: Option<u32>,
    ) -> Result<Plugins, Error> {
        let throttler = scenario.queue.throttler.as_ref();
        if throttler.is_none() && throttler_version.is_some() {
            return Err(Error::invalid("throttler_version", "needs a queue with a throttler"));
        }
        let strategies = scenario.types.values().filter_map(|config| match &config.retry {
            Retry::Plugin(name, _) => Some(name.clone()),
            Retry::Exponential(_) => None,
        });
        let strategies: BTreeSet<PluginName> = strategies.collect();
        if throttler.is_none() && strategies.is_empty() {
            return Ok(Plugins::default());
        }
        let objects = Arc::new(InMemory::new());
        let host = PluginHost::new(objects.clone(), Arc::new(SystemClock), Run::Here)
            .map_err(|fault| Error::Internal(fault.to_string()))?;
        let mut plugins = Plugins { policy: Arc::new(host), objects, ..Plugins::default() };
        if let Some(throttler) = throttler {
            let version = self.version_to_simulate(&throttler.plugin, throttler_version).await?;
            plugins.throttler = Some((version, throttler.clone()));
        }
        for name in strategies {
            let version = self.version_to_simulate(&name, None).await?;
            plugins.strategies.insert(name, version);
        }
        Ok(plugins)
    }

    /// A version of a plugin with its code for this machine. Code that is missing is compiled, and
    /// not stored. None: the live one.
    async fn version_to_simulate(
        &self,
        name: &PluginName,
        number: Option<u32>,
    ) -> Result<NewVersion, Error> {
        let number = match number {
            Some(number) => number,
            None => self.plugin(name).await?.live,
        };
        self.runnable_version(name, number).await
    }
}

/// How many jobs the workers of a recorded queue run at once: as many as they ran at most. If these
/// reached the limit of the queue, the limit held them, and how many more could run is not known.
fn workers(recorded: &Scenario) -> u32 {
    let most = most_at_once(&recorded.jobs);
    let is_held = recorded.queue.concurrency.is_some_and(|limit| most >= limit);
    if is_held || most == 0 { UNKNOWN_WORKERS } else { most }
}

/// Simulates two scenarios one after the other on this thread, each for at most [`MAX_TIME`] of the
/// machine's time by `clock`, which is read after every tick.
fn both(
    scenarios: [&Scenario; 2],
    plugins: &[Plugins; 2],
    by: &By,
    clock: &dyn Clock,
    is_left: &(dyn Fn() -> bool + Sync),
) -> Result<[Simulation; 2], Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|error| Failed::Engine(Error::Internal(error.to_string())))?;
    let simulated = |scenario, plugins| {
        let until = clock.machine_now() + MAX_TIME;
        let mut progress = move |_| {
            let ends = is_left() || clock.machine_now() >= until;
            if ends { GoesOn::Break(()) } else { GoesOn::Continue(()) }
        };
        runtime.block_on(simulate::simulate(scenario, plugins, by.clone(), &mut progress))
    };
    let [current, changed] = scenarios;
    Ok([simulated(current, &plugins[0])?, simulated(changed, &plugins[1])?])
}

/// Why a simulation was refused, as the answer to its caller.
fn refused(failed: Failed) -> Error {
    match failed {
        Failed::Scenario(bad) => Error::invalid(bad.field, bad.message),
        Failed::Refused { what, error } => Error::Conflict {
            code: ErrorCode::ConfigRefused,
            message: format!("the simulated queue refuses {what}: {error}"),
            holder: None,
        },
        Failed::Engine(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use serde_json::json;

    use super::*;
    use crate::runtime::testing::builder;
    use tidegate_engine::{memory::FakeClock, testkit::builders::name};

    fn what() -> WhatIf {
        WhatIf {
            over: Duration::from_hours(1),
            queue: QueueConfig::default(),
            types: BTreeMap::new(),
            throttler_version: None,
            by: By::Type,
            workers: None,
        }
    }

    #[tokio::test]
    async fn there_is_one_simulation_at_a_time() {
        let server = builder(&Arc::new(FakeClock::default())).start().await.unwrap();
        let queue: QueueName = name("default");
        let code = async || match server.simulate_queue(&queue, what()).await.unwrap_err() {
            Error::Conflict { code, .. } => code,
            other => panic!("{other}"),
        };
        let running = server.inner.simulation.lock().await;
        assert_eq!(code().await, ErrorCode::SimulationRunning);
        drop(running);
        assert_eq!(code().await, ErrorCode::NothingToSimulate);
    }

    /// A clock that goes on by a second with each look at the machine's time.
    #[derive(Default)]
    struct SecondByLook(FakeClock);

    #[async_trait]
    impl Clock for SecondByLook {
        fn now(&self) -> Timestamp {
            self.0.now()
        }

        async fn sleep_until(&self, at: Timestamp) {
            self.0.sleep_until(at).await;
        }

        fn machine_now(&self) -> Timestamp {
            let now = self.0.now();
            self.0.advance(Duration::from_secs(1));
            now
        }
    }

    #[test]
    fn a_simulation_looks_at_its_deadline_after_each_tick() {
        let jobs: Vec<_> = (0..20).map(|_| json!({"type": "t", "at_seconds": 0})).collect();
        let text = json!({"queue": {"concurrency": 1}, "jobs": jobs}).to_string();
        let scenario = Scenario::read(&text).unwrap();
        let plugins = [Plugins::default(), Plugins::default()];
        let simulated = |clock: &dyn Clock, is_left: &(dyn Fn() -> bool + Sync)| {
            both([&scenario, &scenario], &plugins, &By::Type, clock, is_left).unwrap()
        };
        let in_time = simulated(&FakeClock::default(), &|| false);
        for run in &in_time {
            assert!(run.report.ticks > 10 && !run.summary.stopped_early, "{}", run.report.ticks);
        }
        let late = simulated(&SecondByLook::default(), &|| false);
        for run in &late {
            assert!(run.summary.stopped_early);
            assert_eq!(run.report.ticks, MAX_TIME.as_secs(), "each run has its own time");
        }
        let left = simulated(&FakeClock::default(), &|| true);
        assert_eq!(left.map(|run| run.report.ticks), [1, 1]);
    }

    #[test]
    fn the_number_of_workers_is_that_of_the_recorded_jobs() {
        let job = |started: u64| {
            let attempt = json!({"seconds": 10, "started_seconds": started});
            json!({"type": "t", "at_seconds": 0, "attempts": [attempt]})
        };
        let recorded = |limit: Option<u32>| {
            let jobs = [0, 5, 10, 12].map(job);
            let text = json!({"queue": {"concurrency": limit}, "jobs": jobs}).to_string();
            workers(&Scenario::read(&text).unwrap())
        };
        assert_eq!((recorded(None), recorded(Some(4))), (3, 3), "10 and 12 run with 5");
        assert_eq!(recorded(Some(3)), UNKNOWN_WORKERS, "the limit held them");
        assert_eq!(workers(&Scenario::default()), UNKNOWN_WORKERS);
    }
}
