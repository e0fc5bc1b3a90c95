//! What a changed or removed job leaves behind: its body, its keys and the location of its id.
//!
//! **A removed job is hidden before what it leaves behind is deleted.** A process that dies in between
//! leaves a hidden row and its timer, by which a sweep deletes the rest.

use std::time::Duration;

use crate::dynamodb::{
    DynamoStore,
    entry::EntryRequest,
    retention::{Leftovers, MAX_REQUEST},
    row::{self, BodyAt},
    table::{Change, Item, Name, Val},
};
use tidegate_core::{
    job::{Body, JobId, Revision},
    port::{StoreError, job_store::Write},
    time::Timestamp,
};

/// Whether the row of the job must be read to know what `write` leaves behind.
pub(super) fn needs_cleanup(write: &Write) -> bool {
    matches!(write, Write::RemoveJob { .. } | Write::SetJob { all: true, .. })
}

/// The deletions of the parts of a body that `write` replaces. `item` is the job's row before it.
pub(super) fn replaced_parts(write: &Write, item: &Item) -> Vec<Change> {
    match (write, BodyAt::read(item)) {
        (Write::SetJob { job, .. }, Some(old)) if !matches!(job.data, Body::Separate(_)) => {
            old.deletions(&job.id)
        }
        _ => Vec::new(),
    }
}

/// The removal of a job that leaves something behind, or whose row is hidden.
pub(super) struct Removal {
    /// The change of the row, without a mark if it hides the row.
    pub change: Change,
    /// Written before it.
    pub timer: Option<EntryRequest>,
    pub before: Vec<Change>,
    /// Written after it.
    pub after: Vec<Change>,
    /// Whether the row is deleted after all that.
    pub is_last: bool,
}

impl DynamoStore {
    /// The removals of the jobs of these rows, each at the revision that its writer read. None for
    /// a row that can be deleted as it is.
    pub(super) async fn removals(
        &self,
        rows: &[(&JobId, Revision, &Item)],
    ) -> Result<Vec<Option<Removal>>, StoreError> {
        let jobs: Vec<(&JobId, &Item)> = rows.iter().map(|(id, _, row)| (*id, *row)).collect();
        let left = if jobs.is_empty() { Vec::new() } else { self.leftovers(&jobs).await? };
        let now = self.now();
        let removal = |((id, was, row), left)| removal(id, was, row, left, now);
        Ok(rows.iter().copied().zip(left).map(removal).collect())
    }
}

fn removal(
    id: &JobId,
    was: Revision,
    row: &Item,
    left: Leftovers,
    now: Timestamp,
) -> Option<Removal> {
    let of = |name: Name| Some((name, row.attrs.get(&name)?.clone()));
    let when = of(row::MARK).or_else(|| of(row::REVISION))?;
    let key = row.key.clone();
    let removal = |change| Removal {
        change,
        timer: None,
        before: Vec::new(),
        after: Vec::new(),
        is_last: false,
    };
    if row::is_over(row, now) {
        let before = left.items.into_iter().chain(left.location).collect();
        return Some(Removal { before, ..removal(Change::Delete { key, when: Some(when) }) });
    }
    if left.is_empty() || row.number(row::REVISION) != Some(was.0) {
        return None;
    }
    // No other writer that read the job at this revision succeeds after this.
    let revision = (row::REVISION, Val::N(was.0 + 1));
    let seconds = now.millis().max(0) as u64 / 1000;
    let set = row::hidden(seconds).into_iter().chain([revision]).collect();
    // A request for a new job under the id may be under way, so a sweep removes its location.
    let waits = left.location.is_some() || left.is_reused;
    let wait = if waits { MAX_REQUEST + Duration::from_secs(1) } else { Duration::ZERO };
    Some(Removal {
        timer: Some(EntryRequest::timer(id, was.0, now + wait)),
        after: left.items,
        is_last: !waits,
        ..removal(Change::Update { key, set, remove: Vec::new(), when })
    })
}
