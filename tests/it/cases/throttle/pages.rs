//! Which candidates a throttler is called with: pages, budgets and partitions of a long backlog.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tidegate_core::{
    job::{Job, Payload},
    port::policy::{Action, ThrottleAnswer, ThrottleCall},
    queue::{
        QueueConfig,
        plugin::{Description, OnFailure},
    },
};
use tidegate_engine::{
    Dispatch, TickInput,
    request::NewJob,
    testkit::{
        FnPolicy,
        policies::{each, hold, run},
    },
};

use super::{by_region, counts, each_held, failing, limit, region, remembered, says, watched};
use crate::cases::harness::{demand, every_store, queue, with, work};

#[tokio::test]
async fn a_throttler_that_overcommits_is_called_three_times_at_most() {
    for harness in every_store() {
        // First it runs the heavy jobs, then the middle ones, then the rest.
        let (policy, calls) = watched(|call| {
            let heaviest = call.candidates.iter().map(|job| job.spec.weight).max().unwrap_or(0);
            let mut answer =
                each(
                    call,
                    |job| {
                        if job.spec.weight >= heaviest - 2 { run() } else { hold("later") }
                    },
                );
            answer.state = Some(
                [(
                    "ran".to_owned(),
                    answer.decisions.iter().filter(|d| d.action == Action::Run).count().to_string(),
                )]
                .into(),
            );
            answer
        });
        let mut harness = harness.with_policy(policy);
        harness.throttled(says(), limit(10)).await;
        harness
            .enqueue_many(
                [9, 8, 7, 6, 5, 5, 4, 4, 3, 2, 1]
                    .map(|weight| work().with_options(|options| options.weight = Some(weight))),
            )
            .await;
        let leased = harness.lease(20).await;
        assert!(!leased.is_empty());
        assert!(calls.lock().len() <= 3, "{}", calls.lock().len());
        assert_eq!(remembered(&harness).await, Some(leased.len().to_string()));
        assert!(harness.granted().await <= 10);
    }
}

#[tokio::test]
async fn more_candidates_are_offered_while_the_throttler_says_more() {
    for harness in every_store() {
        let more = Arc::new(AtomicBool::new(true));
        let says_more = Arc::clone(&more);
        let (policy, calls) = watched(move |call| {
            let only = |job: &Job| {
                if region(job) == "west" { run() } else { hold("not the west") }
            };
            ThrottleAnswer { more: says_more.load(Ordering::Relaxed), ..each(call, only) }
        });
        let mut harness = harness.with_policy(policy);
        harness.throttled(says(), limit(5)).await;
        harness.enqueue_many((0..800).map(|_| with("region", "east"))).await;
        harness.wait(1);
        harness.enqueue(with("region", "west")).await;
        assert_eq!(harness.lease(1).await.len(), 1, "in one round");
        let pages = calls.lock().len();
        assert!((2..=8).contains(&pages), "{pages} pages");
        harness.enqueue(with("region", "west")).await;
        more.store(false, Ordering::Relaxed);
        calls.lock().clear();
        let outcome = harness
            .tick(TickInput {
                demands: vec![demand(&["work"], 1, Dispatch::Claim)],
                ..TickInput::default()
            })
            .await;
        assert_eq!((outcome.claimed.len(), outcome.again, calls.lock().len()), (0, false, 1));
        assert_eq!(calls.lock()[0].candidates.len(), 100);
    }
}

#[tokio::test]
async fn a_long_backlog_is_scanned_over_several_ticks() {
    for harness in every_store() {
        let only = |job: &Job| {
            if region(job) == "west" { run() } else { hold("not the west") }
        };
        let mut harness = harness
            .with_policy(FnPolicy::default().throttling(move |_, call| Ok(each(call, only))));
        harness.throttled(says(), limit(5)).await;
        for _ in 0..3 {
            harness.enqueue_many((0..900).map(|_| with("region", "east"))).await;
        }
        harness.wait(1);
        harness.enqueue(with("region", "west")).await;
        for round in 1.. {
            let outcome = harness
                .tick(TickInput {
                    demands: vec![demand(&["work"], 1, Dispatch::Claim)],
                    ..TickInput::default()
                })
                .await;
            if !outcome.claimed.is_empty() {
                break;
            }
            assert!(outcome.again && round < 5, "round {round}");
        }
    }
}

#[tokio::test]
async fn a_tick_over_its_time_budget_leaves_the_rest_to_the_next() {
    for harness in every_store() {
        let clock = Arc::clone(&harness.clock);
        let (policy, calls) = watched(move |call| {
            clock.advance(Duration::from_millis(600));
            each_held(call)
        });
        let mut harness = harness.with_policy(policy);
        harness.throttled(says(), limit(9)).await;
        harness.enqueue_many((0..700).map(|_| work())).await;
        let mut offered = std::collections::BTreeSet::new();
        for round in 0..6 {
            assert!(harness.lease(1).await.is_empty());
            let asked: Vec<ThrottleCall> = calls.lock().drain(..).collect();
            // From the front of the backlog, and from where the last scan stopped.
            assert!(
                asked.len() <= if round == 0 { 2 } else { 3 },
                "{} calls in round {round}",
                asked.len()
            );
            offered.extend(
                asked.iter().flat_map(|call| call.candidates.iter().map(|job| job.id.clone())),
            );
        }
        assert_eq!(offered.len(), 700, "each is looked at");
    }
}

#[tokio::test]
async fn a_slow_throttler_still_reaches_every_partition() {
    // One call sees the last job; not the second half of each partition; not every partition that a
    // round visits; not even one job of each.
    for (partitions, each, bytes, rounds) in
        [(1, 40, 2, 1), (2, 350, 2, 10), (70, 3, 2, 16), (7, 2, 3 << 20, 16)]
    {
        for harness in every_store() {
            let clock = Arc::clone(&harness.clock);
            let (policy, calls) = watched(move |call| {
                clock.advance(Duration::from_millis(1100));
                each_held(call)
            });
            let mut harness = harness.with_policy(policy);
            let by_region = QueueConfig { partition_by: Some("region".into()), ..limit(9) };
            harness.throttled(Description { needs_data: true, ..says() }, by_region).await;
            let data = Payload::json(format!("\"{}\"", "x".repeat(bytes - 2)));
            for _ in 0..each {
                let jobs = (0..partitions)
                    .map(|n| NewJob { data: data.clone(), ..with("region", &format!("r{n:02}")) });
                harness.enqueue_many(jobs).await;
            }
            let mut offered = std::collections::BTreeSet::new();
            for round in 1.. {
                let outcome = harness
                    .tick(TickInput {
                        demands: vec![demand(&["work"], 1, Dispatch::Claim)],
                        ..TickInput::default()
                    })
                    .await;
                let asked: Vec<ThrottleCall> = calls.lock().drain(..).collect();
                // From the front, and where the last one stopped.
                assert!(asked.len() <= 2, "{} calls in round {round}", asked.len());
                offered.extend(
                    asked.iter().flat_map(|call| call.candidates.iter().map(|job| job.id.clone())),
                );
                if !outcome.again {
                    break;
                }
                assert!(
                    round < rounds,
                    "{partitions} partitions: {} offered in {round} rounds",
                    offered.len()
                );
            }
            assert_eq!(offered.len(), partitions * each, "each is looked at");
        }
    }
}

#[tokio::test]
async fn partitions_take_turns_though_the_throttler_fails() {
    for harness in every_store() {
        let (policy, ..) = failing();
        let mut harness = harness.with_policy(policy);
        harness
            .throttled(says(), QueueConfig { partition_by: Some("region".into()), ..limit(9) })
            .await;
        let mut config = harness.engine.queue(&queue()).await.unwrap().config;
        config.throttler.as_mut().unwrap().on_failure = OnFailure::Run;
        harness.set_queue(config).await;
        harness
            .enqueue_many(["east", "east", "west", "west"].map(|region| with("region", region)))
            .await;
        let first = harness.lease(1).await;
        let second = harness.lease(1).await;
        assert_ne!(region(&first[0]), region(&second[0]), "in the round in which it failed, too");
    }
}

#[tokio::test]
async fn partitions_take_turns_before_the_throttler_sees_them() {
    for harness in every_store() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut harness = harness.with_policy(policy);
        harness
            .throttled(says(), QueueConfig { partition_by: Some("region".into()), ..limit(50) })
            .await;
        for region in ["a", "b", "c"] {
            harness.enqueue_many((0..200).map(|_| with("region", region))).await;
        }
        assert_eq!(by_region(&harness.lease(30).await), counts([("a", 10), ("b", 10), ("c", 10)]));
        let turns: Vec<String> = calls.lock()[0].candidates[..6].iter().map(region).collect();
        assert_eq!(turns, ["a", "b", "c", "a", "b", "c"]);
    }
}
