//! The jobs that a caller with the scope `enqueue` alone has: those that its name enqueued.

use axum::Router;
use serde_json::{Value, json};

use tidegate_api::JobView;
use tidegate_core::{
    job::{Encoding, lifecycle::ResultBody},
    time::Timestamp,
};
use tidegate_engine::testkit::builders::job;

use super::{super::ask, json, router};

const SHOP: &str = "enqueue;name=shop";
const OTHER: &str = "enqueue;name=other";
const READER: &str = "enqueue,read;name=reader";

/// The status and the JSON of the answer to a caller with `token`.
async fn asked(
    router: &Router,
    token: &str,
    (method, path): (&str, &str),
    body: Value,
) -> (u16, Value) {
    let bearer = format!("Bearer {token}");
    let sent = if body.is_null() { String::new() } else { body.to_string() };
    let (answer, body) = ask(router, method, path, &[("authorization", &bearer)], sent).await;
    (answer.status().as_u16(), serde_json::from_slice(&body).unwrap_or(Value::Null))
}

#[tokio::test]
async fn enqueue_alone_reaches_only_the_jobs_of_its_name() {
    let router = router().await;
    let job = json!({"type": "invoice", "data": [1], "run_at": "2099-01-01T00:00:00Z"});
    let path = |rest: &str| format!("/v1/jobs/invoice/own{rest}");
    let (status, made) = asked(&router, SHOP, ("PUT", &path("")), job).await;
    assert_eq!((status, &made["enqueued_by"]), (201, &json!("shop")));
    let reads = ["/v1/jobs/own".to_owned(), path(""), path("/result"), path("/explain")];
    let patch = json!({"priority": 5});
    for read in &reads {
        for (token, status) in [(SHOP, 200), (OTHER, 403), (READER, 200), ("work", 403)] {
            let (answered, body) = asked(&router, token, ("GET", read), Value::Null).await;
            assert_eq!(answered, status, "{token} {read}: {body}");
        }
    }
    for (token, status) in [(OTHER, 403), (SHOP, 200), (READER, 200)] {
        let (answered, _) = asked(&router, token, ("PATCH", &path("")), patch.clone()).await;
        assert_eq!(answered, status, "{token} changes it");
    }
    for (token, status) in [(OTHER, 403), (SHOP, 200)] {
        let (answered, _) = asked(&router, token, ("DELETE", &path("")), Value::Null).await;
        assert_eq!(answered, status, "{token} cancels it");
    }
    for replay in ["/v1/jobs/own/replay".to_owned(), path("/replay")] {
        let (refused, _) = asked(&router, OTHER, ("POST", &replay), Value::Null).await;
        assert_eq!(refused, 403, "{replay}");
    }
    // The operator's replay stays the producer's own.
    let (status, again) = asked(&router, READER, ("POST", &path("/replay")), Value::Null).await;
    assert_eq!((status, &again["enqueued_by"]), (201, &json!("shop")));
}

#[tokio::test]
async fn a_job_without_a_producer_is_for_readers() {
    let router = router().await;
    let trigger = json!({"filter": {"type": "placed"}, "enqueue": {"type": "invoice"}});
    let (status, body) = json(&router, "PUT", "/v1/triggers/orders", trigger).await;
    assert_eq!(status, 201, "{body}");
    let event = json!({"specversion": "1.0", "id": "1", "source": "/shop", "type": "placed"});
    let sent = [
        ("authorization", "Bearer enqueue;name=shop"),
        ("content-type", "application/cloudevents+json"),
    ];
    let (_, answer) = ask(&router, "POST", "/v1/events", &sent, event.to_string()).await;
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    let path = format!("/v1/jobs/{}", answer["outcomes"][0]["job"].as_str().unwrap());
    assert_eq!(asked(&router, SHOP, ("GET", &path), Value::Null).await.0, 403);
    let (status, shown) = asked(&router, READER, ("GET", &path), Value::Null).await;
    assert_eq!((status, shown.get("enqueued_by")), (200, None));
}

#[tokio::test]
async fn an_enqueue_that_finds_the_job_of_another_shows_its_outline() {
    let router = router().await;
    let job = json!({
        "type": "invoice", "data": "secret", "attributes": {"customer": "secret"},
        "headers": {"x-key": "secret"}, "unique": {"key": "u", "while": "live"},
        "correlation_key": "secret",
    });
    let (_, first) = asked(&router, SHOP, ("POST", "/v1/jobs"), job).await;
    let found = json!({"type": "invoice", "data": 1, "unique": {"key": "u", "while": "live"}});
    let batch = json!({"jobs": [found]});
    for (token, hidden) in [(SHOP, false), (OTHER, true), (READER, false)] {
        let (status, one) = asked(&router, token, ("POST", "/v1/jobs"), found.clone()).await;
        let batch = asked(&router, token, ("POST", "/v1/jobs/batch"), batch.clone()).await.1;
        let many = &batch["results"][0];
        assert_eq!((status, &many["status"]), (200, &json!(200)), "{token}: {one} {batch}");
        for shown in [&one, &many["job"]] {
            assert_eq!((&shown["id"], &shown["phase"]), (&first["id"], &json!("ready")));
            assert_eq!(!shown.to_string().contains("secret"), hidden, "{token}: {shown}");
        }
    }
}

#[tokio::test]
async fn an_explanation_names_only_a_job_of_the_caller() {
    let router = router().await;
    let queue = json!({"partition_by": "account", "strict_order": true});
    assert_eq!(json(&router, "PUT", "/v1/queues/in-line", queue).await.0, 201);
    let job_type = json!({"queue": "in-line"});
    assert_eq!(json(&router, "PUT", "/v1/job-types/post", job_type).await.0, 201);
    let job = json!({"data": 1, "attributes": {"account": "a"}});
    for (id, token, run_at) in [
        ("secret", OTHER, "2020-01-01T00:00:00Z"),
        ("mine", SHOP, "2099-01-01T00:00:00Z"),
        ("later", SHOP, "2099-01-01T00:00:00Z"),
    ] {
        let mut job = job.clone();
        job["run_at"] = json!(run_at);
        let path = format!("/v1/jobs/post/{id}");
        let (status, body) = asked(&router, token, ("PUT", &path), job).await;
        assert_eq!(status, 201, "{body}");
    }
    let now = json!({"run_at": "2020-01-01T00:00:00Z"});
    asked(&router, SHOP, ("PATCH", "/v1/jobs/post/mine"), now.clone()).await;
    let explained =
        |token| asked(&router, token, ("GET", "/v1/jobs/post/mine/explain"), Value::Null);
    let (status, hidden) = explained(SHOP).await;
    assert_eq!((status, &hidden["held_by"]), (200, &json!({"kind": "order"})));
    assert!(!hidden.to_string().contains("secret"), "{hidden}");
    let (_, shown) = explained(READER).await;
    assert_eq!(shown["held_by"]["name"], "secret");

    let cancelled = asked(&router, OTHER, ("DELETE", "/v1/jobs/post/secret"), Value::Null).await;
    assert_eq!(cancelled.0, 200);
    asked(&router, SHOP, ("PATCH", "/v1/jobs/post/later"), now).await;
    let path = "/v1/jobs/post/later/explain";
    let (_, own) = asked(&router, SHOP, ("GET", path), Value::Null).await;
    assert_eq!(own["held_by"]["name"], "mine", "{own}");
}

#[test]
fn an_outline_has_no_checkpoint() {
    let mut job = job("a").build();
    let bytes = "\"secret\"".into();
    job.life.checkpoint = Some(ResultBody { encoding: Encoding::Json, bytes, object: None });
    let outline = JobView::outline(&job, Timestamp::EPOCH, Encoding::Json);
    let shown = serde_json::to_string(&outline).unwrap();
    assert!(!shown.contains("secret") && !shown.contains("checkpoint"), "{shown}");
}
