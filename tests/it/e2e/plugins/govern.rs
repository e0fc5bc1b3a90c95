//! A throttler governs a live queue, and a retry strategy decides after a failure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{push, region_share, regional, shares};
use crate::{
    e2e::{
        api::{Api, Lease},
        serve::{Tidegate, text},
        wait::until,
    },
    plugins::guest::{FOREVER, Guest},
};

/// The explanation of a job that a worker requests and a throttler holds.
async fn explained(api: &Api, job_type: &str, id: &str) -> Value {
    let (asking, ask) = (api.clone(), json!({"types": [job_type], "wait_seconds": 20}));
    let waiting = tokio::spawn(async move { asking.lease(ask).await });
    let why = until(|| async {
        let why = api.explain(job_type, id).await;
        (why["held_by"]["kind"] == "throttler", why)
    })
    .await;
    waiting.abort();
    why
}

#[tokio::test]
async fn a_throttler_governs_a_live_queue_and_says_why_a_job_waits() {
    let tide = Tidegate::start().await;
    assert_eq!(
        push(&tide, "region-share", region_share()).await.is(201)["roles"],
        json!(["throttler"])
    );
    tide.queue("default", json!({"throttler": {"plugin": "region-share", "config": shares(10)}}))
        .await;
    regional(&tide, json!({})).await;
    let mut ids = BTreeMap::new();
    for round in 0..8 {
        for region in ["east", "north", "west", "south"] {
            ids.insert(
                tide.enqueue(json!({"type": "t", "data": {"region": region, "round": round}}))
                    .await,
                region,
            );
        }
    }
    let most = BTreeMap::from([("east", 4), ("north", 3), ("west", 3), ("south", 0)]);
    let (mut running, mut done): (Vec<Lease>, BTreeSet<String>) = Default::default();
    let mut full = false;
    while done.len() < 24 {
        let wait = if running.is_empty() { 20.0 } else { 0.2 };
        running.extend(tide.lease(json!({"types": ["t"], "max": 100, "wait_seconds": wait})).await);
        let mut of: BTreeMap<&str, u32> = BTreeMap::new();
        for lease in &running {
            *of.entry(ids[&lease.id]).or_default() += 1;
        }
        assert!(of.iter().all(|(region, count)| count <= &most[region]), "{of:?}");
        full |= of == BTreeMap::from([("east", 4), ("north", 3), ("west", 3)]);
        assert!(!running.is_empty(), "{} of 24 ran, and no other starts", done.len());
        let lease = running.remove(0);
        tide.report(&lease, "succeeded").await.is(200);
        assert!(done.insert(lease.id), "a job ran twice");
    }
    assert!(full, "every share was used up");
    let south = ids.iter().find(|(_, region)| **region == "south").unwrap().0;
    let why = explained(&tide, "t", south).await;
    assert_eq!(why["held_by"], json!({"kind": "throttler", "name": "region-share"}));
    assert!(why["reason"].as_str().unwrap().contains("south"), "{why}");
    let plugin = tide.get("/v1/plugins/region-share").await.is(200);
    assert_eq!(plugin["used_by"], json!([{"kind": "queue", "name": "default"}]));
    assert!(
        plugin["health"]["calls"].as_u64().unwrap() > 0 && plugin["health"]["faults"] == 0,
        "{plugin}"
    );
    assert!(plugin["health"]["last_usage"]["fuel"].as_u64().unwrap() > 0, "{plugin}");
}

#[tokio::test]
async fn a_plugin_outlives_the_server() {
    let tide = Tidegate::start().await;
    push(&tide, "share", region_share()).await.is(201);
    tide.queue("default", json!({"throttler": {"plugin": "share", "config": shares(2)}})).await;
    regional(&tide, json!({})).await;
    let tide = tide.stop().await.start().await;
    let id = tide.enqueue(json!({"type": "t", "data": {"region": "south"}})).await;
    assert_eq!(
        explained(&tide, "t", &id).await["held_by"],
        json!({"kind": "throttler", "name": "share"})
    );
    assert_eq!(tide.job(&id).await["state"], "scheduled");
    assert_eq!(tide.get("/v1/queues/default").await.is(200)["throttler"]["plugin"], "share");
}

#[tokio::test]
async fn a_looping_plugin_holds_only_its_queue_and_can_be_replayed() {
    let tide = Tidegate::start().await;
    let looping = Guest::throttler().decide(FOREVER).component();
    push(&tide, "looping", looping.clone()).await.is(201);
    tide.queue("bad", json!({"throttler": {"plugin": "looping"}})).await;
    tide.job_type("stuck", json!({"queue": "bad"})).await;
    tide.job_type("free", json!({})).await;
    let stuck = tide.enqueue(json!({"type": "stuck", "data": {"n": 1}})).await;
    let api = tide.api.clone();
    let waiting =
        tokio::spawn(
            async move { api.lease(json!({"types": ["stuck"], "wait_seconds": 20})).await },
        );
    let failed = until(|| async {
        let plugin = tide.get("/v1/plugins/looping").await.is(200);
        (plugin["health"]["faults"].as_u64() > Some(0), plugin)
    })
    .await;
    assert_eq!(failed["health"]["last_fault"]["kind"], "timeout");
    // Jobs of another queue run while the plugin fails again: 20 in all, and some before and after its
    // next failure.
    let mut runs_by_faults: BTreeMap<u64, u32> = BTreeMap::new();
    while runs_by_faults.len() < 2 || runs_by_faults.values().sum::<u32>() < 20 {
        let free = tide.enqueue_a("free").await;
        let lease = tide.lease_one("free").await;
        assert_eq!(lease.id, free);
        tide.report(&lease, "succeeded").await.is(200);
        let plugin = tide.get("/v1/plugins/looping").await.is(200);
        *runs_by_faults.entry(plugin["health"]["faults"].as_u64().unwrap()).or_default() += 1;
    }
    assert_eq!(tide.job(&stuck).await["state"], "scheduled");
    let why = tide.explain("stuck", &stuck).await;
    assert_eq!(why["held_by"], json!({"kind": "throttler", "name": "looping"}));

    let faults = tide.get("/v1/plugins/looping/faults").await.is(200)["faults"].clone();
    assert_eq!(faults[0]["call"]["throttle"]["candidates"][0]["id"], json!(stuck));
    let dir = tempfile::tempdir().unwrap();
    let (file, cases) = (dir.path().join("looping.wasm"), dir.path().join("faults"));
    std::fs::write(&file, looping).unwrap();
    tide.cli(&["plugin", "faults", "looping", "--save", text(&cases)]).await.ok();
    let replayed = tide.cli(&["plugin", "test", text(&file), text(&cases)]).await;
    assert_eq!(replayed.code, Some(1), "{replayed:?}");
    assert!(replayed.out.contains("it failed (timeout)"), "{replayed:?}");
    // With the plugin repaired the same calls are answered.
    std::fs::write(&file, Guest::throttler().component()).unwrap();
    assert_eq!(tide.cli(&["plugin", "test", text(&file), text(&cases)]).await.code, Some(0));

    // Its owner would rather have jobs run than wait.
    tide.patch("/v1/queues/bad", json!({"throttler": {"on_failure": "run"}})).await.is(200);
    assert_eq!(waiting.await.unwrap()[0].id, stuck);
}

#[tokio::test]
async fn a_strategy_decides_the_retry_and_the_backoff_replaces_it() {
    let tide = Tidegate::start().await;
    push(&tide, "at-once", Guest::retry().component()).await.is(201);
    push(&tide, "broken", Guest::retry().on_failure("(unreachable)").component()).await.is(201);
    for strategy in ["at-once", "broken"] {
        tide.job_type(strategy, json!({"max_attempts": 3, "retry": {"plugin": strategy}})).await;
        let id = tide.enqueue_a(strategy).await;
        let lease = tide.lease_one(strategy).await;
        tide.report(&lease, "failed").await.is(200);
        let again = tide.lease_one(strategy).await;
        assert_eq!((&again.id, again.attempt), (&id, 2), "{strategy}");
        tide.report(&again, "succeeded").await.is(200);
        tide.job_in(&id, "succeeded").await;
    }
    let broken = tide.get("/v1/plugins/broken").await.is(200);
    assert_eq!(
        (&broken["roles"], &broken["health"]["last_fault"]["kind"]),
        (&json!(["retry"]), &json!("trapped"))
    );
    assert_eq!(
        tide.get("/v1/plugins/broken/faults").await.is(200)["faults"][0]["call"]["retry"]["last"]["attempt"],
        1
    );
    assert_eq!(tide.get("/v1/plugins/at-once").await.is(200)["health"]["faults"], 0);
}

#[tokio::test]
async fn an_answer_refused_by_the_server_is_counted_with_its_call() {
    let tide = Tidegate::start().await;
    // It adds a seventeenth attribute: a job has sixteen at most.
    let body = "(local.set $r (call $alloc (i32.const 80))) (i32.store8 offset=24 (local.get $r) (i32.const 1))
        (i32.store offset=28 (local.get $r) (i32.const 2048)) (i32.store offset=32 (local.get $r) (i32.const 14)) (local.get $r)";
    let guest =
        Guest::retry().items(r#"(data (i32.const 2048) "{\"region\":\"x\"}")"#).on_failure(body);
    push(&tide, "adding", guest.component()).await.is(201);
    tide.job_type("t", json!({"attributes": {"region": "/region"}, "max_attempts": 2, "retry": {"plugin": "adding"}})).await;
    let attributes: BTreeMap<String, u32> = (0..16).map(|n| (format!("a{n}"), n)).collect();
    let id = tide.enqueue(json!({"type": "t", "data": {}, "attributes": attributes})).await;
    let lease = tide.lease_one("t").await;
    tide.report(&lease, "failed").await.is(200);
    assert_eq!(tide.lease_one("t").await.id, id, "by the backoff");
    let health = tide.get("/v1/plugins/adding").await.is(200)["health"].clone();
    assert_eq!(
        (&health["calls"], &health["faults"], &health["failing"]),
        (&json!(1), &json!(1), &json!(true)),
        "{health}"
    );
    let fault = tide.get("/v1/plugins/adding/faults").await.is(200)["faults"][0].clone();
    assert_eq!(
        (&fault["kind"], &fault["call"]["retry"]["failed"]["id"]),
        (&json!("invalid_answer"), &json!(id)),
        "{fault}"
    );
    let metrics = String::from_utf8(tide.get("/metrics").await.body).unwrap();
    let counted = |line: &&str| {
        line.starts_with("tidegate_plugin_faults_total")
            && line.contains("adding")
            && line.ends_with(" 1")
    };
    assert!(metrics.lines().any(|line| counted(&line)), "{metrics}");
}
