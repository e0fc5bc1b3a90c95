//! Bounds of the size of requests and responses.

use std::collections::BTreeSet;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tidegate_server::lambda::testkit::{Function, request};

use super::{TOKEN, call, read, start};

/// Enqueues a job of the type `pull` whose data is a list of `count` nulls in MessagePack. A null
/// has one byte there, and five in JSON.
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

/// A function with one pull type, `pull`.
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
async fn jobs_are_leased_while_they_fit_into_the_response() {
    let function = start_pull().await;
    // Two of three bytes are quotes, which the JSON of a function's answer escapes to two bytes
    // each.
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
    assert_eq!(leased.len(), 8, "each job once, at most three in a response");
}

#[tokio::test]
async fn the_largest_data_and_the_largest_result_can_be_read_alone() {
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
async fn a_write_succeeds_even_if_its_response_must_be_shortened() {
    let function = start_pull().await;
    // Each byte of the request becomes five in the answer.
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

    // The views of many jobs may be too large even without their bodies.
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
async fn a_result_readable_once_survives_a_response_too_large_for_it() {
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
async fn a_job_too_large_in_the_workers_encoding_is_not_leased() {
    let function = start_pull().await;
    for _ in 0..4 {
        enqueue_nulls(&function, 700_000).await;
    }
    assert_eq!(lease_all(&function).await.len(), 1, "3.5 MB in JSON");
    let (_, page) = call(&function, "GET", "/v1/jobs?state=scheduled", Some(TOKEN), None).await;
    let back = page["jobs"].as_array().unwrap();
    assert_eq!(back.len(), 3, "{page}");
    assert!(back.iter().all(|job| job["attempt"] == 1 && job["handed_back"] == 1), "{page}");

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
async fn an_oversized_job_costs_no_other_job_its_attempt() {
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
