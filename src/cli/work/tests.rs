//! The worker against a server that hands out leases one by one and remembers what it is told.

use std::{future::Future, path::PathBuf, sync::Arc};

use nix::sys::signal::{Signal, raise};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::*;
use crate::cli::{
    Cli, client,
    context::pause,
    testing::{FakeServer, SeenRequest, sample},
};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A lease of the job `id` that lasts so many milliseconds.
fn lease(id: &str, millis: i64) -> Value {
    let mut lease = sample::lease(id, millis);
    lease["job"]["data"] = json!({"b": 1, "a": "x"});
    lease["job"]["attributes"] = json!({"region": "east"});
    lease["job"]["headers"] = json!({"traceparent": PARENT, "x-team": "blue"});
    lease
}

/// A server that hands out `leases`, then none, and lets `other` answer everything else.
async fn server<F>(
    leases: Vec<Value>,
    other: impl Fn(SeenRequest) -> F + Send + Sync + 'static,
) -> FakeServer
where
    F: Future<Output = (u16, Value)> + Send + 'static,
{
    let leases = Arc::new(Mutex::new(leases));
    let other = Arc::new(other);
    FakeServer::answering_slowly(move |seen| {
        let (leases, other) = (leases.clone(), other.clone());
        async move {
            if seen.path != "/v1/leases" {
                return other(seen).await;
            }
            let next = { leases.lock().pop() };
            let reports: Vec<Value> = seen.body["reports"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|_| sample::reported())
                .collect();
            if next.is_none() {
                pause(Duration::from_millis(20)).await;
            }
            (200, sample::leases(next.as_slice(), &reports))
        }
    })
    .await
}

async fn fine(seen: SeenRequest) -> (u16, Value) {
    (200, if seen.path.ends_with("/heartbeat") { sample::beat(false) } else { json!({}) })
}

fn plan(script: &str) -> WorkPlan {
    WorkPlan {
        types: vec!["mail".parse().unwrap()],
        queue: None,
        concurrency: 1,
        auto: false,
        lease: None,
        wait: Seconds::new(5),
        worker: "w1".to_owned(),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        grace: Duration::from_millis(100),
        poll_interval: Duration::from_millis(20),
    }
}

/// A worker at work, and the means to stop it.
struct Working {
    stop: mpsc::Sender<()>,
    done: JoinHandle<anyhow::Result<ExitCode>>,
}

impl Working {
    fn begin(server: &FakeServer, plan: WorkPlan) -> Self {
        let (stop, stops) = mpsc::channel(2);
        let ctx = context(server);
        Self {
            stop,
            done: tokio::spawn(async move { Worker::new(plan, &ctx).unwrap().run(stops).await }),
        }
    }

    async fn stop(self) -> ExitCode {
        self.stop.send(()).await.unwrap();
        self.end().await.unwrap()
    }

    async fn end(self) -> anyhow::Result<ExitCode> {
        tokio::time::timeout(Duration::from_secs(20), self.done)
            .await
            .expect("the worker ends")
            .unwrap()
    }
}

fn context(server: &FakeServer) -> Context {
    use clap::Parser as _;
    let global = Cli::try_parse_from([
        "tidegate",
        "--url",
        server.url(),
        "--token",
        "secret",
        "queues",
        "list",
    ])
    .unwrap()
    .global;
    server.context(global)
}

fn reports(seen: &SeenRequest) -> Option<&Value> {
    seen.body["reports"].as_array().and_then(|reports| reports.first())
}

fn heartbeat(seen: &SeenRequest) -> bool {
    seen.line() == "POST /v1/jobs/mail/j1/heartbeat"
}

fn direct(seen: &SeenRequest) -> bool {
    seen.line() == "POST /v1/jobs/mail/j1"
}

/// A file whose appearance a command waits for.
fn gate() -> (tempfile::TempDir, PathBuf, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("open");
    let wait = format!("while [ ! -e {} ]; do sleep 0.02; done", file.display());
    (folder, file, wait)
}

#[tokio::test]
async fn a_command_gets_its_job_and_its_report_rides_with_the_next_lease() {
    let server = server(vec![lease("j1", 30_000)], fine).await;
    let script = r#"data=$(cat); echo "{\"data\": $data, \"env\": [\"$TIDEGATE_JOB_ID\", \"$TIDEGATE_JOB_TYPE\", \"$TIDEGATE_JOB_QUEUE\",
        $TIDEGATE_JOB_ATTEMPT, $TIDEGATE_JOB_MAX_ATTEMPTS, $TIDEGATE_JOB_ATTRIBUTES, \"$TRACEPARENT\"]}""#;
    let working = Working::begin(&server, plan(script));
    let asked = server.saw(|seen| reports(seen).is_some()).await;
    assert_eq!(working.stop().await, ExitCode::Ok);
    assert_eq!(
        server.seen()[0].body,
        json!({"types": ["mail"], "max": 1, "wait_seconds": 5, "worker": "w1"}),
        "the first request asks for one job"
    );
    assert_eq!(asked.bearer.as_deref(), Some("secret"));
    assert_eq!(
        reports(&asked),
        Some(
            &json!({"id": "j1", "type": "mail", "attempt": 2, "token": "token-j1", "status": "succeeded",
                     "result": {"data": {"b": 1, "a": "x"}, "env": ["j1", "mail", "default", 2, 3, {"region": "east"}, PARENT]}})
        )
    );
}

#[tokio::test]
async fn a_failure_carries_the_end_of_standard_error_and_the_exit_code() {
    let server = server(vec![lease("j1", 30_000)], fine).await;
    let working = Working::begin(&server, plan("echo out; echo trouble >&2; exit 100"));
    let asked = server.saw(|seen| reports(seen).is_some()).await;
    assert_eq!(working.stop().await, ExitCode::Ok);
    assert_eq!(
        reports(&asked),
        Some(
            &json!({"id": "j1", "type": "mail", "attempt": 2, "token": "token-j1", "status": "failed", "message": "trouble",
                     "error": {"exit_code": 100}, "retryable": false})
        )
    );
}

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
async fn a_cancelled_command_is_asked_to_end_and_then_made_to() {
    let server = server(vec![lease("j1", 300)], |_| async { (200, sample::beat(true)) }).await;
    // It will not hear of SIGTERM, and neither will what it starts.
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
async fn a_cancelled_command_may_end_in_its_own_way() {
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
    // The next lease request comes only when the command is gone.
    server.saw_after(before, |seen| seen.path == "/v1/leases").await;
    assert!(ended.exists());
    assert_eq!(working.stop().await, ExitCode::Ok);
    assert!(server.seen().iter().all(|seen| reports(seen).is_none() && !direct(seen)));
}

#[tokio::test]
async fn a_stopped_worker_finishes_what_runs_and_asks_for_no_more() {
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
    // The worker has taken the message when there is room for two again; only then may the command end.
    until(|| working.stop.capacity() == 2).await;
    std::fs::write(file, "").unwrap();
    let report = server.saw(direct).await;
    assert_eq!(report.body, json!({"attempt": 2, "status": "succeeded", "result": "done"}));
    assert_eq!(report.bearer.as_deref(), Some("token-j1"));
    assert_eq!(working.end().await.unwrap(), ExitCode::Ok);
    assert_eq!(server.seen().iter().filter(|seen| seen.path == "/v1/leases").count(), 1);
}

#[tokio::test]
async fn a_second_signal_kills_what_runs_and_says_so() {
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
        json!({"attempt": 2, "status": "failed", "message": "the worker was killed", "error": {"signal": 9}})
    );
}

#[tokio::test]
async fn a_report_goes_on_its_own_while_a_lease_request_is_in_flight() {
    let told = Arc::new(tokio::sync::Notify::new());
    let asked = Arc::new(Mutex::new(0));
    let server = FakeServer::answering_slowly(move |seen| {
        let (told, asked) = (told.clone(), asked.clone());
        async move {
            if seen.path != "/v1/leases" {
                told.notify_one();
                return (200, json!({}));
            }
            let first = { std::mem::replace(&mut *asked.lock(), 1) == 0 };
            if first {
                return (200, sample::leases(&[lease("j1", 30_000)], &[]));
            }
            // The request in flight ends only when the report has come.
            told.notified().await;
            told.notify_one();
            (200, sample::leases(&[], &[]))
        }
    })
    .await;
    let working = Working::begin(&server, WorkPlan { concurrency: 2, ..plan("echo 1") });
    assert_eq!(server.saw(direct).await.body["result"], json!(1));
    assert_eq!(working.stop().await, ExitCode::Ok);
}

#[tokio::test]
async fn a_report_outlives_a_server_that_is_away() {
    let asked = Mutex::new(0);
    let server = FakeServer::answering(move |_| {
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
    server.saw_after(2, |seen| reports(seen).is_some()).await;
    assert_eq!(working.stop().await, ExitCode::Ok);
}

#[tokio::test]
async fn a_result_that_is_refused_becomes_a_failure() {
    let asked = Mutex::new(0);
    let server = FakeServer::answering(move |seen| {
        if seen.path != "/v1/leases" {
            return (200, json!({}));
        }
        let mut asked = asked.lock();
        *asked += 1;
        match *asked {
            1 => (200, sample::leases(&[lease("j1", 30_000)], &[])),
            _ => (
                200,
                json!({"leases": [], "reports": [{"status": 413, "id": "j1", "error": {"title": "Too large", "status": 413, "code": "too_large"}}]}),
            ),
        }
    })
    .await;
    let working = Working::begin(&server, plan("echo 1"));
    let report = server.saw(direct).await;
    assert_eq!(
        report.body,
        json!({"attempt": 2, "status": "failed", "message": "the result was rejected: Too large (too_large)", "retryable": false})
    );
    assert_eq!(working.stop().await, ExitCode::Ok);
}

#[tokio::test]
async fn a_report_that_spoils_a_lease_request_does_not_stop_the_worker() {
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

#[tokio::test]
async fn a_worker_with_auto_asks_for_as_many_as_the_queue_wants_and_no_more_than_its_most() {
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
async fn a_worker_with_auto_that_names_types_asks_for_what_their_queues_want() {
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
async fn a_command_that_cannot_be_started_stops_the_worker_after_one_job() {
    let server = server(vec![lease("j2", 30_000), lease("j1", 30_000)], fine).await;
    let broken = WorkPlan { command: vec!["/no/such/command".to_owned()], ..plan("") };
    let err = Working::begin(&server, broken).end().await.unwrap_err();
    assert_eq!(ExitCode::of(&err), ExitCode::Usage);
    assert_eq!(server.saw(direct).await.body["status"], "failed");
    assert_eq!(server.seen().iter().filter(|seen| seen.path == "/v1/leases").count(), 1);
}

#[tokio::test]
async fn a_worker_needs_its_server_at_the_start_and_its_permission() {
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

/// Waits until something outside of the program holds.
async fn until(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            pause(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("it comes to hold");
}
