//! Traces of live queues that a policy of the gallery governed, simulated with that policy: what the
//! policy reads of attempts is in the trace, so that it decides again as it did.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::serve::{Tidegate, text};

/// How long the circuit stays open. The live queue may be later than the simulation by as much.
const OPEN_SECONDS: u32 = 3;

/// A policy on a live server.
struct Live {
    tide: Tidegate,
    component: String,
    dir: TempDir,
}

impl Live {
    /// A server with the shipped component of a model.
    async fn with(name: &str) -> Self {
        let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins/dist");
        let component = text(&dist.join(format!("{name}.wasm"))).to_owned();
        let (tide, dir) = (Tidegate::start().await, tempfile::tempdir().unwrap());
        tide.cli(&["plugin", "push", name, &component]).await.ok();
        Self { tide, component, dir }
    }

    /// The job `id` starts next, and its attempt ends with this report.
    async fn runs(&self, job_type: &str, id: &str, mut report: Value) {
        let lease = self.tide.lease_one(job_type).await;
        assert_eq!(lease.id, id);
        report["attempt"] = lease.attempt.into();
        self.tide.post(&lease.path, report).await.is(200);
    }

    /// Writes the trace of `queue`, as arguments of `simulate` with the policy as `option`.
    async fn trace(&self, queue: &str, option: &str) -> [String; 3] {
        let trace = self.tide.cli(&["plugin", "trace", queue, "--with-data"]).await.ok();
        let file = self.dir.path().join("trace.json");
        std::fs::write(&file, trace).unwrap();
        [text(&file).to_owned(), option.to_owned(), self.component.clone()]
    }

    /// The report of a simulation.
    async fn simulated(&self, trace: &[String; 3], options: &[&str]) -> Value {
        let trace = trace.each_ref().map(String::as_str);
        let args = [&["simulate"], &trace[..], options, &["--json"]].concat();
        serde_json::from_str(&self.tide.cli(&args).await.ok()).unwrap()
    }
}

/// How many jobs of the group `value` succeeded and failed.
fn ended(report: &Value, value: &str) -> (u64, u64) {
    let groups = report["groups"].as_array().unwrap();
    let row = groups.iter().find(|row| row["value"] == value);
    let row = row.unwrap_or_else(|| panic!("no {value} in {report:#}"));
    (row["succeeded"].as_u64().unwrap(), row["failed"].as_u64().unwrap())
}

fn failed(message: &str) -> Value {
    json!({"status": "failed", "message": message})
}

fn succeeded() -> Value {
    json!({"status": "succeeded"})
}

#[tokio::test]
async fn a_traced_outage_fails_the_same_probes_of_a_breaker() {
    let live = Live::with("circuit-breaker").await;
    let open = OPEN_SECONDS;
    let config =
        |failures: u32| json!({"attribute": "target", "failures": failures, "open_seconds": open});
    let throttler = json!({"plugin": "circuit-breaker", "config": config(2)});
    live.tide.queue("calls", json!({"concurrency": 1, "throttler": throttler})).await;
    live.tide.job_type("call", json!({"queue": "calls", "max_attempts": 1})).await;
    let enqueue = async |id: &str, target: &str| {
        let attributes = json!({"target": target});
        let job = json!({"id": id, "type": "call", "data": null, "attributes": attributes});
        live.tide.enqueue(job).await;
    };
    for id in ["a1", "a2", "a3", "a4", "a5", "a6"] {
        enqueue(id, "a").await;
    }
    // The circuit opens after two failures, and the first probe fails.
    for id in ["a1", "a2", "a3"] {
        live.runs("call", id, failed("503")).await;
    }
    // The outage is over before the second probe. The trace shows it by a job of another target.
    enqueue("z1", "z").await;
    for id in ["z1", "a4", "a5", "a6"] {
        live.runs("call", id, succeeded()).await;
    }

    let trace = live.trace("calls", "--plugin").await;
    let by_time = ["--by", "target", "--outcomes", "time"];
    let replayed = live.simulated(&trace, &by_time).await;
    assert_eq!(ended(&replayed["real"], "a"), (3, 3));
    assert_eq!(ended(&replayed["simulated"], "a"), (3, 3), "{replayed:#}");

    // A circuit that opens after one failure has one probe in the outage, too. It starts another job:
    // by time it meets the outage, and by job it fails a probe after it.
    let stricter = config(1).to_string();
    let stricter = ["--config", &stricter];
    let what_if = live.simulated(&trace, &[&by_time[..], &stricter].concat()).await;
    assert_eq!(ended(&what_if["simulated"], "a"), (4, 2), "{what_if:#}");
    let by_job = ["--by", "target", "--outcomes", "job"];
    let wrong = live.simulated(&trace, &[&by_job[..], &stricter].concat()).await;
    assert_eq!(ended(&wrong["simulated"], "a"), (3, 3), "{wrong:#}");
}

#[tokio::test]
async fn a_traced_strategy_reads_messages_details_and_data_again() {
    let live = Live::with("error-details").await;
    let config = json!({
        "rules": [
            {"text": "too large", "wait_seconds": 0.1, "priority": 200, "set": {"mode": "split"}},
            {"code": "unknown_file", "give_up": "there is no such file"},
        ],
        "backoff": {"base_seconds": 0.2, "jitter": "none"},
    });
    live.tide.queue("imports", json!({"concurrency": 1})).await;
    let retry = json!({"plugin": "error-details", "config": config});
    let import = json!({"queue": "imports", "max_attempts": 9, "retry": retry});
    live.tide.job_type("import", import).await;
    let enqueue = async |id: &str| {
        let data = json!({"file": id, "mode": "whole"});
        live.tide.enqueue(json!({"id": id, "type": "import", "data": data})).await;
    };
    enqueue("i1").await;
    live.runs("import", "i1", failed("the file is too large")).await;
    live.runs("import", "i1", failed("no idea")).await;
    let unknown = json!({"status": "failed", "message": "no", "error": {"code": "unknown_file"}});
    live.runs("import", "i1", unknown).await;
    live.tide.job_in("i1", "failed").await;
    enqueue("i2").await;
    live.runs("import", "i2", failed("it is too large")).await;
    live.runs("import", "i2", succeeded()).await;

    let trace = live.trace("imports", "--retry-plugin").await;
    let parsed: Value = serde_json::from_slice(&std::fs::read(&trace[0]).unwrap()).unwrap();
    let traced = parsed["jobs"].as_array().unwrap();
    let first = traced.iter().find(|job| job["id"] == "i1").unwrap();
    assert_eq!(first["data"], json!({"file": "i1", "mode": "whole"}), "as it came: {first:#}");
    let replayed = live.simulated(&trace, &[]).await;
    for side in ["real", "simulated"] {
        let all = &replayed[side]["all"];
        let counts = ["succeeded", "failed", "retries"].map(|name| all[name].as_u64().unwrap());
        assert_eq!(counts, [1, 1, 3], "{side}: {replayed:#}");
    }
}
