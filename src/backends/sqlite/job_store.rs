//! The calls of the port.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    SqliteStore, due,
    error::Failure,
    list, record,
    row::{self, checked, select_jobs},
    txn,
};
use crate::unreadable::unreadable;
use tidegate_core::{
    job::{Job, JobId, Payload, QueueName, Spec, TypeName},
    port::job_store::{
        Atomicity, Committed, Depth, Depths, DuePage, DueQuery, DueScan, Item, ItemKind, JobFilter,
        JobStore, Key, ListPage, ListQuery, OrderedScan, OverduePage, PartitionPage, Purged,
        Record, RecordKind, RecordQuery, ScanQuery, StateFilter, StoreCapabilities, StoreError,
        StoredBody, StoredJob, StoredKey, Txn, UnreadableJob, WaitingPage, WakePosition, Write,
        flatten,
    },
    queue::{GrantBatch, Ledger, ledger::BatchId},
    time::Timestamp,
};

/// Most due jobs that a count covers. It counts entries of an index, and reads no job.
const MAX_COUNTED_DUE: u32 = 100_000;
/// Index entries that one pass over the waiting jobs of a queue counts.
const MAX_COUNTED_WAITING: u32 = 1_000_000;
/// How long the next pass waits for each of them: many times as long as reading one takes.
const COUNT_PAUSE: Duration = Duration::from_micros(20);
/// How many jobs that cannot be read a page skips. Then it ends, and the next one reads on behind
/// them.
pub(super) const MAX_UNREADABLE_ROWS: u32 = 1000;

/// The overdue jobs behind a `wake_at` and a row, in this order. They are not more than
/// [`MAX_UNREADABLE_ROWS`] and a limit.
const OVERDUE: &str = "SELECT id, spec, life, data_kind, data_bytes, data, wake_at, n FROM jobs \
     INDEXED BY jobs_wake WHERE wake_at <= ?1 AND (wake_at, n) > (?2, ?3) \
     ORDER BY wake_at, n LIMIT ?4";

/// The first `limit` overdue jobs behind `after` that can be read.
fn overdue(
    db: &Connection,
    until: Timestamp,
    after: Option<WakePosition>,
    limit: u32,
) -> Result<OverduePage, Failure> {
    let start = after.map_or((i64::MIN, i64::MIN), |after| (after.at.millis(), after.tie));
    let most = limit + MAX_UNREADABLE_ROWS;
    let mut find = db.prepare_cached(OVERDUE)?;
    let mut rows = find.query(params![until.millis(), start.0, start.1, most])?;
    let (mut page, mut damaged) = (OverduePage::default(), 0);
    while page.jobs.len() < limit as usize
        && let Some(row) = rows.next()?
    {
        if let Some(job) = row::readable(row)? {
            page.jobs.push(job);
            continue;
        }
        damaged += 1;
        if damaged == MAX_UNREADABLE_ROWS {
            let at = Timestamp::from_millis(row.get(6)?);
            page.next = Some(WakePosition { at, tie: row.get(7)? });
            break;
        }
    }
    Ok(page)
}

/// The body in a row of encoding, bytes and length.
fn body(row: &rusqlite::Row<'_>, id: &str) -> Result<Payload, Failure> {
    let encoding: i64 = row.get(0)?;
    let bytes =
        checked(row::blob(row, 1)?, id, encoding as u8, || format!("the body of job {id}"))?;
    if row.get::<_, i64>(2)? != bytes.len() as i64 {
        return Err(Failure::corrupt(format!("the length of the body of job {id} is wrong")));
    }
    let bytes = bytes::Bytes::copy_from_slice(bytes);
    Ok(Payload { encoding: row::encoding_of(encoding), bytes })
}

#[async_trait]
impl JobStore for SqliteStore {
    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        let (txns, steps): (Vec<Txn>, Vec<Vec<usize>>) = txns.into_iter().map(flatten).unzip();
        let answers = self.write(txns).await?;
        Ok(answers.into_iter().zip(steps).map(|(answer, steps)| answer.regrouped(&steps)).collect())
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            shared: false,
            atomicity: Atomicity::Atomic,
            expires_natively: false,
            max_counted_due: MAX_COUNTED_DUE,
            waiting_pass: (MAX_COUNTED_WAITING, COUNT_PAUSE),
            lists_by_creation: true,
        }
    }

    fn assign_id(&self, id: JobId, _: &Spec, _: Timestamp) -> JobId {
        id
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<StoredJob>, StoreError> {
        self.readers.read(|db| {
            let mut find = db.prepare_cached(select_jobs!("WHERE id = ?1"))?;
            let mut found = Vec::with_capacity(ids.len());
            for id in ids {
                let mut rows = find.query([id.as_str()])?;
                found.push(rows.next()?.map(row::stored).transpose()?.transpose());
            }
            Ok(found)
        })
    }

    async fn bodies(&self, ids: &[JobId]) -> Result<Vec<StoredBody>, StoreError> {
        self.readers.read(|db| {
            let mut find = db.prepare_cached(
                "SELECT encoding, bytes, data_bytes FROM jobs \
                 JOIN bodies ON bodies.job = jobs.n WHERE jobs.id = ?1",
            )?;
            let mut found = Vec::with_capacity(ids.len());
            for id in ids {
                let mut rows = find.query([id.as_str()])?;
                let body = rows.next()?.map(|row| body(row, id.as_str())).transpose();
                found.push(match body {
                    Err(Failure(error @ StoreError::Corrupt(_))) => {
                        Err(unreadable(id.as_str(), &error))
                    }
                    body => Ok(body?),
                });
            }
            Ok(found)
        })
    }

    async fn due(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError> {
        let names = self.names();
        self.readers.read(|db| queries.iter().map(|query| due::page(db, &names, query)).collect())
    }

    fn scan_due(&self, query: ScanQuery) -> Box<dyn DueScan + '_> {
        Box::new(OrderedScan::new(self, query))
    }

    async fn count_due(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        most: u32,
    ) -> Result<BTreeMap<TypeName, u64>, StoreError> {
        self.readers.read(|db| due::count(db, &self.names(), queue, types, until, most))
    }

    async fn active_queues(&self, _: Timestamp) -> Result<BTreeSet<QueueName>, StoreError> {
        let names = self.names();
        let numbers = self.readers.read(due::active_queues)?;
        Ok(numbers.into_iter().filter_map(|number| names.queue_name(number).cloned()).collect())
    }

    async fn partitions(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        after: Option<&str>,
        limit: u32,
        skip: &BTreeSet<String>,
    ) -> Result<PartitionPage, StoreError> {
        let names = self.names();
        self.readers
            .read(|db| due::partitions(db, &names, queue, types, (until, after, limit), skip))
    }

    async fn count_waiting(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        after: Option<&str>,
        limit: u32,
        most: u32,
    ) -> Result<WaitingPage, StoreError> {
        // A page may take some milliseconds, so it has its own thread.
        let (readers, names) = (Arc::clone(&self.readers), self.names());
        let (queue, types, after) = (queue.clone(), types.to_vec(), after.map(str::to_owned));
        let page = tokio::task::spawn_blocking(move || {
            let range = (until, after.as_deref(), limit);
            readers.read(|db| due::count_waiting(db, &names, &queue, &types, range, most))
        });
        page.await.map_err(|error| StoreError::unavailable_in("the count did not finish", error))?
    }

    async fn overdue(
        &self,
        until: Timestamp,
        after: Option<WakePosition>,
        limit: u32,
    ) -> Result<OverduePage, StoreError> {
        self.readers.read(|db| {
            let page = overdue(db, until, after, limit)?;
            let next: Option<i64> = db
                .prepare_cached(
                    "SELECT wake_at FROM jobs INDEXED BY jobs_wake WHERE wake_at > ?1 \
                     ORDER BY wake_at LIMIT 1",
                )?
                .query_row([until.millis()], |row| row.get(0))
                .optional()?;
            Ok(OverduePage { next_at: next.map(Timestamp::from_millis), ..page })
        })
    }

    async fn running(
        &self,
        queue: &QueueName,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<Result<Job, UnreadableJob>>, StoreError> {
        let Some(queue) = self.names().queue(queue) else {
            return Ok(Vec::new());
        };
        self.readers.read(|db| {
            // No id is empty, so all ids follow the empty text.
            let after = after.map_or("", JobId::as_str);
            let mut find = db.prepare_cached(select_jobs!(
                "INDEXED BY jobs_running WHERE state = 1 AND queue = ?1 AND id > ?2 \
                     ORDER BY id LIMIT ?3"
            ))?;
            let mut rows = find.query(params![queue, after, limit])?;
            let mut running = Vec::new();
            while let Some(row) = rows.next()? {
                running.push(row::stored(row)?);
            }
            Ok(running)
        })
    }

    async fn newer_ledger(
        &self,
        queue: &QueueName,
        known: u64,
    ) -> Result<Option<(Ledger, Vec<GrantBatch>)>, StoreError> {
        let Some(number) = self.names().queue(queue) else {
            return Ok(None);
        };
        self.readers.read(|db| {
            let mut find = db.prepare_cached("SELECT head FROM heads WHERE queue = ?1")?;
            let mut rows = find.query([number])?;
            let Some(row) = rows.next()? else {
                return Ok(None);
            };
            let ledger: Ledger = row::decode(row::blob(row, 0)?, queue.as_str(), || {
                format!("the ledger of queue {queue}")
            })?;
            if ledger.version == known {
                return Ok(None);
            }
            let mut find =
                db.prepare_cached("SELECT batch FROM batches WHERE queue = ?1 AND id = ?2")?;
            let mut batches = Vec::with_capacity(ledger.batches.len());
            for id in ledger.referenced_batches() {
                let mut rows = find.query(params![number, id.0 as i64])?;
                if let Some(row) = rows.next()? {
                    batches.push(row::decode(row::blob(row, 0)?, queue.as_str(), || {
                        format!("batch {} of queue {queue}", id.0)
                    })?);
                }
            }
            Ok(Some((ledger, batches)))
        })
    }

    async fn batches(&self, queue: &QueueName) -> Result<Vec<(BatchId, u64)>, StoreError> {
        let Some(queue) = self.names().queue(queue) else {
            return Ok(Vec::new());
        };
        self.readers.read(|db| {
            let mut all =
                db.prepare_cached("SELECT id, for_head FROM batches WHERE queue = ?1 ORDER BY id")?;
            let all = all.query_map([queue], |row| {
                Ok((BatchId(row.get::<_, i64>(0)? as u64), row.get::<_, i64>(1)? as u64))
            })?;
            Ok(all.collect::<Result<_, _>>()?)
        })
    }

    async fn keys(&self, keys: &[Key]) -> Result<Vec<StoredKey>, StoreError> {
        let names = self.names();
        let find = |db: &Connection, key| match txn::key_columns(key, &names) {
            Some(columns) => Ok(txn::find_key(db, columns)?.transpose()),
            None => Ok(Ok(None)),
        };
        self.readers.read(|db| keys.iter().map(|key| find(db, key)).collect())
    }

    async fn live_job(
        &self,
        job_type: Option<&TypeName>,
        queue: Option<&QueueName>,
    ) -> Result<Option<Result<Job, UnreadableJob>>, StoreError> {
        let is_one = |depth: &Depth| {
            depth.jobs > 0
                && !matches!(depth.state, StateFilter::Ended(_))
                && job_type.is_none_or(|name| *name == depth.job_type)
                && queue.is_none_or(|name| *name == depth.queue)
        };
        let depths = self.depth(queue).await?.counts;
        let Some(found) = depths.into_iter().find(is_one) else { return Ok(None) };
        let mut query = ListQuery {
            filter: JobFilter {
                job_type: Some(found.job_type),
                queue: Some(found.queue),
                states: vec![found.state],
                ..JobFilter::default()
            },
            limit: 1,
            ..ListQuery::default()
        };
        loop {
            let page = self.list(&query).await?;
            let unreadable = page.unreadable.into_iter().next().map(Err);
            if let Some(job) = page.jobs.into_iter().next().map(Ok).or(unreadable) {
                return Ok(Some(job));
            }
            query.cursor = page.next_cursor;
            if query.cursor.is_none() {
                // It has ended meanwhile.
                return Ok(None);
            }
        }
    }

    async fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        // The only read that may take long, so it has its own thread.
        let (readers, shared, key) =
            (Arc::clone(&self.readers), Arc::clone(&self.shared), Arc::clone(&self.cursor_key));
        let (names, query) = (self.names(), query.clone());
        let page = tokio::task::spawn_blocking(move || {
            readers.read(|db| list::page(db, &names, &shared, &key, &query))
        });
        page.await
            .map_err(|error| StoreError::unavailable_in("the list query did not finish", error))?
    }

    async fn depth(&self, queue: Option<&QueueName>) -> Result<Depths, StoreError> {
        let names = self.names();
        let depth = |((queue, job_type, state), jobs): ((i64, i64, i64), u64)| -> Option<Depth> {
            let (queue, job_type) =
                (names.queue_name(queue)?.clone(), names.type_name(job_type)?.clone());
            Some(Depth { queue, job_type, state: row::state_of(state)?, jobs, phases: None })
        };
        let mut counts: Vec<Depth> = self.shared.counts().into_iter().filter_map(depth).collect();
        counts.retain(|depth| queue.is_none_or(|name| *name == depth.queue));
        Ok(Depths { counts, kept: None })
    }

    async fn keep_counts(&self, _: Timestamp) -> Result<(), StoreError> {
        Ok(())
    }

    async fn items(&self, kind: ItemKind) -> Result<Vec<Item>, StoreError> {
        self.readers.read(|db| {
            let mut all = db.prepare_cached(
                "SELECT name, version, bytes FROM items WHERE kind = ?1 ORDER BY name",
            )?;
            let all = all.query_map([kind.as_str()], |row| row::item(row, kind))?;
            Ok(all.collect::<Result<_, _>>()?)
        })
    }

    async fn items_version(&self) -> Result<u64, StoreError> {
        Ok(self.shared.items.load(Ordering::Acquire))
    }

    async fn records(&self, queries: &[RecordQuery]) -> Result<Vec<Vec<Record>>, StoreError> {
        self.readers.read(|db| queries.iter().map(|query| record::page(db, query)).collect())
    }

    async fn purge(
        &self,
        kind: RecordKind,
        now: Timestamp,
        keep: u64,
        limit: u32,
    ) -> Result<Purged, StoreError> {
        let (drop, purged) =
            self.readers.read(|db| record::droppable(db, kind, now, keep, limit))?;
        if !drop.is_empty() {
            // A record that was replaced meanwhile has another time, so it is kept.
            let remove = |(name, until)| Write::RemoveRecord { kind, name, until: Some(until) };
            self.write(vec![drop.into_iter().map(remove).collect()]).await?;
        }
        Ok(purged)
    }

    async fn upkeep(&self, _: Option<&str>) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
}
