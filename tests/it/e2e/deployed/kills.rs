//! Jobs of each kind run while the processes of the functions are killed.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{
    deployed, jobs_of, open_jobs, push,
    workers::{EventLog, pull, work},
};
use crate::e2e::{api::Api, rounds, target::Target};

/// How long all jobs together may take. A local stack answers only some dozens of calls a second.
const PATIENCE: Duration = Duration::from_mins(12);
/// How often a delivering process is killed for each round of the load.
const KILLS_PER_ROUND: usize = 2;
/// The time between two kills.
const BETWEEN: Duration = Duration::from_secs(6);

/// The processes of the function `name`; there may be none at an instant.
fn processes(name: &str) -> Vec<Pid> {
    // The links of /proc have no symbolic links.
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/localstack");
    let here = here.canonicalize().unwrap();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let of = |entry: &std::fs::DirEntry| {
        let program = std::fs::read_link(entry.path().join("exe")).ok()?;
        let variables = std::fs::read(entry.path().join("environ")).ok()?;
        let function = variables
            .split(|byte| *byte == 0)
            .find_map(|variable| variable.strip_prefix(b"AWS_LAMBDA_FUNCTION_NAME="))?;
        let ours = program.starts_with(&here) && function.ends_with(format!("-{name}").as_bytes());
        ours.then(|| entry.file_name().to_string_lossy().parse().ok().map(Pid::from_raw)).flatten()
    };
    entries.filter_map(|entry| of(&entry)).collect()
}

/// The load of the deployment: how many jobs of each kind one round has, 200 in all.
const MIX: [(&str, usize); 8] = [
    ("steady", 48),
    ("flaky", 24),
    ("later", 8),
    ("once", 12),
    ("large", 4),
    ("shared", 32),
    ("free", 40),
    ("pulled", 32),
];

async fn configure(api: &Api, run: &str, url: &str) {
    let limited = format!("{run}-limited");
    let shared = format!("{run}-shared");
    api.queue(&limited, json!({"concurrency": 10})).await;
    for queue in ["free", "pulled"] {
        api.queue(&format!("{run}-{queue}"), json!({})).await;
    }
    let plugin = format!("{run}-share");
    push(api, &plugin, "region-share").await;
    let shares = json!({"attribute": "region", "limit": 10, "shares": {"east": 40, "north": 30, "west": 30}});
    api.queue(
        &shared,
        json!({"concurrency": 20, "throttler": {"plugin": plugin, "config": shares}}),
    )
    .await;
    let retry =
        json!({"strategy": "exponential", "config": {"base_seconds": 0.5, "max_seconds": 2}});
    for (kind, _) in MIX {
        let queue = match kind {
            "shared" => shared.clone(),
            "free" => format!("{run}-free"),
            "pulled" => format!("{run}-pulled"),
            _ => limited.clone(),
        };
        let mut config = json!({"queue": queue, "max_attempts": 12, "retry": retry, "keep_result": {"seconds": 3600}});
        if kind == "pulled" {
            config["lease_seconds"] = json!(10);
        } else {
            config["target"] = json!({"url": url});
            config["response_timeout_seconds"] = json!(10);
        }
        if kind == "once" {
            config["delivery"] = json!("at_most_once");
            config["max_attempts"] = json!(1);
        }
        if kind == "shared" {
            config["attributes"] = json!({"region": "/region"});
        }
        api.job_type(&format!("{run}-{kind}"), config).await;
    }
}

/// Enqueues all jobs in batches, some for later, and returns their ids.
async fn enqueue(api: &Api, run: &str) -> Vec<String> {
    let mut jobs = Vec::new();
    for (kind, count) in MIX {
        for number in 0..count * rounds() {
            let region = ["east", "north", "west"][number % 3];
            let mut data = json!({"number": number});
            if kind == "shared" {
                data["region"] = json!(region);
            }
            if kind == "large" {
                data["text"] = json!("x".repeat(100_000));
            }
            let id = format!("{run}-{kind}-{number}");
            let mut job = json!({"type": format!("{run}-{kind}"), "id": id, "data": data, "priority": number % 5});
            if number % 4 == 3 {
                job["delay_seconds"] = json!(number % 20);
            }
            jobs.push(job);
        }
    }
    let ids = jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect();
    for batch in jobs.chunks(100) {
        let answer = api.post("/v1/jobs/batch", json!({"jobs": batch})).await.is(200);
        assert!(
            answer["results"].as_array().unwrap().iter().all(|one| one["status"] == 201),
            "{answer}"
        );
    }
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a local stack"]
#[allow(clippy::disallowed_methods, reason = "what is measured is a real deployment")]
async fn on_a_local_stack_no_job_is_lost_while_deliverers_are_killed() {
    let (api, _) = deployed();
    let run = format!("r{:x}", std::process::id());
    let event_log: Arc<Mutex<EventLog>> = Arc::default();
    let worker = {
        let (event_log, api) = (Arc::clone(&event_log), api.clone());
        Target::start(move |call| work(Arc::clone(&event_log), api.clone(), call)).await
    };
    configure(&api, &run, &worker.url).await;
    let ids = enqueue(&api, &run).await;
    assert_eq!(ids.len(), 200 * rounds());
    let kills = KILLS_PER_ROUND * rounds();
    let puller = tokio::spawn(pull(api.clone(), run.clone(), Arc::clone(&event_log)));

    let (began, mut killed, mut kill_at) = (Instant::now(), 0, Instant::now() + BETWEEN);
    let mut seen: Option<JoinHandle<BTreeMap<String, Value>>> = None;
    let mut looks = tokio::time::interval(Duration::from_millis(500));
    let jobs = loop {
        looks.tick().await;
        // A worker is busy, so a killed process has something to lose.
        let busy = event_log.lock().at_work.values().any(|(now, _)| *now > 0);
        if killed < kills && busy && Instant::now() >= kill_at {
            let victims = processes(if killed % 4 == 3 { "tick" } else { "deliver" });
            if let Some(victim) = victims.first() {
                kill(*victim, Signal::SIGKILL).unwrap();
                killed += 1;
                kill_at = Instant::now() + BETWEEN;
            }
        }
        // A look at all jobs takes seconds. Meanwhile processes are killed.
        let look = seen.get_or_insert_with(|| {
            let (api, run) = (api.clone(), run.clone());
            tokio::spawn(async move { jobs_of(&api, &run, MIX.map(|(kind, _)| kind)).await })
        });
        if !look.is_finished() {
            continue;
        }
        let jobs = look.await.unwrap();
        let open = open_jobs(&jobs);
        if open == 0 {
            break jobs;
        }
        seen = None;
        assert!(began.elapsed() < PATIENCE, "{open} jobs are open after {PATIENCE:?}: {jobs:#?}");
    };
    puller.abort();

    assert_eq!(jobs.len(), ids.len(), "no job is lost, and none is there twice");
    let event_log = event_log.lock();
    let mut unknown = 0;
    for id in &ids {
        let job = &jobs[id];
        let number: u64 = id.rsplit('-').next().unwrap().parse().unwrap();
        let (state, starts) =
            (job["state"].as_str().unwrap(), event_log.starts.get(id).copied().unwrap_or(0));
        if id.contains("-once-") {
            assert!(starts <= 1, "{id} started {starts} times");
            let in_doubt = job["error"]["reason"] == "outcome_unknown";
            assert!(state == "succeeded" || in_doubt, "{job:#}");
            unknown += usize::from(in_doubt);
        } else {
            assert_eq!(state, "succeeded", "{job:#}");
            assert_eq!(job["result"]["number"], number, "{job:#}");
            assert!(starts >= 1, "{id} succeeded, but no worker started it");
        }
        if id.contains("-flaky-") && number.is_multiple_of(2) {
            assert!(job["attempt"].as_u64().unwrap() >= 2, "{job:#}");
        }
    }
    assert!(killed >= kills / 2, "only {killed} processes were killed while there was work");
    let most = |scope: &str| event_log.at_work.get(scope).map_or(0, |(_, most)| *most);
    let limited = most("limited");
    assert!((2..=10).contains(&limited), "{limited} at once, and the limit is 10");
    let regions = ["east", "north", "west"].map(|region| most(&format!("shared {region}")));
    assert!(
        regions.iter().zip([4, 3, 3]).all(|(most, share)| (1..=share).contains(most)),
        "{regions:?}"
    );
    println!(
        "{} jobs in {:?}, {killed} kills, {unknown} unknown, most at once {limited}, {regions:?}",
        ids.len(),
        began.elapsed()
    );
}
