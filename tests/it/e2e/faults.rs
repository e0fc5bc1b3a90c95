//! Faults around the server: a target that hangs, a full disk.

use std::{future::pending, sync::Arc, time::Duration};

use axum::http::StatusCode;
use object_store::memory::InMemory;
use serde_json::json;
use tidegate_backends::{
    http::{Guard, HttpTarget},
    sqlite::SqliteStore,
    system::{SystemClock, SystemEntropy},
};
use tidegate_engine::{Ports, memory::MemoryWorkQueue};
use tidegate_server::{
    Server,
    auth::{Anonymous, BuiltIn},
    dashboard::ConsoleOptions,
    handlers::{self, ApiOptions},
};
use tokio::task::JoinHandle;

use super::{
    api::{Api, ApiAnswer},
    serve::Tidegate,
    target::Target,
};

/// How long it takes from an enqueue to the end of the job, at the 90th of 100.
async fn usual(api: &Api, kind: &str) -> Duration {
    let mut took = Vec::new();
    for _ in 0..50 {
        let began = tokio::time::Instant::now();
        let id = api.enqueue_a(kind).await;
        api.get(&format!("/v1/jobs/{kind}/{id}/result?wait=30")).await.is(200);
        took.push(began.elapsed());
    }
    took.sort_unstable();
    took[44]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_hangs_slows_only_its_own_queue() {
    let tide = Tidegate::start().await;
    let hanging = Target::start(|_| pending::<StatusCode>()).await;
    let healthy = Target::start(|_| async { "ok" }).await;
    for (name, target) in [("bad", &hanging), ("good", &healthy)] {
        tide.queue(name, json!({"concurrency": 500})).await;
        tide.job_type(name, json!({"queue": name, "target": {"url": target.url}})).await;
    }
    let before = usual(&tide, "good").await;
    let jobs: Vec<_> = (0..600).map(|_| json!({"type": "bad", "data": 1})).collect();
    tide.post("/v1/jobs/batch", json!({"jobs": jobs})).await.is(200);
    hanging.call(256).await;
    let during = usual(&tide, "good").await;
    // All tests share this machine's cores, so the bound is wide; what it would catch waits for
    // seconds.
    assert!(
        during < before * 5 + Duration::from_millis(250),
        "{before:?} before, {during:?} while another target hangs"
    );
    assert_eq!(hanging.calls().len(), 256, "calls to one queue's targets have a bound");
}

/// The API over a store in a file of at most `pages`.
async fn bounded(dir: &std::path::Path, pages: u32) -> (Server, Api, JoinHandle<()>) {
    let ports = Ports {
        store: Arc::new(SqliteStore::open_bounded(dir, pages).unwrap()),
        objects: Arc::new(InMemory::new()),
        work: Arc::new(MemoryWorkQueue::default()),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        policy: Arc::new(tidegate_core::port::policy::NoPolicy),
    };
    let server = Server::builder(ports, Arc::new(HttpTarget::new(Guard::On).unwrap()))
        .start()
        .await
        .unwrap();
    let options = ApiOptions {
        auth: Arc::new(BuiltIn::new(None, Anonymous::AdminWithoutTokens, Arc::new(SystemClock))),
        entropy: Arc::new(SystemEntropy),
        clock: Arc::new(SystemClock),
        body_timeout: Duration::from_secs(30),
        max_data_bytes: 1 << 20,
        console: ConsoleOptions::default(),
        sign_in: None,
        settings: Vec::new(),
        log_traffic: false,
        allow_unencrypted_proxy: false,
        metrics: None,
        dev_clock: None,
    };
    let router = handlers::router(server.clone(), options);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = Api::at(format!("http://{}", listener.local_addr().unwrap()));
    let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (server, api, serving)
}

#[tokio::test]
async fn a_full_disk_is_reported_and_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let (server, api, serving) = bounded(dir.path(), 150).await;
    api.job_type("t", json!({})).await;
    let mut kept = Vec::new();
    let full: ApiAnswer = loop {
        let answer = api.post("/v1/jobs", json!({"type": "t", "data": "d".repeat(900)})).await;
        if answer.status != 201 {
            break answer;
        }
        kept.push(answer.value()["id"].as_str().unwrap().to_owned());
    };
    assert!(kept.len() > 20, "{} fit", kept.len());
    full.problem(503, "unavailable");
    assert!(full.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    let batch = api
        .post("/v1/jobs/batch", json!({"jobs": [{"type": "t", "data": "d".repeat(900)}]}))
        .await
        .is(200);
    assert_eq!(
        (&batch["results"][0]["status"], &batch["results"][0]["error"]["code"]),
        (&json!(503), &json!("unavailable"))
    );
    api.get("/healthz").await.is(200);
    for id in &kept {
        api.job(id).await;
    }
    server.stop().await;
    serving.abort();
    drop(server);
    // With room again everything that was acknowledged runs.
    let dir_path = dir.path().to_owned();
    let (_server, api, _) = super::wait::eventually("the old server let go", || {
        let dir_path = dir_path.clone();
        async move {
            let free = SqliteStore::open_bounded(&dir_path, 100_000).map(drop).is_ok();
            if free { Some(bounded(&dir_path, 100_000).await) } else { None }
        }
    })
    .await;
    let mut ended = 0;
    while ended < kept.len() {
        let leases = api.lease(json!({"types": ["t"], "max": 100, "wait_seconds": 20})).await;
        assert!(!leases.is_empty(), "only {ended} of {} came", kept.len());
        for lease in leases {
            assert!(kept.contains(&lease.id));
            api.report(&lease, "succeeded").await.is(200);
            ended += 1;
        }
    }
}
