//! The statements of the store without a queue.

use super::server::{NOW, RUNTIME, open, rows, settings};
use crate::postgres::{PostgresStore, RawPostgres, Settings};

/// Ids that ascend.
fn ids() -> Vec<String> {
    (0..3).map(|number| format!("j{number}")).collect()
}

/// Inserted jobs, and a store with the same tables.
fn inserted() -> (RawPostgres, PostgresStore) {
    let settings: Settings = settings();
    let raw = RUNTIME.block_on(RawPostgres::open(settings.clone(), NOW)).unwrap();
    RUNTIME.block_on(raw.insert(&ids(), &[&b"1"[..]; 3])).unwrap();
    (raw, open(&settings))
}

/// How many rows a table has, and the sum of the numbers of jobs in a state.
fn counted(store: &PostgresStore, table: &str, state: i16) -> (i64, i64) {
    let number = |sql: String| rows(store, &sql)[0].get::<_, i64>(0);
    let counts = format!("SELECT coalesce(sum(jobs), 0)::bigint FROM counts WHERE state = {state}");
    (number(format!("SELECT count(*) FROM {table}")), number(counts))
}

#[test]
fn raw_jobs_are_those_of_the_store() {
    let (raw, store) = inserted();
    assert_eq!(counted(&store, "jobs", 0), (3, 3));
    RUNTIME.block_on(raw.claim(&ids())).unwrap();
    assert_eq!(counted(&store, "jobs", 1), (3, 3));
    RUNTIME.block_on(raw.end(&ids())).unwrap();
    assert_eq!((counted(&store, "jobs", 1), counted(&store, "ended", 2)), ((0, 0), (3, 3)));
}

#[test]
fn a_raw_job_is_claimed_once() {
    let (raw, store) = inserted();
    RUNTIME.block_on(raw.claim(&ids()[..1])).unwrap();
    assert!(RUNTIME.block_on(raw.claim(&ids())).is_err());
    assert!(RUNTIME.block_on(raw.end(&ids())).is_err());
    assert!(RUNTIME.block_on(raw.insert(&ids(), &[&b"1"[..]; 3])).is_err());
    assert_eq!(counted(&store, "jobs", 1), (3, 1), "the others are unchanged");
}

#[test]
fn a_vacuum_is_of_the_jobs_and_their_numbers() {
    let (raw, store) = inserted();
    let counted = || {
        let sql = "SELECT relname::text FROM pg_class WHERE relname IN ('jobs', 'counts') \
             AND relnamespace = current_schema()::text::regnamespace AND reltuples > 0 ORDER BY 1";
        rows(&store, sql).iter().map(|row| row.get(0)).collect::<Vec<String>>()
    };
    assert!(counted().is_empty());
    RUNTIME.block_on(raw.vacuum()).unwrap();
    assert_eq!(counted(), ["counts", "jobs"]);
}
