//! A single write as a change of one item.

use crate::dynamodb::{
    batch::encode_batch,
    key::{self, JobLocation, Key},
    record,
    row::{self, DataAt},
    table::{Change, Item, Name, Val},
};
use tidegate_core::{
    job::{Job, JobId, Revision},
    port::{
        StoreError,
        job_store::{Expect, Write},
    },
    time::Timestamp,
};

/// The change that one write is. `locations` has one location for each job.
pub(super) fn change<'a>(
    write: &Write,
    mut locations: impl Iterator<Item = &'a JobLocation>,
    idempotency_keys: &[String],
    mark: u64,
    now: Timestamp,
) -> Result<Change, StoreError> {
    let mut row_of =
        |id: &JobId| locations.next().expect("every job has a location").row(key::parts(id).0);
    let unconditional = |key| Change::Delete { key, when: None };
    Ok(match write {
        Write::AddJob(job) => {
            Change::Insert(row::row(job, row_of(&job.id), idempotency_keys, mark)?.0)
        }
        Write::SetJob { job, was, all } => {
            set_job(row_of(&job.id), job, *was, all.then_some(mark))?
        }
        Write::RemoveJob { id, was } => {
            Change::Delete { key: row_of(id), when: Some((row::REVISION, Val::N(was.0))) }
        }
        Write::SetKey { key, job, was } => {
            let since = (row::SINCE, Val::N(now.millis().max(0) as u64));
            let set = vec![(row::TARGET, Val::S(job.to_string())), since];
            set_if(
                key::name(key),
                set,
                match was {
                    Expect::Absent => None,
                    Expect::Is(was) => Some((row::TARGET, Val::S(was.to_string()))),
                },
            )
        }
        Write::AddBatch(queue, batch) => {
            Change::Put(encode_batch(key::batch(queue, batch.id), batch)?)
        }
        Write::RemoveBatch(queue, id) => unconditional(key::batch(queue, *id)),
        Write::SetLedger { queue, ledger, was } => {
            let item = row::encode_ledger(key::ledger(queue), ledger)?;
            set_if(
                item.key,
                item.attrs.into_iter().collect(),
                match was {
                    Expect::Absent => None,
                    Expect::Is(was) => Some((row::VERSION, Val::N(*was))),
                },
            )
        }
        Write::PutRecord(record) => Change::Put(record::Parts::of(record).item),
        Write::SwapRecord { record, was } => {
            let item = record::Parts::of(record).item;
            match was {
                Expect::Absent => Change::Insert(item),
                Expect::Is(was) => record::replacement(item, &record::Parts::of(was).item),
            }
        }
        Write::RemoveRecord { kind, name, until } => {
            Change::Delete { key: key::record(*kind, name), when: until.map(record::until) }
        }
        Write::TakeRequest(_) => return Err(StoreError::corrupt("this store has no inbox")),
        Write::RequireItem { .. } | Write::SetItem { .. } | Write::Together(_) => {
            return Err(StoreError::corrupt("this write cannot be part of an atomic group"));
        }
    })
}

/// Replaces the lifecycle of `job`; with the `mark` of the write also its spec and data.
fn set_job(key: Key, job: &Job, was: Revision, mark: Option<u64>) -> Result<Change, StoreError> {
    let mut set = row::life(job)?;
    let mut remove = Vec::new();
    if let Some(mark) = mark {
        let data = DataAt::of(job, mark);
        set.push(row::spec(job)?);
        set.extend(data.set);
        remove = data.remove;
    }
    Ok(Change::Update { key, set, remove, when: (row::REVISION, Val::N(was.0)) })
}

/// Sets attributes if one of them has the value `was`, or inserts the item without one.
fn set_if(key: Key, set: Vec<(Name, Val)>, was: Option<(Name, Val)>) -> Change {
    match was {
        None => Change::Insert(Item::new(key, set)),
        Some(when) => Change::Update { key, set, remove: Vec::new(), when },
    }
}
