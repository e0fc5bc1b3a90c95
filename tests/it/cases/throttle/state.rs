//! The state of a throttler: committed with its decisions, and kept across versions of one shape.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tidegate_core::{
    port::policy::{PolicyState, ThrottleAnswer, ThrottleCall},
    queue::{
        QueueConfig,
        ledger::{BatchId, StateLocation},
        plugin::Description,
    },
};
use tidegate_engine::testkit::{
    FnPolicy,
    builders::name,
    policies::{each, hold, run},
};

use super::{limit, remembered, says, watched};
use crate::cases::harness::{Harness, every_store, queue, work};

/// Runs every job, and counts them in its state.
fn counting(call: &ThrottleCall) -> ThrottleAnswer {
    let before: u64 = call.state.text("ran").map_or(0, |text| text.parse().unwrap());
    let ran = before + call.candidates.len() as u64;
    ThrottleAnswer {
        state: Some([("ran".to_owned(), ran.to_string())].into()),
        ..each(call, |_| run())
    }
}

#[tokio::test]
async fn the_state_kept_is_that_of_the_jobs_actually_admitted() {
    for harness in every_store() {
        let (policy, calls) = watched(counting);
        let mut harness = harness.with_policy(policy);
        harness.throttled(says(), limit(10)).await;
        harness
            .enqueue_many(
                [3, 3, 3, 3, 1]
                    .map(|weight| work().with_options(|options| options.weight = Some(weight))),
            )
            .await;
        let leased = harness.lease(9).await;
        assert_eq!(
            leased.len(),
            3,
            "the fourth reserves what is left, so the light job behind it waits"
        );
        assert_eq!(remembered(&harness).await.as_deref(), Some("3"));
        assert!(calls.lock().len() <= 3);
        // The workers take fewer jobs than it runs.
        harness.succeed(&leased).await;
        calls.lock().clear();
        assert_eq!(harness.lease(1).await.len(), 1);
        assert_eq!(remembered(&harness).await.as_deref(), Some("4"));
        assert!(calls.lock().len() <= 3);
    }
}

#[tokio::test]
async fn a_state_outlives_processes_and_goes_with_the_commit() {
    for harness in every_store() {
        let mut harness =
            harness.with_policy(FnPolicy::default().throttling(|_, call| Ok(counting(call))));
        harness.throttled(says(), limit(9)).await;
        for round in 1..=3 {
            harness.enqueue(work()).await;
            assert_eq!(harness.lease(1).await.len(), 1);
            harness.restart();
            assert_eq!(remembered(&harness).await, Some(round.to_string()));
        }
    }
}

#[tokio::test]
async fn a_tick_writes_the_pages_of_the_state_that_changed() {
    for harness in every_store() {
        let mut harness = harness.with_policy(FnPolicy::default().throttling(|_, call| {
            let mut state = PolicyState::clone(&call.state);
            let ran = state.text("ran").map_or(0, |text| text.parse::<u64>().unwrap());
            if ran == 0 {
                for key in 0..100 {
                    state.set(format!("key {key}"), "x".repeat(500).into());
                }
            }
            state.set("ran".into(), (ran + 1).to_string().into());
            Ok(ThrottleAnswer { state: Some(state), ..each(call, |_| run()) })
        }));
        harness.throttled(says(), limit(9)).await;
        let mut before: Vec<BatchId> = Vec::new();
        for round in 1..=4 {
            harness.enqueue(work()).await;
            harness.lease(1).await;
            harness.restart();
            assert_eq!(remembered(&harness).await, Some(round.to_string()));
            let (ledger, batches) = harness.store.ledger(&queue()).await.unwrap().unwrap();
            let pages = ledger.policy.as_ref().unwrap().state.pages().to_vec();
            assert_eq!(pages.len(), 16, "about 53 KB in pages of 4 KB");
            let changed = pages.iter().filter(|id| !before.contains(id)).count();
            assert_eq!(changed, if round == 1 { 16 } else { 1 }, "round {round}");
            let stored = harness.store.batches(&queue()).await.unwrap();
            assert_eq!(stored.len(), batches.len(), "every record is named");
            before = pages;
        }
    }
}

#[tokio::test]
async fn a_large_state_is_a_record_of_its_own_and_leaves_none_behind() {
    for harness in every_store() {
        let small = Arc::new(AtomicBool::new(false));
        let shrink = Arc::clone(&small);
        let mut harness = harness.with_policy(FnPolicy::default().throttling(move |_, call| {
            let mut answer = counting(call);
            if !shrink.load(Ordering::Relaxed) {
                answer.state.get_or_insert_default().set("much".into(), "x".repeat(3000).into());
            }
            Ok(answer)
        }));
        harness.throttled(says(), limit(9)).await;
        for round in 1..=3 {
            harness.enqueue(work()).await;
            harness.lease(1).await;
            harness.restart();
            assert_eq!(remembered(&harness).await, Some(round.to_string()));
            let (ledger, batches) = harness.store.ledger(&queue()).await.unwrap().unwrap();
            assert!(matches!(ledger.policy.unwrap().state, StateLocation::Batch(_)));
            assert_eq!(
                batches.len(),
                harness.store.batches(&queue()).await.unwrap().len(),
                "every record is named"
            );
            assert_eq!(batches.iter().filter(|batch| batch.state.is_some()).count(), 1);
        }
        small.store(true, Ordering::Relaxed);
        harness.enqueue(work()).await;
        harness.lease(1).await;
        assert!(matches!(
            harness.store.ledger(&queue()).await.unwrap().unwrap().0.policy.unwrap().state,
            StateLocation::Inline(_)
        ));
        let (ledger, _) = harness.store.ledger(&queue()).await.unwrap().unwrap();
        assert_eq!(harness.store.batches(&queue()).await.unwrap().len(), ledger.batches.len());
    }
}

#[tokio::test]
async fn a_swap_keeps_a_state_of_the_same_shape_and_no_other() {
    for harness in every_store() {
        let mut harness =
            harness.with_policy(FnPolicy::default().throttling(|_, call| Ok(counting(call))));
        harness.throttled(says(), limit(9)).await;
        let one_more = async |harness: &mut Harness| {
            harness.enqueue(work()).await;
            assert_eq!(harness.lease(1).await.len(), 1);
            remembered(harness).await.unwrap()
        };
        assert_eq!(one_more(&mut harness).await, "1");
        harness.push("guard", "v2", Some(says()), None).await.unwrap();
        assert_eq!(one_more(&mut harness).await, "2");
        harness
            .push("guard", "v3", Some(Description { state_version: 2, ..says() }), None)
            .await
            .unwrap();
        assert_eq!(one_more(&mut harness).await, "1");
        harness.set_queue(limit(9)).await;
        harness.lease(1).await;
        assert_eq!(
            remembered(&harness).await,
            None,
            "a queue without a throttler remembers nothing"
        );
    }
}

#[tokio::test]
async fn a_new_version_decides_from_the_next_tick_on() {
    for harness in every_store() {
        let policy = FnPolicy::default().throttling(|plugin, call| {
            let said =
                if plugin.version.number == 1 { run() } else { hold("closed by the new version") };
            Ok(each(call, |_| said.clone()))
        });
        let mut harness = harness.with_policy(policy);
        harness.throttled(says(), limit(9)).await;
        harness.enqueue_many((0..5).map(|_| work())).await;
        assert_eq!(harness.lease(1).await.len(), 1);
        harness.push("guard", "v2", Some(says()), None).await.unwrap();
        assert_eq!(harness.lease(1).await.len(), 0);
        harness.engine.rollback_plugin(&name("guard"), None).await.unwrap();
        assert_eq!(harness.lease(1).await.len(), 1);
    }
}

#[tokio::test]
async fn a_tick_overtaken_by_a_push_is_decided_again() {
    for harness in every_store() {
        // Another process pushes the new version while the old one is being called.
        let other = Arc::new(Harness::on(Arc::clone(&harness.store)));
        let pushed = Arc::new(AtomicBool::new(false));
        let (pushing, handle) = (Arc::clone(&other), tokio::runtime::Handle::current());
        let policy = FnPolicy::default().throttling(move |plugin, call| {
            if plugin.version.number == 1
                && !call.candidates.is_empty()
                && !pushed.swap(true, Ordering::Relaxed)
            {
                let (pushing, handle) = (Arc::clone(&pushing), handle.clone());
                std::thread::spawn(move || {
                    handle.block_on(pushing.push("guard", "v2", Some(says()), None)).map(drop)
                })
                .join()
                .unwrap()
                .unwrap();
            }
            Ok(each(call, |_| if plugin.version.number == 1 { run() } else { hold("no") }))
        });
        let mut harness = harness.with_policy(policy);
        harness.throttled(says(), limit(9)).await;
        harness.enqueue(work()).await;
        assert!(
            harness.lease(1).await.is_empty(),
            "version 1 was live no more when it was to be committed"
        );
        assert_eq!(harness.granted().await, 0);
    }
}

#[tokio::test]
async fn two_processes_never_spend_one_token_twice() {
    for harness in every_store() {
        // Ten tokens in all, in the state.
        let spend = |call: &ThrottleCall| {
            let mut spent: usize = call.state.text("ran").map_or(0, |text| text.parse().unwrap());
            let mut answer = each(call, |_| {
                if spent >= 10 {
                    return hold("no token is left");
                }
                spent += 1;
                run()
            });
            answer.state = Some([("ran".to_owned(), spent.to_string())].into());
            Ok(answer)
        };
        let mut harness =
            harness.with_policy(FnPolicy::default().throttling(move |_, call| spend(call)));
        harness.throttled(says(), QueueConfig::default()).await;
        harness.enqueue_many((0..40).map(|_| work())).await;
        let mut other = Harness::on(Arc::clone(&harness.store)).with_policy(harness.policy.clone());
        other.clock = Arc::clone(&harness.clock);
        other.restart();
        let mut claimed = 0;
        for _ in 0..8 {
            // Each caches the ledger from before the other's commit.
            let (mine, theirs) = tokio::join!(harness.lease(2), other.lease(2));
            claimed += mine.len() + theirs.len();
        }
        assert_eq!(claimed, 10);
        assert_eq!(remembered(&harness).await.as_deref(), Some("10"));
    }
}
