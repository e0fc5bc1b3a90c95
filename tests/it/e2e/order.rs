//! Which job goes first, and how many at once: both orders, weights, critical jobs, windows.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_backends::system::SystemClock;
use tidegate_core::{port::Clock as _, time::Timestamp};

use super::{
    api::{Api, Lease},
    serve::Tidegate,
    wait::eventually,
};

/// Leases one job after the other, each done before the next: the order of admission.
async fn one_by_one(api: &Api, kind: &str, count: usize) -> Vec<String> {
    let mut names = Vec::new();
    for _ in 0..count {
        let lease = api.lease_one(kind).await;
        names.push(lease.id.clone());
        api.report(&lease, "succeeded").await.is(200);
    }
    names
}

#[tokio::test]
async fn five_jobs_run_in_both_orders_as_the_table_says() {
    // The table's minutes are steps of a second here: (id, due after so many milliseconds,
    // priority).
    let jobs = [("a", 0, 100), ("b", 500, 1), ("c", 1000, 50), ("d", 1983, 10), ("e", 2000, 0)];
    for (order, wanted) in
        [("time", ["b", "a", "d", "c", "e"]), ("priority", ["e", "b", "d", "c", "a"])]
    {
        let tide = Tidegate::start().await;
        tide.queue("q", json!({"concurrency": 1, "order": order, "order_step_seconds": 1})).await;
        tide.job_type("t", json!({"queue": "q"})).await;
        tide.post("/v1/queues/q/pause", Value::Null).await.is(200);
        let start = Timestamp::from_millis((SystemClock.now().millis() / 1000 + 1) * 1000);
        for (id, after, priority) in jobs {
            let run_at = (start + Duration::from_millis(after)).to_string();
            tide.enqueue(
                json!({"type": "t", "data": 1, "id": id, "priority": priority, "run_at": run_at}),
            )
            .await;
        }
        eventually("all are due", || async {
            (SystemClock.now() > start + Duration::from_secs(2)).then_some(())
        })
        .await;
        tide.post("/v1/queues/q/resume", Value::Null).await.is(200);
        assert_eq!(one_by_one(&tide, "t", 5).await, wanted, "order {order}");
    }
}

#[tokio::test]
async fn a_limit_counts_weight_and_critical_jobs_pass_it() {
    let tide = Tidegate::start().await;
    tide.queue("q", json!({"concurrency": 10})).await;
    tide.job_type("t", json!({"queue": "q", "weight": 2})).await;
    for _ in 0..8 {
        tide.enqueue_a("t").await;
    }
    let mut leases = tide.lease(json!({"types": ["t"], "max": 100, "wait_seconds": 20})).await;
    leases.extend(tide.lease(json!({"types": ["t"], "max": 100, "wait_seconds": 0.2})).await);
    assert_eq!(leases.len(), 5);
    assert_eq!(tide.get("/v1/queues/q").await.is(200)["status"]["running_weight"], 10);
    let critical = tide.enqueue(json!({"type": "t", "data": 1, "critical": true})).await;
    let through: Vec<Lease> =
        tide.lease(json!({"types": ["t"], "max": 100, "wait_seconds": 20})).await;
    assert_eq!(
        through.iter().map(|lease| lease.id.as_str()).collect::<Vec<_>>(),
        [critical.as_str()]
    );
    // A pause holds critical jobs too.
    tide.post("/v1/queues/q/pause", Value::Null).await.is(200);
    let held = tide.enqueue(json!({"type": "t", "data": 1, "critical": true})).await;
    assert_eq!(tide.lease(json!({"types": ["t"], "wait_seconds": 0.2})).await.len(), 0);
    assert_eq!(tide.explain("t", &held).await["held_by"]["kind"], "paused");
}

#[tokio::test]
async fn a_job_waits_for_its_window() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({"windows": [{"from": "00:00", "to": "00:00:01", "days": ["mon"]}]}))
        .await;
    let id = tide.enqueue_a("t").await;
    let job = tide.job(&id).await;
    let opening = chrono::DateTime::parse_from_rfc3339(job["run_at"].as_str().unwrap()).unwrap();
    assert_eq!(opening.format("%a %H:%M:%S").to_string(), "Mon 00:00:00");
    let explained = tide.explain("t", &id).await;
    assert_eq!(
        (&explained["held_by"]["kind"], &explained["earliest_at"]),
        (&json!("window"), &job["run_at"])
    );
    // An empty list clears the type's.
    let free = tide.enqueue(json!({"type": "t", "data": 1, "windows": []})).await;
    assert_eq!(tide.lease_one("t").await.id, free);
    tide.patch(
        &format!("/v1/jobs/t/{id}"),
        json!({"windows": [], "run_at": "2020-01-01T00:00:00Z"}),
    )
    .await
    .is(200);
    assert_eq!(tide.lease_one("t").await.id, id);
}

#[tokio::test]
async fn partitions_take_turns() {
    let tide = Tidegate::start().await;
    tide.queue("q", json!({"concurrency": 1, "partition_by": "tenant"})).await;
    tide.job_type("t", json!({"queue": "q"})).await;
    tide.post("/v1/queues/q/pause", Value::Null).await.is(200);
    let many: Vec<_> = (0..200)
        .map(|_| json!({"type": "t", "data": 1, "attributes": {"tenant": "big"}}))
        .collect();
    tide.post("/v1/jobs/batch", json!({"jobs": many})).await.is(200);
    let small =
        tide.enqueue(json!({"type": "t", "data": 1, "attributes": {"tenant": "small"}})).await;
    tide.post("/v1/queues/q/resume", Value::Null).await.is(200);
    assert!(one_by_one(&tide, "t", 3).await.contains(&small));
}

#[tokio::test]
async fn constraints_limit_each_value_by_number_and_by_rate() {
    let tide = Tidegate::start().await;
    let per_region = json!({"name": "per-region", "per": "region", "concurrency": 2});
    tide.queue("q", json!({"constraints": [per_region]})).await;
    tide.queue(
        "slow",
        json!({"constraints": [{"name": "calls", "rate": {"count": 3, "per_seconds": 3600}}]}),
    )
    .await;
    tide.job_type("t", json!({"queue": "q"})).await;
    tide.job_type("r", json!({"queue": "slow"})).await;
    let mut last = String::new();
    for _ in 0..5 {
        for region in ["east", "west"] {
            last = tide
                .enqueue(json!({"type": "t", "data": 1, "attributes": {"region": region}}))
                .await;
        }
        tide.enqueue_a("r").await;
    }
    let mut running = Vec::new();
    while running.len() < 4 {
        let leases = tide.lease(json!({"types": ["t"], "max": 100, "wait_seconds": 20})).await;
        assert!(!leases.is_empty(), "only {} run", running.len());
        running.extend(leases);
    }
    assert_eq!(tide.lease(json!({"types": ["t"], "max": 100, "wait_seconds": 0.2})).await.len(), 0);
    let of = |region: &str| {
        running.iter().filter(|lease| lease.whole["job"]["attributes"]["region"] == region).count()
    };
    assert_eq!((of("east"), of("west")), (2, 2));
    let explained = tide.explain("t", &last).await;
    assert_eq!(
        explained["held_by"]["kind"], "constraint",
        "its region is full, whether or not a worker requests jobs: {explained}"
    );
    let status = async |queue: &str| {
        tide.get(&format!("/v1/queues/{queue}")).await.is(200)["status"].clone()
    };
    let in_use = |value| json!({"name": "per-region", "per": "region", "value": value, "running_weight": 2, "limit": 2});
    assert_eq!(status("q").await["constraints"], json!([in_use("east"), in_use("west")]));
    assert!(status("q").await["lateness_seconds"].as_f64().is_some_and(|late| late >= 0.0));
    assert_eq!(status("slow").await["constraints"], json!([]), "a rate is not in use");
    let mut rated = tide.lease(json!({"types": ["r"], "max": 100, "wait_seconds": 20})).await;
    rated.extend(tide.lease(json!({"types": ["r"], "max": 100, "wait_seconds": 0.2})).await);
    assert_eq!(rated.len(), 3);
}
