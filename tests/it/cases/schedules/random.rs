//! Random runs of several engines under faults: each occurrence makes one job.

use std::{sync::Arc, time::Duration};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tidegate_backends::sqlite::SqliteStore;
use tidegate_core::{
    port::job_store::SharedStore,
    schedule::{Missed, ScheduleConfig},
};
use tidegate_engine::{
    Engine,
    memory::MemoryStore,
    testkit::faults::{Faults, FaultyStore},
};

use super::{at_seconds, second, tens};
use crate::cases::harness::Harness;

/// One run of several engines at random instants, on a store with random failures, with processes
/// that die.
async fn random_run(seed: u64) {
    let mut chance = StdRng::seed_from_u64(seed);
    let atomic = chance.random_bool(0.5);
    let inner: SharedStore = if chance.random_bool(0.5) {
        Arc::new(MemoryStore::new())
    } else {
        Arc::new(SqliteStore::open_temporary().unwrap())
    };
    let store = Arc::new(FaultyStore::new(inner, seed).with_flight(if atomic {
        Duration::ZERO
    } else {
        Duration::from_secs(5)
    }));
    let config = ScheduleConfig { missed: Missed::All, max_missed: 1000, ..tens() };
    let harness = Harness::on(Arc::clone(&store) as SharedStore).scheduled(config).await;
    store.set_faults(Faults {
        cut: 0.15,
        lose_answer: 0.15,
        unavailable: 0.1,
        throttled: 0.05,
        reads: 0.05,
    });
    let mut engines: Vec<Engine> = (0..3).map(|_| harness.another()).collect();
    let (mut now, mut horizon) = (0, 0);
    for _ in 0..40 {
        now += chance.random_range(0..25);
        // The machine's clock is sometimes set back.
        let shown =
            if chance.random_bool(0.2) { now - chance.random_range(0..=now.min(30)) } else { now };
        harness.clock.set(second(shown));
        let ahead = if chance.random_bool(0.3) { chance.random_range(0..60) } else { 0 };
        horizon = horizon.max(shown + ahead);
        let looks = engines
            .iter()
            .filter(|_| chance.random_bool(0.7))
            .map(|engine| engine.materialize(Duration::from_secs(ahead)));
        futures_util::future::join_all(looks.collect::<Vec<_>>()).await;
        if chance.random_bool(0.2) {
            let dies = chance.random_range(0..engines.len());
            engines[dies] = harness.another();
        }
    }
    store.set_faults(Faults::default());
    let last = harness.another();
    harness.clock.set(second(now.max(horizon)));
    last.materialize(Duration::ZERO).await.unwrap();
    assert_eq!(harness.ids().await, at_seconds((10..=now.max(horizon)).step_by(10)), "seed {seed}");
    assert_eq!(harness.state().await.missed, 0, "seed {seed}");
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "the number of seeds is a setting")]
async fn through_random_faults_every_occurrence_makes_its_job() {
    let count =
        std::env::var("TIDEGATE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(60);
    for seed in 0..count {
        random_run(seed).await;
    }
}
