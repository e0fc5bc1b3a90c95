//! Attempts: heartbeats, cancels, lost leases, and how many run.

use super::*;

#[tokio::test]
async fn heartbeats_keep_the_lease_and_carry_progress() {
    let server = server(vec![lease("j1", 300)], fine).await;
    let (_folder, file, wait) = gate();
    let working =
        Working::begin(&server, plan(&format!("echo '::progress 40 half way' >&2; {wait}")));
    let beat = server.saw(|seen| heartbeat(seen) && !seen.body["progress"].is_null()).await;
    assert_eq!(beat.bearer.as_deref(), Some("token-j1"), "an attempt's own token is enough");
    assert_eq!(beat.body, json!({"attempt": 2, "progress": 40.0, "note": "half way"}));
    server.saw(|seen| heartbeat(seen) && seen.body == json!({"attempt": 2})).await;
    std::fs::write(file, "").unwrap();
    let asked = server.saw(|seen| reports(seen).is_some()).await;
    assert_eq!(reports(&asked).unwrap()["status"], "succeeded");
    assert_eq!(working.stop().await, ExitCode::Ok);
}

#[tokio::test]
async fn a_cancelled_command_gets_sigterm_and_then_sigkill() {
    let server = server(vec![lease("j1", 300)], |_| async { (200, sample::beat(true)) }).await;
    // The command and its child processes ignore SIGTERM.
    let working =
        Working::begin(&server, plan("trap '' TERM; echo deaf >&2; while :; do sleep 0.1; done"));
    let asked = server.saw(|seen| reports(seen).is_some()).await;
    let report = reports(&asked).unwrap();
    assert_eq!(
        (&report["status"], &report["message"], &report["error"]),
        (&json!("failed"), &json!("cancelled"), &json!({"signal": 9}))
    );
    assert_eq!(working.stop().await, ExitCode::Ok);
}

#[tokio::test]
async fn a_cancelled_command_may_end_with_its_own_exit_code() {
    let server = server(vec![lease("j1", 300)], |_| async { (200, sample::beat(true)) }).await;
    let slow = WorkPlan {
        grace: Duration::from_secs(20),
        ..plan("trap 'exit 7' TERM; while :; do sleep 0.02; done")
    };
    let working = Working::begin(&server, slow);
    let asked = server.saw(|seen| reports(seen).is_some()).await;
    assert_eq!(reports(&asked).unwrap()["error"], json!({"exit_code": 7}));
    assert_eq!(working.stop().await, ExitCode::Ok);
}

#[tokio::test]
async fn a_lost_attempt_is_ended_and_not_reported() {
    let (folder, _, _) = gate();
    let ended = folder.path().join("ended");
    let server = server(vec![lease("j1", 300)], |_| async {
        (409, json!({"title": "Conflict", "code": "not_running"}))
    })
    .await;
    let slow = WorkPlan {
        grace: Duration::from_secs(20),
        ..plan(&format!(
            "trap 'touch {}; exit 0' TERM; while :; do sleep 0.02; done",
            ended.display()
        ))
    };
    let working = Working::begin(&server, slow);
    server.saw(heartbeat).await;
    let before = server.seen().len();
    // The next lease request follows the end of the command.
    server.saw_after(before, |seen| seen.path == "/v1/leases").await;
    assert!(ended.exists());
    assert_eq!(working.stop().await, ExitCode::Ok);
    assert!(server.seen().iter().all(|seen| reports(seen).is_none() && !direct(seen)));
}

#[tokio::test]
async fn auto_leases_the_desired_workers_up_to_its_maximum() {
    let server = server(vec![], |_| async {
        let status = sample::queue_status(json!({"desired_workers": 900}));
        (200, sample::queue(json!({"status": status})))
    })
    .await;
    let auto = WorkPlan { queue: "q".parse().ok(), auto: true, concurrency: 7, ..plan("true") };
    let working = Working::begin(&server, auto);
    server.saw(|seen| seen.body["max"] == 7).await;
    assert_eq!(server.saw(|seen| seen.method == "GET").await.path, "/v1/queues/q");
    assert_eq!(working.stop().await, ExitCode::Ok);
}

#[tokio::test]
async fn auto_takes_its_share_of_the_desired_workers() {
    let server = server(vec![], |_| async {
        let status = sample::queue_status(json!({"desired_workers": 10, "workers": 3}));
        (200, sample::queue(json!({"status": status})))
    })
    .await;
    let auto = WorkPlan { queue: "q".parse().ok(), auto: true, concurrency: 9, ..plan("true") };
    let working = Working::begin(&server, auto);
    server.saw(|seen| seen.body["max"] == 4).await;
    assert_eq!(working.stop().await, ExitCode::Ok);
}

#[tokio::test]
async fn auto_with_types_adds_the_desired_workers_of_their_queues() {
    let server = server(vec![], |seen| async move {
        let queue = |name: &str, desired| {
            let status = sample::queue_status(json!({"desired_workers": desired}));
            sample::queue(json!({"name": name, "status": status}))
        };
        (
            200,
            match seen.path.as_str() {
                "/v1/job-types/mail" | "/v1/job-types/post" => {
                    sample::job_type(json!({"queue": "slow"}))
                }
                "/v1/job-types/call" => sample::job_type(json!({"queue": "fast"})),
                "/v1/queues/slow" => queue("slow", 2),
                _ => queue("fast", 3),
            },
        )
    })
    .await;
    let types = ["mail", "post", "call"].map(|name| name.parse().unwrap()).to_vec();
    let working = Working::begin(
        &server,
        WorkPlan { types, queue: None, auto: true, concurrency: 9, ..plan("true") },
    );
    server.saw(|seen| seen.body["max"] == 5).await;
    assert_eq!(working.stop().await, ExitCode::Ok);
}

#[tokio::test]
async fn auto_ends_if_the_token_does_not_allow_it() {
    let forbidden = json!({"status": 403, "code": "forbidden", "detail": "no scope read"});
    let server = FakeServer::answering(move |_| (403, forbidden.clone())).await;
    let auto = WorkPlan { queue: "q".parse().ok(), auto: true, concurrency: 9, ..plan("true") };
    let (demand, demanded) = tokio::sync::watch::channel(1);
    demand::follow(server.client(), Arc::new(auto), demand).await;
    assert_eq!((*demanded.borrow(), server.seen().len()), (1, 1));
}

#[tokio::test]
async fn a_lease_request_asks_for_no_more_jobs_than_may_run() {
    for (min, concurrency, asked) in [(1, 4, None), (3, 4, Some(3)), (9, 4, Some(4))] {
        let server = server(Vec::new(), fine).await;
        let working = Working::begin(&server, WorkPlan { concurrency, min, ..plan("true") });
        let seen = server.saw(|seen| seen.path == "/v1/leases").await;
        assert_eq!(seen.body.get("min").and_then(Value::as_u64), asked);
        working.stop().await;
    }
}
