//! Requests of the inbox, and the servers that read it.

use metrics_exporter_prometheus::PrometheusBuilder;

use super::*;
use crate::runtime::shared::{inbox::INBOX, inbox_depth::MEASURE_INTERVAL};
use tidegate_core::{
    job::JobId,
    port::{Inbox, InboxClosing, InboxDepth, InboxPage, InboxRequest, InboxRules},
    time::Timestamp,
};
use tidegate_engine::{Error, request::JobPatch};

fn requested(id: &str) -> InboxRequest {
    InboxRequest {
        id: name(id),
        job_type: "work".into(),
        data: br#"{"n":  1}"#.as_slice().into(),
        options: b"{}".as_slice().into(),
        run_at: None,
        delay: None,
        caller: "shop".into(),
    }
}

/// As [`requested`], with these options.
fn with_options(id: &str, options: &str) -> InboxRequest {
    InboxRequest { options: options.to_owned().into(), ..requested(id) }
}

/// What goes wrong with an inbox.
#[derive(PartialEq, Eq)]
enum Fault {
    /// It has so many removed rows that a read from its start fails.
    SlowStart,
    /// A look for one request ends only after a server has added its job.
    Overtaken,
}

/// An inbox with a fault.
struct FaultyInbox(Arc<MemoryStore>, Fault);

#[async_trait]
impl Inbox for FaultyInbox {
    async fn set_rules(&self, rules: InboxRules) -> Result<(), StoreError> {
        self.0.set_rules(rules).await
    }

    async fn close(&self) -> Result<InboxClosing, StoreError> {
        self.0.close().await
    }

    async fn requests(&self, after: u64, until: u64, limit: u32) -> Result<InboxPage, StoreError> {
        if after == 0 && self.1 == Fault::SlowStart {
            return Err(StoreError::unavailable("canceling statement due to statement timeout"));
        }
        self.0.requests(after, until, limit).await
    }

    async fn depth(&self, limit: u32) -> Result<InboxDepth, StoreError> {
        self.0.depth(limit).await
    }

    async fn newest(&self) -> Result<u64, StoreError> {
        self.0.newest().await
    }

    async fn request(&self, id: &JobId) -> Result<Option<InboxRequest>, StoreError> {
        while self.1 == Fault::Overtaken && self.0.request(id).await?.is_some() {
            tokio::task::yield_now().await;
        }
        self.0.request(id).await
    }
}

impl Deployment {
    /// Two servers. The first one reads the inbox.
    async fn reader_and_other(&self) -> (Server, Server) {
        let (reader, other) = self.two(INBOX).await;
        reader.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
        (reader, other)
    }

    /// As [`Self::reader_and_other`], after a transaction that requests "late" and commits after the read
    /// of a later request.
    async fn with_late_request(&self) -> (Server, Server) {
        let servers = self.reader_and_other().await;
        let late = self.memory.draw_request_number();
        self.request(requested("first"));
        self.read().await;
        self.memory.add_request(late, requested("late"));
        servers
    }

    /// Commits a transaction that requests this.
    fn request(&self, request: InboxRequest) {
        self.memory.add_request(self.memory.draw_request_number(), request);
    }

    async fn waiting(&self) -> Vec<JobId> {
        let page = self.memory.requests(0, u64::MAX, 1000).await.unwrap();
        page.requests.into_iter().map(|request| request.id).collect()
    }

    /// Waits until the inbox is empty, as long as the documents promise.
    async fn read(&self) {
        self.until(Duration::from_millis(60), async || self.waiting().await.is_empty()).await;
    }
}

/// The reasons of all dead letters, by the ids of the requests.
async fn refusals(server: &Server) -> Vec<(String, String)> {
    let (letters, _) = server.dead_letters(None, None, 100).await.unwrap();
    let mut reasons: Vec<(String, String)> =
        letters.into_iter().map(|letter| (letter.event().unwrap().id, letter.reason)).collect();
    reasons.sort();
    reasons
}

#[tokio::test]
async fn a_request_becomes_the_job_that_it_describes() {
    let deployment = Deployment::new();
    let (reader, other) = deployment.reader_and_other().await;
    deployment.request(requested("a"));
    let until = deployment.clock.now() + Duration::from_hours(1);
    let options = format!(r#" {{ "priority": 7, "expires_at": "{until}" }} "#);
    let delayed =
        InboxRequest { delay: Some(Duration::from_secs(30)), ..with_options("b", &options) };
    deployment.request(delayed);
    let at = Timestamp::from_millis(4_000_000_000_000);
    deployment.request(InboxRequest { run_at: Some(at), ..requested("c") });
    deployment.read().await;
    let job = async |id: &str| other.job(&name(id), None).await.unwrap();
    let (a, b, c) = (job("a").await, job("b").await, job("c").await);
    assert_eq!(a.data.inline().unwrap().bytes, br#"{"n":  1}"#.as_slice());
    assert_eq!(a.spec.enqueued_by.as_deref(), Some("sql:shop"));
    assert_eq!((b.spec.priority, b.spec.expires_at), (7, Some(until)));
    let waits = b.life.run_at().unwrap().since(b.spec.created_at);
    assert_eq!(waits, Duration::from_secs(30));
    assert_eq!(c.life.run_at(), Some(at));
    assert!(reader.engine().job(&name("a"), None).await.is_ok());
}

#[tokio::test]
async fn a_request_with_a_notice_is_read_before_the_next_poll() {
    let deployment = Deployment::new();
    let (_reader, _other) = deployment.reader_and_other().await;
    for number in 0..5 {
        deployment.request(requested(&format!("n-{number}")));
        deployment.sender.send(BTreeSet::from([Notice::Inbox])).unwrap();
        // Less than the interval of the polls, which begins with the read before.
        let soon = Duration::from_millis(30);
        deployment.until(soon, async || deployment.waiting().await.is_empty()).await;
    }
}

#[tokio::test]
async fn a_transaction_that_commits_late_is_found_among_others() {
    let deployment = Deployment::new();
    let (reader, _other) = deployment.with_late_request().await;
    // The newest request is never the only one left to read.
    let mut number = 0;
    let found = async || {
        number += 1;
        deployment.request(requested(&format!("n-{number}")));
        reader.engine().job(&name("late"), None).await.is_ok()
    };
    deployment.until(Duration::from_millis(1100), found).await;
}

#[tokio::test]
async fn notices_do_not_put_off_the_read_of_late_requests() {
    let deployment = Deployment::new();
    let (reader, _other) = deployment.with_late_request().await;
    let mut notified_at = None;
    let found = async || {
        // One at each instant, without a new request.
        let now = deployment.clock.now();
        if notified_at.replace(now) != Some(now) {
            deployment.sender.send(BTreeSet::from([Notice::Inbox])).unwrap();
        }
        reader.engine().job(&name("late"), None).await.is_ok()
    };
    deployment.until(Duration::from_millis(1200), found).await;
}

#[tokio::test]
async fn a_slow_read_of_all_requests_stops_no_new_one() {
    let deployment = Deployment::new();
    // Those of requests that were removed.
    for _ in 0..20_000 {
        deployment.memory.draw_request_number();
    }
    let slow = Arc::new(FaultyInbox(Arc::clone(&deployment.memory), Fault::SlowStart));
    let server = deployment.start_with(Some(slow)).await;
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    for number in 0..100 {
        deployment.request(requested(&format!("n-{number}")));
        deployment
            .until(Duration::from_secs(2), async || deployment.waiting().await.is_empty())
            .await;
    }
}

#[tokio::test]
async fn a_request_that_is_refused_becomes_a_dead_letter() {
    let deployment = Deployment::new();
    let (reader, other) = deployment.reader_and_other().await;
    let large = format!("\"{}\"", "x".repeat(5 << 20));
    for request in [
        InboxRequest { job_type: "none".into(), ..requested("a") },
        InboxRequest { job_type: "a \"b".into(), ..requested("b") },
        with_options("c", r#"{"prio": 1}"#),
        with_options("d", r#"{"data": 1}"#),
        with_options("e", r#"{"type": "work"}"#),
        with_options("f", r#"{"delay_seconds": 1}"#),
        with_options("g", r#"{"critical": true}"#),
        with_options("h", "[]"),
        with_options("i", "{} 1"),
        with_options("j", r#"{"max_attempts": 0}"#),
        InboxRequest { data: large.into(), ..requested("k") },
        requested("l"),
    ] {
        deployment.request(request);
    }
    deployment.read().await;
    let refused = refusals(&other).await;
    let expected = [
        ("a", "there is no job type none"),
        ("b", "type: must be"),
        ("c", "unknown field `prio`"),
        ("d", "duplicate field `data`"),
        ("e", "options.type: must not be given"),
        ("f", "options.delay_seconds: must not be given"),
        ("g", "options.critical: needs a token"),
        ("h", "options: must be a JSON object"),
        ("i", "trailing characters"),
        ("j", "max_attempts"),
        ("k", "data is larger than"),
    ];
    assert_eq!(refused.len(), expected.len(), "{refused:?}");
    for ((id, reason), (wanted, part)) in refused.iter().zip(expected) {
        assert!(id == wanted && reason.contains(part), "{id}: {reason}");
    }
    assert!(reader.job(&name("l"), None).await.is_ok());
}

#[tokio::test]
async fn a_request_that_two_servers_read_is_taken_once() {
    let deployment = Deployment::new();
    let (reader, other) = deployment.reader_and_other().await;
    let page = || vec![requested("a"), with_options("b", r#"{"prio": 1}"#)];
    for request in page() {
        deployment.request(request);
    }
    let (one, two) = tokio::join!(
        deployment.within(BY_NOTICE, reader.inner.accept_requests(page())),
        other.inner.accept_requests(page()),
    );
    one.unwrap();
    two.unwrap();
    assert_eq!(refusals(&reader).await.len(), 1);
    // A server that was frozen since goes on when the job is gone.
    reader.cancel(&name("a"), None, false).await.unwrap();
    deployment.clock.advance(Duration::from_hours(24 * 400));
    let gone = async || reader.engine().job(&name("a"), None).await.is_err();
    deployment.until(Duration::from_hours(1), gone).await;
    let late = other.inner.accept_requests(page());
    deployment.within(BY_NOTICE, late).await.unwrap();
    assert!(gone().await);
}

#[tokio::test]
async fn a_request_with_a_unique_key_may_be_answered_by_a_job() {
    let deployment = Deployment::new();
    let (reader, _other) = deployment.reader_and_other().await;
    let run_at = Some(deployment.clock.now() + Duration::from_secs(100));
    let unique = |id: &str, on_conflict: &str| InboxRequest {
        run_at,
        data: format!("\"{id}\"").into(),
        ..with_options(
            id,
            &format!(
                r#"{{"unique": {{"key": "k", "while": "live", "on_conflict": "{on_conflict}"}}}}"#
            ),
        )
    };
    for (id, on_conflict) in [("a", "keep"), ("b", "keep"), ("c", "replace")] {
        deployment.request(unique(id, on_conflict));
        deployment.read().await;
    }
    assert_eq!(refusals(&reader).await, []);
    let job = reader.job(&name("a"), None).await.unwrap();
    assert_eq!(job.data.inline().unwrap().bytes, b"\"c\"".as_slice());
    for id in ["b", "c"] {
        assert!(reader.engine().job(&name(id), None).await.is_err(), "{id}");
    }
}

#[tokio::test]
async fn requests_that_merge_are_taken_once_and_in_their_order() {
    let deployment = Deployment::new();
    let (reader, other) = deployment.reader_and_other().await;
    let run_at = Some(deployment.clock.now() + Duration::from_secs(100));
    let replace = r#"{"unique": {"key": "k", "while": "live", "on_conflict": "replace"}}"#;
    let page: Vec<InboxRequest> = (0..5)
        .map(|n| InboxRequest {
            run_at,
            data: n.to_string().into(),
            ..with_options(&format!("r-{n}"), replace)
        })
        .collect();
    for request in page.clone() {
        deployment.request(request);
    }
    let (one, two) = tokio::join!(
        deployment.within(BY_NOTICE, reader.inner.accept_requests(page.clone())),
        other.inner.accept_requests(page.clone()),
    );
    one.unwrap();
    two.unwrap();
    assert_eq!(deployment.waiting().await, []);
    assert_eq!(refusals(&reader).await, []);
    let jobs = async || {
        let depth = reader.engine().ports().store.depth(None).await.unwrap();
        depth.counts.iter().map(|depth| depth.jobs).sum::<u64>()
    };
    assert_eq!(jobs().await, 1);
    let job = reader.engine().job(&name("r-0"), None).await.unwrap();
    assert_eq!(job.data.inline().unwrap().bytes, b"4".as_slice());
    // A server that was frozen since changes nothing when the job is gone.
    reader.cancel(&name("r-0"), None, false).await.unwrap();
    deployment.clock.advance(Duration::from_hours(24 * 400));
    deployment.until(Duration::from_hours(1), async || jobs().await == 0).await;
    let late = other.inner.accept_requests(page);
    deployment.within(BY_NOTICE, late).await.unwrap();
    assert_eq!(jobs().await, 0);
}

#[tokio::test]
async fn a_job_can_be_used_before_a_server_has_added_it() {
    let deployment = Deployment::new();
    let (_reader, other) = deployment.reader_and_other().await;
    let ids = ["01kb6x0000000000000000000a", "01kb6x0000000000000000000b"].map(name::<JobId>);
    for id in &ids {
        deployment.request(requested(id.as_str()));
    }
    let job = deployment.within(BY_NOTICE, other.job(&ids[0], None)).await.unwrap();
    assert_eq!(job.spec.enqueued_by.as_deref(), Some("sql:shop"));
    let cancelled = deployment.within(BY_NOTICE, other.cancel(&ids[1], None, false)).await;
    assert!(cancelled.unwrap().ended);
    assert_eq!(deployment.waiting().await, []);
}

#[tokio::test]
async fn a_job_is_found_that_is_added_while_its_request_is_read() {
    let deployment = Deployment::new();
    let inbox = FaultyInbox(Arc::clone(&deployment.memory), Fault::Overtaken);
    let server = deployment.start_with(Some(Arc::new(inbox))).await;
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    let id = |last: &str| name::<JobId>(&format!("01kb6x0000000000000000000{last}"));
    for (last, what) in [("a", "read"), ("b", "changed"), ("c", "cancelled")] {
        let id = id(last);
        deployment.request(requested(id.as_str()));
        let patch = JobPatch { priority: Some(Some(7)), ..JobPatch::default() };
        let done = async {
            match what {
                "read" => server.job(&id, None).await.map(drop),
                "changed" => server.patch(&id, None, patch, None).await.map(drop),
                _ => server.cancel(&id, None, false).await.map(drop),
            }
        };
        deployment.within(BY_NOTICE, done).await.unwrap_or_else(|why| panic!("{what}: {why}"));
    }
    let missing = id("d");
    let error = deployment.within(BY_NOTICE, server.job(&missing, None)).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}

#[tokio::test]
async fn another_server_reads_for_an_owner_that_does_not() {
    let (deployment, _owner, other) = loop {
        let deployment = Deployment::new();
        // As one of a release without an inbox.
        let (old, new) = (deployment.start_with(None).await, deployment.start().await);
        let is_known = async || members(&old) == 2 && members(&new) == 2;
        deployment.until(BY_NOTICE, is_known).await;
        if old.inner.owns(INBOX) {
            break (deployment, old, new);
        }
    };
    other.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    deployment.request(requested("a"));
    deployment.until(Duration::from_secs(12), async || deployment.waiting().await.is_empty()).await;
}

#[tokio::test]
async fn the_requests_that_wait_are_in_the_metrics() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let deployment = Deployment::new();
    // It is never read.
    let slow = Arc::new(FaultyInbox(Arc::clone(&deployment.memory), Fault::SlowStart));
    let _server = deployment.start_with(Some(slow)).await;
    let shows = |line: &str| recorder.handle().render().lines().any(|shown| shown == line);
    deployment.pass(BY_NOTICE).await;
    assert!(shows("tidegate_inbox_requests 0") && shows("tidegate_inbox_refused_total 0"));
    for id in ["a", "b"] {
        deployment.request(requested(id));
    }
    deployment.pass(MEASURE_INTERVAL).await;
    let rendered = recorder.handle().render();
    assert!(shows("tidegate_inbox_requests 2"), "{rendered}");
    assert!(shows("tidegate_inbox_oldest_request_age_seconds 0"), "{rendered}");
}
