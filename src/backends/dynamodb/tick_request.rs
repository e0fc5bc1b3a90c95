//! Requests for ticks: one hint for all that happens in a busy queue until its next tick.
//!
//! ```text
//!   a change ──adds the grants that its jobs left──▶ item of the queue ◀──takes them── a tick
//!   the first one since the last tick ──hint──▶ FIFO queue ──▶ the tick
//! ```
//!
//! A FIFO queue takes 300 messages a second of a group and hands out ten at a time. Without these
//! requests, a tick would follow every job that ends.
//!
//! A change is written before the tick is requested, and a tick takes the requests before it reads.
//! So a tick whose request has not been taken yet will see the change, and no other hint is needed.
//!
//! A queue with four hinted ticks within [`BUSY_INTERVAL`] is *busy*: its ticks record that in the
//! item. Hints about a queue that is not busy are sent as they are, which saves two writes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;

use super::{
    key::{self, Key},
    table::{Change, EXPIRES, Exchange, ExchangeStep, Item, Name, Table, Val},
};
use tidegate_core::{
    job::QueueName,
    port::{
        Clock, Entropy, Hint, HintKind, StoreError, Timer, Work, WorkQueue, work_queue::OPERATIONS,
    },
    queue::GrantDigest,
    time::Timestamp,
};

/// Who requested the next tick, and when: `milliseconds.random`. None after a tick.
const REQUESTED: Name = 'a';
/// Digests of the grants that jobs left.
const RELEASED: Name = 'r';
/// Those that the latest tick took. It may have died before it released them.
const TAKEN: Name = 't';
/// Until when the queue counts as busy, in milliseconds.
const BUSY: Name = 'b';
/// The time of four ticks of a busy queue, at most. A lone job has two or three, and the server waits
/// up to half a second between two.
const BUSY_INTERVAL: Duration = Duration::from_secs(2);
/// How long a queue counts as busy after a tick of it that found it so.
const BUSY_TIME: Duration = Duration::from_secs(6);
/// How many queues a process remembers.
const MAX_REMEMBERED: usize = 10_000;
/// A hint is sent again if its tick has not come after this time.
const MAX_WAIT: Duration = Duration::from_secs(3);
/// How long the item of a queue is kept after its last request, in seconds.
const KEPT_SECONDS: u64 = 86_400;
/// Queues whose ticks are requested at once.
const MAX_CONCURRENT_REQUESTS: usize = 16;

/// A work queue that sends one hint for many, with the help of the table.
pub struct TickRequests {
    inner: Arc<dyn WorkQueue>,
    table: Arc<dyn Table>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    known: Mutex<HashMap<QueueName, Known>>,
}

/// What a process remembers of a queue.
#[derive(Clone, Copy, Default)]
struct Known {
    /// Until when it counts as busy.
    busy_until: Timestamp,
    /// When this process took its requests the last three times, the latest first.
    taken_at: [Timestamp; 3],
}

impl TickRequests {
    /// Sends messages through `inner`, and keeps requests in `table`.
    pub fn new(
        inner: Arc<dyn WorkQueue>,
        table: Arc<dyn Table>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self { inner, table, clock, entropy, known: Mutex::default() }
    }

    /// What this process knows of `queue`.
    fn known(&self, queue: &QueueName) -> Known {
        self.known.lock().get(queue).copied().unwrap_or_default()
    }

    fn remember(&self, queue: &QueueName, known: Known) {
        let mut all = self.known.lock();
        if all.len() >= MAX_REMEMBERED && !all.contains_key(queue) {
            all.clear();
        }
        all.insert(queue.clone(), known);
    }

    async fn item(&self, key: &Key) -> Result<Option<Item>, StoreError> {
        Ok(self.table.get(std::slice::from_ref(key)).await?.pop().flatten())
    }

    /// Requests a tick of `queue` after jobs left the grants in `released`.
    async fn request(
        &self,
        queue: &QueueName,
        released: &BTreeSet<GrantDigest>,
    ) -> Result<Requested, StoreError> {
        let (key, now) = (key::tick_request(queue), self.clock.now());
        let mut known = self.known(queue);
        let is_busy = known.busy_until > now;
        // A read costs a fifth of a write.
        if !is_busy || released.is_empty() {
            let item = self.item(&key).await?;
            known.busy_until = item.as_ref().map(busy_until).unwrap_or_default();
            self.remember(queue, known);
            if known.busy_until <= now {
                return Ok(Requested::NotBusy);
            }
            let is_requested = item.as_ref().and_then(requested_at);
            if released.is_empty() && is_requested.is_some_and(|at| now < at + MAX_WAIT) {
                return Ok(Requested::Before);
            }
        }
        let own = format!("{}.{:016x}", now.millis(), self.entropy.bits() as u64);
        let elements = released.iter().map(|digest| Bytes::copy_from_slice(&digest.0)).collect();
        let step = ExchangeStep::Add {
            elements: (RELEASED, elements),
            first: (REQUESTED, Val::S(own.clone())),
            set: (EXPIRES, Val::N(self.expires())),
        };
        let before = self.table.exchange(&Exchange { key: key.clone(), step }).await?;
        let other = before.as_ref().and_then(|item| item.text(REQUESTED));
        // An exchange that was repeated finds its own request.
        let Some(other) = other.filter(|other| *other != own) else {
            return Ok(Requested::First(own));
        };
        let is_recent =
            before.as_ref().and_then(requested_at).is_some_and(|at| now < at + MAX_WAIT);
        if is_recent || !self.replace(key, other.to_owned(), Some(own.clone())).await? {
            return Ok(Requested::Before);
        }
        Ok(Requested::First(own))
    }

    /// Replaces or removes the request `was` if no tick and no other process has. Returns whether it
    /// did.
    async fn replace(&self, key: Key, was: String, by: Option<String>) -> Result<bool, StoreError> {
        let removed = if by.is_none() { vec![REQUESTED] } else { Vec::new() };
        let set = by.map(|by| (REQUESTED, Val::S(by))).into_iter();
        let set = set.chain([(EXPIRES, Val::N(self.expires()))]).collect();
        let when = (REQUESTED, Val::S(was));
        let change = Change::Update { key, set, remove: removed, when };
        Ok(self.table.write(&[change]).await?[0])
    }

    /// When the table may expire an item that is written now, in seconds since the epoch.
    fn expires(&self) -> u64 {
        self.clock.now().millis().max(0) as u64 / 1000 + KEPT_SECONDS
    }

    /// The hints that must be sent for those of one queue.
    async fn needed(&self, queue: QueueName, kinds: Vec<HintKind>) -> Needed {
        let (requests, others): (Vec<HintKind>, Vec<HintKind>) =
            kinds.into_iter().partition(|kind| {
                matches!(kind, HintKind::Due | HintKind::Released(..))
                    && queue.as_str() != OPERATIONS
            });
        let mut needed = Needed { queue, kinds: others, request: None };
        if requests.is_empty() {
            return needed;
        }
        let released = requests.iter().filter_map(|kind| match kind {
            HintKind::Released(job, version) => Some(GrantDigest::of(job, *version)),
            _ => None,
        });
        match self.request(&needed.queue, &released.collect()).await {
            Ok(Requested::First(request)) => {
                needed.kinds.push(HintKind::Due);
                needed.request = Some(request);
            }
            Ok(Requested::Before) => {}
            Ok(Requested::NotBusy) => needed.kinds.extend(requests),
            Err(error) => {
                let queue = &needed.queue;
                tracing::debug!(%queue, %error, "a tick was not requested; its hints are sent");
                needed.kinds.extend(requests);
            }
        }
        needed
    }
}

/// The answer to a request for a tick.
enum Requested {
    /// The queue is not busy: its hints are sent as they are.
    NotBusy,
    /// Another request's hint is on its way.
    Before,
    /// The caller must send the hint of this request.
    First(String),
}

/// What must be sent about a queue.
struct Needed {
    queue: QueueName,
    kinds: Vec<HintKind>,
    /// The request whose hint is among them.
    request: Option<String>,
}

/// When the next tick was requested; none if it was not.
fn requested_at(item: &Item) -> Option<Timestamp> {
    let (at, _) = item.text(REQUESTED)?.split_once('.')?;
    Some(Timestamp::from_millis(at.parse().ok()?))
}

/// Until when the queue of `item` counts as busy.
fn busy_until(item: &Item) -> Timestamp {
    Timestamp::from_millis(item.number(BUSY).unwrap_or_default() as i64)
}

fn digests(item: &Item, name: Name) -> impl Iterator<Item = GrantDigest> {
    let elements = item.set(name).into_iter().flatten();
    elements.filter_map(|bytes| Some(GrantDigest(bytes.as_ref().try_into().ok()?)))
}

#[async_trait]
impl WorkQueue for TickRequests {
    async fn send(&self, work: &[Work]) -> Result<(), StoreError> {
        self.inner.send(work).await
    }

    async fn hint(&self, hints: &[Hint]) -> Result<(), StoreError> {
        let mut queues: BTreeMap<QueueName, Vec<HintKind>> = BTreeMap::new();
        for hint in hints {
            queues.entry(hint.queue.clone()).or_default().push(hint.kind.clone());
        }
        let requests: Vec<_> =
            queues.into_iter().map(|(queue, kinds)| self.needed(queue, kinds)).collect();
        let needed: Vec<Needed> =
            stream::iter(requests).buffered(MAX_CONCURRENT_REQUESTS).collect().await;
        let hints: Vec<Hint> = needed
            .iter()
            .flat_map(|needed| {
                let queue = &needed.queue;
                needed.kinds.iter().map(|kind| Hint { queue: queue.clone(), kind: kind.clone() })
            })
            .collect();
        if hints.is_empty() {
            return Ok(());
        }
        let sent = self.inner.hint(&hints).await;
        if sent.is_err() {
            // The caller repeats the call, and must find that the hint is still to be sent. If this
            // fails too, it is sent again after `MAX_WAIT`.
            for Needed { queue, request, .. } in needed {
                if let Some(request) = request {
                    let _ = self.replace(key::tick_request(&queue), request, None).await;
                }
            }
        }
        sent
    }

    async fn take_releases(&self, queue: &QueueName) -> Result<BTreeSet<GrantDigest>, StoreError> {
        let (key, now) = (key::tick_request(queue), self.clock.now());
        let known = self.known(queue);
        let [last, second, third] = known.taken_at;
        let is_busy = now < third + BUSY_INTERVAL;
        let busy_until = if is_busy { now + BUSY_TIME } else { known.busy_until };
        self.remember(queue, Known { busy_until, taken_at: [now, last, second] });
        if !is_busy {
            let item = self.item(&key).await?;
            let has_requests = |item: &Item| {
                [REQUESTED, RELEASED].iter().any(|name| item.attrs.contains_key(name))
            };
            if !item.as_ref().is_some_and(has_requests) {
                return Ok(item.iter().flat_map(|item| digests(item, TAKEN)).collect());
            }
        }
        let set = vec![
            (BUSY, Val::N(busy_until.millis().max(0) as u64)),
            (EXPIRES, Val::N(self.expires())),
        ];
        let step = ExchangeStep::Move { from: RELEASED, to: TAKEN, set, remove: REQUESTED };
        let before = self.table.exchange(&Exchange { key, step }).await?;
        // The releases that the tick before took are taken again: it may have died.
        let taken = |item| digests(item, RELEASED).chain(digests(item, TAKEN));
        Ok(before.iter().flat_map(taken).collect())
    }

    async fn set_timers(&self, timers: &[Timer]) -> Result<(), StoreError> {
        self.inner.set_timers(timers).await
    }
}
