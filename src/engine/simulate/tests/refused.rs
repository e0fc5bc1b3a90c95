//! Scenarios that are read, and those that are refused.

use serde_json::{Value, json};

use super::scenario;
use crate::simulate::{By, GoesOn, Plugins, Scenario, simulate};

#[tokio::test]
async fn a_refused_job_is_named_in_the_error() {
    let json =
        json!({"queue": {"concurrency": 2}, "arrivals": [{"type": "t", "count": 1, "weight": 5}]});
    let refused =
        simulate(&scenario(&json), &Plugins::default(), By::Type, &mut |_| GoesOn::Continue(()))
            .await
            .err()
            .unwrap();
    assert_eq!(
        refused.to_string(),
        "job job-1 is refused: weight: 5 is over the limit 2 of queue simulated"
    );
}

#[test]
fn an_invalid_scenario_is_refused_with_the_field() {
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
            json!({"service": [{"seconds": 1, "failure": {"rate": 1, "message": "m".repeat(4097)}}]}),
            "service[0].failure.message: must have at most 4096 bytes",
        ),
        (
            json!({"jobs": [{"type": "t", "at_seconds": 0, "attempts": [
                {"seconds": 1, "details": "d".repeat(16384)}]}]}),
            "jobs[0].attempts[0].details: must have at most 16384 bytes",
        ),
        (
            json!({"service": [{"seconds": 1, "failure": {"rate": 1, "reason": "deadline"}}]}),
            "service[0].failure.reason: must be",
        ),
        (json!({"expect": {"max_running": {"east": 1}}}), "expect.max_running.east: must be named"),
        (
            json!({"expect": {"longest_wait_seconds": {"east": 1}}}),
            "expect.longest_wait_seconds.east: must be named",
        ),
        (json!({"expect": {"longest_wait_seconds": "1m"}}), "expected seconds, or an object"),
        (
            json!({"service": [{"seconds": 1, "host": ""}]}),
            "service[0].host: must be 1 to 255 bytes",
        ),
        (
            arrival(json!({"count": 2, "correlation_key": "k"})),
            "arrivals[0].correlation_key: must have {n}",
        ),
        (
            json!({"jobs": [{"type": "t", "at_seconds": 2, "deadline_seconds": 2}]}),
            "jobs[0].deadline_seconds: must be after at_seconds",
        ),
        (
            json!({"types": {"t": {"retry_targets": {"b": "https://b.example"}}}}),
            "types.t.retry_targets: must be given only with",
        ),
    ];
    for (json, message) in table {
        let json = if message == "arrivals: must be at most 1000000 jobs" {
            json!({"arrivals": [{"type": "t", "count": 1_000_000}, {"type": "t", "count": 1}]})
        } else {
            json
        };
        let bad = Scenario::read(&json.to_string()).unwrap_err().to_string();
        assert!(bad.contains(message), "{json}: {bad}");
    }
    assert!(Scenario::read("{} {}").is_err() && Scenario::read("nonsense").is_err());
}

/// A trace has more jobs than a list of a request may have items.
#[test]
fn a_scenario_may_have_thousands_of_single_jobs() {
    let jobs: Vec<Value> =
        (0..1500).map(|n| json!({"id": format!("j{n}"), "type": "t", "at_seconds": 0})).collect();
    assert_eq!(scenario(&json!({ "jobs": jobs })).job_count(), 1500);
}

#[tokio::test]
async fn two_jobs_of_one_id_are_refused() {
    let job = json!({"id": "a", "type": "t", "at_seconds": 0});
    let json = json!({"jobs": [job, job]});
    let refused =
        simulate(&scenario(&json), &Plugins::default(), By::Type, &mut |_| GoesOn::Continue(()))
            .await
            .err()
            .unwrap();
    assert_eq!(refused.to_string(), "jobs: two jobs have the id a");
}

#[test]
fn the_scenarios_in_the_book_are_valid() {
    let document = include_str!("../../../../docs/simulate.md");
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
