//! What the log of a server has, after the server was stopped.

use std::{collections::BTreeSet, path::Path};

use rusqlite::Connection;
use serde_json::Value;

use crate::e2e::serve::{Setup, text};

/// The log of a server that has led it and is stopped is intact. A database that is restored from it is that
/// of the server, row by row.
pub fn the_log_restores(server: &Setup) {
    let verified: Value = serde_json::from_str(&server.on_log(&["verify", "--json"]).ok()).unwrap();
    let end = verified["end"]["written_at"].as_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("restored");
    server.on_log(&["restore", text(&to), "--at", end]).ok();
    let (led, restored) = (rows(&server.data()), rows(&to));
    assert!(!led.is_empty());
    let different: Vec<&String> = led.symmetric_difference(&restored).take(10).collect();
    assert!(different.is_empty(), "the log restores another state: {different:#?}");
}

/// Every row of the database in `dir`, except the position in a log.
fn rows(dir: &Path) -> BTreeSet<String> {
    let db = Connection::open(dir.join("tidegate.db")).unwrap();
    let texts = |sql: &str| -> Vec<String> {
        let mut all = db.prepare(sql).unwrap();
        all.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let tables = texts(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT GLOB 'log_*' \
         AND name NOT GLOB 'sqlite_*'",
    );
    let mut rows = BTreeSet::new();
    for table in tables {
        let columns = texts(&format!("SELECT name FROM pragma_table_xinfo('{table}')"));
        let quoted: Vec<String> = columns.iter().map(|column| format!("quote({column})")).collect();
        let all = texts(&format!("SELECT {} FROM {table}", quoted.join(" || ', ' || ")));
        rows.extend(all.into_iter().map(|row| format!("{table}: {row}")));
    }
    rows
}
