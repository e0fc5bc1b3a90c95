//! What a simulation must do, on scenarios small enough to be worked out by hand.

use serde_json::{Value, json};

use super::*;

async fn run(scenario: Value) -> Report {
    let by = By::named(scenario["by"].as_str().unwrap_or("region"));
    let mut scenario = scenario;
    scenario.as_object_mut().unwrap().remove("by");
    let scenario = Scenario::read(&scenario.to_string()).unwrap();
    simulate(&scenario, by, &mut |_| ()).await.unwrap()
}

#[tokio::test]
async fn jobs_run_one_after_the_other_under_a_limit_of_one() {
    let report = run(json!({
        "queue": {"concurrency": 1}, "arrivals": [{"type": "t", "count": 4}], "service": [{"seconds": 10}],
        "expect": {"max_running": {"": 1}, "done_by_seconds": 40, "longest_wait_seconds": 30, "dropped": 0, "failed": 0},
    }))
    .await;
    assert_eq!((report.over, report.all.succeeded), (report::Over::Done, 4));
    assert!(report.expectations.iter().all(|one| one.met), "{:#?}", report.expectations);
    assert_eq!(report.all.wait_seconds, report::Waits { median: 10.0, p99: 30.0, longest: 30.0 });
    assert_eq!((report.all.most_running, report.all.utilisation), (1, Some(1.0)));
}

