//! What an operator should know about the database.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio_postgres::Row;

use super::{
    PostgresStore,
    connect::Readers,
    inbox::OLDEST_AGE,
    losses,
    row::column,
    wal::{Loss, Wal},
};
use tidegate_core::{
    error_chain::ErrorChain,
    port::{
        Clock, HealthCheck, StoreError,
        health_check::{Check, CheckLevel},
    },
};

const ABOUT: &str = "database";
const SETTINGS: &str = "SELECT current_setting('server_version_num')::int, \
     current_setting('fsync')::bool, current_setting('full_page_writes')::bool, \
     current_setting('synchronous_standby_names')";
/// How many seconds a request of an application may wait until a server adds its job.
const MAX_INBOX_AGE: i64 = 60;
/// How long a loss is reported by servers that did not find it themselves.
const MAX_LOSS_AGE: Duration = Duration::from_hours(7 * 24);
/// The oldest release of Postgres with all that the statements use, as a number.
const OLDEST: i32 = 130_000;

/// Checks the database of a store.
pub struct PostgresHealth {
    readers: Arc<Readers>,
    wal: Arc<Wal>,
    clock: Arc<dyn Clock>,
}

impl PostgresStore {
    /// Checks of the database of this store.
    pub fn health(&self) -> PostgresHealth {
        PostgresHealth {
            readers: Arc::clone(&self.readers),
            wal: Arc::clone(&self.shared.wal),
            clock: Arc::clone(&self.clock),
        }
    }
}

#[async_trait]
impl HealthCheck for PostgresHealth {
    async fn checks(&self) -> Vec<Check> {
        let mut checks = self.read().await.unwrap_or_else(|error| {
            let found = format!("it does not answer: {}", ErrorChain(&error));
            vec![Check::new(CheckLevel::Error, ABOUT, found, "check the address and the server")]
        });
        checks.extend(self.wal.loss().map(loss_check));
        checks
    }
}

impl PostgresHealth {
    async fn read(&self) -> Result<Vec<Check>, StoreError> {
        let mut checks = Vec::new();
        for row in self.readers.query(SETTINGS, &[]).await? {
            checks.extend(checks_of(&row)?);
        }
        checks.extend(match self.readers.query(OLDEST_AGE, &[]).await {
            Ok(rows) => {
                let age = rows.first().map(|row| column::<Option<i64>>(row, 0)).transpose()?;
                age.flatten().and_then(inbox_check)
            }
            Err(error) => Some(Check::new(
                CheckLevel::Warning,
                "inbox",
                format!("it cannot be read: {}", ErrorChain(&error)),
                "end the transactions that are open for long",
            )),
        });
        if self.wal.loss().is_none() {
            let since = self.clock.now() - MAX_LOSS_AGE;
            checks.extend(losses::latest(&self.readers, since).await?.map(past_loss_check));
        }
        Ok(checks)
    }
}

/// The finding about acknowledged commits whose loss this server found. It may remember them.
fn loss_check(loss: Loss) -> Check {
    Check::new(
        CheckLevel::Error,
        ABOUT,
        lost(loss),
        "restart each server, which may remember what was lost; enqueue again what is missing; set \
         `synchronous_standby_names`, so that a standby has each commit",
    )
}

/// The finding about acknowledged commits whose loss another server found, or this one before its start.
fn past_loss_check(loss: Loss) -> Check {
    Check::new(
        CheckLevel::Warning,
        ABOUT,
        lost(loss),
        "enqueue again what is missing; set `synchronous_standby_names`, so that a standby has each \
         commit; restart servers that run since before",
    )
}

fn lost(loss: Loss) -> String {
    let Loss { found_at, bytes } = loss;
    format!(
        "it has lost acknowledged jobs and results: at least {bytes} bytes of its log, found at \
         {found_at}, after a failover to a standby that did not have them, or a restore"
    )
}

/// The finding about an inbox whose oldest request has waited for `age` seconds.
fn inbox_check(age: i64) -> Option<Check> {
    (age > MAX_INBOX_AGE).then(|| {
        Check::new(
            CheckLevel::Warning,
            "inbox",
            format!("a request of `enqueue` has waited for {age} s"),
            "see the log of the servers for what keeps them from adding its job",
        )
    })
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
