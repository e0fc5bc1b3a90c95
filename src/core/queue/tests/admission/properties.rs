//! What holds in every tick, with limits and jobs of all kinds.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{prelude::*, sample::Index};
use serde_json::{Value, json};

use super::{RateCounts, at, grant, job, limits, weighing, words};
use crate::{
    job::{Spec, Value as Attribute},
    queue::{Admission, AdmissionDecision, Candidate, Limits, Usage},
};

fn attributes() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({})),
        Just(json!({"r": "east"})),
        Just(json!({"r": "west"})),
        Just(json!({"r": 1, "t": "x"})),
        Just(json!({"t": "y"}))
    ]
}

prop_compose! {
    pub(super) fn any_job()(
        name in prop::sample::select(vec!["a", "b", "c"]),
        weight in prop_oneof![4 => 0u32..4, 1 => 0u32..20],
        attributes in attributes(),
        critical in prop::bool::weighted(0.1),
        priority in 0i32..3,
    ) -> Spec {
        Spec { priority, critical, ..job(name, weight, attributes) }
    }
}

/// The candidates of a tick, the jobs that end before it, and the seconds since the tick before.
fn any_tick() -> impl Strategy<Value = (Vec<Spec>, Vec<Index>, i64)> {
    let ended = prop::collection::vec(any::<Index>(), 0..6);
    (prop::collection::vec(any_job(), 0..12), ended, 0i64..4)
}

/// Queue, type and constraint limits of all kinds, some with a rate.
pub(super) fn any_limits() -> impl Strategy<Value = Limits> {
    let most = || prop::option::weighted(0.7, 0u32..12);
    let matcher = prop_oneof![
        Just(json!({})),
        Just(json!({"type": ["a", "b"]})),
        Just(json!({"priority": {"gte": 1}})),
        Just(json!({"attribute": {"r": {"exists": true}}})),
        Just(json!({"not": {"attribute": {"r": "east"}}})),
    ];
    let per = prop::option::of(prop::sample::select(vec!["r", "t"]));
    let rate = prop::option::weighted(
        0.3,
        (1u32..4, prop::option::of(1u32..4))
            .prop_map(|(count, burst)| json!({"count": count, "per_seconds": 5, "burst": burst})),
    );
    let constraint = (matcher, per, most(), rate).prop_map(|(matcher, per, most, rate)| {
        let mut constraint =
            json!({ "name": "", "match": matcher, "per": per, "concurrency": most, "rate": rate });
        if most.is_none() && constraint["rate"].is_null() {
            constraint["concurrency"] = json!(3);
        }
        constraint
    });
    (most(), prop::collection::vec(constraint, 0..4), most(), most()).prop_map(
        |(most, mut constraints, a, b)| {
            for (index, constraint) in constraints.iter_mut().enumerate() {
                constraint["name"] = json!(format!("c{index}"));
            }
            let types: serde_json::Map<_, _> = [("a", a), ("b", b)]
                .into_iter()
                .filter_map(|(name, most)| Some((name.into(), json!(most?))))
                .collect();
            limits(json!({"concurrency": most, "constraints": constraints}), types.into())
        },
    )
}

/// The limits that `granted` exceeds, computed by adding the weights up.
fn over(limits: &Limits, granted: &[Spec]) -> Vec<String> {
    let weight = |counts: &dyn Fn(&Spec) -> bool| {
        granted
            .iter()
            .filter(|job| !job.critical && counts(job))
            .map(|job| u64::from(job.weight))
            .sum::<u64>()
    };
    let mut over = Vec::new();
    let mut check = |name: String, most: Option<u32>, used: u64| {
        if most.is_some_and(|most| used > most.into()) {
            over.push(name);
        }
    };
    check("queue".into(), limits.queue.concurrency, weight(&|_| true));
    for (name, most) in &limits.types {
        check(name.to_string(), Some(*most), weight(&|job: &Spec| job.job_type == *name));
    }
    for constraint in &limits.queue.constraints {
        let counts = |job: &Spec| constraint.matcher.matches(Candidate::of(job).subject);
        let values: BTreeSet<_> = match &constraint.per {
            None => [None].into(),
            Some(per) => granted
                .iter()
                .filter_map(|job| job.attributes.get(per))
                .map(|value| Some(value.text()))
                .collect(),
        };
        for value in values {
            let of_value = |job: &Spec| {
                constraint
                    .per
                    .as_ref()
                    .is_none_or(|per| job.attributes.get(per).map(Attribute::text) == value)
            };
            check(
                format!("{} {value:?}", constraint.name),
                constraint.concurrency,
                weight(&|job: &Spec| counts(job) && of_value(job)),
            );
        }
    }
    over
}

proptest! {
    /// Over any ticks, with any jobs ending in between:
    ///
    /// - no limit is ever exceeded;
    /// - no job that fits is held, unless an earlier one waits for the same limit;
    /// - no rate admits more in a window than its count, or more than its burst and its refills.
    #[test]
    fn no_limit_is_ever_exceeded(
        limits in any_limits(),
        ticks in prop::collection::vec(any_tick(), 1..6),
    ) {
        let (mut granted, mut counts, mut now) = (Vec::<Spec>::new(), RateCounts::default(), 0);
        let mut taken: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
        for (jobs, ended, gap) in ticks {
            now += gap;
            for index in ended {
                if !granted.is_empty() {
                    granted.swap_remove(index.index(granted.len()));
                }
            }
            let grants: Vec<_> = granted.iter().map(grant).collect();
            let usage = Usage::of(&limits, &grants);
            let mut admission = Admission::new(&limits, usage, counts, at(now));
            let mut held = false;
            for job in jobs {
                let closed = admission.closed(job.critical);
                match admission.try_admit(Candidate::of(&job)) {
                    AdmissionDecision::Run => {
                        prop_assert!(!closed, "a closed tick admits nothing");
                        for (index, constraint) in limits.queue.constraints.iter().enumerate() {
                            let counts = constraint.matcher.matches(Candidate::of(&job).subject)
                                && constraint.per.is_none();
                            if constraint.rate.is_some() && counts && !job.critical {
                                taken.entry(index).or_default().push(now);
                            }
                        }
                        granted.push(job);
                        prop_assert_eq!(over(&limits, &granted), Vec::<String>::new());
                    }
                    AdmissionDecision::Hold(_) => {
                        prop_assert!(!job.critical);
                        let mut with = granted.clone();
                        with.push(job);
                        let zero = limits.queue.concurrency == Some(0)
                            || limits.types.values().any(|most| *most == 0);
                        let constrained = limits.queue.constraints.iter().any(|constraint| {
                            constraint.rate.is_some() || constraint.concurrency == Some(0)
                        });
                        let excused =
                            held || zero || constrained || !over(&limits, &with).is_empty();
                        prop_assert!(excused, "held although it fits");
                        held = true;
                    }
                    AdmissionDecision::Move(_) => prop_assert!(false, "no job has windows"),
                }
            }
            let (usage, left) = admission.finish();
            counts = left;
            let grants: Vec<_> = granted.iter().map(grant).collect();
            prop_assert_eq!(usage, Usage::of(&limits, &grants), "the usage is that of the grants");
        }
        for (index, times) in taken {
            let rate = limits.queue.constraints[index].rate.unwrap();
            for (i, from) in times.iter().enumerate() {
                for (j, to) in times.iter().enumerate().skip(i) {
                    let (count, span) = (f64::from(rate.count), (to - from) as f64);
                    let most = match rate.burst {
                        None if span < rate.per_seconds.as_f64() => count,
                        None => continue,
                        Some(burst) => f64::from(burst) + span * count / rate.per_seconds.as_f64(),
                    };
                    prop_assert!((j - i + 1) as f64 <= most + 1e-6);
                }
            }
        }
    }

    /// The first job is never starved: it runs as soon as it fits, however many light ones follow
    /// it.
    #[test]
    fn the_first_job_runs_once_it_fits(
        most in 1u32..20,
        heavy in 1u32..20,
        running in prop::collection::vec(1u32..4, 0..20),
        light in 1usize..20,
    ) {
        let limits = limits(json!({ "concurrency": most }), json!({}));
        prop_assume!(heavy <= most);
        let mut sum = 0;
        let fits = |weight: &u32| {
            sum += weight;
            sum <= most
        };
        let mut running: Vec<u32> = running.into_iter().take_while(fits).collect();
        loop {
            let mut jobs = vec![heavy];
            jobs.extend(vec![1; light]);
            let words = words(&limits, &weighing(&running), &weighing(&jobs));
            if words[0] == "run" {
                break;
            }
            prop_assert!(words.iter().all(|word| word == "queue"), "no job passes it");
            prop_assert!(running.pop().is_some(), "it runs when nothing else does");
        }
    }
}
