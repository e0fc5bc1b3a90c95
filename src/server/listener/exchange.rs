//! One request and its response.
//!
//! A response may come before the request's body was read: from a route that takes none, or as a
//! refusal. A short body is then read and dropped, so that the connection goes on. Before a longer
//! one the response says that the connection ends.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    http::{HeaderValue, Request, header},
    response::Response,
};
use hyper::{
    body::{Body, Frame, Incoming, SizeHint},
    service::Service as _,
};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tidegate_core::port::Clock;

use super::connections::{Connection, Phase};
use crate::{handlers::Overloaded, runtime::UnwrittenLeases};

/// Most bytes of an unread body for which the connection is kept.
const MAX_DRAINED_BYTES: u64 = 64 << 10;
/// How long the rest of such a body may take.
const DRAIN_TIME: Duration = Duration::from_millis(200);

/// The response of `router` to `request`.
pub(super) async fn exchange(
    router: Router,
    connection: Arc<Connection>,
    clock: Arc<dyn Clock>,
    request: Request<Incoming>,
) -> Result<Response, Infallible> {
    if !connection.begin(Phase::Request) {
        // The connection's task ends as well.
        return std::future::pending().await;
    }
    let waits = request.headers().contains_key(header::EXPECT);
    let left = Arc::<Mutex<Option<Incoming>>>::default();
    let mut request = request.map(|body| Watched { body: Some(body), left: Arc::clone(&left) });
    if connection.surplus {
        request.extensions_mut().insert(Overloaded);
    }
    let leases = UnwrittenLeases::default();
    request.extensions_mut().insert(leases.clone());
    let mut response = TowerToHyperService::new(router).call(request).await?;
    let unread = left.lock().take();
    let ends = match unread {
        Some(body) if waits || body.size_hint().upper().is_none_or(|n| n > MAX_DRAINED_BYTES) => {
            true
        }
        Some(body) => !tokio::select! {
            drained = drain(body) => drained,
            () = clock.sleep_until(clock.now() + DRAIN_TIME) => false,
        },
        None => false,
    };
    // Until the response is written, these are handed back if the connection breaks.
    if let Some(earlier) = connection.leases.lock().replace(leases) {
        earlier.written();
    }
    connection.unread.store(ends, Ordering::Relaxed);
    let streams = response.body().size_hint().exact().is_none();
    connection.streams.store(streams, Ordering::Relaxed);
    if ends || streams || connection.surplus {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    connection.begin(Phase::Response);
    Ok(response)
}

/// Reads and drops `body`. Returns whether it was whole.
async fn drain(mut body: Incoming) -> bool {
    loop {
        match std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            Some(Ok(_)) => {}
            end => return end.is_none(),
        }
    }
}

/// The body of a request. What its reader leaves goes to `left`.
struct Watched {
    body: Option<Incoming>,
    left: Arc<Mutex<Option<Incoming>>>,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(body).poll_frame(cx);
        if let Poll::Ready(None | Some(Err(_))) = polled {
            self.body = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        *self.left.lock() = self.body.take().filter(|body| !body.is_end_stream());
    }
}
