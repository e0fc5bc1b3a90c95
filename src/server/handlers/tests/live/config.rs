//! Named configurations: put, patch, delete, and the `ETag` that guards them.

use serde_json::{Value, json};

use super::{super::ask, ALL, json, router};

#[tokio::test]
async fn configuration_is_replaced_and_patched_under_its_etag() {
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
    assert!(queue["status"]["depth"].is_object() && queue["status"]["held"].is_array(), "{queue}");
    let (gone, _) = ask(&router, "DELETE", "/v1/queues/mail", &[ALL], "").await;
    assert_eq!(gone.status(), 204);
}
