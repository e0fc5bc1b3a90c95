//! Runs a scenario at a size: prepares its jobs, lets them become due, and measures.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use futures_util::FutureExt;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;
use tidegate_core::{
    job::{Payload, Value, type_config::TypeConfig},
    port::Clock,
    queue::{QueueConfig, config::OrderKind},
    target::{Push, TargetConfig},
    time::Timestamp,
};
use tidegate_engine::{request::NewJob, testkit::builders::name};
use tidegate_server::Server;

use super::{
    cloud::{Cloud, CloudUse, FunctionUse, Settings},
    queues::Kind,
    scenario::{Fault, Limit, Scenario},
};

/// How long a deployment runs before the first job is due: longer than the lookahead.
const WARM_UP: Duration = Duration::from_mins(6);
/// Jobs of one call while a scenario is prepared.
const PREPARED: usize = 100;
/// The least part of the limits of AWS.
const LEAST_LIMITS: f64 = 0.1;
/// How far virtual time moves before the end is checked.
const STEP: Duration = Duration::from_secs(5);

/// What was measured.
pub struct Measured {
    pub values: Vec<(&'static str, f64)>,
}

impl Measured {
    /// The values, one a line.
    pub fn table(&self) -> String {
        let mut table = String::new();
        for (what, value) in &self.values {
            let _ = writeln!(table, "  {what:24} {value:>12.3}");
        }
        table
    }
}

/// A scenario at a size, in a deployment.
struct Run<'s> {
    scenario: &'s Scenario,
    scale: f64,
    cloud: Arc<Cloud>,
    /// The first due time.
    due: Timestamp,
}

/// Completes work that waits for nothing.
fn at_once<T>(work: impl Future<Output = T>) -> T {
    Box::pin(work).now_or_never().expect("nothing is waited for")
}

/// Runs `scenario` with this part of its load and of the limits.
pub fn run(scenario: &Scenario, scale: f64) -> Measured {
    let settings = Settings {
        memory_mb: scenario.memory,
        shards: scenario.shards,
        deliver_concurrency: 50.0,
        // A page has its size whatever the limits are, and needs some capacity.
        scale: scale.max(LEAST_LIMITS),
        capacity: scenario.capacity,
    };
    let cloud = Cloud::new(settings, 1);
    let due = cloud.time.now() + WARM_UP;
    let run = Run { scenario, scale, cloud, due };
    let server = at_once(run.cloud.preparing());
    run.configure(&server);
    run.cloud.start();
    if scenario.fault == Fault::MessagesLost {
        run.cloud.time.run(run.due);
        run.prepare(&server);
    } else {
        run.prepare(&server);
        run.cloud.time.run(run.due);
    }
    drop(server);
    run.measure()
}

impl Run<'_> {
    /// A number of the load at this size.
    fn part(&self, full: f64) -> usize {
        if full == 0.0 { 0 } else { ((full * self.scale).round() as usize).max(1) }
    }

    fn queue_count(&self) -> usize {
        self.scenario.queues as usize
    }

    /// Creates the queues and the types.
    fn configure(&self, server: &Server) {
        let scenario = self.scenario;
        let mut config = QueueConfig::default();
        match scenario.limit {
            Limit::None => {}
            Limit::Concurrency(most) => config.concurrency = Some(self.part(most) as u32),
            Limit::PerSecond(rate) => {
                let rate = json!({"count": self.part(rate), "per_seconds": 1});
                let all = json!({"name": "all", "match": {}, "rate": rate});
                config.constraints = vec![serde_json::from_value(all).unwrap()];
            }
        }
        if scenario.priority {
            config.order = OrderKind::Priority;
        }
        if scenario.tenants > 0.0 {
            config.partition_by = Some("tenant".into());
        }
        let push = |path: &str, takes: u128| {
            let url = format!("http://worker.example/{path}/{takes}");
            (scenario.workers == 0.0 || path != "main")
                .then(|| TargetConfig::Push(Box::new(Push::to(url))))
        };
        for number in 0..self.queue_count() {
            let queue = name(&format!("main-{number}"));
            at_once(server.put_queue(&queue, config.clone(), None)).unwrap();
            let target = push("main", scenario.takes.as_millis());
            let config = TypeConfig { queue, target, ..TypeConfig::default() };
            at_once(server.put_type(&name(&format!("main-{number}")), config, None)).unwrap();
        }
        let idle = (0..self.part(scenario.idle)).map(|number| format!("idle-{number}"));
        let others = idle.chain((scenario.others > 0.0).then(|| "other".to_owned()));
        for other in others {
            at_once(server.put_queue(&name(&other), QueueConfig::default(), None)).unwrap();
            let target = push("other", 50);
            let config = TypeConfig { queue: name(&other), target, ..TypeConfig::default() };
            at_once(server.put_type(&name(&other), config, None)).unwrap();
        }
    }

    /// Enqueues the jobs without any time or limit.
    fn prepare(&self, server: &Server) {
        let (jobs, mut chance) = (self.part(self.scenario.jobs), StdRng::seed_from_u64(3));
        let spread = self.scenario.spread.as_millis() as u64;
        for first in (0..jobs).step_by(PREPARED) {
            let batch = (first..jobs.min(first + PREPARED)).map(|number| {
                let at = if spread == 0 { 0 } else { spread * number as u64 / jobs as u64 };
                self.job(number, self.due + Duration::from_millis(at), &mut chance)
            });
            for answer in at_once(server.enqueue_many(batch.collect())) {
                let job = answer.unwrap().job;
                let due = job.life.run_at().expect("it is scheduled");
                self.cloud.starts.lock().expect("main", job.id.as_str(), due);
            }
        }
    }

    fn job(&self, number: usize, due: Timestamp, chance: &mut StdRng) -> NewJob {
        let job_type = format!("main-{}", number % self.queue_count());
        let data = Payload::json(format!("\"{}\"", "x".repeat(self.scenario.data)));
        let mut job = NewJob::new(name(&job_type), data);
        job.run_at = (due > self.cloud.time.now()).then_some(due);
        if self.scenario.priority {
            job.options.priority = Some(chance.random_range(0..10));
        }
        if self.scenario.tenants > 0.0 {
            let tenant = format!("tenant-{}", number % self.part(self.scenario.tenants));
            job.options.attributes.insert("tenant".into(), Value::Text(tenant));
        }
        job
    }

    /// Enqueues jobs of another queue through the API until the end.
    fn start_others(&self, end: Timestamp) {
        let cloud = Arc::clone(&self.cloud);
        let gap = Duration::from_secs_f64(1.0 / (self.scenario.others * self.scale).max(0.2));
        self.cloud.time.spawn(async move {
            while cloud.time.now() < end {
                let caller = Arc::clone(&cloud);
                cloud.time.spawn(async move {
                    let job = NewJob::new(name("other"), Payload::null());
                    caller.enqueue("other", vec![job]).await;
                });
                cloud.time.sleep_until(cloud.time.now() + gap).await;
            }
        });
    }

    fn measure(&self) -> Measured {
        let (cloud, end) = (&self.cloud, self.due + self.scenario.lasts);
        let jobs = self.part(self.scenario.jobs);
        if self.scenario.others > 0.0 {
            self.start_others(end);
        }
        for number in 0..self.part(self.scenario.workers) {
            let (queue, worker) = ("main-0".to_owned(), format!("worker-{number}"));
            cloud.time.spawn(Arc::clone(cloud).work(queue, worker, self.scenario.takes));
        }
        let off: Option<(&[Kind], Duration)> = match self.scenario.fault {
            Fault::TickOff(time) => Some((&[Kind::Timers, Kind::Hints], time)),
            Fault::DeliverOff(time) => Some((&[Kind::Work], time)),
            Fault::None | Fault::MessagesLost => None,
        };
        // What counts begins when the function runs again.
        let mut from = self.due;
        if let Some((kinds, time)) = off {
            cloud.set_off(kinds, true);
            from = self.due + time;
            cloud.time.run(from);
            cloud.set_off(kinds, false);
        }
        let before = cloud.used();
        let slots = cloud.starts.lock().slot_seconds(cloud.time.now());
        let started = || cloud.starts.lock().started.get("main").map_or(0, Vec::len);
        while cloud.time.now() < end && (started() < jobs || jobs == 0) {
            cloud.time.run((cloud.time.now() + STEP).min(end));
        }
        self.values(from, &cloud.used().since(&before), slots)
    }

    /// The measured values, in seconds, units and dollars.
    fn values(&self, from: Timestamp, used: &CloudUse, slots_before: f64) -> Measured {
        let cloud = &self.cloud;
        let jobs = self.part(self.scenario.jobs) as f64;
        let mut starts = cloud.starts.lock();
        let slots = starts.slot_seconds(cloud.time.now()) - slots_before;
        let main = starts.started.get("main").cloned().unwrap_or_default();
        let last = main.iter().map(|(_, at)| at.since(from).as_secs_f64()).fold(0.0, f64::max);
        let is_whole = main.len() as f64 >= jobs;
        let first_minute = main.iter().filter(|(_, at)| *at < from + Duration::from_mins(1));
        let ran = main.len() as f64;
        let percentile = |path: &str, all: usize| {
            let started = starts.started.get(path).cloned().unwrap_or_default();
            let late = started.iter().map(|(due, at)| at.since((*due).max(from)).as_secs_f64());
            let mut late: Vec<f64> = late.collect();
            late.sort_unstable_by(f64::total_cmp);
            late.resize(late.len().max(all), f64::INFINITY);
            late.get(late.len() * 99 / 100).copied().unwrap_or(0.0)
        };
        let functions = [used.enqueue, used.tick, used.sweep, used.deliver];
        let sum = |of: fn(&FunctionUse) -> u64| functions.iter().map(of).sum::<u64>() as f64;
        let peak = functions.iter().map(|function| function.peak).max();
        let memory = peak.unwrap_or(0) as f64 / cloud.memory() as f64;
        let busy = slots / last.max(1.0);
        let limit = match self.scenario.limit {
            Limit::Concurrency(most) => self.part(most) as f64,
            Limit::None | Limit::PerSecond(_) => f64::INFINITY,
        };
        let month = Duration::from_hours(730).as_secs_f64();
        let lasted = cloud.time.now().since(from).as_secs_f64();
        Measured {
            values: vec![
                ("started", ran),
                ("started in a minute", first_minute.count() as f64),
                ("last start", if is_whole { last } else { f64::INFINITY }),
                ("p99", percentile("main", jobs as usize)),
                ("other p99", percentile("other", 0)),
                ("throughput", if last > 0.0 { ran / last } else { 0.0 }),
                ("busy", busy),
                ("busy percent", busy / limit * 100.0),
                ("most busy", starts.most_busy as f64),
                ("repeated", starts.repeated as f64),
                ("writes a job", used.table.bill.writes / ran.max(1.0)),
                ("reads a job", used.table.bill.reads / ran.max(1.0)),
                ("dollars a million", used.dollars() / ran.max(1.0) * 1e6),
                ("dollars a month", used.dollars() / lasted.max(1.0) * month),
                ("memory percent", memory * 100.0),
                ("throttled", used.table.throttled as f64),
                ("killed", sum(|function| function.timed_out)),
                ("out of memory", sum(|function| function.out_of_memory)),
                ("dropped sweeps", used.dropped_sweeps as f64),
                ("longest sweep", used.longest_sweep.as_secs_f64()),
                ("dead letters", used.queues.dead as f64),
            ],
        }
    }
}
