//! Lock and look: what the transactions of a refused group name is locked and read, and each
//! transaction is compared with it, as on any other store.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use tokio_postgres::Row;

use super::{
    item_lock::ItemLock,
    plan::{Call, Looked},
    row,
    statements::{PLACEHOLDERS, look},
    step::{KeyColumns, RecordColumns, Step},
    text,
};
use crate::{
    blob::{checked, record_owner},
    unreadable::{log_damage, unreadable},
};
use tidegate_core::{
    job::{Job, JobId, Revision},
    port::{
        StoreError,
        job_store::{Committed, CurrentRecord, Expect, ItemKind, Record, UnreadableJob},
    },
    time::Timestamp,
};

/// A job that is stored.
struct StoredRow {
    revision: i64,
    job: Result<Job, UnreadableJob>,
    /// When an ended job is forgotten, and whether its objects must be deleted before.
    ended: Option<(i64, bool)>,
}

/// What the records of some transactions are.
#[derive(Default)]
pub(super) struct Seen {
    jobs: HashMap<JobId, StoredRow>,
    keys: HashMap<KeyColumns, Result<JobId, UnreadableJob>>,
    heads: HashMap<i32, u64>,
    items: HashMap<(String, String), i64>,
    records: HashMap<(String, String), Option<Record>>,
    requests: HashSet<String>,
    /// The instant at which readers hide what is forgotten.
    now: i64,
}

/// The statements that lock and read what `txns` name, in the order of a group's writes. Before a change of
/// items comes `item_lock`.
pub(super) fn calls<'a>(txns: &[&'a [Step]], item_lock: ItemLock) -> Vec<Call<'a>> {
    let steps = || txns.iter().flat_map(|txn| txn.iter());
    let (mut absent, mut required, mut set) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let (mut heads, mut jobs) = (BTreeMap::new(), BTreeSet::new());
    let (mut keys, mut records) = (BTreeSet::new(), BTreeSet::new());
    let mut requests = BTreeSet::new();
    let mut locks_items = false;
    for step in steps() {
        jobs.extend(step.job().map(JobId::as_str));
        match step {
            Step::RequireItem { kind, name, version } => {
                if *version == 0 {
                    absent.insert((kind.as_str(), &name[..]));
                }
                required.insert((kind.as_str(), &name[..]));
            }
            Step::SetItem { kind, name, .. } => {
                locks_items |= kind.is_decided_under();
                set.insert((kind.as_str(), &name[..]));
            }
            Step::SetLedger { queue, was, .. } => {
                let was = match was {
                    Expect::Is(was) => Some(*was as i64),
                    Expect::Absent => None,
                };
                heads.insert(*queue, was);
            }
            Step::SetKey { key, .. } => {
                keys.insert(key);
            }
            Step::SwapRecord { record: RecordColumns { kind, name, .. }, .. } => {
                records.insert((kind.as_str(), &name[..]));
            }
            Step::TakeRequest(id) => {
                requests.insert(id.as_str());
            }
            _ => {}
        }
    }
    let named = |sql, names: BTreeSet<(&'a str, &'a str)>| {
        let (kinds, names): (Vec<&str>, Vec<&str>) = names.into_iter().unzip();
        (!kinds.is_empty()).then(|| Call::new(sql).owned(kinds).owned(names))
    };
    let mut calls = Vec::new();
    calls.extend(item_lock.call().filter(|_| locks_items));
    calls.extend(named(PLACEHOLDERS, absent));
    calls.extend(named(look::ITEMS, required));
    calls.extend(named(look::CHANGED_ITEMS, set));
    if !requests.is_empty() {
        calls.push(Call::new(look::REQUESTS).owned(requests.into_iter().collect()));
    }
    if !heads.is_empty() {
        let expected = heads.iter().filter_map(|(queue, was)| Some((*queue, (*was)?)));
        let (queues, versions): (Vec<i32>, Vec<i64>) = expected.unzip();
        if !queues.is_empty() {
            calls.push(Call::new(look::HEADS).owned(queues).owned(versions));
        }
        // A ledger that is locked is the newest one. Otherwise a rival has replaced it, for which the
        // first statement may have waited, and this one sees the rival's.
        calls.push(Call::new(look::NEWEST_HEADS).owned(heads.into_keys().collect()));
    }
    if !jobs.is_empty() {
        let jobs: Vec<&str> = jobs.into_iter().collect();
        // A job that ends meanwhile is found by the second statement.
        calls.push(Call::new(look::JOBS).owned(jobs.clone()));
        calls.push(Call::new(look::ENDED).owned(jobs));
    }
    if !keys.is_empty() {
        let keys: Vec<&KeyColumns> = keys.into_iter().collect();
        let call = Call::new(look::KEYS)
            .owned(keys.iter().map(|key| key.kind).collect())
            .owned(keys.iter().map(|key| key.job_type).collect());
        calls.push(call.owned(keys.iter().map(|key| &key.key[..]).collect()));
    }
    calls.extend(named(look::RECORDS, records));
    calls
}

/// The statement that reads the newest versions of the ledgers that `txns` replace, without a lock; none if
/// they replace none.
pub(super) fn newest_heads<'a>(txns: &[&'a [Step]]) -> Option<Call<'a>> {
    let replaced = |step: &Step| match step {
        Step::SetLedger { queue, was: Expect::Is(_), .. } => Some(*queue),
        _ => None,
    };
    let queues: BTreeSet<i32> =
        txns.iter().flat_map(|txn| txn.iter().filter_map(replaced)).collect();
    (!queues.is_empty())
        .then(|| Call::new(look::NEWEST_HEADS).owned(queues.into_iter().collect::<Vec<i32>>()))
}

impl Seen {
    /// What the answers of `calls` say.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`] if a column is not as it must be.
    pub(super) fn read(
        calls: &[Call<'_>],
        answers: &[Vec<Row>],
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let mut seen = Self { now: now.millis(), ..Self::default() };
        for (call, rows) in calls.iter().zip(answers) {
            seen.add(call.sql, rows, now)?;
        }
        Ok(seen)
    }

    fn add(&mut self, sql: &'static str, rows: &[Row], now: Timestamp) -> Result<(), StoreError> {
        for row in rows {
            match sql {
                look::ITEMS | look::CHANGED_ITEMS => {
                    let place = (row::column(row, 0)?, row::column(row, 1)?);
                    self.items.insert(place, row::column(row, 2)?);
                }
                look::REQUESTS => {
                    self.requests.insert(row::column(row, 0)?);
                }
                look::NEWEST_HEADS => {
                    let version: i64 = row::column(row, 1)?;
                    self.heads.insert(row::column(row, 0)?, version as u64);
                }
                look::JOBS | look::ENDED => {
                    let Ok(id) = row::column::<&str>(row, 0)?.parse::<JobId>() else { continue };
                    let ended = if sql == look::ENDED {
                        let wake_at: Option<i64> = row::column(row, 8)?;
                        Some((row::column(row, 7)?, wake_at.is_some()))
                    } else {
                        None
                    };
                    let (revision, job) = (row::column(row, 6)?, row::stored(row, now));
                    self.jobs.insert(id, StoredRow { revision, job, ended });
                }
                look::KEYS => {
                    let (kind, job_type) = (row::column(row, 0)?, row::column(row, 1)?);
                    let key: String = row::column(row, 2)?;
                    let job = key_job(&key, row::column(row, 3)?);
                    self.keys.insert(KeyColumns { kind, job_type, key }, job);
                }
                look::RECORDS => {
                    let (kind, name): (String, String) =
                        (row::column(row, 0)?, row::column(row, 1)?);
                    let until = row::column(row, 2)?;
                    let record = record(&kind, &name, until, row::column(row, 3)?);
                    self.records.insert((kind, name), record);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The answer to `txn` if a ledger that it replaces is older than the stored one.
    pub(super) fn superseded(&self, txn: &[Step]) -> Option<Committed> {
        txn.iter().enumerate().find_map(|(step, write)| {
            let Step::SetLedger { queue, was: Expect::Is(was), .. } = write else { return None };
            let now = self.heads.get(queue).filter(|now| *now > was)?;
            Some(Committed::Conflict { step, current: CurrentRecord::Version(*now) })
        })
    }

    /// The answer to `txn`: its first write whose condition does not hold, if there is one.
    pub(super) fn answer(&self, txn: &[Step]) -> Committed {
        for (step, write) in txn.iter().enumerate() {
            if let Some(current) = self.refusal(write) {
                return Committed::Conflict { step, current };
            }
        }
        Committed::All
    }

    /// What the writes of the transactions that hold must know.
    pub(super) fn looked(&self) -> Looked {
        let mut looked = Looked::default();
        for (id, row) in &self.jobs {
            if row.ended.is_none() {
                continue;
            }
            looked.ended.insert(id.clone());
            if self.is_free(row) {
                looked.forgotten.insert(id.clone(), row.revision);
            }
        }
        for (kind, name) in self.records.keys() {
            let kinds = tidegate_core::port::job_store::RecordKind::ALL;
            if let Some(kind) = kinds.into_iter().find(|known| known.as_str() == kind) {
                looked.records.insert((kind, name.clone()));
            }
        }
        looked
    }

    /// Whether a new job may take the id of an ended one: it is forgotten and leaves no object.
    fn is_free(&self, row: &StoredRow) -> bool {
        row.ended.is_some_and(|(forget_at, has_object)| forget_at <= self.now && !has_object)
    }

    /// What is stored, if it violates the condition of `step`.
    fn refusal(&self, step: &Step) -> Option<CurrentRecord> {
        match step {
            Step::Add(whole) => {
                let row = self.jobs.get(&whole.id).filter(|row| !self.is_free(row));
                row.map(current_job)
            }
            Step::SetLife { id, was, .. } | Step::Remove { id, was } => self.changed(id, *was),
            Step::SetAll { whole, was } => self.changed(&whole.id, *was),
            Step::SetKey { key, was, .. } => match (self.keys.get(key), was) {
                (None, Expect::Absent) => None,
                (None, Expect::Is(_)) => Some(CurrentRecord::Nothing),
                (Some(Ok(now)), Expect::Is(was)) if now == was => None,
                (Some(Ok(now)), _) => Some(CurrentRecord::Key { job: now.clone(), since: None }),
                (Some(Err(damaged)), _) => Some(CurrentRecord::Unreadable(damaged.clone())),
            },
            Step::SetLedger { queue, was, .. } => match (self.heads.get(queue), was) {
                (None, Expect::Absent) => None,
                (None, Expect::Is(_)) => Some(CurrentRecord::Nothing),
                (Some(now), Expect::Is(was)) if now == was => None,
                (Some(now), _) => Some(CurrentRecord::Version(*now)),
            },
            Step::RequireItem { kind, name, version } => self.other_version(*kind, name, *version),
            Step::SetItem { kind, name, was, .. } => self.other_version(*kind, name, *was),
            Step::SwapRecord { record: RecordColumns { kind, name, .. }, was } => {
                let place = (kind.as_str().to_owned(), name.clone());
                let now = self.records.get(&place).and_then(Option::as_ref);
                match (now, was) {
                    (None, Expect::Absent) => None,
                    (None, Expect::Is(_)) => Some(CurrentRecord::Nothing),
                    (Some(now), Expect::Is(was)) if now == was => None,
                    (Some(_), _) => Some(CurrentRecord::Record),
                }
            }
            Step::TakeRequest(id) => {
                (!self.requests.contains(id.as_str())).then_some(CurrentRecord::Nothing)
            }
            Step::AddBatch { .. }
            | Step::RemoveBatch { .. }
            | Step::PutRecord(_)
            | Step::RemoveRecord { .. } => None,
        }
    }

    fn changed(&self, id: &JobId, was: Revision) -> Option<CurrentRecord> {
        match self.jobs.get(id) {
            Some(row) if row.revision == was.0 as i64 => None,
            Some(row) if !self.is_free(row) => Some(current_job(row)),
            _ => Some(CurrentRecord::Nothing),
        }
    }

    fn other_version(&self, kind: ItemKind, name: &str, was: i64) -> Option<CurrentRecord> {
        let place = (kind.as_str().to_owned(), name.to_owned());
        match self.items.get(&place).copied().unwrap_or_default() {
            now if now == was => None,
            0 => Some(CurrentRecord::Nothing),
            now => Some(CurrentRecord::Version(now as u64)),
        }
    }
}

fn current_job(row: &StoredRow) -> CurrentRecord {
    match &row.job {
        Ok(job) => CurrentRecord::Job(Box::new(job.clone())),
        Err(damaged) => CurrentRecord::Unreadable(damaged.clone()),
    }
}

/// The job of a key's row; or that it is damaged.
pub(super) fn key_job(key: &str, job: &str) -> Result<JobId, UnreadableJob> {
    job.parse().map_err(|_| {
        let message = format!("the key {:?} of it is damaged", text::original(key));
        unreadable(job, &StoreError::corrupt(message))
    })
}

/// The record of a row; none if it is damaged, which is logged.
pub(super) fn record(kind: &str, name: &str, until: i64, stored: &[u8]) -> Option<Record> {
    let owner = record_owner(kind, name, until);
    let bytes = checked(stored, &owner, 0, || format!("the record {owner}"));
    let bytes = bytes.map(<[u8]>::to_vec).inspect_err(log_damage).ok()?;
    let kinds = tidegate_core::port::job_store::RecordKind::ALL;
    let kind = kinds.into_iter().find(|known| known.as_str() == kind)?;
    Some(Record { kind, name: name.to_owned(), until: Timestamp::from_millis(until), bytes })
}
