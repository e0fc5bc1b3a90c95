//! What the answer of a target means for its job, and what a missing answer means.

use std::{future::pending, time::Duration};

use axum::{http::StatusCode, response::Response};
use serde_json::{Value, json};

use super::{at_once, says};
use crate::e2e::{
    serve::{Setup, Tidegate},
    target::{ClosedPort, Target},
};

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
async fn a_failure_gives_its_message_and_details_apart() {
    let long = "é".repeat(3000);
    let tide = Tidegate::start().await;
    let target = Target::start(|call| async move {
        let job: Value = serde_json::from_slice(&call.body).unwrap();
        let body = job["data"].as_str().unwrap().to_owned();
        says(500, &[("content-type", "application/json")], body)
    })
    .await;
    let config = json!({"target": {"url": target.url}, "max_attempts": 1});
    tide.job_type("t", config).await;
    let json = |body: Value| body.to_string();
    let whole = json(json!({"message": "no", "error": 1, "status": 500}));
    for (body, message, details) in [
        (json(json!({"message": "bad", "error": ["a", 3]})), "bad".into(), json!(["a", 3])),
        (json(json!({"message": "bad"})), "bad".into(), Value::Null),
        (json(json!({"message": long})), "é".repeat(2048), Value::Null),
        (json(json!({"message": "m", "error": "x".repeat(17_000)})), "m".into(), Value::Null),
        (json(json!({"message": " "})), "HTTP 500".into(), Value::Null),
        // Bodies of other forms are both.
        (whole.clone(), format!("HTTP 500: {whole}"), serde_json::from_str(&whole).unwrap()),
        (json(json!({"message": 1})), "HTTP 500: {\"message\":1}".into(), json!({"message": 1})),
        ("oh".into(), "HTTP 500: oh".into(), Value::Null),
    ] {
        let job = tide.post("/v1/jobs", json!({"type": "t", "data": body})).await.is(201);
        let job = tide.job_in(job["id"].as_str().unwrap(), "failed").await;
        let error = &job["error"];
        assert_eq!((&error["message"], &error["details"]), (&json!(message), &details), "{body}");
        assert_eq!(error["status"], 500);
    }
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
            "released",
            |n| {
                if n < 4 {
                    says(503, &[("tidegate-status", "released")], "full")
                } else {
                    says(200, &[], "")
                }
            },
            json!({"max_attempts": 1, "max_releases": 3}),
            "succeeded",
            None,
            4,
            4,
        ),
        case(
            "released-too-often",
            |_| says(200, &[("tidegate-status", "Released")], "full"),
            json!({"max_attempts": 1, "max_releases": 2}),
            "failed",
            Some("not_delivered"),
            3,
            3,
        ),
        case(
            "snoozed-once",
            |n| {
                if n == 1 {
                    says(409, &[("tidegate-status", "snoozed"), ("retry-after", "1")], "soon")
                } else {
                    says(200, &[], "")
                }
            },
            json!({"delivery": "at_most_once"}),
            "succeeded",
            None,
            2,
            2,
        ),
        case(
            "snoozed-for-ever",
            |_| says(503, &[("tidegate-status", "snoozed")], ""),
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
    assert_eq!(entry["error"]["retry_after_seconds"], 300);
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
    let closed = ClosedPort::new();
    for (name, delivery) in [("a", "at_least_once"), ("b", "at_most_once")] {
        let config = json!({"target": {"url": closed.url}, "max_attempts": 1, "delivery": delivery, "response_timeout_seconds": 1, "retry": at_once()});
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
