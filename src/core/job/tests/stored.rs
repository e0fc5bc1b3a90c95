//! What a store keeps comes back as it was: in MessagePack without field names, where a skipped
//! field would shift the rest.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use proptest::prelude::*;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use super::spec;
use crate::{
    job::{
        Encoding, Lifecycle, Spec, State, Token, Value,
        lifecycle::{
            AttemptRecord, Failure, HandBack, HandBacks, Outcome, Progress, Reason, ReplyId,
            ResultBody, Revision, Running, Version, Waiting,
        },
        origin::{Origin, TriggerOrigin},
        retry::{Backoff, Jitter, Retry},
        spec::{KeepResult, Original},
        unique::MergedRequest,
    },
    port::policy::StateValue,
    queue::{
        Grant, Ledger, Rule,
        ledger::{BatchId, BatchRef, Bits, GrantBatch, KeptPolicyState, StateLocation},
        order::Position,
        rate::{Bucket, RecentStarts},
    },
    stored::UnknownFields,
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

/// [`full_spec`] of a job that a retry strategy has changed.
fn changed_spec() -> Spec {
    let original = Original {
        priority: 7,
        attributes: [("region".to_owned(), Value::Text("west".into()))].into(),
        data: Some("[1]".into()),
        weight: None,
        max_attempts: None,
        timeout: None,
        data_changed: false,
        unknown: UnknownFields::default(),
    };
    Spec { original: Some(Box::new(original)), ..full_spec() }
}

/// [`full_spec`] of a job in which a retry strategy has changed everything that it may.
fn rewritten_spec() -> Spec {
    let mut spec = changed_spec();
    if let Some(original) = &mut spec.original {
        original.weight = Some(2);
        original.max_attempts = Some(3);
        original.timeout = Some(Seconds::from_millis(4));
    }
    spec
}

/// [`full_spec`] of a job whose data a retry strategy has changed.
fn changed_data_spec() -> Spec {
    let mut spec = rewritten_spec();
    if let Some(original) = &mut spec.original {
        original.data_changed = true;
    }
    spec
}

/// [`full_spec`] of a job whose next attempt goes to another target.
fn redirected_spec() -> Spec {
    Spec { retry_target: Some("eu".into()), ..full_spec() }
}

/// [`full_spec`] of a job with a producer.
fn owned_spec() -> Spec {
    Spec { enqueued_by: Some("shop".into()), ..full_spec() }
}

/// [`full_spec`] of a job that took two other requests.
fn merged_spec() -> Spec {
    let request = |key| MergedRequest { key, digest: u64::MAX };
    Spec { merged: vec![request(1), request(u64::MAX)], ..full_spec() }
}

/// [`full_spec`] of a job that a schedule made.
fn scheduled_spec() -> Spec {
    let origin = Origin::schedule("nightly".parse().unwrap(), Some(Timestamp::from_millis(17)));
    Spec { origin: Some(Box::new(origin)), ..full_spec() }
}

/// [`full_spec`] of a job that a trigger made of an event with a long source.
fn triggered_spec() -> Spec {
    let origin = Origin::Trigger(TriggerOrigin {
        trigger: "orders".parse().unwrap(),
        source: None,
        event: Some("e-1".into()),
        unknown: UnknownFields::default(),
    });
    Spec { origin: Some(Box::new(origin)), ..full_spec() }
}

/// A job that was replayed.
fn replayed_life() -> Lifecycle {
    let ended = State::Ended { at: Timestamp::EPOCH, outcome: Outcome::Failed };
    Lifecycle { replayed_by: "again".parse().ok(), ..life(ended) }
}

/// A job whose target asked for a wait.
fn life_after_busy() -> Lifecycle {
    let mut life = life(window());
    life.error.as_mut().unwrap().retry_after = Some(Seconds::new(9));
    life
}

/// A job whose worker handed it back.
fn life_after_hand_back() -> Lifecycle {
    let mut life = life(window());
    let backs = HandBacks { total: 2, in_a_row: 1, not_begun: 1, ..HandBacks::default() };
    life.hand_backs = Some(backs);
    let message = Some("no capacity".into());
    let until = Some(Timestamp::from_millis(18));
    life.history[0].hand_back =
        Some(HandBack { until, message, unknown: UnknownFields::default() });
    life
}

/// A job whose running attempt has stored a checkpoint.
fn life_with_checkpoint() -> Lifecycle {
    let mut life = life(State::Running(Running { has_advanced: true, ..running() }));
    life.checkpoint = life.result.take();
    life
}

fn life(state: State) -> Lifecycle {
    let error = Failure {
        reason: Reason::NotDelivered,
        message: None,
        details: Some("{}".into()),
        status: Some(503),
        retry_after: None,
        unknown: UnknownFields::default(),
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
            token: Token::new(7),
            reply: Some(ReplyId(u128::MAX)),
            hand_back: None,
            worker: None,
            unknown: UnknownFields::default(),
        }],
        deferral_reason: Some("later".into()),
        processed_replies: vec![ReplyId(0), ReplyId(u128::MAX)],
        due_at: None,
        hand_backs: None,
        checkpoint: None,
        replayed_by: None,
        first_due_at: None,
        unknown: UnknownFields::default(),
    }
}

/// What a newer release could have added.
fn unknown() -> UnknownFields {
    UnknownFields::new([rmpv::Value::Nil, rmpv::Value::Array(vec![7.into(), "seven".into()])])
}

fn window() -> State {
    let due = Timestamp::from_millis(5);
    State::Scheduled { run_at: Timestamp::MAX, waiting: Waiting::Window { due } }
}

fn running() -> Running {
    Running {
        token: Token::new(u128::MAX - 1),
        started_at: Timestamp::EPOCH,
        lease_until: Timestamp::EPOCH,
        timeout_at: Timestamp::EPOCH,
        worker: None,
        granted: true,
        cancel: true,
        progress: Some(Progress { percent: 0.5, note: None }),
        has_advanced: false,
        unknown: UnknownFields::default(),
    }
}

fn full_ledger() -> Ledger {
    let mut released = Bits::default();
    released.set(9);
    let batch = BatchRef {
        id: BatchId(4),
        count: 10,
        released,
        check_at: Timestamp::from_millis(5),
        sent: false,
        sends: 1,
        unknown: UnknownFields::default(),
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
    Ledger {
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
            unknown: UnknownFields::default(),
        }),
        ..Ledger::default()
    }
}

/// [`full_ledger`] with a throttler's state of two pages.
fn paged_ledger() -> Ledger {
    let mut ledger = full_ledger();
    if let Some(policy) = &mut ledger.policy {
        policy.state = StateLocation::Pages(vec![BatchId(9), BatchId(u64::MAX)]);
    }
    ledger
}

/// A page of a throttler's state.
fn state_page() -> GrantBatch {
    let ends = StateValue { text: "w".into(), expires_at: Some(Timestamp::from_millis(5)) };
    let state = [("k".to_owned(), "v".into()), ("l".to_owned(), ends)];
    let state = Some(Arc::new(state.into()));
    GrantBatch { grants: Vec::new(), state, ..full_batch() }
}

fn ledger_with_starts() -> Ledger {
    let key = ("c".to_owned(), "east".to_owned());
    let starts = RecentStarts::first(Timestamp::from_millis(1_700_000_000_000));
    Ledger { starts: [(key, starts)].into(), ..Ledger::default() }
}

fn full_batch() -> GrantBatch {
    let grant = Grant {
        waits_until: None,
        job: "j".parse().unwrap(),
        version: Version(2),
        job_type: "mail".parse().unwrap(),
        priority: i32::MIN,
        weight: 0,
        critical: true,
        attributes: full_spec().attributes,
        granted_at: Timestamp::from_millis(8),
        unknown: UnknownFields::default(),
    };
    GrantBatch {
        id: BatchId(1),
        ledger_version: 2,
        grants: vec![grant],
        state: Some(Arc::new([("k".to_owned(), "v".into())].into())),
        unknown: UnknownFields::default(),
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
    comes_back(&life(window()));
    comes_back(&life(State::Ended { at: Timestamp::EPOCH, outcome: Outcome::Dropped }));
    comes_back(&life(State::Running(running())));
    let due_at = Some(Timestamp::from_millis(7));
    comes_back(&Lifecycle { due_at, ..life(State::Running(running())) });
    comes_back(&Lifecycle { first_due_at: due_at, ..life(State::Running(running())) });
}

#[test]
fn a_ledger_and_its_batches_come_back() {
    comes_back(&Ledger::default());
    comes_back(&full_ledger());
    comes_back(&ledger_with_starts());
    comes_back(&full_batch());
    comes_back(&paged_ledger());
    comes_back(&state_page());
}

#[test]
fn the_fields_of_a_newer_release_come_back_on_every_level() {
    comes_back(&Spec { unknown: unknown(), ..full_spec() });
    for mut spec in [scheduled_spec(), triggered_spec()] {
        match spec.origin.as_deref_mut() {
            Some(Origin::Schedule(origin)) => origin.unknown = unknown(),
            Some(Origin::Trigger(origin)) => origin.unknown = unknown(),
            None => unreachable!("both have one"),
        }
        comes_back(&spec);
    }
    let mut life = life(State::Running(Running { unknown: unknown(), ..running() }));
    life.unknown = unknown();
    life.history[0].unknown = unknown();
    life.error.as_mut().unwrap().unknown = unknown();
    comes_back(&life);
    let mut life = life_after_hand_back();
    life.hand_backs.as_mut().unwrap().unknown = unknown();
    life.history[0].hand_back.as_mut().unwrap().unknown = unknown();
    comes_back(&life);
    let mut ledger = Ledger { unknown: unknown(), ..full_ledger() };
    ledger.batches[0].unknown = unknown();
    ledger.policy.as_mut().unwrap().unknown = unknown();
    ledger.starts = ledger_with_starts().starts;
    ledger.starts.values_mut().for_each(|starts| starts.unknown = unknown());
    comes_back(&ledger);
    let mut batch = GrantBatch { unknown: unknown(), ..full_batch() };
    batch.grants[0].unknown = unknown();
    comes_back(&batch);
}

#[test]
fn a_value_of_a_newer_release_makes_a_record_unreadable() {
    fn refused<T: DeserializeOwned>(value: &impl Serialize) {
        assert!(rmp_serde::from_slice::<T>(&rmp_serde::to_vec(value).unwrap()).is_err());
    }
    refused::<Position>(&("partition", 1, 2, "id", "a new field"));
    refused::<Rule>(&"ANewRule");
    refused::<Rule>(&json!({"Constraint": ["name", null, "a new field"]}));
    refused::<State>(&"ANewState");
}

/// Values as each release has stored them: a name and the bytes in base64. A release that adds a
/// field adds lines with a new name, and keeps those of the earlier ones.
const ROWS: &str = include_str!("rows.txt");

/// The values of [`ROWS`], as this release writes them.
fn rows() -> Vec<(&'static str, Vec<u8>)> {
    fn row<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
        name: &'static str,
        value: &T,
    ) -> (&'static str, Vec<u8>) {
        let stored = ROWS.lines().filter_map(|line| line.split_once(' '));
        for (_, base64) in stored.filter(|(stored, _)| stored.split('@').next() == Some(name)) {
            let bytes = STANDARD.decode(base64).unwrap();
            assert_eq!(rmp_serde::from_slice::<T>(&bytes).unwrap(), *value, "{name}");
        }
        (name, rmp_serde::to_vec(value).unwrap())
    }
    vec![
        row("spec", &full_spec()),
        row("changed", &changed_spec()),
        row("rewritten", &rewritten_spec()),
        row("changed-data", &changed_data_spec()),
        row("owned", &owned_spec()),
        row("redirected", &redirected_spec()),
        row("merged", &merged_spec()),
        row("by-schedule", &scheduled_spec()),
        row("by-trigger", &triggered_spec()),
        row("scheduled", &life(window())),
        row("running", &life(State::Running(running()))),
        row("ended", &life(State::Ended { at: Timestamp::EPOCH, outcome: Outcome::Dropped })),
        row("busy", &life_after_busy()),
        row("snoozed", &life_after_hand_back()),
        row("checkpoint", &life_with_checkpoint()),
        row("replayed", &replayed_life()),
        row("ledger", &full_ledger()),
        row("paged", &paged_ledger()),
        row("starts", &ledger_with_starts()),
        row("batch", &full_batch()),
        row("page", &state_page()),
    ]
}

#[test]
fn rows_of_every_release_are_read() {
    let is_stored = |name: &str, written: &str| {
        let newest = ROWS.lines().rfind(|line| line.split([' ', '@']).next() == Some(name));
        newest.and_then(|line| line.split_once(' ')).is_some_and(|(_, base64)| base64 == written)
    };
    let missing: Vec<String> = rows()
        .into_iter()
        .map(|(name, bytes)| (name, STANDARD.encode(bytes)))
        .filter(|(name, written)| !is_stored(name, written))
        .map(|(name, written)| format!("{name}@NEW {written}\n"))
        .collect();
    assert!(missing.is_empty(), "add these lines, and keep those there:\n{}", missing.concat());
}

#[test]
fn a_search_finds_a_number_in_every_form() {
    let value = |value: serde_json::Value| serde_json::from_value::<Value>(value).unwrap();
    let finds = |has: serde_json::Value, asked: &str| {
        value(has).is_found_by(&Value::Text(asked.to_owned()))
    };
    for asked in ["5", "5.0", "5e0", "50e-1"] {
        assert!(finds(json!(5), asked) && finds(json!(5.0), asked), "{asked}");
    }
    assert!(finds(json!("5.0"), "5.0") && finds(json!(0.5), "0.50"));
    for (has, asked) in [(json!("5"), "5.0"), (json!("5.0"), "5"), (json!(5), "6"), (json!(5), "")]
    {
        assert!(!finds(has.clone(), asked), "{has} {asked}");
    }
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
