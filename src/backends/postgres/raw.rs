//! The store's own statements without a queue: what a measurement compares a server with.
//!
//! No engine decides, nothing is encoded or compressed, and each statement is a transaction by
//! itself. The tables, their indexes and the settings of the session are those of the store.

use std::time::Duration;

use super::{
    Settings,
    connect::{Connector, Link},
    error::Fault,
    migrate::{self, Migrate, OpenError},
    partitions,
    statements::{ADD_ALONE, END_LIVES, SET_LIVES},
    writer::MAX_GROUPS,
};
use tidegate_core::{port::StoreError, time::Timestamp};

/// The call of an application. The path of the connection has the schema.
const ENQUEUE: &str = "SELECT enqueue($1::text, $2::text::json)";
/// The same with a notice to the servers, whose channel has the name of the schema.
const ENQUEUE_AND_NOTIFY: &str =
    "SELECT enqueue($1::text, $2::text::json), pg_notify(current_schema(), 'inbox')";
/// As many bytes as the fields of a job without its data.
const SPEC: [u8; 120] = [7; 120];
/// As many bytes as its lifecycle.
const LIFE: [u8; 70] = [7; 70];
/// The numbers of the jobs' queue and type, which need no names.
const NUMBER: i32 = 1;
/// The states of a job in its column.
const SCHEDULED: i16 = 0;
const RUNNING: i16 = 1;
const SUCCEEDED: i16 = 2;
/// How long a claim lasts.
const LEASE: Duration = Duration::from_secs(30);
/// How long an ended job is kept.
const RETENTION: Duration = Duration::from_hours(24);

/// A connection to tables of the store. No server uses them, except for requests of applications.
pub struct RawPostgres {
    link: Link,
    now: Timestamp,
}

impl RawPostgres {
    /// On how many connections a store writes at once.
    pub const CONNECTIONS: usize = MAX_GROUPS;

    /// A connection to the tables of `settings`, which are made if there are none. All jobs are
    /// inserted, claimed and ended at `now`.
    ///
    /// # Errors
    ///
    /// As of [`PostgresStore::open`](super::PostgresStore::open).
    pub async fn open(settings: Settings, now: Timestamp) -> Result<Self, OpenError> {
        let connector = Connector::new(settings)?;
        let link = connector.open().await?;
        migrate::migrate(&link, connector.schema(), Migrate::Any).await?;
        let forget_at = (now + RETENTION).millis();
        partitions::create_at(&link, forget_at, now).await.map_err(Fault::into_error)?;
        Ok(Self { link, now })
    }

    /// Inserts a job for each of `ids`, which ascend, with its `data`.
    ///
    /// # Errors
    ///
    /// The database's, or that an id is taken.
    pub async fn insert(&self, ids: &[String], data: &[&[u8]]) -> Result<(), StoreError> {
        let (rows, now) = (ids.len(), self.now.millis());
        let bytes: Vec<i32> = data.iter().map(|data| data.len() as i32).collect();
        let added = self
            .link
            .query(
                ADD_ALONE,
                &[
                    &ids,
                    &vec![NUMBER; rows],
                    &vec![NUMBER; rows],
                    &vec![SCHEDULED; rows],
                    &vec![false; rows],
                    &vec![0_i16; rows],
                    &vec![0_i32; rows],
                    &bytes,
                    &vec![1_i64; rows],
                    &vec![Some(now); rows],
                    &vec![None::<i64>; rows],
                    &vec![now; rows],
                    &vec![""; rows],
                    &data,
                    &vec![&SPEC[..]; rows],
                    &vec![&LIFE[..]; rows],
                ],
            )
            .await
            .map_err(Fault::into_error)?;
        if added.len() == rows { Ok(()) } else { Err(StoreError::unavailable("an id is taken")) }
    }

    /// Marks the inserted jobs `ids`, which ascend, as running.
    ///
    /// # Errors
    ///
    /// The database's, or that one is not as it was inserted.
    pub async fn claim(&self, ids: &[String]) -> Result<(), StoreError> {
        let lease_until = (self.now + LEASE).millis();
        self.change(SET_LIVES, ids, (1, RUNNING), (None, Some(lease_until))).await
    }

    /// Marks the claimed jobs `ids`, which ascend, as succeeded, and moves them to the ended ones.
    ///
    /// # Errors
    ///
    /// The database's, or that one is not as it was claimed.
    pub async fn end(&self, ids: &[String]) -> Result<(), StoreError> {
        let forget_at = (self.now + RETENTION).millis();
        self.change(END_LIVES, ids, (2, SUCCEEDED), (Some(forget_at), None)).await
    }

    /// Requests a job of `job_type` with `data` in JSON, as an application does, in a transaction of its
    /// own. A server adds it.
    ///
    /// # Errors
    ///
    /// The database's, or that `enqueue` refuses it.
    pub async fn enqueue(&self, job_type: &str, data: &str) -> Result<(), StoreError> {
        let added = self.link.query(ENQUEUE, &[&job_type, &data]).await;
        added.map(|_| ()).map_err(Fault::into_error)
    }

    /// As [`Self::enqueue`]; the transaction also notifies the servers.
    ///
    /// # Errors
    ///
    /// As of [`Self::enqueue`].
    pub async fn enqueue_and_notify(&self, job_type: &str, data: &str) -> Result<(), StoreError> {
        let added = self.link.query(ENQUEUE_AND_NOTIFY, &[&job_type, &data]).await;
        added.map(|_| ()).map_err(Fault::into_error)
    }

    /// Vacuums and analyzes the tables of unended jobs and of their numbers, as the database does some time
    /// after many changes.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn vacuum(&self) -> Result<(), StoreError> {
        self.link.run("VACUUM (ANALYZE) jobs, counts").await.map_err(Fault::into_error)
    }

    /// Executes `sql` for jobs of revision `was`, which get a state and two instants.
    async fn change(
        &self,
        sql: &'static str,
        ids: &[String],
        (was, state): (i64, i16),
        (at, wake_at): (Option<i64>, Option<i64>),
    ) -> Result<(), StoreError> {
        let rows = ids.len();
        self.link
            .query(
                sql,
                &[
                    &ids,
                    &vec![was; rows],
                    &vec![state; rows],
                    &vec![was + 1; rows],
                    &vec![at; rows],
                    &vec![wake_at; rows],
                    &vec![&LIFE[..]; rows],
                    &(rows as i64),
                ],
            )
            .await
            .map(|_| ())
            .map_err(Fault::into_error)
    }
}
