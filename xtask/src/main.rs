//! What is done to this repository besides building it: `cargo xtask package` makes the functions' zips, `cargo xtask start` measures
//! how long they take to start, `cargo xtask ci --full` checks everything.

mod ci;
mod endpoint;
mod package;
mod start;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let done = match args.next().as_deref() {
        Some("package") => package::run(args),
        Some("start") => start::run(),
        Some("ci") => ci::run(args),
        other => {
            let other = other.unwrap_or("");
            Err(format!(
                "there is no task {other:?}; there are: package [--arch arm64|x86_64] [--profile NAME], start, ci --full"
            ))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}
