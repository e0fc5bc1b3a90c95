//! Pushes that were under way when the server died.

use std::future::pending;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::at_once;
use crate::e2e::{serve::Tidegate, target::Target};

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
