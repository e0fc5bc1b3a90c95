//! What an ended job leaves in the table and the bucket goes with its retention, by the sweep that the
//! rule of the deployment starts.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use reqwest::Method;
use serde_json::json;

use super::{config, deployed, stored::Stored, sweep};
use crate::e2e::api::Api;

/// The retention of jobs, and of the results of jobs that stay longer. It is long enough to look at
/// what is stored before it ends.
const RETENTION_SECONDS: u64 = 10;
/// How long it may take until everything is gone: the retention, the 20 s for which a request of an id
/// or a key may be under way, and sweeps on a stack that other tests use.
const PATIENCE: Duration = Duration::from_mins(3);
/// More than what a record or parts of one in the table hold, so it is an object.
const LARGE: usize = 100_000;
/// More than what a job's own item holds, so it is parts in the table.
const MEDIUM: usize = 3000;

/// Enqueues a job of `job_type` under `id` and an idempotency key and a unique key, and completes it
/// with a large result.
async fn complete(api: &Api, job_type: &str, id: &str, bytes: usize) {
    let job = json!({
        "type": job_type, "id": id, "data": {"text": "x".repeat(bytes)},
        "unique": {"key": format!("{id}-unique"), "while": "live"},
    });
    let key = format!("{id}-key");
    let headers = [("content-type", "application/json"), ("idempotency-key", &key)];
    api.send(Method::POST, "/v1/jobs", &headers, job.to_string()).await.is(201);
    let lease = api.lease_one(job_type).await;
    assert_eq!(lease.id, id);
    let result = json!({"text": "y".repeat(LARGE)});
    let report = json!({"attempt": lease.attempt, "status": "succeeded", "result": result});
    api.post(&lease.path, report).await.good();
}

/// What is stored of the jobs whose ids begin with a name: the kinds of items that no row contains,
/// with their number, and the number of objects.
async fn left(stored: &Stored, name: &str) -> (BTreeMap<&'static str, usize>, usize) {
    let mut kinds = BTreeMap::new();
    for item in stored.items(name).await {
        for kind in ["I#", "K#", "D#"] {
            if item.is_of(kind) {
                *kinds.entry(kind).or_default() += 1;
            }
        }
    }
    (kinds, stored.objects(name).await.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a local stack"]
#[allow(clippy::disallowed_methods, reason = "what is measured is a real deployment")]
async fn on_a_local_stack_what_a_job_leaves_goes_with_retention() {
    let ((api, _), run) = (deployed(), format!("k{:x}", std::process::id()));
    let (stored, lambda) = (Stored::of_stack().await, aws_sdk_lambda::Client::new(&config().await));
    let short = json!({"seconds": RETENTION_SECONDS});
    for (kind, keep_result, retention) in [
        ("gone", json!({"seconds": 3600}), RETENTION_SECONDS),
        ("brief", short, 3600),
        ("kept", json!({"seconds": 3600}), 3600),
    ] {
        let config = json!({"keep_result": keep_result, "retention_seconds": retention});
        api.job_type(&format!("{run}-{kind}"), config).await;
    }
    let name = |kind: &str| format!("{run}-{kind}");
    let ids = |kind: &str| ["object", "parts"].map(|body| format!("{run}-{kind}-{body}"));
    for kind in ["kept", "brief", "gone"] {
        for (id, bytes) in ids(kind).iter().zip([LARGE, MEDIUM]) {
            complete(&api, &name(kind), id, bytes).await;
        }
    }
    // The locations of two ids, two keys of each, one body in a part, one in an object, and two
    // results.
    let all = || BTreeMap::from([("I#", 2), ("K#", 4), ("D#", 1)]);
    for kind in ["gone", "brief", "kept"] {
        let found = left(&stored, &name(kind)).await;
        assert_eq!(found, (all(), 3), "before the end of the retention: {kind}");
    }

    let began = Instant::now();
    let mut looks = tokio::time::interval(Duration::from_secs(1));
    let (gone, brief) = ((BTreeMap::new(), 0), (all(), 1));
    loop {
        looks.tick().await;
        sweep(&lambda).await;
        let found = (left(&stored, &name("gone")).await, left(&stored, &name("brief")).await);
        if found == (gone.clone(), brief.clone()) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "after {PATIENCE:?} there is still {found:?}");
    }
    assert_eq!(left(&stored, &name("kept")).await, (all(), 3), "nothing else went");
    for id in ids("gone") {
        api.get(&format!("/v1/jobs/{}/{id}", name("gone"))).await.problem(404, "job_not_found");
    }
    // Readers hide what is left of them, and the table expires it; a local stack does not.
    for item in stored.items(&name("gone-")).await.iter().filter(|item| item.is_of("B#")) {
        assert!(item.expires(), "{}", item.key());
    }
}
