//! A failover to a standby that does not have all acknowledged commits is found.

use tokio_postgres::{Client, NoTls};

use super::server::{RUNTIME, open, settings_at};
use crate::postgres::{
    PostgresStore,
    test_server::{OwnServer, address, new_name},
    wal,
};
use tidegate_core::{
    job::JobId,
    port::{
        HealthCheck as _,
        health_check::{Check, CheckLevel},
        job_store::{Committed, JobStore, StoreError, Write},
    },
};
use tidegate_engine::testkit::builders::{job, name};

/// Jobs that only the first server has. A promotion writes less than they take.
const LOST: usize = 50;

async fn client(server: &OwnServer) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.address(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn add(store: &PostgresStore, id: &str) -> Result<(), StoreError> {
    let answers = store.commit(vec![vec![Write::AddJob(job(id).build())]]).await?;
    assert!(matches!(answers[..], [Committed::All]), "{answers:?}");
    Ok(())
}

/// Adds a job after a failover. The connections of before break.
async fn add_at_last(store: &PostgresStore, id: &str) {
    while let Err(error) = add(store, id).await {
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    }
}

async fn has(store: &PostgresStore, id: &str) -> bool {
    store.get(&[name::<JobId>(id)]).await.unwrap()[0] != Ok(None)
}

/// The levels of the losses that `doctor` reports. The server of a test has other faults, such as
/// `fsync = off`.
async fn losses(store: &PostgresStore) -> Vec<CheckLevel> {
    let checks = store.health().checks().await;
    let is_loss = |check: &&Check| check.found.starts_with("it has lost acknowledged jobs");
    checks.iter().filter(is_loss).map(|check| check.level).collect()
}

/// Waits until `standby` has everything that `primary` has written.
async fn catch_up(primary: &OwnServer, standby: &Client) {
    let written = client(primary).await.query_one("SELECT pg_current_wal_lsn()::text", &[]).await;
    let written: String = written.unwrap().get(0);
    let sql = "SELECT coalesce(pg_last_wal_replay_lsn() >= $1::text::pg_lsn, false)";
    while !standby.query_one(sql, &[&written]).await.unwrap().get::<_, bool>(0) {
        std::thread::yield_now();
    }
}

#[test]
fn a_failover_that_loses_acknowledged_jobs_is_found() {
    let primary = OwnServer::start();
    let standby = primary.start_asynchronous_standby();
    let settings = settings_at(&primary.address_with(&standby));
    let store = open(&settings);
    RUNTIME.block_on(async {
        add(&store, "kept").await.unwrap();
        let replica = client(&standby).await;
        catch_up(&primary, &replica).await;
        // From now on it receives nothing.
        replica.batch_execute("ALTER SYSTEM SET primary_conninfo = ''").await.unwrap();
        replica.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        let receives = "SELECT FROM pg_stat_wal_receiver";
        while !replica.query(receives, &[]).await.unwrap().is_empty() {
            std::thread::yield_now();
        }
        for n in 0..LOST {
            add(&store, &format!("lost-{n}")).await.unwrap();
        }
        assert!(losses(&store).await.is_empty());
    });
    primary.kill();
    standby.promote();
    RUNTIME.block_on(async {
        add_at_last(&store, "after").await;
        assert!(has(&store, "kept").await && has(&store, "after").await);
        assert!(!has(&store, "lost-0").await, "the standby received it");
        assert_eq!(losses(&store).await, [CheckLevel::Error]);
    });
    // A server that starts later did not see it, and remembers nothing that was lost.
    let later = open(&settings);
    assert_eq!(RUNTIME.block_on(losses(&later)), [CheckLevel::Warning]);
}

#[test]
fn a_failover_that_loses_nothing_is_no_finding() {
    let primary = OwnServer::start();
    let standby = primary.start_asynchronous_standby();
    let store = open(&settings_at(&primary.address_with(&standby)));
    RUNTIME.block_on(async {
        add(&store, "kept").await.unwrap();
        catch_up(&primary, &client(&standby).await).await;
    });
    primary.kill();
    standby.promote();
    RUNTIME.block_on(async {
        add_at_last(&store, "after").await;
        assert!(has(&store, "kept").await);
        assert!(losses(&store).await.is_empty());
    });
}

/// A crash loses what no commit has waited for. That is no loss.
#[test]
fn a_crash_of_the_database_is_no_finding() {
    let server = OwnServer::start();
    let store = open(&settings_at(&server.address()));
    RUNTIME.block_on(add(&store, "kept")).unwrap();
    server.kill_and_start();
    RUNTIME.block_on(async {
        add_at_last(&store, "after").await;
        assert!(has(&store, "kept").await);
        assert!(losses(&store).await.is_empty());
    });
}

#[test]
fn every_role_may_read_the_place_of_a_server() {
    let role = new_name();
    let place = RUNTIME.block_on(async {
        let (client, connection) =
            tokio_postgres::connect(&address("postgres"), NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute(&format!("CREATE ROLE {role}")).await.unwrap();
        client.batch_execute(&format!("SET ROLE {role}")).await.unwrap();
        client.query_one(wal::PLACE, &[]).await.unwrap()
    });
    assert_eq!(place.get::<_, &str>(1).len(), 24, "the name of a file has its timeline");
}
