//! What is done to this repository besides building it: `cargo xtask package` makes the functions' zips.

mod package;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let done = match args.next().as_deref() {
        Some("package") => package::run(args),
        other => Err(format!("there is no task {:?}; there is: package [--arch arm64|x86_64] [--profile NAME]", other.unwrap_or(""))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}
