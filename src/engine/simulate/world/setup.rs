//! The start of a simulation: the engine with its ports, and the configuration of the queue.

use std::{
    collections::{BTreeSet, BinaryHeap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;

use super::{Failed, FinishedRun, World, attempts::AttemptsByTime};
use crate::{
    Engine, Ports, Rules, TickCache,
    memory::{FakeClock, MemoryWorkQueue, SeededEntropy},
    plugins::registry::Stage,
    simulate::{
        GoesOn,
        arrivals::{self, ArrivingJob},
        policies::{ObservedPolicy, Plugins, SeenDecisions},
        record::{By, Recording},
        scenario::Scenario,
        store::SimulationStore,
    },
};
use tidegate_core::{
    job::{
        PluginName, QueueName, TypeName,
        retry::Retry,
        spec::KeepResult,
        type_config::{HoldSlotUntil, OnResponseTimeout, Start, TypeConfig},
    },
    port::Clock,
    queue::Order,
    target::{Push, TargetConfig},
    time::Timestamp,
    validate::DECADE,
};

/// The plugin name of the simulated retry strategy for types that name none.
const DEFAULT_RETRY_PLUGIN: &str = "simulated-retry";

/// Simulates `scenario` and groups its jobs by `by`. It calls `progress` from time to time with the
/// number of jobs that have ended.
///
/// # Errors
///
/// The scenario is invalid, or the queue refuses its configuration or one of its jobs.
pub(in crate::simulate) async fn run(
    scenario: &Scenario,
    plugins: &Plugins,
    by: By,
    progress: &mut (dyn FnMut(u64) -> GoesOn + Send),
) -> Result<FinishedRun, Failed> {
    scenario.check()?;
    let arriving = arrivals::arriving(scenario);
    let ids = arrivals::ids(&arriving)?;
    let record = Arc::new(Mutex::new(recording(scenario, by)));
    let clock = Arc::new(FakeClock::new(scenario.start));
    let seen = Arc::new(Mutex::new(SeenDecisions::default()));
    let ports = ports(scenario, plugins, &record, &clock, &seen);
    let mut world = World {
        scenario,
        plugins,
        seen,
        engine: Engine::new(ports, Rules::default()),
        clock,
        record,
        cache: TickCache::default(),
        types: types(scenario, &arriving),
        arriving,
        attempts_by_time: AttemptsByTime::of(scenario),
        hosts: Arc::default(),
        ids,
        keys: HashMap::new(),
        arrived: 0,
        under_way: BinaryHeap::new(),
        started: 0,
        reports: Vec::new(),
        left: Vec::new(),
        waiting_at: Timestamp::EPOCH,
        tick_at: None,
        queue_changed: false,
        ticked_at: None,
        ticks: 0,
    };
    world.configure().await?;
    world.hosts = Arc::clone(&world.engine.catalog().await?.hosts);
    let over = world.run_to_end(progress).await?;
    let end = world.clock.now().since(scenario.start).as_millis() as u64;
    let World { record, seen, ticks, ids, .. } = world;
    let (record, seen) = (record.lock().clone(), std::mem::take(&mut *seen.lock()));
    Ok(FinishedRun { record, over, end, ticks, ids, seen })
}

impl World<'_> {
    async fn configure(&self) -> Result<(), Failed> {
        let refused = |what: String| move |error| Failed::Refused { what, error };
        let (name, mut queue) = (&self.scenario.name, self.scenario.queue.clone());
        if let Some((version, throttler)) = &self.plugins.throttler {
            let pushed =
                self.engine.push_plugin(&throttler.plugin, version.clone(), Stage::Live).await;
            pushed.map_err(refused(format!("plugin {}", throttler.plugin)))?;
            queue.throttler = Some(throttler.clone());
        }
        if let Some((version, _)) = &self.plugins.retry {
            for strategy in self.strategies() {
                let pushed = self.engine.push_plugin(&strategy, version.clone(), Stage::Live).await;
                pushed.map_err(refused(format!("plugin {strategy}")))?;
            }
        }
        for (strategy, version) in &self.plugins.strategies {
            let pushed = self.engine.push_plugin(strategy, version.clone(), Stage::Live).await;
            pushed.map_err(refused(format!("plugin {strategy}")))?;
        }
        self.engine.put_queue(name, queue, None).await.map_err(refused(format!("queue {name}")))?;
        for job_type in &self.types {
            let mut config =
                simulated(self.scenario.types.get(job_type).cloned().unwrap_or_default(), name);
            if let (Some((_, given)), Retry::Exponential(_)) = (&self.plugins.retry, &config.retry)
            {
                config.retry = Retry::Plugin(
                    DEFAULT_RETRY_PLUGIN.parse().expect("it is a valid name"),
                    Arc::clone(given),
                );
            }
            self.engine
                .put_type(job_type, config, None)
                .await
                .map_err(refused(format!("type {job_type}")))?;
        }
        Ok(())
    }

    /// The names under which the retry strategy is pushed: those that types use, and the default.
    fn strategies(&self) -> BTreeSet<PluginName> {
        let named = self.scenario.types.values().filter_map(|config| match &config.retry {
            Retry::Plugin(name, _) => Some(name.clone()),
            Retry::Exponential(_) => None,
        });
        named.chain([DEFAULT_RETRY_PLUGIN.parse().expect("it is a valid name")]).collect()
    }
}

/// A recording without jobs that observes the groups of the expectations.
fn recording(scenario: &Scenario, by: By) -> Recording {
    let group =
        |key: &str| key.split_once('=').map(|(name, value)| (By::named(name), value.to_owned()));
    let watches = scenario.expect.groups().map(group);
    Recording::new(scenario.start, by, watches)
}

/// The ports of the simulated engine.
fn ports(
    scenario: &Scenario,
    plugins: &Plugins,
    record: &Arc<Mutex<Recording>>,
    clock: &Arc<FakeClock>,
    seen: &Arc<Mutex<SeenDecisions>>,
) -> Ports {
    let store = SimulationStore::new(
        scenario.name.clone(),
        Order::of(&scenario.queue),
        clock.clone(),
        Arc::clone(record),
    );
    let policy = ObservedPolicy {
        policy: Arc::clone(&plugins.policy),
        meter: plugins.meter.clone(),
        start: scenario.start,
        seen: Arc::clone(seen),
    };
    Ports {
        store: Arc::new(store),
        objects: Arc::clone(&plugins.objects),
        policy: Arc::new(policy),
        work: Arc::new(MemoryWorkQueue::default()),
        clock: clock.clone(),
        entropy: Arc::new(SeededEntropy::new(scenario.seed)),
    }
}

/// The job types of a scenario: those of its jobs and those that it configures.
fn types(scenario: &Scenario, arriving: &[ArrivingJob<'_>]) -> Vec<TypeName> {
    let mut types: Vec<TypeName> =
        arriving.iter().map(|job| job.job_type).chain(scenario.types.keys()).cloned().collect();
    types.sort_unstable();
    types.dedup();
    types
}

/// A type as it is simulated: in this queue, for workers that always report, and without callbacks.
/// Those workers claim its jobs, whatever its target is.
fn simulated(config: TypeConfig, queue: &QueueName) -> TypeConfig {
    TypeConfig {
        queue: queue.clone(),
        // Its host is what plugins see of it. No job is sent there.
        target: match config.target {
            Some(TargetConfig::Push(push)) => {
                Some(TargetConfig::Push(Box::new(Push::to(push.url))))
            }
            _ => None,
        },
        callback_url: None,
        keep_result: KeepResult::None,
        retention_seconds: DECADE,
        hold_slot_until: HoldSlotUntil::LeaseEnd,
        start: Start::Claim,
        on_response_timeout: OnResponseTimeout::Fail,
        ..config
    }
}
