//! Several servers on one database, and transactions that race.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};

use super::server::{self, RUNTIME, WAITING, open, rows, settings, settings_of_a_database, store};
use crate::postgres::{OpenError, PostgresStore, Settings, connect::in_order};
use tidegate_core::{
    job::{Job, Revision},
    port::job_store::{Committed, CurrentRecord, Expect, ItemKind, JobStore, Key, Txn, Write},
};
use tidegate_engine::testkit::builders::{job, name};

fn commit(store: &PostgresStore, txns: Vec<Txn>) -> Vec<Committed> {
    RUNTIME.block_on(store.commit(txns)).unwrap()
}

/// The change of `job` to its next revision.
fn next(job: &Job) -> Write {
    let (was, mut job) = (job.life.revision, job.clone());
    job.life.revision.0 += 1;
    Write::SetJob { job, was, all: false }
}

fn set_item(was: u64, version: u64) -> Write {
    let (kind, name) = (ItemKind::Queue, "mail".into());
    Write::SetItem { kind, name, was, version, bytes: Some(b"{}".to_vec()) }
}

fn require(version: u64) -> Write {
    Write::RequireItem { kind: ItemKind::Queue, name: "mail".into(), version }
}

#[test]
fn one_refused_transaction_of_fifty_stops_no_other() {
    let store = store();
    let jobs: Vec<Job> = (0..50).map(|n| job(&format!("job-{n:02}")).build()).collect();
    commit(&store, jobs.iter().map(|job| vec![Write::AddJob(job.clone())]).collect());
    commit(&store, vec![vec![next(&jobs[17])]]);
    let answers = commit(&store, jobs.iter().map(|job| vec![next(job)]).collect());
    for (n, answer) in answers.iter().enumerate() {
        match answer {
            Committed::All => assert_ne!(n, 17),
            Committed::Conflict { step: 0, current: CurrentRecord::Job(current) } => {
                assert_eq!((n, current.life.revision), (17, Revision(2)));
            }
            other @ Committed::Conflict { .. } => panic!("{n}: {other:?}"),
        }
    }
    let ids: Vec<_> = jobs.iter().map(|job| job.id.clone()).collect();
    let found = RUNTIME.block_on(store.get(&ids)).unwrap();
    assert!(found.iter().all(|job| job.as_ref().unwrap().as_ref().unwrap().life.revision.0 == 2));
}

#[test]
fn changes_of_one_record_in_a_commit_follow_each_other() {
    let store = store();
    let mut one = job("one").build();
    let mut txns = vec![vec![Write::AddJob(one.clone())]];
    for _ in 0..40 {
        txns.push(vec![next(&one)]);
        txns.push(vec![next(&one), Write::AddJob(job("never").build())]);
        one.life.revision.0 += 1;
    }
    let answers = commit(&store, txns);
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(matches!(answer, Committed::All), n == 0 || n % 2 == 1, "{n}: {answer:?}");
    }
    let found = RUNTIME.block_on(store.get(&[one.id.clone(), name("never")])).unwrap();
    assert_eq!(found, [Ok(Some(one)), Ok(None)]);
}

/// Eight servers change the same jobs, each in orders of its own. `TIDEGATE_POSTGRES_GROUPS` is the number of
/// their groups together.
#[test]
fn opposite_orders_of_many_servers_never_deadlock() {
    const SERVERS: usize = 8;
    const JOBS: usize = 20;
    let groups = server::number("TIDEGATE_POSTGRES_GROUPS", 480);
    let settings = settings_of_a_database();
    let stores: Vec<Arc<PostgresStore>> = (0..SERVERS).map(|_| Arc::new(open(&settings))).collect();
    let jobs: Vec<Job> = (0..JOBS).map(|n| job(&format!("job-{n:02}")).build()).collect();
    commit(&stores[0], jobs.iter().map(|job| vec![Write::AddJob(job.clone())]).collect());
    let tasks = stores.iter().enumerate().map(|(seed, store)| {
        let (store, jobs) = (Arc::clone(store), jobs.clone());
        RUNTIME.spawn(async move {
            let mut chance = StdRng::seed_from_u64(seed as u64);
            let mut written = vec![0_u64; JOBS];
            for _ in 0..groups / SERVERS {
                let mut order: Vec<usize> = (0..JOBS).collect();
                order.shuffle(&mut chance);
                order.truncate(8);
                let ids: Vec<_> = order.iter().map(|n| jobs[*n].id.clone()).collect();
                let found = store.get(&ids).await.unwrap();
                let found: Vec<Job> = found.into_iter().map(|job| job.unwrap().unwrap()).collect();
                let answers = store.commit(vec![found.iter().map(next).collect()]).await.unwrap();
                if matches!(answers[0], Committed::All) {
                    for n in &order {
                        written[*n] += 1;
                    }
                }
            }
            written
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let mut written = [0_u64; JOBS];
    for task in tasks {
        let one = RUNTIME.block_on(task).unwrap();
        written.iter_mut().zip(one).for_each(|(sum, one)| *sum += one);
    }
    let ids: Vec<_> = jobs.iter().map(|job| job.id.clone()).collect();
    let found = RUNTIME.block_on(stores[0].get(&ids)).unwrap();
    for (n, found) in found.into_iter().enumerate() {
        assert_eq!(found.unwrap().unwrap().life.revision.0, 1 + written[n], "job {n}");
    }
    assert!(written.iter().sum::<u64>() as usize > groups / 5, "{written:?}");
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let found = rows(&stores[0], deadlocks);
    assert_eq!(found[0].get::<_, i64>(0), 0);
}

/// A requirement waits for a change that is not committed, of an item and of an absent one.
#[test]
fn a_required_item_waits_for_a_change_under_way() {
    for start in [0, 1] {
        let store = Arc::new(store());
        if start > 0 {
            commit(&store, vec![vec![set_item(0, start)]]);
        } else {
            // So that the row of an absent item exists, and is locked.
            commit(&store, vec![vec![require(0)]]);
        }
        let link = RUNTIME.block_on(async { store.readers.link().await.unwrap() });
        let change = "BEGIN; UPDATE items SET version = 7 WHERE name = 'mail'";
        RUNTIME.block_on(link.client.batch_execute(change)).unwrap();
        let waiting = {
            let store = Arc::clone(&store);
            let txn = vec![require(start), Write::AddJob(job("under").build())];
            RUNTIME.spawn(async move { store.commit(vec![txn]).await })
        };
        let is_waiting = || !rows(&store, WAITING).is_empty();
        while !is_waiting() {
            assert!(!waiting.is_finished(), "it has not waited");
            std::thread::yield_now();
        }
        RUNTIME.block_on(link.client.batch_execute("COMMIT")).unwrap();
        let answers = RUNTIME.block_on(waiting).unwrap().unwrap();
        assert!(
            matches!(
                answers[0],
                Committed::Conflict { step: 0, current: CurrentRecord::Version(7) }
            ),
            "{answers:?}"
        );
        assert_eq!(RUNTIME.block_on(store.get(&[name("under")])).unwrap(), [Ok(None)]);
    }
}

/// An item that another server adds meanwhile is not absent.
#[test]
fn a_required_absence_waits_for_an_item_that_is_added() {
    let settings = settings();
    let store = open(&settings);
    let link = RUNTIME.block_on(async { store.readers.link().await.unwrap() });
    let add = "BEGIN; INSERT INTO items VALUES ('queue', 'mail', 3, '')";
    RUNTIME.block_on(link.client.batch_execute(add)).unwrap();
    let store = Arc::new(store);
    let waiting = {
        let store = Arc::clone(&store);
        let txn = vec![require(0), Write::AddJob(job("under").build())];
        RUNTIME.spawn(async move { store.commit(vec![txn]).await })
    };
    while rows(&store, WAITING).is_empty() {
        assert!(!waiting.is_finished(), "it has not waited");
        std::thread::yield_now();
    }
    RUNTIME.block_on(link.client.batch_execute("COMMIT")).unwrap();
    let answers = RUNTIME.block_on(waiting).unwrap().unwrap();
    assert!(
        matches!(answers[0], Committed::Conflict { step: 0, current: CurrentRecord::Version(3) }),
        "{answers:?}"
    );
}

/// A change of the configuration waits for the transactions under way, and those that come later wait
/// for it.
#[test]
fn a_change_of_an_item_is_not_overtaken() {
    let settings = settings();
    let (store, other) = (Arc::new(open(&settings)), Arc::new(open(&settings)));
    commit(&store, vec![vec![set_item(0, 1)]]);
    let link = RUNTIME.block_on(async { store.readers.link().await.unwrap() });
    let required = "BEGIN; SELECT FROM items WHERE name = 'mail' FOR SHARE";
    RUNTIME.block_on(link.client.batch_execute(required)).unwrap();
    let spawn = |store: &Arc<PostgresStore>, txn: Txn| {
        let store = Arc::clone(store);
        RUNTIME.spawn(async move { store.commit(vec![txn]).await.unwrap().remove(0) })
    };
    let waiting = || rows(&store, WAITING).len();
    let change = spawn(&store, vec![set_item(1, 2)]);
    while waiting() < 1 {
        std::thread::yield_now();
    }
    let later = spawn(&other, vec![require(1), Write::AddJob(job("under").build())]);
    while waiting() < 2 {
        assert!(!later.is_finished(), "it has overtaken the change");
        std::thread::yield_now();
    }
    // A plain read goes on.
    assert_eq!(RUNTIME.block_on(other.items(ItemKind::Queue)).unwrap()[0].version, 1);
    RUNTIME.block_on(link.client.batch_execute("COMMIT")).unwrap();
    let answer = RUNTIME.block_on(change).unwrap();
    assert!(matches!(answer, Committed::All), "{answer:?}");
    let answer = RUNTIME.block_on(later).unwrap();
    assert!(
        matches!(answer, Committed::Conflict { step: 0, current: CurrentRecord::Version(2) }),
        "{answer:?}"
    );
}

#[test]
fn each_call_sees_the_changes_of_items_before_it() {
    let settings = settings();
    let (store, other) = (open(&settings), open(&settings));
    for version in 0..100 {
        let calls = || join_all((0..8).map(|_| store.items_version()));
        let before = RUNTIME.block_on(calls());
        commit(&other, vec![vec![set_item(version, version + 1)]]);
        let after = RUNTIME.block_on(calls());
        for (before, after) in before.into_iter().zip(after) {
            assert_eq!(after.unwrap(), before.unwrap() + 1);
        }
    }
}

/// Postgres refuses a key that is too long for its index.
#[test]
fn a_value_that_cannot_be_stored_fails_alone() {
    let store = store();
    let key = |n: usize, length| {
        let mut chance = StdRng::seed_from_u64(n as u64);
        let text = (0..length).map(|_| chance.random_range('a'..='z')).collect();
        let job = name(&format!("job-{n}"));
        vec![Write::SetKey { key: Key::Idempotency(text), job, was: Expect::Absent }]
    };
    let txns: Vec<Txn> =
        (0..50).map(|n| key(n, if n == 17 || n == 41 { 6000 } else { 30 })).collect();
    let answers = RUNTIME.block_on(join_all(txns.into_iter().map(|txn| store.commit(vec![txn]))));
    for (n, answer) in answers.iter().enumerate() {
        match answer {
            Ok(answers) => assert!(matches!(answers[0], Committed::All) && n != 17 && n != 41),
            Err(error) => assert!(n == 17 || n == 41, "{n}: {error}"),
        }
    }
    assert_eq!(rows(&store, "SELECT FROM keys").len(), 48);
}

/// A transaction moves a key from a job that another one removes.
#[test]
fn a_key_moves_from_a_job_that_is_removed() {
    let store = store();
    let jobs = ["old", "other", "new"].map(|id| job(id).build());
    commit(&store, jobs.iter().map(|job| vec![Write::AddJob(job.clone())]).collect());
    let key = Key::Idempotency("k".into());
    let point = |id: &str, was| Write::SetKey { key: key.clone(), job: name(id), was };
    let remove = |id: &str| Write::RemoveJob { id: name(id), was: Revision(1) };
    commit(&store, vec![vec![point("old", Expect::Absent)]]);
    let moved = vec![remove("other"), point("new", Expect::Is(name("old")))];
    let answers = commit(&store, vec![moved, vec![remove("old")]]);
    assert!(answers.iter().all(|answer| matches!(answer, Committed::All)), "{answers:?}");
    let found = RUNTIME.block_on(store.keys(std::slice::from_ref(&key))).unwrap();
    assert_eq!(found, [Ok(Some(name("new")))]);
}

/// The client reports success for a commit that the server turned into a rollback. The store must
/// not.
#[test]
fn a_commit_after_an_error_is_no_success() {
    let store = store();
    let link = RUNTIME.block_on(async { store.readers.link().await.unwrap() });
    let sent = ["BEGIN", "SELECT 1/0", "INSERT INTO item_changes VALUES (9)", "COMMIT"];
    let answers =
        RUNTIME.block_on(in_order(sent.iter().map(|sql| link.client.batch_execute(sql)).collect()));
    let went_well: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(went_well, [true, false, false, true], "that is why the store reads every answer");
    assert_eq!(rows(&store, "SELECT FROM item_changes").len(), 1);

    commit(&store, vec![vec![Write::AddJob(job("taken").build())]]);
    let txn = vec![Write::AddJob(job("new").build()), Write::AddJob(job("taken").build())];
    let answers = commit(&store, vec![txn]);
    assert!(matches!(answers[0], Committed::Conflict { step: 1, .. }), "{answers:?}");
    assert_eq!(RUNTIME.block_on(store.get(&[name("new")])).unwrap(), [Ok(None)]);
}

/// A job ends while a server adds another one of its id.
#[test]
fn an_id_stays_taken_while_its_job_ends() {
    let settings = settings();
    let store = Arc::new(open(&settings));
    let one = job("one").build();
    commit(&store, vec![vec![Write::AddJob(one.clone())]]);
    let mut ended =
        one.apply(tidegate_core::job::Event::Cancel { force: false }, server::NOW).unwrap();
    ended.life.revision = Revision(2);
    let end = Write::SetJob { job: ended.clone(), was: Revision(1), all: false };
    // Its partition must exist before the rival's transaction.
    let other = job("other").build();
    let other_end = other.apply(tidegate_core::job::Event::Cancel { force: false }, server::NOW);
    let other_end = Write::SetJob { job: other_end.unwrap(), was: Revision(1), all: false };
    commit(&store, vec![vec![Write::AddJob(other)], vec![other_end]]);
    // The rival has moved the job, and has not committed.
    let link = RUNTIME.block_on(async { store.readers.link().await.unwrap() });
    let moved = "BEGIN; WITH d AS (DELETE FROM jobs WHERE id = 'one' RETURNING *) \
         INSERT INTO ended SELECT id, queue, type, 5, data_kind, data_bytes, 2, created_at, \
         2592000000, NULL, data, spec, life FROM d";
    RUNTIME.block_on(link.client.batch_execute(moved)).unwrap();
    let adding = {
        let store = Arc::clone(&store);
        RUNTIME.spawn(async move { store.commit(vec![vec![Write::AddJob(one)]]).await })
    };
    while rows(&store, WAITING).is_empty() {
        assert!(!adding.is_finished(), "it has not waited");
        std::thread::yield_now();
    }
    RUNTIME.block_on(link.client.batch_execute("COMMIT")).unwrap();
    let answers = RUNTIME.block_on(adding).unwrap().unwrap();
    assert!(
        matches!(&answers[0], Committed::Conflict { step: 0, current: CurrentRecord::Job(_) }),
        "{answers:?}"
    );
    let late = commit(&store, vec![vec![end]]);
    assert!(matches!(late[0], Committed::Conflict { .. }), "{late:?}");
}

#[test]
fn eight_servers_start_on_an_empty_database() {
    let settings = settings();
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let settings = settings.clone();
            RUNTIME.spawn(async move {
                PostgresStore::open(settings, server::clock())
                    .await
                    .map_err(|error| format!("{error}: {:?}", std::error::Error::source(&error)))
            })
        })
        .collect();
    let stores: Vec<PostgresStore> =
        tasks.into_iter().map(|task| RUNTIME.block_on(task).unwrap().unwrap()).collect();
    commit(&stores[0], vec![vec![Write::AddJob(job("one").build())]]);
    let found = RUNTIME.block_on(stores[7].get(&[name("one")])).unwrap();
    assert!(matches!(&found[0], Ok(Some(_))), "{found:?}");
    let formats = rows(&stores[0], "SELECT n FROM schema_version ORDER BY n");
    assert_eq!(formats.iter().map(|row| row.get::<_, i32>(0)).collect::<Vec<_>>(), [0, 1, 2, 3]);
}

/// A later release names the formats that can still use its tables.
#[test]
fn the_release_before_can_use_newer_tables() {
    let settings = settings().with_schema("order");
    let store = open(&settings);
    let open = || RUNTIME.block_on(PostgresStore::open(settings.clone(), server::clock()));
    rows(&store, "INSERT INTO schema_version VALUES (99, 1)");
    assert!(open().is_ok());
    rows(&store, "INSERT INTO schema_version VALUES (100, 98)");
    let error = open().map(drop).unwrap_err();
    assert!(matches!(error, OpenError::Newer { found: 100, min_reader: 98, .. }), "{error}");
}

#[test]
fn a_command_next_to_servers_changes_no_tables() {
    let (settings, empty) = (settings(), settings());
    let store = open(&settings);
    let open_in_use = |settings: &Settings| {
        let opened = PostgresStore::open_in_use(settings.clone(), server::clock());
        RUNTIME.block_on(opened).map(drop)
    };
    assert!(open_in_use(&settings).is_ok() && open_in_use(&empty).is_ok());
    // As an earlier release left them.
    rows(&store, "DELETE FROM schema_version WHERE n > 1");
    let error = open_in_use(&settings).unwrap_err();
    assert!(matches!(error, OpenError::Older { found: 1, known: 3, .. }), "{error}");
    let formats = rows(&store, "SELECT max(n) FROM schema_version");
    assert_eq!(formats[0].get::<_, i32>(0), 1);
    rows(&store, "INSERT INTO schema_version VALUES (2, 1), (3, 1), (100, 98)");
    let error = open_in_use(&settings).unwrap_err();
    assert!(matches!(error, OpenError::Newer { found: 100, min_reader: 98, .. }), "{error}");
}

#[test]
fn a_server_that_is_cut_off_is_answered_and_connects_again() {
    let store = store();
    commit(&store, vec![vec![Write::AddJob(job("one").build())]]);
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE pid <> pg_backend_pid() \
         AND application_name = current_setting('application_name')";
    assert!(!rows(&store, cut).is_empty());
    let mut answered = false;
    for _ in 0..20 {
        let txn = vec![Write::AddJob(job("two").build())];
        let answer = RUNTIME.block_on(async {
            tokio::time::timeout(Duration::from_secs(10), store.commit(vec![txn])).await
        });
        if answer.unwrap().is_ok() {
            answered = true;
            break;
        }
    }
    assert!(answered);
    let found = RUNTIME.block_on(store.get(&[name("one"), name("two")])).unwrap();
    assert!(found.iter().all(|job| matches!(job, Ok(Some(_)))), "{found:?}");
}
