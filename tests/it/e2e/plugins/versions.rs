//! Versions of a plugin: swap, rollback, shadow, and the commands for them.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};

use super::{push, region_share, regional, shares, throttled};
use crate::{
    e2e::{
        serve::{Tidegate, text},
        target::Target,
        wait::{eventually, until},
    },
    plugins::guest::Guest,
};

/// How much longer than usual no job may start while versions are swapped. It covers loading the
/// other version in an unoptimised build, next to other tests. It is far below 5 s, the interval of
/// ticks without a request.
const MORE: Duration = Duration::from_millis(750);

/// The same component in other bytes: with one more, unused custom section.
pub(super) fn rebuilt(mut wasm: Vec<u8>, mark: u8) -> Vec<u8> {
    wasm.extend([0, 3, 1, b'm', mark]);
    wasm
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
    assert!(said.contains("version 2 and the live one") && said.contains(&held), "{said}");

    tide.put("/v1/plugins/share/shadow", json!({"version": 1})).await.problem(400, "invalid_field");
    assert_eq!(tide.delete("/v1/plugins/share/shadow").await.is(200)["shadow"], Value::Null);
    assert_eq!(
        tide.put("/v1/plugins/share/shadow", json!({"version": 2})).await.is(200)["shadow"],
        2
    );
    assert_eq!(tide.cli(&["plugin", "shadow", "share", "off"]).await.code, Some(0));
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
            .starts_with("the server has these bytes already")
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
            .contains("is the shadow of version 1")
    );
    assert!(tide.cli(&["plugin", "versions", "guest"]).await.ok().contains("shadow"));
    assert_eq!(
        tide.cli(&["plugin", "rollback", "guest", "--to", "2"]).await.ok(),
        "version 2 of guest is live from the next tick on\n"
    );
    assert_eq!(tide.cli(&["plugin", "get", "none"]).await.code, Some(4));
    assert_eq!(tide.cli(&["plugin", "delete", "guest"]).await.code, Some(1), "a queue uses it");
}
