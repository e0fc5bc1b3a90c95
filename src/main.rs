//! The binary: reads the command line, runs it, and hands its exit code to the system.

use clap::Parser as _;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    tidegate::cli::run(tidegate::cli::Cli::parse()).await.into()
}
