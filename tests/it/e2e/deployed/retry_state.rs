//! A retry strategy of the functions: its state lasts from one failure to the next, and its metrics
//! are in the log of the function that called it.

use std::process::Stdio;

use axum::http::StatusCode;
use serde_json::{Deserializer, Value, json};
use tidegate_backends::system::SystemClock;
use tidegate_core::{port::Clock as _, time::Timestamp};

use super::{deployed, push, stack};
use crate::e2e::{
    target::{Call, Target},
    wait::eventually,
};

/// The functions that call retry strategies.
const FUNCTIONS: [&str; 2] = ["tick", "sweep"];

/// Where the first retry of the job `id` goes.
async fn retried_at(worker: &Target, id: &str) -> String {
    let retry = eventually("the job is retried", || {
        let retry = worker.calls().into_iter().find(|call| {
            let job = call.json();
            job["id"] == id && job["attempt"] != 1
        });
        async { retry }
    });
    retry.await.path
}

/// The lines in JSON that the functions have logged since an instant.
async fn logged(since: Timestamp) -> Vec<Value> {
    let (since, mut lines) = (since.millis().to_string(), Vec::new());
    for function in FUNCTIONS {
        let group = format!("/aws/lambda/{}-{function}", stack());
        let mut command = tokio::process::Command::new("aws");
        command.args(["logs", "filter-log-events", "--log-group-name", &group]);
        command.args(["--start-time", &since, "--query", "events[].message", "--output", "json"]);
        let done = command.stdin(Stdio::null()).kill_on_drop(true).output().await;
        let done = done.expect("localstack/environment has the AWS command line on the PATH");
        let problem = String::from_utf8_lossy(&done.stderr);
        // A function without a call has no log yet.
        let is_missing = problem.contains("ResourceNotFoundException");
        assert!(done.status.success() || is_missing, "{group}: {problem}");
        for page in Deserializer::from_slice(&done.stdout).into_iter::<Vec<String>>() {
            for line in page.unwrap().iter().flat_map(|message| message.lines()) {
                lines.extend(serde_json::from_str::<Value>(line));
            }
        }
    }
    lines
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a local stack"]
async fn on_a_local_stack_a_retry_strategy_has_state_and_metrics() {
    let ((api, _), run) = (deployed(), format!("s{:x}", std::process::id()));
    let (began, plugin) = (SystemClock.now(), format!("{run}-fallback"));
    let worker = Target::start(|call: Call| async move {
        let is_first = call.json()["attempt"] == 1;
        if is_first { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK }
    })
    .await;
    push(&api, &plugin, "fallback-target").await;
    api.queue(&run, json!({})).await;
    // The other target gets one retry a minute, and no job waits for it.
    let strategy = json!({
        "targets": ["backup"], "after": 1, "per_minute": 1, "burst": 1, "max_wait_seconds": 0,
        "backoff": {"base_seconds": 0.5, "max_seconds": 1, "jitter": "none"},
    });
    let config = json!({
        "queue": run, "target": {"url": worker.url}, "response_timeout_seconds": 10,
        "retry_targets": {"backup": format!("{}/backup", worker.url)}, "max_attempts": 12,
        "retry": {"plugin": plugin, "config": strategy},
    });
    api.job_type(&run, config).await;

    let ids = [format!("{run}-1"), format!("{run}-2")];
    for (id, path) in ids.iter().zip(["/work/backup", "/work"]) {
        api.enqueue(json!({"type": run, "id": id, "data": null})).await;
        // Only the state tells the second decision that the first one has used the budget.
        assert_eq!(retried_at(&worker, id).await, path, "{id}");
    }
    for id in &ids {
        api.job_in(id, "succeeded").await;
    }

    eventually("the metrics of the calls are in a log", || async {
        let lines = logged(began).await;
        let has = |metric: &str, labels: &[(&str, &str)]| {
            lines.iter().any(|line| {
                line[metric].as_u64().is_some_and(|count| count > 0)
                    && line["plugin"] == plugin
                    && labels.iter().all(|(label, value)| line[*label] == *value)
            })
        };
        let own = [("queue", run.as_str()), ("name", "without_budget"), ("label", "backup")];
        let is_there = has("tidegate_plugin_counter_total", &own)
            && has("tidegate_plugin_calls_total", &[("role", "retry"), ("purpose", "live")]);
        is_there.then_some(())
    })
    .await;
}
