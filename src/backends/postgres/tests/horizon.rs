//! A transaction that stays open: nothing that is removed meanwhile can be cleaned up. The store goes on as
//! before, and a loop with `SKIP LOCKED` on a table, as many queues have it, does not.
//!
//! The short test counts the rows that Postgres reads for a number of jobs, which does not depend on what
//! else the machine does. The long one measures jobs per minute.

mod purges;

use std::{ops::Range, time::Duration};

use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_postgres::{Client, NoTls};

use super::{
    ledgers::ledger_writes,
    server::{RUNTIME, open, settings_at},
};
use crate::postgres::{PostgresStore, Settings, test_server::OwnServer};
use tidegate_core::{
    job::{Event, Job, QueueName, Token},
    port::job_store::{Committed, CurrentRecord, DueQuery, JobStore, Txn, Write},
    queue::order::Order,
    time::{Seconds, Timestamp},
};
use tidegate_engine::testkit::builders::{at, job, name};

/// Jobs of a round.
const JOBS: i64 = 100;
/// Rounds of a phase of the short test.
const ROUNDS: i64 = 80;
/// Rounds of one job in a phase.
const TICKS: i64 = 200;
/// Rounds in which a new store learns where its pages start.
const FIRST_ROUNDS: i64 = 2;
/// When the jobs are claimed and end.
const LATE: Timestamp = Timestamp::from_millis(1_000_000_000_000);
/// The interval of the store's rounds in the long test: 1,500 jobs a second.
const PACE: Duration = Duration::from_micros(66_667);
/// How long that test takes.
const MINUTES: usize = 10;
/// Least jobs of its first minute: a tenth less than the interval allows.
const MIN_JOBS: i64 = 1_500 * 60 * 9 / 10;
/// The rounds of the loop follow each other at once.
const NO_PAUSE: Duration = Duration::from_millis(1);
/// The name of the loop's connections.
const LOOP: &str = "skip_locked";

/// The table of the loop, and its plan, which is that of a full table.
const LOOP_TABLE: &str = "CREATE TABLE waiting (id bigint PRIMARY KEY, run_at bigint NOT NULL, data text); \
     CREATE INDEX ON waiting (run_at, id)";
const LOOP_PLAN: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off; \
     SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off";

fn connect(address: &str, application: &str) -> Client {
    let mut config: tokio_postgres::Config = address.parse().unwrap();
    config.application_name(application);
    RUNTIME.block_on(async {
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    })
}

fn run(client: &Client, sql: &str) {
    RUNTIME.block_on(client.batch_execute(sql)).unwrap();
}

/// Opens a transaction, which stays open as long as its connection.
fn hold(address: &str) -> Client {
    let holder = connect(address, "holder");
    run(&holder, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1");
    holder
}

/// Rounds of jobs on the store.
struct Rounds {
    store: PostgresStore,
    queue: QueueName,
    /// Jobs of a round.
    jobs: i64,
    /// The version of the ledger, which is the number of the rounds that are over.
    version: u64,
}

impl Rounds {
    fn open(settings: &Settings, queue: &str, jobs: i64) -> Self {
        let (store, queue) = (open(settings), name(queue));
        let ledger = RUNTIME.block_on(store.ledger(&queue)).unwrap();
        Self { store, queue, jobs, version: ledger.map_or(0, |(ledger, _)| ledger.version) }
    }

    /// Adds jobs, finds them, and claims and ends them. The claims are in a commit with the ledger, which
    /// replaces its batch.
    async fn round(&mut self) {
        let first = self.jobs * i64::try_from(self.version).unwrap();
        let add = |n: i64| {
            let job = job(&format!("{}-{n:09}", self.queue)).queue(self.queue.as_str());
            vec![Write::AddJob(job.of_type("x").due(n).build())]
        };
        self.commit((first..first + self.jobs).map(add).collect()).await;
        let due = self.store.due(&[due_jobs(&self.queue)]).await.unwrap().remove(0).jobs;
        let found = i64::try_from(due.len()).unwrap();
        assert_eq!(found, self.jobs, "the jobs of this round are due, and no others");
        let stored = self.store.ledger(&self.queue).await.unwrap();
        assert_eq!(stored.map_or(0, |(ledger, _)| ledger.version), self.version);
        self.version += 1;
        let mut claims = Vec::from(ledger_writes(&self.queue, self.version));
        let mut ends = Vec::with_capacity(due.len());
        for job in due {
            let claimed = job.apply(claim(&job), LATE).unwrap();
            let end = Event::Succeed { attempt: 1, result: None };
            let ended = claimed.apply(end, LATE).unwrap();
            ends.push(change(&claimed, ended));
            claims.push(change(&job, claimed));
        }
        self.commit(vec![claims]).await;
        self.commit(vec![ends]).await;
    }

    /// Commits the ledger of the last round again, as a server does that has not seen it.
    async fn refused(&self) {
        let txn = Vec::from(ledger_writes(&self.queue, self.version));
        let answers = self.store.commit(vec![txn]).await.unwrap();
        let [Committed::Conflict { step: 0, current: CurrentRecord::Version(version) }] =
            answers[..]
        else {
            panic!("{answers:?}")
        };
        assert_eq!(version, self.version);
    }

    async fn commit(&self, txns: Vec<Txn>) {
        for answer in self.store.commit(txns).await.unwrap() {
            assert!(matches!(answer, Committed::All), "{answer:?}");
        }
    }
}

fn due_jobs(queue: &QueueName) -> DueQuery {
    DueQuery {
        queue: queue.clone(),
        critical: false,
        types: vec![name("x")],
        partition: None,
        order: Order::Time { step_millis: 0 },
        until: LATE,
        after: None,
        limit: 100,
        granted: None,
    }
}

fn claim(job: &Job) -> Event {
    Event::Claim {
        version: job.life.version,
        token: Token::new(7),
        worker: None,
        lease: Seconds::new(30).duration(),
        granted: true,
        decided_at: at(0),
    }
}

fn change(from: &Job, to: Job) -> Write {
    Write::SetJob { job: to, was: from.life.revision, all: false }
}

/// A round of the loop: it adds rows, takes them in their order, and deletes them.
async fn loop_round(client: &Client, number: i64) {
    let first = number * JOBS;
    let last = first + JOBS - 1;
    let add = format!(
        "INSERT INTO waiting SELECT n, n, repeat('x', 100) FROM generate_series({first}, {last}) n"
    );
    client.batch_execute(&add).await.unwrap();
    let take = "WITH taken AS (SELECT id FROM waiting ORDER BY run_at, id LIMIT 100 \
         FOR UPDATE SKIP LOCKED) DELETE FROM waiting w USING taken t WHERE w.id = t.id";
    assert_eq!(client.execute(take, &[]).await.unwrap(), 100);
}

/// The first version in which a connection has reported everything when it has ended. Before it, another
/// process receives the reports, in their order.
const REPORTED_AT_END: i64 = 150_000;

/// Counts the rows and entries of indexes that connections have read, also those of removed rows.
struct Meter {
    client: Client,
    address: String,
}

impl Meter {
    fn new(address: &str) -> Self {
        let client = connect(address, "meter");
        run(&client, "CREATE TABLE reported (n int)");
        Self { client, address: address.to_owned() }
    }

    fn number(&self, sql: &str) -> i64 {
        RUNTIME.block_on(self.client.query_one(sql, &[])).unwrap().get(0)
    }

    /// Waits until the reports of all connections that have ended are received: one more scan of a table is
    /// reported after them.
    fn wait_for_reports(&self) {
        let version = "SELECT current_setting('server_version_num')::bigint";
        if self.number(version) >= REPORTED_AT_END {
            return;
        }
        // The view with this number reads rows itself.
        let scans = "SELECT pg_stat_get_numscans('reported'::regclass)";
        let before = self.number(scans);
        run(&connect(&self.address, "report"), "SELECT FROM reported");
        while self.number(scans) == before {
            std::thread::yield_now();
        }
    }

    /// What all connections so far have read. It waits for the end of those of `application`.
    fn read(&self, application: &str) -> i64 {
        let open = "SELECT FROM pg_stat_get_activity(NULL) WHERE application_name = $1::text";
        let rows = || RUNTIME.block_on(self.client.query(open, &[&application])).unwrap();
        while !rows().is_empty() {
            std::thread::yield_now();
        }
        self.wait_for_reports();
        self.number("SELECT tup_returned FROM pg_stat_database WHERE datname = current_database()")
    }

    /// What so many rounds of `jobs` in `queue` read, with those of a new connection. Each is followed by a
    /// tick that is refused.
    fn store_reads(&self, settings: &Settings, queue: &str, jobs: i64, rounds: i64) -> i64 {
        let application = settings.config.get_application_name().unwrap();
        let before = self.read(application);
        let mut store = Rounds::open(settings, queue, jobs);
        for _ in 0..rounds {
            RUNTIME.block_on(async {
                store.round().await;
                store.refused().await;
            });
            // The first page has looked from the front. When the next one does depends on the time.
            store.store.shared.positions.look_at(Instant::now() + Duration::from_hours(1));
        }
        drop(store);
        self.read(application) - before
    }

    /// What a phase reads. The rounds of the loop have numbers.
    fn phase(&self, address: &str, settings: &Settings, numbers: Range<i64>) -> Reads {
        let of_store = |queue: &str, jobs: i64, rounds: i64| {
            // A new store looks from the front, which reads everything that was removed.
            let first = self.store_reads(settings, queue, jobs, FIRST_ROUNDS);
            self.store_reads(settings, queue, jobs, FIRST_ROUNDS + rounds) - first
        };
        let (rounds, ticks) = (of_store("mail", JOBS, ROUNDS), of_store("limited", 1, TICKS));
        let before = self.read(LOOP);
        let client = connect(address, LOOP);
        run(&client, LOOP_PLAN);
        for number in numbers {
            RUNTIME.block_on(loop_round(&client, number));
        }
        drop(client);
        Reads { rounds, ticks, of_loop: self.read(LOOP) - before }
    }
}

/// The rows that a phase has read.
#[derive(Debug)]
struct Reads {
    /// Rounds of many jobs.
    rounds: i64,
    /// Rounds of one job, in a queue of their own.
    ticks: i64,
    of_loop: i64,
}

/// Without the transaction, the dead ledgers and batches of earlier ticks are skipped. So the first phase
/// with it is what later ticks are compared with.
#[test]
fn an_open_transaction_slows_only_a_skip_locked_loop() {
    let server = OwnServer::start();
    let address = server.address();
    let settings = settings_at(&address);
    let meter = Meter::new(&address);
    run(&meter.client, LOOP_TABLE);
    // It makes the tables.
    drop(open(&settings));
    let first = meter.phase(&address, &settings, 0..ROUNDS);
    let holder = hold(&address);
    let early = meter.phase(&address, &settings, ROUNDS..2 * ROUNDS);
    let last = meter.phase(&address, &settings, 2 * ROUNDS..3 * ROUNDS);
    drop(holder);
    println!("rows read at first: {first:?}, then with the transaction: {early:?}, {last:?}");
    let is_flat = |last: i64, first: i64| 3 * last <= 4 * first;
    assert!(is_flat(last.rounds, first.rounds), "rounds: {first:?}, {last:?}");
    assert!(is_flat(last.ticks, early.ticks), "ticks: {early:?}, {last:?}");
    assert!(last.of_loop >= 3 * first.of_loop, "the loop: {first:?}, {last:?}");
}

/// Runs rounds at this interval, as far as they keep it. Returns the jobs of each minute.
async fn per_minute(interval_of_rounds: Duration, mut round: impl AsyncFnMut(i64)) -> Vec<i64> {
    let began = Instant::now();
    let mut turns = interval(interval_of_rounds);
    turns.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (mut counts, mut number) = (vec![0; MINUTES], 0);
    loop {
        turns.tick().await;
        round(number).await;
        number += 1;
        let minute = usize::try_from(began.elapsed().as_secs() / 60).unwrap();
        let Some(count) = counts.get_mut(minute) else { return counts };
        *count += JOBS;
    }
}

/// The dead rows of the tables that each tick changes, as Postgres estimates them.
fn dead_rows(client: &Client) -> String {
    let sql = "SELECT string_agg(relname || ' ' || n_dead_tup, ', ' ORDER BY relname) \
         FROM pg_stat_user_tables WHERE relname IN ('jobs', 'heads', 'batches', 'counts')";
    RUNTIME.block_on(client.query_one(sql, &[])).unwrap().get(0)
}

#[test]
#[ignore = "takes ten minutes, alone; cargo xtask check --full runs it"]
fn the_store_keeps_its_pace_for_ten_minutes_of_one_transaction() {
    let server = OwnServer::start_as("autovacuum = on\n");
    let address = server.address();
    let mut store = Rounds::open(&settings_at(&address), "mail", JOBS);
    let client = connect(&address, LOOP);
    run(&client, &format!("{LOOP_TABLE}; {LOOP_PLAN}"));
    let holder = hold(&address);
    let (of_store, of_loop) = RUNTIME.block_on(async {
        tokio::join!(
            per_minute(PACE, async |_| store.round().await),
            per_minute(NO_PAUSE, async |number| loop_round(&client, number).await),
        )
    });
    let dead = dead_rows(&client);
    drop(holder);
    println!("jobs of each minute: {of_store:?} of the store, {of_loop:?} of the loop");
    println!("dead rows at the end: {dead}");
    let ends = |counts: &[i64]| (counts[0], counts[MINUTES - 1]);
    let (first, last) = ends(&of_store);
    assert!(first >= MIN_JOBS, "the store had {first} jobs in its first minute");
    assert!(4 * last >= 3 * first, "the store had {first} jobs in a minute, and then {last}");
    let (first, last) = ends(&of_loop);
    assert!(2 * last < first, "the loop had {first} jobs in a minute, and then {last}");
}
