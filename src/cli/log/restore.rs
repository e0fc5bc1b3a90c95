//! `tidegate log restore`: the state of a replicated log as of an instant, as a data directory.
//!
//! ```text
//!   snapshot, then records up to the instant ──▶ the bodies that the database names ──▶ all written out
//!                                                                                   ──▶ TO gets its name
//! ```
//!
//! The directory has no log: it is served as that of one machine. The bucket is only read. Bodies of
//! jobs that were removed since the instant may be gone from it.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use indicatif::HumanBytes;
use object_store::{
    Error as StoreError, ObjectStore, ObjectStoreExt as _, path::Path as ObjectPath,
};
use serde_json::json;

use super::{
    super::{
        Context, ExitCode, UsageError,
        args::{self, When},
        backup::{has_secrets, part, sync},
        context::print_error,
        make_files_private,
    },
    address::{Address, Opened},
};
use tidegate_backends::{
    bucket_log::{LogReader, RestoreError, RestoredState, key::Epoch},
    sqlite::{Inspection, SqliteReplica},
};
use tidegate_core::time::Timestamp;

/// How many bodies are read at once.
const BODIES_AT_ONCE: usize = 8;

/// The options of `tidegate log restore`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "TO has the state after the last record that is not after the instant. A record has the \
    time at which the leader wrote it, by its clock, in milliseconds.\n\n\
    TO is the data directory of a server without --log, and `tidegate log seed` begins a log in a new prefix \
    with it. The bucket is not changed, and servers may run.\n\n\
    Example:\n  \
    tidegate log restore ./yesterday --at -24h --log s3://bucket/prefix\n  \
    tidegate serve --data ./yesterday"
)]
pub struct Args {
    /// The new directory. It may exist if it is empty.
    #[arg(value_name = "TO")]
    to: PathBuf,
    /// The instant: RFC 3339, or a span from now such as -1h.
    #[arg(long, value_name = "INSTANT", value_parser = args::when, allow_hyphen_values = true)]
    at: When,
    #[command(flatten)]
    address: Address,
}

/// Restores the state.
///
/// # Errors
///
/// The directory is not empty, the log has no state of the instant, or it cannot be read; or the
/// directory cannot be written. Then what was written stays in `TO.part`.
pub(super) async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let Args { to, at, address } = args;
    let at = at.at(ctx.now());
    let part = part(&to);
    check_free(&to, &part)?;
    let Opened { reader, address, objects, .. } = address.open().await?;
    make_files_private();
    let state = match restore(&reader, &part, at).await {
        Err(Failure::Refused(refusal)) => {
            fs::remove_dir_all(&part).with_context(|| written(&part))?;
            bail!(UsageError(format!("{address} cannot be restored as of {at}: {refusal}")));
        }
        Err(Failure::Other(error)) => return Err(error),
        Ok(state) => state,
    };
    let bodies = copy_bodies(&*objects, &part).await?;
    let needs_key = has_secrets(&part)?;
    let bytes = sync(&part).with_context(|| written(&part))?;
    fs::rename(&part, &to).with_context(|| written(&to))?;
    if let Some(parent) = to.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        sync_dir(parent).with_context(|| written(parent))?;
    }
    let RestoredState { tail, snapshot, records } = state;
    if ctx.json() {
        ctx.print(json!({
            "to": to, "at": at, "written_at": tail.time, "next_slot": tail.next.to_string(),
            "snapshot_epoch": snapshot.map(Epoch::number), "records": records,
            "bytes": bytes, "bodies": bodies.copied, "missing_bodies": bodies.missing,
            "needs_key": needs_key,
        }))?;
    } else {
        ctx.print(format_args!(
            "{} has the state of {address} as of {at}: {}, with {} large bodies. The last object of the \
             log in it is of {}.",
            to.display(),
            HumanBytes(bytes),
            bodies.copied,
            tail.time
        ))?;
    }
    ctx.note(format_args!(
        "it follows no log: serve it with `tidegate serve --data {to}`, without --log, or begin a log in a new \
         prefix with `tidegate log seed {to}`. Jobs that ran or ended after {at} are as they were then, and \
         start again",
        to = to.display()
    ));
    if needs_key {
        ctx.note(
            "it has encrypted secrets of targets, and no key: give the server the `encryption_key` of \
             the servers of the log",
        );
    }
    if bodies.missing > 0 {
        print_error(format_args!(
            "error: {} large bodies are no longer in the bucket, because their jobs were removed since; \
             `tidegate doctor` has details",
            bodies.missing
        ));
        return Ok(ExitCode::Refused);
    }
    Ok(ExitCode::Ok)
}

fn written(path: &Path) -> String {
    format!("{} cannot be written", path.display())
}

/// Refuses a directory that has something, and what an earlier restore has left.
fn check_free(to: &Path, part: &Path) -> anyhow::Result<()> {
    let is_empty = match fs::read_dir(to) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => false,
        Err(error) => {
            return Err(error).with_context(|| format!("{} cannot be read", to.display()));
        }
    };
    if !is_empty {
        bail!(UsageError(format!(
            "{} is not empty; name another directory, or remove it",
            to.display()
        )));
    }
    if part.exists() {
        bail!(UsageError(format!("{} exists already; remove it", part.display())));
    }
    Ok(())
}

/// Why no state was restored.
enum Failure {
    /// The log has no state of the instant.
    Refused(String),
    Other(anyhow::Error),
}

fn other(error: impl Into<anyhow::Error>) -> Failure {
    Failure::Other(error.into())
}

/// Makes the database as of `at` in the new directory `dir`.
async fn restore(reader: &LogReader, dir: &Path, at: Timestamp) -> Result<RestoredState, Failure> {
    let replica = SqliteReplica::open(dir).map_err(other)?;
    let state = reader.restore(&replica, at).await.map_err(|error| match error {
        RestoreError::TooEarly { earliest } => {
            Failure::Refused(format!("the earliest instant that it has is {earliest}"))
        }
        RestoreError::TooLate { newest } => Failure::Refused(format!(
            "its newest record is of {newest}, and records of later instants may still come"
        )),
        RestoreError::Empty => Failure::Refused("no server has led it yet".into()),
        removed @ RestoreError::Removed { .. } => {
            Failure::Refused(format!("{removed}; name a later instant"))
        }
        RestoreError::Log(error) => other(error),
    })?;
    let detached = tokio::task::spawn_blocking(move || replica.detach()).await;
    detached.map_err(other)?.map_err(other)?;
    // The file with the process that held the directory.
    let lock = dir.join("lock");
    fs::remove_file(&lock).with_context(|| written(&lock)).map_err(other)?;
    Ok(state)
}

/// The large bodies and the code of plugins.
#[derive(Clone, Copy, Debug, Default)]
struct Bodies {
    copied: usize,
    missing: usize,
}

/// Copies what the database in `dir` names and the bucket has.
async fn copy_bodies(objects: &dyn ObjectStore, dir: &Path) -> anyhow::Result<Bodies> {
    let named: HashSet<String> = Inspection::open(dir)?.object_keys()?;
    let copies = named.into_iter().map(|key| copy_body(objects, dir, key));
    let mut copies = stream::iter(copies).buffer_unordered(BODIES_AT_ONCE);
    let mut bodies = Bodies::default();
    while let Some(is_there) = copies.try_next().await? {
        if is_there {
            bodies.copied += 1;
        } else {
            bodies.missing += 1;
        }
    }
    Ok(bodies)
}

/// Copies a body; false if it is gone.
async fn copy_body(objects: &dyn ObjectStore, dir: &Path, key: String) -> anyhow::Result<bool> {
    let found = match objects.get(&ObjectPath::from(key.as_str())).await {
        Ok(found) => found.bytes().await,
        Err(StoreError::NotFound { .. }) => return Ok(false),
        Err(error) => Err(error),
    };
    let bytes = found.with_context(|| format!("the object {key} cannot be read"))?;
    let to = dir.join("objects").join(&key);
    let write = || {
        fs::create_dir_all(to.parent().unwrap_or(&to))?;
        fs::write(&to, &bytes)
    };
    write().with_context(|| written(&to))?;
    Ok(true)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_new_or_an_empty_directory_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |to: &Path| check_free(to, &part(to)).unwrap_err().to_string();
        let (new, file) = (dir.path().join("new"), dir.path().join("file"));
        check_free(&new, &part(&new)).unwrap();
        fs::create_dir(&new).unwrap();
        check_free(&new, &part(&new)).unwrap();
        fs::write(new.join("one"), "").unwrap();
        assert!(refused(&new).contains("is not empty"));
        fs::write(&file, "").unwrap();
        assert!(refused(&file).contains("is not empty"));
        let other = dir.path().join("other");
        fs::create_dir(part(&other)).unwrap();
        assert!(refused(&other).contains("other.part exists already"));
    }
}
