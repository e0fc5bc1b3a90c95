//! The listener: connections of HTTP/1 over which the routes answer.
//!
//! The one thing to know: every connection is HTTP/1 from its first byte on. A listener that guesses the version holds the first bytes back,
//! so that each connection reads in two pieces, into a buffer of twice the size, as long as it lives; hundreds of workers wait on theirs.

use axum::{Router, serve::Listener};
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, server::graceful::GracefulShutdown, service::TowerToHyperService};
use tokio::{net::TcpListener, sync::watch};

/// Answers by `router` until `closing` says so; then nobody new is let in, and it returns when the last answer under way is finished.
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
                tracing::trace!(%peer, %error, "a connection broke off");
            }
        });
    }
    drop(listener);
    open.shutdown().await;
}
