//! Each answer of a throttler and its effect: run, hold, reschedule, drop.

use std::{collections::BTreeMap, time::Duration};

use tidegate_core::{
    job::{Job, Outcome, State, lifecycle::Waiting, type_config::TypeConfig},
    port::policy::{Action, Decision, ThrottleAnswer, ThrottleCall},
    queue::{QueueConfig, Rule, plugin::Description},
    time::Timestamp,
};
use tidegate_engine::{
    Dispatch, TickInput,
    testkit::{
        FnPolicy,
        builders::name,
        policies::{each, hold, run},
    },
};

use super::{by_region, counts, limit, region, says, watched};
use crate::cases::harness::{demand, every_store, of_type, with, work};

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

#[tokio::test]
async fn each_region_runs_its_share_whatever_the_arrival_order() {
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
async fn explain_shows_the_reason_of_the_throttler() {
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
        let explained = harness.explain(&job.id).await;
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
        let explained = harness.explain(&job.id).await;
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
async fn a_throttler_on_a_queue_without_a_limit_sees_running_jobs() {
    for harness in every_store() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut harness = harness.with_policy(policy);
        harness.set_type("work", TypeConfig::default()).await;
        harness.enqueue_many([work(), work()]).await;
        assert_eq!(harness.lease(1).await.len(), 1, "without a ledger");
        harness.throttled(says(), QueueConfig::default()).await;
        assert_eq!(harness.lease(1).await.len(), 1);
        assert_eq!(calls.lock()[0].running.iter().count(), 1);
        harness.restart();
        assert_eq!(harness.granted().await, 2);
    }
}

/// The queue is idle until a change, or until the earliest time that an answer names.
#[tokio::test]
async fn a_hold_wakes_the_queue_at_its_time_if_it_has_one() {
    for seconds in [&[None, None][..], &[None, Some(40), Some(20)]] {
        for harness in every_store() {
            let now = harness.now();
            let at = |seconds: u64| now + Duration::from_secs(seconds);
            let times: Vec<Option<Timestamp>> =
                seconds.iter().map(|seconds| seconds.map(at)).collect();
            let first = times.iter().flatten().min().copied();
            let count = times.len();
            let (policy, calls) = watched(move |call| {
                let mut times = times.iter();
                each(call, |_| {
                    let until = times.next().copied().flatten();
                    Decision { action: Action::Hold(until), reason: None }
                })
            });
            let mut harness = harness.with_policy(policy);
            harness.throttled(says(), limit(5)).await;
            harness.enqueue_many((0..count).map(|_| work())).await;
            let input = TickInput {
                demands: vec![demand(&["work"], 1, Dispatch::Claim)],
                ..TickInput::default()
            };
            let outcome = harness.tick(input).await;
            assert_eq!((outcome.next_at, outcome.again), (first, false));
            assert_eq!(calls.lock().len(), 1);
        }
    }
}

#[tokio::test]
async fn a_deferral_by_a_millisecond_lasts_50() {
    type Defer = fn(Timestamp) -> Action;
    let deferrals: [Defer; 2] = [|at| Action::Hold(Some(at)), Action::Reschedule];
    for defer in deferrals {
        for harness in every_store() {
            let (policy, calls) = watched(move |call| {
                let soon = call.now + Duration::from_millis(1);
                each(call, |_| Decision { action: defer(soon), reason: None })
            });
            let mut harness = harness.with_policy(policy);
            harness.throttled(says(), limit(5)).await;
            harness.enqueue(work()).await;
            let until = harness.now() + Duration::from_secs(1);
            while harness.now() < until {
                let input = TickInput {
                    demands: vec![demand(&["work"], 1, Dispatch::Claim)],
                    ..TickInput::default()
                };
                let outcome = harness.tick(input).await;
                harness.clock.set(outcome.next_at.expect("it is called again"));
            }
            assert_eq!(calls.lock().len(), 20);
        }
    }
}
