//! Rates: windows, token buckets, and the bound of what they count.

use serde_json::json;

use super::{RateCounts, at, job, limits, said, tick, weighing};
use crate::{
    job::Spec,
    queue::{
        Admission, AdmissionDecision, Candidate, Limits, Usage,
        config::{MAX_RATE_BYTES, START_BYTES, VALUE_BYTES},
        rate::{Bucket, RecentStarts},
    },
    time::Timestamp,
};

#[test]
fn a_rate_admits_its_count_in_any_window() {
    let rate = json!({"name": "r", "rate": {"count": 2, "per_seconds": 1}});
    let queue = limits(json!({ "constraints": [rate] }), json!({}));
    let millis = Timestamp::from_millis;
    // An attempt is one start, whatever its weight.
    let jobs = weighing(&[5, 0]);
    let (first, counts) = tick(&queue, &[], RateCounts::default(), millis(0), &jobs[..1]);
    let (second, counts) = tick(&queue, &[], counts, millis(600), &jobs);
    let (third, counts) = tick(&queue, &[], counts, millis(999), &jobs);
    let (fourth, counts) = tick(&queue, &[], counts, millis(1000), &jobs);
    let (fifth, counts) = tick(&queue, &[], counts, millis(1599), &jobs);
    assert_eq!((first, second), (vec!["run".into()], vec!["run".into(), "r".into()]));
    assert_eq!((third, fourth), (vec!["r".to_owned(); 2], vec!["run".into(), "r".into()]));
    assert_eq!((fifth, counts.starts.len()), (vec!["r".to_owned(); 2], 1));
    let (_, counts) = tick(&queue, &[], counts, millis(2000), &[]);
    assert_eq!(counts, RateCounts::default(), "what has left the window is not kept");
}

#[test]
fn a_rate_admits_a_burst_and_then_one_job_per_token() {
    let rate = json!({"name": "r", "rate": {"count": 2, "per_seconds": 1, "burst": 3}});
    let queue = limits(json!({ "constraints": [rate] }), json!({}));
    // An attempt takes one token, whatever its weight.
    let jobs = weighing(&[5, 0, 1, 1, 1]);
    let (first, counts) = tick(&queue, &[], RateCounts::default(), at(0), &jobs);
    assert_eq!(first, ["run", "run", "run", "r", "r"]);
    let half = Timestamp::from_millis(499);
    let (second, counts) = tick(&queue, &[], counts, half, &jobs);
    assert_eq!(second, ["r"; 5]);
    let (third, counts) = tick(&queue, &[], counts, Timestamp::from_millis(500), &jobs);
    assert_eq!(third, ["run", "r", "r", "r", "r"]);
    assert_eq!(counts.buckets.len(), 1, "a bucket that is not full is kept");
    let (_, counts) = tick(&queue, &[], counts, at(60), &[]);
    assert_eq!(counts, RateCounts::default(), "a full bucket is not");
}

#[test]
fn a_rate_that_gets_or_loses_its_burst_counts_from_now() {
    let with = |rate| limits(json!({"constraints": [{"name": "r", "rate": rate}]}), json!({}));
    let window = with(json!({"count": 1, "per_seconds": 60}));
    let bucket = with(json!({"count": 1, "per_seconds": 60, "burst": 2}));
    let jobs = weighing(&[1, 1, 1]);
    let (first, counts) = tick(&window, &[], RateCounts::default(), at(0), &jobs);
    let (second, counts) = tick(&bucket, &[], counts, at(1), &jobs);
    let (third, counts) = tick(&window, &[], counts, at(2), &jobs);
    assert_eq!((first, third), (words("run r r"), words("run r r")));
    assert_eq!((second, counts.buckets.len()), (words("run run r"), 0));
}

#[test]
fn what_rates_count_has_a_bound() {
    for burst in [None, Some(1)] {
        let rate = json!({"count": 2, "per_seconds": 100, "burst": burst});
        let rate = json!({"name": "r", "per": "tenant", "rate": rate});
        let queue = limits(json!({ "constraints": [rate] }), json!({}));
        let of = |tenant: usize| job("a", 1, json!({"tenant": format!("{tenant:099}")}));
        let each = 1 + 99 + VALUE_BYTES + if burst.is_some() { 0 } else { START_BYTES };
        let most = MAX_RATE_BYTES / each;
        let jobs: Vec<Spec> = (0..most + 5).map(of).collect();
        let (said, counts) = tick(&queue, &[], RateCounts::default(), at(0), &jobs);
        assert_eq!(said.iter().filter(|word| *word == "run").count(), most);
        assert_eq!(counts.starts.len() + counts.buckets.len(), most);
        // What is counted already needs no room, and a new value waits for room.
        let held = |tenant: usize| format!("r:{tenant:099}");
        let (said, counts) = tick(&queue, &[], counts, at(0), &[of(0), of(0), of(most)]);
        let again = if burst.is_some() { held(0) } else { "run".into() };
        assert_eq!(said, [again, held(0), held(most)]);
        let (said, _) = tick(&queue, &[], counts, at(100), &[of(most), of(1)]);
        assert_eq!(said, ["run", "run"]);
    }
}

#[test]
fn a_counted_value_needs_room_for_another_instant() {
    let rate = json!({"name": "r", "per": "tenant", "rate": {"count": 9, "per_seconds": 100}});
    let queue = limits(json!({ "constraints": [rate] }), json!({}));
    // Each value fills its part of the bytes exactly, so nothing is left for a second instant.
    let tenant = 1000 - 1 - VALUE_BYTES - START_BYTES;
    let of = |number: usize| job("a", 1, json!({"tenant": format!("{number:0tenant$}")}));
    let jobs: Vec<Spec> = (0..MAX_RATE_BYTES / 1000).map(of).collect();
    let (said, counts) = tick(&queue, &[], RateCounts::default(), at(0), &jobs);
    assert!(said.iter().all(|word| word == "run"));
    let mut admission = Admission::new(&queue, Usage::default(), counts, at(1));
    let AdmissionDecision::Hold(hold) = admission.try_admit(Candidate::of(&jobs[0])) else {
        panic!("there is no room");
    };
    assert_eq!(hold.earliest_at, Some(at(2)));
    assert!(hold.reason.contains("200000 bytes"), "{}", hold.reason);
}

#[test]
fn a_hold_by_rates_ends_when_the_last_one_has_a_token() {
    let queue = limits(
        json!({"constraints": [
            {"name": "fast", "rate": {"count": 1, "per_seconds": 10}},
            {"name": "slow", "match": {"type": "a"}, "rate": {"count": 1, "per_seconds": 60}}
        ]}),
        json!({}),
    );
    let mut admission = Admission::new(&queue, Usage::default(), RateCounts::default(), at(100));
    let jobs = [job("a", 1, json!({})), job("a", 1, json!({})), job("b", 1, json!({}))];
    let mut earliest = jobs.iter().map(|job| match admission.try_admit(Candidate::of(job)) {
        AdmissionDecision::Hold(hold) => {
            (said(&AdmissionDecision::Hold(hold.clone())), hold.earliest_at)
        }
        decision => (said(&decision), None),
    });
    assert_eq!(earliest.next(), Some(("run".into(), None)));
    assert_eq!(earliest.next(), Some(("fast".into(), Some(at(160)))));
    assert_eq!(earliest.next(), Some(("fast".into(), Some(at(110)))));
}

#[test]
fn a_job_that_a_limit_holds_takes_no_token() {
    let queue = limits(
        json!({
            "concurrency": 1,
            "constraints": [{"name": "r", "rate": {"count": 1, "per_seconds": 60}}],
        }),
        json!({}),
    );
    let (held, counts) =
        tick(&queue, &weighing(&[1]), RateCounts::default(), at(0), &weighing(&[1]));
    assert_eq!((held, counts), (vec!["queue".to_owned()], RateCounts::default()));
}

#[test]
fn counts_of_a_removed_constraint_are_dropped() {
    let key = || ("gone".to_owned(), String::new());
    let counts = RateCounts {
        starts: [(key(), RecentStarts::first(at(0)))].into(),
        buckets: [(key(), Bucket { tokens: 0.0, at: at(0) })].into(),
    };
    let left = tick(&Limits::default(), &[], counts, at(0), &[]).1;
    assert_eq!(left, RateCounts::default());
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}
