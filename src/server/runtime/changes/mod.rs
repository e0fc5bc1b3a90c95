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
//! around the store of an embedded server. A commit whose outcome is not known counts as skipped.

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
    JobChange, JobTypeChange, QueueChange, RemovedJob, SkippedChanges, StreamReady, WorkerChange,
};
use tidegate_core::{
    error_code::ErrorCode,
    job::{
        Job, JobId, Phase,
        lifecycle::{Progress, word},
    },
    port::{
        Clock, Committed, Entropy, JobStore, StoreError, StoreLayer, Txn, Write,
        job_store::{ItemKind, SharedStore, each_write},
    },
    time::Timestamp,
};
use tidegate_engine::{Error, config::drain::Drain};

/// How often pending changes are published.
const INTERVAL: Duration = Duration::from_millis(100);
/// Most changes between two publications that are kept.
const MAX_PENDING: usize = 1000;
/// How long changes are kept for readers that come back.
const AFTER_LAST_READER: Duration = Duration::from_mins(1);
/// Most readers.
const MAX_READERS: usize = 1000;
/// Most events that a reader takes at once.
const MAX_EVENTS: usize = 100;
/// Most bytes of the note of a progress in an event.
const MAX_NOTE_BYTES: usize = 200;
/// How much longer each reader waits between two reads of the log for each other one, so that all of
/// them together take a small share of the processor.
const PAUSE_PER_READER: Duration = Duration::from_millis(2);
/// The longest time without an event or a comment.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long a reader may read.
const MAX_STREAM: Duration = Duration::from_mins(15);
/// How long a reader may read with one authentication.
const MAX_UNCHECKED: Duration = KEEP_ALIVE;

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
}

impl Changes {
    /// No changes yet, in a log of this [run](draw_run).
    pub(super) fn new(run: u64) -> Self {
        Self {
            recording: AtomicBool::new(false),
            readers: AtomicUsize::new(0),
            pending: Mutex::default(),
            log: RwLock::new(Log::new(run)),
            published: watch::Sender::new(1),
            begins: Notify::new(),
        }
    }

    fn is_recording(&self) -> bool {
        self.recording.load(Ordering::Acquire)
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
            self.add(Change::Job(Box::new(job_change(job, now))));
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

    /// Keeps no more changes, unless a reader has just come. A reader that resumes later gets the
    /// event `skipped`.
    fn stop_recording(&self, run: u64) {
        // A new reader counts itself before it waits for this lock.
        let mut log = self.log.write();
        if self.readers.load(Ordering::Acquire) > 0 {
            return;
        }
        self.recording.store(false, Ordering::Release);
        let mut pending = self.pending.lock();
        (pending.changes, pending.skipped) = Default::default();
        *log = Log::new(run);
        self.published.send_replace(log.next());
    }
}

/// Draws the name of a run of the log.
pub(super) fn draw_run(entropy: &dyn Entropy) -> u64 {
    (entropy.bits() >> 64) as u64
}

/// Publishes changes while there are readers; ends with the server.
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
    /// The number of the next change.
    next: u64,
    /// What is sent before the first change.
    first: Option<Bytes>,
    /// Whether the changes of all jobs that it names are kept, so that gaps do not concern it.
    ignores_gaps: bool,
    published: watch::Receiver<u64>,
    stopping: watch::Receiver<StopPhase>,
    clock: Arc<dyn Clock>,
    /// When it ends, in the time of the machine.
    until: Timestamp,
    /// When its caller was authenticated last, in the time of the machine.
    checked_at: Timestamp,
    /// Whether it has read the log since its last pause.
    has_read: bool,
}

impl Server {
    /// A reader of the changes that `filter` matches: after the event with this id, or from now on.
    ///
    /// # Errors
    ///
    /// 501 `streams_not_supported` of a process that shares its store; 503 `too_many_streams`, and
    /// [`Error::Unavailable`] while the server stops.
    pub(crate) fn changes(
        &self,
        filter: ChangeFilter,
        after: Option<&str>,
    ) -> Result<ChangeReader, Error> {
        let refused = |code, message: &str| {
            Err(Error::Conflict { code, message: message.to_owned(), holder: None })
        };
        if self.inner.shares_store() {
            let message = "this process does not see what others change: poll GET /v1/jobs";
            return refused(ErrorCode::StreamsNotSupported, message);
        }
        if *self.inner.stopping.borrow() != StopPhase::Serving {
            let (retry_after, message) = (Duration::from_secs(1), "the server is stopping".into());
            return Err(Error::Unavailable { retry_after, message });
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
        let event_id = id(run, next - 1);
        let ready = frame("ready", &event_id, &StreamReady { resumed: resumed.is_some() });
        let lost = after.is_some() && resumed.is_none();
        let skipped = || frame("skipped", &event_id, &SkippedChanges { changes: None });
        let first = if lost { [ready, skipped()].concat().into() } else { ready };
        let ignores_gaps = !filter.ids.is_empty() && after.is_none();
        let clock = Arc::clone(&self.inner.engine.ports().clock);
        Ok(ChangeReader {
            changes,
            filter,
            next,
            first: Some(first),
            ignores_gaps,
            published,
            stopping: self.inner.stopping.subscribe(),
            until: clock.machine_now() + MAX_STREAM,
            checked_at: clock.machine_now(),
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
        self.pause().await;
        let check_at = self.checked_at + MAX_UNCHECKED;
        let alive_until = self.until.min(check_at).min(self.clock.machine_now() + KEEP_ALIVE);
        loop {
            let now = self.clock.machine_now();
            if *self.stopping.borrow_and_update() != StopPhase::Serving || now >= self.until {
                return None;
            }
            self.published.borrow_and_update();
            let (frames, event_id) = {
                let log = self.changes.log.read();
                let (filter, ignores_gaps) = (&self.filter, self.ignores_gaps);
                self.has_read = log.next() > self.next;
                let (frames, next) = log.read(self.next, filter, MAX_EVENTS, ignores_gaps);
                self.next = next;
                (frames, id(log.run, next - 1))
            };
            if !frames.is_empty() {
                return Some(frames.concat().into());
            }
            if now >= alive_until {
                // The id without data is the place to resume from, and no event.
                return Some(format!(": keep-alive\nid: {event_id}\n\n").into());
            }
            self.pause().await;
            let wake_at = self.clock.at_machine_time(alive_until);
            tokio::select! {
                _ = self.published.changed() => {}
                _ = self.stopping.changed() => {}
                () = self.clock.sleep_until(wake_at) => {}
            }
        }
    }

    /// Whether its caller must be authenticated again before it gets what was read last, because
    /// [`MAX_UNCHECKED`] has passed. It counts as done.
    pub(crate) fn is_check_due(&mut self) -> bool {
        let now = self.clock.machine_now();
        let is_due = self.checked_at + MAX_UNCHECKED <= now;
        if is_due {
            self.checked_at = now;
        }
        is_due
    }

    /// Waits for as long as its share of the processor demands, if it has read since the last pause.
    async fn pause(&mut self) {
        if mem::take(&mut self.has_read) {
            let others = self.changes.readers.load(Ordering::Relaxed).saturating_sub(1);
            let pause = PAUSE_PER_READER * u32::try_from(others).unwrap_or(u32::MAX);
            let end = self.clock.machine_now() + pause;
            self.clock.sleep_until(self.clock.at_machine_time(end)).await;
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
        let mut unknown = Unknown { changes: &self.changes, count: 0 };
        for txn in &txns {
            each_write(txn, &mut |write| unknown.count += counted(write));
        }
        let noted: Option<Vec<Pending>> = self.changes.is_recording().then(|| {
            let now = self.clock.now();
            let pending = self.changes.pending.lock();
            let mut room = MAX_PENDING.saturating_sub(pending.changes.len());
            txns.iter().map(|txn| changes_of(txn, &pending, &mut room, now)).collect()
        });
        let committed = self.inner.commit(txns).await?;
        // If changes were not kept when it began, they count as skipped.
        if let Some(noted) = noted {
            unknown.count = 0;
            for (of_txn, outcome) in noted.into_iter().zip(&committed) {
                if let Committed::All = outcome {
                    self.changes.add_all(of_txn.changes, of_txn.skipped);
                }
            }
        }
        Ok(committed)
    }
}

/// The changes of a commit whose outcome is not known: its caller has left, the store did not
/// answer, or it began before changes were kept. They may have happened, so they count as skipped.
struct Unknown<'a> {
    changes: &'a Changes,
    count: u64,
}

impl Drop for Unknown<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.changes.add_all(Vec::new(), self.count);
        }
    }
}

/// How many changes a write makes.
fn counted(write: &Write) -> u64 {
    let is_change = match write {
        Write::AddJob(_) | Write::SetJob { .. } | Write::RemoveJob { .. } => true,
        Write::SetItem { kind, .. } => {
            matches!(kind, ItemKind::Queue | ItemKind::Type | ItemKind::Drain)
        }
        _ => false,
    };
    u64::from(is_change)
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
            changes.skipped += counted(write);
        } else if let Some(change) = change_of(write, now) {
            *room = room.saturating_sub(1);
            let skipped = mem::take(&mut changes.skipped);
            changes.changes.push((skipped, change));
        }
    });
    changes
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
                    let drain = bytes.as_ref().and_then(|bytes| serde_json::from_slice(bytes).ok());
                    let change = match (version, drain) {
                        (None, _) => "undrained",
                        (Some(_), Some(Drain::Stopping { .. })) => "stopping",
                        (Some(_), _) => "draining",
                    };
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
    JobChange {
        id: job.id.clone(),
        r#type: job.spec.job_type.clone(),
        queue: job.spec.queue.clone(),
        state: word(&life.state).into(),
        phase: Phase::of(life, now).as_str().into(),
        attempt: life.attempt,
        revision: life.revision.0,
        at: now,
        run_at: job.is_scheduled().then(|| job.run_at()),
        worker: running.and_then(|running| running.worker.clone()),
        progress: running.and_then(|running| running.progress.clone()).map(shortened),
        error_reason: life.error.as_ref().map(|error| error.reason),
    }
}

/// A progress without a note that is too long for an event.
fn shortened(progress: Progress) -> Progress {
    let note = progress.note.filter(|note| note.len() <= MAX_NOTE_BYTES);
    Progress { note, ..progress }
}

#[cfg(test)]
mod tests;
