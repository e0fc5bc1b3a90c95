//! No job starves: not behind another tenant, higher priorities or lighter jobs.

use std::collections::BTreeMap;

use tidegate_core::{
    job::{JobId, type_config::TypeConfig},
    queue::{
        QueueConfig,
        config::{Constraint, OrderKind, Rate},
        matcher::Matcher,
    },
    time::Seconds,
};
use tidegate_engine::{
    Dispatch, TickInput, TickOutcome,
    request::{NewJob, ReportOutcome},
};

use super::harness::{Harness, demand, every_store, of_type, queue, report, with, work};

fn per_tenant(concurrency: u32) -> Constraint {
    Constraint {
        name: "tenant".into(),
        matcher: Matcher::default(),
        per: Some("tenant".into()),
        concurrency: Some(concurrency),
        rate: None,
    }
}

async fn taking_turns(harness: &Harness, concurrency: u32, constraints: Vec<Constraint>) {
    let partition_by = Some("tenant".to_owned());
    harness
        .set_queue(QueueConfig {
            concurrency: Some(concurrency),
            partition_by,
            constraints,
            ..QueueConfig::default()
        })
        .await;
    harness.set_type("work", TypeConfig::default()).await;
}

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
async fn jobs_deep_in_several_partitions_are_all_looked_at() {
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
async fn ageing_runs_a_low_priority_job_within_its_bound_in_a_flood() {
    // Priority 1000 against 1: 999 steps of 2 s each. A flood job that arrives after that goes behind it.
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
            // The flood: more arrive than can be run.
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
            // Those that came before the bound are ahead of it: at most two per step of ten seconds.
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
        // hipq's example: far more of east than its share, before the others.
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

fn of_type_other(tenant: &str) -> NewJob {
    of_type("other")
        .with_options(|options| options.attributes = with("tenant", tenant).options.attributes)
}

async fn both_types(harness: &mut Harness) -> TickOutcome {
    harness
        .tick(TickInput {
            demands: vec![demand(&["work", "other"], 100, Dispatch::Claim)],
            ..TickInput::default()
        })
        .await
}

#[tokio::test]
async fn a_backlog_that_one_limit_holds_is_not_walked_through() {
    let all = Constraint {
        name: "all".into(),
        matcher: Matcher::default(),
        per: None,
        concurrency: None,
        rate: None,
    };
    let rate = Rate { count: 1, per_seconds: Seconds::new(60), burst: None };
    let of_work = serde_json::from_value(serde_json::json!({"type": "work"})).unwrap();
    let cases = [
        (Constraint { rate: Some(rate), ..all.clone() }, None, false),
        (Constraint { concurrency: Some(1), ..all.clone() }, None, false),
        (Constraint { concurrency: Some(1), matcher: of_work, ..all.clone() }, None, true),
        (Constraint { rate: Some(rate), ..per_tenant(1) }, Some("tenant".to_owned()), true),
    ];
    for (constraint, partition_by, is_found) in cases {
        for mut harness in every_store() {
            let constraints = vec![constraint.clone()];
            harness
                .set_queue(QueueConfig {
                    constraints,
                    partition_by: partition_by.clone(),
                    ..QueueConfig::default()
                })
                .await;
            harness.set_type("work", TypeConfig::default()).await;
            harness.set_type("other", TypeConfig::default()).await;
            for _ in 0..3 {
                harness.enqueue_many((0..1000).map(|_| with("tenant", "big"))).await;
            }
            harness.wait(1);
            let last = harness.enqueue(of_type_other("small")).await;
            let outcome = both_types(&mut harness).await;
            assert!(!outcome.again, "{constraint:?}");
            assert_eq!(
                outcome.claimed.iter().any(|claimed| claimed.job.id == last.id),
                is_found,
                "{constraint:?}"
            );
            assert_eq!(outcome.claimed.len(), 1 + usize::from(is_found), "{constraint:?}");
            assert_eq!(outcome.held.len(), 1, "{constraint:?}");
        }
    }
}

/// A backlog of two thousand and more that wait for one tenant, so that a scan takes several rounds.
async fn long_backlog(
    harness: &Harness,
    deep: impl IntoIterator<Item = (usize, NewJob)>,
) -> Vec<JobId> {
    harness
        .set_queue(QueueConfig { constraints: vec![per_tenant(10)], ..QueueConfig::default() })
        .await;
    harness.set_type("work", TypeConfig::default()).await;
    let mut jobs: Vec<NewJob> = (0..2500).map(|_| with("tenant", "held")).collect();
    let mut blocker = with("tenant", "held");
    blocker.options.weight = Some(10);
    jobs[0] = blocker;
    let (places, deep): (Vec<usize>, Vec<NewJob>) = deep.into_iter().unzip();
    for (harness, job) in places.iter().zip(deep) {
        jobs[*harness] = job;
    }
    let mut ids = Vec::new();
    // A millisecond between them, so that they wait in this order.
    for some in jobs.chunks(100) {
        ids.extend(harness.enqueue_many(some.to_vec()).await.into_iter().map(|job| job.id));
        harness.clock.advance(std::time::Duration::from_millis(1));
    }
    places.iter().map(|harness| ids[*harness].clone()).collect()
}

fn of_tenant(tenant: &str, weight: u32) -> NewJob {
    with("tenant", tenant).with_options(|options| options.weight = Some(weight))
}

#[tokio::test]
async fn a_light_job_does_not_overtake_a_heavy_one_in_a_later_tick() {
    for mut harness in every_store() {
        // One of weight 5 runs; what is left is kept for the heavy one, however far behind it the light one is seen.
        let deep =
            [(1, of_tenant("east", 5)), (500, of_tenant("east", 10)), (2200, of_tenant("east", 1))];
        let ids = long_backlog(&harness, deep).await;
        let first = harness.lease(100).await;
        assert!(first.iter().any(|job| job.id == ids[0]) && first.len() == 2, "{first:?}");
        let mut rounds = 0;
        loop {
            let outcome = harness
                .tick(TickInput {
                    demands: vec![demand(&["work"], 100, Dispatch::Claim)],
                    ..TickInput::default()
                })
                .await;
            assert!(outcome.claimed.is_empty(), "nobody passes the heavy one");
            rounds += 1;
            if !outcome.again {
                break;
            }
        }
        assert!(rounds >= 2, "the scan took {rounds} rounds");
        let running: Vec<_> = first.into_iter().filter(|job| job.id == ids[0]).collect();
        harness.succeed(&running).await;
        assert_eq!(
            harness.lease(100).await.into_iter().map(|job| job.id).collect::<Vec<_>>(),
            ids[1..2],
            "it is its turn"
        );
    }
}

#[tokio::test]
async fn capacity_freed_during_a_scan_is_used_after_it() {
    for mut harness in every_store() {
        let ids =
            long_backlog(&harness, [(1, of_tenant("east", 10)), (500, of_tenant("east", 10))])
                .await;
        let first = harness.lease(100).await;
        let running: Vec<_> = first.into_iter().filter(|job| job.id == ids[0]).collect();
        // Its slot is free after the scan has passed who waits for it.
        let reports = running
            .iter()
            .map(|job| report(job, ReportOutcome::Succeeded { result: None }))
            .collect();
        let mut round = TickInput { reports, news: true, ..TickInput::default() };
        let mut started = Vec::new();
        for _ in 0..10 {
            round.demands = vec![demand(&["work"], 100, Dispatch::Claim)];
            let outcome = harness.tick(std::mem::take(&mut round)).await;
            started.extend(outcome.claimed.into_iter().map(|claimed| claimed.job.id));
            if !outcome.again {
                break;
            }
        }
        assert_eq!(started, ids[1..]);
    }
}

#[cfg(feature = "aws")]
#[tokio::test]
async fn a_stale_reservation_holds_no_job_in_a_scan_by_others() {
    let mut harness = super::harness::on_a_table().unwrap();
    let ids = long_backlog(
        &harness,
        [(1, of_tenant("east", 10)), (500, of_tenant("east", 10)), (2200, of_tenant("east", 1))],
    )
    .await;
    harness.settle().await;
    let round = || TickInput {
        demands: vec![demand(&["work"], 100, Dispatch::Claim)],
        ..TickInput::default()
    };
    // One process sees that the second waits for the first, and is called again much later.
    let outcome = harness.tick(round()).await;
    assert!(outcome.again && outcome.claimed[0].job.id == ids[0]);
    let frozen = std::mem::take(&mut harness.cache);
    // Another brings that scan to its end, and both theirs. Its next scan is on its way to the third.
    for id in &ids[..2] {
        while harness.tick(round()).await.again {}
        let running = harness.job(id).await;
        harness.succeed(&[running]).await;
    }
    let outcome = harness.tick(round()).await;
    assert!(outcome.again && outcome.claimed.is_empty());
    harness.cache = frozen;
    let mut started = Vec::new();
    loop {
        let outcome = harness.tick(round()).await;
        started.extend(outcome.claimed.into_iter().map(|claimed| claimed.job.id));
        if !outcome.again {
            break;
        }
    }
    assert_eq!(started, ids[2..]);
}

#[tokio::test]
async fn a_scan_that_finds_nobody_writes_nothing() {
    for mut harness in every_store() {
        long_backlog(&harness, []).await;
        harness.lease(100).await;
        let version = async |harness: &Harness| {
            harness.store.ledger(&queue()).await.unwrap().unwrap().0.version
        };
        let before = version(&harness).await;
        let mut rounds = 0;
        while harness
            .tick(TickInput {
                demands: vec![demand(&["work"], 100, Dispatch::Claim)],
                ..TickInput::default()
            })
            .await
            .again
        {
            rounds += 1;
        }
        assert!(rounds >= 1);
        assert_eq!(version(&harness).await, before);
    }
}

#[tokio::test]
async fn a_configuration_changed_during_a_scan_counts_next_tick() {
    for mut harness in every_store() {
        long_backlog(&harness, []).await;
        let other = Constraint {
            name: "other".into(),
            matcher: Matcher::default(),
            per: None,
            concurrency: Some(5000),
            rate: None,
        };
        let config = |constraints| QueueConfig { constraints, ..QueueConfig::default() };
        harness.set_queue(config(vec![other.clone(), per_tenant(10)])).await;
        assert_eq!(
            harness.lease(100).await.len(),
            1,
            "the rest is held, and what the scan has reserved is kept"
        );
        harness.set_queue(config(vec![other])).await;
        let mut started = 0;
        for _ in 0..3 {
            started += harness.lease(100).await.len();
        }
        assert_eq!(started, 300);
    }
}
