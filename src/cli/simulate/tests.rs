use std::path::Path;

use serde_json::json;

use super::*;
use crate::cli::testing::FakeServer;
use tidegate_engine::simulate::policies::{Calls, FirstFault, LoggedLine};

const CONFIG: &str =
    r#"{"attribute": "region", "limit": 10, "shares": {"east": 40, "north": 30, "west": 30}}"#;

/// The path of a component that is shipped.
fn shipped(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("plugins/dist")
        .join(name)
        .to_str()
        .expect("a plain path")
        .to_owned()
}

/// Runs the command on a scenario and returns its exit code and its output. It sends no request.
async fn ran(scenario: &Json, args: &[&str]) -> (ExitCode, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), scenario.to_string()).unwrap();
    let server = FakeServer::answering(|_| (500, Json::Null)).await;
    let ran = server.run(&[&["simulate", file.path().to_str().unwrap()], args].concat()).await;
    assert!(server.seen().is_empty());
    ran
}

fn regions() -> Json {
    json!({
        "queue": {"concurrency": 10},
        "arrivals": [{
            "type": "t", "count": 60,
            "attributes": {"region": {"east": 5, "north": 3, "west": 2}},
        }],
        "service": [{"seconds": 10}],
        "expect": {
            "max_running": {"region=east": 4, "region=north": 3, "region=west": 3},
            "done_by_seconds": 200,
        },
    })
}

#[tokio::test]
async fn a_component_is_simulated_and_its_shares_hold() {
    let (code, out) =
        ran(&regions(), &["--plugin", &shipped("region-share.wasm"), "--config", CONFIG]).await;
    assert_eq!(code, ExitCode::Ok, "{out}");
    // The duration of calls depends on the machine.
    let kept: Vec<&str> = out
        .lines()
        .filter(|line| !line.starts_with("throttler ") && !line.contains("fuel median"))
        .collect();
    insta::assert_snapshot!(kept.join("\n"));
}

#[tokio::test]
async fn an_expectation_that_is_not_met_ends_with_code_1() {
    let (code, out) = ran(&regions(), &["--by", "region"]).await;
    assert_eq!(code, ExitCode::Refused);
    assert!(out.contains("NOT MET"), "{out}");
}

#[tokio::test]
async fn a_picture_must_go_to_an_svg_file() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["out.png", "out", "svg"] {
        let picture = dir.path().join(name);
        let (code, _) = ran(
            &regions(),
            &["--plugin", &shipped("region-share.wasm"), "--picture", picture.to_str().unwrap()],
        )
        .await;
        assert!(code == ExitCode::Usage && !picture.exists(), "{name}");
    }
}

#[tokio::test]
async fn two_versions_are_shown_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let picture = dir.path().join("out.svg");
    let args = [
        "--plugin",
        &shipped("region-share.wasm"),
        "--against",
        &shipped("rate-limit.wasm"),
        "--picture",
        picture.to_str().unwrap(),
    ];
    let json = json!({"queue": {"concurrency": 10}, "arrivals": [{"type": "t", "count": 3}]});
    let (code, out) = ran(&json, &args).await;
    // One component accepts the configuration, and the other rejects it.
    assert_eq!((code, out.as_str()), (ExitCode::Refused, ""), "{out}");
    let args = [
        "--plugin",
        &shipped("region-share.wasm"),
        "--against",
        &shipped("region-share.wasm"),
        "--config",
        CONFIG,
    ];
    let (code, out) =
        ran(&regions(), &[&args[..], &["--picture", picture.to_str().unwrap()]].concat()).await;
    assert_eq!(code, ExitCode::Ok, "{out}");
    assert!(
        out.contains("region-share.wasm (2)") && out.contains("0 jobs were decided differently"),
        "{out}"
    );
    let drawn = std::fs::read_to_string(&picture).unwrap();
    assert_eq!(drawn.matches("running, by region").count(), 2);
    let (_, out) = ran(&regions(), &[&args[..], &["--json"]].concat()).await;
    let printed: Json = serde_json::from_str(&out).unwrap();
    assert_eq!(printed["differing_jobs"], 0);
    assert_eq!(printed["simulated"]["groups"][0]["most_running"], 4);
    assert!(
        printed["simulated"]["calls"]["throttler"]["fuel"]["most"].as_u64() > Some(0),
        "{}",
        printed["simulated"]["calls"]
    );
}

#[tokio::test]
async fn two_configurations_of_one_component_are_shown_side_by_side() {
    let other = CONFIG.replace("\"limit\": 10", "\"limit\": 5");
    let share = shipped("region-share.wasm");
    let args = [
        "--plugin",
        &share,
        "--config",
        CONFIG,
        "--against",
        &share,
        "--against-config",
        &other,
        "--json",
    ];
    let (_, out) = ran(&regions(), &args).await;
    let printed: Json = serde_json::from_str(&out).unwrap();
    let most = |side: &str| printed[side]["groups"][0]["most_running"].clone();
    assert_eq!((most("simulated"), most("against")), (json!(4), json!(2)));
}

#[tokio::test]
async fn the_option_limit_is_drawn_and_expected() {
    let dir = tempfile::tempdir().unwrap();
    let picture = dir.path().join("out.svg");
    let mut trace = regions();
    trace.as_object_mut().unwrap().remove("expect");
    let share = shipped("region-share.wasm");
    let args = [
        "--plugin",
        &share,
        "--config",
        CONFIG,
        "--picture",
        picture.to_str().unwrap(),
        "--limit",
        "10",
    ];
    let (code, _) = ran(&trace, &[&args[..], &["--limit", "east=4"]].concat()).await;
    assert_eq!(code, ExitCode::Ok);
    let drawn = std::fs::read_to_string(&picture).unwrap();
    assert!(drawn.contains(">limit 4<") && drawn.contains(">limit 10<"), "{drawn}");
    let (code, out) = ran(&trace, &[&args[..], &["--limit", "east=3"]].concat()).await;
    assert!(code == ExitCode::Refused && out.contains("max_running region=east"), "{out}");
    assert!(limit("east").is_err() && limit("east=").is_err());
}

#[tokio::test]
async fn a_retry_strategy_is_simulated() {
    let scenario = json!({
        "arrivals": [{"type": "t", "count": 4}],
        "service": [{"seconds": 1, "failure": {"rate": 1}}],
        "expect": {"failed": 4},
    });
    let (code, out) =
        ran(&scenario, &["--retry-plugin", &shipped("exponential.wasm"), "--json"]).await;
    assert_eq!(code, ExitCode::Ok, "{out}");
    let printed: Json = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&printed["simulated"]["all"]["retries"], &printed["simulated"]["calls"]["retry"]["calls"]),
        (&json!(8), &json!(8))
    );
}

#[tokio::test]
async fn scenarios_are_simulated_one_after_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let met = json!({"arrivals": [{"type": "t", "count": 1}]});
    let mut unmet = met.clone();
    unmet["expect"] = json!({"failed": 2});
    std::fs::write(path("a.json"), met.to_string()).unwrap();
    std::fs::write(path("b.json"), unmet.to_string()).unwrap();
    let server = FakeServer::answering(|_| (500, Json::Null)).await;
    let (a, b) = (path("a.json"), path("b.json"));
    let (code, out) = server.run(&["simulate", &b, &a]).await;
    assert_eq!(code, ExitCode::Refused, "{out}");
    let [first, second] = [&b, &a].map(|name| out.find(&format!("{name}\n")).unwrap());
    assert!(first < second, "{out}");
    let (code, out) = server.run(&["simulate", &a, &a, "--json"]).await;
    let printed: Vec<Json> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((code, printed.len(), &printed[1]["scenario"]), (ExitCode::Ok, 2, &json!(a)));
    let picture = path("out.svg");
    let (code, _) = server.run(&["simulate", &a, &b, "--picture", &picture]).await;
    assert!(code == ExitCode::Usage && !Path::new(&picture).exists());
    // The command of plugins with this name is gone.
    assert_eq!(server.run(&["plugin", "simulate", &a, "--json"]).await.0, ExitCode::Usage);
}

#[test]
fn a_fault_is_shown_in_full_with_the_log_of_its_call() {
    let line = |at_seconds: f64, message: &str| LoggedLine {
        at_seconds,
        level: "warn",
        message: message.to_owned(),
    };
    let long = "x".repeat(300);
    let calls = Calls {
        first_fault: Some(FirstFault {
            at_seconds: 12.5,
            kind: "rejected".into(),
            message: format!("state k: full\n{long}"),
            log: vec![line(12.5, "the bucket is full\nforged")],
        }),
        logged: 7,
        log: vec![line(0.0, "one"), line(12.5, "two")],
        ..Calls::default()
    };
    let fault = table::first_fault("throttler", &calls).unwrap();
    assert!(
        fault.starts_with("first fault of the throttler, at 12.5 s: rejected: state k: full\n")
    );
    assert!(fault.contains(&long), "{fault}");
    assert!(fault.contains("\n  warn  the bucket is full\n"), "{fault}");
    assert!(!fault.contains("\nforged"), "{fault}");
    let log = table::log("throttler", &calls, 1).unwrap();
    assert_eq!(log, "log of the throttler; 6 more lines follow:\n         0 s warn  one");
    assert_eq!(table::log("throttler", &calls, 0), None);
}

#[tokio::test]
async fn an_invalid_scenario_is_wrong_usage() {
    let throttled = json!({"queue": {"throttler": {"plugin": "region-share"}}});
    for (scenario, args) in [
        (json!({"sed": 1}), &[][..]),
        (throttled, &[]),
        (json!({"types": {"t": {"retry": {"plugin": "by-error"}}}}), &[]),
        (json!({}), &["--against", "a.wasm"]),
        (json!({}), &["--plugin", "/no/such.wasm"]),
        (json!({}), &["--plugin", &shipped("exponential.wasm")]),
    ] {
        assert_eq!(ran(&scenario, args).await.0, ExitCode::Usage, "{scenario} {args:?}");
    }
}
