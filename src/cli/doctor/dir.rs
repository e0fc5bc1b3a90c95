//! Checks of a data directory, with or without a running server.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use indicatif::HumanBytes;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{CheckLevel, DoctorReport, Finding, bodies::bodies, config, finding};
use tidegate_api::{JobTypeView, QueueStatus, QueueView};
use tidegate_backends::sealed::without_secrets;
use tidegate_backends::sqlite::{Damage, Inspection, OpenError, Place, database, holder};
use tidegate_core::{
    port::{
        Clock, HealthCheck,
        job_store::{Item, ItemKind},
    },
    time::Timestamp,
};
use tidegate_engine::NO_ROOM;

/// Below this free space, in bytes, a check warns; below the second it fails.
const LOW_DISK_BYTES: u64 = 1 << 30;
const MIN_DISK_BYTES: u64 = 64 << 20;
/// Below this free space, in bytes, the disk is full: a commit needs about as much.
const FULL_DISK_BYTES: u64 = 1 << 20;
/// A longer write-ahead log, in bytes, means that a long read prevents its checkpoint.
const MAX_LOG_BYTES: u64 = 256 << 20;
/// A file younger than this may still be written.
const MIN_SETTLED_AGE: Duration = Duration::from_hours(1);
/// Damaged records of a kind that a finding names.
pub(super) const MAX_SHOWN: usize = 10;
/// The remedy for damaged records.
const REPAIR: &str = "they are left out, and everything else goes on; stop the server and run \
    `tidegate repair`, or restore a backup";
/// The same for a directory that follows a log.
const RESTORE: &str = "stop the server and remove the directory: the next start fills it from the \
    bucket of the log";
/// How far the newest job may be ahead of the clock.
const MAX_AHEAD: Duration = Duration::from_mins(1);

/// Checks the data in `dir` at `now`.
pub fn look(dir: &Path, now: Timestamp) -> DoctorReport {
    let mut report = DoctorReport::default();
    report.check(served(dir));
    report.check(room(dir));
    report.check(log(dir));
    report.check(parts(dir, now));
    match Inspection::open(dir) {
        Ok(found) => {
            report.checks += 1;
            if let Err(error) = inside(dir, &found, now, &mut report) {
                report.findings.push(unusable(&error));
            }
        }
        Err(error) => report.check(Some(unusable(&error))),
    }
    report
}

/// The checks of a running server on its own directory.
pub struct Served {
    dir: PathBuf,
    clock: Arc<dyn Clock>,
}

impl Served {
    /// The directory that this process serves.
    pub fn new(dir: PathBuf, clock: Arc<dyn Clock>) -> Self {
        Self { dir, clock }
    }
}

#[async_trait]
impl HealthCheck for Served {
    async fn checks(&self) -> Vec<Finding> {
        let (dir, now) = (self.dir.clone(), self.clock.now());
        let looked = tokio::task::spawn_blocking(move || {
            let newest = match Inspection::open(&dir).and_then(|found| newest(&found, now)) {
                Ok(found) => found,
                Err(error) => Some(unusable(&error)),
            };
            vec![
                newest.unwrap_or_else(|| {
                    Finding::ok("database", format!("{} can be read", database(&dir).display()))
                }),
                room(&dir).unwrap_or_else(|| Finding::ok("disk", "there is room")),
                log(&dir).unwrap_or_else(|| Finding::ok("database", "its log is folded in")),
                parts(&dir, now).unwrap_or_else(|| Finding::ok("backup", "none was broken off")),
            ]
        });
        looked.await.unwrap_or_else(|error| {
            vec![finding(
                CheckLevel::Error,
                "data directory",
                error.to_string(),
                "see the server's log",
            )]
        })
    }

    fn refusal(&self) -> Option<String> {
        refusal(free_bytes(&self.dir))
    }
}

/// Why no work can be accepted with this many bytes free on the disk; none if it can, or if the
/// number is not known.
fn refusal(free: Option<u64>) -> Option<String> {
    let is_full = free.is_some_and(|free| free < FULL_DISK_BYTES);
    is_full.then(|| NO_ROOM.to_owned())
}

/// Returns the advice for an error at the opening of the database.
fn unusable(error: &OpenError) -> Finding {
    let advice = match error {
        OpenError::Io { .. } => "see that --data names the server's directory, and who may read it",
        OpenError::Held { .. }
        | OpenError::Newer { .. }
        | OpenError::Older { .. }
        | OpenError::Lost { .. }
        | OpenError::NotNew { .. }
        | OpenError::CopyOfLog { .. }
        | OpenError::DamagedLog { .. }
        | OpenError::NotOfLog { .. }
        | OpenError::Damaged { .. } => "as it says; leave the file as it is until then",
    };
    finding(CheckLevel::Error, "database", error.to_string(), advice)
}

fn served(dir: &Path) -> Option<Finding> {
    match holder(dir) {
        Ok(held) => held.map(|by| {
            finding(
                CheckLevel::Note,
                "server",
                format!("{by} serves the directory"),
                "`tidegate doctor` without --data checks the server, too",
            )
        }),
        Err(error) => Some(finding(
            CheckLevel::Error,
            "lock",
            error.to_string(),
            "see who may read and write the directory",
        )),
    }
}

/// The bytes that are free on the disk of `dir`.
fn free_bytes(dir: &Path) -> Option<u64> {
    let disk = nix::sys::statvfs::statvfs(dir).ok()?;
    Some(disk.blocks_available().saturating_mul(disk.fragment_size()))
}

fn room(dir: &Path) -> Option<Finding> {
    let free = free_bytes(dir)?;
    let level = if free < MIN_DISK_BYTES { CheckLevel::Error } else { CheckLevel::Warning };
    let found = format!("{} are left", HumanBytes(free));
    (free < LOW_DISK_BYTES).then(|| {
        finding(
            level,
            "disk",
            found,
            "make room, or shorten `retention_seconds`: on a full disk writes answer 503",
        )
    })
}

fn log(dir: &Path) -> Option<Finding> {
    let log = database(dir).with_extension("db-wal");
    let bytes = fs::metadata(log).map_or(0, |about| about.len());
    let found = format!("tidegate.db-wal has {}", HumanBytes(bytes));
    let advice = "find the program that keeps a read of the database open (`lsof tidegate.db`), \
                  and end it";
    (bytes > MAX_LOG_BYTES).then(|| finding(CheckLevel::Warning, "database", found, advice))
}

/// Finds incomplete backups in the directory and next to it.
fn parts(dir: &Path, now: Timestamp) -> Option<Finding> {
    let parent = dir.canonicalize().ok().and_then(|dir| dir.parent().map(Path::to_owned));
    let listed = [Some(dir.to_owned()), parent]
        .into_iter()
        .flatten()
        .filter_map(|dir| fs::read_dir(dir).ok())
        .flatten()
        .flatten();
    let stale = |entry: &fs::DirEntry| {
        entry.path().extension().is_some_and(|extension| extension == "part")
            && entry.metadata().is_ok_and(|about| settled(&about, now))
    };
    let names: Vec<String> =
        listed.filter(stale).map(|entry| entry.path().display().to_string()).collect();
    let found = format!("broken off: {}", names.join(", "));
    (!names.is_empty()).then(|| {
        finding(
            CheckLevel::Warning,
            "backup",
            found,
            "remove it, and see that the backup runs to its end",
        )
    })
}

/// Whether a file is so old that no request is still writing it.
pub(super) fn settled(about: &fs::Metadata, now: Timestamp) -> bool {
    about.modified().is_ok_and(|at| now.since(Timestamp::from_utc(at.into())) > MIN_SETTLED_AGE)
}

/// Checks the database and its large bodies.
fn inside(
    dir: &Path,
    found: &Inspection,
    now: Timestamp,
    report: &mut DoctorReport,
) -> Result<(), OpenError> {
    let verified = found.verify()?;
    let follows_log = found.follows_log()?;
    let remedy = if follows_log { RESTORE } else { REPAIR };
    for (about, damage) in damaged(&verified.damage) {
        report.check(Some(finding(CheckLevel::Error, about, damage, remedy)));
    }
    report.check(newest(found, now)?);
    let (queues, types) = (found.items(ItemKind::Queue)?, found.items(ItemKind::Type)?);
    let mut queues = shapes::<QueueView<'_>>(&queues);
    let waiting = found.waiting()?;
    for queue in &mut queues {
        let jobs = waiting.get(queue.name.as_str()).copied().unwrap_or_default();
        let depth = [("scheduled".into(), jobs)].into();
        queue.status = Some(QueueStatus { depth, ..QueueStatus::default() });
    }
    report.add(config::look(&queues, &shapes::<JobTypeView<'_>>(&types), now));
    report.check(unsigned(&types));
    if follows_log {
        report.check(Some(finding(
            CheckLevel::Note,
            "log",
            "the directory has the local copy of a log in object storage",
            "its bucket has the data and the large bodies, which are not checked here",
        )));
        return Ok(());
    }
    let plugins = found.plugin_objects()?;
    for finding in bodies(dir, &verified.objects, &plugins, now) {
        report.check(finding);
    }
    Ok(())
}

/// The damaged records, by what they are: how many, and the first of them.
fn damaged(damage: &[Damage]) -> Vec<(&'static str, String)> {
    let about = |place: &Place| match place {
        Place::File | Place::Name { .. } => "database",
        Place::Job { .. } | Place::Columns { .. } | Place::Body { .. } | Place::Counts => "jobs",
        Place::Key { .. } => "keys",
        Place::Ledger { .. } | Place::Batch { .. } => "ledgers",
        Place::Item { .. } => "configuration",
        Place::Record { .. } => "replies and dead letters",
    };
    let mut by_kind: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Damage { place, what } in damage {
        by_kind.entry(about(place)).or_default().push(what);
    }
    let shown = |(about, all): (&'static str, Vec<&str>)| {
        let first = all.iter().take(MAX_SHOWN).copied().collect::<Vec<_>>().join("; ");
        let more = match all.len().saturating_sub(MAX_SHOWN) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        (about, format!("{} damaged: {first}{more}", all.len()))
    };
    by_kind.into_iter().map(shown).collect()
}

/// Checks that the newest job was not accepted in the future.
fn newest(found: &Inspection, now: Timestamp) -> Result<Option<Finding>, OpenError> {
    let newest = found.newest_job()?.filter(|newest| newest.since(now) > MAX_AHEAD);
    Ok(newest.map(|newest| {
        let found = format!(
            "the newest job was accepted at {newest}, which is in the future: the clock was \
             set back"
        );
        finding(
            CheckLevel::Error,
            "clock",
            found,
            "set it by NTP; what is due waits until the clock has caught up",
        )
    }))
}

/// Returns the configurations in the shapes of the API, without unreadable ones, which the server
/// reports.
fn shapes<T: DeserializeOwned>(items: &[Item]) -> Vec<T> {
    let shape = |item: &Item| {
        let mut stored: Value = item.read().ok()?;
        without_secrets(&mut stored);
        let mut shape = stored.get("config")?.clone();
        shape["name"] = json!(item.name);
        shape["version"] = stored["version"].clone();
        shape["paused"] = stored.get("paused").cloned().unwrap_or(json!(false));
        serde_json::from_value(shape).ok()
    };
    items.iter().filter_map(shape).collect()
}

/// Finds push types without a signature, which only the file shows.
fn unsigned(types: &[Item]) -> Option<Finding> {
    let bare = |item: &&Item| {
        let Ok(stored) = item.read::<Value>() else {
            return false;
        };
        let target = &stored["config"]["target"];
        target["url"].is_string()
            && target["signing_secret"].is_null()
            && target["basic_auth"].is_null()
    };
    let names: Vec<&str> = types.iter().filter(bare).map(|item| item.name.as_str()).collect();
    let found = format!("pushed without signature or password: {}", names.join(", "));
    let advice =
        "set `signing_secret` in their targets, so that their workers can authenticate the server";
    (!names.is_empty()).then(|| finding(CheckLevel::Note, "types", found, advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_accepts_no_work() {
        assert_eq!(refusal(Some(FULL_DISK_BYTES - 1)).as_deref(), Some(NO_ROOM));
        assert_eq!((refusal(Some(FULL_DISK_BYTES)), refusal(None)), (None, None));
        let dir = tempfile::tempdir().unwrap();
        assert!(free_bytes(dir.path()).is_some());
    }
}
