//! The binary: reads the command line, runs it, and hands its exit code to the system.

use clap::Parser as _;

/// musl's own allocator has one lock for all threads: with it, a server does a fraction of the work.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    // As a task, so that the memory which starting up leaves free is a worker's, and used again.
    let running = tokio::spawn(async { tidegate::cli::run(tidegate::cli::Cli::parse()).await });
    running.await.map_or(std::process::ExitCode::FAILURE, Into::into)
}
