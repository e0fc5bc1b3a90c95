//! What happens to files only: they outlive their process, are damaged, fill the disk, or are
//! locked by another process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use std::{io::Write as _, path::Path, sync::Arc};

use rusqlite::Connection;
use tempfile::TempDir;
use tidegate_backends::sqlite::{
    OpenError, SqliteStore, backup, database, forget_database, holder,
};
use tidegate_core::{
    job::{Encoding, Job, Revision},
    port::job_store::{
        Committed, CurrentRecord, Expect, ItemKind, JobFilter, JobStore, Key, ListQuery,
        StateFilter, StoreError, Write,
    },
    queue::{GrantBatch, Ledger, ledger::BatchId},
    stored::UnknownFields,
};
use tidegate_engine::testkit::{
    builders::{job, name},
    conformance::run,
};

fn opened(dir: &Path) -> SqliteStore {
    SqliteStore::open(dir).unwrap()
}

async fn add(store: &SqliteStore, job: Job) -> Result<Vec<Committed>, StoreError> {
    store.commit(vec![vec![Write::AddJob(job)]]).await
}

/// A directory with a store of some jobs, closed.
fn filled(jobs: usize) -> TempDir {
    let dir = TempDir::new().unwrap();
    let store = opened(dir.path());
    let txns = (0..jobs).map(|n| {
        vec![Write::AddJob(job(&format!("job-{n}")).data(Encoding::Json, vec![b'1'; 500]).build())]
    });
    run(async { assert_eq!(store.commit(txns.collect()).await.unwrap().len(), jobs) });
    drop(store);
    dir
}

#[test]
fn everything_is_there_after_the_store_is_opened_again() {
    let dir = TempDir::new().unwrap();
    let kept =
        job("kept").queue("mail").of_type("x").data(Encoding::MessagePack, vec![7; 3000]).build();
    let key = Key::Correlation(name("x"), "k".into());
    run(async {
        let store = opened(dir.path());
        let txn = vec![
            Write::AddJob(kept.clone()),
            Write::SetKey { key: key.clone(), job: kept.id.clone(), was: Expect::Absent },
            Write::AddBatch(
                name("mail"),
                GrantBatch {
                    id: BatchId(1),
                    ledger_version: 1,
                    grants: vec![],
                    state: None,
                    unknown: UnknownFields::default(),
                },
            ),
            Write::SetLedger {
                queue: name("mail"),
                ledger: Ledger { version: 1, ..Ledger::default() },
                was: Expect::Absent,
            },
            Write::SetItem {
                kind: ItemKind::Queue,
                name: "mail".into(),
                was: 0,
                version: 1,
                bytes: Some(b"{}".to_vec()),
            },
        ];
        store.commit(vec![txn]).await.unwrap();
        drop(store);

        let store = opened(dir.path());
        let found = store.get(std::slice::from_ref(&kept.id)).await.unwrap().remove(0);
        let found = found.unwrap().unwrap();
        assert_eq!((&found.spec, &found.life), (&kept.spec, &kept.life));
        assert_eq!(
            store.bodies(std::slice::from_ref(&kept.id)).await.unwrap(),
            [Ok(kept.data.inline().cloned())]
        );
        assert_eq!(store.keys(&[key]).await.unwrap(), [Ok(Some(kept.id.clone()))]);
        assert_eq!(store.ledger(&name("mail")).await.unwrap().unwrap().0.version, 1);
        assert_eq!(store.batches(&name("mail")).await.unwrap(), [(BatchId(1), 1)]);
        assert_eq!(store.items(ItemKind::Queue).await.unwrap().len(), 1);
        let depth = store.depth(None).await.unwrap().counts;
        assert_eq!((depth.len(), depth[0].jobs, depth[0].state), (1, 1, StateFilter::Scheduled));
        // Names keep their numbers: the old queue is found, and a new one does not take its place.
        add(&store, job("new").queue("other").of_type("y").build()).await.unwrap();
        let query = ListQuery {
            filter: JobFilter { queue: Some(name("mail")), ..JobFilter::default() },
            limit: 10,
            ..ListQuery::default()
        };
        assert_eq!(store.list(&query).await.unwrap().jobs.len(), 1);
    });
}

#[test]
fn a_sent_request_is_written_after_its_caller_is_gone() {
    let dir = TempDir::new().unwrap();
    let store = opened(dir.path());
    run(async {
        use futures_util::FutureExt;
        for n in 0..50 {
            // Polled once: the request is on its way, and then its caller is gone. Only a very fast
            // writer has answered by then.
            let _ = add(&store, job(&format!("job-{n}")).build()).now_or_never();
        }
    });
    drop(store);
    let depth = opened(dir.path());
    run(async { assert_eq!(depth.depth(None).await.unwrap().counts[0].jobs, 50) });
}

#[test]
fn a_second_server_is_refused_with_the_name_of_the_first() {
    let dir = TempDir::new().unwrap();
    let first = opened(dir.path());
    let Err(OpenError::Held { by, .. }) = SqliteStore::open(dir.path()) else {
        panic!("it should be held")
    };
    assert!(by.starts_with(&format!("process {}, since 2", std::process::id())), "{by}");
    drop(first);
    opened(dir.path());
}

#[test]
fn a_newer_file_is_refused() {
    let dir = filled(1);
    Connection::open(database(dir.path()))
        .unwrap()
        .execute_batch("PRAGMA user_version = 99")
        .unwrap();
    let Err(error) = SqliteStore::open(dir.path()) else { panic!("it should be refused") };
    assert!(matches!(error, OpenError::Newer { found: 99, .. }), "{error}");
    assert!(error.to_string().contains("format 99"), "{error}");
}

#[test]
fn a_file_of_an_earlier_build_is_refused_in_clear_words() {
    let dir = filled(1);
    let db = Connection::open(database(dir.path())).unwrap();
    db.execute_batch("PRAGMA user_version = 2").unwrap();
    drop(db);
    let Err(error) = SqliteStore::open(dir.path()) else { panic!("it should be refused") };
    assert!(matches!(error, OpenError::Older { found: 2, .. }), "{error}");
    assert!(error.to_string().contains("run that build to finish"), "{error}");
}

#[test]
fn a_directory_that_lost_its_database_is_refused() {
    for is_empty in [false, true] {
        let dir = filled(3);
        let file = database(dir.path());
        if is_empty {
            std::fs::write(&file, b"").unwrap();
        } else {
            std::fs::remove_file(&file).unwrap();
        }
        for _ in 0..2 {
            let Err(error) = SqliteStore::open(dir.path()) else { panic!("it should be refused") };
            assert!(error.to_string().contains("`--new`"), "{error}");
            assert_eq!(file.exists(), is_empty, "nothing is created");
        }
        forget_database(dir.path()).unwrap();
        drop(opened(dir.path()));
        assert!(matches!(forget_database(dir.path()), Err(OpenError::NotNew { .. })));
        opened(dir.path());
    }
}

#[test]
fn a_file_of_another_program_is_refused_and_left_alone() {
    let dir = TempDir::new().unwrap();
    Connection::open(database(dir.path()))
        .unwrap()
        .execute_batch("CREATE TABLE theirs (a); INSERT INTO theirs VALUES (1)")
        .unwrap();
    let before = std::fs::read(database(dir.path())).unwrap();
    let Err(OpenError::Damaged { problem, .. }) = SqliteStore::open(dir.path()) else {
        panic!("it should be refused")
    };
    assert_eq!(problem, "is a database of another program");
    assert_eq!(std::fs::read(database(dir.path())).unwrap(), before);
}

#[test]
fn a_damaged_file_is_refused_with_what_to_do() {
    let whole = filled(200);
    let bytes = std::fs::read(database(whole.path())).unwrap();
    let garbage: Vec<u8> = (0..20_000u32).map(|n| (n * 31 % 251) as u8).collect();
    let mut head_gone = bytes.clone();
    head_gone[..100].fill(0);
    for (what, damaged) in [
        ("cut in half", &bytes[..bytes.len() / 2]),
        ("cut to 50 bytes", &bytes[..50]),
        ("garbage", &garbage),
        ("no head", &head_gone),
    ] {
        let dir = TempDir::new().unwrap();
        std::fs::write(database(dir.path()), damaged).unwrap();
        let Err(error) = SqliteStore::open(dir.path()) else { panic!("{what} should be refused") };
        assert!(matches!(error, OpenError::Damaged { .. }), "{what}: {error}");
        assert!(error.to_string().contains("restore it from a backup"), "{what}: {error}");
        assert_eq!(
            std::fs::read(database(dir.path())).unwrap(),
            damaged,
            "{what}: the file is left as it is"
        );
    }
}

#[test]
fn a_damaged_page_is_reported_by_its_reader_and_harms_no_other() {
    let dir = filled(1);
    {
        let db = Connection::open(database(dir.path())).unwrap();
        db.execute_batch("UPDATE jobs SET life = x'0155aa' WHERE id = 'job-0'").unwrap();
    }
    let store = Arc::new(opened(dir.path()));
    run(async {
        let got = store.get(&[name("job-0")]).await;
        let unreadable = got.unwrap().remove(0).unwrap_err();
        assert!(unreadable.reason.contains("lifecycle of job job-0"), "{unreadable:?}");
        // In one group with a write that meets the damage, other writes go through.
        let taken = job("job-0").build();
        let (meets, good) =
            futures_util::future::join(add(&store, taken), add(&store, job("good").build())).await;
        let Committed::Conflict { current: CurrentRecord::Unreadable(job), .. } =
            &meets.unwrap()[0]
        else {
            panic!("it meets the damaged job");
        };
        assert_eq!(job.id, "job-0");
        assert!(matches!(good.unwrap()[0], Committed::All));
    });
}

#[test]
fn a_full_disk_refuses_new_jobs_and_keeps_the_accepted_ones() {
    let dir = TempDir::new().unwrap();
    let store = SqliteStore::open_bounded(dir.path(), 200).unwrap();
    let big = |n: usize| job(&format!("job-{n}")).data(Encoding::Json, vec![b'1'; 1000]).build();
    run(async {
        let mut accepted = 0;
        let refusal = loop {
            match add(&store, big(accepted)).await {
                Ok(answers) => assert!(matches!(answers[0], Committed::All)),
                Err(error) => break error,
            }
            accepted += 1;
        };
        let StoreError::Throttled { retry_after, .. } = refusal else { panic!("{refusal}") };
        assert_eq!(retry_after.as_secs(), 1);
        assert!(accepted > 100, "{accepted}");
        // Many at once: those in the same group are refused too, and the reads go on.
        let many =
            futures_util::future::join_all((0..20).map(|n| add(&store, big(10_000 + n)))).await;
        assert!(many.iter().all(|answer| matches!(answer, Err(StoreError::Throttled { .. }))));
        assert_eq!(store.depth(None).await.unwrap().counts[0].jobs, accepted as u64);
        assert_eq!(store.get(&[name("job-0"), name("job-10000")]).await.unwrap()[1], Ok(None));

        // Room that is made is used, even by a removal that shares its group with an insert.
        let remove = |n: usize| {
            store.commit(vec![vec![Write::RemoveJob {
                id: name(&format!("job-{n}")),
                was: Revision(1),
            }]])
        };
        let (inserts, removals) = futures_util::future::join(
            add(&store, big(20_000)),
            futures_util::future::join_all((0..50).map(remove)),
        )
        .await;
        drop(inserts);
        assert!(removals.iter().all(Result::is_ok), "{removals:?}");
        add(&store, big(30_000)).await.unwrap();
        drop(store);
        let store = opened(dir.path());
        let ids: Vec<_> = (50..accepted).map(|n| name(&format!("job-{n}"))).collect();
        assert!(
            store.get(&ids).await.unwrap().iter().all(|job| matches!(job, Ok(Some(_)))),
            "every accepted job is there"
        );
    });
}

#[test]
fn a_backup_during_writes_is_a_consistent_snapshot() {
    let dir = filled(2000);
    let store = opened(dir.path());
    let to = dir.path().join("copy/tidegate.db");
    std::fs::create_dir(dir.path().join("copy")).unwrap();
    std::thread::scope(|threads| {
        let copied = threads.spawn(|| backup(dir.path(), &to));
        run(async {
            let mut n = 0;
            while !copied.is_finished() {
                add(&store, job(&format!("later-{n}")).build()).await.unwrap();
                n += 1;
            }
        });
        copied.join().unwrap().unwrap();
    });
    let copy = opened(&dir.path().join("copy"));
    run(async {
        let jobs: u64 = copy.depth(None).await.unwrap().counts.iter().map(|depth| depth.jobs).sum();
        let mut listed = 0;
        let mut query = ListQuery { limit: 1000, ..ListQuery::default() };
        loop {
            let page = copy.list(&query).await.unwrap();
            listed += page.jobs.len();
            query.cursor = page.next_cursor;
            if query.cursor.is_none() {
                break;
            }
        }
        assert!(listed >= 2000);
        assert_eq!(jobs, listed as u64, "counts and jobs are of one instant");
    });
    let again = backup(dir.path(), &to);
    assert!(
        matches!(&again, Err(OpenError::Io { message, .. }) if message == "it exists already"),
        "{again:?}"
    );
    let nothing = TempDir::new().unwrap();
    assert!(backup(nothing.path(), &nothing.path().join("copy.db")).is_err());
    assert!(!nothing.path().join("copy.db").exists());
}

#[test]
fn the_views_show_what_people_look_for() {
    let dir = filled(1);
    let db = Connection::open(database(dir.path())).unwrap();
    let row: (String, String, String, String, String) = db
        .query_row(
            "SELECT type, queue, state, run_at, substr(data, 1, 3) FROM jobs_readable",
            [],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)),
        )
        .unwrap();
    let expected =
        ["work", "default", "scheduled", "1970-01-01T00:00:00.000Z", "111"].map(String::from);
    assert_eq!([row.0, row.1, row.2, row.3, row.4], expected);
    let counts: (String, i64) = db
        .query_row("SELECT state, jobs FROM counts_readable", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    assert_eq!(counts, ("scheduled".into(), 1));
    db.prepare("SELECT * FROM items_readable").unwrap();
}

#[test]
fn the_lock_file_names_its_process() {
    let dir = TempDir::new().unwrap();
    std::fs::File::create(dir.path().join("lock"))
        .unwrap()
        .write_all(b"process 4000000 of long ago, and more text\n")
        .unwrap();
    let _store = opened(dir.path());
    assert_eq!(
        std::fs::read_to_string(dir.path().join("lock")).unwrap(),
        format!("process {}\n", std::process::id())
    );
}

#[test]
fn a_removed_lock_file_lets_no_second_server_start() {
    let dir = TempDir::new().unwrap();
    let first = opened(dir.path());
    std::fs::remove_file(dir.path().join("lock")).unwrap();
    let Err(OpenError::Held { by, .. }) = SqliteStore::open(dir.path()) else {
        panic!("it should be held")
    };
    assert_eq!(by, "another process");
    assert_eq!(holder(dir.path()).unwrap().as_deref(), Some("another process"));
    drop(first);
    assert_eq!(holder(dir.path()).unwrap(), None);
    opened(dir.path());
}

#[test]
fn a_lock_that_is_a_link_is_not_followed() {
    let dir = TempDir::new().unwrap();
    let target = dir.path().join("precious");
    std::fs::write(&target, "data").unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::os::unix::fs::symlink(&target, data.join("lock")).unwrap();
    let Err(error) = SqliteStore::open(&data) else { panic!("it should be refused") };
    assert!(error.to_string().contains("symbolic link"), "{error}");
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "data");
}
