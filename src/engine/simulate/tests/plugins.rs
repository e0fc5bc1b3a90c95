//! Throttlers and retry strategies.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{run, shared_queue, shares, throttled, unmet, version, with};
use crate::{
    simulate::{Plugins, policies::Measured, report::Over},
    testkit::FnPolicy,
};
use tidegate_core::{
    job::{Job, JobId},
    port::policy::{
        Action, Decision, Fault, FaultKind, Plugin, RetryAnswer, RetryPlan, ThrottleAnswer,
    },
};

#[tokio::test]
async fn a_throttler_that_exceeds_its_shares_is_detected() {
    let right = with(&shared_queue(), &shares(40)).await;
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

    let wrong = with(&shared_queue(), &shares(41)).await;
    assert_eq!(unmet(&wrong.report), ["max_running region=east"]);
    // The first difference is the forty-first job of `east`, at the start.
    let (first, count) = right.differences(&wrong);
    assert!(count > 0);
    assert_eq!((first[0].at_seconds, first[0].value.as_str()), (0.0, "east"));
    assert_eq!((first[0].one.as_str(), first[0].other.as_str()), ("hold: east uses # of #", "run"));
    assert_eq!(right.differences(&with(&shared_queue(), &shares(40)).await), (Vec::new(), 0));
}

#[tokio::test]
async fn a_throttler_drops_and_reschedules() {
    let plugins = throttled(|call| {
        let decide = |job: &Job| match job.spec.priority {
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
async fn throttler_faults_are_counted_and_the_queue_continues() {
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
    let first = report.calls["throttler"].first_fault.as_ref().unwrap();
    assert_eq!((first.kind.as_str(), first.message.as_str()), ("trapped", "it panicked"));
}

#[tokio::test]
async fn the_report_has_the_first_fault_with_its_log() {
    let calls = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let policy = FnPolicy::default().throttling(move |_, call| {
        // The second call fails, and a later one too.
        if [1, 3].contains(&calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
            return Err(Fault { kind: FaultKind::Rejected, message: "state k: full".into() });
        }
        let hold = Decision { action: Action::Hold(None), reason: None };
        let run = Decision { action: Action::Run, reason: None };
        let first = std::iter::once(run).chain(std::iter::repeat(hold));
        let decisions = first.take(call.candidates.len()).collect();
        Ok(ThrottleAnswer { decisions, more: false, state: None })
    });
    let logged = std::sync::atomic::AtomicU32::new(0);
    let meter = Arc::new(move |_: &Plugin| {
        let call = logged.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let log = vec![("info", format!("call {call}")); if call == 1 { 30 } else { 100 }];
        Some(Measured { log, ..Measured::default() })
    });
    let plugins =
        Plugins { policy: Arc::new(policy), meter: Some(meter), ..throttled(|_| Vec::new()) };
    let json = json!({
        "tick_seconds": 1,
        "arrivals": [{"type": "t", "count": 4, "every_seconds": 10}],
        "service": [{"seconds": 1}],
    });
    let report = with(&json, &plugins).await.report;
    let of = &report.calls["throttler"];
    let first = of.first_fault.as_ref().unwrap();
    assert_eq!((first.kind.as_str(), first.message.as_str()), ("rejected", "state k: full"));
    assert!((first.at_seconds - 10.0).abs() < 1.5, "{first:?}");
    assert_eq!(first.log.len(), 20);
    assert!(first.log.iter().all(|line| line.message == "call 1"), "{first:?}");
    assert_eq!(of.logged, 30 + 100 * (of.calls - 1));
    assert_eq!(of.log.len(), 200, "the rest is only counted");
    let at: Vec<f64> = of.log.iter().map(|line| line.at_seconds).collect();
    assert!(
        at.is_sorted() && at[100..130].iter().all(|at| at.total_cmp(&first.at_seconds).is_eq()),
        "{at:?}"
    );
}

#[tokio::test]
async fn attempts_fail_in_the_given_period_and_are_retried() {
    let retry =
        json!({"strategy": "exponential", "config": {"base_seconds": 30, "jitter": "none"}});
    let json = json!({
        "types": {"t": {"retry": retry}},
        "arrivals": [{"type": "t", "count": 10, "every_seconds": 10}],
        "service": [{
            "seconds": 1,
            "failure": {
                "rate": 1,
                "reason": "not_delivered",
                "status": 503,
                "seconds": 0.5,
                "during_seconds": [20, 50],
            },
        }],
    });
    let report = run(json.clone()).await;
    // Jobs that arrive at 20, 30 and 40 s fail once; their retries at 50.5 s or later succeed.
    assert_eq!((report.all.retries, report.all.succeeded), (3, 10));

    let policy = FnPolicy::default().retrying(|_, call| {
        let failure = call.job.life.error.clone().unwrap();
        assert_eq!(failure.status, Some(503));
        let attempt = call.job.life.attempt;
        Ok(if attempt > 1 {
            RetryAnswer::GiveUp(Some("enough".into()))
        } else {
            RetryAnswer::Retry(RetryPlan::new(call.now))
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
async fn a_failure_carries_message_details_and_wait() {
    let reported = json!({
        "status": 429, "message": "Retry-After: 30", "details": {"left": 0},
        "not_before_seconds": 30,
    });
    let failure = |more: Value| {
        let mut failure = reported.as_object().unwrap().clone();
        failure.extend(more.as_object().unwrap().clone());
        Value::from(failure)
    };
    let drawn = json!({
        "arrivals": [{"type": "t", "count": 1}],
        "service": [{"seconds": 1, "failure": failure(json!({"rate": 1, "during_seconds": [0, 5]}))}],
    });
    let attempt = failure(json!({"seconds": 1, "outcome": "failed", "reason": "not_delivered"}));
    let traced =
        json!({"jobs": [{"id": "a", "type": "t", "at_seconds": 0, "attempts": [attempt]}]});
    for scenario in [drawn, traced] {
        let policy = FnPolicy::default().retrying(|_, call| {
            let failure = call.job.life.error.clone().unwrap();
            let reported = (failure.status, failure.message.as_deref(), failure.details.as_deref());
            assert_eq!(reported, (Some(429), Some("Retry-After: 30"), Some(r#"{"left":0}"#)));
            assert!(call.not_before.is_some_and(|at| at > call.now));
            Ok(RetryAnswer::Retry(RetryPlan::new(call.now)))
        });
        let plugins = Plugins {
            policy: Arc::new(policy),
            retry: Some((version(false), Arc::new(json!({})))),
            ..Plugins::default()
        };
        let report = with(&scenario, &plugins).await.report;
        assert_eq!((report.all.retries, report.all.succeeded), (1, 1), "{scenario}");
        assert!((report.seconds - 32.0).abs() < 0.01, "it waits for 30 s: {}", report.seconds);
    }
}

/// Its jobs go to `main.example`, or to `backup.example` if a strategy chooses that.
fn two_targets() -> Value {
    json!({
        "target": {
            "url": "https://main.example/hooks/{id}?key=secret",
            "headers": {"x-key": "secret"},
            "complete": "on_result",
        },
        "retry_targets": {"backup": "https://backup.example/hooks/{id}?key=secret"},
    })
}

#[tokio::test]
async fn a_retry_strategy_chooses_a_target_in_a_simulation() {
    let policy = FnPolicy::default().retrying(|_, call| {
        let chosen = call.job.spec.retry_target.as_deref();
        let host = if chosen.is_some() { "backup.example" } else { "main.example" };
        assert_eq!(call.host.as_deref(), Some(host));
        let plan = RetryPlan::new(call.now);
        Ok(RetryAnswer::Retry(RetryPlan { target: Some("backup".into()), ..plan }))
    });
    let plugins = Plugins {
        policy: Arc::new(policy),
        retry: Some((version(false), Arc::new(json!({})))),
        ..Plugins::default()
    };
    // The first host always fails, and the second one half of the time.
    let json = json!({
        "types": {"t": two_targets()},
        "arrivals": [{"type": "t", "count": 40}],
        "service": [
            {"host": "Main.example", "seconds": 1, "failure": {"rate": 1}},
            {"host": "backup.example", "seconds": 1, "failure": {"rate": 0.5}},
        ],
    });
    let report = with(&json, &plugins).await.report;
    assert_eq!(report.calls["retry"].faults, [].into());
    assert!((41..80).contains(&report.all.retries), "{}", report.all.retries);
    assert!(report.all.succeeded > 20, "{}", report.all.succeeded);
}

#[tokio::test]
async fn a_throttler_sees_what_a_job_was_enqueued_with() {
    let traced = json!({
        "id": "a", "type": "t", "at_seconds": 1, "deadline_seconds": 61,
        "replay_of": "old", "correlation_key": "order-1",
    });
    let stream = json!({
        "type": "t", "count": 2, "from_seconds": 1, "deadline_seconds": 60, "replay_of": "old",
        "correlation_key": "order-{n}",
    });
    for (scenario, keys) in [
        (json!({"jobs": [traced]}), &["order-1"][..]),
        (json!({"arrivals": [stream]}), &["order-1", "order-2"]),
    ] {
        let seen = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        let plugins = throttled(move |call| {
            let decide = |job: &Job| {
                let spec = &job.spec;
                assert_eq!(call.hosts.of(&spec.job_type, None), Some("main.example"));
                assert_eq!(spec.replay_of.as_ref().map(JobId::as_str), Some("old"));
                let from_creation = spec.deadline_at.map(|at| at.since(spec.created_at).as_secs());
                assert_eq!(from_creation, Some(60));
                kept.lock().extend(spec.correlation_key.clone());
                (Action::Run, String::new())
            };
            call.candidates.iter().map(decide).collect()
        });
        let mut scenario = scenario;
        scenario["types"] = json!({"t": two_targets()});
        let report = with(&scenario, &plugins).await.report;
        assert_eq!(report.all.succeeded, keys.len() as u64);
        assert_eq!(*seen.lock(), keys);
    }
}

/// In the trace, the first job had ended when the second one took its key.
#[tokio::test]
async fn a_key_that_a_simulated_job_still_holds_is_left_out() {
    let job = |id: &str, at: u64| json!({"id": id, "type": "t", "at_seconds": at, "correlation_key": "k"});
    let scenario = json!({
        "queue": {"concurrency": 1},
        "jobs": [job("a", 0), job("b", 5), job("c", 25)],
        "service": [{"seconds": 10}],
    });
    let seen = Arc::new(parking_lot::Mutex::new(std::collections::BTreeMap::new()));
    let kept = Arc::clone(&seen);
    let plugins = throttled(move |call| {
        let decide = |job: &Job| {
            kept.lock().insert(job.id.to_string(), job.spec.correlation_key.clone());
            (Action::Run, String::new())
        };
        call.candidates.iter().map(decide).collect()
    });
    let report = with(&scenario, &plugins).await.report;
    assert_eq!(report.all.succeeded, 3);
    let key = Some("k".to_owned());
    let expected = [("a", key.clone()), ("b", None), ("c", key)];
    assert_eq!(*seen.lock(), expected.map(|(id, key)| (id.to_owned(), key)).into());
}

#[tokio::test]
async fn a_retry_that_a_strategy_wants_now_waits_for_50_ms() {
    let policy = FnPolicy::default().retrying(|_, call| {
        let plan = RetryPlan { attempts_left: Some(9), ..RetryPlan::new(call.now) };
        Ok(RetryAnswer::Retry(plan))
    });
    let plugins = Plugins {
        policy: Arc::new(policy),
        retry: Some((version(false), Arc::new(json!({})))),
        ..Plugins::default()
    };
    let json = json!({
        "duration_seconds": 1,
        "arrivals": [{"type": "t", "count": 1}],
        "service": [{"seconds": 0, "failure": {"rate": 1}}],
    });
    let report = with(&json, &plugins).await.report;
    assert_eq!((report.over, report.all.retries), (Over::Duration, 19));
}
