//! A proxy that cuts, delays or holds back the bytes of its connections.

use std::path::PathBuf;

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split},
    net::{TcpListener, TcpStream, UnixStream},
    sync::watch,
};

use super::load;

/// How a proxy passes bytes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Good,
    /// Each packet takes some time.
    Slow,
    /// Nothing arrives, and no connection ends.
    Silent,
    /// What the client sends arrives. No answer does, and no connection ends.
    Unanswered,
    /// All connections end, and none is accepted.
    Cut,
}

impl Link {
    fn passes_requests(self) -> bool {
        self != Self::Silent
    }

    fn passes_answers(self) -> bool {
        self != Self::Silent && self != Self::Unanswered
    }
}

/// Where a proxy leads.
#[derive(Clone)]
pub enum Place {
    Socket(PathBuf),
    /// An address and a port.
    Port(String),
}

/// A proxy to `place`. Returns its port, and what sets how it passes bytes on.
pub fn proxy(place: Place) -> (u16, watch::Sender<Link>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, link) = watch::channel(Link::Good);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(connection(client, place.clone(), link.clone()));
        }
    });
    (port, sender)
}

/// Passes on the bytes of a connection. What it leads to may be down.
async fn connection(client: TcpStream, place: Place, link: watch::Receiver<Link>) {
    match place {
        Place::Socket(path) => {
            let Ok(server) = UnixStream::connect(path).await else { return };
            pass_both(client, server, link).await;
        }
        Place::Port(address) => {
            let Ok(server) = TcpStream::connect(address).await else { return };
            pass_both(client, server, link).await;
        }
    }
}

/// Passes on the bytes of a connection until an end closes it or it is cut.
async fn pass_both(
    client: TcpStream,
    server: impl AsyncRead + AsyncWrite,
    mut link: watch::Receiver<Link>,
) {
    let (from_client, to_client) = split(client);
    let (from_server, to_server) = split(server);
    tokio::select! {
        () = pass_on(from_client, to_server, Link::passes_requests, link.clone()) => {}
        () = pass_on(from_server, to_client, Link::passes_answers, link.clone()) => {}
        _ = link.wait_for(|link| *link == Link::Cut) => {}
    }
}

async fn pass_on(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    passes: fn(Link) -> bool,
    mut link: watch::Receiver<Link>,
) {
    let mut buffer = vec![0; 1 << 14];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let Ok(how) = link.wait_for(|link| passes(*link)).await.map(|link| *link) else {
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
