//! A server on the replica of a log: SQLite for jobs, the bucket of the log for large bodies.

use std::sync::Arc;

use async_trait::async_trait;
use object_store::ObjectStore;

use super::open::StartError;
use crate::runtime::{Builder, Server};
use tidegate_backends::{
    http::Guard,
    sealed::{KeySource, SealedStore},
    sqlite::SqliteStore,
    system::{SystemClock, SystemEntropy},
};
use tidegate_core::port::{
    Target,
    policy::NoPolicy,
    target::{Request, Response, TargetError},
};
use tidegate_engine::{Ports, memory::MemoryWorkQueue};

/// The target of a server that delivers nothing.
struct NoTarget;

#[async_trait]
impl Target for NoTarget {
    async fn call(&self, _: Request) -> Result<Response, TargetError> {
        Err(TargetError::Forbidden("a standby delivers nothing".into()))
    }
}

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

    /// A builder of a server that answers reads from the same `store` and `objects`, for the time in
    /// which its node follows. It runs no plugins and has no HTTP client.
    pub fn open_standby(
        store: Arc<SqliteStore>,
        objects: Arc<dyn ObjectStore>,
        keys: KeySource,
    ) -> Builder {
        let ports = Ports {
            store: Arc::new(SealedStore::new(store, keys)),
            objects,
            work: Arc::new(MemoryWorkQueue::default()),
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
            policy: Arc::new(NoPolicy),
        };
        Self::builder(ports, Arc::new(NoTarget)).standby()
    }
}

#[cfg(test)]
mod tests;
