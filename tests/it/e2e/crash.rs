//! The server is killed at random instants while clients enqueue and workers work. No acknowledged
//! job is lost, no limit is exceeded, and no at-most-once job runs twice.
//!
//! The expectation comes from the clients' own records: the acknowledged jobs, and the start and
//! end of each attempt. An attempt counts until its report is sent or its lease ends, whichever
//! comes first. A second holder before that is a fault.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::http::StatusCode;
use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use reqwest::Method;
use serde_json::{Value, json};
use tidegate_backends::system::SystemClock;
use tidegate_core::{port::Clock as _, time::Timestamp};

use super::{
    api::{Api, ApiAnswer},
    serve::{Setup, Tidegate},
    target::Target,
    wait::eventually,
};

const LIMIT: usize = 5;
const KILLS: usize = 8;
/// Jobs that each client enqueues.
const EACH: usize = 90;

/// An attempt of a worker, with its start and end.
struct Held {
    queue: &'static str,
    from: Timestamp,
    to: Timestamp,
}

/// The records of the clients and workers.
#[derive(Default)]
struct Books {
    api: Mutex<Option<Api>>,
    /// How much has happened: kills are aimed by it.
    events: AtomicU64,
    over: AtomicBool,
    acknowledged: Mutex<BTreeSet<String>>,
    /// The attempts of each delivered job.
    started: Mutex<BTreeMap<String, Vec<u64>>>,
    succeeded: Mutex<BTreeSet<String>>,
    held: Mutex<Vec<Held>>,
    faults: Mutex<Vec<String>>,
}

impl Books {
    /// Sends a request to the current server; none if it died meanwhile.
    async fn ask(&self, method: Method, path: &str, body: &Value) -> Option<ApiAnswer> {
        let api = self.api.lock().clone().unwrap();
        let answer = api
            .try_send(method, path, &[("content-type", "application/json")], body.to_string())
            .await;
        if answer.as_ref().is_none_or(|answer| answer.status == 503) {
            tokio::task::yield_now().await;
            return None;
        }
        self.events.fetch_add(1, Ordering::Relaxed);
        answer
    }

    /// Asks until there is an answer.
    async fn insist(&self, method: Method, path: &str, body: &Value) -> ApiAnswer {
        eventually("the server answers", || self.ask(method.clone(), path, body)).await
    }

    fn acknowledge(&self, job: &Value) {
        self.acknowledged.lock().insert(job["id"].as_str().unwrap().to_owned());
    }

    fn start(&self, id: &str, attempt: u64) {
        let mut started = self.started.lock();
        let attempts = started.entry(id.to_owned()).or_default();
        if attempts.last().is_some_and(|last| *last >= attempt) {
            self.faults.lock().push(format!("{id}: attempt {attempt} after {attempts:?}"));
        }
        attempts.push(attempt);
        self.events.fetch_add(1, Ordering::Relaxed);
    }

    fn hold(&self, queue: &'static str, from: Timestamp, to: Timestamp) {
        self.held.lock().push(Held { queue, from, to });
    }
}

/// The type of the `n`th job: most may run again, some only once.
fn kind(n: usize) -> &'static str {
    ["pull", "push", "pull", "once", "push", "pull", "once-push"][n % 7]
}

/// Enqueues jobs one by one, in batches, or by PUT until it is answered.
async fn client(books: Arc<Books>, way: usize) {
    let mut n = 0;
    while n < EACH {
        let job = |n: usize| json!({"type": kind(n), "data": {"n": n}});
        match way {
            // A lost response may have accepted a job. No client knows this job, and it must end
            // too.
            0 => {
                match books.ask(Method::POST, "/v1/jobs", &job(n)).await {
                    Some(answer) => books.acknowledge(&answer.is(201)),
                    None => drop(books.insist(Method::GET, "/readyz", &Value::Null).await),
                }
                n += 1;
            }
            1 => {
                let jobs: Vec<_> = (n..n + 10).map(job).collect();
                if let Some(answer) =
                    books.ask(Method::POST, "/v1/jobs/batch", &json!({"jobs": jobs})).await
                {
                    answer.is(200)["results"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .for_each(|one| books.acknowledge(&one["job"]));
                }
                n += 10;
            }
            _ => {
                let answer = books
                    .insist(
                        Method::PUT,
                        &format!("/v1/jobs/{}/own-{n}", kind(n)),
                        &json!({"data": {"n": n}}),
                    )
                    .await;
                books.acknowledge(&answer.good());
                n += 1;
            }
        }
    }
}

/// Work of this length.
async fn work(millis: u64) {
    let _ = tokio::time::timeout(Duration::from_millis(millis), std::future::pending::<()>()).await;
}

/// Leases, works for a moment and reports, with a separate call or with the next lease call.
/// Sometimes it abandons its jobs.
async fn worker(books: Arc<Books>, name: usize, mut chance: StdRng) {
    let mut reports: Vec<Value> = Vec::new();
    while !books.over.load(Ordering::Relaxed) || !reports.is_empty() {
        let ask = json!({"queue": "pulled", "max": 3, "wait_seconds": 0.5, "worker": format!("w{name}"), "reports": reports});
        let Some(answer) = books.ask(Method::POST, "/v1/leases", &ask).await else {
            continue;
        };
        let answer = answer.is(200);
        for (report, response) in reports.drain(..).zip(answer["reports"].as_array().unwrap()) {
            judge(
                &books,
                report["id"].as_str().unwrap(),
                &report,
                response["status"].as_u64().unwrap(),
            );
        }
        let now = SystemClock.now();
        let leases = answer["leases"].as_array().unwrap();
        for lease in leases {
            books.start(lease["job"]["id"].as_str().unwrap(), lease["attempt"].as_u64().unwrap());
        }
        for lease in leases {
            let (id, kind) =
                (lease["job"]["id"].as_str().unwrap(), lease["job"]["type"].as_str().unwrap());
            let until: Timestamp = lease["expires_at"].as_str().unwrap().parse().unwrap();
            if chance.random_range(0..20) == 0 {
                books.hold("pulled", now, until);
                continue;
            }
            work(chance.random_range(0..20)).await;
            books.hold("pulled", now, SystemClock.now().min(until));
            let mut report = json!({"status": "succeeded", "attempt": lease["attempt"], "result": lease["job"]["data"], "until": lease["expires_at"]});
            report["id"] = json!(id);
            if name.is_multiple_of(2) {
                reports.push(report);
                continue;
            }
            let response = books
                .insist(Method::POST, &format!("/v1/jobs/{kind}/{id}"), &without_until(&report))
                .await;
            judge(&books, id, &report, response.status.into());
        }
        for report in &mut reports {
            *report = without_until(report);
        }
    }
}

/// A report without the end of its lease, which only the worker records.
fn without_until(report: &Value) -> Value {
    let mut sent = report.clone();
    sent.as_object_mut().unwrap().remove("until");
    sent
}

/// A report is taken, or its lease was over.
fn judge(books: &Books, id: &str, report: &Value, status: u64) {
    match status {
        200 => drop(books.succeeded.lock().insert(id.to_owned())),
        409 => {
            let until = report["until"].as_str().map(|text| text.parse::<Timestamp>().unwrap());
            if until.is_some_and(|until| SystemClock.now() < until) {
                books.faults.lock().push(format!("{id}: a report within its lease was refused"));
            }
        }
        other => books.faults.lock().push(format!("{id}: a report was answered with {other}")),
    }
}

/// The most that were held at once.
fn most_at_once(held: &[Held], queue: &str) -> usize {
    let mut edges: Vec<(Timestamp, i32)> = held
        .iter()
        .filter(|held| held.queue == queue)
        .flat_map(|held| [(held.from, 1), (held.to, -1)])
        .collect();
    // An end in the same millisecond comes first, because it may have caused the next start.
    edges.sort_unstable();
    let mut now = 0;
    edges
        .iter()
        .map(|(_, step)| {
            now += step;
            now
        })
        .max()
        .unwrap_or_default() as usize
}

async fn started(setup: Setup, books: &Books) -> Tidegate {
    let tide = setup.start().await;
    *books.api.lock() = Some(tide.api.clone());
    tide
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_at_any_time_loses_nothing_and_keeps_limits() {
    let seed: u64 = 20_261_120;
    let mut chance = StdRng::seed_from_u64(seed);
    let books = Arc::new(Books::default());
    let seen = Arc::clone(&books);
    let target = Target::start(move |call| {
        let books = Arc::clone(&seen);
        async move {
            let from = SystemClock.now();
            let body = call.json();
            books.start(body["id"].as_str().unwrap(), body["attempt"].as_u64().unwrap());
            work(5).await;
            books.hold("pushed", from, SystemClock.now());
            (StatusCode::OK, [("content-type", "application/json")], body["data"].to_string())
        }
    })
    .await;

    let mut tide = started(Setup::new(), &books).await;
    let retry =
        json!({"strategy": "exponential", "config": {"base_seconds": 0.01, "jitter": "none"}});
    for queue in ["pulled", "pushed"] {
        tide.queue(queue, json!({"concurrency": LIMIT})).await;
    }
    for (name, delivery) in [("pull", "at_least_once"), ("once", "at_most_once")] {
        let attempts = if name == "once" { 1 } else { 1000 };
        tide.job_type(name, json!({"queue": "pulled", "lease_seconds": 1, "max_attempts": attempts, "delivery": delivery, "retry": retry}))
            .await;
    }
    for (name, delivery) in [("push", "at_least_once"), ("once-push", "at_most_once")] {
        let attempts = if name == "once-push" { 1 } else { 1000 };
        let push = json!({"url": target.url});
        let config = json!({"queue": "pushed", "target": push, "response_timeout_seconds": 1, "max_attempts": attempts, "delivery": delivery, "retry": retry});
        tide.job_type(name, config).await;
    }

    let clients: Vec<_> = (0..3).map(|way| tokio::spawn(client(Arc::clone(&books), way))).collect();
    let workers: Vec<_> = (0..4)
        .map(|name| {
            tokio::spawn(worker(
                Arc::clone(&books),
                name,
                StdRng::seed_from_u64(seed + name as u64),
            ))
        })
        .collect();
    for _ in 0..KILLS {
        let aim = books.events.load(Ordering::Relaxed) + chance.random_range(5..60);
        eventually("enough has happened for the next kill", || async {
            (books.events.load(Ordering::Relaxed) >= aim).then_some(())
        })
        .await;
        tide = started(tide.kill(), &books).await;
    }
    for client in clients {
        client.await.unwrap();
    }
    eventually("every job has ended", || async {
        let left = tide.get("/v1/jobs?state=scheduled,running&limit=1").await.is(200);
        (left["jobs"] == json!([]) && left.get("next_cursor").is_none()).then_some(())
    })
    .await;
    books.over.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }

    let faults = std::mem::take(&mut *books.faults.lock());
    assert!(faults.is_empty(), "{faults:#?}");
    let held = std::mem::take(&mut *books.held.lock());
    for queue in ["pulled", "pushed"] {
        let most = most_at_once(&held, queue);
        assert!((1..=LIMIT).contains(&most), "{most} ran at once in {queue}");
    }
    let acknowledged = books.acknowledged.lock().clone();
    assert!(acknowledged.len() > EACH, "only {} were acknowledged", acknowledged.len());
    let begun = books.started.lock().clone();
    let succeeded = books.succeeded.lock().clone();
    for id in acknowledged.iter().chain(begun.keys()) {
        let job = tide.job(id).await;
        let attempts = begun.get(id).cloned().unwrap_or_default();
        let attempt = job["attempt"].as_u64().unwrap();
        assert!(attempts.last().is_none_or(|last| *last <= attempt), "{attempts:?}: {job:#}");
        let history: Vec<u64> = job["history"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["attempt"].as_u64().unwrap())
            .collect();
        assert_eq!(history, (1..=attempt).collect::<Vec<_>>(), "{job:#}");
        if job["type"].as_str().unwrap().starts_with("once") {
            assert!(attempts.len() <= 1 && attempt == 1, "{attempts:?}: {job:#}");
            assert!(
                job["state"] == "succeeded" || job["error"]["reason"] == "outcome_unknown",
                "{job:#}"
            );
        } else {
            assert_eq!(
                (&job["state"], &job["result"]),
                (&json!("succeeded"), &job["data"]),
                "{job:#}"
            );
        }
        assert!(!succeeded.contains(id) || job["state"] == "succeeded", "{job:#}");
    }
}
