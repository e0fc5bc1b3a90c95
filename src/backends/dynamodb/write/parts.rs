//! What a write of the port refers to.

use crate::dynamodb::key::{self, Key};
use tidegate_core::{
    job::{Job, JobId},
    port::job_store::{self, Record, Txn, Write},
};

/// The single writes of `write`.
pub(super) fn single_writes(write: &Write) -> Vec<&Write> {
    match write {
        Write::Together(writes) => writes.iter().collect(),
        write => vec![write],
    }
}

/// The job that `write` adds.
pub(super) fn added_job(write: &Write) -> Option<&Job> {
    match write {
        Write::AddJob(job) => Some(job),
        _ => None,
    }
}

/// The job that `write` adds, replaces or removes.
pub(super) fn job_of(write: &Write) -> Option<&JobId> {
    match write {
        Write::AddJob(job) | Write::SetJob { job, .. } => Some(&job.id),
        Write::RemoveJob { id, .. } => Some(id),
        _ => None,
    }
}

/// The job that `write` stores, and whether with its spec and data.
pub(super) fn stored_job(write: &Write) -> Option<(&Job, bool)> {
    match write {
        Write::AddJob(job) => Some((job, true)),
        Write::SetJob { job, all, .. } => Some((job, *all)),
        _ => None,
    }
}

/// The item that `write` needs to read before it is decided.
pub(super) fn key_read_by(write: &Write) -> Option<Key> {
    match write {
        Write::RequireItem { kind, name, .. } => Some(key::item(*kind, name)),
        Write::SetItem { kind, name, was: 0, bytes: None, .. } => Some(key::item(*kind, name)),
        _ => None,
    }
}

/// The records that `write` changes: two writes of the same record are never in flight together.
pub(super) fn keys_of(write: &Write) -> Vec<Key> {
    match write {
        Write::AddJob(Job { id, .. })
        | Write::SetJob { job: Job { id, .. }, .. }
        | Write::RemoveJob { id, .. } => vec![key::id(id)],
        Write::SetKey { key, .. } => vec![key::name(key)],
        Write::AddBatch(queue, batch) => vec![key::batch(queue, batch.id)],
        Write::RemoveBatch(queue, id) => vec![key::batch(queue, *id)],
        Write::SetLedger { queue, .. } => vec![key::ledger(queue)],
        Write::SetItem { kind, name, .. } => vec![key::item(*kind, name)],
        Write::PutRecord(Record { kind, name, .. })
        | Write::SwapRecord { record: Record { kind, name, .. }, .. }
        | Write::RemoveRecord { kind, name, .. } => {
            vec![key::record(*kind, name)]
        }
        Write::RequireItem { .. } | Write::TakeRequest(_) => Vec::new(),
        Write::Together(writes) => writes.iter().flat_map(keys_of).collect(),
    }
}

/// The idempotency keys that a transaction sets. The row of the job that it adds stores them, so
/// that they are removed with the job.
pub(super) fn idempotency_keys(txn: &Txn) -> Vec<String> {
    let key = |write: &Write| match write {
        Write::SetKey { key: job_store::Key::Idempotency(key), .. } => Some(key.clone()),
        _ => None,
    };
    txn.iter().filter_map(key).collect()
}
