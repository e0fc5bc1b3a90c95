//! Which candidates a tick may skip.

use serde_json::{Value, json};

use super::{RateCounts, at, job, limits, said};
use crate::queue::{Admission, Candidate, Usage};

#[test]
fn a_rule_that_held_a_job_closes_the_tick_to_its_others() {
    let rate = |matcher: Value| {
        json!({
            "name": "r",
            "match": matcher,
            "rate": {"count": 1, "per_seconds": 60},
        })
    };
    let closed = |constraints: Value| {
        let queue = limits(json!({ "constraints": constraints }), json!({"b": 1}));
        let mut admission = Admission::new(&queue, Usage::default(), RateCounts::default(), at(0));
        let jobs = [
            job("a", 1, json!({"t": "x"})),
            job("a", 1, json!({"t": "x"})),
            job("b", 2, json!({})),
            job("b", 1, json!({})),
        ];
        let decisions: Vec<_> =
            jobs.iter().map(|job| said(&admission.try_admit(Candidate::of(job)))).collect();
        let types = ["a", "b"].map(|name| admission.closed_to(&name.parse().unwrap()));
        let values = ["x", "y"].map(|value| admission.closed_to_value("t", value));
        (admission.closed(false), types, values, decisions[1].clone())
    };
    assert_eq!(closed(json!([rate(json!({}))])), (true, [true, true], [false; 2], "r".into()));
    assert_eq!(
        closed(json!([rate(json!({"type": "a"}))])),
        (false, [true, false], [false; 2], "r".into())
    );
    assert_eq!(
        closed(json!([rate(json!({"type": "a", "priority": {"lt": 5000}}))])).1,
        [false, false]
    );
    let per =
        |matcher: Value| json!([{"name": "r", "match": matcher, "per": "t", "concurrency": 1}]);
    assert_eq!(closed(per(json!({}))), (false, [false; 2], [true, false], "r:x".into()));
    assert_eq!(
        closed(per(json!({"type": "a"}))).2,
        [false; 2],
        "another type's jobs of that value may run"
    );
}
