//! Replies before, during and after an attempt.

use std::sync::Arc;

use serde_json::json;
use tidegate_backends::sqlite::SqliteStore;
use tidegate_core::{
    job::{
        Job, Outcome, Payload, State,
        lifecycle::Waiting,
        type_config::{Delivery, TypeConfig},
    },
    queue::QueueConfig,
};
use tidegate_engine::{
    Error, TickInput, events::ingest::TriggerAction, memory::MemoryStore,
    testkit::faults::FaultyStore,
};

use super::{action, ended, event, ingest, kept, keyed, with_trigger};
use crate::cases::harness::{Harness, every_store_and_table as every_store, failed, report};

#[tokio::test]
async fn a_reply_ends_the_running_attempt_and_frees_its_slot() {
    for mut harness in every_store() {
        harness.set_queue(QueueConfig { concurrency: Some(1), ..QueueConfig::default() }).await;
        with_trigger(&harness).await;
        harness.settle().await;
        let (a, b) = (harness.enqueue(keyed("a")).await, harness.enqueue(keyed("b")).await);
        assert_eq!(harness.lease(1).await[0].id, a.id);
        let ingestion = ingest(&harness, &[event("1", json!({"key": "a", "answer": 42}))]).await;
        assert_eq!(
            ingestion.answers[0].as_ref().unwrap().outcomes[0].action,
            TriggerAction::Completed { job: a.id.clone() }
        );
        let done = harness.job(&a.id).await;
        assert_eq!(ended(&done), Some(Outcome::Succeeded));
        assert_eq!(done.life.result.unwrap().bytes, "42");
        let released =
            ingestion.changed.iter().map(|(job, version)| (job.id.clone(), *version)).collect();
        harness.tick(TickInput { released, ..TickInput::default() }).await;
        assert_eq!(harness.lease(1).await[0].id, b.id, "the slot is free");
    }
}

#[tokio::test]
async fn a_reply_before_its_job_settles_it_when_the_attempt_starts() {
    for mut harness in every_store() {
        with_trigger(&harness).await;
        let early = action(&harness, event("1", json!({"key": "a", "answer": "yes"}))).await;
        assert!(matches!(early, TriggerAction::Pending { .. }), "{early:?}");
        assert_eq!(kept(&harness).await, 1);
        let job = harness.enqueue(keyed("a")).await;
        harness.restart();
        assert!(harness.lease(1).await.is_empty(), "a job that has its answer is not leased");
        let done = harness.job(&job.id).await;
        assert_eq!((ended(&done), done.life.attempt), (Some(Outcome::Succeeded), 1));
        assert_eq!(kept(&harness).await, 0);
        assert!(harness.lease(1).await.is_empty());
    }
}

#[tokio::test]
async fn a_reply_to_a_job_that_has_not_started_waits_for_its_attempt() {
    for mut harness in every_store() {
        with_trigger(&harness).await;
        let job = harness.enqueue(keyed("a")).await;
        assert!(matches!(
            action(&harness, event("1", json!({"key": "a"}))).await,
            TriggerAction::Pending { .. }
        ));
        assert!(matches!(harness.job(&job.id).await.life.state, State::Scheduled { .. }));
        assert!(harness.lease(1).await.is_empty());
        assert_eq!(ended(&harness.job(&job.id).await), Some(Outcome::Succeeded));
    }
}

/// The claim comes between the reply's first lookup and its storage: the second lookup finds the
/// attempt. If the process dies before the second lookup, the sweep finds the reply.
#[tokio::test]
async fn a_reply_whose_attempt_starts_while_it_is_kept_is_not_lost() {
    for died in [false, true] {
        let inner = Arc::new(MemoryStore::new());
        let faulty =
            Arc::new(FaultyStore::new(inner.clone(), 1).with_flight(std::time::Duration::ZERO));
        let mut claimer = Harness::on(inner);
        with_trigger(&claimer).await;
        let job = claimer.enqueue(keyed("a")).await;
        let other = Harness::on(faulty.clone());
        let events = [event("1", json!({"key": "a"}))];
        let mut ingesting = Box::pin(other.engine.ingest(&events));
        // The faulty store yields before each write, so the first poll ends right before the reply
        // is stored.
        assert!(futures_util::poll!(&mut ingesting).is_pending());
        if died {
            // One more write succeeds, that of the reply. After it the store does not answer.
            faulty.crash_after(1);
        }
        assert_eq!(claimer.lease(1).await.len(), 1, "the reply is not stored yet");
        let answers = ingesting.await.answers;
        assert!(matches!(place_state(&claimer, &job).await, State::Running(_)) == died);
        if died {
            assert!(
                matches!(
                    answers[0].as_ref().unwrap().outcomes[0].action,
                    TriggerAction::Pending { .. }
                ),
                "{answers:?}"
            );
            let heard = claimer.engine.sweep_replies(None).await.unwrap();
            assert_eq!((heard.met, heard.changed.len()), (1, 1));
        } else {
            assert_eq!(
                answers[0].as_ref().unwrap().outcomes[0].action,
                TriggerAction::Completed { job: job.id.clone() }
            );
        }
        assert_eq!(ended(&claimer.job(&job.id).await), Some(Outcome::Succeeded));
        assert_eq!(kept(&claimer).await, 0);
    }
}

async fn place_state(harness: &Harness, job: &Job) -> State {
    harness.job(&job.id).await.life.state
}

#[tokio::test]
async fn a_success_reply_during_a_retry_wait_ends_the_job() {
    for mut harness in every_store() {
        with_trigger(&harness).await;
        harness.enqueue(keyed("a")).await;
        let run = harness.lease(1).await;
        harness
            .tick(TickInput { reports: vec![report(&run[0], failed())], ..TickInput::default() })
            .await;
        let waiting = harness.job(&run[0].id).await;
        assert!(matches!(waiting.life.state, State::Scheduled { waiting: Waiting::Retry, .. }));
        assert_eq!(
            action(&harness, event("1", json!({"key": "a", "answer": 1}))).await,
            TriggerAction::Completed { job: run[0].id.clone() }
        );
        let done = harness.job(&run[0].id).await;
        assert_eq!(
            (ended(&done), done.life.attempt, done.life.error.clone()),
            (Some(Outcome::Succeeded), 1, None)
        );
        assert_eq!(
            done.life.history.iter().map(|entry| entry.outcome).collect::<Vec<_>>(),
            [Outcome::Failed, Outcome::Succeeded]
        );
        harness.wait(7200);
        assert!(harness.lease(1).await.is_empty(), "the retry is cancelled");
    }
}

#[tokio::test]
async fn a_failure_while_a_retry_waits_is_recorded_and_nothing_else() {
    for mut harness in every_store() {
        with_trigger(&harness).await;
        harness.enqueue(keyed("a")).await;
        let run = harness.lease(1).await;
        harness
            .tick(TickInput { reports: vec![report(&run[0], failed())], ..TickInput::default() })
            .await;
        let before = harness.job(&run[0].id).await;
        let failure = event("1", json!({"key": "a", "failed": "no stock"}));
        assert_eq!(
            action(&harness, failure.clone()).await,
            TriggerAction::Recorded { job: run[0].id.clone() }
        );
        let after = harness.job(&run[0].id).await;
        assert_eq!(
            (&after.life.state, after.life.version),
            (&before.life.state, before.life.version)
        );
        let said = after.life.history.last().unwrap().error.as_ref().unwrap();
        assert_eq!((after.life.history.len(), said.message.as_deref()), (2, Some("no stock")));
        assert_eq!(
            action(&harness, failure).await,
            TriggerAction::AlreadyProcessed { job: run[0].id.clone() }
        );
        assert_eq!(harness.job(&run[0].id).await.life.history.len(), 2);
        harness.wait(7200);
        assert_eq!(harness.lease(1).await[0].life.attempt, 2, "the retry comes");
    }
}

#[tokio::test]
async fn a_failed_reply_is_tried_again_as_its_type_says() {
    for mut harness in every_store() {
        with_trigger(&harness).await;
        harness.enqueue(keyed("a")).await;
        harness.lease(1).await;
        let failure = event("1", json!({"key": "a", "failed": "busy"}));
        assert!(matches!(action(&harness, failure.clone()).await, TriggerAction::Completed { .. }));
        harness.wait(7200);
        let again = harness.lease(1).await;
        assert_eq!(again[0].life.attempt, 2);
        // A second delivery of the event does not complete the second attempt.
        assert!(matches!(action(&harness, failure).await, TriggerAction::AlreadyProcessed { .. }));
        assert!(harness.job(&again[0].id).await.life.running().is_some());
        assert!(matches!(
            action(&harness, event("2", json!({"key": "a"}))).await,
            TriggerAction::Completed { .. }
        ));
    }
}

#[tokio::test]
async fn a_reply_names_its_attempt() {
    for mut harness in every_store() {
        with_trigger(&harness).await;
        let job = harness.enqueue(keyed("a")).await;
        harness.lease(1).await;
        assert!(
            matches!(
                action(&harness, event("2", json!({"key": "a", "attempt": 2}))).await,
                TriggerAction::Pending { .. }
            ),
            "that is still to come"
        );
        assert!(matches!(
            action(&harness, event("1", json!({"key": "a", "attempt": 1, "failed": "no"}))).await,
            TriggerAction::Completed { .. }
        ));
        harness.wait(60);
        assert!(matches!(
            action(&harness, event("0", json!({"key": "a", "attempt": "x"}))).await,
            TriggerAction::DeadLettered { .. }
        ));
        assert!(harness.lease(1).await.is_empty(), "the second attempt has its answer");
        assert_eq!(
            (ended(&harness.job(&job.id).await), harness.job(&job.id).await.life.attempt),
            (Some(Outcome::Succeeded), 2)
        );
        assert_eq!(
            action(&harness, event("3", json!({"key": "a", "attempt": 1}))).await,
            TriggerAction::Late { job: job.id }
        );
    }
}

#[tokio::test]
async fn a_large_reply_becomes_an_object_and_a_failure_can_be_final() {
    for mut harness in every_store() {
        with_trigger(&harness).await;
        harness
            .set_type(
                "work",
                TypeConfig { delivery: Delivery::AtMostOnce, ..TypeConfig::default() },
            )
            .await;
        let (a, b) = (harness.enqueue(keyed("a")).await, harness.enqueue(keyed("b")).await);
        harness.lease(2).await;
        let large = "x".repeat(100_000);
        assert!(matches!(
            action(&harness, event("1", json!({"key": "a", "answer": large}))).await,
            TriggerAction::Completed { .. }
        ));
        let done = harness.job(&a.id).await;
        assert!(done.life.result.as_ref().unwrap().object.is_some());
        assert_eq!(
            harness.engine.take_result(&done).await.unwrap().unwrap(),
            Payload::json(format!("\"{large}\""))
        );
        assert!(matches!(
            action(&harness, event("2", json!({"key": "b", "failed": "no"}))).await,
            TriggerAction::Completed { .. }
        ));
        assert_eq!(ended(&harness.job(&b.id).await), Some(Outcome::Failed));
    }
}

#[tokio::test]
async fn a_reply_by_a_damaged_key_is_refused_and_sent_again() {
    let store = Arc::new(SqliteStore::open_temporary().unwrap());
    let mut harness = Harness::on(Arc::clone(&store) as _);
    with_trigger(&harness).await;
    let job = harness.enqueue(keyed("a")).await;
    assert_eq!(harness.lease(1).await.len(), 1);
    let change = |sum: i64| {
        let db = rusqlite::Connection::open(store.file()).unwrap();
        assert_eq!(db.execute("UPDATE keys SET sum = sum + ?1", [sum]).unwrap(), 1);
    };
    change(1);
    let replies = ["a", "b"].map(|key| event(key, json!({"key": key, "answer": 42})));
    let answers = ingest(&harness, &replies).await.answers;
    assert!(matches!(answers[0], Err(Error::Unreadable(_))), "{:?}", answers[0]);
    assert!(answers[1].is_ok(), "another reply is not affected: {:?}", answers[1]);
    assert_eq!(kept(&harness).await, 1, "the reply to the other job");
    change(-1);
    let [again, _] = replies;
    let completed = action(&harness, again).await;
    assert_eq!(completed, TriggerAction::Completed { job: job.id.clone() });
    assert_eq!(ended(&harness.job(&job.id).await), Some(Outcome::Succeeded));
}
