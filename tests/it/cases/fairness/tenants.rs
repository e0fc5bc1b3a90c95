//! Partitions take turns, however many jobs of one tenant are due or held.

use std::collections::BTreeMap;

use tidegate_core::{
    job::type_config::TypeConfig,
    queue::{QueueConfig, config::Constraint},
};
use tidegate_engine::{Dispatch, TickInput, request::NewJob};

use super::{per_tenant, taking_turns};
use crate::cases::harness::{demand, every_store, of_type, with};

#[tokio::test]
async fn ten_thousand_held_jobs_do_not_hide_another_tenants_job() {
    for mut harness in every_store() {
        taking_turns(&harness, 100, vec![per_tenant(5)]).await;
        for _ in 0..10 {
            harness.enqueue_many((0..1000).map(|_| with("tenant", "big"))).await;
        }
        assert_eq!(harness.lease(50).await.len(), 5, "the big tenant's share");
        let single = harness.enqueue(with("tenant", "small")).await;
        let mut ticks = 0;
        loop {
            ticks += 1;
            if harness.lease(1).await.iter().any(|job| job.id == single.id) {
                break;
            }
            assert!(ticks < 2, "not after {ticks} ticks");
        }
    }
}

#[tokio::test]
async fn freed_capacity_serves_the_other_tenant_within_two_ticks() {
    for mut harness in every_store() {
        taking_turns(&harness, 5, Vec::new()).await;
        for _ in 0..10 {
            harness.enqueue_many((0..1000).map(|_| with("tenant", "big"))).await;
        }
        let running = harness.lease(10).await;
        assert_eq!(running.len(), 5);
        let single = harness.enqueue(with("tenant", "small")).await;
        assert!(harness.lease(1).await.is_empty(), "it is full");
        harness.succeed(&running[..2]).await;
        let mut started = harness.lease(1).await;
        started.extend(harness.lease(1).await);
        assert!(started.iter().any(|job| job.id == single.id), "{started:?}");
    }
}

#[tokio::test]
async fn a_tenant_behind_many_held_tenants_is_served() {
    for mut harness in every_store() {
        taking_turns(&harness, 1000, vec![per_tenant(1)]).await;
        let tenants = (0..200).map(|n| format!("t{n:03}"));
        harness
            .enqueue_many(
                tenants.flat_map(|tenant| [with("tenant", &tenant), with("tenant", &tenant)]),
            )
            .await;
        let mut started = 0;
        for _ in 0..8 {
            started += harness.lease(1000).await.len();
        }
        assert_eq!(started, 200, "every tenant has one running");
        let late = harness.enqueue(with("tenant", "t150-late")).await;
        let mut ticks = 0;
        while !harness.lease(1000).await.iter().any(|job| job.id == late.id) {
            ticks += 1;
            assert!(ticks < 6, "not within a turn of all tenants");
        }
    }
}

#[tokio::test]
async fn jobs_that_are_not_due_yet_do_not_hide_a_tenant_that_waits() {
    for mut harness in every_store() {
        taking_turns(&harness, 10, Vec::new()).await;
        let later = Some(harness.engine.now() + std::time::Duration::from_hours(1));
        let planned =
            (0..150).map(|n| NewJob { run_at: later, ..with("tenant", &format!("t{n:03}")) });
        harness.enqueue_many(planned).await;
        let due = harness.enqueue(with("tenant", "z-due")).await;
        let mut ticks = 0;
        loop {
            let outcome = harness
                .tick(TickInput {
                    demands: vec![demand(&["work"], 5, Dispatch::Claim)],
                    ..TickInput::default()
                })
                .await;
            if outcome.claimed.iter().any(|claimed| claimed.job.id == due.id) {
                break;
            }
            assert!(outcome.again, "it must go on looking by itself");
            ticks += 1;
            assert!(ticks < 5);
        }
    }
}

#[tokio::test]
async fn jobs_deep_in_several_partitions_are_all_considered() {
    for mut harness in every_store() {
        let blocked = Constraint {
            name: "blocked".into(),
            matcher: serde_json::from_value(serde_json::json!({"type": "blocked"})).unwrap(),
            per: None,
            concurrency: Some(0),
            rate: None,
        };
        taking_turns(&harness, 100, vec![blocked]).await;
        harness.set_type("blocked", TypeConfig::default()).await;
        let mut waiting = Vec::new();
        for tenant in ["a", "b", "c"] {
            let mut job = of_type("blocked");
            job.options.attributes = with("tenant", tenant).options.attributes;
            harness.enqueue_many((0..50).map(|_| job.clone())).await;
            if tenant != "a" {
                waiting.push(harness.enqueue(with("tenant", tenant)).await.id);
            }
        }
        let mut ticks = 0;
        while !waiting.is_empty() {
            let outcome = harness
                .tick(TickInput {
                    demands: vec![demand(&["work", "blocked"], 1, Dispatch::Claim)],
                    ..TickInput::default()
                })
                .await;
            waiting.retain(|id| !outcome.claimed.iter().any(|claimed| claimed.job.id == *id));
            ticks += 1;
            assert!(ticks < 60, "still waiting: {waiting:?}");
            assert!(
                outcome.again || !outcome.claimed.is_empty() || waiting.is_empty(),
                "it must go on looking by itself"
            );
        }
    }
}

#[tokio::test]
async fn pages_of_one_round_that_overlap_admit_a_job_once() {
    for mut harness in every_store() {
        taking_turns(&harness, 100, vec![per_tenant(0)]).await;
        harness.enqueue_many((0..40).map(|_| with("tenant", "a"))).await;
        assert!(
            harness.lease(1).await.is_empty(),
            "it looks at some, and remembers where it stopped"
        );
        taking_turns(&harness, 100, Vec::new()).await;
        let mut started = Vec::new();
        for _ in 0..3 {
            started.extend(harness.lease(40).await.into_iter().map(|job| job.id));
        }
        assert_eq!(started.len(), 40);
        started.sort_unstable();
        started.dedup();
        assert_eq!(started.len(), 40, "each once");
    }
}

#[tokio::test]
async fn hipqs_regions_get_their_shares() {
    for mut harness in every_store() {
        let share = |region: &str, concurrency| Constraint {
            name: region.into(),
            matcher: serde_json::from_value(serde_json::json!({"attribute": {"region": region}}))
                .unwrap(),
            per: None,
            concurrency: Some(concurrency),
            rate: None,
        };
        let constraints = vec![share("east", 40), share("north", 30), share("west", 30)];
        harness
            .set_queue(QueueConfig {
                concurrency: Some(100),
                constraints,
                ..QueueConfig::default()
            })
            .await;
        harness.set_type("work", TypeConfig::default()).await;
        // hipq's example: far more jobs of `east` than its share, and before the others.
        harness.enqueue_many((0..300).map(|_| with("region", "east"))).await;
        harness.enqueue_many((0..20).map(|_| with("region", "north"))).await;
        harness.enqueue_many((0..100).map(|_| with("region", "west"))).await;
        let running = harness.lease(1000).await;
        let mut regions = BTreeMap::<String, usize>::new();
        for job in &running {
            *regions.entry(job.spec.attributes["region"].text()).or_default() += 1;
        }
        let shares: Vec<(&str, usize)> =
            regions.iter().map(|(region, count)| (region.as_str(), *count)).collect();
        assert_eq!(shares, [("east", 40), ("north", 20), ("west", 30)]);
        let east: Vec<_> = running
            .iter()
            .filter(|job| job.spec.attributes["region"].text() == "east")
            .take(5)
            .cloned()
            .collect();
        harness.succeed(&east).await;
        let next = harness.lease(1000).await;
        assert_eq!(next.len(), 5, "what is freed goes to the region that may have it");
        assert!(next.iter().all(|job| job.spec.attributes["region"].text() == "east"));
    }
}
