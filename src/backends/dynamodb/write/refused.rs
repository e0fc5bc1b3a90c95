//! Refused writes: whether they have succeeded all the same, and what they conflict with.

use super::{
    Effect, PlannedWrite,
    parts::{single_writes, stored_job},
};
use crate::dynamodb::{
    DynamoStore,
    key::Key,
    record,
    row::{self, BodyAt},
    table::{Change, Item, Val},
};
use tidegate_core::{
    job::{Job, JobId},
    port::{
        StoreError,
        job_store::{CurrentRecord, Expect, Write},
    },
    time::Timestamp,
};

/// The meaning of a refusal.
enum Refusal {
    /// The write has succeeded before, or has nothing to do.
    Done,
    /// Only hidden items are in the way: the changes replace them.
    Replace { changes: Vec<Change>, hidden: Vec<Item> },
    /// A conflict with this record, and the job that an insert found.
    Conflict(CurrentRecord, Option<Box<Job>>),
}

impl DynamoStore {
    /// Reads the current records of refused writes and corrects their outcomes. For each write: the
    /// job that it found instead of inserting one.
    pub(super) async fn resolve_refused(
        &self,
        plan: &[PlannedWrite<'_>],
        outcomes: &mut [Result<(), CurrentRecord>],
    ) -> Result<Vec<Option<Job>>, StoreError> {
        let mut jobs: Vec<Option<Job>> = plan.iter().map(|_| None).collect();
        let refused: Vec<(usize, &[Change])> = (0..plan.len())
            .filter(|index| outcomes[*index].is_err())
            .filter_map(|index| match &plan[index].effect {
                Effect::Changes(changes) => Some((index, &changes[..])),
                Effect::Decided(_) => None,
            })
            .collect();
        if refused.is_empty() {
            return Ok(jobs);
        }
        let keys: Vec<Key> = refused
            .iter()
            .flat_map(|(_, changes)| changes.iter().map(|change| change.key().clone()))
            .collect();
        let mut items = self.table.get(&keys).await?.into_iter();
        let now = self.now();
        let mut replacements: Vec<(usize, Vec<Change>, Vec<Item>)> = Vec::new();
        let mut refused_parts = Vec::new();
        for (index, changes) in refused {
            let current: Vec<Option<Item>> = items.by_ref().take(changes.len()).collect();
            let unused = unused_parts(&plan[index], &current);
            match refusal(plan[index].write, changes, current, now) {
                Refusal::Done => outcomes[index] = Ok(()),
                Refusal::Replace { changes, hidden } => {
                    replacements.push((index, changes, hidden));
                }
                Refusal::Conflict(record, job) => {
                    refused_parts.extend(unused);
                    self.forget_locations_of(plan[index].write);
                    outcomes[index] = Err(record);
                    jobs[index] = job.map(|job| *job);
                }
            }
        }
        if !refused_parts.is_empty() {
            self.table.write(&refused_parts).await?;
        }
        for (index, changes, hidden) in replacements {
            self.forget_replaced(&hidden).await?;
            self.replace_hidden(&changes).await?;
            outcomes[index] = Ok(());
        }
        Ok(jobs)
    }

    /// Deletes the keys and the parts of the bodies of the jobs in `rows`, which another job
    /// replaces. The location of its id stays.
    async fn forget_replaced(&self, rows: &[Item]) -> Result<(), StoreError> {
        let id = |row: &Item| row::job(row).ok().map(|job| job.id);
        let rows: Vec<(JobId, &Item)> =
            rows.iter().filter_map(|row| Some((id(row)?, row))).collect();
        let rows: Vec<(&JobId, &Item)> = rows.iter().map(|(id, row)| (id, *row)).collect();
        let left = self.leftovers(&rows).await?;
        let changes: Vec<Change> = left.into_iter().flat_map(|left| left.items).collect();
        if changes.is_empty() { Ok(()) } else { self.table.write(&changes).await.map(drop) }
    }

    /// Reads the locations of the jobs that `write` could not change again when they are needed: a
    /// known one may be that of an earlier job under the same id.
    fn forget_locations_of(&self, write: &Write) {
        for write in single_writes(write) {
            if let Write::SetJob { job: Job { id, .. }, .. } | Write::RemoveJob { id, .. } = write {
                self.forget_location(id);
            }
        }
    }

    async fn replace_hidden(&self, changes: &[Change]) -> Result<(), StoreError> {
        let done = if changes.len() == 1 {
            self.table.write(changes).await? == [true]
        } else {
            self.table.together(changes).await?
        };
        if done {
            Ok(())
        } else {
            Err(StoreError::unavailable("a hidden job was removed at the same moment"))
        }
    }
}

/// The deletions of the parts of bodies that `planned` has stored, except those that a row names.
fn unused_parts(planned: &PlannedWrite<'_>, current: &[Option<Item>]) -> Vec<Change> {
    let named: Vec<BodyAt> = current.iter().flatten().filter_map(BodyAt::read).collect();
    let stored = single_writes(planned.write).into_iter().filter_map(stored_job);
    let whole = stored.filter(|(_, all)| *all);
    let parts = whole.filter_map(|(job, _)| Some((&job.id, BodyAt::of(job, planned.mark)?)));
    let unused = parts.filter(|(_, body)| !named.contains(body));
    unused.flat_map(|(id, body)| body.deletions(id)).collect()
}

/// The meaning of the refusal of `changes`, whose items are `current`.
fn refusal(
    write: &Write,
    changes: &[Change],
    current: Vec<Option<Item>>,
    now: Timestamp,
) -> Refusal {
    // Another record has replaced it, which stays. That is no conflict.
    if matches!(write, Write::RemoveRecord { .. }) {
        return Refusal::Done;
    }
    // A damaged record is absent for its readers.
    if let (Write::SwapRecord { record, was: Expect::Absent }, [Change::Insert(new)], [Some(old)]) =
        (write, changes, &current[..])
        && record::is_damaged(record.kind, old)
    {
        let changes = vec![record::replacement(new.clone(), old)];
        return Refusal::Replace { changes, hidden: Vec::new() };
    }
    let is_expired = |item: &Item| row::is_over(item, now);
    let (expired, live): (Vec<Option<Item>>, Vec<Option<Item>>) = current
        .into_iter()
        .map(|item| if item.as_ref().is_some_and(is_expired) { (item, None) } else { (None, item) })
        .unzip();
    // A removed job may have been removed by this write or by another one: the two look the same.
    let has_succeeded = changes
        .iter()
        .zip(live.iter().zip(&expired))
        .filter(|(change, _)| change.is_conditional())
        .all(|(change, (live, expired))| match change {
            Change::Delete { .. } => is_ours(change, live.as_ref()),
            // The change that hides a removed job has a mark too.
            _ => is_ours(change, live.as_ref().or(expired.as_ref())),
        });
    if has_succeeded {
        return Refusal::Done;
    }
    // A hidden item may stay in the table for days, which must not block a write.
    let holds = |(change, live): (&Change, &Option<Item>)| change.holds(live.as_ref());
    if expired.iter().any(Option::is_some) && changes.iter().zip(&live).all(holds) {
        let replace = |(change, old): (&Change, &Option<Item>)| replacement(change, old.as_ref());
        let changes = changes.iter().zip(&expired).map(replace).collect();
        let hidden = expired.into_iter().flatten().filter(|item| item.key.is_row()).collect();
        return Refusal::Replace { changes, hidden };
    }
    let blocked = changes
        .iter()
        .zip(&live)
        .find(|(change, live)| !change.holds(live.as_ref()) && !is_ours(change, live.as_ref()));
    let (change, item) = blocked.unwrap_or((&changes[0], &live[0]));
    conflict(write, change, item.as_ref(), now)
}

/// The conflict of `write` with `item`, which refused `change`.
fn conflict(write: &Write, change: &Change, item: Option<&Item>, now: Timestamp) -> Refusal {
    let Some(item) = item else {
        return Refusal::Conflict(CurrentRecord::Nothing, None);
    };
    let record = match write {
        Write::SetKey { key, .. } => {
            let since = Timestamp::from_millis(item.number(row::SINCE).unwrap_or(0) as i64);
            match row::holder(item, key) {
                Ok(job) => CurrentRecord::Key { job, since: Some(since) },
                Err(unreadable) => CurrentRecord::Unreadable(unreadable),
            }
        }
        Write::SetLedger { .. } | Write::SetItem { .. } => {
            CurrentRecord::Version(item.number(row::VERSION).unwrap_or(0))
        }
        Write::SwapRecord { .. } => CurrentRecord::Record,
        _ => {
            let job = match row::stored(item, now) {
                Ok(job) => Box::new(job),
                Err(unreadable) => {
                    return Refusal::Conflict(CurrentRecord::Unreadable(unreadable), None);
                }
            };
            let found = matches!(change, Change::Insert(_)).then(|| job.clone());
            return Refusal::Conflict(CurrentRecord::Job(job), found);
        }
    };
    Refusal::Conflict(record, None)
}

/// Whether `change` has happened and its answer was lost: `current` has its mark.
///
/// For a missing item that is unknown, and a conditional delete counts as its own.
fn is_ours(change: &Change, current: Option<&Item>) -> bool {
    let is_marked = |mark: Option<&Val>| {
        mark.is_some() && current.and_then(|item| item.attrs.get(&row::MARK)) == mark
    };
    match change {
        Change::Insert(item) => is_marked(item.attrs.get(&row::MARK)),
        Change::Update { set, .. } => {
            is_marked(set.iter().find(|(name, _)| *name == row::MARK).map(|(_, mark)| mark))
        }
        Change::Delete { when: Some(_), .. } => current.is_none(),
        Change::Put(_) | Change::Delete { when: None, .. } => true,
    }
}

/// `change`, or the replacement of the hidden row `old` if it has not changed since.
fn replacement(change: &Change, old: Option<&Item>) -> Change {
    let is_unchanged = |item: &Item| {
        let of = |name| Some((name, item.attrs.get(&name)?.clone()));
        of(row::MARK).or_else(|| of(row::REVISION))
    };
    match (change, old.and_then(|item| Some((item, is_unchanged(item)?)))) {
        (Change::Insert(new), Some((old, when))) => Change::Update {
            key: new.key.clone(),
            set: new.attrs.iter().map(|(name, value)| (*name, value.clone())).collect(),
            remove: old
                .attrs
                .keys()
                .filter(|name| !new.attrs.contains_key(name))
                .copied()
                .collect(),
            when,
        },
        _ => change.clone(),
    }
}
