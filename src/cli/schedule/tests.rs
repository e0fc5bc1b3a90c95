use serde_json::json;

use super::*;
use crate::cli::testing::{FakeServer, sample};

#[test]
fn schedules_are_listed_with_what_is_next() {
    let schedules = [
        json!({"every_seconds": 1.5, "next": ["2001-09-09T01:46:43Z"],
            "last_occurrence": "2001-09-09T01:46:35Z", "missed_count": 3,
            "last_error": {"message": "there is no job type ping",
                "occurrence": "2001-09-09T01:46:40Z", "at": "2001-09-09T01:46:40Z"}}),
        json!({"name": "nightly", "type": "report", "cron": "0 3 * * *",
            "tz": "Europe/Berlin", "paused": true}),
    ];
    let schedules = schedules
        .map(|changes| serde_json::from_str(&sample::schedule(changes).to_string()).unwrap());
    insta::assert_snapshot!(render(
        OutputStyle::default(),
        &schedules,
        Timestamp::from_millis(1_000_000_000_000)
    ));
}

#[tokio::test]
async fn options_come_on_top_of_settings() {
    let server =
        FakeServer::answering(|_| (201, sample::schedule(json!({"name": "nightly"})))).await;
    let put = [
        "schedule",
        "put",
        "nightly",
        "--config",
        r#"{"type": "old", "max_attempts": 5}"#,
        "--type",
        "report",
        "--cron",
        "0 3 * * *",
    ];
    let (code, _) = server
        .run(
            &[&put[..], &["--tz", "Europe/Berlin", "--data", "{\"n\": 1.0}", "--missed", "skip"]]
                .concat(),
        )
        .await;
    assert_eq!(code, ExitCode::Ok);
    let seen = server.seen().remove(0);
    assert_eq!(seen.line(), "PUT /v1/schedules/nightly");
    let wanted = json!({
        "type": "report", "max_attempts": 5, "cron": "0 3 * * *", "tz": "Europe/Berlin",
        "data": {"n": 1.0}, "missed": "skip",
    });
    assert_eq!(seen.body, wanted);
}

#[tokio::test]
async fn a_rule_says_what_is_next_without_a_server() {
    let server = FakeServer::answering(|_| (500, json!({}))).await;
    let rule = [
        "schedule",
        "next",
        "--cron",
        "30 2 * * *",
        "--tz",
        "Europe/Berlin",
        "--from",
        "2026-03-27T12:00:00Z",
        "--count",
        "3",
    ];
    let (code, out) = server.run(&rule).await;
    assert_eq!(code, ExitCode::Ok);
    let lines: Vec<_> = out
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
        .collect();
    let wanted = [
        "2026-03-28T01:30:00.000Z 2026-03-28 02:30:00",
        "2026-03-29T01:00:00.000Z 2026-03-29 03:00:00",
    ];
    assert_eq!(lines[..2], wanted, "{out}");
    let (_, out) = server
        .run(&[
            "schedule",
            "next",
            "--every",
            "90s",
            "--from",
            "1970-01-01T00:00:00Z",
            "--count",
            "2",
            "--json",
        ])
        .await;
    assert_eq!(out.trim(), r#"{"next":["1970-01-01T00:01:30.000Z","1970-01-01T00:03:00.000Z"]}"#);
    assert!(server.seen().is_empty());
    assert_eq!(server.run(&["schedule", "next", "--cron", "every day"]).await.0, ExitCode::Usage);
}

#[tokio::test]
async fn a_schedule_is_operated_by_its_name() {
    let server = FakeServer::answering(|seen| match seen.path.as_str() {
        "/v1/schedules/beat/run" => (200, sample::job(json!({"id": "beat:run.1"}))),
        _ => (200, sample::schedule(json!({"next": ["2026-03-28T01:30:00Z"]}))),
    })
    .await;
    for (command, line, out) in [
        ("pause", "POST /v1/schedules/beat/pause", "beat is paused"),
        ("resume", "POST /v1/schedules/beat/resume", "beat is resumed from now"),
        ("run", "POST /v1/schedules/beat/run", "beat:run.1"),
        ("delete", "DELETE /v1/schedules/beat", "beat is deleted"),
        ("next", "GET /v1/schedules/beat", "occurs at"),
    ] {
        let (code, said) = server.run(&["schedule", command, "beat"]).await;
        assert_eq!(code, ExitCode::Ok);
        assert!(said.starts_with(out), "{said}");
        assert_eq!(server.seen().last().unwrap().line(), line);
    }
}
