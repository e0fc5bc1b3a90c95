//! The schema: made and changed by the first server that needs it, while others wait. A command that works
//! next to running servers makes it, and never changes it.

use std::time::Duration;

use tokio_postgres::error::SqlState;

use super::{connect::Link, error::Fault};
use tidegate_core::port::StoreError;

/// The migrations from an empty schema to the newest format, in order, each with the oldest format
/// whose releases can use the tables after it. A released one never changes. Each only adds, so that
/// servers of the release before still run, and can start again.
pub(super) const MIGRATIONS: [(&str, i32); 3] = [
    (include_str!("migrations/0001_start.sql"), 1),
    (include_str!("migrations/0002_inbox.sql"), 1),
    (include_str!("migrations/0003_losses.sql"), 1),
];
/// How long the migrations may take, with the wait for another server's.
const TIMEOUT: Duration = Duration::from_mins(3);
/// How often a migration that met another server's is repeated.
const MAX_REPEATS: usize = 20;

/// Which tables are brought to the newest format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Migrate {
    /// Those of any release before this one.
    Any,
    /// Only those of an empty schema. Servers of another release may use the others.
    New,
}

/// Why the tables cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A later release changed them.
    #[error(
        "the schema {schema} has format {found}, for releases that know format {min_reader}, and \
         this one knows formats up to {known}; run the release that wrote it, or a later one"
    )]
    Newer {
        /// The schema.
        schema: String,
        /// Its format.
        found: i32,
        /// The format that a release must know to use it.
        min_reader: i32,
        /// The latest format that this release knows.
        known: i32,
    },
    /// An earlier release made them, and its servers may use them.
    #[error(
        "the schema {schema} has format {found}, and this release needs format {known}; run the \
         release that its servers run, or start a server of this release first, which changes the tables"
    )]
    Older {
        /// The schema.
        schema: String,
        /// Its format.
        found: i32,
        /// The format that this release needs.
        known: i32,
    },
    /// A pooler between this server and the database gives no connection a session of its own.
    #[error(
        "a pooler in transaction mode is between this server and the database, and would lose the \
         settings of sessions, prepared statements and notices: name the address of the database \
         itself, or of a pool with `pool_mode = session`"
    )]
    Pooler,
    /// The database does not answer, or refuses.
    #[error("cannot use the database")]
    Store(#[from] StoreError),
}

/// Brings the tables in `schema` to the newest format, if they are among `which`.
///
/// # Errors
///
/// [`OpenError`]. After [`OpenError::Newer`] and [`OpenError::Older`] nothing has changed.
pub(super) async fn migrate(link: &Link, schema: &str, which: Migrate) -> Result<(), OpenError> {
    migrate_by(link, schema, which, &MIGRATIONS).await
}

/// As [`migrate`], by the migrations of any release.
///
/// # Errors
///
/// Those of [`migrate`].
pub(super) async fn migrate_by(
    link: &Link,
    schema: &str,
    which: Migrate,
    migrations: &[(&str, i32)],
) -> Result<(), OpenError> {
    let known = migrations.len() as i32;
    let mut repeats = 0;
    loop {
        let made = tokio::time::timeout(TIMEOUT, once(link, schema, which, migrations)).await;
        match made.map_err(StoreError::unavailable)? {
            Ok((found, min_reader)) if min_reader > known => {
                let schema = schema.to_owned();
                return Err(OpenError::Newer { schema, found, min_reader, known });
            }
            Ok((found, _)) if found < known => {
                return Err(OpenError::Older { schema: schema.to_owned(), found, known });
            }
            Ok(_) => return Ok(()),
            Err(error) if is_race(&error) && repeats < MAX_REPEATS => {
                repeats += 1;
                link.run("ROLLBACK").await.map_err(Fault::into_error)?;
            }
            Err(error) => {
                let context = format!("the tables in schema {schema}");
                return Err(StoreError::unavailable_in(context, error).into());
            }
        }
    }
}

/// Whether `schema` has tables of a store.
///
/// # Errors
///
/// [`OpenError::Store`].
pub(super) async fn has_tables(link: &Link, schema: &str) -> Result<bool, OpenError> {
    let table = format!("\"{schema}\".schema_version");
    let question = "SELECT to_regclass($1::text) IS NOT NULL";
    let found = link.client.query_one(question, &[&table]).await;
    found.and_then(|row| row.try_get(0)).map_err(|error| {
        StoreError::unavailable_in(format!("the tables in schema {schema}"), error).into()
    })
}

/// Whether another server was about to create the same thing, or had a lock for too long.
fn is_race(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|state| {
        [
            SqlState::UNIQUE_VIOLATION,
            SqlState::DUPLICATE_SCHEMA,
            SqlState::DUPLICATE_TABLE,
            SqlState::DUPLICATE_OBJECT,
            SqlState::LOCK_NOT_AVAILABLE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::T_R_SERIALIZATION_FAILURE,
        ]
        .contains(state)
    })
}

/// Makes the missing migrations in one transaction, if the tables are among `which`. Returns the format
/// after it, and the one that a release must know.
async fn once(
    link: &Link,
    schema: &str,
    which: Migrate,
    migrations: &[(&str, i32)],
) -> Result<(i32, i32), tokio_postgres::Error> {
    let client = &link.client;
    let known =
        client.query("SELECT 1 FROM pg_namespace WHERE nspname = $1::text", &[&schema]).await?;
    if known.is_empty() {
        // A role that may not create schemas can use one that was made for it.
        client.batch_execute(&format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\"")).await?;
    }
    client
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS schema_version (n int PRIMARY KEY, min_reader int NOT NULL)",
        )
        .await?;
    // The row of 0 is the lock.
    client
        .batch_execute(
            "BEGIN; SET LOCAL statement_timeout = '60s'; SET LOCAL lock_timeout = '60s'; \
             SET LOCAL idle_in_transaction_session_timeout = '60s'; \
             INSERT INTO schema_version VALUES (0, 0) ON CONFLICT DO NOTHING; \
             SELECT n FROM schema_version WHERE n = 0 FOR UPDATE",
        )
        .await?;
    let newest =
        client.query_one("SELECT max(n), max(min_reader) FROM schema_version", &[]).await?;
    let (mut format, mut min_reader): (i32, i32) = (newest.try_get(0)?, newest.try_get(1)?);
    let is_meant = which == Migrate::Any || format == 0;
    while let Some((migration, reader)) = migrations.get(format as usize).filter(|_| is_meant) {
        format += 1;
        min_reader = min_reader.max(*reader);
        client.batch_execute(migration).await?;
        let row = "INSERT INTO schema_version VALUES ($1, $2)";
        client.execute(row, &[&format, reader]).await?;
    }
    client.batch_execute("COMMIT").await?;
    Ok((format, min_reader))
}
