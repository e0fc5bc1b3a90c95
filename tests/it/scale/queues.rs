//! SQS, and the pollers that invoke functions with its messages.
//!
//! A poller invokes a function with at most ten messages. On the standard queues pollers start at
//! five and grow while there is a backlog; the groups of messages take turns. On the FIFO queue
//! each group has one batch in flight, and pollers pay no regard to the function's concurrency.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tidegate_backends::sqs::pack::{self, MAX_BATCH_MESSAGES, Outgoing};
use tidegate_core::{
    job::QueueName,
    port::{Clock, Hint, StoreError, Timer, Work, WorkQueue},
    queue::GrantDigest,
    time::Timestamp,
};
use tidegate_server::lambda::redelivery;

use super::cloud::{Cloud, Ended};

/// Concurrent calls of one sender.
const MAX_CONCURRENT_REQUESTS: usize = 16;
/// Receives after which a message becomes a dead letter.
const MAX_RECEIVES: usize = 5;
/// Pollers of a standard queue without a backlog, and how many more there are each second with one.
const FIRST_POLLERS: f64 = 5.0;
const MORE_POLLERS: f64 = 5.0;
/// Messages in flight.
const MAX_IN_FLIGHT: usize = 120_000;
/// The first and the longest wait of a poller whose function is throttled.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// Bytes that are billed as one request.
const BILLED_BYTES: usize = 64 << 10;

/// The three queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Work,
    Timers,
    Hints,
}

/// A message that waits.
#[derive(Clone, Debug)]
pub struct Message {
    pub body: String,
    pub receives: usize,
}

/// A queue, as far as its messages are visible.
#[derive(Default)]
struct Waiting {
    /// The groups in the order of their turns.
    turns: VecDeque<String>,
    groups: HashMap<String, VecDeque<Message>>,
    /// The groups of a FIFO queue that have a batch in flight.
    busy: Vec<String>,
    /// Batches in flight.
    running: usize,
    in_flight: usize,
    /// Since when there are more batches than pollers.
    backlog_since: Option<Timestamp>,
}

impl Waiting {
    fn push(&mut self, group: &str, message: Message, first: bool) {
        let waiting = self.groups.entry(group.to_owned()).or_default();
        if waiting.is_empty() {
            self.turns.push_back(group.to_owned());
        }
        if first {
            waiting.push_front(message);
        } else {
            waiting.push_back(message);
        }
    }

    /// The next messages of a standard queue: of each group in turn.
    fn take(&mut self) -> Vec<(String, Message)> {
        let mut taken = Vec::new();
        while taken.len() < MAX_BATCH_MESSAGES {
            let Some(group) = self.turns.pop_front() else { break };
            let Some(waiting) = self.groups.get_mut(&group) else { continue };
            taken.extend(waiting.pop_front().map(|message| (group.clone(), message)));
            if waiting.is_empty() {
                self.groups.remove(&group);
            } else {
                self.turns.push_back(group);
            }
        }
        taken
    }

    /// The next messages of a group of a FIFO queue that has none in flight.
    fn take_group(&mut self) -> Option<(String, Vec<Message>)> {
        let at = self.turns.iter().position(|group| !self.busy.contains(group))?;
        let group = self.turns.remove(at)?;
        let waiting = self.groups.get_mut(&group)?;
        let count = waiting.len().min(MAX_BATCH_MESSAGES);
        let taken = waiting.drain(..count).collect();
        if waiting.is_empty() {
            self.groups.remove(&group);
        } else {
            self.turns.push_back(group.clone());
        }
        self.busy.push(group.clone());
        Some((group, taken))
    }
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueUse {
    pub standard: f64,
    pub fifo: f64,
    pub dead: u64,
}

/// The faults of messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct MessageFaults {
    /// How often a message arrives minutes late.
    pub late: f64,
}

/// All queues.
pub struct Queues {
    cloud: Weak<Cloud>,
    waiting: Mutex<BTreeMap<Kind, Waiting>>,
    pub used: Mutex<QueueUse>,
    pub faults: Mutex<MessageFaults>,
}

impl Queues {
    pub fn new(cloud: Weak<Cloud>) -> Self {
        Self { cloud, waiting: Mutex::default(), used: Mutex::default(), faults: Mutex::default() }
    }

    fn cloud(&self) -> Arc<Cloud> {
        self.cloud.upgrade().expect("the deployment holds its queues")
    }

    /// Counts a request with these bodies.
    fn count<'b>(&self, kind: Kind, bodies: impl IntoIterator<Item = &'b String>) {
        let bytes: usize = bodies.into_iter().map(String::len).sum();
        let requests = bytes.div_ceil(BILLED_BYTES).max(1) as f64;
        let mut used = self.used.lock();
        match kind {
            Kind::Hints => used.fifo += requests,
            Kind::Work | Kind::Timers => used.standard += requests,
        }
    }

    /// Makes messages visible.
    fn arrive(&self, kind: Kind, messages: Vec<(String, Message)>, first: bool) {
        {
            let mut waiting = self.waiting.lock();
            let waiting = waiting.entry(kind).or_default();
            for (group, message) in messages {
                waiting.push(&group, message, first);
            }
        }
        self.dispatch(kind);
    }

    /// Invokes functions while there are messages and pollers.
    pub fn dispatch(&self, kind: Kind) {
        let cloud = self.cloud();
        loop {
            let batch = {
                let now = cloud.time.now();
                let mut waiting = self.waiting.lock();
                let waiting = waiting.entry(kind).or_default();
                if waiting.turns.is_empty() {
                    waiting.backlog_since = None;
                    return;
                }
                if kind == Kind::Hints {
                    if cloud.is_off(kind) {
                        return;
                    }
                    let Some((group, taken)) = waiting.take_group() else { return };
                    let batch: Vec<_> = taken.into_iter().map(|one| (group.clone(), one)).collect();
                    waiting.running += 1;
                    batch
                } else {
                    if cloud.is_off(kind) {
                        return;
                    }
                    let since = *waiting.backlog_since.get_or_insert(now);
                    let more = MORE_POLLERS * now.since(since).as_secs_f64() * cloud.scale;
                    let most = (FIRST_POLLERS + more).min(cloud.pollers(kind));
                    if waiting.running as f64 + 1.0 > most || waiting.in_flight >= MAX_IN_FLIGHT {
                        return;
                    }
                    let batch = waiting.take();
                    waiting.running += 1;
                    waiting.in_flight += batch.len();
                    batch
                }
            };
            let poller = Arc::clone(&cloud);
            cloud.time.spawn(async move { poller.queues.handle(kind, batch).await });
        }
    }

    /// Invokes a function with these messages until it has run.
    async fn handle(&self, kind: Kind, mut batch: Vec<(String, Message)>) {
        let cloud = self.cloud();
        let count = batch.len();
        let group = batch.first().map(|(group, _)| group.clone()).unwrap_or_default();
        cloud.pass(0.005, 0.05).await;
        self.count(kind, batch.iter().map(|(_, message)| &message.body));
        let visible_at = cloud.time.now() + kind.visibility();
        for (_, message) in &mut batch {
            message.receives += 1;
        }
        let (mut backoff, mut is_hidden) = (FIRST_BACKOFF, false);
        let failed = loop {
            match cloud.invoke_with(kind, &batch).await {
                Ok(failed) => break failed,
                Err(Ended::Throttled) if cloud.time.now() + backoff < visible_at => {
                    cloud.time.sleep_until(cloud.time.now() + backoff).await;
                    backoff = (backoff * 2).min(LONGEST_BACKOFF);
                }
                Err(_) => {
                    is_hidden = true;
                    break (0..count).collect();
                }
            }
        };
        if failed.len() < count {
            self.count(kind, []);
        }
        let (mut again, mut dead) = (Vec::new(), Vec::new());
        for index in &failed {
            let (group, message) = batch[*index].clone();
            let list = if message.receives >= MAX_RECEIVES { &mut dead } else { &mut again };
            list.push((group, message));
        }
        self.used.lock().dead += dead.len() as u64;
        if !dead.is_empty() {
            let other = Arc::clone(&cloud);
            cloud.time.spawn(async move {
                other.time.sleep_until(other.time.now() + Duration::from_secs(1)).await;
                let _ = other.handle_dead(&dead).await;
            });
        }
        // A message of a FIFO queue holds up those behind it.
        let waits = again.iter().filter_map(|(_, message)| redelivery::after(message.receives));
        let wait = waits.max().filter(|_| !is_hidden);
        if kind == Kind::Hints {
            if !again.is_empty() {
                let at = wait.map_or(visible_at, |wait| cloud.time.now() + wait);
                cloud.time.sleep_until(at).await;
            }
            {
                let mut waiting = self.waiting.lock();
                let waiting = waiting.entry(kind).or_default();
                for (group, message) in again.into_iter().rev() {
                    waiting.push(&group, message, true);
                }
                waiting.busy.retain(|busy| *busy != group);
                waiting.running -= 1;
            }
        } else {
            {
                let mut waiting = self.waiting.lock();
                let waiting = waiting.entry(kind).or_default();
                waiting.running -= 1;
                waiting.in_flight -= count;
            }
            if !again.is_empty() {
                let at = wait.map_or(visible_at, |wait| cloud.time.now() + wait);
                let other = Arc::clone(&cloud);
                cloud.time.spawn(async move {
                    other.time.sleep_until(at).await;
                    other.queues.arrive(kind, again, false);
                });
            }
        }
        self.dispatch(kind);
    }

    /// Sends messages as the adapter does: ten in a call, several calls at once.
    async fn send_all(&self, kind: Kind, messages: Vec<Outgoing>) -> Result<(), StoreError> {
        let calls = messages.chunks(MAX_BATCH_MESSAGES).map(<[Outgoing]>::to_vec);
        let calls: Vec<_> = calls.map(|call| self.send_some(kind, call)).collect();
        stream::iter(calls).buffer_unordered(MAX_CONCURRENT_REQUESTS).try_collect().await
    }

    async fn send_some(&self, kind: Kind, call: Vec<Outgoing>) -> Result<(), StoreError> {
        let cloud = self.cloud();
        cloud.pass(0.004, 0.006).await;
        self.count(kind, call.iter().map(|message| &message.body));
        let now = cloud.time.now();
        let mut at: BTreeMap<Timestamp, Vec<(String, Message)>> = BTreeMap::new();
        for message in call {
            let late = self.faults.lock().late;
            let late = if late > 0.0 && cloud.chance() < late {
                60.0 + 240.0 * cloud.chance()
            } else {
                0.0
            };
            let delay = Duration::from_secs(message.delay.unwrap_or(0).max(0) as u64);
            let visible = now + delay + Duration::from_millis((late * 1000.0) as u64);
            let waiting = Message { body: message.body, receives: 0 };
            at.entry(visible).or_default().push((message.group, waiting));
        }
        for (at, messages) in at {
            if at <= now {
                self.arrive(kind, messages, false);
                continue;
            }
            let other = Arc::clone(&cloud);
            cloud.time.spawn(async move {
                other.time.sleep_until(at).await;
                other.queues.arrive(kind, messages, false);
            });
        }
        cloud.pass(0.004, 0.006).await;
        Ok(())
    }
}

impl Kind {
    /// How long a received message is hidden.
    pub fn visibility(self) -> Duration {
        Duration::from_secs(if self == Self::Work { 1800 } else { 360 })
    }
}

/// The queues, as one environment uses them.
pub struct EnvironmentQueues(pub Weak<Cloud>);

impl EnvironmentQueues {
    fn cloud(&self) -> Arc<Cloud> {
        self.0.upgrade().expect("the deployment holds its environments")
    }
}

#[async_trait]
impl WorkQueue for EnvironmentQueues {
    async fn send(&self, work: &[Work]) -> Result<(), StoreError> {
        let cloud = self.cloud();
        let messages = pack::work(work, cloud.time.now());
        cloud.queues.send_all(Kind::Work, messages).await
    }

    async fn hint(&self, hints: &[Hint]) -> Result<(), StoreError> {
        let messages = pack::hints(hints, String::new);
        self.cloud().queues.send_all(Kind::Hints, messages).await
    }

    async fn take_releases(&self, _: &QueueName) -> Result<BTreeSet<GrantDigest>, StoreError> {
        Ok(BTreeSet::new())
    }

    async fn set_timers(&self, timers: &[Timer]) -> Result<(), StoreError> {
        let cloud = self.cloud();
        let messages = pack::timers(timers, cloud.time.now());
        cloud.queues.send_all(Kind::Timers, messages).await
    }
}

/// Queues that lose every message, to prepare a scenario.
pub struct NoQueues;

#[async_trait]
impl WorkQueue for NoQueues {
    async fn send(&self, _: &[Work]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn hint(&self, _: &[Hint]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn take_releases(&self, _: &QueueName) -> Result<BTreeSet<GrantDigest>, StoreError> {
        Ok(BTreeSet::new())
    }

    async fn set_timers(&self, _: &[Timer]) -> Result<(), StoreError> {
        Ok(())
    }
}
