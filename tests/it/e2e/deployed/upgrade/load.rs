//! The load of the test of an upgrade: a producer that repeats each batch until it is acknowledged.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};

use super::{PATIENCE, now};
use crate::e2e::{api::Api, deployed::workers::EventLog};

/// The kinds of jobs: of a limited queue; the same, which fail once; the same, whose results follow by
/// a callback; sent without a claim; delayed; of a pull worker. The target fails the first attempt of
/// an even number, so `flaky` has an even place.
pub const KINDS: [&str; 6] = ["steady", "delayed", "flaky", "later", "direct", "pulled"];
/// Jobs of one batch: one of each kind.
const BATCH: usize = KINDS.len();
/// Most acknowledged jobs that have not started. A local stack answers only some dozens of calls a
/// second.
const MAX_WAITING: usize = 2 * BATCH;
/// Batches that must be acknowledged, and started, under each release before the next change.
const BATCHES: usize = 3;
/// The shortest time between two batches, so that a change of the functions is not much slower.
const PACE: Duration = Duration::from_secs(1);

/// Configures the queues and the types of the load, and a type whose jobs the test leases.
pub async fn configure(api: &Api, run: &str, target: &str, limit: u64) {
    api.queue(&format!("{run}-limited"), json!({"concurrency": limit})).await;
    for queue in ["open", "held"] {
        api.queue(&format!("{run}-{queue}"), json!({})).await;
    }
    let held = json!({"queue": format!("{run}-held"), "lease_seconds": 900});
    api.job_type(&format!("{run}-held"), held).await;
    for kind in KINDS {
        let is_limited = matches!(kind, "steady" | "flaky" | "later");
        let queue = if is_limited { "limited" } else { "open" };
        let mut config = json!({
            "queue": format!("{run}-{queue}"), "max_attempts": 5,
            "retry": {"strategy": "exponential", "config": {"base_seconds": 0.5, "max_seconds": 2}},
            "keep_result": {"seconds": 3600}, "lease_seconds": 60, "response_timeout_seconds": 60,
        });
        if kind != "pulled" {
            config["target"] = json!({"url": target});
        }
        if kind == "direct" {
            config["start"] = json!("plain");
        }
        api.job_type(&format!("{run}-{kind}"), config).await;
    }
}

/// A producer, until it is stopped.
pub struct Load {
    /// The number of each acknowledged job, by id.
    acknowledged: Arc<Mutex<BTreeMap<String, u64>>>,
    event_log: Arc<Mutex<EventLog>>,
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Load {
    /// Starts the producer. It keeps the number of jobs that wait bounded.
    pub fn start(api: Api, run: String, event_log: Arc<Mutex<EventLog>>) -> Self {
        let (acknowledged, stop) = (Arc::<Mutex<BTreeMap<_, _>>>::default(), Arc::default());
        let (into, stopped) = (Arc::clone(&acknowledged), Arc::<AtomicBool>::clone(&stop));
        let started = Arc::clone(&event_log);
        let task = tokio::spawn(async move {
            let mut pace = tokio::time::interval(PACE);
            let mut first = 0;
            while !stopped.load(Ordering::Relaxed) {
                pace.tick().await;
                if first >= started.lock().starts.len() + MAX_WAITING {
                    continue;
                }
                let jobs: Vec<Value> = (first..first + BATCH).map(|at| job(&run, at)).collect();
                enqueue(&api, &jobs).await;
                let named = jobs.iter().map(|job| {
                    let id = job["id"].as_str().unwrap().to_owned();
                    (id, job["data"]["number"].as_u64().unwrap())
                });
                into.lock().extend(named);
                first += BATCH;
            }
        });
        Self { acknowledged, event_log, stop, task }
    }

    /// How many jobs were acknowledged and started.
    pub fn progress(&self) -> (usize, usize) {
        (self.acknowledged.lock().len(), self.event_log.lock().starts.len())
    }

    /// Waits until some more jobs of each kind are acknowledged and started.
    pub async fn advance(&self) {
        let (from, began) = (self.progress(), now());
        let mut looks = tokio::time::interval(Duration::from_millis(100));
        loop {
            looks.tick().await;
            let progress = self.progress();
            if progress.0 >= from.0 + BATCHES * BATCH && progress.1 >= from.1 + BATCHES * BATCH {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "no progress from {from:?} to {progress:?}");
            assert!(!self.task.is_finished(), "the producer has failed");
        }
    }

    /// Stops the producer, and returns the acknowledged jobs.
    pub async fn stop(self) -> BTreeMap<String, u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
        self.acknowledged.lock().clone()
    }
}

fn job(run: &str, number: usize) -> Value {
    let kind = KINDS[number % KINDS.len()];
    let mut job = json!({
        "type": format!("{run}-{kind}"), "id": format!("{run}-{kind}-{number}"),
        "data": {"number": number},
    });
    if kind == "delayed" {
        job["delay_seconds"] = json!(2 + number % 5);
    }
    job
}

/// Enqueues `jobs`, again and again until each is acknowledged: their ids make repeats safe.
async fn enqueue(api: &Api, jobs: &[Value]) {
    let mut looks = tokio::time::interval(Duration::from_millis(200));
    loop {
        looks.tick().await;
        let body = json!({"jobs": jobs}).to_string();
        let headers = [("content-type", "application/json")];
        let answer = api.try_send(Method::POST, "/v1/jobs/batch", &headers, body).await;
        let Some(answer) = answer.filter(|answer| answer.status == 200) else { continue };
        let answer = answer.value();
        let mut results = answer["results"].as_array().unwrap().iter();
        if results.all(|one| one["status"] == 200 || one["status"] == 201) {
            return;
        }
    }
}
