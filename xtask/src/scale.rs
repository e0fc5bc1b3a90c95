//! `scale`: runs every scenario of `tests/it/scale/scenarios` in full, optimised, and prints what
//! each measured. It fails if a bound does not hold that is not known to be missed.

use std::process::Command;

use crate::package;

/// The command that runs the scenarios, one after the other, with their tables.
///
/// Link-time optimisation would take longer than it saves here.
pub const RUN: [&str; 19] = [
    "cargo",
    "nextest",
    "run",
    "--release",
    "--config",
    "profile.release.lto=\"off\"",
    "--config",
    "profile.release.codegen-units=16",
    "--package",
    "tidegate",
    "--test",
    "it",
    "--features",
    "aws",
    "--run-ignored=only",
    "--no-capture",
    "--no-fail-fast",
    "-E",
    "test(scale::the_full_size)",
];

/// Runs the scenarios.
///
/// # Errors
///
/// The tests cannot be built, or a scenario misses a bound.
pub fn run() -> Result<(), String> {
    let root = package::root()?;
    let status = Command::new(RUN[0]).args(&RUN[1..]).current_dir(root).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("not every scenario keeps its bounds: {status}")),
        Err(error) => Err(format!("cargo: {error}")),
    }
}
