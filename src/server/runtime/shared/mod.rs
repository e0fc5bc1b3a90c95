//! Servers that share a store: each runs the tasks of an embedded server, and does what it owns.
//!
//! ```text
//!   commit ─▶ notices ──at most each 10 ms──▶ the other servers ─▶ their queue tasks, sweeps, tokens
//!   changes ─▶ batches, while another server has readers of the stream ─▶ the log of its stream
//!   every 2 s: renew the own record, read all records ─▶ who owns a queue, the sweep, the schedules
//! ```
//!
//! Any server accepts jobs, leases and reports. Its queue task ticks for the workers that call it, and
//! the version of the ledger keeps limits exact. What needs no caller is done by one server: the pushes
//! of a queue by its owner, and the sweep, the schedules and the bulk operations by theirs. If servers
//! can reach each other, they [forward](forward) lease requests to the owner of a limited queue, too.
//! Ownership and notices only save work. A server without either would do everything by polling, and the
//! condition of each write would decide.

pub(super) mod forward;
mod forwarders;
mod inbox;
mod inbox_depth;
mod members;
mod parts;
mod store;
mod swept;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

pub(super) use self::forward::Peers;
pub(super) use self::parts::{PART_INTERVAL, Subject};
pub(super) use self::store::{NoticingStore, Outgoing};
pub(super) use self::swept::SweptCounts;
use self::{
    forwarders::Forwarders,
    members::{Members, ServerRecord},
    parts::PartState,
};
use super::{Builder, Inner, Server, StopPhase, WeakServer, embedded::operations};
use tidegate_core::{
    job::QueueName,
    port::{
        ChangeBatch, Inbox, Notice, Notices, Write,
        job_store::{Record, RecordKind, RecordQuery},
    },
    time::Timestamp,
};
use tidegate_engine::Error;

/// How often a server renews its record and reads those of others.
const BEAT_INTERVAL: Duration = Duration::from_secs(2);
/// How often tokens and capacities are read again.
const LEARN_INTERVAL: Duration = Duration::from_secs(2);
/// How often it is checked whether each queue of this server has a task.
const QUEUE_INTERVAL: Duration = Duration::from_secs(5);
/// The least time between two reads of the running jobs, and the longest while workers have a capacity.
const RELOAD_INTERVAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// How old the running jobs may be that the list of workers shows.
const MAX_RUNNING_AGE: Duration = Duration::from_secs(2);
/// How long the record of a server that is gone stays in the store: longer than clocks differ.
const RECORD_RETENTION: Duration = Duration::from_hours(24);
/// The least time between two sends of notices.
const SEND_INTERVAL: Duration = Duration::from_millis(10);
/// The wait after notices could not be sent or received.
const ERROR_BACKOFF: Duration = Duration::from_secs(1);
/// Most servers that share a store.
const MAX_SERVERS: u32 = 1000;

/// How often the owner of the bulk operations looks for some.
const OPERATION_INTERVAL: Duration = Duration::from_secs(5);

/// The name under which a server owns the sweep.
pub(super) const SWEEP: &str = "tidegate.sweep";
/// The name under which a server owns the schedules.
pub(super) const SCHEDULES: &str = "tidegate.schedules";
/// The name under which a server owns the bulk operations.
pub(super) const OPERATIONS: &str = "tidegate.operations";

/// What a server has that shares its store.
pub(super) struct Shared {
    notices: Arc<dyn Notices>,
    /// Requests of applications, if the store has an inbox.
    inbox: Option<Arc<dyn Inbox>>,
    outgoing: Arc<Outgoing>,
    members: Mutex<Members>,
    /// How the servers reach each other; none if this one neither forwards nor is forwarded to.
    peers: Option<Peers>,
    /// The servers that forward their changes.
    forwarders: Mutex<Forwarders>,
    /// Notified when a server came or went, or its first reader of the stream did.
    beat: Notify,
    /// Notified after `members` has changed.
    members_changed: Notify,
    /// Notified when there is a bulk operation.
    operations: Notify,
    /// Notified when an application has given notice of its requests.
    requested: Notify,
    /// Notified when queues of this server may have no task yet.
    queues: Notify,
    /// Notified when a worker seems to run as many jobs as it can.
    full_workers: Notify,
    /// When the running jobs were read for a list of workers.
    running_read_at: tokio::sync::Mutex<Option<Timestamp>>,
    /// What this server counted, and adds up of all.
    parts: PartState,
    /// What the owner of the sweep counted, as this server shows it.
    swept: Mutex<SweptCounts>,
}

impl Builder {
    /// Makes the server one of several that share the store, with `notices` between them.
    #[must_use]
    pub fn shared(mut self, notices: Arc<dyn Notices>) -> Self {
        self.notices = Some(notices);
        self
    }

    /// Adds the jobs that applications request in the inbox of the store, which several servers
    /// share.
    #[must_use]
    pub fn inbox(mut self, inbox: Arc<dyn Inbox>) -> Self {
        self.inbox = Some(inbox);
        self
    }
}

impl Shared {
    /// The server `name`, which sends `outgoing` by `notices`, adds the jobs of `inbox`, and forwards
    /// requests to `peers`.
    pub(super) fn new(
        notices: Arc<dyn Notices>,
        inbox: Option<Arc<dyn Inbox>>,
        peers: Option<Peers>,
        outgoing: Arc<Outgoing>,
        name: String,
    ) -> Self {
        Self {
            notices,
            inbox,
            outgoing,
            members: Mutex::new(Members::new(name)),
            peers,
            forwarders: Mutex::default(),
            beat: Notify::new(),
            members_changed: Notify::new(),
            operations: Notify::new(),
            requested: Notify::new(),
            queues: Notify::new(),
            full_workers: Notify::new(),
            running_read_at: tokio::sync::Mutex::default(),
            parts: PartState::default(),
            swept: Mutex::default(),
        }
    }
}

impl Inner {
    /// Has the running jobs read again: a worker seems to run as many as it can.
    pub(super) fn on_full_worker(&self) {
        if let Some(shared) = &self.shared {
            shared.full_workers.notify_one();
        }
    }

    /// Whether this process owns `what`. One that shares its store with no other owns everything.
    pub(super) fn owns(&self, what: &str) -> bool {
        self.shared.as_ref().is_none_or(|shared| shared.members.lock().owns(what))
    }

    /// Whether other processes may use the store now: other servers, or other functions.
    pub(super) fn shares_store(&self) -> bool {
        self.is_serverless() || self.shared.is_some()
    }

    /// Has the other servers forward their changes, for the first reader of the stream.
    pub(super) fn on_first_reader(&self) {
        if let Some(shared) = &self.shared {
            shared.beat.notify_one();
        }
    }

    /// Renews this server's record and reads those of all. Returns whether a server came or went.
    async fn beat(&self, shared: &Shared, beat: u64, has_readers: bool) -> Result<bool, Error> {
        let name = shared.members.lock().own().to_owned();
        let of_this = ServerRecord {
            beat,
            release: env!("CARGO_PKG_VERSION").to_owned(),
            peer_url: shared.peers.as_ref().map(|peers| peers.url.clone()),
            has_readers,
            changes: self.changes.forwarded(),
            swept: self.owns(SWEEP).then(|| *shared.swept.lock()),
            replaced: false,
        };
        self.put_server_records(vec![(name, of_this)]).await?;
        Ok(self.on_beats(shared, &self.server_records().await?))
    }

    /// Marks the records of servers that had the `peer_url` of this one before: two cannot listen there,
    /// so they are gone. Others take over what these owned without waiting for their silence.
    async fn replace_predecessors(&self, shared: &Shared) -> Result<(), Error> {
        let Some(peers) = &shared.peers else { return Ok(()) };
        let mut replaced = self.server_records().await?;
        // Marked once: each write keeps a record for another day, and a server may restart all day.
        replaced
            .retain(|(_, of_one)| !of_one.replaced && of_one.peer_url.as_ref() == Some(&peers.url));
        for (_, of_one) in &mut replaced {
            of_one.replaced = true;
        }
        if replaced.is_empty() { Ok(()) } else { self.put_server_records(replaced).await }
    }

    /// Writes these records of servers.
    async fn put_server_records(&self, servers: Vec<(String, ServerRecord)>) -> Result<(), Error> {
        let (kind, until) = (RecordKind::Server, self.engine.now() + RECORD_RETENTION);
        let writes = servers.into_iter().map(|(name, of_one)| {
            let bytes = serde_json::to_vec(&of_one);
            let bytes = bytes.map_err(|error| Error::Internal(error.to_string()))?;
            Ok(Write::PutRecord(Record { kind, name, until, bytes }))
        });
        let writes = writes.collect::<Result<_, Error>>()?;
        self.engine.ports().store.commit(vec![writes]).await?;
        Ok(())
    }

    /// The record of each server, with its name.
    async fn server_records(&self) -> Result<Vec<(String, ServerRecord)>, Error> {
        let (kind, prefix) = (RecordKind::Server, String::new());
        let query = RecordQuery { kind, prefix, after: None, limit: MAX_SERVERS };
        let records = self.engine.ports().store.records(&[query]).await?.pop().unwrap_or_default();
        let read = records
            .into_iter()
            .filter_map(|record| Some((record.name, serde_json::from_slice(&record.bytes).ok()?)));
        Ok(read.collect())
    }

    /// Learns what the records of all servers say. Returns whether a server came or went.
    fn on_beats(&self, shared: &Shared, beats: &[(String, ServerRecord)]) -> bool {
        let now = self.engine.ports().clock.machine_now();
        let (has_changed, others, swept) = {
            let mut members = shared.members.lock();
            let has_changed = members.observe(beats.iter().cloned(), now);
            let others = beats.iter().filter(|(name, _)| members.is_other(name));
            let others = others.collect::<Vec<_>>();
            let sweeps = others.iter().find(|(name, _)| members.owner(SWEEP) == Some(name));
            let swept = sweeps.and_then(|(_, of_one)| of_one.swept);
            (has_changed, others, swept)
        };
        if let Some(counts) = swept {
            shared.on_swept_counts(counts);
        }
        if has_changed {
            shared.members_changed.notify_waiters();
        }
        self.changes.set_forwards(others.iter().any(|(_, of_one)| of_one.has_readers));
        let records = others.iter().map(|(name, of_one)| (name.as_str(), of_one.changes));
        // Held until readers know, so that a batch that comes meanwhile is later for them, too.
        let mut forwarders = shared.forwarders.lock();
        if forwarders.observe(records, now) {
            self.changes.lose();
        }
        self.changes.set_complete(forwarders.is_complete());
        has_changed
    }

    /// Adds the changes that another server forwards.
    fn on_changes(&self, shared: &Shared, batch: &ChangeBatch) {
        if batch.server == shared.members.lock().own() {
            return;
        }
        let mut forwarders = shared.forwarders.lock();
        let is_missing = forwarders.take(batch);
        // In this order, a reader that waits for all servers does not see what was before.
        self.changes.add_forwarded(batch, is_missing);
        self.changes.set_complete(forwarders.is_complete());
    }

    /// Removes this server's record, so that others take over at once.
    async fn leave(&self, shared: &Shared) {
        let name = shared.members.lock().own().to_owned();
        let write = Write::RemoveRecord { kind: RecordKind::Server, name, until: None };
        let removed = self.engine.ports().store.commit(vec![vec![write]]).await.map(|_| ());
        let sent = match removed {
            Ok(()) => shared.notices.send(&BTreeSet::from([Notice::Servers])).await,
            failed => failed,
        };
        if let Err(error) = sent {
            tracing::warn!(error = %error.chain(), "others learn of this stop by polling only");
        }
    }

    /// Does what a notice of another server asks for.
    async fn on_notice(self: &Arc<Self>, shared: &Shared, notice: Notice) {
        match notice {
            Notice::Queue(queue) => {
                if self.owns(queue.as_str()) {
                    self.notify_queues([&queue].into_iter());
                } else if let Some(known) = self.queues.lock().get(&queue) {
                    // Of the others only those whose workers wait for it.
                    known.on_enqueued(self.engine.seen_version());
                }
            }
            // What held jobs may be gone, or they may have a taker now.
            Notice::Configuration => {
                self.wake_known();
                shared.queues.notify_one();
            }
            Notice::Operations => shared.operations.notify_one(),
            Notice::Schedules => self.rescheduled.notify_one(),
            Notice::Retries => self.pending.notify_one(),
            Notice::Servers => shared.beat.notify_one(),
            Notice::Inbox => {
                if self.owns(inbox::INBOX) {
                    shared.requested.notify_one();
                }
            }
            Notice::Changes(batch) => self.on_changes(shared, &batch),
            Notice::Tokens => {
                let server = Server { inner: Arc::clone(self) };
                if let Err(error) = server.publish_tokens().await {
                    tracing::warn!(%error, "tokens were not read again; they are at the next beat");
                }
            }
        }
    }
}

impl Server {
    /// Joins the other servers, which leave to this one what it owns from then on.
    ///
    /// # Errors
    ///
    /// The store's.
    pub(super) async fn join(&self) -> Result<(), Error> {
        let Some(shared) = &self.inner.shared else { return Ok(()) };
        self.inner.replace_predecessors(shared).await?;
        self.inner.beat(shared, 0, false).await?;
        if let Some(inbox) = &shared.inbox {
            inbox::set_rules(&self.inner, &**inbox).await?;
        }
        shared.outgoing.add(Notice::Servers);
        Ok(())
    }

    /// Reads the running jobs again, unless that was done just now: other servers start and end some.
    ///
    /// # Errors
    ///
    /// The store's.
    pub(super) async fn refresh_running(&self) -> Result<(), Error> {
        let Some(shared) = &self.inner.shared else { return Ok(()) };
        // One read serves all who wait for it.
        let mut read_at = shared.running_read_at.lock().await;
        let clock = &self.inner.engine.ports().clock;
        if read_at.is_none_or(|at| clock.machine_now().since(at) >= MAX_RUNNING_AGE) {
            self.inner.engine.reload_running().await?;
            *read_at = Some(clock.machine_now());
        }
        Ok(())
    }

    /// Reads what other servers may have changed: tokens, and the capacities of pull workers.
    async fn learn_of_others(&self) -> Result<(), Error> {
        self.publish_tokens().await?;
        self.load_capacities().await
    }
}

/// Drops the records of servers that ended without a stop, and what no server has added.
pub(super) async fn drop_old_records(inner: &Inner) -> Result<(), Error> {
    let store = &inner.engine.ports().store;
    store.purge(RecordKind::Server, inner.engine.now(), u64::MAX, MAX_SERVERS).await?;
    inner.drop_old_parts().await
}

/// Starts the tasks of a server that shares its store.
pub(super) fn spawn(inner: &Arc<Inner>) {
    if let Some(shared) = &inner.shared {
        if shared.inbox.is_some() {
            inner.spawn(inbox::read_inbox(Arc::downgrade(inner)));
            inner.spawn(inbox_depth::measure_inbox(Arc::downgrade(inner)));
        }
        // It ends with a stop, and tells the others.
        inner.tasks.spawn(keep_beating(Arc::downgrade(inner), inner.stopping.subscribe()));
        inner.spawn(send(Arc::downgrade(inner)));
        inner.spawn(receive(Arc::downgrade(inner)));
        inner.spawn(continue_operations(Arc::downgrade(inner)));
        inner.spawn(learn(Arc::downgrade(inner)));
        inner.spawn(start_queues(Arc::downgrade(inner)));
        inner.spawn(reload_running(Arc::downgrade(inner)));
    }
}

/// The server and its part that shares the store, while there are any.
fn upgrade(server: &WeakServer) -> Option<(Arc<Inner>, Arc<Shared>)> {
    let inner = server.upgrade()?;
    let shared = inner.shared.clone()?;
    Some((inner, shared))
}

/// Renews the server's record and looks at those of others, until the server begins to stop.
async fn keep_beating(server: WeakServer, mut stopping: watch::Receiver<StopPhase>) {
    // A stop waits until others take over.
    let _busy = server.upgrade().and_then(|inner| inner.busy());
    let (mut number, mut had_readers) = (0, false);
    while let Some((inner, shared)) = upgrade(&server) {
        if *stopping.borrow() != StopPhase::Serving {
            return inner.leave(&shared).await;
        }
        number += 1;
        let has_readers = inner.changes.has_readers();
        let renewed = inner.beat(&shared, number, has_readers).await;
        if renewed.is_ok() && had_readers != has_readers {
            had_readers = has_readers;
            shared.outgoing.add(Notice::Servers);
        }
        match renewed {
            // What this server owns now may have waited.
            Ok(true) => {
                inner.wake_known();
                shared.queues.notify_one();
                inner.rescheduled.notify_one();
                inner.pending.notify_one();
                shared.operations.notify_one();
            }
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "the record of this server was not renewed"),
        }
        let clock = Arc::clone(&inner.engine.ports().clock);
        let next_at = clock.now() + BEAT_INTERVAL;
        drop(inner);
        tokio::select! {
            () = clock.sleep_until(next_at) => {}
            () = shared.beat.notified() => {}
            _ = stopping.changed() => {}
        }
    }
}

/// Sends what this server commits.
async fn send(server: WeakServer) -> Option<()> {
    loop {
        let (inner, shared) = upgrade(&server)?;
        let clock = Arc::clone(&inner.engine.ports().clock);
        let changes = Arc::clone(&inner.changes);
        let own = shared.members.lock().own().to_owned();
        drop(inner);
        let notices: BTreeSet<Notice> = tokio::select! {
            notices = shared.outgoing.take() => notices,
            batches = changes.take_batches(&own) => {
                batches.into_iter().map(Notice::Changes).collect()
            }
        };
        let is_alone = shared.members.lock().count() == 1 && !notices.contains(&Notice::Servers);
        if !is_alone
            && !notices.is_empty()
            && let Err(error) = shared.notices.send(&notices).await
        {
            tracing::warn!(error = %error.chain(), "others learn of changes by polling only");
            clock.sleep_until(clock.now() + ERROR_BACKOFF).await;
        }
        clock.sleep_until(clock.now() + SEND_INTERVAL).await;
    }
}

/// Receives what others commit.
async fn receive(server: WeakServer) -> Option<()> {
    loop {
        let (inner, shared) = upgrade(&server)?;
        let clock = Arc::clone(&inner.engine.ports().clock);
        drop(inner);
        match shared.notices.receive().await {
            Ok(notices) => {
                let inner = server.upgrade()?;
                for notice in notices {
                    inner.on_notice(&shared, notice).await;
                }
            }
            Err(error) => {
                tracing::warn!(error = %error.chain(), "changes of others are found by polling");
                clock.sleep_until(clock.now() + ERROR_BACKOFF).await;
                // Some may have been lost.
                server.upgrade()?.wake_known();
            }
        }
    }
}

/// Continues the bulk operations that no server runs, if this one owns them.
async fn continue_operations(server: WeakServer) -> Option<()> {
    loop {
        let (inner, shared) = upgrade(&server)?;
        let clock = Arc::clone(&inner.engine.ports().clock);
        if inner.owns(OPERATIONS)
            && let Err(error) = operations::resume(&Server { inner: Arc::clone(&inner) }).await
        {
            tracing::warn!(%error, "bulk operations were not read");
        }
        drop(inner);
        tokio::select! {
            () = clock.sleep_until(clock.now() + OPERATION_INTERVAL) => {}
            () = shared.operations.notified() => {}
        }
    }
}

/// Reads tokens and capacities again.
async fn learn(server: WeakServer) -> Option<()> {
    loop {
        let inner = server.upgrade()?;
        let clock = Arc::clone(&inner.engine.ports().clock);
        if let Err(error) = (Server { inner }).learn_of_others().await {
            tracing::warn!(%error, "what other servers changed was not read");
        }
        clock.sleep_until(clock.now() + LEARN_INTERVAL).await;
    }
}

/// Starts the tasks that queues of this server do not have yet: they came to it, or a notice was lost.
async fn start_queues(server: WeakServer) -> Option<()> {
    loop {
        let (inner, shared) = upgrade(&server)?;
        let clock = Arc::clone(&inner.engine.ports().clock);
        match (Server { inner: Arc::clone(&inner) }).owned_queues().await {
            Ok(queues) => {
                let known: BTreeSet<QueueName> = inner.queues.lock().keys().cloned().collect();
                queues.difference(&known).for_each(|queue| inner.wake(queue));
            }
            Err(error) => tracing::warn!(%error, "the queues of this server were not read"),
        }
        drop(inner);
        tokio::select! {
            () = clock.sleep_until(clock.now() + QUEUE_INTERVAL) => {}
            () = shared.queues.notified() => {}
        }
    }
}

/// Reads the running jobs again: the capacity of a worker that reports to other servers would stay
/// used.
async fn reload_running(server: WeakServer) -> Option<()> {
    loop {
        let (inner, shared) = upgrade(&server)?;
        let clock = Arc::clone(&inner.engine.ports().clock);
        if inner.workers.have_capacities() {
            match inner.engine.reload_running().await {
                Ok(()) => inner.wake_known(),
                Err(error) => tracing::warn!(%error, "the running jobs were not read"),
            }
        }
        drop(inner);
        let (least, most) = RELOAD_INTERVAL;
        clock.sleep_until(clock.now() + least).await;
        tokio::select! {
            () = clock.sleep_until(clock.now() + most) => {}
            () = shared.full_workers.notified() => {}
        }
    }
}
