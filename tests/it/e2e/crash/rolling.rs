//! Servers on Postgres are stopped in order and started again, one after the other, as for an update. Under
//! load no job is lost, each runs once, and almost all start at once.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use tidegate_core::time::Timestamp;

use super::{books::Books, load, three};
use crate::e2e::{
    api::Api,
    serve::{Setup, Tidegate},
    wait::{eventually, until},
};

/// How many requests are answered between two restarts, at least.
const ANSWERS_BETWEEN: u64 = 150;
/// The p99 of the start delay that the documents promise, if the machine does nothing else.
const PROMISED: Duration = Duration::from_secs(2);

/// A queue for leases and one for pushes, whose limits hold up no job.
async fn configure(api: &Api, target: &str) {
    api.queue("pulled", json!({"concurrency": 100})).await;
    api.queue("pushed", json!({"concurrency": 100})).await;
    api.job_type("pull", json!({"queue": "pulled", "delivery": "at_most_once", "max_attempts": 1}))
        .await;
    api.job_type("push", json!({"queue": "pushed", "target": {"url": target}})).await;
}

/// Enqueues jobs of a type at a steady pace.
async fn client(books: Arc<Books>, job_type: &str) {
    let mut n = 0;
    while !books.enough.load(Ordering::Relaxed) {
        n += 1;
        let path = format!("/v1/jobs/{job_type}/{job_type}-{n}");
        let answer = books.insist_json(Method::PUT, &path, &json!({"data": n})).await;
        books.acknowledge(&answer.good());
        load::work(20).await;
    }
}

/// Leases, works for a moment and reports.
async fn worker(books: Arc<Books>, name: usize) {
    while !books.over.load(Ordering::Relaxed) {
        let ask =
            json!({"types": ["pull"], "max": 2, "wait_seconds": 0.5, "worker": format!("w{name}")});
        let Some(answer) = books.ask_json(Method::POST, "/v1/leases", &ask).await else {
            continue;
        };
        let leases = answer.is(200)["leases"].as_array().unwrap().clone();
        for lease in &leases {
            let (id, attempt) = (lease["job"]["id"].as_str().unwrap(), &lease["attempt"]);
            books.start(id, attempt.as_u64().unwrap());
            load::work(5).await;
            let report = json!({"attempt": attempt, "status": "succeeded"});
            books.insist_json(Method::POST, &format!("/v1/jobs/pull/{id}"), &report).await.is(200);
        }
    }
}

/// Waits until a server answers requests for jobs.
async fn ready(tide: &Tidegate) {
    eventually("the server is ready", || async {
        let ready = tide.unchecked().try_send(Method::GET, "/readyz", &[], "").await;
        ready.is_some_and(|ready| ready.status == 200).then_some(())
    })
    .await;
}

/// Restarts each of three servers as often as there are `rounds`, one after the other under load. Every job
/// must succeed and run once. Returns the start delays in order.
async fn restarted_in_turn(rounds: usize) -> Vec<Duration> {
    let books = Arc::new(Books::default());
    let target = load::target(Arc::clone(&books)).await;
    let mut tides = join_all(three().setups.into_iter().map(Setup::follow)).await;
    join_all(tides.iter().map(ready)).await;
    configure(&tides[0], &target.url).await;
    // Each server has the same address in all its lives.
    *books.apis.lock() = tides.iter().map(|tide| tide.api.clone()).collect();
    let clients = ["pull", "push"].map(|of| tokio::spawn(client(Arc::clone(&books), of)));
    let workers: Vec<_> =
        (0..4).map(|name| tokio::spawn(worker(Arc::clone(&books), name))).collect();
    for _ in 0..rounds * tides.len() {
        let aim = books.events.load(Ordering::Relaxed) + ANSWERS_BETWEEN;
        eventually("enough is answered for the next restart", || async {
            (books.events.load(Ordering::Relaxed) >= aim).then_some(())
        })
        .await;
        let restarted = tides.remove(0).stop().await.follow().await;
        ready(&restarted).await;
        tides.push(restarted);
    }
    books.enough.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    let tide = &tides[0];
    until(|| async {
        let left = tide.get("/v1/jobs?state=scheduled,running&limit=10").await.is(200);
        (left["jobs"] == json!([]), left)
    })
    .await;
    books.over.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    let faults = std::mem::take(&mut *books.faults.lock());
    assert!(faults.is_empty(), "{faults:#?}");
    let acknowledged = books.acknowledged.lock().clone();
    let mut delays = Vec::with_capacity(acknowledged.len());
    for id in &acknowledged {
        let job = tide.job(id).await;
        assert_eq!(job["state"], "succeeded", "{job:#}");
        assert_eq!(books.started.lock()[id].len(), 1, "it ran once: {job:#}");
        delays.push(start_delay(&job));
    }
    assert!(delays.len() > 50 * rounds, "only {} jobs", delays.len());
    delays.sort_unstable();
    delays
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_servers_restarted_in_turn_run_each_job_once() {
    restarted_in_turn(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes, alone; cargo xtask check --full runs it"]
async fn postgres_servers_restarted_for_minutes_start_jobs_soon() {
    let delays = restarted_in_turn(10).await;
    let p99 = delays[delays.len() * 99 / 100];
    println!("{} jobs, start delay p99 {p99:?}, longest {:?}", delays.len(), delays.last());
    assert!(p99 < PROMISED, "the p99 of the start delay is {p99:?}");
}

/// How long after it was enqueued a job started.
fn start_delay(job: &Value) -> Duration {
    let instant = |value: &Value| value.as_str().unwrap().parse::<Timestamp>().unwrap();
    let last = job["history"].as_array().unwrap().last().unwrap();
    instant(&last["started_at"]).since(instant(&job["created_at"]))
}
