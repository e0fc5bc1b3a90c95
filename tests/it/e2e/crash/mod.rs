//! The server is killed at random instants, some of them during its start, while clients enqueue
//! and workers work: single jobs, batches, PUTs, events, transactions of a database, a schedule, pushes,
//! pulls, limits, a rate and a plugin. No acknowledged job is lost, no limit and no rate is exceeded, and no
//! at-most-once job runs twice. A server whose data is in a bucket loses its disk with each kill. At the end,
//! its log is verified, and restores the database that the last server has.
//!
//! The expectation comes from the clients' own records: the acknowledged jobs, and the start and
//! end of each attempt. An attempt counts until its report is sent or its lease ends, whichever
//! comes first. A second holder before that is a fault. Only the starts of the rate are the
//! server's own: a worker sees them later.

mod books;
pub mod load;
mod outages;
mod peers;
mod proxy;
mod replay;
mod rolling;
mod transactions;

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
};

use futures_util::future::join_all;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use reqwest::Method;
use serde_json::{Value, json};
use tidegate_backends::{postgres::test_server, system::SystemClock};
use tidegate_core::{port::Clock as _, time::Timestamp};
use tokio::task::JoinHandle;

use self::{
    books::Books,
    load::{LIMIT, RATE, SHARED, SHARES, Way},
    replay::the_log_restores,
};
use super::{
    api::Api,
    bucket::{
        Bucket,
        clouds::CloudLog,
        new_log_in_s3, server_of_log,
        stand_in::{Conditions, StandIn},
    },
    rounds,
    serve::{Setup, Tidegate},
    target::Target,
    wait::{eventually, until},
};
use crate::port::Port;

/// Servers that share a store.
struct Servers {
    setups: Vec<Setup>,
    store: Store,
}

/// Where the data is.
enum Store {
    /// In the directory of the only server.
    Directory,
    /// In the tables of a schema of the Postgres at this address.
    Tables { address: String, schema: String },
    /// In a log in a bucket. The disk of a server is lost with it.
    Log,
}

impl Servers {
    /// A server on its own directory.
    fn one() -> Self {
        Self { setups: vec![Setup::new()], store: Store::Directory }
    }

    /// Servers on one log. If there are several, one leads and the others are standbys.
    fn of_log(count: usize, server: impl Fn() -> Setup) -> Self {
        let setup = |_| if count > 1 { server().switch("--standby") } else { server() };
        Self { setups: (0..count).map(setup).collect(), store: Store::Log }
    }
}

/// Takes a server that is ready out of `tides`.
async fn take_ready(tides: &mut Vec<Tidegate>) -> Tidegate {
    let at = eventually("a server is ready", || async {
        for (at, tide) in tides.iter().enumerate() {
            let api = tide.api.unchecked();
            let ready = api.try_send(Method::GET, "/readyz", &[], String::new()).await;
            if ready.is_some_and(|ready| ready.status == 200) {
                return Some(at);
            }
        }
        None
    });
    let at = at.await;
    tides.swap_remove(at)
}

/// Servers under load.
struct Running {
    books: Arc<Books>,
    store: Store,
    tides: Vec<Tidegate>,
    clients: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    chance: StdRng,
    /// The pushes go to it.
    _target: Target,
}

impl Running {
    /// Starts and configures the servers, and all clients and workers.
    async fn start(Servers { setups, store }: Servers, seed: u64) -> Self {
        let books = Arc::new(Books::default());
        let target = load::target(Arc::clone(&books)).await;
        let mut setups = setups.into_iter();
        // Alone: a leader of a log that is slow on a busy machine loses to a standby.
        let mut tides = vec![setups.next().unwrap().follow().await];
        let first = take_ready(&mut tides).await;
        load::configure(&first, &target).await;
        tides.extend(join_all(setups.map(Setup::follow)).await);
        tides.push(first);
        *books.apis.lock() = tides.iter().map(|tide| tide.api.clone()).collect();
        let mut clients: Vec<_> = [Way::Single, Way::Batch, Way::Put, Way::Event]
            .into_iter()
            .map(|way| tokio::spawn(load::client(Arc::clone(&books), way)))
            .collect();
        if let Store::Tables { address, schema } = &store {
            let (address, schema) = (address.clone(), schema.clone());
            clients.push(tokio::spawn(transactions::client(Arc::clone(&books), address, schema)));
        }
        let queues = [None, None, Some("pulled"), Some("shared"), Some("shared"), Some("rated")];
        let workers = queues
            .into_iter()
            .zip(0..)
            .map(|(queue, name)| {
                let chance = StdRng::seed_from_u64(seed + name as u64);
                tokio::spawn(load::worker(Arc::clone(&books), name, queue, chance))
            })
            .collect();
        let chance = StdRng::seed_from_u64(seed);
        Self { books, store, tides, clients, workers, chance, _target: target }
    }

    /// Waits for a random time, which is counted in what happens.
    async fn go_on(&mut self) {
        let events = || self.books.events.load(Ordering::Relaxed);
        let aim = events() + self.chance.random_range(5..250);
        eventually("enough has happened for the next fault", || async {
            (events() >= aim).then_some(())
        })
        .await;
    }

    /// Takes one of the servers, to which no more requests are sent.
    fn take_any(&mut self) -> Tidegate {
        let at = self.chance.random_range(0..self.tides.len());
        self.take(at)
    }

    /// Takes the server at this place, to which no more requests are sent. The others move up.
    fn take(&mut self, at: usize) -> Tidegate {
        let tide = self.tides.remove(at);
        self.books.apis.lock().retain(|api| api.base != tide.api.base);
        tide
    }

    /// Adds a server, which gets requests.
    fn add(&mut self, tide: Tidegate) {
        self.books.apis.lock().push(tide.api.clone());
        self.tides.push(tide);
    }

    /// Kills one of the servers, and starts it again.
    async fn kill(&mut self) {
        let mut setup = self.take_any().kill();
        if matches!(self.store, Store::Log) {
            std::fs::remove_dir_all(setup.data()).unwrap();
        }
        if self.chance.random_ratio(1, 4) {
            let chance = &mut self.chance;
            setup = setup.start_and_kill(|| load::work(chance.random_range(0..200))).await;
        }
        // A standby is not ready as long as another server leads.
        self.add(setup.follow().await);
    }

    /// Ends the load, waits for the end of every job, and compares what the servers say with the records
    /// of the clients.
    async fn finish(mut self) {
        let books = &self.books;
        books.enough.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.unwrap();
        }
        let tide = take_ready(&mut self.tides).await;
        if matches!(self.store, Store::Log) {
            // None of them takes over while the leader is slow on a busy machine.
            for standby in self.tides.drain(..) {
                books.apis.lock().retain(|api| api.base != standby.api.base);
                drop(standby.kill());
            }
        }
        // A read adds what a transaction has requested, so that no list of jobs lacks it.
        let requested = books.requested.lock().clone();
        for id in requested {
            tide.job(&id).await;
        }
        pause_caught_up(&tide, "beats").await;
        until(|| async {
            // A few, because the server that lists them has to run them, too.
            let left = tide.get("/v1/jobs?state=scheduled,running&limit=10").await.is(200);
            (left["jobs"] == json!([]) && left.get("next_cursor").is_none(), left)
        })
        .await;
        books.over.store(true, Ordering::Relaxed);
        for worker in self.workers {
            worker.await.unwrap();
        }
        let faults = std::mem::take(&mut *books.faults.lock());
        assert!(faults.is_empty(), "{faults:#?}");
        no_limit_was_exceeded(books);
        the_rate_was_kept(&tide).await;
        no_event_and_no_occurrence_was_lost(&tide, books).await;
        every_job_is_accounted_for(&tide, books).await;
        no_job_of_an_undone_transaction_exists(&tide, books).await;
        if matches!(self.store, Store::Tables { .. }) {
            requests_were_forwarded(&self.tides.iter().chain([&tide]).collect::<Vec<_>>()).await;
        }
        let (acknowledged, ordered) = (books.acknowledged.lock().len(), books.ordered.lock().len());
        let attempts: usize = books.started.lock().values().map(Vec::len).sum();
        println!("{acknowledged} jobs, {ordered} orders, {attempts} attempts seen");
        if matches!(self.store, Store::Log) {
            the_log_restores(&tide.stop().await);
        }
    }
}

/// Pauses a schedule once it has no occurrence of the past without a job: a pause drops these.
async fn pause_caught_up(api: &Api, schedule: &str) {
    let path = format!("/v1/schedules/{schedule}");
    let now = SystemClock.now();
    until(|| async {
        let shown = api.get(&path).await.is(200);
        let next = shown["next"][0].as_str().unwrap().parse::<Timestamp>().unwrap();
        (next > now, shown)
    })
    .await;
    api.post(&format!("{path}/pause"), Value::Null).await.good();
}

/// Every job of a type.
async fn jobs_of(api: &Api, name: &str) -> Vec<Value> {
    let (mut jobs, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = api.get(&format!("/v1/jobs?type={name}&limit=1000{cursor}")).await.is(200);
        jobs.extend(page["jobs"].as_array().unwrap().iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return jobs,
        }
    }
}

/// No more attempts were held at once than each limit and each share allows.
fn no_limit_was_exceeded(books: &Books) {
    let shares = SHARES.map(|(region, share)| (region, SHARED * share / 100));
    let limits = [("pulled", LIMIT), ("pushed", LIMIT), ("shared", SHARED)];
    for (limit, allowed) in limits.into_iter().chain(shares) {
        let most = books.most_at_once(limit);
        assert!((1..=allowed).contains(&most), "{most} ran at once in {limit}");
    }
}

/// No window of one second has more starts than the rate allows.
async fn the_rate_was_kept(api: &Api) {
    let jobs = jobs_of(api, "rate").await;
    let mut starts = Vec::new();
    for job in &jobs {
        let job = api.job(job["id"].as_str().unwrap()).await;
        let time = |entry: &Value| entry["started_at"].as_str().unwrap().parse::<Timestamp>();
        starts.extend(
            job["history"].as_array().unwrap().iter().map(|entry| time(entry).unwrap().millis()),
        );
    }
    starts.sort_unstable();
    assert!(!starts.is_empty());
    for window in starts.windows(RATE + 1) {
        assert!(window[RATE] - window[0] >= 1000, "{} starts in one second: {window:?}", RATE + 1);
    }
}

/// Every acknowledged order, and none twice, has become a job. Every second has its job.
async fn no_event_and_no_occurrence_was_lost(api: &Api, books: &Books) {
    let keys: Vec<String> = jobs_of(api, "order")
        .await
        .iter()
        .map(|job| job["correlation_key"].as_str().unwrap().to_owned())
        .collect();
    let distinct: BTreeSet<_> = keys.iter().cloned().collect();
    assert_eq!(keys.len(), distinct.len(), "an event became two jobs");
    let missing: Vec<_> = books.ordered.lock().difference(&distinct).cloned().collect();
    assert!(missing.is_empty(), "{missing:?} were acknowledged and have no job");

    let shown = api.get("/v1/schedules/beats").await.is(200);
    assert_eq!(
        (&shown["missed_count"], &shown["last_error"]),
        (&json!(0), &Value::Null),
        "{shown}"
    );
    let mut beats: Vec<i64> = jobs_of(api, "beat")
        .await
        .iter()
        .map(|job| {
            let instant = job["id"].as_str().unwrap().strip_prefix("beats:").unwrap();
            chrono::NaiveDateTime::parse_from_str(instant, "%Y%m%dT%H%M%SZ")
                .unwrap()
                .and_utc()
                .timestamp()
        })
        .collect();
    beats.sort_unstable();
    assert!(beats.len() > 1 && beats.windows(2).all(|two| two[1] == two[0] + 1), "{beats:?}");
}

/// Each job ended as its type allows, with one entry of history for each attempt, and no worker
/// saw an attempt that the job does not know.
async fn every_job_is_accounted_for(api: &Api, books: &Books) {
    let acknowledged = books.acknowledged.lock().clone();
    let begun = books.started.lock().clone();
    let succeeded = books.succeeded.lock().clone();
    for id in acknowledged.iter().chain(begun.keys().filter(|id| !acknowledged.contains(*id))) {
        let job = api.job(id).await;
        let attempts = begun.get(id).cloned().unwrap_or_default();
        let attempt = job["attempt"].as_u64().unwrap();
        assert!(attempts.last().is_none_or(|last| *last <= attempt), "{attempts:?}: {job:#}");
        let history: Vec<u64> = job["history"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["attempt"].as_u64().unwrap())
            .collect();
        assert_eq!(history, (1..=attempt).collect::<Vec<_>>(), "{job:#}");
        if job["type"].as_str().unwrap().starts_with("once") {
            // What was leased for a server that died before it had the answer did not run.
            let handed_back = job["handed_back"].as_u64().unwrap_or_default();
            assert!(attempts.len() <= 1 && attempt == 1 + handed_back, "{attempts:?}: {job:#}");
            assert!(
                job["state"] == "succeeded" || job["error"]["reason"] == "outcome_unknown",
                "{job:#}"
            );
        } else {
            assert_eq!(
                (&job["state"], &job["result"]),
                (&json!("succeeded"), &job["data"]),
                "{job:#}"
            );
        }
        assert!(!succeeded.contains(id) || job["state"] == "succeeded", "{job:#}");
    }
}

/// How many lease requests these servers have forwarded with this outcome.
async fn forwarded(tides: &[&Tidegate], outcome: &str) -> f64 {
    let series = format!("tidegate_lease_requests_forwarded_total{{outcome=\"{outcome}\"}} ");
    let mut forwarded = 0.0;
    for tide in tides {
        let metrics = String::from_utf8(tide.get("/metrics").await.body).unwrap();
        let counts = metrics.lines().filter_map(|line| line.strip_prefix(&series));
        forwarded += counts.map(|count| count.parse::<f64>().unwrap()).sum::<f64>();
    }
    forwarded
}

/// Some lease requests were answered by the owner of their queue.
async fn requests_were_forwarded(tides: &[&Tidegate]) {
    assert!(forwarded(tides, "forwarded").await > 0.0, "no request was forwarded");
}

/// What a transaction that was rolled back requested is no job.
async fn no_job_of_an_undone_transaction_exists(api: &Api, books: &Books) {
    let undone = books.undone.lock().clone();
    for id in undone {
        let answer = api.unchecked().get(&format!("/v1/jobs/{id}")).await;
        assert_eq!(answer.status, 404, "{id}: {answer:?}");
    }
}

async fn loses_nothing_and_keeps_limits(servers: Servers, kills: usize) {
    let mut running = Running::start(servers, 20_261_120).await;
    for _ in 0..kills {
        running.go_on().await;
        running.kill().await;
    }
    let acknowledged = running.books.acknowledged.lock().len();
    running.finish().await;
    assert!(acknowledged > 20 * kills, "only {acknowledged} were acknowledged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_at_any_time_loses_nothing_and_keeps_limits() {
    loses_nothing_and_keeps_limits(Servers::one(), 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; cargo xtask check --full runs it"]
async fn a_server_killed_sixty_times_loses_nothing_and_keeps_limits() {
    loses_nothing_and_keeps_limits(Servers::one(), 60).await;
}

/// Servers on one database in Postgres, which they reach at `addresses`, and tests at the first of them.
/// They forward lease requests to each other.
fn shared(addresses: &[String]) -> Servers {
    shared_at(addresses, |own| format!("http://{own}"))
}

/// As [`shared`]. `peer_url` returns where the others reach the server that listens at an address.
fn shared_at(addresses: &[String], mut peer_url: impl FnMut(&str) -> String) -> Servers {
    let schema = test_server::new_name();
    let setups = addresses.iter().map(|address| {
        let port = Port::new();
        let url = peer_url(&port.address());
        Setup::on_postgres(address, &schema).on_port(port).env("TIDEGATE_PEER_URL", url)
    });
    let setups = setups.collect();
    Servers { setups, store: Store::Tables { address: addresses[0].clone(), schema } }
}

/// Three servers on the Postgres that tests share.
fn three() -> Servers {
    shared(&std::array::from_fn::<_, 3, _>(|_| test_server::address("postgres")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_servers_killed_at_any_time_lose_nothing() {
    loses_nothing_and_keeps_limits(three(), 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; cargo xtask check --full runs it"]
async fn postgres_servers_killed_sixty_times_lose_nothing() {
    loses_nothing_and_keeps_limits(three(), 60).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_lost_at_any_time_lose_nothing_of_a_log() {
    let bucket = Bucket::new();
    loses_nothing_and_keeps_limits(Servers::of_log(1, || bucket.server()), 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_with_a_standby_lose_nothing_of_a_log() {
    let bucket = Bucket::new();
    loses_nothing_and_keeps_limits(Servers::of_log(2, || bucket.server()), 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; cargo xtask check --full runs it"]
async fn machines_of_a_log_lost_two_hundred_times_lose_nothing() {
    for servers in [1, 2] {
        let bucket = Bucket::new();
        loses_nothing_and_keeps_limits(Servers::of_log(servers, || bucket.server()), 100).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a local stack"]
async fn on_a_local_stack_lost_machines_lose_nothing_of_a_log() {
    let log = new_log_in_s3().await;
    loses_nothing_and_keeps_limits(Servers::of_log(2, || server_of_log(&log)), 20).await;
}

/// Two hundred machines in the five rounds of the full check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; cargo xtask check --full runs it"]
async fn on_a_local_stack_many_lost_machines_lose_nothing_of_a_log() {
    for servers in [1, 2] {
        let log = new_log_in_s3().await;
        let servers = Servers::of_log(servers, || server_of_log(&log));
        loses_nothing_and_keeps_limits(servers, 20 * rounds()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_lose_nothing_of_a_log_in_google_storage() {
    let store = StandIn::start(Conditions::Obeyed);
    let log = CloudLog::google(&store);
    loses_nothing_and_keeps_limits(Servers::of_log(2, || log.server()), 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Azurite; tests/azurite/check starts it"]
async fn on_azurite_lost_machines_lose_nothing_of_a_log() {
    let log = CloudLog::azurite().await;
    loses_nothing_and_keeps_limits(Servers::of_log(2, || log.server()), 10).await;
}
