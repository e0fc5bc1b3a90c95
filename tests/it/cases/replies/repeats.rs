//! Repeated and late replies: each counts once, and for its own job only.

use serde_json::json;
use tidegate_core::{
    event::Event,
    job::{
        Outcome, State,
        type_config::{Start, TypeConfig},
    },
    target::{Push, TargetConfig},
    time::Seconds,
};
use tidegate_engine::{TickInput, events::ingest::TriggerAction};

use super::{action, event, ingest, kept, keyed, with_trigger};
use crate::cases::harness::{every_store_and_table as every_store, failed, report, work};

#[tokio::test]
async fn a_second_delivery_does_not_answer_the_next_job_under_the_key() {
    for mut harness in every_store() {
        with_trigger(&harness).await;
        let first = harness.enqueue(keyed("a")).await;
        harness.lease(1).await;
        let answer = event("1", json!({"key": "a"}));
        assert!(matches!(action(&harness, answer.clone()).await, TriggerAction::Completed { .. }));
        assert_eq!(
            action(&harness, answer.clone()).await,
            TriggerAction::AlreadyProcessed { job: first.id.clone() }
        );
        let other = event("other", json!({"key": "a"}));
        assert_eq!(
            action(&harness, other.clone()).await,
            TriggerAction::Late { job: first.id.clone() }
        );
        assert_eq!(kept(&harness).await, 0);
        // However often the key moves to another job, and whether or not the attempt runs by then.
        for n in 0..3 {
            let next = harness.enqueue(keyed("a")).await;
            for known in [&answer, &other] {
                assert_eq!(
                    action(&harness, known.clone()).await,
                    TriggerAction::AlreadyProcessed { job: next.id.clone() }
                );
            }
            harness.restart();
            assert_eq!(
                harness.lease(1).await.len(),
                1,
                "the next job under the key waits for an answer of its own"
            );
            for known in [&answer, &other] {
                assert_eq!(
                    action(&harness, known.clone()).await,
                    TriggerAction::AlreadyProcessed { job: next.id.clone() }
                );
            }
            assert!(matches!(
                action(&harness, event(&format!("own-{n}"), json!({"key": "a"}))).await,
                TriggerAction::Completed { .. }
            ));
        }
        assert_eq!(harness.job(&first.id).await.life.ended(), Some(Outcome::Succeeded));
    }
}

#[tokio::test]
async fn a_redelivered_reply_does_not_settle_the_next_job() {
    for mut harness in every_store() {
        with_trigger(&harness).await;
        harness
            .set_type(
                "work",
                TypeConfig { retention_seconds: Seconds::new(0), ..TypeConfig::default() },
            )
            .await;
        let first = harness.enqueue(keyed("a")).await;
        harness.lease(1).await;
        let (answer, other) = (event("1", json!({"key": "a"})), event("2", json!({"key": "a"})));
        assert!(matches!(action(&harness, answer.clone()).await, TriggerAction::Completed { .. }));
        harness.wait(299);
        harness.engine.sweep().await.unwrap();
        assert_eq!(
            action(&harness, answer.clone()).await,
            TriggerAction::AlreadyProcessed { job: first.id.clone() },
            "kept as long as an early answer is"
        );
        assert_eq!(action(&harness, other.clone()).await, TriggerAction::Late { job: first.id });
        harness.enqueue(keyed("a")).await;
        let running = harness.lease(1).await;
        for known in [answer, other] {
            assert_eq!(
                action(&harness, known).await,
                TriggerAction::AlreadyProcessed { job: running[0].id.clone() }
            );
        }
        assert!(matches!(harness.job(&running[0].id).await.life.state, State::Running(_)));
        let unkeyed = harness.enqueue(work()).await;
        let run = harness.lease(1).await;
        harness.succeed(&run).await;
        assert!(
            harness.engine.job(&unkeyed.id, None).await.is_err(),
            "one without a key goes at its end"
        );
    }
}

/// A reply to an ended attempt does not complete the same attempt of the next job.
#[tokio::test]
async fn a_late_reply_to_a_live_job_does_not_settle_the_next_one() {
    for mut harness in every_store() {
        with_trigger(&harness).await;
        let first = harness.enqueue(keyed("a")).await;
        let run = harness.lease(1).await;
        harness
            .tick(TickInput { reports: vec![report(&run[0], failed())], ..TickInput::default() })
            .await;
        harness.wait(7200);
        let again = harness.lease(1).await;
        let late = event("late", json!({"key": "a", "attempt": 1}));
        assert_eq!(
            action(&harness, late.clone()).await,
            TriggerAction::Late { job: first.id.clone() }
        );
        assert_eq!(
            action(&harness, late.clone()).await,
            TriggerAction::AlreadyProcessed { job: first.id }
        );
        assert_eq!(harness.succeed(&again).await.len(), 1, "its worker goes on");
        harness.enqueue(keyed("a")).await;
        let next = harness.lease(1).await;
        assert_eq!(
            action(&harness, late).await,
            TriggerAction::AlreadyProcessed { job: next[0].id.clone() }
        );
    }
}

#[tokio::test]
async fn a_late_reply_to_a_dispatched_job_leaves_the_next_one_alone() {
    for mut harness in every_store() {
        with_trigger(&harness).await;
        let target = Some(TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:1/"))));
        harness
            .set_type("work", TypeConfig { target, start: Start::Plain, ..TypeConfig::default() })
            .await;
        let first = harness.enqueue(keyed("a")).await;
        let run = harness.lease(1).await;
        harness
            .tick(TickInput { reports: vec![report(&run[0], failed())], ..TickInput::default() })
            .await;
        harness.wait(7200);
        let again = harness.lease(1).await;
        assert_eq!(again[0].life.attempt, 2);
        let late = event("late", json!({"key": "a", "attempt": 1}));
        assert_eq!(
            action(&harness, late.clone()).await,
            TriggerAction::Late { job: first.id.clone() }
        );
        assert_eq!(harness.succeed(&again).await.len(), 1, "its target goes on");
        harness.enqueue(keyed("a")).await;
        let next = harness.lease(1).await;
        assert_eq!(
            action(&harness, late).await,
            TriggerAction::AlreadyProcessed { job: next[0].id.clone() }
        );
    }
}

#[tokio::test]
async fn an_unmatched_reply_is_counted_after_its_retention() {
    for mut harness in every_store() {
        with_trigger(&harness).await;
        assert!(matches!(
            action(&harness, event("1", json!({"key": "never"}))).await,
            TriggerAction::Pending { .. }
        ));
        harness.wait(299);
        let heard = harness.engine.sweep_replies(None).await.unwrap();
        assert_eq!((heard.unmatched, heard.kept), (0, 1));
        harness.wait(2);
        let heard = harness.engine.sweep_replies(None).await.unwrap();
        assert_eq!((heard.unmatched, heard.kept), (1, 0));
        harness.enqueue(keyed("never")).await;
        assert_eq!(harness.lease(1).await.len(), 1);
    }
}

#[tokio::test]
async fn replies_to_a_job_that_an_earlier_one_ended_are_unmatched() {
    for mut harness in every_store() {
        with_trigger(&harness).await;
        for id in ["1", "2", "3"] {
            assert!(matches!(
                action(&harness, event(id, json!({"key": "a"}))).await,
                TriggerAction::Pending { .. }
            ));
        }
        harness.enqueue(keyed("a")).await;
        assert!(harness.lease(1).await.is_empty(), "the first of them ends it");
        assert_eq!(kept(&harness).await, 0);
        assert_eq!(harness.engine.sweep_replies(None).await.unwrap().unmatched, 2);
        assert_eq!(harness.engine.sweep_replies(None).await.unwrap().unmatched, 0, "once");
    }
}

#[tokio::test]
async fn many_replies_to_one_job_are_processed_in_turn() {
    for mut harness in every_store() {
        with_trigger(&harness).await;
        let job = harness.enqueue(keyed("a")).await;
        harness.lease(1).await;
        let events: Vec<Event> =
            (0..20).map(|n| event(&n.to_string(), json!({"key": "a", "answer": n}))).collect();
        let answers = ingest(&harness, &events).await.answers;
        let done: Vec<TriggerAction> =
            answers.into_iter().map(|answer| answer.unwrap().outcomes.remove(0).action).collect();
        assert_eq!(
            done.iter().filter(|action| matches!(action, TriggerAction::Completed { .. })).count(),
            1
        );
        assert_eq!(
            done.iter().filter(|action| matches!(action, TriggerAction::Late { .. })).count(),
            19
        );
        assert_eq!(harness.job(&job.id).await.life.history.len(), 1);
        // The number of replies that pass to the next job is bounded.
        let next = harness.enqueue(keyed("a")).await;
        assert_eq!(next.life.processed_replies.len(), 16);
        assert!(matches!(
            action(&harness, events[19].clone()).await,
            TriggerAction::AlreadyProcessed { .. }
        ));
    }
}
