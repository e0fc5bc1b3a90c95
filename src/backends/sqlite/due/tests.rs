//! The cost of a page: statements are planned once, and waiting jobs are not read.

use rusqlite::StatementStatus;

use super::*;
use crate::sqlite::SqliteStore;
use tidegate_core::port::job_store::{JobStore as _, Write};
use tidegate_engine::testkit::{
    builders::{at, job, name},
    conformance::run,
};

/// The steps of SQLite's virtual machine for the first ten due jobs. There are two types and five
/// priorities; a third of `jobs` is due.
fn steps(jobs: i64) -> i32 {
    let store = SqliteStore::open_temporary().unwrap();
    let add = |n: i64| {
        let (kind, due) = (["x", "y"][n as usize % 2], if n % 3 == 0 { 5 } else { 1_000_000 });
        vec![Write::AddJob(
            job(&format!("job-{n}")).of_type(kind).priority(n as i32 % 5).due(due).build(),
        )]
    };
    run(async { store.commit((0..jobs).map(add).collect()).await.map(drop).unwrap() });
    let query = DueQuery {
        queue: name("default"),
        critical: false,
        types: vec![name("x"), name("y")],
        partition: None,
        order: Order::Time { step_millis: 60_000 },
        until: at(10),
        after: None,
        limit: 10,
        granted: None,
    };
    let read = |db: &Connection| {
        assert_eq!(page(db, &store.names(), &query)?.jobs.len(), 10);
        let mut steps = 0;
        for sql in [NEXT_TYPE, NEXT_PRIORITY, NEXT_DUE, STREAM] {
            steps += db.prepare_cached(sql)?.get_status(StatementStatus::VmStep);
        }
        Ok(steps)
    };
    store.readers.read(read).unwrap()
}

#[test]
fn a_statement_is_planned_once_for_all_parameters() {
    let store = SqliteStore::open_temporary().unwrap();
    let read = |db: &Connection| {
        for sql in [NEXT_TYPE, NEXT_PRIORITY, NEXT_DUE, STREAM] {
            for value in [1, 2, 3] {
                let mut statement = db.prepare_cached(sql)?;
                let values = vec![value; statement.parameter_count()];
                let _ = statement.query(rusqlite::params_from_iter(values))?.next()?;
            }
            assert_eq!(db.prepare_cached(sql)?.get_status(StatementStatus::RePrepare), 0, "{sql}");
        }
        Ok(())
    };
    store.readers.read(read).unwrap();
}

#[test]
fn waiting_jobs_do_not_slow_down_a_page() {
    let (few, many) = (steps(600), steps(6_000));
    assert!(few > 100 && many <= few + few / 10, "{few} steps among few, {many} among many");
}
