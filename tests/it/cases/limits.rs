//! Limits that are set and changed while jobs run are never exceeded, and their ledger stays small.

use std::collections::BTreeMap;

use tidegate_core::{
    job::{
        Job, Payload,
        type_config::{Start, TypeConfig},
    },
    queue::{
        QueueConfig,
        config::{Constraint, Rate},
        matcher::Matcher,
    },
    target::{Push, TargetConfig},
    time::Seconds,
};
use tidegate_engine::{
    ByteBudget, Dispatch, TickCache, TickInput,
    request::{NewJob, ReportOutcome},
};

use super::harness::{Harness, demand, every_store, queue, report, with, work};

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
            let space = Some(ByteBudget { left: 90_000, most: 90_000 });
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
                "one that runs is overtaken by nobody, and has a round to itself"
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

fn by_tenant(jobs: &[Job]) -> BTreeMap<String, usize> {
    let mut tenants = BTreeMap::new();
    for job in jobs {
        *tenants.entry(job.spec.attributes["tenant"].text()).or_default() += 1;
    }
    tenants
}

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

#[tokio::test]
async fn an_attempt_takes_a_token_whatever_becomes_of_it() {
    for mut harness in every_store() {
        let rate = Rate { count: 1, per_seconds: Seconds::new(60), burst: None };
        let constraint = Constraint {
            name: "calls".into(),
            matcher: Matcher::default(),
            per: None,
            concurrency: None,
            rate: Some(rate),
        };
        harness
            .set_queue(QueueConfig { constraints: vec![constraint], ..QueueConfig::default() })
            .await;
        harness.set_type("work", TypeConfig::default()).await;
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

/// As `SqliteStore` writes it.
async fn head_bytes(harness: &Harness) -> usize {
    let (head, _) = harness.store.ledger(&queue()).await.unwrap().unwrap();
    rmp_serde::to_vec(&head).unwrap().len()
}

#[tokio::test]
async fn the_head_is_small_whatever_runs() {
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
                largest = largest.max(head_bytes(&harness).await);
                rounds += 1;
            }
            assert!(largest <= bytes, "{largest} bytes at {most} running");
            assert_eq!(harness.granted().await, most as u64);
        }
    }
}

#[tokio::test]
async fn the_head_stays_small_when_hundreds_of_tenants_are_held() {
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
        let bytes = head_bytes(&harness).await;
        assert!(bytes <= 4 << 10, "{bytes} bytes");
    }
}

#[tokio::test]
async fn at_most_ten_thousand_run_in_a_queue_with_a_head() {
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
        let mut cache = TickCache::default();
        std::mem::swap(&mut harness.cache, &mut cache);
        other.engine.pause_queue(&queue(), true).await.unwrap();
        harness.with_limit(10).await;
        assert!(harness.lease(10).await.is_empty());
    }
}

/// A push type whose jobs are dispatched without a claim.
fn plain() -> TypeConfig {
    let target = TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:1/")));
    TypeConfig { target: Some(target), start: Start::Plain, ..TypeConfig::default() }
}

#[tokio::test]
async fn the_first_limit_counts_what_was_handed_on_without_a_claim() {
    for mut harness in every_store() {
        harness.set_type("work", plain()).await;
        harness.enqueue_many((0..6).map(|_| work())).await;
        let mut running = harness.lease(3).await;
        assert!(
            harness.job(&running[0].id).await.life.run_at().is_some(),
            "nobody wrote down that it runs"
        );
        harness.set_queue(QueueConfig { concurrency: Some(2), ..QueueConfig::default() }).await;
        // One job ends in the first tick under the limit.
        harness.succeed(&running.split_off(2)).await;
        assert!(harness.lease(5).await.is_empty(), "two are under way");
        assert_eq!(harness.granted().await, 2);
        assert!(
            harness.job(&running[0].id).await.life.running().is_some(),
            "now it is known to run"
        );
        let done = harness.succeed(&running).await;
        assert!(done.iter().all(|job| job.life.ended().is_some() && job.life.attempt == 1));
        assert_eq!(harness.lease(5).await.len(), 2);
        assert_eq!(harness.granted().await, 2);
    }
}

#[tokio::test]
async fn another_process_counts_its_own_in_its_next_round() {
    for mut harness in every_store() {
        harness.set_type("work", plain()).await;
        harness.enqueue_many((0..6).map(|_| work())).await;
        let mut other = Harness::on(std::sync::Arc::clone(&harness.store));
        let running = other.lease(2).await;
        assert_eq!(running.len(), 2);
        harness.set_queue(QueueConfig { concurrency: Some(3), ..QueueConfig::default() }).await;
        harness.tick(TickInput::default()).await;
        other.tick(TickInput::default()).await;
        assert_eq!(harness.granted().await, 2);
        assert_eq!(harness.lease(5).await.len(), 1);
        assert!(other.succeed(&running).await.iter().all(|job| job.life.ended().is_some()));
    }
}

#[tokio::test]
async fn an_unclaimed_job_changed_before_a_limit_stops_no_queue() {
    for mut harness in every_store() {
        harness.set_type("work", plain()).await;
        harness.enqueue(work()).await;
        let mine = harness.lease(1).await;
        // Another process had the job too and completed it.
        let mut other = Harness::on(std::sync::Arc::clone(&harness.store));
        let theirs = other.lease(1).await;
        other.succeed(&theirs).await;
        harness.set_queue(QueueConfig { concurrency: Some(1), ..QueueConfig::default() }).await;
        harness.enqueue(work()).await;
        assert_eq!(harness.lease(1).await.len(), 1);
        let reports =
            mine.iter().map(|job| report(job, ReportOutcome::Succeeded { result: None })).collect();
        assert!(
            harness.tick(TickInput { reports, ..TickInput::default() }).await.reports[0].is_err(),
            "its attempt was the other's"
        );
    }
}

#[tokio::test]
async fn a_plain_type_in_a_queue_with_limits_is_claimed() {
    for mut harness in every_store() {
        harness.set_type("work", plain()).await;
        harness.set_queue(QueueConfig { concurrency: Some(1), ..QueueConfig::default() }).await;
        harness.enqueue_many([work(), work()]).await;
        let running = harness.lease(5).await;
        assert_eq!(running.len(), 1);
        assert!(harness.job(&running[0].id).await.life.running().is_some());
        assert_eq!(harness.granted().await, 1);
    }
}
