//! Events, the triggers that handle them, and dead letters.

use axum::Router;
use serde_json::{Value, json};

use super::{super::ask, ALL, json, router};

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
    let rule = json!({
        "filter": {"type": "order"},
        "enqueue": {"type": "invoice", "correlation_key": {"$expr": "data.id"}},
    });
    assert_eq!(json(&router, "PUT", "/v1/triggers/orders", rule).await.0, 201);
    router
}

#[tokio::test]
async fn events_are_ingested_in_every_mode() {
    let router = with_trigger().await;
    let action = |answer: &Value| answer["outcomes"][0]["action"].clone();
    let (status, answer) = send(&router, &[STRUCTURED], order("1").to_string()).await;
    assert_eq!(
        (status, action(&answer), &answer["source"]),
        (200, json!("enqueued"), &json!("/shop"))
    );
    let job = answer["outcomes"][0]["job"].as_str().unwrap().to_owned();
    let (_, shown) = json(&router, "GET", &format!("/v1/jobs/{job}"), Value::Null).await;
    assert_eq!((&shown["correlation_key"], &shown["data"]), (&json!("1"), &json!({"id": "1"})));
    assert_eq!(
        action(&send(&router, &[STRUCTURED], order("1").to_string()).await.1),
        "already_enqueued"
    );

    let batch = json!([order("2"), {"id": "3"}, order("1")]);
    let (status, answer) = send(&router, &[BATCH], batch.to_string()).await;
    let results = answer["results"].as_array().unwrap();
    assert_eq!(
        (status, &results[0]["status"], action(&results[0]["event"])),
        (200, &json!(200), json!("enqueued"))
    );
    assert_eq!(
        (&results[1]["status"], &results[1]["error"]["field"]),
        (&json!(400), &json!("specversion"))
    );
    assert_eq!(action(&results[2]["event"]), "already_enqueued");
    assert_eq!(send(&router, &[BATCH], "[]").await, (200, json!({"results": []})));

    let binary = [
        ("ce-specversion", "1.0"),
        ("ce-id", "4"),
        ("ce-source", "/shop"),
        ("ce-type", "order"),
        ("content-type", "application/json"),
    ];
    let (status, answer) = send(&router, &binary, r#"{"id": "four"}"#).await;
    assert_eq!((status, action(&answer)), (200, json!("enqueued")));
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
    assert_eq!(action(&value), "enqueued");
}

#[tokio::test]
async fn an_invalid_event_is_refused_by_field_and_changes_nothing() {
    let router = with_trigger().await;
    let without = |name: &str| {
        let mut event = order("x");
        event.as_object_mut().unwrap().remove(name);
        event.to_string()
    };
    let mut large = order("x");
    large["data"] = "x".repeat(300_000).into();
    let many = format!("[{}]", vec!["1"; 1001].join(","));
    for (headers, body, status, code, field) in [
        (&[STRUCTURED][..], without("id"), 400, "invalid_field", json!("id")),
        (&[STRUCTURED], without("type"), 400, "invalid_field", json!("type")),
        (&[STRUCTURED], "{".into(), 400, "invalid_body", Value::Null),
        (&[STRUCTURED], "[]".into(), 400, "invalid_body", Value::Null),
        (&[STRUCTURED], String::new(), 400, "invalid_body", Value::Null),
        (&[STRUCTURED], large.to_string(), 413, "too_large", json!("event")),
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
        let (got, problem) = send(&router, headers, body).await;
        assert_eq!(
            (got, &problem["code"], problem.get("field").cloned().unwrap_or_default()),
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
    let rule = json!({
        "filter": {"type": "order"},
        "enqueue": {"type": "invoice", "priority": {"$expr": "data.id"}},
    });
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
    assert_eq!(json(&router, "DELETE", "/v1/triggers/orders", Value::Null).await.0, 204);
    assert_eq!(json(&router, "GET", "/v1/triggers/orders", Value::Null).await.0, 404);
}

#[tokio::test]
async fn a_dead_letter_is_replayed_by_the_corrected_trigger() {
    let router = with_trigger().await;
    let rule = json!({"enqueue": {"type": "invoice", "priority": {"$expr": "data.id"}}});
    json(&router, "PUT", "/v1/triggers/orders", rule).await;
    // The trigger cannot handle this event: it is a dead letter until the trigger is corrected.
    let (_, answer) = send(&router, &[STRUCTURED], order("seven").to_string()).await;
    let letter = answer["outcomes"][0]["letter"].as_str().unwrap().to_owned();
    let (_, page) = json(&router, "GET", "/v1/dead-letters?trigger=orders", Value::Null).await;
    assert_eq!(
        (&page["dead_letters"][0]["id"], &page["dead_letters"][0]["event"]["data"]),
        (&json!(letter), &json!({"id": "seven"}))
    );
    let (status, answer) = json(&router, "POST", "/v1/dead-letters/replay", Value::Null).await;
    assert_eq!((status, answer), (200, json!({"replayed": 0, "remaining": 1})));
    let corrected =
        json!({"enqueue": {"type": "invoice", "priority": {"$expr": "length(data.id)"}}});
    json(&router, "PUT", "/v1/triggers/orders", corrected).await;
    let (status, answer) =
        json(&router, "POST", &format!("/v1/dead-letters/{letter}/replay"), Value::Null).await;
    assert_eq!((status, &answer["action"]), (200, &json!("enqueued")), "{answer}");
    assert_eq!(
        json(&router, "GET", &format!("/v1/dead-letters/{letter}"), Value::Null).await.0,
        404
    );
    assert_eq!(
        json(&router, "DELETE", &format!("/v1/dead-letters/{letter}"), Value::Null).await.0,
        404
    );
}

#[tokio::test]
async fn a_trigger_shows_what_it_did() {
    let router = with_trigger().await;
    let status = async || {
        let (_, shown) = json(&router, "GET", "/v1/triggers/orders", Value::Null).await;
        shown["status"].clone()
    };
    let new = status().await;
    assert_eq!((&new["matched"], &new["last_at"]), (&json!(0), &Value::Null));
    send(&router, &[STRUCTURED], order("1").to_string()).await;
    send(&router, &[STRUCTURED], order("1").to_string()).await;
    let mut unmapped = order("2");
    unmapped["data"] = json!({"id": [1]});
    send(&router, &[STRUCTURED], unmapped.to_string()).await;
    let mut other = order("3");
    other["type"] = "refund".into();
    send(&router, &[STRUCTURED], other.to_string()).await;
    let shown = status().await;
    let counts = ["matched", "enqueued", "dead_letters"].map(|name| shown[name].as_u64().unwrap());
    assert_eq!(counts, [3, 1, 1], "{shown}");
    let actions: Vec<_> =
        shown["recent"].as_array().unwrap().iter().map(|event| event["action"].clone()).collect();
    assert_eq!(actions, ["dead_lettered", "already_enqueued", "enqueued"]);
    let event = json!({"id": "2", "source": "/shop", "type": "order"});
    assert_eq!(
        (&shown["recent"][0]["event"], &shown["last_at"]),
        (&event, &shown["recent"][0]["at"])
    );
    let (_, listed) = json(&router, "GET", "/v1/triggers", Value::Null).await;
    assert_eq!(listed["triggers"][0]["status"]["matched"], 3);
    for (events, shown) in [("0", 0), ("2", 2), ("200", 3)] {
        let path = format!("/v1/triggers/orders?events={events}");
        let (_, trigger) = json(&router, "GET", &path, Value::Null).await;
        let status = &trigger["status"];
        assert_eq!(status["recent"].as_array().unwrap().len(), shown);
        assert!(status["last_at"].is_string(), "{status}");
    }
    for events in ["201", "-1", "x"] {
        let path = format!("/v1/triggers/orders?events={events}");
        let (code, problem) = json(&router, "GET", &path, Value::Null).await;
        assert_eq!((code, &problem["field"]), (400, &json!("events")));
    }
}

#[tokio::test]
async fn a_trigger_is_tested_without_effect() {
    let router = with_trigger().await;
    let test = async |headers: &[(&str, &str)], event: &Value| {
        let headers: Vec<_> = [ALL].into_iter().chain(headers.iter().copied()).collect();
        let path = "/v1/triggers/orders/test";
        let (answer, body) = ask(&router, "POST", path, &headers, event.to_string()).await;
        (answer.status().as_u16(), serde_json::from_slice::<Value>(&body).unwrap())
    };
    let (status, would) = test(&[STRUCTURED], &order("1")).await;
    assert_eq!((status, &would["action"]), (200, &json!("enqueued")), "{would}");
    assert_eq!(
        (&would["job"]["type"], &would["job"]["correlation_key"]),
        (&json!("invoice"), &json!("1"))
    );
    let mut event = order("1");
    event["type"] = "refund".into();
    assert_eq!(test(&[STRUCTURED], &event).await.1, json!({"action": "unmatched"}));
    event["type"] = "order".into();
    event["data"] = json!({"id": [1]});
    let (_, would) = test(&[STRUCTURED], &event).await;
    assert_eq!(would["action"], "dead_lettered");
    assert!(would["reason"].as_str().unwrap().contains("correlation_key"), "{would}");
    let (status, refused) = test(&[BATCH], &json!([order("1")])).await;
    assert_eq!((status, &refused["code"]), (400, &json!("invalid_body")));
    let (status, _) = json(&router, "POST", "/v1/triggers/none/test", order("1")).await;
    assert_eq!(status, 400, "it is no event in this mode");
    let (_, jobs) = json(&router, "GET", "/v1/jobs", Value::Null).await;
    assert_eq!(jobs["jobs"], json!([]), "nothing was enqueued");
}
