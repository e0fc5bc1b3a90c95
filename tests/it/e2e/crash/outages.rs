//! Faults of servers on Postgres that no kill shows: a server is frozen for longer than every lease, its
//! connections are cut, slow, silent or without answers, and Postgres itself is killed, restarted, lost or
//! full.

use std::{path::Path, process::Command, sync::Arc};

use nix::sys::signal::{Signal, kill};
use rand::RngExt as _;
use reqwest::Method;
use serde_json::json;
use tempfile::TempDir;
use tidegate_backends::postgres::test_server::OwnServer;

use super::{
    Running, load,
    proxy::{Link, Place, proxy},
    shared, three,
};
use crate::e2e::{serve::text, wait::eventually};

/// A fault of servers on Postgres.
#[derive(Clone, Copy)]
enum Fault {
    /// A server is frozen.
    Frozen,
    /// The connections of as many servers to Postgres.
    Links(&'static [Link]),
    /// Postgres is killed, and started again.
    Killed,
    /// Postgres is stopped as for an update, and started again.
    Restarted,
}

/// Every kind, each alone.
const ALONE: [Fault; 7] = [
    Fault::Frozen,
    Fault::Links(&[Link::Cut]),
    Fault::Links(&[Link::Slow]),
    Fault::Links(&[Link::Silent]),
    Fault::Links(&[Link::Unanswered]),
    Fault::Killed,
    Fault::Restarted,
];
/// Every kind, in less time: those of connections two at once. A third server has a good one.
const IN_PAIRS: [Fault; 5] = [
    Fault::Frozen,
    Fault::Links(&[Link::Cut, Link::Slow]),
    Fault::Links(&[Link::Silent, Link::Unanswered]),
    Fault::Killed,
    Fault::Restarted,
];

/// Injects `faults` into servers under load.
async fn lose_nothing(faults: impl IntoIterator<Item = Fault>) {
    let postgres = Arc::new(tokio::task::spawn_blocking(OwnServer::start).await.unwrap());
    let (mut addresses, mut links) = (vec![postgres.address()], Vec::new());
    for _ in 0..2 {
        let (port, link) = proxy(Place::Socket(postgres.socket()));
        addresses.push(format!("postgres://tidegate@127.0.0.1:{port}/postgres?sslmode=disable"));
        links.push(link);
    }
    let mut running = Running::start(shared(&addresses), 20_261_129).await;
    for fault in faults {
        running.go_on().await;
        let duration = running.chance.random_range(1500..3500);
        match fault {
            Fault::Frozen => {
                // Its workers and callers wait for it. Leases end after a second.
                let frozen = running.take_any();
                kill(frozen.pid(), Signal::SIGSTOP).unwrap();
                load::work(duration).await;
                kill(frozen.pid(), Signal::SIGCONT).unwrap();
                running.add(frozen);
            }
            Fault::Links(kinds) => {
                let first = running.chance.random_range(0..links.len());
                for (n, kind) in kinds.iter().enumerate() {
                    links[(first + n) % links.len()].send_replace(*kind);
                }
                load::work(duration).await;
                for link in &links {
                    link.send_replace(Link::Good);
                }
            }
            Fault::Killed => {
                let postgres = Arc::clone(&postgres);
                tokio::task::spawn_blocking(move || postgres.kill_and_start()).await.unwrap();
            }
            Fault::Restarted => {
                let postgres = Arc::clone(&postgres);
                tokio::task::spawn_blocking(move || postgres.restart()).await.unwrap();
            }
        }
    }
    running.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_servers_frozen_or_cut_off_lose_nothing() {
    lose_nothing(IN_PAIRS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; cargo xtask check --full runs it"]
async fn postgres_servers_frozen_or_cut_off_sixty_times_lose_nothing() {
    lose_nothing(ALONE.into_iter().cycle().take(60)).await;
}

/// The others own everything after ten seconds. The frozen one goes on with what it had begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute; cargo xtask check --full runs it"]
async fn postgres_servers_frozen_for_twelve_seconds_lose_nothing() {
    let mut running = Running::start(three(), 20_261_132).await;
    // Each in turn, because each owns other queues.
    for _ in 0..running.tides.len() {
        running.go_on().await;
        let frozen = running.take(0);
        kill(frozen.pid(), Signal::SIGSTOP).unwrap();
        load::work(12_000).await;
        kill(frozen.pid(), Signal::SIGCONT).unwrap();
        running.add(frozen);
    }
    running.finish().await;
}

/// A standby that confirms each commit takes the place of a Postgres that is lost with its disk. Servers are
/// killed before, while no Postgres takes writes, and after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_servers_lose_nothing_when_a_standby_is_promoted() {
    let start = || {
        let primary = OwnServer::start();
        let standby = primary.start_standby();
        (primary, standby)
    };
    let (primary, standby) = tokio::task::spawn_blocking(start).await.unwrap();
    let addresses = [(); 3].map(|()| primary.address_with(&standby));
    let mut running = Running::start(shared(&addresses), 20_261_130).await;
    for _ in 0..2 {
        running.go_on().await;
        running.kill().await;
    }
    running.go_on().await;
    tokio::task::spawn_blocking(move || primary.kill()).await.unwrap();
    let before = running.take_any().kill();
    let promoting = tokio::task::spawn_blocking(move || standby.promote());
    // It cannot start before the end of the promotion.
    let meanwhile = running.take_any().kill().start_and_kill(|| load::work(50)).await;
    promoting.await.unwrap();
    // The third server has seen all of it.
    for setup in [before, meanwhile] {
        running.add(setup.follow().await);
    }
    for _ in 0..2 {
        running.go_on().await;
        running.kill().await;
    }
    running.go_on().await;
    running.finish().await;
}

/// A disk of a few megabytes in memory. It needs root.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn new(megabytes: u32) -> Self {
        let disk = Self(tempfile::tempdir().unwrap());
        disk.mount(&format!("size={megabytes}m"));
        disk
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Makes room on a full disk.
    fn grow(&self, megabytes: u32) {
        self.mount(&format!("remount,size={megabytes}m"));
    }

    fn mount(&self, options: &str) {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs", text(self.path())]);
        assert!(mount.status().unwrap().success(), "root may mount a disk in memory");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--lazy", text(self.path())]).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root; cargo xtask check --full runs it"]
async fn postgres_on_a_full_disk_loses_nothing() {
    let disk = SmallDisk::new(100);
    let dir = disk.path().to_owned();
    let start = tokio::task::spawn_blocking(move || OwnServer::start_in(&dir));
    let postgres = Arc::new(start.await.unwrap());
    let server = shared(&[postgres.address()]).setups.remove(0).start().await;
    server.job_type("t", json!({})).await;
    // It does not get smaller when it is compressed.
    let mut chance = rand::rng();
    let mut acknowledged = Vec::new();
    loop {
        let data: String =
            (0..200_000).map(|_| chance.sample(rand::distr::Alphanumeric) as char).collect();
        let job = json!({"type": "t", "data": data}).to_string();
        let json = [("content-type", "application/json")];
        match server.api.try_send(Method::POST, "/v1/jobs", &json, job).await {
            Some(answer) if answer.status == 201 => {
                let job: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
                acknowledged.push(job["id"].as_str().unwrap().to_owned());
            }
            Some(answer) => {
                assert_eq!(answer.status, 503, "{answer:?}");
                break;
            }
            None => break,
        }
        assert!(acknowledged.len() < 1000, "the disk is not full");
    }
    disk.grow(1000);
    tokio::task::spawn_blocking(move || postgres.kill_and_start()).await.unwrap();
    eventually("the server answers again", || async {
        let ready = server.unchecked().try_send(Method::GET, "/readyz", &[], "").await;
        ready.is_some_and(|ready| ready.status == 200).then_some(())
    })
    .await;
    assert!(acknowledged.len() > 20, "{} jobs", acknowledged.len());
    for id in acknowledged {
        assert_eq!(server.job(&id).await["state"], "scheduled");
    }
    server.enqueue_a("t").await;
}
