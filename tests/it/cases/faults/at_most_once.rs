//! An at-most-once job never starts twice.

use tidegate_core::{
    job::{Outcome, lifecycle::Reason, type_config::TypeConfig},
    time::Seconds,
};
use tidegate_engine::{TickInput, request::NewJob};

use super::once;
use crate::cases::harness::{every_store, failed, report, work};

#[tokio::test]
async fn an_at_most_once_job_lost_before_its_send_never_starts_twice() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        harness.set_type("work", once()).await;
        let job = harness.enqueue(work()).await;
        assert_eq!(harness.lease(1).await.len(), 1, "it is claimed; and now the process dies");
        harness.restart();
        assert!(harness.lease(1).await.is_empty());
        harness.wait(31);
        assert!(
            harness.lease(1).await.is_empty(),
            "its lease is over, and it is not started again"
        );
        let job = harness.job(&job.id).await;
        assert_eq!(job.life.ended(), Some(Outcome::Failed));
        assert_eq!(job.life.error.as_ref().unwrap().reason, Reason::OutcomeUnknown);
        assert_eq!(job.life.attempt, 1);
        assert_eq!(harness.granted().await, 0, "its slot is free");
    }
}

#[tokio::test]
async fn a_type_turned_at_most_once_starts_no_waiting_retry() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let job = harness.enqueue(work()).await;
        let run = harness.lease(1).await.remove(0);
        harness
            .tick(TickInput { reports: vec![report(&run, failed())], ..TickInput::default() })
            .await;
        harness.set_type("work", once()).await;
        harness.wait(10);
        assert!(harness.lease(1).await.is_empty());
        let job = harness.job(&job.id).await;
        assert_eq!(
            (job.life.ended(), job.life.error.unwrap().reason),
            (Some(Outcome::Failed), Reason::OutcomeUnknown)
        );
    }
}

#[tokio::test]
async fn an_at_most_once_job_without_a_ledger_ends_outcome_unknown() {
    for mut harness in every_store() {
        harness.set_type("work", once()).await;
        let job = harness.enqueue(work()).await;
        assert_eq!(harness.lease(1).await.len(), 1);
        harness.restart();
        harness.wait(31);
        harness.engine.sweep().await.unwrap();
        assert!(harness.lease(1).await.is_empty());
        let job = harness.job(&job.id).await;
        assert_eq!(job.life.error.unwrap().reason, Reason::OutcomeUnknown);
    }
}

#[tokio::test]
async fn a_repeated_request_finds_its_ended_job_without_retention() {
    for mut harness in every_store() {
        let config = TypeConfig { retention_seconds: Seconds::new(0), ..once() };
        harness.set_type("work", config).await;
        let new = || NewJob { id: Some("order-7".parse().unwrap()), ..work() };
        let unnamed = harness.enqueue(work()).await;
        harness.enqueue(new()).await;
        let run = harness.lease(2).await;
        harness.succeed(&run).await;
        harness.engine.sweep().await.unwrap();
        assert!(harness.engine.job(&unnamed.id, None).await.is_err(), "no request repeats it");
        harness.wait(9 * 60);
        harness.engine.sweep().await.unwrap();
        let repeated = harness.engine.enqueue(vec![new()]).await.pop().unwrap().unwrap();
        assert!(!repeated.new && harness.lease(1).await.is_empty());
        harness.wait(2 * 60);
        harness.engine.sweep().await.unwrap();
        assert!(harness.engine.job(&"order-7".parse().unwrap(), None).await.is_err());
    }
}
