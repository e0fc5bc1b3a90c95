//! Rates: never exceeded, and each attempt counts.

use std::time::Duration;

use tidegate_core::{
    job::{Job, type_config::TypeConfig},
    queue::{
        QueueConfig,
        config::{Constraint, Rate},
        matcher::Matcher,
    },
    time::{Seconds, Timestamp},
};
use tidegate_engine::{Dispatch, TickInput};

use super::by_tenant;
use crate::cases::harness::{Harness, demand, every_store, with, work};

#[tokio::test]
async fn a_rate_is_never_exceeded_and_its_tokens_come_back() {
    for mut harness in every_store() {
        let rate = Rate { count: 5, per_seconds: Seconds::new(1), burst: Some(10) };
        let constraint = Constraint {
            name: "calls".into(),
            matcher: Matcher::default(),
            per: Some("tenant".into()),
            concurrency: None,
            rate: Some(rate),
        };
        harness
            .set_queue(QueueConfig { constraints: vec![constraint], ..QueueConfig::default() })
            .await;
        harness.set_type("work", TypeConfig::default()).await;
        harness.enqueue_many((0..60).map(|_| with("tenant", "a"))).await;
        harness.enqueue_many((0..3).map(|_| with("tenant", "b"))).await;
        let began = harness.now();
        let mut starts: Vec<u64> = Vec::new();
        let mut others = 0;
        while starts.len() < 60 {
            let outcome = harness
                .tick(TickInput {
                    demands: vec![demand(&["work"], 100, Dispatch::Claim)],
                    ..TickInput::default()
                })
                .await;
            let jobs: Vec<Job> = outcome.claimed.into_iter().map(|claimed| claimed.job).collect();
            let own = by_tenant(&jobs).remove("a").unwrap_or(0);
            others += jobs.len() - own;
            starts.extend(std::iter::repeat_n(harness.now().since(began).as_millis() as u64, own));
            harness.succeed(&jobs).await;
            harness.clock.set(outcome.next_at.expect("the next token is planned for"));
        }
        assert_eq!(others, 3, "another tenant's bucket is its own");
        for (index, from) in starts.iter().enumerate() {
            for (count, to) in starts[index..].iter().enumerate() {
                assert!(
                    (count + 1) as f64 <= 10.0 + (to - from) as f64 * 5.0 / 1000.0 + 1e-6,
                    "{starts:?}"
                );
            }
        }
        assert_eq!(
            *starts.last().unwrap(),
            10_000,
            "fifty after the burst, at five a second, and none of them late"
        );
    }
}

/// The next `most` starts, in milliseconds since `began`.
async fn starts(harness: &mut Harness, began: Timestamp, most: usize) -> Vec<u64> {
    let mut starts = Vec::new();
    while starts.len() < most {
        let input = TickInput {
            demands: vec![demand(&["work"], 100, Dispatch::Claim)],
            ..TickInput::default()
        };
        let outcome = harness.tick(input).await;
        let jobs: Vec<Job> = outcome.claimed.into_iter().map(|claimed| claimed.job).collect();
        let at = harness.now().since(began).as_millis() as u64;
        starts.extend(std::iter::repeat_n(at, jobs.len()));
        harness.succeed(&jobs).await;
        if starts.len() < most {
            harness.clock.set(outcome.next_at.expect("the next start is planned for"));
        }
    }
    starts
}

async fn with_rate(harness: &Harness, rate: Rate) {
    let constraint = Constraint {
        name: "calls".into(),
        matcher: Matcher::default(),
        per: None,
        concurrency: None,
        rate: Some(rate),
    };
    let config = QueueConfig { constraints: vec![constraint], ..QueueConfig::default() };
    harness.set_queue(config).await;
    harness.set_type("work", TypeConfig::default()).await;
}

#[tokio::test]
async fn five_per_second_are_never_more_in_any_second() {
    for mut harness in every_store() {
        with_rate(&harness, window(5, 1)).await;
        harness.enqueue_many((0..12).map(|_| work())).await;
        let began = harness.now();
        let mut all = starts(&mut harness, began, 5).await;
        harness.restart();
        all.extend(starts(&mut harness, began, 7).await);
        assert_eq!(all, [0, 0, 0, 0, 0, 1000, 1000, 1000, 1000, 1000, 2000, 2000]);
    }
}

#[tokio::test]
async fn a_rate_over_32_is_exact_for_starts_of_one_tick() {
    for mut harness in every_store() {
        with_rate(&harness, window(50, 3)).await;
        harness.enqueue_many((0..120).map(|_| work())).await;
        let began = harness.now();
        let all = starts(&mut harness, began, 120).await;
        let ends = [all[49], all[50], all[99], all[100]];
        assert_eq!(ends, [0, 3000, 3000, 6000]);
    }
}

#[tokio::test]
async fn a_lowered_rate_counts_the_starts_before() {
    for mut harness in every_store() {
        with_rate(&harness, window(5, 10)).await;
        harness.enqueue_many((0..9).map(|_| work())).await;
        let began = harness.now();
        let first = starts(&mut harness, began, 5).await;
        with_rate(&harness, window(2, 8)).await;
        let next = starts(&mut harness, began, 4).await;
        assert_eq!((first, next), (vec![0; 5], vec![8000, 8000, 16_000, 16_000]));
    }
}

#[tokio::test]
async fn a_clock_that_steps_back_admits_no_start_too_early() {
    for mut harness in every_store() {
        with_rate(&harness, window(1, 10)).await;
        harness.enqueue_many([work(), work(), work()]).await;
        let began = harness.now();
        assert_eq!(harness.lease(5).await.len(), 1);
        harness.clock.set(began - Duration::from_hours(1));
        harness.restart();
        assert!(harness.lease(5).await.is_empty());
        harness.clock.set(began + Duration::from_millis(9_999));
        assert!(harness.lease(5).await.is_empty());
        harness.clock.set(began + Duration::from_secs(10));
        assert_eq!(harness.lease(5).await.len(), 1);
    }
}

fn window(count: u32, seconds: u64) -> Rate {
    Rate { count, per_seconds: Seconds::new(seconds), burst: None }
}

#[tokio::test]
async fn an_attempt_counts_whatever_becomes_of_it() {
    for mut harness in every_store() {
        with_rate(&harness, window(1, 60)).await;
        harness.enqueue_many([work(), work()]).await;
        let first = harness.lease(5).await;
        assert_eq!(first.len(), 1);
        harness.succeed(&first).await;
        harness.restart();
        harness.wait(59);
        assert!(harness.lease(5).await.is_empty());
        harness.wait(1);
        assert_eq!(harness.lease(5).await.len(), 1);
    }
}
