//! The binary: reads the command line, runs it, and hands its exit code to the system.

use std::process::ExitCode;

use clap::Parser as _;

/// musl's own allocator has one lock for all threads: with it, a server does a fraction of the work.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    tidegate::cli::share_heaps();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("tidegate cannot start its threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(async {
        // As a task, so that the memory which starting up leaves free is a worker's, and used
        // again.
        let running = tokio::spawn(async { tidegate::cli::run(tidegate::cli::Cli::parse()).await });
        running.await.map_or(ExitCode::FAILURE, Into::into)
    })
}
