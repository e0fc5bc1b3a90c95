//! Push: the request to a target, the meaning of its answers, and callbacks.

use std::{future::pending, time::Duration};

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tidegate_backends::system::SystemClock;
use tidegate_core::{port::Clock as _, target::signature};

use super::{
    serve::{Setup, Tidegate, eventually},
    target::{Call, Target, url_without_listener},
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Retries at once.
fn at_once() -> Value {
    json!({"strategy": "exponential", "config": {"base_seconds": 0, "jitter": "none"}})
}

/// What a target answers: a status, headers and a body.
fn says(status: u16, headers: &[(&'static str, &'static str)], body: &'static str) -> Response {
    let mut response = (StatusCode::from_u16(status).unwrap(), body).into_response();
    for (name, value) in headers {
        response.headers_mut().insert(*name, value.parse().unwrap());
    }
    response
}

fn signed(call: &Call, secret: &str) -> Result<(), signature::BadSignature> {
    let header = |name| call.header(name);
    let (id, time, signatures) =
        (header(signature::ID), header(signature::TIMESTAMP), header(signature::SIGNATURE));
    signature::verify(&[secret.to_owned()], id, time, signatures, &call.body, SystemClock.now())
}

#[tokio::test]
async fn a_push_carries_the_job_signed_and_its_answer_is_the_result() {
    let tide = Tidegate::start().await;
    let target = Target::start(|_| async {
        says(200, &[("content-type", "application/json")], "{\"sum\": 3}")
    })
    .await;
    let config = json!({
        "target": {"url": format!("{}/{{type}}?id={{id}}", target.url), "signing_secret": [SECRET, "the new one"], "headers": {"x-team": "blue"},
                   "basic_auth": {"username": "ann", "password": "pw"}},
        "attributes": {"region": "/region"}, "headers": {"x-type": "1"},
    });
    let shown = tide.job_type("t", config).await;
    assert!(
        !shown.to_string().contains("whsec") && !shown.to_string().contains("\"pw\""),
        "{shown}"
    );
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let ask =
        json!({"type": "t", "data": {"region": "east"}, "headers": {"x-job": "2"}}).to_string();
    let id =
        tide.send(reqwest::Method::POST, "/v1/jobs", &[("traceparent", parent)], ask).await.is(201)
            ["id"]
            .as_str()
            .unwrap()
            .to_owned();
    let job = tide.job_in(&id, "succeeded").await;
    assert_eq!((&job["result"], &job["attempt"]), (&json!({"sum": 3}), &json!(1)));
    let call = target.call(1).await;
    assert_eq!(call.path, format!("/work/t?id={id}"));
    for (name, value) in [
        ("x-team", "blue"),
        ("x-type", "1"),
        ("x-job", "2"),
        ("traceparent", parent),
        ("authorization", "Basic YW5uOnB3"),
    ] {
        assert_eq!(call.header(name), value, "{name}");
    }
    let body = call.json();
    assert_eq!(
        (&body["id"], &body["type"], &body["attempt"], &body["max_attempts"]),
        (&json!(id), &json!("t"), &json!(1), &json!(3))
    );
    assert_eq!(
        (&body["data"], &body["attributes"]),
        (&json!({"region": "east"}), &json!({"region": "east"}))
    );
    assert_eq!(body["callback"]["url"], format!("{}/v1/jobs/t/{id}", tide.base));
    for secret in [SECRET, "the new one"] {
        signed(&call, secret).unwrap();
    }
    signed(&call, "another").unwrap_err();
}

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
async fn an_oversized_result_fails_the_job_without_a_retry() {
    const MAX_DATA_BYTES: usize = 12 << 20;
    let tide =
        Setup::new().env("TIDEGATE_MAX_DATA_BYTES", MAX_DATA_BYTES.to_string()).start().await;
    let target = Target::start(|call| async move {
        let larger = call.path.ends_with("larger");
        says(200, &[("content-type", "application/json")], "").map(|_| {
            axum::body::Body::from(format!(
                "\"{}\"",
                "x".repeat(MAX_DATA_BYTES - 2 + usize::from(larger))
            ))
        })
    })
    .await;
    for name in ["large", "larger"] {
        tide.job_type(
            name,
            json!({"target": {"url": format!("{}/{{type}}", target.url)}, "retry": at_once()}),
        )
        .await;
    }
    let large = tide.enqueue_a("large").await;
    assert_eq!(
        tide.job_in(&large, "succeeded").await["result"].as_str().unwrap().len(),
        MAX_DATA_BYTES - 2
    );
    let larger = tide.enqueue_a("larger").await;
    let job = tide.job_in(&larger, "failed").await;
    assert_eq!((&job["attempt"], &job["error"]["reason"]), (&json!(1), &json!("failed")), "{job}");
    assert!(
        job["error"]["message"].as_str().unwrap().contains(&MAX_DATA_BYTES.to_string()),
        "{job}"
    );
    assert_eq!(target.calls().len(), 2);
}

#[tokio::test]
async fn what_a_target_answers_decides_what_follows() {
    struct Case {
        name: &'static str,
        answer: fn(usize) -> Response,
        type_config: Value,
        state: &'static str,
        reason: Option<&'static str>,
        attempt: u64,
        calls: usize,
    }
    let case = |name, answer, type_config, state, reason, attempt, calls| Case {
        name,
        answer,
        type_config,
        state,
        reason,
        attempt,
        calls,
    };
    let cases = [
        case("204", |_| says(204, &[], ""), json!({}), "succeeded", None, 1, 1),
        case(
            "busy-503",
            |n| {
                if n == 1 { says(503, &[("retry-after", "0")], "") } else { says(200, &[], "") }
            },
            json!({}),
            "succeeded",
            None,
            1,
            2,
        ),
        case(
            "busy-429",
            |n| {
                if n < 3 { says(429, &[("retry-after", "0")], "") } else { says(200, &[], "") }
            },
            json!({}),
            "succeeded",
            None,
            1,
            3,
        ),
        case(
            "always-429",
            |_| says(429, &[("retry-after", "0")], "full"),
            json!({"max_attempts": 2}),
            "failed",
            Some("not_delivered"),
            2,
            8,
        ),
        case(
            "failed",
            |n| {
                if n == 1 { says(500, &[], "oh") } else { says(200, &[], "") }
            },
            json!({}),
            "succeeded",
            None,
            2,
            2,
        ),
        case("489", |_| says(489, &[], "{\"why\": 1}"), json!({}), "failed", Some("failed"), 1, 1),
        case(
            "word",
            |_| says(500, &[("tidegate-retryable", "false")], ""),
            json!({}),
            "failed",
            Some("failed"),
            1,
            1,
        ),
        case(
            "redirect",
            |_| says(302, &[("location", "http://127.0.0.1:1/")], ""),
            json!({"max_attempts": 1}),
            "failed",
            Some("failed"),
            1,
            1,
        ),
        case(
            "once-503",
            |_| says(503, &[("retry-after", "0")], ""),
            json!({"delivery": "at_most_once"}),
            "failed",
            Some("failed"),
            1,
            1,
        ),
    ];
    let tide = Tidegate::start().await;
    for case in cases {
        let answer = case.answer;
        let target = Target::start(move |call| async move { answer(call.number) }).await;
        let mut config = case.type_config;
        config["target"] = json!({"url": target.url});
        config["retry"] = at_once();
        tide.job_type(case.name, config).await;
        let id = tide.enqueue_a(case.name).await;
        let job = tide.job_when(&id, |job| !job["ended_at"].is_null()).await;
        let error = if case.reason.is_some() { job["error"]["reason"].as_str() } else { None };
        let seen = (
            job["state"].as_str().unwrap(),
            error,
            job["attempt"].as_u64().unwrap(),
            target.calls().len(),
        );
        assert_eq!(
            seen,
            (case.state, case.reason, case.attempt, case.calls),
            "{}: {job:#}",
            case.name
        );
    }
}

#[tokio::test]
async fn a_long_retry_after_ends_the_attempt_and_is_the_least_wait() {
    let tide = Tidegate::start().await;
    let target = Target::start(|_| async { says(503, &[("retry-after", "300")], "") }).await;
    tide.job_type("t", json!({"target": {"url": target.url}, "retry": at_once()})).await;
    let id = tide.enqueue_a("t").await;
    let job = tide.job_when(&id, |job| job["attempt"] == 1 && job["state"] == "scheduled").await;
    assert_eq!(job["error"]["reason"], "not_delivered");
    let entry = &job["history"][0];
    let instant =
        |value: &Value| value.as_str().unwrap().parse::<tidegate_core::time::Timestamp>().unwrap();
    assert!(
        instant(&job["run_at"]).since(instant(&entry["ended_at"])) >= Duration::from_secs(299),
        "{job:#}"
    );
    assert_eq!(target.calls().len(), 1);
    assert_eq!(tide.explain("t", &id).await["held_by"]["kind"], "retry");
}

#[tokio::test]
async fn an_unreachable_target_is_retried_and_then_costs_an_attempt() {
    let tide = Tidegate::start().await;
    for (name, delivery) in [("a", "at_least_once"), ("b", "at_most_once")] {
        let config = json!({"target": {"url": url_without_listener()}, "max_attempts": 1, "delivery": delivery, "response_timeout_seconds": 1, "retry": at_once()});
        tide.job_type(name, config).await;
        let id = tide.enqueue_a(name).await;
        let job = tide.job_in(&id, "failed").await;
        assert_eq!(
            (&job["error"]["reason"], &job["attempt"]),
            (&json!("not_delivered"), &json!(1)),
            "{job:#}"
        );
    }
}

#[tokio::test]
async fn a_target_that_does_not_answer_means_what_its_type_says() {
    let tide = Tidegate::start().await;
    let target = Target::start(|_| pending::<StatusCode>()).await;
    let config = |more: Value| {
        let mut config = json!({"target": {"url": target.url}, "max_attempts": 1, "response_timeout_seconds": 0.2});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    for (name, more, reason) in [
        ("late", json!({}), "timeout"),
        ("once", json!({"delivery": "at_most_once"}), "outcome_unknown"),
        ("wait-over", json!({"on_response_timeout": "wait", "timeout_seconds": 0.6}), "timeout"),
    ] {
        tide.job_type(name, config(more)).await;
        let id = tide.enqueue_a(name).await;
        let job = tide.job_in(&id, "failed").await;
        assert_eq!(
            (&job["error"]["reason"], &job["attempt"]),
            (&json!(reason), &json!(1)),
            "{name}: {job:#}"
        );
    }
    tide.job_type("wait", config(json!({"on_response_timeout": "wait", "lease_seconds": 0.1})))
        .await;
    let id = tide.enqueue_a("wait").await;
    let call = target.call(4).await;
    let lease_over =
        |job: &Value| job["running"]["lease_expires_at"] == job["running"]["timeout_at"];
    tide.job_when(&id, lease_over).await;
    let token = call.json()["callback"]["token"].as_str().unwrap().to_owned();
    tide.with_token(&token)
        .post(&format!("/v1/jobs/wait/{id}"), json!({"attempt": 1, "status": "succeeded"}))
        .await
        .is(200);
    tide.job_in(&id, "succeeded").await;
}

#[tokio::test]
async fn the_default_target_serves_types_without_one() {
    let target = Target::start(|_| async { "ok" }).await;
    let tide = Setup::new()
        .env("TIDEGATE_DEFAULT_TARGET__URL", format!("{}/{{type}}", target.url))
        .env("TIDEGATE_DEFAULT_TARGET__ENCODING", "msgpack")
        .start()
        .await;
    tide.job_type("t", json!({})).await;
    tide.job_type("p", json!({"target": {"pull": true}})).await;
    let id = tide.enqueue(json!({"type": "t", "data": {"n": 5}})).await;
    tide.job_in(&id, "succeeded").await;
    let call = target.call(1).await;
    assert_eq!(
        (call.path.as_str(), call.header("content-type")),
        ("/work/t", "application/msgpack")
    );
    let body: Value = rmp_serde::from_slice(&call.body).unwrap();
    assert_eq!((&body["data"], &body["id"]), (&json!({"n": 5}), &json!(id)));
    tide.enqueue_a("p").await;
    tide.lease_one("p").await;
    tide.post("/v1/leases", json!({"types": ["t"]})).await.blames(400, "invalid_field", "types");
}

#[tokio::test]
async fn a_completion_callback_is_sent_once_and_signed() {
    let tide = Tidegate::start().await;
    let receiver = Target::start(|call| async move {
        if call.number == 1 { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK }
    })
    .await;
    let target = Target::start(|_| async { "done" }).await;
    tide.job_type("t", json!({"target": {"url": target.url, "signing_secret": SECRET}})).await;
    let id = tide.enqueue(json!({"type": "t", "data": 1, "callback_url": receiver.url})).await;
    tide.job_in(&id, "succeeded").await;
    // The first call failed, so it is repeated. The second succeeded and is the last.
    let heard = receiver.call(2).await;
    signed(&heard, SECRET).unwrap();
    let body = heard.json();
    assert_eq!(
        (&body["id"], &body["state"], &body["result"]),
        (&json!(id), &json!("succeeded"), &json!("done")),
        "{body:#}"
    );
    let callbacks = || async {
        let jobs = tide.get("/v1/jobs?state=ended").await.is(200)["jobs"].as_array().unwrap().len();
        (jobs >= 1).then_some(())
    };
    eventually("all is over", callbacks).await;
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
    let (go, wait) = tokio::sync::watch::channel(false);
    let target = Target::start(move |_| {
        let mut wait = wait.clone();
        async move {
            wait.wait_for(|go| *go).await.unwrap();
            "done"
        }
    })
    .await;
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
async fn addresses_that_give_out_credentials_are_not_called() {
    let tide = Tidegate::start().await;
    for (name, url) in [
        ("metadata", "http://169.254.169.254/latest/meta-data"),
        ("link-local", "http://[fe80::1]/"),
        ("any", "http://0.0.0.0:1/"),
    ] {
        let put = async |config: Value| tide.put(&format!("/v1/job-types/{name}"), config).await;
        put(json!({"target": {"url": url}})).await.blames(400, "invalid_type", "target.url");
        put(json!({"callback_url": url})).await.blames(400, "invalid_type", "callback_url");
        put(json!({})).await.is(201);
        let job = json!({"type": name, "data": null, "callback_url": url});
        tide.post("/v1/jobs", job).await.blames(400, "invalid_field", "callback_url");
    }
    // What a name leads to is known when it is called.
    tide.put("/v1/job-types/named", json!({"target": {"url": "http://localhost:1/"}}))
        .await
        .is(201);
    let (status, said) =
        Setup::new().env("TIDEGATE_DEFAULT_TARGET__URL", "http://169.254.169.254/").refused().await;
    assert!(!status.success() && said.contains("default_target.url"), "{said}");
}

#[tokio::test]
async fn a_retry_starts_at_its_time_on_an_idle_server() {
    let tide = Tidegate::start().await;
    let target = Target::start(|call| async move {
        if call.number % 2 == 1 { StatusCode::BAD_GATEWAY } else { StatusCode::OK }
    })
    .await;
    for (name, limit, wait) in [
        ("free", Value::Null, 0.0),
        ("limited", json!(1), 0.0),
        ("later", Value::Null, 0.5),
        ("limited-later", json!(1), 0.5),
    ] {
        tide.queue(name, json!({"concurrency": limit})).await;
        let retry =
            json!({"strategy": "exponential", "config": {"base_seconds": wait, "jitter": "none"}});
        tide.job_type(name, json!({"queue": name, "target": {"url": target.url}, "retry": retry}))
            .await;
        let id = tide.enqueue_a(name).await;
        let job = tide.job_in(&id, "succeeded").await;
        let instant = |value: &Value| {
            value.as_str().unwrap().parse::<tidegate_core::time::Timestamp>().unwrap()
        };
        let late = instant(&job["history"][1]["started_at"])
            .since(instant(&job["history"][0]["retry_at"]));
        assert!(late < Duration::from_millis(1500), "{name} is {late:?} late");
    }
}
