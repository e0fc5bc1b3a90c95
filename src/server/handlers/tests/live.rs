//! The routes on a real server, its store in memory.

use std::{collections::BTreeSet, sync::Arc};

use axum::Router;
use serde_json::{Value, json};

use super::{ApiOptions, ask, options};
use crate::{
    handlers::{self, openapi},
    runtime::Server,
};
use tidegate_backends::{
    http::HttpTarget,
    system::{SystemClock, SystemEntropy},
};
use tidegate_engine::{
    Ports,
    memory::{MemoryStore, MemoryWorkQueue},
};

pub(super) const ALL: (&str, &str) = ("authorization", "Bearer admin");
pub(super) const MSGPACK: (&str, &str) = ("content-type", "application/msgpack");

pub(super) async fn router() -> Router {
    let ports = Ports {
        store: Arc::new(MemoryStore::default()),
        objects: Arc::new(object_store::memory::InMemory::new()),
        work: Arc::new(MemoryWorkQueue::default()),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        policy: Arc::new(tidegate_core::port::policy::NoPolicy),
    };
    let target = HttpTarget::new(tidegate_backends::http::Guard::default()).unwrap();
    let server = Server::builder(ports, Arc::new(target)).start().await.unwrap();
    let router = handlers::router(server, ApiOptions::clone(&options()));
    let (made, _) = ask(&router, "PUT", "/v1/job-types/invoice", &[ALL], "{}").await;
    assert_eq!(made.status(), 201);
    router
}

/// The status and the JSON of the answer to a request in JSON by somebody who may do everything.
pub(super) async fn json(router: &Router, method: &str, path: &str, body: Value) -> (u16, Value) {
    let sent = if body.is_null() { String::new() } else { body.to_string() };
    let (answer, body) = ask(router, method, path, &[ALL], sent).await;
    (answer.status().as_u16(), serde_json::from_slice(&body).unwrap_or(Value::Null))
}

#[tokio::test]
async fn every_operation_asks_for_the_scope_that_it_documents() {
    let router = router().await;
    let document = openapi::complete(handlers::routes().into_openapi());
    let mut seen = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let scope = operation["security"]
                .as_array()
                .unwrap()
                .iter()
                .find_map(|scheme| scheme["bearer"][0].as_str());
            let Some(scope) = scope else { continue };
            let path =
                path.replace("{type}", "invoice").replace("{number}", "1").replace("{id}", "none");
            let path = path
                .replace("{queue}", "none")
                .replace("{worker}", "none")
                .replace("{plugin}", "none");
            let path = path.replace("{schedule}", "none").replace("{trigger}", "none");
            let method = method.to_uppercase();
            let (nobody, _) = ask(&router, &method, &path, &[], "").await;
            assert_eq!(nobody.status(), 401, "{method} {path}");
            let others = ["enqueue", "work", "read", "enqueue:critical"]
                .into_iter()
                .filter(|other| *other != scope)
                .collect::<Vec<_>>()
                .join(",");
            let (other, _) =
                ask(&router, &method, &path, &[("authorization", &format!("Bearer {others}"))], "")
                    .await;
            assert_eq!(other.status(), 403, "{method} {path}");
            let (right, _) =
                ask(&router, &method, &path, &[("authorization", &format!("Bearer {scope}"))], "")
                    .await;
            assert!(
                ![401, 403, 404, 405].contains(&right.status().as_u16()) || right.status() == 404,
                "{method} {path} {}",
                right.status()
            );
            seen.insert(scope.to_owned());
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["admin", "enqueue", "read", "work"]);
}

#[tokio::test]
async fn data_is_byte_for_byte_or_converted_for_the_other_encoding() {
    let router = router().await;
    let text = r#"{"n":1.0e2,  "s":"\u00e9"}"#;
    let (made, body) =
        ask(&router, "POST", "/v1/jobs", &[ALL], format!(r#"{{"type":"invoice","data":{text}}}"#))
            .await;
    assert_eq!(made.status(), 201);
    assert!(String::from_utf8(body).unwrap().contains(text));
    let place = made.headers()["location"].to_str().unwrap().to_owned();
    let (_, body) = ask(&router, "GET", &place, &[ALL], "").await;
    assert!(String::from_utf8(body).unwrap().contains(text));
    let (_, body) =
        ask(&router, "GET", &place, &[ALL, ("accept", "application/msgpack")], "").await;
    let value: Value = rmp_serde::from_slice(&body).unwrap();
    assert_eq!(value["data"], json!({"n": 100.0, "s": "é"}));

    // {"type": "invoice", "data": binary 01 02}
    let sent =
        [&[0x82, 0xa4][..], b"type", &[0xa7], b"invoice", &[0xa4], b"data", &[0xc4, 2, 1, 2]]
            .concat();
    let (made, body) = ask(&router, "POST", "/v1/jobs", &[ALL, MSGPACK], sent).await;
    assert_eq!(
        (made.status().as_u16(), &made.headers()["content-type"]),
        (201, &"application/msgpack".parse().unwrap())
    );
    assert!(body.windows(4).any(|bytes| bytes == [0xc4, 2, 1, 2]));
    let (_, value) =
        json(&router, "GET", made.headers()["location"].to_str().unwrap(), Value::Null).await;
    assert_eq!(value["data"], json!({"$binary": "AQI="}));
}

#[tokio::test]
async fn a_batch_answers_each_job_and_a_wrong_one_stops_nothing() {
    let router = router().await;
    let jobs = json!([
        {"type": "invoice", "data": 1, "id": "a"}, {"type": "invoice", "data": 2, "wieght": 3}, {"type": "nothing", "data": 3},
        {"type": "invoice"}, {"type": "invoice", "data": 1, "id": "a"}, {"type": "invoice", "data": "x".repeat(1000)},
    ]);
    let (status, answer) = json(&router, "POST", "/v1/jobs/batch", json!({"jobs": jobs})).await;
    assert_eq!(status, 200);
    let shown: Vec<_> = answer["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (&one["status"], &one["error"]["code"], &one["error"]["field"]))
        .collect();
    let null = Value::Null;
    let wanted = [
        (json!(201), null.clone(), null.clone()),
        (json!(400), json!("unknown_field"), json!("wieght")),
        (json!(404), json!("job_type_not_found"), null.clone()),
        (json!(400), json!("invalid_field"), json!("data")),
        (json!(200), null.clone(), null.clone()),
        (json!(413), json!("data_too_large"), json!("data")),
    ];
    let wanted: Vec<_> = wanted.iter().map(|(status, code, field)| (status, code, field)).collect();
    assert_eq!(shown, wanted);
    assert_eq!(answer["results"][4]["job"]["data"], 1);
    let (status, answer) = json(
        &router,
        "POST",
        "/v1/jobs/batch",
        json!({"jobs": vec![json!({"type": "invoice", "data": 0}); 1001]}),
    )
    .await;
    assert_eq!((status, &answer["field"]), (400, &json!("jobs")));
}

#[tokio::test]
async fn a_trace_that_is_not_well_said_is_none() {
    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let router = router().await;
    let kept = async |headers: &[(&str, &str)], own: Value| {
        let headers = [&[ALL], headers].concat();
        let body = json!({"type": "invoice", "data": 1, "headers": own}).to_string();
        let (answer, body) = ask(&router, "POST", "/v1/jobs", &headers, body).await;
        assert_eq!(answer.status(), 201);
        // None at all are not shown.
        serde_json::from_slice::<Value>(&body).unwrap().get("headers").cloned().unwrap_or(json!({}))
    };
    let state = ("tracestate", "a=1,b=2");
    assert_eq!(
        kept(&[("traceparent", GOOD), state], json!({})).await,
        json!({"traceparent": GOOD, "tracestate": "a=1,b=2"})
    );
    let long = "x".repeat(513);
    assert_eq!(
        kept(&[("traceparent", GOOD), ("tracestate", &long)], json!({})).await,
        json!({"traceparent": GOOD})
    );
    for bad in
        ["", "nonsense", &GOOD[1..], "00-00000000000000000000000000000000-b7ad6b7169203331-01"]
    {
        assert_eq!(kept(&[("traceparent", bad), state], json!({})).await, json!({}), "{bad:?}");
    }
    assert_eq!(
        kept(&[("traceparent", GOOD), ("traceparent", GOOD)], json!({})).await,
        json!({}),
        "one of two is none"
    );
    assert_eq!(
        kept(&[state], json!({})).await,
        json!({}),
        "a state without its parent means nothing"
    );
    let own = json!({"Traceparent": GOOD.replace("0af", "1af")});
    assert_eq!(
        kept(&[("traceparent", GOOD), state], own.clone()).await,
        own,
        "the job's own trace is not mixed with another"
    );
    let many: Value =
        (0..32).map(|n| (format!("x-{n}"), json!("y"))).collect::<serde_json::Map<_, _>>().into();
    assert_eq!(
        kept(&[("traceparent", GOOD)], many.clone()).await,
        many,
        "a trace makes no good request a bad one"
    );
}

#[tokio::test]
async fn a_repeat_is_the_same_request_whatever_its_trace() {
    let router = router().await;
    let put = async |trace: &str, data: u8| {
        let headers = [ALL, ("traceparent", trace)];
        let (answer, body) = ask(
            &router,
            "PUT",
            "/v1/jobs/invoice/order:1",
            &headers,
            format!(r#"{{"data":{data}}}"#),
        )
        .await;
        (answer.status().as_u16(), serde_json::from_slice::<Value>(&body).unwrap())
    };
    let parent = |span: u8| format!("00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b{span}-01");
    let (status, job) = put(&parent(1), 1).await;
    assert_eq!((status, &job["headers"]["traceparent"]), (201, &json!(parent(1))));
    assert_eq!(put(&parent(2), 1).await.0, 200);
    let (status, clash) = put(&parent(3), 2).await;
    assert_eq!(
        (status, &clash["code"], &clash["holder"]),
        (409, &json!("id_taken"), &json!("order:1"))
    );
    let (status, other) =
        json(&router, "PUT", "/v1/jobs/invoice/b", json!({"data": 1, "id": "c"})).await;
    assert_eq!((status, &other["field"]), (400, &json!("id")));
}

#[tokio::test]
async fn an_idempotency_key_covers_one_job_or_each_item_of_a_batch() {
    let router = router().await;
    let key = ("idempotency-key", "k1");
    let one = r#"{"type":"invoice","data":1}"#;
    let (first, body) = ask(&router, "POST", "/v1/jobs", &[ALL, key], one).await;
    let (again, same) = ask(&router, "POST", "/v1/jobs", &[ALL, key], one).await;
    assert_eq!((first.status().as_u16(), again.status().as_u16()), (201, 200));
    let id = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap()["id"].clone();
    assert_eq!(id(&body), id(&same));
    let batch = format!(r#"{{"jobs":[{one},{one}]}}"#);
    for status in [201, 200] {
        let (_, body) = ask(&router, "POST", "/v1/jobs/batch", &[ALL, key], batch.clone()).await;
        let answer: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            [&answer["results"][0]["status"], &answer["results"][1]["status"]],
            [status, status]
        );
    }
}

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
    let (looking, _) = ask(&router, "GET", "/v1/jobs/j1", &held, "").await;
    assert_eq!(looking.status(), 401, "an attempt's token opens nothing else");
}

#[tokio::test]
async fn a_lease_call_carries_reports_and_answers_each() {
    let router = router().await;
    json(&router, "PUT", "/v1/jobs/invoice/j1", json!({"data": 1})).await;
    let (_, leased) =
        json(&router, "POST", "/v1/leases", json!({"types": ["invoice"], "wait_seconds": 5})).await;
    let token = &leased["leases"][0]["token"];
    let reports = json!([
        {"id": "j1", "type": "invoice", "attempt": 1, "token": token, "status": "failed", "message": "no", "error": {"n": 1}, "retryable": false},
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
async fn a_result_is_waited_for_and_408_says_that_the_wait_is_over() {
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

#[tokio::test]
async fn configuration_is_replaced_patched_and_guarded_by_its_etag() {
    let router = router().await;
    let (status, queue) = json(
        &router,
        "PUT",
        "/v1/queues/mail",
        json!({"concurrency": 5, "partition_by": "tenant"}),
    )
    .await;
    assert_eq!((status, &queue["concurrency"], &queue["paused"]), (201, &json!(5), &json!(false)));
    let (got, _) = ask(&router, "GET", "/v1/queues/mail", &[ALL], "").await;
    let etag = got.headers()["etag"].to_str().unwrap().to_owned();
    let (patched, body) = ask(
        &router,
        "PATCH",
        "/v1/queues/mail",
        &[ALL, ("if-match", &etag)],
        r#"{"concurrency":6}"#,
    )
    .await;
    let queue: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (patched.status().as_u16(), &queue["concurrency"], &queue["partition_by"]),
        (200, &json!(6), &json!("tenant"))
    );
    for method in ["PATCH", "PUT", "DELETE"] {
        let (stale, body) = ask(
            &router,
            method,
            "/v1/queues/mail",
            &[ALL, ("if-match", &format!("W/{etag}"))],
            "{}",
        )
        .await;
        assert_eq!(stale.status(), 412, "{method}");
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["code"], "precondition_failed");
    }
    let (_, queue) = json(&router, "PUT", "/v1/queues/mail", json!({})).await;
    assert_eq!((&queue["concurrency"], &queue["partition_by"]), (&Value::Null, &Value::Null));
    assert_eq!(json(&router, "PATCH", "/v1/queues/none", json!({})).await.0, 404);
    let (_, paused) = json(&router, "POST", "/v1/queues/mail/pause", Value::Null).await;
    assert_eq!(paused["paused"], true);
    let (_, queue) = json(&router, "GET", "/v1/queues/mail", Value::Null).await;
    assert!(queue["status"]["depth"].is_object() && queue["status"]["held"].is_object(), "{queue}");
    let (gone, _) = ask(&router, "DELETE", "/v1/queues/mail", &[ALL], "").await;
    assert_eq!(gone.status(), 204);
}

#[tokio::test]
async fn a_scheduled_job_is_patched_cancelled_and_run_again() {
    let router = router().await;
    json(&router, "PUT", "/v1/jobs/invoice/j1", json!({"data": 1, "delay_seconds": 3600})).await;
    let (got, _) = ask(&router, "GET", "/v1/jobs/invoice/j1", &[ALL], "").await;
    let etag = got.headers()["etag"].to_str().unwrap().to_owned();
    let (status, job) = json(
        &router,
        "PATCH",
        "/v1/jobs/invoice/j1",
        json!({"priority": 7, "data": null, "expires_at": "2100-01-01T00:00:00Z"}),
    )
    .await;
    assert_eq!(
        (status, &job["priority"], &job["data"], &job["expires_at"]),
        (200, &json!(7), &Value::Null, &json!("2100-01-01T00:00:00.000Z"))
    );
    let (stale, _) = ask(
        &router,
        "PATCH",
        "/v1/jobs/invoice/j1",
        &[ALL, ("if-match", &etag)],
        r#"{"priority":8}"#,
    )
    .await;
    assert_eq!(stale.status(), 412);
    let (_, job) = json(&router, "PATCH", "/v1/jobs/invoice/j1", json!({"expires_at": null})).await;
    assert_eq!(job["expires_at"], Value::Null);
    let (_, why) = json(&router, "GET", "/v1/jobs/invoice/j1/explain", Value::Null).await;
    assert_eq!(why["held_by"]["kind"], "due_time");
    let (status, problem) = json(&router, "POST", "/v1/jobs/invoice/j1/replay", Value::Null).await;
    assert_eq!((status, &problem["code"]), (409, &json!("job_not_finished")));
    let (status, job) = json(&router, "DELETE", "/v1/jobs/invoice/j1", Value::Null).await;
    assert_eq!((status, &job["state"]), (200, &json!("cancelled")));
    assert_eq!(json(&router, "DELETE", "/v1/jobs/invoice/j1?force=true", Value::Null).await.0, 409);
    let (status, again) =
        json(&router, "POST", "/v1/jobs/invoice/j1/replay", json!({"priority": 1})).await;
    assert_eq!((status, &again["replay_of"], &again["priority"]), (201, &json!("j1"), &json!(1)));
    let (status, again) = json(&router, "POST", "/v1/jobs/j1/replay", Value::Null).await;
    assert_eq!(
        (status, &again["replay_of"], &again["type"]),
        (201, &json!("j1"), &json!("invoice"))
    );
    assert_eq!(json(&router, "POST", "/v1/jobs/none/replay", Value::Null).await.0, 404);
    let (_, ended) = json(&router, "GET", "/v1/jobs?state=ended&type=invoice", Value::Null).await;
    assert_eq!(
        (ended["jobs"].as_array().unwrap().len(), &ended["jobs"][0]["id"]),
        (1, &json!("j1"))
    );
    let (status, answer) = json(
        &router,
        "POST",
        "/v1/jobs/cancel",
        json!({"filter": {"type": "invoice", "state": ["scheduled"]}}),
    )
    .await;
    assert_eq!((status, &answer["operation"]["kind"]), (202, &json!("cancel")));
    let path = format!("/v1/operations/{}", answer["operation"]["id"].as_str().unwrap());
    assert_eq!(json(&router, "GET", &path, Value::Null).await.0, 200);
}

#[tokio::test]
async fn a_bulk_change_is_idempotent_by_its_key() {
    let router = router().await;
    for path in ["/v1/jobs/replay", "/v1/jobs/cancel", "/v1/queues/default/purge"] {
        let started = async |body: &str| {
            let (answer, body) =
                ask(&router, "POST", path, &[ALL, ("idempotency-key", path)], body.to_owned())
                    .await;
            let body: Value = serde_json::from_slice(&body).unwrap();
            (answer.status().as_u16(), body["operation"]["id"].clone(), body["code"].clone())
        };
        let first = started(r#"{"filter":{"type":"invoice"}}"#).await;
        assert_eq!(
            (first.0, &first),
            (202, &started(r#"{"filter":{"type":"invoice"}}"#).await),
            "{path}"
        );
        if !path.ends_with("purge") {
            let other = started(r#"{"filter":{}}"#).await;
            assert_eq!((other.0, other.2), (409, json!("idempotency_key_reused")), "{path}");
        }
    }
}

#[tokio::test]
async fn tokens_are_made_listed_without_secrets_and_revoked() {
    let router = router().await;
    let (status, made) =
        json(&router, "POST", "/v1/tokens", json!({"name": "ci", "scopes": ["enqueue", "read"]}))
            .await;
    let text = made["token"].as_str().unwrap();
    assert_eq!((status, text.starts_with("tg_")), (201, true));
    let (_, listed) = json(&router, "GET", "/v1/tokens", Value::Null).await;
    assert_eq!(
        (listed["tokens"].as_array().unwrap().len(), &listed["tokens"][0]["scopes"]),
        (1, &json!(["enqueue", "read"]))
    );
    assert!(
        !listed.to_string().contains(text.rsplit('_').next().unwrap())
            && !listed.to_string().contains("hash")
    );
    let path = format!("/v1/tokens/{}", made["id"].as_str().unwrap());
    assert_eq!(json(&router, "DELETE", &path, Value::Null).await.0, 204);
    assert_eq!(json(&router, "DELETE", &path, Value::Null).await.0, 404);
    let (status, problem) =
        json(&router, "POST", "/v1/tokens", json!({"name": "x", "scopes": ["everything"]})).await;
    assert_eq!((status, &problem["field"]), (400, &json!("scopes")));
}

#[tokio::test]
async fn the_open_routes_are_open() {
    let router = router().await;
    for path in ["/healthz", "/readyz", "/openapi.json", "/"] {
        let (answer, body) = ask(&router, "GET", path, &[], "").await;
        assert_eq!((answer.status().as_u16(), body.is_empty()), (200, false), "{path}");
    }
    let (_, page) = ask(&router, "GET", "/", &[], "").await;
    assert!(String::from_utf8(page).unwrap().starts_with("<!doctype html>"));
}

const STRUCTURED: (&str, &str) = ("content-type", "application/cloudevents+json");
const BATCH: (&str, &str) = ("content-type", "application/cloudevents-batch+json");

fn order(id: &str) -> Value {
    json!({"specversion": "1.0", "id": id, "source": "/shop", "type": "order", "data": {"id": id}})
}

async fn send(
    router: &Router,
    headers: &[(&str, &str)],
    body: impl Into<axum::body::Body>,
) -> (u16, Value) {
    let headers: Vec<_> = [ALL].into_iter().chain(headers.iter().copied()).collect();
    let (answer, body) = ask(router, "POST", "/v1/events", &headers, body).await;
    (answer.status().as_u16(), serde_json::from_slice(&body).unwrap_or(Value::Null))
}

async fn with_trigger() -> Router {
    let router = router().await;
    let rule = json!({"filter": {"type": "order"}, "enqueue": {"type": "invoice", "correlation_key": {"$expr": "data.id"}}});
    assert_eq!(json(&router, "PUT", "/v1/triggers/orders", rule).await.0, 201);
    router
}

#[tokio::test]
async fn events_are_taken_in_every_mode() {
    let router = with_trigger().await;
    let did = |answer: &Value| answer["outcomes"][0]["did"].clone();
    let (status, answer) = send(&router, &[STRUCTURED], order("1").to_string()).await;
    assert_eq!(
        (status, did(&answer), &answer["source"]),
        (200, json!("enqueued"), &json!("/shop"))
    );
    let job = answer["outcomes"][0]["job"].as_str().unwrap().to_owned();
    let (_, shown) = json(&router, "GET", &format!("/v1/jobs/{job}"), Value::Null).await;
    assert_eq!((&shown["correlation_key"], &shown["data"]), (&json!("1"), &json!({"id": "1"})));
    assert_eq!(did(&send(&router, &[STRUCTURED], order("1").to_string()).await.1), "repeated");

    let batch = json!([order("2"), {"id": "3"}, order("1")]);
    let (status, answer) = send(&router, &[BATCH], batch.to_string()).await;
    let results = answer["results"].as_array().unwrap();
    assert_eq!(
        (status, &results[0]["status"], did(&results[0]["event"])),
        (200, &json!(200), json!("enqueued"))
    );
    assert_eq!(
        (&results[1]["status"], &results[1]["error"]["field"]),
        (&json!(400), &json!("specversion"))
    );
    assert_eq!(did(&results[2]["event"]), "repeated");
    assert_eq!(send(&router, &[BATCH], "[]").await, (200, json!({"results": []})));

    let binary = [
        ("ce-specversion", "1.0"),
        ("ce-id", "4"),
        ("ce-source", "/shop"),
        ("ce-type", "order"),
        ("content-type", "application/json"),
    ];
    let (status, answer) = send(&router, &binary, r#"{"id": "four"}"#).await;
    assert_eq!((status, did(&answer)), (200, json!("enqueued")));
    let image = [
        ("ce-specversion", "1.0"),
        ("ce-id", "5"),
        ("ce-source", "/shop"),
        ("ce-type", "image"),
        ("content-type", "image/png"),
    ];
    assert_eq!(send(&router, &image, vec![0, 255]).await.1["outcomes"], json!([]));

    let packed = tidegate_core::job::Payload::json(order("6").to_string()).to_msgpack().unwrap();
    let (answer, body) = ask(
        &router,
        "POST",
        "/v1/events",
        &[ALL, ("content-type", "application/cloudevents+msgpack")],
        packed,
    )
    .await;
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["content-type"]),
        (200, &"application/msgpack".parse().unwrap())
    );
    let value: Value = rmp_serde::from_slice(&body).unwrap();
    assert_eq!(did(&value), "enqueued");
}

#[tokio::test]
async fn an_invalid_event_is_refused_by_field_and_changes_nothing() {
    let router = with_trigger().await;
    let without = |name: &str| {
        let mut event = order("x");
        event.as_object_mut().unwrap().remove(name);
        event.to_string()
    };
    let large = json!({"specversion": "1.0", "id": "x", "source": "/shop", "type": "order", "data": "x".repeat(300_000)}).to_string();
    let many = format!("[{}]", vec!["1"; 1001].join(","));
    for (headers, body, status, code, field) in [
        (&[STRUCTURED][..], without("id"), 400, "invalid_field", json!("id")),
        (&[STRUCTURED], without("type"), 400, "invalid_field", json!("type")),
        (&[STRUCTURED], "{".into(), 400, "invalid_body", Value::Null),
        (&[STRUCTURED], "[]".into(), 400, "invalid_body", Value::Null),
        (&[STRUCTURED], String::new(), 400, "invalid_body", Value::Null),
        (&[STRUCTURED], large, 413, "too_large", json!("event")),
        (&[STRUCTURED], "x".repeat(700_000), 413, "body_too_large", Value::Null),
        (&[BATCH], many, 400, "invalid_field", Value::Null),
        (&[BATCH], order("x").to_string(), 400, "invalid_body", Value::Null),
        (
            &[("content-type", "application/cloudevents+xml")],
            "<a/>".into(),
            415,
            "unsupported_media_type",
            Value::Null,
        ),
        (
            &[("content-type", "application/json")],
            order("x").to_string(),
            400,
            "invalid_field",
            json!("ce-specversion"),
        ),
        (
            &[("ce-specversion", "1.0"), ("ce-id", "x")],
            String::new(),
            400,
            "invalid_field",
            json!("ce-source"),
        ),
    ] {
        let (told, problem) = send(&router, headers, body).await;
        assert_eq!(
            (told, &problem["code"], problem.get("field").cloned().unwrap_or_default()),
            (status, &json!(code), field),
            "{problem}"
        );
    }
    let (_, jobs) = json(&router, "GET", "/v1/jobs", Value::Null).await;
    assert_eq!(jobs["jobs"], json!([]));
}

#[tokio::test]
async fn a_trigger_is_put_shown_listed_and_deleted() {
    let router = with_trigger().await;
    let rule = json!({"filter": {"type": "order"}, "enqueue": {"type": "invoice", "priority": {"$expr": "data.id"}}});
    let (answer, _) = ask(
        &router,
        "PUT",
        "/v1/triggers/orders",
        &[ALL, ("if-match", "\"v7\"")],
        rule.to_string(),
    )
    .await;
    assert_eq!(answer.status(), 412);
    let (status, answer) = json(&router, "PUT", "/v1/triggers/orders", rule.clone()).await;
    assert_eq!(
        (status, &answer["version"], &answer["enqueue"]),
        (200, &json!(2), &rule["enqueue"])
    );
    let (shown, _) = ask(&router, "GET", "/v1/triggers/orders", &[ALL], "").await;
    assert_eq!(shown.headers()["etag"], "\"v2\"");
    let (_, listed) = json(&router, "GET", "/v1/triggers?limit=1", Value::Null).await;
    assert_eq!(listed["triggers"][0]["name"], "orders");
    for (rule, code, field) in [
        (json!({}), "invalid_trigger", "enqueue"),
        (
            json!({"filter": {"tpye": "x"}, "enqueue": {"type": "invoice"}}),
            "unknown_field",
            "filter.tpye",
        ),
        (
            json!({"enqueue": {"type": "invoice", "data": {"$expr": "a["}}}),
            "invalid_expression",
            "enqueue.data",
        ),
    ] {
        let (status, problem) = json(&router, "PUT", "/v1/triggers/bad", rule).await;
        assert_eq!(
            (status, &problem["code"], &problem["field"]),
            (400, &json!(code), &json!(field)),
            "{problem}"
        );
    }
    // The rule is good and the event is not: it is dead until the rule is mended.
    let (_, answer) = send(&router, &[STRUCTURED], order("seven").to_string()).await;
    let letter = answer["outcomes"][0]["letter"].as_str().unwrap().to_owned();
    let (_, page) = json(&router, "GET", "/v1/dead-letters?trigger=orders", Value::Null).await;
    assert_eq!(
        (&page["dead_letters"][0]["id"], &page["dead_letters"][0]["event"]["data"]),
        (&json!(letter), &json!({"id": "seven"}))
    );
    let (status, answer) = json(&router, "POST", "/v1/dead-letters/replay", Value::Null).await;
    assert_eq!((status, answer), (200, json!({"replayed": 0, "dead": 1})));
    let mended = json!({"enqueue": {"type": "invoice", "priority": {"$expr": "length(data.id)"}}});
    json(&router, "PUT", "/v1/triggers/orders", mended).await;
    let (status, answer) =
        json(&router, "POST", &format!("/v1/dead-letters/{letter}/replay"), Value::Null).await;
    assert_eq!((status, &answer["did"]), (200, &json!("enqueued")), "{answer}");
    assert_eq!(
        json(&router, "GET", &format!("/v1/dead-letters/{letter}"), Value::Null).await.0,
        404
    );
    assert_eq!(
        json(&router, "DELETE", &format!("/v1/dead-letters/{letter}"), Value::Null).await.0,
        404
    );
    assert_eq!(json(&router, "DELETE", "/v1/triggers/orders", Value::Null).await.0, 204);
    assert_eq!(json(&router, "GET", "/v1/triggers/orders", Value::Null).await.0, 404);
}
