//! The HTTP/1 listener of the routes: it bounds the number of its connections, and the time that
//! each may wait for its client.
//!
//! ```text
//!   accept ─▶ Connections (how many, since when) ─▶ Stream (bytes) ─▶ hyper ─▶ exchange ─▶ routes
//! ```
//!
//! Every connection is HTTP/1 from its first byte. A listener that detects the version holds the
//! first bytes back: each connection then reads in two pieces, into a buffer of twice the size, for
//! its whole life. Hundreds of workers wait on such connections.

mod connections;
mod exchange;
mod stream;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::{rt::TokioIo, server::graceful::GracefulShutdown};
use tidegate_core::port::{Clock, Entropy};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
};

use self::{
    connections::Connections,
    stream::{Refusal, Stream},
};
use crate::handlers::refused_head;

/// The interval at which the times of the connections are checked.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many connections may wait to be accepted. The system may allow fewer (`net.core.somaxconn` of
/// Linux). A client that finds no place tries again after a second, so all workers of a deployment need one
/// when they connect at once, as after a restart of the server.
const BACKLOG: u32 = 4096;

/// A socket that listens on `address`. The caller must be in a Tokio runtime.
///
/// # Errors
///
/// The system's, such as for an address that is in use.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Connections of a process that has ended do not hold the address.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// The bounds of the connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many connections are served at once.
    pub connections: usize,
    /// How long the head of a request may take. A new connection must send its first one within
    /// this time.
    pub head: Duration,
    /// How long a connection may be idle between two requests, and how long a response may wait for
    /// its client to read on.
    pub idle: Duration,
}

/// A listener before it serves.
pub struct Listener {
    /// The socket.
    pub socket: TcpListener,
    /// The bounds of its connections.
    pub limits: Limits,
    /// Measures the times of the connections.
    pub clock: Arc<dyn Clock>,
    /// Draws the ids of requests that are refused before any route.
    pub entropy: Arc<dyn Entropy>,
}

impl Listener {
    /// Serves `router` until `closing` is set, then accepts no connection and returns after the
    /// last response.
    pub async fn serve(self, router: Router, mut closing: watch::Receiver<bool>) {
        let Self { socket, limits, clock, entropy } = self;
        let (http, open) = (http1::Builder::new(), GracefulShutdown::new());
        let connections = Arc::new(Connections::new(limits));
        tokio::spawn(sweep(Arc::downgrade(&connections), Arc::clone(&clock)));
        let refusal: Refusal = Arc::new(move |status| refused_head(status, &*entropy));
        loop {
            let accepted = tokio::select! {
                accepted = accept(&socket, &connections) => accepted,
                _ = closing.wait_for(|closing| *closing) => break,
            };
            let (stream, connection) = match accepted {
                Ok(accepted) => accepted,
                Err(error) if is_of_client(&error) => continue,
                Err(error) => {
                    connections.not_accepted(&error);
                    clock.sleep_until(clock.now() + ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let stream = Stream::new(stream, Arc::clone(&connection), Arc::clone(&refusal));
            let (router, clock) = (router.clone(), Arc::clone(&clock));
            let of = Arc::clone(&connection);
            let service = service_fn(move |request| {
                exchange::exchange(router.clone(), Arc::clone(&of), Arc::clone(&clock), request)
            });
            let served = open.watch(http.serve_connection(TokioIo::new(stream), service));
            let guard = connections.keep(connection);
            tokio::spawn(async move {
                // The socket is closed before the guard makes room for another connection.
                let guard = guard;
                tokio::select! {
                    served = served => if let Err(error) = served {
                        tracing::trace!(%error, "a connection broke");
                    },
                    () = guard.closed() => {}
                }
            });
        }
        drop(socket);
        connections.close_silent();
        open.shutdown().await;
    }
}

/// The next connection, when there is room for it.
async fn accept(
    socket: &TcpListener,
    connections: &Arc<Connections>,
) -> io::Result<(tokio::net::TcpStream, Arc<connections::Connection>)> {
    connections.room().await;
    let (stream, _) = socket.accept().await?;
    Ok((stream, connections.new_connection()))
}

/// Whether the client went away before its connection was accepted.
fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(error.kind(), K::ConnectionRefused | K::ConnectionAborted | K::ConnectionReset)
}

/// Checks the times of the connections as long as there are any to come.
async fn sweep(connections: std::sync::Weak<Connections>, clock: Arc<dyn Clock>) {
    loop {
        clock.sleep_until(clock.now() + SWEEP_INTERVAL).await;
        let Some(connections) = connections.upgrade() else {
            return;
        };
        connections.sweep();
    }
}

// Other systems have lower bounds of their own.
#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use tokio::{net::TcpStream, time::timeout};

    use super::*;

    #[tokio::test]
    async fn many_clients_connect_at_once() {
        let socket = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address = socket.local_addr().unwrap();
        // Nothing accepts them: those without a place would try again for ever.
        let connect = async {
            let mut clients = Vec::new();
            for _ in 0..300 {
                clients.push(TcpStream::connect(address).await.unwrap());
            }
            clients.len()
        };
        assert_eq!(timeout(Duration::from_secs(30), connect).await, Ok(300));
    }
}
