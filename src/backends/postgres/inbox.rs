//! The inbox: requests for jobs that applications make by the function `enqueue` in transactions of
//! their own. `migrations/0002_inbox.sql` has the function.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use tokio_postgres::Row;

use super::{PostgresStore, connect::Readers, error::Fault, row::column};
use crate::unreadable::log_damage;
use tidegate_core::{
    job::JobId,
    port::{Inbox, InboxClosing, InboxDepth, InboxPage, InboxRequest, InboxRules, StoreError},
    time::Timestamp,
};

/// The columns of a request.
macro_rules! request_columns {
    () => {
        "id, type, data::text, options::text, run_at, CASE WHEN delay_ms IS NOT NULL \
         THEN greatest(0, delay_ms - \
         floor(extract(epoch FROM clock_timestamp() - called_at) * 1000)::bigint) END, caller"
    };
}

/// A page of requests, which ends before they would be larger than 8 MiB, but not before the first.
const REQUESTS: &str = concat!(
    "SELECT ",
    request_columns!(),
    ", n FROM (SELECT i.*, sum(bytes) OVER (ORDER BY n) - bytes AS before \
     FROM inbox i WHERE n > $1 AND n <= $2 ORDER BY n LIMIT $3) i WHERE before < 8388608 ORDER BY n"
);
/// Not by the rows: those that were taken may still be in the index, and be many.
const NEWEST: &str =
    "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('inbox', 'n')::regclass), 0)";
const REQUEST: &str = concat!("SELECT ", request_columns!(), " FROM inbox WHERE id = $1");
const SET_RULES: &str = "UPDATE inbox_rules SET max_data_bytes = $1, create_unknown_types = $2 \
     WHERE max_data_bytes <> $1 OR create_unknown_types <> $2";
/// Whether the inbox is closed.
const IS_CLOSED: &str = "SELECT FROM pg_constraint WHERE conrelid = 'inbox'::regclass \
     AND conname = 'the_jobs_are_moved_to_another_store'";
/// Closes the inbox. The change waits for every transaction that has written a request. Then it holds for
/// all, also for one whose snapshot still has the former rules.
const CLOSE: &str = "ALTER TABLE inbox ADD CONSTRAINT the_jobs_are_moved_to_another_store \
     CHECK (false) NOT VALID";
/// Opens a closed inbox.
const OPEN: &str =
    "ALTER TABLE inbox DROP CONSTRAINT IF EXISTS the_jobs_are_moved_to_another_store";
/// The other users of the table, for people. A prepared transaction has no process.
const USERS: &str = "SELECT DISTINCT coalesce('process ' || l.pid \
         || coalesce(' of role ' || a.usename, '') \
         || coalesce(', ' || nullif(a.application_name, ''), ''), 'a prepared transaction') \
     FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid \
     WHERE l.relation = 'inbox'::regclass AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid() \
         AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
     ORDER BY 1 LIMIT 20";
/// How long the oldest request has waited, in seconds.
pub(super) const OLDEST_AGE: &str = "SELECT floor(extract(epoch FROM clock_timestamp() - \
     (SELECT called_at FROM inbox WHERE n > 0 ORDER BY n LIMIT 1)))::bigint";

/// How many of the first requests there are, and how long the oldest of them has waited, in seconds.
const DEPTH: &str = "SELECT count(*), coalesce(floor(extract(epoch FROM clock_timestamp() - \
     min(called_at))), 0)::bigint FROM (SELECT called_at FROM inbox WHERE n > 0 ORDER BY n LIMIT $1) i";

/// Every statement that reads requests.
#[cfg(test)]
pub(super) const ALL: [&str; 4] = [REQUESTS, REQUEST, OLDEST_AGE, DEPTH];

/// The inbox in the database of a store.
pub struct PostgresInbox {
    readers: Arc<Readers>,
}

impl PostgresStore {
    /// The inbox in the database of this store.
    pub fn inbox(&self) -> PostgresInbox {
        PostgresInbox { readers: Arc::clone(&self.readers) }
    }
}

/// The request of a row.
fn request(row: &Row) -> Result<InboxRequest, StoreError> {
    let id: &str = column(row, 0)?;
    let id: JobId = id
        .parse()
        .map_err(|error| StoreError::corrupt(format!("the id {id:?} in the inbox: {error}")))?;
    let (run_at, delay): (Option<i64>, Option<i64>) = (column(row, 4)?, column(row, 5)?);
    Ok(InboxRequest {
        id,
        job_type: column(row, 1)?,
        data: Bytes::from(column::<String>(row, 2)?),
        options: Bytes::from(column::<String>(row, 3)?),
        run_at: run_at.map(Timestamp::from_millis),
        delay: delay.map(|millis| Duration::from_millis(millis.unsigned_abs())),
        caller: column(row, 6)?,
    })
}

impl PostgresInbox {
    async fn is_closed(&self) -> Result<bool, StoreError> {
        Ok(!self.readers.query(IS_CLOSED, &[]).await?.is_empty())
    }
}

#[async_trait]
impl Inbox for PostgresInbox {
    async fn set_rules(&self, rules: InboxRules) -> Result<(), StoreError> {
        if self.is_closed().await? {
            let link = self.readers.connector().open().await?;
            link.run(OPEN).await.map_err(Fault::into_error)?;
        }
        let most = i64::try_from(rules.max_data_bytes).unwrap_or(i64::MAX);
        self.readers.query(SET_RULES, &[&most, &rules.create_unknown_types]).await?;
        Ok(())
    }

    /// Waits for as long as a session waits for a lock.
    async fn close(&self) -> Result<InboxClosing, StoreError> {
        // `enqueue` refuses calls with the reason, and does not wait behind the change below.
        self.readers.query(SET_RULES, &[&0_i64, &false]).await?;
        if self.is_closed().await? {
            return Ok(InboxClosing::Closed);
        }
        // Other readers must not wait on this connection.
        let link = self.readers.connector().open().await?;
        match link.run(CLOSE).await {
            Ok(()) => Ok(InboxClosing::Closed),
            Err(Fault::Again(_)) => {
                let users = link.query(USERS, &[]).await.map_err(Fault::into_error)?;
                let users = users.iter().map(|row| column::<String>(row, 0));
                Ok(InboxClosing::InUse(users.collect::<Result<Vec<_>, _>>()?))
            }
            Err(fault) => Err(fault.into_error()),
        }
    }

    async fn requests(&self, after: u64, until: u64, limit: u32) -> Result<InboxPage, StoreError> {
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let bounds = (number(after), number(until), i64::from(limit));
        let rows = self.readers.query(REQUESTS, &[&bounds.0, &bounds.1, &bounds.2]).await?;
        let last = rows.last().map(|row| column::<i64>(row, 7)).transpose()?;
        // `enqueue` makes none that cannot be read. A row of another hand must not stop the others.
        let requests = rows.iter().filter_map(|row| request(row).inspect_err(log_damage).ok());
        Ok(InboxPage { requests: requests.collect(), last: last.map(i64::unsigned_abs) })
    }

    async fn depth(&self, limit: u32) -> Result<InboxDepth, StoreError> {
        let rows = self.readers.query(DEPTH, &[&i64::from(limit)]).await?;
        let Some(row) = rows.first() else { return Ok(InboxDepth::default()) };
        let (requests, age): (i64, i64) = (column(row, 0)?, column(row, 1)?);
        // The clock of the database may have been set back.
        let oldest_age = Duration::from_secs(age.max(0).unsigned_abs());
        Ok(InboxDepth { requests: requests.unsigned_abs(), oldest_age })
    }

    async fn newest(&self) -> Result<u64, StoreError> {
        let rows = self.readers.query(NEWEST, &[]).await?;
        let newest = rows.first().map(|row| column::<i64>(row, 0)).transpose()?;
        Ok(newest.unwrap_or_default().unsigned_abs())
    }

    async fn request(&self, id: &JobId) -> Result<Option<InboxRequest>, StoreError> {
        let rows = self.readers.query(REQUEST, &[&id.as_str()]).await?;
        rows.first().map(request).transpose()
    }
}
