//! The layer of the store that sees what is committed.

use std::{mem, sync::Arc};

use super::{Change, Changes, MAX_PENDING, Pending};
use tidegate_api::{JobChange, JobTypeChange, QueueChange, RemovedJob, WorkerChange};
use tidegate_core::{
    job::{
        Job, Phase,
        lifecycle::{Progress, word},
    },
    port::{
        Clock, Committed, JobStore, StoreError, StoreLayer, Txn, Write,
        job_store::{ItemKind, SharedStore, each_write},
    },
    time::Timestamp,
};
use tidegate_engine::config::drain::Drain;

/// Most bytes of the note of a progress in an event.
const MAX_NOTE_BYTES: usize = 200;

/// A store whose commits are changes.
pub(in crate::runtime) struct WatchedStore {
    inner: SharedStore,
    changes: Arc<Changes>,
    clock: Arc<dyn Clock>,
}

impl WatchedStore {
    pub(in crate::runtime) fn new(
        inner: SharedStore,
        changes: Arc<Changes>,
        clock: Arc<dyn Clock>,
    ) -> Self {
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
pub(super) fn job_change(job: &Job, now: Timestamp) -> JobChange<'static> {
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
