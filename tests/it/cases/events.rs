//! Events enqueue jobs, once for each event; an event that cannot be mapped becomes a dead letter.

use std::sync::Arc;
use tidegate_core::error_code::ErrorCode;

use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_core::{
    event::{Event, read},
    job::{Encoding, Payload, type_config::TypeConfig},
    port::{
        Write,
        job_store::{Record, RecordKind},
    },
};
use tidegate_engine::{
    Error,
    events::{
        dead_letters::Replayed,
        ingest::{HOPS_HEADER, TriggerAction},
    },
    memory::MemoryStore,
    testkit::{
        builders::name,
        faults::{Faults, FaultyStore},
    },
};

use super::harness::{Harness, every_store_and_table as every_store};

#[allow(clippy::needless_pass_by_value, reason = "the value is written where it is used")]
fn event(id: &str, more: Value) -> Event {
    let mut event = json!({"specversion": "1.0", "id": id, "source": "/shop", "type": "order", "data": {"id": id}});
    event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    read::structured(&Bytes::from(event.to_string())).unwrap()
}

async fn put(harness: &Harness, trigger: &str, rule: Value) {
    harness
        .engine
        .put_trigger(&name(trigger), serde_json::from_value(rule).unwrap(), None)
        .await
        .unwrap();
}

async fn done(harness: &Harness, event: &Event) -> Vec<TriggerAction> {
    let answer =
        harness.engine.ingest(std::slice::from_ref(event)).await.answers.remove(0).unwrap();
    answer.outcomes.into_iter().map(|applied| applied.action).collect()
}

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
async fn an_unmappable_event_is_a_dead_letter_until_its_rule_is_fixed() {
    for harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        let rule =
            |priority: &str| json!({"enqueue": {"type": "work", "priority": {"$expr": priority}}});
        put(&harness, "orders", rule("data.id")).await;
        let order = event("x", json!({"region": "east"}));
        for _ in 0..2 {
            let dead = done(&harness, &order).await;
            let [TriggerAction::DeadLettered { reason, .. }] = &dead[..] else {
                panic!("{dead:?}")
            };
            assert!(reason.starts_with("priority: invalid type: string"), "{reason}");
        }
        let (letters, next) = harness.engine.dead_letters(None, None, 100).await.unwrap();
        assert_eq!((letters.len(), next), (1, None), "one letter, however often it came");
        let letter = &letters[0];
        assert_eq!(
            (letter.trigger.as_ref().unwrap().as_str(), letter.event().unwrap()),
            ("orders", order.clone())
        );
        assert_eq!(
            harness.engine.dead_letters(Some(&name("other")), None, 100).await.unwrap().0.len(),
            0
        );
        // Nothing is fixed yet.
        let (again, _) = harness.engine.replay_dead_letter(&letter.id).await.unwrap();
        assert!(
            matches!(again, Replayed::Applied(TriggerAction::DeadLettered { .. })),
            "{again:?}"
        );
        put(&harness, "orders", rule("length(data.id)")).await;
        let (replayed, ingestion) = harness.engine.replay_dead_letter(&letter.id).await.unwrap();
        let Replayed::Applied(TriggerAction::Enqueued { job, .. }) = replayed else {
            panic!("{replayed:?}")
        };
        assert_eq!(ingestion.enqueued.len(), 1);
        let gone = harness.engine.replay_dead_letter(&letter.id).await.unwrap_err();
        assert!(
            matches!(gone, Error::NotFound { code: ErrorCode::DeadLetterNotFound, .. }),
            "{gone:?}"
        );
        assert_eq!(
            done(&harness, &order).await,
            [TriggerAction::AlreadyEnqueued { job }],
            "the same id as without the detour"
        );
    }
}

/// With data of every kind, also data that JSON cannot express.
#[tokio::test]
async fn a_dead_letter_is_replayed_as_what_it_was() {
    let bin = |inner: &[u8]| [&[0xc4, inner.len() as u8], inner].concat();
    let mut deep = [0x91u8; 64].to_vec();
    deep.extend(bin(b"x"));
    let datas = [
        bin(b"{}"),
        bin(b"no JSON"),
        bin(&[0xc4, 1, 7]),
        vec![0x92, 1, 0xc4, 1, 7],
        vec![0xa1, b'x'],
        deep,
    ];
    for harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        put(&harness, "orders", json!({"enqueue": {"type": "missing"}})).await;
        let mut events = Vec::new();
        for (n, data) in datas.iter().enumerate() {
            for media in [
                None,
                Some("application/json"),
                Some("application/msgpack"),
                Some("text/plain"),
                Some("image/png"),
            ] {
                let data = Payload { encoding: Encoding::MessagePack, bytes: data.clone().into() };
                let id = format!("{n}-{}", media.unwrap_or("none").replace('/', "-"));
                events.push(Event {
                    data: Some(data),
                    data_content_type: media.map(str::to_owned),
                    ..event(&id, json!({}))
                });
            }
        }
        for answer in harness.engine.ingest(&events).await.answers {
            assert!(matches!(
                answer.unwrap().outcomes[0].action,
                TriggerAction::DeadLettered { .. }
            ));
        }
        put(&harness, "orders", json!({"enqueue": {"type": "work"}})).await;
        let (letters, _) = harness.engine.dead_letters(None, None, 100).await.unwrap();
        assert_eq!(letters.len(), events.len());
        for letter in letters {
            let event = letter.event().unwrap();
            assert!(events.contains(&event), "{event:?}");
            let (replayed, _) = harness.engine.replay_dead_letter(&letter.id).await.unwrap();
            let Replayed::Applied(TriggerAction::Enqueued { job, .. }) = replayed else {
                panic!("{replayed:?}")
            };
            assert_eq!(
                Some(harness.engine.data(&harness.job(&job).await).await.unwrap()),
                event.data
            );
        }
    }
}

#[tokio::test]
async fn a_dead_letter_that_cannot_be_read_keeps_none_of_the_others() {
    for harness in every_store() {
        put(&harness, "orders", json!({"enqueue": {"type": "missing"}})).await;
        done(&harness, &event("1", json!({}))).await;
        let damaged = Record {
            kind: RecordKind::DeadLetter,
            name: "damaged".into(),
            until: harness.now(),
            bytes: b"{".to_vec(),
        };
        harness.store.commit(vec![vec![Write::PutRecord(damaged)]]).await.unwrap();
        assert_eq!(harness.engine.dead_letters(None, None, 100).await.unwrap().0.len(), 1);
        assert!(matches!(harness.engine.dead_letter("damaged").await, Err(Error::Internal(_))));
        harness.engine.delete_dead_letter("damaged").await.unwrap();
        assert!(matches!(harness.engine.dead_letter("damaged").await, Err(Error::NotFound { .. })));
    }
}

#[tokio::test]
async fn a_job_that_is_refused_is_a_dead_letter_with_the_reason() {
    for harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        put(&harness, "a-unknown", json!({"enqueue": {"type": "missing"}})).await;
        put(
            &harness,
            "b-bound",
            json!({"enqueue": {"type": "work", "max_attempts": {"$expr": "`0`"}}}),
        )
        .await;
        put(&harness, "c-clash", json!({"enqueue": {"type": "work", "correlation_key": "one"}}))
            .await;
        let first = done(&harness, &event("1", json!({}))).await;
        assert!(
            matches!(
                &first[0],
                TriggerAction::DeadLettered { reason, .. }
                    if reason == "there is no job type missing"
            ),
            "{first:?}"
        );
        assert!(
            matches!(
                &first[1],
                TriggerAction::DeadLettered { reason, .. }
                    if reason == "max_attempts: must be 1 to 65535"
            ),
            "{first:?}"
        );
        assert!(matches!(&first[2], TriggerAction::Enqueued { .. }));
        let second = done(&harness, &event("2", json!({}))).await;
        assert!(
            matches!(
                &second[2],
                TriggerAction::DeadLettered { reason, .. }
                    if reason.contains("has this correlation key")
            ),
            "{second:?}"
        );
        // A trigger that no longer matches the event leaves nothing behind.
        put(
            &harness,
            "a-unknown",
            json!({"filter": {"type": "none"}, "enqueue": {"type": "missing"}}),
        )
        .await;
        let (letters, _) =
            harness.engine.dead_letters(Some(&name("a-unknown")), None, 100).await.unwrap();
        assert_eq!(letters.len(), 2);
        let (passed, _) = harness.engine.replay_dead_letter(&letters[0].id).await.unwrap();
        assert_eq!(passed, Replayed::Unmatched { action: "unmatched" });
        harness.engine.delete_dead_letter(&letters[1].id).await.unwrap();
        assert_eq!(
            harness.engine.dead_letters(Some(&name("a-unknown")), None, 100).await.unwrap().0.len(),
            0
        );
        harness.engine.delete_trigger(&name("b-bound"), None).await.unwrap();
        let (letters, _) =
            harness.engine.dead_letters(Some(&name("b-bound")), None, 100).await.unwrap();
        let gone = harness.engine.replay_dead_letter(&letters[0].id).await.unwrap_err();
        assert!(
            matches!(gone, Error::NotFound { code: ErrorCode::TriggerNotFound, .. }),
            "{gone:?}"
        );
    }
}

#[tokio::test]
async fn a_flood_of_dead_letters_evicts_the_oldest() {
    for mut harness in every_store() {
        harness.rules(|rules| rules.events.max_dead_letters = 20);
        put(&harness, "broken", json!({"enqueue": {"type": "missing"}})).await;
        for round in 0..5 {
            harness.wait(1);
            let events: Vec<Event> =
                (0..15).map(|n| event(&format!("{round}-{n}"), json!({}))).collect();
            for answer in harness.engine.ingest(&events).await.answers {
                assert!(matches!(
                    answer.unwrap().outcomes[0].action,
                    TriggerAction::DeadLettered { .. }
                ));
            }
            let (letters, _) = harness.engine.dead_letters(None, None, 100).await.unwrap();
            assert!(letters.len() <= 20, "{}", letters.len());
            let latest = letters.iter().filter(|letter| letter.failed_at == harness.now()).count();
            assert_eq!(latest, 15, "those that just came are there");
        }
        let swept = harness.engine.sweep_dead().await.unwrap();
        assert_eq!((swept.over + swept.left, swept.expired), (75, 0));
        harness.wait(15 * 86_400);
        let swept = harness.engine.sweep_dead().await.unwrap();
        assert_eq!((swept.left, swept.over), (0, 0));
        assert!(swept.expired > 0);
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
        assert!(harness.store.depth().await.unwrap().iter().all(|depth| depth.jobs == 0));
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
        let jobs: u64 = harness.store.depth().await.unwrap().iter().map(|depth| depth.jobs).sum();
        assert_eq!(jobs, 5, "seed {seed}");
        assert_eq!(
            harness.engine.dead_letters(None, None, 100).await.unwrap().0.len(),
            0,
            "seed {seed}"
        );
    }
}
