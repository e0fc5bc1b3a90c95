//! The stream of changes: what this process commits, for readers that are connected. Servers that
//! share a store forward to each other what they commit.
//!
//! ```text
//!   commit ─▶ pending changes ──every 100 ms─┬▶ log of the latest 4096 ─▶ readers, at their pace
//!             at most 1000                   │  ▲  numbered, rendered once
//!                                            │  └─ batches of other servers, as they come
//!                                            └▶ batches for servers that have readers, at most 64 KB
//! ```
//!
//! Readers never delay a commit. A commit only adds to the pending changes, and only while there are
//! readers, here or at another server, or were within a minute. Of too many changes the rest is counted,
//! not kept; changes of a job that a reader of this server names by its id are always kept. A reader
//! takes from the log what its connection can carry. One that falls behind the log gets the event
//! `skipped` and goes on with what the log has. So does each one when changes of another server are
//! missing.
//!
//! Changes are seen where they are stored, so none is forgotten: [`WatchedStore`] is the layer
//! around the store of an embedded server. A commit whose outcome is not known counts as skipped.
//!
//! Read in this order: [`log`], [`reader`], [`store`], [`forward`].

mod forward;
mod log;
mod reader;
mod store;

use std::{
    collections::HashMap,
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};

pub(crate) use self::log::{Change, ChangeFilter};
#[cfg(test)]
pub(super) use self::reader::ChangeReader;
use self::{forward::Forward, log::Log};
pub(super) use self::{forward::Forwarded, store::WatchedStore};
use super::{Inner, StopPhase};
use tidegate_core::{
    job::{Job, JobId},
    port::{ChangeBatch, Entropy},
    time::Timestamp,
};

/// How often pending changes are published.
const INTERVAL: Duration = Duration::from_millis(100);
/// Most changes between two publications that are kept.
const MAX_PENDING: usize = 1000;
/// How long changes are kept for readers that come back.
const AFTER_LAST_READER: Duration = Duration::from_mins(1);

/// The changes of this process, and of others that forward theirs.
pub(crate) struct Changes {
    /// Whether changes are kept for readers of this process.
    has_readers: AtomicBool,
    readers: AtomicUsize,
    /// Whether changes are forwarded to other servers.
    forwards: AtomicBool,
    pending: Mutex<Pending>,
    log: RwLock<Log>,
    forward: Mutex<Forward>,
    /// The number of the next change.
    published: watch::Sender<u64>,
    /// Whether all servers that share the store forward their changes.
    is_complete: watch::Sender<bool>,
    /// Notified when the first reader comes, here or at another server.
    begins: Notify,
    /// Notified when there may be a batch for other servers.
    has_batches: Notify,
}

#[derive(Default)]
struct Pending {
    /// Each with the number of changes before it that are not kept.
    changes: Vec<(u64, Change)>,
    skipped: u64,
    /// How many readers name a job by its id.
    watched: HashMap<JobId, usize>,
}

impl Pending {
    /// Adds changes, or counts those for which there is no room.
    fn add(&mut self, changes: Vec<(u64, Change)>, skipped: u64) {
        for (skipped, change) in changes {
            self.skipped += skipped;
            let is_watched =
                matches!(&change, Change::Job(job) if self.watched.contains_key(&job.id));
            if self.changes.len() < MAX_PENDING || is_watched {
                let skipped = mem::take(&mut self.skipped);
                self.changes.push((skipped, change));
            } else {
                self.skipped += 1;
            }
        }
        self.skipped += skipped;
    }

    /// Takes the changes, and the number of those after them that are not kept.
    fn take(&mut self) -> (Vec<(u64, Change)>, u64) {
        (mem::take(&mut self.changes), mem::take(&mut self.skipped))
    }
}

impl Changes {
    /// No changes yet, in a log of this [run](draw_run).
    pub(super) fn new(run: u64) -> Self {
        Self {
            has_readers: AtomicBool::new(false),
            readers: AtomicUsize::new(0),
            forwards: AtomicBool::new(false),
            pending: Mutex::default(),
            log: RwLock::new(Log::new(run)),
            forward: Mutex::default(),
            published: watch::Sender::new(1),
            is_complete: watch::Sender::new(true),
            begins: Notify::new(),
            has_batches: Notify::new(),
        }
    }

    /// Whether this process has readers, or had some within a minute.
    pub(super) fn has_readers(&self) -> bool {
        self.has_readers.load(Ordering::Acquire)
    }

    /// Whether changes are kept, for readers or for other servers.
    fn is_recording(&self) -> bool {
        self.has_readers() || self.forwards.load(Ordering::Acquire)
    }

    /// Adds a change that no write of the store shows.
    pub(super) fn add(&self, change: Change) {
        self.add_all(vec![(0, change)], 0);
    }

    /// Adds changes and a number of others, while changes are kept.
    fn add_all(&self, changes: Vec<(u64, Change)>, skipped: u64) {
        if self.is_recording() {
            self.pending.lock().add(changes, skipped);
        }
    }

    /// Adds the end of a job whose record was removed with it: the store has no write with the job.
    pub(super) fn add_removed_end(&self, job: &Job, now: Timestamp) {
        if self.is_recording() && job.spec.retention.duration().is_zero() {
            self.add(Change::Job(Box::new(store::job_change(job, now))));
        }
    }

    /// Publishes the pending changes.
    fn publish(&self) {
        let (changes, skipped) = self.pending.lock().take();
        if changes.is_empty() && skipped == 0 {
            return;
        }
        if self.forwards.load(Ordering::Acquire) {
            self.forward.lock().add(&changes, skipped);
            self.has_batches.notify_one();
        }
        self.extend_log(|log| {
            for (skipped, change) in changes {
                log.push(skipped, change);
            }
            log.skip(skipped);
        });
    }

    /// Extends the log, if there are readers.
    fn extend_log(&self, extend: impl FnOnce(&mut Log)) {
        let mut log = self.log.write();
        if self.has_readers() {
            extend(&mut log);
            self.published.send_replace(log.next());
        }
    }

    /// Keeps no more changes for readers, unless one has just come. A reader that resumes later gets
    /// the event `skipped`.
    fn stop_reading(&self, run: u64) {
        // A new reader counts itself before it waits for this lock.
        let mut log = self.log.write();
        if self.readers.load(Ordering::Acquire) > 0 {
            return;
        }
        self.has_readers.store(false, Ordering::Release);
        if !self.is_recording() {
            self.pending.lock().take();
        }
        *log = Log::new(run);
        self.published.send_replace(log.next());
    }

    /// Forwards the changes of this server to others from now on, or no more.
    pub(super) fn set_forwards(&self, forwards: bool) {
        if self.forwards.swap(forwards, Ordering::AcqRel) == forwards {
            return;
        }
        if forwards {
            // What is committed after the first batch was sent is forwarded.
            self.forward.lock().begin();
            self.begins.notify_one();
            self.has_batches.notify_one();
        } else {
            self.forward.lock().stop();
            if !self.is_recording() {
                self.pending.lock().take();
            }
        }
    }

    /// How far this server has forwarded its changes.
    pub(super) fn forwarded(&self) -> Forwarded {
        self.forward.lock().forwarded()
    }

    /// The batches for other servers, from this one; waits until there may be some.
    pub(super) async fn take_batches(&self, server: &str) -> Vec<ChangeBatch> {
        self.has_batches.notified().await;
        self.forward.lock().take(server)
    }

    /// Adds what another server has forwarded. If `is_missing`, readers learn that changes before it
    /// are.
    pub(super) fn add_forwarded(&self, batch: &ChangeBatch, is_missing: bool) {
        if !self.has_readers() {
            return;
        }
        let changes: Option<Vec<Change>> = serde_json::from_str(&batch.json)
            .inspect_err(|error| tracing::debug!(%error, "changes of another server are skipped"))
            .ok();
        self.extend_log(|log| {
            // A later release may have changes that this one does not know.
            if is_missing || changes.is_none() {
                log.lose();
            }
            changes.into_iter().flatten().for_each(|change| log.push(0, change));
        });
    }

    /// Lets readers know that changes of other servers are missing.
    pub(super) fn lose(&self) {
        self.extend_log(Log::lose);
    }

    /// Whether all servers that share the store forward their changes to this one. Readers begin when
    /// they do.
    pub(super) fn set_complete(&self, is_complete: bool) {
        self.is_complete.send_if_modified(|was| mem::replace(was, is_complete) != is_complete);
    }
}

/// Draws the name of a run of the log.
pub(super) fn draw_run(entropy: &dyn Entropy) -> u64 {
    (entropy.bits() >> 64) as u64
}

/// Publishes changes while there are readers, here or at other servers; ends with the server.
pub(super) fn spawn(inner: &Arc<Inner>) {
    let server = Arc::downgrade(inner);
    let changes = Arc::clone(&inner.changes);
    let ports = inner.engine.ports();
    let (clock, entropy) = (Arc::clone(&ports.clock), Arc::clone(&ports.entropy));
    let mut stopping = inner.stopping.subscribe();
    inner.tasks.spawn(async move {
        let is_stopped = |stopping: &mut watch::Receiver<StopPhase>| {
            *stopping.borrow_and_update() == StopPhase::Stopped
        };
        let mut read_at = clock.machine_now();
        while server.strong_count() > 0 && !is_stopped(&mut stopping) {
            if !changes.is_recording() {
                tokio::select! {
                    () = changes.begins.notified() => read_at = clock.machine_now(),
                    changed = stopping.changed() => if changed.is_err() { return },
                }
                continue;
            }
            let next = clock.at_machine_time(clock.machine_now() + INTERVAL);
            tokio::select! {
                () = clock.sleep_until(next) => {}
                changed = stopping.changed() => if changed.is_err() { return },
            }
            changes.publish();
            let now = clock.machine_now();
            if changes.readers.load(Ordering::Acquire) > 0 || !changes.has_readers() {
                read_at = now;
            } else if read_at + AFTER_LAST_READER <= now {
                changes.stop_reading(draw_run(&*entropy));
            }
        }
    });
}

#[cfg(test)]
mod tests;
