//! What the server refuses: components, configurations and removals.

use serde_json::{Value, json};

use super::{push, region_share, shares, throttled};
use crate::{
    e2e::serve::{Tidegate, program, text},
    plugins::guest::{FOREVER, Guest},
};

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
                .items(&format!("(func $begin {FOREVER}) (start $begin)"))
                .component(),
            vec!["250 ms"],
        ),
    ] {
        let problem = push(&tide, "bad", wasm).await.problem(400, "invalid_plugin");
        let reported = problem["reasons"]
            .as_array()
            .unwrap()
            .iter()
            .map(|reason| reason.as_str().unwrap())
            .collect::<Vec<_>>()
            .join("\n");
        assert!(reasons.iter().all(|reason| reported.contains(reason)), "{reasons:?} in {problem}");
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

/// A push refuses every component that a check refuses, whatever its configuration.
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
        program([&["plugin", "bench", text(&file), "--calls", "2"], more].concat())
            .output()
            .unwrap()
    };
    let table = bench(&[]);
    let out = String::from_utf8(table.stdout).unwrap();
    assert_eq!(table.status.code(), Some(1), "{out}");
    assert!(out.contains("10000 running, 1000 candidates failed (trapped): "), "{out}");
    let reported: Value = serde_json::from_slice(&bench(&["--json"]).stdout).unwrap();
    let failed: Vec<bool> = reported["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["fault"]["kind"] == "trapped")
        .collect();
    assert_eq!(failed, [false, false, false, false, false, true]);
}
