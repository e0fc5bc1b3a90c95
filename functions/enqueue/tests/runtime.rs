//! The real binary, called as a function URL calls it, through a runtime API.

#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

use std::{collections::BTreeSet, path::Path};

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

/// Enqueues a job of the type `pull` whose data is a list of so many nulls in MessagePack: a byte each, and five in JSON.
async fn enqueue_nulls(function: &Function, count: u32) -> Value {
    let mut body = b"\x82\xa4type\xa4pull\xa4data\xdd".to_vec();
    body.extend(count.to_be_bytes());
    body.resize(body.len() + count as usize, 0xc0);
    let mut event = request("POST", "/v1/jobs", Some(TOKEN), None);
    event["headers"]["content-type"] = json!("application/msgpack");
    (event["body"], event["isBase64Encoded"]) = (json!(BASE64_STANDARD.encode(body)), json!(true));
    let (status, job) = read(&function.call(event).await.unwrap());
    assert_eq!(status, 201, "{job}");
    job["id"].clone()
}

/// A server with one pull type, `pull`, of which the worker asks for all that there is.
async fn start_pull() -> Function {
    let function = start().await;
    assert_eq!(
        call(&function, "PUT", "/v1/job-types/pull", Some(TOKEN), Some(json!({}))).await.0,
        201
    );
    function
}

async fn lease_all(function: &Function) -> Vec<Value> {
    let (status, answer) =
        call(function, "POST", "/v1/leases", Some(TOKEN), Some(json!({"max": 1000}))).await;
    assert_eq!(status, 200, "{answer}");
    answer["leases"].as_array().unwrap().clone()
}

#[tokio::test]
async fn behind_an_http_api_the_routes_begin_after_its_stage() {
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
async fn jobs_are_leased_while_they_fit_into_an_answer_and_the_others_wait() {
    let function = start_pull().await;
    // Every third byte is a quote or two, which a function's answer writes as two bytes.
    let data: Vec<&str> = vec![""; 400_000];
    for _ in 0..8 {
        let job = json!({"type": "pull", "data": data, "headers": {"x-note": "n".repeat(500)}});
        assert_eq!(call(&function, "POST", "/v1/jobs", Some(TOKEN), Some(job)).await.0, 201);
    }
    let mut leased = BTreeSet::new();
    for _ in 0..3 {
        let leases = lease_all(&function).await;
        assert!(leases.len() <= 3, "{} have 1.2 MB each", leases.len());
        for lease in leases {
            assert_eq!(
                (lease["attempt"].as_u64(), lease["job"]["data"].as_array().unwrap().len()),
                (Some(1), data.len())
            );
            leased.insert(lease["job"]["id"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(leased.len(), 8, "each once, and three to a call");
}

#[tokio::test]
async fn the_largest_data_and_the_largest_result_are_read_one_by_one() {
    let function = start_pull().await;
    let largest = json!("x".repeat((4 << 20) - 2));
    let (status, job) = call(
        &function,
        "POST",
        "/v1/jobs",
        Some(TOKEN),
        Some(json!({"type": "pull", "data": largest})),
    )
    .await;
    assert_eq!(status, 201);
    let path = format!("/v1/jobs/pull/{}", job["id"].as_str().unwrap());
    let leases = lease_all(&function).await;
    assert_eq!(leases[0]["job"]["data"], largest);
    let report = json!({"status": "succeeded", "attempt": 1, "result": largest});
    assert_eq!(call(&function, "POST", &path, Some(TOKEN), Some(report)).await.0, 200);
    let (status, shown) = call(&function, "GET", &path, Some(TOKEN), None).await;
    assert_eq!(
        (status, &shown["result"], &shown["result_bytes"]),
        (200, &Value::Null, &json!(4 << 20))
    );
    assert_eq!(shown["data"], largest);
    assert_eq!(
        call(&function, "GET", &format!("{path}/result"), Some(TOKEN), None).await,
        (200, largest)
    );
}

#[tokio::test]
async fn what_was_done_is_answered_though_it_cannot_be_shown_whole() {
    let function = start_pull().await;
    // Five bytes in the answer for each byte that comes.
    let id = enqueue_nulls(&function, 1_000_000).await;
    assert!(id.is_string());
    let data = "x".repeat(960_000);
    let jobs: Vec<Value> = (0..5).map(|_| json!({"type": "pull", "data": data})).collect();
    let (status, answer) =
        call(&function, "POST", "/v1/jobs/batch", Some(TOKEN), Some(json!({"jobs": jobs}))).await;
    let results = answer["results"].as_array().unwrap();
    assert_eq!((status, results.len()), (200, 5));
    assert!(
        results
            .iter()
            .all(|result| result["status"] == 201 && result["job"]["data_bytes"] == 960_002),
        "{answer}"
    );

    // What is shown of every job beside its bodies may be too much, too.
    let headers: Value = (0..4)
        .map(|number| (format!("x-{number}"), json!("h".repeat(2000))))
        .collect::<serde_json::Map<_, _>>()
        .into();
    assert_eq!(
        call(
            &function,
            "PUT",
            "/v1/job-types/long",
            Some(TOKEN),
            Some(json!({"headers": headers}))
        )
        .await
        .0,
        201
    );
    let jobs: Vec<Value> =
        (0..1000).map(|number| json!({"type": "long", "data": number})).collect();
    let (status, answer) =
        call(&function, "POST", "/v1/jobs/batch", Some(TOKEN), Some(json!({"jobs": jobs}))).await;
    let results = answer["results"].as_array().unwrap();
    assert_eq!((status, results.len()), (200, 1000));
    assert!(
        results
            .iter()
            .all(|result| result["status"] == 201 && result["job"]["state"] == "scheduled"),
        "{}",
        results[0]
    );
}

#[tokio::test]
async fn a_result_that_is_read_once_is_not_lost_with_an_answer_that_is_too_large() {
    let function = start_pull().await;
    assert_eq!(
        call(
            &function,
            "PUT",
            "/v1/job-types/once",
            Some(TOKEN),
            Some(json!({"keep_result": "once"}))
        )
        .await
        .0,
        201
    );
    let (_, job) =
        call(&function, "POST", "/v1/jobs", Some(TOKEN), Some(json!({"type": "once", "data": 1})))
            .await;
    let path = format!("/v1/jobs/once/{}", job["id"].as_str().unwrap());
    assert_eq!(lease_all(&function).await.len(), 1);
    let mut report = b"\x83\xa7attempt\x01\xa6status\xa9succeeded\xa6result\xdd".to_vec();
    report.extend(1_000_000_u32.to_be_bytes());
    report.resize(report.len() + 1_000_000, 0xc0);
    let mut event = request("POST", &path, Some(TOKEN), None);
    event["headers"]["content-type"] = json!("application/msgpack");
    (event["body"], event["isBase64Encoded"]) =
        (json!(BASE64_STANDARD.encode(report)), json!(true));
    assert_eq!(read(&function.call(event).await.unwrap()).0, 200);
    let result = format!("{path}/result");
    for _ in 0..2 {
        assert_eq!(
            call(&function, "GET", &result, Some(TOKEN), None).await.0,
            413,
            "it has five megabytes in JSON"
        );
    }
    let mut event = request("GET", &result, Some(TOKEN), None);
    event["headers"]["accept"] = json!("application/msgpack");
    let answer = function.call(event).await.unwrap();
    let bytes = BASE64_STANDARD.decode(answer["body"].as_str().unwrap()).unwrap();
    assert_eq!((answer["statusCode"].as_u64(), bytes.len()), (Some(200), 1_000_005));
    assert_eq!(
        call(&function, "GET", &result, Some(TOKEN), None).await,
        (200, Value::Null),
        "now it was read"
    );
}

#[tokio::test]
async fn what_grows_over_the_bound_in_the_workers_encoding_is_given_back_and_ends_if_it_can_never_fit()
 {
    let function = start_pull().await;
    for _ in 0..4 {
        enqueue_nulls(&function, 700_000).await;
    }
    assert_eq!(lease_all(&function).await.len(), 1, "3.5 MB in JSON");
    let (_, page) = call(&function, "GET", "/v1/jobs?state=scheduled", Some(TOKEN), None).await;
    let back = page["jobs"].as_array().unwrap();
    assert_eq!(back.len(), 3, "{page}");
    assert!(
        back.iter().all(|job| job["attempt"] == 1 && job["error"]["reason"] == "not_delivered"),
        "{page}"
    );

    let function = start_pull().await;
    let id = enqueue_nulls(&function, 1_000_000).await;
    assert!(lease_all(&function).await.is_empty());
    let (_, job) =
        call(&function, "GET", &format!("/v1/jobs/{}", id.as_str().unwrap()), Some(TOKEN), None)
            .await;
    assert_eq!(
        (&job["state"], &job["attempt"], &job["data_bytes"]),
        (&json!("failed"), &json!(1), &json!(1_000_005)),
        "{job}"
    );
    assert!(job["error"]["message"].as_str().unwrap().contains("larger"), "{job}");
}

#[tokio::test]
async fn a_job_that_grows_over_the_bound_costs_no_other_its_attempt() {
    let function = start_pull().await;
    enqueue_nulls(&function, 1_000_000).await;
    let jobs: Vec<Value> = (0..20).map(|number| json!({"type": "pull", "data": number})).collect();
    assert_eq!(
        call(&function, "POST", "/v1/jobs/batch", Some(TOKEN), Some(json!({"jobs": jobs}))).await.0,
        200
    );
    let leases = lease_all(&function).await;
    assert_eq!(
        leases.iter().map(|lease| lease["job"]["data"].as_u64().unwrap()).collect::<Vec<_>>(),
        (0..20).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn a_job_is_accepted_handed_on_and_shown_by_one_call_after_the_other() {
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
async fn a_limited_queue_is_hinted_and_a_later_job_is_woken_for() {
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
    assert_eq!(queues, ["hints.fifo", "wakes"]);
    assert!(
        sent[0].1["MessageDeduplicationId"].is_string()
            && sent[0].1.get("DelaySeconds").is_none_or(Value::is_null)
    );
    assert!((39..=40).contains(&sent[1].1["DelaySeconds"].as_i64().unwrap()), "{:?}", sent[1]);
}

#[tokio::test]
async fn nobody_is_let_in_without_a_token_and_what_is_wrong_is_told() {
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
async fn it_says_how_it_is_even_if_its_table_does_not_answer() {
    let function = start().await;
    let (status, said) = call(&function, "GET", "/v1/doctor", Some(TOKEN), None).await;
    assert_eq!(
        (status, &said["ok"], &said["version"]),
        (200, &json!(true), &json!(env!("CARGO_PKG_VERSION"))),
        "{said}"
    );
    let minute = said["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|check| check["about"] == "maintenance sweep")
        .unwrap();
    assert_eq!(minute["level"], "warning", "nobody has called it yet: {minute}");

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
        "nobody is refused whose token was not read: {problem}"
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
