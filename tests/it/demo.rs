//! The demo as a user runs it: the built binary, over real HTTP, to its table.

use std::process::{Command, Output};

use serde_json::Value;

/// Runs `tidegate demo`, small, and with patience for a busy machine.
fn demo(args: &[&str]) -> (Output, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command
        .args(["demo", "--json", "--jobs", "40", "--lateness", "10s", "--port", "0"])
        .args(args)
        .stdin(std::process::Stdio::null());
    let output = command.output().unwrap();
    let table = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output, table)
}

/// Every promise was kept, and the exit code reports it.
fn kept((output, table): &(Output, Value)) -> usize {
    let rows = table["rows"].as_array().unwrap();
    let broken: Vec<&Value> = rows.iter().filter(|row| row["ok"] != true).collect();
    assert!(broken.is_empty(), "{broken:#?}");
    assert_eq!((output.status.code(), &table["ok"]), (Some(0), &Value::Bool(true)), "{output:?}");
    rows.len()
}

#[test]
fn the_demo_keeps_every_promise_and_leaves_its_data() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let run = demo(&["--data", data.to_str().unwrap()]);
    assert!(kept(&run) >= 19, "{:#}", run.1);
    assert!(data.join("tidegate.db").exists());
}

#[test]
fn the_demo_keeps_every_promise_through_a_kill_of_its_server() {
    let run = demo(&["--kill"]);
    kept(&run);
    let rows = run.1["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["what"] == "kill -9 of the server"), "{rows:#?}");
}

/// Without a URL, the log is in a temporary directory.
#[test]
fn the_demo_keeps_every_promise_when_a_machine_is_lost() {
    let run = demo(&["--bucket"]);
    kept(&run);
    let rows = run.1["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["what"] == "leader killed, its disk lost"), "{rows:#?}");
}

#[test]
fn a_broken_promise_sets_the_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let (output, table) = demo(&["--within", "1s", "--data", dir.path().to_str().unwrap()]);
    assert_eq!((output.status.code(), &table["ok"]), (Some(1), &Value::Bool(false)), "{table:#}");
}
