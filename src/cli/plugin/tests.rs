//! The commands that read a component from a file, with a shipped component and with invalid files.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::cli::{ExitCode, testing::FakeServer};

const CONFIG: &str =
    r#"{"attribute": "region", "limit": 100, "shares": {"east": 40, "north": 30, "west": 30}}"#;

/// Returns the path of a component that is shipped.
fn shipped() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("plugins/dist/region-share.wasm")
        .to_str()
        .unwrap()
        .to_owned()
}

async fn plugin(args: &[&str]) -> (ExitCode, String) {
    let server = FakeServer::answering(|_| (500, Value::Null)).await;
    let ran = server.run(&[&["plugin"], args].concat()).await;
    assert!(server.seen().is_empty(), "it sends no request");
    ran
}

async fn plugin_json(args: &[&str]) -> (ExitCode, Value) {
    let (code, out) = plugin(&[args, &["--json"]].concat()).await;
    (code, serde_json::from_str(&out).unwrap())
}

#[tokio::test]
async fn a_check_shows_the_description_and_the_cost_of_a_call() {
    let (code, out) = plugin(&["check", &shipped(), "--config", CONFIG]).await;
    assert_eq!(code, ExitCode::Ok, "{out}");
    for part in ["imports tidegate:plugin/", "throttler: ", "a call with one job: ", " fuel, "] {
        assert!(out.contains(part), "{part} in {out}");
    }
}

#[tokio::test]
async fn a_check_shows_the_problems_of_a_configuration() {
    let (code, found) = plugin_json(&[
        "check",
        &shipped(),
        "--config",
        r#"{"attribute": "region", "shares": {"east": 70, "west": 70}}"#,
    ])
    .await;
    assert_eq!(code, ExitCode::Refused);
    let problems = found["roles"][0]["problems"].as_array().unwrap();
    assert!(problems.iter().any(|problem| problem["path"] == "/shares"), "{problems:?}");
    assert_eq!(found["roles"][0]["usage"], Value::Null);
}

#[tokio::test]
async fn a_file_that_is_not_a_component_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.wasm");
    for bytes in [&b"hello"[..], b"\0asm\x01\0\0\0"] {
        fs::write(&file, bytes).unwrap();
        for command in ["check", "bench"] {
            assert_eq!(
                plugin(&[command, file.to_str().unwrap()]).await,
                (ExitCode::Refused, String::new())
            );
        }
    }
    assert_eq!(plugin(&["check", "/no/such.wasm"]).await.0, ExitCode::Usage);
}

#[tokio::test]
async fn a_failed_case_is_shown_with_its_differences() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins/region-share/cases");
    let (code, out) = plugin(&["test", &shipped(), cases.to_str().unwrap()]).await;
    assert_eq!(code, ExitCode::Ok, "{out}");
    assert!(out.contains("ok  ") && out.trim_end().ends_with(" cases, 0 failed"), "{out}");

    let dir = tempfile::tempdir().unwrap();
    let config: Value = serde_json::from_str(CONFIG).unwrap();
    let case = |name: &str, expect: Value| {
        json!({
            "name": name, "role": "throttler", "config": config,
            "candidates": [{"attributes": {"region": "east"}}], "expect": expect,
        })
    };
    let cases = json!([case("right", json!({"runs": 1})), case("wrong", json!({"runs": 0}))]);
    fs::write(dir.path().join("cases.json"), cases.to_string()).unwrap();
    let (code, printed) = plugin_json(&["test", &shipped(), dir.path().to_str().unwrap()]).await;
    assert_eq!((code, &printed["ok"]), (ExitCode::Refused, &json!(false)));
    assert_eq!(
        (&printed["cases"][0]["ok"], &printed["cases"][1]["wrong"]),
        (&json!(true), &json!(["1 of 1 candidates run; expected 0"]))
    );

    fs::write(dir.path().join("cases.json"), "[]").unwrap();
    assert_eq!(
        plugin(&["test", &shipped(), dir.path().to_str().unwrap()]).await.0,
        ExitCode::Usage
    );
}

#[tokio::test]
async fn a_bench_has_a_row_for_each_size() {
    let args = [
        "bench",
        &shipped(),
        "--config",
        CONFIG,
        "--attribute",
        "region=east,north,west",
        "--calls",
        "2",
    ];
    let (code, printed) = plugin_json(&args).await;
    assert_eq!(code, ExitCode::Ok);
    let rows = printed["rows"].as_array().unwrap();
    let fuel: Vec<u64> = rows.iter().map(|row| row["fuel"].as_u64().unwrap()).collect();
    assert_eq!(rows.len(), 6);
    assert!(fuel[0] < fuel[2] && fuel[2] < fuel[5], "{fuel:?}");
    let (code, table) = plugin(&args).await;
    assert_eq!(code, ExitCode::Ok);
    assert!(table.contains("10000 running, 1000 candidates"), "{table}");
    assert_eq!(plugin(&["bench", &shipped()]).await.0, ExitCode::Usage);
}
