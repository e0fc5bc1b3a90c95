//! Reports: with a lease request, on their own, retried and rejected.

use super::*;

#[tokio::test]
async fn a_report_is_sent_with_the_next_lease_request() {
    let server = server(vec![lease("j1", 30_000)], fine).await;
    let script = r#"data=$(cat)
        names="\"$TIDEGATE_JOB_ID\", \"$TIDEGATE_JOB_TYPE\", \"$TIDEGATE_JOB_QUEUE\""
        numbers="$TIDEGATE_JOB_ATTEMPT, $TIDEGATE_JOB_MAX_ATTEMPTS"
        env="$names, $numbers, $TIDEGATE_JOB_ATTRIBUTES, \"$TRACEPARENT\""
        echo "{\"data\": $data, \"env\": [$env]}""#;
    let working = Working::begin(&server, plan(script));
    let asked = server.saw(|seen| reports(seen).is_some()).await;
    assert_eq!(working.stop().await, ExitCode::Ok);
    let mut first = server.seen().into_iter().find(|seen| seen.path == "/v1/leases").unwrap();
    let id = first.body.as_object_mut().unwrap().remove("request_id").unwrap();
    assert!((16..=128).contains(&id.as_str().unwrap().len()), "{id}");
    assert_eq!(
        first.body,
        json!({"types": ["mail"], "max": 1, "wait_seconds": 5, "worker": "w1"}),
        "the first request is for one job"
    );
    assert_eq!(asked.bearer.as_deref(), Some("secret"));
    assert_eq!(
        reports(&asked),
        Some(&json!({
            "id": "j1", "type": "mail", "attempt": 2, "token": "token-j1",
            "status": "succeeded",
            "result": {
                "data": {"b": 1, "a": "x"},
                "env": ["j1", "mail", "default", 2, 3, {"region": "east"}, PARENT],
            },
        }))
    );
}

#[tokio::test]
async fn a_failure_has_the_exit_code_and_the_end_of_stderr() {
    let server = server(vec![lease("j1", 30_000)], fine).await;
    let working = Working::begin(&server, plan("echo out; echo trouble >&2; exit 100"));
    let asked = server.saw(|seen| reports(seen).is_some()).await;
    assert_eq!(working.stop().await, ExitCode::Ok);
    assert_eq!(
        reports(&asked),
        Some(&json!({
            "id": "j1", "type": "mail", "attempt": 2, "token": "token-j1", "status": "failed",
            "message": "trouble", "error": {"exit_code": 100}, "retryable": false,
        }))
    );
}

#[tokio::test]
async fn a_command_hands_its_job_back_by_a_line_on_stderr() {
    for (line, expected) in [
        ("::release no time", json!({"status": "released", "message": "no time"})),
        ("::snooze 90s", json!({"status": "snoozed", "delay_seconds": 90})),
    ] {
        let server = server(vec![lease("j1", 30_000)], fine).await;
        let working = Working::begin(&server, plan(&format!("echo '{line}' >&2; exit 3")));
        let asked = server.saw(|seen| reports(seen).is_some()).await;
        assert_eq!(working.stop().await, ExitCode::Ok);
        let mut expected = expected;
        for (field, value) in [("id", "j1"), ("type", "mail"), ("token", "token-j1")] {
            expected[field] = json!(value);
        }
        expected["attempt"] = json!(2);
        assert_eq!(reports(&asked), Some(&expected));
    }
}

#[tokio::test]
async fn a_command_gets_a_checkpoint_and_reports_another() {
    let mut leased = lease("j1", 300);
    leased["job"]["checkpoint"] = json!({"page": 1});
    let server = server(vec![leased], fine).await;
    let (_folder, file, wait) = gate();
    let script = format!(r#"echo "::checkpoint [$TIDEGATE_JOB_CHECKPOINT]" >&2; {wait}; exit 1"#);
    let working = Working::begin(&server, plan(&script));
    let beat = server.saw(|seen| !seen.body["checkpoint"].is_null()).await;
    assert!(beat.path.ends_with("/heartbeat"), "{}", beat.path);
    assert_eq!(beat.body["checkpoint"], json!([{"page": 1}]));
    std::fs::write(file, "").unwrap();
    let asked = server.saw(|seen| reports(seen).is_some()).await;
    assert_eq!(working.stop().await, ExitCode::Ok);
    let report = reports(&asked).unwrap();
    assert_eq!(
        (&report["status"], &report["checkpoint"]),
        (&json!("failed"), &json!([{"page": 1}]))
    );
}

#[tokio::test]
async fn log_lines_come_with_heartbeats_and_the_report() {
    let server = server(vec![lease("j1", 300)], fine).await;
    let (_folder, file, wait) = gate();
    let script = format!("echo first >&2; {wait}; echo last >&2; exit 1");
    let working = Working::begin(&server, WorkPlan { log: true, ..plan(&script) });
    let beat = server.saw(|seen| !seen.body["log"].is_null()).await;
    assert!(beat.path.ends_with("/heartbeat"), "{}", beat.path);
    assert_eq!(beat.body["log"][0]["text"], "first");
    assert!(beat.body["log"][0]["time"].is_string());
    server.saw(|seen| seen.path.ends_with("/heartbeat") && seen.body["log"].is_null()).await;
    std::fs::write(file, "").unwrap();
    let asked = server.saw(|seen| reports(seen).is_some()).await;
    assert_eq!(working.stop().await, ExitCode::Ok);
    let texts: Vec<_> = reports(&asked).unwrap()["log"].as_array().unwrap().iter().collect();
    assert_eq!(texts.last().unwrap()["text"], "last");
}

#[tokio::test]
async fn a_report_does_not_wait_for_a_pending_lease_request() {
    let reported = Arc::new(tokio::sync::Notify::new());
    let asked = Arc::new(Mutex::new(0));
    let server = FakeServer::answering_slowly(move |seen| {
        let (reported, asked) = (reported.clone(), asked.clone());
        async move {
            if direct(&seen) {
                reported.notify_one();
            }
            if seen.path != "/v1/leases" {
                return (200, json!({}));
            }
            let first = { std::mem::replace(&mut *asked.lock(), 1) == 0 };
            if first {
                return (200, sample::leases(&[lease("j1", 30_000)], &[]));
            }
            // The pending request ends only after the report.
            reported.notified().await;
            reported.notify_one();
            (200, sample::leases(&[], &[]))
        }
    })
    .await;
    let working = Working::begin(&server, WorkPlan { concurrency: 2, ..plan("echo 1") });
    assert_eq!(server.saw(direct).await.body["result"], json!(1));
    assert_eq!(working.stop().await, ExitCode::Ok);
}

#[tokio::test]
async fn a_report_is_retried_while_the_server_is_unavailable() {
    let asked = Mutex::new(0);
    let server = FakeServer::answering(move |seen| {
        if seen.path != "/v1/leases" {
            return (200, json!({}));
        }
        let mut asked = asked.lock();
        *asked += 1;
        match *asked {
            1 => (200, sample::leases(&[lease("j1", 30_000)], &[])),
            2 => (503, json!({"title": "Service Unavailable"})),
            _ => (200, sample::leases(&[], &[sample::reported()])),
        }
    })
    .await;
    let working = Working::begin(&server, plan("echo 1"));
    until(|| server.seen().iter().filter(|seen| reports(seen).is_some()).count() > 1).await;
    assert_eq!(working.stop().await, ExitCode::Ok);
    let seen = server.seen().into_iter().filter(|seen| seen.path == "/v1/leases");
    let ids: Vec<Value> = seen.map(|seen| seen.body["request_id"].clone()).collect();
    assert_eq!(ids[1], ids[2], "a request without an answer is repeated");
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test]
async fn a_rejected_result_becomes_a_failure() {
    let asked = Mutex::new(0);
    let server = FakeServer::answering(move |seen| {
        if seen.path != "/v1/leases" {
            return (200, json!({}));
        }
        let mut asked = asked.lock();
        *asked += 1;
        if *asked == 1 {
            return (200, sample::leases(&[lease("j1", 30_000)], &[]));
        }
        let error = json!({"title": "Too large", "status": 413, "code": "too_large"});
        let report = json!({"status": 413, "id": "j1", "error": error});
        (200, json!({"leases": [], "reports": [report]}))
    })
    .await;
    let working = Working::begin(&server, plan("echo 1"));
    let report = server.saw(direct).await;
    assert_eq!(
        report.body,
        json!({
            "attempt": 2, "status": "failed", "retryable": false,
            "message": "the result was rejected: Too large (too_large)",
        })
    );
    assert_eq!(working.stop().await, ExitCode::Ok);
}

/// A server that grants `j1`, and answers its report within the next lease request with `status`
/// once.
async fn answering_the_report(status: u16) -> FakeServer {
    let asked = Mutex::new(0);
    FakeServer::answering(move |seen| {
        if seen.path != "/v1/leases" {
            return fine_at_once(&seen);
        }
        let mut asked = asked.lock();
        *asked += 1;
        match (*asked, reports(&seen).is_some()) {
            (1, _) => (200, sample::leases(&[lease("j1", 30_000)], &[])),
            (2, true) => {
                let error = json!({"title": "No", "status": status, "code": "unavailable"});
                let report = json!({"status": status, "id": "j1", "error": error});
                (200, json!({"leases": [], "reports": [report]}))
            }
            (_, true) => (200, sample::leases(&[], &[sample::reported()])),
            (_, false) => (200, sample::leases(&[], &[])),
        }
    })
    .await
}

#[tokio::test]
async fn a_report_that_was_not_stored_is_sent_again() {
    let server = answering_the_report(503).await;
    let working = Working::begin(&server, plan("echo 1"));
    until(|| server.seen().iter().filter(|seen| reports(seen).is_some()).count() > 1).await;
    assert_eq!(working.stop().await, ExitCode::Ok);
    let seen = server.seen();
    let sent: Vec<_> = seen.iter().filter_map(reports).collect();
    assert_eq!((sent.len(), sent[0]), (2, sent[1]), "the same report, and no other");
    assert!(!seen.iter().any(direct));
}

#[tokio::test]
async fn a_report_whose_log_is_too_large_comes_without_it() {
    let server = answering_the_report(413).await;
    let plan = WorkPlan { log: true, ..plan("echo why >&2; echo 1") };
    let working = Working::begin(&server, plan);
    let asked = server.saw(|seen| reports(seen).is_some()).await;
    assert_eq!(reports(&asked).unwrap()["log"][0]["text"], "why");
    let report = server.saw(direct).await;
    assert_eq!(report.body, json!({"attempt": 2, "status": "succeeded", "result": 1}));
    assert_eq!(working.stop().await, ExitCode::Ok);
}

#[tokio::test]
async fn an_invalid_report_does_not_stop_the_worker() {
    let leases = Mutex::new(vec![lease("j2", 30_000), lease("j1", 30_000)]);
    let server = FakeServer::answering(move |seen| {
        let refused = (413, json!({"title": "Too large", "status": 413, "code": "too_large"}));
        match seen.path.as_str() {
            "/v1/leases" if reports(&seen).is_some() => refused,
            "/v1/leases" => (200, sample::leases(leases.lock().pop().as_slice(), &[])),
            _ if seen.body["status"] == "succeeded" => refused,
            _ => (200, json!({})),
        }
    })
    .await;
    let working = Working::begin(&server, plan("echo 1"));
    server.saw(|seen| direct(seen) && seen.body["status"] == "failed").await;
    server.saw(|seen| seen.line() == "POST /v1/jobs/mail/j2").await;
    assert_eq!(working.stop().await, ExitCode::Ok);
}
