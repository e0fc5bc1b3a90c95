//! The routes of two servers on one log in memory: a leader, and a standby that answers reads. [`proofs`] is
//! what reads of the leader depend on, [`positions`] what a read may wait for.

mod positions;
mod proofs;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{Router, http::Response};
use object_store::{memory::InMemory, path::Path};
use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_backends::{
    bucket_log::{Edge, Handle, Node, NodeSettings, Pace, StoreBucket},
    sqlite::SqliteReplica,
    system::{SystemClock, SystemEntropy},
};
use tidegate_core::{
    port::{Clock, job_store::Committed},
    time::Timestamp,
};
use tidegate_engine::memory::{FakeClock, SeededEntropy};

use super::{super::problem, ALL, ApiOptions, Builder, Server, ask, json, options, server_with};
use crate::{
    auth::{Anonymous, BuiltIn, Scope, TokenItem},
    handlers::{self, LogRoutes, Proofs, openapi, standby::OF_LEADER},
};

/// A bound of requests until a standby has applied what its leader has committed.
const MANY: usize = 100_000;
const POSITION: &str = "tidegate-position";

/// A clock that may be set back, which its monotonic time does not show.
#[derive(Default)]
struct TwoTimes {
    shown: FakeClock,
    passed: FakeClock,
    /// Whether its pauses end, as those of a node must.
    ends_pauses: bool,
}

#[async_trait]
impl Clock for TwoTimes {
    fn now(&self) -> Timestamp {
        self.shown.now()
    }

    async fn sleep_until(&self, at: Timestamp) {
        self.shown.sleep_until(at).await;
    }

    async fn sleep(&self, span: Duration) {
        if self.ends_pauses {
            SystemClock.sleep_until(SystemClock.now() + span).await;
        } else {
            self.shown.sleep_until(self.shown.now() + span).await;
        }
    }

    fn monotonic_now(&self) -> Duration {
        self.passed.monotonic_now()
    }
}

/// What a server has of its node.
struct LogNode {
    handle: Handle<Committed>,
    replica: Arc<SqliteReplica>,
    _dir: TempDir,
}

impl LogNode {
    /// A node of the log in `bucket` that leads at its start, or never. The caller runs it.
    async fn open(bucket: &Arc<InMemory>, leads_at_start: bool) -> (Self, Node<SqliteReplica>) {
        Self::open_at(bucket, leads_at_start, Arc::new(SystemClock)).await
    }

    /// The same, by `clock`.
    async fn open_at(
        bucket: &Arc<InMemory>,
        leads_at_start: bool,
        clock: Arc<dyn Clock>,
    ) -> (Self, Node<SqliteReplica>) {
        let dir = tempfile::tempdir().unwrap();
        let replica = Arc::new(SqliteReplica::open(dir.path()).unwrap());
        let edge = Edge {
            bucket: Arc::new(StoreBucket::new(Arc::clone(bucket) as _, Path::from("log"))),
            clock,
            entropy: Arc::new(SystemEntropy),
        };
        let settings = NodeSettings {
            address: "http://leader".into(),
            pace: Pace::Latency { interval: Duration::from_millis(1) },
            poll_interval: Duration::from_millis(1),
            patience: (Duration::from_hours(1), Duration::from_hours(1)),
            leads_at_start,
            ..NodeSettings::default()
        };
        let (node, handle) = Node::open(edge, Arc::clone(&replica), settings).await.unwrap();
        replica.connect(handle.clone());
        (Self { handle, replica, _dir: dir }, node)
    }

    fn routes(&self, clock: Arc<dyn Clock>) -> LogRoutes {
        LogRoutes {
            handle: self.handle.clone(),
            replica: Arc::clone(&self.replica),
            clock,
            entropy: Arc::new(SystemEntropy),
        }
    }

    /// The routes of a standby that knows stored tokens alone, and waits by `clock`.
    async fn following(&self, clock: Arc<dyn Clock>) -> Router {
        let server = server_with(self.replica.store(), Builder::standby).await;
        let auth = Arc::new(BuiltIn::new(None, Anonymous::Refused, Arc::new(SystemClock)));
        let updated = Arc::clone(&auth);
        server.watch_tokens(move |tokens| updated.set_tokens(tokens));
        let options = ApiOptions { auth: Arc::clone(&auth) as _, ..ApiOptions::clone(&options()) };
        let routes = handlers::router(server.clone(), options);
        self.routes(clock).following(server, auth, routes)
    }
}

/// A leader and a standby.
struct Log {
    leader: LogNode,
    /// The clock of the leader's routes.
    times: Arc<TwoTimes>,
    proofs: Arc<Proofs>,
    leading: Router,
    server: Server,
    following: Router,
    /// The clock of the waits of the standby.
    clock: Arc<FakeClock>,
    /// The id and the header of a stored token.
    token: (String, String),
    _standby: LogNode,
}

impl Log {
    async fn start() -> Self {
        let bucket = Arc::new(InMemory::new());
        let (leader, node) = LogNode::open(&bucket, true).await;
        tokio::spawn(async move { node.run_once().await });
        leader.handle.leadership().wait_for(Option::is_some).await.unwrap();
        let server = server_with(leader.replica.store(), |builder| builder).await;
        let (item, text) =
            TokenItem::mint("ops", Scope::Admin.into(), Timestamp::EPOCH, &SeededEntropy::new(1));
        server.put_token(&item).await.unwrap();
        let routes = handlers::router(server.clone(), ApiOptions::clone(&options()));
        // No time passes for proofs and positions.
        let times = Arc::<TwoTimes>::default();
        let proofs = Arc::new(Proofs::new(leader.routes(Arc::clone(&times) as _)));
        let leading = proofs.leading(routes);
        let (standby, node) = LogNode::open(&bucket, false).await;
        tokio::spawn(async move { node.run_once().await });
        let clock = Arc::<FakeClock>::default();
        let following = standby.following(Arc::clone(&clock) as _).await;
        let token = (item.id, format!("Bearer {text}"));
        Self { leader, times, proofs, leading, server, following, clock, token, _standby: standby }
    }

    /// Ends the leadership of the leader.
    async fn release(&self) {
        self.leader.handle.release();
        self.leader.handle.leadership().wait_for(Option::is_none).await.unwrap();
    }

    /// The first answer of the standby to a read of `path` that has this status.
    async fn shown(&self, path: &str, status: u16) -> (Response<()>, Value) {
        let headers = [("authorization", &*self.token.1)];
        for _ in 0..MANY {
            let (answer, body) = ask(&self.following, "GET", path, &headers, "").await;
            if answer.status() == status {
                return (answer, serde_json::from_slice(&body).unwrap());
            }
            tokio::task::yield_now().await;
        }
        panic!("the standby never answers {path} with {status}")
    }

    /// The answer of the standby to a read of `path` with this position.
    async fn read_at(&self, path: &str, position: &str) -> (Response<()>, Vec<u8>) {
        let headers = [("authorization", &*self.token.1), (POSITION, position)];
        ask(&self.following, "GET", path, &headers, "").await
    }

    /// The position of the answer to an added job of the type `invoice`.
    async fn enqueue(&self, id: &str) -> (u64, u64) {
        let job = json!({"type": "invoice", "id": id, "data": [1]}).to_string();
        let (enqueued, _) = ask(&self.leading, "POST", "/v1/jobs", &[ALL], job).await;
        assert_eq!(enqueued.status(), 201);
        position(&enqueued)
    }
}

/// The position of an answer: the epoch, and the number in it.
fn position(answer: &Response<()>) -> (u64, u64) {
    let text = answer.headers()[POSITION].to_str().unwrap();
    let (epoch, number) = text.split_once('.').unwrap();
    (epoch.parse().unwrap(), number.parse().unwrap())
}

/// `path` with values for its parameters.
fn filled(path: &str) -> String {
    let fill = |segment| match segment {
        "{number}" => "1",
        _ if str::starts_with(segment, '{') => "x",
        _ => segment,
    };
    path.split('/').map(fill).collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn every_route_of_a_standby_marks_its_answer_or_refuses() {
    let log = Log::start().await;
    log.shown("/v1/queues", 200).await;
    let (mut marked, mut of_leader) = (0, 0);
    let document = openapi::generate::document(&handlers::routes());
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            let of = format!("{method} {path}");
            let headers = [("authorization", &*log.token.1)];
            let (method, sent_to) = (method.to_uppercase(), filled(path));
            let answer = ask(&log.following, &method, &sent_to, &headers, "").await;
            let is_marked = answer.0.headers().contains_key("tidegate-standby");
            if path == "/healthz" {
                assert_eq!((answer.0.status().as_u16(), is_marked), (200, false));
            } else if method == "GET" && !OF_LEADER.contains(&path.as_str()) {
                assert!(answer.0.status().as_u16() < 500, "{of}: {answer:?}");
                assert_eq!(answer.0.headers()["tidegate-standby"], "true", "{of}");
                assert!(answer.0.headers().contains_key("tidegate-position-at"), "{of}");
                assert!(position(&answer.0) > (1, 0), "{of}");
                marked += 1;
            } else {
                assert!(!is_marked, "{of}");
                assert_eq!(answer.0.headers()["retry-after"], "1", "{of}");
                let (status, code) = problem(&answer);
                assert_eq!((status.as_u16(), &*code), (503, "not_leader"), "{of}");
                of_leader += usize::from(method == "GET");
            }
        }
    }
    assert_eq!(of_leader, OF_LEADER.len(), "each of them is a route");
    assert!(marked > 25, "{marked}");
}

#[tokio::test]
async fn a_standby_shows_what_its_leader_has_committed() {
    let log = Log::start().await;
    for (path, config) in
        [("/v1/queues/mail", json!({})), ("/v1/job-types/invoice", json!({"queue": "mail"}))]
    {
        assert_eq!(json(&log.leading, "PUT", path, config).await.0, 201, "{path}");
    }
    let job = json!({"type": "invoice", "id": "one", "data": [1]}).to_string();
    let (enqueued, _) = ask(&log.leading, "POST", "/v1/jobs", &[ALL], job).await;
    assert_eq!(enqueued.status(), 201);
    let (shown, job) = log.shown("/v1/jobs/invoice/one", 200).await;
    assert_eq!((&job["id"], &job["data"]), (&json!("one"), &json!([1])));
    assert_eq!(shown.headers()["tidegate-standby"], "true");
    let (shown, overview) = log.shown("/v1/overview", 200).await;
    let queues = overview["queues"].as_array().unwrap();
    assert!(queues.iter().any(|queue| queue["phases"]["ready"] == 1), "{overview}");
    assert!(position(&shown) >= position(&enqueued));
    let (_, explained) = log.shown("/v1/jobs/invoice/one/explain", 200).await;
    assert!(explained["phase"].is_string(), "{explained}");
    let (_, history) = log.shown("/v1/queues/mail/history", 200).await;
    assert_eq!(history["step_seconds"].as_f64(), Some(10.0), "those of a server alone");
    let (_, session) = log.shown("/v1/session", 200).await;
    assert_eq!(session["server"]["deployment_mode"], "embedded", "{session}");
    assert_eq!(session["server"]["stream"], false, "{session}");
}

#[tokio::test]
async fn a_token_is_revoked_on_a_standby_too() {
    let log = Log::start().await;
    log.shown("/v1/jobs", 200).await;
    let anonymous = ask(&log.following, "GET", "/v1/jobs", &[], "").await;
    assert_eq!(problem(&anonymous).1, "unauthorized");
    log.server.delete_token(&log.token.0, || false).await.unwrap();
    let (_, refused) = log.shown("/v1/jobs", 401).await;
    assert_eq!(refused["code"], "unauthorized");
}

#[tokio::test]
async fn a_standby_that_has_not_caught_up_refuses_reads() {
    let (standby, _node) = LogNode::open(&Arc::new(InMemory::new()), false).await;
    let following = standby.following(Arc::new(SystemClock)).await;
    let refused = ask(&following, "GET", "/v1/jobs", &[], "").await;
    assert_eq!(problem(&refused).1, "not_leader");
}
