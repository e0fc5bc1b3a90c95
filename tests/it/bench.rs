//! `tidegate bench` as a program: small measures, whose figures a script can read.

use std::process::Command;

use serde_json::Value;

fn figures(arguments: &[&str]) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["bench", "--json", "--seconds", "0.3", "--dir"])
        .arg(dir.path())
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "what the servers wrote is gone");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn figure<'a>(figures: &'a [Value], what: &str) -> &'a Value {
    figures.iter().find(|figure| figure["what"].as_str().unwrap().starts_with(what)).unwrap()
}

#[test]
fn an_enqueue_is_compared_with_the_bare_handler() {
    let figures = figures(&["enqueue"]);
    let rate = figure(&figures, "enqueue, 64");
    assert!(
        rate["ours"].as_f64().unwrap() > 0.0 && rate["baseline"]["value"].as_f64().unwrap() > 0.0,
        "{rate}"
    );
    assert_eq!(
        (rate["reach"].as_f64(), rate["baseline"]["reach"].as_f64()),
        (Some(15_000.0), Some(0.5))
    );
}

#[test]
fn twenty_workers_do_not_get_past_a_limit_of_ten() {
    let figures = figures(&["limit"]);
    let most = figure(&figures, "most at once")["ours"].as_f64().unwrap();
    assert!((1.0..=10.0).contains(&most), "{most}");
}

#[test]
fn rickovers_method_drains_what_it_enqueued() {
    let figures = figures(&["--drain", "300", "--clients", "7"]);
    assert!(figure(&figures, "drain 300 with 7 workers")["ours"].as_f64().unwrap() > 0.0);
}

#[test]
fn events_are_compared_with_enqueues() {
    let figures = figures(&["events"]);
    let rate = figure(&figures, "events, batches of 1000");
    assert!(
        rate["ours"].as_f64().unwrap() > 0.0 && rate["baseline"]["value"].as_f64().unwrap() > 0.0,
        "{rate}"
    );
}
