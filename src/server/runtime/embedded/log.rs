//! A server on the replica of a log: SQLite for jobs, the bucket of the log for large bodies.

use std::sync::Arc;

use object_store::ObjectStore;

use super::open::StartError;
use crate::runtime::{Builder, Server};
use tidegate_backends::{http::Guard, sealed::KeySource, sqlite::SqliteStore};

impl Server {
    /// A builder of a server on `store`, the local state of a log, for the time in which its node
    /// leads. Large bodies and plugin code are in `objects`, which must be as durable as the log. The
    /// rest is as for [`Server::open_with_keys`].
    ///
    /// # Errors
    ///
    /// The plugin host or the HTTP client cannot start.
    pub fn open_replica(
        store: Arc<SqliteStore>,
        objects: Arc<dyn ObjectStore>,
        guard: Guard,
        keys: KeySource,
    ) -> Result<Builder, StartError> {
        Self::builder_of(store, objects, guard, keys)
    }
}

#[cfg(test)]
mod tests;
