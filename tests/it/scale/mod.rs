//! A deployment under load, with the limits of AWS in virtual time.
//!
//! Each file of `scenarios/` is a load with bounds. A test runs a part of it with a part of the
//! limits, at least a tenth, unless it is in `in-full`, where even a part takes long.
//! `cargo xtask scale` runs all of them in full. A request and a page do not
//! shrink with the limits, so a part is throttled where the full size is slow. A value of a part
//! can only be compared with earlier values of the same part, and only the full size shows that a
//! bound holds.
//!
//! Read in this order: [`scenario`] (the files), [`run`] (load and measurements), [`cloud`]
//! (functions), [`queues`] (messages and pollers), [`store`] and [`memory`] (what an environment
//! reads and holds). The table with limits is `tidegate_backends::testkit::limits`.

mod cloud;
mod memory;
mod queues;
mod run;
mod scenario;
mod store;
mod table;

use std::path::{Path, PathBuf};

use rstest::rstest;

use scenario::Scenario;

/// Runs the scenario of a file, and prints what was measured.
fn check(file: &Path, size: &str) {
    let scenario = Scenario::parse(&std::fs::read_to_string(file).unwrap()).unwrap();
    let scale = if size == "full" { 1.0 } else { scenario.part };
    let measured = run::run(&scenario, scale);
    let (judged, wrong) = scenario.judge(size, &measured.values);
    println!("{}, {size}\n{}\n{judged}", scenario.title, measured.table());
    assert!(wrong.is_empty(), "{}, {size}: {}", scenario.title, wrong.join("; "));
}

#[rstest]
fn a_part_meets_its_bounds(#[files("tests/it/scale/scenarios/*.txt")] file: PathBuf) {
    check(&file, "small");
}

#[rstest]
#[ignore = "takes minutes even if optimised: cargo xtask scale"]
fn the_full_size_meets_its_bounds(#[files("tests/it/scale/scenarios/**/*.txt")] file: PathBuf) {
    check(&file, "full");
}
