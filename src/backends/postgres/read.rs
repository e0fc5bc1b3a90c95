//! Reads by id and by name.

use std::collections::HashMap;

use tokio_postgres::Row;

use super::{
    PostgresStore,
    look::{key_job, record},
    row::{self, job_columns},
    step::{item_owner, key_columns},
    text,
};
use crate::{
    blob::{checked, decode},
    job_columns::encoding_of,
    unreadable::unreadable,
};
use tidegate_core::{
    job::{Job, JobId, Payload, QueueName},
    port::{
        StoreError,
        job_store::{
            Item, ItemKind, Key, Record, RecordQuery, StoredBody, StoredJob, StoredKey,
            UnreadableJob,
        },
    },
    queue::{GrantBatch, Ledger, ledger::BatchId},
};

/// How many jobs that cannot be read a page skips. Then it ends, and the next one reads on behind
/// them.
pub(super) const MAX_UNREADABLE_ROWS: u32 = 1000;
/// How often a ledger is read before its batches. Then both are read in one snapshot.
const MAX_LEDGER_READS: usize = 3;
/// Most records that cannot be read before a page ends.
const MAX_UNREADABLE_RECORDS: usize = 10_000;

/// In the order of the ids, which on few rows keeps the planner from an index whose last column they are.
const LIVE: &str = concat!(
    "SELECT ",
    job_columns!("j"),
    " FROM jobs j WHERE j.id = ANY($1::text[]) ORDER BY j.id"
);
const ENDED: &str = concat!(
    "SELECT ",
    job_columns!("e"),
    " FROM ended e WHERE e.id = ANY($1::text[]) AND e.forget_at > $2 ORDER BY e.id"
);
const BODIES: &str = "SELECT id, encoding, bytes FROM bodies WHERE id = ANY($1::text[])";
const RUNNING: &str = concat!(
    "SELECT ",
    job_columns!("j"),
    " FROM jobs j WHERE j.state = 1 AND j.queue = $1 AND j.id > $2 ORDER BY j.id LIMIT $3"
);
/// The newest ledger of a queue.
pub(super) const LEDGER: &str = "SELECT head FROM (SELECT version, head FROM heads \
     WHERE queue = $1 AND version > 0 ORDER BY version DESC LIMIT 1) h WHERE version <> $2";
/// Batches of a queue by their numbers.
pub(super) const LEDGER_BATCHES: &str = "SELECT b.id, b.batch FROM unnest($2::bigint[]) w(id) \
     CROSS JOIN LATERAL (SELECT id, batch FROM batches \
     WHERE queue = $1 AND id = w.id OFFSET 0) b";
/// The newest ledger of a queue with all its batches, in one snapshot.
const LEDGER_AND_BATCHES: &str = "SELECT b.id, b.batch, h.head FROM (SELECT version, head FROM heads \
     WHERE queue = $1 AND version > 0 ORDER BY version DESC LIMIT 1) h \
     LEFT JOIN batches b ON b.queue = $1 WHERE h.version <> $2";
const BATCHES: &str = "SELECT id, for_head FROM batches WHERE queue = $1 ORDER BY id";
pub(super) const KEYS: &str = "SELECT w.n, k.key, k.job FROM unnest($1::int[], $2::smallint[], $3::int[], \
     $4::text[]) w(n, kind, type, key) \
     CROSS JOIN LATERAL (SELECT key, job FROM keys \
     WHERE kind = w.kind AND type = w.type AND key = w.key OFFSET 0) k";
const ITEMS: &str = "SELECT name, version, bytes FROM items WHERE kind = $1 AND version > 0 \
     ORDER BY name";
pub(super) const RECORDS: &str = "SELECT name, until, bytes FROM records \
     WHERE kind = $1 AND name >= $2 AND name < $3 AND name > $4 ORDER BY name LIMIT $5";

/// The statements above, whose plans are tested.
#[cfg(test)]
pub(super) const ALL: [&str; 11] = [
    LIVE,
    ENDED,
    BODIES,
    RUNNING,
    LEDGER,
    LEDGER_BATCHES,
    LEDGER_AND_BATCHES,
    BATCHES,
    KEYS,
    ITEMS,
    RECORDS,
];

impl PostgresStore {
    /// The jobs with these ids, in any order, as far as they exist.
    ///
    /// Live ones are read first. A job that ends meanwhile is found by the second statement.
    pub(super) async fn jobs(
        &self,
        ids: &[&str],
    ) -> Result<HashMap<String, Result<Job, UnreadableJob>>, StoreError> {
        let now = self.clock.now();
        let mut found = HashMap::with_capacity(ids.len());
        let mut add = |rows: &[Row]| {
            for row in rows {
                found.insert(row::column(row, 0)?, row::stored(row, now));
            }
            Ok::<_, StoreError>(())
        };
        let rows = self.readers.query(LIVE, &[&ids]).await?;
        add(&rows)?;
        let live: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
        let missing: Vec<&str> = ids.iter().copied().filter(|id| !live.contains(id)).collect();
        if !missing.is_empty() {
            add(&self.readers.query(ENDED, &[&missing, &now.millis()]).await?)?;
        }
        Ok(found)
    }

    pub(super) async fn jobs_by_id(&self, ids: &[JobId]) -> Result<Vec<StoredJob>, StoreError> {
        let texts: Vec<&str> = ids.iter().map(JobId::as_str).collect();
        let found = self.jobs(&texts).await?;
        Ok(ids.iter().map(|id| found.get(id.as_str()).cloned().transpose()).collect())
    }

    pub(super) async fn bodies_by_id(&self, ids: &[JobId]) -> Result<Vec<StoredBody>, StoreError> {
        let texts: Vec<&str> = ids.iter().map(JobId::as_str).collect();
        let mut found: HashMap<String, StoredBody> = HashMap::new();
        for row in self.readers.query(BODIES, &[&texts]).await? {
            let id: String = row::column(&row, 0)?;
            let (encoding, stored): (i16, &[u8]) = (row::column(&row, 1)?, row::column(&row, 2)?);
            let bytes = checked(stored, &id, encoding as u8, || format!("the body of job {id}"));
            let body = match bytes {
                Ok(bytes) => Ok(Some(Payload {
                    encoding: encoding_of(encoding.into()),
                    bytes: bytes::Bytes::copy_from_slice(bytes),
                })),
                Err(error) => Err(unreadable(&*id, &error)),
            };
            found.insert(id, body);
        }
        Ok(ids.iter().map(|id| found.remove(id.as_str()).unwrap_or(Ok(None))).collect())
    }

    pub(super) async fn running_jobs(
        &self,
        queue: &QueueName,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<Result<Job, UnreadableJob>>, StoreError> {
        let Some(queue) = self.names.with(&self.readers, [queue], []).await?.queue(queue) else {
            return Ok(Vec::new());
        };
        // No id is empty, so all ids follow the empty text.
        let after = after.map_or("", JobId::as_str);
        let rows = self.readers.query(RUNNING, &[&queue, &after, &i64::from(limit)]).await?;
        let now = self.clock.now();
        Ok(rows.iter().map(|row| row::stored(row, now)).collect())
    }

    /// The newest ledger of `queue` with the batches that it names, unless its version is `known`.
    ///
    /// The ledger is read before its batches. They never change, and only a later ledger lets one be
    /// removed. So what is found is as it was when the ledger was read, and a batch that is missing was
    /// removed meanwhile, or is lost. A snapshot of both would be simpler, but has to read all batches of the
    /// queue, and while an old transaction is open also those that were removed.
    pub(super) async fn ledger_unless(
        &self,
        queue: &QueueName,
        known: u64,
    ) -> Result<Option<(Ledger, Vec<GrantBatch>)>, StoreError> {
        let Some(number) = self.names.with(&self.readers, [queue], []).await?.queue(queue) else {
            return Ok(None);
        };
        let known = known as i64;
        for _ in 0..MAX_LEDGER_READS {
            let rows = self.readers.query(LEDGER, &[&number, &known]).await?;
            let Some(row) = rows.first() else { return Ok(None) };
            let ledger = ledger_of(queue, row::column(row, 0)?)?;
            let ids: Vec<i64> = ledger.referenced_batches().map(|id| id.0 as i64).collect();
            if ids.is_empty() {
                return Ok(Some((ledger, Vec::new())));
            }
            let rows = self.readers.query(LEDGER_BATCHES, &[&number, &ids]).await?;
            if rows.len() == ids.len() {
                return Ok(Some(with_batches(queue, ledger, &rows)?));
            }
        }
        let rows = self.readers.query(LEDGER_AND_BATCHES, &[&number, &known]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let ledger = ledger_of(queue, row::column(row, 2)?)?;
        Ok(Some(with_batches(queue, ledger, &rows)?))
    }

    pub(super) async fn batches_of(
        &self,
        queue: &QueueName,
    ) -> Result<Vec<(BatchId, u64)>, StoreError> {
        let Some(queue) = self.names.with(&self.readers, [queue], []).await?.queue(queue) else {
            return Ok(Vec::new());
        };
        let rows = self.readers.query(BATCHES, &[&queue]).await?;
        let mut batches = Vec::with_capacity(rows.len());
        for row in &rows {
            let (id, ledger): (i64, i64) = (row::column(row, 0)?, row::column(row, 1)?);
            batches.push((BatchId(id as u64), ledger as u64));
        }
        // Ids are unsigned.
        batches.sort_unstable();
        Ok(batches)
    }

    pub(super) async fn jobs_by_key(&self, keys: &[Key]) -> Result<Vec<StoredKey>, StoreError> {
        let types = keys.iter().filter_map(|key| match key {
            Key::Correlation(name, _) | Key::Unique(name, _) => Some(name),
            Key::Idempotency(_) => None,
        });
        let names = self.names.with(&self.readers, [], types.collect::<Vec<_>>()).await?;
        let mut found: Vec<StoredKey> = keys.iter().map(|_| Ok(None)).collect();
        let columns = keys.iter().enumerate();
        let columns: Vec<_> =
            columns.filter_map(|(n, key)| Some((n as i32, key_columns(key, &names)?))).collect();
        let numbers: Vec<i32> = columns.iter().map(|(n, _)| *n).collect();
        let kinds: Vec<i16> = columns.iter().map(|(_, key)| key.kind).collect();
        let types: Vec<i32> = columns.iter().map(|(_, key)| key.job_type).collect();
        let texts: Vec<&str> = columns.iter().map(|(_, key)| &key.key[..]).collect();
        for row in self.readers.query(KEYS, &[&numbers, &kinds, &types, &texts]).await? {
            let n: i32 = row::column(&row, 0)?;
            found[n as usize] = key_job(row::column(&row, 1)?, row::column(&row, 2)?).map(Some);
        }
        Ok(found)
    }

    pub(super) async fn items_of(&self, kind: ItemKind) -> Result<Vec<Item>, StoreError> {
        let rows = self.readers.query(ITEMS, &[&kind.as_str()]).await?;
        let item = |row: &Row| {
            let (name, version): (String, i64) = (row::column(row, 0)?, row::column(row, 1)?);
            let stored: Option<&[u8]> = row::column(row, 2)?;
            let owner = item_owner(kind, &name, version);
            let what = || format!("the {} {name}", kind.as_str());
            let bytes = checked(stored.unwrap_or_default(), &owner, 0, what);
            let bytes = bytes.map(<[u8]>::to_vec).map_err(|error| error.chain().to_string());
            Ok(Item { name, version: version as u64, bytes })
        };
        rows.iter().map(item).collect()
    }

    pub(super) async fn record_page(&self, query: &RecordQuery) -> Result<Vec<Record>, StoreError> {
        let kind = query.kind.as_str();
        let prefix = text::stored(&query.prefix);
        // Names consist of letters, digits, dots and dashes, which all sort before a tilde.
        let end = format!("{prefix}~");
        let mut after = text::stored(query.after.as_deref().unwrap_or_default()).into_owned();
        let (mut found, mut damaged) = (Vec::new(), 0);
        while found.len() < query.limit as usize && damaged < MAX_UNREADABLE_RECORDS {
            let most = i64::from(query.limit) - found.len() as i64;
            let rows = self.readers.query(RECORDS, &[&kind, &prefix, &end, &after, &most]).await?;
            for row in &rows {
                let (name, until): (&str, i64) = (row::column(row, 0)?, row::column(row, 1)?);
                match record(kind, name, until, row::column(row, 2)?) {
                    Some(record) => found.push(record),
                    None => damaged += 1,
                }
                name.clone_into(&mut after);
            }
            if rows.len() < most as usize {
                break;
            }
        }
        Ok(found)
    }
}

/// The ledger of `queue` whose blob is `head`.
fn ledger_of(queue: &QueueName, head: &[u8]) -> Result<Ledger, StoreError> {
    decode(head, queue.as_str(), || format!("the ledger of queue {queue}"))
}

/// `ledger` of `queue` with the batches that it names, as far as they are among `rows`. The first two columns
/// of a row are the number of a batch and its blob.
fn with_batches(
    queue: &QueueName,
    ledger: Ledger,
    rows: &[Row],
) -> Result<(Ledger, Vec<GrantBatch>), StoreError> {
    let mut stored: HashMap<BatchId, &[u8]> = HashMap::with_capacity(rows.len());
    for row in rows {
        if let Some(id) = row::column::<Option<i64>>(row, 0)? {
            stored.insert(BatchId(id as u64), row::column(row, 1)?);
        }
    }
    let named = ledger.referenced_batches().filter_map(|id| Some((id, *stored.get(&id)?)));
    let batches = named.map(|(id, batch)| {
        decode(batch, queue.as_str(), || format!("batch {} of queue {queue}", id.0))
    });
    let batches = batches.collect::<Result<_, _>>()?;
    Ok((ledger, batches))
}
