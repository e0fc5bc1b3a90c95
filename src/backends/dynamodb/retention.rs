//! What an ended job leaves behind, and when a sweep removes it.
//!
//! The table expires the row of an ended job. Objects, parts of a body, keys and the location of a
//! client's id are other items, and have no expiry: while the job lives, its end is not known. A job
//! that leaves one of them gets a timer with its end. Its row stays until the timer was handled, but
//! readers hide it from the end of the retention on.
//!
//! **What an id or a key leads to may have been written by a request for a new job.** So an item is
//! deleted only with the mark that was read, and only if it is older than any request that may
//! still be under way.

use std::time::Duration;

use super::{
    DynamoStore, MAX_IN_FLIGHT_WRITE,
    key::{self, JobLocation, Key},
    row::{self, BodyAt},
    table::{Change, Item, Val},
};
use tidegate_core::{
    job::{Body, Job, JobId, Spec},
    port::{
        StoreError,
        job_store::{self, is_stored_separately},
    },
    time::Timestamp,
};

/// How long a hidden row stays in the table, if no sweep handles its timer.
pub(super) const ROW_GRACE: Duration = Duration::from_hours(30 * 24);
/// How long a request that wrote an id or a key may be under way. The factor covers clocks that
/// differ by less than the longest write.
pub(super) const MAX_REQUEST: Duration = Duration::from_secs(2 * MAX_IN_FLIGHT_WRITE.as_secs());

/// Whether the end of `job` leaves items or objects that do not expire with its row.
pub(super) fn leaves_something(job: &Job) -> bool {
    let is_in_row = matches!(job.data, Body::Inline(_)) && !is_stored_separately(&job.data);
    !is_in_row || names_object(job) || has_names(job)
}

/// Whether the body or the result of `job` is an object.
pub(super) fn names_object(job: &Job) -> bool {
    job.object_keys().next().is_some()
}

/// Whether a key, or the location of a client's id, may lead to `job`.
fn has_names(job: &Job) -> bool {
    is_clients(&job.id)
        || job.spec.request_digest != Spec::NO_DIGEST
        || job.spec.correlation_key.is_some()
        || job.spec.unique.is_some()
}

/// Whether a client chose `id`.
pub(super) fn is_clients(id: &JobId) -> bool {
    key::parts(id).1.is_none()
}

/// When a sweep must look at an ended job; none if its row is all that is left.
pub(super) fn sweep_at(job: &Job) -> Option<Timestamp> {
    let over = job.life.kept_until(&job.spec)?;
    // Until then, what the names lead to may be younger than the job.
    let removed = if has_names(job) { over + MAX_REQUEST } else { over };
    let removed = leaves_something(job).then_some(removed);
    let has_object = job.life.result.as_ref().is_some_and(|result| result.object.is_some());
    let result = job.life.result_until(&job.spec).filter(|until| has_object && *until < over);
    result.into_iter().chain(removed).min()
}

/// Deletions, in an order in which any crash may cut them: the location of an id leads to the row of
/// its job, and the row to everything else. So locations go after that, and rows last.
#[derive(Default)]
pub(super) struct Deletions {
    items: Vec<Change>,
    locations: Vec<Change>,
    rows: Vec<Change>,
}

impl Extend<Change> for Deletions {
    fn extend<T: IntoIterator<Item = Change>>(&mut self, changes: T) {
        for change in changes {
            let key = change.key();
            if key.is_row() {
                self.rows.push(change);
            } else if key.is_location() {
                self.locations.push(change);
            } else {
                self.items.push(change);
            }
        }
    }
}

impl DynamoStore {
    /// Makes `deletions`.
    pub(super) async fn delete(&self, deletions: Deletions) -> Result<(), StoreError> {
        let Deletions { items, locations, rows } = deletions;
        for changes in [items, locations, rows].into_iter().filter(|changes| !changes.is_empty()) {
            self.table.write(&changes).await?;
        }
        Ok(())
    }
}

/// What a job leaves behind.
#[derive(Default)]
pub(super) struct Leftovers {
    /// The deletions of its keys and of the parts of its body.
    pub items: Vec<Change>,
    /// The deletion of the location of its client's id.
    pub location: Option<Change>,
    /// Whether a request for a new job under its id may be under way.
    pub is_reused: bool,
}

impl Leftovers {
    /// Whether there is nothing to delete, now or later.
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.location.is_none() && !self.is_reused
    }
}

/// The keys that may lead to the job of `row`: an enqueue sets no others.
pub(super) fn possible_keys(row: &Item) -> Vec<job_store::Key> {
    use job_store::Key as K;
    let idempotency = row.text(row::KEYS).into_iter().flat_map(str::lines);
    let mut keys: Vec<K> = idempotency.map(|key| K::Idempotency(key.to_owned())).collect();
    // The keys of a job that cannot be read stay: nothing names them.
    if let Ok(job) = row::job(row) {
        let of_type = |key: &String| K::Correlation(job.spec.job_type.clone(), key.clone());
        keys.extend(job.spec.correlation_key.iter().map(of_type));
        let unique = job.spec.unique.iter();
        keys.extend(unique.map(|unique| K::Unique(job.spec.job_type.clone(), unique.key.clone())));
    }
    keys
}

/// The items that lead to the job of `row`.
fn names(id: &JobId, row: &Item) -> Vec<Key> {
    let location = is_clients(id).then(|| key::id(id));
    possible_keys(row).iter().map(key::name).chain(location).collect()
}

impl DynamoStore {
    /// What the jobs of these rows leave behind, in their order.
    pub(super) async fn leftovers(
        &self,
        rows: &[(&JobId, &Item)],
    ) -> Result<Vec<Leftovers>, StoreError> {
        let names: Vec<Vec<Key>> = rows.iter().map(|(id, row)| names(id, row)).collect();
        let all: Vec<Key> = names.concat();
        let found = if all.is_empty() { Vec::new() } else { self.table.get(&all).await? };
        let (mut found, now) = (found.into_iter(), self.now());
        let left = rows.iter().zip(names).map(|((id, row), names)| {
            let mut left = Leftovers::default();
            let items: Vec<Item> = found.by_ref().take(names.len()).flatten().collect();
            let is_elsewhere = |item: &Item| item.key.is_location() && !leads_to(item, id, row);
            // What the id and the keys lead to is then that job's own.
            let has_other_job = items.iter().any(is_elsewhere);
            for item in items.into_iter().filter(|_| !has_other_job) {
                left.add_name(id, row, item, now);
            }
            let parts = BodyAt::read(row).map(|body| body.deletions(id));
            left.items.extend(parts.unwrap_or_default());
            left
        });
        Ok(left.collect())
    }
}

impl Leftovers {
    /// Adds the deletion of `item`, which may lead to job `id` of `row`.
    fn add_name(&mut self, id: &JobId, row: &Item, item: Item, now: Timestamp) {
        if !leads_to(&item, id, row) {
            return;
        }
        let is_location = item.key.is_location();
        let since = Timestamp::from_millis(item.number(row::SINCE).unwrap_or(0) as i64);
        let is_young = since + MAX_REQUEST > now;
        let mark = item.attrs.get(&row::MARK).map(|mark| (row::MARK, mark.clone()));
        if !is_location {
            // No request under another id sets a key while its job is not over.
            if !is_young || !row::is_over(row, now) {
                let when = mark.unwrap_or_else(|| (row::TARGET, Val::S(id.to_string())));
                self.items.push(Change::Delete { key: item.key, when: Some(when) });
            }
        } else if let Some(mark) = mark {
            // Earlier releases wrote none; such a location stays.
            if is_young {
                self.is_reused = true;
            } else {
                self.location = Some(Change::Delete { key: item.key, when: Some(mark) });
            }
        }
    }
}

/// Whether `item`, a key or a location, leads to job `id` of `row`.
fn leads_to(item: &Item, id: &JobId, row: &Item) -> bool {
    if !item.key.is_location() {
        return item.text(row::TARGET) == Some(id.as_str());
    }
    let location = item.text(row::LOCATION).and_then(JobLocation::parse);
    location.is_some_and(|location| row.key == location.row(key::parts(id).0))
}
