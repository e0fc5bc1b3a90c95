//! A node: it follows the log as a standby, and leads when no other node does.
//!
//! ```text
//!   standby ──no new object for a while──▶ lead ──start record is one's own──▶ leader
//!      ▲                                    │                                    │
//!      └────────another node was faster─────┴────the seal of another node────────┘
//! ```
//!
//! Time only chooses when to try. Two nodes that both try, or a leader that is alive, cost a pause
//! and nothing else.

use std::{convert::Infallible, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tidegate_core::time::Timestamp;
use tokio::sync::mpsc;

#[cfg(test)]
use super::planted::PlantedBug;
use super::{
    bucket::Edge,
    error::LogError,
    handle::{Handle, Leadership, LogRequest},
    identity::identify,
    key::{Epoch, Slot},
    object::{Header, Kind, LogId, Object},
    planted::Planted,
    replica::Replica,
    tail::Tail,
};

/// The bounds of a node.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// Where this node answers requests, for the others.
    pub address: String,
    /// Most PUTs of records under way.
    pub max_puts: usize,
    /// The least time between the starts of two PUTs of records.
    pub log_interval: Duration,
    /// The number of records at which an epoch ends.
    pub rollover_records: u64,
    /// The bytes of records at which an epoch ends.
    pub rollover_bytes: u64,
    /// How many snapshots are kept, at least 1, and all records after the oldest of them.
    pub kept_snapshots: usize,
    /// How often a standby reads the log.
    pub poll_interval: Duration,
    /// The least and the most time without a new object after which a standby tries to lead.
    pub patience: (Duration, Duration),
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            address: String::new(),
            max_puts: 4,
            log_interval: Duration::from_millis(100),
            rollover_records: 10_000,
            rollover_bytes: 64 << 20,
            kept_snapshots: 2,
            poll_interval: Duration::from_secs(2),
            patience: (Duration::from_secs(8), Duration::from_secs(15)),
        }
    }
}

/// A node of a log.
pub struct Node<R: Replica> {
    pub(super) edge: Edge,
    pub(super) log: LogId,
    pub(super) replica: Arc<R>,
    pub(super) settings: NodeSettings,
    /// The life of this process: another one after every start.
    pub(super) nonce: u128,
    /// The newest epoch that is known to be claimed.
    pub(super) known: Mutex<Option<Epoch>>,
    pub(super) leadership: Arc<Leadership>,
    pub(super) planted: Planted,
    requests: tokio::sync::Mutex<mpsc::Receiver<LogRequest<R::Answer>>>,
}

impl<R: Replica> Node<R> {
    /// A node of the log in the bucket, which is created if there is none; and its handle. The store
    /// has passed a [`probe`](super::probe), because this call waits until it answers.
    ///
    /// # Errors
    ///
    /// [`LogError::Object`] if the identity of the log cannot be used.
    pub async fn open(
        edge: Edge,
        replica: Arc<R>,
        settings: NodeSettings,
    ) -> Result<(Self, Handle<R::Answer>), LogError> {
        let log = identify(&edge).await?;
        let leadership = Arc::<Leadership>::default();
        let (handle, requests) = Handle::new(edge.clone(), Arc::clone(&leadership));
        let nonce = edge.entropy.bits();
        let node = Self {
            edge,
            log,
            replica,
            settings,
            nonce,
            known: Mutex::default(),
            leadership,
            planted: Planted::default(),
            requests: requests.into(),
        };
        Ok((node, handle))
    }

    /// The same node with a planted bug, or without one.
    #[cfg(test)]
    pub(super) fn with(self, bug: Option<PlantedBug>) -> Self {
        Self { planted: Planted::new(bug), ..self }
    }

    /// Follows and leads until the node must stop, or the call is dropped. After that the node
    /// serves no more requests.
    ///
    /// # Errors
    ///
    /// [`LogError`]: the node is at a position of the log that it cannot pass.
    pub async fn run(&self) -> Result<Infallible, LogError> {
        let requests = self.requests.lock().await;
        let mut running = Running { leadership: &self.leadership, requests };
        self.alternate(&mut running.requests).await
    }

    async fn alternate(
        &self,
        requests: &mut mpsc::Receiver<LogRequest<R::Answer>>,
    ) -> Result<Infallible, LogError> {
        self.verify_start().await?;
        let mut wait = Wait::begin(self.edge.clock.now(), self.patience());
        loop {
            self.catch_up().await?;
            let position = (self.replica.tail().next, *self.known.lock());
            let now = self.edge.clock.now();
            if wait.is_over(position, now) {
                if let Some(leading) = self.lead().await? {
                    self.serve(leading, requests).await?;
                }
                wait = Wait::begin(self.edge.clock.now(), self.patience());
            }
            refuse_waiting(requests);
            self.edge.pause(self.settings.poll_interval).await;
        }
    }

    fn patience(&self) -> Duration {
        let (least, most) = self.settings.patience;
        self.edge.span(least, most)
    }

    /// An object of this node that continues the log at `tail`.
    pub(super) fn object(&self, kind: Kind, tail: Tail, body: &bytes::Bytes) -> Object {
        let time = self.edge.clock.now().max(tail.time);
        let Tail { next: slot, hash: previous, .. } = tail;
        Object::new(Header { kind, log: self.log, slot, nonce: self.nonce, time, previous }, body)
    }
}

/// A run, which serves no request once it has ended, or was dropped.
struct Running<'n, A> {
    leadership: &'n Leadership,
    requests: tokio::sync::MutexGuard<'n, mpsc::Receiver<LogRequest<A>>>,
}

impl<A> Drop for Running<'_, A> {
    fn drop(&mut self) {
        self.leadership.set(None);
        self.requests.close();
        refuse_waiting(&mut self.requests);
    }
}

/// Refuses the requests that have arrived. None of them was in a record.
fn refuse_waiting<A>(requests: &mut mpsc::Receiver<LogRequest<A>>) {
    while let Ok(request) = requests.try_recv() {
        request.refuse();
    }
}

/// How long a standby has seen no new object.
#[derive(Debug)]
struct Wait {
    seen: Option<(Slot, Option<Epoch>)>,
    since: Timestamp,
    patience: Duration,
}

impl Wait {
    fn begin(now: Timestamp, patience: Duration) -> Self {
        Self { seen: None, since: now, patience }
    }

    /// Whether `position` has been the same for long enough. A clock that went back ends the wait:
    /// trying to lead does no harm.
    fn is_over(&mut self, position: (Slot, Option<Epoch>), now: Timestamp) -> bool {
        if self.seen.replace(position) != Some(position) {
            self.since = now;
            return false;
        }
        now < self.since || now.since(self.since) >= self.patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standby_waits_until_nothing_has_changed_for_long() {
        let at = Timestamp::from_millis;
        let mut wait = Wait::begin(at(0), Duration::from_secs(8));
        let first = (Slot::FIRST, None);
        let second = (Slot::FIRST.next(), Some(Epoch::FIRST));
        assert!(!wait.is_over(first, at(0)));
        assert!(!wait.is_over(first, at(7_999)));
        assert!(!wait.is_over(second, at(9_000)), "there is a new object");
        assert!(!wait.is_over(second, at(16_999)));
        assert!(wait.is_over(second, at(17_000)));
        assert!(wait.is_over(second, at(8_999)), "the clock went back");
    }
}
