//! The state of a retry strategy: one in each queue, committed with the decisions.

use std::{sync::Arc, time::Duration};

use futures_util::future::join;
use tidegate_core::{
    job::{Job, type_config::TypeConfig},
    port::{
        job_store::{Record, RecordKind, RecordQuery},
        policy::{PolicyState, RetryAnswer, RetryCall, RetryOutput, RetryPlan, StateValue},
    },
    queue::{QueueConfig, plugin::Description},
};
use tidegate_engine::{
    TickInput,
    testkit::{FnPolicy, builders::name},
};

use super::{failed_once, planner, sweep};
use crate::cases::harness::{
    Harness, Yielding, every_store_and_table, failed, queue, report, with, work,
};

/// Counts its calls under `n`, and adds this many bytes under the id of each job.
fn counting(bytes: usize) -> FnPolicy {
    FnPolicy::default().retrying_with_state(move |_, call| {
        let mut state = (*call.state).clone();
        state.set("n".into(), (counted(&state) + 1).to_string().into());
        if bytes > 0 {
            state.set(call.job.id.to_string(), "x".repeat(bytes).into());
        }
        Ok(RetryOutput { answer: later(call), state: Some(state) })
    })
}

fn counted(state: &PolicyState) -> u32 {
    state.text("n").map_or(0, |text| text.parse().unwrap())
}

fn later(call: &RetryCall) -> RetryAnswer {
    RetryAnswer::Retry(RetryPlan::new(call.now + Duration::from_mins(1)))
}

fn says(state_version: u32) -> Description {
    Description { state_version, ..Description::default() }
}

async fn with_strategy(harness: Harness, policy: FnPolicy, state_version: u32) -> Harness {
    let harness = harness.with_policy(policy);
    harness.set_queue(QueueConfig::default()).await;
    harness.push("planner", "v1", None, Some(says(state_version))).await.unwrap();
    harness.set_type("work", TypeConfig { retry: planner(), ..TypeConfig::default() }).await;
    harness
}

/// This many jobs whose attempt has failed.
async fn fail_many(harness: &mut Harness, number: u32) -> Vec<Job> {
    harness.enqueue_many((0..number).map(|_| work())).await;
    let running = harness.lease(number).await;
    assert_eq!(running.len(), number as usize);
    let reports = running.iter().map(|job| report(job, failed())).collect();
    harness.tick(TickInput { reports, ..TickInput::default() }).await;
    running
}

/// The records of states. None on a table, which finds those of a group by its name alone.
async fn records(harness: &Harness) -> Option<Vec<Record>> {
    if harness.store.capabilities().expires_natively {
        return None;
    }
    let (kind, prefix) = (RecordKind::RetryState, String::new());
    let query = RecordQuery { kind, prefix, after: None, limit: 1000 };
    Some(harness.store.records(&[query]).await.unwrap().remove(0))
}

/// What the strategy counted, as a call about one more failure sees it.
async fn seen(harness: &mut Harness) -> u32 {
    let seen = Arc::new(parking_lot::Mutex::new(None));
    let noted = Arc::clone(&seen);
    let policy = FnPolicy::default().retrying(move |_, call| {
        *noted.lock() = Some(counted(&call.state));
        Ok(later(call))
    });
    let (store, clock) = (Arc::clone(&harness.store), Arc::clone(&harness.clock));
    let mut other = Harness::at(store, clock).with_policy(policy);
    failed_once(&mut other, work()).await;
    sweep(&other).await;
    let seen = seen.lock().take();
    seen.expect("it was called")
}

#[tokio::test]
async fn each_decision_sees_the_state_that_the_last_one_left() {
    for harness in every_store_and_table() {
        let mut harness = with_strategy(harness, counting(0), 1).await;
        fail_many(&mut harness, 5).await;
        assert_eq!(sweep(&harness).await.changed.len(), 5);
        assert_eq!(seen(&mut harness).await, 5);
    }
}

#[tokio::test]
async fn decisions_of_two_processes_lose_no_change_of_the_state() {
    for mut harness in every_store_and_table() {
        // Their calls come between each other's.
        harness.store = Arc::new(Yielding(Arc::clone(&harness.store)));
        let mut harness = with_strategy(harness, counting(0), 1).await;
        fail_many(&mut harness, 20).await;
        let pending = harness.engine.sweep().await.unwrap().pending;
        assert_eq!(pending.len(), 20);
        let (some, others) = pending.split_at(10);
        let other = harness.another();
        let (one, two) = join(
            harness.engine.decide_retries(some.to_vec()),
            other.decide_retries(others.to_vec()),
        )
        .await;
        let mut decided = one.unwrap().changed.len() + two.unwrap().changed.len();
        // What was contended too often is decided by a later sweep.
        decided += sweep(&harness).await.changed.len();
        assert_eq!(decided, 20);
        assert_eq!(seen(&mut harness).await, 20);
    }
}

#[tokio::test]
async fn a_failure_that_another_process_decided_counts_once() {
    for harness in every_store_and_table() {
        let mut harness = with_strategy(harness, counting(0), 1).await;
        fail_many(&mut harness, 5).await;
        let pending = harness.engine.sweep().await.unwrap().pending;
        assert_eq!(harness.engine.decide_retries(pending.clone()).await.unwrap().changed.len(), 5);
        let other = harness.another();
        assert_eq!(other.decide_retries(pending).await.unwrap().changed.len(), 0);
        assert_eq!(seen(&mut harness).await, 5);
    }
}

#[tokio::test]
async fn a_large_state_is_kept_in_pages() {
    for harness in every_store_and_table() {
        let mut harness = with_strategy(harness, counting(2000), 1).await;
        fail_many(&mut harness, 40).await;
        assert_eq!(sweep(&harness).await.changed.len(), 40);
        let Some(before) = records(&harness).await else {
            assert_eq!(seen(&mut harness).await, 40);
            continue;
        };
        assert!((17..=65).contains(&before.len()), "{} records", before.len());
        let of_pages = before.iter().filter(|record| record.name.contains(".p"));
        assert!(of_pages.clone().all(|record| record.bytes.len() < 16_000));
        // The next decision writes the pages of its two keys, and no other.
        fail_many(&mut harness, 1).await;
        sweep(&harness).await;
        let after = records(&harness).await.unwrap();
        let kept = after.iter().filter(|record| before.contains(record)).count();
        assert!(kept + 3 >= after.len() && after.len() == before.len(), "{kept} kept");
        assert_eq!(seen(&mut harness).await, 41);
    }
}

#[tokio::test]
async fn another_format_of_the_state_starts_empty() {
    for harness in every_store_and_table() {
        let mut harness = with_strategy(harness, counting(0), 1).await;
        fail_many(&mut harness, 3).await;
        sweep(&harness).await;
        harness.push("planner", "v2", None, Some(says(1))).await.unwrap();
        fail_many(&mut harness, 1).await;
        sweep(&harness).await;
        assert_eq!(seen(&mut harness).await, 4);
        harness.push("planner", "v3", None, Some(says(2))).await.unwrap();
        assert_eq!(seen(&mut harness).await, 0);
        fail_many(&mut harness, 1).await;
        sweep(&harness).await;
        assert_eq!(seen(&mut harness).await, 1);
    }
}

#[tokio::test]
async fn a_failed_call_changes_no_state() {
    for harness in every_store_and_table() {
        let policy = FnPolicy::default().retrying_with_state(|_, call| {
            let state = [("n", StateValue::from("9"))].into();
            let weight = Some(u32::MAX);
            let plan = RetryPlan { weight, ..RetryPlan::new(call.now) };
            Ok(RetryOutput { answer: RetryAnswer::Retry(plan), state: Some(state) })
        });
        let mut harness = with_strategy(harness, policy, 1).await;
        let config = QueueConfig { concurrency: Some(5), ..QueueConfig::default() };
        harness.engine.put_queue(&queue(), config, None).await.unwrap();
        harness.settle().await;
        fail_many(&mut harness, 1).await;
        let decisions = sweep(&harness).await;
        assert_eq!((decisions.faults.len(), decisions.changed.len()), (1, 1));
        assert!(records(&harness).await.is_none_or(|records| records.is_empty()));
    }
}

#[tokio::test]
async fn each_queue_has_its_own_state() {
    for harness in every_store_and_table() {
        let mut harness = with_strategy(harness, counting(0), 1).await;
        harness.engine.put_queue(&name("b"), QueueConfig::default(), None).await.unwrap();
        let config = TypeConfig { queue: name("b"), retry: planner(), ..TypeConfig::default() };
        harness.set_type("other", config).await;
        let mut job = with("k", "v");
        job.job_type = name("other");
        fail_many(&mut harness, 2).await;
        sweep(&harness).await;
        assert!(records(&harness).await.is_none_or(|records| records.len() == 1));
        harness.enqueue(job).await;
        let running = {
            let mut cache = tidegate_engine::TickCache::default();
            let demands = vec![crate::cases::harness::demand(
                &["other"],
                1,
                tidegate_engine::Dispatch::Claim,
            )];
            let input = TickInput { demands, ..TickInput::default() };
            let outcome = harness.engine.tick(&name("b"), &mut cache, input).await.unwrap();
            let running = outcome.claimed[0].job.clone();
            let input =
                TickInput { reports: vec![report(&running, failed())], ..TickInput::default() };
            harness.engine.tick(&name("b"), &mut cache, input).await.unwrap();
            running
        };
        assert_eq!(sweep(&harness).await.changed[0].0.id, running.id);
        assert!(records(&harness).await.is_none_or(|records| records.len() == 2));
        assert_eq!(seen(&mut harness).await, 2);
    }
}
