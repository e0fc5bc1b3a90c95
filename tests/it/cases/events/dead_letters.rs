//! An event that cannot be mapped becomes a dead letter, which can be replayed.

use serde_json::json;
use tidegate_core::{
    error_code::ErrorCode,
    event::Event,
    job::{Encoding, Payload, type_config::TypeConfig},
    port::{
        Write,
        job_store::{Record, RecordKind},
    },
};
use tidegate_engine::{
    Error,
    events::{dead_letters::Replayed, ingest::TriggerAction},
    testkit::builders::name,
};

use super::{done, event, put};
use crate::cases::harness::every_store_and_table as every_store;

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
