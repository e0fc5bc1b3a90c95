//! The stream of changes: what this process commits, for readers that are connected.
//!
//! ```text
//!   commit ─▶ pending changes ──every 100 ms──▶ log of the latest 4096 ─▶ readers, at their pace
//!             at most 1000                      numbered, rendered once
//! ```
//!
//! Readers never delay a commit. A commit only adds to the pending changes, and only while there are
//! readers, or were within a minute. Of too many changes the rest is counted, not kept; changes of a
//! job that a reader names by its id are always kept. A reader takes from the log what its
//! connection can carry. One that falls behind the log gets the event `skipped` and goes on with what
//! the log has.
//!
//! Changes are seen where they are stored, so none is forgotten: [`WatchedStore`] is the layer
//! around the store of an embedded server.

mod log;

use std::{
    collections::HashMap,
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};

pub(crate) use self::log::{Change, ChangeFilter};
use self::log::{Log, frame, id};
use super::{Inner, Server, StopPhase};
use tidegate_api::{
    JobChange, JobTypeChange, QueueChange, RemovedJob, SkippedChanges, WorkerChange,
};
use tidegate_core::{
    error_code::ErrorCode,
    job::{Job, JobId, Phase, State, lifecycle::word},
    port::{
        Clock, Committed, Entropy, JobStore, StoreError, StoreLayer, Txn, Write,
        job_store::{ItemKind, SharedStore},
    },
    time::Timestamp,
};
use tidegate_engine::Error;

/// How often pending changes are published.
const INTERVAL: Duration = Duration::from_millis(100);
/// Most changes between two publications that are kept.
const MAX_PENDING: usize = 1000;
/// How long changes are kept for readers that come back.
const AFTER_LAST_READER: Duration = Duration::from_mins(1);
/// Most readers.
const MAX_READERS: usize = 1000;
/// Most events that a reader takes at once, while few others read.
const MAX_EVENTS: usize = 256;
/// How much longer each reader waits between two looks for each other one, so that all of them
/// together take a small share of the processor.
const PAUSE_PER_READER: Duration = Duration::from_millis(1);
/// The longest time without an event or a comment.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long a reader may read with one authentication.
const MAX_STREAM: Duration = Duration::from_mins(15);

/// The changes of this process.
pub(crate) struct Changes {
    /// Whether changes are kept.
    recording: AtomicBool,
    readers: AtomicUsize,
    pending: Mutex<Pending>,
    log: RwLock<Log>,
    /// The number of the next change.
    published: watch::Sender<u64>,
    /// Notified when the first reader comes.
    begins: Notify,
}

#[derive(Default)]
struct Pending {
    /// Each with the number of changes before it that are not kept.
    changes: Vec<(u64, Change)>,
    skipped: u64,
    /// How many readers name a job by its id.
    watched: HashMap<JobId, usize>,
}

impl Changes {
    pub(super) fn new(entropy: &dyn Entropy) -> Self {
        Self {
            recording: AtomicBool::new(false),
            readers: AtomicUsize::new(0),
            pending: Mutex::default(),
            log: RwLock::new(Log::new(draw_run(entropy))),
            published: watch::Sender::new(1),
            begins: Notify::new(),
        }
    }

    fn is_recording(&self) -> bool {
        self.recording.load(Ordering::Acquire)
    }

    /// Adds a change that no write of the store shows.
    pub(super) fn add(&self, change: Change) {
        if self.is_recording() {
            let mut pending = self.pending.lock();
            let skipped = mem::take(&mut pending.skipped);
            pending.changes.push((skipped, change));
        }
    }

    /// Publishes the pending changes.
    fn publish(&self) {
        let (changes, skipped) = {
            let mut pending = self.pending.lock();
            (mem::take(&mut pending.changes), mem::take(&mut pending.skipped))
        };
        if changes.is_empty() && skipped == 0 {
            return;
        }
        let mut log = self.log.write();
        for (skipped, change) in changes {
            log.push(skipped, change);
        }
        log.skip(skipped);
        self.published.send_replace(log.next());
    }

    /// Keeps no more changes. A reader that resumes later gets the event `skipped`.
    fn stop_recording(&self, run: u64) {
        let mut log = self.log.write();
        self.recording.store(false, Ordering::Release);
        *self.pending.lock() = Pending::default();
        *log = Log::new(run);
        self.published.send_replace(log.next());
    }
}

fn draw_run(entropy: &dyn Entropy) -> u64 {
    (entropy.bits() >> 64) as u64
}

/// Publishes changes while there are readers; ends with the server.
pub(super) fn spawn(inner: &Arc<Inner>) {
    let server = Arc::downgrade(inner);
    let changes = Arc::clone(&inner.changes);
    let ports = inner.engine.ports();
    let (clock, entropy) = (Arc::clone(&ports.clock), Arc::clone(&ports.entropy));
    let mut stopping = inner.stopping.subscribe();
    tokio::spawn(async move {
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
            if changes.readers.load(Ordering::Acquire) > 0 {
                read_at = now;
            } else if read_at + AFTER_LAST_READER <= now {
                changes.stop_recording(draw_run(&*entropy));
            }
        }
    });
}

/// A reader of changes.
pub(crate) struct ChangeReader {
    changes: Arc<Changes>,
    filter: ChangeFilter,
    /// The run and the number of the next change.
    run: u64,
    next: u64,
    /// What is sent before the first change.
    first: Option<Bytes>,
    published: watch::Receiver<u64>,
    stopping: watch::Receiver<StopPhase>,
    clock: Arc<dyn Clock>,
    /// When it ends, in the time of the machine.
    until: Timestamp,
    /// Whether the last events left others behind, or were many.
    has_read: bool,
}

impl Server {
    /// A reader of the changes that `filter` matches: after the event with this id, or from now on.
    ///
    /// # Errors
    ///
    /// 501 `streams_not_supported` of a serverless deployment; 503 `too_many_streams`.
    pub(crate) fn changes(
        &self,
        filter: ChangeFilter,
        after: Option<&str>,
    ) -> Result<ChangeReader, Error> {
        let refused = |code, message: &str| {
            Err(Error::Conflict { code, message: message.to_owned(), holder: None })
        };
        if self.inner.is_serverless() {
            let message = "a function does not keep connections: poll GET /v1/jobs";
            return refused(ErrorCode::StreamsNotSupported, message);
        }
        let changes = Arc::clone(&self.inner.changes);
        if changes.readers.fetch_add(1, Ordering::AcqRel) >= MAX_READERS {
            changes.readers.fetch_sub(1, Ordering::AcqRel);
            return refused(ErrorCode::TooManyStreams, "there are 1000 readers");
        }
        {
            let mut pending = changes.pending.lock();
            for id in &filter.ids {
                *pending.watched.entry(id.clone()).or_default() += 1;
            }
        }
        let published = changes.published.subscribe();
        let log = changes.log.write();
        changes.recording.store(true, Ordering::Release);
        changes.begins.notify_one();
        let (run, now) = (log.run, log.next());
        let resumed = after.and_then(|after| {
            let (run, number) = after.split_once('-')?;
            let run = u64::from_str_radix(run, 16).ok()?;
            let next = number.parse::<u64>().ok()?.checked_add(1)?;
            (run == log.run && next <= now).then_some(next)
        });
        drop(log);
        let next = resumed.unwrap_or(now);
        let first = match (after, resumed) {
            (Some(_), None) => {
                frame("skipped", &id(run, next - 1), &SkippedChanges { changes: None })
            }
            _ => frame("ready", &id(run, next - 1), &serde_json::json!({})),
        };
        let clock = Arc::clone(&self.inner.engine.ports().clock);
        Ok(ChangeReader {
            changes,
            filter,
            run,
            next,
            first: Some(first),
            published,
            stopping: self.inner.stopping.subscribe(),
            until: clock.machine_now() + MAX_STREAM,
            clock,
            has_read: false,
        })
    }
}

impl ChangeReader {
    /// The next events, or a comment if nothing happens for a while. None at the end of the stream:
    /// the server stops, or the reader must authenticate again.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        let readers = self.changes.readers.load(Ordering::Relaxed);
        if mem::take(&mut self.has_read) && readers > 1 {
            let pause = PAUSE_PER_READER * u32::try_from(readers).unwrap_or(u32::MAX);
            let clock = &self.clock;
            clock.sleep_until(clock.at_machine_time(clock.machine_now() + pause)).await;
        }
        let alive_until = self.until.min(self.clock.machine_now() + KEEP_ALIVE);
        loop {
            if *self.stopping.borrow_and_update() != StopPhase::Serving {
                return None;
            }
            let last = *self.published.borrow_and_update();
            let frames = {
                let log = self.changes.log.read();
                if log.run != self.run {
                    // It has slept for more than a minute.
                    (self.run, self.next) = (log.run, log.next());
                    let value = SkippedChanges { changes: None };
                    vec![frame("skipped", &id(log.run, log.next() - 1), &value)]
                } else if last > self.next || log.next() > self.next {
                    let most = (MAX_EVENTS / (1 + readers / 100)).max(1);
                    let (frames, next) = log.read(self.next, &self.filter, most);
                    self.next = next;
                    frames
                } else {
                    Vec::new()
                }
            };
            if !frames.is_empty() {
                self.has_read = true;
                return Some(frames.concat().into());
            }
            let now = self.clock.machine_now();
            if now >= self.until {
                return None;
            }
            if now >= alive_until {
                return Some(Bytes::from_static(b": keep-alive\n\n"));
            }
            let wake_at = self.clock.at_machine_time(alive_until);
            tokio::select! {
                _ = self.published.changed() => {}
                _ = self.stopping.changed() => {}
                () = self.clock.sleep_until(wake_at) => {}
            }
        }
    }
}

impl Drop for ChangeReader {
    fn drop(&mut self) {
        self.changes.readers.fetch_sub(1, Ordering::AcqRel);
        let mut pending = self.changes.pending.lock();
        for id in &self.filter.ids {
            if let Some(count) = pending.watched.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    pending.watched.remove(id);
                }
            }
        }
    }
}

/// A store whose commits are changes.
pub(super) struct WatchedStore {
    inner: SharedStore,
    changes: Arc<Changes>,
    clock: Arc<dyn Clock>,
}

impl WatchedStore {
    pub(super) fn new(inner: SharedStore, changes: Arc<Changes>, clock: Arc<dyn Clock>) -> Self {
        Self { inner, changes, clock }
    }
}

impl StoreLayer for WatchedStore {
    fn inner(&self) -> &dyn JobStore {
        &*self.inner
    }

    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        if !self.changes.is_recording() {
            return self.inner.commit(txns).await;
        }
        let now = self.clock.now();
        let noted: Vec<Pending> = {
            let pending = self.changes.pending.lock();
            let mut room = MAX_PENDING.saturating_sub(pending.changes.len());
            txns.iter().map(|txn| changes_of(txn, &pending, &mut room, now)).collect()
        };
        let committed = self.inner.commit(txns).await?;
        let mut pending = self.changes.pending.lock();
        for (of_txn, outcome) in noted.into_iter().zip(&committed) {
            if let Committed::All = outcome {
                for (skipped, change) in of_txn.changes {
                    let skipped = mem::take(&mut pending.skipped) + skipped;
                    pending.changes.push((skipped, change));
                }
                pending.skipped += of_txn.skipped;
            }
        }
        Ok(committed)
    }
}

/// The changes that a transaction at `now` makes, at most as many as there is `room` for, and those
/// of jobs that the readers name.
fn changes_of(txn: &Txn, pending: &Pending, room: &mut usize, now: Timestamp) -> Pending {
    let mut changes = Pending::default();
    each_write(txn, &mut |write| {
        let id = match write {
            Write::AddJob(job) | Write::SetJob { job, .. } => Some(&job.id),
            Write::RemoveJob { id, .. } => Some(id),
            _ => None,
        };
        let is_watched = id.is_some_and(|id| pending.watched.contains_key(id));
        if *room == 0 && !is_watched {
            changes.skipped += u64::from(id.is_some() || matches!(write, Write::SetItem { .. }));
        } else if let Some(change) = change_of(write, now) {
            *room = room.saturating_sub(1);
            let skipped = mem::take(&mut changes.skipped);
            changes.changes.push((skipped, change));
        }
    });
    changes
}

fn each_write<'a>(writes: &'a [Write], see: &mut impl FnMut(&'a Write)) {
    for write in writes {
        match write {
            Write::Together(together) => each_write(together, see),
            write => see(write),
        }
    }
}

/// The change that a write at `now` makes, if it concerns a reader.
fn change_of(write: &Write, now: Timestamp) -> Option<Change> {
    match write {
        Write::AddJob(job) | Write::SetJob { job, .. } => {
            Some(Change::Job(Box::new(job_change(job, now))))
        }
        Write::RemoveJob { id, .. } => Some(Change::Removed(RemovedJob { id: id.clone() })),
        Write::SetItem { kind, name, version, bytes, .. } => {
            let version = bytes.as_ref().map(|_| *version);
            let name = name.clone();
            match kind {
                ItemKind::Queue => Some(Change::Queue(QueueChange { queue: name, version })),
                ItemKind::Type => Some(Change::JobType(JobTypeChange { r#type: name, version })),
                ItemKind::Drain => {
                    let change = if version.is_some() { "draining" } else { "undrained" };
                    Some(Change::Worker(WorkerChange { worker: name, change: change.into() }))
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// The change that led to `job` at `now`.
fn job_change(job: &Job, now: Timestamp) -> JobChange<'static> {
    let life = &job.life;
    let running = life.running();
    let is_scheduled = matches!(life.state, State::Scheduled { .. });
    JobChange {
        id: job.id.clone(),
        r#type: job.spec.job_type.clone(),
        queue: job.spec.queue.clone(),
        state: word(&life.state).into(),
        phase: Phase::of(life, now).as_str().into(),
        attempt: life.attempt,
        revision: life.revision.0,
        at: now,
        run_at: is_scheduled.then(|| job.run_at()),
        worker: running.and_then(|running| running.worker.clone()),
        progress: running.and_then(|running| running.progress.clone()),
        error_reason: life.error.as_ref().map(|error| error.reason),
    }
}

#[cfg(test)]
mod tests;
