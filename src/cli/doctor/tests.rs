use std::{path::Path, time::Duration};

use serde_json::{Value, json};

use crate::cli::{
    ExitCode,
    testing::{FakeServer, sample},
};
use tidegate_backends::{http::Guard, sqlite::database, system::SystemClock};
use tidegate_core::{
    job::{Payload, type_config::TypeConfig},
    port::Clock,
    queue::QueueConfig,
};
use tidegate_engine::{request::NewJob, testkit::builders::name};
use tidegate_server::runtime::Server;

/// A queue that is paused, and one with the limit 0.
fn queues() -> [Value; 2] {
    let mail = sample::queue_status(json!({"depth": {"scheduled": 7}}));
    let slow = sample::queue_status(json!({
        "held": [{
            "kind": "worker", "jobs": 3, "types": {"short": 3}, "reason": "none is known",
        }],
        "oldest_due_at": "2001-01-01T00:00:00Z", "desired_workers": 1,
    }));
    [
        sample::queue(json!({"name": "mail", "paused": true, "status": mail})),
        sample::queue(json!({"name": "slow", "concurrency": 0, "status": slow})),
    ]
}

/// A push type with the default timeout, one with a timeout of its own, and a pull type.
fn job_types() -> [Value; 3] {
    let target = json!({"url": "http://10.0.0.9/"});
    [
        sample::job_type(json!({"name": "invoice", "queue": "mail", "target": target})),
        sample::job_type(json!({
            "name": "short", "queue": "slow", "target": target, "timeout_seconds": 60,
        })),
        sample::job_type(json!({"name": "pulled", "queue": "mail", "target": {"pull": true}})),
    ]
}

/// A plugin that fails, one without code for this release, an unused one, and a healthy one.
fn plugins() -> [Value; 4] {
    let timeout = sample::plugin_fault(json!({
        "version": 2, "kind": "timeout", "message": "used more than 250 ms of processor time",
    }));
    let trapped = sample::plugin_fault(json!({"message": "long ago"}));
    [
        sample::plugin(json!({
            "live": 2, "used_by": [{"kind": "queue", "name": "mail"}],
            "health": {"calls": 9, "faults": 3, "failing": true, "last_fault": timeout},
        })),
        sample::plugin(json!({
            "name": "old", "runnable": false, "used_by": [{"kind": "job_type", "name": "invoice"}],
        })),
        sample::plugin(json!({"name": "idle", "runnable": false, "health": {"failing": true}})),
        sample::plugin(json!({
            "name": "well", "used_by": [{"kind": "queue", "name": "slow"}],
            "health": {"calls": 9, "faults": 3, "last_fault": trapped},
        })),
    ]
}

/// A server with a queue that is paused, a push type with defaults, and a pull type.
async fn sick() -> FakeServer {
    FakeServer::answering(|seen| match seen.path.split('?').next() {
        Some("/v1/queues") => (200, json!({"queues": queues()})),
        Some("/v1/job-types") => (200, json!({"job_types": job_types()})),
        Some("/v1/plugins") => (200, json!({"plugins": plugins()})),
        Some("/v1/doctor") => (
            200,
            json!({"ok": false, "version": "0.0.1", "checks": [
                {
                    "level": "ok", "about": "table",
                    "finding": "jobs in us-east-1 is ACTIVE, with its keys",
                },
                {
                    "level": "error", "about": "hint queue", "finding": "there is none",
                    "advice": "deploy the stack again",
                },
            ]}),
        ),
        _ => (200, json!({"tokens": []})),
    })
    .await
}

fn findings(out: &str) -> Vec<(String, String)> {
    let report: Value = serde_json::from_str(out).unwrap();
    let said = |found: &Value, field: &str| found[field].as_str().unwrap().to_owned();
    report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| (said(found, "level"), said(found, "about")))
        .collect()
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(level, about)| ((*level).to_owned(), (*about).to_owned())).collect()
}

#[tokio::test]
async fn likely_problems_of_a_server_are_warnings_with_advice() {
    let server = sick().await;
    let (code, out) = server.run(&["doctor", "--json"]).await;
    assert_eq!(code, ExitCode::Refused, "one finding is an error: {out}");
    let expected = [
        ("error", "hint queue"),
        ("error", "plugin old"),
        ("warning", "queue mail"),
        ("warning", "queue slow"),
        ("warning", "queue slow"),
        ("warning", "type invoice"),
        ("warning", "plugin share"),
        ("note", "version"),
        ("note", "type invoice"),
    ];
    assert_eq!(findings(&out), owned(&expected), "{out}");
    assert!(out.contains("it is paused, with 7 jobs waiting"), "{out}");
    let (_, table) = server.run(&["doctor"]).await;
    assert!(
        table.contains("tidegate queues resume mail")
            && table.contains("2 errors, 5 warnings, 2 notes"),
        "{table}"
    );
    assert!(table.contains("the server is 0.0.1") && !table.contains("ACTIVE"), "{table}");
    let (_, all) = server.run(&["doctor", "--all"]).await;
    assert!(all.contains("jobs in us-east-1 is ACTIVE"), "{all}");
}

#[tokio::test]
async fn due_jobs_that_no_worker_takes_are_found_after_a_minute() {
    for (kind, minutes, wanted) in [
        ("worker", 2, Some("tidegate work --queue q")),
        ("worker", 0, None),
        ("concurrency", 2, None),
        ("concurrency", 61, Some("tidegate queues explain q")),
    ] {
        let due = SystemClock.now() - Duration::from_mins(minutes);
        let status = sample::queue_status(json!({
            "ready": 5, "oldest_due_at": due, "held": [{
                "kind": kind, "jobs": 5, "types": {"t": 5}, "since": due, "reason": "as it is",
                "earliest_at": null,
            }],
        }));
        let queue = sample::queue(json!({"status": status}));
        let server = FakeServer::answering(move |seen| match seen.path.split('?').next() {
            Some("/v1/queues") => (200, json!({"queues": [queue]})),
            Some("/v1/job-types") => (200, json!({"job_types": []})),
            Some("/v1/plugins") => (200, json!({"plugins": []})),
            Some("/v1/doctor") => (200, json!({"ok": true, "checks": []})),
            _ => (200, json!({"tokens": []})),
        })
        .await;
        let (_, out) = server.run(&["doctor", "--json"]).await;
        let found = findings(&out).iter().any(|(_, about)| about == "queue q");
        assert_eq!(found, wanted.is_some(), "{kind} for {minutes} minutes: {out}");
        assert!(wanted.is_none_or(|wanted| out.contains(wanted)), "{out}");
    }
}

#[tokio::test]
async fn a_server_without_its_store_reports_the_error() {
    let server = FakeServer::answering(|seen| match seen.path.as_str() {
        "/v1/doctor" => {
            let check = json!({
                "level": "error", "about": "table", "finding": "it is gone",
                "advice": "restore it",
            });
            (200, json!({"checks": [check]}))
        }
        _ => (503, json!({"status": 503, "title": "Service Unavailable", "code": "unavailable"})),
    })
    .await;
    let (code, out) = server.run(&["doctor", "--json"]).await;
    assert_eq!((code, findings(&out)), (ExitCode::Refused, owned(&[("error", "table")])), "{out}");
}

#[tokio::test]
async fn an_older_server_gets_the_remaining_checks() {
    let server = FakeServer::answering(|seen| {
        let plural = seen.path.split(['/', '?']).nth(2).unwrap_or_default().replace('-', "_");
        if plural == "doctor" {
            (404, json!({"status": 404, "title": "Not Found", "code": "route_not_found"}))
        } else {
            (200, json!({plural: []}))
        }
    })
    .await;
    let (code, out) = server.run(&["doctor", "--json"]).await;
    assert_eq!((code, findings(&out)), (ExitCode::Ok, owned(&[("warning", "server")])), "{out}");
}

#[tokio::test]
async fn a_healthy_server_has_no_findings() {
    let server = FakeServer::answering(|seen| {
        let plural = seen.path.split(['/', '?']).nth(2).unwrap_or_default().replace('-', "_");
        (200, json!({plural: []}))
    })
    .await;
    let (code, out) = server.run(&["doctor"]).await;
    assert_eq!((code, out.contains("nothing found")), (ExitCode::Ok, true), "{out}");
}

/// A directory with a job whose body is large.
async fn directory(dir: &Path) {
    let server = Server::open(dir, Guard::On).unwrap().start().await.unwrap();
    let queue = QueueConfig { concurrency: Some(2), ..QueueConfig::default() };
    server.put_queue(&name("default"), queue, None).await.unwrap();
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    let data = Payload::json(format!("\"{}\"", "x".repeat(100_000)));
    server.enqueue(NewJob::new(name("work"), data)).await.unwrap();
    stop(server).await;
}

/// Stops `server`, and releases its directory.
async fn stop(server: Server) {
    server.stop().await;
}

/// Runs `doctor --data DIR` after the server has released the directory.
async fn found(dir: &Path) -> (ExitCode, Vec<(String, String)>, String) {
    let server = FakeServer::answering(|_| (500, json!({}))).await;
    let (code, out) = server.run(&["doctor", "--json", "--data", dir.to_str().unwrap()]).await;
    let mut findings = findings(&out);
    findings.retain(|(_, about)| !matches!(about.as_str(), "server" | "disk"));
    (code, findings, out)
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_jobs_of_a_directory_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::open(dir.path(), Guard::On).unwrap().start().await.unwrap();
    server.put_queue(&name("default"), QueueConfig::default(), None).await.unwrap();
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    server.pause_queue(&name("default"), true).await.unwrap();
    for _ in 0..7 {
        server.enqueue(NewJob::new(name("work"), Payload::json("1".to_owned()))).await.unwrap();
    }
    stop(server).await;
    let (code, findings, out) = found(dir.path()).await;
    assert_eq!((code, findings), (ExitCode::Ok, owned(&[("warning", "queue default")])), "{out}");
    assert!(out.contains("it is paused, with 7 jobs waiting"), "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_checked_with_its_bodies() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    directory(&data).await;
    let (code, findings, out) = found(&data).await;
    assert_eq!((code, findings), (ExitCode::Ok, vec![]), "{out}");

    let bodies = data.join("objects/bodies");
    let body = std::fs::read_dir(&bodies).unwrap().next().unwrap().unwrap().path();
    let old = std::fs::File::create(bodies.join("left-over")).unwrap();
    old.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
    std::fs::File::create(bodies.join("in-the-making")).unwrap();
    let part = std::fs::File::create(dir.path().join("backup.part")).unwrap();
    part.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
    std::fs::remove_file(body).unwrap();
    let (code, findings, out) = found(&data).await;
    assert_eq!(
        findings,
        owned(&[("error", "bodies"), ("warning", "backup"), ("note", "bodies")]),
        "{out}"
    );
    assert_eq!(code, ExitCode::Refused);
    assert!(out.contains("1 that jobs name") && out.contains("1 files"), "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_records_are_named_and_repaired() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path()).await;
    let db = rusqlite::Connection::open(database(dir.path())).unwrap();
    db.execute_batch(
        "UPDATE jobs SET life = x'00'; UPDATE items SET bytes = x'00' WHERE kind = 'queue'",
    )
    .unwrap();
    drop(db);
    let (code, findings, out) = found(dir.path()).await;
    let all = owned(&[("error", "configuration"), ("error", "jobs")]);
    assert_eq!((code, all.iter().all(|one| findings.contains(one))), (ExitCode::Refused, true));
    assert!(out.contains("`tidegate repair`"), "{out}");
    let server = FakeServer::answering(|_| (500, json!({}))).await;
    let (code, out) = server.run(&["repair", "--data", dir.path().to_str().unwrap()]).await;
    assert_eq!(code, ExitCode::Ok, "{out}");
    for line in ["the queue is paused", "does not run", "damaged.jsonl"] {
        assert!(out.contains(line), "{line}: {out}");
    }
    let (_, findings, out) = found(dir.path()).await;
    let expected = owned(&[("warning", "queue default")]);
    assert_eq!(findings, expected, "it is paused; the body is too young to be an orphan: {out}");
    let (code, out) = server.run(&["repair", "--data", dir.path().to_str().unwrap()]).await;
    assert_eq!((code, out.trim()), (ExitCode::Ok, "nothing is damaged"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_body_is_found() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path()).await;
    let body = std::fs::read_dir(dir.path().join("objects/bodies")).unwrap().next().unwrap();
    let body = body.unwrap().path();
    let mut bytes = std::fs::read(&body).unwrap();
    bytes[5] = b'y';
    std::fs::write(&body, bytes).unwrap();
    let (code, findings, out) = found(dir.path()).await;
    assert_eq!((code, findings), (ExitCode::Refused, owned(&[("error", "bodies")])), "{out}");
    assert!(out.contains("its checksum is wrong"), "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_was_set_back_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path()).await;
    let db = rusqlite::Connection::open(database(dir.path())).unwrap();
    db.execute("UPDATE jobs SET created_at = created_at + 7200000", []).unwrap();
    drop(db);
    let (_, findings, out) = found(dir.path()).await;
    // The row's own record has another time, too.
    assert!(
        owned(&[("error", "clock"), ("error", "jobs")]).iter().all(|one| findings.contains(one)),
        "{out}"
    );
}

#[tokio::test]
async fn a_directory_without_data_and_a_damaged_one_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let (code, findings, out) = found(dir.path()).await;
    assert_eq!((code, findings), (ExitCode::Refused, owned(&[("error", "database")])), "{out}");
    std::fs::write(
        database(dir.path()),
        "this is no database, but long enough to be taken for one".repeat(10),
    )
    .unwrap();
    let (code, _, out) = found(dir.path()).await;
    assert_eq!(
        (code, out.contains("is not a SQLite database")),
        (ExitCode::Refused, true),
        "{out}"
    );
}
