//! Lease requests to limited queues, which this server forwards to the owner of the queue.
//!
//! ```text
//!   worker ──▶ this server ──the same request──▶ the owner, whose task alone ticks the queue
//!          ◀──────────────── its answer ◀───────
//! ```
//!
//! If the tasks of several servers tick one queue with a ledger, they race for that, and all but one
//! have worked for nothing. An unlimited queue has none: each server leases from it, and they share its
//! load. The one thing to know: a forwarded request only saves work. Whatever fails, this server leases
//! as if there were no other, in the rest of the request's wait.
//!
//! **Which server is responsible for the leases of an answer.** The owner, until it has written the
//! answer: if its connection breaks before, it hands the leases back. This server, once it has read the
//! answer: it knows the claims, and hands them back if it cannot write the answer to the worker. An
//! answer that is lost in between is like one that a worker did not read. A repeat finds its leases, and
//! so does this server when it leases for the same `request_id`. Without one, they end by their time.
//!
//! **No answer is lost in an orderly stop.** An owner that stops answers the requests that it has, so
//! this server reads on. If this server stops, it removes its record, the owner ends the waits of its
//! requests, and it reads the answers.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::{Shared, members::Peer};
use crate::{
    auth::Bounds,
    runtime::{
        LeaseClaim, Server, StopPhase,
        lease::{MAX_LEASES, MAX_WAIT, QueueSelection},
    },
    telemetry::metrics,
};
use tidegate_core::{
    port::{
        Target,
        target::{Request, Response, TargetError},
    },
    time::Timestamp,
};
use tidegate_engine::{
    Catalog, Error,
    request::{LeaseRequest, Leased},
};

/// The header that names the server which a forwarded request is for.
pub(crate) const FORWARDED_TO: &str = "tidegate-forwarded-to";
/// The header that names the server which has forwarded a request.
pub(crate) const FORWARDED_BY: &str = "tidegate-forwarded-by";
/// The header with the claims of the leases in the answer to a forwarded request. It is in each such
/// answer, also in one without leases.
pub(crate) const CLAIMS: &str = "tidegate-claims";

/// How old the configuration may be by which a request is forwarded.
const MAX_CATALOG_AGE: Duration = Duration::from_secs(1);
/// How long an answer may take in addition to the wait of its request.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// Most bytes of an answer. A server leases 64 MiB of data for one, or one larger job, which the other
/// encoding can make several times as long.
const MAX_ANSWER_BYTES: usize = 512 << 20;

/// How servers on one store reach each other.
pub(in crate::runtime) struct Peers {
    /// Where the others reach this one.
    pub(in crate::runtime) url: String,
    /// Reaches the others.
    pub(in crate::runtime) target: Arc<dyn Target>,
}

/// A lease request as it was received.
pub(crate) struct ReceivedRequest {
    /// Its path and query.
    pub path: String,
    /// The names and values of those of its headers that the owner needs.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: Bytes,
}

/// The answer of an owner.
#[derive(Debug)]
pub(crate) struct OwnersAnswer {
    /// The media type of `body`.
    pub content_type: String,
    /// The body.
    pub body: Bytes,
    /// The claims of the leases in `body`.
    pub claims: Vec<LeaseClaim>,
}

/// Why there is no answer of an owner.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The next request would fail as well.
    #[error("{0}")]
    Peer(String),
    /// It refused this request with this status. Others may succeed.
    #[error("it refused the request with {0}")]
    Refused(u16),
    /// This server stops, and the owner did not end the wait soon.
    #[error("this server stops")]
    Stopping,
}

impl Server {
    /// Whether this server may forward requests.
    pub(crate) fn forwards(&self) -> bool {
        self.inner.shared.as_ref().is_some_and(|shared| shared.peers.is_some())
    }

    /// Whether this server takes a request that was forwarded to the server `name`: that is its own
    /// name, and it does not stop.
    pub(crate) fn takes_forwarded(&self, name: &[u8]) -> bool {
        let is_own = |shared: &Shared| shared.members.lock().own().as_bytes() == name;
        self.inner.shared.as_deref().is_some_and(is_own)
            && *self.inner.stopping.borrow() == StopPhase::Serving
    }

    /// Forwards a lease request, as it was `received`, to the server that owns all of its queues: the
    /// answer of that one, or none if this server leases. Then the wait of `request` is shorter by the
    /// time that it took.
    ///
    /// A call that only reports is not forwarded: reports are committed where they arrive. Nor is a
    /// request to queues with several owners, which no owner could serve alone, or to unlimited queues
    /// only. A repeat that requests no more jobs is forwarded: it ends the call that it repeats, which
    /// may still wait at the owner.
    pub(crate) fn forward_lease<'a>(
        &'a self,
        request: &'a mut LeaseRequest,
        bounds: &'a Bounds,
        received: ReceivedRequest,
    ) -> Option<BoxFuture<'a, Option<OwnersAnswer>>> {
        // The compiler leaves the rest out of programs that are serverless alone.
        let shared = self.inner.shared.as_deref().filter(|_| !self.inner.is_serverless())?;
        let peers = shared.peers.as_ref()?;
        let only_reports = request.max == 0 && request.call.is_none();
        let is_wrong = request.max > MAX_LEASES || request.wait > MAX_WAIT;
        if only_reports || is_wrong || *self.inner.stopping.borrow() != StopPhase::Serving {
            return None;
        }
        Some(Box::pin(self.forwarded(shared, peers, request, bounds, received)))
    }

    async fn forwarded(
        &self,
        shared: &Shared,
        peers: &Peers,
        request: &mut LeaseRequest,
        bounds: &Bounds,
        received: ReceivedRequest,
    ) -> Option<OwnersAnswer> {
        let clock = &self.inner.engine.ports().clock;
        let began = clock.machine_now();
        let (catalog, selections) = self.forwarded_queues(request, bounds).await.ok()?;
        let queues = selections.iter().map(|(queue, _)| queue.as_str());
        let peer = shared.members.lock().peer(queues, began)?;
        if self.are_unlimited(&selections, &catalog).await.ok()? {
            return None;
        }
        drop(catalog);
        let patience = request.wait + ANSWER_TIME;
        let mut stopping = self.inner.stopping.subscribe();
        let stopped = async {
            let _ = stopping.wait_for(|phase| *phase != StopPhase::Serving).await;
            clock.sleep(ANSWER_TIME).await;
        };
        let own = shared.members.lock().own().to_owned();
        let request_to_peer = request_to(&peer, own, received, patience);
        let answered = tokio::select! {
            biased;
            answered = peers.target.call(request_to_peer) => read(answered),
            () = clock.sleep(patience) => Err(Failure::Peer("it did not answer in time".into())),
            () = shared.silent(&peer.name) => Err(Failure::Peer("it is gone".into())),
            () = stopped => Err(Failure::Stopping),
        };
        metrics::lease_forwarded(answered.is_ok());
        let now = clock.machine_now();
        answered
            .inspect_err(|failure| {
                shared.on_failure(&peer, failure, now);
                request.wait = request.wait.saturating_sub(now.since(began));
            })
            .ok()
    }

    /// As [`Server::lease_within`], for a request that the server `by` has forwarded. If that leaves, the
    /// wait ends: it reads the answer before it ends.
    ///
    /// # Errors
    ///
    /// As [`Server::lease_within`].
    pub(crate) async fn lease_forwarded(
        &self,
        request: LeaseRequest,
        bounds: &Bounds,
        by: &str,
    ) -> Result<Leased, Error> {
        let Some(shared) = &self.inner.shared else {
            return self.lease_within(request, bounds).await;
        };
        let (present, forwarder) = watch::channel(());
        let left = async move {
            shared.left(by).await;
            drop(present);
            // The tasks of the queues look for calls whose wait is over.
            self.inner.wake_known();
            std::future::pending().await
        };
        tokio::select! {
            leased = self.lease_while(request, bounds, Some(forwarder)) => leased,
            never = left => never,
        }
    }

    /// The queues of a request that may be forwarded, and the configuration that they are of.
    ///
    /// Neither this server nor the owner decides by it: each reads the current one when it leases. So an
    /// older one will do, and most requests are forwarded without a read. One that the request does not
    /// fit is read again.
    ///
    /// # Errors
    ///
    /// As [`Server::lease`]. They are this server's own to answer.
    async fn forwarded_queues(
        &self,
        request: &LeaseRequest,
        bounds: &Bounds,
    ) -> Result<(Arc<Catalog>, Vec<QueueSelection>), Error> {
        let engine = &self.inner.engine;
        let recent = engine.catalog_within(MAX_CATALOG_AGE).await?;
        if let Ok(selections) = self.select_queues(&recent, request, bounds) {
            return Ok((recent, selections));
        }
        let current = engine.catalog().await?;
        let selections = self.select_queues(&current, request, bounds)?;
        Ok((current, selections))
    }

    /// Whether none of these queues has a ledger under `catalog`, for which servers would race.
    async fn are_unlimited(
        &self,
        selections: &[QueueSelection],
        catalog: &Catalog,
    ) -> Result<bool, Error> {
        let engine = &self.inner.engine;
        for (queue, _) in selections {
            if !engine.is_unlimited_in(queue, catalog).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Shared {
    /// Returns when the server `name` has been silent for so long that it does not count any more. One
    /// that stops in order removes its record, and is not silent.
    async fn silent(&self, name: &str) {
        loop {
            let changed = self.members_changed.notified();
            if self.members.lock().is_silent(name) {
                return;
            }
            changed.await;
        }
    }

    /// Returns when the server `name` counted and does not count any more.
    async fn left(&self, name: &str) {
        let mut counted = false;
        loop {
            let changed = self.members_changed.notified();
            let counts = self.members.lock().is_other(name);
            if counted && !counts {
                return;
            }
            counted = counts;
            changed.await;
        }
    }

    /// Pauses `peer`, if the next request would fail as well.
    fn on_failure(&self, peer: &Peer, failure: &Failure, now: Timestamp) {
        let is_news =
            matches!(failure, Failure::Peer(_)) && self.members.lock().pause(&peer.name, now);
        let Peer { name, url } = peer;
        if is_news {
            tracing::warn!(
                server = name, url, error = %failure,
                "the owner of a queue did not answer a forwarded lease request; this server leases"
            );
        } else {
            tracing::debug!(server = name, url, error = %failure, "this server leases instead");
        }
    }
}

/// The request of the server `own` to `peer`, which has `patience` to answer.
fn request_to(peer: &Peer, own: String, received: ReceivedRequest, patience: Duration) -> Request {
    let ReceivedRequest { path, mut headers, body } = received;
    headers.push((FORWARDED_TO.to_owned(), peer.name.clone()));
    headers.push((FORWARDED_BY.to_owned(), own));
    Request {
        url: format!("{}{path}", peer.url.trim_end_matches('/')),
        headers,
        basic_auth: None,
        body,
        timeout: patience,
        most_bytes: MAX_ANSWER_BYTES,
    }
}

/// The answer in a response.
fn read(answered: Result<Response, TargetError>) -> Result<OwnersAnswer, Failure> {
    let response = answered.map_err(|error| Failure::Peer(error.to_string()))?;
    match response.status {
        200 => {}
        status @ 400..=499 => return Err(Failure::Refused(status)),
        status => return Err(Failure::Peer(format!("it answered {status}"))),
    }
    if response.body.len() > MAX_ANSWER_BYTES {
        return Err(Failure::Peer(format!("its answer is over {MAX_ANSWER_BYTES} bytes")));
    }
    let (Some(content_type), Some(claims)) =
        (response.header("content-type"), response.header(CLAIMS))
    else {
        return Err(Failure::Peer("no server of this store answered".into()));
    };
    Ok(OwnersAnswer {
        content_type: content_type.to_owned(),
        claims: claims.split(',').filter_map(LeaseClaim::parse).collect(),
        body: response.body,
    })
}
