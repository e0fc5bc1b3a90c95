//! The size of the ledger: bounded, whatever runs or waits.

use tidegate_core::{
    job::{Job, type_config::TypeConfig},
    queue::{QueueConfig, config::Constraint, matcher::Matcher},
    time::Seconds,
};

use crate::cases::harness::{Harness, every_store, queue, with, work};

/// As `SqliteStore` writes it.
async fn ledger_bytes(harness: &Harness) -> usize {
    let (ledger, _) = harness.store.ledger(&queue()).await.unwrap().unwrap();
    rmp_serde::to_vec(&ledger).unwrap().len()
}

#[tokio::test]
async fn the_ledger_is_small_whatever_runs() {
    for mut harness in every_store() {
        let tenant = Constraint {
            name: "tenant".into(),
            matcher: Matcher::default(),
            per: Some("tenant".into()),
            concurrency: Some(1000),
            rate: None,
        };
        harness
            .set_queue(QueueConfig {
                concurrency: Some(10_000),
                constraints: vec![tenant],
                ..QueueConfig::default()
            })
            .await;
        harness
            .set_type(
                "work",
                TypeConfig { lease_seconds: Seconds::new(36_000), ..TypeConfig::default() },
            )
            .await;
        let mut running: Vec<Job> = Vec::new();
        for (most, step, bytes) in [(1_000, 37, 4 << 10), (10_000, 430, 16 << 10)] {
            let mut largest = 0;
            let mut rounds = 0;
            while running.len() < most {
                let capacity = (most - running.len()).min(step);
                harness
                    .enqueue_many(
                        (0..capacity)
                            .map(|n| with("tenant", &format!("t{}", (rounds * step + n) % 700))),
                    )
                    .await;
                running.extend(harness.lease(capacity as u32).await);
                // Some end in between, so that batches have holes.
                if rounds % 3 == 0 {
                    let done: Vec<Job> =
                        running.iter().skip(rounds % 7).step_by(97).cloned().collect();
                    harness.succeed(&done).await;
                    running.retain(|job| !done.iter().any(|done| done.id == job.id));
                }
                largest = largest.max(ledger_bytes(&harness).await);
                rounds += 1;
            }
            assert!(largest <= bytes, "{largest} bytes at {most} running");
            assert_eq!(harness.granted().await, most as u64);
        }
    }
}

#[tokio::test]
async fn the_ledger_stays_small_when_hundreds_of_tenants_are_held() {
    for mut harness in every_store() {
        let tenant = Constraint {
            name: "tenant".into(),
            matcher: Matcher::default(),
            per: Some("tenant".into()),
            concurrency: Some(1),
            rate: None,
        };
        harness
            .set_queue(QueueConfig {
                concurrency: Some(2000),
                constraints: vec![tenant],
                ..QueueConfig::default()
            })
            .await;
        harness.set_type("work", TypeConfig::default()).await;
        for _ in 0..2 {
            harness.enqueue_many((0..1000).map(|n| with("tenant", &format!("tenant-{n}")))).await;
        }
        for _ in 0..6 {
            harness.lease(1000).await;
        }
        assert_eq!(harness.granted().await, 1000);
        let bytes = ledger_bytes(&harness).await;
        assert!(bytes <= 4 << 10, "{bytes} bytes");
    }
}

#[tokio::test]
async fn at_most_ten_thousand_run_in_a_queue_with_a_ledger() {
    let mut harness = Harness::on(std::sync::Arc::new(tidegate_engine::memory::MemoryStore::new()));
    harness.set_queue(QueueConfig { concurrency: Some(1_000_000), ..QueueConfig::default() }).await;
    harness.set_type("work", TypeConfig::default()).await;
    for _ in 0..11 {
        harness.enqueue_many((0..1000).map(|_| work())).await;
    }
    let mut running = 0;
    for _ in 0..12 {
        running += harness.lease(1000).await.len();
    }
    assert_eq!(running, 10_000);
}
