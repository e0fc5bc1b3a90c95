//! A request goes out over HTTP and its reply arrives later as an event, matched by a key. The
//! server is killed and started again at any moment in between.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use axum::http::StatusCode;
use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{
    api::Api,
    serve::{Setup, Tidegate},
    target::Target,
    wait::eventually,
};

const STRUCTURED: [(&str, &str); 1] = [("content-type", "application/cloudevents+json")];
const BATCH: [(&str, &str); 1] = [("content-type", "application/cloudevents-batch+json")];
/// Requests that go out.
const JOBS: usize = 60;
const KILLS: usize = 6;

fn answer(key: &str, attempt: u64) -> Value {
    json!({"specversion": "1.0", "id": format!("{key}-{attempt}"), "source": "/other-system", "type": "answered",
           "data": {"request": key, "answer": format!("answer to {key}")}})
}

fn order(n: usize) -> Value {
    json!({"specversion": "1.0", "id": n.to_string(), "source": "/shop", "type": "ordered", "data": {"order": format!("o-{n}")}})
}

/// A trigger for orders that enqueues requests, and one for replies that completes them.
async fn put_triggers(api: &Api) {
    let enqueue = json!({"filter": {"type": "ordered"}, "enqueue": {
        "type": "ask", "correlation_key": {"$expr": "data.order"}, "attributes": {"n": {"$expr": "id"}}}});
    let complete = json!({"filter": {"type": "answered"}, "complete": {
        "type": "ask", "correlation_key": {"$expr": "data.request"}, "result": {"$expr": "data.answer"}}});
    api.put("/v1/triggers/orders", enqueue).await.good();
    api.put("/v1/triggers/replies", complete).await.good();
}

#[tokio::test]
async fn a_push_carries_its_correlation_key_and_awaits_the_result() {
    let tide = Tidegate::start().await;
    let target = Target::start(|_| async { (StatusCode::OK, "taken, thank you") }).await;
    put_triggers(&tide).await;
    for (number, encoding) in [(1, "json"), (2, "msgpack")] {
        tide.job_type(
            "ask",
            json!({"target": {"url": target.url, "complete": "on_result", "encoding": encoding}}),
        )
        .await;
        let job = tide
            .post("/v1/jobs", json!({"type": "ask", "data": {"x": 1}, "correlation_key": encoding}))
            .await
            .is(201);
        let call = target.call(number).await;
        let body: Value = if encoding == "json" {
            call.json()
        } else {
            rmp_serde::from_slice(&call.body).unwrap()
        };
        assert_eq!((&body["correlation_key"], &body["data"]["x"]), (&json!(encoding), &json!(1)));
        assert!(body["callback"]["token"].is_string() && body["callback"]["url"].is_string());
        assert_eq!(
            tide.job(job["id"].as_str().unwrap()).await["state"],
            "running",
            "an answer of 200 is not the result"
        );
        let done = tide
            .send(Method::POST, "/v1/events", &STRUCTURED, answer(encoding, 1).to_string())
            .await
            .is(200);
        assert_eq!(
            done["outcomes"],
            json!([{"trigger": "replies", "action": "completed", "job": job["id"]}])
        );
        let done = tide.job(job["id"].as_str().unwrap()).await;
        assert_eq!(
            (&done["state"], &done["result"]),
            (&json!("succeeded"), &json!(format!("answer to {encoding}")))
        );
    }
}

#[tokio::test]
async fn a_trigger_is_tested_and_its_job_names_it() {
    let tide = Tidegate::start().await;
    tide.job_type("ask", json!({})).await;
    put_triggers(&tide).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("events.json");
    std::fs::write(&file, json!([order(1), answer("o-1", 1)]).to_string()).unwrap();
    let file = file.to_str().unwrap();
    let test = ["trigger", "test", "orders", "--file", file, "--json"];
    let tested: Value = serde_json::from_str(&tide.cli(&test).await.ok()).unwrap();
    let tested_events = tested["events"].as_array().unwrap();
    let actions: Vec<_> = tested_events.iter().map(|of| &of["action"]).collect();
    assert_eq!(actions, ["enqueued", "unmatched"]);
    assert_eq!(tide.get("/v1/jobs").await.is(200)["jobs"], json!([]), "nothing is done");
    assert_eq!(tide.cli(&["trigger", "test", "none", "--file", file]).await.code, Some(4));

    let body = order(1).to_string();
    let event = tide.send(Method::POST, "/v1/events", &STRUCTURED, body).await.is(200);
    let id = event["outcomes"][0]["job"].as_str().unwrap().to_owned();
    assert_eq!(tested["events"][0]["job"]["id"], json!(id), "the job of the test");
    let origin = json!({"trigger": "orders", "event": "1", "source": "/shop"});
    assert_eq!(tide.job(&id).await["origin"], origin);
    let shown = tide.cli(&["jobs", "get", &id]).await.ok();
    assert!(shown.contains("trigger orders, event 1 of /shop"), "{shown}");
}

#[tokio::test]
async fn a_job_of_an_event_tells_its_worker_how_far_round_it_is() {
    let tide = Tidegate::start().await;
    let target = Target::start(|_| async { StatusCode::OK }).await;
    tide.job_type("ask", json!({"target": {"url": target.url}})).await;
    put_triggers(&tide).await;
    let binary = [
        ("ce-specversion", "1.0"),
        ("ce-id", "1"),
        ("ce-source", "/shop"),
        ("ce-type", "ordered"),
        ("ce-tidegatehops", "2"),
        ("content-type", "application/json"),
        ("ce-traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ];
    tide.send(Method::POST, "/v1/events", &binary, r#"{"order": "o"}"#).await.is(200);
    let call = target.call(1).await;
    assert_eq!(
        (call.header("ce-tidegatehops"), call.json()["correlation_key"].as_str()),
        ("3", Some("o"))
    );
    assert_eq!(
        call.header("traceparent"),
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    );
    let round =
        [&binary[..4], &[("ce-tidegatehops", "8"), ("content-type", "application/json")]].concat();
    let dropped = tide.send(Method::POST, "/v1/events", &round, r#"{"order": "p"}"#).await.is(200);
    assert_eq!(dropped["outcomes"][0]["action"], "dropped");
    // What is no event is counted too, alone and in a batch.
    tide.send(Method::POST, "/v1/events", &binary[1..], "{}").await.is(400);
    let batch = [("content-type", "application/cloudevents-batch+json")];
    tide.send(Method::POST, "/v1/events", &batch, r#"[{"id": "1"}, 7]"#).await.is(200);
    let metrics = String::from_utf8(tide.get("/metrics").await.body).unwrap();
    for line in [
        "events_total{outcome=\"matched\"} 2",
        "events_total{outcome=\"refused\"} 3",
        "tidegate_trigger_total{trigger=\"orders\",action=\"dropped\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

/// What the systems around the server know.
#[derive(Default)]
struct World {
    api: Mutex<Option<Api>>,
    over: AtomicBool,
    /// How much has happened: kills are aimed by it.
    steps: AtomicU64,
    /// The requests that arrived at the other system, which answers each of them, some of them
    /// twice.
    asked: Mutex<BTreeMap<String, u64>>,
    to_answer: Mutex<Vec<(String, u64)>>,
    /// There is a request to answer, or the test is over.
    arrived: Notify,
}

impl World {
    /// Sends events until they are accepted.
    async fn tell(&self, events: &[Value]) {
        eventually("the server takes the events", || async {
            let api = self.api.lock().clone()?;
            let answer =
                api.try_send(Method::POST, "/v1/events", &BATCH, json!(events).to_string()).await?;
            tokio::task::yield_now().await;
            let taken = answer.status == 200
                && answer.is(200)["results"]
                    .as_array()?
                    .iter()
                    .all(|result| result["status"] == 200);
            taken.then_some(())
        })
        .await;
        self.steps.fetch_add(events.len() as u64, Ordering::Relaxed);
    }
}

/// Orders arrive, each at least once, some twice.
async fn shop(world: Arc<World>, mut chance: StdRng) {
    let mut n = 0;
    while n < JOBS {
        let upto = (n + chance.random_range(1..6)).min(JOBS);
        let mut events: Vec<Value> = (n..upto).map(order).collect();
        if chance.random_range(0..3) == 0 {
            events.push(order(chance.random_range(0..upto)));
        }
        world.tell(&events).await;
        n = upto;
    }
}

/// The other system: it answers each request after a while, in an order of its own, some of them
/// twice.
async fn other_system(world: Arc<World>, mut chance: StdRng) {
    while !world.over.load(Ordering::Relaxed) {
        let some: Vec<(String, u64)> = {
            let mut open = world.to_answer.lock();
            let take = chance.random_range(0..=open.len().min(7));
            (0..take)
                .map(|_| {
                    let at = chance.random_range(0..open.len());
                    open.swap_remove(at)
                })
                .collect()
        };
        if some.is_empty() {
            if world.to_answer.lock().is_empty() {
                world.arrived.notified().await;
            }
            continue;
        }
        let mut events: Vec<Value> =
            some.iter().map(|(key, attempt)| answer(key, *attempt)).collect();
        if chance.random_range(0..3) == 0 {
            events.push(events[0].clone());
        }
        world.tell(&events).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reply_events_settle_requests_whenever_the_server_is_killed() {
    let mut chance = StdRng::seed_from_u64(20_261_121);
    let world = Arc::new(World::default());
    let seen = Arc::clone(&world);
    // The other system accepts every request, with different responses; its reply comes as an
    // event.
    let target = Target::start(move |call| {
        let body = call.json();
        let key = body["correlation_key"].as_str().unwrap().to_owned();
        let attempt = body["attempt"].as_u64().unwrap();
        *seen.asked.lock().entry(key.clone()).or_default() += 1;
        seen.to_answer.lock().push((key, attempt));
        seen.arrived.notify_one();
        seen.steps.fetch_add(1, Ordering::Relaxed);
        let status = if call.number % 2 == 0 { StatusCode::OK } else { StatusCode::ACCEPTED };
        async move { status }
    })
    .await;
    let mut tide = Setup::new().start().await;
    *world.api.lock() = Some(tide.api.clone());
    tide.queue("asking", json!({"concurrency": 8})).await;
    let retry =
        json!({"strategy": "exponential", "config": {"base_seconds": 0.01, "jitter": "none"}});
    // An attempt without a reply, because its request came from a killed server, is repeated.
    let config = json!({"queue": "asking", "target": {"url": target.url, "complete": "on_result"}, "timeout_seconds": 2,
                        "response_timeout_seconds": 1, "max_attempts": 1000, "retry": retry});
    tide.job_type("ask", config).await;
    put_triggers(&tide).await;

    let shopping = tokio::spawn(shop(Arc::clone(&world), StdRng::seed_from_u64(1)));
    let answering = tokio::spawn(other_system(Arc::clone(&world), StdRng::seed_from_u64(2)));
    for _ in 0..KILLS {
        let aim = world.steps.load(Ordering::Relaxed) + chance.random_range(3..20);
        eventually("enough has happened for the next kill", || async {
            (world.steps.load(Ordering::Relaxed) >= aim || shopping.is_finished()).then_some(())
        })
        .await;
        tide = tide.kill().start().await;
        *world.api.lock() = Some(tide.api.clone());
    }
    shopping.await.unwrap();
    eventually("every job has ended", || async {
        let left = tide.get("/v1/jobs?state=scheduled,running&limit=1").await.is(200);
        (left["jobs"] == json!([])).then_some(())
    })
    .await;
    world.over.store(true, Ordering::Relaxed);
    world.arrived.notify_one();
    answering.await.unwrap();

    let jobs = tide.get("/v1/jobs?limit=1000").await.is(200)["jobs"].as_array().unwrap().clone();
    assert_eq!(jobs.len(), JOBS, "one job per order, however often it was delivered");
    for job in &jobs {
        let key = job["correlation_key"].as_str().unwrap();
        assert_eq!(
            (&job["state"], &job["result"]),
            (&json!("succeeded"), &json!(format!("answer to {key}"))),
            "{job:#}"
        );
        let succeeded = job["history"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|entry| entry["outcome"] == "succeeded")
            .count();
        assert_eq!(succeeded, 1, "{job:#}");
        assert!(world.asked.lock()[key] >= 1);
    }
    assert_eq!(tide.get("/v1/dead-letters").await.is(200)["dead_letters"], json!([]));
}

#[tokio::test]
async fn the_end_of_a_job_starts_another_job() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({"max_attempts": 1})).await;
    tide.job_type("alert", json!({})).await;
    let rule = json!({
        "job_types": ["t"], "filter": {"type": ["job.failed", "job.cancelled"]},
        "enqueue": {"type": "alert", "data": {"$expr": "data.id"}},
    });
    let put = tide.ask(Method::PUT, "/v1/triggers/alerts", &rule).await.is(201);
    assert_eq!(put["job_types"], json!(["t"]));
    let unnamed = json!({"job_types": ["tidegate.callback"], "enqueue": {"type": "alert"}});
    let refused = tide.ask(Method::PUT, "/v1/triggers/own", &unnamed).await;
    refused.blames(400, "invalid_trigger", "job_types");
    let failing = tide.enqueue(json!({"type": "t", "data": 1})).await;
    let lease = tide.lease_one("t").await;
    tide.report(&lease, "failed").await.is(200);
    let cancelled = tide.enqueue(json!({"type": "t", "data": 1, "delay_seconds": 60})).await;
    tide.delete(&format!("/v1/jobs/t/{cancelled}")).await.is(200);
    let mut alerts = eventually("both ends have their jobs", || async {
        let page = tide.get("/v1/jobs?type=alert").await.is(200);
        let jobs = page["jobs"].as_array().unwrap();
        let about: Vec<Value> = jobs.iter().map(|job| job["data"].clone()).collect();
        (about.len() == 2).then_some(about)
    })
    .await;
    let mut ended = vec![json!(failing), json!(cancelled)];
    for ids in [&mut alerts, &mut ended] {
        ids.sort_by_key(Value::to_string);
    }
    assert_eq!(alerts, ended);
    let page = tide.get("/v1/jobs?queue=tidegate.events").await.is(200);
    assert_eq!(page["jobs"].as_array().unwrap().len(), 2, "each job carries its event: {page}");
}
