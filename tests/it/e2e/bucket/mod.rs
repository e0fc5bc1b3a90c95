//! Servers whose data is in a bucket: machines are lost, frozen and stopped, and no acknowledged job
//! is.

pub mod clouds;
mod contents;
mod faults;
mod frozen;
mod hand_over;
pub mod stand_in;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::sys::signal::{Signal, kill};
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_backends::system::SystemEntropy;
use tidegate_core::port::Entropy as _;

use self::contents::{files, log_command};
use super::{
    api::Api,
    serve::{Setup, Tidegate, program, text},
    wait::{eventually, until},
};

const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

/// A server on an empty disk, which follows or leads `log`, and takes over after a second.
pub fn server_of_log(log: &str) -> Setup {
    Setup::new()
        .flag("--log", log)
        .env("TIDEGATE_ENCRYPTION_KEY", KEY)
        .env("TIDEGATE_TAKEOVER_SECONDS", "1")
}

/// A bucket in a directory.
pub struct Bucket(TempDir);

impl Bucket {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// The address of its log.
    pub fn address(&self) -> String {
        format!("file://{}/log", text(self.0.path()))
    }

    /// A server on it.
    pub fn server(&self) -> Setup {
        server_of_log(&self.address())
    }

    fn standby(&self) -> Setup {
        self.server().switch("--standby")
    }

    /// How many objects there are below a prefix.
    fn objects(&self, prefix: &str) -> usize {
        let dir = self.0.path().join("log").join(prefix);
        std::fs::read_dir(dir).map_or(0, Iterator::count)
    }

    /// The last beat of the leader, null if there is none.
    fn beat(&self) -> Value {
        let beat = std::fs::read(self.0.path().join("log/hint/leader")).unwrap_or_default();
        serde_json::from_slice(&beat).unwrap_or_default()
    }

    /// The count of the leader's last beat.
    fn beats(&self) -> u64 {
        self.beat()["count"].as_u64().unwrap_or_default()
    }

    /// Whether the leader has written that it has ended its epoch.
    fn has_ended(&self) -> bool {
        self.beat()["next_within_ms"] == 0
    }
}

/// Loses the machine of a server, with its disk.
fn lose(server: Tidegate) {
    let setup = server.kill();
    std::fs::remove_dir_all(setup.data()).unwrap();
}

/// Every job of a server, by its correlation key, which is that of its request.
async fn jobs_by_key(api: &Api) -> BTreeMap<String, String> {
    let (mut jobs, mut cursor) = (BTreeMap::new(), String::new());
    loop {
        let page = api.get(&format!("/v1/jobs?limit=1000{cursor}")).await.is(200);
        for job in page["jobs"].as_array().unwrap() {
            let text = |name: &str| job[name].as_str().unwrap().to_owned();
            let before = jobs.insert(text("correlation_key"), text("id"));
            assert_eq!(before, None, "two jobs have one key: {job}");
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return jobs,
        }
    }
}

/// Enqueues jobs at whichever server answers: the acknowledged ones by their keys.
struct Client {
    servers: Mutex<Vec<Api>>,
    acknowledged: Mutex<BTreeMap<String, String>>,
    is_over: AtomicBool,
}

impl Client {
    fn of(server: &Api) -> Arc<Self> {
        Arc::new(Self {
            servers: Mutex::new(vec![server.unchecked()]),
            acknowledged: Mutex::default(),
            is_over: AtomicBool::new(false),
        })
    }

    fn add(&self, server: &Api) {
        self.servers.lock().push(server.unchecked());
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().len()
    }

    /// Sends a request for a job to one server after the other, until one acknowledges it. If none does,
    /// returns after what time it is to be repeated, if a server says it.
    async fn try_enqueue(&self, key: &str) -> Result<String, Option<Duration>> {
        let job = json!({"type": "t", "data": null, "correlation_key": key}).to_string();
        let headers = [("content-type", "application/json"), ("idempotency-key", key)];
        let (servers, mut after) = (self.servers.lock().clone(), None::<u64>);
        for server in servers {
            let sent = server.try_send(Method::POST, "/v1/jobs", &headers, job.clone());
            match sent.await {
                Some(answer) if answer.status < 300 => {
                    let job: Value = serde_json::from_slice(&answer.body).unwrap();
                    return Ok(job["id"].as_str().unwrap().to_owned());
                }
                Some(answer) => {
                    assert_eq!(answer.status, 503, "{answer:?}");
                    let seconds = answer.header("retry-after");
                    after = after.max(seconds.map(|seconds| seconds.parse().unwrap()));
                }
                None => {}
            }
        }
        Err(after.map(Duration::from_secs))
    }

    /// Enqueues one job after the other, each until it is acknowledged.
    async fn enqueue(self: Arc<Self>, name: &'static str) {
        for number in 0.. {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let key = format!("{name}-{number}");
            let id =
                eventually("a job is acknowledged", || async { self.try_enqueue(&key).await.ok() });
            let id = id.await;
            self.acknowledged.lock().insert(key, id);
        }
    }

    async fn has_enqueued(&self, jobs: usize) {
        eventually("enough jobs are acknowledged", || async {
            (self.count() >= jobs).then_some(())
        })
        .await;
    }

    /// Ends the clients. Every acknowledged job is at `server`, once.
    async fn settle(&self, clients: Vec<tokio::task::JoinHandle<()>>, server: &Api) {
        self.is_over.store(true, Ordering::Relaxed);
        for client in clients {
            client.await.unwrap();
        }
        let stored = jobs_by_key(server).await;
        for (key, id) in &*self.acknowledged.lock() {
            assert_eq!(stored.get(key), Some(id), "{key}");
        }
    }
}

fn clients(client: &Arc<Client>) -> Vec<tokio::task::JoinHandle<()>> {
    ["a", "b", "c"].map(|name| tokio::spawn(Arc::clone(client).enqueue(name))).into()
}

async fn leads(server: &Tidegate) {
    eventually("the standby leads", || async {
        let ready = server.api.unchecked().get("/readyz").await;
        (ready.status == 200).then_some(())
    })
    .await;
}

/// The server that `server` sets up loses its machine, and the next one has everything.
async fn a_lost_machine_is_restored(server: impl Fn() -> Setup) {
    let large = "x".repeat(600 << 10);
    let (small, body, queue) = {
        let tide = server().start().await;
        tide.queue("q", json!({"concurrency": 3})).await;
        tide.job_type(
            "t",
            json!({"queue": "q", "target": {
                "url": "http://127.0.0.1:9/t", "headers": {"x-key": "secret"},
            }}),
        )
        .await;
        tide.job_type("pull", json!({})).await;
        let small = tide.enqueue_a("pull").await;
        let body = json!({"type": "pull", "data": large});
        let body = tide.post("/v1/jobs", body).await.good();
        let queue = tide.get("/v1/queues/q").await.is(200);
        lose(tide);
        (small, body["id"].as_str().unwrap().to_owned(), queue)
    };
    let tide = server().start().await;
    assert_eq!(tide.get("/v1/queues/q").await.is(200)["concurrency"], queue["concurrency"]);
    let leased = tide.api.lease(json!({"types": ["pull"], "max": 2})).await;
    let ids: BTreeSet<&str> = leased.iter().map(|lease| lease.id.as_str()).collect();
    assert_eq!(ids, [small.as_str(), body.as_str()].into());
    let leased = leased.iter().find(|lease| lease.id == body).unwrap();
    assert_eq!(leased.whole["job"]["data"], json!(large));
    assert!(!tide.data().join("objects").exists(), "bodies are in the bucket");
    let standby = server().switch("--standby").follow().await;
    lose(tide);
    leads(&standby).await;
    let stored = standby.api.job(&small).await;
    assert_eq!((&stored["id"], &stored["state"]), (&json!(small), &json!("running")));
}

#[tokio::test]
async fn a_lost_machine_is_restored_from_its_bucket() {
    let bucket = Bucket::new();
    a_lost_machine_is_restored(|| bucket.server()).await;
}

/// The address of a log in a new bucket of the local stack. The environment names its endpoint and
/// credentials, as the local stack's script sets them.
pub async fn new_log_in_s3() -> String {
    #[expect(clippy::disallowed_methods, reason = "localstack/test sets it")]
    let endpoint = std::env::var("AWS_ENDPOINT_URL").expect("there is a local stack");
    let bucket = format!("tidegate-log-{:016x}", SystemEntropy.bits());
    // No signature is checked, and the credentials say which service is called.
    let credentials = "AWS4-HMAC-SHA256 Credential=test/20261129/us-east-1/s3/aws4_request, \
                       SignedHeaders=host, Signature=0";
    let made = reqwest::Client::new()
        .put(format!("{endpoint}/{bucket}"))
        .header("authorization", credentials)
        .send();
    assert_eq!(made.await.unwrap().status(), 200);
    format!("s3://{bucket}/log")
}

#[tokio::test]
#[ignore = "needs a local stack"]
async fn on_a_local_stack_a_lost_machine_is_restored_from_s3() {
    let log = new_log_in_s3().await;
    a_lost_machine_is_restored(|| server_of_log(&log)).await;
    let (code, text) = log_command(&log, &["verify"]);
    assert!(code == 0 && text.contains("is intact"), "{text}");
}

/// A standby refuses every change, and names the leader: whatever the request is, nothing was done.
async fn refuses_changes(standby: &Api, leader: &str) {
    let headers = [("content-type", "application/json")];
    for (method, path, body) in [
        (Method::POST, "/v1/jobs", json!({"type": "t", "data": "x".repeat(600 << 10)})),
        (Method::POST, "/v1/leases", json!({"types": ["t"], "max": 1, "wait_seconds": 20})),
        (Method::POST, "/v1/jobs/one/callback", json!({"status": "succeeded", "attempt": 1})),
        (Method::PUT, "/v1/queues/q", json!({"concurrency": 1})),
        (Method::PATCH, "/v1/jobs/one", json!({"priority": 1})),
        (Method::DELETE, "/v1/queues/q", Value::Null),
    ] {
        let sent = standby.try_send(method.clone(), path, &headers, body.to_string()).await;
        let refused = sent.unwrap_or_else(|| panic!("{method} {path} has no answer"));
        assert_eq!(refused.headers["retry-after"], "1", "{method} {path}");
        assert_eq!(refused.headers["content-type"], "application/problem+json");
        let problem = refused.is(503);
        assert_eq!(problem["code"], "not_leader", "{method} {path}");
        assert!(problem["detail"].as_str().unwrap().contains(leader), "{problem}");
    }
}

#[tokio::test]
async fn a_standby_takes_over_with_every_acknowledged_job_once() {
    let bucket = Bucket::new();
    let leader = bucket.server().start().await;
    leader.job_type("t", json!({})).await;
    let standby = bucket.standby().follow().await;
    let followed = standby.api.unchecked();
    assert_eq!(followed.get("/healthz").await.status, 200);
    assert_eq!(followed.get("/readyz").await.status, 503);
    let refused = until(|| async {
        let refused = followed.get("/v1/workers").await;
        let knows = String::from_utf8_lossy(&refused.body).contains(&leader.api.base);
        (knows, refused)
    });
    let refused = refused.await;
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(refused.is(503)["code"], "not_leader");
    refuses_changes(&followed, &leader.api.base).await;
    let job = json!({"type": "t", "data": null, "correlation_key": "seen"});
    let job = leader.post("/v1/jobs", job).await.good();
    let path = format!("/v1/jobs/t/{}", job["id"].as_str().unwrap());
    let shown = eventually("the standby shows the job", || async {
        let shown = followed.get(&path).await;
        (shown.status == 200).then_some(shown)
    });
    let shown = shown.await;
    assert_eq!(shown.headers["tidegate-standby"], "true");
    assert!(shown.headers.contains_key("tidegate-position"), "{shown:?}");
    assert_eq!(shown.is(200)["id"], job["id"]);
    let headers = [("tidegate-consistent", "true")];
    let read = |api: Api| async move {
        api.try_send(Method::GET, "/v1/jobs", &headers, String::new()).await.unwrap()
    };
    assert_eq!(read(followed.clone()).await.is(503)["code"], "not_leader");
    let consistent = read(leader.api.clone()).await;
    assert!(!consistent.headers.contains_key("tidegate-standby"), "{consistent:?}");
    assert!(consistent.headers.contains_key("tidegate-position"), "{consistent:?}");
    assert_eq!(consistent.is(200)["jobs"][0]["id"], job["id"]);

    let client = Client::of(&leader.api);
    let running = clients(&client);
    client.has_enqueued(30).await;
    client.add(&standby.api);
    lose(leader);
    let began = tokio::time::Instant::now();
    client.has_enqueued(client.count() + 30).await;
    let took = began.elapsed();
    assert!(took.as_secs() < 10, "the takeover took {took:?}");
    leads(&standby).await;
    client.settle(running, &standby.api).await;
}

/// With the default settings. Each standby has seen the leader before the leader is lost.
#[tokio::test]
#[ignore = "takes a quarter of an hour; cargo xtask check --full runs it"]
async fn on_a_local_stack_a_hundred_takeovers_are_short() {
    let log = new_log_in_s3().await;
    let server = || server_of_log(&log).without_env("TIDEGATE_TAKEOVER_SECONDS");
    let mut leader = server().start().await;
    leader.job_type("t", json!({})).await;
    let (mut durations, mut acknowledged) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        let standby = server().switch("--standby").follow().await;
        acknowledged.push(leader.enqueue_a("t").await);
        let followed = standby.api.unchecked();
        eventually("the standby has seen the leader", || async {
            let refused = followed.get("/v1/workers").await;
            String::from_utf8_lossy(&refused.body).contains(&leader.api.base).then_some(())
        })
        .await;
        lose(leader);
        let began = tokio::time::Instant::now();
        leads(&standby).await;
        acknowledged.push(standby.enqueue_a("t").await);
        durations.push(began.elapsed());
        leader = standby;
    }
    for id in acknowledged {
        assert_eq!(leader.job(&id).await["id"], json!(id));
    }
    durations.sort();
    let [median, p99, longest] = [durations[49], durations[98], durations[99]];
    println!("takeovers: {median:?} as the median, 99 within {p99:?}, the longest {longest:?}");
    assert!(p99.as_secs() < 10, "{durations:?}");
}

#[tokio::test]
async fn a_frozen_leader_acknowledges_nothing_after_a_takeover() {
    let bucket = Bucket::new();
    let mut frozen = bucket.server().start().await;
    frozen.job_type("t", json!({})).await;
    let standby = bucket.standby().follow().await;
    let client = Client::of(&frozen.api);
    let running = clients(&client);
    client.has_enqueued(10).await;
    kill(frozen.pid(), Signal::SIGSTOP).unwrap();
    leads(&standby).await;
    let late = frozen.api.unchecked();
    let at_late = tokio::spawn(async move {
        let headers = [("content-type", "application/json")];
        let job = json!({"type": "t", "data": null, "correlation_key": "late"}).to_string();
        late.try_send(Method::POST, "/v1/jobs", &headers, job).await
    });
    let late = frozen.api.unchecked();
    let read_late =
        tokio::spawn(
            async move { late.try_send(Method::GET, "/v1/jobs", &[], String::new()).await },
        );
    client.add(&standby.api);
    kill(frozen.pid(), Signal::SIGCONT).unwrap();
    let status = frozen.ended().await;
    assert_eq!(status.code(), Some(6), "{}", frozen.log());
    assert!(frozen.log().contains("another server leads the log"), "{}", frozen.log());
    for answer in [at_late.await.unwrap(), read_late.await.unwrap()] {
        assert!(answer.is_none_or(|answer| answer.status == 503));
    }
    client.has_enqueued(client.count() + 10).await;
    client.settle(running, &standby.api).await;
    let stored = jobs_by_key(&standby.api).await;
    assert!(!stored.contains_key("late"), "{stored:?}");
}

#[tokio::test]
async fn a_server_without_standby_takes_over_from_a_live_leader() {
    let bucket = Bucket::new();
    let mut first = bucket.server().start().await;
    first.job_type("t", json!({})).await;
    let id = first.enqueue_a("t").await;
    let second = bucket.server().start().await;
    assert_eq!(second.api.job(&id).await["id"], json!(id));
    assert_eq!(first.ended().await.code(), Some(6), "{}", first.log());
}

#[tokio::test]
async fn a_leader_that_cannot_start_ends_its_epoch() {
    let bucket = Bucket::new();
    let (status, log) = bucket.server().flag("--listen", "0.0.0.0:0").refused().await;
    assert!(!status.success() && log.contains("set `admin_token`"), "{log}");
    let setup = bucket.standby().without_env("TIDEGATE_TAKEOVER_SECONDS");
    let standby = setup.env("TIDEGATE_TAKEOVER_SECONDS", "600").follow().await;
    leads(&standby).await;
}

#[tokio::test]
async fn a_stop_ends_although_the_bucket_does_not_answer() {
    let bucket = Bucket::new();
    let tide = bucket.server().env("TIDEGATE_SHUTDOWN_SECONDS", "1").start().await;
    tide.job_type("t", json!({})).await;
    let log = bucket.0.path().join("log");
    std::fs::rename(&log, bucket.0.path().join("gone")).unwrap();
    std::fs::write(&log, "no directory").unwrap();
    // The last record is a proof of the leadership for a second.
    eventually("a read is refused", || async {
        (tide.api.unchecked().get("/v1/jobs").await.status == 503).then_some(())
    })
    .await;
    drop(tide.stop().await);
}

#[tokio::test]
async fn an_idle_leader_stays_and_writes_no_records() {
    let bucket = Bucket::new();
    let leader = bucket.server().start().await;
    let standby = bucket.standby().follow().await;
    eventually("the leader has begun to beat", || async { (bucket.beats() >= 2).then_some(()) })
        .await;
    let records = bucket.objects("log/0000000001");
    // The leader has checked for announcements of the standby by then.
    eventually("several times of a takeover have passed", || async {
        (bucket.beats() >= 18).then_some(())
    })
    .await;
    assert_eq!(bucket.objects("log/0000000001"), records);
    assert_eq!(bucket.objects("epoch"), 1);
    assert_eq!(standby.api.unchecked().get("/readyz").await.status, 503);
    drop(leader.stop().await);
}

#[tokio::test]
async fn what_does_not_fit_a_log_is_refused() {
    let bucket = Bucket::new();
    for (setup, problem) in [
        (bucket.server().without_env("TIDEGATE_ENCRYPTION_KEY"), "encryption_key"),
        (bucket.server().switch("--new"), "--new is for a data directory without --log"),
        (
            Setup::new().flag("--log", "ftp://bucket").env("TIDEGATE_ENCRYPTION_KEY", KEY),
            "`log` (from the command line) must begin with",
        ),
        (Setup::new().switch("--standby"), "standby"),
        (bucket.server().env("TIDEGATE_LOG_INTERVAL_SECONDS", "1"), "log_interval_seconds"),
        (Setup::new().env("TIDEGATE_LOG_PROFILE", "price"), "log_profile"),
    ] {
        let (status, log) = setup.refused().await;
        assert!(!status.success() && log.contains(problem), "{log}");
    }

    let setup = bucket.server().start().await.stop().await;
    let data = setup.data();
    let of_log = "local copy of a log";
    let (status, log) = Setup::new().flag("--data", text(&data)).refused().await;
    assert!(!status.success() && log.contains(of_log), "{log}");
    let ran = |args: &[&str]| ran(program(args).args(["--data", text(&data)]));
    let copy = bucket.0.path().join("copy");
    assert!(ran(&["backup", text(&copy)]).contains(of_log));
    assert!(ran(&["repair"]).contains(of_log));
    assert!(ran(&["token", "create", "--name", "a", "--scope", "admin"]).contains(of_log));
    assert!(ran(&["doctor"]).contains(of_log));
    assert!(!copy.exists());

    let other = Setup::new().start().await;
    other.job_type("t", json!({})).await;
    let other = other.stop().await.flag("--log", bucket.address());
    let (status, log) = other.env("TIDEGATE_ENCRYPTION_KEY", KEY).refused().await;
    assert!(!status.success() && log.contains("is no copy of a log"), "{log}");
}

#[tokio::test]
async fn a_server_does_not_lead_a_log_that_has_lost_an_object() {
    let bucket = Bucket::new();
    let server = bucket.server().start().await;
    server.job_type("t", json!({})).await;
    for _ in 0..8 {
        server.enqueue_a("t").await;
    }
    eventually("the leader has begun to beat", || async { (bucket.beats() > 0).then_some(()) })
        .await;
    lose(server);
    let root = bucket.0.path().join("log");
    let slots = files(&root, "log");
    let beat = root.join("hint/leader");
    // The leader of a log without a standby beats once a minute.
    let mut last_beat: Value = serde_json::from_slice(&std::fs::read(&beat).unwrap()).unwrap();
    last_beat["seq"] = json!(slots.len());
    std::fs::write(&beat, last_beat.to_string()).unwrap();
    for (name, has_beat) in [
        ("log.json", true),
        ("log.json", false),
        ("epoch/0000000001", true),
        (slots.last().unwrap(), true),
        // More objects follow than a leader has under way.
        (&slots[2], false),
    ] {
        let path = root.join(name);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        if !has_beat {
            std::fs::remove_file(&beat).unwrap();
        }
        let (status, log) = bucket.server().refused().await;
        assert!(!status.success() && log.contains(name), "{name}: {log}");
        let left = files(&root, "log").into_iter().chain([name.to_owned()]);
        let left: BTreeSet<String> = left.filter(|left| left.starts_with("log/")).collect();
        assert_eq!(left, slots.iter().cloned().collect(), "{name}");
        std::fs::write(&path, bytes).unwrap();
        std::fs::write(&beat, last_beat.to_string()).unwrap();
    }
    let server = bucket.server().start().await;
    let jobs = server.get("/v1/jobs").await.is(200);
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 8);
}

/// What a command prints.
fn ran(command: &mut Command) -> String {
    let ran = command.output().unwrap();
    String::from_utf8([ran.stdout, ran.stderr].concat()).unwrap()
}

#[tokio::test]
async fn a_bucket_of_another_log_replaces_what_a_directory_has() {
    let (first, second) = (Bucket::new(), Bucket::new());
    let tide = first.server().start().await;
    tide.job_type("old", json!({})).await;
    let setup = tide.stop().await;
    assert!(Path::new(&setup.data()).exists());
    let tide = second.server().flag("--data", text(&setup.data())).start().await;
    assert_eq!(tide.get("/v1/job-types/old").await.status, 404);
}
