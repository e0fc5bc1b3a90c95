//! Events enqueue jobs, once for each event and each trigger that matches.

use std::sync::Arc;

use serde_json::json;
use tidegate_core::{
    event::Event,
    job::{Origin, Payload, type_config::TypeConfig},
};
use tidegate_engine::{
    Error,
    events::ingest::{HOPS_HEADER, TriggerAction},
    memory::MemoryStore,
    testkit::{
        builders::name,
        faults::{Faults, FaultyStore},
    },
};

use super::{done, event, put};
use crate::cases::harness::{Harness, every_store_and_table as every_store};

#[tokio::test]
async fn an_event_delivered_twice_enqueues_once() {
    for mut harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        put(&harness, "orders", json!({"filter": {"type": "order"}, "enqueue": {"type": "work", "correlation_key": {"$expr": "data.id"}}}))
            .await;
        let order = event("1", json!({}));
        let first = done(&harness, &order).await;
        let [TriggerAction::Enqueued { job, .. }] = &first[..] else { panic!("{first:?}") };
        assert_eq!(
            done(&harness, &order).await,
            [TriggerAction::AlreadyEnqueued { job: job.clone() }]
        );
        // Twice in one batch, and again after the trigger has changed.
        put(
            &harness,
            "orders",
            json!({"filter": {"type": "order"}, "enqueue": {"type": "work", "priority": 7}}),
        )
        .await;
        for answer in harness.engine.ingest(&[order.clone(), order.clone()]).await.answers {
            assert_eq!(
                answer.unwrap().outcomes[0].action,
                TriggerAction::AlreadyEnqueued { job: job.clone() }
            );
        }
        harness.restart();
        assert_eq!(
            done(&harness, &order).await,
            [TriggerAction::AlreadyEnqueued { job: job.clone() }]
        );
        let stored = harness.job(job).await;
        assert_eq!(
            (stored.spec.correlation_key.as_deref(), stored.spec.priority),
            (Some("1"), 100)
        );
        assert_eq!(harness.engine.data(&stored).await.unwrap(), Payload::json(r#"{"id":"1"}"#));
        let origin = Origin::trigger(name("orders"), &order.source, &order.id);
        assert_eq!(stored.spec.origin.as_deref(), Some(&origin));
        assert_eq!(harness.lease(10).await.len(), 1);
    }
}

#[tokio::test]
async fn every_matching_trigger_applies_and_no_match_is_no_error() {
    for harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        assert_eq!(done(&harness, &event("0", json!({}))).await, []);
        put(&harness, "b", json!({"enqueue": {"type": "work"}})).await;
        put(&harness, "a", json!({"filter": {"data": {"/id": "1"}}, "enqueue": {"type": "work"}}))
            .await;
        put(&harness, "c", json!({"filter": {"type": "other"}, "enqueue": {"type": "work"}})).await;
        let answer =
            harness.engine.ingest(&[event("1", json!({}))]).await.answers.remove(0).unwrap();
        assert_eq!(
            answer.outcomes.iter().map(|applied| applied.trigger.as_str()).collect::<Vec<_>>(),
            ["a", "b"]
        );
        assert_eq!(done(&harness, &event("2", json!({}))).await.len(), 1);
        harness.engine.delete_trigger(&name("b"), None).await.unwrap();
        assert_eq!(done(&harness, &event("3", json!({}))).await, []);
    }
}

#[tokio::test]
async fn a_rule_that_would_go_round_for_ever_is_stopped() {
    for mut harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        put(&harness, "round", json!({"enqueue": {"type": "work"}})).await;
        let mut hops = 0;
        for turn in 0..20 {
            let action = done(&harness, &event(&turn.to_string(), json!({"tidegatehops": hops})))
                .await
                .remove(0);
            match action {
                TriggerAction::Enqueued { job, .. } => {
                    // The worker passes the header on, as the extension of the event that it sends.
                    hops =
                        harness.job(&job).await.spec.headers[HOPS_HEADER].parse::<i32>().unwrap();
                }
                TriggerAction::Dropped { reason } => {
                    assert_eq!((turn, hops), (8, 8));
                    assert!(reason.contains("8 triggers"), "{reason}");
                    assert_eq!(
                        harness.engine.dead_letters(None, None, 100).await.unwrap().0.len(),
                        0
                    );
                    break;
                }
                other => panic!("{other:?}"),
            }
            assert!(turn < 10, "it goes round");
        }
        assert_eq!(harness.lease(100).await.len(), 8);
    }
}

#[tokio::test]
async fn an_oversized_event_is_refused_and_the_others_accepted() {
    for harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        put(&harness, "all", json!({"enqueue": {"type": "work"}})).await;
        let large = event("large", json!({"data": "x".repeat(300_000)}));
        let mut answers = harness
            .engine
            .ingest(&[event("1", json!({})), large, event("2", json!({}))])
            .await
            .answers;
        assert!(matches!(
            answers.remove(1),
            Err(Error::TooLarge { field: "event", limit: 262_144 })
        ));
        assert!(answers.iter().all(|answer| matches!(
            answer.as_ref().unwrap().outcomes[0].action,
            TriggerAction::Enqueued { .. }
        )));
    }
}

/// The memory of this process, in bytes. The process runs one test.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// A million events that match no trigger take no space: they are neither stored nor cached.
#[tokio::test]
async fn a_million_events_that_match_nothing_leave_nothing_behind() {
    let mut rounds = 1000;
    for harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        put(&harness, "other", json!({"filter": {"type": "other", "data": {"/id": "none"}}, "enqueue": {"type": "work"}})).await;
        let mut batch: Vec<Event> = (0..1000).map(|n| event(&n.to_string(), json!({}))).collect();
        let mut before = 0;
        for round in 0..rounds {
            for (n, event) in batch.iter_mut().enumerate() {
                event.id = format!("{round}-{n}");
            }
            assert!(
                harness.engine.ingest(&batch).await.answers.iter().all(|answer| answer
                    .as_ref()
                    .unwrap()
                    .outcomes
                    .is_empty())
            );
            if round == 10 {
                before = resident();
            }
        }
        let more = resident().saturating_sub(before) >> 20;
        assert!(more < 8, "{rounds} thousand events left {more} MiB behind");
        // They need no store, so one harness is enough.
        rounds = 20;
        assert!(
            harness.store.depth(None).await.unwrap().counts.iter().all(|depth| depth.jobs == 0)
        );
        assert_eq!(harness.engine.dead_letters(None, None, 100).await.unwrap().0.len(), 0);
    }
}

/// An event that is sent until the store accepts it enqueues one job, whichever answers are lost.
#[tokio::test]
async fn an_event_that_is_sent_until_it_is_taken_makes_one_job() {
    for seed in 0..40 {
        let inner = Arc::new(MemoryStore::new());
        let harness = Harness::on(inner.clone());
        harness.set_type("work", TypeConfig::default()).await;
        put(
            &harness,
            "orders",
            json!({"enqueue": {"type": "work", "correlation_key": {"$expr": "data.id"}}}),
        )
        .await;
        let faulty = Arc::new(FaultyStore::new(inner, seed));
        faulty.set_faults(Faults {
            cut: 0.2,
            lose_answer: 0.2,
            unavailable: 0.1,
            throttled: 0.1,
            reads: 0.1,
        });
        let troubled = Harness::on(faulty);
        let mut open: Vec<Event> = (0..5).map(|n| event(&n.to_string(), json!({}))).collect();
        let mut tries = 0;
        while !open.is_empty() {
            tries += 1;
            assert!(tries < 500, "seed {seed}: it is never taken");
            let answers = troubled.engine.ingest(&open).await.answers;
            open = open
                .into_iter()
                .zip(answers)
                .filter_map(|(event, answer)| answer.is_err().then_some(event))
                .collect();
        }
        let jobs: u64 =
            harness.store.depth(None).await.unwrap().counts.iter().map(|depth| depth.jobs).sum();
        assert_eq!(jobs, 5, "seed {seed}");
        assert_eq!(
            harness.engine.dead_letters(None, None, 100).await.unwrap().0.len(),
            0,
            "seed {seed}"
        );
    }
}
