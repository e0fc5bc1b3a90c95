//! Reports and results of jobs: each names its attempt, and is kept as requested.

use reqwest::Method;
use serde_json::{Value, json};

use super::{serve::Tidegate, wait::eventually};

#[tokio::test]
async fn a_report_names_its_attempt() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({"retry": {"strategy": "exponential", "config": {"base_seconds": 0, "jitter": "none"}}})).await;
    let id = tide.enqueue_a("t").await;
    let first = tide.lease_one("t").await;
    tide.report(&first, "failed").await.is(200);
    // The same report again is harmless, a different one is refused.
    tide.report(&first, "failed").await.is(200);
    tide.report(&first, "succeeded").await.problem(409, "stale_attempt");
    let second = tide.lease_one("t").await;
    assert_eq!((second.id.as_str(), second.attempt), (id.as_str(), 2));
    tide.report(&first, "succeeded").await.problem(409, "stale_attempt");
    tide.post(&second.path, json!({"attempt": 3, "status": "succeeded"}))
        .await
        .problem(409, "stale_attempt");
    assert_eq!(tide.job(&id).await["state"], "running");
    tide.report(&second, "succeeded").await.is(200);
    tide.report(&second, "succeeded").await.is(200);
    tide.report(&second, "failed").await.problem(409, "stale_attempt");
    tide.post(&second.path.replace("/t/", "/other/"), json!({"attempt": 2, "status": "succeeded"}))
        .await
        .problem(404, "job_not_found");
    let job = tide.job(&id).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(2)));
    let outcomes: Vec<_> = job["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(outcomes, ["failed", "succeeded"]);
}

#[tokio::test]
async fn a_result_is_kept_as_asked_and_waited_for() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    let run = async |keep: Value| {
        let id = tide.enqueue(json!({"type": "t", "data": 1, "keep_result": keep})).await;
        let lease = tide.lease_one("t").await;
        tide.post(&lease.path, json!({"attempt": 1, "status": "succeeded", "result": [1, "two"]}))
            .await
            .is(200);
        format!("/v1/jobs/t/{id}/result")
    };
    let once = run(json!("once")).await;
    assert_eq!(tide.job(once.split('/').nth(4).unwrap()).await["result"], Value::Null);
    assert_eq!(tide.get(&once).await.is(200), json!([1, "two"]));
    assert_eq!(tide.get(&once).await.is(200), Value::Null);
    assert_eq!(tide.get(&run(json!("none")).await).await.is(200), Value::Null);
    let kept = run(json!({"seconds": 600})).await;
    for _ in 0..2 {
        assert_eq!(tide.get(&kept).await.is(200), json!([1, "two"]));
    }
    let brief = run(json!({"seconds": 0.05})).await;
    eventually("the result is gone", || async {
        tide.get(&brief).await.is(200).is_null().then_some(())
    })
    .await;

    let id = tide.enqueue_a("t").await;
    let path = format!("/v1/jobs/t/{id}/result");
    let early = tide.get(&path).await;
    assert_eq!(early.header("tidegate-state"), Some("scheduled"));
    assert_eq!(early.is(200), Value::Null);
    let late = tide.get(&format!("{path}?wait=0.1")).await;
    assert_eq!(late.header("tidegate-state"), Some("scheduled"));
    late.problem(408, "wait_timeout");
    let (api, waited) = (tide.api.clone(), format!("{path}?wait=30"));
    let waiting = tokio::spawn(async move { api.get(&waited).await.is(200) });
    let lease = tide.lease_one("t").await;
    tide.post(&lease.path, json!({"attempt": 1, "status": "succeeded", "result": "late"}))
        .await
        .is(200);
    assert_eq!(waiting.await.unwrap(), "late");
}

#[tokio::test]
async fn the_result_of_a_job_that_did_not_succeed_is_its_error() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({"max_attempts": 1})).await;
    let path = |id: &str| format!("/v1/jobs/t/{id}/result");

    let failed = tide.enqueue_a("t").await;
    let lease = tide.lease_one("t").await;
    let running = tide.get(&path(&failed)).await;
    assert_eq!(running.header("tidegate-state"), Some("running"));
    assert_eq!(running.is(200), Value::Null);
    let (api, waited) = (tide.api.clone(), format!("{}?wait=30", path(&failed)));
    let waiting = tokio::spawn(async move { api.get(&waited).await });
    let report = json!({
        "attempt": 1, "status": "failed", "message": "no such address", "error": {"line": 3},
    });
    tide.post(&lease.path, report).await.is(200);
    for answer in [waiting.await.unwrap(), tide.get(&path(&failed)).await] {
        assert_eq!(answer.header("tidegate-state"), Some("failed"));
        let problem = answer.problem(409, "job_failed");
        assert_eq!(problem["state"], "failed");
        let error = json!({"reason": "failed", "message": "no such address"});
        assert_eq!(problem["error"], error, "{problem}");
        assert_eq!(problem["detail"], "the job ended failed: failed: no such address");
    }

    let cancelled = tide.enqueue_a("t").await;
    tide.delete(&format!("/v1/jobs/t/{cancelled}")).await.is(200);
    let answer = tide.get(&path(&cancelled)).await;
    assert_eq!(answer.header("tidegate-state"), Some("cancelled"));
    let problem = answer.problem(409, "job_failed");
    assert_eq!((&problem["state"], &problem["error"]), (&json!("cancelled"), &Value::Null));

    let done = tide.enqueue_a("t").await;
    let lease = tide.lease_one("t").await;
    tide.report(&lease, "succeeded").await.is(200);
    let answer = tide.get(&path(&done)).await;
    assert_eq!(answer.header("tidegate-state"), Some("succeeded"));
    assert_eq!(answer.header("tidegate-result"), Some("none"));
    assert_eq!(answer.is(200), Value::Null, "it has none");
}

#[tokio::test]
async fn a_reported_null_differs_from_no_result_and_a_taken_one() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({"keep_result": "once"})).await;
    let done = tide.enqueue_a("t").await;
    let lease = tide.lease_one("t").await;
    tide.post(&lease.path, json!({"attempt": 1, "status": "succeeded", "result": null}))
        .await
        .is(200);
    for result in ["value", "none"] {
        let answer = tide.get(&format!("/v1/jobs/t/{done}/result")).await;
        assert_eq!(answer.header("tidegate-result"), Some(result));
        assert_eq!(answer.is(200), Value::Null);
    }
}

#[tokio::test]
async fn messagepack_with_binary_is_kept_byte_for_byte() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    // A map written the long way, with a binary, an extension and a small number in nine bytes.
    let data = b"\xde\x00\x02\xa3bin\xc4\x03\x00\xff\x10\xa1n\xcf\x00\x00\x00\x00\x00\x00\x00\x07"
        .to_vec();
    let packed = [("content-type", "application/msgpack")];
    let ask = [b"\x82\xa4type\xa1t\xa4data".to_vec(), data.clone()].concat();
    let answer = tide.send(Method::POST, "/v1/jobs", &packed, ask).await;
    assert_eq!(answer.status, 201);
    let holds = |body: &[u8], part: &[u8]| body.windows(part.len()).any(|window| window == part);
    assert!(holds(&answer.body, &data));
    let lease = tide.lease_one("t").await;
    assert_eq!(lease.whole["job"]["data"], json!({"bin": {"$binary": "AP8Q"}, "n": 7}));
    assert!(holds(
        &tide
            .send(
                Method::GET,
                &format!("/v1/jobs/{}", lease.id),
                &[("accept", "application/msgpack")],
                ""
            )
            .await
            .body,
        &data
    ));
    let report =
        [b"\x83\xa7attempt\x01\xa6status\xa9succeeded\xa6result".to_vec(), data.clone()].concat();
    assert_eq!(tide.send(Method::POST, &lease.path, &packed, report).await.status, 200);
    let result = format!("{}/result", lease.path);
    assert_eq!(
        tide.send(Method::GET, &result, &[("accept", "application/msgpack")], "").await.body,
        data
    );
    assert_eq!(tide.get(&result).await.is(200), json!({"bin": {"$binary": "AP8Q"}, "n": 7}));
    // And JSON exactly as it was written.
    let odd = "{\"b\" : 1.50,\"a\":10000000000000000000000}";
    let answer = tide
        .send(
            Method::POST,
            "/v1/jobs",
            &[("content-type", "application/json")],
            format!("{{\"type\": \"t\", \"data\": {odd}}}"),
        )
        .await;
    assert!(holds(&answer.body, odd.as_bytes()));
}
