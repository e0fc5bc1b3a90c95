//! The data of servers at rest: a directory or a database, opened for a move while no server runs.

use std::{fmt, path::PathBuf, sync::Arc};

use super::open::{DatabaseOpenError, DirectoryOpenError, objects_in};
use tidegate_backends::{
    postgres::{self, PostgresStore},
    sealed::{KeySource, SealedStore, has_secrets},
    sqlite::{SqliteStore, database},
    system::{SystemClock, SystemEntropy},
};
use tidegate_core::port::{
    StoreError,
    job_store::{ItemKind, JobStore as _, SharedStore},
    policy::NoPolicy,
};
use tidegate_engine::{Engine, Ports, Rules, memory::MemoryWorkQueue, moves::Side};

/// Where the data of servers is.
#[derive(Clone, Debug)]
pub enum Place {
    /// A data directory.
    Directory(PathBuf),
    /// The tables of a schema in a Postgres database.
    Database(Box<postgres::Settings>),
}

/// Why a place cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryOpenError),
    /// The database cannot be used.
    #[error(transparent)]
    Database(#[from] DatabaseOpenError),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(dir) => write!(f, "{}", dir.display()),
            Self::Database(settings) => write!(f, "{settings}"),
        }
    }
}

impl Place {
    /// Whether there is a store, also an empty one. Nothing is made or changed.
    ///
    /// # Errors
    ///
    /// [`PlaceError::Database`] if the database cannot be used.
    pub async fn has_store(&self) -> Result<bool, PlaceError> {
        match self {
            Self::Directory(dir) => Ok(database(dir).exists()),
            Self::Database(settings) => {
                let found = PostgresStore::exists((**settings).clone()).await;
                Ok(found.map_err(DatabaseOpenError::from)?)
            }
        }
    }

    /// The store and the objects in it, without encryption: secrets stay encrypted. An empty store is
    /// made if there is none. A directory is locked until the store is dropped.
    ///
    /// # Errors
    ///
    /// [`PlaceError`], for example if a server holds the directory. Its message has the remedy.
    pub async fn open(&self) -> Result<Side, PlaceError> {
        let place = self.to_string();
        match self {
            Self::Directory(dir) => {
                let store = SqliteStore::open(dir).map_err(DirectoryOpenError::from)?;
                let objects = objects_in(dir)?;
                Ok(Side { store: Arc::new(store), objects, inbox: None, place })
            }
            Self::Database(settings) => {
                let store = PostgresStore::open((**settings).clone(), Arc::new(SystemClock)).await;
                Ok(database_side(store.map_err(DatabaseOpenError::from)?, place))
            }
        }
    }
}

/// The database of `settings` for a command that works next to its servers, without encryption. Its
/// tables are made if there are none. Those of an earlier release are refused and not changed.
///
/// # Errors
///
/// [`DatabaseOpenError`]. Its message has the remedy.
pub async fn open_in_use(settings: postgres::Settings) -> Result<Side, DatabaseOpenError> {
    let place = settings.to_string();
    let store = PostgresStore::open_in_use(settings, Arc::new(SystemClock)).await?;
    Ok(database_side(store, place))
}

fn database_side(store: PostgresStore, place: String) -> Side {
    let (objects, inbox) = (Arc::new(store.objects()), Arc::new(store.inbox()));
    Side { store: Arc::new(store), objects, inbox: Some(inbox), place }
}

/// The engine on the store of `side`, without keys: the secrets of targets stay encrypted. It is for what
/// needs none, such as tokens.
pub fn unsealed_engine(side: &Side) -> Engine {
    let movable = Arc::clone(&side.store);
    let store: SharedStore = movable;
    let ports = Ports {
        store,
        objects: Arc::clone(&side.objects),
        work: Arc::new(MemoryWorkQueue::default()),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        policy: Arc::new(NoPolicy),
    };
    Engine::new(ports, Rules::default())
}

/// Why the secrets of a type in a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadSecret {
    /// They cannot be decrypted with the keys.
    #[error("the secrets of type {name}: {why}")]
    Type {
        /// The type.
        name: String,
        /// Why.
        why: String,
    },
    /// The types cannot be read.
    #[error("the types cannot be read")]
    Store(#[from] StoreError),
}

/// Checks that `keys` decrypt the secrets of all types of `side`. Returns whether a type has secrets.
///
/// # Errors
///
/// [`BadSecret`].
pub async fn check_secrets(side: &Side, keys: KeySource) -> Result<bool, BadSecret> {
    let types = side.store.items(ItemKind::Type).await?;
    let movable = Arc::clone(&side.store);
    let store: SharedStore = movable;
    for item in SealedStore::new(store, keys).items(ItemKind::Type).await? {
        if let Err(why) = item.bytes {
            return Err(BadSecret::Type { name: item.name, why });
        }
    }
    Ok(types.iter().any(|item| item.bytes.as_ref().is_ok_and(|bytes| has_secrets(bytes))))
}
