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

use super::place::{Place, ask, everywhere, of_type, queue, report, with, work};
use crate::outage::Objects;

fn limit(concurrency: u32) -> QueueConfig {
    QueueConfig { concurrency: Some(concurrency), ..QueueConfig::default() }
}

fn says() -> Description {
    Description { state_version: 1, ..Description::default() }
}

/// A policy that throttles so, and what it was asked.
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
    for place in everywhere() {
        let mut place =
            place.with_policy(FnPolicy::default().throttling(|_, call| Ok(shares(call))));
        place
            .throttled(Description { group_by: vec!["region".into()], ..says() }, limit(100))
            .await;
        for (region, count) in [("east", 500), ("north", 400), ("west", 20)] {
            place.enqueue_many((0..count).map(|_| with("region", region))).await;
        }
        let first = place.lease(1000).await;
        assert_eq!(
            by_region(&first),
            counts([("east", 40), ("north", 30), ("west", 20)]),
            "the shares are not lent"
        );
        place.enqueue_many((0..50).map(|_| with("region", "west"))).await;
        assert_eq!(by_region(&place.lease(1000).await), counts([("west", 10)]));
        let over: Vec<Job> =
            first.iter().filter(|job| region(job) == "east").take(7).cloned().collect();
        place.succeed(&over).await;
        place.restart();
        assert_eq!(
            by_region(&place.lease(1000).await),
            counts([("east", 7)]),
            "another process goes on"
        );
        assert_eq!(place.granted().await, 100);
    }
}

#[tokio::test]
async fn a_held_job_says_what_its_throttler_said() {
    for place in everywhere() {
        let until = place.now() + Duration::from_secs(90);
        let mut place = place.with_policy(FnPolicy::default().throttling(move |_, call| {
            Ok(each(call, |_| Decision {
                action: Action::Hold(Some(until)),
                reason: Some("not before nine".into()),
            }))
        }));
        place.throttled(says(), QueueConfig::default()).await;
        let job = place.enqueue(work()).await;
        let since = place.now();
        let ticked = place
            .tick(TickInput {
                demands: vec![ask(&["work"], 1, Dispatch::Claim)],
                ..TickInput::default()
            })
            .await;
        assert_eq!(ticked.held[&Rule::Throttler(name("guard"))], 1);
        assert_eq!(ticked.next_at, Some(until));
        place.wait(5);
        let explained = place.engine.explain(&job.id, None, |_| true).await.unwrap();
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
    for place in everywhere() {
        let at = place.now() + Duration::from_mins(1);
        let (policy, calls) = watched(move |call| {
            let later =
                Decision { action: Action::Reschedule(at), reason: Some("at night".into()) };
            each(call, |_| if call.now < at { later.clone() } else { run() })
        });
        let mut place = place.with_policy(policy);
        place.throttled(says(), limit(5)).await;
        let job = place.enqueue(work()).await;
        assert!(place.lease(1).await.is_empty());
        assert_eq!(
            place.job(&job.id).await.life.state,
            State::Scheduled { run_at: at, waiting: Waiting::Throttler }
        );
        assert!(place.lease(1).await.is_empty());
        assert_eq!(calls.lock().len(), 1, "until then it is no candidate");
        let explained = place.engine.explain(&job.id, None, |_| true).await.unwrap();
        assert_eq!(
            (explained.held_by.unwrap().kind, explained.reason.as_str(), explained.earliest_at),
            ("throttler", "at night", Some(at))
        );
        place.wait(60);
        assert_eq!(place.lease(1).await.len(), 1);
    }
}

#[tokio::test]
async fn a_dropped_job_ends_with_the_reason() {
    for place in everywhere() {
        let drop = Decision { action: Action::Drop, reason: Some("too old".into()) };
        let mut place = place.with_policy(
            FnPolicy::default().throttling(move |_, call| Ok(each(call, |_| drop.clone()))),
        );
        place.throttled(says(), limit(5)).await;
        let job = place.enqueue(work()).await;
        let ticked = place
            .tick(TickInput {
                demands: vec![ask(&["work"], 1, Dispatch::Claim)],
                ..TickInput::default()
            })
            .await;
        assert_eq!(ticked.ended.len(), 1);
        let job = place.job(&job.id).await;
        assert_eq!(job.life.ended(), Some(Outcome::Dropped));
        assert_eq!(job.life.error.unwrap().message.as_deref(), Some("too old"));
    }
}

#[tokio::test]
async fn the_throttler_is_asked_only_about_what_the_limits_leave_and_never_about_critical_jobs() {
    for place in everywhere() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut place = place.with_policy(policy);
        place.throttled(says(), limit(5)).await;
        place.set_type("small", TypeConfig { concurrency: Some(0), ..TypeConfig::default() }).await;
        let critical = place.enqueue(work().with_options(|options| options.critical = true)).await;
        place.enqueue(of_type("small")).await;
        place.enqueue(work().with_options(|options| options.weight = Some(4))).await;
        assert_eq!(place.lease_of(&["work", "small"], 9).await.len(), 2);
        let light = place.enqueue(work()).await;
        place.enqueue(work().with_options(|options| options.weight = Some(2))).await;
        assert_eq!(place.lease_of(&["work", "small"], 7).await.len(), 1);
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
                .any(|grant| grant.job == critical.id && grant.granted_at == place.now())
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
async fn remembered(place: &Place) -> Option<String> {
    let (head, batches) = place.store.ledger(&queue()).await.unwrap()?;
    match head.policy?.state {
        StateLocation::Inline(state) => state.get("ran").cloned(),
        StateLocation::Batch(id) => {
            batches.iter().find(|batch| batch.id == id)?.state.as_ref()?.get("ran").cloned()
        }
    }
}

#[tokio::test]
async fn what_is_remembered_is_what_was_admitted_when_not_all_fit_together() {
    for place in everywhere() {
        let (policy, calls) = watched(counting);
        let mut place = place.with_policy(policy);
        place.throttled(says(), limit(10)).await;
        place
            .enqueue_many(
                [3, 3, 3, 3, 1]
                    .map(|weight| work().with_options(|options| options.weight = Some(weight))),
            )
            .await;
        let leased = place.lease(9).await;
        assert_eq!(
            leased.len(),
            3,
            "the fourth reserves what is left, so the light job behind it waits"
        );
        assert_eq!(remembered(&place).await.as_deref(), Some("3"));
        assert!(calls.lock().len() <= 3);
        // Not even workers take all that it runs.
        place.succeed(&leased).await;
        calls.lock().clear();
        assert_eq!(place.lease(1).await.len(), 1);
        assert_eq!(remembered(&place).await.as_deref(), Some("4"));
        assert!(calls.lock().len() <= 3);
    }
}

#[tokio::test]
async fn a_throttler_that_always_asks_for_more_than_fits_is_asked_three_times_at_most() {
    for place in everywhere() {
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
        let mut place = place.with_policy(policy);
        place.throttled(says(), limit(10)).await;
        place
            .enqueue_many(
                [9, 8, 7, 6, 5, 5, 4, 4, 3, 2, 1]
                    .map(|weight| work().with_options(|options| options.weight = Some(weight))),
            )
            .await;
        let leased = place.lease(20).await;
        assert!(!leased.is_empty());
        assert!(calls.lock().len() <= 3, "{}", calls.lock().len());
        assert_eq!(remembered(&place).await, Some(leased.len().to_string()));
        assert!(place.granted().await <= 10);
    }
}

#[tokio::test]
async fn jobs_further_back_are_offered_while_the_throttler_says_there_may_be_more() {
    for place in everywhere() {
        let more = Arc::new(AtomicBool::new(true));
        let says_more = Arc::clone(&more);
        let (policy, calls) = watched(move |call| {
            let only = |job: &Job| {
                if region(job) == "west" { run() } else { hold("not the west") }
            };
            ThrottleAnswer { more: says_more.load(Ordering::Relaxed), ..each(call, only) }
        });
        let mut place = place.with_policy(policy);
        place.throttled(says(), limit(5)).await;
        place.enqueue_many((0..800).map(|_| with("region", "east"))).await;
        place.wait(1);
        place.enqueue(with("region", "west")).await;
        assert_eq!(place.lease(1).await.len(), 1, "in one round");
        let pages = calls.lock().len();
        assert!((2..=8).contains(&pages), "{pages} pages");
        place.enqueue(with("region", "west")).await;
        more.store(false, Ordering::Relaxed);
        calls.lock().clear();
        let ticked = place
            .tick(TickInput {
                demands: vec![ask(&["work"], 1, Dispatch::Claim)],
                ..TickInput::default()
            })
            .await;
        assert_eq!((ticked.claimed.len(), ticked.again, calls.lock().len()), (0, false, 1));
        assert_eq!(calls.lock()[0].candidates.len(), 100);
    }
}

#[tokio::test]
async fn a_long_backlog_is_looked_through_round_by_round() {
    for place in everywhere() {
        let only = |job: &Job| {
            if region(job) == "west" { run() } else { hold("not the west") }
        };
        let mut place =
            place.with_policy(FnPolicy::default().throttling(move |_, call| Ok(each(call, only))));
        place.throttled(says(), limit(5)).await;
        for _ in 0..3 {
            place.enqueue_many((0..900).map(|_| with("region", "east"))).await;
        }
        place.wait(1);
        place.enqueue(with("region", "west")).await;
        for round in 1.. {
            let ticked = place
                .tick(TickInput {
                    demands: vec![ask(&["work"], 1, Dispatch::Claim)],
                    ..TickInput::default()
                })
                .await;
            if !ticked.claimed.is_empty() {
                break;
            }
            assert!(ticked.again && round < 5, "round {round}");
        }
    }
}

#[tokio::test]
async fn a_round_that_has_taken_its_time_leaves_the_rest_to_the_next_ones() {
    for place in everywhere() {
        let clock = Arc::clone(&place.clock);
        let (policy, calls) = watched(move |call| {
            clock.advance(Duration::from_millis(600));
            each_held(call)
        });
        let mut place = place.with_policy(policy);
        place.throttled(says(), limit(9)).await;
        place.enqueue_many((0..700).map(|_| work())).await;
        let mut offered = std::collections::BTreeSet::new();
        for round in 0..6 {
            assert!(place.lease(1).await.is_empty());
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
async fn partitions_are_looked_through_by_a_throttler_that_takes_all_the_time_of_each_round() {
    // One call sees the last job; not the second half of each partition; not every partition that a round visits; not even one job of each.
    for (partitions, each, bytes, rounds) in
        [(1, 40, 2, 1), (2, 350, 2, 10), (70, 3, 2, 16), (7, 2, 3 << 20, 16)]
    {
        for place in everywhere() {
            let clock = Arc::clone(&place.clock);
            let (policy, calls) = watched(move |call| {
                clock.advance(Duration::from_millis(1100));
                each_held(call)
            });
            let mut place = place.with_policy(policy);
            let by_region = QueueConfig { partition_by: Some("region".into()), ..limit(9) };
            place.throttled(Description { needs_data: true, ..says() }, by_region).await;
            let data = Payload::json(format!("\"{}\"", "x".repeat(bytes - 2)));
            for _ in 0..each {
                let jobs = (0..partitions)
                    .map(|n| NewJob { data: data.clone(), ..with("region", &format!("r{n:02}")) });
                place.enqueue_many(jobs).await;
            }
            let mut offered = std::collections::BTreeSet::new();
            for round in 1.. {
                let ticked = place
                    .tick(TickInput {
                        demands: vec![ask(&["work"], 1, Dispatch::Claim)],
                        ..TickInput::default()
                    })
                    .await;
                let asked: Vec<ThrottleCall> = calls.lock().drain(..).collect();
                // From the front, and where the last one stopped.
                assert!(asked.len() <= 2, "{} calls in round {round}", asked.len());
                offered.extend(
                    asked.iter().flat_map(|call| call.candidates.iter().map(|job| job.id.clone())),
                );
                if !ticked.again {
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
    for place in everywhere() {
        let (policy, ..) = failing();
        let mut place = place.with_policy(policy);
        place
            .throttled(says(), QueueConfig { partition_by: Some("region".into()), ..limit(9) })
            .await;
        let mut config = place.engine.queue(&queue()).await.unwrap().config;
        config.throttler.as_mut().unwrap().on_failure = OnFailure::Run;
        place.set_queue(config).await;
        place
            .enqueue_many(["east", "east", "west", "west"].map(|region| with("region", region)))
            .await;
        let first = place.lease(1).await;
        let second = place.lease(1).await;
        assert_ne!(region(&first[0]), region(&second[0]), "in the round in which it failed, too");
    }
}

#[tokio::test]
async fn partitions_take_turns_before_the_throttler_sees_them() {
    for place in everywhere() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut place = place.with_policy(policy);
        place
            .throttled(says(), QueueConfig { partition_by: Some("region".into()), ..limit(50) })
            .await;
        for region in ["a", "b", "c"] {
            place.enqueue_many((0..200).map(|_| with("region", region))).await;
        }
        assert_eq!(by_region(&place.lease(30).await), counts([("a", 10), ("b", 10), ("c", 10)]));
        let turns: Vec<String> = calls.lock()[0].candidates[..6].iter().map(region).collect();
        assert_eq!(turns, ["a", "b", "c", "a", "b", "c"]);
    }
}

#[tokio::test]
async fn a_state_outlives_processes_and_goes_with_the_commit() {
    for place in everywhere() {
        let mut place =
            place.with_policy(FnPolicy::default().throttling(|_, call| Ok(counting(call))));
        place.throttled(says(), limit(9)).await;
        for round in 1..=3 {
            place.enqueue(work()).await;
            assert_eq!(place.lease(1).await.len(), 1);
            place.restart();
            assert_eq!(remembered(&place).await, Some(round.to_string()));
        }
    }
}

#[tokio::test]
async fn a_large_state_is_a_record_of_its_own_and_leaves_none_behind() {
    for place in everywhere() {
        let small = Arc::new(AtomicBool::new(false));
        let shrink = Arc::clone(&small);
        let mut place = place.with_policy(FnPolicy::default().throttling(move |_, call| {
            let mut answer = counting(call);
            if !shrink.load(Ordering::Relaxed) {
                answer.state.get_or_insert_default().insert("much".into(), "x".repeat(8000));
            }
            Ok(answer)
        }));
        place.throttled(says(), limit(9)).await;
        for round in 1..=3 {
            place.enqueue(work()).await;
            place.lease(1).await;
            place.restart();
            assert_eq!(remembered(&place).await, Some(round.to_string()));
            let (head, batches) = place.store.ledger(&queue()).await.unwrap().unwrap();
            assert!(matches!(head.policy.unwrap().state, StateLocation::Batch(_)));
            assert_eq!(
                batches.len(),
                place.store.batches(&queue()).await.unwrap().len(),
                "every record is named"
            );
            assert_eq!(batches.iter().filter(|batch| batch.state.is_some()).count(), 1);
        }
        small.store(true, Ordering::Relaxed);
        place.enqueue(work()).await;
        place.lease(1).await;
        assert!(matches!(
            place.store.ledger(&queue()).await.unwrap().unwrap().0.policy.unwrap().state,
            StateLocation::Inline(_)
        ));
        let (head, _) = place.store.ledger(&queue()).await.unwrap().unwrap();
        assert_eq!(place.store.batches(&queue()).await.unwrap().len(), head.batches.len());
    }
}

#[tokio::test]
async fn a_swap_keeps_a_state_of_the_same_shape_and_no_other() {
    for place in everywhere() {
        let mut place =
            place.with_policy(FnPolicy::default().throttling(|_, call| Ok(counting(call))));
        place.throttled(says(), limit(9)).await;
        let one_more = async |place: &mut Place| {
            place.enqueue(work()).await;
            assert_eq!(place.lease(1).await.len(), 1);
            remembered(place).await.unwrap()
        };
        assert_eq!(one_more(&mut place).await, "1");
        place.push("guard", "v2", Some(says()), None).await.unwrap();
        assert_eq!(one_more(&mut place).await, "2");
        place
            .push("guard", "v3", Some(Description { state_version: 2, ..says() }), None)
            .await
            .unwrap();
        assert_eq!(one_more(&mut place).await, "1");
        place.set_queue(limit(9)).await;
        place.lease(1).await;
        assert_eq!(remembered(&place).await, None, "a queue without a throttler remembers nothing");
    }
}

#[tokio::test]
async fn a_swap_shows_at_the_next_round_and_in_no_round_after_it_does_the_old_version_decide() {
    for place in everywhere() {
        let policy = FnPolicy::default().throttling(|plugin, call| {
            let said =
                if plugin.version.number == 1 { run() } else { hold("closed by the new version") };
            Ok(each(call, |_| said.clone()))
        });
        let mut place = place.with_policy(policy);
        place.throttled(says(), limit(9)).await;
        place.enqueue_many((0..5).map(|_| work())).await;
        assert_eq!(place.lease(1).await.len(), 1);
        place.push("guard", "v2", Some(says()), None).await.unwrap();
        assert_eq!(place.lease(1).await.len(), 0);
        place.engine.rollback_plugin(&name("guard"), None).await.unwrap();
        assert_eq!(place.lease(1).await.len(), 1);
    }
}

#[tokio::test]
async fn a_round_that_a_push_overtakes_is_decided_anew() {
    for place in everywhere() {
        // The new version is pushed by another process while the old one is being asked.
        let other = Arc::new(Place::on(Arc::clone(&place.store)));
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
        let mut place = place.with_policy(policy);
        place.throttled(says(), limit(9)).await;
        place.enqueue(work()).await;
        assert!(
            place.lease(1).await.is_empty(),
            "version 1 was live no more when it was to be committed"
        );
        assert_eq!(place.granted().await, 0);
    }
}

/// A throttler that fails as long as it is told to, and how often it was asked.
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
async fn a_throttler_that_fails_holds_everybody_but_critical_jobs_and_is_left_alone_for_a_while() {
    for place in everywhere() {
        let (policy, fails, asked) = failing();
        let mut place = place.with_policy(policy);
        place.throttled(says(), limit(9)).await;
        let job = place.enqueue(work()).await;
        let start = place.now();
        let round = || TickInput {
            demands: vec![ask(&["work"], 1, Dispatch::Claim)],
            ..TickInput::default()
        };
        let ticked = place.tick(round()).await;
        assert_eq!(ticked.faults.len(), 1);
        assert_eq!(ticked.faults[0].call.candidates[0].id, job.id, "with the input that did it");
        assert_eq!(ticked.next_at, Some(start + Duration::from_secs(1)));
        assert_eq!(ticked.held[&Rule::Throttler(name("guard"))], 1);
        let explained = place.engine.explain(&job.id, None, |_| true).await.unwrap();
        assert_eq!(
            (explained.held_by.unwrap().kind, explained.reason.as_str()),
            ("throttler", "plugin guard failed: it divided by zero")
        );
        asked.store(0, Ordering::Relaxed);
        let ticked = place.tick(round()).await;
        assert_eq!(
            (ticked.claimed.len(), ticked.faults.len(), asked.load(Ordering::Relaxed)),
            (0, 0, 0),
            "no storm"
        );
        assert_eq!(ticked.held[&Rule::Throttler(name("guard"))], 1);
        place.enqueue(work().with_options(|options| options.critical = true)).await;
        let critical = place.lease(1).await;
        assert_eq!(critical.len(), 1, "critical jobs are not its affair");
        place.succeed(&critical).await;
        place.wait(1);
        assert_eq!(place.tick(round()).await.next_at, Some(place.now() + Duration::from_secs(2)));
        for seconds in [2, 4, 8, 16, 30, 30] {
            place.wait(seconds - 1);
            assert_eq!(place.tick(round()).await.faults.len(), 0);
            place.wait(1);
            assert_eq!(place.tick(round()).await.faults.len(), 1, "after {seconds} s");
        }
        fails.store(false, Ordering::Relaxed);
        place.push("guard", "v2", Some(says()), None).await.unwrap();
        assert_eq!(place.lease(1).await.len(), 1, "a new version is asked at once");
    }
}

#[tokio::test]
async fn what_a_page_admitted_is_remembered_though_the_next_one_fails() {
    for (place, on_failure) in everywhere().into_iter().zip([OnFailure::Hold, OnFailure::Run]) {
        // Ten of each page run; a call about jobs of the west crashes.
        let mut place = place.with_policy(FnPolicy::default().throttling(|_, call| {
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
        place.throttled(says(), limit(15)).await;
        let mut config = place.engine.queue(&queue()).await.unwrap().config;
        config.throttler.as_mut().unwrap().on_failure = on_failure;
        place.set_queue(config).await;
        place.enqueue_many((0..100).map(|_| with("region", "east"))).await;
        place.wait(1);
        place.enqueue_many((0..100).map(|_| with("region", "west"))).await;
        let admitted = place.lease(50).await;
        assert_eq!(by_region(&admitted).get("east"), Some(&9));
        assert_eq!(admitted.len(), if on_failure == OnFailure::Hold { 9 } else { 15 });
        place.restart();
        assert_eq!(remembered(&place).await.as_deref(), Some("9"));
    }
}

#[tokio::test]
async fn a_throttler_that_was_left_alone_hears_of_what_ended_meanwhile() {
    for place in everywhere() {
        let (fails, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (told, hears) = (Arc::clone(&fails), Arc::clone(&heard));
        let mut place = place.with_policy(FnPolicy::default().throttling(move |_, call| {
            if told.load(Ordering::Relaxed) {
                return Err(fault("it divided by zero"));
            }
            hears.lock().extend(call.ended.iter().map(|ended| ended.id.clone()));
            Ok(each(call, |_| run()))
        }));
        place.throttled(Description { needs_ended: true, ..says() }, limit(9)).await;
        place.enqueue_many((0..3).map(|_| work())).await;
        let running = place.lease(3).await;
        fails.store(true, Ordering::Relaxed);
        // In the round in which it fails; then while it is left alone.
        place.succeed(&running[..1]).await;
        place.succeed(&running[1..2]).await;
        fails.store(false, Ordering::Relaxed);
        place.wait(1);
        place.succeed(&running[2..]).await;
        place.tick(TickInput::default()).await;
        let mut heard = heard.lock().clone();
        let mut ended: Vec<_> = running.iter().map(|job| job.id.clone()).collect();
        heard.sort();
        ended.sort();
        assert_eq!(heard, ended, "of each once");
    }
}

#[tokio::test]
async fn an_owner_may_choose_that_a_failing_throttler_holds_nobody() {
    for place in everywhere() {
        let (policy, ..) = failing();
        let mut place = place.with_policy(policy);
        place.throttled(says(), limit(3)).await;
        let mut config = place.engine.queue(&queue()).await.unwrap().config;
        config.throttler.as_mut().unwrap().on_failure = OnFailure::Run;
        place.set_queue(config).await;
        place.enqueue_many((0..300).map(|_| work())).await;
        assert_eq!(place.lease(2).await.len(), 2);
        assert_eq!(place.lease(2).await.len(), 1, "the limits hold, and nobody was asked");
        assert_eq!(place.granted().await, 3);
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
        let [place, _] = everywhere();
        let mut place =
            place.with_policy(FnPolicy::default().throttling(move |_, call| Ok(nonsense(call))));
        place.throttled(says(), limit(3)).await;
        place.enqueue_many([work(), work()]).await;
        let ticked = place
            .tick(TickInput {
                demands: vec![ask(&["work"], 2, Dispatch::Claim)],
                ..TickInput::default()
            })
            .await;
        assert_eq!((ticked.claimed.len(), ticked.faults.len()), (0, 1));
    }
}

#[tokio::test]
async fn a_throttler_hears_of_attempts_that_ended_once_each() {
    for place in everywhere() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut place = place.with_policy(policy);
        place.throttled(Description { needs_ended: true, ..says() }, limit(9)).await;
        place.set_type("once", TypeConfig { max_attempts: Some(1), ..TypeConfig::default() }).await;
        place
            .enqueue_many(
                (0..2).map(|_| with("region", "east")).chain((0..3).map(|_| of_type("once"))),
            )
            .await;
        let running = place.lease_of(&["work", "once"], 5).await;
        assert_eq!(running.len(), 5);
        calls.lock().clear();
        // Two reports, and nobody asks for jobs.
        let failure = Failure { status: Some(429), ..Failure::new(Reason::NotDelivered, "busy") };
        let busy =
            ReportOutcome::Failed { failure, retryable: true, least_wait: Duration::from_hours(1) };
        let reports = vec![
            report(&running[0], ReportOutcome::Succeeded { result: None }),
            report(&running[1], busy),
        ];
        place.tick(TickInput { reports, ..TickInput::default() }).await;
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
        // One that somebody else ended, known by its hint; then leases that end.
        let (before, _) = place.engine.cancel(&running[2].id, None, true).await.unwrap();
        place
            .tick(TickInput {
                released: vec![(before.id.clone(), before.life.version)],
                ..TickInput::default()
            })
            .await;
        assert_eq!(ended(&calls).iter().map(short).collect::<Vec<_>>(), [(false, None, None, 1)]);
        place.wait(31);
        place.tick(TickInput::default()).await;
        assert_eq!(
            ended(&calls).iter().map(short).collect::<Vec<_>>(),
            [
                (false, Some("lease_expired".into()), None, 1),
                (false, Some("lease_expired".into()), None, 1)
            ]
        );
        place.wait(120);
        place.tick(TickInput::default()).await;
        assert_eq!(ended(&calls).len(), 0);
        assert_eq!(calls.lock().len(), 0, "without news and candidates it is not called");
    }
}

#[tokio::test]
async fn a_throttler_that_looks_at_data_gets_it_as_json_wherever_it_is_kept() {
    for place in everywhere() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut place = place.with_policy(policy);
        place.throttled(Description { needs_data: true, ..says() }, limit(9)).await;
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
            place.enqueue(NewJob::new(name("work"), data)).await;
        }
        assert_eq!(place.lease(9).await.len(), 4);
        let calls = calls.lock();
        let mut data: Vec<&str> = calls[0].data.values().map(String::as_str).collect();
        data.sort_by_key(|text| text.len());
        assert_eq!(data, ["{\"n\": 1}", "{\"a\":{\"$binary\":\"AA==\"}}", &large, &huge]);
    }
}

#[tokio::test]
async fn a_throttler_that_reads_data_is_not_asked_while_that_cannot_be_read() {
    for (place, on_failure) in everywhere().into_iter().zip([OnFailure::Hold, OnFailure::Run]) {
        let (policy, calls) = watched(|call| {
            each(call, |job| {
                if call.data.contains_key(&job.id) {
                    run()
                } else {
                    Decision { action: Action::Drop, reason: None }
                }
            })
        });
        let mut place = place.with_policy(policy);
        let objects = Arc::new(Objects::default());
        place.objects(Arc::clone(&objects) as _);
        place.throttled(Description { needs_data: true, ..says() }, limit(9)).await;
        let mut config = place.engine.queue(&queue()).await.unwrap().config;
        config.throttler.as_mut().unwrap().on_failure = on_failure;
        place.set_queue(config).await;
        let job = place
            .enqueue(NewJob {
                data: Payload::json(format!("\"{}\"", "x".repeat(OBJECT_BYTES))),
                ..work()
            })
            .await;
        place.enqueue(work().with_options(|options| options.critical = true)).await;
        objects.be_away(true);
        let ticked = place
            .tick(TickInput {
                demands: vec![ask(&["work"], 5, Dispatch::Claim)],
                ..TickInput::default()
            })
            .await;
        assert_eq!(
            (calls.lock().len(), ticked.faults.len(), place.policy.faults().len()),
            (0, 1, 1)
        );
        assert_eq!(
            ticked.claimed.len(),
            if on_failure == OnFailure::Hold { 1 } else { 2 },
            "the critical one in any case"
        );
        objects.be_away(false);
        place.wait(1);
        place.lease(5).await;
        assert!(place.job(&job.id).await.life.running().is_some(), "nobody took its data for gone");
    }
}

#[tokio::test]
async fn one_call_has_no_more_data_than_its_bound() {
    for place in everywhere() {
        let (policy, calls) = watched(|call| {
            each(call, |job| if region(job) == "west" { run() } else { hold("not the west") })
        });
        let mut place = place.with_policy(policy);
        place.throttled(Description { needs_data: true, ..says() }, limit(9)).await;
        let large = Payload::json(format!("\"{}\"", "x".repeat((3 << 20) - 2)));
        for region in ["east"; 12].into_iter().chain(["west"]) {
            place.enqueue(NewJob { data: large.clone(), ..with("region", region) }).await;
        }
        assert_eq!(place.lease(9).await.len(), 1, "in one round");
        let sizes: Vec<(usize, usize)> =
            calls.lock().drain(..).map(|call| (call.candidates.len(), call.data.len())).collect();
        assert_eq!(sizes, [(5, 5), (5, 5), (3, 3)], "at most 16 MiB at once");
        let last = place.enqueue(NewJob { data: large, ..with("region", "east") }).await;
        place.engine.explain(&last.id, None, |_| true).await.unwrap();
        let call = calls.lock().pop().unwrap();
        assert_eq!(
            (call.candidates.len(), &call.candidates[4].id, call.data.len()),
            (5, &last.id, 5)
        );
    }
}

#[tokio::test]
async fn a_large_job_that_the_throttler_holds_leaves_its_space_to_those_behind_it() {
    for runs in [false, true] {
        for place in everywhere() {
            let (policy, _) =
                watched(move |call| {
                    each(call, |job| {
                        if runs || region(job) == "west" { run() } else { hold("not the west") }
                    })
                });
            let mut place = place.with_policy(policy);
            place.throttled(says(), limit(9)).await;
            let large = NewJob {
                data: Payload::json(format!("\"{}\"", "x".repeat(100_000))),
                ..with("region", "east")
            };
            place.enqueue(with("region", "west")).await;
            for job in [large, with("region", "west"), with("region", "west")] {
                place.clock.advance(Duration::from_millis(1));
                place.enqueue(job).await;
            }
            let round = |space| TickInput {
                demands: vec![ask(&["work"], 9, Dispatch::Claim)],
                byte_budget: Some(ByteBudget { left: space, most: space }),
                ..TickInput::default()
            };
            let sizes = [
                place.tick(round(90_000)).await.claimed.len(),
                place.tick(round(90_000)).await.claimed.len(),
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
    for place in everywhere() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut place = place.with_policy(policy);
        place.throttled(says(), limit(9)).await;
        place.enqueue(work()).await;
        let running = place.lease(1).await;
        place.succeed(&running).await;
        let calls = calls.lock();
        assert_eq!(calls.len(), 1, "it did not ask to hear of attempts that ended");
        assert!(calls[0].data.is_empty());
    }
}

#[tokio::test]
async fn two_processes_never_spend_one_token_twice() {
    for place in everywhere() {
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
        let mut place =
            place.with_policy(FnPolicy::default().throttling(move |_, call| spend(call)));
        place.throttled(says(), QueueConfig::default()).await;
        place.enqueue_many((0..40).map(|_| work())).await;
        let mut other = Place::on(Arc::clone(&place.store)).with_policy(place.policy.clone());
        other.clock = Arc::clone(&place.clock);
        other.restart();
        let mut claimed = 0;
        for _ in 0..8 {
            // Both remember the head as it was before the other's commit.
            let (mine, theirs) = tokio::join!(place.lease(2), other.lease(2));
            claimed += mine.len() + theirs.len();
        }
        assert_eq!(claimed, 10);
        assert_eq!(remembered(&place).await.as_deref(), Some("10"));
    }
}

#[tokio::test]
async fn a_throttled_queue_that_had_no_limit_takes_what_runs_into_account() {
    for place in everywhere() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut place = place.with_policy(policy);
        place.set_type("work", TypeConfig::default()).await;
        place.enqueue_many([work(), work()]).await;
        assert_eq!(place.lease(1).await.len(), 1, "without a head");
        place.throttled(says(), QueueConfig::default()).await;
        assert_eq!(place.lease(1).await.len(), 1);
        assert_eq!(calls.lock()[0].running.iter().count(), 1);
        place.restart();
        assert_eq!(place.granted().await, 2);
    }
}
