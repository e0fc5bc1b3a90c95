//! A scan of a long backlog over several ticks: reservations, freed capacity, changed settings.

use tidegate_core::{
    job::{JobId, type_config::TypeConfig},
    queue::{
        QueueConfig,
        config::{Constraint, Rate},
        matcher::Matcher,
    },
    time::Seconds,
};
use tidegate_engine::{
    Dispatch, TickInput, TickOutcome,
    request::{NewJob, ReportOutcome},
};

use super::{of_tenant, per_tenant};
use crate::cases::harness::{Harness, demand, every_store, of_type, queue, report, with};

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

/// A backlog of more than two thousand jobs of one tenant, so that a scan takes several ticks.
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

#[tokio::test]
async fn a_light_job_does_not_overtake_a_heavy_one_in_a_later_tick() {
    for mut harness in every_store() {
        // A job of weight 5 runs. The rest is reserved for the heavy job, wherever the scan meets
        // the light one.
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
            assert!(outcome.claimed.is_empty(), "no job passes the heavy one");
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
        // Its slot becomes free after the scan has passed the job that waits for it.
        let reports = running
            .iter()
            .map(|job| report(job, ReportOutcome::Succeeded { result: None }))
            .collect();
        let mut round = TickInput { reports, queue_changed: true, ..TickInput::default() };
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
    let mut harness = crate::cases::harness::on_a_table().unwrap();
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
    // One process reads that the second job waits for the first, and ticks again much later.
    let outcome = harness.tick(round()).await;
    assert!(outcome.again && outcome.claimed[0].job.id == ids[0]);
    let frozen = std::mem::take(&mut harness.cache);
    // Another process ends that scan, and both jobs end. Its next scan has not reached the third
    // job.
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
async fn a_scan_without_a_candidate_writes_nothing() {
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
