//! Faults of servers on Postgres that no kill shows: a server is frozen for longer than every lease, its
//! connections are cut, slow or silent, and Postgres itself is killed, restarted, lost or full.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use nix::sys::signal::{Signal, kill};
use rand::RngExt as _;
use reqwest::Method;
use serde_json::json;
use tempfile::TempDir;
use tidegate_backends::postgres::test_server::OwnServer;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixStream},
    sync::watch,
};

use super::{Running, load, shared};
use crate::e2e::{serve::text, wait::eventually};

/// How a proxy passes bytes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Good,
    /// Each packet takes some time.
    Slow,
    /// Nothing arrives, and no connection ends.
    Silent,
    /// All connections end, and none is accepted.
    Cut,
}

/// A proxy between one server and Postgres. Returns its port, and what sets how it passes bytes on.
async fn proxy(socket: PathBuf) -> (u16, watch::Sender<Link>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, link) = watch::channel(Link::Good);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(connection(client, socket.clone(), link.clone()));
        }
    });
    (port, sender)
}

/// Passes on the bytes of a connection until an end closes it or it is cut.
async fn connection(mut client: TcpStream, socket: PathBuf, mut link: watch::Receiver<Link>) {
    // Postgres may be down.
    let Ok(mut server) = UnixStream::connect(&socket).await else { return };
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::select! {
        () = pass_on(from_client, to_server, link.clone()) => {}
        () = pass_on(from_server, to_client, link.clone()) => {}
        _ = link.wait_for(|link| *link == Link::Cut) => {}
    }
}

async fn pass_on(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut link: watch::Receiver<Link>,
) {
    let mut buffer = vec![0; 1 << 14];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let Ok(how) = link.wait_for(|link| *link != Link::Silent).await.map(|link| *link) else {
            return;
        };
        if how == Link::Slow {
            load::work(40).await;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// Injects `faults` faults, each kind in turn, into servers under load.
async fn lose_nothing(faults: usize) {
    let postgres = Arc::new(tokio::task::spawn_blocking(OwnServer::start).await.unwrap());
    let (mut addresses, mut links) = (vec![postgres.address()], Vec::new());
    for _ in 0..2 {
        let (port, link) = proxy(postgres.socket()).await;
        addresses.push(format!("postgres://tidegate@127.0.0.1:{port}/postgres?sslmode=disable"));
        links.push(link);
    }
    let mut running = Running::start(shared(&addresses), 20_261_129).await;
    for fault in 0..faults {
        running.go_on().await;
        let duration = running.chance.random_range(1500..3500);
        match fault % 6 {
            0 => {
                // Its workers and callers wait for it. Leases end after a second.
                let frozen = running.take_any();
                kill(frozen.pid(), Signal::SIGSTOP).unwrap();
                load::work(duration).await;
                kill(frozen.pid(), Signal::SIGCONT).unwrap();
                running.add(frozen);
            }
            4 => {
                let postgres = Arc::clone(&postgres);
                tokio::task::spawn_blocking(move || postgres.kill_and_start()).await.unwrap();
            }
            5 => {
                let postgres = Arc::clone(&postgres);
                tokio::task::spawn_blocking(move || postgres.restart()).await.unwrap();
            }
            kind => {
                let link = &links[running.chance.random_range(0..links.len())];
                link.send_replace([Link::Cut, Link::Slow, Link::Silent][kind - 1]);
                load::work(duration).await;
                link.send_replace(Link::Good);
            }
        }
    }
    running.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_servers_frozen_or_cut_off_lose_nothing() {
    lose_nothing(6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; cargo xtask check --full runs it"]
async fn postgres_servers_frozen_or_cut_off_sixty_times_lose_nothing() {
    lose_nothing(60).await;
}

/// A standby that confirms each commit takes the place of a Postgres that is lost with its disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_servers_lose_nothing_when_a_standby_is_promoted() {
    let start = || {
        let primary = OwnServer::start();
        let standby = primary.start_standby();
        (primary, standby)
    };
    let (primary, standby) = tokio::task::spawn_blocking(start).await.unwrap();
    let addresses = [primary.address_with(&standby), primary.address_with(&standby)];
    let mut running = Running::start(shared(&addresses), 20_261_130).await;
    for _ in 0..3 {
        running.go_on().await;
    }
    let promote = move || {
        primary.kill();
        standby.promote();
    };
    tokio::task::spawn_blocking(promote).await.unwrap();
    for _ in 0..3 {
        running.go_on().await;
    }
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
