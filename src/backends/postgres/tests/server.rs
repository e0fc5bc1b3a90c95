//! Stores on the server that the tests share.

use std::sync::{Arc, LazyLock};

use tokio::runtime::Runtime;

use crate::postgres::{
    PostgresStore, Settings,
    test_server::{address, new_name},
};
use tidegate_core::{port::Clock, time::Timestamp};
use tidegate_engine::memory::FakeClock;

/// The runtime of all stores. A clause has its own, which ends before the store does.
pub(super) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime can be made")
});

/// The number in this variable, which the full check sets, or else `usual`.
#[allow(clippy::disallowed_methods, reason = "tests have no settings")]
pub(super) fn number(variable: &str, usual: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// A row for each statement of this test that waits for a lock. Within a transaction it would be the
/// first answer again and again.
pub(super) const WAITING: &str = "SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) \
     WHERE NOT l.granted AND a.application_name = current_setting('application_name')";

/// The settings of a store with empty tables, in the database of an address. Its connections have a
/// name of their own.
pub(super) fn settings_at(address: &str) -> Settings {
    let name = new_name();
    let settings: Settings =
        format!("{address}&application_name={name}").parse().expect("it is valid");
    settings.with_schema(&name)
}

/// The settings of a store with empty tables.
pub(super) fn settings() -> Settings {
    settings_at(&address("postgres"))
}

/// The settings of a store in a database of its own, for what Postgres counts for each database.
pub(super) fn settings_of_a_database() -> Settings {
    let (server, name) = (address("postgres"), new_name());
    let config: tokio_postgres::Config = server.parse().expect("it is valid");
    RUNTIME.block_on(async {
        let (client, connection) =
            config.connect(tokio_postgres::NoTls).await.expect("the server answers");
        tokio::spawn(connection);
        client.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("it is made");
    });
    settings_at(&address(&name))
}

/// An empty store, at the epoch.
pub(super) fn store() -> PostgresStore {
    open(&settings())
}

/// A store with the tables of `settings`, at the epoch.
pub(super) fn open(settings: &Settings) -> PostgresStore {
    RUNTIME.block_on(PostgresStore::open(settings.clone(), clock())).expect("the store opens")
}

/// A store with the tables of `settings`, and this clock.
pub(super) fn open_at(settings: &Settings, clock: Arc<FakeClock>) -> PostgresStore {
    RUNTIME.block_on(PostgresStore::open(settings.clone(), clock)).expect("the store opens")
}

/// A clock that shows the epoch.
pub(super) fn clock() -> Arc<dyn Clock> {
    Arc::new(FakeClock::new(NOW))
}

/// The time of most tests.
pub(super) const NOW: Timestamp = Timestamp::EPOCH;

/// The rows of a statement.
pub(super) fn rows(store: &PostgresStore, sql: &str) -> Vec<tokio_postgres::Row> {
    RUNTIME.block_on(async {
        let link = store.readers.link().await.expect("the server answers");
        link.client.query(sql, &[]).await.expect("the statement succeeds")
    })
}
