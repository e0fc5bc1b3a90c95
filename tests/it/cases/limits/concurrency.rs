//! Concurrency limits, set and changed while jobs run.

use tidegate_core::{
    job::{Payload, type_config::TypeConfig},
    queue::{QueueConfig, config::Constraint, matcher::Matcher},
    time::Seconds,
};
use tidegate_engine::{ByteBudget, CountedBytes, Dispatch, TickInput, request::NewJob};

use super::by_tenant;
use crate::cases::harness::{Harness, demand, every_store, queue, with, work};

#[tokio::test]
async fn a_lowered_limit_interrupts_nothing_and_admits_when_it_fits() {
    for mut harness in every_store() {
        harness.with_limit(6).await;
        harness.enqueue_many((0..20).map(|_| work())).await;
        let running = harness.lease(20).await;
        assert_eq!(running.len(), 6);
        harness.with_limit(2).await;
        assert!(harness.lease(20).await.is_empty());
        let done = harness.succeed(&running[..4]).await;
        assert!(done.iter().all(|job| job.life.ended().is_some()), "what ran was not interrupted");
        assert!(harness.lease(20).await.is_empty(), "two still run");
        harness.succeed(&running[4..5]).await;
        assert_eq!(harness.lease(20).await.len(), 1);
        assert_eq!(harness.granted().await, 2);
    }
}

#[tokio::test]
async fn a_large_job_held_by_a_limit_leaves_its_bytes_to_others() {
    for fits in [false, true] {
        for mut harness in every_store() {
            let matcher =
                serde_json::from_value(serde_json::json!({"attribute": {"size": "large"}}))
                    .unwrap();
            let concurrency = Some(u32::from(fits));
            let constraints = vec![Constraint {
                name: "large".into(),
                matcher,
                per: None,
                concurrency,
                rate: None,
            }];
            harness.set_queue(QueueConfig { constraints, ..QueueConfig::default() }).await;
            harness.set_type("work", TypeConfig::default()).await;
            let large = NewJob {
                data: Payload::json(format!("\"{}\"", "x".repeat(100_000))),
                ..with("size", "large")
            };
            for job in [work(), large, work(), work()] {
                harness.enqueue(job).await;
                harness.clock.advance(std::time::Duration::from_millis(1));
            }
            let counts = CountedBytes::Shown;
            let space = Some(ByteBudget { left: 90_000, most: 90_000, counts });
            let mut taken = Vec::new();
            for _ in 0..3 {
                let round = TickInput {
                    demands: vec![demand(&["work"], 9, Dispatch::Claim)],
                    byte_budget: space,
                    ..TickInput::default()
                };
                taken.push(harness.tick(round).await.claimed.len());
            }
            assert_eq!(
                taken,
                if fits { [1, 1, 2] } else { [3, 0, 0] },
                "no job passes an admitted large one, and its tick starts no other job"
            );
        }
    }
}

#[tokio::test]
async fn the_first_limit_counts_thousands_of_jobs_in_flight() {
    const RUNNING: usize = 2500;
    for mut harness in every_store() {
        harness
            .set_type(
                "work",
                TypeConfig { lease_seconds: Seconds::new(3600), ..TypeConfig::default() },
            )
            .await;
        let mut running = Vec::new();
        while running.len() < RUNNING {
            harness.enqueue_many((0..500).map(|_| work())).await;
            running.extend(harness.lease(1000).await);
        }
        harness.enqueue_many((0..10).map(|_| work())).await;
        harness.with_limit(2).await;
        harness
            .set_type(
                "work",
                TypeConfig { lease_seconds: Seconds::new(3600), ..TypeConfig::default() },
            )
            .await;
        assert!(harness.lease(10).await.is_empty(), "they run still");
        assert_eq!(harness.granted().await, RUNNING as u64);
        let rest = running.split_off(RUNNING - 1);
        for some in running.chunks(500) {
            harness.succeed(some).await;
        }
        assert_eq!(
            harness.lease(10).await.len(),
            1,
            "one that ran before and one new one make two"
        );
        harness.succeed(&rest).await;
        assert_eq!(harness.lease(10).await.len(), 1);
        assert_eq!(harness.granted().await, 2);
    }
}

#[tokio::test]
async fn zero_and_a_pause_admit_nothing_no_limit_admits_everything() {
    for mut harness in every_store() {
        harness.with_limit(0).await;
        let mut critical = work();
        critical.options.critical = true;
        harness.enqueue_many([work(), work(), critical]).await;
        assert_eq!(harness.lease(10).await.len(), 1, "a critical job is not held by a limit");
        harness.engine.pause_queue(&queue(), true).await.unwrap();
        harness.set_queue(QueueConfig::default()).await;
        let mut critical = work();
        critical.options.critical = true;
        harness.enqueue(critical).await;
        assert!(harness.lease(10).await.is_empty(), "a pause holds everything");
        harness.engine.pause_queue(&queue(), false).await.unwrap();
        assert_eq!(harness.lease(10).await.len(), 3);
    }
}

#[tokio::test]
async fn limits_of_type_and_tenant_hold_with_that_of_the_queue() {
    for mut harness in every_store() {
        let tenant = Constraint {
            name: "tenant".into(),
            matcher: Matcher::default(),
            per: Some("tenant".into()),
            concurrency: Some(2),
            rate: None,
        };
        harness
            .set_queue(QueueConfig {
                concurrency: Some(6),
                constraints: vec![tenant],
                ..QueueConfig::default()
            })
            .await;
        harness
            .set_type("work", TypeConfig { concurrency: Some(5), ..TypeConfig::default() })
            .await;
        for tenant in ["a", "b", "c", "d"] {
            harness.enqueue_many((0..5).map(|_| with("tenant", tenant))).await;
        }
        let running = harness.lease(100).await;
        assert_eq!(running.len(), 5, "the type's limit");
        assert!(by_tenant(&running).values().all(|count| *count <= 2));
        harness.set_type("work", TypeConfig::default()).await;
        assert_eq!(harness.lease(100).await.len(), 1, "the queue's limit");
    }
}

#[tokio::test]
async fn a_job_heavier_than_the_limit_is_held_and_blocks_no_other() {
    for mut harness in every_store() {
        harness.with_limit(5).await;
        let mut heavy = work();
        heavy.options.weight = Some(5);
        let heavy = harness.enqueue(heavy).await;
        harness.with_limit(3).await;
        harness.enqueue_many([work(), work()]).await;
        let running = harness.lease(10).await;
        assert_eq!(running.len(), 2);
        assert!(running.iter().all(|job| job.id != heavy.id));
        harness.succeed(&running).await;
        harness.with_limit(5).await;
        assert_eq!(harness.lease(10).await[0].id, heavy.id);
    }
}

#[tokio::test]
async fn an_engine_with_a_cached_configuration_obeys_the_new_one() {
    for mut harness in every_store() {
        harness.with_limit(5).await;
        harness.enqueue_many((0..10).map(|_| work())).await;
        let mut other = Harness::on(std::sync::Arc::clone(&harness.store));
        assert_eq!(harness.lease(1).await.len(), 1, "both engines know the queue");
        assert_eq!(other.lease(1).await.len(), 1);
        other.with_limit(3).await;
        assert_eq!(harness.lease(10).await.len(), 1, "the other's change counts at once");
        *harness.cache = tidegate_engine::TickCache::default();
        other.engine.pause_queue(&queue(), true).await.unwrap();
        harness.with_limit(10).await;
        assert!(harness.lease(10).await.is_empty());
    }
}
