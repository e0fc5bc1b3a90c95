//! The real binary, called as a function URL calls it, through a runtime API.

#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

use std::path::Path;

use serde_json::{Value, json};
use tidegate::{
    adapter::sqs::Message,
    testkit::lambda::{Function, request},
};

const TOKEN: &str = "tg_first_secret";

async fn start() -> Function {
    // The SHA-256 of `secret`, in base64.
    let first = ("TIDEGATE_ADMIN_TOKEN", "first:K7gNU3sdo+OL0wNhqoVWhr3g6s1xYv72ol/pe/Unols=");
    Function::start(Path::new(env!("CARGO_BIN_EXE_tidegate-enqueue")), &[first]).await
}

/// The status and the body of an answer.
async fn call(function: &Function, method: &str, path: &str, token: Option<&str>, body: Option<Value>) -> (u64, Value) {
    let answer = function.call(request(method, path, token, body.as_ref())).await.unwrap();
    let body = answer["body"].as_str().map(|text| serde_json::from_str(text).unwrap_or(Value::Null));
    (answer["statusCode"].as_u64().unwrap(), body.unwrap_or_default())
}

#[tokio::test]
async fn a_job_is_accepted_handed_on_and_shown_by_one_call_after_the_other() {
    let function = start().await;
    let of_type = json!({"target": {"url": "https://worker.example/work"}});
    assert_eq!(call(&function, "PUT", "/v1/job-types/mail", Some(TOKEN), Some(of_type)).await.0, 201);
    function.sent();
    let (status, job) = call(&function, "POST", "/v1/jobs", Some(TOKEN), Some(json!({"type": "mail", "data": {"to": "a"}}))).await;
    assert_eq!((status, &job["state"]), (201, &json!("scheduled")), "{job}");
    let sent = function.sent();
    let [(queue, message)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((queue.as_str(), &message["MessageGroupId"]), ("work", &json!("default")));
    let Message::Work(work) = Message::parse(message["MessageBody"].as_str().unwrap()).unwrap() else { panic!("{message}") };
    assert_eq!(json!(work[0].job.as_str()), job["id"]);
    let path = format!("/v1/jobs/mail/{}", job["id"].as_str().unwrap());
    assert_eq!(call(&function, "GET", &path, Some(TOKEN), None).await.1["data"], json!({"to": "a"}));
}

#[tokio::test]
async fn a_limited_queue_is_hinted_and_a_later_job_is_woken_for() {
    let function = start().await;
    assert_eq!(call(&function, "PUT", "/v1/queues/q", Some(TOKEN), Some(json!({"concurrency": 1}))).await.0, 201);
    let of_type = json!({"queue": "q", "target": {"url": "https://worker.example/work"}});
    assert_eq!(call(&function, "PUT", "/v1/job-types/mail", Some(TOKEN), Some(of_type)).await.0, 201);
    function.sent();
    assert_eq!(call(&function, "POST", "/v1/jobs", Some(TOKEN), Some(json!({"type": "mail", "data": null}))).await.0, 201);
    let later = json!({"type": "mail", "data": null, "delay_seconds": 40});
    assert_eq!(call(&function, "POST", "/v1/jobs", Some(TOKEN), Some(later)).await.0, 201);
    let sent = function.sent();
    let queues: Vec<&str> = sent.iter().map(|(queue, _)| queue.as_str()).collect();
    assert_eq!(queues, ["hints.fifo", "wakes"]);
    assert!(sent[0].1["MessageDeduplicationId"].is_string() && sent[0].1.get("DelaySeconds").is_none_or(Value::is_null));
    assert!((39..=40).contains(&sent[1].1["DelaySeconds"].as_i64().unwrap()), "{:?}", sent[1]);
}

#[tokio::test]
async fn nobody_is_let_in_without_a_token_and_what_is_wrong_is_told() {
    let function = start().await;
    assert_eq!(call(&function, "GET", "/v1/jobs", None, None).await.0, 401);
    assert_eq!(call(&function, "GET", "/v1/jobs", Some("tg_first_wrong"), None).await.0, 401);
    let (status, problem) = call(&function, "POST", "/v1/jobs", Some(TOKEN), Some(json!({"type": "none", "data": 1}))).await;
    assert_eq!((status, &problem["code"]), (404, &json!("job_type_not_found")));
    let (status, document) = call(&function, "GET", "/openapi.json", None, None).await;
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
}

#[tokio::test]
async fn it_says_how_it_is_even_if_its_table_does_not_answer() {
    let function = start().await;
    let (status, said) = call(&function, "GET", "/v1/doctor", Some(TOKEN), None).await;
    assert_eq!((status, &said["ok"], &said["version"]), (200, &json!(true), &json!(env!("CARGO_PKG_VERSION"))), "{said}");
    let minute = said["checks"].as_array().unwrap().iter().find(|check| check["about"] == "minute's round").unwrap();
    assert_eq!(minute["level"], "warning", "nobody has called it yet: {minute}");

    let first = ("TIDEGATE_ADMIN_TOKEN", "first:K7gNU3sdo+OL0wNhqoVWhr3g6s1xYv72ol/pe/Unols=");
    let lost = Function::start(Path::new(env!("CARGO_BIN_EXE_tidegate-enqueue")), &[first, ("TIDEGATE_TABLE", "gone")]).await;
    let (status, problem) = call(&lost, "GET", "/v1/jobs", Some("tg_other_secret"), None).await;
    assert_eq!((status, &problem["code"]), (503, &json!("unavailable")), "nobody is refused whose token was not read: {problem}");
    let (status, said) = call(&lost, "GET", "/v1/doctor", Some(TOKEN), None).await;
    assert_eq!((status, &said["ok"]), (200, &json!(false)), "{said}");
    for about in ["store", "table", "work queue"] {
        let check =
            said["checks"].as_array().unwrap().iter().find(|check| check["about"] == about).unwrap_or_else(|| panic!("{about}: {said}"));
        assert!(check["level"] == "error" && check["advice"].is_string(), "{check}");
    }
}
