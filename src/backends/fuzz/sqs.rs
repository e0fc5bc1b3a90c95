//! Messages of SQS: what is packed is read again, and what is read could have been written.

use std::{collections::BTreeMap, time::Duration};

use proptest::prelude::*;
use tidegate_core::{
    job::{JobId, QueueName, Version},
    port::{Hint, HintKind, Timer, Work, work_queue::REACH_SECONDS},
    time::Timestamp,
};

use super::driver::{bytes, fuzz, json, mutated};
use crate::sqs::{Message, pack};

/// Maximum bytes of one SQS message.
const MAX_MESSAGE_BYTES: usize = 256 * 1024;

fn queue() -> impl Strategy<Value = QueueName> {
    prop::sample::select(&["mail", "a.b_c-d", "q"][..]).prop_map(|name| name.parse().unwrap())
}

fn id() -> impl Strategy<Value = JobId> {
    "[A-Za-z0-9_:-]{1,64}".prop_map(|id| id.parse().unwrap())
}

fn instant() -> impl Strategy<Value = Timestamp> {
    let edge = prop::sample::select(&[i64::MIN, 0, i64::MAX][..]);
    prop_oneof![6 => -999_999..9_999_999i64, 1 => edge].prop_map(Timestamp::from_millis)
}

fn work() -> impl Strategy<Value = Work> {
    // A smaller size is not in the message.
    let bytes = prop_oneof![Just(0), 10_000..u64::MAX];
    (queue(), id(), any::<u64>(), instant(), prop::option::of(instant()), bytes).prop_map(
        |(queue, job, version, run_at, granted_at, data_bytes)| Work {
            queue,
            job,
            version: Version(version),
            run_at,
            granted_at,
            data_bytes,
        },
    )
}

fn hint() -> impl Strategy<Value = Hint> {
    let kind = prop_oneof![
        Just(HintKind::Due),
        (id(), any::<u64>()).prop_map(|(job, version)| HintKind::Released(job, Version(version))),
        id().prop_map(HintKind::RetryDecision),
        ".{0,40}".prop_map(HintKind::Operation),
    ];
    (queue(), kind).prop_map(|(queue, kind)| Hint { queue, kind })
}

fn timer() -> impl Strategy<Value = Timer> {
    (instant(), queue()).prop_map(|(at, queue)| Timer { at, queue })
}

/// The bodies of one valid message of any kind.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let now = Timestamp::EPOCH;
    let body = |mut messages: Vec<pack::Outgoing>| messages.remove(0).body.into_bytes();
    prop_oneof![
        prop::collection::vec(work(), 1..4).prop_map(move |list| body(pack::work(&list, now))),
        prop::collection::vec(hint(), 1..4)
            .prop_map(move |list| body(pack::hints(&list, String::new))),
        timer().prop_map(move |timer| body(pack::timers(&[timer], now))),
    ]
}

#[test]
fn packed_work_can_be_read_and_its_messages_have_bounds() {
    fuzz((prop::collection::vec(work(), 0..80), instant()), |(sent, now)| {
        let (mut read, mut expected) = (BTreeMap::new(), BTreeMap::new());
        for outgoing in pack::work(&sent, now) {
            prop_assert!(outgoing.body.len() <= MAX_MESSAGE_BYTES);
            prop_assert!((0..=REACH_SECONDS as i32).contains(&outgoing.delay.unwrap()));
            let Message::Work(pieces) = Message::parse(&outgoing.body).unwrap() else {
                return Err(TestCaseError::fail("not work"));
            };
            prop_assert!((1..=pack::MAX_MESSAGE_JOBS).contains(&pieces.len()));
            for piece in pieces {
                prop_assert_eq!(piece.queue.as_str(), &outgoing.group);
                *read.entry(format!("{piece:?}")).or_insert(0) += 1;
            }
        }
        for piece in sent {
            *expected.entry(format!("{piece:?}")).or_insert(0) += 1;
        }
        prop_assert_eq!(read, expected);
        Ok(())
    });
}

#[test]
fn packed_hints_can_be_read() {
    fuzz(prop::collection::vec(hint(), 0..60), |sent| {
        let mut read = Vec::new();
        for outgoing in pack::hints(&sent, String::new) {
            prop_assert!(outgoing.body.len() <= MAX_MESSAGE_BYTES);
            let Message::Hints(hints) = Message::parse(&outgoing.body).unwrap() else {
                return Err(TestCaseError::fail("not hints"));
            };
            read.extend(hints);
        }
        // A message has at most one `Due` hint.
        let sorted = |mut hints: Vec<Hint>| {
            hints.sort_by_key(|hint| format!("{hint:?}"));
            hints.dedup_by(|a, b| a == b && a.kind == HintKind::Due);
            hints
        };
        prop_assert_eq!(sorted(read), sorted(sent));
        Ok(())
    });
}

#[test]
fn a_packed_timer_can_be_read() {
    fuzz((timer(), instant()), |(timer, now)| {
        let packed = pack::timers(std::slice::from_ref(&timer), now).remove(0);
        let early = Duration::from_secs(packed.delay.unwrap() as u64);
        if timer.at.since(now) <= Duration::from_secs(REACH_SECONDS) {
            prop_assert!(timer.at.since(now).abs_diff(early) <= Duration::from_millis(500));
        }
        prop_assert_eq!(Message::parse(&packed.body).unwrap(), Message::Timer(timer));
        Ok(())
    });
}

#[test]
fn a_foreign_message_is_refused_or_can_be_packed() {
    const WORDS: &[&str] =
        &["work", "hint", "timer", "queue", "jobs", "id", "version", "run_at", "at", "q"];
    let noise = json(WORDS).prop_map(|value| value.to_string().into_bytes());
    fuzz(prop_oneof![4 => mutated(message()), 1 => noise, 1 => bytes(100)], |body| {
        let Ok(message) = Message::parse(&String::from_utf8_lossy(&body)) else { return Ok(()) };
        let now = Timestamp::EPOCH;
        let again = match &message {
            Message::Work(work) => pack::work(work, now),
            Message::Hints(hints) => pack::hints(hints, String::new),
            Message::Timer(timer) => pack::timers(std::slice::from_ref(timer), now),
        };
        if let [only] = &again[..] {
            prop_assert_eq!(Message::parse(&only.body).unwrap(), message);
        }
        Ok(())
    });
}
