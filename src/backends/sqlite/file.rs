//! The data directory: its lock, its database file, and the errors of both.

use std::{
    fs::{File, TryLockError},
    io::{Read, Write},
    path::{Path, PathBuf},
};

use rusqlite::{Connection, ErrorCode, OpenFlags, config::DbConfig};

use tidegate_core::time::Timestamp;

/// `tdgt` in ASCII: marks a SQLite file as one of tidegate.
const APPLICATION_ID: i64 = 0x7464_6774;

/// The migrations from an empty file to the newest format, in order. A released one never changes.
const MIGRATIONS: [&str; 2] =
    [include_str!("migrations/0001_start.sql"), include_str!("migrations/0002_records.sql")];

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

/// The lock of a data directory, until it is dropped.
#[derive(Debug)]
pub(super) struct DirLock {
    _file: File,
}

impl DirLock {
    /// Locks `dir` by the file `DIR/lock`, which contains the process. Its modification time is the
    /// start of the process.
    pub(super) fn take(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join("lock");
        let io = |error: std::io::Error| OpenError::Io {
            path: path.clone(),
            message: error.to_string(),
        };
        std::fs::create_dir_all(dir).map_err(io)?;
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut by = String::new();
                file.read_to_string(&mut by).map_err(io)?;
                let since = file.metadata().and_then(|about| about.modified()).map_err(io)?;
                let by = format!("{}, since {}", by.trim(), Timestamp::from_utc(since.into()));
                return Err(OpenError::Held { dir: dir.to_owned(), by });
            }
            Err(TryLockError::Error(error)) => return Err(io(error)),
        }
        file.set_len(0).map_err(io)?;
        file.write_all(format!("process {}\n", std::process::id()).as_bytes()).map_err(io)?;
        Ok(Self { _file: file })
    }
}

/// The connection that writes. It migrates the file to the newest format.
pub(super) fn open_writer(file: &Path) -> Result<Connection, OpenError> {
    let fault = |error| fault(file, &error);
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
    // Caches are small, because the system keeps the file's pages in memory anyway. With FULL, a
    // transaction is on the disk before its caller is answered. A checkpoint every 16 MiB writes a
    // page that changes often only once.
    db.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 4000; \
         PRAGMA journal_size_limit = 67108864; PRAGMA cache_size = -1000; \
         PRAGMA temp_store = MEMORY;",
    )
    .map_err(fault)?;
    for (step, sql) in MIGRATIONS.iter().enumerate().skip(found as usize) {
        let version = step + 1;
        db.execute_batch(&format!(
            "BEGIN IMMEDIATE; {sql} PRAGMA application_id = {APPLICATION_ID}; \
             PRAGMA user_version = {version}; COMMIT;"
        ))
        .map_err(fault)?;
    }
    Ok(db)
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
    let known = MIGRATIONS.len() as i64;
    if found > known {
        return Err(OpenError::Newer { file: file.to_owned(), found, known });
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
    let mut target = Connection::open(to)?;
    // An open read transaction gives all steps the same snapshot. Without it, every write of the
    // server would restart the copy.
    let instant = source.unchecked_transaction()?;
    instant.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    let copy = rusqlite::backup::Backup::new(source, &mut target)?;
    while copy.step(64)? == rusqlite::backup::StepResult::More {}
    Ok(())
}
