//! The HTTP/1 listener of the routes.
//!
//! Every connection is HTTP/1 from its first byte. A listener that detects the version holds the
//! first bytes back: each connection then reads in two pieces, into a buffer of twice the size, for
//! its whole life. Hundreds of workers wait on such connections.

use axum::{Router, serve::Listener};
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, server::graceful::GracefulShutdown, service::TowerToHyperService};
use tokio::{net::TcpListener, sync::watch};

/// Serves `router` until `closing` is set, then accepts no connection and returns after the last
/// response.
pub(super) async fn listen(
    mut listener: TcpListener,
    router: Router,
    mut closing: watch::Receiver<bool>,
) {
    let (http, open) = (http1::Builder::new(), GracefulShutdown::new());
    loop {
        let (stream, peer) = tokio::select! {
            accepted = Listener::accept(&mut listener) => accepted,
            _ = closing.wait_for(|closing| *closing) => break,
        };
        let connection = open.watch(
            http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone())),
        );
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::trace!(%peer, %error, "a connection broke");
            }
        });
    }
    drop(listener);
    open.shutdown().await;
}
