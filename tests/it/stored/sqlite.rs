//! Databases as SQL: each release reads those of the earlier ones.

use std::{fmt::Write as _, path::Path};

use rusqlite::Connection;
use tempfile::TempDir;
use tidegate_backends::sqlite::{SqliteStore, database};
use tidegate_core::port::JobStore as _;
use tidegate_engine::testkit::conformance::run;

use super::{assert_newest, files};
use crate::every_record::{every_answer, every_record};

/// The database in `dir` as SQL.
fn dump(dir: &Path) -> String {
    let db = Connection::open(database(dir)).unwrap();
    let texts = |sql: &str| -> Vec<String> {
        let mut all = db.prepare(sql).unwrap();
        let rows = all.query_map([], |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect()
    };
    let number = |name: &str| db.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0));
    let mut dump = String::new();
    for pragma in ["application_id", "user_version"] {
        let number: i64 = number(pragma).unwrap();
        writeln!(dump, "PRAGMA {pragma} = {number};").unwrap();
    }
    for sql in texts("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid") {
        writeln!(dump, "{sql};").unwrap();
    }
    for table in texts("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY rowid") {
        let columns =
            texts(&format!("SELECT name FROM pragma_table_xinfo('{table}') WHERE hidden = 0"));
        let quoted: Vec<String> = columns.iter().map(|column| format!("quote({column})")).collect();
        let values = quoted.join(" || ', ' || ");
        for row in texts(&format!("SELECT {values} FROM {table} ORDER BY 1")) {
            let columns = columns.join(", ");
            writeln!(dump, "INSERT INTO {table} ({columns}) VALUES ({row});").unwrap();
        }
    }
    dump
}

/// What reads of the store in `dir` return.
fn answers(dir: &Path) -> String {
    let store = SqliteStore::open(dir).unwrap();
    let mut answers = String::new();
    run(async { answers = every_answer(&store).await });
    answers
}

#[test]
fn databases_of_every_release_are_read() {
    let new = TempDir::new().unwrap();
    let store = SqliteStore::open(new.path()).unwrap();
    run(async { store.commit(every_record()).await.map(drop).unwrap() });
    drop(store);
    let files = files("sqlite", "sql");
    assert_newest(&files, &dump(new.path()));
    let expected = answers(new.path());
    for file in files {
        let old = TempDir::new().unwrap();
        let sql = std::fs::read_to_string(&file).unwrap();
        Connection::open(database(old.path())).unwrap().execute_batch(&sql).unwrap();
        assert_eq!(answers(old.path()), expected, "{}", file.display());
    }
}
