//! The state of a retry strategy: one in each queue, committed with the decisions.

use std::{fmt::Write as _, pin::pin, sync::Arc, time::Duration};

use futures_util::{future::join, poll};
use rstest::rstest;
use sha2::{Digest, Sha256};
use tidegate_core::{
    job::{Job, type_config::TypeConfig},
    port::{
        job_store::{Record, RecordKind, RecordQuery, Write},
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

/// The records of the strategy's state in a queue.
async fn records(harness: &Harness, queue: &str) -> Vec<Record> {
    let digest = Sha256::digest(format!("{queue}\nplanner"));
    let mut prefix = String::new();
    for byte in &digest[..20] {
        write!(prefix, "{byte:02x}").unwrap();
    }
    prefix.push('.');
    let query = RecordQuery { kind: RecordKind::RetryState, prefix, after: None, limit: 1000 };
    harness.store.records(&[query]).await.unwrap().remove(0)
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
async fn a_failure_that_two_processes_decide_at_once_counts_once() {
    for mut harness in every_store_and_table() {
        harness.store = Arc::new(Yielding(Arc::clone(&harness.store)));
        let mut harness = with_strategy(harness, counting(0), 1).await;
        fail_many(&mut harness, 5).await;
        let pending = harness.engine.sweep().await.unwrap().pending;
        assert_eq!(pending.len(), 5);
        let other = harness.another();
        let (one, two) =
            join(harness.engine.decide_retries(pending.clone()), other.decide_retries(pending))
                .await;
        let mut decided = one.unwrap().changed.len() + two.unwrap().changed.len();
        decided += sweep(&harness).await.changed.len();
        assert_eq!(decided, 5);
        assert_eq!(seen(&mut harness).await, 5);
    }
}

#[tokio::test]
async fn a_process_that_dies_holds_back_no_decision() {
    for polls in [1, 2, 3, 4, 5, 6, 8, 10, 12, 15] {
        for mut harness in every_store_and_table() {
            harness.store = Arc::new(Yielding(Arc::clone(&harness.store)));
            let mut harness = with_strategy(harness, counting(0), 1).await;
            fail_many(&mut harness, 3).await;
            let pending = harness.engine.sweep().await.unwrap().pending;
            assert_eq!(pending.len(), 3);
            let other = harness.another();
            {
                let mut call = pin!(harness.engine.decide_retries(pending));
                for _ in 0..polls {
                    if poll!(call.as_mut()).is_ready() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
            // At the same instant.
            let left = other.sweep().await.unwrap().pending;
            other.decide_retries(left).await.unwrap();
            assert!(other.sweep().await.unwrap().pending.is_empty(), "after {polls} polls");
            // State and job are written one after another on a table.
            let most = if harness.store.capabilities().atomicity.is_atomic() { 3 } else { 4 };
            let seen = seen(&mut harness).await;
            assert!((3..=most).contains(&seen), "{seen} of 3 after {polls} polls");
        }
    }
}

#[tokio::test]
async fn one_call_decides_for_ten_seconds() {
    for harness in every_store_and_table() {
        let clock = Arc::clone(&harness.clock);
        let policy = FnPolicy::default().retrying_with_state(move |_, call| {
            clock.advance(Duration::from_secs(4));
            let state = [("n", StateValue::from((counted(&call.state) + 1).to_string()))].into();
            Ok(RetryOutput { answer: later(call), state: Some(state) })
        });
        let mut harness = with_strategy(harness, policy, 1).await;
        fail_many(&mut harness, 5).await;
        assert_eq!(sweep(&harness).await.changed.len(), 3, "they begin after 0, 4 and 8 s");
        assert_eq!(sweep(&harness).await.changed.len(), 2);
        assert_eq!(seen(&mut harness).await, 5);
    }
}

/// What happens to a record of a state.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    Removed,
    Damaged,
}

#[rstest]
#[case::no_root("root", Loss::Removed)]
#[case::damaged_root("root", Loss::Damaged)]
#[case::no_page("p00", Loss::Removed)]
#[case::damaged_page("p00", Loss::Damaged)]
#[tokio::test]
async fn a_state_with_a_lost_record_begins_empty(#[case] part: &str, #[case] loss: Loss) {
    for harness in every_store_and_table() {
        let mut harness = with_strategy(harness, counting(2000), 1).await;
        fail_many(&mut harness, 40).await;
        assert_eq!(sweep(&harness).await.changed.len(), 40);
        let before = records(&harness, "default").await;
        let is_lost = |record: &&Record| record.name.contains(&format!(".{part}"));
        let lost = before.iter().find(is_lost).expect("it was written").clone();
        let write = match loss {
            Loss::Removed => {
                Write::RemoveRecord { kind: lost.kind, name: lost.name, until: Some(lost.until) }
            }
            Loss::Damaged => Write::PutRecord(Record { bytes: b"{".to_vec(), ..lost }),
        };
        harness.store.commit(vec![vec![write]]).await.unwrap();
        assert_eq!(seen(&mut harness).await, 0);
        // The next decisions have a state again.
        fail_many(&mut harness, 2).await;
        assert_eq!(sweep(&harness).await.changed.len(), 2);
        assert_eq!(seen(&mut harness).await, 2);
        let after = records(&harness, "default").await;
        // A root that is lost names no pages that could be removed. They expire.
        let left = before.iter().filter(|record| after.contains(record)).count();
        assert_eq!(left > 0, part == "root", "{left} left");
    }
}

#[tokio::test]
async fn a_large_state_is_kept_in_pages() {
    for harness in every_store_and_table() {
        let mut harness = with_strategy(harness, counting(2000), 1).await;
        fail_many(&mut harness, 40).await;
        assert_eq!(sweep(&harness).await.changed.len(), 40);
        let before = records(&harness, "default").await;
        assert!((17..=65).contains(&before.len()), "{} records", before.len());
        let of_pages: Vec<_> = before.iter().filter(|one| one.name.contains(".p")).collect();
        assert_eq!(of_pages.len(), before.len() - 1, "one record is the root");
        assert!(of_pages.iter().all(|record| record.bytes.len() < 16_000));
        // The next decision writes the pages of its two keys, and no other.
        fail_many(&mut harness, 1).await;
        sweep(&harness).await;
        let after = records(&harness, "default").await;
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
        assert!(records(&harness, "default").await.is_empty());
        assert_eq!(seen(&mut harness).await, 0);
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
        assert_eq!(records(&harness, "default").await.len(), 1);
        assert!(records(&harness, "b").await.is_empty());
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
        assert_eq!(records(&harness, "default").await.len(), 1);
        assert_eq!(records(&harness, "b").await.len(), 1);
        assert_eq!(seen(&mut harness).await, 2);
    }
}
