//! A database in which measurements make schemas of their own, and from which these are dropped
//! together.

use super::{
    Settings,
    connect::{Connector, Link},
    error::Fault,
    row,
};
use tidegate_core::port::StoreError;

/// The schemas with the tables of a store, except those whose names begin with `$1`.
const DEPLOYMENTS: &str = "SELECT s.nspname::text FROM pg_namespace s \
     WHERE NOT starts_with(s.nspname::text, $1) AND (SELECT count(*) FROM pg_class c \
     WHERE c.relnamespace = s.oid AND c.relname IN ('schema_version', 'queue_names')) = 2 ORDER BY 1";

/// The schemas whose names are `$1` and a number.
const MADE: &str = "SELECT s.nspname::text FROM pg_namespace s \
     WHERE s.nspname::text ~ ('^' || $1::text || '[0-9]+$') ORDER BY 1";

/// The process of this connection in the database's server.
const PROCESS: &str = "SELECT pg_backend_pid()";

/// For the removal of many jobs, which may wait for the connections of a server that ends.
const PATIENT: &str = "SET statement_timeout = 0; SET lock_timeout = '30s'";

/// How often a schema is dropped again after a deadlock. Each time, a statement of a server that has
/// ended goes on, and there are few of them.
const DEADLOCKS: usize = 20;

/// Why a database cannot be used for a measurement.
#[derive(Debug, thiserror::Error)]
pub enum ScratchError {
    /// A deployment uses it.
    #[error(
        "the database has a deployment in the schema {schema}, which a measurement would slow down; \
         create another database for it"
    )]
    InUse {
        /// The schema of its tables.
        schema: String,
    },
    /// The database does not answer, or refuses.
    #[error("cannot use the database")]
    Store(#[from] StoreError),
}

/// A connection to a database for measurements.
pub struct ScratchDatabase {
    link: Link,
}

impl ScratchDatabase {
    /// A connection to the database of `settings`, whose schema does not matter. Schemas whose names
    /// begin with `prefix` are those of measurements.
    ///
    /// # Errors
    ///
    /// [`ScratchError`].
    pub async fn open(settings: Settings, prefix: &str) -> Result<Self, ScratchError> {
        let link = Connector::new(settings)?.open().await?;
        let deployments = link.query(DEPLOYMENTS, &[&prefix]).await.map_err(Fault::into_error)?;
        if let Some(deployment) = deployments.first() {
            return Err(ScratchError::InUse { schema: row::column(deployment, 0)? });
        }
        link.run(PATIENT).await.map_err(Fault::into_error)?;
        Ok(Self { link })
    }

    /// The id of the process that serves this connection, on the machine of the database.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn server_process(&self) -> Result<u32, StoreError> {
        let rows = self.link.query(PROCESS, &[]).await.map_err(Fault::into_error)?;
        let process: i32 = match rows.first() {
            Some(row) => row::column(row, 0)?,
            None => 0,
        };
        Ok(process.unsigned_abs())
    }

    /// Drops the schemas whose names are `prefix` and a number, with all that they contain. `prefix`
    /// is of a-z 0-9 _.
    ///
    /// # Errors
    ///
    /// The database's. Some of them may be dropped.
    pub async fn drop_schemas(&self, prefix: &str) -> Result<(), StoreError> {
        for row in self.link.query(MADE, &[&prefix]).await.map_err(Fault::into_error)? {
            let schema: &str = row::column(&row, 0)?;
            self.drop_schema(schema).await.map_err(Fault::into_error)?;
        }
        Ok(())
    }

    /// Drops a schema whose tables a statement of a server that has ended may still lock, in another
    /// order.
    async fn drop_schema(&self, schema: &str) -> Result<(), Fault> {
        let drop = format!("DROP SCHEMA \"{schema}\" CASCADE");
        let mut deadlocks = 0;
        loop {
            // It may take longer than an answer may.
            match self.link.client.batch_execute(&drop).await.map_err(Fault::of) {
                Err(Fault::Again(_)) if deadlocks < DEADLOCKS => deadlocks += 1,
                dropped => return dropped,
            }
        }
    }
}
