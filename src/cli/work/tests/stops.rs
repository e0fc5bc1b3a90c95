//! Stops: by signals, and by errors at the start.

use super::*;

#[tokio::test]
async fn a_stopped_worker_finishes_its_jobs_and_leases_no_more() {
    let server = server(vec![lease("j1", 30_000)], fine).await;
    let (folder, file, wait) = gate();
    let running = folder.path().join("running");
    let mut signals = stops().unwrap();
    let working =
        Working::begin(&server, plan(&format!("touch {}; {wait}; echo done", running.display())));
    until(|| running.exists()).await;
    raise(Signal::SIGTERM).unwrap();
    signals.recv().await.unwrap();
    working.stop.send(()).await.unwrap();
    // A capacity of two means that the worker has received the message. Only then may the command
    // end.
    until(|| working.stop.capacity() == 2).await;
    std::fs::write(file, "").unwrap();
    let report = server.saw(direct).await;
    assert_eq!(report.body, json!({"attempt": 2, "status": "succeeded", "result": "done"}));
    assert_eq!(report.bearer.as_deref(), Some("token-j1"));
    assert_eq!(working.end().await.unwrap(), ExitCode::Ok);
    assert_eq!(server.seen().iter().filter(|seen| seen.path == "/v1/leases").count(), 1);
}

#[tokio::test]
async fn a_worker_that_the_server_stops_finishes_its_jobs() {
    let (folder, file, wait) = gate();
    let first = std::sync::atomic::AtomicBool::new(true);
    let server = FakeServer::answering(move |seen| {
        if seen.path != "/v1/leases" {
            return fine_at_once(&seen);
        }
        let is_first = first.swap(false, std::sync::atomic::Ordering::Relaxed);
        let jobs = if is_first { vec![lease("j1", 30_000)] } else { Vec::new() };
        let mut answer = sample::leases(&jobs, &[]);
        answer["stop"] = json!(!is_first);
        (200, answer)
    })
    .await;
    let working =
        Working::begin(&server, WorkPlan { concurrency: 2, ..plan(&format!("{wait}; echo done")) });
    until(|| server.seen().iter().filter(|seen| seen.path == "/v1/leases").count() == 2).await;
    std::fs::write(file, "").unwrap();
    let report = server.saw(direct).await;
    assert_eq!(report.body, json!({"attempt": 2, "status": "succeeded", "result": "done"}));
    assert_eq!(working.end().await.unwrap(), ExitCode::Ok);
    let seen = server.seen();
    assert_eq!(seen.last().unwrap().line(), "DELETE /v1/workers/w1?keep_drain=true");
    assert_eq!(seen.iter().filter(|seen| seen.path == "/v1/leases").count(), 2);
    drop(folder);
}

#[tokio::test]
async fn a_stopped_idle_worker_leaves_at_once() {
    let gone = Arc::new(tokio::sync::watch::channel(false).0);
    let server = FakeServer::answering_slowly(move |seen| {
        let (gone, mut left) = (gone.clone(), gone.subscribe());
        async move {
            match seen.method.as_str() {
                "POST" => drop(left.wait_for(|left| *left).await),
                "DELETE" => {
                    gone.send_replace(true);
                }
                _ => {}
            }
            (200, if seen.method == "POST" { sample::leases(&[], &[]) } else { json!({}) })
        }
    })
    .await;
    let working = Working::begin(&server, WorkPlan { concurrency: 4, ..plan("true") });
    let registered = server.saw(|seen| seen.line() == "PUT /v1/workers/w1").await;
    assert_eq!(registered.body, json!({"capacity": 4, "types": ["mail"]}));
    server.saw(|seen| seen.path == "/v1/leases").await;
    assert_eq!(working.stop().await, ExitCode::Ok);
    let seen = server.seen();
    assert_eq!(seen.last().unwrap().line(), "DELETE /v1/workers/w1?keep_drain=true");
    assert_eq!(seen.iter().filter(|seen| seen.path == "/v1/leases").count(), 1);
}

#[tokio::test]
async fn a_stopped_worker_hands_back_what_it_has_not_begun() {
    let leaving = Arc::new(tokio::sync::watch::channel(false).0);
    let asked = leaving.clone();
    let server = FakeServer::answering_slowly(move |seen| {
        let (leaving, mut left) = (leaving.clone(), leaving.subscribe());
        async move {
            if seen.line().starts_with("DELETE") {
                leaving.send_replace(true);
            }
            if seen.path != "/v1/leases" {
                return (200, json!({}));
            }
            // The server had claimed the job when it learned that the worker leaves.
            drop(left.wait_for(|left| *left).await);
            (200, sample::leases(&[lease("j1", 30_000)], &[]))
        }
    })
    .await;
    let working = Working::begin(&server, plan("touch never"));
    server.saw(|seen| seen.path == "/v1/leases").await;
    assert_eq!(working.stop().await, ExitCode::Ok);
    assert!(*asked.borrow());
    let report = server.saw(direct).await;
    assert_eq!(
        report.body,
        json!({
            "attempt": 2, "status": "released", "message": "its worker stopped before it began",
        })
    );
}

#[tokio::test]
async fn a_stopped_worker_asks_for_leases_of_a_lost_answer() {
    let asked = Mutex::new(0);
    let server = FakeServer::answering(move |seen| {
        if seen.path != "/v1/leases" {
            return fine_at_once(&seen);
        }
        let mut asked = asked.lock();
        *asked += 1;
        match (*asked, seen.body["max"].as_u64()) {
            (1, _) => (200, sample::leases(&[], &[])),
            // A server that is down for as long as the worker wants jobs.
            (_, Some(1..)) => (503, json!({"title": "Service Unavailable"})),
            _ => (200, sample::leases(&[lease("j1", 30_000)], &[])),
        }
    })
    .await;
    let working = Working::begin(&server, plan("touch never"));
    until(|| server.seen().iter().filter(|seen| seen.path == "/v1/leases").count() > 1).await;
    assert_eq!(working.stop().await, ExitCode::Ok);
    let seen = server.seen();
    let calls: Vec<_> = seen.iter().filter(|seen| seen.path == "/v1/leases").collect();
    let (lost, last) = (&calls[1].body, &calls.last().unwrap().body);
    assert_eq!((&last["max"], &last["request_id"]), (&json!(0), &lost["request_id"]));
    let report = seen.iter().find(|seen| direct(seen)).expect("the lease is handed back");
    assert_eq!(report.body["status"], "released");
}

#[test]
fn the_default_name_of_a_worker_is_unique_and_short() {
    let name = unique_name(&Context::new(
        <Cli as clap::Parser>::try_parse_from(["tidegate", "queues", "list"]).unwrap().global,
    ));
    assert!(name.contains(&format!("-{}-", std::process::id())) && name.len() <= 128, "{name}");
}

#[tokio::test]
async fn a_second_signal_kills_the_command_and_is_reported() {
    let server = server(vec![lease("j1", 30_000)], fine).await;
    let (folder, _, wait) = gate();
    let running = folder.path().join("running");
    let slow = WorkPlan {
        grace: Duration::from_mins(1),
        ..plan(&format!("touch {}; {wait}", running.display()))
    };
    let working = Working::begin(&server, slow);
    until(|| running.exists()).await;
    working.stop.send(()).await.unwrap();
    assert_eq!(working.stop().await, ExitCode::Refused);
    let report = server.saw(direct).await;
    assert_eq!(
        report.body,
        json!({
            "attempt": 2, "status": "failed", "message": "the worker was killed",
            "error": {"signal": 9},
        })
    );
}

#[tokio::test]
async fn a_command_that_cannot_be_started_stops_the_worker() {
    let server = server(vec![lease("j2", 30_000), lease("j1", 30_000)], fine).await;
    let broken = WorkPlan { command: vec!["/no/such/command".to_owned()], ..plan("") };
    let err = Working::begin(&server, broken).end().await.unwrap_err();
    assert_eq!(ExitCode::of(&err), ExitCode::Usage);
    assert_eq!(server.saw(direct).await.body["status"], "failed");
    assert_eq!(server.seen().iter().filter(|seen| seen.path == "/v1/leases").count(), 1);
}

#[tokio::test]
async fn a_worker_stops_if_its_first_request_fails() {
    let refusing =
        FakeServer::answering(|_| (403, json!({"title": "Forbidden", "code": "scope_missing"})))
            .await;
    assert_eq!(refusing.run(&["work", "--type", "mail", "--", "true"]).await.0, ExitCode::Refused);

    let url = client::base_url("127.0.0.1:1").unwrap();
    let mut ctx = context(&refusing);
    ctx.global.url = Some(url);
    let (_stop, stops) = mpsc::channel(1);
    let err = Worker::new(plan("true"), &ctx).unwrap().run(stops).await.unwrap_err();
    assert_eq!(ExitCode::of(&err), ExitCode::Unreachable);
}
