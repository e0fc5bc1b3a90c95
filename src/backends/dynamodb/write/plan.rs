//! The changes that each write of a wave makes.

use super::{
    Effect, PlannedWrite,
    change::change,
    cleanup::{Removal, needs_cleanup, replaced_parts},
    parts::{added_job, idempotency_keys, job_of, key_read_by, single_writes},
};
use crate::dynamodb::{
    DynamoStore,
    key::{self, JobLocation, Key},
    row,
    table::{Change, Item, Name, Val},
};
use tidegate_core::{
    job::{Job, JobId, Revision},
    port::{
        StoreError,
        job_store::{CurrentRecord, ItemKind, Txn, Write},
    },
};

impl DynamoStore {
    /// The changes of `writes`, and the locations of their jobs.
    pub(super) async fn plan<'a>(
        &self,
        writes: &[(&'a Write, &Txn)],
    ) -> Result<Vec<PlannedWrite<'a>>, StoreError> {
        let singles = || writes.iter().flat_map(|(write, _)| single_writes(write));
        let new: Vec<&Job> = singles().filter_map(added_job).collect();
        self.claim_ids(&new).await?;
        let ids: Vec<&JobId> = singles().filter_map(job_of).collect();
        let mut locations = self.locations(&ids).await?.into_iter();
        let mut plan = Vec::with_capacity(writes.len());
        for (write, txn) in writes {
            plan.push(planned(write, txn, locations.by_ref()));
        }
        self.add_cleanup(&mut plan).await?;
        let mut read: Vec<Key> =
            writes.iter().filter_map(|(write, _)| key_read_by(write)).collect();
        read.sort_unstable();
        read.dedup();
        let versions = if read.is_empty() { Vec::new() } else { self.item_versions(&read).await? };
        for planned in plan.iter_mut().filter(|one| matches!(one.effect, Effect::Changes(_))) {
            let current = key_read_by(planned.write)
                .and_then(|key| read.binary_search(&key).ok())
                .map_or(0, |index| versions[index]);
            if !matches!(planned.write, Write::RequireItem { .. } | Write::SetItem { .. }) {
                planned.mark = self.entropy.bits() as u64;
            }
            planned.effect = self.effect(planned, current)?;
            planned.cleanup.extend(removals_after(planned));
        }
        Ok(plan)
    }

    /// Reads the rows of jobs that may leave something behind, and adds the changes that remove it.
    async fn add_cleanup(&self, plan: &mut [PlannedWrite<'_>]) -> Result<(), StoreError> {
        let mut rows: Vec<(usize, &Write, Key)> = Vec::new();
        let undecided = |planned: &PlannedWrite<'_>| matches!(planned.effect, Effect::Changes(_));
        for (index, planned) in plan.iter().enumerate().filter(|(_, one)| undecided(one)) {
            let mut locations = planned.locations.iter();
            for write in single_writes(planned.write) {
                let job = job_of(write).and_then(|id| Some((id, locations.next()?)));
                if let Some((id, location)) = job.filter(|_| needs_cleanup(write)) {
                    rows.push((index, write, location.row(key::parts(id).0)));
                }
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        let keys: Vec<Key> = rows.iter().map(|(.., key)| key.clone()).collect();
        let found = self.table.get(&keys).await?;
        let mut removed = Vec::new();
        for ((index, write, _), item) in rows.iter().zip(&found) {
            match (write, item) {
                (Write::RemoveJob { id, was }, Some(item)) => {
                    removed.push((*index, (id, *was, item)));
                }
                (write, Some(item)) => plan[*index].cleanup.extend(replaced_parts(write, item)),
                (_, None) => {}
            }
        }
        let jobs: Vec<(&JobId, Revision, &Item)> = removed.iter().map(|(_, job)| *job).collect();
        for ((index, _), removal) in removed.iter().zip(self.removals(&jobs).await?) {
            plan[*index].removals.extend(removal);
        }
        Ok(())
    }

    /// The effect of `planned`, whose write has read an item at `version`.
    fn effect(&self, planned: &PlannedWrite<'_>, version: u64) -> Result<Effect, StoreError> {
        match planned.write {
            Write::RequireItem { version: wanted, .. } => Ok(require(version, *wanted)),
            Write::SetItem { was: 0, bytes: None, .. } => Ok(require(version, 0)),
            Write::SetItem { kind, name, was, version, bytes } => {
                Ok(Effect::Changes(self.item_changes(*kind, name, *was, *version, bytes.as_ref())))
            }
            write => self.marked_changes(write, planned).map(Effect::Changes),
        }
    }

    /// The changes that replace an item of the configuration.
    fn item_changes(
        &self,
        kind: ItemKind,
        name: &str,
        was: u64,
        version: u64,
        bytes: Option<&Vec<u8>>,
    ) -> Vec<Change> {
        let set = bytes.map(|bytes| -> Vec<(Name, Val)> {
            let stored = row::item_bytes(kind, name, version, bytes);
            vec![(row::VERSION, Val::N(version)), (row::RECORD, stored)]
        });
        let key = key::item(kind, name);
        // The copies are for readers of the version. The condition on the item decides for all.
        let copies: Vec<Key> =
            if kind == ItemKind::Type { key::copies(&key).collect() } else { Vec::new() };
        let when = (row::VERSION, Val::N(was));
        let mut changes = vec![match &set {
            Some(set) if was == 0 => Change::Insert(Item::new(key, set.clone())),
            Some(set) => Change::Update { key, set: set.clone(), remove: Vec::new(), when },
            None => Change::Delete { key, when: Some(when) },
        }];
        changes.extend(copies.into_iter().map(|key| match set {
            Some(_) => Change::Put(Item::new(key, [(row::VERSION, Val::N(version))])),
            None => Change::Delete { key, when: None },
        }));
        if kind.is_decided_under() {
            let number = self.next_configuration_version();
            let version = key::items_version();
            let keys = key::copies(&version).collect::<Vec<_>>().into_iter().chain([version]);
            let put = |key| Change::Put(Item::new(key, [(row::VERSION, Val::N(number))]));
            changes.extend(keys.map(put));
        }
        changes
    }

    /// The changes of `write`, with a mark by which a repeat recognizes them.
    fn marked_changes(
        &self,
        write: &Write,
        planned: &PlannedWrite<'_>,
    ) -> Result<Vec<Change>, StoreError> {
        let mut locations = planned.locations.iter();
        let now = self.now();
        let mut changes: Vec<Change> = single_writes(write)
            .into_iter()
            .map(|write| {
                let change = change(
                    write,
                    locations.by_ref(),
                    &planned.idempotency_keys,
                    planned.mark,
                    now,
                )?;
                let of_row = |removal: &&Removal| removal.change.key() == change.key();
                let removal = planned.removals.iter().find(of_row);
                Ok(removal.map(|removal| removal.change.clone()).unwrap_or(change))
            })
            .collect::<Result<_, StoreError>>()?;
        let mark = (row::MARK, Val::N(planned.mark));
        for change in &mut changes {
            match change {
                Change::Insert(item) => item.attrs.extend([mark.clone()]),
                Change::Update { set, .. } => set.push(mark.clone()),
                Change::Put(_) | Change::Delete { .. } => {}
            }
        }
        Ok(changes)
    }
}

/// `write` of `txn`, decided if one of its jobs has no location. Takes one of `locations` for each
/// job.
fn planned<'a>(
    write: &'a Write,
    txn: &Txn,
    mut locations: impl Iterator<Item = Option<JobLocation>>,
) -> PlannedWrite<'a> {
    let singles = single_writes(write);
    let found: Vec<Option<JobLocation>> = singles
        .iter()
        .filter(|write| job_of(write).is_some())
        .map(|_| locations.next().flatten())
        .collect();
    let effect = if found.iter().any(Option::is_none) {
        Effect::Decided(Err(CurrentRecord::Nothing))
    } else {
        Effect::Changes(Vec::new())
    };
    let adds_job = singles.into_iter().any(|write| added_job(write).is_some());
    PlannedWrite {
        write,
        mark: 0,
        idempotency_keys: if adds_job { idempotency_keys(txn) } else { Vec::new() },
        locations: found.into_iter().flatten().collect(),
        effect,
        cleanup: Vec::new(),
        removals: Vec::new(),
    }
}

/// What is deleted after the rows of removed jobs were hidden: what the jobs leave behind, and then
/// the rows.
fn removals_after(planned: &PlannedWrite<'_>) -> Vec<Change> {
    let Effect::Changes(changes) = &planned.effect else { return Vec::new() };
    let after = planned.removals.iter().flat_map(|removal| {
        let hidden = changes.iter().find(|change| change.key() == removal.change.key());
        let mark = match hidden {
            Some(Change::Update { set, .. }) if removal.is_last => {
                set.iter().find(|(name, _)| *name == row::MARK).cloned()
            }
            _ => None,
        };
        let row = |mark| Change::Delete { key: removal.change.key().clone(), when: Some(mark) };
        removal.after.iter().cloned().chain(mark.map(row))
    });
    after.collect()
}

/// Succeeds if the current `version` is `wanted`.
fn require(version: u64, wanted: u64) -> Effect {
    Effect::Decided(match version {
        version if version == wanted => Ok(()),
        0 => Err(CurrentRecord::Nothing),
        version => Err(CurrentRecord::Version(version)),
    })
}
