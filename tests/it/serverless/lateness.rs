//! Delayed jobs start within a second of their time, with a rule that fires once a minute.

use std::{collections::HashMap, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tidegate_core::{
    job::{JobId, type_config::TypeConfig},
    port::Clock,
    queue::QueueConfig,
    target::{Push, TargetConfig},
    time::Timestamp,
};
use tidegate_engine::testkit::builders::name;

use super::model::{Cloud, job};

/// Jobs arrive for a quarter of an hour, each due some time later; returns how late each starts.
fn lateness(seed: u64, limited: bool, jobs: usize) -> (Vec<Duration>, Cloud) {
    let cloud = Cloud::new(seed);
    let push = TargetConfig::Push(Box::new(Push::to("http://worker.example/work")));
    let config = TypeConfig { queue: name("q"), target: Some(push), ..TypeConfig::default() };
    let limits = QueueConfig { concurrency: limited.then_some(5000), ..QueueConfig::default() };
    cloud.now(cloud.server.put_queue(&name("q"), limits, None)).unwrap();
    cloud.now(cloud.server.put_type(&name("t"), config, None)).unwrap();
    let mut chance = StdRng::seed_from_u64(seed);
    let start = cloud.time.now() + Duration::from_secs(30);
    let mut due: HashMap<JobId, Timestamp> = HashMap::new();
    for number in 0..jobs {
        let at = start + Duration::from_millis(chance.random_range(0..600_000));
        // From almost no delay to one that spans several sweeps of the rule.
        let delay = [2_000, 20_000, 70_000, 140_000, 200_000, 600_000][number % 6];
        let mut asked = job("t", number);
        let run_at = at + Duration::from_millis(500 + chance.random_range(0..delay));
        asked.run_at = Some(run_at);
        due.insert(asked.id.clone().unwrap(), run_at);
        cloud.enqueue_at(at, asked);
    }
    cloud.time.run(start + Duration::from_mins(25));
    let calls = cloud.calls.lock().clone();
    assert_eq!(calls.len(), jobs, "each job is delivered once");
    let late = calls.iter().map(|(id, at)| {
        assert!(*at >= due[id], "{id} started at {at} and is due at {}", due[id]);
        at.since(due[id])
    });
    let mut late: Vec<Duration> = late.collect();
    late.sort_unstable();
    (late, cloud)
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[sorted.len() * percent / 100]
}

#[test]
fn delayed_jobs_of_a_queue_without_limits_start_within_a_second() {
    let (late, cloud) = lateness(1, false, 6000);
    let (p50, p99) = (percentile(&late, 50), percentile(&late, 99));
    assert!(p99 < Duration::from_secs(1), "p50 {p50:?}, p99 {p99:?}");
    assert!(p50 < Duration::from_millis(500), "p50 {p50:?}");
    // Dispatched once: by its enqueue or by the lookahead.
    let messages = cloud.count("work");
    assert!(messages <= 6100, "{messages} messages for 6000 jobs");
}

#[test]
fn delayed_jobs_of_a_limited_queue_start_within_a_second() {
    let (late, _) = lateness(2, true, 3000);
    let (p50, p99) = (percentile(&late, 50), percentile(&late, 99));
    assert!(p99 < Duration::from_secs(1), "p50 {p50:?}, p99 {p99:?}");
}

#[test]
fn an_idle_deployment_sends_nothing() {
    let (_, cloud) = lateness(3, false, 6);
    let before = ["work", "hint", "timer"].map(|kind| cloud.count(kind));
    cloud.time.run(cloud.time.now() + Duration::from_hours(2));
    assert_eq!(["work", "hint", "timer"].map(|kind| cloud.count(kind)), before);
}

#[test]
fn a_delayed_job_is_in_time_before_the_rule_has_ever_fired() {
    let cloud = Cloud::new(3);
    let push = TargetConfig::Push(Box::new(Push::to("http://worker.example/work")));
    let config = TypeConfig { target: Some(push), ..TypeConfig::default() };
    cloud.now(cloud.server.put_type(&name("t"), config, None)).unwrap();
    let due = cloud.time.now() + Duration::from_secs(8);
    let mut asked = job("t", 1);
    asked.run_at = Some(due);
    cloud.enqueue_at(cloud.time.now(), asked);
    cloud.time.run(due + Duration::from_secs(1));
    let calls = cloud.calls.lock().clone();
    assert!(matches!(&calls[..], [(_, at)] if *at >= due), "{calls:?}");
}
