//! `tidegate backup`: a consistent copy of a data directory while its server runs.
//!
//! ```text
//!   database at one instant ──▶ the bodies that it names ──▶ all written out
//!                                                          ──▶ the copy gets its name
//! ```
//!
//! A body is written before the job that names it and never changed. A copy of the bodies after the
//! database therefore has every body, except those whose jobs were removed in between. When one is
//! missing, the database is copied again: it no longer names that body, unless the body was lost
//! before.

use std::{
    collections::HashSet,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use indicatif::ProgressBar;
use serde_json::json;

use super::{Context, ExitCode, UsageError, context::print_error};
use tidegate_backends::{
    private, sealed,
    sqlite::{self, Inspection, OpenError, database},
};
use tidegate_core::port::job_store::ItemKind;
use tidegate_server::settings::Settings;

/// Most copies of the database.
const TRIES: usize = 3;

/// The options of `tidegate backup`.
#[derive(Debug, clap::Args)]
#[command(after_help = "The copy is a data directory: `tidegate serve --data TO` serves it.\n\n\
    Example:\n  \
    tidegate backup --data /var/lib/tidegate /backup/tidegate-$(date +%F)")]
pub struct Args {
    /// The new directory of the copy.
    #[arg(value_name = "TO")]
    to: PathBuf,
    /// The directory of the data [default: the server's setting `data`].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// A TOML file with the server's settings.
    #[arg(long, env = "TIDEGATE_CONFIG")]
    config: Option<PathBuf>,
}

/// Copies the data directory.
///
/// # Errors
///
/// The directory has no data or cannot be read, or the copy cannot be written; a partial copy stays
/// in `TO.part`.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let from = data_dir(args.data, args.config.as_deref())?;
    let bar = ctx.progress(0, "bodies");
    let (to, counting) = (args.to.clone(), bar.clone());
    let copied = tokio::task::spawn_blocking(move || copy(&from, &to, &counting)).await?;
    bar.finish_and_clear();
    let Copied { bytes, bodies, missing, has_secrets } = copied?;
    if ctx.json() {
        ctx.print(json!({
            "to": args.to, "bytes": bytes, "bodies": bodies, "missing_bodies": missing,
            "needs_key": has_secrets,
        }))?;
    } else {
        let size = indicatif::HumanBytes(bytes);
        ctx.print(format_args!(
            "{} is a copy of the data: {size}, with {bodies} large bodies",
            args.to.display()
        ))?;
    }
    if has_secrets {
        ctx.note(
            "the copy has encrypted secrets of targets, and no key: keep the server's key (the \
             file `key` of its data directory, or `encryption_key`) apart from it",
        );
    }
    if missing > 0 {
        print_error(format_args!(
            "error: {missing} large bodies of jobs are missing; `tidegate doctor` has details"
        ));
        return Ok(ExitCode::Refused);
    }
    Ok(ExitCode::Ok)
}

/// Returns the data directory: `--data`, or the setting of a server on this machine.
///
/// # Errors
///
/// A wrong setting.
pub fn data_dir(data: Option<PathBuf>, config: Option<&Path>) -> anyhow::Result<PathBuf> {
    match data {
        Some(data) => Ok(data),
        None => Ok(Settings::load(config, &())?.data),
    }
}

/// What was copied.
struct Copied {
    bytes: u64,
    bodies: usize,
    missing: usize,
    /// Whether the copy needs the server's key.
    has_secrets: bool,
}

fn copy(from: &Path, to: &Path, bar: &ProgressBar) -> anyhow::Result<Copied> {
    if !database(from).exists() {
        bail!(UsageError(format!(
            "{} has no data: name the server's directory with --data",
            from.display()
        )));
    }
    let part = part(to);
    for taken in [to, &part] {
        if taken.exists() {
            bail!(UsageError(format!(
                "{} exists already; name another directory, or remove it",
                taken.display()
            )));
        }
    }
    let written = |path: &Path| format!("{} cannot be written", path.display());
    super::make_files_private();
    private::create_dir(&part).with_context(|| written(&part))?;
    let mut missing: HashSet<String> = HashSet::new();
    let mut bodies = 0;
    for _ in 0..TRIES {
        let copy = database(&part);
        if copy.exists() {
            fs::remove_file(&copy).with_context(|| written(&copy))?;
        }
        sqlite::backup(from, &copy)?;
        let named = Inspection::open(&part)?.object_keys()?;
        bar.set_length(named.len() as u64);
        let before = std::mem::take(&mut missing);
        bodies = 0;
        for key in named {
            match body(&from.join("objects").join(&key), &part.join("objects").join(&key)) {
                Ok(()) => bodies += 1,
                Err(error) if error.kind() == io::ErrorKind::NotFound => drop(missing.insert(key)),
                Err(error) => return Err(error).with_context(|| format!("{key} cannot be copied")),
            }
            bar.set_position(bodies as u64);
        }
        if missing.is_subset(&before) {
            break;
        }
    }
    let has_secrets = has_secrets(&part)?;
    let bytes = sync(&part).with_context(|| written(&part))?;
    fs::rename(&part, to).with_context(|| written(to))?;
    if let Some(parent) = to.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        File::open(parent).and_then(|parent| parent.sync_all()).with_context(|| written(parent))?;
    }
    Ok(Copied { bytes, bodies, missing: missing.len(), has_secrets })
}

/// Returns whether the database of the directory `dir` has encrypted secrets of targets.
///
/// # Errors
///
/// It cannot be read.
pub(super) fn has_secrets(dir: &Path) -> Result<bool, OpenError> {
    let types = Inspection::open(dir)?.items(ItemKind::Type)?;
    let mut readable = types.iter().filter_map(|item| item.bytes.as_ref().ok());
    Ok(readable.any(|bytes| sealed::has_secrets(bytes)))
}

/// Returns the directory of an incomplete copy.
pub(super) fn part(to: &Path) -> PathBuf {
    let mut name = to.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    to.with_file_name(name)
}

/// Copies one body, unless it exists already.
fn body(from: &Path, to: &Path) -> io::Result<()> {
    if to.exists() {
        return Ok(());
    }
    // Opened first, so that a body that is gone leaves nothing behind.
    let mut source = File::open(from)?;
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    io::copy(&mut source, &mut File::create(to)?).map(drop)
}

/// Syncs everything below `dir` to disk and returns its size in bytes.
pub(super) fn sync(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            bytes += sync(&entry.path())?;
        } else {
            let file = File::open(entry.path())?;
            file.sync_all()?;
            bytes += file.metadata()?.len();
        }
    }
    File::open(dir)?.sync_all()?;
    Ok(bytes)
}
