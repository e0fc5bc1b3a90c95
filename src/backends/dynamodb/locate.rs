//! Where the rows of jobs are.
//!
//! A generated id contains the location of its row. The location of a client's id is an item, which
//! is deleted some time after its job. A process therefore knows such a location only for a while,
//! and reads it again if there is no job at it.

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

    /// The rows of these ids, also hidden ones.
    pub(super) async fn every_row(&self, ids: &[&JobId]) -> Result<Vec<Option<Item>>, StoreError> {
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
        let known: HashSet<&JobId> = {
            let known = self.known.lock();
            ids.iter().filter(|id| known.locations.contains_key(**id)).copied().collect()
        };
        let now = self.now();
        let shown = |row: Option<Item>| row.filter(|item| !row::is_over(item, now));
        let mut rows: Vec<Option<Item>> =
            self.every_row(ids).await?.into_iter().map(shown).collect();
        let stale: Vec<usize> =
            (0..ids.len()).filter(|i| rows[*i].is_none() && known.contains(ids[*i])).collect();
        if !stale.is_empty() {
            let ids: Vec<&JobId> = stale.iter().map(|index| ids[*index]).collect();
            for id in &ids {
                self.forget_location(id);
            }
            for (index, row) in stale.into_iter().zip(self.every_row(&ids).await?) {
                rows[index] = shown(row);
            }
        }
        Ok(rows)
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
        let fresh: Vec<&&Job> = {
            let known = self.known.lock();
            let is_claimed = |id: &JobId| {
                let claimed_at = known.locations.get(id).and_then(|known| known.claimed_at);
                claimed_at.is_some_and(|at| at + MAX_CLAIM_AGE > now)
            };
            let is_fresh = |job: &&&Job| key::parts(&job.id).1.is_none() && !is_claimed(&job.id);
            jobs.iter().filter(is_fresh).collect()
        };
        if fresh.is_empty() {
            return Ok(());
        }
        let claim = || {
            let since = (row::SINCE, Val::N(now.millis().max(0) as u64));
            [since, (row::MARK, Val::N(self.entropy.bits() as u64))]
        };
        let changes = fresh.iter().map(|job| {
            let location = (row::LOCATION, Val::S(self.first_location(job).text()));
            Change::Insert(Item::new(key::id(&job.id), claim().into_iter().chain([location])))
        });
        let changes: Vec<Change> = changes.collect();
        let mut used = Vec::new();
        for (job, is_new) in fresh.iter().zip(self.table.write(&changes).await?) {
            if is_new {
                self.remember_location(&job.id, &self.first_location(job), Some(now));
            } else {
                self.forget_location(&job.id);
                used.push(&job.id);
            }
        }
        if used.is_empty() {
            return Ok(());
        }
        let removed = || StoreError::unavailable("an id was removed at the same moment");
        let found: Option<Vec<JobLocation>> = self.locations(&used).await?.into_iter().collect();
        let found: Vec<(&JobId, JobLocation)> =
            used.into_iter().zip(found.ok_or_else(removed)?).collect();
        let changes = found.iter().map(|(id, location)| Change::Update {
            key: key::id(id),
            set: claim().into(),
            remove: Vec::new(),
            when: (row::LOCATION, Val::S(location.text())),
        });
        let changes: Vec<Change> = changes.collect();
        if self.table.write(&changes).await?.contains(&false) {
            for (id, _) in &found {
                self.forget_location(id);
            }
            return Err(removed());
        }
        for (id, location) in &found {
            self.remember_location(id, location, Some(now));
        }
        Ok(())
    }

    /// The location of the row of a new job, unless its id is in use.
    fn first_location(&self, job: &Job) -> JobLocation {
        JobLocation {
            index_partition: self.index_partition(&job.id, &job.spec),
            at: job.life.run_at().unwrap_or(job.spec.created_at),
        }
    }
}
