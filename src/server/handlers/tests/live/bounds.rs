//! Tokens that concern only some queues and types, on every route of the document.

use std::sync::Arc;

use axum::Router;
use serde_json::{Value, json};

use super::{super::ask, ALL, router, router_on};
use crate::handlers::{self, openapi};
use tidegate_engine::memory::MemoryStore;

/// Every scope that a token with bounds can have.
const SCOPES: &str = "enqueue enqueue:critical work read";
/// Routes that leave out what is outside the bounds; every other route refuses it.
const FILTERED: [&str; 6] = [
    "list_jobs",
    "list_errors",
    "list_queues",
    "list_job_types",
    "get_overview",
    // It shows the bounds themselves.
    "get_session",
];
/// Routes about the names of workers, which all callers share. A registration for a queue or a type
/// has a test of its own.
const SHARED: [&str; 2] = ["put_worker", "delete_worker"];
/// Routes on which such a token may do something, in an order in which each succeeds once.
const WITHIN: [&str; 19] = [
    "enqueue",
    "put_job",
    "enqueue_batch",
    "get_job_by_id",
    "get_job",
    "list_jobs",
    "list_errors",
    "get_result",
    "explain_job",
    "get_log",
    "patch_job",
    "heartbeat",
    "report",
    "cancel_job",
    "lease",
    "list_job_types",
    "get_job_type",
    "put_worker",
    "delete_worker",
];

async fn asked(router: &Router, bearer: &str, request: (&str, &str, &Value)) -> (u16, String) {
    let (method, path, body) = request;
    let sent = if body.is_null() { String::new() } else { body.to_string() };
    let headers = [("authorization", bearer)];
    let (answer, body) = ask(router, method, path, &headers, sent).await;
    (answer.status().as_u16(), String::from_utf8_lossy(&body).into_owned())
}

async fn by_admin(router: &Router, method: &str, path: &str, body: Value) -> Value {
    let (status, text) = asked(router, ALL.1, (method, path, &body)).await;
    assert!(status < 300, "{method} {path}: {status} {text}");
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

/// A queue and a type of this name, with a waiting, a running and an ended job.
async fn tenant(router: &Router, name: &str) {
    by_admin(router, "PUT", &format!("/v1/queues/{name}"), json!({})).await;
    by_admin(router, "PUT", &format!("/v1/job-types/{name}"), json!({"queue": name})).await;
    for state in ["ended", "running", "waiting"] {
        let path = format!("/v1/jobs/{name}/{name}-{state}");
        by_admin(router, "PUT", &path, json!({"data": format!("of {name}")})).await;
        if state != "waiting" {
            let leased = by_admin(router, "POST", "/v1/leases", json!({"types": [name]})).await;
            assert_eq!(leased["leases"][0]["job"]["id"], format!("{name}-{state}"));
        }
        if state == "ended" {
            let report = json!({"attempt": 1, "status": "succeeded", "result": name});
            by_admin(router, "POST", &path, report).await;
        }
    }
    let schedule = json!({"type": name, "cron": "0 0 1 1 *", "tz": "UTC"});
    by_admin(router, "PUT", &format!("/v1/schedules/{name}"), schedule).await;
    let trigger = json!({"filter": {"type": name}, "enqueue": {"type": name}});
    by_admin(router, "PUT", &format!("/v1/triggers/{name}"), trigger).await;
}

/// The requests of an operation about the resources of a tenant.
fn requests(operation: &str, path: &str, name: &str) -> Vec<(String, Value)> {
    let job = if operation == "replay_job" || operation == "replay_job_by_id" {
        "ended"
    } else if operation == "report" || operation == "heartbeat" {
        "running"
    } else {
        "waiting"
    };
    let path = path.replace("{type}", name).replace("{queue}", name).replace("{number}", "1");
    let path = path.replace("{schedule}", name).replace("{trigger}", name);
    let path = path.replace("{plugin}", "none").replace("{worker}", "none");
    let path = if path.starts_with("/v1/jobs") {
        path.replace("{id}", &format!("{name}-{job}"))
    } else {
        path.replace("{id}", "none")
    };
    let report = json!({
        "id": format!("{name}-running"), "attempt": 1, "status": "failed", "retryable": false,
    });
    let bodies = match operation {
        "enqueue" => vec![json!({"type": name, "data": 1})],
        "put_job" => vec![json!({"data": 1})],
        "enqueue_batch" => vec![json!({"jobs": [{"type": name, "data": 1}]})],
        "lease" => vec![
            json!({"types": [name]}),
            json!({"queue": name}),
            json!({"max": 0, "reports": [report]}),
            json!({"types": [name], "queue": name, "reports": [report]}),
        ],
        "report" => vec![json!({"attempt": 1, "status": "failed", "retryable": false})],
        "heartbeat" => vec![json!({"attempt": 1})],
        "patch_job" => vec![json!({"priority": 1})],
        "list_jobs" | "list_errors" => {
            let queries = ["", &format!("?queue={name}"), &format!("?type={name}")];
            return queries.map(|query| (format!("{path}{query}"), Value::Null)).into();
        }
        // Of both, so that no token with bounds gets a stream, which does not end.
        "stream" => return vec![(format!("{path}?queue={name}&type={name}"), Value::Null)],
        _ => vec![Value::Null],
    };
    bodies.into_iter().map(|body| (path.clone(), body)).collect()
}

/// Everything that a request could have changed.
async fn state(router: &Router) -> Value {
    let mut all = Vec::new();
    for path in [
        "/v1/jobs",
        "/v1/job-types",
        "/v1/schedules",
        "/v1/triggers",
        "/v1/workers",
        "/v1/dead-letters",
    ] {
        all.push(by_admin(router, "GET", path, Value::Null).await);
    }
    // Counts the requests for a lease, also refused ones.
    all.push(json!(
        by_admin(router, "GET", "/v1/queues", Value::Null).await["queues"]
            .as_array()
            .unwrap()
            .iter()
            .map(|queue| [&queue["name"], &queue["paused"], &queue["version"]])
            .collect::<Vec<_>>()
    ));
    all.into()
}

fn operations() -> Vec<(String, String, String)> {
    let document = openapi::generate::document(&handlers::routes());
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let mut schemes = operation["security"].as_array().unwrap().iter();
            if schemes.any(|scheme| !scheme["bearer"].is_null()) {
                let id = operation["operationId"].as_str().unwrap();
                all.push((id.to_owned(), method.to_uppercase(), path.clone()));
            }
        }
    }
    assert!(all.len() > 60, "{all:?}");
    all
}

#[tokio::test]
async fn no_route_reaches_outside_the_bounds_of_a_token() {
    let router = router().await;
    tenant(&router, "mine").await;
    tenant(&router, "other").await;
    let before = state(&router).await;
    for bounds in ["queues=mine", "types=mine", "queues=mine;types=mine", "queues=mine;queues=a"] {
        let bearer = format!("Bearer {SCOPES};{bounds}");
        for (id, method, path) in operations() {
            if SHARED.contains(&&*id) {
                continue;
            }
            for (path, body) in requests(&id, &path, "other") {
                let (status, text) = asked(&router, &bearer, (&method, &path, &body)).await;
                let shown = format!("{bounds}: {method} {path} {body}: {status} {text}");
                let is_refused = status == 403
                    // One answer per item.
                    || (matches!(&*id, "enqueue_batch" | "lease")
                        && text.contains(r#""status":403"#)
                        && !text.contains("of other"));
                let is_filtered = FILTERED.contains(&&*id) && status == 200;
                assert!(is_refused || (is_filtered && !text.contains("other")), "{shown}");
            }
        }
        assert_eq!(state(&router).await, before, "{bounds}");
    }
}

#[tokio::test]
async fn a_token_with_bounds_works_within_them() {
    let operations = operations();
    for bounds in ["queues=mine", "types=mine", "queues=mine;types=mine"] {
        let router = router().await;
        tenant(&router, "mine").await;
        let bearer = format!("Bearer {SCOPES};{bounds}");
        for id in WITHIN {
            let (_, method, path) = operations.iter().find(|(other, ..)| other == id).unwrap();
            for (path, body) in requests(id, path, "mine") {
                // The id of a new job.
                let path = if id == "put_job" { format!("{path}-new") } else { path };
                let (status, text) = asked(&router, &bearer, (method, &path, &body)).await;
                let shown = format!("{bounds}: {method} {path} {body}: {status} {text}");
                assert!(status < 300 && !text.contains("\"code\":"), "{shown}");
            }
        }
        // Without names, only what is within.
        let (status, leased) =
            asked(&router, &bearer, ("POST", "/v1/leases", &json!({"max": 10}))).await;
        assert_eq!(status, 200, "{leased}");
    }
}

#[tokio::test]
async fn a_worker_registers_within_the_bounds_of_its_token() {
    let router = router().await;
    tenant(&router, "mine").await;
    tenant(&router, "other").await;
    for bounds in ["queues=mine", "types=mine", "queues=mine;types=mine"] {
        for (body, expected) in [
            (json!({"capacity": 2}), 200),
            (json!({"types": ["mine"]}), 200),
            (json!({"types": ["mine", "other"]}), 403),
            (json!({"types": ["unknown"]}), 403),
        ] {
            let request = ("PUT", "/v1/workers/w", &body);
            let (status, text) = asked(&router, &format!("Bearer work;{bounds}"), request).await;
            assert_eq!(status, expected, "{bounds}: {body}: {text}");
        }
    }
    for (queue, expected) in [("mine", 200), ("other", 403)] {
        let request = ("PUT", "/v1/workers/w", &json!({"queue": queue}));
        let (status, text) = asked(&router, "Bearer work;queues=mine", request).await;
        assert_eq!(status, expected, "{queue}: {text}");
    }
}

#[tokio::test]
async fn a_lease_without_names_gives_only_jobs_within() {
    for bounds in ["queues=mine", "types=mine", "queues=mine;types=mine"] {
        let router = router().await;
        tenant(&router, "other").await;
        tenant(&router, "mine").await;
        let bearer = format!("Bearer work;{bounds}");
        let request = json!({"max": 10});
        let (status, text) = asked(&router, &bearer, ("POST", "/v1/leases", &request)).await;
        let leased: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((status, leased["leases"].as_array().unwrap().len()), (200, 1), "{text}");
        assert_eq!(leased["leases"][0]["job"]["id"], "mine-waiting");
    }
}

#[tokio::test]
async fn the_token_of_an_attempt_works_outside_the_bounds() {
    let router = router().await;
    tenant(&router, "other").await;
    let leased = by_admin(&router, "POST", "/v1/leases", json!({"types": ["other"]})).await;
    let lease = &leased["leases"][0];
    let report = json!({"id": lease["job"]["id"], "attempt": lease["attempt"],
        "token": lease["token"], "status": "succeeded"});
    let request = json!({"max": 0, "reports": [report]});
    let bearer = "Bearer work;queues=mine";
    let (status, text) = asked(&router, bearer, ("POST", "/v1/leases", &request)).await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &answer["reports"][0]["status"]), (200, &json!(200)), "{text}");
}

#[tokio::test]
async fn an_enqueuer_reads_the_result_of_its_job() {
    let router = router().await;
    tenant(&router, "mine").await;
    for path in [
        "/v1/jobs/mine-ended",
        "/v1/jobs/mine/mine-ended",
        "/v1/jobs/mine/mine-ended/result",
        "/v1/jobs/mine/mine-waiting/explain",
    ] {
        let (status, text) = asked(&router, "Bearer enqueue", ("GET", path, &Value::Null)).await;
        assert_eq!(status, 200, "{path}: {text}");
        let (status, _) = asked(&router, "Bearer work", ("GET", path, &Value::Null)).await;
        assert_eq!(status, 403, "{path}");
    }
    let (status, _) = asked(&router, "Bearer enqueue", ("GET", "/v1/jobs", &Value::Null)).await;
    assert_eq!(status, 403, "the list is for readers");
}

/// The pages of a list with one job each: the ids of all jobs.
async fn listed(router: &Router, bearer: &str, filter: &str) -> Vec<String> {
    let (mut ids, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/jobs?limit=1{filter}{cursor}");
        let (status, text) = asked(router, bearer, ("GET", &path, &Value::Null)).await;
        assert!(status == 200 && !text.contains("other"), "{path}: {status} {text}");
        let page: Value = serde_json::from_str(&text).unwrap();
        let jobs = page["jobs"].as_array().unwrap();
        ids.extend(jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => {
                assert_eq!(jobs.len(), 1, "{path}: a page before the last is full: {text}");
                cursor = format!("&cursor={next}");
            }
            None => return ids,
        }
    }
}

#[tokio::test]
async fn pages_depend_on_no_job_outside_the_bounds() {
    let router = router().await;
    tenant(&router, "mine").await;
    tenant(&router, "other").await;
    for n in 0..3 {
        for name in ["mine", "other"] {
            let path = format!("/v1/jobs/{name}/{name}-{n}");
            let job = json!({"data": n, "attributes": {"of": name}});
            by_admin(&router, "PUT", &path, job).await;
        }
    }
    for bounds in ["queues=mine", "types=mine", "queues=mine;queues=a", "types=mine;types=a"] {
        let bearer = format!("Bearer read;{bounds}");
        let mut all = listed(&router, &bearer, "").await;
        all.sort();
        let expected = ["0", "1", "2", "ended", "running", "waiting"];
        assert_eq!(all, expected.map(|job| format!("mine-{job}")), "{bounds}");
        assert_eq!(listed(&router, &bearer, "&attribute.of=mine").await.len(), 3);
        // Nothing says that there are such jobs.
        let path = "/v1/jobs?limit=1&attribute.of=other";
        let (_, text) = asked(&router, &bearer, ("GET", path, &Value::Null)).await;
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), json!({"jobs": []}), "{bounds}");
    }
}

#[tokio::test]
async fn a_job_that_cannot_be_read_is_outside_all_bounds() {
    let store = Arc::new(MemoryStore::new());
    let router = router_on(Arc::clone(&store)).await;
    tenant(&router, "other").await;
    tenant(&router, "mine").await;
    let list = by_admin(&router, "GET", "/v1/jobs", Value::Null).await;
    store.damage_job(&"other-waiting".parse().unwrap());
    let damaged = by_admin(&router, "GET", "/v1/jobs", Value::Null).await;
    assert_eq!(damaged["unreadable"], json!(["other-waiting"]));
    assert_eq!(
        damaged["jobs"].as_array().unwrap().len() + 1,
        list["jobs"].as_array().unwrap().len()
    );
    let bearer = format!("Bearer {SCOPES};queues=mine;queues=a");
    let (status, text) = asked(&router, &bearer, ("GET", "/v1/jobs", &Value::Null)).await;
    assert!(status == 200 && text.contains("mine-waiting") && !text.contains("other"), "{text}");
    for (method, path, body) in [
        ("GET", "/v1/jobs/other-waiting", Value::Null),
        ("GET", "/v1/jobs/other/other-waiting", Value::Null),
        ("GET", "/v1/jobs/other/other-waiting/result", Value::Null),
        ("GET", "/v1/jobs/other/other-waiting/explain", Value::Null),
        ("GET", "/v1/jobs/other/other-waiting/log", Value::Null),
        ("PUT", "/v1/jobs/mine/other-waiting", json!({"data": 1})),
        ("PATCH", "/v1/jobs/other/other-waiting", json!({"priority": 1})),
        ("DELETE", "/v1/jobs/other/other-waiting", Value::Null),
        ("POST", "/v1/jobs/other/other-waiting", json!({"attempt": 1, "status": "failed"})),
        ("POST", "/v1/jobs/other/other-waiting/heartbeat", json!({"attempt": 1})),
        ("POST", "/v1/jobs/other/other-waiting/replay", Value::Null),
        ("POST", "/v1/jobs/other-waiting/replay", Value::Null),
    ] {
        let (status, text) = asked(&router, &bearer, (method, path, &body)).await;
        assert!(status == 403 && !text.contains("damaged"), "{method} {path}: {status} {text}");
        let (status, text) = asked(&router, ALL.1, (method, path, &body)).await;
        assert!(text.contains("job_unreadable"), "{method} {path}: {status} {text}");
    }
}

#[tokio::test]
async fn a_token_with_bounds_undrains_no_worker() {
    let router = router().await;
    let bearer = "Bearer work;queues=mine";
    let by_worker = async |method: &str, path: &str, body: Value| {
        asked(&router, bearer, (method, path, &body)).await
    };
    let (status, text) = by_worker("PUT", "/v1/workers/w", json!({"capacity": 2})).await;
    assert!(status == 200 && text.contains("\"capacity\":2"), "{text}");
    by_admin(&router, "POST", "/v1/workers/w/drain", Value::Null).await;
    for action in ["drain", "stop", "undrain"] {
        let path = format!("/v1/workers/w/{action}");
        assert_eq!(by_worker("POST", &path, Value::Null).await.0, 403, "{action}");
    }
    assert_eq!(by_worker("DELETE", "/v1/workers/w", Value::Null).await.0, 204);
    let left = by_admin(&router, "GET", "/v1/workers", Value::Null).await;
    assert_eq!(left["workers"][0]["draining"], true, "{left}");
}
