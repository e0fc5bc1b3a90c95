//! Plugins on a live server: a throttler that governs a queue, versions that are swapped under it, and bad ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    serve::{Answer, Api, Lease, Tidegate, eventually, text, until},
    target::Target,
};
use crate::plugins::guest::Guest;

/// How much longer nothing may start while versions are swapped than while none is: loading the other one, unoptimised and beside other
/// tests. What a swap must not cost is the time after which a queue looks though nobody asks, 5 s.
const MORE: Duration = Duration::from_millis(750);

const FOREVER: &str = "(loop $forever (br $forever)) (unreachable)";

/// The shipped throttler.
fn region_share() -> Vec<u8> {
    std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/plugins/dist/region-share.wasm")).unwrap()
}

/// The same component in other bytes: with one more, unused custom section.
fn rebuilt(mut wasm: Vec<u8>, mark: u8) -> Vec<u8> {
    wasm.extend([0, 3, 1, b'm', mark]);
    wasm
}

/// How `region-share` shares `limit`.
fn shares(limit: u32) -> Value {
    json!({"attribute": "region", "limit": limit, "shares": {"east": 40, "north": 30, "west": 30}})
}

/// A push. A compiler that was built without its optimisations takes a while.
async fn push(api: &Api, name: &str, wasm: Vec<u8>) -> Answer {
    api.patient()
        .send(
            Method::PUT,
            &format!("/v1/plugins/{name}"),
            &[("content-type", "application/wasm")],
            wasm,
        )
        .await
}

/// A type whose jobs take their region from their data.
async fn regional(api: &Api, more: Value) {
    let mut config = json!({"attributes": {"region": "/region"}});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    api.job_type("t", config).await;
}

async fn throttled(api: &Api, plugin: &str, config: Value) -> Value {
    api.patch("/v1/queues/default", json!({"throttler": {"plugin": plugin, "config": config}}))
        .await
        .is(200)
}

/// Why a job waits that a worker asks for and a throttler holds.
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
#[allow(clippy::disallowed_methods, reason = "what is measured is a real server")]
async fn swapping_versions_under_load_loses_and_delays_nothing() {
    const JOBS: usize = 400;
    let tide = Tidegate::start().await;
    let started: Arc<Mutex<Vec<(String, Instant)>>> = Arc::default();
    let seen = Arc::clone(&started);
    let target = Target::start(move |call| {
        seen.lock().push((call.json()["id"].as_str().unwrap().to_owned(), Instant::now()));
        async { "{}" }
    })
    .await;
    for (number, wasm) in [region_share(), rebuilt(region_share(), 1)].into_iter().enumerate() {
        assert_eq!(push(&tide, "share", wasm).await.is(201)["pushed"], number + 1);
    }
    tide.queue("default", json!({"throttler": {"plugin": "share", "config": shares(5)}})).await;
    regional(&tide, json!({"target": {"url": target.url}})).await;
    let regions = ["east", "north", "west"].into_iter().cycle();
    let jobs: Vec<Value> =
        regions.take(JOBS).map(|region| json!({"type": "t", "data": {"region": region}})).collect();
    let answered = tide.post("/v1/jobs/batch", json!({ "jobs": jobs })).await.is(200);
    let ids: BTreeSet<&str> = answered["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["job"]["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids.len(), JOBS);
    eventually("a quarter ran under one version", || {
        let count = started.lock().len();
        async move { (count >= JOBS / 4).then_some(()) }
    })
    .await;
    let before = started.lock().len();
    let mut swaps = 0;
    while started.lock().len() < JOBS {
        let live = tide
            .post("/v1/plugins/share/rollback", json!({"version": swaps % 2 + 1}))
            .await
            .is(200)["live"]
            .clone();
        assert_eq!(live, swaps % 2 + 1);
        swaps += 1;
        let stands = started.lock().len();
        eventually("jobs go on", || {
            let count = started.lock().len();
            async move { (count == JOBS || count > stands + 5).then_some(()) }
        })
        .await;
    }
    assert!(swaps > 5, "{swaps} swaps");
    until(|| async {
        let listed = tide.get("/v1/jobs?state=succeeded&limit=1000").await.is(200)["jobs"]
            .as_array()
            .unwrap()
            .len();
        (listed == JOBS, listed)
    })
    .await;
    let started = started.lock().clone();
    let called: BTreeSet<&str> = started.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!((started.len(), called), (JOBS, ids), "each ran exactly once");
    let widest = |calls: &[(String, Instant)]| {
        calls.windows(2).map(|pair| pair[1].1 - pair[0].1).max().unwrap()
    };
    let (usual, swapping) = (widest(&started[..before]), widest(&started[before - 1..]));
    assert!(
        swapping < usual + MORE,
        "nothing started for {swapping:?}, and for {usual:?} without a swap"
    );
    assert_eq!(tide.get("/v1/plugins/share").await.is(200)["health"]["faults"], 0);
}

#[tokio::test]
async fn versions_are_counted_kept_and_taken_back() {
    let tide = Tidegate::start().await;
    let (first, second) =
        (Guest::throttler().component(), rebuilt(Guest::throttler().component(), 1));
    assert_eq!(push(&tide, "guest", first.clone()).await.is(201)["pushed"], 1);
    let pushed = push(&tide, "guest", second.clone()).await.is(201);
    assert_eq!((&pushed["pushed"], &pushed["live"]), (&json!(2), &json!(2)));
    let again = push(&tide, "guest", first.clone()).await.is(200);
    assert_eq!(
        (&again["pushed"], &again["live"]),
        (&json!(1), &json!(2)),
        "the same bytes again change nothing"
    );
    let versions = tide.get("/v1/plugins/guest/versions").await.is(200)["versions"].clone();
    assert_eq!(
        versions
            .as_array()
            .unwrap()
            .iter()
            .map(|version| version["live"].clone())
            .collect::<Vec<_>>(),
        [json!(false), json!(true)]
    );
    assert_eq!(versions[0]["bytes"], first.len());
    let paged = tide.get("/v1/plugins/guest/versions?limit=1").await.is(200);
    assert_eq!(
        (paged["versions"].as_array().unwrap().len(), &paged["next_cursor"]),
        (1, &json!("1"))
    );

    assert_eq!(tide.post("/v1/plugins/guest/rollback", json!({})).await.is(200)["live"], 1);
    tide.post("/v1/plugins/guest/rollback", json!({}))
        .await
        .problem(404, "plugin_version_not_found");
    tide.post("/v1/plugins/guest/rollback", json!({"version": 9}))
        .await
        .problem(404, "plugin_version_not_found");
    tide.post("/v1/plugins/guest/rollback", json!({"to": 2})).await.blames(
        400,
        "unknown_field",
        "to",
    );
    assert_eq!(
        tide.post("/v1/plugins/guest/rollback", json!({"version": 2})).await.is(200)["live"],
        2
    );

    let back = tide.get("/v1/plugins/guest/versions/2/component").await;
    assert_eq!(
        (back.status, back.header("content-type"), back.body == second),
        (200, Some("application/wasm"), true)
    );
    tide.get("/v1/plugins/guest/versions/3/component")
        .await
        .problem(404, "plugin_version_not_found");
    tide.get("/v1/plugins/none").await.problem(404, "plugin_not_found");
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
async fn a_shadow_decides_nothing_and_its_differences_are_listed() {
    let tide = Tidegate::start().await;
    push(&tide, "share", region_share()).await.is(201);
    let path = "/v1/plugins/share?shadow=true";
    // It would run everything.
    let pushed = tide
        .send(
            Method::PUT,
            path,
            &[("content-type", "application/wasm")],
            Guest::throttler().component(),
        )
        .await
        .is(201);
    assert_eq!((&pushed["live"], &pushed["shadow"]), (&json!(1), &json!(2)));
    throttled(&tide, "share", shares(5)).await;
    regional(&tide, json!({})).await;
    let held = tide.enqueue(json!({"type": "t", "data": {"region": "south"}})).await;
    let runs = tide.enqueue(json!({"type": "t", "data": {"region": "east"}})).await;
    assert_eq!(tide.lease_one("t").await.id, runs);
    let compared = until(|| async {
        let compared = tide.get("/v1/plugins/share/differences").await.is(200);
        (compared["different"].as_u64() > Some(0), compared)
    })
    .await;
    let difference = &compared["differences"][0];
    assert_eq!(
        (&compared["version"], &difference["job"], &difference["queue"]),
        (&json!(2), &json!(held), &json!("default"))
    );
    assert_eq!(
        (&difference["live"]["action"], &difference["shadow"]["action"]),
        (&json!("hold"), &json!("run"))
    );
    assert_eq!(tide.job(&held).await["state"], "scheduled");
    let said = tide.cli(&["plugin", "differences", "share"]).await.ok();
    assert!(said.contains("version 2 beside the live one") && said.contains(&held), "{said}");

    tide.put("/v1/plugins/share/shadow", json!({"version": 1})).await.problem(400, "invalid_field");
    assert_eq!(tide.delete("/v1/plugins/share/shadow").await.is(200)["shadow"], Value::Null);
    assert_eq!(
        tide.put("/v1/plugins/share/shadow", json!({"version": 2})).await.is(200)["shadow"],
        2
    );
    assert_eq!(tide.cli(&["plugin", "shadow", "share", "off"]).await.code, Some(0));
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
    for _ in 0..20 {
        let free = tide.enqueue_a("free").await;
        let lease = tide.lease_one("free").await;
        assert_eq!(lease.id, free);
        tide.report(&lease, "succeeded").await.is(200);
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
async fn what_cannot_be_a_plugin_is_refused_with_every_reason() {
    let tide = Tidegate::start().await;
    let wasi =
        wat::parse_str(r#"(component (import "wasi:cli/environment@0.2.0" (instance)) (import "wasi:io/poll@0.2.0" (instance)))"#).unwrap();
    for (wasm, reasons) in [
        (b"hello".to_vec(), vec!["not WebAssembly"]),
        (Guest::throttler().module(), vec!["core module"]),
        (wasi, vec!["wasi:cli/environment", "wasi:io/poll"]),
        (Guest::throttler().version("0.9.0").component(), vec!["0.9.0"]),
        (
            Guest::throttler()
                .items("(func $begin (loop $forever (br $forever))) (start $begin)")
                .component(),
            vec!["250 ms"],
        ),
    ] {
        let problem = push(&tide, "bad", wasm).await.problem(400, "invalid_plugin");
        let told = problem["reasons"]
            .as_array()
            .unwrap()
            .iter()
            .map(|reason| reason.as_str().unwrap())
            .collect::<Vec<_>>()
            .join("\n");
        assert!(reasons.iter().all(|reason| told.contains(reason)), "{reasons:?} in {problem}");
    }
    tide.get("/v1/plugins/bad").await.problem(404, "plugin_not_found");
    push(&tide, "bad", vec![0; (32 << 20) + 1]).await.problem(413, "body_too_large");
    tide.put("/v1/plugins/bad", json!({})).await.problem(415, "unsupported_media_type");
    push(&tide, "tidegate.own", region_share()).await.problem(403, "forbidden");
    push(&tide, "a?shadow=perhaps", region_share()).await.blames(400, "invalid_field", "shadow");

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.wasm");
    std::fs::write(&file, b"hello").unwrap();
    let refused = tide.cli(&["plugin", "push", "bad", text(&file)]).await;
    assert_eq!(refused.code, Some(1));
    assert!(
        refused.err.contains("(invalid_plugin)\n  - ") && refused.err.contains("not WebAssembly"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_configuration_that_the_plugin_refuses_names_the_field() {
    let tide = Tidegate::start().await;
    let with = async |throttler: Value| {
        tide.put("/v1/queues/default", json!({ "throttler": throttler })).await
    };
    with(json!({"plugin": "share"})).await.blames(400, "invalid_field", "throttler.plugin");
    push(&tide, "share", region_share()).await.is(201);
    push(&tide, "again", Guest::retry().component()).await.is(201);
    let over = json!({"attribute": "region", "shares": {"east": 70, "west": 70}});
    with(json!({"plugin": "share", "config": over})).await.blames(
        400,
        "invalid_field",
        "throttler.config/shares",
    );
    with(json!({"plugin": "again"})).await.blames(400, "invalid_field", "throttler.plugin");
    with(json!({"plugin": "share", "config": shares(5), "on_fail": "run"})).await.blames(
        400,
        "unknown_field",
        "throttler.on_fail",
    );
    let retry = async |strategy: &str| {
        tide.put("/v1/job-types/t", json!({"retry": {"plugin": strategy}})).await
    };
    retry("share").await.blames(400, "invalid_field", "retry.plugin");
    retry("none").await.blames(400, "invalid_field", "retry.plugin");
    assert_eq!(retry("again").await.is(201)["retry"], json!({"plugin": "again", "config": {}}));
    let job = json!({"type": "t", "data": null, "retry": {"plugin": "none"}});
    tide.post("/v1/jobs", job).await.blames(400, "invalid_field", "retry.plugin");
    assert_eq!(
        tide.get("/v1/queues/default").await.is(200).get("throttler"),
        None,
        "nothing was changed"
    );
}

#[tokio::test]
async fn a_used_plugin_is_not_deleted_and_takes_no_breaking_version() {
    let tide = Tidegate::start().await;
    push(&tide, "share", region_share()).await.is(201);
    throttled(&tide, "share", shares(5)).await;
    let used = tide.delete("/v1/plugins/share").await.problem(409, "plugin_in_use");
    assert!(used["detail"].as_str().unwrap().contains("queue default"), "{used}");
    push(&tide, "share", Guest::retry().component()).await.problem(409, "plugin_in_use");
    // A list of one problem, at the path "" and without words.
    let picky = Guest::throttler().check("(local.set $r (call $alloc (i32.const 8))) (i32.store (local.get $r) (call $alloc (i32.const 16))) (i32.store offset=4 (local.get $r) (i32.const 1)) (local.get $r)");
    push(&tide, "share", picky.component()).await.problem(409, "config_refused");
    assert_eq!(tide.get("/v1/plugins/share").await.is(200)["live"], 1);
    tide.patch("/v1/queues/default", json!({"throttler": null})).await.is(200);
    tide.delete("/v1/plugins/share").await.is(204);
    tide.get("/v1/plugins/share").await.problem(404, "plugin_not_found");
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
        tide.get("/v1/plugins/broken/faults").await.is(200)["faults"][0]["call"]["retry"]["failed"]
            ["last"]["attempt"],
        1
    );
    assert_eq!(tide.get("/v1/plugins/at-once").await.is(200)["health"]["faults"], 0);
}

#[tokio::test]
async fn the_command_line_pushes_lists_and_follows() {
    use crate::plugins::guest::LOG;
    let tide = Tidegate::start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("guest.wasm");
    let logging =
        Guest::throttler().import(LOG).items(r#"(data (i32.const 2048) "decided")"#).decide(
            "(call $log (i32.const 1) (i32.const 2048) (i32.const 7)) (call $run (local.get $n))",
        );
    std::fs::write(&file, logging.component()).unwrap();
    assert_eq!(
        tide.cli(&["plugin", "push", "guest", text(&file)]).await.ok(),
        "version 1 of guest is live\n"
    );
    assert!(
        tide.cli(&["plugin", "push", "guest", text(&file)])
            .await
            .ok()
            .starts_with("these bytes are there already")
    );
    throttled(&tide, "guest", json!({})).await;
    tide.job_type("t", json!({})).await;
    tide.enqueue_a("t").await;
    tide.lease_one("t").await;
    let logged = tide.cli(&["plugin", "logs", "guest"]).await.ok();
    assert!(logged.contains(" v1 info  decided\n"), "{logged}");
    let last = tide.get("/v1/plugins/guest/logs?limit=1").await.is(200)["logs"][0]["number"]
        .as_u64()
        .unwrap();
    assert_eq!(
        tide.get(&format!("/v1/plugins/guest/logs?after={last}")).await.is(200)["logs"],
        json!([])
    );
    let listed = tide.cli(&["plugin", "list"]).await.ok();
    assert!(listed.contains("guest") && listed.contains("queue default"), "{listed}");
    std::fs::write(&file, rebuilt(logging.component(), 7)).unwrap();
    assert!(
        tide.cli(&["plugin", "push", "guest", text(&file), "--shadow"])
            .await
            .ok()
            .contains("in the shadow of version 1")
    );
    assert!(tide.cli(&["plugin", "versions", "guest"]).await.ok().contains("shadow"));
    assert_eq!(
        tide.cli(&["plugin", "rollback", "guest", "--to", "2"]).await.ok(),
        "version 2 of guest decides from the next round on\n"
    );
    assert_eq!(tide.cli(&["plugin", "get", "none"]).await.code, Some(4));
    assert_eq!(tide.cli(&["plugin", "delete", "guest"]).await.code, Some(1), "a queue uses it");
}

#[tokio::test]
async fn an_answer_refused_by_the_server_is_counted_with_its_call() {
    let tide = Tidegate::start().await;
    // It adds a seventeenth attribute: a job has sixteen at most.
    let body = "(local.set $r (call $alloc (i32.const 48))) (i32.store8 offset=24 (local.get $r) (i32.const 1))
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
        (&fault["kind"], &fault["call"]["retry"]["failed"]["job"]["id"]),
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

/// What a check of a component refuses, whatever its configuration, a push refuses too.
#[tokio::test]
async fn a_push_refuses_what_a_check_refuses() {
    let tide = Tidegate::start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.wasm");
    let start = |body: &str| {
        Guest::throttler().items(&format!("(func $begin {body}) (start $begin)")).component()
    };
    for (wasm, reason) in [
        (b"hello".to_vec(), "not WebAssembly"),
        (Guest::throttler().module(), "core module"),
        (Guest::throttler().version("0.9.0").component(), "0.9.0"),
        (start(FOREVER), "250 ms"),
        (start("(unreachable)"), "unreachable"),
        (Guest::throttler().schema("nonsense").component(), "config-schema"),
        (Guest::throttler().check(FOREVER).component(), "250 ms"),
        (Guest::throttler().check("(unreachable)").component(), "unreachable"),
        (Guest::retry().check("(unreachable)").component(), "unreachable"),
    ] {
        std::fs::write(&file, &wasm).unwrap();
        let checked = tide.cli(&["plugin", "check", text(&file)]).await;
        assert_eq!(checked.code, Some(1), "{reason}: {checked:?}");
        assert!(format!("{checked:?}").contains(reason), "{reason}: {checked:?}");
        let problem = push(&tide, "bad", wasm).await.problem(400, "invalid_plugin");
        assert!(problem["reasons"].to_string().contains(reason), "{reason}: {problem}");
    }
    tide.get("/v1/plugins/bad").await.problem(404, "plugin_not_found");
}

#[tokio::test]
async fn plugin_bench_shows_the_failing_size_and_the_use_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("small.wasm");
    let decide = "(if (i32.gt_u (local.get $n) (i32.const 100)) (then (unreachable))) (call $run (local.get $n))";
    std::fs::write(&file, Guest::throttler().decide(decide).component()).unwrap();
    let bench = |more: &[&str]| {
        super::serve::program([&["plugin", "bench", text(&file), "--calls", "2"], more].concat())
            .output()
            .unwrap()
    };
    let table = bench(&[]);
    let out = String::from_utf8(table.stdout).unwrap();
    assert_eq!(table.status.code(), Some(1), "{out}");
    assert!(out.contains("10000 running, 1000 candidates failed (trapped): "), "{out}");
    let told: Value = serde_json::from_slice(&bench(&["--json"]).stdout).unwrap();
    let failed: Vec<bool> = told["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["fault"]["kind"] == "trapped")
        .collect();
    assert_eq!(failed, [false, false, false, false, false, true]);
}
