//! Damage of a database is found by a check, contained, and repaired.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use std::{path::Path, sync::Arc};

use crate::{
    cases::harness::Harness,
    every_record::{every_answer, every_record},
    logged::Log,
};
use rusqlite::{Connection, params, types::Value};
use tempfile::TempDir;
use tidegate_backends::sqlite::{Inspection, SqliteStore, database, repair};
use tidegate_core::{
    port::{
        Movable as _,
        job_store::{
            DueQuery, Item, ItemKind, JobStore, Key, Record, RecordKind, RecordQuery, Write,
        },
    },
    queue::{ledger::BatchId, order::Order},
    time::Timestamp,
};
use tidegate_engine::testkit::{
    builders::{at, job, name},
    conformance::run,
};

/// Every table with data that a read can reach.
const TABLES: [&str; 10] = [
    "jobs",
    "bodies",
    "keys",
    "heads",
    "batches",
    "items",
    "records",
    "counts",
    "queue_names",
    "type_names",
];

/// A directory with records of every kind.
fn filled() -> TempDir {
    let dir = TempDir::new().unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    run(async { store.commit(every_record()).await.map(drop).unwrap() });
    drop(store);
    dir
}

/// Everything that reads return; none if the start is refused.
fn answers(dir: &Path) -> Option<String> {
    let store = SqliteStore::open(dir).ok()?;
    let mut all = String::new();
    run(async { all = every_answer(&store).await });
    Some(all)
}

/// Whether the damage in `dir` is found or refused, or changes no answer.
fn is_contained(dir: &Path, whole: Option<&str>) -> bool {
    !found(dir).is_empty() || answers(dir).is_none_or(|answers| Some(answers.as_str()) == whole)
}

/// What a check finds.
fn found(dir: &Path) -> Vec<String> {
    match Inspection::open(dir).and_then(|inspection| inspection.verify()) {
        Ok(verified) => verified.damage.into_iter().map(|damage| damage.what).collect(),
        Err(error) => vec![error.to_string()],
    }
}

/// The bits that are flipped: with the first a name stays text, with the last it does not.
const BITS: [u8; 2] = [1, 128];

/// `value` with a flipped bit; none if it has none. A text comes as bytes. Of a number, one bit is
/// enough.
fn flipped(value: Value, bit: u8) -> Option<Value> {
    let flip = |mut bytes: Vec<u8>| {
        let middle = bytes.len() / 2;
        bytes.get_mut(middle).map(|byte| *byte ^= bit)?;
        Some(Value::Blob(bytes))
    };
    match value {
        Value::Integer(number) if bit == BITS[0] => Some(Value::Integer(number ^ 1)),
        Value::Text(text) => flip(text.into_bytes()),
        Value::Blob(bytes) => flip(bytes),
        _ => None,
    }
}

/// Copies of `dir`, each with one flipped bit in one column of one row; and what was flipped.
fn each_flip(dir: &Path) -> Vec<(String, TempDir)> {
    let mut copies = Vec::new();
    let db = Connection::open(database(dir)).unwrap();
    for table in TABLES {
        let mut all = db.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let columns: Vec<String> = all.column_names().map(str::to_owned).collect();
        let rows = all.query_map([], |row| {
            Ok((0..columns.len()).map(|index| row.get(index).unwrap()).collect::<Vec<Value>>())
        });
        for row in rows.unwrap().map(Result::unwrap) {
            for ((index, column), bit) in
                columns.iter().enumerate().flat_map(|column| BITS.map(|bit| (column, bit)))
            {
                let Some(new) = flipped(row[index].clone(), bit) else { continue };
                let new_value = match row[index] {
                    Value::Text(_) => "CAST(?1 AS TEXT)",
                    _ => "?1",
                };
                let copy = TempDir::new().unwrap();
                std::fs::copy(database(dir), database(copy.path())).unwrap();
                let changed = Connection::open(database(copy.path())).unwrap();
                let filter: Vec<String> = (0..columns.len())
                    .map(|at| format!("{} IS ?{}", columns[at], at + 2))
                    .collect();
                let filter = filter.join(" AND ");
                let sql = format!("UPDATE {table} SET {column} = {new_value} WHERE {filter}");
                let values: Vec<Value> = std::iter::once(new).chain(row.clone()).collect();
                // Two rows of one key cannot be stored.
                if changed.execute(&sql, rusqlite::params_from_iter(values)).is_ok() {
                    drop(changed);
                    copies.push((format!("{table}.{column} of {row:?} ^ {bit}"), copy));
                }
            }
        }
    }
    copies
}

#[test]
fn a_flip_in_every_kind_of_record_is_found() {
    let dir = filled();
    let whole = answers(dir.path());
    assert_eq!(found(dir.path()), Vec::<String>::new());
    let copies = each_flip(dir.path());
    assert!(copies.len() > 110, "{}", copies.len());
    for (what, copy) in copies {
        assert!(is_contained(copy.path(), whole.as_deref()), "{what} is not found");
    }
}

#[test]
fn a_flip_in_the_file_is_found_or_changes_no_answer() {
    let dir = filled();
    let (whole, bytes) = (answers(dir.path()), std::fs::read(database(dir.path())).unwrap());
    let mut checked = 0;
    // Most bytes are zero: the unused rest of their pages.
    for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte != 0).step_by(23) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        let copy = TempDir::new().unwrap();
        std::fs::write(database(copy.path()), damaged).unwrap();
        assert!(is_contained(copy.path(), whole.as_deref()), "byte {at} is not found");
        checked += 1;
    }
    assert!(checked > 200, "{checked}");
}

#[test]
fn a_repaired_database_has_no_damage_and_its_other_jobs() {
    let dir = filled();
    for (what, copy) in each_flip(dir.path()) {
        if found(copy.path()).is_empty() {
            continue;
        }
        let aside = copy.path().join("aside");
        let repaired = repair(copy.path(), &aside).unwrap();
        assert_eq!(repaired.left, [], "{what}");
        assert!(!repaired.damage.is_empty() && aside.join("tidegate.db").exists(), "{what}");
        assert_eq!(repaired.removed, aside.join("damaged.jsonl").exists(), "{what}");
        assert_eq!(found(copy.path()), Vec::<String>::new(), "{what}");
        let store = SqliteStore::open(copy.path()).unwrap();
        let ids = ["small", "large", "keyed", "runs"].map(name);
        run(async {
            let jobs = store.get(&ids).await.unwrap();
            let there = jobs.iter().filter(|job| matches!(job, Ok(Some(_)))).count();
            assert!(there >= 3, "{what}: {jobs:?}");
            assert!(is_limited(&store).await, "{what}");
            let correlation = [Key::Correlation(name("x"), "order".into())];
            let holder = store.keys(&correlation).await.unwrap();
            let keyed = matches!(jobs[2], Ok(Some(_)));
            assert_eq!(holder[0].as_ref().unwrap().is_some(), keyed, "{what}");
        });
    }
}

/// Whether the queue has its limit or is paused.
async fn is_limited(store: &SqliteStore) -> bool {
    let items = store.items(ItemKind::Queue).await.unwrap();
    let mut queues = items.iter().filter(|item| item.name == "mail");
    queues.any(|item| {
        let queue: serde_json::Value = item.read().unwrap();
        queue["paused"] == true || queue["config"]["concurrency"] == 100
    })
}

#[test]
fn a_damaged_queue_is_paused_by_its_repair() {
    let dir = filled();
    let db = Connection::open(database(dir.path())).unwrap();
    let limit = "UPDATE items SET bytes = CAST(replace(CAST(bytes AS TEXT), '100', '900') AS BLOB)";
    assert_eq!(db.execute(limit, params![]).unwrap(), 1);
    drop(db);
    let aside = dir.path().join("aside");
    repair(dir.path(), &aside).unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    run(async {
        let item = store.items(ItemKind::Queue).await.unwrap().remove(0);
        let queue: serde_json::Value = item.read().unwrap();
        assert_eq!((&queue["paused"], item.version), (&serde_json::json!(true), 2));
    });
    let export = std::fs::read_to_string(aside.join("damaged.jsonl")).unwrap();
    assert!(export.contains("900"), "what was stored can be read there: {export}");
}

#[test]
fn an_index_that_differs_from_its_table_is_built_again() {
    let dir = filled();
    let db = Connection::open(database(dir.path())).unwrap();
    let root = "SELECT rootpage FROM sqlite_schema WHERE name = 'jobs_by_id'";
    let page: u32 = db.query_row(root, [], |row| row.get(0)).unwrap();
    let page = page as usize;
    drop(db);
    let mut bytes = std::fs::read(database(dir.path())).unwrap();
    let page = &mut bytes[(page - 1) * 4096..page * 4096];
    let at = page.windows(5).position(|entry| entry == b"small").unwrap();
    page[at] ^= 1;
    std::fs::write(database(dir.path()), bytes).unwrap();
    assert!(!found(dir.path()).is_empty());
    let repaired = repair(dir.path(), &dir.path().join("aside")).unwrap();
    assert_eq!((repaired.left, repaired.removed), (Vec::new(), false));
    let store = SqliteStore::open(dir.path()).unwrap();
    run(async { assert!(matches!(store.get(&[name("small")]).await.unwrap()[0], Ok(Some(_)))) });
}

#[tokio::test]
async fn the_oldest_due_job_is_found_behind_1500_damaged_ones() {
    let dir = TempDir::new().unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    let add = |n: i64| vec![Write::AddJob(job(&format!("job-{n:04}")).due(n).build())];
    store.commit((0..1501).map(add).collect()).await.unwrap();
    let db = Connection::open(database(dir.path())).unwrap();
    let damage = "UPDATE jobs SET life = x'00' WHERE id < 'job-1500'";
    assert_eq!(db.execute(damage, params![]).unwrap(), 1500);
    let harness = Harness::on(Arc::new(store));
    let types = [(name("default"), vec![name("work")])].into();
    let oldest = harness.engine.oldest_due(types, at(2000)).await.unwrap();
    assert_eq!(oldest, [(name("default"), Some(at(1500)))].into());
}

/// Executes `sql` on the database in `dir`, which must change one row.
fn change(dir: &Path, sql: &str) {
    assert_eq!(Connection::open(database(dir)).unwrap().execute(sql, []).unwrap(), 1, "{sql}");
}

/// Changes the first `was` in the page of the table `name` to `is`.
pub fn overwrite(dir: &Path, table: &str, was: &[u8], is: &[u8]) {
    let db = Connection::open(database(dir)).unwrap();
    let root = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
    let page: u32 = db.query_row(root, [table], |row| row.get(0)).unwrap();
    let page = page as usize;
    drop(db);
    let mut bytes = std::fs::read(database(dir)).unwrap();
    let page = &mut bytes[(page - 1) * 4096..page * 4096];
    let at = page.windows(was.len()).position(|entry| entry == was).unwrap();
    page[at..at + is.len()].copy_from_slice(is);
    std::fs::write(database(dir), bytes).unwrap();
}

/// Adds items with version 1.
fn add_items(dir: &Path, items: &[(ItemKind, &str)]) {
    let store = SqliteStore::open(dir).unwrap();
    let item = |(kind, name): &(ItemKind, &str)| Write::SetItem {
        kind: *kind,
        name: (*name).into(),
        was: 0,
        version: 1,
        bytes: Some(b"true".to_vec()),
    };
    run(async { store.commit(vec![items.iter().map(item).collect()]).await.map(drop).unwrap() });
}

fn items(dir: &Path, kind: ItemKind) -> Vec<Item> {
    let store = SqliteStore::open(dir).unwrap();
    let mut items = Vec::new();
    run(async { items = store.items(kind).await.unwrap() });
    items
}

#[test]
fn two_rows_with_one_key_are_repaired() {
    for (table, was, is, there) in
        [("jobs", b"small", b"large", 3), ("queue_names", b"mail2", b"mail1", 4)]
    {
        let dir = filled();
        let store = SqliteStore::open(dir.path()).unwrap();
        let also = |queue| vec![Write::AddJob(job(queue).queue(queue).build())];
        let txns = vec![also("mail1"), also("mail2")];
        run(async { store.commit(txns).await.map(drop).unwrap() });
        drop(store);
        overwrite(dir.path(), table, was, is);
        let repaired = repair(dir.path(), &dir.path().join("aside")).unwrap();
        assert_eq!(repaired.left, [], "{table}");
        assert_eq!(found(dir.path()), Vec::<String>::new(), "{table}");
        let store = SqliteStore::open(dir.path()).unwrap();
        run(async {
            let ids = ["small", "large", "keyed", "runs", "mail1", "mail2"].map(name);
            let jobs = store.get(&ids).await.unwrap();
            assert_eq!(jobs.iter().flatten().flatten().count(), there + 2, "{table}: {jobs:?}");
            for (id, job) in ids.iter().zip(jobs).skip(4) {
                assert_eq!(job.unwrap().unwrap().spec.queue.as_str(), id.as_str(), "{table}");
            }
        });
    }
}

#[test]
fn a_damaged_batch_that_no_ledger_names_is_removed_alone() {
    let dir = filled();
    change(
        dir.path(),
        "INSERT INTO batches SELECT queue, id + 1, for_head, batch FROM batches WHERE id = 7",
    );
    let repaired = repair(dir.path(), &dir.path().join("aside")).unwrap();
    assert_eq!((repaired.damage.len(), repaired.left.len()), (1, 0), "{:?}", repaired.damage);
    let store = SqliteStore::open(dir.path()).unwrap();
    run(async {
        let (ledger, batches) = store.ledger(&name("mail")).await.unwrap().unwrap();
        assert_eq!((ledger.version, batches.len()), (1, 1));
        assert_eq!(store.batches(&name("mail")).await.unwrap(), [(BatchId(7), 1)]);
    });
}

#[test]
fn keys_of_no_job_are_set_aside_and_reported() {
    let dir = filled();
    change(dir.path(), "UPDATE jobs SET spec = zeroblob(9) WHERE id = 'keyed'");
    let aside = dir.path().join("aside");
    let repaired = repair(dir.path(), &aside).unwrap();
    assert!(repaired.done.iter().any(|line| line.starts_with("1 keys ")), "{:?}", repaired.done);
    let export = std::fs::read_to_string(aside.join("damaged.jsonl")).unwrap();
    let keys = export.lines().filter(|line| line.contains(r#""table":"keys""#)).count();
    assert_eq!(keys, 1, "{export}");
}

#[test]
fn a_repair_leaves_a_closed_api_closed() {
    let changes = [
        "bytes = x'00112233'",
        "kind = 'closee'",
        "name = 'cloted'",
        "name = CAST(x'ff61' AS TEXT)",
    ];
    for damage in changes {
        let dir = filled();
        add_items(dir.path(), &[(ItemKind::Closed, "closed")]);
        change(dir.path(), &format!("UPDATE items SET {damage} WHERE kind = 'closed'"));
        let repaired = repair(dir.path(), &dir.path().join("aside")).unwrap();
        assert_eq!(repaired.left, [], "{damage}");
        let closed = items(dir.path(), ItemKind::Closed);
        assert_eq!(closed.len(), 1, "{damage}");
        assert_eq!((closed[0].name.as_str(), closed[0].read()), ("closed", Ok(true)), "{damage}");
    }
}

#[test]
fn damage_of_a_token_pauses_no_queue() {
    for (damage, paused) in [("bytes = zeroblob(9)", 0), ("kind = 'uoken'", 1)] {
        let dir = filled();
        add_items(dir.path(), &[(ItemKind::Token, "t")]);
        change(dir.path(), "DELETE FROM items WHERE kind = 'queue'");
        change(dir.path(), &format!("UPDATE items SET {damage} WHERE kind = 'token'"));
        repair(dir.path(), &dir.path().join("aside")).unwrap();
        assert_eq!(items(dir.path(), ItemKind::Queue).len(), paused, "{damage}");
    }
}

#[test]
fn a_name_that_is_no_text_hides_no_other() {
    let dir = filled();
    add_items(dir.path(), &[(ItemKind::Queue, "aa"), (ItemKind::Token, "t")]);
    let store = SqliteStore::open(dir.path()).unwrap();
    let kept = |name: &str| {
        let (kind, bytes) = (RecordKind::Reply, b"{}".to_vec());
        Write::PutRecord(Record { kind, name: name.into(), until: at(5), bytes })
    };
    run(async {
        store.commit(vec![vec![kept("r-0"), kept("r-2")]]).await.map(drop).unwrap();
    });
    drop(store);
    let no_text = "name = CAST(substr(CAST(name AS BLOB), 1, 1) || x'ff' AS TEXT)";
    change(dir.path(), &format!("UPDATE items SET {no_text} WHERE name = 'aa'"));
    change(dir.path(), &format!("UPDATE records SET {no_text} WHERE name = 'r-0'"));
    let store = SqliteStore::open(dir.path()).unwrap();
    let query =
        RecordQuery { kind: RecordKind::Reply, prefix: String::new(), after: None, limit: 100 };
    run(async {
        let queues = store.items(ItemKind::Queue).await.unwrap();
        let readable: Vec<bool> = queues.iter().map(|item| item.bytes.is_ok()).collect();
        assert_eq!(readable, [false, true]);
        let records = store.records(std::slice::from_ref(&query)).await.unwrap().remove(0);
        let names: Vec<&str> = records.iter().map(|record| record.name.as_str()).collect();
        assert_eq!(names, ["r-1", "r-2"]);
        let all = store.all_records(RecordKind::Reply, None, 100).await.unwrap();
        assert_eq!(all.records, records);
        assert_eq!((&all.damaged[..], all.next), (&["r\u{fffd}".to_owned()][..], None));
        let purged = store.purge(RecordKind::Reply, at(5), 100, 10).await.unwrap();
        assert_eq!((purged.expired, purged.left), (1, 2), "r-2; r-1 is kept for longer");
    });
    drop(store);
    let repaired = repair(dir.path(), &dir.path().join("aside")).unwrap();
    assert_eq!((repaired.damage.len(), repaired.left.len()), (2, 0), "{:?}", repaired.damage);
}

#[test]
fn each_damaged_job_is_logged_once_until_the_log_is_full() {
    let (log, _logging) = Log::capture(tracing::level_filters::LevelFilter::INFO);
    let store = SqliteStore::open_temporary().unwrap();
    let count = 10_500;
    let ids: Vec<String> = (0..count).map(|n| format!("gone-{n:05}")).collect();
    let txns = ids.iter().map(|id| vec![Write::AddJob(job(id).queue("mail").of_type("x").build())]);
    run(async { store.commit(txns.collect()).await.map(drop).unwrap() });
    let damage = "UPDATE jobs SET life = x'0155aa'";
    assert_eq!(Connection::open(store.file()).unwrap().execute(damage, []).unwrap(), count);
    let mut query = DueQuery {
        queue: name("mail"),
        critical: false,
        types: vec![name("x")],
        partition: None,
        order: Order::Time { step_millis: 0 },
        until: Timestamp::MAX,
        after: None,
        limit: 10,
        granted: None,
    };
    run(async {
        for pass in 0..3 {
            let mut pages = 0;
            loop {
                let page = store.due(std::slice::from_ref(&query)).await.unwrap().remove(0);
                assert_eq!(page.jobs, []);
                pages += 1;
                query.after = page.next;
                if query.after.is_none() {
                    break;
                }
            }
            assert!((2..100).contains(&pages), "each page is bounded: {pages}");
            let log = log.text();
            let lines: Vec<&str> = log.lines().collect();
            assert_eq!(lines.len(), 10_001, "after pass {pass}");
            for (id, line) in ids.iter().zip(&lines[..10_000]) {
                assert!(line.contains(id.as_str()), "{id} is not in {line}");
            }
            assert!(lines[10_000].contains("more records cannot be read"), "{}", lines[10_000]);
        }
    });
}
