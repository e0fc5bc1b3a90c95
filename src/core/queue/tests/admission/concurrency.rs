//! The limits of a queue and of its types, pauses and windows.

use serde_json::json;

use super::{RateCounts, at, grant, job, limits, said, tick, weighing, words};
use crate::{
    job::Spec,
    queue::{Admission, AdmissionDecision, Candidate, Limits, Usage, config::MAX_RUNNING},
};

#[test]
fn jobs_run_until_the_limit_is_full() {
    let three = limits(json!({"concurrency": 3}), json!({}));
    assert_eq!(
        words(&three, &weighing(&[1]), &weighing(&[1, 1, 1, 1])),
        ["run", "run", "queue", "queue"]
    );
}

#[test]
fn a_check_takes_nothing_and_may_reserve() {
    let three = limits(json!({"concurrency": 3}), json!({}));
    let mut admission = Admission::new(&three, Usage::default(), RateCounts::default(), at(0));
    let jobs = weighing(&[2, 2, 3, 4]);
    let checked: Vec<_> =
        jobs.iter().map(|job| said(&admission.check(Candidate::of(job)))).collect();
    assert_eq!(checked, ["run", "run", "run", "queue"], "each alone; the last never fits");
    assert_eq!(said(&admission.try_admit(Candidate::of(&jobs[0]))), "run");
    assert_eq!(said(&admission.check(Candidate::of(&jobs[1]))), "queue");
    assert_eq!(
        said(&admission.try_admit(Candidate::of(&weighing(&[1])[0]))),
        "queue",
        "the rest is reserved"
    );
}

#[test]
fn without_a_limit_every_job_runs() {
    assert_eq!(
        words(&Limits::default(), &weighing(&[u32::MAX]), &weighing(&[u32::MAX, 0])),
        ["run", "run"]
    );
}

#[test]
fn light_jobs_do_not_pass_a_heavy_job_that_waits() {
    let ten = limits(json!({"concurrency": 10}), json!({}));
    assert_eq!(
        words(&ten, &weighing(&[6]), &weighing(&[3, 5, 1, 1])),
        ["run", "queue", "queue", "queue"]
    );
    // Once enough running jobs have ended, it is first and runs before the light ones.
    assert_eq!(
        words(&ten, &weighing(&[3]), &weighing(&[5, 1, 1, 1])),
        ["run", "run", "run", "queue"]
    );
}

#[test]
fn a_job_heavier_than_a_limit_is_held_and_reserves_nothing() {
    let ten = limits(
        json!({"concurrency": 10, "constraints": [{"name": "c", "concurrency": 4}]}),
        json!({}),
    );
    assert_eq!(words(&ten, &[], &weighing(&[11, 5, 3, 1])), ["queue", "c", "run", "run"]);
    // Its hold names the limit that it can never fit, even if others are full too.
    assert_eq!(words(&ten, &weighing(&[4, 4]), &weighing(&[5])), ["c"]);
    let grants: Vec<_> = weighing(&[8]).iter().map(grant).collect();
    let mut admission =
        Admission::new(&ten, Usage::of(&ten, &grants), RateCounts::default(), at(0));
    let AdmissionDecision::Hold(hold) = admission.try_admit(Candidate::of(&weighing(&[5])[0]))
    else {
        panic!("held")
    };
    assert_eq!(
        (hold.earliest_at, hold.reason.as_str()),
        (None, "its weight 5 is over the limit 4 of constraint c")
    );
    assert!(!admission.closed(false), "nothing is reserved");
}

#[test]
fn a_full_limit_holds_only_jobs_that_it_counts() {
    let queue = limits(json!({"concurrency": 10}), json!({"a": 1}));
    let jobs = [
        job("a", 1, json!({})),
        job("a", 1, json!({})),
        job("b", 1, json!({})),
        job("a", 1, json!({})),
    ];
    assert_eq!(words(&queue, &[], &jobs), ["run", "type a", "run", "type a"]);
}

#[test]
fn critical_jobs_run_and_take_nothing() {
    let one = limits(
        json!({
            "concurrency": 1,
            "constraints": [{"name": "r", "rate": {"count": 1, "per_seconds": 60}}],
        }),
        json!({}),
    );
    let critical = Spec { critical: true, ..job("a", 7, json!({})) };
    let jobs = [critical.clone(), job("a", 1, json!({})), critical.clone(), job("a", 1, json!({}))];
    assert_eq!(words(&one, &[critical], &jobs), ["run", "run", "run", "queue"]);
}

#[test]
fn a_pause_holds_every_job_including_critical_ones() {
    let paused = Limits { paused: true, ..Limits::default() };
    let critical = Spec { critical: true, ..job("a", 1, json!({})) };
    assert_eq!(words(&paused, &[], &[critical, job("a", 0, json!({}))]), ["paused", "paused"]);
    assert!(Admission::new(&paused, Usage::default(), RateCounts::default(), at(0)).closed(true));
}

#[test]
fn a_job_outside_its_windows_moves_to_the_next_opening() {
    // Whether it is critical, and whether the queue is paused, makes no difference.
    let windows = serde_json::from_value(json!([{"from": "01:00", "to": "02:00"}])).unwrap();
    let job = Spec { windows, ..job("a", 1, json!({})) };
    let critical = Spec { critical: true, ..job.clone() };
    let paused = Limits { paused: true, ..Limits::default() };
    let jobs = [job, critical];
    assert_eq!(
        tick(&paused, &[], RateCounts::default(), at(0), &jobs).0,
        ["move to 3600", "move to 3600"]
    );
    assert_eq!(
        tick(&Limits::default(), &[], RateCounts::default(), at(3600), &jobs).0,
        ["run", "run"]
    );
}

#[test]
fn limit_zero_admits_nothing() {
    for zero in [limits(json!({"concurrency": 0}), json!({})), limits(json!({}), json!({"a": 0}))] {
        let held = words(&zero, &[], &weighing(&[0, 1]));
        assert!(held.iter().all(|word| word != "run"), "{held:?}");
    }
    let zero = limits(json!({"concurrency": 0}), json!({}));
    let admission = Admission::new(&zero, Usage::default(), RateCounts::default(), at(0));
    assert!(admission.closed(false) && !admission.closed(true), "critical jobs still run");
}

#[test]
fn a_lowered_limit_admits_nothing_until_running_jobs_fit() {
    let two = limits(json!({"concurrency": 2}), json!({}));
    assert_eq!(words(&two, &weighing(&[3]), &weighing(&[0])), ["queue"]);
    assert_eq!(words(&two, &weighing(&[2]), &weighing(&[0, 1])), ["run", "queue"]);
    assert_eq!(words(&two, &weighing(&[1]), &weighing(&[1])), ["run"]);
}

#[test]
fn live_grants_are_bounded_whatever_their_weight() {
    let running = weighing(&vec![0; MAX_RUNNING as usize - 1]);
    let critical = Spec { critical: true, ..job("a", 1, json!({})) };
    let jobs = [critical.clone(), job("a", 0, json!({})), job("a", 0, json!({})), critical];
    let busy = limits(json!({"concurrency": 5}), json!({}));
    assert_eq!(words(&busy, &running, &jobs), ["run", "run", "queue", "run"]);
}

#[test]
fn the_reason_of_a_hold_names_the_limit_and_its_use() {
    let queue = limits(json!({"concurrency": 5}), json!({"a": 9}));
    let reason = |running: &[u32], jobs: &[u32]| {
        let running: Vec<_> = weighing(running).iter().map(grant).collect();
        let mut admission =
            Admission::new(&queue, Usage::of(&queue, &running), RateCounts::default(), at(0));
        let last = weighing(jobs).iter().map(|job| admission.try_admit(Candidate::of(job))).last();
        match last {
            Some(AdmissionDecision::Hold(hold)) => hold.reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(reason(&[4], &[2]), "4 of 5 of the queue is in use, and it needs 2");
    assert_eq!(
        reason(&[4], &[2, 1]),
        "4 of 5 of the queue is in use, and the rest is kept for a job before it"
    );
    assert_eq!(reason(&[], &[6]), "its weight 6 is over the limit 5 of the queue");
}
