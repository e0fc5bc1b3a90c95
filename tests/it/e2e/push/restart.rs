//! Pushes that were under way when the server died.

use std::future::pending;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::at_once;
use crate::e2e::{serve::Tidegate, target::Target, wait::until};

/// A server that was killed during the call of a job and started again. The target answers the
/// second call.
async fn cut_by_a_crash(config: Value) -> (Tidegate, Target, String) {
    let tide = Tidegate::start().await;
    let target = Target::start(|call| async move {
        if call.number > 1 {
            return StatusCode::OK;
        }
        pending().await
    })
    .await;
    let mut whole = json!({"target": {"url": target.url}, "response_timeout_seconds": 3000});
    whole.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
    tide.job_type("t", whole).await;
    let id = tide.enqueue_a("t").await;
    target.call(1).await;
    (tide.kill().start().await, target, id)
}

#[tokio::test]
async fn a_push_that_a_crash_cut_says_until_when_it_keeps_its_slot() {
    let (tide, target, id) = cut_by_a_crash(json!({})).await;
    let until = tide.job(&id).await["running"]["lease_expires_at"].as_str().unwrap().to_owned();
    let why = tide.explain("t", &id).await;
    let wanted = format!("without a response it keeps its slot until {until}");
    assert!(why["reason"].as_str().unwrap().contains(&wanted), "{why}");
    let log = tide.log();
    assert!(log.contains("pushes were under way") && log.contains(&until), "{log}");
    assert_eq!(target.calls().len(), 1);
}

#[tokio::test]
async fn a_type_may_retry_a_push_that_a_crash_cut_at_once() {
    let config = json!({"retry_after_restart": true, "retry": at_once()});
    let (tide, target, id) = cut_by_a_crash(config).await;
    target.call(2).await;
    let job = tide.job_in(&id, "succeeded").await;
    assert_eq!(job["history"][0]["error"]["reason"], "connection_lost", "{job}");
    let refused = json!({"delivery": "at_most_once", "max_attempts": 1});
    tide.patch("/v1/job-types/t", refused).await.problem(400, "invalid_type");
}

/// The pushes that a crash cut are ended and retried, and none that the new server has begun.
#[tokio::test]
async fn a_restart_retries_only_the_pushes_that_the_crash_cut() {
    const QUEUES: [&str; 3] = ["a", "b", "c"];
    const LIMIT: usize = 4;
    const JOBS: usize = 12;
    let cut = QUEUES.len() * LIMIT;
    let tide = Tidegate::start().await;
    let target = Target::start(move |call| async move {
        if call.number <= cut {
            pending::<()>().await;
        }
        StatusCode::OK
    })
    .await;
    for name in QUEUES {
        tide.queue(name, json!({"concurrency": LIMIT})).await;
        let config = json!({
            "queue": name, "target": {"url": target.url}, "response_timeout_seconds": 3000,
            "retry_after_restart": true, "retry": at_once(),
        });
        tide.job_type(name, config).await;
        let jobs: Vec<_> = (0..JOBS).map(|_| json!({"type": name, "data": null})).collect();
        tide.post("/v1/jobs/batch", json!({"jobs": jobs})).await.is(200);
    }
    target.call(cut).await;
    let tide = tide.kill().start().await;
    let all = QUEUES.len() * JOBS;
    let ended = until(|| async {
        let path = "/v1/jobs?state=succeeded&limit=1000";
        let ended = tide.get(path).await.is(200)["jobs"].as_array().unwrap().clone();
        (ended.len() == all, ended)
    })
    .await;
    let mut retried = Vec::new();
    for job in &ended {
        let job = tide.job(job["id"].as_str().unwrap()).await;
        let history = job["history"].as_array().unwrap();
        let lost = history.iter().filter(|entry| entry["error"]["reason"] == "connection_lost");
        match lost.count() {
            0 => assert_eq!(history.len(), 1, "{job}"),
            1 => retried.push(job["id"].clone()),
            _ => panic!("{job}"),
        }
    }
    let calls = target.calls();
    let mut first: Vec<Value> = calls[..cut].iter().map(|call| call.json()["id"].clone()).collect();
    first.sort_by_key(Value::to_string);
    retried.sort_by_key(Value::to_string);
    assert_eq!(retried, first);
    assert_eq!(calls.len(), all + cut, "a push was called twice");
}
