//! The statements of a group of transactions, in the order in which they are sent.
//!
//! The order is the same for every group, so that groups lock tables in one order. What must hold
//! before a deletion or an insertion comes before it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use tokio_postgres::types::ToSql;

use super::{
    item_lock::ItemLock,
    row::{BodyChange, EndColumns, JobColumns, LifeColumns},
    statements as sql,
    step::{KeyColumns, RecordColumns, Step},
};
use tidegate_core::{
    job::JobId,
    port::job_store::{Expect, ItemKind, RecordKind},
};

/// A statement with its parameters.
pub(super) struct Call<'a> {
    pub sql: &'static str,
    pub params: Vec<Box<dyn ToSql + Sync + Send + 'a>>,
}

/// What was read under locks before the group writes. Empty for a group that has not looked.
#[derive(Debug, Default)]
pub(super) struct Looked {
    /// The jobs whose rows are in `ended`.
    pub ended: HashSet<JobId>,
    /// The jobs that are forgotten, and whose ids are free: their rows in `ended` have these
    /// revisions.
    pub forgotten: HashMap<JobId, i64>,
    /// The records that were compared, and whose rows are locked.
    pub records: HashSet<(RecordKind, String)>,
}

/// A kind and a name.
type Place<'a> = (&'a str, &'a str);
/// The version and the JSON of an item.
type ItemBytes<'a> = (i64, Option<&'a [u8]>);

/// The statements of some transactions.
#[derive(Default)]
struct Plan<'a> {
    required: BTreeMap<Place<'a>, i64>,
    new_items: BTreeMap<Place<'a>, ItemBytes<'a>>,
    set_items: BTreeMap<Place<'a>, (ItemBytes<'a>, i64)>,
    items_changed: i64,
    new_heads: BTreeMap<i32, (i64, &'a [u8])>,
    set_heads: BTreeMap<i32, (i64, &'a [u8], i64)>,
    set_lives: BTreeMap<&'a str, (i64, &'a LifeColumns)>,
    end_lives: BTreeMap<&'a str, (i64, &'a LifeColumns, EndColumns)>,
    set_ended: BTreeMap<&'a str, (i64, &'a LifeColumns, EndColumns)>,
    set_jobs: BTreeMap<&'a str, (&'a JobColumns, i64)>,
    delete_jobs: BTreeMap<&'a str, i64>,
    delete_ended: BTreeMap<&'a str, i64>,
    removed: BTreeSet<&'a str>,
    deleted_bodies: BTreeSet<&'a str>,
    bodies: BTreeMap<&'a str, (i16, &'a [u8])>,
    alone: BTreeMap<&'a str, &'a JobColumns>,
    adds: BTreeMap<&'a str, &'a JobColumns>,
    /// The ids that no ended job may have.
    unused: BTreeSet<&'a str>,
    moved: BTreeMap<&'a str, EndColumns>,
    batches: BTreeMap<(i32, i64), (i64, &'a [u8])>,
    deleted_batches: BTreeSet<(i32, i64)>,
    new_keys: BTreeMap<&'a KeyColumns, &'a str>,
    set_keys: BTreeMap<&'a KeyColumns, (&'a str, &'a str)>,
    put_records: BTreeMap<Place<'a>, &'a RecordColumns>,
    new_records: BTreeMap<Place<'a>, &'a RecordColumns>,
    swap_records: BTreeMap<Place<'a>, (&'a RecordColumns, RecordColumns)>,
    deleted_records: BTreeMap<Place<'a>, Option<i64>>,
    taken_requests: BTreeSet<&'a str>,
}

/// Whether a group can write `step` without a look at what is stored: the step shows where the row
/// of its job is. A removal and a whole ended job do not.
pub(super) fn is_direct(step: &Step) -> bool {
    match step {
        Step::Remove { .. } => false,
        Step::SetAll { whole, .. } | Step::Add(whole) => whole.end.is_none(),
        _ => true,
    }
}

/// Whether `txn` does nothing but to add one job, which has no separate body. It is refused by its
/// missing row, and needs no guard.
pub(super) fn adds_alone(txn: &[Step]) -> Option<&JobColumns> {
    let (last, others) = txn.split_last()?;
    let Step::Add(whole) = last else { return None };
    let is_alone = others.iter().all(|step| matches!(step, Step::RequireItem { .. }))
        && whole.end.is_none()
        && !matches!(whole.data.body, BodyChange::New { .. });
    is_alone.then_some(whole)
}

/// The statements of `txns`, which name no record twice. `drawn` are ids that no other
/// job can have. A change of items begins with `item_lock`.
pub(super) fn plan<'a>(
    txns: impl IntoIterator<Item = &'a [Step]>,
    looked: Option<&Looked>,
    drawn: &HashSet<JobId>,
    item_lock: ItemLock,
) -> Vec<Call<'a>> {
    let mut plan = Plan::default();
    let nothing = Looked::default();
    for txn in txns {
        if let Some(whole) = adds_alone(txn).filter(|_| looked.is_none()) {
            plan.alone.insert(whole.id.as_str(), whole);
            if !drawn.contains(&whole.id) {
                plan.unused.insert(whole.id.as_str());
            }
            for step in &txn[..txn.len() - 1] {
                plan.add(step, &nothing, drawn);
            }
            continue;
        }
        for step in txn {
            plan.add(step, looked.unwrap_or(&nothing), drawn);
        }
    }
    plan.calls(item_lock)
}

impl<'a> Plan<'a> {
    fn add(&mut self, step: &'a Step, looked: &Looked, drawn: &HashSet<JobId>) {
        match step {
            Step::Add(whole) => {
                if let Some(revision) = looked.forgotten.get(&whole.id) {
                    self.delete_ended.insert(whole.id.as_str(), *revision);
                    self.deleted_bodies.insert(whole.id.as_str());
                }
                if !drawn.contains(&whole.id) {
                    self.unused.insert(whole.id.as_str());
                }
                self.insert(whole);
            }
            Step::SetLife { id, was, life, end, .. } => {
                let was = was.0 as i64;
                match *end {
                    Some(end) if looked.ended.contains(id) => {
                        self.set_ended.insert(id.as_str(), (was, life, end));
                    }
                    Some(end) => {
                        self.end_lives.insert(id.as_str(), (was, life, end));
                    }
                    None => {
                        self.set_lives.insert(id.as_str(), (was, life));
                    }
                }
            }
            Step::SetAll { whole, was } => {
                let (id, was) = (whole.id.as_str(), was.0 as i64);
                if looked.ended.contains(&whole.id) {
                    self.delete_ended.insert(id, was);
                    self.insert(whole);
                } else if whole.end.is_some() {
                    self.delete_jobs.insert(id, was);
                    self.insert(whole);
                } else {
                    self.set_jobs.insert(id, (whole, was));
                    self.change_body(whole);
                }
                if matches!(whole.data.body, BodyChange::Deleted) {
                    self.deleted_bodies.insert(id);
                }
            }
            Step::Remove { id, was } => {
                let deleted = if looked.ended.contains(id) {
                    &mut self.delete_ended
                } else {
                    &mut self.delete_jobs
                };
                deleted.insert(id.as_str(), was.0 as i64);
                self.removed.insert(id.as_str());
                self.deleted_bodies.insert(id.as_str());
            }
            Step::SetKey { key, job, was } => match was {
                Expect::Absent => {
                    self.new_keys.insert(key, job.as_str());
                }
                Expect::Is(was) => {
                    self.set_keys.insert(key, (job.as_str(), was.as_str()));
                }
            },
            Step::AddBatch { queue, id, for_head, batch } => {
                self.batches.insert((*queue, *id), (*for_head, batch));
            }
            Step::RemoveBatch { queue, id } => {
                self.deleted_batches.insert((*queue, *id));
            }
            Step::SetLedger { queue, version, head, was } => match was {
                Expect::Absent => {
                    self.new_heads.insert(*queue, (*version, head));
                }
                Expect::Is(was) => {
                    self.set_heads.insert(*queue, (*version, head, *was as i64));
                }
            },
            Step::RequireItem { kind, name, version } => {
                self.required.insert((kind.as_str(), name), *version);
            }
            Step::SetItem { kind, name, was, version, bytes } => {
                self.set_item(*kind, name, *was, *version, bytes.as_deref());
            }
            Step::PutRecord(record) => {
                self.put_records.insert(record.name(), record);
            }
            Step::SwapRecord { record, was } => {
                let is_locked = looked.records.contains(&(record.kind, record.name.clone()));
                match was {
                    _ if is_locked => {
                        self.put_records.insert(record.name(), record);
                    }
                    Expect::Absent => {
                        self.new_records.insert(record.name(), record);
                    }
                    Expect::Is(was) => {
                        self.swap_records.insert(record.name(), (record, RecordColumns::of(was)));
                    }
                }
            }
            Step::RemoveRecord { kind, name, until } => {
                self.deleted_records.insert((kind.as_str(), name), *until);
            }
            Step::TakeRequest(id) => {
                self.taken_requests.insert(id.as_str());
            }
        }
    }

    /// Adds a row to `jobs`, which moves to `ended` at once if its job has ended.
    fn insert(&mut self, whole: &'a JobColumns) {
        let id = whole.id.as_str();
        self.adds.insert(id, whole);
        if let Some(end) = whole.end {
            self.moved.insert(id, end);
        }
        self.change_body(whole);
    }

    fn change_body(&mut self, whole: &'a JobColumns) {
        if let BodyChange::New { encoding, stored } = &whole.data.body {
            self.bodies.insert(whole.id.as_str(), (*encoding as i16, stored));
        }
    }

    fn set_item(
        &mut self,
        kind: ItemKind,
        name: &'a str,
        was: i64,
        version: i64,
        bytes: Option<&'a [u8]>,
    ) {
        self.items_changed += i64::from(kind.is_decided_under());
        let place = (kind.as_str(), name);
        if was == 0 {
            self.new_items.insert(place, (version, bytes));
        } else {
            self.set_items.insert(place, ((version, bytes), was));
        }
    }

    /// The statements, in their order.
    fn calls(self, item_lock: ItemLock) -> Vec<Call<'a>> {
        let mut calls = Calls::default();
        if self.items_changed > 0 {
            // Before anything else is locked, so that nothing waits for a group that waits for it.
            calls.0.extend(item_lock.call());
        }
        let absent = self.required.iter().filter(|(_, version)| **version == 0);
        let absent: Vec<(&str, &str)> = absent.map(|(place, _)| *place).collect();
        calls.all(sql::PLACEHOLDERS, absent, |call, all| {
            call.column(all, |(kind, _)| *kind).column(all, |(_, name)| *name)
        });
        calls.guarded(sql::REQUIRE, self.required, |call, all| {
            call.column(all, |((kind, _), _)| *kind)
                .column(all, |((_, name), _)| *name)
                .column(all, |(_, version)| *version)
        });
        calls.guarded(sql::NEW_ITEMS, self.new_items, |call, all| {
            call.column(all, |((kind, _), _)| *kind)
                .column(all, |((_, name), _)| *name)
                .column(all, |(_, (version, _))| *version)
                .column(all, |(_, (_, bytes))| *bytes)
        });
        calls.guarded(sql::SET_ITEMS, self.set_items, |call, all| {
            call.column(all, |((kind, _), _)| *kind)
                .column(all, |((_, name), _)| *name)
                .column(all, |(_, ((version, _), _))| *version)
                .column(all, |(_, ((_, bytes), _))| *bytes)
                .column(all, |(_, (_, was))| *was)
        });
        if self.items_changed > 0 {
            calls.0.push(Call::new(sql::ITEMS_CHANGED).value(self.items_changed));
        }
        calls.guarded(sql::TAKE_REQUESTS, self.taken_requests, |call, all| {
            call.column(all, |id| *id)
        });
        calls.guarded(sql::NEW_HEADS, self.new_heads, |call, all| {
            call.column(all, |(queue, _)| *queue)
                .column(all, |(_, (version, _))| *version)
                .column(all, |(_, (_, head))| *head)
        });
        calls.guarded(sql::SET_HEADS, self.set_heads, |call, all| {
            call.column(all, |(queue, _)| *queue)
                .column(all, |(_, (version, _, _))| *version)
                .column(all, |(_, (_, head, _))| *head)
                .column(all, |(_, (_, _, was))| *was)
        });
        calls.guarded(sql::SET_LIVES, self.set_lives, |call, all| {
            let call = call.column(all, |(id, _)| *id).column(all, |(_, (was, _))| *was);
            call.column(all, |(_, (_, life))| life.state as i16)
                .column(all, |(_, (_, life))| life.revision)
                .column(all, |(_, (_, life))| life.run_at)
                .column(all, |(_, (_, life))| life.wake_at)
                .column(all, |(_, (_, life))| &life.life[..])
        });
        calls.guarded(sql::END_LIVES, self.end_lives, ended_columns);
        calls.guarded(sql::SET_ENDED, self.set_ended, ended_columns);
        calls.guarded(sql::SET_JOBS, self.set_jobs, |call, all| {
            let jobs: Vec<&JobColumns> = all.iter().map(|(_, (whole, _))| *whole).collect();
            whole_columns(call, &jobs).column(all, |(_, (_, was))| *was)
        });
        for (statement, deleted) in
            [(sql::DELETE_JOBS, self.delete_jobs), (sql::DELETE_ENDED, self.delete_ended)]
        {
            calls.guarded(statement, deleted, |call, all| {
                call.column(all, |(id, _)| *id).column(all, |(_, was)| *was)
            });
        }
        calls.all(sql::DELETE_KEYS, self.removed, |call, all| call.column(all, |id| *id));
        calls.all(sql::DELETE_BODIES, self.deleted_bodies, |call, all| call.column(all, |id| *id));
        calls.all(sql::PUT_BATCHES, self.batches, |call, all| {
            call.column(all, |((queue, _), _)| *queue)
                .column(all, |((_, id), _)| *id)
                .column(all, |(_, (for_head, _))| *for_head)
                .column(all, |(_, (_, batch))| *batch)
        });
        calls.all(sql::DELETE_BATCHES, self.deleted_batches, |call, all| {
            call.column(all, |(queue, _)| *queue).column(all, |(_, id)| *id)
        });
        calls.guarded(sql::NEW_KEYS, self.new_keys, |call, all| {
            key_columns(call, all.iter().map(|(key, _)| *key)).column(all, |(_, job)| *job)
        });
        calls.guarded(sql::SET_KEYS, self.set_keys, |call, all| {
            key_columns(call, all.iter().map(|(key, _)| *key))
                .column(all, |(_, (job, _))| *job)
                .column(all, |(_, (_, was))| *was)
        });
        calls.all(sql::ADD_ALONE, self.alone, |call, all| {
            let jobs: Vec<&JobColumns> = all.iter().map(|(_, whole)| *whole).collect();
            whole_columns(call, &jobs)
        });
        calls.guarded(sql::ADD, self.adds, |call, all| {
            let jobs: Vec<&JobColumns> = all.iter().map(|(_, whole)| *whole).collect();
            whole_columns(call, &jobs)
        });
        calls.all(sql::NOT_ENDED, self.unused, |call, all| call.column(all, |id| *id));
        calls.guarded(sql::MOVE_ENDED, self.moved, |call, all| {
            call.column(all, |(id, _)| *id)
                .column(all, |(_, end)| end.forget_at)
                .column(all, |(_, end)| end.wake_at)
        });
        calls.all(sql::PUT_BODIES, self.bodies, |call, all| {
            call.column(all, |(id, _)| *id)
                .column(all, |(_, (encoding, _))| *encoding)
                .column(all, |(_, (_, stored))| *stored)
        });
        calls.all(sql::PUT_RECORDS, self.put_records, |call, all| {
            record_columns(call, all.iter().map(|(_, record)| *record))
        });
        calls.guarded(sql::NEW_RECORDS, self.new_records, |call, all| {
            record_columns(call, all.iter().map(|(_, record)| *record))
        });
        let (swaps, olds): (Vec<_>, Vec<_>) = self.swap_records.into_values().unzip();
        if !swaps.is_empty() {
            let rows = swaps.len() as i64;
            let call = record_columns(Call::new(sql::SWAP_RECORDS), swaps.into_iter());
            let call = call.column(&olds, |was| was.until);
            calls.0.push(call.owned(olds.into_iter().map(|was| was.bytes).collect()).value(rows));
        }
        // The deletion finds them by their times, which no rival may change before it.
        let of_any_time = self.deleted_records.iter().filter(|(_, until)| until.is_none());
        let of_any_time: Vec<(&str, &str)> = of_any_time.map(|(place, _)| *place).collect();
        calls.all(sql::look::RECORDS, of_any_time, |call, all| {
            call.column(all, |(kind, _)| *kind).column(all, |(_, name)| *name)
        });
        calls.all(sql::DELETE_RECORDS, self.deleted_records, |call, all| {
            call.column(all, |((kind, _), _)| *kind)
                .column(all, |((_, name), _)| *name)
                .column(all, |(_, until)| *until)
        });
        calls.0
    }
}

impl RecordColumns {
    /// Its kind and its name.
    fn name(&self) -> (&str, &str) {
        (self.kind.as_str(), &self.name)
    }
}

/// The statements that have been made.
#[derive(Default)]
struct Calls<'a>(Vec<Call<'a>>);

impl<'a> Calls<'a> {
    /// Adds a statement, unless it has no rows.
    fn all<T>(
        &mut self,
        sql: &'static str,
        rows: impl IntoIterator<Item = T>,
        columns: impl FnOnce(Call<'a>, &[T]) -> Call<'a>,
    ) {
        let rows: Vec<T> = rows.into_iter().collect();
        if !rows.is_empty() {
            self.0.push(columns(Call::new(sql), &rows));
        }
    }

    /// Adds a statement whose last parameter is the number of its rows, unless it has none.
    fn guarded<T>(
        &mut self,
        sql: &'static str,
        rows: impl IntoIterator<Item = T>,
        columns: impl FnOnce(Call<'a>, &[T]) -> Call<'a>,
    ) {
        self.all(sql, rows, |call, rows| {
            let number = rows.len() as i64;
            columns(call, rows).value(number)
        });
    }
}

impl<'a> Call<'a> {
    pub(super) fn new(sql: &'static str) -> Self {
        Self { sql, params: Vec::new() }
    }

    /// With one value of each row.
    fn column<T, V: ToSql + Sync + Send + 'a>(self, rows: &[T], value: impl Fn(&T) -> V) -> Self {
        self.owned(rows.iter().map(value).collect())
    }

    /// With an array.
    pub(super) fn owned<V: ToSql + Sync + Send + 'a>(mut self, values: Vec<V>) -> Self {
        self.params.push(Box::new(values));
        self
    }

    /// With a value.
    pub(super) fn value(mut self, value: impl ToSql + Sync + Send + 'a) -> Self {
        self.params.push(Box::new(value));
        self
    }
}

fn ended_columns<'a>(
    call: Call<'a>,
    all: &[(&'a str, (i64, &'a LifeColumns, EndColumns))],
) -> Call<'a> {
    let call = call.column(all, |(id, _)| *id).column(all, |(_, (was, ..))| *was);
    call.column(all, |(_, (_, life, _))| life.state as i16)
        .column(all, |(_, (_, life, _))| life.revision)
        .column(all, |(_, (_, _, end))| end.forget_at)
        .column(all, |(_, (_, _, end))| end.wake_at)
        .column(all, |(_, (_, life, _))| &life.life[..])
}

fn whole_columns<'a>(call: Call<'a>, jobs: &[&'a JobColumns]) -> Call<'a> {
    call.column(jobs, |job| job.id.as_str())
        .column(jobs, |job| job.queue)
        .column(jobs, |job| job.job_type)
        .column(jobs, |job| job.life.state as i16)
        .column(jobs, |job| job.critical)
        .column(jobs, |job| job.data.kind as i16)
        .column(jobs, |job| job.priority)
        .column(jobs, |job| job.data.bytes as i32)
        .column(jobs, |job| job.life.revision)
        .column(jobs, |job| job.life.run_at)
        .column(jobs, |job| job.life.wake_at)
        .column(jobs, |job| job.created_at)
        .column(jobs, |job| &job.partition[..])
        .column(jobs, |job| job.data.data.as_deref())
        .column(jobs, |job| &job.spec[..])
        .column(jobs, |job| &job.life.life[..])
}

fn key_columns<'a>(call: Call<'a>, keys: impl Iterator<Item = &'a KeyColumns>) -> Call<'a> {
    let keys: Vec<&'a KeyColumns> = keys.collect();
    call.column(&keys, |key| key.kind)
        .column(&keys, |key| key.job_type)
        .column(&keys, |key| &key.key[..])
}

fn record_columns<'a>(
    call: Call<'a>,
    records: impl Iterator<Item = &'a RecordColumns>,
) -> Call<'a> {
    let records: Vec<&'a RecordColumns> = records.collect();
    call.column(&records, |record| record.kind.as_str())
        .column(&records, |record| &record.name[..])
        .column(&records, |record| record.until)
        .column(&records, |record| &record.bytes[..])
}
