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
    key::{self, Key},
    row::{self, BodyAt},
    table::{Change, Item, Val},
};
use tidegate_core::{
    job::{Body, Job, JobId, State},
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

/// The digest of a request without an id and without an idempotency key.
const NO_DIGEST: [u8; 16] = [0; 16];

/// Whether the end of `job` leaves items or objects that do not expire with its row.
pub(super) fn leaves_something(job: &Job) -> bool {
    let is_in_row = matches!(job.data, Body::Inline(_)) && !is_stored_separately(&job.data);
    !is_in_row || names_object(job) || has_names(job)
}

/// Whether the body or the result of `job` is an object.
pub(super) fn names_object(job: &Job) -> bool {
    let result = job.life.result.as_ref();
    matches!(job.data, Body::Object { .. }) || result.is_some_and(|result| result.object.is_some())
}

/// Whether a key, or the location of a client's id, may lead to `job`.
fn has_names(job: &Job) -> bool {
    is_clients(&job.id)
        || job.spec.request_digest != NO_DIGEST
        || job.spec.correlation_key.is_some()
        || job.spec.unique.is_some()
}

/// Whether a client chose `id`.
pub(super) fn is_clients(id: &JobId) -> bool {
    key::parts(id).1.is_none()
}

/// When a sweep must look at an ended job; none if its row is all that is left.
pub(super) fn sweep_at(job: &Job) -> Option<Timestamp> {
    let State::Ended { at, .. } = job.life.state else { return None };
    let over = at + job.spec.retention.duration();
    // Until then, what the names lead to may be younger than the job.
    let removed = if has_names(job) { over + MAX_REQUEST } else { over };
    let removed = leaves_something(job).then_some(removed);
    let has_object = job.life.result.as_ref().is_some_and(|result| result.object.is_some());
    let result = job.life.result_until(&job.spec).filter(|until| has_object && *until < over);
    result.into_iter().chain(removed).min()
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

/// The items that lead to the job of `row`.
fn names(id: &JobId, row: &Item) -> Vec<Key> {
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
    let location = is_clients(id).then(|| key::id(id));
    keys.iter().map(key::name).chain(location).collect()
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
            for item in found.by_ref().take(names.len()).flatten() {
                left.add_name(id, row, item, now);
            }
            let parts = BodyAt::read(row).map(|body| body.keys(id)).unwrap_or_default();
            left.items.extend(parts.into_iter().map(|key| Change::Delete { key, when: None }));
            left
        });
        Ok(left.collect())
    }
}

impl Leftovers {
    /// Adds the deletion of `item`, which may lead to job `id` of `row`.
    fn add_name(&mut self, id: &JobId, row: &Item, item: Item, now: Timestamp) {
        let is_location = item.key == key::id(id);
        let leads_here = if is_location {
            item.text(row::LOCATION).is_some_and(|text| row.key == location_key(id, text))
        } else {
            item.text(row::TARGET) == Some(id.as_str())
        };
        if !leads_here {
            return;
        }
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

/// The key of the row of `id` at the location in `text`.
fn location_key(id: &JobId, text: &str) -> Key {
    let location = key::JobLocation::parse(text);
    location.map_or_else(|| key::id(id), |location| location.row(key::parts(id).0))
}
