//! The load under which the server is killed: clients, events, pull workers and a push target.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::http::StatusCode;
use rand::{RngExt as _, rngs::StdRng};
use reqwest::Method;
use serde_json::{Value, json};
use tidegate_backends::system::SystemClock;
use tidegate_core::{port::Clock as _, time::Timestamp};

use super::{
    super::{api::Api, target::Target, wait::eventually},
    books::Books,
};

/// The limit of the queues `pulled` and `pushed`.
pub const LIMIT: usize = 5;
/// The limit of the queue `shared`, and the percentage of each region.
pub const SHARED: usize = 10;
pub const SHARES: [(&str, usize); 3] = [("east", 40), ("north", 30), ("west", 30)];
/// Starts of the queue `rated` in any window of one second.
pub const RATE: usize = 50;
/// Acknowledged jobs that may wait for their start while clients go on.
const BACKLOG: usize = 300;

/// Configures every queue, type, plugin, trigger and schedule.
pub async fn configure(api: &Api, target: &Target) {
    let wasm =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/plugins/dist/region-share.wasm"))
            .unwrap();
    let media = [("content-type", "application/wasm")];
    api.patient().send(Method::PUT, "/v1/plugins/region-share", &media, wasm).await.is(201);
    let shares: serde_json::Map<String, Value> =
        SHARES.iter().map(|(region, share)| ((*region).to_owned(), json!(share))).collect();
    let throttler =
        json!({"plugin": "region-share", "config": {"attribute": "region", "shares": shares}});
    for (queue, config) in [
        ("pulled", json!({"concurrency": LIMIT})),
        ("pushed", json!({"concurrency": LIMIT})),
        ("shared", json!({"concurrency": SHARED, "throttler": throttler})),
        (
            "rated",
            json!({"constraints": [{"name": "all", "rate": {"count": RATE, "per_seconds": 1}}]}),
        ),
        ("free", json!({})),
    ] {
        api.queue(queue, config).await;
    }
    let retry =
        json!({"strategy": "exponential", "config": {"base_seconds": 0.01, "jitter": "none"}});
    for (name, queue) in [
        ("pull", "pulled"),
        ("once", "pulled"),
        ("push", "pushed"),
        ("once-push", "pushed"),
        ("share", "shared"),
        ("rate", "rated"),
        ("order", "free"),
        ("beat", "free"),
    ] {
        let mut config = json!({"queue": queue, "max_attempts": 1000, "retry": retry});
        if name.starts_with("once") {
            config["max_attempts"] = json!(1);
            config["delivery"] = json!("at_most_once");
        }
        if queue == "pushed" {
            config["target"] = json!({"url": target.url});
            config["response_timeout_seconds"] = json!(1);
        } else {
            config["lease_seconds"] = json!(1);
        }
        if name == "share" {
            config["attributes"] = json!({"region": "/region"});
        }
        api.job_type(name, config).await;
    }
    let trigger = json!({"filter": {"type": "ordered"},
        "enqueue": {"type": "order", "correlation_key": {"$expr": "data.order"}}});
    api.put("/v1/triggers/orders", trigger).await.good();
    api.put("/v1/schedules/beats", json!({"type": "beat", "every_seconds": 1})).await.is(201);
}

/// A target that works for a moment and returns the data of each job.
pub async fn target(books: Arc<Books>) -> Target {
    Target::start(move |call| {
        let books = Arc::clone(&books);
        async move {
            let from = SystemClock.now();
            let body = call.json();
            books.start(body["id"].as_str().unwrap(), body["attempt"].as_u64().unwrap());
            work(5).await;
            books.hold("pushed", from, SystemClock.now());
            (StatusCode::OK, [("content-type", "application/json")], body["data"].to_string())
        }
    })
    .await
}

/// The `n`th job of a client: most may run again, some only once.
pub fn job(n: usize) -> Value {
    const KINDS: [&str; 9] =
        ["pull", "push", "share", "once", "rate", "pull", "once-push", "share", "push"];
    let region = SHARES[n / KINDS.len() % SHARES.len()].0;
    json!({"type": KINDS[n % KINDS.len()], "data": {"n": n, "region": region}})
}

/// Whether the clients go on; it waits while too many jobs have not started.
pub async fn goes_on(books: &Books) -> bool {
    eventually("the workers have caught up", || async {
        let enough = books.enough.load(Ordering::Relaxed);
        (enough || books.waiting() < BACKLOG).then_some(!enough)
    })
    .await
}

/// How a client enqueues its jobs.
#[derive(Clone, Copy)]
pub enum Way {
    /// One by one. A lost response may have accepted a job. No client knows this job, and it must
    /// end too.
    Single,
    /// In batches of ten.
    Batch,
    /// By PUT, until it is answered.
    Put,
    /// By an event, until it is answered.
    Event,
}

/// Enqueues jobs until the last kill.
pub async fn client(books: Arc<Books>, way: Way) {
    let mut n = 0;
    while goes_on(&books).await {
        n += 1;
        match way {
            Way::Single => match books.ask_json(Method::POST, "/v1/jobs", &job(n)).await {
                Some(answer) => books.acknowledge(&answer.is(201)),
                None => drop(books.insist_json(Method::GET, "/readyz", &Value::Null).await),
            },
            Way::Batch => {
                let jobs: Vec<_> = (10 * n..10 * n + 10).map(job).collect();
                if let Some(answer) =
                    books.ask_json(Method::POST, "/v1/jobs/batch", &json!({"jobs": jobs})).await
                {
                    // Each job has an answer of its own: the store may be lost between two.
                    for one in answer.is(200)["results"].as_array().unwrap() {
                        match one["status"].as_u64() {
                            Some(503) => {}
                            _ => books.acknowledge(&one["job"]),
                        }
                    }
                }
            }
            Way::Put => {
                let mut job = job(n);
                let path = format!("/v1/jobs/{}/own-{n}", job["type"].as_str().unwrap());
                job.as_object_mut().unwrap().remove("type");
                books.acknowledge(&books.insist_json(Method::PUT, &path, &job).await.good());
            }
            Way::Event => {
                let key = format!("o-{n}");
                let event = json!({"specversion": "1.0", "id": key, "source": "/shop",
                    "type": "ordered", "data": {"order": key}});
                let media = "application/cloudevents+json";
                books.insist(Method::POST, "/v1/events", media, &event).await.is(200);
                books.ordered.lock().insert(key);
            }
        }
    }
}

/// Work of this length.
pub async fn work(millis: u64) {
    let _ = tokio::time::timeout(Duration::from_millis(millis), std::future::pending::<()>()).await;
}

/// Leases, works for a moment and reports, with a separate call or with the next lease call.
/// Sometimes it abandons its jobs. A worker with a queue leases only from this one.
pub async fn worker(books: Arc<Books>, name: usize, queue: Option<&str>, mut chance: StdRng) {
    let mut reports: Vec<Value> = Vec::new();
    while !books.over.load(Ordering::Relaxed) || !reports.is_empty() {
        let ask = json!({"queue": queue, "max": 3, "wait_seconds": 0.5, "worker": format!("w{name}"), "reports": reports});
        let Some(answer) = books.ask_json(Method::POST, "/v1/leases", &ask).await else {
            continue;
        };
        let answer = answer.is(200);
        let mut unanswered = Vec::new();
        for (report, response) in reports.drain(..).zip(answer["reports"].as_array().unwrap()) {
            match response["status"].as_u64().unwrap() {
                // The store was lost between two reports.
                503 => unanswered.push(report),
                status => judge(&books, report["id"].as_str().unwrap(), &report, status),
            }
        }
        reports = unanswered;
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
                hold(&books, lease, now, until);
                continue;
            }
            work(chance.random_range(0..20)).await;
            hold(&books, lease, now, SystemClock.now().min(until));
            let mut report = json!({"status": "succeeded", "attempt": lease["attempt"], "result": lease["job"]["data"], "until": lease["expires_at"]});
            report["id"] = json!(id);
            if name.is_multiple_of(2) {
                reports.push(report);
                continue;
            }
            let response = books
                .insist_json(
                    Method::POST,
                    &format!("/v1/jobs/{kind}/{id}"),
                    &without_until(&report),
                )
                .await;
            judge(&books, id, &report, response.status.into());
        }
        for report in &mut reports {
            *report = without_until(report);
        }
    }
}

/// Records under which limits a lease was held: its queue's, and its region's share.
fn hold(books: &Books, lease: &Value, from: Timestamp, to: Timestamp) {
    let queue = lease["job"]["queue"].as_str().unwrap();
    books.hold(queue, from, to);
    if let Some(region) = lease["job"]["attributes"]["region"].as_str() {
        books.hold(region, from, to);
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
