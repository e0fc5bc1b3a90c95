//! A database for measurements.

use super::server::{RUNTIME, WAITING, open, rows, settings_of_a_database};
use crate::postgres::{ScratchDatabase, ScratchError};

#[test]
fn a_database_with_a_deployment_is_not_measured() {
    let settings = settings_of_a_database();
    RUNTIME.block_on(ScratchDatabase::open(settings.clone(), "bench_")).unwrap();
    let deployed = settings.with_schema("jobs");
    drop(open(&deployed));
    let opened = RUNTIME.block_on(ScratchDatabase::open(settings, "bench_"));
    assert!(matches!(opened, Err(ScratchError::InUse { schema }) if schema == "jobs"));
}

#[test]
fn schemas_of_measurements_are_dropped_together() {
    let settings = settings_of_a_database();
    let of_others = open(&settings.with_schema("bench_9_1"));
    drop(open(&settings.with_schema("bench_7_1")));
    drop(open(&settings.with_schema("bench_7_20")));
    RUNTIME.block_on(async {
        let scratch = ScratchDatabase::open(settings, "bench_").await.unwrap();
        scratch.drop_schemas("bench_7_").await.unwrap();
    });
    let names = "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'bench%'";
    let left: Vec<String> = rows(&of_others, names).iter().map(|row| row.get(0)).collect();
    assert_eq!(left, ["bench_9_1"]);
}

#[test]
fn a_statement_that_locks_in_another_order_delays_a_drop() {
    let settings = settings_of_a_database();
    let watch = open(&settings.with_schema("bench_9_1"));
    let address = settings.config.clone();
    let of_a_server = RUNTIME.block_on(async {
        let (client, connection) = address.connect(tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let tables = "CREATE SCHEMA bench_7_1; CREATE TABLE bench_7_1.a (); \
             CREATE TABLE bench_7_1.m (); CREATE TABLE bench_7_1.z ()";
        client.batch_execute(tables).await.unwrap();
        // The drop has either a or z when it waits for m, whatever its order is.
        client.batch_execute("BEGIN; LOCK bench_7_1.m IN ROW EXCLUSIVE MODE").await.unwrap();
        client
    });
    let scratch = RUNTIME.block_on(ScratchDatabase::open(settings, "bench_")).unwrap();
    let drop = RUNTIME.spawn(async move { scratch.drop_schemas("bench_7_").await });
    while rows(&watch, WAITING).is_empty() {
        std::thread::yield_now();
    }
    RUNTIME.block_on(async {
        let others = "LOCK bench_7_1.a, bench_7_1.z IN ROW EXCLUSIVE MODE; COMMIT";
        of_a_server.batch_execute(others).await.unwrap();
        drop.await.unwrap().unwrap();
    });
    assert!(rows(&watch, "SELECT FROM pg_namespace WHERE nspname = 'bench_7_1'").is_empty());
}

#[test]
fn the_process_of_a_connection_is_known() {
    let settings = settings_of_a_database();
    RUNTIME.block_on(async {
        let scratch = ScratchDatabase::open(settings, "bench_").await.unwrap();
        assert!(scratch.server_process().await.unwrap() > 1);
    });
}
