//! Tasks of the repository in addition to its build.
//!
//! `cargo xtask package` makes the zips of the Lambda functions, `cargo xtask release` makes the files
//! of a release and checks them, `cargo xtask start` measures how
//! long they take to start, `cargo xtask scale` runs the load scenarios of a deployment in full,
//! `cargo xtask partitions` simulates a limit that is divided, and `cargo xtask check --full` runs
//! every check, or those of a name.

mod check;
mod endpoint;
mod package;
mod partitions;
mod release;
mod scale;
mod start;
mod zig;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let result = match args.next().as_deref() {
        Some("package") => package::run(args),
        Some("release") => release::run(args),
        Some("start") => start::run(),
        Some("scale") => scale::run(),
        Some("partitions") => {
            print!("{}", partitions::table());
            Ok(())
        }
        Some("check") => check::run(args),
        other => {
            let other = other.unwrap_or("");
            Err(format!(
                "there is no task {other:?}; there are: package [--arch arm64|x86_64] [--profile \
                 NAME], release [--check], start, scale, partitions, check --full [NAME]"
            ))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}
