//! Jobs of each kind are enqueued without a pause while the functions are replaced by those of the
//! next release, and rolled back, by the commands that an operator uses.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::http::StatusCode;
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};
use tidegate_engine::testkit::releases::FIELD;

use super::{
    deployed, stack,
    workers::{EventLog, pull, work},
};
use crate::e2e::{
    api::Api,
    target::{Call, Target},
};

/// How long all jobs together may take after the last one was enqueued.
const PATIENCE: Duration = Duration::from_mins(6);
/// Jobs of one batch: one of each kind.
const BATCH: usize = KINDS.len();
/// Most jobs whose end is not posted yet. A local stack answers only some dozens of calls a second.
const MAX_OPEN: usize = 8 * BATCH;
/// Batches that must be acknowledged under each release before the next change.
const BATCHES: usize = 6;
/// The weight that the limited queue may run at once.
const LIMIT: u64 = 4;
/// The kinds of jobs: a limited queue, one without a limit, delayed jobs, answers by a callback, and
/// a pull worker.
const KINDS: [&str; 5] = ["steady", "free", "delayed", "later", "pulled"];

/// Runs `tidegate aws LINE` on the stack, as an operator does.
async fn operate(line: &str, token: &str) {
    let which = std::fs::read_to_string(of_stack("which")).unwrap_or_default();
    // MiniStack's table has no TTL, which doctor finds.
    let line =
        if which.trim() == "ministack" { format!("{line} --no-checks") } else { line.into() };
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["aws"]).args(line.split(' ')).args(["--stack", &stack(), "--yes"]);
    command.env("TIDEGATE_TOKEN", token).stdin(Stdio::null()).kill_on_drop(true);
    let done = command.output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (output, error) = (text(&done.stdout), text(&done.stderr));
    assert!(done.status.success(), "{line}: {}\n{output}\n{error}", done.status);
    println!("tidegate aws {line}:\n{output}");
}

/// A file or folder of the local stack, such as that of the zips of a release.
fn of_stack(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/localstack").join(name);
    folder.to_str().unwrap().to_owned()
}

async fn configure(api: &Api, run: &str, target: &str, receiver: &str) {
    api.queue(&format!("{run}-limited"), json!({"concurrency": LIMIT})).await;
    api.queue(&format!("{run}-open"), json!({})).await;
    for kind in KINDS {
        let queue = if matches!(kind, "steady" | "later") { "limited" } else { "open" };
        let mut config = json!({
            "queue": format!("{run}-{queue}"), "max_attempts": 12,
            "retry": {"strategy": "exponential", "config": {"base_seconds": 0.5, "max_seconds": 2}},
            "keep_result": {"seconds": 3600}, "callback_url": receiver,
        });
        if kind == "pulled" {
            config["lease_seconds"] = json!(10);
        } else {
            config["target"] = json!({"url": target});
            config["response_timeout_seconds"] = json!(10);
        }
        api.job_type(&format!("{run}-{kind}"), config).await;
    }
}

/// A producer, until it is stopped. It repeats a batch until every job of it is acknowledged, and keeps
/// the number of open jobs bounded.
struct Producer {
    acknowledged: Arc<Mutex<BTreeSet<String>>>,
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Producer {
    fn start(api: Api, run: String, receiver: Arc<Target>) -> Self {
        let (acknowledged, stop) = (Arc::<Mutex<BTreeSet<String>>>::default(), Arc::default());
        let (into, stopped) = (Arc::clone(&acknowledged), Arc::<AtomicBool>::clone(&stop));
        let task = tokio::spawn(async move {
            let mut looks = tokio::time::interval(Duration::from_millis(200));
            for first in (0..).step_by(BATCH) {
                while first >= posted(&receiver).len() + MAX_OPEN {
                    looks.tick().await;
                    if stopped.load(Ordering::Relaxed) {
                        return;
                    }
                }
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let job = |number: usize| {
                    let kind = KINDS[number % KINDS.len()];
                    let mut job = json!({
                        "type": format!("{run}-{kind}"), "id": format!("{run}-{kind}-{number}"),
                        "data": {"number": number},
                    });
                    if kind == "delayed" {
                        job["delay_seconds"] = json!(5 + number % 10);
                    }
                    job
                };
                let jobs: Vec<Value> = (first..first + BATCH).map(job).collect();
                enqueue(&api, &jobs).await;
                into.lock().extend(jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
            }
        });
        Self { acknowledged, stop, task }
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().len()
    }

    /// Waits until the jobs of some more batches are acknowledged.
    #[allow(clippy::disallowed_methods, reason = "what is measured is a real deployment")]
    async fn advance(&self) {
        let (from, began) = (self.count(), Instant::now());
        let mut looks = tokio::time::interval(Duration::from_millis(100));
        while self.count() < from + BATCHES * BATCH {
            looks.tick().await;
            assert!(
                began.elapsed() < PATIENCE,
                "the producer makes no progress after {}",
                self.count()
            );
            assert!(!self.task.is_finished(), "the producer has failed");
        }
    }

    async fn stop(self) -> BTreeSet<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
        self.acknowledged.lock().clone()
    }
}

/// The jobs whose end was posted.
fn posted(receiver: &Target) -> BTreeSet<String> {
    let id = |call: &Call| call.json()["id"].as_str().unwrap().to_owned();
    receiver.calls().iter().map(id).collect()
}

/// Enqueues `jobs`, again and again until each is acknowledged: their ids make repeats safe.
async fn enqueue(api: &Api, jobs: &[Value]) {
    let mut looks = tokio::time::interval(Duration::from_millis(200));
    loop {
        looks.tick().await;
        let body = json!({"jobs": jobs}).to_string();
        let kind = [("content-type", "application/json")];
        let answer = api.try_send(Method::POST, "/v1/jobs/batch", &kind, body).await;
        let Some(answer) = answer.filter(|answer| answer.status == 200) else { continue };
        let answer = answer.value();
        let mut results = answer["results"].as_array().unwrap().iter();
        if results.all(|one| one["status"] == 200 || one["status"] == 201) {
            return;
        }
    }
}

/// Every job of the run with its state.
async fn states(api: &Api, run: &str) -> BTreeMap<String, String> {
    let mut jobs = BTreeMap::new();
    for kind in KINDS {
        let mut cursor = String::new();
        loop {
            let path = format!("/v1/jobs?type={run}-{kind}&limit=200{cursor}");
            let page = api.get(&path).await.good();
            for job in page["jobs"].as_array().unwrap() {
                let text = |name: &str| job[name].as_str().unwrap().to_owned();
                assert_eq!(jobs.insert(text("id"), text("state")), None, "{job:#} is there twice");
            }
            let Some(next) = page["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
    }
    jobs
}

/// The number of items of the table that the next release has written.
async fn items_of_the_next_release() -> usize {
    let calls = tidegate_backends::aws::Calls::new().unwrap();
    let config = tidegate_backends::aws::config(calls, Duration::from_secs(30)).await;
    let table = aws_sdk_dynamodb::Client::new(&config);
    let names = table.list_tables().send().await.unwrap().table_names.unwrap_or_default();
    let mut found = 0;
    for name in names.iter().filter(|name| name.starts_with(&stack())) {
        let mut pages = table.scan().table_name(name).into_paginator().items().send();
        while let Some(item) = pages.next().await {
            let has = |value: &aws_sdk_dynamodb::types::AttributeValue| {
                let bytes = value.as_b().map(|blob| blob.as_ref().to_vec()).unwrap_or_default();
                let text = value.as_s().map(|text| text.as_bytes().to_vec()).unwrap_or_default();
                let field = FIELD.as_bytes();
                [bytes, text].iter().any(|it| it.windows(field.len()).any(|part| part == field))
            };
            found += usize::from(item.unwrap().values().any(has));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a local stack that nothing else uses: see docs/upgrade.md"]
#[allow(clippy::disallowed_methods, reason = "what is measured is a real deployment")]
async fn an_upgrade_of_a_deployment_under_load_loses_no_job() {
    let began = Instant::now();
    let (api, token) = deployed();
    let run = format!("u{:x}", std::process::id());
    let event_log: Arc<Mutex<EventLog>> = Arc::default();
    let target = {
        let (event_log, api) = (Arc::clone(&event_log), api.clone());
        Target::start(move |call| work(Arc::clone(&event_log), api.clone(), call)).await
    };
    let receiver = Arc::new(Target::start(|_| async { StatusCode::OK }).await);
    configure(&api, &run, &target.url, &receiver.url).await;
    let producer = Producer::start(api.clone(), run.clone(), Arc::clone(&receiver));
    let puller = tokio::spawn(pull(api.clone(), run.clone(), Arc::clone(&event_log)));
    producer.advance().await;
    assert_eq!(items_of_the_next_release().await, 0, "this release does not write the field");

    operate(&format!("upgrade --functions {}", of_stack("next")), &token).await;
    producer.advance().await;
    let newer = items_of_the_next_release().await;
    // Packages have no testkit: their next release differs only in its zips.
    let packaged = std::env::var("PROFILE").is_ok_and(|profile| profile == "packaged");
    assert_eq!(newer > 0, !packaged, "{newer} items have the field of the next release");

    operate("rollback", &token).await;
    producer.advance().await;
    let acknowledged = producer.stop().await;

    let mut looks = tokio::time::interval(Duration::from_millis(500));
    let (stopped, mut open) = (Instant::now(), BTreeMap::new());
    loop {
        looks.tick().await;
        let jobs = states(&api, &run).await;
        open.clone_from(&jobs);
        open.retain(|_, state| state != "succeeded");
        let called_back = posted(&receiver);
        if open.is_empty() && called_back.len() >= acknowledged.len() {
            let ids: BTreeSet<String> = jobs.into_keys().collect();
            assert_eq!(ids, acknowledged, "every acknowledged job is there, and no other one");
            assert_eq!(called_back, acknowledged, "the end of each job is posted");
            break;
        }
        let waits = stopped.elapsed() < PATIENCE;
        assert!(
            waits,
            "{} of {} called back; open: {open:#?}",
            called_back.len(),
            acknowledged.len()
        );
    }
    puller.abort();
    let event_log = event_log.lock();
    for id in &acknowledged {
        assert!(event_log.starts.contains_key(id), "{id} succeeded, but no worker started it");
    }
    let most = event_log.at_work["limited"].1;
    assert!((1..=LIMIT).contains(&most), "{most} jobs ran at once, and {LIMIT} may");
    println!(
        "{} jobs of {} kinds in {:?}, {newer} items of the next release, most at once {most}",
        acknowledged.len(),
        KINDS.len(),
        began.elapsed()
    );
}
