//! What holds in every life of a job.

use std::time::Duration;

use proptest::prelude::*;

use super::{failed, handed_back, result, spec};
use crate::{
    job::{
        Event, Lifecycle, Spec, Token, Version,
        lifecycle::{MAX_HISTORY, PluginRetry, RetryDecision, Waiting},
    },
    stored::UnknownFields,
    time::{Seconds, Timestamp},
};

fn attempt() -> impl Strategy<Value = u16> {
    0u16..4
}

fn event() -> impl Strategy<Value = Event> {
    let version = || (1u64..8).prop_map(Version);
    let at = || (0i64..300).prop_map(Timestamp::from_millis);
    let wait = || (0u64..50).prop_map(Duration::from_millis);
    let next = move || {
        prop_oneof![
            wait().prop_map(RetryDecision::Wait),
            wait().prop_map(RetryDecision::AskPlugin),
            Just(RetryDecision::GiveUp)
        ]
    };
    let plan = || prop_oneof![at().prop_map(PluginRetry::Retry), Just(PluginRetry::GiveUp(None))];
    let claim =
        (version(), any::<u128>(), wait(), at()).prop_map(|(version, token, lease, decided_at)| {
            Event::Claim {
                version,
                token: Token::new(token),
                worker: None,
                lease,
                granted: true,
                decided_at,
            }
        });
    let heartbeat = (attempt(), at()).prop_map(|(attempt, until)| Event::Heartbeat {
        attempt,
        until,
        progress: None,
    });
    let succeed = attempt().prop_map(|attempt| Event::Succeed { attempt, result: Some(result()) });
    let lease_expired = (next(), any::<bool>())
        .prop_map(|(next, at_most_once)| Event::LeaseExpired { next, at_most_once });
    let to_window = (version(), at()).prop_map(|(version, run_at)| Event::Move {
        version,
        run_at,
        waiting: Waiting::Window { due: run_at },
        reason: None,
    });
    let end = prop_oneof![
        Just(Event::Expire),
        Just(Event::Deadline),
        Just(Event::ForgetResult),
        Just(Event::Replayed { by: "again".parse().unwrap() }),
        Just(Event::Drop { reason: String::new() })
    ];
    let hand_back = (attempt(), prop::option::of(at()), any::<bool>(), next())
        .prop_map(|(attempt, until, once, next)| handed_back(attempt, until, once, next));
    prop_oneof![
        4 => claim,
        2 => hand_back,
        1 => heartbeat,
        1 => succeed,
        2 => (attempt(), next()).prop_map(|(attempt, next)| failed(attempt, next)),
        1 => lease_expired,
        1 => version().prop_map(|version| Event::Revoke { version }),
        2 => (version(), plan())
            .prop_map(|(version, plan)| Event::DecideRetry { version, plan }),
        1 => to_window,
        1 => prop::option::of(at()).prop_map(|run_at| Event::Patch { run_at }),
        1 => any::<bool>().prop_map(|force| Event::Cancel { force }),
        1 => end,
    ]
}

/// The attempt that an event names, if it comes from a worker.
fn reported_attempt(event: &Event) -> Option<u16> {
    match event {
        Event::Heartbeat { attempt, .. }
        | Event::Succeed { attempt, .. }
        | Event::HandBack { attempt, .. }
        | Event::Fail { attempt, .. } => Some(*attempt),
        _ => None,
    }
}

/// The version that an event was decided on, if it names one.
fn decided_on(event: &Event) -> Option<Version> {
    match event {
        Event::Claim { version, .. }
        | Event::Revoke { version }
        | Event::Move { version, .. }
        | Event::DecideRetry { version, .. } => Some(*version),
        _ => None,
    }
}

proptest! {
    #[test]
    fn invariants_hold_in_every_life(
        events in prop::collection::vec((event(), 0i64..20), 0..60),
        max_attempts in 1u16..4,
        expires in prop::option::of(0i64..300),
        deadline in prop::option::of(0i64..300),
    ) {
        let spec = Spec {
            max_attempts,
            expires_at: expires.map(Timestamp::from_millis),
            deadline_at: deadline.map(Timestamp::from_millis),
            timeout: Seconds::from_millis(40),
            ..spec()
        };
        let (mut life, mut now) = (Lifecycle::new(Timestamp::EPOCH, Waiting::Due), 0);
        life.unknown = UnknownFields::new([rmpv::Value::from(7)]);
        for (event, gap) in events {
            now += gap;
            let at = Timestamp::from_millis(now);
            let next = match life.apply(&spec, event.clone(), at) {
                Err(refused) => {
                    prop_assert_eq!((&refused.state, refused.attempt), (&life.state, life.attempt));
                    continue;
                }
                Ok(next) => next,
            };
            prop_assert_eq!(
                next.revision.0,
                life.revision.0 + 1,
                "every write raises the revision",
            );

            prop_assert_eq!(&next.unknown, &life.unknown, "a newer release's fields are kept");

            let claims = matches!(event, Event::Claim { .. });
            let attempt = life.attempt + u16::from(claims);
            prop_assert_eq!(next.attempt, attempt, "only a claim raises the attempt");
            prop_assert!(next.counted_attempts() <= max_attempts);
            let handed_back = next.history.last().is_some_and(|entry| {
                entry.hand_back.is_some() && entry.attempt == next.attempt && next.running().is_none()
            });
            let in_a_row =
                next.history.iter().rev().take_while(|entry| entry.hand_back.is_some()).count();
            prop_assert!(!handed_back || in_a_row <= 2, "no more hand-backs in a row");
            if let Event::HandBack { hand_back, .. } = &event {
                let due = hand_back.until.or(life.latest_due_at()).unwrap_or(at);
                prop_assert!(!handed_back || next.run_at().is_none_or(|run_at| run_at == due));
                prop_assert_eq!(
                    next.counted_attempts() + u16::from(handed_back),
                    life.counted_attempts()
                );
            }
            let ends_attempt = life.running().is_some() && next.running().is_none();
            let entries = (life.history.len() + usize::from(ends_attempt)).min(MAX_HISTORY);
            prop_assert_eq!(next.history.len(), entries);

            let marks =
                matches!(event, Event::Cancel { force: false }) && life.running().is_some();
            let keeps = claims
                || marks
                || matches!(
                    event,
                    Event::Heartbeat { .. } | Event::ForgetResult | Event::Replayed { .. }
                );
            prop_assert_eq!(next.version.0, life.version.0 + u64::from(!keeps), "{:?}", event);

            if let Some(attempt) = reported_attempt(&event) {
                let current = life.running().is_some() && attempt == life.attempt;
                prop_assert!(current, "the report of another attempt is refused");
            }
            if let Some(version) = decided_on(&event) {
                let current = life.run_at().is_some() && version == life.version;
                prop_assert!(current, "a void decision is refused");
            }
            if life.ended().is_some() {
                let allowed = matches!(event, Event::ForgetResult | Event::Replayed { .. });
                prop_assert!(allowed, "an ended job never changes: {:?}", event);
                let Lifecycle { revision, result, replayed_by, .. } = life.clone();
                let before = Lifecycle { revision, result, replayed_by, ..next.clone() };
                prop_assert_eq!(before, life);
            }
            if let Some(run) = next.running() {
                prop_assert!(run.lease_until <= run.timeout_at);
                prop_assert_eq!(run.timeout_at, run.started_at + spec.timeout.duration());
                let in_time = expires.into_iter().chain(deadline).all(|end| now < end);
                prop_assert!(!claims || in_time, "nothing starts too late");
            }
            // The sweep handles a live job when its expiry or its deadline comes.
            let end = if next.run_at().is_some() {
                expires.into_iter().chain(deadline).min()
            } else {
                deadline
            };
            // It handles a job that waits for a retry decision at once.
            let failed_at = next
                .history
                .last()
                .filter(|_| next.awaits_retry_decision())
                .map(|entry| entry.ended_at.millis());
            let end = end.into_iter().chain(failed_at).min();
            if next.ended().is_none() {
                prop_assert_eq!(next.wake_at(&spec).map(Timestamp::millis), end);
            }
            life = next;
        }
    }
}
