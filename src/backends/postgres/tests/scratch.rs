//! A database for measurements.

use super::server::{RUNTIME, open, rows, settings_of_a_database};
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
fn the_process_of_a_connection_is_known() {
    let settings = settings_of_a_database();
    RUNTIME.block_on(async {
        let scratch = ScratchDatabase::open(settings, "bench_").await.unwrap();
        assert!(scratch.server_process().await.unwrap() > 1);
    });
}
