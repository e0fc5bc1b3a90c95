//! A job that cannot be read holds itself alone, and the slot that it may take.

use tidegate_core::{
    job::{JobId, Outcome, type_config::TypeConfig},
    port::job_store::ListQuery,
};
use tidegate_engine::{
    Dispatch, Error, TickInput,
    request::{Heartbeat, NewJob, ReportOutcome},
};

use crate::cases::harness::{
    demand, every_store, every_store_and_table, polling, queue, report, work,
};

fn is_unreadable<T>(answer: &Result<T, Error>, id: &JobId) -> bool {
    matches!(answer, Err(Error::Unreadable(job)) if job.id == id.as_str())
}

fn unlimited() -> tidegate_core::queue::QueueConfig {
    tidegate_core::queue::QueueConfig::default()
}

#[tokio::test]
async fn a_report_of_an_unreadable_job_is_refused_alone() {
    for limit in [Some(5), None] {
        for mut harness in every_store_and_table() {
            harness
                .set_queue(tidegate_core::queue::QueueConfig { concurrency: limit, ..unlimited() })
                .await;
            harness.set_type("work", TypeConfig::default()).await;
            harness.settle().await;
            harness.enqueue_many([work(), work(), work()]).await;
            let run = harness.lease(2).await;
            assert_eq!(run.len(), 2);
            harness.damage(&run[0].id).await;
            let reports = run.iter();
            let reports =
                reports.map(|job| report(job, ReportOutcome::Succeeded { result: None })).collect();
            let input = TickInput {
                reports,
                demands: vec![demand(&["work"], 1, Dispatch::Claim)],
                ..TickInput::default()
            };
            let outcome = harness.tick(input).await;
            assert!(is_unreadable(&outcome.reports[0], &run[0].id), "{:?}", outcome.reports[0]);
            let answer = outcome.reports[1].as_ref().unwrap();
            assert_eq!(answer.life.ended(), Some(Outcome::Succeeded));
            assert_eq!(outcome.claimed.len(), 1, "the lease goes on");
            // Repaired, it accepts the report, which its worker sends again.
            harness.damage(&run[0].id).await;
            let settled = harness.succeed(&run[..1]).await;
            assert_eq!(settled[0].life.ended(), Some(Outcome::Succeeded));
        }
    }
}

#[tokio::test]
async fn an_unreadable_running_job_keeps_its_slot() {
    for mut harness in every_store_and_table() {
        harness.with_limit(2).await;
        harness.settle().await;
        harness.enqueue_many([work(), work(), work(), work()]).await;
        let run = harness.lease(2).await;
        assert_eq!(run.len(), 2);
        harness.damage(&run[0].id).await;
        harness.succeed(&run[1..]).await;
        // Long after its lease, and after every check of its grant.
        for _ in 0..4 {
            harness.wait(61);
            let leased = harness.lease(5).await;
            assert!(leased.len() <= 1, "its slot is taken");
            harness.succeed(&leased).await;
        }
        assert_eq!(harness.granted().await, 1);
        harness.damage(&run[0].id).await;
        harness.wait(61);
        harness.lease(0).await;
        harness.wait(61);
        let again = harness.lease(5).await;
        assert!(again.iter().any(|job| job.id == run[0].id), "{again:?}");
    }
}

#[tokio::test]
async fn a_first_limit_waits_for_an_unreadable_running_job() {
    for mut harness in every_store_and_table() {
        harness.set_queue(unlimited()).await;
        harness.set_type("work", TypeConfig::default()).await;
        harness.enqueue_many([work(), work(), work()]).await;
        let run = harness.lease(1).await;
        harness.damage(&run[0].id).await;
        harness.with_limit(1).await;
        harness.settle().await;
        assert!(harness.lease(5).await.is_empty(), "it may run, so the limit may be reached");
        let explained = harness.explain_queue(&|_| polling()).await;
        assert_eq!((explained.held[0].by.kind, explained.held[0].jobs), ("ledger", 2));
        assert!(explained.reason.contains(run[0].id.as_str()), "{}", explained.reason);
        harness.damage(&run[0].id).await;
        harness.wait(11);
        harness.lease(5).await;
        assert_eq!(harness.granted().await, 1, "it is counted now");
        harness.succeed(&run).await;
        assert_eq!(harness.lease(5).await.len(), 1);
    }
}

#[tokio::test]
async fn every_request_for_an_unreadable_job_says_so() {
    for mut harness in every_store() {
        harness.with_limit(5).await;
        let key = |key: &str| NewJob { correlation_key: Some(key.into()), ..work() };
        let id: JobId = "chosen".parse().unwrap();
        let new = NewJob { id: Some(id.clone()), ..key("k") };
        harness.enqueue(new.clone()).await;
        let run = harness.lease(1).await.remove(0);
        harness.damage(&id).await;
        let engine = &harness.engine;
        assert!(is_unreadable(&engine.job(&id, None).await, &id));
        assert!(is_unreadable(&engine.cancel(&id, None, true).await, &id));
        let beat = Heartbeat {
            id: id.clone(),
            job_type: None,
            attempt: run.life.attempt,
            token: None,
            lease_seconds: None,
            progress: None,
            checkpoint: None,
        };
        assert!(is_unreadable(&engine.heartbeat(beat).await, &id));
        // Only the requests that meet it are refused.
        let answers = engine.enqueue(vec![work(), new, key("k"), key("other")]).await;
        let refused: Vec<bool> = answers.iter().map(Result::is_err).collect();
        assert_eq!(refused, [false, true, true, false]);
        assert!(is_unreadable(&answers[1], &id) && is_unreadable(&answers[2], &id));
        let all = ListQuery { limit: 10, ..ListQuery::default() };
        let page = harness.store.list(&all).await.unwrap();
        assert_eq!((page.jobs.len(), page.unreadable.len()), (2, 1));
        let refused = harness.engine.delete_queue(&queue(), None).await;
        assert!(refused.is_err(), "its queue has a live job");
    }
}

#[tokio::test]
async fn dispatched_work_that_cannot_be_read_stops_no_other() {
    for mut harness in every_store_and_table() {
        harness.with_limit(3).await;
        harness.settle().await;
        harness.enqueue_many([work(), work(), work()]).await;
        let sent = harness.send(3).await;
        assert_eq!(sent.len(), 3);
        harness.damage(&sent[1].job).await;
        let claims = harness.engine.claim(&sent, None).await.unwrap();
        let claimed: Vec<bool> = claims.iter().map(Option::is_some).collect();
        assert_eq!(claimed, [true, false, true]);
        harness.wait(61);
        harness.lease(0).await;
        harness.enqueue(work()).await;
        assert!(harness.granted().await >= 1, "the grant of the unreadable job stays");
    }
}
