//! Damaged records: left out of a move, counted and named.

use std::sync::Arc;

use rusqlite::Connection;
use tidegate_backends::sqlite::SqliteStore;
use tidegate_core::port::job_store::RecordKind;
use tidegate_engine::moves::Part;

use super::{empty, moved, of, side, with_pages};

#[tokio::test]
async fn damaged_records_are_counted_and_named() {
    let from = with_pages().await;
    let store = Arc::new(SqliteStore::open_temporary().unwrap());
    let sqlite = side(Arc::clone(&store) as _, "SQLite");
    moved(&of(&from, &sqlite), "one").await.unwrap();
    let db = Connection::open(store.file()).unwrap();
    // Of the records of the audit log, two pages and a part of a third, before two whole ones.
    for (rows, damage) in [
        (69, "bytes = x'00' WHERE kind = 'audit' AND name BETWEEN 'many-00' AND 'many-68'"),
        (1, "bytes = x'00' WHERE kind = 'log' AND name = 'a.of-group'"),
        (1, "name = CAST(x'ff' AS TEXT) WHERE kind = 'dead_letter' AND name = 'of-kind'"),
    ] {
        assert_eq!(db.execute(&format!("UPDATE records SET {damage}"), []).unwrap(), rows);
    }
    let comparison = moved(&of(&sqlite, &empty()), "two").await.unwrap();
    assert!(comparison.is_equal(), "{comparison:?}");
    assert_eq!(comparison.damaged(), 71);
    let of_kind = |kind| comparison.parts.iter().find(|it| it.part == Part::Records(kind)).unwrap();
    let audit = of_kind(RecordKind::Audit);
    assert_eq!((audit.damaged, audit.damaged_named.len()), (69, 20), "the first ones are named");
    assert_eq!(audit.damaged_named[19], "many-19");
    assert!(audit.from >= 2 && audit.from == audit.to, "the whole ones are there: {audit:?}");
    assert_eq!(of_kind(RecordKind::Log).damaged_named, ["a.of-group"]);
    assert_eq!(of_kind(RecordKind::DeadLetter).damaged_named, ["\u{fffd}"]);
}
