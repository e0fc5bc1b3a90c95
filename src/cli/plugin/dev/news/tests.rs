//! What is new is returned once, and survives a restart of the server.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::cli::testing::{FakeServer, sample};

fn line(number: u64, version: u32) -> Value {
    json!({
        "number": number, "at": "2026-01-01T00:00:00Z", "version": version,
        "role": "throttler", "level": "info", "message": format!("line {number}"),
    })
}

fn failed_call(version: u32, shadow: bool, message: &str) -> Value {
    json!({
        "id": message, "reason": "fault", "at": "2026-01-01T00:00:00Z", "version": version,
        "shadow": shadow, "role": "throttler", "queue": "mail", "decided": {}, "log": [],
        "redacted": [], "fault": {"kind": "trapped", "message": message},
        "usage": {"fuel": 1, "took_seconds": 0.1, "memory_bytes": 1, "host_calls": 1},
    })
}

fn difference(job: &str, shadow: &str, second: u8) -> Value {
    json!({
        "queue": "mail", "job": job, "at": format!("2026-01-01T00:00:0{second}Z"),
        "live": {"action": "run"}, "shadow": {"action": shadow, "reason": "east is full"},
    })
}

/// The news of version 2 in answers with these lines, calls and differences.
fn news(feed: &mut Feed, lines: Value, calls: Option<Value>, differences: &[Value]) -> News {
    let comparison = json!({
        "version": 2, "compared": 9, "different": differences.len(), "failed": 0, "missed": 0,
        "differences": differences,
    });
    let calls = calls.map(|calls| serde_json::from_value(calls).unwrap());
    feed.sorted_out(Answers {
        lines: serde_json::from_value(lines).unwrap(),
        faults: (1, calls),
        comparison: serde_json::from_value(comparison).unwrap(),
    })
}

#[test]
fn lines_and_faults_of_other_versions_are_left_out() {
    let mut feed = Feed::new(2);
    let calls = json!([
        failed_call(2, true, "second"),
        failed_call(1, false, "live"),
        failed_call(2, false, "live before"),
        failed_call(2, true, "first"),
    ]);
    let found = news(&mut feed, json!([line(1, 2), line(2, 1)]), Some(calls.clone()), &[]);
    let lines: Vec<u64> = found.lines.iter().map(|line| line.number).collect();
    let faults: Vec<&str> = found.faults.iter().map(|fault| &*fault.message).collect();
    assert_eq!((lines, faults, feed.line), (vec![1], vec!["first", "second"], 2));
    let mut calls = calls.as_array().unwrap().clone();
    calls.insert(0, failed_call(2, true, "third"));
    let found = news(&mut feed, json!([]), Some(calls.into()), &[]);
    assert_eq!((found.faults.len(), &*found.faults[0].message), (1, "third"));
    assert_eq!(feed.line, 2);
}

#[test]
fn a_job_differs_once_until_a_decision_changes() {
    let mut feed = Feed::new(2);
    let mut jobs = |differences: &[Value]| -> Option<Vec<String>> {
        let found = news(&mut feed, json!([]), None, differences).comparison?;
        Some(found.differences.iter().map(|one| one.job.to_string()).collect())
    };
    let named = |jobs: &[&str]| Some(jobs.iter().map(|job| (*job).to_owned()).collect());
    assert_eq!(jobs(&[]), named(&[]), "the first comparison is worth a line");
    assert_eq!(jobs(&[]), None);
    assert_eq!(jobs(&[difference("b", "hold", 2), difference("a", "hold", 1)]), named(&["a", "b"]));
    // The next tick holds it again.
    assert_eq!(jobs(&[difference("b", "hold", 4), difference("a", "hold", 3)]), None);
    assert_eq!(jobs(&[difference("a", "drop", 5), difference("b", "hold", 4)]), named(&["a"]));
    let other = json!({
        "version": 3, "compared": 1, "different": 1, "failed": 0, "missed": 0,
        "differences": [difference("c", "hold", 6)],
    });
    let other = serde_json::from_value(other).unwrap();
    assert!(feed.new_differences(other).is_none(), "it is about another version");
}

#[test]
fn what_is_new_is_printed_line_by_line() {
    let found: Vec<Value> =
        (0..22).map(|n| difference(&format!("j{n:02}"), "hold", 1)).rev().collect();
    let mut feed = Feed::new(2);
    let calls = json!([failed_call(2, true, "no\nshare")]);
    let found = news(&mut feed, json!([line(1, 2)]), Some(calls), &found);
    let fault = Printed::Fault(&found.faults[0]).text("share");
    assert_eq!(fault, "2026-01-01T00:00:00.000Z v2 fault trapped: no\n    share");
    let text = Printed::Comparison(found.comparison.as_ref().unwrap()).text("share");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        (lines.len(), lines[0]),
        (
            22,
            "2026-01-01T00:00:01.000Z v2 job j00 of mail: run live, hold (east is full) in the \
             shadow"
        )
    );
    assert_eq!(lines[20], "2 more: `tidegate plugin differences share`");
    assert!(lines[21].starts_with("version 2 and the live one: 9 decisions compared, 22"));
    let json = serde_json::to_value(Printed::Log(&found.lines[0])).unwrap();
    assert_eq!(json["log"]["message"], "line 1");
}

#[tokio::test]
async fn a_log_that_starts_again_is_read_from_its_start() {
    let last = AtomicUsize::new(0);
    let server = FakeServer::answering(move |request| {
        let path = request.path.as_str();
        if path.ends_with("/differences") {
            let none = json!({
                "version": 2, "compared": 0, "different": 0, "failed": 0, "missed": 0,
                "differences": [],
            });
            return (200, none);
        }
        // The server has 7 lines, then starts again and has 2.
        let lines = match (path, last.fetch_add(1, Ordering::SeqCst)) {
            ("/v1/plugins/share/logs?limit=1", 0 | 2) => json!([line(7, 2)]),
            ("/v1/plugins/share/logs?limit=1000&after=0", 1) => json!([line(6, 2), line(7, 2)]),
            ("/v1/plugins/share/logs?limit=1", 3) => json!([line(2, 2)]),
            ("/v1/plugins/share/logs?limit=1000&after=0", 4) => json!([line(1, 2), line(2, 2)]),
            _ => return (500, Value::Null),
        };
        (200, json!({"logs": lines}))
    })
    .await;
    let plugin = sample::plugin(json!({"live": 1, "shadow": 2}));
    let plugin: PluginView = serde_json::from_value(plugin).unwrap();
    let (client, mut feed) = (server.client(), Feed::new(2));
    for expected in [vec![6, 7], vec![], vec![1, 2]] {
        let found = feed.next(&client, &plugin).await.unwrap();
        let lines: Vec<u64> = found.lines.iter().map(|line| line.number).collect();
        assert_eq!(lines, expected);
    }
}
