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
//!
//! A change of an item costs its whole size, and a partition takes 1000 units a second. So a tick
//! that takes many releases *spreads* the next ones over further items. The first change in such an
//! item since it was taken also makes a request in the item of the queue, and marks there that the
//! further items have releases. A tick takes the item of the queue first: a change in another item
//! is then taken by this tick, or its request is seen by the next one.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
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
/// The number of further items for releases, and the value of [`BUSY`] that it belongs to: a tick of
/// a release that does not know these items changes that value, and ends their use.
const SPREAD: Name = 'n';
/// When further items last had releases, in milliseconds.
const SPILLED: Name = 'o';
/// The time of four ticks of a busy queue, at most. A lone job has two or three, and the server waits
/// up to half a second between two.
const BUSY_INTERVAL: Duration = Duration::from_secs(2);
/// How long a queue counts as busy after a tick of it that found it so.
const BUSY_TIME: Duration = Duration::from_secs(6);
/// Further items for the releases of a queue, at most.
const MAX_PARTS: u8 = 16;
/// Releases of one tick that fit into the item of the queue: twice as many, with those of the tick
/// before, take a kilobyte, for which a write costs one unit.
const MAX_UNSPREAD: usize = 40;
/// The releases for each of the further items.
const RELEASES_OF_PART: usize = 32;
/// A number greater than [`MAX_PARTS`].
const SPREAD_BASE: u64 = 32;
/// How long after the last release in further items ticks still look there. A tick that took them
/// may have died.
const SPILL_TIME: Duration = Duration::from_mins(1);
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
    /// Over how many further items its releases are spread.
    parts: u8,
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
            known.parts = item.as_ref().map_or(0, parts);
            self.remember(queue, known);
            if known.busy_until <= now {
                return Ok(Requested::NotBusy);
            }
            let is_requested = item.as_ref().and_then(requested_at);
            if released.is_empty() && is_requested.is_some_and(|at| now < at + MAX_WAIT) {
                return Ok(Requested::Before);
            }
        }
        if known.parts == 0 || released.is_empty() {
            return self.add(queue, &key, released, false).await;
        }
        let number = (self.entropy.bits() % u128::from(known.parts)) as u8;
        let part = key::tick_request_part(queue, number);
        let Requested::First(mut requests) = self.add(queue, &part, released, false).await? else {
            return Ok(Requested::Before);
        };
        match self.add(queue, &key, &BTreeSet::new(), true).await {
            Ok(Requested::First(first)) => {
                requests.extend(first);
                Ok(Requested::First(requests))
            }
            Ok(other) => Ok(other),
            Err(error) => {
                // The next change in this item makes the request.
                self.withdraw(requests).await;
                Err(error)
            }
        }
    }

    /// Adds releases to an item of `queue`, and makes a request there if there is none. `spilled` is
    /// whether further items have releases.
    async fn add(
        &self,
        queue: &QueueName,
        key: &Key,
        released: &BTreeSet<GrantDigest>,
        spilled: bool,
    ) -> Result<Requested, StoreError> {
        let now = self.clock.now();
        let own = format!("{}.{:016x}", now.millis(), self.entropy.bits() as u64);
        let elements = released.iter().map(|digest| Bytes::copy_from_slice(&digest.0)).collect();
        let mut set = vec![(EXPIRES, Val::N(self.expires()))];
        if spilled {
            set.push((SPILLED, Val::N(now.millis().max(0) as u64)));
        }
        let step = ExchangeStep::Add {
            elements: (RELEASED, elements),
            first: (REQUESTED, Val::S(own.clone())),
            set,
        };
        let before = self.table.exchange(&Exchange { key: key.clone(), step }).await?;
        if *key == key::tick_request(queue) {
            let known = self.known(queue);
            let parts = before.as_ref().map_or(0, parts);
            self.remember(queue, Known { parts, ..known });
        }
        let first = || Requested::First(vec![(key.clone(), own.clone())]);
        let other = before.as_ref().and_then(|item| item.text(REQUESTED));
        // An exchange that was repeated finds its own request.
        let Some(other) = other.filter(|other| *other != own) else {
            return Ok(first());
        };
        let is_recent =
            before.as_ref().and_then(requested_at).is_some_and(|at| now < at + MAX_WAIT);
        let replaced =
            !is_recent && self.replace(key.clone(), other.to_owned(), Some(own.clone())).await?;
        Ok(if replaced { first() } else { Requested::Before })
    }

    /// Removes requests whose hint was not sent: the caller repeats the call, and must find that it
    /// is still to be sent. If this fails too, it is sent again after [`MAX_WAIT`].
    async fn withdraw(&self, requests: Vec<(Key, String)>) {
        for (key, request) in requests {
            let _ = self.replace(key, request, None).await;
        }
    }

    /// Takes the releases of the further items of `queue`: new ones, and those that the tick before
    /// took.
    async fn take_parts(
        &self,
        queue: &QueueName,
    ) -> Result<(BTreeSet<GrantDigest>, usize), StoreError> {
        let keys: Vec<Key> =
            (0..MAX_PARTS).map(|number| key::tick_request_part(queue, number)).collect();
        let items = self.table.get(&keys).await?.into_iter().flatten();
        let (full, taken): (Vec<Item>, Vec<Item>) =
            items.partition(|item| item.attrs.contains_key(&RELEASED));
        let take = full.into_iter().map(|item| {
            let set = vec![(EXPIRES, Val::N(self.expires()))];
            let step = ExchangeStep::Move { from: RELEASED, to: TAKEN, set, remove: REQUESTED };
            async move { self.table.exchange(&Exchange { key: item.key, step }).await }
        });
        let full: Vec<Option<Item>> =
            stream::iter(take).buffered(MAX_CONCURRENT_REQUESTS).try_collect().await?;
        let full: Vec<Item> = full.into_iter().flatten().collect();
        let fresh = full.iter().map(|item| digests(item, RELEASED).count()).sum();
        let old = taken.iter().chain(&full).flat_map(|item| digests(item, TAKEN));
        let digests = full.iter().flat_map(|item| digests(item, RELEASED)).chain(old).collect();
        Ok((digests, fresh))
    }

    /// Has the next releases spread over as many items as a tick's `fresh` ones need. `was` is the
    /// number for this tick, and `busy_until` what the tick recorded.
    async fn spread(&self, queue: &QueueName, fresh: usize, was: u8, busy_until: Timestamp) {
        let least = if was > 0 { MAX_UNSPREAD / 2 } else { MAX_UNSPREAD };
        if fresh <= least {
            return;
        }
        let parts = fresh.div_ceil(RELEASES_OF_PART).min(MAX_PARTS.into()) as u64;
        let busy = busy_until.millis().max(0) as u64;
        let change = Change::Update {
            key: key::tick_request(queue),
            set: vec![(SPREAD, Val::N(busy * SPREAD_BASE + parts))],
            remove: Vec::new(),
            when: (BUSY, Val::N(busy)),
        };
        if let Err(error) = self.table.write(&[change]).await {
            tracing::debug!(%queue, %error, "the releases of a queue are not spread");
        }
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
        let mut needed = Needed { queue, kinds: others, requests: Vec::new() };
        if requests.is_empty() {
            return needed;
        }
        let released = requests.iter().filter_map(|kind| match kind {
            HintKind::Released(job, version) => Some(GrantDigest::of(job, *version)),
            _ => None,
        });
        match self.request(&needed.queue, &released.collect()).await {
            Ok(Requested::First(requests)) => {
                needed.kinds.push(HintKind::Due);
                needed.requests = requests;
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
    /// The caller must send the hint. These are its requests: the items, and what they have.
    First(Vec<(Key, String)>),
}

/// What must be sent about a queue.
struct Needed {
    queue: QueueName,
    kinds: Vec<HintKind>,
    /// The requests whose hint is among them.
    requests: Vec<(Key, String)>,
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

/// Over how many further items the releases of the queue of `item` are spread.
fn parts(item: &Item) -> u8 {
    let (spread, busy) = (item.number(SPREAD), item.number(BUSY));
    let is_current = |spread: &u64| Some(*spread / SPREAD_BASE) == busy;
    spread.filter(is_current).map_or(0, |spread| (spread % SPREAD_BASE) as u8).min(MAX_PARTS)
}

/// Whether further items of the queue of `item` may have releases at `now`.
fn has_spilled(item: &Item, now: Timestamp) -> bool {
    let at = item.number(SPILLED).map(|at| Timestamp::from_millis(at as i64));
    at.is_some_and(|at| now < at + SPILL_TIME)
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
            for Needed { requests, .. } in needed {
                self.withdraw(requests).await;
            }
        }
        sent
    }

    async fn take_releases(&self, queue: &QueueName) -> Result<BTreeSet<GrantDigest>, StoreError> {
        let (key, now) = (key::tick_request(queue), self.clock.now());
        let known = self.known(queue);
        let [last, second, third] = known.taken_at;
        let is_busy = now < third + BUSY_INTERVAL;
        let mut busy_until = if is_busy { now + BUSY_TIME } else { known.busy_until };
        self.remember(queue, Known { busy_until, taken_at: [now, last, second], ..known });
        if !is_busy {
            let item = self.item(&key).await?;
            let has_requests = |item: &Item| {
                let is_requested =
                    [REQUESTED, RELEASED].iter().any(|name| item.attrs.contains_key(name));
                is_requested || has_spilled(item, now)
            };
            let Some(item) = item.as_ref().filter(|item| has_requests(item)) else {
                return Ok(item.iter().flat_map(|item| digests(item, TAKEN)).collect());
            };
            // Another process may have found the queue busy.
            busy_until = busy_until.max(self::busy_until(item));
        }
        let set = vec![
            (BUSY, Val::N(busy_until.millis().max(0) as u64)),
            (EXPIRES, Val::N(self.expires())),
        ];
        let step = ExchangeStep::Move { from: RELEASED, to: TAKEN, set, remove: REQUESTED };
        let before = self.table.exchange(&Exchange { key, step }).await?;
        let Some(before) = before else { return Ok(BTreeSet::new()) };
        // The releases that the tick before took are taken again: it may have died.
        let mut taken: BTreeSet<GrantDigest> =
            digests(&before, RELEASED).chain(digests(&before, TAKEN)).collect();
        let mut fresh = digests(&before, RELEASED).count();
        if has_spilled(&before, now) {
            let (others, count) = self.take_parts(queue).await?;
            taken.extend(others);
            fresh += count;
        }
        if busy_until > now {
            self.spread(queue, fresh, parts(&before), busy_until).await;
        }
        Ok(taken)
    }

    async fn set_timers(&self, timers: &[Timer]) -> Result<(), StoreError> {
        self.inner.set_timers(timers).await
    }
}
