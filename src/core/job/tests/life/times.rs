//! The times of a job that are derived when it is read.

use std::{sync::Arc, time::Duration};

use super::{claim, failed, handed_back, result, spec};
use crate::{
    job::{
        Body, Event, Job, Lifecycle, Payload, Spec,
        lifecycle::{Failure, Reason, RetryDecision, Waiting},
    },
    time::Timestamp,
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

/// A job that is due at 10 s.
fn job() -> Job {
    Job {
        id: "j".parse().unwrap(),
        spec: Arc::new(Spec { created_at: at(1), ..spec() }),
        data: Body::Inline(Payload::null()),
        life: Lifecycle::new(at(10), Waiting::Due),
    }
}

/// An event at this second.
type Step = (i64, fn(&Lifecycle) -> Event);

fn after(job: &Job, events: &[Step]) -> Job {
    let step = |job: Job, (seconds, event): &Step| {
        let event = event(&job.life);
        job.apply(event, at(*seconds)).unwrap()
    };
    events.iter().fold(job.clone(), step)
}

fn wait_a_minute(life: &Lifecycle) -> Event {
    failed(life.attempt, RetryDecision::Wait(Duration::from_mins(1)))
}

fn succeed(life: &Lifecycle) -> Event {
    Event::Succeed { attempt: life.attempt, result: Some(result()) }
}

fn cancel(_: &Lifecycle) -> Event {
    Event::Cancel { force: true }
}

fn defer(life: &Lifecycle) -> Event {
    let (version, run_at) = (life.version, at(90));
    Event::Move { version, run_at, waiting: Waiting::Throttler, reason: None }
}

fn to_a_minute(_: &Lifecycle) -> Event {
    Event::Patch { run_at: Some(at(60)) }
}

fn fail_late(_: &Lifecycle) -> Event {
    Event::FailLate { failure: Failure::new(Reason::Failed, "too late") }
}

/// Its `run_at` and `due_at`, and the waits of its attempts, in seconds.
fn times(job: &Job) -> (i64, i64, Vec<Option<u64>>) {
    let seconds = |at: Timestamp| at.millis() / 1000;
    let waits = job.waits().map(|wait| wait.map(|wait| wait.as_secs())).collect();
    (seconds(job.run_at()), seconds(job.due_at()), waits)
}

#[test]
fn every_state_has_its_due_times_and_waits() {
    let job = job();
    assert_eq!(times(&job), (10, 10, vec![]));
    let runs = after(&job, &[(12, claim)]);
    assert_eq!(times(&runs), (10, 10, vec![]));
    assert_eq!(runs.running_wait(), Some(Duration::from_secs(2)));
    let retried = after(&runs, &[(15, wait_a_minute)]);
    assert_eq!(times(&retried), (75, 10, vec![Some(2)]));
    let again = after(&retried, &[(80, claim)]);
    assert_eq!(times(&again), (75, 10, vec![Some(2)]));
    assert_eq!(again.running_wait(), Some(Duration::from_secs(65)), "since its first end");
    let third = after(&again, &[(81, wait_a_minute), (150, claim)]);
    assert_eq!(times(&third), (141, 10, vec![Some(2), Some(65)]));
    let ended = after(&third, &[(151, succeed)]);
    assert_eq!(times(&ended), (141, 10, vec![Some(2), Some(65), Some(69)]));
    assert_eq!(ended.running_wait(), None);
    assert_eq!(times(&after(&retried, &[(20, cancel)])), (10, 10, vec![Some(2)]));
}

#[test]
fn a_job_that_never_started_keeps_its_due_time() {
    let cancelled = after(&job(), &[(5, cancel)]);
    assert_eq!(times(&cancelled), (10, 10, vec![]));
    // An earlier build did not keep it.
    let mut old = cancelled;
    old.life.due_at = None;
    assert_eq!(times(&old), (1, 1, vec![]));
}

#[test]
fn only_a_patch_changes_when_a_job_was_first_due() {
    let deferred = after(&job(), &[(12, defer)]);
    assert_eq!(times(&deferred), (90, 10, vec![]));
    let runs = after(&deferred, &[(95, claim)]);
    assert_eq!(
        (times(&runs), runs.running_wait()),
        ((90, 10, vec![]), Some(Duration::from_secs(85)))
    );
    assert_eq!(times(&after(&runs, &[(96, wait_a_minute), (170, claim)])).1, 10);
    assert_eq!(times(&after(&deferred, &[(13, to_a_minute)])), (60, 60, vec![]));
    let retried = after(&job(), &[(12, claim), (15, wait_a_minute), (16, to_a_minute)]);
    assert_eq!(times(&retried), (60, 10, vec![Some(2)]), "it was due before");
}

#[test]
fn a_late_report_waited_as_long_as_its_attempt() {
    let steps: [Step; 5] =
        [(12, claim), (15, wait_a_minute), (20, fail_late), (80, claim), (81, succeed)];
    assert_eq!(times(&after(&job(), &steps)).2, [Some(2), Some(2), Some(65)]);
}

#[test]
fn a_wait_after_an_attempt_that_was_left_out_is_unknown() {
    let snooze = |life: &Lifecycle| {
        let event = handed_back(life.attempt, None, false, RetryDecision::GiveUp);
        let Event::HandBack { attempt, hand_back, at_most_once, next, .. } = event else {
            unreachable!("it is one")
        };
        Event::HandBack {
            attempt,
            received: true,
            hand_back,
            at_most_once,
            max_in_a_row: 1000,
            next,
        }
    };
    let mut job = job();
    for n in 0..12 {
        job = after(&job, &[(20 + 2 * n, claim), (21 + 2 * n, snooze)]);
    }
    let (_, due_at, waits) = times(&job);
    assert_eq!((due_at, waits.len()), (10, 10));
    assert_eq!(waits[..2], [None, Some(1)], "the second attempt is no longer there");
}

#[test]
fn an_error_came_when_its_attempt_or_its_job_ended() {
    assert_eq!(job().failed_at(), None);
    let failed: &[Step] = &[(10, claim), (12, wait_a_minute)];
    assert_eq!(after(&job(), failed).failed_at(), Some(at(12)));
    let spec = Spec { deadline_at: Some(at(50)), ..Spec::clone(&job().spec) };
    let ends = Job { spec: Arc::new(spec), ..job() };
    // The deadline ends it with an error of its own, without an attempt.
    let deadline: &[Step] = &[(50, |_| Event::Deadline)];
    assert_eq!(after(&after(&ends, failed), deadline).failed_at(), Some(at(50)));
    assert_eq!(after(&ends, deadline).failed_at(), Some(at(50)));
}
