//! What a simulation must do, on scenarios small enough to be worked out by hand.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    report::{Over, Waits},
    *,
};
use crate::{plugins::registry::NewVersion, testkit::FnPolicy};
use tidegate_core::{
    port::policy::{Action, Decision, Fault, FaultKind, RetryAnswer, ThrottleAnswer, ThrottleCall},
    queue::plugin::{Description, OnFailure, Throttler},
};

fn scenario(json: &Value) -> Scenario {
    Scenario::read(&json.to_string()).unwrap()
}

async fn with(json: &Value, plugins: &Plugins) -> Simulation {
    simulate(&scenario(json), plugins, By::named("region"), &mut |_| ()).await.unwrap()
}

async fn run(json: Value) -> SimulationReport {
    with(&json, &Plugins::default()).await.report
}

fn version(throttler: bool) -> NewVersion {
    let says = Description { group_by: vec!["region".into()], ..Description::default() };
    let (throttler, retry) = if throttler { (Some(says), None) } else { (None, Some(says)) };
    NewVersion { wasm: Bytes::from_static(b"a closure"), throttler, retry, code: Vec::new() }
}

/// A queue whose throttler is a closure, which says what becomes of each candidate.
fn throttled(
    decide: impl Fn(&ThrottleCall) -> Vec<(Action, String)> + Send + Sync + 'static,
) -> Plugins {
    let policy = FnPolicy::default().throttling(move |_, call| {
        let decisions = decide(call)
            .into_iter()
            .map(|(action, reason)| Decision { action, reason: Some(reason) })
            .collect();
        Ok(ThrottleAnswer { decisions, more: true, state: None })
    });
    let throttler = Throttler {
        plugin: "closure".parse().unwrap(),
        config: Arc::new(json!({})),
        on_failure: OnFailure::Hold,
    };
    Plugins {
        policy: Arc::new(policy),
        throttler: Some((version(true), throttler)),
        ..Plugins::default()
    }
}

/// hipq's example, with this part of the limit of 100 for `east`: 40 is right.
fn shares(east: usize) -> Plugins {
    throttled(move |call| {
        let region = |attributes: &tidegate_core::job::Attributes| {
            attributes.get("region").map(tidegate_core::job::Value::text).unwrap_or_default()
        };
        let mut used = BTreeMap::<String, usize>::new();
        for grant in call.running.iter() {
            *used.entry(region(&grant.attributes)).or_default() += 1;
        }
        let decide = |job: &tidegate_core::job::Job| {
            let region = region(&job.spec.attributes);
            let share = [("east", east), ("north", 30), ("west", 30)]
                .into_iter()
                .find(|(name, _)| *name == region)
                .map_or(0, |(_, share)| share);
            let count = used.entry(region.clone()).or_default();
            if *count < share {
                *count += 1;
                (Action::Run, String::new())
            } else {
                (Action::Hold(None), format!("{region} uses {count} of {share}"))
            }
        };
        call.candidates.iter().map(decide).collect()
    })
}

fn hipq() -> Value {
    json!({
        "queue": {"concurrency": 100},
        "arrivals": [
            {"type": "t", "count": 600, "attributes": {"region": {"east": 5, "north": 3, "west": 2}}},
            {"type": "t", "count": 300, "poisson_per_second": 10, "attributes": {"region": {"east": 1, "north": 1, "west": 1}}},
        ],
        "service": [{"seconds": {"exponential": 8}}],
        "expect": {"max_running": {"": 100, "region=east": 40, "region=north": 30, "region=west": 30}, "done_by_seconds": 400},
    })
}

fn unmet(report: &SimulationReport) -> Vec<&str> {
    report.expectations.iter().filter(|one| !one.met).map(|one| one.name.as_str()).collect()
}

#[tokio::test]
async fn jobs_run_one_after_the_other_under_a_limit_of_one() {
    let report = run(json!({
        "queue": {"concurrency": 1}, "arrivals": [{"type": "t", "count": 4}], "service": [{"seconds": 10}],
        "expect": {"max_running": {"": 1}, "done_by_seconds": 40, "longest_wait_seconds": 30, "dropped": 0, "failed": 0},
    }))
    .await;
    assert_eq!((report.over, report.all.succeeded), (Over::Done, 4));
    assert_eq!(unmet(&report), [""; 0]);
    assert_eq!(report.all.wait_seconds, Waits { median: 10.0, p99: 30.0, longest: 30.0 });
    assert_eq!((report.all.most_running, report.all.utilisation), (1, Some(1.0)));
}

#[tokio::test]
async fn an_expectation_that_is_not_met_is_told_with_what_was_so() {
    let report = run(json!({
        "arrivals": [{"type": "t", "count": 4, "attributes": {"region": "east"}}], "service": [{"seconds": 10, "failure": {"rate": 1, "retryable": false}}],
        "expect": {"max_running": {"region=east": 3, "type=t": 4}, "done_by_seconds": 9, "longest_wait_seconds": 0, "dropped": 1, "failed": 4},
    }))
    .await;
    assert_eq!(unmet(&report), ["max_running region=east", "done", "dropped"]);
    assert_eq!(
        (report.expectations[0].wanted.as_str(), report.expectations[0].got.as_str()),
        ("at most 3", "4")
    );
}

#[tokio::test]
async fn the_same_seed_gives_the_same_report_byte_for_byte() {
    let text = |report: &SimulationReport| serde_json::to_string(report).unwrap();
    let mut json = hipq();
    let (one, again) = (with(&json, &shares(40)).await, with(&json, &shares(40)).await);
    assert_eq!(text(&one.report), text(&again.report));
    json["seed"] = json!(2);
    assert_ne!(text(&one.report), text(&with(&json, &shares(40)).await.report));
}

#[tokio::test]
async fn shares_are_never_passed_and_a_throttler_that_passes_them_is_found_out() {
    let right = with(&hipq(), &shares(40)).await;
    assert_eq!((right.report.over, unmet(&right.report)), (Over::Done, vec![]));
    let most: Vec<(&str, u64)> =
        right.report.groups.iter().map(|row| (row.value.as_str(), row.most_running)).collect();
    assert_eq!(most, [("east", 40), ("north", 30), ("west", 30)]);
    assert!(
        right.report.groups[0].held.contains_key("east uses # of #"),
        "{:?}",
        right.report.groups[0].held
    );
    assert!(right.report.calls["throttler"].calls > 0);

    let wrong = with(&hipq(), &shares(41)).await;
    assert_eq!(unmet(&wrong.report), ["max_running region=east"]);
    // The forty-first job of the east is what they first differ in, at once.
    let (first, count) = right.differences(&wrong);
    assert!(count > 0);
    assert_eq!((first[0].at_seconds, first[0].value.as_str()), (0.0, "east"));
    assert_eq!((first[0].one.as_str(), first[0].other.as_str()), ("hold: east uses # of #", "run"));
    assert_eq!(right.differences(&with(&hipq(), &shares(40)).await), (Vec::new(), 0));
}

#[tokio::test]
async fn a_throttler_drops_and_reschedules() {
    let plugins = throttled(|call| {
        let decide = |job: &tidegate_core::job::Job| match job.spec.priority {
            1 => (Action::Drop, "not wanted".to_owned()),
            2 if call.now < job.spec.created_at + std::time::Duration::from_mins(1) => (
                Action::Reschedule(call.now + std::time::Duration::from_mins(1)),
                "later".to_owned(),
            ),
            _ => (Action::Run, String::new()),
        };
        call.candidates.iter().map(decide).collect()
    });
    let arrivals: Vec<Value> =
        [1, 2, 3].map(|priority| json!({"type": "t", "count": 2, "priority": priority})).to_vec();
    let report = with(
        &json!({"arrivals": arrivals, "expect": {"dropped": 2, "longest_wait_seconds": 60}}),
        &plugins,
    )
    .await
    .report;
    assert_eq!((report.all.dropped, report.all.succeeded, report.all.rescheduled), (2, 4, 2));
    assert_eq!(unmet(&report), [""; 0]);
    assert!((report.seconds - 61.0).abs() < 0.01, "{}", report.seconds);
}

#[tokio::test]
async fn a_queue_that_will_never_go_on_is_stalled() {
    let report = with(
        &json!({"arrivals": [{"type": "t", "count": 3}]}),
        &throttled(|call| {
            call.candidates.iter().map(|_| (Action::Hold(None), "never".to_owned())).collect()
        }),
    )
    .await
    .report;
    assert_eq!((report.over, report.all.waiting), (Over::Stalled, 3));
    let report = run(
        json!({"duration_seconds": 25, "queue": {"concurrency": 1}, "arrivals": [{"type": "t", "count": 9}], "service": [{"seconds": 10}]}),
    )
    .await;
    assert_eq!(
        (report.over, report.seconds, report.all.succeeded, report.all.running, report.all.waiting),
        (Over::Duration, 25.0, 2, 1, 6)
    );
    assert!(
        (report.all.wait_seconds.longest - 25.0).abs() < 1e-9,
        "who still waits has waited until now"
    );
}

#[tokio::test]
async fn faults_of_a_throttler_are_counted_and_its_queue_goes_on_after_them() {
    let calls = std::sync::atomic::AtomicU32::new(0);
    let policy = FnPolicy::default().throttling(move |_, call| {
        if calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
            return Err(Fault { kind: FaultKind::Trapped, message: "it panicked".into() });
        }
        let decisions = call
            .candidates
            .iter()
            .map(|_| Decision { action: Action::Run, reason: None })
            .collect();
        Ok(ThrottleAnswer { decisions, more: false, state: None })
    });
    let plugins = Plugins { policy: Arc::new(policy), ..throttled(|_| Vec::new()) };
    let report = with(&json!({"arrivals": [{"type": "t", "count": 3}]}), &plugins).await.report;
    assert_eq!(report.over, Over::Done);
    assert_eq!(report.calls["throttler"].faults, [("trapped".to_owned(), 1)].into());
    assert_eq!(report.calls["throttler"].first_fault.as_deref(), Some("it panicked"));
}

#[tokio::test]
async fn attempts_fail_while_they_are_said_to_and_are_tried_again() {
    let retry =
        json!({"strategy": "exponential", "config": {"base_seconds": 30, "jitter": "none"}});
    let json = json!({
        "types": {"t": {"retry": retry}},
        "arrivals": [{"type": "t", "count": 10, "every_seconds": 10}],
        "service": [{"seconds": 1, "failure": {"rate": 1, "reason": "not_delivered", "status": 503, "seconds": 0.5, "during_seconds": [20, 50]}}],
    });
    let report = run(json.clone()).await;
    // Those that come at 20, 30 and 40 s fail once; a retry at 50.5 s or later does not.
    assert_eq!((report.all.retries, report.all.succeeded), (3, 10));

    let policy = FnPolicy::default().retrying(|_, call| {
        let failure = call.job.life.error.clone().unwrap();
        assert_eq!(failure.status, Some(503));
        let attempt = call.job.life.attempt;
        Ok(if attempt > 1 {
            RetryAnswer::GiveUp(Some("enough".into()))
        } else {
            RetryAnswer::Retry { at: call.now, data: None, priority: None }
        })
    });
    let plugins = Plugins {
        policy: Arc::new(policy),
        retry: Some((version(false), Arc::new(json!({})))),
        ..Plugins::default()
    };
    let mut json = json;
    json["types"] = json!({});
    let simulation = with(&json, &plugins).await;
    assert_eq!(
        (
            simulation.report.all.retries,
            simulation.report.all.failed,
            simulation.report.calls["retry"].calls
        ),
        (3, 3, 6)
    );
}

#[tokio::test]
async fn an_attempt_that_takes_longer_than_its_timeout_is_given_up() {
    for queue in [json!({}), json!({"concurrency": 5})] {
        let report = run(json!({
            "queue": queue, "types": {"t": {"timeout_seconds": 5, "max_attempts": 1}},
            "arrivals": [{"type": "t", "count": 2}], "service": [{"seconds": 10}],
        }))
        .await;
        assert_eq!((report.all.failed, report.over, report.seconds), (2, Over::Done, 5.0));
    }
}

#[tokio::test]
async fn limits_by_type_and_value_and_workers_hold() {
    let report = run(json!({
        "queue": {"constraints": [{"name": "each", "per": "region", "concurrency": 2}]},
        "arrivals": [{"type": "t", "count": 40, "attributes": {"region": {"a": 1, "b": 1}}}], "service": [{"seconds": {"exponential": 1}}], "workers": 3,
        "expect": {"max_running": {"": 3}},
    }))
    .await;
    assert_eq!((unmet(&report).len(), report.all.most_running), (0, 3));
    // A worker that is done takes the next job at once.
    assert!(report.all.mean_running > 2.5, "{}", report.all.mean_running);
    assert!(
        report
            .groups
            .iter()
            .all(|row| row.limit == Some(2) && row.most_running <= 2 && row.jobs > 0),
        "{:#?}",
        report.groups
    );
    assert!(report.held.keys().any(|rule| rule.contains("each")), "{:?}", report.held);
}

#[tokio::test]
async fn a_trace_is_replayed_and_compared() {
    let attempt =
        |started: u64| json!([{"seconds": 10, "outcome": "succeeded", "started_seconds": started}]);
    let jobs: Vec<Value> = (0..4)
        .map(|n| {
            json!({"id": format!("a{n}"), "type": "t", "at_seconds": 0, "attributes": {"region": "east"}, "attempts": attempt(n * 10),
                   "ended": "succeeded", "ended_seconds": n * 10 + 10})
        })
        .collect();
    let simulation =
        with(&json!({"queue": {"concurrency": 1}, "jobs": jobs}), &Plugins::default()).await;
    let (real, agreement) = simulation.real.unwrap();
    assert_eq!((real.all.succeeded, real.all.most_running, real.seconds), (4, 1, 40.0));
    assert_eq!((agreement.jobs, agreement.mean_difference_seconds), (4, 0.0));
    assert!(
        agreement.overlap.values().all(|part| (part - 1.0).abs() < 1e-9),
        "{:?}",
        agreement.overlap
    );
    // Two at once would have been done in half the time.
    let simulation =
        with(&json!({"queue": {"concurrency": 2}, "jobs": jobs}), &Plugins::default()).await;
    let (_, agreement) = simulation.real.unwrap();
    assert!(
        (agreement.overlap["east"] - 1.0 / 3.0).abs() < 0.01
            && agreement.simulated_wait_seconds.longest < 11.0,
        "{agreement:?}"
    );
}

#[tokio::test]
async fn what_the_queue_refuses_is_told_by_name() {
    let json =
        json!({"queue": {"concurrency": 2}, "arrivals": [{"type": "t", "count": 1, "weight": 5}]});
    let refused =
        simulate(&scenario(&json), &Plugins::default(), By::Type, &mut |_| ()).await.err().unwrap();
    assert_eq!(
        refused.to_string(),
        "job job-1 is refused: weight: 5 is over the limit 2 of queue simulated"
    );
}

#[test]
fn what_is_wrong_with_a_scenario_is_told_with_its_place() {
    let arrival = |more: Value| {
        let mut arrival = json!({"type": "t", "count": 1});
        arrival.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "arrivals": [arrival] })
    };
    let table = [
        (json!({"sed": 1}), "sed: unknown field"),
        (json!({"queue": {"concurency": 1}}), "queue.concurency: unknown field"),
        (json!({"queue": {"order_step_seconds": 301}}), "queue.order_step_seconds: must be"),
        (json!({"types": {"t": {"max_attempts": 0}}}), "types.t.max_attempts: must be"),
        (json!({"workers": 0}), "workers: must be"),
        (json!({"duration_seconds": 0}), "duration_seconds: must be"),
        (arrival(json!({"count": 0})), "arrivals[0].count: must be"),
        (arrival(json!({"count": 2_000_000})), "arrivals: must be at most 1000000 jobs"),
        (
            arrival(json!({"every_seconds": 1, "per_second": 1})),
            "arrivals[0].per_second: must not be given together with every_seconds",
        ),
        (arrival(json!({"per_second": 0})), "arrivals[0].per_second: must be over 0"),
        (arrival(json!({"burst": {"jobs": 1}})), "missing field `every_seconds`"),
        (
            arrival(json!({"attributes": {"region": {"east": -1}}})),
            "arrivals[0].attributes.region: must have weights",
        ),
        (
            arrival(json!({"attributes": {"region": [1]}})),
            "expected a text, a number, or an object of texts and their weights",
        ),
        (json!({"service": [{"seconds": {"normal": 1}}]}), "unknown variant `normal`"),
        (
            json!({"service": [{"seconds": {"uniform": [2, 1]}}]}),
            "service[0].seconds: must be 0 to",
        ),
        (
            json!({"service": [{"seconds": 1, "failure": {"rate": 2}}]}),
            "service[0].failure.rate: must be 0 to 1",
        ),
        (
            json!({"service": [{"seconds": 1, "failure": {"rate": 1, "reason": "deadline"}}]}),
            "service[0].failure.reason: must be",
        ),
        (json!({"expect": {"max_running": {"east": 1}}}), "expect.max_running.east: must be named"),
    ];
    for (json, told) in table {
        let json = if told == "arrivals: must be at most 1000000 jobs" {
            json!({"arrivals": [{"type": "t", "count": 1_000_000}, {"type": "t", "count": 1}]})
        } else {
            json
        };
        let bad = Scenario::read(&json.to_string()).unwrap_err().to_string();
        assert!(bad.contains(told), "{json}: {bad}");
    }
    assert!(Scenario::read("{} {}").is_err() && Scenario::read("nonsense").is_err());
}

#[tokio::test]
async fn two_jobs_of_one_id_are_refused() {
    let job = json!({"id": "a", "type": "t", "at_seconds": 0});
    let json = json!({"jobs": [job, job]});
    let refused =
        simulate(&scenario(&json), &Plugins::default(), By::Type, &mut |_| ()).await.err().unwrap();
    assert_eq!(refused.to_string(), "jobs: two jobs have the id a");
}

#[tokio::test]
async fn the_picture_shows_each_value_against_its_limit() {
    let json = json!({
        "queue": {"concurrency": 3},
        "arrivals": [{"type": "t", "count": 3, "attributes": {"region": "east"}}, {"type": "t", "count": 4, "attributes": {"region": "we<st"}, "from_seconds": 5}],
        "service": [{"seconds": 10}], "expect": {"max_running": {"region=east": 3}},
    });
    let simulation = with(&json, &Plugins::default()).await;
    insta::assert_snapshot!(picture::draw(&[("one", &simulation.report)]));
    let two = picture::draw(&[("one", &simulation.report), ("other", &simulation.report)]);
    assert_eq!(two.matches("running, by region").count(), 2);
}

#[test]
fn the_scenarios_of_the_document_can_be_read() {
    let document = include_str!("../../../docs/simulate.md");
    let blocks: Vec<&str> = document
        .split("```json file=")
        .skip(1)
        .filter_map(|rest| rest.split_once("```"))
        .filter_map(|(block, _)| Some(block.split_once('\n')?.1))
        .collect();
    assert!(blocks.len() >= 3, "{}", blocks.len());
    for block in blocks {
        Scenario::read(block).unwrap_or_else(|bad| panic!("{bad}: {block}"));
    }
}
