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
use tidegate_api::{NewTokenBody, Scope};
use tidegate_backends::{
    sqlite::database,
    system::{DevClock, SystemEntropy},
};
use tidegate_server::{auth::TokenItem, telemetry::process::MetricsCollection};

use super::{
    Context, ExitCode, UsageError, make_files_private,
    serve::{self as server, Development},
};

/// The file that marks a directory as one whose clock may be moved.
const MARK: &str = "dev-server";

/// Run a server for development, with a clock that tests freeze and move.
///
/// On a loopback address it needs no token. On another one it prints an admin token at its start:
/// that of --token or `TIDEGATE_TOKEN`, or a new one. --insecure opens it to every caller instead.
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
    /// The address and port to listen on [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Accept every caller from every machine as administrator, without a token.
    #[arg(long)]
    insecure: bool,
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

/// The admin token of a server that other machines reach: the one of the command line, or a new one.
/// Returns its text, and the setting that accepts it.
fn admin_token(ctx: &Context) -> anyhow::Result<(String, String)> {
    let text = ctx.global.token.clone().map_or_else(|| new_token(ctx), Ok)?;
    let setting = TokenItem::admin_setting(&text).ok_or_else(|| {
        UsageError("--token: must be a token of tidegate: tg_ID_SECRET".to_owned())
    })?;
    Ok((text, setting))
}

/// The text of a new token.
fn new_token(ctx: &Context) -> anyhow::Result<String> {
    let new = NewTokenBody {
        name: "dev".to_owned(),
        scopes: Scope::Admin.into(),
        expires_at: None,
        queues: None,
        types: None,
    };
    Ok(TokenItem::create(new, ctx.now(), &SystemEntropy)?.1)
}

async fn serve(args: ServerArgs, ctx: &Context) -> anyhow::Result<ExitCode> {
    let named = args.dir.as_deref().unwrap_or(Path::new("."));
    let (mut settings, sources) = server::settings_of(args.listen, named)?;
    let token = if args.insecure || settings.is_local() {
        None
    } else {
        let (text, setting) = admin_token(ctx)?;
        settings.admin_token = Some(setting);
        Some(text)
    };
    make_files_private();
    let data = Data::open(args.dir)?;
    data.path().clone_into(&mut settings.data);
    // Its clock is moved: a store that other servers use is none of its business.
    settings.store = None;
    server::log(&settings);
    let metrics = MetricsCollection::start(&settings)?;
    let development = Development { clock: Arc::new(DevClock::new()), is_insecure: args.insecure };
    let serving =
        server::start(&settings, &sources, Some(metrics.prometheus()), Some(development)).await?;
    let url = format!("http://{}", serving.address);
    let kept = match &data {
        Data::Kept(_) => "",
        Data::Temporary(_) => " (removed at the end)",
    };
    let data_dir = data.path().display();
    let access = match (&token, args.insecure) {
        (Some(_), _) => "",
        (None, false) => " without tokens",
        (None, true) => " to every caller of every machine, without tokens,",
    };
    ctx.note(format_args!("tidegate dev serves {data_dir}{kept}{access} on {url}"));
    match token {
        // A token that was given is a secret of its owner.
        Some(_) if ctx.global.token.is_some() => ctx.note("Admin token: the one that was given"),
        Some(token) => ctx.note(format_args!("Admin token: {token}")),
        None => ctx.note(format_args!("Try: tidegate dev clock --advance 1h --url {url}")),
    }
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
