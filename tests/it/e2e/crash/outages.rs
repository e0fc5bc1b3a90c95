//! Faults of servers on Postgres that no kill shows: a server is frozen for longer than every lease, its
//! connections are cut, slow or silent, and Postgres itself is killed.

use std::{path::PathBuf, sync::Arc};

use nix::sys::signal::{Signal, kill};
use rand::RngExt as _;
use tidegate_backends::postgres::test_server::OwnServer;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixStream},
    sync::watch,
};

use super::{Running, load, shared};

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
        match fault % 5 {
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
    lose_nothing(5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; cargo xtask check --full runs it"]
async fn postgres_servers_frozen_or_cut_off_sixty_times_lose_nothing() {
    lose_nothing(60).await;
}
