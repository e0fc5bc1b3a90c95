//! SQLite without a queue: the simplest table for jobs, with the same durability.

use std::path::Path;

use rusqlite::{Connection, params};

use super::ids;
use crate::bench::{DATA, clock};

/// A row of about 300 bytes with the two indexes that any queue needs.
const TABLE: &str = "
    PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -4000;
    CREATE TABLE jobs (id TEXT PRIMARY KEY, queue TEXT NOT NULL, state INTEGER NOT NULL,
                       due INTEGER NOT NULL, attempt INTEGER NOT NULL,
                       data BLOB NOT NULL, rest BLOB NOT NULL) STRICT;
    CREATE INDEX by_due ON jobs (state, due);
    CREATE INDEX by_queue ON jobs (queue, state);";

/// The fields of a job without its data.
const REST: [u8; 120] = [7; 120];

/// Creates a table in `dir`.
pub(in crate::bench) fn table(dir: &Path) -> rusqlite::Result<Connection> {
    let db = Connection::open(dir.join("raw.db"))?;
    db.execute_batch(TABLE)?;
    Ok(db)
}

/// Inserts one job.
pub(in crate::bench) fn insert(db: &Connection, id: &str, data: &[u8]) -> rusqlite::Result<()> {
    let mut add = db.prepare_cached("INSERT INTO jobs VALUES (?1, 'default', 0, ?2, 0, ?3, ?4)")?;
    add.execute(params![id, 1_700_000_000_000_i64, data, &REST[..]])?;
    Ok(())
}

/// Changes the state of job `id`.
fn update(db: &Connection, id: &str, state: i64) -> rusqlite::Result<()> {
    let mut set =
        db.prepare_cached("UPDATE jobs SET state = ?2, attempt = 1, rest = ?3 WHERE id = ?1")?;
    set.execute(params![id, state, &REST[..]])?;
    Ok(())
}

/// Returns the inserts per second, with `rows` in a transaction.
pub(super) fn inserts(dir: &Path, jobs: u64, rows: usize) -> rusqlite::Result<f64> {
    let db = table(dir)?;
    let ids = ids(jobs);
    let start = clock::instant();
    for group in ids.chunks(rows) {
        in_transaction(&db, group, |id| insert(&db, id, DATA.as_bytes()))?;
    }
    Ok(jobs as f64 / start.elapsed().as_secs_f64())
}

/// Returns the jobs per second that are inserted, marked as running and marked as done, with `rows`
/// in a transaction.
pub(super) fn cycles(dir: &Path, jobs: u64, rows: usize) -> rusqlite::Result<f64> {
    let db = table(dir)?;
    let ids = ids(jobs);
    let start = clock::instant();
    for group in ids.chunks(rows) {
        in_transaction(&db, group, |id| insert(&db, id, DATA.as_bytes()))?;
        in_transaction(&db, group, |id| update(&db, id, 1))?;
        in_transaction(&db, group, |id| update(&db, id, 2))?;
    }
    Ok(jobs as f64 / start.elapsed().as_secs_f64())
}

fn in_transaction(
    db: &Connection,
    ids: &[String],
    step: impl Fn(&str) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    for id in ids {
        step(id)?;
    }
    db.prepare_cached("COMMIT")?.execute([])?;
    Ok(())
}
