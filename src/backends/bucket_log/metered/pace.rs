//! When a record is written, in each profile.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::{super::simulation::executor::Actor, Run, settings};
use crate::bucket_log::{Handle, NodeSettings, Pace};

/// The longest time of a request, in milliseconds.
const REQUEST: i64 = 80;

/// A run with a leader that writes no beats.
fn leader(pace: Pace) -> Arc<Run> {
    let beat_interval = Duration::from_hours(1);
    let run = Run::with_leader(1, NodeSettings { pace, beat_interval, ..settings() });
    // The first beat is written.
    run.pass(10_000);
    run
}

/// Submits lists of commands, each at its time and with that many: when each was answered, and how many
/// PUTs there were. Times are milliseconds from now on.
fn answered(run: &Arc<Run>, submits: &[(i64, usize)]) -> (Vec<i64>, u64) {
    let (began, puts) = (run.executor.now(), run.store.requests().puts);
    let answers = Arc::new(Mutex::new(vec![None; submits.len()]));
    for (index, (at, commands)) in submits.iter().copied().enumerate() {
        let (run, answers) = (Arc::clone(run), Arc::clone(&answers));
        Arc::clone(&run).executor.spawn(Actor::Client, async move {
            run.executor.elapse(at).await;
            assert!(run.submit(0, commands).await, "the node leads");
            answers.lock()[index] = Some(run.executor.now() - began);
        });
    }
    run.until(|| answers.lock().iter().all(Option::is_some));
    let answers = answers.lock().iter().flatten().copied().collect();
    (answers, (run.store.requests().puts - puts) as u64)
}

/// Whether an answer came one request after `start`.
fn follows(answer: i64, start: i64) -> bool {
    (start..=start + REQUEST).contains(&answer)
}

#[test]
fn a_record_of_price_waits_for_more_requests() {
    let run = leader(Pace::price(Some(Duration::from_secs(1)), Some(1_000)));
    let (answers, puts) = answered(&run, &[(0, 1), (600, 1)]);
    assert!(answers.iter().all(|answer| follows(*answer, 1_000)), "{answers:?}");
    assert_eq!(puts, 1);
    // The next record waits for its own interval.
    let (answers, puts) = answered(&run, &[(0, 1), (1_100, 1)]);
    assert!(follows(answers[0], 1_000) && follows(answers[1], 2_100), "{answers:?}");
    assert_eq!(puts, 2);
    run.end();
}

#[test]
fn a_record_of_price_ends_its_wait_when_it_is_large() {
    let run = leader(Pace::price(Some(Duration::from_secs(1)), Some(1_000)));
    let (answers, puts) = answered(&run, &[(0, 1), (300, 250)]);
    assert!(answers.iter().all(|answer| follows(*answer, 300)), "{answers:?}");
    assert_eq!(puts, 1);
    run.end();
}

#[test]
fn a_proof_of_leadership_does_not_wait() {
    let run = leader(Pace::price(Some(Duration::from_secs(10)), None));
    let (answers, puts) = answered(&run, &[(0, 0)]);
    assert!(follows(answers[0], 0), "{answers:?}");
    let (answers, _) = answered(&run, &[(0, 1), (500, 0)]);
    assert!(answers.iter().all(|answer| follows(*answer, 500)), "{answers:?}");
    assert_eq!(puts, 1);
    run.end();
}

#[test]
fn a_leader_that_stops_does_not_wait() {
    for stop in [Handle::<bool>::hurry, Handle::<bool>::release] {
        let run = leader(Pace::price(Some(Duration::from_secs(10)), None));
        let handle = run.handle(0).expect("the node is open");
        run.executor.after(500, move || stop(&handle));
        let (answers, _) = answered(&run, &[(0, 1)]);
        assert!(follows(answers[0], 500), "{answers:?}");
        run.end();
    }
}

#[test]
fn what_comes_after_the_begin_of_a_stop_does_not_wait() {
    let run = leader(Pace::price(Some(Duration::from_secs(10)), None));
    run.handle(0).expect("the node is open").hurry();
    let (answers, _) = answered(&run, &[(0, 1), (500, 1)]);
    assert!(follows(answers[0], 0) && follows(answers[1], 500), "{answers:?}");
    run.end();
}

#[test]
fn a_record_of_latency_is_written_at_once() {
    let run = leader(Pace::LATENCY);
    let (answers, puts) = answered(&run, &[(0, 1), (3, 1), (8, 1)]);
    assert!(follows(answers[0], 0), "{answers:?}");
    // The other two are in the second record, whose PUT starts while the first is under way.
    assert!(answers[1..].iter().all(|answer| *answer <= 10 + REQUEST), "{answers:?}");
    assert_eq!(puts, 2);
    run.end();
}
