//! Forwarded lease requests between two servers that listen.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::{
    auth::{Anonymous, BuiltIn},
    dashboard::ConsoleOptions,
    handlers::{self, ApiOptions},
    listener::{Limits, Listener},
    runtime::{
        embedded::worker_status,
        shared::forward::{CLAIMS, FORWARDED_TO},
    },
};
use tidegate_backends::system::{SystemClock, SystemEntropy};
use tidegate_core::{job::TypeName, time::Seconds};

/// How long what needs no wait may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server that listens, until it is dropped.
struct Listening {
    server: Server,
    url: String,
    _closing: watch::Sender<bool>,
}

/// No server gets a notice.
struct NoNotices;

#[async_trait]
impl Notices for NoNotices {
    async fn send(&self, _: &BTreeSet<Notice>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn receive(&self) -> Result<BTreeSet<Notice>, StoreError> {
        std::future::pending().await
    }
}

/// A server on `store`, in real time, whose record has `peer_url`, or the URL at which it listens.
async fn listening(store: &SharedStore, peer_url: Option<&str>) -> Listening {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let clock = Arc::new(SystemClock);
    let objects = Arc::new(InMemory::new());
    let builder = builder_on(&Arc::default(), Arc::clone(store), objects);
    let builder = builder.clock(Arc::clone(&clock) as _).shared(Arc::new(NoNotices));
    let peer_url = peer_url.unwrap_or(&url).parse().unwrap();
    let server = builder.peer_url(&peer_url).unwrap().start().await.unwrap();
    let anonymous = Anonymous::AdminWithoutTokens;
    let options = ApiOptions {
        auth: Arc::new(BuiltIn::new(None, anonymous, Arc::clone(&clock) as _)),
        entropy: Arc::new(SystemEntropy),
        max_data_bytes: 4 << 20,
        console: ConsoleOptions::default(),
        sign_in: None,
        settings: Vec::new(),
        clock: Arc::clone(&clock) as _,
        body_timeout: PATIENCE,
        log_traffic: false,
        allow_unencrypted_proxy: false,
        metrics: None,
        dev_clock: None,
    };
    let router = handlers::router(server.clone(), options);
    let limits = Limits { connections: 100, head: PATIENCE, idle: PATIENCE };
    let listener = Listener { socket, limits, clock, entropy: Arc::new(SystemEntropy) };
    let closing = watch::Sender::new(false);
    tokio::spawn(listener.serve(router, closing.subscribe()));
    Listening { server, url, _closing: closing }
}

/// The owner of the queue of the type `work`, which is limited, at `peer_url` for the other server, and
/// that one.
async fn owner_and_other(peer_url: Option<&str>) -> (Listening, Listening) {
    let memory = Arc::new(MemoryStore::new());
    let store = FaultyStore::new(memory as _, 1).with_flight(Duration::ZERO).shared();
    let store: SharedStore = Arc::new(store);
    let owner = listening(&store, peer_url).await;
    // It knows the one before it.
    let other = listening(&store, None).await;
    let mut queues = (0..).map(|number| format!("q{number}"));
    let queue = queues.find(|queue| !other.server.inner.owns(queue)).unwrap();
    let limited = QueueConfig { concurrency: Some(100), ..QueueConfig::default() };
    owner.server.put_queue(&name(&queue), limited, None).await.unwrap();
    // No lease ends by its time.
    let lease_seconds = Seconds::new(3600);
    let config = TypeConfig { queue: name(&queue), lease_seconds, ..TypeConfig::default() };
    owner.server.put_type(&name("work"), config, None).await.unwrap();
    (owner, other)
}

impl Listening {
    /// Whether its own task ticks the queue of `job`.
    fn ticks(&self, job: &Job) -> bool {
        self.server.inner.queues.lock().contains_key(&job.spec.queue)
    }

    /// A lease request that waits for `wait` seconds.
    fn lease(&self, wait: u32) -> reqwest::RequestBuilder {
        let body = format!(r#"{{"types": ["work"], "max": 20, "wait_seconds": {wait}}}"#);
        let request = reqwest::Client::new().post(format!("{}/v1/leases", self.url));
        request.header("content-type", "application/json").body(body)
    }

    /// The ids of the jobs that a lease request gets.
    async fn leased(&self, wait: u32) -> Vec<String> {
        let answer = self.lease(wait).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "application/json");
        assert!(!answer.headers().contains_key(CLAIMS));
        let answer: serde_json::Value =
            serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
        let leases = answer["leases"].as_array().unwrap();
        leases.iter().map(|lease| lease["job"]["id"].as_str().unwrap().to_owned()).collect()
    }

    /// The job `id`, when it is `good`.
    async fn job_when(&self, id: &JobId, good: impl Fn(&Job) -> bool) -> Job {
        until(async || {
            let job = self.server.job(id, None).await.unwrap();
            good(&job).then_some(job)
        })
        .await
    }

    /// Returns when `count` lease requests wait here for jobs of the type `work`.
    async fn until_polls(&self, count: u64) {
        let inner = &self.server.inner;
        let (job_type, catalog) = (name::<TypeName>("work"), inner.engine.catalog().await.unwrap());
        let queue = catalog.types[&job_type].config.queue.clone();
        until(async || {
            let status = worker_status(inner, &queue, &catalog)(&job_type);
            (status.polling == Some(count)).then_some(())
        })
        .await;
    }
}

/// What `read` returns when it is there.
async fn until<T>(mut read: impl AsyncFnMut() -> Option<T>) -> T {
    let becomes = async {
        loop {
            if let Some(value) = read().await {
                return value;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, becomes).await.expect("it comes to that")
}

#[tokio::test]
async fn a_worker_of_any_server_gets_the_jobs_of_the_owner() {
    let (owner, other) = owner_and_other(None).await;
    let job = owner.server.enqueue(job()).await.unwrap().job;
    assert_eq!(other.leased(20).await, [job.id.as_str()]);
    assert!(owner.ticks(&job) && !other.ticks(&job), "the other one has only forwarded it");
}

#[tokio::test]
async fn an_owner_that_cannot_be_reached_costs_no_lease() {
    // No program listens on the port of a socket that is closed.
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nowhere = format!("http://{}", socket.local_addr().unwrap());
    drop(socket);
    let (owner, other) = owner_and_other(Some(&nowhere)).await;
    let job = owner.server.enqueue(job()).await.unwrap().job;
    assert_eq!(other.leased(20).await, [job.id.as_str()]);
    assert!(other.ticks(&job));
}

#[tokio::test]
async fn a_request_that_was_forwarded_to_another_name_is_refused() {
    let (owner, other) = owner_and_other(None).await;
    let own_name = other.server.inner.shared.as_ref().unwrap().members.lock().own().to_owned();
    let answer = other.lease(0).header(FORWARDED_TO, "another").send().await.unwrap();
    assert_eq!(answer.status(), 503);
    let job = owner.server.enqueue(job()).await.unwrap().job;
    let answer = other.lease(20).header(FORWARDED_TO, own_name).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(other.ticks(&job), "it is not forwarded again");
    let claims = answer.headers()[CLAIMS].to_str().unwrap();
    assert!(claims.starts_with(&format!("{}/{}/1/", job.spec.queue, job.id)), "{claims}");
}

#[tokio::test]
async fn the_call_of_a_worker_that_hangs_up_ends_at_the_owner() {
    let (owner, other) = owner_and_other(None).await;
    tokio::select! {
        answer = other.lease(60).send() => panic!("it waits for a job: {answer:?}"),
        () = owner.until_polls(1) => {}
    }
    owner.until_polls(0).await;
}

/// The owner has written its answer, so this is up to the server that forwarded the request.
#[tokio::test]
async fn a_forwarded_answer_that_is_not_written_is_handed_back() {
    let (owner, other) = owner_and_other(None).await;
    let mut ids = Vec::new();
    for _ in 0..14 {
        // Together more than what the system holds for a connection.
        let data = Payload::json(format!("\"{}\"", "x".repeat((4 << 20) - 2)));
        let new = NewJob::new(name("work"), data);
        ids.push(owner.server.enqueue(new).await.unwrap().job.id);
    }
    let body = r#"{"types": ["work"], "max": 20, "wait_seconds": 20}"#;
    let head = format!(
        "POST /v1/leases HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let mut worker = TcpStream::connect(other.url.strip_prefix("http://").unwrap()).await.unwrap();
    worker.write_all((head + body).as_bytes()).await.unwrap();
    assert_eq!(worker.read_u8().await.unwrap(), b'H', "its response has begun");
    for id in &ids {
        owner.job_when(id, |job| job.life.running().is_some()).await;
    }
    drop(worker);
    for id in &ids {
        let job = owner.job_when(id, |job| job.life.running().is_none()).await;
        assert_eq!((job.life.ended(), job.life.counted_attempts()), (None, 0));
    }
}
