//! Rates: tokens, their buckets, and the bound of the buckets.

use serde_json::json;

use super::{Buckets, at, job, limits, said, tick, weighing};
use crate::{
    job::Spec,
    queue::{
        Admission, AdmissionDecision, Candidate, Limits, Usage,
        config::{BUCKET_BYTES, MAX_BUCKET_BYTES},
        ledger::Bucket,
    },
    time::Timestamp,
};

#[test]
fn a_rate_admits_a_burst_and_then_one_job_per_token() {
    let rate = json!({"name": "r", "rate": {"count": 2, "per_seconds": 1, "burst": 3}});
    let queue = limits(json!({ "constraints": [rate] }), json!({}));
    // An attempt takes one token, whatever its weight.
    let jobs = weighing(&[5, 0, 1, 1, 1]);
    let (first, buckets) = tick(&queue, &[], Buckets::new(), at(0), &jobs);
    assert_eq!(first, ["run", "run", "run", "r", "r"]);
    let half = Timestamp::from_millis(499);
    let (second, buckets) = tick(&queue, &[], buckets, half, &jobs);
    assert_eq!(second, ["r"; 5]);
    let (third, buckets) = tick(&queue, &[], buckets, Timestamp::from_millis(500), &jobs);
    assert_eq!(third, ["run", "r", "r", "r", "r"]);
    assert_eq!(buckets.len(), 1, "a bucket that is not full is kept");
    let (_, buckets) = tick(&queue, &[], buckets, at(60), &[]);
    assert!(buckets.is_empty(), "a full bucket is not");
}

#[test]
fn the_buckets_of_values_have_a_bound() {
    let rate = json!({"name": "r", "per": "tenant", "rate": {"count": 2, "per_seconds": 100}});
    let queue = limits(json!({ "constraints": [rate] }), json!({}));
    let of = |tenant: usize| job("a", 1, json!({"tenant": format!("{tenant:099}")}));
    let each = 1 + 99 + BUCKET_BYTES;
    let most = MAX_BUCKET_BYTES / each;
    let jobs: Vec<Spec> = (0..most + 5).map(of).collect();
    let (words, buckets) = tick(&queue, &[], Buckets::new(), at(0), &jobs);
    assert_eq!((words.iter().filter(|word| *word == "run").count(), buckets.len()), (most, most));
    // A value with a bucket goes on. Another value gets one when a bucket is full again.
    let (words, buckets) = tick(&queue, &[], buckets, at(1), &[of(0), of(0), of(most)]);
    assert_eq!(words, ["run".to_owned(), format!("r:{:099}", 0), format!("r:{most:099}")]);
    let (words, _) = tick(&queue, &[], buckets, at(60), &[of(most), of(1)]);
    assert_eq!(words, ["run", "run"]);
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
    let mut admission = Admission::new(&queue, Usage::default(), Buckets::new(), at(100));
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
    let (held, buckets) = tick(&queue, &weighing(&[1]), Buckets::new(), at(0), &weighing(&[1]));
    assert_eq!((held, buckets), (vec!["queue".to_owned()], Buckets::new()));
}

#[test]
fn buckets_of_a_removed_constraint_are_dropped() {
    let old = [(("gone".to_owned(), String::new()), Bucket { tokens: 0.0, at: at(0) })];
    assert!(tick(&Limits::default(), &[], old.into(), at(0), &[]).1.is_empty());
}
