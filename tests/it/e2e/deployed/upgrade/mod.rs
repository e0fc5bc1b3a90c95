//! Jobs of each kind run without a pause while `tidegate aws upgrade` replaces the functions by those
//! of the next release, and while `tidegate aws rollback` goes back.
//!
//! The next release is the same program with a file in its zip that only the testkit reads: it writes
//! one more field into every record. So the table says which release has written a record.

mod load;

use std::{
    collections::BTreeMap,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tidegate_engine::testkit::releases::FIELD;

use self::load::{KINDS, Load, configure};
use super::{
    config, deployed, jobs_of, of_stack, open_jobs, setting, stack,
    stored::Stored,
    workers::{EventLog, pull, work},
};
use crate::e2e::{
    api::{Api, Lease},
    target::Target,
};

/// How long all jobs together may take after the last one was enqueued.
const PATIENCE: Duration = Duration::from_mins(4);
/// The weight that the limited queue may run at once.
const LIMIT: u64 = 2;
/// The time between two looks at the functions during a change.
const LOOKS: Duration = Duration::from_secs(1);
/// The functions whose callers use an alias.
const FUNCTIONS: [&str; 5] = ["enqueue", "plugins", "tick", "sweep", "deliver"];

/// Runs `tidegate aws LINE` on the stack, as an operator does.
async fn operate(line: &str, token: &str) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("aws").args(line.split(' ')).args(["--stack", &stack(), "--yes"]);
    command.env("TIDEGATE_TOKEN", token).stdin(Stdio::null()).kill_on_drop(true);
    let done = command.output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (output, error) = (text(&done.stdout), text(&done.stderr));
    assert!(done.status.success(), "{line}: {}\n{output}\n{error}", done.status);
    println!("tidegate aws {line}:\n{output}");
}

/// The digest of the code that the callers of each function reach.
async fn live_code(lambda: &aws_sdk_lambda::Client) -> BTreeMap<&'static str, String> {
    let mut code = BTreeMap::new();
    for name in FUNCTIONS {
        let function = format!("{}-{name}", stack());
        let found = lambda.get_function().function_name(function).qualifier("live").send().await;
        let configuration = found.unwrap().configuration.unwrap();
        code.insert(name, configuration.code_sha256.unwrap());
    }
    code
}

/// How many items of the table are about `text`, and how many of them the next release has written.
async fn written(stored: &Stored, text: &str) -> (usize, usize) {
    let items = stored.items(text).await;
    (items.len(), items.iter().filter(|item| item.contains(FIELD)).count())
}

/// A deployment under load.
struct Deployment {
    api: Api,
    token: String,
    run: String,
    stored: Stored,
    lambda: aws_sdk_lambda::Client,
}

impl Deployment {
    /// Changes the release while the load goes on, and checks that jobs are acknowledged and started
    /// while functions of both releases work side by side.
    async fn change(&self, line: &str, load: &Load) {
        let (before, mut looks) = (live_code(&self.lambda).await, tokio::time::interval(LOOKS));
        let mut mixed = Vec::new();
        let change = operate(line, &self.token);
        tokio::pin!(change);
        loop {
            tokio::select! {
                () = &mut change => break,
                _ = looks.tick() => {
                    let progress = load.progress();
                    let now = live_code(&self.lambda).await;
                    let changed = FUNCTIONS.iter().filter(|name| now[*name] != before[*name]);
                    if (1..FUNCTIONS.len()).contains(&changed.count()) {
                        mixed.push(progress);
                    }
                }
            }
        }
        let (Some(first), Some(last)) = (mixed.first(), mixed.last()) else {
            panic!("the functions are replaced at once by the {line}")
        };
        let goes_on = first.0 < last.0 && first.1 < last.1;
        assert!(goes_on, "the load stops during the {line}: from {first:?} to {last:?}");
    }

    /// Enqueues a job that no worker but the test leases.
    async fn enqueue_held(&self, name: &str) -> String {
        let (run, id) = (&self.run, format!("{}-held-{name}", self.run));
        let job = json!({"type": format!("{run}-held"), "id": id, "data": {"number": 0}});
        self.api.enqueue(job).await
    }

    async fn lease_held(&self, id: &str) -> Lease {
        let lease = self.api.lease_one(&format!("{}-held", self.run)).await;
        assert_eq!(lease.id, id);
        lease
    }

    /// Completes a leased attempt, and checks whether its record keeps the field of the next release.
    async fn complete_held(&self, lease: &Lease, has_field: bool) {
        let report = json!({"attempt": lease.attempt, "status": "succeeded", "result": 1});
        self.api.post(&lease.path, report).await.good();
        let job = self.api.get(&lease.path).await.good();
        assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job:#}");
        let (items, newer) = written(&self.stored, &lease.id).await;
        assert!(items > 0);
        assert_eq!(newer > 0, has_field && is_testkit(), "{} has {newer}", lease.id);
    }

    /// Waits until every job has ended, and checks that each has ended as it must.
    async fn settle(&self, acknowledged: &BTreeMap<String, u64>) {
        let (api, run) = (&self.api, &self.run);
        let mut looks = tokio::time::interval(Duration::from_millis(500));
        let began = now();
        let jobs = loop {
            looks.tick().await;
            let jobs = jobs_of(api, run, KINDS).await;
            let mut queues = Vec::new();
            for queue in ["limited", "open"] {
                queues.push(api.get(&format!("/v1/queues/{run}-{queue}")).await.good());
            }
            // A tick after the end of a job frees its slot.
            let is_idle = |queue: &Value| {
                let status = &queue["status"];
                status["running_weight"] == 0 && status["ready"] == 0
            };
            if open_jobs(&jobs) == 0 && queues.iter().all(is_idle) {
                break jobs;
            }
            let waits = began.elapsed() < PATIENCE;
            assert!(waits, "jobs or slots are open after {PATIENCE:?}: {queues:#?}");
        };
        let ids = |jobs: Vec<&String>| jobs.into_iter().cloned().collect::<Vec<_>>();
        assert_eq!(
            ids(jobs.keys().collect()),
            ids(acknowledged.keys().collect()),
            "every acknowledged job is there, and no other one"
        );
        for (id, number) in acknowledged {
            check_end(&jobs[id], id, *number);
        }
    }
}

/// Checks that a job has ended as its kind must.
fn check_end(job: &Value, id: &str, number: u64) {
    assert_eq!(job["state"], "succeeded", "{job:#}");
    assert_eq!(job["result"]["number"], number, "{job:#}");
    let attempts = if id.contains("-flaky-") { 2 } else { 1 };
    assert_eq!(job["attempt"], attempts, "{job:#}");
}

/// Whether the functions have the testkit. Those of packages do not: their next release differs only
/// in its zips.
fn is_testkit() -> bool {
    setting("PROFILE", "dev") != "packaged"
}

#[allow(clippy::disallowed_methods, reason = "what is measured is a real deployment")]
fn now() -> Instant {
    Instant::now()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a local stack"]
async fn on_a_local_stack_an_upgrade_and_a_rollback_lose_no_job() {
    let began = now();
    let ((api, token), run) = (deployed(), format!("u{:x}", std::process::id()));
    let event_log: Arc<Mutex<EventLog>> = Arc::default();
    let target = {
        let (event_log, api) = (Arc::clone(&event_log), api.clone());
        Target::start(move |call| work(Arc::clone(&event_log), api.clone(), call)).await
    };
    configure(&api, &run, &target.url, LIMIT).await;
    let (stored, lambda) = (Stored::of_stack().await, aws_sdk_lambda::Client::new(&config().await));
    let deployment = Deployment { api: api.clone(), token, run: run.clone(), stored, lambda };
    let puller = tokio::spawn(pull(api.clone(), run.clone(), Arc::clone(&event_log)));
    let load = Load::start(api.clone(), run.clone(), Arc::clone(&event_log));

    let first = deployment.enqueue_held("first").await;
    let of_this = deployment.lease_held(&first).await;
    let second = deployment.enqueue_held("second").await;
    load.advance().await;
    let (_, newer) = written(&deployment.stored, &run).await;
    assert_eq!(newer, 0, "this release does not write the field");
    let code = live_code(&deployment.lambda).await;

    deployment.change(&format!("upgrade --functions {}", of_stack("next")), &load).await;
    let next = live_code(&deployment.lambda).await;
    assert!(code.iter().all(|(name, digest)| next[name] != *digest), "{code:?} {next:?}");
    // The next release reads what this one has written.
    deployment.complete_held(&of_this, true).await;
    let of_next = deployment.lease_held(&second).await;
    let third = deployment.enqueue_held("third").await;
    load.advance().await;
    let (items, newer) = written(&deployment.stored, &run).await;
    assert_eq!(newer > 0, is_testkit(), "{newer} of {items} items have the field");

    deployment.change("rollback", &load).await;
    assert_eq!(live_code(&deployment.lambda).await, code);
    // This release reads what the next one has written, and keeps what it does not know.
    deployment.complete_held(&of_next, true).await;
    let lease = deployment.lease_held(&third).await;
    deployment.complete_held(&lease, true).await;
    let fourth = deployment.enqueue_held("fourth").await;
    let lease = deployment.lease_held(&fourth).await;
    deployment.complete_held(&lease, false).await;
    load.advance().await;
    let acknowledged = load.stop().await;
    deployment.settle(&acknowledged).await;
    puller.abort();

    let event_log = event_log.lock();
    for id in acknowledged.keys() {
        let starts = event_log.starts.get(id).copied().unwrap_or(0);
        assert_eq!(starts, if id.contains("-flaky-") { 2 } else { 1 }, "starts of {id}");
    }
    let most = event_log.at_work["limited"].1;
    assert_eq!(most, LIMIT, "the limit is used up and never exceeded");
    println!(
        "{} jobs of {} kinds in {:?}, {newer} items of the next release, most at once {most}",
        acknowledged.len(),
        KINDS.len(),
        began.elapsed()
    );
}
