//! The real engine in a simulated world: several engines tick at once on one store, everything that DESIGN
//! section 6 names goes wrong, and the invariants are checked after every write.
//!
//! A run follows from its seed, which a failure prints. `TIDEGATE_SEEDS=1000` runs more of them, and
//! `TIDEGATE_SEED=17` that one alone.
//!
//! Read [`world`] for who lives there, [`plugins`] for what its owner brought, [`model`] for what must hold, [`scheduler`] for how turns are taken,
//! [`bugs`] for what would be noticed.

mod bugs;
mod model;
mod plugins;
mod scheduler;
mod store;
#[cfg(feature = "aws")]
mod table;
mod world;

use std::collections::BTreeMap;

use bugs::Bug;
use world::{Home, Plan, World};

/// The seeds to run: as many as the environment says, from `first` on.
#[allow(clippy::disallowed_methods, reason = "how far a test looks is the caller's affair")]
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |variable| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    match number("TIDEGATE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TIDEGATE_SEEDS").unwrap_or(usual),
    }
}

/// Runs `plan`, and prints its seed whatever goes wrong. Returns what the run counted.
fn run(plan: Plan) -> BTreeMap<&'static str, u64> {
    let ran = std::panic::catch_unwind(|| World::run(plan));
    let Ok(ran) = ran else { panic!("seed {}: it panicked, see above ({plan:?})", plan.seed) };
    let summary = ran.unwrap_or_else(|fault| panic!("{fault}"));
    println!("seed {}: {} steps, {:?}", plan.seed, summary.steps, summary.counts);
    assert!(
        summary.counts.get("claims").is_some_and(|claims| *claims > 0),
        "seed {}: nothing ever ran",
        plan.seed
    );
    summary.counts
}

#[test]
fn invariants_hold_whatever_goes_wrong() {
    let mut counts = BTreeMap::new();
    let seeds = seeds(32);
    for seed in seeds.clone() {
        counts.extend(run(Plan::of(seed)));
    }
    // Fewer seeds need not reach every cell of the table "How a job starts".
    if seeds.count() >= 32 {
        // A late limit is drawn only with a store that is not atomic.
        counts.extend(run(Plan { slow: false, ..Plan::of(3) }));
        assert_eq!(world::unreached_starts(&counts), [""; 0], "no job started that way");
    }
}

#[test]
fn invariants_hold_on_sqlite_too() {
    for seed in seeds(6) {
        run(Plan { home: Home::Sqlite, slow: false, ..Plan::of(seed) });
    }
}

#[cfg(feature = "aws")]
#[test]
fn invariants_hold_on_a_table_too() {
    for seed in seeds(16) {
        run(Plan { home: Home::Table, slow: true, ..Plan::of(seed) });
    }
}

#[cfg(feature = "aws")]
#[test]
fn invariants_hold_on_the_emulator_too() {
    for seed in seeds(1) {
        run(Plan { home: Home::Emulator, slow: true, jobs: 30, ..Plan::of(seed) });
    }
}

/// The same of what the store on a table does beside its jobs.
#[cfg(feature = "aws")]
#[test]
fn planted_bugs_of_the_table_are_found() {
    for bug in table::TableBug::ALL {
        let found = (0..20).find_map(|seed| {
            let plan = Plan {
                home: Home::Table,
                slow: true,
                jobs: 60,
                table_bug: Some(bug),
                ..Plan::of(seed)
            };
            let fault = std::panic::catch_unwind(|| World::run(plan).err())
                .unwrap_or_else(|_| Some("it panicked".into()))?;
            Some((seed, fault.lines().next().unwrap_or_default().to_owned()))
        });
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} was not found");
    }
}

#[test]
fn a_seed_fixes_the_whole_run() {
    let story = |seed| World::run(Plan::of(seed)).unwrap_or_else(|fault| panic!("{fault}")).story;
    for seed in 0..4 {
        assert_eq!(story(seed), story(seed), "seed {seed}");
    }
}

/// A simulation that finds nothing proves nothing: each of these must be found.
#[test]
fn planted_bugs_are_found() {
    let mut missed = Vec::new();
    for (bug, slow) in Bug::ALL {
        let found = (0..80).find_map(|seed| {
            // What goes wrong before the first limit counts shows only where much is under way then.
            let plan = Plan {
                slow,
                late_limit: slow,
                light: false,
                jobs: if slow { 150 } else { 60 },
                bug: Some(bug),
                ..Plan::of(seed)
            };
            let fault = std::panic::catch_unwind(|| World::run(plan).err())
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
