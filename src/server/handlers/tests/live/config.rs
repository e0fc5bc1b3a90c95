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

#[tokio::test]
async fn a_dry_run_shows_a_change_and_stores_nothing() {
    let router = router().await;
    let queue = json!({"concurrency": 5, "order": "priority"});
    json(&router, "PUT", "/v1/queues/mail", queue).await;
    let schedule = json!({"type": "invoice", "cron": "0 0 29 2 *"});
    json(&router, "PUT", "/v1/schedules/leap", schedule).await;
    let audited = async || {
        let (_, page) = json(&router, "GET", "/v1/audit", Value::Null).await;
        page["entries"].as_array().unwrap().len()
    };
    let before = audited().await;
    for (path, patch, field) in [
        ("/v1/queues/mail", json!({"concurrency": 6}), "concurrency"),
        ("/v1/job-types/invoice", json!({"max_attempts": 9}), "max_attempts"),
        ("/v1/schedules/leap", json!({"cron": "0 0 1 1 *"}), "cron"),
    ] {
        let (_, stored) = json(&router, "GET", path, Value::Null).await;
        let dry = format!("{path}?dry_run=true");
        let (status, shown) = json(&router, "PATCH", &dry, patch.clone()).await;
        assert_eq!((status, &shown[field]), (200, &patch[field]), "{path}");
        assert_eq!(shown["version"], stored["version"], "{path}");
        assert_eq!(shown["order"], stored["order"], "{path}");
        let (_, after) = json(&router, "GET", path, Value::Null).await;
        assert_eq!((&after[field], &after["version"]), (&stored[field], &stored["version"]));
        let (status, refused) = json(&router, "PATCH", &dry, json!({field: -1})).await;
        assert_eq!(status, 400, "{path}");
        assert!(refused["field"].as_str().unwrap().contains(field), "{refused}");
        let stale = [ALL, ("if-match", "\"v77\"")];
        let (stale, _) = ask(&router, "PATCH", &dry, &stale, patch.to_string()).await;
        assert_eq!(stale.status(), 412, "{path}");
    }
    assert_eq!(audited().await, before);
    let (status, problem) =
        json(&router, "PATCH", "/v1/queues/mail?dry_run=perhaps", json!({})).await;
    assert_eq!((status, &problem["field"]), (400, &json!("dry_run")));
}

#[tokio::test]
async fn a_dry_run_of_a_put_shows_new_and_replaced_settings() {
    let router = router().await;
    json(&router, "PUT", "/v1/queues/mail", json!({"concurrency": 5, "order": "priority"})).await;
    for (path, put, field, default) in [
        ("/v1/queues/mail", json!({"concurrency": 6}), "concurrency", ("order", json!("time"))),
        ("/v1/queues/new", json!({"concurrency": 6}), "concurrency", ("order", json!("time"))),
        ("/v1/job-types/new", json!({"weight": 2}), "weight", ("priority", json!(100))),
    ] {
        let (known, stored) = json(&router, "GET", path, Value::Null).await;
        let dry = format!("{path}?dry_run=true");
        let (status, shown) = json(&router, "PUT", &dry, put.clone()).await;
        assert_eq!((status, &shown[field]), (200, &put[field]), "{path}: {shown}");
        let version = if known == 200 { stored["version"].clone() } else { json!(0) };
        assert_eq!(shown["version"], version, "{path}");
        assert_eq!(shown[default.0], default.1, "{path}: what is absent has its default");
        let (status, after) = json(&router, "GET", path, Value::Null).await;
        assert_eq!((status, &after[field]), (known, &stored[field]), "{path}");
        let (status, refused) = json(&router, "PUT", &dry, json!({field: -1})).await;
        assert_eq!((status, &refused["field"]), (400, &json!(field)), "{path}");
    }
    let path = "/v1/queues/mail?dry_run=true&force=true";
    let (status, problem) = json(&router, "PUT", path, json!({})).await;
    assert_eq!((status, &problem["field"]), (400, &json!("dry_run")));
}

#[tokio::test]
async fn a_route_without_a_dry_run_refuses_it() {
    let router = router().await;
    assert_eq!(json(&router, "PUT", "/v1/queues/mail", json!({})).await.0, 201);
    for (method, path) in [
        ("DELETE", "/v1/queues/mail"),
        ("POST", "/v1/queues/mail/pause"),
        ("POST", "/v1/queues/mail/purge"),
        ("DELETE", "/v1/job-types/invoice"),
        ("PUT", "/v1/triggers/mail"),
    ] {
        let path = format!("{path}?dry_run=true");
        let (status, problem) = json(&router, method, &path, json!({})).await;
        assert_eq!((status, &problem["field"]), (400, &json!("dry_run")), "{method} {path}");
    }
    let (status, queue) = json(&router, "GET", "/v1/queues/mail", Value::Null).await;
    assert_eq!((status, &queue["paused"]), (200, &json!(false)));
    assert_eq!(json(&router, "GET", "/v1/job-types/invoice", Value::Null).await.0, 200);
}

#[tokio::test]
async fn a_dry_run_checks_what_a_change_needs() {
    let router = router().await;
    for (path, patch, code, field) in [
        (
            "/v1/queues/default?dry_run=true",
            json!({"throttler": {"plugin": "none"}}),
            "invalid_field",
            "throttler.plugin",
        ),
        (
            "/v1/job-types/invoice?dry_run=true",
            json!({"queue": "none"}),
            "queue_not_found",
            "queue",
        ),
    ] {
        let (_, problem) = json(&router, "PATCH", path, patch).await;
        assert_eq!((&problem["code"], &problem["field"]), (&json!(code), &json!(field)), "{path}");
    }
}

#[tokio::test]
async fn a_new_schedule_is_previewed_with_its_occurrences() {
    let router = router().await;
    let path = "/v1/schedules/new?dry_run=true";
    let rule = json!({"type": "invoice", "cron": "0 0 29 2 *", "tz": "Europe/Berlin"});
    let (status, shown) = json(&router, "PUT", path, rule).await;
    assert_eq!((status, &shown["version"]), (200, &json!(0)), "{shown}");
    assert_eq!(shown["next"].as_array().unwrap().len(), 10);
    assert_eq!(json(&router, "GET", "/v1/schedules/new", Value::Null).await.0, 404);
    let wrong = json!({"type": "invoice", "cron": "61 * * * *"});
    let (status, problem) = json(&router, "PUT", path, wrong).await;
    assert_eq!((status, &problem["field"]), (400, &json!("cron")));
    let (status, problem) =
        json(&router, "PUT", path, json!({"type": "none", "cron": "* * * * *"})).await;
    assert_eq!((status, &problem["code"]), (404, &json!("job_type_not_found")));
    let both = format!("{path}&force=true");
    let (status, problem) = json(&router, "PUT", &both, json!({})).await;
    assert_eq!((status, &problem["field"]), (400, &json!("dry_run")));
}
