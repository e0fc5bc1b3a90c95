//! What a store keeps comes back as it was: in MessagePack without field names, where a skipped
//! field would shift the rest.

use std::sync::Arc;

use proptest::prelude::*;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use super::spec;
use crate::{
    job::{
        Encoding, Lifecycle, Spec, State, Token, Value,
        lifecycle::{
            AttemptRecord, Failure, Outcome, Progress, Reason, ReplyId, ResultBody, Revision,
            Running, Version, Waiting,
        },
        retry::{Backoff, Jitter, Retry},
        spec::KeepResult,
    },
    queue::{
        Grant, Ledger, Rule,
        ledger::{BatchId, BatchRef, Bits, Bucket, GrantBatch, KeptPolicyState, StateLocation},
        order::Position,
    },
    time::{Seconds, Timestamp},
};

fn comes_back<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
    let packed = rmp_serde::to_vec(&(value, "end")).unwrap();
    let (back, end): (T, String) = rmp_serde::from_slice(&packed).unwrap();
    assert_eq!((&back, end.as_str()), (value, "end"));
}

fn full_spec() -> Spec {
    Spec {
        priority: -5,
        weight: u32::MAX,
        critical: true,
        expires_at: Some(Timestamp::MAX),
        deadline_at: Some(Timestamp::from_millis(1)),
        windows: serde_json::from_value(json!([
            {"from": "22:00", "to": "06:30:15", "days": ["fri", "sat"], "tz": "Europe/Berlin"},
            {"from": "08:00", "to": "09:00"},
        ]))
        .unwrap(),
        retry: Retry::Exponential(Backoff {
            base_seconds: Seconds::from_millis(1500),
            max_seconds: Seconds::new(60),
            jitter: Jitter::None,
        }),
        correlation_key: Some("key".into()),
        unique: Some(
            serde_json::from_value(
                json!({"key": "k", "while": "scheduled", "period_seconds": 1.5}),
            )
            .unwrap(),
        ),
        attributes: [
            ("region".to_owned(), Value::Text("east".into())),
            ("n".to_owned(), Value::Number(3.into())),
            ("half".to_owned(), serde_json::from_value(json!(0.5)).unwrap()),
        ]
        .into(),
        keep_result: KeepResult::Once,
        callback_url: "https://example.org/done?x=1".parse().ok(),
        headers: [("x-key".to_owned(), "v".to_owned())].into(),
        replay_of: "old.1".parse().ok(),
        partition: "tenant".into(),
        request_digest: [7; 16],
        ..spec()
    }
}

fn life(state: State) -> Lifecycle {
    let error = Failure {
        reason: Reason::NotDelivered,
        message: None,
        details: Some("{}".into()),
        status: Some(503),
    };
    let at = Timestamp::from_millis(17);
    Lifecycle {
        revision: Revision(9),
        version: Version(u64::MAX),
        state,
        attempt: 3,
        started_at: Some(at),
        result: Some(ResultBody {
            encoding: Encoding::MessagePack,
            bytes: bytes::Bytes::from_static(&[0xc4, 1, 0]),
            object: Some(("k".into(), 9)),
        }),
        error: Some(error.clone()),
        history: vec![AttemptRecord {
            attempt: 1,
            started_at: at,
            ended_at: at,
            outcome: Outcome::Failed,
            error: Some(error),
            retry_at: None,
            token: Token(7),
            reply: Some(ReplyId(u128::MAX)),
        }],
        deferral_reason: Some("later".into()),
        processed_replies: vec![ReplyId(0), ReplyId(u128::MAX)],
    }
}

#[test]
fn a_job_comes_back() {
    comes_back(&spec());
    comes_back(&full_spec());
    comes_back(&Spec {
        keep_result: KeepResult::For(Seconds::from_millis(1)),
        unique: None,
        ..full_spec()
    });
    let plugin =
        Retry::Plugin("by-error".parse().unwrap(), Arc::new(json!({"b": [1, null], "a": 0.5})));
    comes_back(&Spec { retry: plugin.clone(), ..spec() });
    comes_back(&Spec { retry: plugin, ..full_spec() });
    comes_back(&Lifecycle::new(Timestamp::EPOCH, Waiting::Due));
    comes_back(&life(State::Scheduled {
        run_at: Timestamp::from_millis(-1),
        waiting: Waiting::Retry,
    }));
    let due = Timestamp::from_millis(5);
    comes_back(&life(State::Scheduled {
        run_at: Timestamp::MAX,
        waiting: Waiting::Window { due },
    }));
    comes_back(&life(State::Ended { at: Timestamp::EPOCH, outcome: Outcome::Dropped }));
    comes_back(&life(State::Running(Running {
        token: Token(u128::MAX - 1),
        started_at: Timestamp::EPOCH,
        lease_until: Timestamp::EPOCH,
        timeout_at: Timestamp::EPOCH,
        worker: None,
        granted: true,
        cancel: true,
        progress: Some(Progress { percent: 0.5, note: None }),
    })));
}

/// What the first release stored has no fields for what plugins brought.
#[test]
fn what_was_stored_before_there_were_plugins_is_read() {
    fn read<T: DeserializeOwned>(old: &impl Serialize) -> T {
        let packed = rmp_serde::to_vec(&(old, "end")).unwrap();
        let (read, end): (T, String) = rmp_serde::from_slice(&packed).unwrap();
        assert_eq!(end, "end");
        read
    }
    let failure: Failure = read(&("timeout", "slow", "{}"));
    assert_eq!((failure.reason, failure.status), (Reason::Timeout, None));
    let batch: GrantBatch = read(&(7, 8, [("j", 1, "mail", 100, 1, false, json!({}))]));
    assert_eq!(
        (batch.id, batch.state, batch.grants[0].granted_at),
        (BatchId(7), None, Timestamp::EPOCH)
    );
    let nothing = Option::<u8>::None;
    let ledger: Ledger = read(&(
        3,
        4,
        5,
        Timestamp::EPOCH,
        nothing,
        nothing,
        nothing,
        nothing,
        json!({}),
        [0u8; 0],
        json!({}),
    ));
    assert_eq!((ledger.version, ledger.policy), (3, None));
    let life: Lifecycle = read(&(
        1,
        2,
        State::Ended { at: Timestamp::EPOCH, outcome: Outcome::Failed },
        1,
        nothing,
        nothing,
        nothing,
        [0u8; 0],
    ));
    assert_eq!(
        (life.version, life.deferral_reason, life.processed_replies),
        (Version(2), None, vec![])
    );
    let retry: Retry = read(&("exponential", (2000, 60_000, "none")));
    let backoff = Backoff {
        base_seconds: Seconds::new(2),
        max_seconds: Seconds::new(60),
        jitter: Jitter::None,
    };
    assert_eq!(retry, Retry::Exponential(backoff));
}

#[test]
fn a_head_and_its_batches_come_back() {
    let mut released = Bits::default();
    released.set(9);
    let batch = BatchRef {
        id: BatchId(4),
        count: 10,
        released,
        check_at: Timestamp::from_millis(5),
        sent: false,
        sends: 1,
    };
    let look = Position {
        partition: String::new(),
        priority: -1,
        run_at: Timestamp::EPOCH,
        id: "a".parse().unwrap(),
    };
    let bucket = Bucket { tokens: 0.1 + 0.2, at: Timestamp::from_millis(3) };
    let rules = [
        Rule::Paused,
        Rule::Concurrency,
        Rule::TypeConcurrency("mail".parse().unwrap()),
        Rule::Constraint("c".into(), None),
        Rule::Constraint("c".into(), Some("east".into())),
        Rule::Throttler("t".parse().unwrap()),
    ];
    comes_back(&Ledger::default());
    comes_back(&Ledger {
        version: 3,
        nonce: u64::MAX,
        settling_until: None,
        scan_cursor: Some(look),
        last_partition: Some("t".into()),
        buckets: [(("c".to_owned(), "east".to_owned()), bucket)].into(),
        batches: vec![batch],
        held: rules.map(|rule| (rule, Timestamp::EPOCH)).into(),
        policy: Some(KeptPolicyState {
            plugin: "t".parse().unwrap(),
            state_version: 3,
            state: StateLocation::Batch(BatchId(9)),
        }),
        ..Ledger::default()
    });
    let grant = Grant {
        job: "j".parse().unwrap(),
        version: Version(2),
        job_type: "mail".parse().unwrap(),
        priority: i32::MIN,
        weight: 0,
        critical: true,
        attributes: full_spec().attributes,
        granted_at: Timestamp::from_millis(8),
    };
    comes_back(&GrantBatch {
        id: BatchId(1),
        ledger_version: 2,
        grants: vec![grant],
        state: Some([("k".to_owned(), "v".to_owned())].into()),
    });
}

proptest! {
    #[test]
    fn bits_are_a_set(numbers in prop::collection::vec(0usize..200, 0..50)) {
        let mut bits = Bits::default();
        let mut set = std::collections::BTreeSet::new();
        for n in numbers {
            prop_assert_eq!(bits.set(n), set.insert(n));
        }
        prop_assert_eq!(bits.count(), set.len());
        prop_assert!((0..300).all(|n| bits.has(n) == set.contains(&n)));
        comes_back(&bits);
    }

    #[test]
    fn values_that_are_equal_have_one_text(whole in -1_000_000i64..1_000_000) {
        let number = |value: serde_json::Value| serde_json::from_value::<Value>(value).unwrap();
        prop_assert_eq!(number(json!(whole)).text(), number(json!(whole as f64)).text());
        prop_assert_ne!(number(json!(whole as f64 + 0.5)).text(), number(json!(whole)).text());
    }
}
