//! Operations on a live server: limits, pauses, purges, bulk operations, and why a job waits.

use serde_json::{Value, json};

use tidegate_backends::system::SystemClock;
use tidegate_core::port::Clock;

use super::{
    api::Api,
    serve::Tidegate,
    wait::{eventually, until},
};

/// Leases everything that may run now.
async fn all(api: &Api, kind: &str) -> Vec<super::api::Lease> {
    let mut leases = Vec::new();
    loop {
        let more = api.lease(json!({"types": [kind], "max": 100, "wait_seconds": 0.3})).await;
        if more.is_empty() {
            return leases;
        }
        leases.extend(more);
    }
}

#[tokio::test]
async fn a_limit_is_raised_and_lowered_under_running_jobs() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    for _ in 0..12 {
        tide.enqueue_a("t").await;
    }
    // The first limit is put on while jobs run that were started without one.
    let mut running = tide.lease(json!({"types": ["t"], "max": 3, "wait_seconds": 20})).await;
    assert_eq!(running.len(), 3);
    let limit = async |limit: Value| {
        tide.patch("/v1/queues/default", json!({"concurrency": limit})).await.good()
    };
    limit(json!(2)).await;
    assert_eq!(all(&tide, "t").await.len(), 0);
    tide.report(&running.remove(0), "succeeded").await.is(200);
    assert_eq!(all(&tide, "t").await.len(), 0, "two still run");
    tide.report(&running.remove(0), "succeeded").await.is(200);
    running.extend(all(&tide, "t").await);
    assert_eq!(running.len(), 2);
    limit(json!(5)).await;
    running.extend(all(&tide, "t").await);
    assert_eq!(running.len(), 5);
    limit(json!(0)).await;
    tide.report(&running.remove(0), "succeeded").await.is(200);
    assert_eq!(all(&tide, "t").await.len(), 0);
    limit(Value::Null).await;
    running.extend(all(&tide, "t").await);
    assert_eq!(running.len(), 9);
    tide.patch("/v1/job-types/t", json!({"concurrency": 9})).await.is(200);
    let held = tide.enqueue_a("t").await;
    let api = tide.api.clone();
    let waiting =
        tokio::spawn(async move { api.lease(json!({"types": ["t"], "wait_seconds": 20})).await });
    until(|| async {
        let explained = tide.explain("t", &held).await;
        (explained["held_by"] == json!({"kind": "type_concurrency", "name": "t"}), explained)
    })
    .await;
    tide.patch("/v1/job-types/t", json!({"concurrency": 10})).await.is(200);
    assert_eq!(waiting.await.unwrap()[0].id, held);
}

#[tokio::test]
async fn a_paused_queue_holds_all_jobs_and_a_purge_drops_them() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    let running = tide.enqueue_a("t").await;
    let lease = tide.lease_one("t").await;
    tide.post("/v1/queues/default/pause", Value::Null).await.is(200);
    let held = tide.enqueue_a("t").await;
    let later = tide.enqueue(json!({"type": "t", "data": 1, "delay_seconds": 600})).await;
    assert_eq!(all(&tide, "t").await.len(), 0);
    let status = tide.get("/v1/queues/default").await.is(200)["status"].clone();
    assert_eq!(
        (&status["depth"]["scheduled"], &status["depth"]["running"]),
        (&json!(2), &json!(1)),
        "{status}"
    );
    tide.report(&lease, "succeeded").await.is(200);
    let operation =
        tide.post("/v1/queues/default/purge", Value::Null).await.is(202)["operation"].clone();
    for id in [&held, &later] {
        tide.job_in(id, "dropped").await;
    }
    let done = operation_done(&tide, &operation).await;
    assert_eq!(
        (&done["matched"], &done["done"], &done["kind"]),
        (&json!(2), &json!(2), &json!("purge"))
    );
    tide.post("/v1/queues/default/resume", Value::Null).await.is(200);
    let next = tide.enqueue_a("t").await;
    assert_eq!(tide.lease_one("t").await.id, next);
    assert_eq!(tide.job(&running).await["state"], "succeeded");
}

async fn operation_done(api: &Api, operation: &Value) -> Value {
    let path = format!("/v1/operations/{}", operation["id"].as_str().unwrap());
    eventually("the operation is done", || async {
        let operation = api.get(&path).await.is(200)["operation"].clone();
        (operation["state"] == "done").then_some(operation)
    })
    .await
}

#[tokio::test]
async fn many_jobs_are_cancelled_and_replayed_and_counted() {
    let tide = Tidegate::start().await;
    for name in ["t", "u"] {
        tide.job_type(name, json!({})).await;
    }
    let jobs: Vec<_> = (0..250)
        .map(|n| json!({"type": if n < 220 { "t" } else { "u" }, "data": n, "delay_seconds": 600, "attributes": {"half": n % 2}}))
        .collect();
    tide.post("/v1/jobs/batch", json!({"jobs": jobs})).await.is(200);
    let cancel = json!({"filter": {"type": "t", "state": "scheduled", "attribute": {"half": 1}}});
    let operation = tide.post("/v1/jobs/cancel", cancel.clone()).await.is(202)["operation"].clone();
    let done = operation_done(&tide, &operation).await;
    assert_eq!(
        (&done["matched"], &done["done"], &done["refused"]),
        (&json!(110), &json!(110), &json!(0)),
        "{done}"
    );
    let replay = json!({"filter": {"state": "ended"}});
    let operation = tide.post("/v1/jobs/replay", replay).await.is(202)["operation"].clone();
    let done = operation_done(&tide, &operation).await;
    assert_eq!((&done["matched"], &done["done"]), (&json!(110), &json!(110)), "{done}");
    let status = tide.get("/v1/queues/default").await.is(200)["status"].clone();
    assert_eq!(
        (&status["depth"]["scheduled"], &status["depth"]["cancelled"]),
        (&json!(250), &json!(110)),
        "{status}"
    );
    let operation =
        tide.post("/v1/jobs/cancel", json!({"all": true})).await.is(202)["operation"].clone();
    let done = operation_done(&tide, &operation).await;
    assert_eq!(
        (&done["matched"], &done["done"], &done["refused"]),
        (&json!(360), &json!(250), &json!(110)),
        "{done}"
    );
    tide.get("/v1/operations/none").await.problem(404, "operation_not_found");
}

#[tokio::test]
async fn what_has_live_jobs_is_not_moved_or_deleted() {
    let tide = Tidegate::start().await;
    for name in ["a", "b"] {
        tide.queue(name, json!({})).await;
    }
    tide.job_type("t", json!({"queue": "a"})).await;
    let id = tide.enqueue(json!({"type": "t", "data": 1, "delay_seconds": 600})).await;
    tide.put("/v1/job-types/t", json!({"queue": "b"})).await.problem(409, "type_has_live_jobs");
    tide.patch("/v1/job-types/t", json!({"queue": "b"})).await.problem(409, "type_has_live_jobs");
    tide.delete("/v1/job-types/t").await.problem(409, "type_has_live_jobs");
    tide.delete("/v1/queues/a").await.problem(409, "queue_in_use");
    tide.put("/v1/job-types/t", json!({"queue": "none"})).await.problem(404, "queue_not_found");
    tide.delete(&format!("/v1/jobs/t/{id}")).await.is(200);
    tide.put("/v1/job-types/t", json!({"queue": "b"})).await.is(200);
    tide.delete("/v1/queues/a").await.is(204);
    tide.delete("/v1/job-types/t").await.is(204);
    tide.get("/v1/job-types/t").await.problem(404, "job_type_not_found");
    tide.post("/v1/jobs", json!({"type": "t", "data": 1})).await.problem(404, "job_type_not_found");
}

#[tokio::test]
async fn every_wait_is_explained() {
    let tide = Tidegate::start().await;
    let constraint = json!({"name": "east-only-one", "match": {"attribute": {"region": "east"}}, "concurrency": 1});
    tide.queue("q", json!({"concurrency": 2, "constraints": [constraint]})).await;
    let retry =
        json!({"strategy": "exponential", "config": {"base_seconds": 600, "jitter": "none"}});
    tide.job_type("t", json!({"queue": "q", "retry": retry})).await;
    tide.job_type("idle", json!({})).await;
    let kind = async |kind: &str, id: &str| {
        tide.explain(kind, id).await["held_by"]["kind"].as_str().unwrap_or("nothing").to_owned()
    };
    let unasked = tide.enqueue_a("idle").await;
    assert_eq!(kind("idle", &unasked).await, "worker");
    let later = tide.enqueue(json!({"type": "idle", "data": 1, "delay_seconds": 600})).await;
    assert_eq!(kind("idle", &later).await, "due_time");
    let east = json!({"type": "t", "data": 1, "attributes": {"region": "east"}});
    let first = tide.enqueue(east.clone()).await;
    let lease = tide.lease_one("t").await;
    assert_eq!((lease.id.as_str(), kind("t", &first).await.as_str()), (first.as_str(), "nothing"));
    let second = tide.enqueue(east).await;
    let api = tide.api.clone();
    let asking = tokio::spawn(async move {
        loop {
            for lease in api.lease(json!({"types": ["t"], "wait_seconds": 20})).await {
                // It holds what it gets.
                drop(lease);
            }
        }
    });
    let held = async |id: &str, wanted: Value| {
        until(|| async {
            let explained = tide.explain("t", id).await;
            (
                explained["held_by"] == wanted
                    && !explained["since"].is_null()
                    && explained["reason"].as_str().is_some_and(|text| !text.is_empty()),
                explained,
            )
        })
        .await
    };
    held(&second, json!({"kind": "constraint", "name": "east-only-one"})).await;
    let west = json!({"type": "t", "data": 1, "attributes": {"region": "west"}});
    let third = tide.enqueue(west.clone()).await;
    tide.job_in(&third, "running").await;
    let fourth = tide.enqueue(west).await;
    held(&fourth, json!({"kind": "concurrency"})).await;
    let heavy = tide.enqueue(json!({"type": "t", "data": 1, "weight": 2})).await;
    tide.patch("/v1/queues/q", json!({"concurrency": 1})).await.is(200);
    let explained = held(&heavy, json!({"kind": "concurrency"})).await;
    assert_eq!(explained["earliest_at"], Value::Null);
    let status = tide.get("/v1/queues/q").await.is(200)["status"].clone();
    assert!(status["held"].as_array().is_some_and(|held| !held.is_empty()), "{status}");
    assert_eq!(status["running_weight"], 2);
    assert!(!status["oldest_due_at"].is_null() && status["depth"]["scheduled"] == 3, "{status}");
    asking.abort();
    tide.report(&lease, "failed").await.is(200);
    assert_eq!(kind("t", &first).await, "retry");
    tide.post("/v1/queues/q/pause", Value::Null).await.is(200);
    assert_eq!(kind("t", &fourth).await, "paused");
    tide.delete(&format!("/v1/jobs/t/{fourth}")).await.is(200);
    assert_eq!(kind("t", &fourth).await, "nothing");
}

#[tokio::test]
async fn metrics_have_depths_by_type_and_the_oldest_due_jobs_age() {
    let tide = Tidegate::start().await;
    tide.queue("q", json!({})).await;
    let config = json!({"base_seconds": 600, "jitter": "none"});
    let retry = json!({"strategy": "exponential", "config": config});
    tide.job_type("t", json!({"queue": "q", "retry": retry})).await;
    tide.enqueue(json!({"type": "t", "data": 1, "weight": 3})).await;
    tide.enqueue(json!({"type": "t", "data": 1, "delay_seconds": 600})).await;
    let metrics = async || {
        let answer = tide.get("/metrics").await;
        String::from_utf8_lossy(&answer.body).into_owned()
    };
    // The value of the line with this name and these labels, in any order.
    let value = |text: &str, name: &str, labels: &[&str]| -> Option<f64> {
        let of = |line: &&str| {
            line.starts_with(&format!("{name}{{"))
                && labels.iter().all(|label| line.contains(label))
        };
        text.lines().find(of)?.rsplit(' ').next()?.parse().ok()
    };
    let (queue, age) = ("queue=\"q\"", "tidegate_oldest_due_job_age_seconds");
    let jobs = |text: &str, phase: &str| {
        let phase = format!("phase=\"{phase}\"");
        value(text, "tidegate_jobs", &[queue, "type=\"t\"", &phase])
    };
    let phases = async || tide.get("/v1/queues/q").await.is(200)["status"]["phases"].clone();
    assert_eq!(phases().await, json!({"ready": 1, "scheduled": 1}));
    until(|| async {
        let text = metrics().await;
        let is_old = value(&text, age, &[queue]).is_some_and(|age| age > 0.0);
        let counts = (jobs(&text, "scheduled"), jobs(&text, "ready"));
        (is_old && counts == (Some(1.0), Some(1.0)), text)
    })
    .await;
    let lease = tide.lease_one("t").await;
    let job = tide.get(&format!("/v1/jobs/t/{}", lease.id)).await.is(200);
    assert!(job["run_at"].is_string() && job["run_at"].as_str() <= job["started_at"].as_str());
    until(|| async {
        let text = metrics().await;
        let weight = value(&text, "tidegate_running_weight", &[queue]);
        let is_over = value(&text, age, &[queue]) == Some(0.0);
        let counts = (jobs(&text, "scheduled"), jobs(&text, "running"));
        (is_over && weight == Some(3.0) && counts == (Some(1.0), Some(1.0)), text)
    })
    .await;
    assert_eq!(phases().await, json!({"running": 1, "scheduled": 1}));
    tide.report(&lease, "failed").await.is(200);
    assert_eq!(phases().await, json!({"retrying": 1, "scheduled": 1}));
    until(|| async {
        let text = metrics().await;
        let counts = (jobs(&text, "scheduled"), jobs(&text, "retrying"), jobs(&text, "running"));
        (counts == (Some(1.0), Some(1.0), Some(0.0)), text)
    })
    .await;
    let text = metrics().await;
    let labels = [queue, "state=\"scheduled\"", "phase=\"retrying\""];
    assert_eq!(value(&text, "tidegate_jobs", &labels), Some(1.0));
}

#[tokio::test]
async fn waiting_jobs_keep_their_windows_until_a_bulk_patch() {
    let tide = Tidegate::start().await;
    // Closed for at least an hour from now, whenever the test runs.
    let minutes = SystemClock.now().millis() / 60_000;
    let at = |hours: i64| {
        let minutes = (minutes + hours * 60).rem_euclid(1440);
        format!("{:02}:{:02}", minutes / 60, minutes % 60)
    };
    let window = json!([{"from": at(2), "to": at(3)}]);
    tide.job_type("t", json!({"windows": window})).await;
    let ids = [tide.enqueue_a("t").await, tide.enqueue_a("t").await];
    tide.patch("/v1/job-types/t", json!({"windows": []})).await.is(200);
    for id in &ids {
        assert_eq!(tide.explain("t", id).await["held_by"]["kind"], "window");
    }
    let patch = |patch: Value| json!({"filter": {"type": "t"}, "patch": patch});
    tide.post("/v1/jobs/patch", patch(json!({}))).await.problem(400, "invalid_field");
    tide.post("/v1/jobs/patch", json!({"patch": {"windows": []}}))
        .await
        .problem(400, "invalid_field");
    let answer = tide.post("/v1/jobs/patch", patch(json!({"windows": [], "priority": 7}))).await;
    let operation = answer.is(202)["operation"]["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/operations/{operation}");
    until(|| async {
        let operation = tide.get(&path).await.is(200)["operation"].clone();
        (operation["state"] == "done" && operation["done"] == 2, operation)
    })
    .await;
    for id in &ids {
        let job = tide.job(id).await;
        assert_eq!((&job["phase"], &job["priority"]), (&json!("ready"), &json!(7)), "{job}");
    }
}

#[tokio::test]
async fn a_push_that_finds_no_free_slot_is_explained() {
    use super::{serve::Setup, target::Target};
    let tide = Setup::new().env("TIDEGATE_PUSH_SLOTS", "1").start().await;
    let target = Target::start(|_| std::future::pending::<axum::http::StatusCode>()).await;
    tide.job_type("t", json!({"target": {"url": target.url}})).await;
    tide.enqueue_a("t").await;
    target.call(1).await;
    let second = tide.enqueue_a("t").await;
    assert_eq!(tide.explain("t", &second).await["held_by"]["kind"], "worker");
    assert_eq!(target.calls().len(), 1);
}
