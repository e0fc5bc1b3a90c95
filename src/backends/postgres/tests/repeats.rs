//! Groups that are repeated, because of a real deadlock, a lock that took too long, or a row that moved; and
//! a server that freezes between the two steps of a repeat.

use std::sync::Arc;

use tokio::task::JoinHandle;

use super::server::{RUNTIME, WAITING, clock, open, rows, settings, settings_of_a_database, store};
use crate::postgres::{PostgresStore, connect::Link};
use tidegate_core::{
    job::{Event, Job, Revision},
    port::{
        StoreError,
        job_store::{Committed, CurrentRecord, JobStore, Txn, Write},
    },
};
use tidegate_engine::testkit::builders::{at, job};

/// A session that waits for locks as long as it must, and looks for no deadlock.
const PATIENT: &str = "SET lock_timeout = 0; SET statement_timeout = 0; \
     SET idle_in_transaction_session_timeout = 0; SET deadlock_timeout = '1h'";
/// The transaction that waits for a lock.
const WAITING_TRANSACTION: &str = "SELECT l.virtualtransaction FROM pg_locks l \
     JOIN pg_stat_activity a USING (pid) \
     WHERE NOT l.granted AND a.application_name = current_setting('application_name')";
const DEADLOCKS: &str = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
/// Ten days in milliseconds.
const TEN_DAYS: i64 = 864_000_000;

/// A connection that holds locks which a group of `store` needs.
fn rival(store: &PostgresStore) -> Arc<Link> {
    let link = RUNTIME.block_on(store.readers.connector().open()).unwrap();
    run(&link, PATIENT);
    Arc::new(link)
}

fn run(link: &Link, sql: &str) {
    RUNTIME.block_on(link.client.batch_execute(sql)).unwrap();
}

fn lock(id: &str) -> String {
    format!("SELECT FROM jobs WHERE id = '{id}' FOR UPDATE")
}

type Committing = JoinHandle<Result<Vec<Committed>, StoreError>>;

fn begin(store: &Arc<PostgresStore>, txns: Vec<Txn>) -> Committing {
    let store = Arc::clone(store);
    RUNTIME.spawn(async move { store.commit(txns).await })
}

/// Waits for the end of a commit, all of whose transactions must be written.
fn all_written(committing: Committing) {
    let answers = RUNTIME.block_on(committing).unwrap().unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Committed::All)), "{answers:?}");
}

fn commit(store: &Arc<PostgresStore>, txns: Vec<Txn>) {
    all_written(begin(store, txns));
}

/// The change of `job` to its next revision, which it gets.
fn next(job: &mut Job) -> Write {
    let was = job.life.revision;
    job.life.revision.0 += 1;
    Write::SetJob { job: job.clone(), was, all: false }
}

/// Waits until so many statements wait for locks.
fn wait_for_waiting(store: &PostgresStore, statements: usize, committing: &Committing) {
    while rows(store, WAITING).len() < statements {
        assert!(!committing.is_finished(), "it has not waited");
        std::thread::yield_now();
    }
}

/// Waits until a transaction waits for a lock, and returns its name.
fn waiting_transaction(store: &PostgresStore, committing: &Committing) -> String {
    loop {
        if let Some(row) = rows(store, WAITING_TRANSACTION).first() {
            return row.get(0);
        }
        assert!(!committing.is_finished(), "it does not wait");
        std::thread::yield_now();
    }
}

/// Each of these jobs has this revision, and the store has so many jobs, each counted once.
fn were_written_once(store: &PostgresStore, jobs: &[Job], revision: u64, stored: usize) {
    let ids: Vec<_> = jobs.iter().map(|job| job.id.clone()).collect();
    for found in RUNTIME.block_on(store.get(&ids)).unwrap() {
        assert_eq!(found.unwrap().unwrap().life.revision, Revision(revision));
    }
    assert_eq!(rows(store, "SELECT FROM jobs").len(), stored);
    let counted: i64 = rows(store, "SELECT sum(jobs)::bigint FROM counts")[0].get(0);
    assert_eq!(counted, i64::try_from(stored).unwrap());
}

/// Two rivals hold rows. One of them waits for a row of the group when that reaches the last one.
#[test]
fn a_group_is_repeated_after_a_deadlock() {
    let settings = settings_of_a_database();
    let store = Arc::new(open(&settings));
    // For the connections of the commits, which are not open yet: the deadlock is theirs.
    let database = settings.config.get_dbname().unwrap();
    rows(&store, &format!("ALTER DATABASE {database} SET deadlock_timeout = '10ms'"));
    let mut jobs = ["a", "b", "c"].map(|id| job(id).build());
    commit(&store, jobs.iter().map(|job| vec![Write::AddJob(job.clone())]).collect());
    let (first, last) = (rival(&store), rival(&store));
    // The server counts a deadlock up to a second later.
    let counted = (1..500).find(|round| {
        run(&first, &format!("BEGIN; {}", lock("b")));
        run(&last, &format!("BEGIN; {}", lock("c")));
        let change: Txn = jobs.iter_mut().map(next).collect();
        let add = vec![Write::AddJob(job(&format!("new-{round}")).build())];
        let committing = begin(&store, vec![change, add]);
        // It has changed `a`, and waits for `b`.
        wait_for_waiting(&store, 1, &committing);
        let closing = {
            let last = Arc::clone(&last);
            RUNTIME.spawn(async move { last.client.batch_execute(&lock("a")).await })
        };
        wait_for_waiting(&store, 2, &committing);
        // Now it waits for `c`, whose holder waits for `a`.
        run(&first, "ROLLBACK");
        // The holder gets `a`, so the group was rolled back.
        RUNTIME.block_on(closing).unwrap().unwrap();
        assert!(!committing.is_finished(), "the rival holds its rows");
        run(&last, "ROLLBACK");
        all_written(committing);
        rows(&store, DEADLOCKS)[0].get::<_, i64>(0) > 0
    });
    let rounds: usize = counted.expect("there was a deadlock");
    were_written_once(&store, &jobs, 1 + rounds as u64, jobs.len() + rounds);
}

#[test]
fn a_group_is_repeated_after_a_lock_timeout() {
    let store = Arc::new(store());
    let mut jobs = ["a", "b"].map(|id| job(id).build());
    commit(&store, jobs.iter().map(|job| vec![Write::AddJob(job.clone())]).collect());
    let rival = rival(&store);
    run(&rival, &format!("BEGIN; {}", lock("b")));
    let change: Txn = jobs.iter_mut().map(next).collect();
    let committing = begin(&store, vec![change, vec![Write::AddJob(job("new").build())]]);
    let first = waiting_transaction(&store, &committing);
    // The next transaction waits when the first one has been rolled back, after two seconds.
    while waiting_transaction(&store, &committing) == first {
        std::thread::yield_now();
    }
    run(&rival, "ROLLBACK");
    all_written(committing);
    were_written_once(&store, &jobs, 2, 3);
}

/// A row that moves to another partition is a serialization failure for the one that waits for it.
#[test]
fn a_group_is_repeated_after_a_serialization_failure() {
    let store = Arc::new(store());
    let ended = |id: &str, end: i64| {
        let added = job(id).build();
        let over = added.apply(Event::Cancel { force: false }, at(end)).unwrap();
        let end = Write::SetJob { job: over.clone(), was: added.life.revision, all: false };
        commit(&store, vec![vec![Write::AddJob(added)], vec![end]]);
        over
    };
    let one = ended("one", 0);
    ended("other", TEN_DAYS);
    let rival = rival(&store);
    let moves = "BEGIN; UPDATE ended SET forget_at = \
         (SELECT forget_at FROM ended WHERE id = 'other') WHERE id = 'one'";
    run(&rival, moves);
    let remove = Write::RemoveJob { id: one.id.clone(), was: one.life.revision };
    let removing = begin(&store, vec![vec![remove]]);
    wait_for_waiting(&store, 1, &removing);
    run(&rival, "COMMIT");
    all_written(removing);
    assert_eq!(RUNTIME.block_on(store.get(&[one.id])).unwrap(), [Ok(None)]);
    assert_eq!(rows(&store, "SELECT FROM ended").len(), 1);
}

/// No step of its runtime happens any more, as in a process after SIGSTOP.
#[test]
fn a_server_frozen_in_a_repeat_holds_its_locks_for_seconds() {
    let settings = settings();
    let store = Arc::new(open(&settings));
    let mut jobs = ["a", "b"].map(|id| job(id).build());
    commit(&store, jobs.iter().map(|job| vec![Write::AddJob(job.clone())]).collect());
    let remove = |job: &Job| Write::RemoveJob { id: job.id.clone(), was: Revision(1) };
    let removal: Txn = jobs.iter().map(remove).collect();

    let own = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let frozen = own.block_on(PostgresStore::open(settings, clock())).unwrap();
    let rival = rival(&store);
    run(&rival, &format!("BEGIN; {}", lock("b")));
    let mut removing = frozen.commit(vec![removal.clone()]);
    let waits = {
        let store = Arc::clone(&store);
        RUNTIME.spawn(async move {
            let link = store.readers.link().await.unwrap();
            while link.client.query(WAITING, &[]).await.unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
        })
    };
    own.block_on(async {
        tokio::select! {
            answer = &mut removing => panic!("it has not waited: {answer:?}"),
            waits = waits => waits.unwrap(),
        }
    });
    // Its session has locked `a`, gets `b`, and receives no second step.
    run(&rival, "ROLLBACK");
    commit(&store, vec![jobs.iter_mut().map(next).collect()]);

    let answer = own.block_on(removing);
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    let answers = own.block_on(frozen.commit(vec![removal])).unwrap();
    assert!(
        matches!(&answers[0], Committed::Conflict { step: 0, current: CurrentRecord::Job(_) }),
        "{answers:?}"
    );
    were_written_once(&store, &jobs, 2, 2);
}
