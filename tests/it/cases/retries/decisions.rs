//! The decision of a strategy: its wait, its changes, and what else applies to it.

use std::time::Duration;

use serde_json::json;
use tidegate_core::{
    job::{
        Encoding, Outcome, Payload, State,
        lifecycle::{Failure, Reason, Waiting},
        type_config::TypeConfig,
    },
    port::policy::{RetryAnswer, RetryCall, RetryPlan},
    queue::{QueueConfig, plugin::Description},
    time::Seconds,
};
use tidegate_engine::{
    TickInput,
    request::{JobPatch, NewJob, ReportOutcome},
};

use super::{after, fail, failed_once, places, planner, sweep};
use crate::cases::harness::{failed, report, work};

#[tokio::test]
async fn a_failed_attempt_frees_its_slot_and_waits_for_a_decision() {
    for (mut harness, calls) in places(Description::default(), after(30)).await {
        let (job, outcome) = failed_once(&mut harness, work()).await;
        assert!(outcome.pending);
        assert_eq!(
            job.life.state,
            State::Scheduled { run_at: harness.now(), waiting: Waiting::RetryDecision }
        );
        assert_eq!(harness.granted().await, 0);
        assert!(harness.lease(5).await.is_empty(), "it is no candidate");
        assert!(calls.lock().is_empty(), "the tick does not call the retry plugin");
        let explained = harness.explain(&job.id).await;
        let by = explained.held_by.unwrap();
        assert_eq!((by.kind, by.name.as_deref()), ("retry", Some("planner")));
        let decisions = sweep(&harness).await;
        assert_eq!((decisions.changed.len(), decisions.faults.len()), (1, 0));
        assert_eq!(decisions.changed[0].1, job.life.version);
        let planned = harness.now() + Duration::from_secs(30);
        let after = harness.job(&job.id).await;
        assert_eq!(after.life.state, State::Scheduled { run_at: planned, waiting: Waiting::Retry });
        assert_eq!(after.life.history.len(), 1, "one entry for the attempt and what followed it");
        assert_eq!(after.life.history[0].retry_at, Some(planned));
        let call = calls.lock().remove(0);
        assert_eq!(
            (&*call.config, call.job.life.history.len(), call.not_before, call.data),
            ("{\"k\":1}", 1, None, None)
        );
        assert!(sweep(&harness).await.changed.is_empty(), "asked once");
        harness.wait(30);
        assert_eq!(harness.lease(1).await[0].life.attempt, 2);
    }
}

#[tokio::test]
async fn a_retry_decision_may_change_data_and_priority() {
    let says = Description { needs_data: true, ..Description::default() };
    let rewrite = |call: &RetryCall| {
        assert_eq!(
            call.data
                .as_deref()
                .map(|text| serde_json::from_str::<serde_json::Value>(text).unwrap()),
            Some(json!({"region": "east"}))
        );
        RetryAnswer::Retry(RetryPlan {
            data: Some("{\"region\": \"west\"}".into()),
            priority: Some(7),
            ..RetryPlan::new(call.now)
        })
    };
    for (mut harness, _) in places(says, rewrite).await {
        let attributes = [("region".to_owned(), "/region".to_owned())].into();
        harness
            .set_type("work", TypeConfig { retry: planner(), attributes, ..TypeConfig::default() })
            .await;
        let packed = Payload::json("{\"region\": \"east\"}").to_msgpack().unwrap();
        let data = Payload { encoding: Encoding::MessagePack, bytes: packed };
        let (job, _) = failed_once(&mut harness, NewJob { data, ..work() }).await;
        sweep(&harness).await;
        let job = harness.job(&job.id).await;
        assert_eq!(
            (job.spec.priority, job.spec.attributes["region"].text()),
            (7, "west".to_owned())
        );
        let original = job.spec.original.as_ref().unwrap();
        assert_eq!(
            (original.priority, original.attributes["region"].text(), original.data.as_deref()),
            (100, "east".to_owned(), Some("{\"region\":\"east\"}"))
        );
        let data = harness.engine.data(&job).await.unwrap();
        assert_eq!(data.encoding, Encoding::MessagePack, "the encoding it had");
        assert_eq!(
            data,
            Payload {
                encoding: Encoding::MessagePack,
                bytes: Payload::json("{\"region\": \"west\"}").to_msgpack().unwrap()
            }
        );
        // At least 50 ms after the decision.
        assert_eq!(harness.lease(1).await.len(), 0);
        harness.wait(1);
        assert_eq!(harness.lease(1).await[0].life.attempt, 2);
    }
}

/// The first decision changes only the priority, the second and the third the data.
#[tokio::test]
async fn the_data_that_came_are_kept_at_their_first_change() {
    let says = Description { needs_data: true, ..Description::default() };
    let plan = |call: &RetryCall| {
        let data = match call.job.life.attempt {
            1 => None,
            attempt => Some(format!("{{\"attempt\":{attempt}}}")),
        };
        RetryAnswer::Retry(RetryPlan { priority: Some(7), data, ..RetryPlan::new(call.now) })
    };
    for (mut harness, _) in places(says, plan).await {
        let config =
            TypeConfig { max_attempts: Some(9), retry: planner(), ..TypeConfig::default() };
        harness.set_type("work", config).await;
        let came = || Payload::json("{\"attempt\":0}");
        let (job, _) = failed_once(&mut harness, NewJob { data: came(), ..work() }).await;
        for (attempt, kept) in [(2, None), (3, Some(came())), (4, Some(came()))] {
            sweep(&harness).await;
            let spec = harness.job(&job.id).await.spec;
            let original = spec.original.as_ref().unwrap();
            let kept = kept.map(|kept| String::from_utf8(kept.bytes.to_vec()).unwrap());
            assert_eq!(original.data, kept, "before attempt {attempt}");
            harness.wait(1);
            let leased = harness.lease(3).await;
            assert_eq!(leased[0].life.attempt, attempt);
            let reports = vec![report(&leased[0], failed())];
            harness.tick(TickInput { reports, ..TickInput::default() }).await;
        }
    }
}

#[tokio::test]
async fn a_retry_decision_may_name_a_target_of_the_type() {
    // From the own target to the others in turn, and back.
    let plan = |call: &RetryCall| {
        let next = match call.host.as_deref() {
            Some("a.example") => "eu",
            Some("eu.example") => "us",
            Some("us.example") => "",
            _ => "nowhere",
        };
        RetryAnswer::Retry(RetryPlan { target: Some(next.into()), ..RetryPlan::new(call.now) })
    };
    for (mut harness, calls) in places(Description::default(), plan).await {
        let config = json!({
            "target": {"url": "https://a.example/hook"}, "max_attempts": 9,
            "retry_targets": {"eu": "https://eu.example/{id}", "us": "https://us.example/"},
            "retry": {"plugin": "planner", "config": {"k": 1}},
        });
        harness.set_type("work", serde_json::from_value(config).unwrap()).await;
        let (job, _) = failed_once(&mut harness, work()).await;
        let mut chosen = Vec::new();
        for _ in 0..3 {
            assert_eq!(sweep(&harness).await.faults.len(), 0);
            chosen.push(harness.job(&job.id).await.spec.retry_target.clone());
            harness.wait(1);
            let running = harness.lease(1).await.remove(0);
            fail(&mut harness, &running, failed()).await;
        }
        assert_eq!(chosen, [Some("eu".to_owned()), Some("us".to_owned()), None]);
        // A target that is not there is a fault, and one that was removed means the own.
        sweep(&harness).await;
        let config = json!({
            "target": {"url": "https://b.example/hook"}, "max_attempts": 9,
            "retry": {"plugin": "planner", "config": {"k": 1}},
        });
        harness.set_type("work", serde_json::from_value(config).unwrap()).await;
        harness.wait(1);
        let running = harness.lease(1).await.remove(0);
        assert_eq!(running.spec.retry_target.as_deref(), Some("eu"));
        fail(&mut harness, &running, failed()).await;
        let fault = sweep(&harness).await.faults.remove(0).fault;
        assert_eq!(calls.lock().last().unwrap().host.as_deref(), Some("b.example"));
        assert!(fault.message.contains("\"nowhere\", which is not in `retry_targets`"), "{fault}");
    }
}

#[tokio::test]
async fn a_retry_decision_may_change_weight_attempts_and_timeout() {
    let plan = |call: &RetryCall| {
        RetryAnswer::Retry(RetryPlan {
            weight: Some(3),
            attempts_left: Some(2),
            timeout: Some(Seconds::new(7)),
            ..RetryPlan::new(call.now)
        })
    };
    for (mut harness, _) in places(Description::default(), plan).await {
        let only_two =
            TypeConfig { max_attempts: Some(9), retry: planner(), ..TypeConfig::default() };
        harness.set_type("work", only_two).await;
        harness.set_queue(QueueConfig { concurrency: Some(5), ..QueueConfig::default() }).await;
        let (job, _) = failed_once(&mut harness, work()).await;
        for attempt in 2..=3 {
            sweep(&harness).await;
            let spec = harness.job(&job.id).await.spec;
            let now = (spec.weight, spec.max_attempts, spec.timeout);
            assert_eq!(now, (3, attempt + 1, Seconds::new(7)), "two attempts are left each time");
            let original = spec.original.as_ref().unwrap();
            assert_eq!(
                (original.weight, original.max_attempts, original.timeout),
                (Some(1), Some(9), Some(TypeConfig::default().timeout_seconds))
            );
            harness.wait(1);
            let leased = harness.lease(3).await;
            assert_eq!(leased[0].life.attempt, attempt);
            harness
                .tick(TickInput {
                    reports: vec![report(&leased[0], failed())],
                    ..TickInput::default()
                })
                .await;
        }
    }
}

#[tokio::test]
async fn a_weight_over_the_limit_of_the_queue_is_refused() {
    let plan = |call: &RetryCall| {
        RetryAnswer::Retry(RetryPlan { weight: Some(6), ..RetryPlan::new(call.now) })
    };
    for (mut harness, _) in places(Description::default(), plan).await {
        harness.set_queue(QueueConfig { concurrency: Some(5), ..QueueConfig::default() }).await;
        let (job, _) = failed_once(&mut harness, work()).await;
        let fault = sweep(&harness).await.faults.remove(0).fault;
        assert!(fault.message.contains("6 is over the limit 5"), "{fault}");
        assert_eq!(harness.job(&job.id).await.spec.weight, 1, "the backoff decides");
    }
}

#[tokio::test]
async fn a_strategy_may_give_up_with_a_message() {
    for (mut harness, _) in
        places(Description::default(), |_| RetryAnswer::GiveUp(Some("hopeless".into()))).await
    {
        let (job, _) = failed_once(&mut harness, work()).await;
        assert_eq!(sweep(&harness).await.changed.len(), 1);
        let job = harness.job(&job.id).await;
        assert_eq!(job.life.ended(), Some(Outcome::Failed));
        let error = job.life.error.unwrap();
        assert_eq!((error.reason, error.message.as_deref()), (Reason::Failed, Some("hopeless")));
        assert_eq!(
            job.life.history[0].error.as_ref().unwrap().message.as_deref(),
            Some("no"),
            "the attempt's own words stay"
        );
    }
}

#[tokio::test]
async fn windows_and_retry_after_apply_to_a_retry_decision() {
    for (mut harness, calls) in places(Description::default(), after(1)).await {
        let windows = serde_json::from_value(
            json!([{"from": "00:00", "to": "00:10"}, {"from": "08:00", "to": "09:00"}]),
        )
        .unwrap();
        let job =
            harness.enqueue(work().with_options(|options| options.windows = Some(windows))).await;
        let running = harness.lease(1).await.remove(0);
        let start = harness.now();
        let busy = |wait| ReportOutcome::Failed {
            failure: Failure {
                retry_after: Some(Seconds::new(wait)),
                ..Failure::new(Reason::NotDelivered, "busy")
            },
            retryable: true,
        };
        fail(&mut harness, &running, busy(300)).await;
        sweep(&harness).await;
        assert_eq!(calls.lock().remove(0).not_before, Some(start + Duration::from_mins(5)));
        assert_eq!(harness.job(&job.id).await.life.run_at(), Some(start + Duration::from_mins(5)));
        harness.wait(300);
        let running = harness.lease(1).await.remove(0);
        fail(&mut harness, &running, busy(1200)).await;
        sweep(&harness).await;
        assert_eq!(harness.job(&job.id).await.life.run_at(), Some(start + Duration::from_hours(8)));
    }
}

#[tokio::test]
async fn a_strategy_is_not_called_when_no_attempt_may_follow() {
    for (mut harness, calls) in places(Description::default(), after(0)).await {
        let never = || ReportOutcome::Failed {
            failure: Failure::new(Reason::Failed, "no"),
            retryable: false,
        };
        let job = harness.enqueue(work()).await;
        let running = harness.lease(1).await.remove(0);
        assert!(!fail(&mut harness, &running, never()).await.pending);
        assert_eq!(harness.job(&job.id).await.life.ended(), Some(Outcome::Failed));
        let job =
            harness.enqueue(work().with_options(|options| options.max_attempts = Some(1))).await;
        let running = harness.lease(1).await.remove(0);
        fail(&mut harness, &running, failed()).await;
        assert_eq!(harness.job(&job.id).await.life.ended(), Some(Outcome::Failed));
        assert!(sweep(&harness).await.changed.is_empty());
        assert!(calls.lock().is_empty());
    }
}

#[tokio::test]
async fn a_lost_worker_is_a_failure_like_any_other() {
    for (mut harness, _) in places(Description::default(), after(5)).await {
        let job = harness.enqueue(work()).await;
        harness.lease(1).await;
        harness.wait(31);
        harness.tick(TickInput::default()).await;
        // Without a ledger the sweep finds the expired lease.
        sweep(&harness).await;
        let after = harness.job(&job.id).await;
        assert_eq!(
            after.life.state,
            State::Scheduled {
                run_at: harness.now() + Duration::from_secs(5),
                waiting: Waiting::Retry
            }
        );
        assert_eq!(after.life.history[0].error.as_ref().unwrap().reason, Reason::LeaseExpired);
    }
}

#[tokio::test]
async fn a_job_awaiting_a_retry_decision_can_be_cancelled_or_changed() {
    for (mut harness, calls) in places(Description::default(), after(60)).await {
        let (job, _) = failed_once(&mut harness, work()).await;
        harness.engine.cancel(&job.id, None, false).await.unwrap();
        assert_eq!(harness.job(&job.id).await.life.ended(), Some(Outcome::Cancelled));
        let (job, _) = failed_once(&mut harness, work()).await;
        let patch = JobPatch { priority: Some(Some(3)), ..JobPatch::default() };
        let (_, patched) = harness.engine.patch(&job.id, None, patch, None).await.unwrap();
        assert!(patched.life.awaits_retry_decision(), "what follows is still to be said");
        sweep(&harness).await;
        let job = harness.job(&job.id).await;
        assert_eq!(
            (job.spec.priority, job.life.run_at()),
            (3, Some(harness.now() + Duration::from_mins(1)))
        );
        harness.engine.cancel(&job.id, None, false).await.unwrap();
        calls.lock().clear();
        let (job, _) = failed_once(&mut harness, work()).await;
        let patch = JobPatch { run_at: Some(harness.now()), ..JobPatch::default() };
        harness.engine.patch(&job.id, None, patch, None).await.unwrap();
        assert_eq!(harness.lease(1).await[0].id, job.id, "a patch has set the time");
        assert!(sweep(&harness).await.changed.is_empty());
        assert!(calls.lock().is_empty());
    }
}

#[tokio::test]
async fn a_job_awaiting_a_decision_expires_and_has_a_deadline() {
    for (mut harness, calls) in places(Description::default(), after(60)).await {
        let expires_at = Some(harness.now() + Duration::from_secs(10));
        let (expires, _) = failed_once(&mut harness, NewJob { expires_at, ..work() }).await;
        let (dies, _) = failed_once(
            &mut harness,
            work().with_options(|options| options.deadline_seconds = Some(Seconds::new(10))),
        )
        .await;
        harness.wait(10);
        assert!(harness.lease(5).await.is_empty());
        sweep(&harness).await;
        assert_eq!(harness.job(&expires.id).await.life.ended(), Some(Outcome::Expired));
        assert_eq!(harness.job(&dies.id).await.life.ended(), Some(Outcome::Failed));
        assert!(calls.lock().is_empty());
    }
}

#[tokio::test]
async fn of_two_concurrent_decisions_one_is_written() {
    for (mut harness, calls) in places(Description::default(), after(60)).await {
        let (job, _) = failed_once(&mut harness, work()).await;
        let pending = harness.engine.sweep().await.unwrap().pending;
        let first = harness.engine.decide_retries(pending.clone()).await.unwrap();
        let second = harness.engine.decide_retries(pending).await.unwrap();
        assert_eq!((first.changed.len(), second.changed.len(), calls.lock().len()), (1, 0, 2));
        assert_eq!(harness.job(&job.id).await.life.version, first.changed[0].0.life.version);
    }
}
