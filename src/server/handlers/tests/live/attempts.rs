//! Attempts: leases, heartbeats, reports, results.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use serde_json::{Value, json};
use tidegate_core::port::{
    JobStore, StoreError, StoreLayer, job_store::SharedStore, store_layer::Operation,
};
use tidegate_engine::{memory::MemoryStore, testkit::faults::FaultyStore};

use super::{super::ask, ALL, json, router, router_on};

#[tokio::test]
async fn an_attempt_token_alone_allows_heartbeats_and_the_report() {
    let router = router().await;
    json(&router, "PUT", "/v1/jobs/invoice/j1", json!({"data": {"a": 1}})).await;
    let (status, leased) = json(
        &router,
        "POST",
        "/v1/leases",
        json!({"types": ["invoice"], "max": 5, "wait_seconds": 5, "worker": "w1"}),
    )
    .await;
    assert_eq!((status, leased["leases"].as_array().unwrap().len()), (200, 1));
    let lease = &leased["leases"][0];
    assert_eq!((&lease["job"]["data"], &lease["attempt"]), (&json!({"a": 1}), &json!(1)));
    let token = format!("Bearer {}", lease["token"].as_str().unwrap());
    let held = [("authorization", token.as_str())];
    let (beat, body) = ask(
        &router,
        "POST",
        "/v1/jobs/invoice/j1/heartbeat",
        &held,
        r#"{"attempt":1,"progress":40,"note":"half way"}"#,
    )
    .await;
    assert_eq!(beat.status(), 200);
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["cancel"], false);
    let (_, job) = json(&router, "GET", "/v1/jobs/j1", Value::Null).await;
    assert_eq!(job["running"]["progress"], json!({"percent": 40.0, "note": "half way"}));
    let strange = [("authorization", "Bearer 00000000000000000000000000000001")];
    let report = r#"{"status":"succeeded","attempt":1,"result":{"n": 1.50}}"#;
    let (refused, _) = ask(&router, "POST", "/v1/jobs/invoice/j1", &strange, report).await;
    assert_eq!(refused.status(), 403);
    for _ in 0..2 {
        let (done, body) = ask(&router, "POST", "/v1/jobs/invoice/j1", &held, report).await;
        assert_eq!(done.status(), 200, "{}", String::from_utf8_lossy(&body));
    }
    let (_, body) = ask(&router, "GET", "/v1/jobs/invoice/j1/result", &[ALL], "").await;
    assert_eq!(String::from_utf8(body).unwrap(), r#"{"n": 1.50}"#);
    let (read, _) = ask(&router, "GET", "/v1/jobs/j1", &held, "").await;
    assert_eq!(read.status(), 401, "an attempt's token allows nothing else");
}

#[tokio::test]
async fn a_lease_call_carries_reports_and_answers_each() {
    let router = router().await;
    json(&router, "PUT", "/v1/jobs/invoice/j1", json!({"data": 1})).await;
    let (_, leased) =
        json(&router, "POST", "/v1/leases", json!({"types": ["invoice"], "wait_seconds": 5})).await;
    let token = &leased["leases"][0]["token"];
    let reports = json!([
        {
            "id": "j1", "type": "invoice", "attempt": 1, "token": token, "status": "failed",
            "message": "no", "error": {"n": 1}, "retryable": false,
        },
        {"id": "j2", "attempt": 1, "status": "succeeded"},
    ]);
    let (status, answer) =
        json(&router, "POST", "/v1/leases", json!({"max": 0, "reports": reports})).await;
    assert_eq!(
        (status, &answer["reports"][0]),
        (200, &json!({"status": 200, "id": "j1", "state": "failed"}))
    );
    assert_eq!(
        (&answer["reports"][1]["status"], &answer["reports"][1]["error"]["code"]),
        (&json!(404), &json!("job_not_found"))
    );
    let (_, job) = json(&router, "GET", "/v1/jobs/j1", Value::Null).await;
    assert_eq!(job["error"], json!({"reason": "failed", "message": "no", "details": {"n": 1}}));
}

#[tokio::test]
async fn log_lines_of_attempts_are_read_by_page() {
    let router = router().await;
    json(&router, "PUT", "/v1/jobs/invoice/j1", json!({"data": 1})).await;
    let lease = async || {
        let ask = json!({"types": ["invoice"], "wait_seconds": 5});
        json(&router, "POST", "/v1/leases", ask).await.1["leases"][0].clone()
    };
    let first = lease().await;
    let line = |text: &str| json!({"text": text, "level": "warn", "fields": {"n": 1}});
    let token = format!("Bearer {}", first["token"].as_str().unwrap());
    let held = [("authorization", token.as_str())];
    let path = "/v1/jobs/invoice/j1/heartbeat";
    let body = json!({"attempt": 1, "log": [line("one"), {"text": "two"}]}).to_string();
    assert_eq!(ask(&router, "POST", path, &held, body).await.0.status(), 200);
    let body = json!({"attempt": 7, "log": [line("no")]}).to_string();
    assert_eq!(ask(&router, "POST", path, &held, body).await.0.status(), 409);
    let body = json!({"attempt": 1, "log": [{"level": "warn"}]}).to_string();
    assert_eq!(ask(&router, "POST", path, &held, body).await.0.status(), 400);
    let reports = json!([
        {"id": "j1", "attempt": 1, "status": "released", "log": [line("three")]},
        {"id": "j2", "attempt": 1, "status": "released", "log": [line("of no job")]},
    ]);
    json(&router, "POST", "/v1/leases", json!({"max": 0, "reports": reports})).await;
    let second = lease().await;
    assert_eq!(second["attempt"], 2);
    let report = json!({"attempt": 2, "status": "succeeded", "log": [line("four")]});
    json(&router, "POST", "/v1/jobs/invoice/j1", report).await;
    let page = async |query: &str| {
        let path = format!("/v1/jobs/invoice/j1/log{query}");
        let (status, page) = json(&router, "GET", &path, Value::Null).await;
        assert_eq!(status, 200, "{page}");
        page
    };
    let whole = page("").await;
    let lines = whole["lines"].as_array().unwrap();
    let shown: Vec<_> = lines.iter().map(|line| (&line["text"], &line["attempt"])).collect();
    let of = |text: &str, attempt: u16| (json!(text), json!(attempt));
    let expected = [of("one", 1), of("two", 1), of("three", 1), of("four", 2)];
    let expected: Vec<_> = expected.iter().map(|(text, attempt)| (text, attempt)).collect();
    assert_eq!(shown, expected);
    assert_eq!((&lines[0]["level"], &lines[0]["fields"]), (&json!("warn"), &json!({"n": 1})));
    assert_eq!((&lines[1]["level"], &lines[1]["fields"]), (&json!("info"), &Value::Null));
    let part = page("?limit=3").await;
    assert_eq!((&part["lines"][2]["text"], &part["next_cursor"]), (&json!("three"), &json!("3")));
    let rest = page("?limit=3&cursor=3").await;
    assert_eq!((&rest["lines"][0]["text"], &rest["dropped"]), (&json!("four"), &json!(0)));
    let second = page("?attempt=2").await;
    assert_eq!(second["lines"].as_array().unwrap().len(), 1);
    for wrong in ["?cursor=x", "?wait=61", "?attempt=-1", "?limit=0", "?other=1"] {
        let path = format!("/v1/jobs/invoice/j1/log{wrong}");
        assert_eq!(json(&router, "GET", &path, Value::Null).await.0, 400, "{wrong}");
    }
    assert_eq!(json(&router, "GET", "/v1/jobs/invoice/no/log", Value::Null).await.0, 404);
}

#[tokio::test]
async fn a_job_that_is_handed_back_brings_its_checkpoint() {
    let router = router().await;
    json(&router, "PUT", "/v1/jobs/invoice/j1", json!({"data": 1})).await;
    let lease = async |attempt: u64| {
        let request = json!({
            "types": ["invoice"], "wait_seconds": 5, "request_id": format!("request-{attempt:08}"),
        });
        let (_, leased) = json(&router, "POST", "/v1/leases", request.clone()).await;
        let (_, again) = json(&router, "POST", "/v1/leases", request).await;
        let token = |leased: &Value| leased["leases"][0]["token"].clone();
        assert_eq!(token(&leased), token(&again), "a repeat gets the same lease");
        assert_eq!(leased["leases"][0]["attempt"], attempt);
        leased["leases"][0]["job"]["checkpoint"].clone()
    };
    let report = async |body: Value| json(&router, "POST", "/v1/jobs/invoice/j1", body).await;
    assert_eq!(lease(1).await, Value::Null);
    let beat = json!({"attempt": 1, "checkpoint": {"page": 1}});
    assert_eq!(json(&router, "POST", "/v1/jobs/invoice/j1/heartbeat", beat).await.0, 200);
    let (status, job) =
        report(json!({"attempt": 1, "status": "released", "message": "no time"})).await;
    assert_eq!((status, &job["state"], &job["handed_back"]), (200, &json!("scheduled"), &json!(1)));
    assert_eq!(job["history"][0]["outcome"], "released");
    assert_eq!(job["history"][0]["message"], "no time");
    assert_eq!(lease(2).await, json!({"page": 1}));
    for (field, wrong) in [
        ("run_at", json!({"status": "snoozed"})),
        ("delay_seconds", json!({"status": "released", "delay_seconds": 1})),
        ("delay_seconds", json!({"status": "snoozed", "delay_seconds": 400_000_000})),
        ("run_at", json!({"status": "failed", "run_at": "2030-01-01T00:00:00Z"})),
        ("result", json!({"status": "released", "result": 1})),
        ("retryable", json!({"status": "released", "retryable": false})),
        ("checkpoint", json!({"status": "succeeded", "checkpoint": 1})),
        ("message", json!({"status": "released", "message": "x".repeat(4097)})),
    ] {
        let mut wrong = wrong;
        wrong["attempt"] = json!(2);
        let (status, problem) = report(wrong).await;
        assert_eq!((status, &problem["field"]), (400, &json!(field)), "{problem}");
    }
    let long = json!({"attempt": 2, "status": "failed", "checkpoint": "x".repeat(65_536)});
    assert_eq!(report(long).await.0, 413);
    let snoozed = json!({
        "attempt": 2, "status": "snoozed", "delay_seconds": 3600, "checkpoint": [2],
    });
    let (status, job) = report(snoozed).await;
    assert_eq!(
        (status, &job["phase"], &job["checkpoint"]),
        (200, &json!("scheduled"), &json!([2]))
    );
    let bad = json!({"types": ["invoice"], "request_id": "short"});
    let (status, problem) = json(&router, "POST", "/v1/leases", bad).await;
    assert_eq!((status, &problem["field"]), (400, &json!("request_id")));
}

#[tokio::test]
async fn waiting_for_a_result_ends_with_408() {
    let router = router().await;
    json(&router, "PUT", "/v1/jobs/invoice/j1", json!({"data": 1})).await;
    assert_eq!(
        json(&router, "GET", "/v1/jobs/invoice/j1/result", Value::Null).await,
        (200, Value::Null)
    );
    let (status, problem) =
        json(&router, "GET", "/v1/jobs/invoice/j1/result?wait=0.05", Value::Null).await;
    assert_eq!((status, &problem["code"]), (408, &json!("wait_timeout")));
    assert_eq!(
        json(&router, "GET", "/v1/jobs/invoice/j1/result?wait=61", Value::Null).await.0,
        400
    );
    assert_eq!(json(&router, "GET", "/v1/jobs/other/j1/result", Value::Null).await.0, 404);
}

/// A store that does not answer requests for log lines and other records, once it is cut off.
#[derive(Default)]
struct WithoutRecords {
    inner: MemoryStore,
    is_cut_off: AtomicBool,
}

impl StoreLayer for WithoutRecords {
    fn inner(&self) -> &dyn JobStore {
        &self.inner
    }

    async fn around<T: Send>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        if operation == Operation::Records && self.is_cut_off.load(Relaxed) {
            return Err(StoreError::unavailable("no answer"));
        }
        call.await
    }
}

/// A store whose reads of records are answered when every other request has had its turn.
struct SlowRecords(SharedStore);

impl StoreLayer for SlowRecords {
    fn inner(&self) -> &dyn JobStore {
        &*self.0
    }

    async fn around<T: Send>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let answer = call.await;
        if operation == Operation::Records {
            tokio::task::yield_now().await;
        }
        answer
    }
}

#[tokio::test]
async fn requests_at_the_same_time_lose_no_log_lines() {
    let memory = || -> SharedStore { Arc::new(MemoryStore::default()) };
    for store in [memory(), Arc::new(FaultyStore::new(memory(), 1))] {
        let router = router_on(Arc::new(SlowRecords(store))).await;
        json(&router, "PUT", "/v1/jobs/invoice/j1", json!({"data": 1})).await;
        let lease = json!({"types": ["invoice"], "max": 1});
        assert_eq!(json(&router, "POST", "/v1/leases", lease).await.1["leases"][0]["attempt"], 1);
        let text = |request: usize, line: usize| format!("{request}.{line} {}", "x".repeat(900));
        let beats = (0..5).map(|request| {
            let line = |line| json!({"text": text(request, line)});
            let lines: Vec<Value> = (0..6).map(line).collect();
            let beat = json!({"attempt": 1, "log": lines});
            json(&router, "POST", "/v1/jobs/invoice/j1/heartbeat", beat)
        });
        for (status, answer) in futures_util::future::join_all(beats).await {
            assert_eq!(status, 200, "{answer}");
        }
        let path = "/v1/jobs/invoice/j1/log?limit=1000";
        let (_, page) = json(&router, "GET", path, Value::Null).await;
        let lines = page["lines"].as_array().unwrap();
        let mut texts: Vec<&str> = lines.iter().filter_map(|line| line["text"].as_str()).collect();
        texts.sort_unstable();
        let all = |request| (0..6).map(move |line| text(request, line));
        assert_eq!(texts, (0..5).flat_map(all).collect::<Vec<_>>());
        assert_eq!(page["dropped"], 0);
    }
}

#[tokio::test]
async fn no_attempt_ends_because_its_log_is_not_stored() {
    let store = Arc::new(WithoutRecords::default());
    let router = router_on(Arc::clone(&store)).await;
    store.is_cut_off.store(true, Relaxed);
    let (status, made) = json(&router, "PUT", "/v1/jobs/invoice/j1", json!({"data": 1})).await;
    assert_eq!(status, 201, "{made}");
    let lease = json!({"types": ["invoice"], "max": 1});
    assert_eq!(json(&router, "POST", "/v1/leases", lease).await.1["leases"][0]["attempt"], 1);
    let beat = json!({"attempt": 1, "log": [{"text": "one"}]});
    let (status, answer) = json(&router, "POST", "/v1/jobs/invoice/j1/heartbeat", beat).await;
    assert_eq!((status, &answer["cancel"]), (200, &json!(false)));
    // The report is stored. Its worker repeats it until its lines are stored too, or leaves them
    // out.
    let report = json!({"attempt": 1, "status": "succeeded", "log": [{"text": "two"}]});
    let (status, answer) = json(&router, "POST", "/v1/jobs/invoice/j1", report).await;
    assert_eq!((status, &answer["code"]), (503, &json!("unavailable")));
    let report = json!({"attempt": 1, "status": "succeeded"});
    let (status, answer) = json(&router, "POST", "/v1/jobs/invoice/j1", report).await;
    assert_eq!((status, &answer["state"]), (200, &json!("succeeded")));
}
