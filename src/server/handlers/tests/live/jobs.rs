//! Jobs: enqueued alone and in batches, changed, replayed.

use std::sync::Arc;

use serde_json::{Value, json};
use tidegate_engine::memory::MemoryStore;

use super::{super::ask, ALL, MSGPACK, json, router, router_on};

#[tokio::test]
async fn data_is_verbatim_or_converted_to_the_other_encoding() {
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
async fn a_wrong_job_does_not_stop_its_batch() {
    let router = router().await;
    let jobs = json!([
        {"type": "invoice", "data": 1, "id": "a"}, {"type": "invoice", "data": 2, "wieght": 3},
        {"type": "nothing", "data": 3}, {"type": "invoice"},
        {"type": "invoice", "data": 1, "id": "a"}, {"type": "invoice", "data": "x".repeat(1000)},
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
    let (status, problem) = json(&router, "POST", "/v1/jobs/j1/replay", Value::Null).await;
    assert_eq!((status, &problem["code"]), (409, &json!("already_replayed")));
    let (status, again) = json(&router, "POST", "/v1/jobs/j1/replay", json!({"again": true})).await;
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
            let other = started(r#"{"all":true}"#).await;
            assert_eq!((other.0, other.2), (409, json!("idempotency_key_reused")), "{path}");
        }
    }
}

#[tokio::test]
async fn an_unreadable_job_is_named_by_its_route_and_by_lists() {
    let store = Arc::new(MemoryStore::new());
    let router = router_on(Arc::clone(&store)).await;
    for id in ["a", "b", "c"] {
        json(&router, "POST", "/v1/jobs", json!({"type": "invoice", "id": id, "data": 1})).await;
    }
    store.damage_job(&"b".parse().unwrap());
    let (status, problem) = json(&router, "GET", "/v1/jobs/b", Value::Null).await;
    assert_eq!((status, &problem["code"]), (500, &json!("job_unreadable")));
    assert!(problem["detail"].as_str().unwrap().contains("job b cannot be read: "), "{problem}");
    let (_, page) = json(&router, "GET", "/v1/jobs", Value::Null).await;
    let ids: Vec<&Value> = page["jobs"].as_array().unwrap().iter().map(|job| &job["id"]).collect();
    assert_eq!((ids.len(), &page["unreadable"]), (2, &json!(["b"])));
}

#[tokio::test]
async fn an_attribute_is_found_by_any_text_of_its_number() {
    let router = router().await;
    for n in [5, 50] {
        let job = json!({"type": "invoice", "data": n, "attributes": {"n": n}});
        assert_eq!(json(&router, "POST", "/v1/jobs", job).await.0, 201);
    }
    for text in ["5", "5.0", "5e0"] {
        for query in [format!("attribute.n={text}"), format!("attribute[n]={text}")] {
            let path = format!("/v1/jobs?{query}");
            let (_, page) = json(&router, "GET", &path, Value::Null).await;
            let found: Vec<_> =
                page["jobs"].as_array().unwrap().iter().map(|job| &job["data"]).collect();
            assert_eq!(found, [&json!(5)], "{query}");
        }
    }
}

#[tokio::test]
async fn an_answer_says_that_a_waiting_job_took_the_request() {
    let router = router().await;
    let unique = |rule: Value| {
        let mut unique = json!({"key": "k", "while": "scheduled"});
        unique.as_object_mut().unwrap().extend(rule.as_object().unwrap().clone());
        unique
    };
    let replace = unique(json!({"on_conflict": "replace"}));
    let debounce = unique(json!({"debounce": {"seconds": 5, "max_seconds": 9}}));
    let job = |data: u8, unique: &Value| json!({"type": "invoice", "data": data, "unique": unique});
    let (status, first) = json(&router, "POST", "/v1/jobs", job(1, &replace)).await;
    assert_eq!((status, first.get("merged")), (201, None));
    let (status, one) = json(&router, "POST", "/v1/jobs", job(2, &replace)).await;
    assert_eq!((status, &one["merged"], &one["data"]), (200, &json!("replaced"), &json!(2)));
    assert_eq!(one["id"], first["id"]);
    let packed = tidegate_core::job::Payload::json(job(3, &debounce).to_string());
    let packed = packed.to_msgpack().unwrap();
    let (_, body) = ask(&router, "POST", "/v1/jobs", &[ALL, MSGPACK], packed).await;
    let two: Value = rmp_serde::from_slice(&body).unwrap();
    assert_eq!((&two["merged"], &two["data"]), (&json!("debounced"), &json!(3)));
    let jobs = json!({"jobs": [job(4, &debounce), job(5, &unique(json!({})))]});
    let (_, batch) = json(&router, "POST", "/v1/jobs/batch", jobs).await;
    let results = &batch["results"];
    let merged = |index: usize| (&results[index]["status"], results[index]["job"].get("merged"));
    assert_eq!(merged(0), (&json!(200), Some(&json!("debounced"))));
    assert_eq!(merged(1), (&json!(200), None), "{batch}");
    let path = format!("/v1/jobs/{}", first["id"].as_str().unwrap());
    let (_, shown) = json(&router, "GET", &path, Value::Null).await;
    assert_eq!((&shown["data"], shown.get("merged")), (&json!(4), None));
    assert_eq!(shown["unique"], unique(json!({})), "the rule is the request's");
    let both =
        unique(json!({"on_conflict": "replace", "debounce": {"seconds": 5, "max_seconds": 9}}));
    let (status, refused) = json(&router, "POST", "/v1/jobs", job(6, &both)).await;
    assert_eq!((status, &refused["field"]), (400, &json!("unique.on_conflict")));
}
