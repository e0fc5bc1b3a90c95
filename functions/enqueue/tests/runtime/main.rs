//! Runs the real binary against a runtime API that sends requests of a function URL.

#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

mod sign_in;
mod sizes;

use std::path::Path;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tidegate_backends::sqs::Message;
use tidegate_server::lambda::testkit::{Function, request};

const TOKEN: &str = "tg_first_secret";

async fn start() -> Function {
    // The SHA-256 of `secret`, in base64.
    let first = ("TIDEGATE_ADMIN_TOKEN", "first:K7gNU3sdo+OL0wNhqoVWhr3g6s1xYv72ol/pe/Unols=");
    Function::start(Path::new(env!("CARGO_BIN_EXE_tidegate-enqueue")), &[first]).await
}

/// The status and the body of an answer.
async fn call(
    function: &Function,
    method: &str,
    path: &str,
    token: Option<&str>,
    body: Option<Value>,
) -> (u64, Value) {
    let answer = function.call(request(method, path, token, body.as_ref())).await.unwrap();
    read(&answer)
}

fn read(answer: &Value) -> (u64, Value) {
    let text = answer["body"].as_str().unwrap_or_default();
    let bytes = if answer["isBase64Encoded"] == true {
        BASE64_STANDARD.decode(text).unwrap()
    } else {
        text.into()
    };
    (answer["statusCode"].as_u64().unwrap(), serde_json::from_slice(&bytes).unwrap_or_default())
}

#[tokio::test]
async fn behind_an_http_api_routes_begin_after_its_stage() {
    let function = start().await;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/events/api-gateway-v2.json");
    let mut event: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    event["headers"]["authorization"] = json!(format!("Bearer {TOKEN}"));
    let mut call = async |path: &str, stage: &str| {
        (event["rawPath"], event["requestContext"]["http"]["path"]) = (json!(path), json!(path));
        (event["rawQueryString"], event["requestContext"]["stage"]) = (json!(""), json!(stage));
        read(&function.call(event.clone()).await.unwrap())
    };
    for (path, stage) in [
        ("/prod/v1/events", "prod"),
        ("/v1/events", "$default"),
        ("/v1/v1/events", "v1"),
        ("/v1/events", "v1"),
    ] {
        let (status, answer) = call(path, stage).await;
        assert_eq!((status, &answer["id"]), (200, &json!("c-1")), "{path}: {answer}");
    }
    for (path, stage) in [
        ("/prod/v1/events", "$default"),
        ("/prod/hooks/shop", "prod"),
        ("/produce/v1/events", "prod"),
        ("/prod", "prod"),
    ] {
        let (status, answer) = call(path, stage).await;
        assert_eq!((status, &answer["code"]), (404, &json!("route_not_found")), "{path}: {answer}");
    }
}

#[tokio::test]
async fn a_job_is_accepted_dispatched_and_shown_by_later_requests() {
    let function = start().await;
    let of_type = json!({"target": {"url": "https://worker.example/work"}});
    assert_eq!(
        call(&function, "PUT", "/v1/job-types/mail", Some(TOKEN), Some(of_type)).await.0,
        201
    );
    function.sent();
    let (status, job) = call(
        &function,
        "POST",
        "/v1/jobs",
        Some(TOKEN),
        Some(json!({"type": "mail", "data": {"to": "a"}})),
    )
    .await;
    assert_eq!((status, &job["state"]), (201, &json!("scheduled")), "{job}");
    let sent = function.sent();
    let [(queue, message)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((queue.as_str(), &message["MessageGroupId"]), ("work", &json!("default")));
    let Message::Work(work) = Message::parse(message["MessageBody"].as_str().unwrap()).unwrap()
    else {
        panic!("{message}")
    };
    assert_eq!(json!(work[0].job.as_str()), job["id"]);
    let path = format!("/v1/jobs/mail/{}", job["id"].as_str().unwrap());
    assert_eq!(
        call(&function, "GET", &path, Some(TOKEN), None).await.1["data"],
        json!({"to": "a"})
    );
}

#[tokio::test]
async fn a_limited_queue_gets_a_hint_and_a_later_job_a_timer() {
    let function = start().await;
    assert_eq!(
        call(&function, "PUT", "/v1/queues/q", Some(TOKEN), Some(json!({"concurrency": 1})))
            .await
            .0,
        201
    );
    let of_type = json!({"queue": "q", "target": {"url": "https://worker.example/work"}});
    assert_eq!(
        call(&function, "PUT", "/v1/job-types/mail", Some(TOKEN), Some(of_type)).await.0,
        201
    );
    function.sent();
    assert_eq!(
        call(
            &function,
            "POST",
            "/v1/jobs",
            Some(TOKEN),
            Some(json!({"type": "mail", "data": null}))
        )
        .await
        .0,
        201
    );
    let later = json!({"type": "mail", "data": null, "delay_seconds": 40});
    assert_eq!(call(&function, "POST", "/v1/jobs", Some(TOKEN), Some(later)).await.0, 201);
    let sent = function.sent();
    let queues: Vec<&str> = sent.iter().map(|(queue, _)| queue.as_str()).collect();
    assert_eq!(queues, ["hints.fifo", "timers"]);
    assert!(
        sent[0].1["MessageDeduplicationId"].is_string()
            && sent[0].1.get("DelaySeconds").is_none_or(Value::is_null)
    );
    assert!((39..=40).contains(&sent[1].1["DelaySeconds"].as_i64().unwrap()), "{:?}", sent[1]);
}

#[tokio::test]
async fn a_request_needs_a_token_and_an_error_states_its_reason() {
    let function = start().await;
    assert_eq!(call(&function, "GET", "/v1/jobs", None, None).await.0, 401);
    assert_eq!(call(&function, "GET", "/v1/jobs", Some("tg_first_wrong"), None).await.0, 401);
    let (status, problem) =
        call(&function, "POST", "/v1/jobs", Some(TOKEN), Some(json!({"type": "none", "data": 1})))
            .await;
    assert_eq!((status, &problem["code"]), (404, &json!("job_type_not_found")));
    let (status, document) = call(&function, "GET", "/openapi.json", None, None).await;
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
}

#[tokio::test]
async fn the_doctor_answers_even_if_the_table_does_not() {
    let function = start().await;
    let (status, said) = call(&function, "GET", "/v1/doctor", Some(TOKEN), None).await;
    assert_eq!(
        (status, &said["ok"], &said["version"]),
        (200, &json!(true), &json!(env!("CARGO_PKG_VERSION"))),
        "{said}"
    );
    let sweep = said["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|check| check["about"] == "maintenance sweep")
        .unwrap();
    assert_eq!(sweep["level"], "warning", "no sweep has run yet: {sweep}");

    let first = ("TIDEGATE_ADMIN_TOKEN", "first:K7gNU3sdo+OL0wNhqoVWhr3g6s1xYv72ol/pe/Unols=");
    let lost = Function::start(
        Path::new(env!("CARGO_BIN_EXE_tidegate-enqueue")),
        &[first, ("TIDEGATE_TABLE", "gone")],
    )
    .await;
    let (status, problem) = call(&lost, "GET", "/v1/jobs", Some("tg_other_secret"), None).await;
    assert_eq!(
        (status, &problem["code"]),
        (503, &json!("unavailable")),
        "a token that could not be read is not refused: {problem}"
    );
    let (status, said) = call(&lost, "GET", "/v1/doctor", Some(TOKEN), None).await;
    assert_eq!((status, &said["ok"]), (200, &json!(false)), "{said}");
    for about in ["store", "table", "work queue"] {
        let check = said["checks"]
            .as_array()
            .unwrap()
            .iter()
            .find(|check| check["about"] == about)
            .unwrap_or_else(|| panic!("{about}: {said}"));
        assert!(check["level"] == "error" && check["advice"].is_string(), "{check}");
    }
}
