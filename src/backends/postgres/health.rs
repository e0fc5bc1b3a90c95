//! What an operator should know about the database.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::Row;

use super::{PostgresStore, connect::Readers, row::column};
use tidegate_core::{
    error_chain::ErrorChain,
    port::{
        HealthCheck, StoreError,
        health_check::{Check, CheckLevel},
    },
};

const ABOUT: &str = "database";
const SETTINGS: &str = "SELECT current_setting('server_version_num')::int, \
     current_setting('fsync')::bool, current_setting('full_page_writes')::bool, \
     current_setting('synchronous_standby_names')";
/// The oldest release of Postgres with all that the statements use, as a number.
const OLDEST: i32 = 130_000;

/// Checks the database of a store.
pub struct PostgresHealth {
    readers: Arc<Readers>,
}

impl PostgresStore {
    /// Checks of the database of this store.
    pub fn health(&self) -> PostgresHealth {
        PostgresHealth { readers: Arc::clone(&self.readers) }
    }
}

#[async_trait]
impl HealthCheck for PostgresHealth {
    async fn checks(&self) -> Vec<Check> {
        let read = self.readers.query(SETTINGS, &[]).await;
        let checked = read.and_then(|rows| rows.first().map(checks_of).transpose());
        checked.map_or_else(
            |error| {
                let found = format!("it does not answer: {}", ErrorChain(&error));
                vec![Check::new(
                    CheckLevel::Error,
                    ABOUT,
                    found,
                    "check the address and the server",
                )]
            },
            Option::unwrap_or_default,
        )
    }
}

/// The findings about one row of [`SETTINGS`].
fn checks_of(row: &Row) -> Result<Vec<Check>, StoreError> {
    let (version, fsync, whole_pages): (i32, bool, bool) =
        (column(row, 0)?, column(row, 1)?, column(row, 2)?);
    let standbys: &str = column(row, 3)?;
    let mut checks = Vec::new();
    if version < OLDEST {
        let found = format!("it is Postgres {}", version / 10_000);
        checks.push(Check::new(CheckLevel::Error, ABOUT, found, "run Postgres 13 or later"));
    }
    if !fsync || !whole_pages {
        checks.push(Check::new(
            CheckLevel::Error,
            ABOUT,
            "a power failure loses acknowledged jobs, or damages the database",
            "set `fsync` and `full_page_writes` to `on`",
        ));
    }
    if standbys.is_empty() {
        checks.push(Check::new(
            CheckLevel::Note,
            ABOUT,
            "acknowledged jobs are on one machine: they survive its restart, and not its loss",
            "set `synchronous_standby_names`, or keep backups",
        ));
    }
    if checks.is_empty() {
        checks.push(Check::ok(ABOUT, "it answers, and a standby confirms each commit"));
    }
    Ok(checks)
}
