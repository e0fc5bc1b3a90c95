//! A throttler that fails: what happens to its queue, and what it learns after its backoff.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_core::{
    port::policy::ThrottleAnswer,
    queue::{
        Rule,
        plugin::{Description, OnFailure},
    },
};
use tidegate_engine::{
    Dispatch, TickInput,
    testkit::{
        FnPolicy,
        builders::name,
        policies::{each, fault, hold, run},
    },
};

use super::{by_region, failing, limit, region, remembered, says};
use crate::cases::harness::{demand, every_store, queue, with, work};

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
        asked.store(0, Ordering::Relaxed);
        let explained = harness.explain(&job.id).await;
        assert_eq!(
            (explained.held_by.unwrap().kind, explained.reason.as_str(), explained.earliest_at),
            ("throttler", "plugin guard failed: it divided by zero", outcome.next_at)
        );
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
        assert_eq!(harness.lease(1).await.len(), 1, "a new version is called at once");
    }
}

#[tokio::test]
async fn a_page_counts_though_the_call_for_the_next_page_fails() {
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
            let ran: u64 = call.state.text("ran").map_or(0, |text| text.parse().unwrap()) + 9;
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
        let (switch, hears) = (Arc::clone(&fails), Arc::clone(&heard));
        let mut harness = harness.with_policy(FnPolicy::default().throttling(move |_, call| {
            if switch.load(Ordering::Relaxed) {
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
async fn on_failure_run_starts_jobs_while_the_throttler_fails() {
    for harness in every_store() {
        let (policy, ..) = failing();
        let mut harness = harness.with_policy(policy);
        harness.throttled(says(), limit(3)).await;
        let mut config = harness.engine.queue(&queue()).await.unwrap().config;
        config.throttler.as_mut().unwrap().on_failure = OnFailure::Run;
        harness.set_queue(config).await;
        harness.enqueue_many((0..300).map(|_| work())).await;
        assert_eq!(harness.lease(2).await.len(), 2);
        assert_eq!(
            harness.lease(2).await.len(),
            1,
            "the limits hold, and the throttler is not called"
        );
        assert_eq!(harness.granted().await, 3);
    }
}
