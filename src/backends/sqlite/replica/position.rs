//! How far the log is applied, in the database itself: it is committed with what was applied.
//!
//! The tables exist only in a database that replicates a log.

use std::{collections::BTreeMap, ops::RangeInclusive};

use rusqlite::{Connection, OptionalExtension as _, params};

use super::super::error::Failure;
use crate::bucket_log::{
    Tail,
    key::{Epoch, Slot},
    object::Hash,
};
use tidegate_core::time::Timestamp;

/// The tables of the position.
pub(super) const TABLES: &str = "
CREATE TABLE IF NOT EXISTS log_tail (
    one   INTEGER PRIMARY KEY CHECK (one = 1),
    epoch INTEGER NOT NULL,
    seq   INTEGER NOT NULL,
    hash  BLOB    NOT NULL,  -- of the object before the tail
    time  INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS log_seals (
    epoch   INTEGER PRIMARY KEY,
    records INTEGER NOT NULL
) STRICT;
";

/// Removes the tables: the database replicates no log then.
pub(super) const DROP_TABLES: &str = "DROP TABLE log_tail; DROP TABLE log_seals;";

/// The tail of the database; none if it replicates no log.
pub(super) fn read(db: &Connection) -> Result<Option<Tail>, Failure> {
    let tables: i64 = db.query_row(
        "SELECT count(*) FROM sqlite_schema WHERE name IN ('log_tail', 'log_seals')",
        [],
        |row| row.get(0),
    )?;
    if tables < 2 {
        return Ok(None);
    }
    let row = db
        .query_row("SELECT epoch, seq, hash, time FROM log_tail", [], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get(2)?, row.get::<_, i64>(3)?))
        })
        .optional()?;
    let Some((epoch, seq, hash, time)) = row else { return Ok(Some(Tail::START)) };
    let epoch = Epoch::new(epoch as u64)
        .ok_or_else(|| Failure::corrupt("the position in the log is damaged".into()))?;
    let next = Slot { epoch, seq: seq as u64 };
    Ok(Some(Tail { next, hash: Hash(hash), time: Timestamp::from_millis(time) }))
}

/// Writes the tail.
pub(super) fn write(db: &Connection, tail: &Tail) -> Result<(), Failure> {
    let Tail { next, hash, time } = tail;
    db.prepare_cached(
        "INSERT OR REPLACE INTO log_tail (one, epoch, seq, hash, time) VALUES (1, ?1, ?2, ?3, ?4)",
    )?
    .execute(params![next.epoch.number() as i64, next.seq as i64, hash.0, time.millis()])?;
    Ok(())
}

/// Writes that `slot` has the seal of its epoch.
pub(super) fn seal(db: &Connection, slot: Slot) -> Result<(), Failure> {
    db.prepare_cached("INSERT OR REPLACE INTO log_seals (epoch, records) VALUES (?1, ?2)")?
        .execute([slot.epoch.number() as i64, slot.seq as i64])?;
    Ok(())
}

/// The number of records of each of `epochs`.
pub(super) fn sealed(
    db: &Connection,
    epochs: &RangeInclusive<Epoch>,
) -> Result<BTreeMap<Epoch, u64>, Failure> {
    let mut all =
        db.prepare_cached("SELECT epoch, records FROM log_seals WHERE epoch BETWEEN ?1 AND ?2")?;
    let bounds = [epochs.start().number() as i64, epochs.end().number() as i64];
    let mut rows = all.query(bounds)?;
    let mut sealed = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let (epoch, records): (i64, i64) = (row.get(0)?, row.get(1)?);
        sealed.extend(Epoch::new(epoch as u64).map(|epoch| (epoch, records as u64)));
    }
    Ok(sealed)
}
