//! Damage of a database is found by a check, contained, and repaired.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use std::{fmt::Write as _, path::Path};

use rusqlite::{Connection, params, types::Value};
use tempfile::TempDir;
use tidegate_backends::sqlite::{Inspection, SqliteStore, database, repair};
use tidegate_core::{
    job::{Event, QueueName, Token},
    port::job_store::{
        DueQuery, Expect, ItemKind, JobStore, Key, ListQuery, Record, RecordKind, RecordQuery,
        Write,
    },
    queue::{
        Grant, GrantBatch, Ledger,
        ledger::{BatchId, BatchRef},
        order::Order,
    },
    stored::UnknownFields,
    time::{Seconds, Timestamp},
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
    let batch = GrantBatch {
        id: BatchId(7),
        ledger_version: 1,
        grants: vec![Grant {
            job: name("runs"),
            version: tidegate_core::job::Version(1),
            job_type: name("x"),
            priority: 0,
            weight: 1,
            critical: false,
            attributes: std::collections::BTreeMap::new(),
            granted_at: at(1),
            unknown: UnknownFields::default(),
        }],
        state: None,
        unknown: UnknownFields::default(),
    };
    let named = BatchRef {
        id: BatchId(7),
        count: 1,
        released: tidegate_core::queue::ledger::Bits::default(),
        check_at: at(60_000),
        sent: true,
        sends: 0,
        unknown: UnknownFields::default(),
    };
    let ledger = Ledger { version: 1, batches: vec![named], ..Ledger::default() };
    let of = |id: &str| job(id).queue("mail").of_type("x");
    let runs = of("runs").build();
    let token = Token::new(5);
    let claim = Event::Claim {
        version: runs.life.version,
        token,
        worker: None,
        lease: Seconds::new(30).duration(),
        granted: true,
        decided_at: at(1),
    };
    let claimed = runs.apply(claim, at(1)).unwrap();
    let keyed = of("keyed").with(|spec| spec.correlation_key = Some("order".into())).build();
    let key = Key::Correlation(name("x"), "order".into());
    let record =
        Record { kind: RecordKind::Reply, name: "r-1".into(), until: at(9), bytes: b"{}".to_vec() };
    let queue = serde_json::json!({"config": {"concurrency": 100}, "paused": false, "version": 1});
    let item = Write::SetItem {
        kind: ItemKind::Queue,
        name: "mail".into(),
        was: 0,
        version: 1,
        bytes: Some(queue.to_string().into_bytes()),
    };
    run(async {
        let txns = vec![
            vec![
                Write::AddJob(
                    of("small").data(tidegate_core::job::Encoding::Json, "[100]").build(),
                ),
                item,
                Write::PutRecord(record),
            ],
            vec![Write::AddJob(
                of("large").data(tidegate_core::job::Encoding::Json, vec![b'1'; 3000]).build(),
            )],
            vec![
                Write::SetKey { key, job: keyed.id.clone(), was: Expect::Absent },
                Write::AddJob(keyed),
            ],
            vec![Write::AddJob(runs.clone())],
            vec![
                Write::SetJob { job: claimed, was: runs.life.revision, all: false },
                Write::AddBatch(name("mail"), batch),
                Write::SetLedger { queue: name("mail"), ledger, was: Expect::Absent },
            ],
        ];
        store.commit(txns).await.map(drop).unwrap();
    });
    drop(store);
    dir
}

/// Everything that reads return; none if the start is refused.
fn answers(dir: &Path) -> Option<String> {
    let store = SqliteStore::open(dir).ok()?;
    let mut all = String::new();
    run(async {
        let ids = ["small", "large", "keyed", "runs", "none"].map(name);
        let queue: &QueueName = &name("mail");
        let due = DueQuery {
            queue: queue.clone(),
            critical: false,
            types: vec![name("x")],
            partition: None,
            order: Order::Time { step_millis: 0 },
            until: Timestamp::MAX,
            after: None,
            limit: 100,
        };
        let critical = DueQuery { critical: true, ..due.clone() };
        let keys = [Key::Correlation(name("x"), "order".into())];
        let list = ListQuery { limit: 100, ..ListQuery::default() };
        let records =
            RecordQuery { kind: RecordKind::Reply, prefix: String::new(), after: None, limit: 100 };
        let _ = write!(
            all,
            "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
            store.get(&ids).await,
            store.bodies(&ids).await,
            store.due(&[due, critical]).await,
            store.partitions(queue, &[name("x")], None, 9).await,
            store.overdue(Timestamp::MAX, 100).await,
            store.running(queue, None, 100).await,
            store.ledger(queue).await,
            store.batches(queue).await,
            store.keys(&keys).await,
            store.list(&list).await.map(|page| page.jobs),
            store.items(ItemKind::Queue).await,
            store.records(&[records]).await,
        );
        let mut depth = store.depth().await.unwrap();
        depth.sort_by_key(|depth| depth.state);
        let _ = write!(all, "{depth:?}");
    });
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

/// `value` with a flipped bit; none if it has none.
fn flipped(value: Value) -> Option<Value> {
    let flip = |mut bytes: Vec<u8>| {
        let middle = bytes.len() / 2;
        bytes.get_mut(middle).map(|byte| *byte ^= 1)?;
        Some(bytes)
    };
    Some(match value {
        Value::Integer(number) => Value::Integer(number ^ 1),
        Value::Text(text) => Value::Text(String::from_utf8(flip(text.into_bytes())?).unwrap()),
        Value::Blob(bytes) => Value::Blob(flip(bytes)?),
        _ => return None,
    })
}

/// A copy of `dir`, each with one flipped bit in one column of one row; and what was flipped.
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
            for (index, column) in columns.iter().enumerate() {
                let Some(new) = flipped(row[index].clone()) else { continue };
                let copy = TempDir::new().unwrap();
                std::fs::copy(database(dir), database(copy.path())).unwrap();
                let changed = Connection::open(database(copy.path())).unwrap();
                let filter: Vec<String> = (0..columns.len())
                    .map(|at| format!("{} IS ?{}", columns[at], at + 2))
                    .collect();
                let sql =
                    format!("UPDATE {table} SET {column} = ?1 WHERE {}", filter.join(" AND "));
                let values: Vec<Value> = std::iter::once(new).chain(row.clone()).collect();
                // Two rows of one key cannot be stored.
                if changed.execute(&sql, rusqlite::params_from_iter(values)).is_ok() {
                    drop(changed);
                    copies.push((format!("{table}.{column} of {row:?}"), copy));
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
    assert!(copies.len() > 80, "{}", copies.len());
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
            let correlation = [Key::Correlation(name("x"), "order".into())];
            let holder = store.keys(&correlation).await.unwrap();
            let keyed = matches!(jobs[2], Ok(Some(_)));
            assert_eq!(holder[0].is_some(), keyed, "{what}");
        });
    }
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
