//! Recorded calls of plugins: in memory, stored over a restart, redacted, and repeated.

use serde_json::{Value, json};

use super::{push, region_share, regional, shares};
use crate::{
    e2e::{
        serve::{Tidegate, text},
        wait::until,
    },
    plugins::guest::{Guest, LOG},
};

/// The recorded calls of a plugin, latest first.
async fn calls(tide: &Tidegate, plugin: &str) -> Vec<Value> {
    let listed = tide.get(&format!("/v1/plugins/{plugin}/calls")).await.is(200);
    listed["calls"].as_array().unwrap().clone()
}

/// How many of them were recorded for this reason.
fn count(calls: &[Value], reason: &str) -> usize {
    calls.iter().filter(|call| call["reason"] == reason).count()
}

/// A server whose plugin has decided about jobs of two regions: one that runs, and one that waits.
async fn throttled() -> Tidegate {
    let tide = Tidegate::start().await;
    push(&tide, "share", region_share()).await.is(201);
    let throttler = json!({"throttler": {"plugin": "share", "config": shares(10)}});
    tide.queue("default", throttler).await;
    regional(&tide, json!({})).await;
    tide
}

/// Enqueues a job of a region, and has a worker request it until a call about it is recorded.
async fn decided(tide: &Tidegate, region: &str) {
    tide.enqueue(json!({"type": "t", "data": {"region": region}})).await;
    let before = tide.get("/v1/plugins/share").await.is(200)["health"]["calls"].clone();
    until(|| async {
        tide.lease(json!({"types": ["t"], "max": 10, "wait_seconds": 0.1})).await;
        let now = tide.get("/v1/plugins/share").await.is(200)["health"]["calls"].clone();
        (now.as_u64() > before.as_u64(), now)
    })
    .await;
}

#[tokio::test]
async fn recorded_calls_outlive_the_server_and_are_replayed() {
    let tide = throttled().await;
    decided(&tide, "east").await;
    let latest = calls(&tide, "share").await;
    assert!(!latest.is_empty() && count(&latest, "latest") == latest.len(), "{latest:?}");
    assert!(latest.iter().all(|call| call.get("call").is_none()), "a list has no inputs");

    let filter = json!({"filter": {"attributes": {"region": "south"}, "action": "hold"}});
    let plugin = tide.put("/v1/plugins/share/recording", filter).await.is(200);
    assert_eq!(plugin["recording"]["filter"]["action"], "hold");
    // The south has no share.
    decided(&tide, "south").await;
    until(|| async {
        let calls = calls(&tide, "share").await;
        (count(&calls, "filter") > 0, calls)
    })
    .await;

    let tide = tide.stop().await.start().await;
    let stored = calls(&tide, "share").await;
    let held: Vec<&Value> = stored.iter().filter(|call| call["reason"] == "filter").collect();
    assert!(!held.is_empty() && held.iter().all(|call| call["decided"]["hold"] == 1), "{stored:?}");
    let path = format!("/v1/plugins/share/calls/{}", held[0]["id"].as_str().unwrap());
    let whole = tide.get(&path).await.is(200);
    assert_eq!(whole["call"]["throttle"]["candidates"][0]["attributes"]["region"], "south");
    assert_eq!(whole["answer"]["decisions"][0]["action"], "hold");
    tide.get("/v1/plugins/share/calls/latest-0-0").await.is(404);

    let replayed = tide.cli(&["plugin", "replay", "share"]).await;
    assert_eq!(replayed.code, Some(0), "{replayed:?}");
    assert!(replayed.out.contains(" 0 different, 0 failed, 0 repaired"), "{replayed:?}");
    let dir = tempfile::tempdir().unwrap();
    let (file, saved) = (dir.path().join("share.wasm"), dir.path().join("calls"));
    std::fs::write(&file, Guest::throttler().component()).unwrap();
    let differs = tide.cli(&["plugin", "replay", text(&file), "--only", "filter"]).await;
    assert_eq!(differs.code, Some(1), "{differs:?}");
    assert!(differs.out.contains("DIFFERENT filter-"), "{differs:?}");
    tide.cli(&["plugin", "record", "share", "--save", text(&saved)]).await.ok();
    std::fs::write(&file, region_share()).unwrap();
    tide.cli(&["plugin", "test", text(&file), text(&saved)]).await.ok();

    tide.cli(&["plugin", "record", "share", "--stop"]).await.ok();
    assert_eq!(tide.get("/v1/plugins/share").await.is(200).get("recording"), None);
    let wrong = json!({"filter": {"reason": ""}, "for_seconds": 10});
    let path = "/v1/plugins/share/recording";
    tide.put(path, wrong).await.blames(400, "invalid_field", "filter.reason");
    let wrong = json!({"for_seconds": 86_401});
    tide.put(path, wrong).await.blames(400, "invalid_field", "for_seconds");
}

#[tokio::test]
async fn a_queue_redacts_the_recorded_calls_about_its_jobs() {
    let tide = throttled().await;
    let redact = json!({"redact": ["data", "attributes.region"]});
    tide.patch("/v1/queues/default", json!({ "plugin_calls": redact })).await.is(200);
    decided(&tide, "east").await;
    decided(&tide, "south").await;
    for call in calls(&tide, "share").await {
        let path = format!("/v1/plugins/share/calls/{}", call["id"].as_str().unwrap());
        let text = tide.get(&path).await.is(200).to_string();
        assert!(!text.contains("south"), "{text}");
        assert!(text.contains("redacted-1"), "{text}");
    }
    let replayed = tide.cli(&["plugin", "replay", "share"]).await;
    assert_eq!(replayed.code, Some(0), "it groups as before: {replayed:?}");
    let wrong = json!({"plugin_calls": {"redact": ["secrets"]}});
    tide.patch("/v1/queues/default", wrong).await.is(400);
}

#[tokio::test]
async fn a_failed_call_is_stored_with_its_log() {
    let tide = Tidegate::start().await;
    let decide = "(call $log (i32.const 1) (i32.const 2048) (i32.const 5)) (unreachable)";
    let hello = r#"(data (i32.const 2048) "hello")"#;
    let broken = Guest::throttler().import(LOG).items(hello).decide(decide).component();
    push(&tide, "broken", broken).await.is(201);
    tide.queue("default", json!({"throttler": {"plugin": "broken"}})).await;
    tide.job_type("t", json!({})).await;
    let id = tide.enqueue_a("t").await;
    until(|| async {
        tide.lease(json!({"types": ["t"], "wait_seconds": 0.1})).await;
        let calls = calls(&tide, "broken").await;
        let is_stored = |call: &Value| call["id"].as_str().unwrap().starts_with("fault-0");
        (calls.iter().any(is_stored), calls)
    })
    .await;
    let tide = tide.stop().await.start().await;
    let fault = tide.get("/v1/plugins/broken/faults").await.is(200)["faults"][0].clone();
    assert_eq!(fault["call"]["throttle"]["candidates"][0]["id"], json!(id), "{fault}");
    let call = calls(&tide, "broken").await.remove(0);
    assert_eq!(call["fault"]["kind"], "trapped");
    assert_eq!(call["log"][0]["message"], "hello");
    let shown = tide.cli(&["plugin", "faults", "broken"]).await.ok();
    assert!(shown.contains("trapped"), "{shown}");
}

#[tokio::test]
async fn old_versions_are_pruned() {
    let tide = Tidegate::start().await;
    for mark in 1..=4 {
        let mut wasm = Guest::throttler().component();
        wasm.extend([0, 3, 1, b'm', mark]);
        push(&tide, "share", wasm).await.is(201);
    }
    let dry = tide.post("/v1/plugins/share/prune?dry_run=true", json!({"keep": 1})).await.is(200);
    assert_eq!(dry, json!({"removed": [1, 2], "kept": [3, 4]}));
    let shown = tide.cli(&["plugin", "prune", "share", "--keep", "1"]).await.ok();
    assert!(shown.contains("versions removed: 1, 2; kept: 3, 4"), "{shown}");
    let versions = tide.get("/v1/plugins/share/versions").await.is(200);
    assert_eq!(versions["versions"].as_array().unwrap().len(), 2);
    let wrong = tide.post("/v1/plugins/share/prune", json!({"keep": 0})).await;
    wrong.blames(400, "invalid_field", "keep");
    tide.post("/v1/plugins/none/prune", json!({})).await.is(404);
}
