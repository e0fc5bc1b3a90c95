//! "What if": the recorded jobs of a queue, simulated with a change.

use axum::Router;
use serde_json::{Value, json};

use super::{json, router};

const ROUTE: &str = "/v1/queues/default/simulate";

/// A queue in which twelve jobs of two tenants ran, at most four at once.
async fn recorded() -> Router {
    let router = router().await;
    for number in 0..12 {
        let attributes = json!({"tenant": if number < 8 { "a" } else { "b" }});
        let job = json!({"type": "invoice", "data": number, "attributes": attributes});
        assert_eq!(json(&router, "POST", "/v1/jobs", job).await.0, 201);
    }
    for _ in 0..3 {
        let lease = json!({"types": ["invoice"], "max": 4, "wait_seconds": 5});
        let (_, leased) = json(&router, "POST", "/v1/leases", lease).await;
        let leases = leased["leases"].as_array().unwrap();
        assert_eq!(leases.len(), 4, "{leased}");
        for lease in leases {
            let path = format!("/v1/jobs/invoice/{}", lease["job"]["id"].as_str().unwrap());
            let report = json!({"status": "succeeded", "attempt": 1, "token": lease["token"]});
            let (status, answer) = json(&router, "POST", &path, report).await;
            assert_eq!(status, 200, "{answer}");
        }
    }
    router
}

#[tokio::test]
async fn a_change_is_simulated_with_the_recorded_jobs() {
    let router = recorded().await;
    let body = json!({"queue": {"concurrency": 1}, "by": "attribute.tenant"});
    let (status, simulated) = json(&router, "POST", ROUTE, body).await;
    assert_eq!((status, &simulated["jobs"]), (200, &json!(12)), "{simulated}");
    assert_eq!((&simulated["workers"], &simulated["left_out"]), (&json!(4), &json!([])));
    for run in ["recorded", "current", "changed"] {
        let run = &simulated[run];
        assert_eq!((&run["finished"], &run["failed"]), (&json!(12), &json!(0)), "{run}");
        assert_eq!(run["series"]["points"].as_array().unwrap().len(), 120);
        assert!(run["drained_after_seconds"].is_number(), "{run}");
        let groups: Vec<_> = run["groups"]
            .as_array()
            .unwrap()
            .iter()
            .map(|group| (group["value"].clone(), group["jobs"].clone()))
            .collect();
        assert_eq!(groups, [(json!("a"), json!(8)), (json!("b"), json!(4))]);
    }
    let most = |run: &str| {
        let points = simulated[run]["series"]["points"].as_array().unwrap();
        points.iter().map(|point| point["running"].as_u64().unwrap()).max()
    };
    assert_eq!((most("current"), most("changed")), (Some(4), Some(1)));
    let limit = |run: &str| simulated[run]["series"]["points"][0]["limit"].clone();
    assert_eq!((limit("current"), limit("changed")), (Value::Null, json!(1)));
    let (_, queue) = json(&router, "GET", "/v1/queues/default", Value::Null).await;
    assert_eq!(queue["concurrency"], Value::Null, "nothing is changed");
}

#[tokio::test]
async fn a_type_with_targets_of_retries_is_simulated() {
    let router = recorded().await;
    let config = json!({
        "target": {"url": "https://a.example/{id}?key=secret"},
        "retry_targets": {"b": "https://b.example/{id}"},
    });
    let (status, put) = json(&router, "PUT", "/v1/job-types/invoice", config).await;
    assert!(status < 300, "{put}");
    let body = json!({"types": {"invoice": {"weight": 2}}});
    let (status, simulated) = json(&router, "POST", ROUTE, body).await;
    assert_eq!(status, 200, "{simulated}");
    for run in ["current", "changed"] {
        assert_eq!(simulated[run]["finished"], 12, "{simulated}");
    }
}

#[tokio::test]
async fn a_wrong_change_is_refused_with_its_field() {
    let router = recorded().await;
    json(&router, "PUT", "/v1/queues/mail", json!({})).await;
    json(&router, "PUT", "/v1/job-types/letter", json!({"queue": "mail"})).await;
    for (body, status, field) in [
        (json!({"queue": {"concurrency": -1}}), 400, "queue.concurrency"),
        (json!({"queue": {"throttler": {"plugin": "none"}}}), 400, "queue.throttler.plugin"),
        (json!({"types": {"invoice": {"weight": -1}}}), 400, "types.invoice.weight"),
        (json!({"types": {"letter": {}}}), 400, "types.letter.queue"),
        (json!({"types": {"none": {}}}), 404, "types.none"),
        (json!({"by": "tenant"}), 400, "by"),
        (json!({"over_seconds": 1}), 400, "over_seconds"),
        (json!({"workers": 0}), 400, "workers"),
        (json!({"throttler_version": 1}), 400, "throttler_version"),
        (json!({"nonsense": 1}), 400, "nonsense"),
    ] {
        let (got, problem) = json(&router, "POST", ROUTE, body.clone()).await;
        assert_eq!((got, &problem["field"]), (status, &json!(field)), "{body}: {problem}");
    }
    let (status, problem) = json(&router, "POST", "/v1/queues/mail/simulate", json!({})).await;
    assert_eq!((status, &problem["code"]), (409, &json!("nothing_to_simulate")));
    let (status, _) = json(&router, "POST", "/v1/queues/none/simulate", json!({})).await;
    assert_eq!(status, 404);
}
