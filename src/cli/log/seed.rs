//! `tidegate log seed`: a new log that begins with the data of a directory.
//!
//! ```text
//!   copy of the database ──▶ bodies in the bucket ──▶ snapshot and the other objects of the log
//! ```
//!
//! The directory is not changed: the log is made from a copy next to it, which is removed at the end. Bodies
//! are in the bucket before the log that names them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use indicatif::HumanBytes;
use object_store::{ObjectStore, ObjectStoreExt as _, path::Path as ObjectPath};
use serde_json::json;

use super::{
    super::{
        Context, ExitCode, UsageError,
        backup::{has_secrets, part},
        context::print_error,
        make_files_private,
    },
    address::{Address, Connected},
};
use tidegate_backends::{
    bucket_log::{Edge, LogReader, SeedError, probe, seed},
    private,
    sqlite::{self, Inspection, SqliteReplica, database},
};

/// The options of `tidegate log seed`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "FROM is the data directory of a stopped server without --log, a backup, or what `tidegate log \
    restore` has made. It is not changed. The bucket must have no log below the prefix.\n\n\
    Servers of the log start with another directory, and with the key of FROM.\n\n\
    Example:\n  \
    tidegate log seed ./yesterday --log s3://bucket/new\n  \
    tidegate serve --data ./cache --log s3://bucket/new"
)]
pub struct Args {
    /// The directory of the data.
    #[arg(value_name = "FROM")]
    from: PathBuf,
    #[command(flatten)]
    address: Address,
}

/// Begins the log.
///
/// # Errors
///
/// The directory has no data or a server that runs, the bucket has a log or cannot have one, or either
/// fails. What was written stays then, and no server takes it for a log.
pub(super) async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let Args { from, address } = args;
    let copy = part(&from);
    check_source(&from, &copy)?;
    let named = address.named()?;
    let Connected { edge, bucket, objects } = named.connect()?;
    let address = named.address;
    probe(&edge).await.with_context(|| format!("{address} cannot have a log"))?;
    let taken = || UsageError(format!("{address} has a log; name a prefix without one"));
    if LogReader::open(edge.clone(), bucket).await?.is_some() {
        bail!(taken());
    }
    make_files_private();
    let made = begin(&edge, &from, &copy, &*objects).await;
    let removed = fs::remove_dir_all(&copy);
    let Some(Made { bytes, bodies, needs_key }) = made? else { bail!(taken()) };
    removed.with_context(|| format!("{} cannot be removed", copy.display()))?;
    let Bodies { copied, missing } = bodies;
    if ctx.json() {
        ctx.print(json!({
            "log": address.to_string(), "bytes": bytes, "bodies": copied, "missing_bodies": missing,
            "needs_key": needs_key,
        }))?;
    } else {
        ctx.print(format_args!(
            "{address} is a log with the data of {}: {}, with {copied} large bodies",
            from.display(),
            HumanBytes(bytes),
        ))?;
    }
    ctx.note(format_args!(
        "serve it with a new directory: `tidegate serve --data NEW --log {address}`. A server on {} would go \
         its own way",
        from.display()
    ));
    if needs_key {
        ctx.note(
            "it has encrypted secrets of targets: give its servers the key of the directory (the file \
             `key`, or `encryption_key`)",
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

/// What a log was begun with.
struct Made {
    bytes: u64,
    bodies: Bodies,
    needs_key: bool,
}

/// Begins the log with the data of `from`, in the new directory `copy`; none if there is a log.
async fn begin(
    edge: &Edge,
    from: &Path,
    copy: &Path,
    objects: &dyn ObjectStore,
) -> anyhow::Result<Option<Made>> {
    private::create_dir(copy).with_context(|| format!("{} cannot be written", copy.display()))?;
    sqlite::backup(from, &database(copy))?;
    let bytes = fs::metadata(database(copy))?.len();
    let needs_key = has_secrets(copy)?;
    let bodies = copy_bodies(from, copy, objects).await?;
    let replica = SqliteReplica::attach(copy)?;
    match seed(edge, &replica).await {
        Ok(_) => Ok(Some(Made { bytes, bodies, needs_key })),
        Err(SeedError::NotEmpty) => Ok(None),
        Err(SeedError::Log(error)) => Err(error.into()),
    }
}

/// Refuses a directory without data, or with a server that runs.
fn check_source(from: &Path, copy: &Path) -> anyhow::Result<()> {
    if !database(from).exists() {
        bail!(UsageError(format!("{} has no data", from.display())));
    }
    if let Some(by) = sqlite::holder(from)? {
        bail!(UsageError(format!("{} is held by {by}; stop that server", from.display())));
    }
    if copy.exists() {
        bail!(UsageError(format!("{} exists already; remove it", copy.display())));
    }
    Ok(())
}

/// How many bodies were copied, and how many are missing.
#[derive(Clone, Copy, Debug, Default)]
struct Bodies {
    copied: usize,
    missing: usize,
}

/// Copies what the database in `copy` names and the directory `from` has to the bucket.
async fn copy_bodies(
    from: &Path,
    copy: &Path,
    objects: &dyn ObjectStore,
) -> anyhow::Result<Bodies> {
    let mut bodies = Bodies::default();
    for key in Inspection::open(copy)?.object_keys()? {
        let bytes = match fs::read(from.join("objects").join(&key)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                bodies.missing += 1;
                continue;
            }
            Err(error) => return Err(error).with_context(|| format!("{key} cannot be read")),
        };
        let written = objects.put(&ObjectPath::from(key.as_str()), bytes.into()).await;
        written.with_context(|| format!("the object {key} cannot be written"))?;
        bodies.copied += 1;
    }
    Ok(bodies)
}
