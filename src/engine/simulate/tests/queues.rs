//! Limits, workers, traces and the report of a queue.

use serde_json::{Value, json};

use super::{run, scenario, shared_queue, shares, throttled, unmet, with};
use crate::simulate::{
    By, GoesOn, Plugins, SimulationReport, picture,
    report::{Over, Waits},
    simulate,
    summary::{PARTS, Percentiles},
};
use tidegate_core::port::policy::Action;

#[tokio::test]
async fn jobs_run_one_at_a_time_under_a_limit_of_one() {
    let report = run(json!({
        "queue": {"concurrency": 1},
        "arrivals": [{"type": "t", "count": 4}],
        "service": [{"seconds": 10}],
        "expect": {
            "max_running": {"": 1},
            "done_by_seconds": 40,
            "longest_wait_seconds": 30,
            "dropped": 0,
            "failed": 0,
        },
    }))
    .await;
    assert_eq!((report.over, report.all.succeeded), (Over::Done, 4));
    assert_eq!(unmet(&report), [""; 0]);
    assert_eq!(report.all.wait_seconds, Waits { median: 10.0, p99: 30.0, longest: 30.0 });
    assert_eq!((report.all.most_running, report.all.utilisation), (1, Some(1.0)));
}

#[tokio::test]
async fn an_unmet_expectation_reports_the_actual_value() {
    let report = run(json!({
        "arrivals": [{"type": "t", "count": 4, "attributes": {"region": "east"}}],
        "service": [{"seconds": 10, "failure": {"rate": 1, "retryable": false}}],
        "expect": {
            "max_running": {"region=east": 3, "type=t": 4},
            "done_by_seconds": 9,
            "longest_wait_seconds": 0,
            "dropped": 1,
            "failed": 4,
        },
    }))
    .await;
    assert_eq!(unmet(&report), ["max_running region=east", "done", "dropped"]);
    assert_eq!(
        (report.expectations[0].wanted.as_str(), report.expectations[0].got.as_str()),
        ("at most 3", "4")
    );
}

#[tokio::test]
async fn the_longest_wait_may_be_that_of_one_group() {
    let report = run(json!({
        "queue": {"concurrency": 1},
        "arrivals": [
            {"type": "t", "count": 3, "attributes": {"region": "east"}},
            {"type": "t", "count": 1, "attributes": {"region": "west"}, "from_seconds": 1},
        ],
        "service": [{"seconds": 10}],
        "expect": {
            "max_running": {"": 1},
            "longest_wait_seconds": {"region=east": 20, "region=west": 28, "type=t": 29, "": 28.9},
        },
    }))
    .await;
    assert_eq!(unmet(&report), ["longest wait", "longest wait region=west"]);
    let got: Vec<&str> = report.expectations.iter().map(|one| one.got.as_str()).collect();
    assert_eq!(got, ["1", "29 s", "20 s", "29 s", "29 s"]);
}

#[tokio::test]
async fn the_same_seed_gives_the_same_report_byte_for_byte() {
    let text = |report: &SimulationReport| serde_json::to_string(report).unwrap();
    let mut json = shared_queue();
    let (one, again) = (with(&json, &shares(40)).await, with(&json, &shares(40)).await);
    assert_eq!(text(&one.report), text(&again.report));
    json["seed"] = json!(2);
    assert_ne!(text(&one.report), text(&with(&json, &shares(40)).await.report));
}

#[tokio::test]
async fn a_queue_without_further_events_is_stalled() {
    let report = with(
        &json!({"arrivals": [{"type": "t", "count": 3}]}),
        &throttled(|call| {
            call.candidates.iter().map(|_| (Action::Hold(None), "never".to_owned())).collect()
        }),
    )
    .await
    .report;
    assert_eq!((report.over, report.all.waiting), (Over::Stalled, 3));
    let report = run(json!({
        "duration_seconds": 25,
        "queue": {"concurrency": 1},
        "arrivals": [{"type": "t", "count": 9}],
        "service": [{"seconds": 10}],
    }))
    .await;
    assert_eq!(
        (report.over, report.seconds, report.all.succeeded, report.all.running, report.all.waiting),
        (Over::Duration, 25.0, 2, 1, 6)
    );
    assert!(
        (report.all.wait_seconds.longest - 25.0).abs() < 1e-9,
        "jobs that still wait have waited until now"
    );
}

#[tokio::test]
async fn an_attempt_fails_at_its_timeout() {
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
async fn limits_by_value_and_the_number_of_workers_hold() {
    let report = run(json!({
        "queue": {"constraints": [{"name": "each", "per": "region", "concurrency": 2}]},
        "arrivals": [{"type": "t", "count": 40, "attributes": {"region": {"a": 1, "b": 1}}}],
        "service": [{"seconds": {"exponential": 1}}],
        "workers": 3,
        "expect": {"max_running": {"": 3}},
    }))
    .await;
    assert_eq!((unmet(&report).len(), report.all.most_running), (0, 3));
    // A worker that is free claims the next job at once.
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
            json!({
                "id": format!("a{n}"),
                "type": "t",
                "at_seconds": 0,
                "attributes": {"region": "east"},
                "attempts": attempt(n * 10),
                "ended": "succeeded",
                "ended_seconds": n * 10 + 10,
            })
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
    // Two jobs at a time would take half the time.
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
async fn the_picture_shows_each_value_against_its_limit() {
    let json = json!({
        "queue": {"concurrency": 3},
        "arrivals": [
            {"type": "t", "count": 3, "attributes": {"region": "east"}},
            {"type": "t", "count": 4, "attributes": {"region": "we<st"}, "from_seconds": 5},
        ],
        "service": [{"seconds": 10}],
        "expect": {"max_running": {"region=east": 3}},
    });
    let simulation = with(&json, &Plugins::default()).await;
    insta::assert_snapshot!(picture::draw(&[("one", &simulation.report)]));
    let two = picture::draw(&[("one", &simulation.report), ("other", &simulation.report)]);
    assert_eq!(two.matches("running, by region").count(), 2);
}

#[tokio::test]
async fn outcomes_of_a_trace_may_depend_on_the_time() {
    // The target was down in the first ten seconds. In the trace, `b` started after that.
    let attempt =
        |outcome: &str, at: u64| json!([{"seconds": 1, "outcome": outcome, "started_seconds": at}]);
    let job = |id: &str, attempts: Value| json!({"id": id, "type": "t", "at_seconds": 0, "attempts": attempts});
    let jobs = [job("a", attempt("failed", 0)), job("b", attempt("succeeded", 10))];
    for (outcomes, failed) in [("job", 1), ("time", 2)] {
        let json = json!({
            "types": {"t": {"max_attempts": 1}}, "jobs": jobs, "outcomes": outcomes,
        });
        let report = run(json).await;
        assert_eq!(report.all.failed, failed, "both start at once, by {outcomes}");
    }
}

#[tokio::test]
async fn a_summary_has_the_delays_the_backlog_and_the_shares() {
    let json = json!({
        "queue": {"concurrency": 1},
        "arrivals": [
            {"type": "t", "count": 3, "attributes": {"region": "east"}},
            {"type": "t", "count": 1, "from_seconds": 1, "attributes": {"region": "west"}},
        ],
        "service": [{"seconds": 10}],
    });
    let summary = with(&json, &Plugins::default()).await.summary;
    assert_eq!((summary.jobs, summary.finished, summary.failed), (4, 4, 0));
    let Percentiles { p50, p99, .. } = summary.start_delay_seconds;
    assert_eq!((p50, p99), (10.0, 29.0));
    assert_eq!(summary.run_seconds, Percentiles { p50: 10.0, p95: 10.0, p99: 10.0 });
    assert_eq!((summary.seconds, summary.drained_after_seconds), (40.0, Some(40.0)));
    assert_eq!((summary.utilization, summary.stopped_early), (Some(1.0), false));
    assert_eq!(summary.waiting.len(), PARTS);
    let at = |seconds: usize| (summary.waiting[seconds * 3], summary.running[seconds * 3]);
    assert_eq!((at(0), at(5), at(15), at(35)), ((2, 1), (3, 1), (2, 1), (0, 1)));
    let groups: Vec<_> = summary.groups.iter().map(|of| (of.value.as_str(), of.share)).collect();
    assert_eq!(groups, [("east", 0.75), ("west", 0.25)]);
}

#[tokio::test]
async fn a_simulation_ends_when_its_caller_stops_it() {
    let json = json!({
        "queue": {"concurrency": 1}, "arrivals": [{"type": "t", "count": 2000}],
        "service": [{"seconds": 1}],
    });
    let scenario = scenario(&json);
    let mut stop = |_| GoesOn::Break(());
    let stopped = simulate(&scenario, &Plugins::default(), By::Type, &mut stop).await.unwrap();
    assert_eq!(stopped.report.over, Over::Stopped);
    assert!(stopped.summary.stopped_early && stopped.summary.finished < 2000);
    assert_eq!(stopped.summary.drained_after_seconds, None);
}
