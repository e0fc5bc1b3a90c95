//! Recorded calls of a throttler that sees what waits: the functions store a sample, what a filter
//! selects and what failed. The command line fetches them as cases and repeats them.

use std::time::Duration;

use serde_json::{Value, json};

use super::{config, deployed, jobs_of, push, shipped, sweep};
use crate::e2e::{
    api::{Api, Lease},
    serve::{self, Ran, text},
};

/// How long it may take until a call is stored, on a stack that other tests use.
const PATIENCE: Duration = Duration::from_mins(2);
/// The kinds of jobs: one that a worker takes, one of the same queue that no worker takes, and one of
/// a queue whose partitions are not those of the throttler.
const KINDS: [&str; 3] = ["taken", "idle", "split"];

/// A plugin of the deployment.
struct Plugin {
    api: Api,
    token: String,
    run: String,
    name: String,
}

impl Plugin {
    /// The shipped throttler `fair-share` for two queues with two slots each. One of them has wrong
    /// partitions.
    async fn fair_share() -> Self {
        let ((api, token), run) = (deployed(), format!("p{:x}", std::process::id()));
        let name = format!("{run}-fair");
        push(&api, &name, "fair-share").await;
        for (queue, by) in [("shared", "tenant"), ("split", "user")] {
            let throttler = json!({"plugin": name, "config": {"tenant": "tenant"}});
            let config = json!({"concurrency": 2, "partition_by": by, "throttler": throttler});
            api.queue(&format!("{run}-{queue}"), config).await;
        }
        for (kind, queue) in KINDS.iter().zip(["shared", "shared", "split"]) {
            let attributes = json!({"tenant": "/tenant", "user": "/user"});
            let config = json!({"queue": format!("{run}-{queue}"), "attributes": attributes});
            api.job_type(&format!("{run}-{kind}"), config).await;
        }
        Self { api, token, run, name }
    }

    async fn cli(&self, args: &[&str]) -> Ran {
        serve::cli(&self.api.base, Some(&self.token), args).await
    }

    async fn enqueue(&self, kind: &str, tenant: &str) -> String {
        let data = json!({"tenant": tenant, "user": "ann"});
        self.api.enqueue(json!({"type": format!("{}-{kind}", self.run), "data": data})).await
    }

    /// Leases the jobs of `kind` that may start, and waits for one.
    async fn lease(&self, kind: &str, wait_seconds: u32) -> Vec<Lease> {
        let types = [format!("{}-{kind}", self.run)];
        self.api.lease(json!({"types": types, "max": 2, "wait_seconds": wait_seconds})).await
    }

    /// Completes the jobs of `kind` that may start, and enqueues as many.
    async fn work(&self, kind: &str) {
        for lease in self.lease(kind, 20).await {
            self.api.report(&lease, "succeeded").await.good();
            self.enqueue(kind, "a").await;
        }
    }

    /// A call with its input and its answer that was stored for `reason` and is `good`. `work` goes on
    /// until there is one.
    async fn stored<F: Future<Output = ()>>(
        &self,
        reason: &str,
        good: impl Fn(&Value) -> bool,
        work: impl Fn() -> F,
    ) -> Value {
        let path = format!("/v1/plugins/{}/calls", self.name);
        let found = async {
            loop {
                work().await;
                let listed = self.api.get(&path).await.good();
                let calls = listed["calls"].as_array().unwrap().iter();
                for call in calls.filter(|call| call["reason"] == reason).take(5) {
                    let path = format!("{path}/{}", call["id"].as_str().unwrap());
                    let whole = self.api.get(&path).await.good();
                    if good(&whole) {
                        return whole;
                    }
                }
            }
        };
        let found = tokio::time::timeout(PATIENCE, found).await;
        found.unwrap_or_else(|_| panic!("no such {reason} is stored after {PATIENCE:?}"))
    }

    /// Cancels the jobs that wait, so that later sweeps have nothing to do for them.
    async fn cancel_all(&self) {
        for (id, job) in jobs_of(&self.api, &self.run, KINDS).await {
            if job["state"] == "scheduled" {
                let path = format!("/v1/jobs/{}/{id}", job["type"].as_str().unwrap());
                self.api.delete(&path).await.good();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a local stack"]
async fn on_a_local_stack_calls_of_plugins_are_recorded() {
    let lambda = aws_sdk_lambda::Client::new(&config().await);
    let plugin = Plugin::fair_share().await;
    // No worker requests its type, so a tick learns of it only by the count of the sweep.
    plugin.enqueue("idle", "c").await;
    sweep(&lambda).await;
    for _ in 0..2 {
        plugin.enqueue("taken", "a").await;
    }
    let work = || async {
        plugin.work("taken").await;
        sweep(&lambda).await;
    };
    let sample = plugin.stored("sample", |_| true, work).await;
    assert_eq!(sample["queue"], format!("{}-shared", plugin.run), "{sample:#}");

    let queue = format!("queue={}-shared", plugin.run);
    let filter = ["--filter", &queue, "--filter", "action=hold"];
    plugin.cli(&[&["plugin", "record", &plugin.name], &filter[..]].concat()).await.ok();
    let waiting = |call: &Value| call["call"]["throttle"]["waiting"].clone();
    let sees_idle = |call: &Value| {
        waiting(call)["groups"]["tenant"]["c"]["count"] == 1 && call["decided"]["run"] == 1
    };
    let held = plugin.stored("filter", sees_idle, work).await;
    assert_ne!(waiting(&held)["counted-at"], Value::Null, "{held:#}");
    let decisions = held["answer"]["decisions"].as_array().unwrap();
    let is_held = |decision: &Value| decision["reason"] == "a uses 1 of 2; its share is 1";
    assert!(decisions.iter().any(is_held), "a slot is kept for the other tenant: {held:#}");

    let id = plugin.enqueue("split", "a").await;
    // The queue offers nothing, so a lease call ends without a job.
    let lease = || async {
        plugin.lease("split", 2).await;
    };
    let fault = plugin.stored("fault", |_| true, lease).await;
    assert_eq!(fault["fault"]["kind"], "invalid_answer", "{fault:#}");
    assert_eq!(fault["call"]["throttle"]["candidates"][0]["id"], id, "{fault:#}");
    plugin.cancel_all().await;

    let (dir, file) = (tempfile::tempdir().unwrap(), shipped("fair-share"));
    let (samples, faults) = (dir.path().join("samples"), dir.path().join("faults"));
    let save = ["--only", "sample", "--save", text(&samples)];
    plugin.cli(&[&["plugin", "record", &plugin.name], &save[..]].concat()).await.ok();
    let tested = plugin.cli(&["plugin", "test", &file, text(&samples)]).await.ok();
    assert!(tested.contains(" cases, 0 failed"), "{tested}");
    plugin.cli(&["plugin", "faults", &plugin.name, "--save", text(&faults)]).await.ok();
    let tested = plugin.cli(&["plugin", "test", &file, text(&faults)]).await;
    let message = "queried what waits by `tenant`";
    assert!(tested.code == Some(1) && tested.out.contains(message), "{tested:?}");

    let replayed = plugin.cli(&["plugin", "replay", &file, "--of", &plugin.name, "--json"]).await;
    let replayed: Value = serde_json::from_str(&replayed.ok()).unwrap();
    for other in ["different", "fails", "repaired", "incomplete"] {
        assert_eq!(replayed[other], 0, "each call is decided as it was: {replayed:#}");
    }
    for reason in ["sample", "filter", "fault"] {
        let is_of = |call: &Value| call["call"].as_str().unwrap().starts_with(reason);
        assert!(replayed["calls"].as_array().unwrap().iter().any(is_of), "{reason}: {replayed:#}");
    }
}
