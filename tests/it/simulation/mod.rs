//! The real engine in a simulated world: several engines tick concurrently on one store, the faults
//! of the design are injected, and the invariants are checked after every write.
//!
//! The seed determines a run, and a failure prints it. `TIDEGATE_SEEDS=1000` with `--profile seeds`
//! runs more seeds, and `TIDEGATE_SEED=17` only that one.
//!
//! | fault | where it is drawn |
//! |---|---|
//! | a process dies at any step, or is paused for a minute | [`scheduler`] |
//! | a process is killed at its timeout | `World::draw_timeout` |
//! | a commit stops half way, fails, is throttled, or its answer is lost | [`store`] |
//! | a commit happens after its connection ended; a page lacks jobs of other servers | [`shared`] |
//! | a page of the real adapter lacks them; two such adapters commit in turn | [`postgres`] |
//! | the same for a request of a table, and an empty page | [`table`] |
//! | requests to a bucket fail; leaders are frozen, or lost with their disks; clocks are set | [`log`] |
//! | a message is lost, arrives twice, or minutes late | `World::arrival` |
//! | ticks and sweeps are off for a day | `RunConfig::ticks_off` |
//!
//! Read [`world`] for the processes, [`plugins`] for the plugins, [`model`] for the invariants,
//! [`scheduler`] for the order of steps, and [`bugs`] for the faults that the simulation must
//! detect.

mod bugs;
mod log;
mod model;
mod plugins;
mod postgres;
mod releases;
mod scheduler;
mod shared;
mod store;
#[cfg(feature = "aws")]
mod table;
mod world;

use std::collections::BTreeMap;

use self::log::LogBug;
use bugs::Bug;
use releases::Releases;
use shared::SharedBug;
use world::{RunConfig, StoreKind, World};

/// The seeds to run: as many as the environment says, or `usual` ones.
#[allow(clippy::disallowed_methods, reason = "the caller decides how many seeds to run")]
pub fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |variable| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    match number("TIDEGATE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TIDEGATE_SEEDS").unwrap_or(usual),
    }
}

/// Runs a world, and prints its seed if it fails. Returns the counts of the run.
fn run(config: RunConfig) -> BTreeMap<&'static str, u64> {
    let ran = std::panic::catch_unwind(|| World::run(config));
    let Ok(ran) = ran else { panic!("seed {}: it panicked, see above ({config:?})", config.seed) };
    let summary = ran.unwrap_or_else(|fault| panic!("{fault}"));
    println!("seed {}: {} steps, {:?}", config.seed, summary.steps, summary.counts);
    assert!(
        summary.counts.get("claims").is_some_and(|claims| *claims > 0),
        "seed {}: no job ever ran",
        config.seed
    );
    summary.counts
}

#[test]
fn invariants_hold_whatever_goes_wrong() {
    let mut counts = BTreeMap::new();
    let seeds = seeds(32);
    for seed in seeds.clone() {
        counts.extend(run(RunConfig::of(seed)));
    }
    // Fewer seeds may not reach every fault and every cell of the table "How a job starts".
    if seeds.count() >= 32 {
        // A late limit is drawn only with a store that is not atomic.
        for seed in [3, 7, 11] {
            counts.extend(run(RunConfig { slow: false, ..RunConfig::of(seed) }));
        }
        assert_eq!(world::unreached(&counts), [""; 0], "no job started that way, or no such fault");
    }
}

#[test]
fn invariants_hold_on_sqlite_too() {
    for seed in seeds(6) {
        run(RunConfig { store_kind: StoreKind::Sqlite, slow: false, ..RunConfig::of(seed) });
    }
}

/// Servers with adapters of their own on one store, as on Postgres.
#[test]
fn invariants_hold_on_a_shared_store_too() {
    let mut counts = BTreeMap::new();
    let seeds = seeds(8);
    for seed in seeds.clone() {
        let store_kind = StoreKind::Shared;
        counts.extend(run(RunConfig { store_kind, slow: false, ..RunConfig::of(seed) }));
    }
    if seeds.count() >= 8 {
        for reached in [shared::LATE_COMMITS, shared::HIDDEN_JOBS] {
            assert!(counts.contains_key(reached), "there were {reached}: {counts:?}");
        }
    }
}

/// Two servers with the real adapter of Postgres. The database takes real time, so a seed may not fix a run,
/// and only one seed in 47 runs.
#[test]
#[ignore = "takes minutes: cargo xtask check --full runs it"]
fn invariants_hold_on_postgres_too() {
    for seed in seeds(48).step_by(47) {
        let config = RunConfig::of(seed);
        let store_kind = StoreKind::Postgres;
        let counts = run(RunConfig { store_kind, slow: false, jobs: 30, ..config });
        for commits in postgres::COMMITS {
            assert!(counts.contains_key(commits), "there are {commits}: {counts:?}");
        }
    }
}

#[test]
fn planted_bugs_of_a_shared_store_are_found() {
    for bug in SharedBug::ALL {
        let found = (0..40).find_map(|seed| {
            // Only a queue without a limit starts jobs that no grant counts.
            let late_limit = bug == SharedBug::StartsUnwritten;
            let config = RunConfig {
                store_kind: StoreKind::Shared,
                slow: false,
                late_limit,
                light: false,
                strict: false,
                jobs: if late_limit { 150 } else { 60 },
                shared_bug: Some(bug),
                ..RunConfig::of(seed)
            };
            let fault = std::panic::catch_unwind(|| World::run(config).err())
                .unwrap_or_else(|_| Some("it panicked".into()))?;
            Some((seed, fault.lines().next().unwrap_or_default().to_owned()))
        });
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} was not found");
    }
}

/// A replicated log, in whose runs every request takes a request to the bucket. They take long, so one
/// seed in eleven runs. A process that leads has all engines, so none dispatches while another one lives
/// on; and no day passes, because the nodes would poll all the time.
fn on_a_log(seed: u64) -> RunConfig {
    RunConfig {
        store_kind: StoreKind::Log,
        slow: false,
        late_limit: false,
        ticks_off: false,
        jobs: 30,
        ..RunConfig::of(seed)
    }
}

#[test]
fn invariants_hold_on_a_replicated_log_too() {
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    let seeds = seeds(12).step_by(11);
    let count = seeds.clone().count();
    for seed in seeds {
        for (what, times) in run(on_a_log(seed)) {
            *counts.entry(what).or_default() += times;
        }
    }
    // A single seed may not reach it.
    if count > 1 {
        for reached in [log::TAKEOVERS, log::LOST_DISKS, log::SET_CLOCKS] {
            assert!(counts.contains_key(reached), "there were {reached}: {counts:?}");
        }
    }
}

#[test]
fn planted_bugs_of_a_replicated_log_are_found() {
    for (bug, parts) in LogBug::ALL {
        let found = (0..5).find_map(|seed| {
            let config = RunConfig { log_bug: Some(bug), ..on_a_log(seed) };
            let fault = std::panic::catch_unwind(|| World::run(config).err()).ok().flatten()?;
            let fault = fault.lines().next().unwrap_or_default().to_owned();
            parts.iter().any(|part| fault.contains(part)).then_some((seed, fault))
        });
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} was not found");
    }
}

#[cfg(feature = "aws")]
#[test]
fn invariants_hold_on_a_table_too() {
    let mut counts = BTreeMap::new();
    let seeds = seeds(8);
    for seed in seeds.clone() {
        let store_kind = StoreKind::Table;
        counts.extend(run(RunConfig { store_kind, slow: true, ..RunConfig::of(seed) }));
    }
    // Fewer seeds may not reach it. The full check runs more.
    if seeds.count() >= 16 {
        assert!(counts.contains_key(table::EMPTY_PAGES), "a page had no items: {counts:?}");
    }
}

#[cfg(feature = "aws")]
#[test]
#[ignore = "takes minutes: cargo xtask check --full runs it"]
fn invariants_hold_on_the_emulator_too() {
    for seed in seeds(1) {
        run(RunConfig {
            store_kind: StoreKind::Emulator,
            slow: true,
            jobs: 30,
            ..RunConfig::of(seed)
        });
    }
}

/// A rolling upgrade: engines of two releases on one store, and of either one after a crash.
#[test]
fn two_releases_work_on_one_store() {
    for seed in seeds(3) {
        run(RunConfig { releases: Releases::Two, ..RunConfig::of(seed) });
        for store_kind in [StoreKind::Sqlite, StoreKind::Shared] {
            let releases = Releases::Two;
            run(RunConfig { releases, store_kind, slow: false, ..RunConfig::of(seed) });
        }
    }
}

#[cfg(feature = "aws")]
#[test]
fn two_releases_work_on_one_table() {
    for seed in seeds(3) {
        let store_kind = StoreKind::Table;
        run(RunConfig { releases: Releases::Two, store_kind, slow: true, ..RunConfig::of(seed) });
    }
}

#[test]
fn an_engine_that_loses_a_newer_field_is_found() {
    let config = RunConfig { releases: Releases::OneForgets, ..RunConfig::of(0) };
    let fault = World::run(config).err().expect("the bug is found");
    assert!(fault.contains("lost a field of the next release"), "{fault}");
}

/// The same for the entries that the DynamoDB store keeps in addition to its jobs.
#[cfg(feature = "aws")]
#[test]
#[ignore = "takes half a minute: cargo xtask check --full runs it"]
fn planted_bugs_of_the_table_are_found() {
    for bug in table::TableBug::ALL {
        let found = (0..20).find_map(|seed| {
            let config = RunConfig {
                store_kind: StoreKind::Table,
                slow: true,
                jobs: 60,
                table_bug: Some(bug),
                ..RunConfig::of(seed)
            };
            let fault = std::panic::catch_unwind(|| World::run(config).err())
                .unwrap_or_else(|_| Some("it panicked".into()))?;
            Some((seed, fault.lines().next().unwrap_or_default().to_owned()))
        });
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} was not found");
    }
}

#[test]
fn a_seed_fixes_the_whole_run() {
    let log_hash =
        |seed| World::run(RunConfig::of(seed)).unwrap_or_else(|fault| panic!("{fault}")).log_hash;
    for seed in 0..4 {
        assert_eq!(log_hash(seed), log_hash(seed), "seed {seed}");
    }
}

#[test]
fn a_seed_fixes_the_whole_run_on_a_log() {
    let log_hash =
        || World::run(RunConfig { jobs: 5, ..on_a_log(1) }).map(|summary| summary.log_hash);
    let first = log_hash();
    assert!(first.is_ok(), "{first:?}");
    assert_eq!(first, log_hash());
}

/// A simulation is useful only if it finds bugs: each of these must be found.
#[test]
fn planted_bugs_are_found() {
    let mut missed = Vec::new();
    for (bug, slow, last_seed) in Bug::ALL {
        let found = std::iter::once(last_seed).chain(0..80).find_map(|seed| {
            // A fault before the first limit applies has an effect only if many jobs run then.
            let config = RunConfig {
                slow,
                late_limit: slow,
                light: false,
                jobs: if slow { 150 } else { 60 },
                bug: Some(bug),
                ..RunConfig::of(seed)
            };
            let fault = std::panic::catch_unwind(|| World::run(config).err())
                .unwrap_or_else(|_| Some("it panicked".into()));
            fault.map(|fault| (seed, fault.lines().next().unwrap_or_default().to_owned()))
        });
        match found {
            Some((seed, fault)) => println!("{bug:?}: seed {seed}, {fault}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
