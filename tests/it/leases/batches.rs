//! Calls for at least several jobs.

use std::time::Duration;

use futures_util::poll;
use tidegate_engine::{Error, request::LeaseRequest};

use super::{Harness, ask, enqueue, harness};

/// A call for `min` to 5 jobs of type `a`.
fn gathering(min: u32) -> LeaseRequest {
    LeaseRequest { min, ..ask(&["a"], 5) }
}

#[tokio::test]
async fn a_call_for_three_jobs_is_answered_with_the_third() {
    let Harness { server, .. } = harness().await;
    let mut lease = std::pin::pin!(server.lease(gathering(3)));
    let mut jobs = Vec::new();
    for _ in 0..2 {
        jobs.push(enqueue(&server, "a").await);
        for _ in 0..200 {
            assert!(poll!(&mut lease).is_pending(), "two are too few");
            tokio::task::yield_now().await;
        }
    }
    for job in &jobs {
        assert_eq!(server.job(&job.id, None).await.unwrap().life.attempt, 0, "none is leased");
    }
    enqueue(&server, "a").await;
    assert_eq!(lease.await.unwrap().jobs.len(), 3);
    server.stop().await;
}

#[tokio::test]
async fn a_call_for_three_jobs_takes_fewer_at_its_end() {
    let Harness { server, clock, .. } = harness().await;
    enqueue(&server, "a").await;
    enqueue(&server, "a").await;
    let lease = tokio::spawn({
        let server = server.clone();
        async move { (server.lease(gathering(3)).await.unwrap().jobs.len(), server.now()) }
    });
    let began = server.now();
    while !lease.is_finished() {
        clock.advance(Duration::from_millis(500));
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
    let (count, at) = lease.await.unwrap();
    assert_eq!(count, 2);
    assert!(at >= began + Duration::from_secs(20), "at the end of its wait: {at}");
    let at_once = LeaseRequest { wait: Duration::ZERO, ..gathering(3) };
    enqueue(&server, "a").await;
    assert_eq!(server.lease(at_once).await.unwrap().jobs.len(), 1, "without a wait");
    server.stop().await;
}

#[tokio::test]
async fn a_call_for_several_jobs_names_one_queue() {
    let Harness { server, .. } = harness().await;
    for request in
        [LeaseRequest { min: 2, ..ask(&["a", "b"], 5) }, LeaseRequest { min: 6, ..ask(&["a"], 5) }]
    {
        let refused = server.lease(request).await;
        assert!(
            matches!(&refused, Err(Error::Invalid { field, .. }) if field == "min"),
            "{refused:?}"
        );
    }
    server.stop().await;
}
