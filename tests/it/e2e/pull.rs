//! Pull workers: leases, heartbeats, cancels, drains, and the command-line worker.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    serve::Tidegate,
    wait::{eventually, until},
};

/// How long an answer may take that needs no wait.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_long_poll_returns_on_a_job_or_at_its_timeout() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    assert_eq!(tide.lease(json!({"types": ["t"]})).await.len(), 0);
    assert_eq!(tide.lease(json!({"types": ["t"], "wait_seconds": 0.1})).await.len(), 0);
    let api = tide.api.clone();
    let waiting = tokio::spawn(async move { api.lease_one("t").await });
    let id = tide.enqueue_a("t").await;
    assert_eq!(waiting.await.unwrap().id, id);
    let api = tide.api.clone();
    let waiting = tokio::spawn(async move { api.lease_one("t").await });
    let later = tide.enqueue(json!({"type": "t", "data": 1, "delay_seconds": 0.3})).await;
    assert_eq!(waiting.await.unwrap().id, later);
    tide.post("/v1/leases", json!({"types": ["none"]})).await.problem(404, "job_type_not_found");
    tide.post("/v1/leases", json!({"queue": "none"})).await.problem(404, "queue_not_found");
}

#[tokio::test]
async fn leases_that_cannot_be_written_are_handed_back() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({"max_attempts": 1, "lease_seconds": 3600})).await;
    let mut ids = Vec::new();
    for _ in 0..14 {
        // Together more than what the system holds for a connection.
        let data = "x".repeat((4 << 20) - 2);
        ids.push(tide.enqueue(json!({"type": "t", "data": data})).await);
    }
    let body = json!({"types": ["t"], "max": 14}).to_string();
    let head = format!(
        "POST /v1/leases HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let address = tide.base.strip_prefix("http://").unwrap();
    let mut worker = TcpStream::connect(address).await.unwrap();
    worker.write_all((head + &body).as_bytes()).await.unwrap();
    assert_eq!(worker.read_u8().await.unwrap(), b'H', "its response has begun");
    for id in &ids {
        assert_eq!(tide.job(id).await["state"], "running");
    }
    drop(worker);
    for id in &ids {
        let job = tide.job_when(id, |job| job["state"] == "scheduled").await;
        assert_eq!(
            (&job["handed_back"], &job["history"][0]["outcome"]),
            (&json!(1), &json!("released"))
        );
    }
    let lease = tide.lease_one("t").await;
    tide.report(&lease, "succeeded").await.is(200);
}

#[tokio::test]
async fn one_call_leases_from_several_queues_and_carries_reports() {
    let tide = Tidegate::start().await;
    for name in ["a", "b", "c"] {
        tide.queue(name, json!({"concurrency": if name == "c" { json!(3) } else { Value::Null }}))
            .await;
        tide.job_type(name, json!({"queue": name})).await;
        tide.enqueue_a(name).await;
    }
    let mut leases = Vec::new();
    while leases.len() < 2 {
        leases
            .extend(tide.lease(json!({"types": ["a", "c"], "max": 10, "wait_seconds": 20})).await);
    }
    assert!(leases.iter().all(|lease| !lease.path.contains("/b/")));
    leases.extend(tide.lease(json!({"queue": "b", "wait_seconds": 20})).await);
    assert_eq!(tide.lease(json!({"max": 10})).await.len(), 0);
    let mut reports: Vec<_> =
        leases.iter().map(|lease| json!({"id": lease.id, "attempt": 1, "status": "succeeded", "token": lease.token})).collect();
    reports.push(json!({"id": leases[0].id, "attempt": 1, "status": "failed"}));
    reports.push(json!({"id": "missing", "attempt": 1, "status": "failed"}));
    reports.push(json!({"id": leases[1].id, "attempt": 1, "status": "succeeded", "type": "other"}));
    let answer = tide.post("/v1/leases", json!({"max": 0, "reports": reports})).await.is(200);
    let statuses: Vec<_> = answer["reports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["status"].as_u64().unwrap())
        .collect();
    assert_eq!(statuses, [200, 200, 200, 409, 404, 404], "{answer:#}");
    assert_eq!(answer["reports"][3]["error"]["code"], "stale_attempt");
    for lease in &leases {
        tide.job_in(&lease.id, "succeeded").await;
    }
}

#[tokio::test]
async fn a_wrong_report_is_answered_at_once_beside_the_others() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    tide.queue("other", json!({})).await;
    tide.job_type("u", json!({"queue": "other"})).await;
    for selector in [json!({"types": ["t"]}), json!({})] {
        let good = tide.enqueue_a("t").await;
        tide.lease_one("t").await;
        let malformed = json!({"id": good, "attempt": 1, "status": "failed", "result": 1});
        let of_no_attempt = json!({"id": good, "attempt": 9, "status": "succeeded"});
        for (wrong, status, code) in
            [(malformed, 400, "invalid_field"), (of_no_attempt, 409, "stale_attempt")]
        {
            let mut call = selector.clone();
            call["wait_seconds"] = json!(60);
            call["reports"] = json!([wrong, {"id": "none", "attempt": 1, "status": "succeeded"}]);
            let answer = tokio::time::timeout(PATIENCE, tide.post("/v1/leases", call)).await;
            let answer = answer.expect("it does not wait for a job").is(200);
            let answers: Vec<_> =
                answer["reports"].as_array().unwrap().iter().map(|one| &one["status"]).collect();
            assert_eq!(answers, [status, 404], "{answer}");
            assert_eq!(answer["reports"][0]["error"]["code"], code, "{answer}");
        }
        let call = json!({"max": 0, "reports": [
            {"id": good, "attempt": 1, "status": "failed", "result": 1},
            {"id": good, "attempt": 1, "status": "succeeded"},
        ]});
        let answer = tide.post("/v1/leases", call).await.is(200);
        assert_eq!(answer["reports"][1]["state"], "succeeded", "{answer}");
    }
}

#[tokio::test]
async fn too_many_reports_are_refused_whatever_they_are() {
    let tide = Tidegate::start().await;
    let line = json!([{"text": "done"}]);
    for report in [
        json!({"id": "a", "attempt": 1, "status": "succeeded"}),
        json!({"id": "a", "attempt": 1, "status": "failed", "result": 1}),
        json!({"id": "a", "attempt": 1, "status": "succeeded", "log": line}),
    ] {
        let reports = |count| json!({"max": 0, "reports": vec![report.clone(); count]});
        let answer = tide.post("/v1/leases", reports(1000)).await.is(200);
        assert_eq!(answer["reports"].as_array().map(Vec::len), Some(1000));
        let refused = tide.post("/v1/leases", reports(1001)).await.problem(400, "invalid_field");
        assert_eq!(refused["field"], "reports", "{refused}");
    }
}

#[tokio::test]
async fn every_lease_that_is_over_is_recovered_and_not_just_the_first() {
    let tide = Tidegate::start().await;
    for (name, limit) in [("free", Value::Null), ("limited", json!(10))] {
        tide.queue(name, json!({"concurrency": limit})).await;
        let retry =
            json!({"strategy": "exponential", "config": {"base_seconds": 0, "jitter": "none"}});
        tide.job_type(name, json!({"queue": name, "lease_seconds": 0.3, "retry": retry})).await;
        for _ in 0..4 {
            tide.enqueue_a(name).await;
        }
        let ask = json!({"types": [name], "max": 10, "wait_seconds": 20});
        let (mut first, mut second) = (Vec::new(), Vec::new());
        while first.len() < 4 {
            first.extend(tide.lease(ask.clone()).await);
        }
        // One goes on by its heartbeats, three are never heard of again.
        let kept = first[1].clone();
        let beat = async || {
            tide.post(
                &format!("{}/heartbeat", kept.path),
                json!({"attempt": 1, "lease_seconds": 20}),
            )
            .await
            .is(200)
        };
        beat().await;
        while second.len() < 3 {
            let leases = tide.lease(ask.clone()).await;
            assert!(!leases.is_empty(), "{name}: only {} came back", second.len());
            second.extend(leases);
        }
        assert!(second.iter().all(|lease| lease.attempt == 2 && lease.id != kept.id), "{second:?}");
        assert_eq!(tide.job(&second[0].id).await["history"][0]["error"]["reason"], "lease_expired");
        tide.report(&first[0], "succeeded").await.problem(409, "stale_attempt");
        tide.post(&format!("{}/heartbeat", first[0].path), json!({"attempt": 1}))
            .await
            .problem(409, "stale_attempt");
        beat().await;
        tide.report(&kept, "succeeded").await.is(200);
    }
}

#[tokio::test]
async fn a_heartbeat_extends_shows_progress_and_tells_of_a_cancel() {
    let tide = Tidegate::start().await;
    tide.queue("q", json!({"concurrency": 1})).await;
    tide.job_type("t", json!({"queue": "q"})).await;
    let id = tide.enqueue_a("t").await;
    let next = tide.enqueue_a("t").await;
    let lease = tide.lease_one("t").await;
    let beat = format!("{}/heartbeat", lease.path);
    let answer = tide
        .with_token(&lease.token)
        .post(
            &beat,
            json!({"attempt": 1, "progress": 40.5, "note": "halfway", "lease_seconds": 600}),
        )
        .await
        .is(200);
    assert_eq!(answer["cancel"], false);
    let running = tide.job(&id).await["running"].clone();
    assert_eq!(
        (&running["progress"]["percent"], &running["progress"]["note"]),
        (&json!(40.5), &json!("halfway"))
    );
    assert_eq!(running["lease_expires_at"], answer["expires_at"]);
    tide.delete(&lease.path).await.is(202);
    tide.delete(&lease.path).await.is(202);
    assert_eq!(tide.post(&beat, json!({"attempt": 1})).await.is(200)["cancel"], true);
    // It keeps its slot until its worker's word.
    assert_eq!(tide.lease(json!({"types": ["t"], "wait_seconds": 0.2})).await.len(), 0);
    tide.report(&lease, "succeeded").await.is(200);
    let job = tide.job(&id).await;
    assert_eq!(
        (&job["state"], &job["history"][0]["attempt"]),
        (&json!("cancelled"), &json!(1)),
        "{job:#}"
    );
    let lease = tide.lease_one("t").await;
    assert_eq!(lease.id, next);
    tide.delete(&format!("{}?force=true", lease.path)).await.is(200);
    assert_eq!(tide.job(&next).await["state"], "cancelled");
    // A late worker gets an error: no result of its attempt was accepted, and none is now.
    tide.report(&lease, "succeeded").await.problem(409, "stale_attempt");
    tide.post(&beat, json!({"attempt": 1})).await.problem(409, "stale_attempt");
    tide.enqueue_a("t").await;
    tide.lease_one("t").await;
}

#[tokio::test]
async fn a_drained_worker_gets_no_more_jobs() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    tide.enqueue_a("t").await;
    tide.put("/v1/workers/w1", json!({"capacity": 5})).await.is(200);
    tide.post("/v1/workers/w1/drain", Value::Null).await.is(200);
    let ask = json!({"types": ["t"], "worker": "w1", "wait_seconds": 0.2});
    assert_eq!(tide.lease(ask.clone()).await.len(), 0);
    let workers = tide.get("/v1/workers").await.is(200);
    assert_eq!(
        (&workers["workers"][0]["name"], &workers["workers"][0]["draining"]),
        (&json!("w1"), &json!(true))
    );
    tide.post("/v1/workers/w1/undrain", Value::Null).await.is(200);
    let leases = tide.lease(ask).await;
    assert_eq!(leases[0].whole["job"]["running"]["worker"], "w1");
    assert_eq!(tide.get("/v1/workers").await.is(200)["workers"][0]["running"], 1);
    tide.post("/v1/workers/none/drain", Value::Null).await.problem(404, "worker_not_found");
}

#[tokio::test]
async fn a_stop_ends_the_wait_of_a_lease_request_and_names_itself() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    tide.put("/v1/workers/w1", json!({})).await.is(200);
    let ask = json!({"types": ["t"], "worker": "w1", "wait_seconds": 60});
    let waiting = tide.post("/v1/leases", ask.clone());
    let stopped = async {
        until(|| async {
            let queue = tide.get("/v1/queues/default/explain").await.is(200);
            let waits = queue["workers"]
                .as_array()
                .is_some_and(|of| of.iter().any(|of| of["workers"]["polling"] == 1));
            (waits, queue)
        })
        .await;
        tide.post("/v1/workers/w1/stop", Value::Null).await.is(200)
    };
    let both = async { tokio::join!(waiting, stopped) };
    let ended = tokio::time::timeout(Duration::from_secs(40), both).await;
    let (answer, stopped) = ended.expect("the wait ends before its 60 s");
    assert_eq!((&stopped["stopping"], &stopped["draining"]), (&json!(true), &json!(true)));
    let answer = answer.is(200);
    assert_eq!((&answer["leases"], &answer["stop"]), (&json!([]), &json!(true)));
    // Nor does a later one wait.
    assert_eq!(tide.post("/v1/leases", ask).await.is(200)["stop"], true);
    let other = json!({"types": ["t"], "worker": "w2"});
    assert_eq!(tide.post("/v1/leases", other).await.is(200).get("stop"), None);
    tide.delete("/v1/workers/w1?keep_drain=true").await.is(204);
    let again = json!({"types": ["t"], "worker": "w1"});
    assert_eq!(tide.post("/v1/leases", again).await.is(200).get("stop"), None);
    tide.post("/v1/workers/none/stop", Value::Null).await.problem(404, "worker_not_found");
}

#[tokio::test]
async fn the_calls_of_one_worker_share_its_capacity() {
    let tide = Tidegate::start().await;
    tide.put("/v1/queues/q", json!({})).await.is(201);
    for name in ["idle", "busy"] {
        tide.job_type(name, json!({"queue": "q"})).await;
    }
    let registered = tide.put("/v1/workers/w1", json!({"capacity": 5})).await.is(200);
    // The first call takes as many as the worker may have, and waits: nothing of its type comes.
    let first =
        tide.lease(json!({"types": ["idle"], "worker": "w1", "max": 5, "wait_seconds": 60}));
    let others = async {
        eventually("the first call waits", || async {
            let workers = tide.get("/v1/workers").await.is(200);
            (workers["workers"][0]["seen_at"] != registered["seen_at"]).then_some(())
        })
        .await;
        for _ in 0..9 {
            tide.enqueue_a("busy").await;
        }
        let ask =
            |wait: f64| json!({"types": ["busy"], "worker": "w1", "max": 10, "wait_seconds": wait});
        let leases = tide.lease(ask(20.0)).await;
        assert_eq!(
            leases.len(),
            5,
            "the other call leaves it all that the worker takes, and no more"
        );
        assert_eq!(tide.lease(ask(0.2)).await.len(), 0);
        tide.report(&leases[0], "succeeded").await.is(200);
        assert_eq!(tide.lease(ask(20.0)).await.len(), 1);
    };
    tokio::select! {
        leases = first => panic!("there was nothing for the first call, and it got {}", leases.len()),
        () = others => {}
    }
}

#[tokio::test]
async fn the_command_line_worker_runs_a_command_for_each_job() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({"max_attempts": 1})).await;
    let script = "read data; echo \"$TIDEGATE_JOB_TYPE $TIDEGATE_JOB_ATTEMPT\" >&2; case $data in 7) echo '{\"doubled\": 14}';; 8) echo plain;; *) exit 3;; esac";
    let mut command = super::serve::program([
        "work",
        "--type",
        "t",
        "--concurrency",
        "2",
        "--",
        "sh",
        "-c",
        script,
    ]);
    let mut worker = tokio::process::Command::from({
        command
            .env("TIDEGATE_URL", &tide.base)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        command
    })
    .kill_on_drop(true)
    .spawn()
    .unwrap();
    let ids = [
        tide.enqueue(json!({"type": "t", "data": 7})).await,
        tide.enqueue(json!({"type": "t", "data": 8})).await,
        tide.enqueue(json!({"type": "t", "data": 9})).await,
    ];
    assert_eq!(tide.job_in(&ids[0], "succeeded").await["result"], json!({"doubled": 14}));
    assert_eq!(tide.job_in(&ids[1], "succeeded").await["result"], "plain");
    let failed = tide.job_in(&ids[2], "failed").await;
    assert!(failed["error"]["message"].as_str().unwrap().contains("t 1"), "{failed:#}");
    let listed = || async { tide.get("/v1/workers").await.is(200)["workers"].clone() };
    let workers = listed().await;
    assert_eq!((workers.as_array().unwrap().len(), &workers[0]["capacity"]), (1, &json!(2)));
    let pid = nix::unistd::Pid::from_raw(worker.id().unwrap() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(worker.wait().await.unwrap().success());
    assert_eq!(listed().await, json!([]), "it leaves when it stops");
}
