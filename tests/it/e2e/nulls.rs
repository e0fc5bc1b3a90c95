//! Null in requests: it is the default of a field, in a whole resource and in a patch.

use serde_json::{Value, json};

use super::{api::ApiAnswer, serve::Tidegate, wait::until, wrong_lists::ANYTHING};

/// `body` with null in every documented field that it lacks and that is not required, of every
/// object in it. `schema` is that of the body.
pub fn with_nulls(document: &Value, schema: &Value, body: &Value) -> Value {
    let schema = match schema["$ref"].as_str() {
        Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema,
    };
    match body {
        Value::Array(items) => {
            items.iter().map(|item| with_nulls(document, &schema["items"], item)).collect()
        }
        Value::Object(fields) => {
            let mut fields = fields.clone();
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                if ANYTHING.contains(&name.as_str()) {
                    continue;
                }
                match fields.get_mut(name) {
                    Some(value) => *value = with_nulls(document, schema, value),
                    None if required.contains(&json!(name)) => {}
                    None => {
                        fields.insert(name.clone(), Value::Null);
                    }
                }
            }
            Value::Object(fields)
        }
        other => other.clone(),
    }
}

/// The status of an answer, and what it says without what differs between two resources.
fn shown(answer: &ApiAnswer) -> (u16, Value) {
    let mut value = answer.value();
    let Some(fields) = value.as_object_mut() else { return (answer.status, value) };
    for own in
        ["name", "id", "version", "status", "next", "instance", "created_at", "due_at", "run_at"]
    {
        fields.remove(own);
    }
    (answer.status.min(201), value)
}

/// Checks for each field of `whole` that a resource has the same without it, with null in it, and
/// after a patch with null.
async fn check(tide: &Tidegate, path: &str, whole: &Value) {
    for name in whole.as_object().unwrap().keys() {
        let mut absent = whole.clone();
        absent.as_object_mut().unwrap().remove(name);
        let mut null = whole.clone();
        null[name] = Value::Null;
        let ok = |answer: &ApiAnswer| (answer.status / 100).min(4);
        let without = tide.put(&format!("{path}{name}-1"), absent).await;
        let with_null = tide.put(&format!("{path}{name}-2"), null).await;
        assert_eq!(shown(&with_null), shown(&without), "PUT {path} with {name}: null");
        let patched = format!("{path}{name}-3");
        tide.put(&patched, whole.clone()).await.is(201);
        let patch = tide.patch(&patched, json!({ name: null })).await;
        assert_eq!(ok(&patch), ok(&without), "PATCH {path} with {name}: null");
        if ok(&without) == 2 {
            assert_eq!(shown(&patch).1, shown(&without).1, "PATCH {path} with {name}: null");
        }
    }
}

#[tokio::test]
async fn null_is_the_default_in_put_and_in_patch() {
    let tide = Tidegate::start().await;
    let window = json!([{"from": "08:00", "to": "17:00"}]);
    let queue = json!({
        "concurrency": 3, "order": "priority", "order_step_seconds": 5, "ageing_seconds": 9,
        "partition_by": "region",
        "constraints": [{"name": "c", "match": {"type": "a"}, "per": "region", "concurrency": 2}],
    });
    check(&tide, "/v1/queues/", &queue).await;
    tide.queue("q", json!({})).await;
    let job_type = json!({
        "queue": "q", "delivery": "at_least_once", "max_attempts": 4, "concurrency": 2,
        "timeout_seconds": 7, "response_timeout_seconds": 6, "lease_seconds": 5,
        "deadline_seconds": 90, "retry": {"strategy": "exponential", "config": {"base_seconds": 2}},
        "priority": 9, "weight": 2, "attributes": {"region": "/region"}, "windows": window,
        "keep_result": "once", "retention_seconds": 60, "hold_slot_until": "report",
        "start": "claim", "on_response_timeout": "fail", "callback_url": "https://example.com/",
        "headers": {"x-a": "b"},
        "target": {"url": "https://example.com/work", "headers": {"x": "y"}},
    });
    check(&tide, "/v1/job-types/", &job_type).await;
    tide.job_type("t", json!({"priority": 77, "windows": [{"from": "01:00", "to": "23:00"}]}))
        .await;
    let options = json!({
        "priority": 9, "weight": 2, "critical": true, "timeout_seconds": 7, "deadline_seconds": 90,
        "max_attempts": 4, "retry": {"strategy": "exponential"}, "attributes": {"a": 1},
        "unique": {"key": "k", "while": "live"}, "keep_result": "once", "headers": {"x-a": "b"},
        "callback_url": "https://example.com/", "windows": window,
    });
    let mut schedule = json!({
        "type": "t", "cron": "0 3 * * *", "tz": "Europe/Berlin", "paused": true,
        "starts_at": "2040-01-01T00:00:00Z", "ends_at": "2041-01-01T00:00:00Z", "missed": "all",
        "max_missed": 5, "expires_after_seconds": 9, "data": {"n": null},
    });
    schedule.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
    check(&tide, "/v1/schedules/", &schedule).await;
    // Options of jobs that a patch can change, and those that only an enqueue has.
    let job = json!({
        "data": {"n": null}, "run_at": "2040-01-01T00:00:00Z", "expires_at": "2041-01-01T00:00:00Z",
        "priority": 9, "windows": [{"from": "08:00", "to": "17:00"}],
    });
    let mut whole = job.clone();
    whole.as_object_mut().unwrap().remove("data");
    for name in whole.as_object().unwrap().keys() {
        let mut absent = job.clone();
        absent.as_object_mut().unwrap().remove(name);
        let without = tide.put(&format!("/v1/jobs/t/{name}-1"), absent).await;
        let mut null = job.clone();
        null[name] = Value::Null;
        let with_null = tide.put(&format!("/v1/jobs/t/{name}-2"), null).await;
        assert_eq!(shown(&with_null), shown(&without), "PUT a job with {name}: null");
        let path = format!("/v1/jobs/t/{name}-3");
        tide.put(&path, job.clone()).await.is(201);
        let patch = tide.patch(&path, json!({ name: null })).await;
        patch.is(200);
        assert_eq!(shown(&patch).1, shown(&without).1, "PATCH a job with {name}: null");
    }
    let (first, patched) = (tide.job("run_at-1").await, tide.job("run_at-3").await);
    for job in [&first, &patched] {
        assert!(job["run_at"].as_str().unwrap() < "2039", "{job}");
    }
    // A replay has what an enqueue without the field has.
    let path = "/v1/jobs/t/replayed";
    let mut old = json!({"data": 1});
    old.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
    tide.put(path, old).await.is(201);
    tide.delete(path).await.is(200);
    let nulls = json!({
        "priority": null, "weight": null, "attributes": null, "windows": null, "expires_at": null,
    });
    let replayed = tide.post(&format!("{path}/replay"), nulls).await.is(201);
    let plain = tide.post("/v1/jobs", json!({"type": "t", "data": 1})).await.is(201);
    for name in ["priority", "weight", "attributes", "windows", "expires_at"] {
        assert_eq!(replayed[name], plain[name], "{name}");
    }
}

#[tokio::test]
async fn null_in_a_bulk_change_is_the_value_of_each_job_s_type() {
    let tide = Tidegate::start().await;
    let window = json!([{"from": "10:00", "to": "11:00"}]);
    tide.job_type("a", json!({"priority": 7, "windows": window})).await;
    tide.job_type("b", json!({"priority": 8})).await;
    for kind in ["a", "b"] {
        let job = json!({"priority": 3, "windows": [], "delay_seconds": 600, "data": null});
        tide.put(&format!("/v1/jobs/{kind}/{kind}1"), job).await.is(201);
    }
    let patch = json!({"all": true, "patch": {"priority": null, "windows": null}});
    let operation = tide.post("/v1/jobs/patch", patch).await.is(202)["operation"].clone();
    let path = format!("/v1/operations/{}", operation["id"].as_str().unwrap());
    until(|| async {
        let operation = tide.get(&path).await.is(200)["operation"].clone();
        (operation["state"] == "done" && operation["done"] == 2, operation)
    })
    .await;
    let (a, b) = (tide.job("a1").await, tide.job("b1").await);
    assert_eq!((&a["priority"], &a["windows"][0]["from"]), (&json!(7), &json!("10:00")), "{a}");
    assert_eq!((&b["priority"], &b["windows"]), (&json!(8), &Value::Null), "{b}");
}
