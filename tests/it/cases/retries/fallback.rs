//! A strategy that fails, is missing, or cannot be called.

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
        Body, Outcome, Payload, State, lifecycle::Waiting, retry::Retry, type_config::TypeConfig,
    },
    port::policy::{Fault, FaultKind, RetryAnswer, RetryCall, RetryPlan},
    queue::plugin::Description,
};
use tidegate_engine::{
    OBJECT_BYTES, TickInput,
    request::NewJob,
    testkit::{FnPolicy, builders::name, objects::FaultyObjects, policies::fault},
};

use super::{after, failed_once, places, planner, sweep};
use crate::{
    cases::harness::{every_store, failed, report, work},
    outage::OUTAGE,
};

#[tokio::test]
async fn an_unstorable_retry_decision_is_retried_and_blocks_no_other() {
    let answer = |call: &RetryCall| {
        let large = call.job.spec.priority == 1;
        let data = large.then(|| format!("\"{}\"", "x".repeat(OBJECT_BYTES)));
        RetryAnswer::Retry(RetryPlan { data, ..RetryPlan::new(call.now) })
    };
    for (mut harness, _) in places(Description::default(), answer).await {
        let objects = Arc::new(FaultyObjects::default());
        harness.objects(Arc::clone(&objects) as _);
        let (large, _) =
            failed_once(&mut harness, work().with_options(|options| options.priority = Some(1)))
                .await;
        let (small, _) = failed_once(&mut harness, work()).await;
        objects.fail(OUTAGE);
        let changed = sweep(&harness).await.changed;
        assert_eq!(changed.iter().map(|(job, _)| &job.id).collect::<Vec<_>>(), [&small.id]);
        assert_eq!(objects.failed(), 1);
        assert!(harness.job(&large.id).await.life.awaits_retry_decision());
        objects.fail([]);
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
        let objects = Arc::new(FaultyObjects::default());
        harness.objects(Arc::clone(&objects) as _);
        let large = || NewJob {
            data: Payload::json(format!("\"{}\"", "x".repeat(OBJECT_BYTES))),
            ..work()
        };
        let (job, _) = failed_once(&mut harness, large()).await;
        objects.fail(OUTAGE);
        assert!(sweep(&harness).await.changed.is_empty());
        assert!(calls.lock().is_empty() && harness.job(&job.id).await.life.awaits_retry_decision());
        objects.fail([]);
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
async fn a_failing_or_invalid_strategy_falls_back_to_the_backoff() {
    for harness in every_store() {
        let turn = Arc::new(AtomicU32::new(0));
        let at = Arc::clone(&turn);
        let mut harness = harness.with_policy(FnPolicy::default().retrying(move |_, call| {
            let (at_once, far) = (call.now, call.now + Duration::from_hours(367 * 24));
            match at.fetch_add(1, Ordering::Relaxed) {
                0 => Err(fault("it divided by zero")),
                1 => Ok(RetryAnswer::Retry(RetryPlan::new(far))),
                2 => Ok(RetryAnswer::Retry(RetryPlan {
                    data: Some("{".into()),
                    ..RetryPlan::new(at_once)
                })),
                _ => Ok(RetryAnswer::Retry(RetryPlan {
                    data: Some(format!("\"{}\"", "x".repeat(5 << 20))),
                    ..RetryPlan::new(at_once)
                })),
            }
        }));
        harness.push("planner", "v1", None, Some(Description::default())).await.unwrap();
        harness.set_type("work", TypeConfig { retry: planner(), ..TypeConfig::default() }).await;
        for seconds in [0, 1, 2, 4] {
            // It is not called for this time.
            harness.wait(seconds);
            let (job, _) = failed_once(&mut harness, work()).await;
            let decisions = sweep(&harness).await;
            assert_eq!((decisions.changed.len(), decisions.faults.len()), (1, 1));
            assert_eq!(decisions.faults[0].call.job.id, job.id, "with the input that did it");
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
            "the plugin host receives the fault that only the engine can see"
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
                message: format!("used more than 250 ms of processor time with {}", call.config),
            })
        }));
        harness.push("planner", "v1", None, Some(Description::default())).await.unwrap();
        harness.set_type("work", TypeConfig { retry: planner(), ..TypeConfig::default() }).await;
        // A burst of failures: the number of concurrent calls is bounded.
        harness.enqueue_many((0..100).map(|_| work())).await;
        let running = harness.lease(100).await;
        let reports = running.iter().map(|job| report(job, failed())).collect();
        harness.tick(TickInput { reports, ..TickInput::default() }).await;
        let decisions = sweep(&harness).await;
        assert_eq!(decisions.changed.len(), 100, "each has its backoff");
        assert!(decisions.faults.len() <= 4, "{} were asked", decisions.faults.len());
        assert!(harness.job(&running[99].id).await.life.run_at().unwrap() > harness.now());
        for job in running {
            harness.engine.cancel(&job.id, None, false).await.unwrap();
        }
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            for (wait, faults) in [(seconds - 1, 0), (1, 1)] {
                harness.wait(wait);
                let (job, _) = failed_once(&mut harness, work()).await;
                let decisions = sweep(&harness).await;
                assert_eq!(
                    (decisions.changed.len(), decisions.faults.len()),
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
        let decisions = sweep(&harness).await;
        assert_eq!(decisions.faults.len(), 1);
        assert!(matches!(
            harness.job(&job.id).await.life.state,
            State::Scheduled { waiting: Waiting::Retry, .. }
        ));
    }
}
