//! `tidegate manual`: the manual pages, for packages of the program.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::CommandFactory as _;

use super::{Cli, ExitCode};

/// The options of `tidegate manual`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory for the pages, created if missing.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

/// Writes a page for the program and one for each command: `tidegate.1`, `tidegate-serve.1`.
///
/// # Errors
///
/// The directory cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), &args.dir))
        .with_context(|| format!("--dir: {} cannot be written", args.dir.display()))?;
    Ok(ExitCode::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_manual_page() {
        let dir = tempfile::tempdir().unwrap();
        run(&Args { dir: dir.path().join("man1") }).unwrap();
        let page = |name: &str| std::fs::read_to_string(dir.path().join("man1").join(name));
        let program = page("tidegate.1").unwrap();
        assert!(program.contains("tidegate\\-serve(1)"), "{program}");
        let put = page("tidegate-queues-put.1").unwrap();
        assert!(put.contains("\\-\\-config"), "{put}");
        assert!(page("tidegate-compile-plugin.1").is_err(), "it is no command for users");
    }
}
