//! Constraints: which jobs they count, and under which value.

use serde_json::{Value, json};

use super::{RateCounts, at, grant, job, limits, said, words};
use crate::{
    job::TypeName,
    queue::{Admission, Candidate, Limits, Usage, admission::Reservations},
};

#[test]
fn a_limit_of_zero_per_value_reserves_nothing() {
    let per = |most: u32| {
        limits(
            json!({"constraints": [{"name": "tenant", "per": "tenant", "concurrency": most}]}),
            json!({}),
        )
    };
    let of = |tenant: u32, weight| job("a", weight, json!({"tenant": format!("t{tenant}")}));
    let zero = per(0);
    let mut admission = Admission::new(&zero, Usage::default(), RateCounts::default(), at(0));
    for tenant in 0..100 {
        assert_eq!(
            said(&admission.try_admit(Candidate::of(&of(tenant, 1)))),
            format!("tenant:t{tenant}")
        );
    }
    assert!(
        admission.closed_to_value("tenant", "t7"),
        "this tick skips further jobs of that tenant"
    );
    assert_eq!(admission.take_reserved(), Reservations::default());
    // A full limit is reserved for the job that waits, because some of it may become free.
    let one = per(1);
    let mut admission =
        Admission::new(&one, Usage::of(&one, &[grant(&of(1, 1))]), RateCounts::default(), at(0));
    assert_eq!(said(&admission.try_admit(Candidate::of(&of(1, 1)))), "tenant:t1");
    assert_ne!(admission.take_reserved(), Reservations::default());
}

#[test]
fn a_constraint_per_value_counts_each_value_separately() {
    let per = limits(
        json!({"constraints": [{"name": "tenant", "per": "tenant", "concurrency": 1}]}),
        json!({}),
    );
    let of = |tenant: Value| job("a", 1, json!({ "tenant": tenant }));
    let jobs = [
        of(json!("x")),
        of(json!("x")),
        of(json!("y")),
        of(json!(2)),
        of(json!(2.0)),
        job("a", 1, json!({})),
        job("a", 1, json!({})),
    ];
    assert_eq!(
        words(&per, &[], &jobs),
        ["run", "tenant:x", "run", "run", "tenant:2", "run", "run"]
    );
}

#[test]
fn a_constraint_counts_only_matching_jobs() {
    let queue = limits(
        json!({"constraints": [{
            "name": "big",
            "match": {"type": "a", "attribute": {"size": {"gt": 3}}},
            "concurrency": 1,
        }]}),
        json!({}),
    );
    let sized = |name, size: u32| job(name, 1, json!({ "size": size }));
    let jobs = [sized("a", 4), sized("a", 3), sized("b", 4), sized("a", 5)];
    assert_eq!(words(&queue, &[], &jobs), ["run", "run", "run", "big"]);
}

/// A limit of 100 shared by constraints: east gets at most 40, north and west 30 each.
#[test]
fn constraints_share_a_limit_by_region() {
    let share = |region: &str, most: u32| {
        let matcher = json!({"attribute": {"region": region}});
        json!({"name": region, "match": matcher, "concurrency": most})
    };
    let queue = limits(
        json!({
            "concurrency": 100,
            "constraints": [share("east", 40), share("north", 30), share("west", 30)],
        }),
        json!({}),
    );
    let jobs: Vec<_> = (0..300)
        .map(|n| job("call", 1, json!({"region": (["east", "north", "west"][n % 3])})))
        .collect();
    let words = words(&queue, &[], &jobs);
    let ran =
        |region: usize| words.iter().skip(region).step_by(3).filter(|word| *word == "run").count();
    assert_eq!([ran(0), ran(1), ran(2)], [40, 30, 30]);

    // One job of east ends: another job of east takes its capacity, and no other region does.
    let running: Vec<_> = jobs
        .iter()
        .zip(&words)
        .filter(|(_, word)| *word == "run")
        .map(|(job, _)| job.clone())
        .skip(1)
        .collect();
    let more: Vec<_> = ["north", "east", "east", "west"]
        .iter()
        .map(|region| job("call", 1, json!({ "region": region })))
        .collect();
    assert_eq!(self::words(&queue, &running, &more), ["north", "run", "queue", "queue"]);
}

#[test]
fn the_declared_attributes_are_those_of_constraints() {
    let queue = limits(
        json!({"constraints": [{
            "name": "c", "match": {"attribute": {"m": 1}}, "per": "p", "concurrency": 1,
        }]}),
        json!({}),
    );
    assert_eq!(queue.declared().into_iter().collect::<Vec<_>>(), ["m", "p"]);
    assert!(queue.any() && !Limits::default().any());
    let names: Vec<TypeName> = limits(json!({}), json!({"b": 1})).types.into_keys().collect();
    assert_eq!(names, ["b".parse().unwrap()]);
}
