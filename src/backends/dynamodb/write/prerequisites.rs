//! What is written before the jobs of a wave: index entries, timers, bucket registrations, bodies
//! and the parts of records.

use super::{
    Effect, PlannedWrite,
    parts::{job_of, single_writes, stored_job},
};
use crate::dynamodb::{
    DynamoStore,
    entry::{self, EntryRequest, MAX_ENTRY_DELAY},
    key::JobLocation,
    record,
    retention::Deletions,
    row::DataAt,
    table::{Change, Item},
    upkeep,
};
use tidegate_core::{
    job::{Body, Job, State},
    port::{StoreError, job_store::Write},
    time::Timestamp,
};

/// The items to write before the jobs.
#[derive(Default)]
struct Prerequisites {
    entries: Vec<EntryRequest>,
    buckets: Vec<Item>,
    /// Registrations of buckets that do not expire.
    listings: Vec<Item>,
    bodies: Vec<Change>,
    /// What the removed jobs of hidden rows leave behind.
    deleted: Deletions,
}

impl DynamoStore {
    /// Writes what must exist before the jobs of `plan` do.
    pub(super) async fn write_prerequisites(
        &self,
        plan: &[PlannedWrite<'_>],
    ) -> Result<(), StoreError> {
        let mut needed = Prerequisites::default();
        let now = self.now();
        for planned in plan.iter().filter(|one| matches!(one.effect, Effect::Changes(_))) {
            for removal in &planned.removals {
                needed.entries.extend(removal.timer.clone());
                needed.deleted.extend(removal.before.iter().cloned());
            }
            let mut locations = planned.locations.iter();
            for write in single_writes(planned.write) {
                if let Write::PutRecord(record) | Write::SwapRecord { record, .. } = write {
                    self.note_group(record);
                    let parts = record::Parts::of(record).before;
                    needed.bodies.extend(parts.into_iter().map(Change::Put));
                }
                let location = job_of(write).and_then(|_| locations.next());
                let (Some((job, all)), Some(location)) = (stored_job(write), location) else {
                    continue;
                };
                let is_new = matches!(write, Write::AddJob(_));
                self.index(job, location, is_new, now, &mut needed);
                let is_listed_late = is_new && upkeep::is_listed_late(location, now);
                if is_listed_late || upkeep::is_listed_long(job, location) {
                    needed.listings.push(upkeep::lasting_listing(&job.spec.queue, location));
                }
                let timer = entry::timer_of(job, all, now);
                let revision = job.life.revision.0;
                needed.entries.extend(timer.map(|at| EntryRequest::timer(&job.id, revision, at)));
                if all && matches!(job.data, Body::Inline(_)) {
                    let parts = DataAt::of(job, planned.mark).parts;
                    needed.bodies.extend(parts.into_iter().map(Change::Put));
                }
            }
        }
        self.register(needed.buckets).await?;
        self.keep_listed(needed.listings).await?;
        self.announce(needed.entries).await?;
        if !needed.bodies.is_empty() {
            self.table.write(&needed.bodies).await?;
        }
        self.delete(needed.deleted).await
    }

    /// Adds the entry of `job`, whose row lies at `location`, and the registrations of its buckets.
    fn index(
        &self,
        job: &Job,
        location: &JobLocation,
        is_new: bool,
        now: Timestamp,
        needed: &mut Prerequisites,
    ) {
        let State::Scheduled { run_at, .. } = job.life.state else {
            if is_new {
                needed.buckets.extend(self.home_buckets(job, location, None));
                // A claim leaves the entry at which the job was due. A job that is moved from another
                // store while it runs has none here.
                let runs = job.life.running().is_some();
                needed.entries.extend(runs.then(|| self.due_entry(job, now)));
            }
            return;
        };
        let due = self.due_entry(job, run_at);
        let index_partition = self.index_partition(&job.id, &job.spec);
        let row_is_entry = is_new && *location == JobLocation { index_partition, at: run_at };
        if is_new {
            let row = row_is_entry.then_some(&due);
            needed.buckets.extend(self.home_buckets(job, location, row));
        }
        // A row that may be written behind the low watermark is not found by itself. A repeat of an
        // enqueue that died finds the row, not an entry.
        if !row_is_entry || run_at + MAX_ENTRY_DELAY / 2 < now {
            needed.entries.push(due);
        }
    }
}
