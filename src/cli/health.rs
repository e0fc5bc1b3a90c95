//! `tidegate health`: whether a server is ready.

use super::{Context, ExitCode};

/// The options of `tidegate health`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "It needs no token. Exit code 0 means that the server is ready, 1 that it is not, \
                  and 3 that no server answers. `tidegate doctor` finds out why."
)]
pub struct Args {
    /// Print nothing if the server is ready.
    #[arg(long, short)]
    quiet: bool,
}

/// Requests `GET /readyz`.
///
/// # Errors
///
/// The server is unreachable or not ready.
pub async fn run(args: &Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    ctx.client()?.ready().send().await?;
    if !args.quiet {
        ctx.print("ready")?;
    }
    Ok(ExitCode::Ok)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::cli::{ExitCode, testing::FakeServer};

    #[tokio::test]
    async fn the_exit_code_says_whether_a_server_is_ready() {
        let ready = FakeServer::answering(|_| (200, json!({}))).await;
        assert_eq!(ready.run(&["health"]).await, (ExitCode::Ok, "ready\n".into()));
        assert_eq!(ready.run(&["health", "--quiet"]).await, (ExitCode::Ok, String::new()));
        let seen = ready.seen();
        assert!(seen.iter().all(|seen| seen.path == "/readyz"), "{seen:?}");

        let stopping = FakeServer::answering(|_| (503, json!({}))).await;
        assert_eq!(stopping.run(&["health"]).await, (ExitCode::Refused, String::new()));
    }
}
