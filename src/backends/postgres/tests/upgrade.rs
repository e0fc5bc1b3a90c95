//! Servers of two releases on one schema: the later one changes the tables while the other one works.

use std::{
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use super::server::{NOW, RUNTIME, WAITING, open, rows, settings};
use crate::postgres::{
    PostgresStore,
    migrate::{MIGRATIONS, Migrate, migrate_by},
};
use tidegate_core::{
    job::Event,
    port::job_store::{Committed, JobStore, Write},
};
use tidegate_engine::testkit::builders::job;

/// What a release may do: new columns with a default, and an index.
const CHANGE: &str = "ALTER TABLE jobs ADD COLUMN note text COLLATE \"C\" NOT NULL DEFAULT ''; \
     ALTER TABLE ended ADD COLUMN note text COLLATE \"C\" NOT NULL DEFAULT ''; \
     CREATE INDEX jobs_note ON jobs (note, id)";
/// Jobs that end before the change, and after it.
const JOBS: usize = 50;
/// Callers that commit at once.
const CALLERS: usize = 4;

async fn write(store: &PostgresStore, write: Write) {
    let answers = store.commit(vec![vec![write]]).await.unwrap();
    assert!(matches!(answers[0], Committed::All), "{answers:?}");
}

/// Adds, changes, ends and reads jobs until there are `enough`.
async fn live(
    store: Arc<PostgresStore>,
    caller: usize,
    enough: Arc<AtomicBool>,
    ended: Arc<AtomicUsize>,
) {
    let mut n = 0;
    while !enough.load(Ordering::Relaxed) {
        n += 1;
        let added = job(&format!("job-{caller}-{n}")).build();
        write(&store, Write::AddJob(added.clone())).await;
        let mut changed = added.clone();
        changed.life.revision.0 += 1;
        let (was, all) = (added.life.revision, n % 2 == 0);
        write(&store, Write::SetJob { job: changed.clone(), was, all }).await;
        let over = changed.apply(Event::Cancel { force: false }, NOW).unwrap();
        let was = changed.life.revision;
        write(&store, Write::SetJob { job: over.clone(), was, all: false }).await;
        let found = store.get(slice::from_ref(&over.id)).await.unwrap().remove(0);
        assert_eq!(found.unwrap().unwrap().life.revision, over.life.revision);
        ended.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_server_works_while_the_next_release_changes_tables() {
    let settings = settings();
    let store = Arc::new(open(&settings));
    let (enough, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (store, enough, ended) =
                (Arc::clone(&store), Arc::clone(&enough), Arc::clone(&ended));
            RUNTIME.spawn(live(store, caller, enough, ended))
        })
        .collect();
    let wait_for_more = || {
        let aim = ended.load(Ordering::Relaxed) + JOBS;
        while ended.load(Ordering::Relaxed) < aim {
            assert!(!callers.iter().any(tokio::task::JoinHandle::is_finished), "a caller failed");
            std::thread::yield_now();
        }
    };
    wait_for_more();

    let connect = || RUNTIME.block_on(store.readers.connector().open()).unwrap();
    let (holder, watcher, migrator) = (connect(), connect(), connect());
    let hold = "SET idle_in_transaction_session_timeout = 0; BEGIN; SELECT FROM jobs LIMIT 1";
    RUNTIME.block_on(holder.client.batch_execute(hold)).unwrap();
    let schema = store.readers.connector().schema().to_owned();
    let mut migrations = MIGRATIONS.to_vec();
    migrations.push((CHANGE, 1));
    let next = migrations.len() as i32;
    let migrating = RUNTIME
        .spawn(async move { migrate_by(&migrator, &schema, Migrate::Any, &migrations).await });
    // The change waits for the transaction, and statements of the callers wait for the change.
    while RUNTIME.block_on(watcher.client.query(WAITING, &[])).unwrap().len() < 2 {
        assert!(!migrating.is_finished(), "it has not waited");
        std::thread::yield_now();
    }
    RUNTIME.block_on(holder.client.batch_execute("ROLLBACK")).unwrap();
    RUNTIME.block_on(migrating).unwrap().unwrap();
    wait_for_more();

    enough.store(true, Ordering::Relaxed);
    for caller in callers {
        RUNTIME.block_on(caller).unwrap();
    }
    assert_eq!(rows(&store, "SELECT max(n) FROM schema_version")[0].get::<_, i32>(0), next);
    // A server of this release can start again.
    let again = open(&settings);
    let ended = i64::try_from(ended.load(Ordering::Relaxed)).unwrap();
    let number = |sql: &str| rows(&again, sql)[0].get::<_, i64>(0);
    assert_eq!(number("SELECT count(*) FROM ended WHERE note = ''"), ended);
    assert_eq!(number("SELECT count(*) FROM jobs"), 0);
    assert_eq!(number("SELECT sum(jobs)::bigint FROM counts"), ended);
}
