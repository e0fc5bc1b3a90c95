//! Where the rows of jobs are.
//!
//! A generated id contains the location of its row. The location of a client's id is an item, which
//! is deleted some time after its job, and then the id may be used again. A process therefore knows
//! such a location only for a while, and reads it again if there is no job at it, or if a change of
//! the job is refused.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use super::{
    DynamoStore, MAX_KNOWN_RECORDS,
    key::{self, JobLocation, Key},
    row,
    table::{Change, Item, Val},
};
use tidegate_core::{
    job::{Job, JobId},
    port::{StoreError, job_store::StoredJob},
    time::Timestamp,
};

/// How long the location of a client's id is known.
const MAX_LOCATION_AGE: Duration = Duration::from_hours(1);
/// How long a request may rely on the claim of an id by the same process. It and the longest write
/// are shorter than the age at which a claimed id may be removed.
const MAX_CLAIM_AGE: Duration = Duration::from_secs(5);

/// How often ids are claimed that a sweep removes at the same moment.
const MAX_CLAIM_ATTEMPTS: usize = 3;

/// The known location of a client's id.
#[derive(Clone, Debug)]
pub(super) struct KnownLocation {
    location: JobLocation,
    read_at: Timestamp,
    /// When this process claimed it last for a new job.
    claimed_at: Option<Timestamp>,
}

impl DynamoStore {
    /// The locations of the rows of these ids; none for a client's id that is not in use.
    pub(super) async fn locations(
        &self,
        ids: &[&JobId],
    ) -> Result<Vec<Option<JobLocation>>, StoreError> {
        let now = self.now();
        let mut locations: Vec<Option<JobLocation>> = {
            let known = self.known.lock();
            let of = |id: &JobId| {
                let known = known.locations.get(id)?;
                (known.read_at + MAX_LOCATION_AGE > now).then(|| known.location.clone())
            };
            ids.iter().map(|id| key::parts(id).1.or_else(|| of(id))).collect()
        };
        let missing: Vec<usize> =
            (0..ids.len()).filter(|index| locations[*index].is_none()).collect();
        if !missing.is_empty() {
            let mut keys: Vec<Key> = missing.iter().map(|index| key::id(ids[*index])).collect();
            keys.sort_unstable();
            keys.dedup();
            let items = self.table.get(&keys).await?;
            for index in missing {
                let item = keys.binary_search(&key::id(ids[index])).ok();
                let item = item.and_then(|found| items[found].as_ref());
                locations[index] =
                    item.and_then(|item| JobLocation::parse(item.text(row::LOCATION)?));
                if let Some(location) = &locations[index] {
                    self.remember_location(ids[index], location, None);
                }
            }
        }
        Ok(locations)
    }

    fn remember_location(&self, id: &JobId, location: &JobLocation, claimed_at: Option<Timestamp>) {
        let (location, read_at) = (location.clone(), self.now());
        let locations = &mut self.known.lock().locations;
        if locations.len() >= MAX_KNOWN_RECORDS {
            locations.clear();
        }
        locations.insert(id.clone(), KnownLocation { location, read_at, claimed_at });
    }

    pub(super) fn forget_location(&self, id: &JobId) {
        self.known.lock().locations.remove(id);
    }

    /// Corrects the known location of `id`, whose row was read at `key`.
    pub(super) fn correct_location(&self, id: &JobId, key: &Key) {
        let locations = &mut self.known.lock().locations;
        if let (Some(known), Some(location)) = (locations.get_mut(id), JobLocation::of_row(key))
            && known.location != location
        {
            *known = KnownLocation { location, read_at: self.clock.now(), claimed_at: None };
        }
    }

    /// The rows of these ids, also hidden ones.
    ///
    /// A known location that leads to no shown row is read again, because the id may have been used
    /// again since.
    pub(super) async fn every_row(&self, ids: &[&JobId]) -> Result<Vec<Option<Item>>, StoreError> {
        let known: HashSet<&JobId> = {
            let known = self.known.lock();
            ids.iter().filter(|id| known.locations.contains_key(**id)).copied().collect()
        };
        let mut rows = self.rows_where_known(ids).await?;
        let now = self.now();
        let is_shown = |row: &Option<Item>| row.as_ref().is_some_and(|row| !row::is_over(row, now));
        let stale: Vec<usize> =
            (0..ids.len()).filter(|i| !is_shown(&rows[*i]) && known.contains(ids[*i])).collect();
        if !stale.is_empty() {
            let ids: Vec<&JobId> = stale.iter().map(|index| ids[*index]).collect();
            for id in &ids {
                self.forget_location(id);
            }
            for (index, row) in stale.into_iter().zip(self.rows_where_known(&ids).await?) {
                rows[index] = row;
            }
        }
        Ok(rows)
    }

    /// The rows of these ids where they are known to be.
    async fn rows_where_known(&self, ids: &[&JobId]) -> Result<Vec<Option<Item>>, StoreError> {
        let locations = self.locations(ids).await?;
        let row = |(id, location): (&&JobId, Option<JobLocation>)| {
            location.map(|location| location.row(key::parts(id).0))
        };
        let rows: Vec<Option<Key>> = ids.iter().zip(locations).map(row).collect();
        let mut keys: Vec<Key> = rows.iter().flatten().cloned().collect();
        keys.sort_unstable();
        keys.dedup();
        if keys.is_empty() {
            return Ok(vec![None; ids.len()]);
        }
        let found = self.table.get(&keys).await?;
        let of = |key: Option<Key>| found[keys.binary_search(&key?).ok()?].clone();
        Ok(rows.into_iter().map(of).collect())
    }

    /// The rows of these ids.
    pub(super) async fn rows(&self, ids: &[&JobId]) -> Result<Vec<Option<Item>>, StoreError> {
        let (rows, now) = (self.every_row(ids).await?, self.now());
        let shown = |row: Option<Item>| row.filter(|item| !row::is_over(item, now));
        Ok(rows.into_iter().map(shown).collect())
    }

    /// What is stored for these ids, in their order.
    pub(super) async fn found(&self, ids: &[&JobId]) -> Result<Vec<StoredJob>, StoreError> {
        let mut unique: Vec<&JobId> = ids.to_vec();
        unique.sort_unstable();
        unique.dedup();
        let (rows, now) = (self.rows(&unique).await?, self.now());
        let found: BTreeMap<&JobId, StoredJob> = unique
            .into_iter()
            .zip(rows)
            .map(|(id, row)| (id, row.map(|item| row::stored(&item, now)).transpose()))
            .collect();
        Ok(ids.iter().map(|id| found.get(id).cloned().unwrap_or(Ok(None))).collect())
    }

    /// Fixes the locations of clients' ids of new jobs. An id that is in use keeps its location, so
    /// that every later insert conflicts with the first one. Its item is written again, so that no
    /// sweep removes it before the insert.
    pub(super) async fn claim_ids(&self, jobs: &[&Job]) -> Result<(), StoreError> {
        let now = self.now();
        let mut open: Vec<&Job> = {
            let known = self.known.lock();
            let is_claimed = |id: &JobId| {
                let claimed_at = known.locations.get(id).and_then(|known| known.claimed_at);
                claimed_at.is_some_and(|at| at + MAX_CLAIM_AGE > now)
            };
            let is_open = |job: &&Job| key::parts(&job.id).1.is_none() && !is_claimed(&job.id);
            jobs.iter().copied().filter(is_open).collect()
        };
        for _ in 0..MAX_CLAIM_ATTEMPTS {
            if open.is_empty() {
                return Ok(());
            }
            open = self.claim(open, now).await?;
        }
        if open.is_empty() {
            return Ok(());
        }
        Err(StoreError::unavailable("an id was removed at the same moment, several times"))
    }

    /// Claims the ids of `jobs` at `now`. Returns those that a sweep removed at the same moment.
    async fn claim<'a>(
        &self,
        jobs: Vec<&'a Job>,
        now: Timestamp,
    ) -> Result<Vec<&'a Job>, StoreError> {
        let claim = || {
            let since = (row::SINCE, Val::N(now.millis().max(0) as u64));
            [since, (row::MARK, Val::N(self.entropy.bits() as u64))]
        };
        let changes = jobs.iter().map(|job| {
            let location = (row::LOCATION, Val::S(self.first_location(job).text()));
            Change::Insert(Item::new(key::id(&job.id), claim().into_iter().chain([location])))
        });
        let changes: Vec<Change> = changes.collect();
        let mut used: Vec<&Job> = Vec::new();
        for (job, is_new) in jobs.into_iter().zip(self.table.write(&changes).await?) {
            if is_new {
                self.remember_location(&job.id, &self.first_location(job), Some(now));
            } else {
                self.forget_location(&job.id);
                used.push(job);
            }
        }
        let ids: Vec<&JobId> = used.iter().map(|job| &job.id).collect();
        let locations = self.locations(&ids).await?;
        let (mut found, mut removed) = (Vec::new(), Vec::new());
        for (job, location) in used.into_iter().zip(locations) {
            match location {
                Some(location) => found.push((job, location)),
                None => removed.push(job),
            }
        }
        let changes = found.iter().map(|(job, location)| Change::Update {
            key: key::id(&job.id),
            set: claim().into(),
            remove: Vec::new(),
            when: (row::LOCATION, Val::S(location.text())),
        });
        let changes: Vec<Change> = changes.collect();
        let done = if changes.is_empty() { Vec::new() } else { self.table.write(&changes).await? };
        for ((job, location), is_claimed) in found.into_iter().zip(done) {
            if is_claimed {
                self.remember_location(&job.id, &location, Some(now));
            } else {
                self.forget_location(&job.id);
                removed.push(job);
            }
        }
        Ok(removed)
    }

    /// The location of the row of a new job, unless its id is in use.
    fn first_location(&self, job: &Job) -> JobLocation {
        JobLocation {
            index_partition: self.index_partition(&job.id, &job.spec),
            at: job.life.run_at().unwrap_or(job.spec.created_at),
        }
    }
}
