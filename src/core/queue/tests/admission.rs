//! Who may start now: tables of one round each, and what holds in every round.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    job::{Attributes, Spec, TypeName, Version},
    queue::{
        Admission, AdmissionDecision, Candidate, Grant, Limits, Rule, Usage,
        admission::Reservations,
        config::{BUCKET_BYTES, MAX_BUCKET_BYTES, MAX_RUNNING, QueueConfig},
        ledger::Bucket,
    },
    time::Timestamp,
};

type Buckets = BTreeMap<(String, String), Bucket>;

fn limits(queue: Value, types: Value) -> Limits {
    let queue: QueueConfig = serde_json::from_value(queue).unwrap();
    crate::validate::check_queue(&queue).unwrap();
    Limits { queue, types: serde_json::from_value(types).unwrap(), ..Limits::default() }
}

/// A job of type `name`, with some weight and attributes.
fn job(name: &str, weight: u32, attributes: Value) -> Spec {
    let attributes: Attributes = serde_json::from_value(attributes).unwrap();
    Spec { job_type: name.parse().unwrap(), weight, attributes, ..crate::job::tests::spec() }
}

fn grant(spec: &Spec) -> Grant {
    Grant {
        job: "j".parse().unwrap(),
        version: Version(1),
        job_type: spec.job_type.clone(),
        priority: spec.priority,
        weight: if spec.critical { 0 } else { spec.weight },
        critical: spec.critical,
        attributes: spec.attributes.clone(),
        granted_at: Timestamp::EPOCH,
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

/// One round over `jobs` with `running` granted: a word for each, and what is left of the buckets.
fn round(
    limits: &Limits,
    running: &[Spec],
    buckets: Buckets,
    now: Timestamp,
    jobs: &[Spec],
) -> (Vec<String>, Buckets) {
    let running: Vec<_> = running.iter().map(grant).collect();
    let mut admission = Admission::new(limits, Usage::of(limits, &running), buckets, now);
    let words = jobs.iter().map(|job| said(&admission.try_admit(Candidate::of(job)))).collect();
    (words, admission.finish().1)
}

fn said(verdict: &AdmissionDecision) -> String {
    match verdict {
        AdmissionDecision::Run => "run".into(),
        AdmissionDecision::Move(to) => format!("move to {}", to.millis() / 1000),
        AdmissionDecision::Hold(hold) => match &hold.rule {
            Rule::Paused => "paused".into(),
            Rule::Concurrency => "queue".into(),
            Rule::TypeConcurrency(name) => format!("type {name}"),
            Rule::Constraint(name, None) => name.clone(),
            Rule::Constraint(name, Some(value)) => format!("{name}:{value}"),
            Rule::Throttler(name) => format!("throttler {name}"),
        },
    }
}

fn words(limits: &Limits, running: &[Spec], jobs: &[Spec]) -> Vec<String> {
    round(limits, running, Buckets::new(), at(0), jobs).0
}

fn weighing(weights: &[u32]) -> Vec<Spec> {
    weights.iter().map(|weight| job("a", *weight, json!({}))).collect()
}

#[test]
fn jobs_run_until_the_limit_is_full() {
    let three = limits(json!({"concurrency": 3}), json!({}));
    assert_eq!(
        words(&three, &weighing(&[1]), &weighing(&[1, 1, 1, 1])),
        ["run", "run", "queue", "queue"]
    );
}

#[test]
fn a_candidate_that_is_only_judged_takes_nothing_and_reserves_what_it_does_not_fit() {
    let three = limits(json!({"concurrency": 3}), json!({}));
    let mut admission = Admission::new(&three, Usage::default(), Buckets::new(), at(0));
    let jobs = weighing(&[2, 2, 3, 4]);
    let judged: Vec<_> =
        jobs.iter().map(|job| said(&admission.check(Candidate::of(job)))).collect();
    assert_eq!(judged, ["run", "run", "run", "queue"], "each alone, and one that never fits");
    assert_eq!(said(&admission.try_admit(Candidate::of(&jobs[0]))), "run");
    assert_eq!(said(&admission.check(Candidate::of(&jobs[1]))), "queue");
    assert_eq!(
        said(&admission.try_admit(Candidate::of(&weighing(&[1])[0]))),
        "queue",
        "what is left is reserved"
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
fn a_heavy_job_that_waits_is_not_passed_by_light_ones() {
    let ten = limits(json!({"concurrency": 10}), json!({}));
    assert_eq!(
        words(&ten, &weighing(&[6]), &weighing(&[3, 5, 1, 1])),
        ["run", "queue", "queue", "queue"]
    );
    // Once what ran has ended it is first in line, and gets its place before the light ones.
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
    // It names the limit it can never fit, even when others are full too.
    assert_eq!(words(&ten, &weighing(&[4, 4]), &weighing(&[5])), ["c"]);
    let grants: Vec<_> = weighing(&[8]).iter().map(grant).collect();
    let mut admission = Admission::new(&ten, Usage::of(&ten, &grants), Buckets::new(), at(0));
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
fn a_hold_in_one_limit_lets_jobs_pass_that_need_only_others() {
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
        json!({"concurrency": 1, "constraints": [{"name": "r", "rate": {"count": 1, "per_seconds": 60}}]}),
        json!({}),
    );
    let critical = Spec { critical: true, ..job("a", 7, json!({})) };
    let jobs = [critical.clone(), job("a", 1, json!({})), critical.clone(), job("a", 1, json!({}))];
    assert_eq!(words(&one, &[critical], &jobs), ["run", "run", "run", "queue"]);
}

#[test]
fn a_pause_holds_everything_critical_jobs_too() {
    let paused = Limits { paused: true, ..Limits::default() };
    let critical = Spec { critical: true, ..job("a", 1, json!({})) };
    assert_eq!(words(&paused, &[], &[critical, job("a", 0, json!({}))]), ["paused", "paused"]);
    assert!(Admission::new(&paused, Usage::default(), Buckets::new(), at(0)).closed(true));
}

#[test]
fn a_job_outside_its_windows_moves_to_the_next_one_critical_or_paused_or_not() {
    let windows = serde_json::from_value(json!([{"from": "01:00", "to": "02:00"}])).unwrap();
    let job = Spec { windows, ..job("a", 1, json!({})) };
    let critical = Spec { critical: true, ..job.clone() };
    let paused = Limits { paused: true, ..Limits::default() };
    let jobs = [job, critical];
    assert_eq!(
        round(&paused, &[], Buckets::new(), at(0), &jobs).0,
        ["move to 3600", "move to 3600"]
    );
    assert_eq!(round(&Limits::default(), &[], Buckets::new(), at(3600), &jobs).0, ["run", "run"]);
}

#[test]
fn limit_zero_admits_nothing() {
    for zero in [limits(json!({"concurrency": 0}), json!({})), limits(json!({}), json!({"a": 0}))] {
        let held = words(&zero, &[], &weighing(&[0, 1]));
        assert!(held.iter().all(|word| word != "run"), "{held:?}");
    }
    let zero = limits(json!({"concurrency": 0}), json!({}));
    let admission = Admission::new(&zero, Usage::default(), Buckets::new(), at(0));
    assert!(admission.closed(false) && !admission.closed(true), "critical jobs still run");
}

#[test]
fn a_limit_of_zero_per_value_reserves_nothing_however_many_values_there_are() {
    let per = |most: u32| {
        limits(
            json!({"constraints": [{"name": "tenant", "per": "tenant", "concurrency": most}]}),
            json!({}),
        )
    };
    let of = |tenant: u32, weight| job("a", weight, json!({"tenant": format!("t{tenant}")}));
    let zero = per(0);
    let mut admission = Admission::new(&zero, Usage::default(), Buckets::new(), at(0));
    for tenant in 0..100 {
        assert_eq!(
            said(&admission.try_admit(Candidate::of(&of(tenant, 1)))),
            format!("tenant:t{tenant}")
        );
    }
    assert!(
        admission.closed_to_value("tenant", "t7"),
        "nobody else of that tenant is looked at in this round"
    );
    assert_eq!(admission.take_reserved(), Reservations::default());
    // What is full, though some of it may become free, is kept for whoever waits for it.
    let one = per(1);
    let mut admission =
        Admission::new(&one, Usage::of(&one, &[grant(&of(1, 1))]), Buckets::new(), at(0));
    assert_eq!(said(&admission.try_admit(Candidate::of(&of(1, 1)))), "tenant:t1");
    assert_ne!(admission.take_reserved(), Reservations::default());
}

#[test]
fn a_limit_that_was_lowered_admits_nothing_until_what_runs_fits() {
    let two = limits(json!({"concurrency": 2}), json!({}));
    assert_eq!(words(&two, &weighing(&[3]), &weighing(&[0])), ["queue"]);
    assert_eq!(words(&two, &weighing(&[2]), &weighing(&[0, 1])), ["run", "queue"]);
    assert_eq!(words(&two, &weighing(&[1]), &weighing(&[1])), ["run"]);
}

#[test]
fn live_grants_are_bounded_whatever_they_weigh() {
    let running = weighing(&vec![0; MAX_RUNNING as usize - 1]);
    let critical = Spec { critical: true, ..job("a", 1, json!({})) };
    let jobs = [critical.clone(), job("a", 0, json!({})), job("a", 0, json!({})), critical];
    let busy = limits(json!({"concurrency": 5}), json!({}));
    assert_eq!(words(&busy, &running, &jobs), ["run", "run", "queue", "run"]);
}

#[test]
fn each_value_has_its_constraint_to_itself() {
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
fn a_constraint_counts_only_what_it_matches() {
    let queue = limits(
        json!({"constraints": [{"name": "big", "match": {"type": "a", "attribute": {"size": {"gt": 3}}}, "concurrency": 1}]}),
        json!({}),
    );
    let sized = |name, size: u32| job(name, 1, json!({ "size": size }));
    let jobs = [sized("a", 4), sized("a", 3), sized("b", 4), sized("a", 5)];
    assert_eq!(words(&queue, &[], &jobs), ["run", "run", "run", "big"]);
}

/// hipq's worked example as constraints: limit 100, of which east may have 40 %, north and west 30 % each.
#[test]
fn shares_of_a_limit_by_region() {
    let share = |region: &str, most: u32| json!({"name": region, "match": {"attribute": {"region": region}}, "concurrency": most});
    let queue = limits(
        json!({"concurrency": 100, "constraints": [share("east", 40), share("north", 30), share("west", 30)]}),
        json!({}),
    );
    let jobs: Vec<_> = (0..300)
        .map(|n| job("call", 1, json!({"region": (["east", "north", "west"][n % 3])})))
        .collect();
    let words = words(&queue, &[], &jobs);
    let ran =
        |region: usize| words.iter().skip(region).step_by(3).filter(|word| *word == "run").count();
    assert_eq!([ran(0), ran(1), ran(2)], [40, 30, 30]);

    // One slot of east's frees: east takes it, and nobody else although the queue has room.
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
fn a_rate_lets_a_burst_pass_and_then_one_token_at_a_time() {
    let rate = json!({"name": "r", "rate": {"count": 2, "per_seconds": 1, "burst": 3}});
    let queue = limits(json!({ "constraints": [rate] }), json!({}));
    // A token is an attempt, whatever its weight.
    let jobs = weighing(&[5, 0, 1, 1, 1]);
    let (first, buckets) = round(&queue, &[], Buckets::new(), at(0), &jobs);
    assert_eq!(first, ["run", "run", "run", "r", "r"]);
    let half = Timestamp::from_millis(499);
    let (second, buckets) = round(&queue, &[], buckets, half, &jobs);
    assert_eq!(second, ["r"; 5]);
    let (third, buckets) = round(&queue, &[], buckets, Timestamp::from_millis(500), &jobs);
    assert_eq!(third, ["run", "r", "r", "r", "r"]);
    assert_eq!(buckets.len(), 1, "a bucket that is not full is remembered");
    let (_, buckets) = round(&queue, &[], buckets, at(60), &[]);
    assert!(buckets.is_empty(), "a full one is not");
}

#[test]
fn values_whose_tokens_are_counted_have_a_bound() {
    let rate = json!({"name": "r", "per": "tenant", "rate": {"count": 2, "per_seconds": 100}});
    let queue = limits(json!({ "constraints": [rate] }), json!({}));
    let of = |tenant: usize| job("a", 1, json!({"tenant": format!("{tenant:099}")}));
    let each = 1 + 99 + BUCKET_BYTES;
    let most = MAX_BUCKET_BYTES / each;
    let jobs: Vec<Spec> = (0..most + 5).map(of).collect();
    let (words, buckets) = round(&queue, &[], Buckets::new(), at(0), &jobs);
    assert_eq!((words.iter().filter(|word| *word == "run").count(), buckets.len()), (most, most));
    // Whoever is counted goes on, and others follow when its tokens are back.
    let (words, buckets) = round(&queue, &[], buckets, at(1), &[of(0), of(0), of(most)]);
    assert_eq!(words, ["run".to_owned(), format!("r:{:099}", 0), format!("r:{most:099}")]);
    let (words, _) = round(&queue, &[], buckets, at(60), &[of(most), of(1)]);
    assert_eq!(words, ["run", "run"]);
}

#[test]
fn what_held_a_candidate_closes_the_round_to_those_that_it_counts() {
    let rate = |matcher: Value| json!({"name": "r", "match": matcher, "rate": {"count": 1, "per_seconds": 60}});
    let closed = |constraints: Value| {
        let queue = limits(json!({ "constraints": constraints }), json!({"b": 1}));
        let mut admission = Admission::new(&queue, Usage::default(), Buckets::new(), at(0));
        let jobs = [
            job("a", 1, json!({"t": "x"})),
            job("a", 1, json!({"t": "x"})),
            job("b", 2, json!({})),
            job("b", 1, json!({})),
        ];
        let verdicts: Vec<_> =
            jobs.iter().map(|job| said(&admission.try_admit(Candidate::of(job)))).collect();
        let types = ["a", "b"].map(|name| admission.closed_to(&name.parse().unwrap()));
        let values = ["x", "y"].map(|value| admission.closed_to_value("t", value));
        (admission.closed(false), types, values, verdicts[1].clone())
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

#[test]
fn a_job_without_a_token_knows_when_the_last_of_its_rates_has_one() {
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
        verdict => (said(&verdict), None),
    });
    assert_eq!(earliest.next(), Some(("run".into(), None)));
    assert_eq!(earliest.next(), Some(("fast".into(), Some(at(160)))));
    assert_eq!(earliest.next(), Some(("fast".into(), Some(at(110)))));
}

#[test]
fn a_job_that_a_limit_holds_takes_no_token() {
    let queue = limits(
        json!({"concurrency": 1, "constraints": [{"name": "r", "rate": {"count": 1, "per_seconds": 60}}]}),
        json!({}),
    );
    let (held, buckets) = round(&queue, &weighing(&[1]), Buckets::new(), at(0), &weighing(&[1]));
    assert_eq!((held, buckets), (vec!["queue".to_owned()], Buckets::new()));
}

#[test]
fn buckets_of_a_constraint_that_is_gone_are_forgotten() {
    let old = [(("gone".to_owned(), String::new()), Bucket { tokens: 0.0, at: at(0) })];
    assert!(round(&Limits::default(), &[], old.into(), at(0), &[]).1.is_empty());
}

#[test]
fn the_reason_says_what_is_short() {
    let queue = limits(json!({"concurrency": 5}), json!({"a": 9}));
    let reason = |running: &[u32], jobs: &[u32]| {
        let running: Vec<_> = weighing(running).iter().map(grant).collect();
        let mut admission =
            Admission::new(&queue, Usage::of(&queue, &running), Buckets::new(), at(0));
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

fn regions() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({})),
        Just(json!({"r": "east"})),
        Just(json!({"r": "west"})),
        Just(json!({"r": 1, "t": "x"})),
        Just(json!({"t": "y"}))
    ]
}

prop_compose! {
    fn any_job()(
        name in prop::sample::select(vec!["a", "b", "c"]), weight in prop_oneof![4 => 0u32..4, 1 => 0u32..20], attributes in regions(),
        critical in prop::bool::weighted(0.1), priority in 0i32..3,
    ) -> Spec {
        Spec { priority, critical, ..job(name, weight, attributes) }
    }
}

/// Queue, type and constraint limits of all kinds, some with a rate.
fn any_limits() -> impl Strategy<Value = Limits> {
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
        (1u32..4, 1u32..4)
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

/// Whether every limit has room for what is granted, found by adding up anew.
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
        let values: std::collections::BTreeSet<_> = match &constraint.per {
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
                    .is_none_or(|per| job.attributes.get(per).map(crate::job::Value::text) == value)
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
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// I1: whatever is offered, in whatever rounds, with whatever ending in between, no limit is ever exceeded;
    /// a lighter job is never held where it would have fitted, unless an earlier one waits for the same limit;
    /// and no rate gives more than its burst and what came back.
    #[test]
    fn no_limit_is_ever_exceeded(
        limits in any_limits(),
        rounds in prop::collection::vec((prop::collection::vec(any_job(), 0..12), prop::collection::vec(any::<prop::sample::Index>(), 0..6), 0i64..4), 1..6),
    ) {
        let (mut granted, mut buckets, mut now) = (Vec::<Spec>::new(), Buckets::new(), 0);
        let mut taken: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
        for (jobs, ended, gap) in rounds {
            now += gap;
            for index in ended {
                if !granted.is_empty() {
                    granted.swap_remove(index.index(granted.len()));
                }
            }
            let grants: Vec<_> = granted.iter().map(grant).collect();
            let mut admission = Admission::new(&limits, Usage::of(&limits, &grants), buckets, at(now));
            let mut held = false;
            for job in jobs {
                let closed = admission.closed(job.critical);
                match admission.try_admit(Candidate::of(&job)) {
                    AdmissionDecision::Run => {
                        prop_assert!(!closed, "closed means closed");
                        for (index, constraint) in limits.queue.constraints.iter().enumerate() {
                            let counts = constraint.matcher.matches(Candidate::of(&job).subject) && constraint.per.is_none();
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
                        let zero = limits.queue.concurrency == Some(0) || limits.types.values().any(|most| *most == 0);
                        let constrained = limits.queue.constraints.iter().any(|constraint| constraint.rate.is_some() || constraint.concurrency == Some(0));
                        prop_assert!(held || zero || constrained || !over(&limits, &with).is_empty(), "held although it fits");
                        held = true;
                    }
                    AdmissionDecision::Move(_) => prop_assert!(false, "none has windows"),
                }
            }
            let (usage, left) = admission.finish();
            buckets = left;
            let grants: Vec<_> = granted.iter().map(grant).collect();
            prop_assert_eq!(usage, Usage::of(&limits, &grants), "what a round took is what its grants take");
        }
        for (index, times) in taken {
            let rate = limits.queue.constraints[index].rate.unwrap();
            for (i, from) in times.iter().enumerate() {
                for (j, to) in times.iter().enumerate().skip(i) {
                    let most = rate.capacity() + (to - from) as f64 * f64::from(rate.count) / rate.per_seconds.as_f64();
                    prop_assert!((j - i + 1) as f64 <= most + 1e-6);
                }
            }
        }
    }

    #[test]
    fn adding_and_removing_grants_is_counting_anew(limits in any_limits(), jobs in prop::collection::vec((any_job(), any::<bool>()), 0..20)) {
        let mut usage = Usage::default();
        for (job, _) in &jobs {
            usage.add(&limits, &grant(job));
        }
        for (job, _) in jobs.iter().filter(|(_, ended)| *ended) {
            usage.remove(&limits, &grant(job));
        }
        let left: Vec<_> = jobs.iter().filter(|(_, ended)| !ended).map(|(job, _)| grant(job)).collect();
        prop_assert_eq!(&usage, &Usage::of(&limits, &left));
        let weight: u64 = left.iter().map(|grant| u64::from(grant.weight)).sum();
        prop_assert_eq!((usage.weight(), usage.live()), (weight, left.iter().filter(|grant| !grant.critical).count() as u64));
    }

    /// The first job in line is never starved: it runs as soon as what runs leaves it room, however many light ones come behind it.
    #[test]
    fn the_first_in_line_runs_once_there_is_room(most in 1u32..20, heavy in 1u32..20, running in prop::collection::vec(1u32..4, 0..20), light in 1usize..20) {
        let limits = limits(json!({ "concurrency": most }), json!({}));
        prop_assume!(heavy <= most);
        let mut running: Vec<u32> = running.into_iter().scan(0, |sum, weight| { *sum += weight; (*sum <= most).then_some(weight) }).collect();
        loop {
            let mut jobs = vec![heavy];
            jobs.extend(vec![1; light]);
            let words = words(&limits, &weighing(&running), &weighing(&jobs));
            if words[0] == "run" {
                break;
            }
            prop_assert!(words.iter().all(|word| word == "queue"), "nobody passes it");
            prop_assert!(running.pop().is_some(), "it runs when nothing else does");
        }
    }
}

#[test]
fn a_grant_counts_only_what_it_declares() {
    let queue = limits(
        json!({"constraints": [{"name": "c", "match": {"attribute": {"m": 1}}, "per": "p", "concurrency": 1}]}),
        json!({}),
    );
    assert_eq!(queue.declared().into_iter().collect::<Vec<_>>(), ["m", "p"]);
    assert!(queue.any() && !Limits::default().any());
    let names: Vec<TypeName> = limits(json!({}), json!({"b": 1})).types.into_keys().collect();
    assert_eq!(names, ["b".parse().unwrap()]);
}
