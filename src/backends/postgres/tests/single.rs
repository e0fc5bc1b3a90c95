//! Ticks of a queue with a ledger: each is one statement.

use futures_util::future::join;

use super::server::{RUNTIME, open, rows, settings, store};
use crate::postgres::PostgresStore;
use tidegate_core::{
    job::{Event, Job, Revision, Token},
    port::job_store::{
        Committed, CurrentRecord, Expect, ItemKind, JobStore, Record, RecordKind, Txn, Write,
    },
    queue::{GrantBatch, Ledger, ledger::BatchId},
    stored::UnknownFields,
    time::Seconds,
};
use tidegate_engine::testkit::builders::{at, job, name};

fn commit(store: &PostgresStore, txn: Txn) -> Committed {
    RUNTIME.block_on(store.commit(vec![txn])).unwrap().remove(0)
}

fn written(store: &PostgresStore, txn: Txn) {
    let answer = commit(store, txn);
    assert!(matches!(answer, Committed::All), "{answer:?}");
}

fn set_job(was: &Job, job: Job) -> Write {
    Write::SetJob { job, was: was.life.revision, all: false }
}

fn claimed(job: &Job) -> Job {
    let claim = Event::Claim {
        version: job.life.version,
        token: Token::new(7),
        worker: None,
        lease: Seconds::new(30).duration(),
        granted: true,
        decided_at: at(5),
    };
    job.apply(claim, at(5)).unwrap()
}

fn set_ledger(queue: &str, version: u64, was: Expect<u64>) -> Write {
    let ledger = Ledger { version, ..Ledger::default() };
    Write::SetLedger { queue: name(queue), ledger, was }
}

fn add_batch(queue: &str, id: u64) -> Write {
    let batch = GrantBatch {
        id: BatchId(id),
        ledger_version: id,
        grants: Vec::new(),
        state: None,
        unknown: UnknownFields::default(),
    };
    Write::AddBatch(name(queue), batch)
}

/// A queue with a ledger of version 1, in which the first job runs and the second one waits.
fn one_runs(store: &PostgresStore) -> (Job, Job) {
    let [first, waits] = ["first", "waits"].map(|id| job(id).queue("mail").build());
    let (kind, name) = (ItemKind::Queue, "mail".to_owned());
    let item = Write::SetItem { kind, name, was: 0, version: 1, bytes: Some(b"{}".to_vec()) };
    let added = [&first, &waits].map(|job| Write::AddJob(job.clone()));
    let ledger = [item, add_batch("mail", 1), set_ledger("mail", 1, Expect::Absent)];
    written(store, added.into_iter().chain(ledger).collect());
    let runs = claimed(&first);
    written(store, vec![set_job(&first, runs.clone())]);
    (runs, waits)
}

/// The tick that ends the first job and starts the second one, and the two jobs after it.
fn tick(runs: &Job, waits: &Job) -> (Txn, Job, Job) {
    let attempt = runs.life.attempt;
    let ended = runs.apply(Event::Succeed { attempt, result: None }, at(6)).unwrap();
    let started = claimed(waits);
    let record =
        Record { kind: RecordKind::Lease, name: "call".into(), until: at(9), bytes: b"x".to_vec() };
    let txn = vec![
        set_job(runs, ended.clone()),
        Write::RequireItem { kind: ItemKind::Queue, name: "mail".into(), version: 1 },
        Write::PutRecord(record),
        add_batch("mail", 2),
        set_ledger("mail", 2, Expect::Is(1)),
        set_job(waits, started.clone()),
        Write::RemoveBatch(name("mail"), BatchId(1)),
    ];
    (txn, ended, started)
}

/// What is stored, without the contents.
fn stored(store: &PostgresStore) -> Vec<String> {
    let all = "SELECT ('job', id, revision, state)::text FROM jobs \
         UNION ALL SELECT ('ended', id, revision, state)::text FROM ended \
         UNION ALL SELECT ('ledger', version)::text FROM heads \
         UNION ALL SELECT ('batch', id)::text FROM batches \
         UNION ALL SELECT ('record', name)::text FROM records \
         UNION ALL SELECT ('count', state, sum(jobs))::text FROM counts GROUP BY state \
         HAVING sum(jobs) <> 0 ORDER BY 1";
    rows(store, all).iter().map(|row| row.get(0)).collect()
}

/// How many connections of the store have sent a statement last that begins with `sql`.
fn last_statements(store: &PostgresStore, sql: &str) -> usize {
    let last = format!(
        "SELECT FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE '{sql}%' \
         AND application_name = current_setting('application_name')"
    );
    rows(store, &last).len()
}

/// Of any other group, the last statement is its `COMMIT`.
#[test]
fn a_tick_is_committed_by_its_only_statement() {
    let store = store();
    let (runs, waits) = one_runs(&store);
    // The connection that has made the tables may still be there.
    while last_statements(&store, "COMMIT") != 1 {
        std::thread::yield_now();
    }
    let (txn, ended, started) = tick(&runs, &waits);
    let noted = store.shared.wal.noted();
    written(&store, txn);
    assert!(store.shared.wal.noted() > noted, "a loss of it would be found");
    assert_eq!(last_statements(&store, "COMMIT"), 0);
    assert_eq!(last_statements(&store, "WITH required"), 1);
    let ids = [ended.id.clone(), started.id.clone()];
    let found = RUNTIME.block_on(store.get(&ids)).unwrap();
    assert_eq!(found, [Ok(Some(ended)), Ok(Some(started))]);
    assert_eq!(
        stored(&store),
        [
            "(batch,2)",
            "(count,1,1)",
            "(count,2,1)",
            "(ended,first,3,2)",
            "(job,waits,2,1)",
            "(ledger,0)",
            "(ledger,2)",
            "(record,call)"
        ]
    );
}

#[test]
fn each_refused_part_refuses_the_whole_tick() {
    let store = store();
    let (runs, waits) = one_runs(&store);
    let (txn, ..) = tick(&runs, &waits);
    let before = stored(&store);
    let wrong = Revision(9);
    for step in [0, 1, 4, 5] {
        let mut txn = txn.clone();
        match &mut txn[step] {
            Write::SetJob { was, .. } => *was = wrong,
            Write::RequireItem { version, .. } => *version = wrong.0,
            Write::SetLedger { was, .. } => *was = Expect::Is(wrong.0),
            other => panic!("it has no condition: {other:?}"),
        }
        let answer = commit(&store, txn);
        let Committed::Conflict { step: refused, current } = answer else {
            panic!("step {step} was written")
        };
        assert_eq!(refused, step);
        let is_current = match &current {
            CurrentRecord::Job(job) => {
                [runs.life.revision, Revision(1)].contains(&job.life.revision)
            }
            CurrentRecord::Version(version) => *version == 1,
            _ => false,
        };
        assert!(is_current, "step {step}: {current:?}");
        assert_eq!(stored(&store), before, "step {step}");
    }
    written(&store, txn);
    assert_ne!(stored(&store), before);
}

#[test]
fn a_refused_tick_stops_no_other_of_its_group() {
    let store = store();
    let queues = ["one", "two", "three"];
    let jobs = queues.map(|queue| job(&format!("job-{queue}")).queue(queue).build());
    let added = jobs.iter().map(|job| Write::AddJob(job.clone()));
    let ledgers = queues.iter().map(|queue| set_ledger(queue, 1, Expect::Absent));
    written(&store, added.chain(ledgers).collect());
    // Each job has the revision of its queue's ledger.
    let all_after = |version: u64, ledgers: [u64; 3]| {
        let tick = |n: usize| {
            let mut was = jobs[n].clone();
            was.life.revision = Revision(version);
            let mut changed = was.clone();
            changed.life.revision = Revision(version + 1);
            let ledger = set_ledger(queues[n], version + 1, Expect::Is(ledgers[n]));
            vec![set_job(&was, changed), add_batch(queues[n], version + 1), ledger]
        };
        let answers = RUNTIME.block_on(store.commit((0..3).map(tick).collect())).unwrap();
        answers.iter().map(|answer| matches!(answer, Committed::All)).collect::<Vec<_>>()
    };
    assert_eq!(all_after(1, [1, 1, 1]), [true; 3]);
    assert_eq!(last_statements(&store, "WITH required"), 1);
    assert_eq!(all_after(2, [2, 7, 2]), [true, false, true]);
    let ids = jobs.each_ref().map(|job| job.id.clone());
    let found = RUNTIME.block_on(store.get(&ids)).unwrap();
    let revisions = found.into_iter().map(|job| job.unwrap().unwrap().life.revision.0);
    assert_eq!(revisions.collect::<Vec<_>>(), [3, 2, 3]);
}

#[test]
fn of_ticks_that_race_for_a_ledger_one_is_written() {
    let settings = settings();
    let stores = [open(&settings), open(&settings)];
    let mut jobs = ["first", "second"].map(|id| job(id).queue("mail").build());
    let added = jobs.iter().map(|job| Write::AddJob(job.clone()));
    written(&stores[0], added.chain([set_ledger("mail", 1, Expect::Absent)]).collect());
    for version in 1..40 {
        let tick = |server: usize| {
            let mut changed = jobs[server].clone();
            changed.life.revision.0 += 1;
            let batch = add_batch("mail", 2 * version + server as u64);
            let ledger = set_ledger("mail", version + 1, Expect::Is(version));
            vec![vec![set_job(&jobs[server], changed), batch, ledger]]
        };
        let both = join(stores[0].commit(tick(0)), stores[1].commit(tick(1)));
        let (first, second) = RUNTIME.block_on(both);
        let won = [first, second].map(|answers| match answers.unwrap().remove(0) {
            Committed::All => true,
            Committed::Conflict { step: 2, .. } => false,
            other @ Committed::Conflict { .. } => panic!("{other:?}"),
        });
        assert_ne!(won[0], won[1], "version {version}");
        jobs[usize::from(won[1])].life.revision.0 += 1;
    }
    let ids = [jobs[0].id.clone(), jobs[1].id.clone()];
    let found = RUNTIME.block_on(stores[0].get(&ids)).unwrap();
    assert_eq!(found, jobs.map(|job| Ok(Some(job))));
    assert_eq!(rows(&stores[0], "SELECT FROM batches").len(), 39);
}
