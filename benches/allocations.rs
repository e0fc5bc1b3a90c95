//! How often a job allocates memory, from its request to the answer.
//!
//! `cargo bench --bench allocations`. The counts are exact, and nearly the same in every build
//! profile. SQLite's own allocations are not among them.

#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    ops::Sub,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    http::Request,
};
use object_store::memory::InMemory;
use serde::Deserialize as _;
use serde_json::{Value, json};
use tidegate_api::BatchBody;
use tidegate_backends::{
    http::{Guard, HttpTarget},
    system::{SystemClock, SystemEntropy},
};
use tidegate_core::{
    job::{Payload, type_config::TypeConfig},
    port::policy::NoPolicy,
    strict::strict,
};
use tidegate_engine::{
    Ports,
    memory::{MemoryStore, MemoryWorkQueue},
    request::NewJob,
    testkit::builders::name,
};
use tidegate_server::{
    Server,
    auth::{Anonymous, BuiltIn},
    dashboard::ConsoleOptions,
    handlers::{self, ApiOptions},
};
use tower::ServiceExt as _;

/// Jobs of one request.
const JOBS: usize = 1000;
const DATA: &str = r#"{"customer":"c-104729","amount":1299,"currency":"EUR","items":["a-1","b-2"],"note":"benchmark"}"#;

/// The system's allocator, which counts.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static COUNTED: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

thread_local! {
    /// Whether this is the thread of the requests.
    static IS_OF_REQUESTS: Cell<bool> = const { Cell::new(false) };
}

/// Counts an allocation of so many bytes, and whether memory was freed. A reallocation is both.
fn count(allocated: Option<usize>, is_freed: bool) {
    let [allocations, total, of_others, freed_by_others] = &COUNTED;
    let is_other = !IS_OF_REQUESTS.try_with(Cell::get).unwrap_or_default();
    if let Some(bytes) = allocated {
        allocations.fetch_add(1, Relaxed);
        total.fetch_add(bytes as u64, Relaxed);
        of_others.fetch_add(is_other.into(), Relaxed);
    }
    freed_by_others.fetch_add((is_freed && is_other).into(), Relaxed);
}

#[allow(unsafe_code, reason = "an allocator is unsafe to implement")]
// SAFETY: each call is passed to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(Some(layout.size()), false);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(None, true);
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(Some(bytes), true);
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

/// What was allocated since the start of the process.
#[derive(Clone, Copy)]
struct Counts {
    /// Allocations of every thread. A reallocation is one.
    allocations: u64,
    bytes: u64,
    /// Allocations of other threads than that of the requests.
    of_others: u64,
    /// What other threads freed.
    freed_by_others: u64,
}

impl Counts {
    fn now() -> Self {
        let [allocations, bytes, of_others, freed_by_others] =
            COUNTED.each_ref().map(|count| count.load(Relaxed));
        Self { allocations, bytes, of_others, freed_by_others }
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            allocations: self.allocations - before.allocations,
            bytes: self.bytes - before.bytes,
            of_others: self.of_others - before.of_others,
            freed_by_others: self.freed_by_others - before.freed_by_others,
        }
    }
}

/// The counts of `work`. What it returns is freed later.
async fn counted<T>(work: impl Future<Output = T>) -> (Counts, T) {
    let before = Counts::now();
    let done = work.await;
    (Counts::now() - before, done)
}

/// Prints the counts for each of `jobs` jobs.
fn print(what: &str, counts: Counts, jobs: usize) {
    let each = |count: u64| count as f64 / jobs as f64;
    println!(
        "{what:<44} {:>7.2} allocations, {:>6.0} bytes; {:>6.2} by other threads, which free {:>6.2}",
        each(counts.allocations),
        each(counts.bytes),
        each(counts.of_others),
        each(counts.freed_by_others),
    );
}

fn new_jobs() -> Vec<NewJob> {
    // The jobs of a request share its body, so a payload is no allocation.
    let data = Payload::json(Bytes::copy_from_slice(DATA.as_bytes()));
    let names = (0..JOBS).map(|_| name("work"));
    names.map(|job_type| NewJob::new(job_type, data.clone())).collect()
}

async fn start(builder: tidegate_server::runtime::Builder) -> Server {
    let server = builder.start().await.unwrap();
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    server
}

/// A server in memory.
async fn in_memory() -> Server {
    let ports = Ports {
        store: Arc::new(MemoryStore::default()),
        objects: Arc::new(InMemory::new()),
        work: Arc::new(MemoryWorkQueue::default()),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        policy: Arc::new(NoPolicy),
    };
    start(Server::builder(ports, Arc::new(HttpTarget::new(Guard::On).unwrap()))).await
}

/// A server on SQLite.
async fn on_sqlite(dir: &Path) -> Server {
    start(Server::open(dir, Guard::On).unwrap()).await
}

fn router(server: &Server) -> Router {
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
    handlers::router(server.clone(), options)
}

fn batch() -> Bytes {
    let job = format!(r#"{{"type":"work","data":{DATA}}}"#);
    format!(r#"{{"jobs":[{}]}}"#, vec![job; JOBS].join(",")).into()
}

/// Posts `body`, and returns the answer.
async fn post(router: &Router, path: &str, body: Bytes) -> Bytes {
    let request = Request::post(path)
        .header("host", "127.0.0.1:8080")
        .header("content-type", "application/json")
        .body(Body::from(body))
        .unwrap();
    let answer = router.clone().oneshot(request).await.unwrap();
    assert!(answer.status().is_success(), "{answer:?}");
    to_bytes(answer.into_body(), usize::MAX).await.unwrap()
}

/// The lease request that reports success of the `leased` jobs.
fn reports(leased: &Bytes) -> Bytes {
    let leased: Value = serde_json::from_slice(leased).unwrap();
    let reports: Vec<Value> = leased["leases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|leased| {
            let (job, token) = (&leased["job"], &leased["token"]);
            json!({
                "id": job["id"], "attempt": job["attempt"], "token": token, "status": "succeeded"
            })
        })
        .collect();
    assert_eq!(reports.len(), JOBS);
    json!({"max": 0, "reports": reports}).to_string().into()
}

/// Prints the counts of each part once it is warm: of the second of two runs.
async fn measure(memory: &Server, sqlite: &Server) {
    for is_warm in [false, true] {
        let print = |what: &str, counts: Counts, jobs: usize| {
            if is_warm {
                print(what, counts, jobs);
            }
        };
        let body = batch();
        let decode = async { BatchBody::deserialize(strict(&mut reader(&body))).unwrap() };
        let (counts, decoded) = counted(decode).await;
        assert_eq!(decoded.jobs.len(), JOBS);
        print("a batch: decode the request", counts, JOBS);
        for (server, what) in [(memory, "in memory"), (sqlite, "on SQLite")] {
            let jobs = new_jobs();
            let (counts, added) = counted(server.engine().enqueue(jobs)).await;
            assert!(added.iter().all(Result::is_ok));
            print(&format!("a batch: enqueue in the engine, {what}"), counts, JOBS);
            let router = router(server);
            let (counts, added) = counted(post(&router, "/v1/jobs/batch", body.clone())).await;
            assert_eq!(count_in(&added, r#""status":201"#), JOBS);
            print(&format!("a batch: the whole request, {what}"), counts, JOBS);
        }
        let router = router(sqlite);
        let one = Bytes::from(format!(r#"{{"type":"work","data":{DATA}}}"#));
        let (counts, _) = counted(post(&router, "/v1/jobs", one)).await;
        print("a single enqueue on SQLite", counts, 1);
        let lease = Bytes::from(json!({"types": ["work"], "max": JOBS}).to_string());
        let (counts, leased) = counted(post(&router, "/v1/leases", lease)).await;
        print("a lease of 1000 jobs on SQLite", counts, JOBS);
        let body = reports(&leased);
        let (counts, reported) = counted(post(&router, "/v1/leases", body)).await;
        assert_eq!(count_in(&reported, r#""status":200"#), JOBS);
        print("1000 reports on SQLite", counts, JOBS);
    }
}

/// How often `text` occurs in an answer.
fn count_in(answer: &Bytes, text: &str) -> usize {
    std::str::from_utf8(answer).unwrap().matches(text).count()
}

fn reader(json: &[u8]) -> serde_json::Deserializer<serde_json::de::SliceRead<'_>> {
    serde_json::Deserializer::from_slice(json)
}

fn main() {
    IS_OF_REQUESTS.set(true);
    let dir = tempfile::tempdir().unwrap();
    // One thread has all tasks of the servers. The thread that writes to SQLite is another.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (memory, sqlite) = (in_memory().await, on_sqlite(dir.path()).await);
        measure(&memory, &sqlite).await;
        sqlite.stop().await;
        memory.stop().await;
    });
}
