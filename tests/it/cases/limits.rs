//! Limits, set and changed while jobs run: never exceeded, and what is decided of them stays small.

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

use super::place::{Place, ask, everywhere, queue, report, with, work};

#[tokio::test]
async fn a_limit_lowered_below_what_runs_interrupts_nothing_and_admits_nothing_until_it_fits() {
    for mut place in everywhere() {
        place.with_limit(6).await;
        place.enqueue_many((0..20).map(|_| work())).await;
        let running = place.lease(20).await;
        assert_eq!(running.len(), 6);
        place.with_limit(2).await;
        assert!(place.lease(20).await.is_empty());
        let done = place.succeed(&running[..4]).await;
        assert!(done.iter().all(|job| job.life.ended().is_some()), "what ran was not interrupted");
        assert!(place.lease(20).await.is_empty(), "two still run");
        place.succeed(&running[4..5]).await;
        assert_eq!(place.lease(20).await.len(), 1);
        assert_eq!(place.granted().await, 2);
    }
}

#[tokio::test]
async fn a_large_job_that_a_limit_holds_leaves_its_space_to_those_behind_it() {
    for fits in [false, true] {
        for mut place in everywhere() {
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
            place.set_queue(QueueConfig { constraints, ..QueueConfig::default() }).await;
            place.set_type("work", TypeConfig::default()).await;
            let large = NewJob {
                data: Payload::json(format!("\"{}\"", "x".repeat(100_000))),
                ..with("size", "large")
            };
            for job in [work(), large, work(), work()] {
                place.enqueue(job).await;
                place.clock.advance(std::time::Duration::from_millis(1));
            }
            let space = Some(ByteBudget { left: 90_000, most: 90_000 });
            let mut taken = Vec::new();
            for _ in 0..3 {
                let round = TickInput {
                    demands: vec![ask(&["work"], 9, Dispatch::Claim)],
                    byte_budget: space,
                    ..TickInput::default()
                };
                taken.push(place.tick(round).await.claimed.len());
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
async fn the_first_limit_on_a_queue_with_thousands_in_flight_counts_them_all() {
    const RUNNING: usize = 2500;
    for mut place in everywhere() {
        place
            .set_type(
                "work",
                TypeConfig { lease_seconds: Seconds::new(3600), ..TypeConfig::default() },
            )
            .await;
        let mut running = Vec::new();
        while running.len() < RUNNING {
            place.enqueue_many((0..500).map(|_| work())).await;
            running.extend(place.lease(1000).await);
        }
        place.enqueue_many((0..10).map(|_| work())).await;
        place.with_limit(2).await;
        place
            .set_type(
                "work",
                TypeConfig { lease_seconds: Seconds::new(3600), ..TypeConfig::default() },
            )
            .await;
        assert!(place.lease(10).await.is_empty(), "they run still");
        assert_eq!(place.granted().await, RUNNING as u64);
        let rest = running.split_off(RUNNING - 1);
        for some in running.chunks(500) {
            place.succeed(some).await;
        }
        assert_eq!(place.lease(10).await.len(), 1, "one that ran before and one new one make two");
        place.succeed(&rest).await;
        assert_eq!(place.lease(10).await.len(), 1);
        assert_eq!(place.granted().await, 2);
    }
}

#[tokio::test]
async fn a_limit_of_zero_and_a_pause_admit_nothing_and_none_is_unlimited() {
    for mut place in everywhere() {
        place.with_limit(0).await;
        let mut critical = work();
        critical.options.critical = true;
        place.enqueue_many([work(), work(), critical]).await;
        assert_eq!(place.lease(10).await.len(), 1, "a critical job is not held by a limit");
        place.engine.pause_queue(&queue(), true).await.unwrap();
        place.set_queue(QueueConfig::default()).await;
        let mut critical = work();
        critical.options.critical = true;
        place.enqueue(critical).await;
        assert!(place.lease(10).await.is_empty(), "a pause holds everything");
        place.engine.pause_queue(&queue(), false).await.unwrap();
        assert_eq!(place.lease(10).await.len(), 3);
    }
}

#[tokio::test]
async fn the_limit_of_a_type_and_of_each_tenant_hold_beside_the_queues_own() {
    for mut place in everywhere() {
        let tenant = Constraint {
            name: "tenant".into(),
            matcher: Matcher::default(),
            per: Some("tenant".into()),
            concurrency: Some(2),
            rate: None,
        };
        place
            .set_queue(QueueConfig {
                concurrency: Some(6),
                constraints: vec![tenant],
                ..QueueConfig::default()
            })
            .await;
        place.set_type("work", TypeConfig { concurrency: Some(5), ..TypeConfig::default() }).await;
        for tenant in ["a", "b", "c", "d"] {
            place.enqueue_many((0..5).map(|_| with("tenant", tenant))).await;
        }
        let running = place.lease(100).await;
        assert_eq!(running.len(), 5, "the type's limit");
        assert!(by_tenant(&running).values().all(|count| *count <= 2));
        place.set_type("work", TypeConfig::default()).await;
        assert_eq!(place.lease(100).await.len(), 1, "the queue's limit");
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
    for mut place in everywhere() {
        let rate = Rate { count: 5, per_seconds: Seconds::new(1), burst: Some(10) };
        let constraint = Constraint {
            name: "calls".into(),
            matcher: Matcher::default(),
            per: Some("tenant".into()),
            concurrency: None,
            rate: Some(rate),
        };
        place
            .set_queue(QueueConfig { constraints: vec![constraint], ..QueueConfig::default() })
            .await;
        place.set_type("work", TypeConfig::default()).await;
        place.enqueue_many((0..60).map(|_| with("tenant", "a"))).await;
        place.enqueue_many((0..3).map(|_| with("tenant", "b"))).await;
        let began = place.now();
        let mut starts: Vec<u64> = Vec::new();
        let mut others = 0;
        while starts.len() < 60 {
            let ticked = place
                .tick(TickInput {
                    demands: vec![ask(&["work"], 100, Dispatch::Claim)],
                    ..TickInput::default()
                })
                .await;
            let jobs: Vec<Job> = ticked.claimed.into_iter().map(|claimed| claimed.job).collect();
            let own = by_tenant(&jobs).remove("a").unwrap_or(0);
            others += jobs.len() - own;
            starts.extend(std::iter::repeat_n(place.now().since(began).as_millis() as u64, own));
            place.succeed(&jobs).await;
            place.clock.set(ticked.next_at.expect("the next token is planned for"));
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
    for mut place in everywhere() {
        let rate = Rate { count: 1, per_seconds: Seconds::new(60), burst: None };
        let constraint = Constraint {
            name: "calls".into(),
            matcher: Matcher::default(),
            per: None,
            concurrency: None,
            rate: Some(rate),
        };
        place
            .set_queue(QueueConfig { constraints: vec![constraint], ..QueueConfig::default() })
            .await;
        place.set_type("work", TypeConfig::default()).await;
        place.enqueue_many([work(), work()]).await;
        let first = place.lease(5).await;
        assert_eq!(first.len(), 1);
        place.succeed(&first).await;
        place.restart();
        place.wait(59);
        assert!(place.lease(5).await.is_empty());
        place.wait(1);
        assert_eq!(place.lease(5).await.len(), 1);
    }
}

#[tokio::test]
async fn a_job_heavier_than_the_limit_is_held_and_hinders_nobody() {
    for mut place in everywhere() {
        place.with_limit(5).await;
        let mut heavy = work();
        heavy.options.weight = Some(5);
        let heavy = place.enqueue(heavy).await;
        place.with_limit(3).await;
        place.enqueue_many([work(), work()]).await;
        let running = place.lease(10).await;
        assert_eq!(running.len(), 2);
        assert!(running.iter().all(|job| job.id != heavy.id));
        place.succeed(&running).await;
        place.with_limit(5).await;
        assert_eq!(place.lease(10).await[0].id, heavy.id);
    }
}

/// As `SqliteStore` writes it.
async fn head_bytes(place: &Place) -> usize {
    let (head, _) = place.store.ledger(&queue()).await.unwrap().unwrap();
    rmp_serde::to_vec(&head).unwrap().len()
}

#[tokio::test]
async fn the_head_is_small_whatever_runs() {
    for mut place in everywhere() {
        let tenant = Constraint {
            name: "tenant".into(),
            matcher: Matcher::default(),
            per: Some("tenant".into()),
            concurrency: Some(1000),
            rate: None,
        };
        place
            .set_queue(QueueConfig {
                concurrency: Some(10_000),
                constraints: vec![tenant],
                ..QueueConfig::default()
            })
            .await;
        place
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
                let room = (most - running.len()).min(step);
                place
                    .enqueue_many(
                        (0..room)
                            .map(|n| with("tenant", &format!("t{}", (rounds * step + n) % 700))),
                    )
                    .await;
                running.extend(place.lease(room as u32).await);
                // Some end in between, so that batches have holes.
                if rounds % 3 == 0 {
                    let done: Vec<Job> =
                        running.iter().skip(rounds % 7).step_by(97).cloned().collect();
                    place.succeed(&done).await;
                    running.retain(|job| !done.iter().any(|done| done.id == job.id));
                }
                largest = largest.max(head_bytes(&place).await);
                rounds += 1;
            }
            assert!(largest <= bytes, "{largest} bytes at {most} running");
            assert_eq!(place.granted().await, most as u64);
        }
    }
}

#[tokio::test]
async fn the_head_stays_small_when_hundreds_of_tenants_are_held() {
    for mut place in everywhere() {
        let tenant = Constraint {
            name: "tenant".into(),
            matcher: Matcher::default(),
            per: Some("tenant".into()),
            concurrency: Some(1),
            rate: None,
        };
        place
            .set_queue(QueueConfig {
                concurrency: Some(2000),
                constraints: vec![tenant],
                ..QueueConfig::default()
            })
            .await;
        place.set_type("work", TypeConfig::default()).await;
        for _ in 0..2 {
            place.enqueue_many((0..1000).map(|n| with("tenant", &format!("tenant-{n}")))).await;
        }
        for _ in 0..6 {
            place.lease(1000).await;
        }
        assert_eq!(place.granted().await, 1000);
        let bytes = head_bytes(&place).await;
        assert!(bytes <= 4 << 10, "{bytes} bytes");
    }
}

#[tokio::test]
async fn at_most_ten_thousand_run_in_a_queue_with_a_head() {
    let mut place = Place::on(std::sync::Arc::new(tidegate_engine::memory::MemoryStore::new()));
    place.set_queue(QueueConfig { concurrency: Some(1_000_000), ..QueueConfig::default() }).await;
    place.set_type("work", TypeConfig::default()).await;
    for _ in 0..11 {
        place.enqueue_many((0..1000).map(|_| work())).await;
    }
    let mut running = 0;
    for _ in 0..12 {
        running += place.lease(1000).await.len();
    }
    assert_eq!(running, 10_000);
}

#[tokio::test]
async fn a_change_of_configuration_is_kept_by_an_engine_that_remembers_the_old_one() {
    for mut place in everywhere() {
        place.with_limit(5).await;
        place.enqueue_many((0..10).map(|_| work())).await;
        let mut other = Place::on(std::sync::Arc::clone(&place.store));
        assert_eq!(place.lease(1).await.len(), 1, "both engines know the queue");
        assert_eq!(other.lease(1).await.len(), 1);
        other.with_limit(3).await;
        assert_eq!(place.lease(10).await.len(), 1, "the other's change counts at once");
        let mut memory = TickCache::default();
        std::mem::swap(&mut place.memory, &mut memory);
        other.engine.pause_queue(&queue(), true).await.unwrap();
        place.with_limit(10).await;
        assert!(place.lease(10).await.is_empty());
    }
}

/// A push type whose jobs are handed on without a claim.
fn plain() -> TypeConfig {
    let target = TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:1/")));
    TypeConfig { target: Some(target), start: Start::Plain, ..TypeConfig::default() }
}

#[tokio::test]
async fn the_first_limit_counts_what_was_handed_on_without_a_claim() {
    for mut place in everywhere() {
        place.set_type("work", plain()).await;
        place.enqueue_many((0..6).map(|_| work())).await;
        let mut running = place.lease(3).await;
        assert!(
            place.job(&running[0].id).await.life.run_at().is_some(),
            "nobody wrote down that it runs"
        );
        place.set_queue(QueueConfig { concurrency: Some(2), ..QueueConfig::default() }).await;
        // One ends in the very round that sees the limit first.
        place.succeed(&running.split_off(2)).await;
        assert!(place.lease(5).await.is_empty(), "two are under way");
        assert_eq!(place.granted().await, 2);
        assert!(place.job(&running[0].id).await.life.running().is_some(), "now it is known to run");
        let done = place.succeed(&running).await;
        assert!(done.iter().all(|job| job.life.ended().is_some() && job.life.attempt == 1));
        assert_eq!(place.lease(5).await.len(), 2);
        assert_eq!(place.granted().await, 2);
    }
}

#[tokio::test]
async fn another_process_counts_its_own_in_its_next_round() {
    for mut place in everywhere() {
        place.set_type("work", plain()).await;
        place.enqueue_many((0..6).map(|_| work())).await;
        let mut other = Place::on(std::sync::Arc::clone(&place.store));
        let running = other.lease(2).await;
        assert_eq!(running.len(), 2);
        place.set_queue(QueueConfig { concurrency: Some(3), ..QueueConfig::default() }).await;
        place.tick(TickInput::default()).await;
        other.tick(TickInput::default()).await;
        assert_eq!(place.granted().await, 2);
        assert_eq!(place.lease(5).await.len(), 1);
        assert!(other.succeed(&running).await.iter().all(|job| job.life.ended().is_some()));
    }
}

#[tokio::test]
async fn a_plain_job_that_changed_hands_before_the_first_limit_does_not_stop_the_queue() {
    for mut place in everywhere() {
        place.set_type("work", plain()).await;
        place.enqueue(work()).await;
        let mine = place.lease(1).await;
        // Another process, which knows nothing of that, had it too and was done.
        let mut other = Place::on(std::sync::Arc::clone(&place.store));
        let theirs = other.lease(1).await;
        other.succeed(&theirs).await;
        place.set_queue(QueueConfig { concurrency: Some(1), ..QueueConfig::default() }).await;
        place.enqueue(work()).await;
        assert_eq!(place.lease(1).await.len(), 1);
        let reports =
            mine.iter().map(|job| report(job, ReportOutcome::Succeeded { result: None })).collect();
        assert!(
            place.tick(TickInput { reports, ..TickInput::default() }).await.reports[0].is_err(),
            "its attempt was the other's"
        );
    }
}

#[tokio::test]
async fn a_plain_type_in_a_queue_with_limits_is_claimed() {
    for mut place in everywhere() {
        place.set_type("work", plain()).await;
        place.set_queue(QueueConfig { concurrency: Some(1), ..QueueConfig::default() }).await;
        place.enqueue_many([work(), work()]).await;
        let running = place.lease(5).await;
        assert_eq!(running.len(), 1);
        assert!(place.job(&running[0].id).await.life.running().is_some());
        assert_eq!(place.granted().await, 1);
    }
}
