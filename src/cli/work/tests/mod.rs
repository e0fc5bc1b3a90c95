//! The worker against a server that grants leases one by one and records its requests.

mod attempts;
mod reports;
mod stops;

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

/// Returns a lease of the job `id` for `millis` milliseconds.
fn lease(id: &str, millis: i64) -> Value {
    let mut lease = sample::lease(id, millis);
    lease["job"]["data"] = json!({"b": 1, "a": "x"});
    lease["job"]["attributes"] = json!({"region": "east"});
    lease["job"]["headers"] = json!({"traceparent": PARENT, "x-team": "blue"});
    lease
}

/// Starts a server that grants `leases` one by one, then none. `other` answers all other requests.
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
    fine_at_once(&seen)
}

fn fine_at_once(seen: &SeenRequest) -> (u16, Value) {
    (200, if seen.path.ends_with("/heartbeat") { sample::beat(false) } else { json!({}) })
}

fn plan(script: &str) -> WorkPlan {
    WorkPlan {
        min: 1,
        max_pause: Seconds::new(0),
        types: vec!["mail".parse().unwrap()],
        queue: None,
        concurrency: 1,
        auto: false,
        lease: None,
        wait: Seconds::new(5),
        worker: "w1".to_owned(),
        log: false,
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        grace: Duration::from_millis(100),
        poll_interval: Duration::from_millis(20),
    }
}

/// A running worker, and the means to stop it.
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

/// Returns a file, and a shell loop that waits for it.
fn gate() -> (tempfile::TempDir, PathBuf, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("open");
    let wait = format!("while [ ! -e {} ]; do sleep 0.02; done", file.display());
    (folder, file, wait)
}

/// Waits until `holds` returns true.
async fn until(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            pause(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting)
        .await
        .expect("the condition becomes true");
}
