//! The proofs of leadership behind the reads and the pushes of a leader.

use std::{sync::Arc, time::Duration};

use axum::Router;
use object_store::memory::InMemory;

use super::{ALL, Log, LogNode, TwoTimes, ask, problem};
use crate::{handlers::Proofs, runtime::Leadership as _};

const CONSISTENT: &str = "tidegate-consistent";

#[tokio::test]
async fn a_consistent_read_needs_a_proof_of_its_own() {
    let log = Log::start().await;
    let read = async |routes: &Router, headers: &[(&str, &str)]| {
        ask(routes, "GET", "/v1/jobs", headers, "").await
    };
    let consistent = [ALL, (CONSISTENT, "true")];
    assert_eq!(read(&log.leading, &consistent).await.0.status(), 200);
    let unclear = read(&log.leading, &[ALL, (CONSISTENT, "1")]).await;
    assert_eq!(problem(&unclear).1, "invalid_header");

    // No instant has passed since the last proof, and the node leads no more.
    log.release().await;
    assert_eq!(read(&log.leading, &[ALL]).await.0.status(), 200);
    assert_eq!(problem(&read(&log.leading, &consistent).await).1, "not_leader");

    log.shown("/v1/jobs", 200).await;
    let headers = [("authorization", &*log.token.1), (CONSISTENT, "true")];
    assert_eq!(problem(&read(&log.following, &headers).await).1, "not_leader");
}

#[tokio::test]
async fn a_read_accepts_the_proof_of_a_push() {
    let log = Log::start().await;
    assert!(log.proofs.is_proved().await);
    // From now on, no proof succeeds.
    log.release().await;
    assert_eq!(ask(&log.leading, "GET", "/v1/jobs", &[ALL], "").await.0.status(), 200);
}

#[tokio::test]
async fn a_record_is_a_proof_from_its_put_on() {
    let times = Arc::new(TwoTimes { ends_pauses: true, ..TwoTimes::default() });
    let bucket = Arc::new(InMemory::new());
    let (leader, node) = LogNode::open_at(&bucket, true, Arc::clone(&times) as _).await;
    tokio::spawn(async move { node.run_once().await });
    leader.handle.leadership().wait_for(Option::is_some).await.unwrap();
    let proofs = Proofs::new(leader.routes(Arc::clone(&times) as _));
    leader.handle.submit(Vec::new()).await.unwrap();
    // From now on, no other proof succeeds.
    leader.handle.release();
    leader.handle.leadership().wait_for(Option::is_none).await.unwrap();
    times.passed.advance(Duration::from_millis(999));
    assert!(proofs.is_proved().await);
    times.passed.advance(Duration::from_millis(1));
    assert!(!proofs.is_proved().await);
}

#[tokio::test]
async fn a_clock_that_is_set_back_makes_no_proof_recent() {
    let log = Log::start().await;
    assert!(log.proofs.is_proved().await);
    log.release().await;
    // The server was frozen for two minutes, and its clock was set back by as much.
    log.times.passed.advance(Duration::from_mins(2));
    assert!(!log.proofs.is_proved().await);
    let refused = ask(&log.leading, "GET", "/v1/jobs", &[ALL], "").await;
    assert_eq!(problem(&refused).1, "not_leader");
}
