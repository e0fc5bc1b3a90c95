//! The partitions of the ended jobs: one for each day at which jobs are forgotten.
//!
//! A partition is made when a row needs it, and dropped as a whole, which leaves no dead rows. Jobs
//! that are kept for long share partitions of thirty days, so that there are few to search for an
//! id.

use std::collections::BTreeSet;

use tokio_postgres::error::SqlState;

use super::{
    connect::{Link, Readers, answer},
    error::Fault,
    row,
    step::Step,
};
use tidegate_core::{port::StoreError, time::Timestamp};

/// Milliseconds of a day.
const DAY: i64 = 86_400_000;
/// Days ahead for which each day has a partition.
const SINGLE_DAYS: i64 = 40;
/// Days of a partition further ahead.
const LONG_DAYS: i64 = 30;
/// How long a partition stays after its end, so that a clock that is behind finds its rows.
const GRACE: i64 = 3_600_000;
/// Jobs whose bodies and keys one step of the upkeep deletes.
const CLEANED_JOBS: i64 = 5_000;

/// The days of a partition: from the first one on, and before the second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Days(i64, i64);

impl Days {
    /// The partition for jobs that are forgotten at `forget_at`.
    fn of(forget_at: i64, now: i64) -> Self {
        let (day, today) = (forget_at.div_euclid(DAY), now.div_euclid(DAY));
        if day > today + SINGLE_DAYS {
            let first = day.div_euclid(LONG_DAYS) * LONG_DAYS;
            Self(first, first + LONG_DAYS)
        } else {
            Self(day, day + 1)
        }
    }

    /// The name of its table.
    fn table(self) -> String {
        let number = |day: i64| day.to_string().replace('-', "n");
        format!("ended_{}_{}", number(self.0), number(self.1))
    }

    /// The days of a table; none if it is no partition.
    fn read(table: &str) -> Option<Self> {
        let (first, end) = table.strip_prefix("ended_")?.split_once('_')?;
        let day = |text: &str| text.replace('n', "-").parse().ok();
        Some(Self(day(first)?, day(end)?))
    }
}

/// Makes the partitions that `txns` need.
///
/// # Errors
///
/// The database's, except that another server has made one.
pub(super) async fn create_for(link: &Link, txns: &[&[Step]], now: Timestamp) -> Result<(), Fault> {
    let ends = txns.iter().flat_map(|txn| txn.iter()).filter_map(|step| match step {
        Step::SetLife { end, .. } => *end,
        Step::SetAll { whole, .. } | Step::Add(whole) => whole.end,
        _ => None,
    });
    let instants: BTreeSet<i64> = ends.map(|end| end.forget_at).collect();
    let mut made = BTreeSet::new();
    for forget_at in instants {
        let days = Days::of(forget_at, now.millis());
        if made.insert(days) && !create(link, days).await? {
            // A part of it exists already: the day by itself does not.
            let day = forget_at.div_euclid(DAY);
            create(link, Days(day, day + 1)).await?;
        }
    }
    Ok(())
}

/// Makes a partition. It is attached by a weak lock: others go on to read and to write. Returns
/// whether it exists now.
async fn create(link: &Link, days: Days) -> Result<bool, Fault> {
    let (table, from, to) = (days.table(), days.0 * DAY, days.1 * DAY);
    let make = format!(
        "BEGIN; CREATE TABLE {table} (LIKE ended INCLUDING DEFAULTS INCLUDING STORAGE); \
         ALTER TABLE ended ATTACH PARTITION {table} FOR VALUES FROM ({from}) TO ({to}); COMMIT"
    );
    let error = match answer(link.client.batch_execute(&make)).await? {
        Ok(()) => return Ok(true),
        Err(error) => error,
    };
    if !link.is_closed() {
        link.run("ROLLBACK").await?;
    }
    match error.code() {
        // Another server has just made it, or is about to.
        Some(
            &SqlState::DUPLICATE_TABLE | &SqlState::DUPLICATE_OBJECT | &SqlState::UNIQUE_VIOLATION,
        ) => Ok(true),
        Some(&SqlState::INVALID_OBJECT_DEFINITION) => Ok(false),
        _ => Err(error.into()),
    }
}

/// Deletes what the jobs of a partition leave behind, and the partition. One call makes one step,
/// and returns where the next one goes on; `after` is what the step before returned.
///
/// A partition stays while a job in it names an object, which a sweep deletes.
///
/// # Errors
///
/// The database's.
pub(super) async fn clean(
    readers: &Readers,
    after: Option<&str>,
    now: Timestamp,
) -> Result<Option<String>, StoreError> {
    let tables = readers
        .query(
            "SELECT c.relname::text FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace \
             WHERE s.nspname = current_schema() AND c.relkind = 'r' \
             AND starts_with(c.relname::text, 'ended_') ORDER BY 1",
            &[],
        )
        .await?;
    let mut over: Vec<(Days, String)> = Vec::new();
    for row in &tables {
        let table: String = row::column(row, 0)?;
        let days = Days::read(&table).filter(|days| days.1 * DAY + GRACE <= now.millis());
        over.extend(days.map(|days| (days, table)));
    }
    over.sort();
    let (last, id) = after.and_then(|after| after.split_once(' ')).unwrap_or(("", ""));
    let from = Days::read(last);
    let link = readers.link().await?;
    for (days, table) in over.into_iter().filter(|(days, _)| from.is_none_or(|from| from <= *days))
    {
        let id = if Some(days) == from { id } else { "" };
        let cleaned = clean_some(&link, &table, id).await.map_err(Fault::into_error)?;
        if let Some(id) = cleaned {
            return Ok(Some(format!("{table} {id}")));
        }
        if drop_table(&link, &table).await.map_err(Fault::into_error)? {
            return Ok(Some(format!("{table} ~")));
        }
    }
    Ok(None)
}

/// Deletes the bodies and the keys of some jobs of `table` behind `id`. Returns the last of them.
async fn clean_some(link: &Link, table: &str, id: &str) -> Result<Option<String>, Fault> {
    let some = format!("SELECT id FROM {table} WHERE id > $1 ORDER BY id LIMIT {CLEANED_JOBS}");
    let ids = link.client.query(&some, &[&id]).await?;
    let ids: Vec<&str> = ids.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    let Some(last) = ids.last() else { return Ok(None) };
    for statement in [super::statements::DELETE_BODIES, super::statements::DELETE_KEYS] {
        link.query(statement, &[&ids]).await?;
    }
    Ok(Some((*last).to_owned()))
}

/// Drops `table` with its jobs, unless one of them names an object. Returns whether it is gone.
async fn drop_table(link: &Link, table: &str) -> Result<bool, Fault> {
    let objects = format!("SELECT FROM {table} WHERE wake_at IS NOT NULL LIMIT 1");
    if !link.client.query(&objects, &[]).await?.is_empty() {
        return Ok(false);
    }
    // Readers wait for the lock of this, but not for long: a later call comes again.
    let dropped = link
        .client
        .batch_execute(&format!(
            "BEGIN; SET LOCAL lock_timeout = '200ms'; SET LOCAL statement_timeout = '60s'; \
             INSERT INTO counts (queue, type, state, jobs) \
             SELECT queue, type, state, -count(*) FROM {table} GROUP BY 1, 2, 3; \
             DROP TABLE {table}; COMMIT"
        ))
        .await;
    let Err(error) = dropped else { return Ok(true) };
    if !link.is_closed() {
        link.client.batch_execute("ROLLBACK").await?;
    }
    match error.code() {
        Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::UNDEFINED_TABLE) => Ok(false),
        _ => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_named_after_its_days() {
        for (forget_at, days, name) in [
            (0, Days(0, 1), "ended_0_1"),
            (DAY - 1, Days(0, 1), "ended_0_1"),
            (-1, Days(-1, 0), "ended_n1_0"),
            (40 * DAY, Days(40, 41), "ended_40_41"),
            (41 * DAY, Days(30, 60), "ended_30_60"),
            (3650 * DAY, Days(3630, 3660), "ended_3630_3660"),
        ] {
            assert_eq!(Days::of(forget_at, 0), days);
            assert_eq!((days.table().as_str(), Days::read(name)), (name, Some(days)));
        }
        assert_eq!(Days::read("ended_by_id"), None);
    }
}
