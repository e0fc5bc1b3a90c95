//! A server on a directory: SQLite for jobs, files for large bodies. Or on a database that several
//! servers share. With the machine's clock and entropy.

use std::{
    error::Error,
    path::{Path, PathBuf},
    sync::Arc,
};

use object_store::{ObjectStore, local::LocalFileSystem};
use url::Url;

use crate::runtime::{Builder, Server, shared::Peers};
use tidegate_backends::{
    http::{Guard, HttpTarget},
    postgres::{self, PostgresStore},
    private,
    sealed::{KeySource, Keys, SealedStore},
    sqlite::{OpenError, SqliteStore},
    system::{SystemClock, SystemEntropy},
    wasm::{PluginHost, Run, compile::Compiler},
};
use tidegate_core::port::{
    job_store::SharedStore,
    policy::{Fault, NoPolicy},
    target::TargetError,
};
use tidegate_engine::{Ports, memory::MemoryWorkQueue};

/// Why a directory cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryOpenError {
    /// The job store cannot be used.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The directory for large bodies cannot be used.
    #[error("the directory for large bodies cannot be used")]
    Objects(#[source] Box<dyn Error + Send + Sync>),
    /// A part of the server cannot start.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Why a database cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseOpenError {
    /// The job store cannot be used.
    #[error(transparent)]
    Store(#[from] postgres::OpenError),
    /// A part of the server cannot start.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Why a part of a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The plugin host cannot start on this machine.
    #[error(transparent)]
    Plugins(#[from] Fault),
    /// The HTTP client for push delivery cannot start.
    #[error("the HTTP client for push delivery cannot start")]
    Target(#[source] TargetError),
    /// The HTTP client for other servers on the store cannot start.
    #[error("the HTTP client for other servers on the store cannot start")]
    Peers(#[source] TargetError),
}

impl Builder {
    /// Lets the other servers on the store forward lease requests to this one at `url`, and this one to
    /// them. A path of `url` comes before that of each request.
    ///
    /// # Errors
    ///
    /// [`StartError::Peers`].
    pub fn peer_url(mut self, url: &Url) -> Result<Self, StartError> {
        let target = Arc::new(HttpTarget::of_peers().map_err(StartError::Peers)?);
        self.peers = Some(Peers { url: url.to_string(), target });
        Ok(self)
    }
}

/// The file in a data directory with the key that encrypts the secrets of targets.
pub fn key_file(dir: &Path) -> PathBuf {
    dir.join("key")
}

/// The large bodies and plugins of a data directory.
pub(super) fn objects_in(dir: &Path) -> Result<Arc<dyn ObjectStore>, DirectoryOpenError> {
    let objects = dir.join("objects");
    private::create_dir(&objects)
        .and_then(|()| private::close(&objects))
        .map_err(|error| DirectoryOpenError::Objects(error.into()))?;
    let objects = LocalFileSystem::new_with_prefix(&objects)
        .map_err(|error| DirectoryOpenError::Objects(error.into()))?;
    // A body must be as durable as the job that names it.
    Ok(Arc::new(objects.with_fsync(true)))
}

impl Server {
    /// A builder of a server on the data in `dir`, which is created if it does not exist. `guard`
    /// restricts the targets. Plugins are compiled in this process, unless [`Builder::compiler`]
    /// sets another compiler. The secrets of targets are encrypted with the key in `DIR/key`.
    ///
    /// # Errors
    ///
    /// [`DirectoryOpenError`], for example if another process serves the directory. Its message has
    /// the remedy.
    pub fn open(dir: &Path, guard: Guard) -> Result<Builder, DirectoryOpenError> {
        Self::open_with_keys(dir, guard, KeySource::File(key_file(dir)))
    }

    /// As [`Server::open`]; the secrets of targets are encrypted with the keys of `keys`.
    ///
    /// # Errors
    ///
    /// As [`Server::open`].
    pub fn open_with_keys(
        dir: &Path,
        guard: Guard,
        keys: KeySource,
    ) -> Result<Builder, DirectoryOpenError> {
        let store = Arc::new(SqliteStore::open(dir)?);
        let objects = objects_in(dir)?;
        Ok(Self::builder_of(store, objects, guard, keys)?)
    }

    /// A builder of a server on a Postgres database, which any number of servers may share. Large
    /// bodies and plugins are in the database too. The tables are made if there are none.
    ///
    /// # Errors
    ///
    /// [`DatabaseOpenError`], for example if the database does not answer.
    pub async fn open_postgres(
        settings: postgres::Settings,
        guard: Guard,
        keys: Keys,
    ) -> Result<Builder, DatabaseOpenError> {
        let store = PostgresStore::open(settings, Arc::new(SystemClock)).await?;
        let (notices, objects) = (Arc::new(store.notices()), Arc::new(store.objects()));
        let (health, inbox) = (Arc::new(store.health()), Arc::new(store.inbox()));
        let builder = Self::builder_of(Arc::new(store), objects, guard, KeySource::Given(keys))?;
        Ok(builder.shared(notices).inbox(inbox).health_check(health))
    }

    /// A builder of a server on `store` and `objects`. Plugins run in threads of their own.
    pub(super) fn builder_of(
        store: SharedStore,
        objects: Arc<dyn ObjectStore>,
        guard: Guard,
        keys: KeySource,
    ) -> Result<Builder, StartError> {
        let host = PluginHost::new(Arc::clone(&objects), Arc::new(SystemClock), Run::Aside)?;
        let ports = Ports {
            store: Arc::new(SealedStore::new(store, keys)),
            objects,
            work: Arc::new(MemoryWorkQueue::default()),
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
            policy: Arc::new(NoPolicy),
        };
        let target = HttpTarget::new(guard).map_err(StartError::Target)?;
        Ok(Self::builder(ports, Arc::new(target)).plugins(Arc::new(host), Compiler::Here))
    }
}
