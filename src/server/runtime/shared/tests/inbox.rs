//! Requests of the inbox, and the servers that read it.

use super::*;
use crate::runtime::shared::inbox::INBOX;
use tidegate_core::{
    job::JobId,
    port::{Inbox as _, InboxRequest},
    time::Timestamp,
};
use tidegate_engine::request::Cancelled;

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

impl Deployment {
    /// Two servers. The first one reads the inbox.
    async fn reader_and_other(&self) -> (Server, Server) {
        let (reader, other) = self.two(INBOX).await;
        reader.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
        (reader, other)
    }

    async fn waiting(&self) -> Vec<JobId> {
        let all = self.memory.requests(None, 1000).await.unwrap();
        all.into_iter().map(|request| request.id).collect()
    }

    /// Waits until the inbox is empty.
    async fn read(&self) {
        self.until(BY_NOTICE, async || self.waiting().await.is_empty()).await;
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
    deployment.memory.add_request(requested("a"));
    let until = deployment.clock.now() + Duration::from_hours(1);
    let options = format!(r#" {{ "priority": 7, "expires_at": "{until}" }} "#);
    let delayed =
        InboxRequest { delay: Some(Duration::from_secs(30)), ..with_options("b", &options) };
    deployment.memory.add_request(delayed);
    let at = Timestamp::from_millis(4_000_000_000_000);
    deployment.memory.add_request(InboxRequest { run_at: Some(at), ..requested("c") });
    deployment.read().await;
    let job = async |id: &str| other.job(&name(id), None).await.unwrap();
    let (a, b, c) = (job("a").await, job("b").await, job("c").await);
    assert_eq!(a.data.inline().unwrap().bytes, br#"{"n":  1}"#.as_slice());
    assert_eq!(a.spec.enqueued_by.as_deref(), Some("sql:shop"));
    assert_eq!((b.spec.priority, b.spec.expires_at), (7, Some(until)));
    let waits = b.life.run_at().unwrap().since(b.spec.created_at);
    assert_eq!(waits, Duration::from_secs(30));
    assert_eq!(c.life.run_at(), Some(at));
    // A transaction that commits late has an earlier id.
    deployment.memory.add_request(requested("Z"));
    deployment
        .until(Duration::from_millis(1100), async || deployment.waiting().await.is_empty())
        .await;
    assert!(reader.engine().job(&name("Z"), None).await.is_ok());
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
        deployment.memory.add_request(request);
    }
    deployment.read().await;
    let refused = refusals(&other).await;
    let expected = [
        ("a", "there is no job type none"),
        ("b", "type: must be"),
        ("c", "unknown field `prio`"),
        ("d", "duplicate field `data`"),
        ("e", "options.type: is not for `enqueue`"),
        ("f", "options.delay_seconds: is not for `enqueue`"),
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
        deployment.memory.add_request(request);
    }
    let (one, two) = tokio::join!(
        deployment.within(BY_NOTICE, reader.inner.accept_requests(page())),
        other.inner.accept_requests(page()),
    );
    one.unwrap();
    two.unwrap();
    assert_eq!(refusals(&reader).await.len(), 1);
    // A server that was frozen since goes on when the job is gone.
    reader.cancel(&name("a"), None, false).await.map(|Cancelled { .. }| ()).unwrap();
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
        deployment.memory.add_request(unique(id, on_conflict));
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
async fn a_job_can_be_read_before_a_server_has_added_it() {
    let deployment = Deployment::new();
    let (_reader, other) = deployment.reader_and_other().await;
    deployment.memory.add_request(requested("a"));
    let job = deployment.within(BY_NOTICE, other.job(&name("a"), None)).await.unwrap();
    assert_eq!(job.spec.enqueued_by.as_deref(), Some("sql:shop"));
    assert_eq!(deployment.waiting().await, []);
}
