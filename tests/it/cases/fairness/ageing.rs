//! Ageing and reservations bound the wait of low priorities and of heavy jobs.

use tidegate_core::{
    job::type_config::TypeConfig,
    queue::{QueueConfig, config::OrderKind},
    time::Seconds,
};

use super::per_tenant;
use crate::cases::harness::{every_store, with, work};

#[tokio::test]
async fn ageing_runs_a_low_priority_job_within_its_bound_in_a_flood() {
    // Priority 1000 against 1: 999 steps of 2 s each. A flood job that arrives after that goes
    // behind it.
    const BOUND: u64 = 999 * 2;
    for mut harness in every_store() {
        let ageing_seconds = Some(Seconds::new(2));
        harness
            .set_queue(QueueConfig {
                concurrency: Some(1),
                order: OrderKind::Priority,
                ageing_seconds,
                ..QueueConfig::default()
            })
            .await;
        harness.set_type("work", TypeConfig::default()).await;
        let mut low = work();
        low.options.priority = Some(1000);
        let low = harness.enqueue(low).await;
        let mut waited = 0;
        loop {
            // The flood: more jobs arrive than can run.
            harness
                .enqueue_many((0..2).map(|_| {
                    let mut job = work();
                    job.options.priority = Some(1);
                    job
                }))
                .await;
            let started = harness.lease(1).await;
            if started[0].id == low.id {
                break;
            }
            harness.succeed(&started).await;
            harness.wait(10);
            waited += 10;
            // Jobs that arrived before the bound go first: at most two per step of ten seconds.
            assert!(waited <= 3 * BOUND, "waits since {waited} s");
        }
        assert!(waited > BOUND / 2, "the flood really went first: {waited}");
    }
}

#[tokio::test]
async fn ageing_waits_exactly_its_bound_when_capacity_keeps_up() {
    const BOUND: u64 = 999 * 2;
    for mut harness in every_store() {
        let ageing_seconds = Some(Seconds::new(2));
        harness
            .set_queue(QueueConfig {
                concurrency: Some(1),
                order: OrderKind::Priority,
                ageing_seconds,
                ..QueueConfig::default()
            })
            .await;
        harness.set_type("work", TypeConfig::default()).await;
        let mut low = work();
        low.options.priority = Some(1000);
        let low = harness.enqueue(low).await;
        let mut waited = 0;
        loop {
            let mut job = work();
            job.options.priority = Some(1);
            harness.enqueue(job).await;
            let started = harness.lease(1).await;
            if started[0].id == low.id {
                break;
            }
            harness.succeed(&started).await;
            harness.wait(10);
            waited += 10;
        }
        assert!((BOUND..=BOUND + 10).contains(&waited), "waited {waited} s");
    }
}

#[tokio::test]
async fn a_heavy_job_is_not_starved_by_six_hundred_light_ones() {
    for mut harness in every_store() {
        harness.with_limit(10).await;
        let light = harness.enqueue_many((0..10).map(|_| work())).await;
        let running = harness.lease(20).await;
        assert_eq!(running.len(), 10);
        harness.wait(1);
        let mut heavy = work();
        heavy.options.weight = Some(10);
        let heavy = harness.enqueue(heavy).await;
        harness.enqueue_many((0..600).map(|_| work())).await;
        for done in &running[..9] {
            harness.succeed(std::slice::from_ref(done)).await;
            assert!(harness.lease(20).await.is_empty(), "the heavy one has reserved what is free");
        }
        harness.succeed(&running[9..]).await;
        let next = harness.lease(20).await;
        assert_eq!(
            next.iter().map(|job| &job.id).collect::<Vec<_>>(),
            [&heavy.id],
            "{} light ones ran before",
            light.len()
        );
    }
}

#[tokio::test]
async fn every_due_job_is_scanned_within_backlog_over_scan_bound() {
    for mut harness in every_store() {
        harness
            .set_queue(QueueConfig {
                concurrency: Some(100),
                constraints: vec![per_tenant(1)],
                ..QueueConfig::default()
            })
            .await;
        harness.set_type("work", TypeConfig::default()).await;
        for _ in 0..5 {
            harness.enqueue_many((0..1000).map(|_| with("tenant", "big"))).await;
        }
        let last = harness.enqueue(with("tenant", "small")).await;
        let mut ticks = 0;
        while !harness.lease(10).await.iter().any(|job| job.id == last.id) {
            ticks += 1;
            assert!(ticks <= 6, "the backlog is five pages");
        }
    }
}
