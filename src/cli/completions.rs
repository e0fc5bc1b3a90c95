//! `tidegate completions SHELL`.

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::{Cli, Context, ExitCode};

/// The options of `tidegate completions`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell, for example bash: `source <(tidegate completions bash)`.
    shell: Shell,
}

/// Prints the shell's completion script.
///
/// # Errors
///
/// The reader is gone.
pub fn run(args: &Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tidegate", &mut script);
    ctx.print_body(&script)?;
    Ok(ExitCode::Ok)
}

#[cfg(test)]
mod tests {
    use crate::cli::{ExitCode, testing::FakeServer};

    #[tokio::test]
    async fn a_script_knows_every_command() {
        let server = FakeServer::answering(|_| (500, serde_json::Value::Null)).await;
        let (code, script) = server.run(&["completions", "bash"]).await;
        assert_eq!(code, ExitCode::Ok);
        assert!(script.contains("enqueue") && script.contains("--concurrency"));
    }
}
