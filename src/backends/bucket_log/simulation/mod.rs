//! The real code of the log in a simulated world: three nodes, clients, and a network that loses,
//! delays and repeats requests. The invariants are checked over everything that a run did.
//!
//! The seed determines a run, and a failure prints it. `TIDEGATE_SEEDS=500` runs more seeds, and
//! `TIDEGATE_SEED=17` only that one. At least 500 should run for a change of the protocol.
//!
//! | fault | where it is drawn |
//! |---|---|
//! | a request or its answer is lost, late by minutes, repeated, or refused | [`network`] |
//! | a node is frozen for up to 90 seconds, at any request or before it seals | [`world`], [`network`] |
//! | a node is killed, with or without its disk; the disk lags behind | [`world`], [`kv`] |
//! | a node is stopped as a server is, which hands over | [`world`] |
//! | a clock jumps by an hour | [`world`] |
//! | a hint is lost, or an older one replaces it | [`network`] |
//!
//! Most runs have replicas that are fast and show every state, in [`kv`]. Some have databases, in
//! [`database`], whose rows are compared.
//!
//! Read [`world`] for a run and its faults, [`scenario`] for what varies, [`node`] and [`clients`] for
//! those that take part, [`network`] for the bucket, [`oracle`] for the invariants, [`bugs`] for the
//! faults that the simulation must find, [`quiet`] for worlds without random faults, and
//! [`replacement`] for nodes that replace a leader.

mod bugs;
mod clients;
mod database;
pub(super) mod executor;
pub(super) mod kv;
mod network;
mod node;
mod oracle;
mod quiet;
mod replacement;
mod scenario;
mod world;

use bugs::Bug;
use replacement::REPLACED;
use scenario::{STOPPED, Scenario, WITH_DATABASES, WITH_HINTS, WITHOUT_HINTS};
use world::{Summary, World};

/// Seeds that are searched for a planted bug, at least.
const SEEDS_OF_A_BUG: u64 = 40;
/// How long, in milliseconds, nodes that claim and are lost may keep a leader from acknowledging: for
/// the wait of a hand-over, and the seals of their epochs.
const MAX_SILENCE: i64 = 15_000;
/// How long, in milliseconds, such a leader may go without a beat: its standbys try to lead after a little
/// more.
const MAX_BEATLESS: i64 = 5_500;

/// The seeds to run: as many as the environment says, or `usual` ones.
#[allow(clippy::disallowed_methods, reason = "the caller decides how many seeds to run")]
pub(super) fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |variable| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    match number("TIDEGATE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TIDEGATE_SEEDS").unwrap_or(usual),
    }
}

/// Runs a world: what it reached, or the invariant that broke.
fn run(seed: u64, bug: Option<Bug>) -> Result<Summary, String> {
    run_with(seed, bug, WITHOUT_HINTS)
}

fn run_with(seed: u64, bug: Option<Bug>, scenario: Scenario) -> Result<Summary, String> {
    std::panic::catch_unwind(|| World::run(seed, bug, scenario))
        .unwrap_or_else(|_| Err("it panicked, see above".into()))
}

/// Runs worlds in which no invariant may break. Returns what they reached.
fn keep_invariants(seeds: impl Iterator<Item = u64>, scenario: Scenario) -> Summary {
    let (mut total, mut broken) = (Summary::default(), Vec::new());
    for seed in seeds {
        match run_with(seed, None, scenario) {
            Ok(summary) => {
                total.acknowledged += summary.acknowledged;
                total.epochs += summary.epochs;
                total.objects += summary.objects;
                total.refilled += summary.refilled;
                total.faults += summary.faults;
                total.reads += summary.reads;
            }
            Err(problem) => broken.push(format!("seed {seed}: {problem}")),
        }
    }
    println!("{total:?}");
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(total.acknowledged > 0, "{total:?}");
    total
}

#[test]
fn the_log_keeps_its_invariants_whatever_goes_wrong() {
    let total = keep_invariants(seeds(12), WITHOUT_HINTS);
    assert!(total.refilled > 0, "{total:?}");
}

#[test]
fn the_log_keeps_its_invariants_with_hints() {
    keep_invariants(seeds(6), WITH_HINTS);
}

#[test]
fn the_log_keeps_its_invariants_while_leaders_are_stopped() {
    keep_invariants(seeds(6), STOPPED);
}

#[test]
fn the_log_keeps_its_invariants_while_leaders_are_replaced() {
    keep_invariants(seeds(6), REPLACED);
}

/// The real replica: the rows of a replay, from the first record and from each snapshot, are those of
/// a leader. Databases take longer, so every tenth seed runs.
#[test]
fn databases_that_follow_a_log_have_the_same_rows() {
    keep_invariants(seeds(20).step_by(10), WITH_DATABASES);
}

#[test]
fn a_database_that_is_written_past_its_log_is_found() {
    let fault = run_with(0, Some(Bug::WrittenPastLog), WITH_DATABASES).unwrap_err();
    assert!(fault.starts_with("B9: "), "{fault}");
}

#[test]
fn a_seed_fixes_the_whole_run_of_the_log() {
    assert_eq!(run(3, None), run(3, None));
    let with_databases = || run_with(3, None, WITH_DATABASES);
    assert_eq!(with_databases(), with_databases());
}

#[test]
fn a_log_without_a_leader_after_the_faults_is_found() {
    let checked = World::lose_all_nodes(0);
    assert!(
        matches!(&checked, Err(problem) if problem.starts_with("B8: no node led")),
        "{checked:?}"
    );
}

#[test]
fn an_idle_leader_finds_out_that_its_epoch_was_sealed() {
    for seed in seeds(3) {
        let (epoch, later) = World::freeze_idle_leader(seed);
        assert_ne!(
            later,
            Some(epoch),
            "seed {seed}: a node counts as the leader of a sealed epoch"
        );
    }
}

#[test]
fn an_idle_leader_with_hints_keeps_its_leadership() {
    for seed in seeds(3) {
        let (epoch, later) = World::stay_idle(seed);
        assert!(epoch.is_some() && later == epoch, "seed {seed}: {epoch:?}, then {later:?}");
    }
}

#[test]
fn a_new_node_replaces_a_busy_leader() {
    for seed in seeds(6) {
        let took = World::replace_busy_leader(seed, None);
        assert!(matches!(took, Ok(Some(_))), "seed {seed}: {took:?}");
    }
}

#[test]
fn a_busy_leader_that_ignores_its_replacement_is_found() {
    for seed in seeds(2) {
        let took = World::replace_busy_leader(seed, Some(Bug::ReplacementIgnored));
        assert_eq!(took, Ok(None), "seed {seed}");
    }
}

#[test]
fn nodes_that_claim_and_are_lost_do_not_end_a_leadership() {
    for seed in seeds(3) {
        let lost = World::lose_replacements(seed);
        assert!(
            lost.as_ref().is_ok_and(|lost| {
                lost.times > 2 && lost.silence < MAX_SILENCE && lost.beatless < MAX_BEATLESS
            }),
            "seed {seed}: {lost:?}"
        );
    }
}

/// A simulation is useful only if it finds bugs: each of these must be found.
#[test]
fn planted_bugs_of_the_log_are_found() {
    let mut missed = Vec::new();
    for (bug, first, problems) in Bug::ALL {
        let most = seeds(SEEDS_OF_A_BUG).end.max(SEEDS_OF_A_BUG);
        let is_expected =
            |problem: &String| problems.iter().any(|start| problem.starts_with(start));
        let found = (first..first + most).find_map(|seed| {
            let problem = run(seed, Some(bug)).err();
            problem.filter(is_expected).map(|problem| (seed, problem))
        });
        match found {
            Some((seed, problem)) => println!("{bug:?}: seed {seed}, {problem}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
