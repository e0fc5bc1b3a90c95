//! The data directory: its lock, its database file, and the errors of both.

use std::{
    fs::{File, TryLockError},
    io::{Read, Write},
    path::{Path, PathBuf},
};

use rusqlite::{Connection, ErrorCode, OpenFlags, config::DbConfig};

use super::log;
use crate::private;
use tidegate_core::time::Timestamp;

/// `tdgt` in ASCII: marks a SQLite file as one of tidegate.
const APPLICATION_ID: i64 = 0x7464_6774;

/// The format that the first migration makes. Builds before the first release wrote earlier ones.
const FIRST_FORMAT: i64 = 3;
/// The migrations from an empty file to the newest format, in order. A released one never changes. On the
/// local copy of a log, a release also works with the tables of the releases before it, until the log has a
/// start record of its own number of migrations.
pub(super) const MIGRATIONS: [&str; 1] = [include_str!("migrations/0001_start.sql")];
/// The newest format.
const NEWEST_FORMAT: i64 = FIRST_FORMAT + MIGRATIONS.len() as i64 - 1;

/// The holder of a directory whose file `lock` does not name it.
pub(super) const ANOTHER_PROCESS: &str = "another process";

/// Which format an open gives to a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upgrade {
    /// The newest one.
    AtOpen,
    /// The first one if it is empty. Records of a log change it, at the same position on every machine.
    ByLog,
}

impl Upgrade {
    fn newest(self) -> i64 {
        match self {
            Self::AtOpen => NEWEST_FORMAT,
            Self::ByLog => FIRST_FORMAT,
        }
    }
}

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds it.
    #[error(
        "the data directory {} is held by {by}; stop that process, or give this one another \
         directory",
        dir.display()
    )]
    Held {
        /// The directory.
        dir: PathBuf,
        /// The process that holds it, and since when.
        by: String,
    },
    /// A later release wrote it.
    #[error(
        "{} has format {found}, and this release knows formats up to {known}; run the release that \
         wrote it, or a later one",
        file.display()
    )]
    Newer {
        /// The database.
        file: PathBuf,
        /// Its format.
        found: i64,
        /// The latest format that this release knows.
        known: i64,
    },
    /// A build before the first release wrote it.
    #[error(
        "{} has format {found} of a build before the first release, and this release reads formats \
         from {oldest}: run that build to finish or export its jobs, then start with another \
         directory",
        file.display()
    )]
    Older {
        /// The database.
        file: PathBuf,
        /// Its format.
        found: i64,
        /// The earliest format that this release knows.
        oldest: i64,
    },
    /// The directory had a database, and has none now.
    #[error(
        "{} had a database, and its file {}: restore it from a backup, or start with `--new` to \
         begin without the jobs, the configuration and the tokens that it had",
        dir.display(),
        if *is_empty { "is empty" } else { "is missing" }
    )]
    Lost {
        /// The directory.
        dir: PathBuf,
        /// Whether the file is there and empty.
        is_empty: bool,
    },
    /// The directory has a database, and was expected to have none.
    #[error("{} has a database: start without `--new`", dir.display())]
    NotNew {
        /// The directory.
        dir: PathBuf,
    },
    /// The database is the local copy of a log in object storage, and was expected to be the only
    /// one.
    #[error(
        "{} has the local copy of a log in object storage, and a change of it alone would be in no \
         record: start with `--log`, or with another directory; if the copy is damaged, move it away, \
         and a start with `--log` restores it",
        dir.display()
    )]
    CopyOfLog {
        /// The directory.
        dir: PathBuf,
    },
    /// The database has data, and is not the local copy of a log in object storage.
    #[error(
        "{} has a database that is no copy of a log: start without `--log`, or with another data \
         directory, which is filled from the bucket",
        dir.display()
    )]
    NotOfLog {
        /// The directory.
        dir: PathBuf,
    },
    /// The file is damaged, or a database of another program.
    #[error(
        "{} {problem}; restore it from a backup (`tidegate backup` makes them), or move it away to \
         start empty",
        file.display()
    )]
    Damaged {
        /// The database.
        file: PathBuf,
        /// A description, such as `is damaged (...)`.
        problem: String,
    },
    /// The log lacks transactions that were on the disk.
    #[error(
        "{} is damaged, and SQLite would leave out the transactions from there on: restore the \
         directory from a backup, or run `tidegate repair`, which keeps a copy and goes on without \
         them",
        log.display()
    )]
    DamagedLog {
        /// The log.
        log: PathBuf,
    },
    /// The operating system reports an error, such as missing permissions or a full disk.
    #[error("cannot use {}: {message}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        message: String,
    },
}

/// The path of the database in a data directory.
pub fn database(dir: &Path) -> PathBuf {
    dir.join("tidegate.db")
}

/// The file that says that the directory `dir` has had a database.
fn marker(dir: &Path) -> PathBuf {
    dir.join("has-database")
}

/// The size of the database of `dir`; none if there is no file.
fn size(dir: &Path) -> Option<u64> {
    std::fs::metadata(database(dir)).ok().map(|about| about.len())
}

/// Lets the next open of `dir` create a database, although the directory had one.
///
/// # Errors
///
/// [`OpenError::NotNew`] if it has one; [`OpenError::Io`].
pub fn forget_database(dir: &Path) -> Result<(), OpenError> {
    if size(dir).is_some_and(|bytes| bytes > 0) && !has_no_tables(dir) {
        return Err(OpenError::NotNew { dir: dir.to_owned() });
    }
    unmark(dir)
}

/// Records that the database of `dir` may be lost, or is.
pub(super) fn unmark(dir: &Path) -> Result<(), OpenError> {
    match std::fs::remove_file(marker(dir)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(OpenError::Io { path: marker(dir), message: error.to_string() })
        }
        _ => Ok(()),
    }
}

/// Whether the file of `dir` is a database without tables. The log that had them is damaged.
fn has_no_tables(dir: &Path) -> bool {
    let count = |db: Connection| {
        db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0))
    };
    open_reader(&database(dir)).and_then(count).is_ok_and(|tables| tables == 0)
}

/// Refuses a directory that had a database and has none: its jobs, configuration and tokens are
/// gone, and a server without tokens would be open to everyone on the machine.
pub(super) fn expect_database(dir: &Path) -> Result<(), OpenError> {
    let size = size(dir);
    if size.unwrap_or(0) == 0 && marker(dir).exists() {
        return Err(OpenError::Lost { dir: dir.to_owned(), is_empty: size.is_some() });
    }
    Ok(())
}

/// Refuses a directory whose database is the local copy of a log in object storage. A change of it
/// alone would not be in the log, and the copy would then count as one that has followed the log.
pub(super) fn refuse_copy_of_log(dir: &Path) -> Result<(), OpenError> {
    if size(dir).unwrap_or(0) > 0 && is_copy_of_log(dir)? {
        return Err(OpenError::CopyOfLog { dir: dir.to_owned() });
    }
    Ok(())
}

/// Whether the database of `dir`, which exists, is the local copy of a log in object storage.
pub(super) fn is_copy_of_log(dir: &Path) -> Result<bool, OpenError> {
    let file = database(dir);
    open_at_rest(&file).and_then(|db| follows_log(&db)).map_err(|error| fault(&file, &error))
}

/// Whether a database is the local copy of a log in object storage: it has the table with its
/// position.
pub(super) fn follows_log(db: &Connection) -> Result<bool, rusqlite::Error> {
    let has_tail = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'log_tail')";
    db.query_row(has_tail, [], |row| row.get(0))
}

/// Whether `dir` has had a database that was not a replica.
#[cfg(feature = "bucket")]
pub(super) fn is_marked(dir: &Path) -> bool {
    marker(dir).exists()
}

/// Moves the database of `dir` and its log to names that no open uses. What an earlier call has
/// moved is replaced.
#[cfg(feature = "bucket")]
pub(super) fn set_aside(dir: &Path) -> Result<PathBuf, OpenError> {
    let _lock = DirLock::take(dir)?;
    let (file, aside) = (database(dir), dir.join("damaged.db"));
    for part in ["db-shm", "db-wal", "db"] {
        let (from, to) = (file.with_extension(part), aside.with_extension(part));
        let moved = match std::fs::rename(&from, &to) {
            // Otherwise an older log would be taken for that of this database.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => std::fs::remove_file(&to),
            moved => moved,
        };
        match moved {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(OpenError::Io { path: from, message: error.to_string() });
            }
            _ => {}
        }
    }
    Ok(aside)
}

/// Records that `dir` has a database.
pub(super) fn mark_database(dir: &Path) -> Result<(), OpenError> {
    let path = marker(dir);
    if path.exists() {
        return Ok(());
    }
    let write = || {
        let mut file = File::create(&path)?;
        file.write_all(b"A start without tidegate.db next to this file is refused.\n")?;
        file.sync_all()?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|error: std::io::Error| OpenError::Io {
        path: path.clone(),
        message: error.to_string(),
    })
}

/// The lock of a data directory, until it is dropped.
#[derive(Debug)]
pub(super) struct DirLock {
    _dir: File,
    _file: File,
}

impl DirLock {
    /// Locks `dir`, which is created if it does not exist, and closes it to other users. The file
    /// `DIR/lock` contains the process; its modification time is the start of the process. The lock
    /// is on the directory itself, so it holds when that file is removed.
    pub(super) fn take(dir: &Path) -> Result<Self, OpenError> {
        let failed = |path: &Path, error: std::io::Error| OpenError::Io {
            path: path.to_owned(),
            message: error.to_string(),
        };
        let locked = private::create_dir(dir)
            .and_then(|()| File::open(dir))
            .map_err(|error| failed(dir, error))?;
        if let Err(error) = private::close(dir) {
            tracing::warn!(
                dir = %dir.display(),
                %error,
                "other users of this machine may be able to read the data directory"
            );
        }
        let path = dir.join("lock");
        let mut file = private::open(&path).map_err(|error| failed(&path, error))?;
        match locked.try_lock().and_then(|()| file.try_lock()) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut by = String::new();
                file.read_to_string(&mut by).map_err(|error| failed(&path, error))?;
                let since = file.metadata().and_then(|about| about.modified());
                let since = since.map_err(|error| failed(&path, error))?;
                let by = match by.trim() {
                    "" => ANOTHER_PROCESS.to_owned(),
                    by => format!("{by}, since {}", Timestamp::from_utc(since.into())),
                };
                return Err(OpenError::Held { dir: dir.to_owned(), by });
            }
            Err(TryLockError::Error(error)) => return Err(failed(dir, error)),
        }
        let process = format!("process {}\n", std::process::id());
        file.set_len(0)
            .and_then(|()| file.write_all(process.as_bytes()))
            .map_err(|error| failed(&path, error))?;
        Ok(Self { _dir: locked, _file: file })
    }
}

/// Creates the database `file` if it does not exist, and closes it and its log to other users.
/// SQLite gives its log the permissions of the database.
pub(super) fn protect(file: &Path) -> Result<(), OpenError> {
    let io =
        |error: std::io::Error| OpenError::Io { path: file.to_owned(), message: error.to_string() };
    private::create_file(file).map_err(io)?;
    for part in ["db", "db-wal", "db-shm"] {
        let part = file.with_extension(part);
        if part.exists()
            && let Err(error) = private::close(&part)
        {
            tracing::warn!(file = %part.display(), %error, "other users may be able to read it");
        }
    }
    Ok(())
}

/// The connection that writes, if the log is whole. A database that is the only copy of its data
/// must not go on without what was on the disk.
pub(super) fn open_writer(file: &Path) -> Result<Connection, OpenError> {
    if has_damaged_log(file)? {
        return Err(OpenError::DamagedLog { log: log::path(file) });
    }
    open_writer_without_lost(file, Upgrade::AtOpen)
}

/// Whether the log of a database lacks transactions that were on the disk.
pub(super) fn has_damaged_log(file: &Path) -> Result<bool, OpenError> {
    let io =
        |error: std::io::Error| OpenError::Io { path: log::path(file), message: error.to_string() };
    log::is_damaged(file).map_err(io)
}

/// The connection that writes. It migrates the file as `upgrade` says. SQLite leaves out what a damaged log
/// has lost.
///
/// A replica needs no more. It does not wait for the disk (`synchronous=NORMAL`), so a crash of the
/// machine may leave a gap in the log between frames that reached the disk. SQLite ends the log at
/// the gap, which sets the replica back to an earlier position.
pub(super) fn open_writer_without_lost(
    file: &Path,
    upgrade: Upgrade,
) -> Result<Connection, OpenError> {
    let fault = |error| fault(file, &error);
    protect(file)?;
    let db = Connection::open_with_flags(
        file,
        OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )
    .map_err(fault)?;
    keep_statements(&db).map_err(fault)?;
    // A user of the sqlite3 shell may hold the write lock for a moment.
    db.busy_timeout(std::time::Duration::from_secs(5)).map_err(fault)?;
    let found = format(&db, file)?;
    let had_tables = file.parent().filter(|dir| found == 0 && marker(dir).exists());
    if let Some(dir) = had_tables {
        return Err(OpenError::Lost { dir: dir.to_owned(), is_empty: true });
    }
    // Caches are small, because the system keeps the file's pages in memory anyway. With FULL, a
    // transaction is on the disk before its caller is answered. A checkpoint every 16 MiB writes a
    // page that changes often only once.
    db.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 4000; \
         PRAGMA journal_size_limit = 67108864; PRAGMA cache_size = -1000; \
         PRAGMA temp_store = MEMORY;",
    )
    .map_err(fault)?;
    migrate(&db, found, upgrade).map_err(fault)?;
    Ok(db)
}

/// Migrates a database of the format `found`.
fn migrate(db: &Connection, found: i64, upgrade: Upgrade) -> Result<(), rusqlite::Error> {
    let missing = found + 1..=upgrade.newest();
    for (version, sql) in
        (FIRST_FORMAT..).zip(MIGRATIONS).filter(|(version, _)| missing.contains(version))
    {
        db.execute_batch(&format!(
            "BEGIN IMMEDIATE; {sql} PRAGMA application_id = {APPLICATION_ID}; \
             PRAGMA user_version = {version}; COMMIT;"
        ))?;
    }
    Ok(())
}

/// The first `schema` of the migrations of `release` that a database lacks, in a transaction of the caller.
#[cfg(feature = "bucket")]
pub(super) fn migrate_by_log(
    db: &Connection,
    release: &[&str],
    schema: u64,
) -> Result<(), rusqlite::Error> {
    let found: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let wanted = (FIRST_FORMAT..).zip(release).take(schema as usize);
    for (version, sql) in wanted.filter(|(version, _)| *version > found) {
        db.execute_batch(sql)?;
        db.pragma_update(None, "user_version", version)?;
    }
    Ok(())
}

/// A database in memory that no record of a log was applied to.
#[cfg(feature = "bucket")]
pub(super) fn before_log() -> Result<Connection, rusqlite::Error> {
    let db = Connection::open_in_memory()?;
    migrate(&db, 0, Upgrade::ByLog)?;
    Ok(db)
}

/// The copy `file` of a database that another release may have written.
#[cfg(feature = "bucket")]
pub(super) fn open_copy(file: &Path) -> Result<Connection, OpenError> {
    let db = Connection::open(file).map_err(|error| fault(file, &error))?;
    format(&db, file)?;
    Ok(db)
}

/// The migrations that have made the tables of a database, as far as this release knows them.
pub(super) fn migrations_of(db: &Connection) -> Result<&'static [&'static str], rusqlite::Error> {
    let format: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let all: &'static [&'static str] = &MIGRATIONS;
    let count = usize::try_from(format - FIRST_FORMAT + 1).unwrap_or(all.len());
    Ok(&all[..count.min(all.len())])
}

/// The format of a file, which must be one of tidegate or empty.
pub(super) fn format(db: &Connection, file: &Path) -> Result<i64, OpenError> {
    let number = |sql| {
        db.query_row(sql, [], |row| row.get::<_, i64>(0)).map_err(|error| fault(file, &error))
    };
    let (application, found, objects) = (
        number("PRAGMA application_id")?,
        number("PRAGMA user_version")?,
        number("SELECT count(*) FROM sqlite_schema")?,
    );
    if application != APPLICATION_ID && (application, found, objects) != (0, 0, 0) {
        return Err(OpenError::Damaged {
            file: file.to_owned(),
            problem: "is a database of another program".into(),
        });
    }
    if found > NEWEST_FORMAT {
        return Err(OpenError::Newer { file: file.to_owned(), found, known: NEWEST_FORMAT });
    }
    if found < FIRST_FORMAT && objects > 0 {
        return Err(OpenError::Older { file: file.to_owned(), found, oldest: FIRST_FORMAT });
    }
    Ok(found)
}

/// A connection that only reads.
pub(super) fn open_reader(file: &Path) -> Result<Connection, rusqlite::Error> {
    let db = Connection::open_with_flags(
        file,
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    keep_statements(&db)?;
    db.pragma_update(None, "cache_size", -250)?;
    db.busy_timeout(std::time::Duration::from_secs(5))?;
    Ok(db)
}

/// A read-only connection that leaves no file behind. Without a log, no process uses the database,
/// so it is opened as immutable.
pub(super) fn open_at_rest(file: &Path) -> Result<Connection, rusqlite::Error> {
    let at_rest = !file.with_extension("db-wal").exists();
    let url = file
        .canonicalize()
        .ok()
        .filter(|_| at_rest)
        .and_then(|file| url::Url::from_file_path(file).ok());
    match url {
        Some(mut url) => {
            url.set_query(Some("immutable=1"));
            Connection::open_with_flags(
                url.as_str(),
                OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI,
            )
        }
        None => open_reader(file),
    }
}

/// Prepares every statement only once. Without the query planner stability guarantee (QPSG), SQLite
/// plans a statement again for new parameters if they could change its best plan. That costs more
/// than most statements take to run.
fn keep_statements(db: &Connection) -> Result<(), rusqlite::Error> {
    db.set_prepared_statement_cache_capacity(64);
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// The error of `file`, as the operator who starts the server needs it.
pub(super) fn fault(file: &Path, error: &rusqlite::Error) -> OpenError {
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => {
            OpenError::Damaged { file: file.to_owned(), problem: "is not a SQLite database".into() }
        }
        Some(ErrorCode::DatabaseCorrupt) => {
            OpenError::Damaged { file: file.to_owned(), problem: format!("is damaged ({error})") }
        }
        _ => OpenError::Io { path: file.to_owned(), message: error.to_string() },
    }
}

/// Copies a consistent snapshot of the database of the data directory `dir` to the new file `to`. A
/// server in this process or another one may run meanwhile, and is not blocked.
///
/// # Errors
///
/// [`OpenError`] if there is no database, `to` exists, or either cannot be used. `to` is not
/// created then.
pub fn backup(dir: &Path, to: &Path) -> Result<(), OpenError> {
    let from = database(dir);
    if to.exists() {
        return Err(OpenError::Io { path: to.to_owned(), message: "it exists already".into() });
    }
    let part = to.with_extension("part");
    let source = open_reader(&from).map_err(|error| fault(&from, &error))?;
    if follows_log(&source).map_err(|error| fault(&from, &error))? {
        return Err(OpenError::CopyOfLog { dir: dir.to_owned() });
    }
    protect(&part)?;
    let copied = copy(&source, &part);
    let done = copied.map_err(|error| fault(&from, &error)).and_then(|()| {
        let io = |error: std::io::Error| OpenError::Io {
            path: to.to_owned(),
            message: error.to_string(),
        };
        File::open(&part).and_then(|file| file.sync_all()).map_err(io)?;
        std::fs::rename(&part, to).map_err(io)
    });
    if done.is_err() {
        // The file may not exist. The result already has the cause.
        let _ = std::fs::remove_file(&part);
    }
    done
}

fn copy(source: &Connection, to: &Path) -> Result<(), rusqlite::Error> {
    // An open read transaction gives all steps the same snapshot. Without it, every write of the
    // server would restart the copy.
    let instant = source.unchecked_transaction()?;
    instant.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    copy_pages(&instant, to)
}

/// Copies what `source` sees in its open transaction to the database `to`.
pub(super) fn copy_pages(source: &Connection, to: &Path) -> Result<(), rusqlite::Error> {
    let mut target = Connection::open(to)?;
    let copy = rusqlite::backup::Backup::new(source, &mut target)?;
    while copy.step(64)? == rusqlite::backup::StepResult::More {}
    Ok(())
}
