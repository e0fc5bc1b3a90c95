//! Workers of a serverless deployment, whose processes know them by what is stored.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Builder, json, router_with};
use tidegate_engine::memory::MemoryStore;

#[tokio::test]
async fn a_serverless_worker_learns_of_a_stop_from_any_process() {
    let store = Arc::new(MemoryStore::default());
    let one = router_with(Arc::clone(&store), Builder::serverless).await;
    let lease = json!({"worker": "host-1", "types": ["invoice"], "max": 1, "wait_seconds": 0});
    let (status, answer) = json(&one, "POST", "/v1/leases", lease.clone()).await;
    assert_eq!((status, &answer["stop"]), (200, &Value::Null), "{answer}");
    // No process has heard of the worker: it registers only if it says what it takes.
    let (status, worker) = json(&one, "POST", "/v1/workers/host-1/stop", Value::Null).await;
    let state = |worker: &Value| (worker["draining"].clone(), worker["stopping"].clone());
    assert_eq!((status, state(&worker)), (200, (json!(true), json!(true))));
    // A drain does not withdraw the stop.
    let (status, worker) = json(&one, "POST", "/v1/workers/host-1/drain", Value::Null).await;
    assert_eq!((status, state(&worker)), (200, (json!(true), json!(true))));
    let (_, answer) = json(&one, "POST", "/v1/leases", lease.clone()).await;
    assert_eq!(answer, json!({"leases": [], "reports": [], "stop": true}));
    let path = "/v1/workers/host-1?keep_drain=true";
    assert_eq!(json(&one, "DELETE", path, Value::Null).await.0, 204);
    let (_, answer) = json(&one, "POST", "/v1/leases", lease).await;
    assert_eq!((&answer["stop"], &answer["leases"]), (&Value::Null, &json!([])), "it is drained");
    let (_, listed) = json(&one, "GET", "/v1/workers", Value::Null).await;
    assert_eq!(state(&listed["workers"][0]), (json!(true), json!(false)));
}

#[tokio::test]
async fn a_serverless_deployment_has_no_history_of_workers() {
    let store = Arc::new(MemoryStore::default());
    let router = router_with(store, Builder::serverless).await;
    let (status, problem) = json(&router, "GET", "/v1/workers/w/history", Value::Null).await;
    assert_eq!((status, &problem["code"]), (501, &json!("worker_history_not_supported")));
}
