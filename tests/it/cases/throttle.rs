//! A queue whose owner brings its own throttler.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_core::{
    job::{
        Encoding, Job, Outcome, Payload, State,
        lifecycle::{Failure, Reason, Waiting},
        type_config::TypeConfig,
    },
    port::policy::{Action, Decision, Ended, ThrottleAnswer, ThrottleCall},
    queue::{
        QueueConfig, Rule,
        ledger::StateLocation,
        plugin::{Description, OnFailure},
    },
};
use tidegate_engine::{
    ByteBudget, Dispatch, OBJECT_BYTES, TickInput,
    request::{NewJob, ReportOutcome},
    testkit::{
        FnPolicy,
        builders::name,
        policies::{each, fault, hold, run},
    },
};

use super::harness::{Harness, demand, every_store, of_type, queue, report, with, work};
use crate::outage::Objects;

fn limit(concurrency: u32) -> QueueConfig {
    QueueConfig { concurrency: Some(concurrency), ..QueueConfig::default() }
}

fn says() -> Description {
    Description { state_version: 1, ..Description::default() }
}

/// A policy with this throttler, and the calls it received.
fn watched(
    throttle: impl Fn(&ThrottleCall) -> ThrottleAnswer + Send + Sync + 'static,
) -> (FnPolicy, Arc<Mutex<Vec<ThrottleCall>>>) {
    let calls: Arc<Mutex<Vec<ThrottleCall>>> = Arc::default();
    let noted = Arc::clone(&calls);
    let policy = FnPolicy::default().throttling(move |_, call| {
        noted.lock().push(call.clone());
        Ok(throttle(call))
    });
    (policy, calls)
}

fn each_held(call: &ThrottleCall) -> ThrottleAnswer {
    each(call, |_| hold("no"))
}

fn region(job: &Job) -> String {
    job.spec.attributes["region"].text()
}

/// hipq's example: each region has a share of the limit.
fn shares(call: &ThrottleCall) -> ThrottleAnswer {
    let share = |region: &str| if region == "east" { 40 } else { 30 };
    let mut used: BTreeMap<String, u64> = BTreeMap::new();
    for grant in call.running.iter() {
        *used.entry(grant.attributes["region"].text()).or_default() += u64::from(grant.weight);
    }
    each(call, |job| {
        let used = used.entry(region(job)).or_default();
        if *used + u64::from(job.spec.weight) > share(&region(job)) {
            return hold("its region has its share");
        }
        *used += u64::from(job.spec.weight);
        run()
    })
}

fn by_region(jobs: &[Job]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for job in jobs {
        *counts.entry(region(job)).or_default() += 1;
    }
    counts
}

fn counts<const N: usize>(counts: [(&str, usize); N]) -> BTreeMap<String, usize> {
    counts.into_iter().map(|(region, count)| (region.to_owned(), count)).collect()
}

#[tokio::test]
async fn each_region_runs_its_share_of_the_limit_whoever_comes_first() {
    for harness in every_store() {
        let mut harness =
            harness.with_policy(FnPolicy::default().throttling(|_, call| Ok(shares(call))));
        harness
            .throttled(Description { group_by: vec!["region".into()], ..says() }, limit(100))
            .await;
        for (region, count) in [("east", 500), ("north", 400), ("west", 20)] {
            harness.enqueue_many((0..count).map(|_| with("region", region))).await;
        }
        let first = harness.lease(1000).await;
        assert_eq!(
            by_region(&first),
            counts([("east", 40), ("north", 30), ("west", 20)]),
            "the shares are not lent"
        );
        harness.enqueue_many((0..50).map(|_| with("region", "west"))).await;
        assert_eq!(by_region(&harness.lease(1000).await), counts([("west", 10)]));
        let over: Vec<Job> =
            first.iter().filter(|job| region(job) == "east").take(7).cloned().collect();
        harness.succeed(&over).await;
        harness.restart();
        assert_eq!(
            by_region(&harness.lease(1000).await),
            counts([("east", 7)]),
            "another process goes on"
        );
        assert_eq!(harness.granted().await, 100);
    }
}

#[tokio::test]
async fn a_held_job_says_what_its_throttler_said() {
    for harness in every_store() {
        let until = harness.now() + Duration::from_secs(90);
        let mut harness = harness.with_policy(FnPolicy::default().throttling(move |_, call| {
            Ok(each(call, |_| Decision {
                action: Action::Hold(Some(until)),
                reason: Some("not before nine".into()),
            }))
        }));
        harness.throttled(says(), QueueConfig::default()).await;
        let job = harness.enqueue(work()).await;
        let since = harness.now();
        let outcome = harness
            .tick(TickInput {
                demands: vec![demand(&["work"], 1, Dispatch::Claim)],
                ..TickInput::default()
            })
            .await;
        assert_eq!(outcome.held[&Rule::Throttler(name("guard"))], 1);
        assert_eq!(outcome.next_at, Some(until));
        harness.wait(5);
        let explained = harness.engine.explain(&job.id, None, |_| true).await.unwrap();
        let by = explained.held_by.unwrap();
        assert_eq!(
            (by.kind, by.name.as_deref(), explained.reason.as_str()),
            ("throttler", Some("guard"), "not before nine")
        );
        assert_eq!(explained.earliest_at, Some(until));
        assert!(explained.since.is_some_and(|at| at <= since));
    }
}

#[tokio::test]
async fn a_rescheduled_job_waits_for_its_new_time_and_says_why() {
    for harness in every_store() {
        let at = harness.now() + Duration::from_mins(1);
        let (policy, calls) = watched(move |call| {
            let later =
                Decision { action: Action::Reschedule(at), reason: Some("at night".into()) };
            each(call, |_| if call.now < at { later.clone() } else { run() })
        });
        let mut harness = harness.with_policy(policy);
        harness.throttled(says(), limit(5)).await;
        let job = harness.enqueue(work()).await;
        assert!(harness.lease(1).await.is_empty());
        assert_eq!(
            harness.job(&job.id).await.life.state,
            State::Scheduled { run_at: at, waiting: Waiting::Throttler }
        );
        assert!(harness.lease(1).await.is_empty());
        assert_eq!(calls.lock().len(), 1, "until then it is no candidate");
        let explained = harness.engine.explain(&job.id, None, |_| true).await.unwrap();
        assert_eq!(
            (explained.held_by.unwrap().kind, explained.reason.as_str(), explained.earliest_at),
            ("throttler", "at night", Some(at))
        );
        harness.wait(60);
        assert_eq!(harness.lease(1).await.len(), 1);
    }
}

#[tokio::test]
async fn a_dropped_job_ends_with_the_reason() {
    for harness in every_store() {
        let drop = Decision { action: Action::Drop, reason: Some("too old".into()) };
        let mut harness = harness.with_policy(
            FnPolicy::default().throttling(move |_, call| Ok(each(call, |_| drop.clone()))),
        );
        harness.throttled(says(), limit(5)).await;
        let job = harness.enqueue(work()).await;
        let outcome = harness
            .tick(TickInput {
                demands: vec![demand(&["work"], 1, Dispatch::Claim)],
                ..TickInput::default()
            })
            .await;
        assert_eq!(outcome.ended.len(), 1);
        let job = harness.job(&job.id).await;
        assert_eq!(job.life.ended(), Some(Outcome::Dropped));
        assert_eq!(job.life.error.unwrap().message.as_deref(), Some("too old"));
    }
}

#[tokio::test]
async fn a_throttler_sees_only_non_critical_jobs_within_the_limits() {
    for harness in every_store() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut harness = harness.with_policy(policy);
        harness.throttled(says(), limit(5)).await;
        harness
            .set_type("small", TypeConfig { concurrency: Some(0), ..TypeConfig::default() })
            .await;
        let critical =
            harness.enqueue(work().with_options(|options| options.critical = true)).await;
        harness.enqueue(of_type("small")).await;
        harness.enqueue(work().with_options(|options| options.weight = Some(4))).await;
        assert_eq!(harness.lease_of(&["work", "small"], 9).await.len(), 2);
        let light = harness.enqueue(work()).await;
        harness.enqueue(work().with_options(|options| options.weight = Some(2))).await;
        assert_eq!(harness.lease_of(&["work", "small"], 7).await.len(), 1);
        let calls = calls.lock();
        let asked: Vec<Vec<u32>> = calls
            .iter()
            .map(|call| call.candidates.iter().map(|job| job.spec.weight).collect())
            .collect();
        assert_eq!(
            asked,
            [vec![4], vec![1]],
            "the critical job, the closed type and the heavy job are not its affair"
        );
        assert_eq!(calls[1].candidates[0].id, light.id);
        assert_eq!((calls[0].room, calls[0].concurrency), (8, Some(5)));
        let running: Vec<(bool, u32)> =
            calls[1].running.iter().map(|grant| (grant.critical, grant.weight)).collect();
        assert_eq!(running, [(true, 0), (false, 4)]);
        assert!(
            calls[1]
                .running
                .iter()
                .any(|grant| grant.job == critical.id && grant.granted_at == harness.now())
        );
    }
}

/// Runs everything, and remembers in its state how much.
fn counting(call: &ThrottleCall) -> ThrottleAnswer {
    let before: u64 = call.state.get("ran").map_or(0, |text| text.parse().unwrap());
    let ran = before + call.candidates.len() as u64;
    ThrottleAnswer {
        state: Some([("ran".to_owned(), ran.to_string())].into()),
        ..each(call, |_| run())
    }
}

/// What the plugin remembers, as it is stored.
async fn remembered(harness: &Harness) -> Option<String> {
    let (head, batches) = harness.store.ledger(&queue()).await.unwrap()?;
    match head.policy?.state {
        StateLocation::Inline(state) => state.get("ran").cloned(),
        StateLocation::Batch(id) => {
            batches.iter().find(|batch| batch.id == id)?.state.as_ref()?.get("ran").cloned()
        }
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
        // Not even workers take all that it runs.
        harness.succeed(&leased).await;
        calls.lock().clear();
        assert_eq!(harness.lease(1).await.len(), 1);
        assert_eq!(remembered(&harness).await.as_deref(), Some("4"));
        assert!(calls.lock().len() <= 3);
    }
}

#[tokio::test]
async fn a_throttler_that_overcommits_is_called_three_times_at_most() {
    for harness in every_store() {
        // First it wants the heavy ones, then the middle ones, then what is left.
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
async fn a_long_backlog_is_looked_through_round_by_round() {
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
            // From the front, and where the last one stopped.
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
    // One call sees the last job; not the second half of each partition; not every partition that a round visits; not even one job of each.
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
async fn a_large_state_is_a_record_of_its_own_and_leaves_none_behind() {
    for harness in every_store() {
        let small = Arc::new(AtomicBool::new(false));
        let shrink = Arc::clone(&small);
        let mut harness = harness.with_policy(FnPolicy::default().throttling(move |_, call| {
            let mut answer = counting(call);
            if !shrink.load(Ordering::Relaxed) {
                answer.state.get_or_insert_default().insert("much".into(), "x".repeat(8000));
            }
            Ok(answer)
        }));
        harness.throttled(says(), limit(9)).await;
        for round in 1..=3 {
            harness.enqueue(work()).await;
            harness.lease(1).await;
            harness.restart();
            assert_eq!(remembered(&harness).await, Some(round.to_string()));
            let (head, batches) = harness.store.ledger(&queue()).await.unwrap().unwrap();
            assert!(matches!(head.policy.unwrap().state, StateLocation::Batch(_)));
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
        let (head, _) = harness.store.ledger(&queue()).await.unwrap().unwrap();
        assert_eq!(harness.store.batches(&queue()).await.unwrap().len(), head.batches.len());
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
async fn a_round_that_a_push_overtakes_is_decided_anew() {
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

/// A throttler that fails while the switch is on, and the number of its calls.
fn failing() -> (FnPolicy, Arc<AtomicBool>, Arc<AtomicU32>) {
    let (fails, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
    let (told, count) = (Arc::clone(&fails), Arc::clone(&asked));
    let policy = FnPolicy::default().throttling(move |_, call| {
        count.fetch_add(1, Ordering::Relaxed);
        if told.load(Ordering::Relaxed) {
            Err(fault("it divided by zero"))
        } else {
            Ok(each(call, |_| run()))
        }
    });
    (policy, fails, asked)
}

#[tokio::test]
async fn a_failing_throttler_holds_non_critical_jobs_and_pauses() {
    for harness in every_store() {
        let (policy, fails, asked) = failing();
        let mut harness = harness.with_policy(policy);
        harness.throttled(says(), limit(9)).await;
        let job = harness.enqueue(work()).await;
        let start = harness.now();
        let round = || TickInput {
            demands: vec![demand(&["work"], 1, Dispatch::Claim)],
            ..TickInput::default()
        };
        let outcome = harness.tick(round()).await;
        assert_eq!(outcome.faults.len(), 1);
        assert_eq!(outcome.faults[0].call.candidates[0].id, job.id, "with the input that did it");
        assert_eq!(outcome.next_at, Some(start + Duration::from_secs(1)));
        assert_eq!(outcome.held[&Rule::Throttler(name("guard"))], 1);
        let explained = harness.engine.explain(&job.id, None, |_| true).await.unwrap();
        assert_eq!(
            (explained.held_by.unwrap().kind, explained.reason.as_str()),
            ("throttler", "plugin guard failed: it divided by zero")
        );
        asked.store(0, Ordering::Relaxed);
        let outcome = harness.tick(round()).await;
        assert_eq!(
            (outcome.claimed.len(), outcome.faults.len(), asked.load(Ordering::Relaxed)),
            (0, 0, 0),
            "no storm"
        );
        assert_eq!(outcome.held[&Rule::Throttler(name("guard"))], 1);
        harness.enqueue(work().with_options(|options| options.critical = true)).await;
        let critical = harness.lease(1).await;
        assert_eq!(critical.len(), 1, "critical jobs are not its affair");
        harness.succeed(&critical).await;
        harness.wait(1);
        assert_eq!(
            harness.tick(round()).await.next_at,
            Some(harness.now() + Duration::from_secs(2))
        );
        for seconds in [2, 4, 8, 16, 30, 30] {
            harness.wait(seconds - 1);
            assert_eq!(harness.tick(round()).await.faults.len(), 0);
            harness.wait(1);
            assert_eq!(harness.tick(round()).await.faults.len(), 1, "after {seconds} s");
        }
        fails.store(false, Ordering::Relaxed);
        harness.push("guard", "v2", Some(says()), None).await.unwrap();
        assert_eq!(harness.lease(1).await.len(), 1, "a new version is asked at once");
    }
}

#[tokio::test]
async fn what_a_page_admitted_is_remembered_though_the_next_one_fails() {
    for (harness, on_failure) in every_store().into_iter().zip([OnFailure::Hold, OnFailure::Run]) {
        // Ten of each page run; a call about jobs of the west crashes.
        let mut harness = harness.with_policy(FnPolicy::default().throttling(|_, call| {
            if call.candidates.iter().any(|job| region(job) == "west") {
                return Err(fault("it divided by zero"));
            }
            let mut left = 10;
            let answer = each(call, |_| {
                left = std::cmp::max(left, 1) - 1;
                if left > 0 { run() } else { hold("nine a page") }
            });
            let ran: u64 = call.state.get("ran").map_or(0, |text| text.parse().unwrap()) + 9;
            Ok(ThrottleAnswer {
                state: Some([("ran".to_owned(), ran.to_string())].into()),
                ..answer
            })
        }));
        harness.throttled(says(), limit(15)).await;
        let mut config = harness.engine.queue(&queue()).await.unwrap().config;
        config.throttler.as_mut().unwrap().on_failure = on_failure;
        harness.set_queue(config).await;
        harness.enqueue_many((0..100).map(|_| with("region", "east"))).await;
        harness.wait(1);
        harness.enqueue_many((0..100).map(|_| with("region", "west"))).await;
        let admitted = harness.lease(50).await;
        assert_eq!(by_region(&admitted).get("east"), Some(&9));
        assert_eq!(admitted.len(), if on_failure == OnFailure::Hold { 9 } else { 15 });
        harness.restart();
        assert_eq!(remembered(&harness).await.as_deref(), Some("9"));
    }
}

#[tokio::test]
async fn a_throttler_learns_of_attempts_that_ended_during_its_backoff() {
    for harness in every_store() {
        let (fails, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (told, hears) = (Arc::clone(&fails), Arc::clone(&heard));
        let mut harness = harness.with_policy(FnPolicy::default().throttling(move |_, call| {
            if told.load(Ordering::Relaxed) {
                return Err(fault("it divided by zero"));
            }
            hears.lock().extend(call.ended.iter().map(|ended| ended.id.clone()));
            Ok(each(call, |_| run()))
        }));
        harness.throttled(Description { needs_ended: true, ..says() }, limit(9)).await;
        harness.enqueue_many((0..3).map(|_| work())).await;
        let running = harness.lease(3).await;
        fails.store(true, Ordering::Relaxed);
        // In the tick in which it fails, and then while its circuit is open.
        harness.succeed(&running[..1]).await;
        harness.succeed(&running[1..2]).await;
        fails.store(false, Ordering::Relaxed);
        harness.wait(1);
        harness.succeed(&running[2..]).await;
        harness.tick(TickInput::default()).await;
        let mut heard = heard.lock().clone();
        let mut ended: Vec<_> = running.iter().map(|job| job.id.clone()).collect();
        heard.sort();
        ended.sort();
        assert_eq!(heard, ended, "of each once");
    }
}

#[tokio::test]
async fn an_owner_may_choose_that_a_failing_throttler_holds_nobody() {
    for harness in every_store() {
        let (policy, ..) = failing();
        let mut harness = harness.with_policy(policy);
        harness.throttled(says(), limit(3)).await;
        let mut config = harness.engine.queue(&queue()).await.unwrap().config;
        config.throttler.as_mut().unwrap().on_failure = OnFailure::Run;
        harness.set_queue(config).await;
        harness.enqueue_many((0..300).map(|_| work())).await;
        assert_eq!(harness.lease(2).await.len(), 2);
        assert_eq!(harness.lease(2).await.len(), 1, "the limits hold, and nobody was asked");
        assert_eq!(harness.granted().await, 3);
    }
}

#[tokio::test]
async fn an_answer_that_makes_no_sense_is_a_fault() {
    for nonsense in [
        |_: &ThrottleCall| ThrottleAnswer { decisions: vec![run(); 3], more: true, state: None },
        |_: &ThrottleCall| ThrottleAnswer { decisions: vec![], more: true, state: None },
        |call: &ThrottleCall| {
            each(call, |_| Decision { action: Action::Reschedule(call.now), reason: None })
        },
        |call: &ThrottleCall| {
            each(call, |_| Decision {
                action: Action::Reschedule(call.now + Duration::from_hours(24 * 367)),
                reason: None,
            })
        },
    ] {
        let [harness, _] = every_store();
        let mut harness =
            harness.with_policy(FnPolicy::default().throttling(move |_, call| Ok(nonsense(call))));
        harness.throttled(says(), limit(3)).await;
        harness.enqueue_many([work(), work()]).await;
        let outcome = harness
            .tick(TickInput {
                demands: vec![demand(&["work"], 2, Dispatch::Claim)],
                ..TickInput::default()
            })
            .await;
        assert_eq!((outcome.claimed.len(), outcome.faults.len()), (0, 1));
    }
}

#[tokio::test]
async fn a_throttler_hears_of_attempts_that_ended_once_each() {
    for harness in every_store() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut harness = harness.with_policy(policy);
        harness.throttled(Description { needs_ended: true, ..says() }, limit(9)).await;
        harness
            .set_type("once", TypeConfig { max_attempts: Some(1), ..TypeConfig::default() })
            .await;
        harness
            .enqueue_many(
                (0..2).map(|_| with("region", "east")).chain((0..3).map(|_| of_type("once"))),
            )
            .await;
        let running = harness.lease_of(&["work", "once"], 5).await;
        assert_eq!(running.len(), 5);
        calls.lock().clear();
        // Two reports, and no demand for jobs.
        let failure = Failure { status: Some(429), ..Failure::new(Reason::NotDelivered, "busy") };
        let busy =
            ReportOutcome::Failed { failure, retryable: true, least_wait: Duration::from_hours(1) };
        let reports = vec![
            report(&running[0], ReportOutcome::Succeeded { result: None }),
            report(&running[1], busy),
        ];
        harness.tick(TickInput { reports, ..TickInput::default() }).await;
        let ended = |calls: &Mutex<Vec<ThrottleCall>>| -> Vec<Ended> {
            calls.lock().drain(..).flat_map(|call| call.ended.to_vec()).collect()
        };
        let heard = ended(&calls);
        let short =
            |ended: &Ended| (ended.succeeded, ended.reason.clone(), ended.status, ended.attempt);
        assert_eq!(
            heard.iter().map(short).collect::<Vec<_>>(),
            [(true, None, None, 1), (false, Some("not_delivered".into()), Some(429), 1)]
        );
        assert!(heard.iter().all(|ended| ended.attributes["region"].text() == "east"));
        // One that another process ended, known by its hint; then leases that expire.
        let (before, _) = harness.engine.cancel(&running[2].id, None, true).await.unwrap();
        harness
            .tick(TickInput {
                released: vec![(before.id.clone(), before.life.version)],
                ..TickInput::default()
            })
            .await;
        assert_eq!(ended(&calls).iter().map(short).collect::<Vec<_>>(), [(false, None, None, 1)]);
        harness.wait(31);
        harness.tick(TickInput::default()).await;
        assert_eq!(
            ended(&calls).iter().map(short).collect::<Vec<_>>(),
            [
                (false, Some("lease_expired".into()), None, 1),
                (false, Some("lease_expired".into()), None, 1)
            ]
        );
        harness.wait(120);
        harness.tick(TickInput::default()).await;
        assert_eq!(ended(&calls).len(), 0);
        assert_eq!(calls.lock().len(), 0, "without news and candidates it is not called");
    }
}

#[tokio::test]
async fn a_throttler_gets_data_as_json_wherever_it_is_stored() {
    for harness in every_store() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut harness = harness.with_policy(policy);
        harness.throttled(Description { needs_data: true, ..says() }, limit(9)).await;
        let large = format!("[\"{}\"]", "x".repeat(5000));
        let huge = format!("[\"{}\"]", "y".repeat(100_000));
        let packed = Payload {
            encoding: Encoding::MessagePack,
            bytes: vec![0x81, 0xa1, b'a', 0xc4, 0x01, 0x00].into(),
        };
        for data in [
            Payload::json("{\"n\": 1}"),
            Payload::json(large.clone()),
            Payload::json(huge.clone()),
            packed,
        ] {
            harness.enqueue(NewJob::new(name("work"), data)).await;
        }
        assert_eq!(harness.lease(9).await.len(), 4);
        let calls = calls.lock();
        let mut data: Vec<&str> = calls[0].data.values().map(String::as_str).collect();
        data.sort_by_key(|text| text.len());
        assert_eq!(data, ["{\"n\": 1}", "{\"a\":{\"$binary\":\"AA==\"}}", &large, &huge]);
    }
}

#[tokio::test]
async fn a_throttler_is_not_called_while_the_data_is_unreadable() {
    for (harness, on_failure) in every_store().into_iter().zip([OnFailure::Hold, OnFailure::Run]) {
        let (policy, calls) = watched(|call| {
            each(call, |job| {
                if call.data.contains_key(&job.id) {
                    run()
                } else {
                    Decision { action: Action::Drop, reason: None }
                }
            })
        });
        let mut harness = harness.with_policy(policy);
        let objects = Arc::new(Objects::default());
        harness.objects(Arc::clone(&objects) as _);
        harness.throttled(Description { needs_data: true, ..says() }, limit(9)).await;
        let mut config = harness.engine.queue(&queue()).await.unwrap().config;
        config.throttler.as_mut().unwrap().on_failure = on_failure;
        harness.set_queue(config).await;
        let job = harness
            .enqueue(NewJob {
                data: Payload::json(format!("\"{}\"", "x".repeat(OBJECT_BYTES))),
                ..work()
            })
            .await;
        harness.enqueue(work().with_options(|options| options.critical = true)).await;
        objects.be_away(true);
        let outcome = harness
            .tick(TickInput {
                demands: vec![demand(&["work"], 5, Dispatch::Claim)],
                ..TickInput::default()
            })
            .await;
        assert_eq!(
            (calls.lock().len(), outcome.faults.len(), harness.policy.faults().len()),
            (0, 1, 1)
        );
        assert_eq!(
            outcome.claimed.len(),
            if on_failure == OnFailure::Hold { 1 } else { 2 },
            "the critical one in any case"
        );
        objects.be_away(false);
        harness.wait(1);
        harness.lease(5).await;
        assert!(
            harness.job(&job.id).await.life.running().is_some(),
            "nobody took its data for gone"
        );
    }
}

#[tokio::test]
async fn one_call_has_no_more_data_than_its_bound() {
    for harness in every_store() {
        let (policy, calls) = watched(|call| {
            each(call, |job| if region(job) == "west" { run() } else { hold("not the west") })
        });
        let mut harness = harness.with_policy(policy);
        harness.throttled(Description { needs_data: true, ..says() }, limit(9)).await;
        let large = Payload::json(format!("\"{}\"", "x".repeat((3 << 20) - 2)));
        for region in ["east"; 12].into_iter().chain(["west"]) {
            harness.enqueue(NewJob { data: large.clone(), ..with("region", region) }).await;
        }
        assert_eq!(harness.lease(9).await.len(), 1, "in one round");
        let sizes: Vec<(usize, usize)> =
            calls.lock().drain(..).map(|call| (call.candidates.len(), call.data.len())).collect();
        assert_eq!(sizes, [(5, 5), (5, 5), (3, 3)], "at most 16 MiB at once");
        let last = harness.enqueue(NewJob { data: large, ..with("region", "east") }).await;
        harness.engine.explain(&last.id, None, |_| true).await.unwrap();
        let call = calls.lock().pop().unwrap();
        assert_eq!(
            (call.candidates.len(), &call.candidates[4].id, call.data.len()),
            (5, &last.id, 5)
        );
    }
}

#[tokio::test]
async fn a_large_job_held_by_a_throttler_leaves_its_bytes_to_others() {
    for runs in [false, true] {
        for harness in every_store() {
            let (policy, _) =
                watched(move |call| {
                    each(call, |job| {
                        if runs || region(job) == "west" { run() } else { hold("not the west") }
                    })
                });
            let mut harness = harness.with_policy(policy);
            harness.throttled(says(), limit(9)).await;
            let large = NewJob {
                data: Payload::json(format!("\"{}\"", "x".repeat(100_000))),
                ..with("region", "east")
            };
            harness.enqueue(with("region", "west")).await;
            for job in [large, with("region", "west"), with("region", "west")] {
                harness.clock.advance(Duration::from_millis(1));
                harness.enqueue(job).await;
            }
            let round = |space| TickInput {
                demands: vec![demand(&["work"], 9, Dispatch::Claim)],
                byte_budget: Some(ByteBudget { left: space, most: space }),
                ..TickInput::default()
            };
            let sizes = [
                harness.tick(round(90_000)).await.claimed.len(),
                harness.tick(round(90_000)).await.claimed.len(),
            ];
            assert_eq!(
                sizes,
                if runs { [1, 1] } else { [3, 0] },
                "one that runs is overtaken by nobody, and has a round to itself"
            );
        }
    }
}

#[tokio::test]
async fn what_a_throttler_does_not_declare_it_is_not_given() {
    for harness in every_store() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut harness = harness.with_policy(policy);
        harness.throttled(says(), limit(9)).await;
        harness.enqueue(work()).await;
        let running = harness.lease(1).await;
        harness.succeed(&running).await;
        let calls = calls.lock();
        assert_eq!(calls.len(), 1, "it did not ask to hear of attempts that ended");
        assert!(calls[0].data.is_empty());
    }
}

#[tokio::test]
async fn two_processes_never_spend_one_token_twice() {
    for harness in every_store() {
        // Ten tokens in all, in the state.
        let spend = |call: &ThrottleCall| {
            let mut spent: usize = call.state.get("ran").map_or(0, |text| text.parse().unwrap());
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
            // Both cache the ledger as it was before the other's commit.
            let (mine, theirs) = tokio::join!(harness.lease(2), other.lease(2));
            claimed += mine.len() + theirs.len();
        }
        assert_eq!(claimed, 10);
        assert_eq!(remembered(&harness).await.as_deref(), Some("10"));
    }
}

#[tokio::test]
async fn a_throttler_on_a_queue_without_a_limit_sees_running_jobs() {
    for harness in every_store() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut harness = harness.with_policy(policy);
        harness.set_type("work", TypeConfig::default()).await;
        harness.enqueue_many([work(), work()]).await;
        assert_eq!(harness.lease(1).await.len(), 1, "without a head");
        harness.throttled(says(), QueueConfig::default()).await;
        assert_eq!(harness.lease(1).await.len(), 1);
        assert_eq!(calls.lock()[0].running.iter().count(), 1);
        harness.restart();
        assert_eq!(harness.granted().await, 2);
    }
}
