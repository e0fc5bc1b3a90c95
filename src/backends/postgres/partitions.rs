//! The partitions of the ended jobs: one for each day at which jobs are forgotten.
//!
//! A partition is made when a row needs it. After its end its jobs are deleted page by page, and then
//! it is dropped with its dead rows, so no table has to be vacuumed. Jobs that are kept for long share
//! partitions of thirty days, so that there are few to search for an id.

use std::collections::BTreeSet;

use tokio_postgres::error::SqlState;

use super::{
    connect::{Link, Readers, answer, in_time},
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
/// Jobs that one step of the upkeep deletes.
const CLEANED_JOBS: i64 = 1_000;
/// Sorts after every id.
const LAST_ID: &str = "~";

/// The partitions.
pub(super) const TABLES: &str = "SELECT c.relname::text FROM pg_class c \
     JOIN pg_namespace s ON s.oid = c.relnamespace WHERE s.nspname = current_schema() \
     AND c.relkind = 'r' AND starts_with(c.relname::text, 'ended_') ORDER BY 1";

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
        if made.insert(Days::of(forget_at, now.millis())) {
            create_at(link, forget_at, now).await?;
        }
    }
    Ok(())
}

/// Makes the partition for jobs that are forgotten at `forget_at`, unless there is one.
///
/// # Errors
///
/// The database's.
pub(super) async fn create_at(link: &Link, forget_at: i64, now: Timestamp) -> Result<(), Fault> {
    if !create(link, Days::of(forget_at, now.millis())).await? {
        // A part of it exists already: the day by itself does not.
        let day = forget_at.div_euclid(DAY);
        create(link, Days(day, day + 1)).await?;
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

/// Deletes some jobs of a partition that is over, with what they leave behind, or the partition if
/// it is empty. One call makes one step, and returns where the next one goes on; `after` is what the
/// step before returned.
///
/// A partition stays while a job in it names an object, which a sweep deletes. One that cannot be
/// cleaned does not stop the later ones.
///
/// # Errors
///
/// The database's, if there was nothing else to do.
pub(super) async fn clean(
    readers: &Readers,
    after: Option<&str>,
    now: Timestamp,
) -> Result<Option<String>, StoreError> {
    let mut over: Vec<(Days, String)> = Vec::new();
    for row in &readers.query(TABLES, &[]).await? {
        let table: String = row::column(row, 0)?;
        let days = Days::read(&table).filter(|days| days.1 * DAY + GRACE <= now.millis());
        over.extend(days.map(|days| (days, table)));
    }
    over.sort();
    let (last, id) = after.and_then(|after| after.split_once(' ')).unwrap_or(("", ""));
    let from = Days::read(last);
    over.retain(|(days, _)| from.is_none_or(|from| from <= *days));
    if over.is_empty() {
        return Ok(None);
    }
    // Others would wait for its locks, and be in its transaction.
    let link = readers.connector().open().await?;
    let mut failed = None;
    for (days, table) in over {
        let id = if Some(days) == from { id } else { "" };
        match clean_table(&link, &table, id).await {
            Ok(Some(id)) => return Ok(Some(format!("{table} {id}"))),
            Ok(None) => {}
            Err(Fault::Broken(error)) => return Err(error),
            Err(fault) => failed = Some(fault.into_error()),
        }
    }
    failed.map_or(Ok(None), Err)
}

/// Makes one step in a table. Returns behind which id the next one goes on; none if there is no more
/// to do now.
async fn clean_table(link: &Link, table: &str, id: &str) -> Result<Option<String>, Fault> {
    let ids = in_time(link.client.query(&page(table), &[&id])).await?;
    let ids: Vec<&str> = ids.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    if let Some(last) = ids.last() {
        in_time(link.client.query(&delete(table), &[&ids])).await?;
        return Ok(Some((*last).to_owned()));
    }
    // Without a lock, for which others would wait: there may be many dead rows.
    if !in_time(link.client.query(&any(table), &[])).await?.is_empty() {
        return Ok(None);
    }
    match link.run(&drop(table)).await {
        Ok(()) => Ok(Some(LAST_ID.to_owned())),
        // It has a job again, or is in use.
        Err(Fault::Refused | Fault::Again(_)) => link.run("ROLLBACK").await.map(|()| None),
        Err(fault) => {
            link.run("ROLLBACK").await?;
            Err(fault)
        }
    }
}

/// The statements of the upkeep of `table`, whose plans are tested.
#[cfg(test)]
pub(super) fn statements(table: &str) -> [String; 3] {
    [page(table), any(table), delete(table)]
}

/// The ids of some jobs behind one.
fn page(table: &str) -> String {
    format!("SELECT id FROM {table} WHERE id > $1::text ORDER BY id LIMIT {CLEANED_JOBS}")
}

/// One job, if there is one.
fn any(table: &str) -> String {
    format!("SELECT FROM {table} LIMIT 1")
}

/// Deletes the jobs of some ids from `table`, except those that name objects, and with them their
/// bodies, their keys and their numbers. A job whose id a new one has taken is not among them.
fn delete(table: &str) -> String {
    format!(
        "WITH d AS (DELETE FROM {table} WHERE id = ANY($1::text[]) AND wake_at IS NULL \
         RETURNING id, queue, type, state), \
         b AS (DELETE FROM bodies b USING d WHERE b.id = d.id AND b.id = ANY($1)), \
         k AS (DELETE FROM keys k USING d WHERE k.job = d.id AND k.job = ANY($1)) \
         INSERT INTO counts (queue, type, state, jobs) \
         SELECT queue, type, state, -count(*) FROM d GROUP BY 1, 2, 3"
    )
}

/// Drops `table`, or fails by a division by zero if it is not empty. Readers wait for its locks, but
/// not for long: a later call comes again.
fn drop(table: &str) -> String {
    format!(
        "BEGIN; SET LOCAL lock_timeout = '200ms'; \
         LOCK TABLE ONLY ended, ONLY {table} IN ACCESS EXCLUSIVE MODE; \
         SELECT 1/(NOT EXISTS (SELECT FROM {table}))::int; DROP TABLE {table}; COMMIT"
    )
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
