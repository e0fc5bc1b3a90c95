//! Attacks over HTTP: names, many pushes at once, a shadow that loops, forged lines of the log.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;

use super::{push, throttled, versions::rebuilt};
use crate::{
    e2e::{serve::Tidegate, wait::until},
    plugins::guest::{FOREVER, Guest, LOG},
};

#[tokio::test]
async fn names_that_are_no_names_are_refused_and_write_nothing() {
    let tide = Tidegate::start().await;
    let component = Guest::throttler().component();
    let long = "a".repeat(65);
    for name in [
        "..%2Fx",
        "..%5Cx",
        "%2E%2E%2F%2E%2E%2Fetc%2Fpasswd",
        "a%2Fb",
        "a%00b",
        "a%0Ab",
        "a%20b",
        "%20",
        "%E2%80%AEevil",
        "%F0%9F%92%A3",
        "%FF%FE",
        "%1B%5B2J",
        "a%3Fb",
        "a/b/c",
        "",
        &long,
    ] {
        let path = format!("/v1/plugins/{name}");
        let api = tide.patient().unchecked();
        let headers = [("content-type", "application/wasm")];
        let answer = api.send(Method::PUT, &path, &headers, component.clone()).await;
        assert!(
            [400, 404, 405].contains(&answer.status),
            "{name}: {} {}",
            answer.status,
            String::from_utf8_lossy(&answer.body)
        );
    }
    assert_eq!(tide.get("/v1/plugins").await.is(200)["plugins"], json!([]));
}

#[tokio::test]
async fn twenty_pushes_of_one_name_become_twenty_versions() {
    let tide = Tidegate::start().await;
    let component = Guest::throttler().component();
    let pushes = (0..20).map(|mark| push(&tide, "many", rebuilt(component.clone(), mark)));
    for answer in join_all(pushes).await {
        answer.is(201);
    }
    let versions = tide.get("/v1/plugins/many/versions").await.is(200);
    let numbers: BTreeSet<u64> = versions["versions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|version| version["number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (1..=20).collect());
}

#[tokio::test]
async fn pushes_and_deletions_at_once_leave_whole_plugins() {
    let tide = Tidegate::start().await;
    let component = Guest::throttler().component();
    let path = |turn: u8| format!("/v1/plugins/p{}", turn % 3);
    let pushes = (0..12).map(|turn| {
        let (api, path, wasm) = (tide.patient(), path(turn), rebuilt(component.clone(), turn));
        async move {
            let headers = [("content-type", "application/wasm")];
            api.send(Method::PUT, &path, &headers, wasm).await
        }
    });
    let deletions = (0..6).map(|turn| {
        let (api, path) = (tide.patient(), path(turn));
        async move { api.delete(&path).await }
    });
    let (pushed, deleted) = tokio::join!(join_all(pushes), join_all(deletions));
    for answer in pushed.iter().chain(&deleted) {
        assert!(
            [200, 201, 204, 404, 409].contains(&answer.status),
            "{} {}",
            answer.status,
            String::from_utf8_lossy(&answer.body)
        );
    }
    let listed = tide.get("/v1/plugins").await.is(200);
    for plugin in listed["plugins"].as_array().unwrap() {
        let (name, live) = (plugin["name"].as_str().unwrap(), &plugin["live"]);
        let answer = tide.get(&format!("/v1/plugins/{name}/versions/{live}/component")).await;
        assert!(answer.status == 200 && answer.body.starts_with(b"\0asm"), "{plugin}");
    }
}

#[tokio::test]
async fn a_shadow_that_loops_does_not_hold_up_its_queue() {
    let tide = Tidegate::start().await;
    push(&tide, "guest", Guest::throttler().component()).await.is(201);
    let looping = Guest::throttler().decide(FOREVER).component();
    let headers = [("content-type", "application/wasm")];
    let path = "/v1/plugins/guest?shadow=true";
    tide.patient().send(Method::PUT, path, &headers, looping).await.is(201);
    throttled(&tide, "guest", json!({})).await;
    tide.job_type("t", json!({})).await;
    for _ in 0..20 {
        let id = tide.enqueue_a("t").await;
        let lease = tide.lease_one("t").await;
        assert_eq!(lease.id, id);
        tide.report(&lease, "succeeded").await.is(200);
    }
    let compared = until(|| async {
        let compared = tide.get("/v1/plugins/guest/differences").await.is(200);
        (compared["failed"].as_u64() > Some(0), compared)
    })
    .await;
    assert_eq!(compared["different"], 0, "{compared}");
    let plugin = tide.get("/v1/plugins/guest").await.is(200);
    assert_eq!(plugin["health"]["faults"], 0, "{plugin}");
}

#[tokio::test]
async fn forged_lines_and_control_characters_are_shown_escaped() {
    // It clears the screen, and adds a line that looks like one of the server.
    let forged = "\u{1b}[2J\u{1b}[31mred\u{202e}\n2026-01-01T00:00:00Z v1 error  forged";
    let wat = forged.bytes().fold(String::new(), |mut text, byte| {
        use std::fmt::Write as _;
        write!(text, "\\{byte:02x}").unwrap();
        text
    });
    let len = forged.len();
    let guest = Guest::throttler()
        .import(LOG)
        .items(&format!(r#"(data (i32.const 2048) "{wat}")"#))
        .decide(&format!(
            "(call $log (i32.const 1) (i32.const 2048) (i32.const {len}))
             (local.set $r (call $run (local.get $n)))
             (i32.store8 (call $first (local.get $r)) (i32.const 1))
             (i32.store8 offset=24 (call $first (local.get $r)) (i32.const 1))
             (i32.store offset=28 (call $first (local.get $r)) (i32.const 2048))
             (i32.store offset=32 (call $first (local.get $r)) (i32.const {len})) (local.get $r)"
        ));
    let tide = Tidegate::start().await;
    push(&tide, "forger", guest.component()).await.is(201);
    throttled(&tide, "forger", json!({})).await;
    tide.job_type("t", json!({})).await;
    let id = tide.enqueue_a("t").await;
    assert!(tide.lease(json!({"types": ["t"]})).await.is_empty());
    let logs = until(|| async {
        let logs = tide.get("/v1/plugins/forger/logs").await.is(200);
        (logs["logs"].as_array().is_some_and(|lines| !lines.is_empty()), logs)
    })
    .await;
    assert_eq!(logs["logs"][0]["message"], forged, "an API changes no text");

    for args in [&["plugin", "logs", "forger"][..], &["jobs", "explain", &id]] {
        let shown = tide.cli(args).await.ok();
        assert!(shown.contains("forged"), "{args:?}: {shown}");
        let forged_line = shown.lines().any(|line| line.starts_with("2026-01-01"));
        let control = shown.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}');
        assert!(!forged_line && !control, "{args:?}: {shown:?}");
    }
    // No worker waits for the job at this moment, and yet the throttler is what holds it.
    let why = tide.explain("t", &id).await;
    assert_eq!(why["held_by"], json!({"kind": "throttler", "name": "forger"}));
    assert_eq!((&why["workers"]["known"], &why["workers"]["polling"]), (&json!(1), &json!(0)));
}
