//! Records: read by a prefix of their names, and by their time.

use rusqlite::{Connection, Row, params};

use super::{
    error::Failure,
    row::{self, RawText, checked, record_owner},
};
use crate::unreadable::log_damage;
use tidegate_core::{
    port::{
        AllRecordsPage,
        job_store::{Purged, Record, RecordKind, RecordQuery},
    },
    time::Timestamp,
};

/// Most records that cannot be read before a page ends.
const MAX_UNREADABLE_ROWS: u32 = 10_000;

/// The answer to `query`.
pub(super) fn page(db: &Connection, query: &RecordQuery) -> Result<Vec<Record>, Failure> {
    let mut find = db.prepare_cached(
        "SELECT name, until, bytes FROM records INDEXED BY records_by_name \
         WHERE kind = ?1 AND name >= ?2 AND name < ?3 AND name > ?4 ORDER BY name LIMIT ?5",
    )?;
    // Names consist of letters, digits and dashes, which all sort before a tilde.
    let end = format!("{}~", query.prefix);
    let after = query.after.as_deref().unwrap_or_default();
    let most = query.limit + MAX_UNREADABLE_ROWS;
    let mut rows = find.query(params![query.kind.as_str(), query.prefix, end, after, most])?;
    let mut found = Vec::new();
    while found.len() < query.limit as usize
        && let Some(row) = rows.next()?
    {
        found.extend(record(row, query.kind, Damaged::IsAbsent)?);
    }
    Ok(found)
}

/// A page of all records of `kind` after the name `after`, with the names of the damaged ones.
pub(super) fn page_of_all(
    db: &Connection,
    kind: RecordKind,
    after: &str,
    limit: u32,
) -> Result<AllRecordsPage, Failure> {
    let mut find = db.prepare_cached(
        "SELECT name, until, bytes FROM records INDEXED BY records_by_name \
         WHERE kind = ?1 AND name > ?2 AND name < '~' ORDER BY name LIMIT ?3",
    )?;
    let mut rows = find.query(params![kind.as_str(), after, limit])?;
    let (mut page, mut last, mut count) = (AllRecordsPage::default(), String::new(), 0);
    while let Some(row) = rows.next()? {
        last = row.get::<_, RawText>(0)?.shown();
        count += 1;
        match record(row, kind, Damaged::IsAbsent)? {
            Some(record) => page.records.push(record),
            None => page.damaged.push(last.clone()),
        }
    }
    if count == limit {
        page.next = Some(last);
        return Ok(page);
    }
    // No name of a record is behind the tilde, unless it is damaged.
    let mut behind = db.prepare_cached(
        "SELECT name FROM records INDEXED BY records_by_name \
         WHERE kind = ?1 AND name >= '~' ORDER BY name LIMIT ?2",
    )?;
    let mut rows = behind.query(params![kind.as_str(), MAX_UNREADABLE_ROWS])?;
    while let Some(row) = rows.next()? {
        page.damaged.push(row.get::<_, RawText>(0)?.shown());
    }
    Ok(page)
}

/// What a record is that was damaged.
#[derive(Clone, Copy)]
pub(super) enum Damaged {
    /// It is absent, which is logged.
    IsAbsent,
    /// A failure of the call.
    #[cfg_attr(not(feature = "bucket"), allow(dead_code, reason = "only a replica is that strict"))]
    Fails,
}

/// The record of `kind` called `name`, if there is one.
pub(super) fn named(
    db: &Connection,
    kind: RecordKind,
    name: &str,
    damaged: Damaged,
) -> Result<Option<Record>, Failure> {
    let mut find = db.prepare_cached(
        "SELECT name, until, bytes FROM records INDEXED BY records_by_name \
         WHERE kind = ?1 AND name = ?2",
    )?;
    let mut rows = find.query([kind.as_str(), name])?;
    rows.next()?.map_or(Ok(None), |row| record(row, kind, damaged))
}

/// The record in a row of name, time and bytes.
fn record(row: &Row<'_>, kind: RecordKind, damaged: Damaged) -> Result<Option<Record>, Failure> {
    let (name, until): (RawText, i64) = (row.get(0)?, row.get(1)?);
    let name = name.shown();
    let owner = record_owner(kind.as_str(), &name, until);
    let bytes = match checked(row::blob(row, 2)?, &owner, 0, || format!("the record {owner}")) {
        Ok(bytes) => bytes.to_vec(),
        Err(error) => match damaged {
            Damaged::Fails => return Err(error.into()),
            Damaged::IsAbsent => {
                log_damage(&error);
                return Ok(None);
            }
        },
    };
    Ok(Some(Record { kind, name, until: Timestamp::from_millis(until), bytes }))
}

/// The records that a purge drops, and its result.
pub(super) fn droppable(
    db: &Connection,
    kind: RecordKind,
    now: Timestamp,
    keep: u64,
    limit: u32,
) -> Result<(Vec<(String, Timestamp)>, Purged), Failure> {
    let mut count = db.prepare_cached(
        "SELECT count(*) FROM records INDEXED BY records_by_time WHERE kind = ?1",
    )?;
    let all: i64 = count.query_row([kind.as_str()], |row| row.get(0))?;
    let mut purged = Purged { left: all as u64, ..Purged::default() };
    let mut first = db.prepare_cached(
        "SELECT name, until FROM records INDEXED BY records_by_time WHERE kind = ?1 \
             ORDER BY until",
    )?;
    let mut rows = first.query([kind.as_str()])?;
    let mut drop = Vec::new();
    while drop.len() < limit as usize
        && let Some(row) = rows.next()?
    {
        // A record without a valid name is left to a repair.
        let Ok(name) = String::from_utf8(row.get::<_, RawText>(0)?.0) else { continue };
        let until = Timestamp::from_millis(row.get(1)?);
        match until <= now {
            true => purged.expired += 1,
            false if purged.left > keep => purged.over += 1,
            false => break,
        }
        purged.left -= 1;
        drop.push((name, until));
    }
    Ok((drop, purged))
}
