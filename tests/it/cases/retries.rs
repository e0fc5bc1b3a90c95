//! Retry strategies of users: after a failed attempt the job waits for the decision of the
//! strategy.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use object_store::ObjectStoreExt;
use parking_lot::Mutex;
use serde_json::json;
use tidegate_core::{
    job::{
        Body, Encoding, Job, Outcome, Payload, State,
        lifecycle::{Failure, Reason, Waiting},
        retry::Retry,
        type_config::TypeConfig,
    },
    port::policy::{Fault, FaultKind, RetryAnswer, RetryCall},
    queue::{QueueConfig, plugin::Description},
    time::Seconds,
};
use tidegate_engine::{
    OBJECT_BYTES, TickInput, TickOutcome,
    plugins::retry_decisions::RetryDecisions,
    request::{JobPatch, NewJob, ReportOutcome},
    testkit::{FnPolicy, builders::name, policies::fault},
};

use super::harness::{Harness, every_store, failed, report, work};
use crate::outage::Objects;

/// Harnesses whose type `work` has this retry strategy, with the calls it received. Half of them
/// have a limit.
async fn places(
    says: Description,
    answer: impl Fn(&RetryCall) -> RetryAnswer + Send + Sync + 'static,
) -> Vec<(Harness, Arc<Mutex<Vec<RetryCall>>>)> {
    let answer = Arc::new(answer);
    let mut places = Vec::new();
    for (harness, limit) in every_store()
        .into_iter()
        .zip([Some(1), None])
        .chain(every_store().into_iter().zip([None, Some(1)]))
    {
        let calls: Arc<Mutex<Vec<RetryCall>>> = Arc::default();
        let (noted, answer) = (Arc::clone(&calls), Arc::clone(&answer));
        let harness = harness.with_policy(FnPolicy::default().retrying(move |_, call| {
            noted.lock().push(call.clone());
            Ok(answer(call))
        }));
        harness.set_queue(QueueConfig { concurrency: limit, ..QueueConfig::default() }).await;
        harness.push("planner", "v1", None, Some(says.clone())).await.unwrap();
        harness.set_type("work", TypeConfig { retry: planner(), ..TypeConfig::default() }).await;
        places.push((harness, calls));
    }
    places
}

fn planner() -> Retry {
    Retry::Plugin(name("planner"), Arc::new(json!({"k": 1})))
}

fn after(seconds: u64) -> impl Fn(&RetryCall) -> RetryAnswer + Send + Sync + 'static {
    move |call| RetryAnswer::Retry {
        at: call.now + Duration::from_secs(seconds),
        data: None,
        priority: None,
    }
}

/// Fails the running attempt.
async fn fail(harness: &mut Harness, running: &Job, verdict: ReportOutcome) -> TickOutcome {
    harness
        .tick(TickInput { reports: vec![report(running, verdict)], ..TickInput::default() })
        .await
}

/// Enqueues `job`, runs it, fails it.
async fn failed_once(harness: &mut Harness, job: NewJob) -> (Job, TickOutcome) {
    let job = harness.enqueue(job).await;
    let running = harness.lease(1).await.remove(0);
    let outcome = fail(harness, &running, failed()).await;
    (harness.job(&job.id).await, outcome)
}

/// Acts as the sweeper: finds jobs that await a retry decision and calls the strategy.
async fn sweep(harness: &Harness) -> RetryDecisions {
    let swept = harness.engine.sweep().await.unwrap();
    harness.engine.verdicts(swept.pending).await.unwrap()
}

#[tokio::test]
async fn a_failed_attempt_frees_its_slot_and_waits_for_its_verdict() {
    for (mut harness, calls) in places(Description::default(), after(30)).await {
        let (job, outcome) = failed_once(&mut harness, work()).await;
        assert!(outcome.pending);
        assert_eq!(
            job.life.state,
            State::Scheduled { run_at: harness.now(), waiting: Waiting::RetryDecision }
        );
        assert_eq!(harness.granted().await, 0);
        assert!(harness.lease(5).await.is_empty(), "it is no candidate");
        assert!(calls.lock().is_empty(), "nobody was asked in the round");
        let explained = harness.engine.explain(&job.id, None, |_| true).await.unwrap();
        let by = explained.held_by.unwrap();
        assert_eq!((by.kind, by.name.as_deref()), ("retry", Some("planner")));
        let verdicts = sweep(&harness).await;
        assert_eq!((verdicts.changed.len(), verdicts.faults.len()), (1, 0));
        assert_eq!(verdicts.changed[0].1, job.life.version);
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
async fn a_verdict_may_change_data_and_priority() {
    let says = Description { needs_data: true, ..Description::default() };
    let rewrite = |call: &RetryCall| {
        assert_eq!(
            call.data
                .as_deref()
                .map(|text| serde_json::from_str::<serde_json::Value>(text).unwrap()),
            Some(json!({"region": "east"}))
        );
        RetryAnswer::Retry {
            at: call.now,
            data: Some("{\"region\": \"west\"}".into()),
            priority: Some(7),
        }
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
        let data = harness.engine.data(&job).await.unwrap();
        assert_eq!(data.encoding, Encoding::MessagePack, "the encoding it had");
        assert_eq!(
            data,
            Payload {
                encoding: Encoding::MessagePack,
                bytes: Payload::json("{\"region\": \"west\"}").to_msgpack().unwrap()
            }
        );
        assert_eq!(harness.lease(1).await[0].life.attempt, 2);
    }
}

#[tokio::test]
async fn an_unstorable_retry_decision_is_retried_and_blocks_no_other() {
    let answer = |call: &RetryCall| {
        let large = call.job.spec.priority == 1;
        let data = large.then(|| format!("\"{}\"", "x".repeat(OBJECT_BYTES)));
        RetryAnswer::Retry { at: call.now, data, priority: None }
    };
    for (mut harness, _) in places(Description::default(), answer).await {
        let objects = Arc::new(Objects::default());
        harness.objects(Arc::clone(&objects) as _);
        let (large, _) =
            failed_once(&mut harness, work().with_options(|options| options.priority = Some(1)))
                .await;
        let (small, _) = failed_once(&mut harness, work()).await;
        objects.be_away(true);
        let changed = sweep(&harness).await.changed;
        assert_eq!(changed.iter().map(|(job, _)| &job.id).collect::<Vec<_>>(), [&small.id]);
        assert_eq!(objects.refused(), 1);
        assert!(harness.job(&large.id).await.life.awaits_retry_decision());
        objects.be_away(false);
        assert_eq!(sweep(&harness).await.changed.len(), 1);
        let large = harness.job(&large.id).await;
        assert!(
            !large.life.awaits_retry_decision()
                && harness.engine.data(&large).await.unwrap().bytes.len() > OBJECT_BYTES
        );
    }
}

#[tokio::test]
async fn a_strategy_is_not_called_while_the_data_is_unreadable() {
    for (mut harness, calls) in
        places(Description { needs_data: true, ..Description::default() }, after(0)).await
    {
        let objects = Arc::new(Objects::default());
        harness.objects(Arc::clone(&objects) as _);
        let large = || NewJob {
            data: Payload::json(format!("\"{}\"", "x".repeat(OBJECT_BYTES))),
            ..work()
        };
        let (job, _) = failed_once(&mut harness, large()).await;
        objects.be_away(true);
        assert!(sweep(&harness).await.changed.is_empty());
        assert!(calls.lock().is_empty() && harness.job(&job.id).await.life.awaits_retry_decision());
        objects.be_away(false);
        assert_eq!(sweep(&harness).await.changed.len(), 1);
        assert!(calls.lock().remove(0).data.is_some());
        harness.engine.cancel(&job.id, None, false).await.unwrap();
        // Missing data stays missing: the strategy is called without it.
        let (job, _) = failed_once(&mut harness, large()).await;
        let Body::Object { key, .. } = &job.data else { panic!("{:?}", job.data) };
        objects.delete(&key.as_str().into()).await.unwrap();
        assert_eq!(sweep(&harness).await.changed.len(), 1);
        assert_eq!(calls.lock().remove(0).data, None);
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
async fn windows_and_the_targets_wish_apply_to_a_verdict() {
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
            failure: Failure::new(Reason::NotDelivered, "busy"),
            retryable: true,
            least_wait: wait,
        };
        fail(&mut harness, &running, busy(Duration::from_mins(5))).await;
        sweep(&harness).await;
        assert_eq!(calls.lock().remove(0).not_before, Some(start + Duration::from_mins(5)));
        assert_eq!(harness.job(&job.id).await.life.run_at(), Some(start + Duration::from_mins(5)));
        harness.wait(300);
        let running = harness.lease(1).await.remove(0);
        fail(&mut harness, &running, busy(Duration::from_mins(20))).await;
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
            least_wait: Duration::ZERO,
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
async fn a_failing_or_invalid_strategy_falls_back_to_the_backoff() {
    for harness in every_store() {
        let turn = Arc::new(AtomicU32::new(0));
        let at = Arc::clone(&turn);
        let mut harness = harness.with_policy(FnPolicy::default().retrying(move |_, call| {
            let (at_once, far) = (call.now, call.now + Duration::from_hours(367 * 24));
            match at.fetch_add(1, Ordering::Relaxed) {
                0 => Err(fault("it divided by zero")),
                1 => Ok(RetryAnswer::Retry { at: far, data: None, priority: None }),
                2 => Ok(RetryAnswer::Retry { at: at_once, data: Some("{".into()), priority: None }),
                _ => Ok(RetryAnswer::Retry {
                    at: at_once,
                    data: Some(format!("\"{}\"", "x".repeat(5 << 20))),
                    priority: None,
                }),
            }
        }));
        harness.push("planner", "v1", None, Some(Description::default())).await.unwrap();
        harness.set_type("work", TypeConfig { retry: planner(), ..TypeConfig::default() }).await;
        for seconds in [0, 1, 2, 4] {
            // It is not called for this time.
            harness.wait(seconds);
            let (job, _) = failed_once(&mut harness, work()).await;
            let verdicts = sweep(&harness).await;
            assert_eq!((verdicts.changed.len(), verdicts.faults.len()), (1, 1));
            assert_eq!(verdicts.faults[0].call.job.id, job.id, "with the input that did it");
            let after = harness.job(&job.id).await;
            let wait = after.life.run_at().unwrap().since(harness.now());
            assert!(
                wait >= Duration::from_millis(500) && wait <= Duration::from_secs(2),
                "{wait:?}"
            );
            assert_eq!(after.data, job.data);
            harness.engine.cancel(&job.id, None, false).await.unwrap();
        }
        assert_eq!(turn.load(Ordering::Relaxed), 4);
        let found: Vec<FaultKind> =
            harness.policy.faults().iter().map(|fault| fault.kind).collect();
        assert_eq!(
            found,
            [FaultKind::InvalidAnswer],
            "whoever runs plugins hears of the one that only the engine can see"
        );
    }
}

#[tokio::test]
async fn a_failed_strategy_pauses_and_the_backoff_decides() {
    for harness in every_store() {
        let (kind, asked) = (Arc::new(Mutex::new(FaultKind::Timeout)), Arc::new(AtomicU32::new(0)));
        let (fails, count) = (Arc::clone(&kind), Arc::clone(&asked));
        let mut harness = harness.with_policy(FnPolicy::default().retrying(move |plugin, call| {
            count.fetch_add(1, Ordering::Relaxed);
            if plugin.version.number == 2 {
                return Ok(RetryAnswer::GiveUp(None));
            }
            Err(Fault {
                kind: *fails.lock(),
                message: format!("took longer than 250 ms with {}", call.config),
            })
        }));
        harness.push("planner", "v1", None, Some(Description::default())).await.unwrap();
        harness.set_type("work", TypeConfig { retry: planner(), ..TypeConfig::default() }).await;
        // A burst of failures: the number of concurrent calls is bounded.
        harness.enqueue_many((0..100).map(|_| work())).await;
        let running = harness.lease(100).await;
        let reports = running.iter().map(|job| report(job, failed())).collect();
        harness.tick(TickInput { reports, ..TickInput::default() }).await;
        let verdicts = sweep(&harness).await;
        assert_eq!(verdicts.changed.len(), 100, "each has its backoff");
        assert!(verdicts.faults.len() <= 4, "{} were asked", verdicts.faults.len());
        assert!(harness.job(&running[99].id).await.life.run_at().unwrap() > harness.now());
        for job in running {
            harness.engine.cancel(&job.id, None, false).await.unwrap();
        }
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            for (wait, faults) in [(seconds - 1, 0), (1, 1)] {
                harness.wait(wait);
                let (job, _) = failed_once(&mut harness, work()).await;
                let verdicts = sweep(&harness).await;
                assert_eq!(
                    (verdicts.changed.len(), verdicts.faults.len()),
                    (1, faults),
                    "{wait} s of {seconds}"
                );
                harness.engine.cancel(&job.id, None, false).await.unwrap();
            }
        }
        // Another configuration has a circuit breaker of its own, and so has another version.
        let other = Retry::Plugin(name("planner"), Arc::new(json!({"k": 2})));
        let (job, _) =
            failed_once(&mut harness, work().with_options(|options| options.retry = Some(other)))
                .await;
        assert_eq!(sweep(&harness).await.faults.len(), 1);
        harness.engine.cancel(&job.id, None, false).await.unwrap();
        harness.push("planner", "v2", None, Some(Description::default())).await.unwrap();
        failed_once(&mut harness, work()).await;
        assert_eq!(sweep(&harness).await.changed[0].0.life.ended(), Some(Outcome::Failed));
        // A refusal concerns one job only, so the circuit stays closed.
        *kind.lock() = FaultKind::Rejected;
        harness.engine.rollback_plugin(&name("planner"), None).await.unwrap();
        harness.wait(30);
        asked.store(0, Ordering::Relaxed);
        for _ in 0..2 {
            failed_once(&mut harness, work()).await;
            assert_eq!(sweep(&harness).await.faults.len(), 1);
        }
    }
}

#[tokio::test]
async fn a_strategy_that_is_gone_falls_back_to_the_backoff() {
    for (mut harness, _) in places(Description::default(), after(0)).await {
        harness.set_type("work", TypeConfig::default()).await;
        let (job, _) = failed_once(
            &mut harness,
            work().with_options(|options| options.retry = Some(planner())),
        )
        .await;
        harness.engine.delete_plugin(&name("planner")).await.unwrap();
        let verdicts = sweep(&harness).await;
        assert_eq!(verdicts.faults.len(), 1);
        assert!(matches!(
            harness.job(&job.id).await.life.state,
            State::Scheduled { waiting: Waiting::Retry, .. }
        ));
    }
}

#[tokio::test]
async fn a_job_awaiting_a_retry_decision_can_be_cancelled_or_changed() {
    for (mut harness, calls) in places(Description::default(), after(60)).await {
        let (job, _) = failed_once(&mut harness, work()).await;
        harness.engine.cancel(&job.id, None, false).await.unwrap();
        assert_eq!(harness.job(&job.id).await.life.ended(), Some(Outcome::Cancelled));
        let (job, _) = failed_once(&mut harness, work()).await;
        let patch = JobPatch { priority: Some(3), ..JobPatch::default() };
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
        assert_eq!(harness.lease(1).await[0].id, job.id, "somebody else said when");
        assert!(sweep(&harness).await.changed.is_empty());
        assert!(calls.lock().is_empty());
    }
}

#[tokio::test]
async fn a_job_that_waits_for_its_verdict_expires_and_has_a_deadline() {
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
async fn of_two_who_ask_one_writes() {
    for (mut harness, calls) in places(Description::default(), after(60)).await {
        let (job, _) = failed_once(&mut harness, work()).await;
        let pending = harness.engine.sweep().await.unwrap().pending;
        let first = harness.engine.verdicts(pending.clone()).await.unwrap();
        let second = harness.engine.verdicts(pending).await.unwrap();
        assert_eq!((first.changed.len(), second.changed.len(), calls.lock().len()), (1, 0, 2));
        assert_eq!(harness.job(&job.id).await.life.version, first.changed[0].0.life.version);
    }
}
