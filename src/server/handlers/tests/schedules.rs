//! The routes of schedules.

use serde_json::{Value, json};

use super::{
    ask,
    live::{ALL, MSGPACK, json, router},
};

const NEVER_NOW: &str = "0 0 29 2 *";

#[tokio::test]
async fn a_schedule_is_put_shown_and_patched() {
    let router = router().await;
    let put = json!({
        "type": "invoice", "cron": NEVER_NOW, "tz": "Europe/Berlin", "data": {"n": 1},
        "priority": 5, "missed": "all",
    });
    let (answer, body) = ask(&router, "PUT", "/v1/schedules/leap", &[ALL], put.to_string()).await;
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["etag"]),
        (201, &"\"v1\"".parse().unwrap())
    );
    let shown: Value = serde_json::from_slice(&body).unwrap();
    for (field, value) in put.as_object().unwrap() {
        assert_eq!(&shown[field], value, "{shown}");
    }
    assert_eq!(
        (&shown["max_missed"], &shown["paused"], &shown["missed_count"]),
        (&json!(100), &json!(false), &json!(0))
    );
    let next = shown["next"].as_array().unwrap();
    assert_eq!(next.len(), 10);
    assert!(next[0].as_str().unwrap().ends_with("-02-28T23:00:00.000Z"), "{next:?}");
    for absent in ["last_occurrence", "last_job", "last_error"] {
        assert_eq!(shown.get(absent), Some(&Value::Null));
    }

    let (status, patched) =
        json(&router, "PATCH", "/v1/schedules/leap", json!({"priority": null, "data": {"m": 2}}))
            .await;
    assert_eq!(
        (status, &patched["data"], patched.get("priority"), &patched["version"]),
        (200, &json!({"m": 2}), None, &json!(2))
    );
    let (_, kept) = json(&router, "PATCH", "/v1/schedules/leap", json!({"tz": "UTC"})).await;
    assert_eq!(
        (&kept["data"], &kept["tz"], &kept["missed"]),
        (&json!({"m": 2}), &json!("UTC"), &json!("all"))
    );
    let (_, nulled) = json(&router, "PATCH", "/v1/schedules/leap", json!({"data": null})).await;
    assert_eq!(nulled["data"], Value::Null);
}

#[tokio::test]
async fn a_schedule_is_guarded_by_its_etag_and_deleted() {
    let router = router().await;
    let put = json!({"type": "invoice", "cron": NEVER_NOW});
    json(&router, "PUT", "/v1/schedules/leap", put.clone()).await;
    for priority in [1, 2, 3] {
        let patch = json!({"priority": priority});
        assert_eq!(json(&router, "PATCH", "/v1/schedules/leap", patch).await.0, 200);
    }
    let (stale, _) =
        ask(&router, "PUT", "/v1/schedules/leap", &[ALL, ("if-match", "\"v1\"")], put.to_string())
            .await;
    assert_eq!(stale.status(), 412);
    let (stale, _) =
        ask(&router, "DELETE", "/v1/schedules/leap", &[ALL, ("if-match", "\"v3\"")], "").await;
    assert_eq!(stale.status(), 412);
    let (put_again, _) =
        ask(&router, "PUT", "/v1/schedules/leap", &[ALL, ("if-match", "\"v4\"")], put.to_string())
            .await;
    assert_eq!(put_again.status(), 200);
    assert_eq!(json(&router, "DELETE", "/v1/schedules/leap", Value::Null).await.0, 204);
    for (method, path) in [
        ("GET", "leap"),
        ("DELETE", "leap"),
        ("PATCH", "leap"),
        ("POST", "leap/pause"),
        ("POST", "leap/run"),
    ] {
        let body = if method == "PATCH" { json!({}) } else { Value::Null };
        let (status, problem) = json(&router, method, &format!("/v1/schedules/{path}"), body).await;
        assert_eq!(
            (status, &problem["code"]),
            (404, &json!("schedule_not_found")),
            "{method} {path}"
        );
    }
}

#[tokio::test]
async fn data_is_kept_byte_for_byte_in_both_encodings() {
    let router = router().await;
    let text = r#"{"n":1.0e2,  "s":"\u00e9"}"#;
    let put = format!(r#"{{"type":"invoice","cron":"{NEVER_NOW}","data":{text}}}"#);
    let (_, body) = ask(&router, "PUT", "/v1/schedules/a", &[ALL], put).await;
    assert!(String::from_utf8(body).unwrap().contains(text));
    let (_, body) =
        ask(&router, "GET", "/v1/schedules/a", &[ALL, ("accept", "application/msgpack")], "").await;
    let value: Value = rmp_serde::from_slice(&body).unwrap();
    assert_eq!(
        (&value["data"], &value["cron"], &value["name"]),
        (&json!({"n": 100.0, "s": "é"}), &json!(NEVER_NOW), &json!("a"))
    );

    // {"type": "invoice", "every_seconds": 31536000, "data": binary 01 02}
    let span = [&[0xad][..], b"every_seconds", &[0xce, 0x01, 0xe1, 0x33, 0x80]].concat();
    let sent = [
        &[0x83, 0xa4][..],
        b"type",
        &[0xa7],
        b"invoice",
        &span,
        &[0xa4],
        b"data",
        &[0xc4, 2, 1, 2],
    ]
    .concat();
    let (made, body) = ask(&router, "PUT", "/v1/schedules/b", &[ALL, MSGPACK], sent).await;
    assert_eq!(made.status(), 201, "{}", String::from_utf8_lossy(&body));
    assert!(body.windows(4).any(|bytes| bytes == [0xc4, 2, 1, 2]));
    let (_, value) = json(&router, "GET", "/v1/schedules/b", Value::Null).await;
    assert_eq!(
        (&value["data"], &value["every_seconds"]),
        (&json!({"$binary": "AQI="}), &json!(31_536_000))
    );
}

#[tokio::test]
async fn a_wrong_field_is_named() {
    let router = router().await;
    for (body, status, code, field) in [
        (json!({"cron": NEVER_NOW}), 400, "invalid_field", Some("type")),
        (json!({"type": "invoice"}), 400, "invalid_schedule", Some("cron")),
        (json!({"type": "invoice", "cron": "* * *"}), 400, "invalid_field", Some("cron")),
        (
            json!({"type": "invoice", "cron": NEVER_NOW, "tz": "Europe/Berlen"}),
            400,
            "invalid_field",
            Some("tz"),
        ),
        (
            json!({"type": "invoice", "every_seconds": 0.5}),
            400,
            "invalid_schedule",
            Some("every_seconds"),
        ),
        (
            json!({"type": "invoice", "every_seconds": 5, "crn": 1}),
            400,
            "unknown_field",
            Some("crn"),
        ),
        (
            json!({"type": "invoice", "every_seconds": 5, "missed": "some"}),
            400,
            "invalid_field",
            Some("missed"),
        ),
        (
            json!({"type": "invoice", "every_seconds": 5, "run_at": "2026-01-01T00:00:00Z"}),
            400,
            "unknown_field",
            Some("run_at"),
        ),
        (
            json!({"type": "invoice", "every_seconds": 5, "max_attempts": 0}),
            400,
            "invalid_max_attempts",
            Some("max_attempts"),
        ),
        (
            json!({
                "type": "invoice", "every_seconds": 5, "windows": [{"from": "08:00", "too": "1"}],
            }),
            400,
            "unknown_field",
            Some("windows[0].too"),
        ),
        (json!({"type": "nothing", "every_seconds": 5}), 404, "job_type_not_found", None),
        (
            json!({"type": "invoice", "every_seconds": 5, "data": "x".repeat(1000)}),
            413,
            "data_too_large",
            Some("data"),
        ),
    ] {
        let (got, problem) = json(&router, "PUT", "/v1/schedules/x", body.clone()).await;
        assert_eq!(
            (got, problem["code"].as_str(), problem["field"].as_str()),
            (status, Some(code), field),
            "{body} {problem}"
        );
    }
    assert_eq!(
        json(&router, "GET", "/v1/schedules", Value::Null).await.1,
        json!({"schedules": []}),
        "nothing was stored"
    );
}

#[tokio::test]
async fn schedules_come_in_pages_by_name() {
    let router = router().await;
    for name in ["c", "a", "b"] {
        json(
            &router,
            "PUT",
            &format!("/v1/schedules/{name}"),
            json!({"type": "invoice", "cron": NEVER_NOW}),
        )
        .await;
    }
    let names = |page: &Value| {
        page["schedules"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].clone())
            .collect::<Vec<_>>()
    };
    let (_, first) = json(&router, "GET", "/v1/schedules?limit=2", Value::Null).await;
    assert_eq!((names(&first), &first["next_cursor"]), (vec![json!("a"), json!("b")], &json!("b")));
    let (_, last) = json(&router, "GET", "/v1/schedules?limit=2&cursor=b", Value::Null).await;
    assert_eq!((names(&last), last.get("next_cursor")), (vec![json!("c")], None));
    assert_eq!(json(&router, "GET", "/v1/schedules?limit=0", Value::Null).await.0, 400);
}

#[tokio::test]
async fn a_schedule_is_paused_resumed_and_run_on_request() {
    let router = router().await;
    json(
        &router,
        "PUT",
        "/v1/schedules/leap",
        json!({"type": "invoice", "cron": NEVER_NOW, "data": [7]}),
    )
    .await;
    let (status, paused) = json(&router, "POST", "/v1/schedules/leap/pause", Value::Null).await;
    assert_eq!((status, &paused["paused"], &paused["next"]), (200, &json!(true), &json!([])));

    let run = async |key: &'static str| {
        let (answer, body) =
            ask(&router, "POST", "/v1/schedules/leap/run", &[ALL, ("idempotency-key", key)], "")
                .await;
        let job: Value = serde_json::from_slice(&body).unwrap();
        (answer.status().as_u16(), job)
    };
    let (status, job) = run("one").await;
    assert_eq!(
        (status, &job["data"], &job["type"], &job["state"]),
        (201, &json!([7]), &json!("invoice"), &json!("scheduled")),
        "{job}"
    );
    let (status, again) = run("one").await;
    assert_eq!((status, &again["id"], &again["data"]), (200, &job["id"], &json!([7])));
    assert_eq!(run("two").await.0, 201);

    let (_, resumed) = json(&router, "POST", "/v1/schedules/leap/resume", Value::Null).await;
    assert_eq!(
        (&resumed["paused"], resumed["next"].as_array().unwrap().len()),
        (&json!(false), 10)
    );

    json(&router, "PATCH", "/v1/schedules/leap", json!({"critical": true})).await;
    let (refused, _) =
        ask(&router, "POST", "/v1/schedules/leap/run", &[("authorization", "Bearer enqueue")], "")
            .await;
    assert_eq!(refused.status(), 403, "a critical job needs the scope enqueue:critical");
    let (made, _) = ask(
        &router,
        "POST",
        "/v1/schedules/leap/run",
        &[("authorization", "Bearer enqueue,enqueue:critical")],
        "",
    )
    .await;
    assert_eq!(made.status(), 201);
}
