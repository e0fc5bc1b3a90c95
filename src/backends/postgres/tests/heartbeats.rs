//! Heartbeats change no index, and the end of a lease is found in time.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio_postgres::NoTls;

use super::server::{RUNTIME, open, rows, settings, settings_at, store};
use crate::postgres::test_server::OwnServer;
use tidegate_core::{
    job::{Event, Job, Token},
    port::job_store::{Committed, JobStore, Txn, Write},
    time::{Seconds, Timestamp},
};
use tidegate_engine::{
    memory::MemoryStore,
    testkit::builders::{at, job},
};

/// Heartbeats of a job.
const BEATS: i64 = 100;
/// How many of them may change an index: when a page of the table is full, for example.
const MAX_SLOW_BEATS: i64 = 5;

fn set(was: &Job, job: &Job) -> Txn {
    vec![Write::SetJob { job: job.clone(), was: was.life.revision, all: false }]
}

async fn commit(store: &impl JobStore, txn: Txn) {
    let answers = store.commit(vec![txn]).await.unwrap();
    assert!(matches!(answers[..], [Committed::All]), "{answers:?}");
}

/// `job` with an attempt under way, whose lease ends after 30 seconds.
fn claimed(job: &Job, granted: bool, now: Timestamp) -> Job {
    let claim = Event::Claim {
        version: job.life.version,
        token: Token::new(7),
        worker: None,
        lease: Seconds::new(30).duration(),
        granted,
        decided_at: now,
    };
    job.apply(claim, now).unwrap()
}

/// `job` after a heartbeat that moves the end of its lease.
fn beaten(job: &Job, until: i64) -> Job {
    let beat = Event::Heartbeat { attempt: job.life.attempt, until: at(until), progress: None };
    job.apply(beat, at(0)).unwrap()
}

/// The updates of jobs, and how many of them changed no index, as the server counts them after the
/// connections of a store have ended.
fn updates(address: &str, application: &str, schema: &str) -> (i64, i64) {
    RUNTIME.block_on(async {
        let (client, connection) = tokio_postgres::connect(address, NoTls).await.unwrap();
        tokio::spawn(connection);
        let open = "SELECT FROM pg_stat_get_activity(NULL) WHERE application_name = $1::text";
        while !client.query(open, &[&application]).await.unwrap().is_empty() {
            std::thread::yield_now();
        }
        let counted = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_all_tables \
             WHERE schemaname = $1::text AND relname = 'jobs'";
        loop {
            let row = client.query_one(counted, &[&schema]).await.unwrap();
            // The claim is an update, too. Some releases count a moment later.
            if row.get::<_, i64>(0) > BEATS {
                return (row.get(0), row.get(1));
            }
        }
    })
}

#[test]
fn heartbeats_change_no_index() {
    let server = OwnServer::start();
    let address = server.address();
    // A job under a limit has a grant, which watches its lease.
    for granted in [false, true] {
        let settings = settings_at(&address);
        let store = open(&settings);
        let waiting = job("one").queue("mail").of_type("x").build();
        RUNTIME.block_on(async {
            commit(&store, vec![Write::AddJob(waiting.clone())]).await;
            let mut running = claimed(&waiting, granted, at(0));
            commit(&store, set(&waiting, &running)).await;
            for n in 1..=BEATS {
                let next = beaten(&running, 30_000 + n);
                commit(&store, set(&running, &next)).await;
                running = next;
            }
        });
        drop(store);
        let application = settings.config.get_application_name().unwrap();
        let (all, hot) = updates(&address, application, &settings.schema);
        assert_eq!(all, BEATS + 1, "a claim and heartbeats, granted: {granted}");
        assert!(hot >= BEATS - MAX_SLOW_BEATS, "{hot} of {all} are HOT, granted: {granted}");
    }
}

#[test]
fn a_lease_that_was_extended_is_checked_at_its_end() {
    let store = store();
    let waiting = job("one").queue("mail").of_type("x").build();
    let stored = || rows(&store, "SELECT wake_at FROM jobs")[0].get::<_, Option<i64>>(0);
    let running = claimed(&waiting, false, at(0));
    let extended = beaten(&running, 50_000);
    RUNTIME.block_on(async {
        commit(&store, vec![Write::AddJob(waiting.clone())]).await;
        commit(&store, set(&waiting, &running)).await;
        commit(&store, set(&running, &extended)).await;
    });
    assert_eq!(stored(), Some(30_000));
    let overdue = |until| RUNTIME.block_on(store.overdue(at(until), None, 10)).unwrap();
    let page = overdue(29_999);
    assert!(page.jobs.is_empty());
    assert_eq!(page.next_at, Some(at(30_000)), "the store wakes early");
    let page = overdue(30_000);
    assert!(page.jobs.is_empty(), "its worker lives");
    assert_eq!((page.next, page.next_at), (None, Some(at(50_000))));
    assert_eq!(stored(), Some(50_000));
    assert!(overdue(49_999).jobs.is_empty());
    // The check is no change of the job: a worker that read it before can still write it.
    let late = beaten(&extended, 60_000);
    RUNTIME.block_on(commit(&store, set(&extended, &late)));
    assert_eq!(stored(), Some(50_000));
    assert_eq!(overdue(60_000).jobs, [late], "whether or not its check was moved before");
}

/// A page that leaves out many jobs of an instant ends, and the next one goes on behind them.
#[test]
fn a_page_that_only_has_extended_leases_ends() {
    let store = store();
    let n: usize = 1500;
    let jobs: Vec<Job> =
        (0..n).map(|n| job(&format!("job-{n:04}")).queue("mail").of_type("x").build()).collect();
    let running: Vec<Job> = jobs.iter().map(|job| claimed(job, false, at(0))).collect();
    let expired = beaten(&running[n - 1], 30_000);
    RUNTIME.block_on(async {
        let add = |job: &Job| vec![Write::AddJob(job.clone())];
        store.commit(jobs.iter().map(add).collect()).await.unwrap();
        let claims = jobs.iter().zip(&running).map(|(job, running)| set(job, running));
        store.commit(claims.collect()).await.unwrap();
        let beats = running[..n - 1].iter().map(|job| set(job, &beaten(job, 90_000)));
        store.commit(beats.collect()).await.unwrap();
        commit(&store, set(&running[n - 1], &expired)).await;
        let page = store.overdue(at(30_000), None, 100).await.unwrap();
        assert!(page.jobs.is_empty() && page.next.is_some(), "{:?}", page.next);
        let page = store.overdue(at(30_000), page.next, 100).await.unwrap();
        assert_eq!(page.jobs, std::slice::from_ref(&expired));
        // The checks of the others were moved.
        let page = store.overdue(at(30_000), None, 100).await.unwrap();
        assert_eq!((page.jobs, page.next), (vec![expired], None));
    });
}

/// Random claims, heartbeats and ends by two servers. At each instant a server, after a look from the front,
/// finds the jobs that the store in memory finds.
#[test]
fn leases_end_as_in_the_store_in_memory() {
    let settings = settings();
    let (servers, memory) = ([open(&settings), open(&settings)], MemoryStore::new());
    let chance = &mut StdRng::seed_from_u64(31);
    let mut jobs: Vec<Job> = (0..30)
        .map(|n| {
            let job = job(&format!("job-{n:02}")).queue("mail").of_type("x");
            let deadline = (n % 5 == 0).then(|| at(70_000));
            job.with(|spec| spec.deadline_at = deadline).build()
        })
        .collect();
    RUNTIME.block_on(async {
        for job in &jobs {
            commit(&servers[0], vec![Write::AddJob(job.clone())]).await;
            commit(&memory, vec![Write::AddJob(job.clone())]).await;
        }
        for second in 0..120_i64 {
            let now = second * 1000;
            for job in &mut jobs {
                if job.life.ended().is_some() || chance.random_bool(0.7) {
                    continue;
                }
                let next = if job.life.running().is_none() {
                    claimed(job, chance.random_bool(0.2), at(now))
                } else if chance.random_bool(0.1) {
                    let end = Event::Succeed { attempt: job.life.attempt, result: None };
                    job.apply(end, at(now)).unwrap()
                } else {
                    beaten(job, now + chance.random_range(0..30_000))
                };
                commit(&servers[chance.random_range(0..2)], set(job, &next)).await;
                commit(&memory, set(job, &next)).await;
                *job = next;
            }
            let store = &servers[chance.random_range(0..2)];
            store.shared.positions.look_at(tokio::time::Instant::now());
            let ours = store.overdue(at(now), None, 100).await.unwrap();
            let theirs = memory.overdue(at(now), None, 100).await.unwrap();
            let ids = |jobs: &[Job]| {
                let mut ids: Vec<String> = jobs.iter().map(|job| job.id.to_string()).collect();
                ids.sort_unstable();
                ids
            };
            assert_eq!(ids(&ours.jobs), ids(&theirs.jobs), "second {second}");
            // The store in memory also wakes for the retention of ended jobs.
            if let Some(next) = theirs.next_at.filter(|next| *next < at(1_000_000)) {
                let ours = ours.next_at.expect("a lease ends");
                assert!(at(now) < ours && ours <= next, "{ours:?} and {next:?}");
            }
        }
    });
}
