//! What a crash of the machine leaves of a database, for simulations.

use std::{
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use super::{database, log};

/// Bytes of the header of the write-ahead log, and of the header of a frame.
const HEADERS: (usize, usize) = (32, 24);
/// Where the size of a page is in the header of the write-ahead log.
const PAGE_SIZE: usize = 8;
/// Where the number of frames that a checkpoint may have moved is in the index of that log.
const MOVED_FRAMES: usize = 128;

/// Copies the database `file`, which is not written meanwhile, to the directory `to`, as a crash leaves it
/// that waits for no disk (`synchronous=NORMAL`). SQLite waits only before a checkpoint moves frames of
/// the write-ahead log. This part of the others is kept, from 0 to 1.
///
/// # Errors
///
/// Those of the system.
pub fn copy_after_crash(file: &Path, to: &Path, part: f64) -> io::Result<()> {
    fs::create_dir_all(to)?;
    fs::copy(file, database(to))?;
    let wal = match fs::read(log::path(file)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        read => read?,
    };
    let moved = moved_bytes(&wal, &fs::read(index(file))?).min(wal.len());
    let kept = moved + ((wal.len() - moved) as f64 * part) as usize;
    fs::write(log::path(&database(to)), &wal[..kept])
}

/// The index of the write-ahead log.
fn index(database: &Path) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push("-shm");
    path.into()
}

/// How many bytes of the write-ahead log a checkpoint may have moved into the database.
fn moved_bytes(wal: &[u8], index: &[u8]) -> usize {
    let number =
        |bytes: &[u8], at: usize| -> Option<[u8; 4]> { bytes.get(at..at + 4)?.try_into().ok() };
    let page = number(wal, PAGE_SIZE).map_or(0, u32::from_be_bytes) as usize;
    match number(index, MOVED_FRAMES).map_or(0, u32::from_ne_bytes) as usize {
        0 => 0,
        frames => HEADERS.0 + frames * (HEADERS.1 + page),
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    /// The rows of a database with one row, after a crash that loses as much as one can.
    fn rows_after_crash(checkpoints: bool) -> i64 {
        let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = database(dir.path());
        let db = Connection::open(&file).unwrap();
        db.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE rows (n INTEGER)").unwrap();
        db.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); INSERT INTO rows VALUES (1)").unwrap();
        if checkpoints {
            db.execute_batch("PRAGMA wal_checkpoint").unwrap();
        }
        copy_after_crash(&file, to.path(), 0.0).unwrap();
        let copy = Connection::open(database(to.path())).unwrap();
        copy.query_row("SELECT count(*) FROM rows", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn a_crash_loses_what_no_checkpoint_has_moved() {
        assert_eq!((rows_after_crash(false), rows_after_crash(true)), (0, 1));
    }
}
