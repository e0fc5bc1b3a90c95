//! The job store in Postgres, which many servers may share.
//!
//! ```text
//!   commit ─▶ encode (caller) ─▶ channel ─▶ groups: BEGIN, guarded writes, COMMIT in one flush,
//!                                             or one statement
//!   reads  ─▶ one of a few connections, which callers share
//! ```
//!
//! Every write is compare and set in plain SQL: no advisory lock, no `SKIP LOCKED`, no trigger. Any
//! number of servers may write at once, and a server that freezes or dies holds no lock. Read in this
//! order: `migrations/` (the tables and the purpose of each index), [`row`], [`step`], [`parts`],
//! [`statements`], [`plan`], [`item_lock`], [`single`], [`group`], [`look`], [`losses`], [`wal`],
//! [`writer`], [`read`], [`overdue`], [`due`], [`list`], [`counts`], [`purge`], [`pause`],
//! [`items_version`], [`partitions`], [`job_store`], [`movable`]; then [`objects`] (large bodies and
//! plugins), [`notices`] (messages between servers), [`arrivals`] (what a server without notices reads),
//! [`inbox`] (requests of applications) and [`health`]. [`raw`] and [`scratch`] are for measurements.

mod arrivals;
mod connect;
mod counts;
mod due;
mod error;
mod group;
mod health;
mod inbox;
mod item_lock;
mod items_version;
mod job_store;
mod list;
mod look;
mod losses;
mod migrate;
mod movable;
mod names;
mod notices;
mod objects;
mod overdue;
mod partitions;
mod parts;
mod pause;
mod plan;
mod purge;
mod raw;
mod read;
mod row;
mod scratch;
mod session;
mod settings;
mod single;
mod statements;
mod step;
#[cfg(any(test, feature = "testkit"))]
mod test_pooler;
#[cfg(any(test, feature = "testkit"))]
pub mod test_server;
#[cfg(test)]
mod tests;
mod text;
mod tls;
mod wal;
mod writer;

use std::sync::Arc;
#[cfg(any(test, feature = "testkit"))]
use std::time::Duration;

pub use health::PostgresHealth;
pub use inbox::PostgresInbox;
pub use migrate::OpenError;
pub use notices::PostgresNotices;
pub use objects::PostgresObjects;
pub use raw::RawPostgres;
pub use scratch::{ScratchDatabase, ScratchError};
pub use settings::{BadAddress, Settings};

use connect::{Connector, Readers};
use counts::Folds;
use due::{Positions, Unsent};
use item_lock::ItemLock;
use items_version::ItemsVersion;
use migrate::Migrate;
use names::Names;
use purge::Purges;
use tidegate_core::port::Clock;
use wal::Wal;
use writer::{Drawn, Writer};

/// Most ids of new jobs that are remembered until the jobs are added. One that is forgotten costs a
/// search among the ended jobs.
const MAX_DRAWN: usize = 100_000;

/// Jobs in a Postgres database.
///
/// Its connections belong to the runtime on which it was opened. Callers may be on others.
pub struct PostgresStore {
    readers: Arc<Readers>,
    writer: Writer,
    names: Names,
    clock: Arc<dyn Clock>,
    shared: Shared,
}

/// What readers and notices know, and the writer updates before it answers.
#[derive(Clone, Default)]
struct Shared {
    drawn: Drawn,
    positions: Arc<Positions>,
    unsent: Arc<Unsent>,
    folds: Arc<Folds>,
    purges: Arc<Purges>,
    items_version: Arc<ItemsVersion>,
    wal: Arc<Wal>,
    item_lock: ItemLock,
}

impl PostgresStore {
    /// The store in the database of `settings`, whose tables are made if there are none. Readers
    /// hide what is past its retention by `clock`.
    ///
    /// # Errors
    ///
    /// [`OpenError`] if the database cannot be used, only through a pooler in transaction mode, or if a
    /// later release has changed its tables.
    pub async fn open(settings: Settings, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        Self::open_tables(settings, clock, Migrate::Any).await
    }

    /// As [`PostgresStore::open`], for a command that works next to running servers: tables of another
    /// format are not changed, because these servers may not know the newest one.
    ///
    /// # Errors
    ///
    /// [`OpenError`]; [`OpenError::Older`] if an earlier release made the tables.
    pub async fn open_in_use(settings: Settings, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        Self::open_tables(settings, clock, Migrate::New).await
    }

    async fn open_tables(
        settings: Settings,
        clock: Arc<dyn Clock>,
        which: Migrate,
    ) -> Result<Self, OpenError> {
        let connector = Connector::new(settings)?;
        let link = connector.open().await?;
        if !connector.has_own_sessions(&link).await? {
            return Err(OpenError::Pooler);
        }
        migrate::migrate(&link, connector.schema(), which).await?;
        let readers = Arc::new(Readers::new(connector.clone()));
        let names = Names::default();
        names.refresh(&readers).await?;
        let item_lock = ItemLock::of(&link).await?;
        let shared = Shared { item_lock, ..Shared::default() };
        let writer = Writer::start(connector, Arc::clone(&clock), shared.clone());
        Ok(Self { readers, writer, names, clock, shared })
    }

    /// Whether the schema has the tables of a store. Nothing is made or changed.
    ///
    /// # Errors
    ///
    /// [`OpenError::Store`] if the database cannot be used.
    pub async fn exists(settings: Settings) -> Result<bool, OpenError> {
        let connector = Connector::new(settings)?;
        let link = connector.open().await?;
        migrate::has_tables(&link, connector.schema()).await
    }
}

#[cfg(any(test, feature = "testkit"))]
impl PostgresStore {
    /// Lets the pages of every queue that was read look from the front after `span` of real time, to find
    /// the jobs of other servers. A simulation has a time of its own.
    pub fn look_after(&self, span: Duration) {
        self.shared.positions.look_at(tokio::time::Instant::now() + span);
    }
}
