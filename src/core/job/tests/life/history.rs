//! What a job keeps of its attempts, and of its result.

use std::time::Duration;

use super::{claim, failed, handed_back, result, spec};
use crate::{
    job::{
        Event, Lifecycle, Outcome, Spec,
        lifecycle::{
            AttemptRecord, EndedAs, Failure, MAX_HAND_BACKS_IN_HISTORY, MAX_HISTORY,
            MAX_HISTORY_BYTES, Reason, RetryDecision, Waiting,
        },
        spec::KeepResult,
    },
    time::{Seconds, Timestamp},
};

#[test]
fn the_history_keeps_its_first_entry_and_the_latest() {
    let spec = Spec { max_attempts: 1000, ..spec() };
    let mut life = Lifecycle::new(Timestamp::EPOCH, Waiting::Due);
    for attempt in 1..=MAX_HISTORY as u16 + 20 {
        life = life.apply(&spec, claim(&life), Timestamp::EPOCH).unwrap();
        assert_eq!(life.wake_at(&spec), Some(Timestamp::EPOCH), "no ledger watches the lease");
        life = life
            .apply(&spec, failed(attempt, RetryDecision::Wait(Duration::ZERO)), Timestamp::EPOCH)
            .unwrap();
    }
    let kept: Vec<_> = life.history.iter().map(|entry| entry.attempt).collect();
    assert_eq!((kept[0], kept[1], kept[MAX_HISTORY - 1], kept.len()), (1, 22, 120, MAX_HISTORY));
}

#[test]
fn the_history_keeps_the_latest_hand_backs_in_a_row() {
    let (spec, later) = (spec(), Timestamp::from_millis(1));
    let mut life = Lifecycle::new(Timestamp::EPOCH, Waiting::Due);
    let attempt = |life: &mut Lifecycle, next: fn(u16) -> Event| {
        *life = life.apply(&spec, claim(life), later).unwrap();
        *life = life.apply(&spec, next(life.attempt), later).unwrap();
    };
    let snoozed = |attempt| {
        let event = handed_back(attempt, None, false, RetryDecision::GiveUp);
        let Event::HandBack { attempt, received, hand_back, at_most_once, next, .. } = event else {
            unreachable!("it is one")
        };
        Event::HandBack { attempt, received, hand_back, at_most_once, max_in_a_row: 1000, next }
    };
    let retried = |attempt| failed(attempt, RetryDecision::Wait(Duration::ZERO));
    for _ in 0..25 {
        attempt(&mut life, snoozed);
    }
    attempt(&mut life, retried);
    attempt(&mut life, snoozed);
    assert_eq!((life.attempt, life.counted_attempts()), (27, 1));
    let kept: Vec<_> = life.history.iter().map(|entry| entry.attempt).collect();
    assert_eq!(kept[..2], [16, 17], "the first ones are gone");
    assert_eq!((kept[9], kept[10], kept[11], kept.len()), (25, 26, 27, 12));
    assert_eq!(MAX_HAND_BACKS_IN_HISTORY, 10);
    let ended: Vec<_> = life.history[9..].iter().map(AttemptRecord::ended_as).collect();
    assert_eq!(ended, [EndedAs::Released, EndedAs::Failed, EndedAs::Released]);
}

#[test]
fn no_attempt_has_a_higher_number_than_the_last() {
    let spec = spec();
    let mut life = Lifecycle::new(Timestamp::EPOCH, Waiting::Due);
    life.attempt = u16::MAX - 1;
    life = life.apply(&spec, claim(&life), Timestamp::EPOCH).unwrap();
    let next = RetryDecision::Wait(Duration::ZERO);
    let back = handed_back(u16::MAX, None, false, next);
    life = life.apply(&spec, back, Timestamp::EPOCH).unwrap();
    assert_eq!(life.ended(), Some(Outcome::Failed));
    let error = life.error.unwrap();
    assert_eq!(error.reason, Reason::NotDelivered);
    assert_eq!(error.message.unwrap(), "handed back, and no attempt has a higher number: busy");
}

#[test]
fn a_history_of_long_failures_keeps_the_latest_whole() {
    let spec = Spec { max_attempts: 1000, ..spec() };
    let mut life = Lifecycle::new(Timestamp::EPOCH, Waiting::Due);
    for attempt in 1..=MAX_HISTORY as u16 {
        life = life.apply(&spec, claim(&life), Timestamp::EPOCH).unwrap();
        let failure = Failure {
            details: Some("x".repeat(16 << 10)),
            ..Failure::new(Reason::Failed, "y".repeat(1024))
        };
        life = life
            .apply(
                &spec,
                Event::Fail { attempt, failure, next: RetryDecision::Wait(Duration::ZERO) },
                Timestamp::EPOCH,
            )
            .unwrap();
    }
    let said = |entry: &AttemptRecord| {
        entry.error.as_ref().map_or((0, 0), |error| {
            (
                error.details.iter().map(String::len).sum(),
                error.message.iter().map(String::len).sum(),
            )
        })
    };
    let (latest, older) = life.history.split_last().unwrap();
    assert_eq!(said(latest), (16 << 10, 1024));
    let kept: usize =
        older.iter().map(said).map(|(details, message): (usize, usize)| details + message).sum();
    assert!(kept <= MAX_HISTORY_BYTES && kept > MAX_HISTORY_BYTES - 2048, "{kept}");
    assert_eq!(said(&older[0]), (0, 0), "the oldest entry loses its texts first");
    assert_eq!(said(&older[98]), (0, 1024), "messages outlive details");
    assert!(
        older.iter().all(|entry| entry.outcome == Outcome::Failed),
        "the outcome of each attempt stays"
    );
}

#[test]
fn a_result_is_kept_as_keep_result_says() {
    let end = |keep_result| {
        let spec = Spec { keep_result, retention: Seconds::new(1_000_000), ..spec() };
        let mut life = Lifecycle::new(Timestamp::EPOCH, Waiting::Due);
        life = life.apply(&spec, claim(&life), Timestamp::EPOCH).unwrap();
        life = life
            .apply(&spec, Event::Succeed { attempt: 1, result: Some(result()) }, Timestamp::EPOCH)
            .unwrap();
        assert_eq!(life.ended(), Some(Outcome::Succeeded));
        (life.result.is_some(), life.wake_at(&spec).unwrap().since(Timestamp::EPOCH).as_secs())
    };
    assert_eq!(end(KeepResult::None), (false, 1_000_000));
    assert_eq!(end(KeepResult::Once), (true, 3600));
    assert_eq!(end(KeepResult::For(Seconds::new(60))), (true, 60));
}
