//! `tidegate dev`: a server for development, whose clock tests move.

mod clock;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use clap::Subcommand;
use tempfile::TempDir;
use tidegate_backends::{sqlite::database, system::DevClock};
use tidegate_server::telemetry::process::MetricsCollection;

use super::{Context, ExitCode, UsageError, make_files_private, serve as server};

/// The file that marks a directory as one whose clock may be moved.
const MARK: &str = "dev-server";

/// Run a server for development: without tokens, on this machine alone, with a clock that tests
/// freeze and move.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    server: ServerArgs,
}

/// The commands to a server for development.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the clock of a server for development, freeze it, or move it forward.
    Clock(clock::Args),
}

/// The options of the server.
#[derive(Debug, clap::Args)]
pub struct ServerArgs {
    /// The data directory, which stays [default: a temporary one, removed at the end].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The loopback address and port to listen on [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
}

/// Serves until SIGTERM or Ctrl-C, or changes the clock of a server that runs.
///
/// # Errors
///
/// A wrong setting, a directory that cannot be served, an address that cannot be listened on; the
/// server is unreachable or rejects the request.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    match args.command {
        Some(Command::Clock(args)) => clock::run(args, ctx).await,
        None => serve(args.server, ctx).await,
    }
}

/// The directory of the data.
enum Data {
    Kept(PathBuf),
    Temporary(TempDir),
}

impl Data {
    fn open(dir: Option<PathBuf>) -> anyhow::Result<Self> {
        let Some(dir) = dir else {
            let dir = tempfile::Builder::new().prefix("tidegate-dev-").tempdir();
            return dir.map(Self::Temporary).context("no temporary directory can be created");
        };
        mark(&dir)?;
        Ok(Self::Kept(dir))
    }

    fn path(&self) -> &Path {
        match self {
            Self::Kept(dir) => dir,
            Self::Temporary(dir) => dir.path(),
        }
    }
}

/// Marks `dir` as the directory of a server for development. Data of an ordinary server is refused:
/// a moved clock would expire its jobs.
fn mark(dir: &Path) -> anyhow::Result<()> {
    let mark = dir.join(MARK);
    if database(dir).exists() && !mark.exists() {
        return Err(UsageError(format!(
            "--dir: {} has the data of an ordinary server; `tidegate dev` moves the clock and \
             serves only directories that it made",
            dir.display()
        ))
        .into());
    }
    std::fs::create_dir_all(dir)
        .and_then(|()| std::fs::write(&mark, "The data of a server that `tidegate dev` started.\n"))
        .with_context(|| format!("--dir: {} cannot be written", dir.display()))
}

async fn serve(args: ServerArgs, ctx: &Context) -> anyhow::Result<ExitCode> {
    let named = args.dir.as_deref().unwrap_or(Path::new("."));
    let (mut settings, sources) = server::settings_of(args.listen, named)?;
    if !settings.listen.ip().is_loopback() {
        return Err(UsageError(format!(
            "--listen: {} is not a loopback address: a server for development accepts every \
             caller, so it serves only this machine",
            settings.listen
        ))
        .into());
    }
    if !settings.is_local() {
        return Err(UsageError(
            "public_url: is not an address of this machine, which alone a server for development \
             serves"
                .to_owned(),
        )
        .into());
    }
    make_files_private();
    let data = Data::open(args.dir)?;
    data.path().clone_into(&mut settings.data);
    server::log(&settings);
    let metrics = MetricsCollection::start(&settings)?;
    let clock = Arc::new(DevClock::new());
    let serving =
        server::start(&settings, &sources, Some(metrics.prometheus()), Some(clock)).await?;
    let url = format!("http://{}", serving.address);
    let kept = match &data {
        Data::Kept(_) => "",
        Data::Temporary(_) => " (removed at the end)",
    };
    ctx.note(format_args!(
        "tidegate dev serves {}{kept} without tokens on {url}\n\
         Try: tidegate dev clock --advance 1h --url {url}",
        data.path().display()
    ));
    server::until_stopped().await?;
    serving.stop().await;
    metrics.stop().await;
    if let Data::Temporary(dir) = data {
        dir.close().context("the temporary directory cannot be removed")?;
    }
    Ok(ExitCode::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_directory_of_its_own_is_marked() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        mark(&own).unwrap();
        std::fs::write(database(&own), "").unwrap();
        mark(&own).unwrap();

        let foreign = dir.path().join("foreign");
        std::fs::create_dir(&foreign).unwrap();
        std::fs::write(database(&foreign), "").unwrap();
        let refused = mark(&foreign).unwrap_err().to_string();
        assert!(refused.starts_with("--dir: ") && refused.contains("ordinary server"), "{refused}");
        assert!(!foreign.join(MARK).exists());
    }
}
