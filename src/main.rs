//! The binary: reads the command line, runs it, and hands its exit code to the system.

use clap::Parser as _;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    // As a task, so that the memory which starting up leaves free is a worker's, and used again.
    let running = tokio::spawn(async { tidegate::cli::run(tidegate::cli::Cli::parse()).await });
    running.await.map_or(std::process::ExitCode::FAILURE, Into::into)
}
