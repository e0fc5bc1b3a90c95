//! The callback of a worker that accepted a job, and the completion callback to a client.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{SECRET, at_once, says, signed};
use crate::e2e::{
    serve::Tidegate,
    target::{Call, Target},
    wait::eventually,
};

#[tokio::test]
async fn an_accepted_push_ends_only_by_a_callback_with_its_token() {
    let tide = Tidegate::start().await;
    let admin = tide.post("/v1/tokens", json!({"name": "ops", "scopes": ["admin"]})).await.is(201)
        ["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let ops = tide.with_token(&admin);
    let target = Target::start(|_| async { StatusCode::ACCEPTED }).await;
    ops.job_type("t", json!({"target": {"url": target.url}, "retry": at_once()})).await;
    let id = ops.enqueue_a("t").await;
    let callback = |call: &Call| {
        let body = call.json();
        let url =
            body["callback"]["url"].as_str().unwrap().strip_prefix(&tide.base).unwrap().to_owned();
        (url, body["callback"]["token"].as_str().unwrap().to_owned())
    };
    let (url, first) = callback(&target.call(1).await);
    assert_eq!(ops.job(&id).await["state"], "running");
    let done = |attempt: u16| json!({"attempt": attempt, "status": "succeeded", "result": "later"});
    tide.post(&url, done(1)).await.problem(401, "unauthorized");
    tide.with_token(&"0".repeat(32)).post(&url, done(1)).await.problem(403, "forbidden");
    tide.with_token(&first).get(&url).await.problem(401, "unauthorized");
    let heartbeat = format!("{url}/heartbeat");
    tide.with_token(&first).post(&heartbeat, json!({"attempt": 1, "progress": 10})).await.is(200);
    tide.with_token(&first)
        .post(&url, json!({"attempt": 1, "status": "failed", "message": "again"}))
        .await
        .is(200);
    let (_, second) = callback(&target.call(2).await);
    assert_ne!(first, second);
    tide.with_token(&first).post(&url, done(1)).await.problem(409, "stale_attempt");
    tide.with_token(&first).post(&url, done(2)).await.problem(403, "forbidden");
    tide.with_token(&second).post(&url, done(2)).await.is(200);
    let job = ops.job(&id).await;
    assert_eq!(
        (&job["state"], &job["result"], &job["attempt"]),
        (&json!("succeeded"), &json!("later"), &json!(2))
    );
}

#[tokio::test]
async fn a_completion_callback_is_sent_once_and_signed() {
    let tide = Tidegate::start().await;
    let receiver = Target::start(|call| async move {
        if call.number == 1 { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK }
    })
    .await;
    let target = Target::start(|_| async { "done" }).await;
    let config = json!({
        "target": {"url": target.url, "signing_secret": "of pushes"},
        "callback_signing_secret": [SECRET, "the next one"],
    });
    let shown = tide.job_type("t", config).await;
    assert!(!shown.to_string().contains("whsec"), "{shown}");
    let id = tide.enqueue(json!({"type": "t", "data": 1, "callback_url": receiver.url})).await;
    tide.job_in(&id, "succeeded").await;
    // The first call failed, so it is repeated. The second succeeded and is the last.
    let heard = receiver.call(2).await;
    for secret in [SECRET, "the next one"] {
        signed(&heard, secret).unwrap();
    }
    signed(&heard, "of pushes").unwrap_err();
    let body = heard.json();
    assert_eq!(
        (&body["kind"], target.call(1).await.json().get("kind")),
        (&json!("completion"), None)
    );
    assert_eq!(
        (&body["id"], &body["state"], &body["result"]),
        (&json!(id), &json!("succeeded"), &json!("done")),
        "{body:#}"
    );
    let count = async |query: &str| {
        let listed = tide.get(&format!("/v1/jobs?{query}")).await.is(200);
        listed["jobs"].as_array().unwrap().len()
    };
    let callbacks =
        || async { (count("type=tidegate.callback&state=ended").await == 1).then_some(()) };
    eventually("the callback has ended", callbacks).await;
    assert_eq!(count("state=ended").await, 1, "a list leaves out the server's own jobs");
    let other = tide
        .enqueue(
            json!({"type": "t", "data": 1, "delay_seconds": 600, "callback_url": receiver.url}),
        )
        .await;
    tide.delete(&format!("/v1/jobs/t/{other}")).await.is(200);
    assert_eq!(receiver.call(3).await.json()["state"], "cancelled");
    assert_eq!(receiver.calls().len(), 3);
}

#[tokio::test]
async fn an_unclaimed_job_stays_scheduled_and_accepts_no_callback() {
    let tide = Tidegate::start().await;
    let (target, go) = Target::held("done").await;
    tide.job_type("t", json!({"target": {"url": target.url}, "start": "plain"})).await;
    let id = tide.enqueue_a("t").await;
    target.call(1).await;
    assert_eq!(tide.job(&id).await["state"], "scheduled");
    tide.delete(&format!("/v1/jobs/t/{id}")).await.problem(409, "already_dispatched");
    tide.patch(&format!("/v1/jobs/t/{id}"), json!({"priority": 1}))
        .await
        .problem(409, "already_dispatched");
    go.send_replace(true);
    let job = tide.job_in(&id, "succeeded").await;
    assert_eq!((&job["result"], &job["attempt"]), (&json!("done"), &json!(1)));
}

#[tokio::test]
async fn a_push_brings_the_checkpoint_of_the_attempt_before() {
    let tide = Tidegate::start().await;
    for encoding in ["json", "msgpack"] {
        let answer = |call: Call| async move {
            if call.number == 1 { says(202, &[], "") } else { says(200, &[], "") }
        };
        let target = Target::start(answer).await;
        let target_config = json!({"url": target.url, "encoding": encoding});
        tide.job_type(encoding, json!({"target": target_config, "max_attempts": 1})).await;
        let id = tide.enqueue_a(encoding).await;
        target.call(1).await;
        let report = json!({"attempt": 1, "status": "released", "checkpoint": {"page": 7}});
        tide.post(&format!("/v1/jobs/{encoding}/{id}"), report).await.is(200);
        let second = target.call(2).await;
        let body: Value = if encoding == "json" {
            second.json()
        } else {
            rmp_serde::from_slice(&second.body).unwrap()
        };
        assert_eq!((&body["attempt"], &body["checkpoint"]), (&json!(2), &json!({"page": 7})));
        tide.job_in(&id, "succeeded").await;
    }
}
