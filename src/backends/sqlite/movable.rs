//! Lists of everything, for a move of the whole store.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use rusqlite::{Row, params};

use super::{
    SqliteStore,
    error::Failure,
    names::Names,
    record,
    row::{self, RawText, key_sum, select_jobs},
};
use tidegate_core::{
    job::{JobId, QueueName},
    port::{
        AllJobsPage, AllRecordsPage, Movable,
        job_store::{Key, RecordKind, StoreError},
    },
};

#[async_trait]
impl Movable for SqliteStore {
    async fn all_jobs(&self, after: Option<&str>, limit: u32) -> Result<AllJobsPage, StoreError> {
        // No id is empty, so all ids follow the empty text.
        let after = after.unwrap_or_default();
        self.readers.read(|db| {
            let mut find = db.prepare_cached(select_jobs!("WHERE id > ?1 ORDER BY id LIMIT ?2"))?;
            let mut rows = find.query(params![after, limit])?;
            let (mut page, mut last) = (AllJobsPage::default(), String::new());
            while let Some(row) = rows.next()? {
                last = row::shown_id(row);
                page.jobs.push(row::stored(row)?);
            }
            page.next = (page.jobs.len() == limit as usize).then_some(last);
            Ok(page)
        })
    }

    async fn keys_of(&self, jobs: &[JobId]) -> Result<Vec<(Key, JobId)>, StoreError> {
        let names = self.names();
        self.readers.read(|db| {
            let mut find =
                db.prepare_cached("SELECT kind, type, key, job, sum FROM keys WHERE job = ?1")?;
            let mut keys = Vec::new();
            for job in jobs {
                let mut rows = find.query([job.as_str()])?;
                while let Some(row) = rows.next()? {
                    keys.push((key(row, &names)?, job.clone()));
                }
            }
            Ok(keys)
        })
    }

    async fn all_records(
        &self,
        kind: RecordKind,
        after: Option<&str>,
        limit: u32,
    ) -> Result<AllRecordsPage, StoreError> {
        let after = after.unwrap_or_default();
        self.readers.read(|db| record::page_of_all(db, kind, after, limit))
    }

    async fn ledger_queues(&self) -> Result<Vec<QueueName>, StoreError> {
        let names = self.names();
        let mut queues = self.readers.read(|db| {
            let mut all = db.prepare_cached("SELECT queue FROM heads")?;
            let mut rows = all.query([])?;
            let mut queues = Vec::new();
            while let Some(row) = rows.next()? {
                let number: i64 = row.get(0)?;
                let name = names.queue_name(number).ok_or_else(|| {
                    Failure::corrupt(format!("the ledger of queue number {number} has no queue"))
                })?;
                queues.push(name.clone());
            }
            Ok(queues)
        })?;
        queues.sort_unstable();
        Ok(queues)
    }

    async fn complete_move(&self, least: u64) -> Result<(), StoreError> {
        self.shared.items.fetch_max(least, Ordering::AcqRel);
        Ok(())
    }
}

/// The key in a row of kind, type, key, job and sum.
fn key(row: &Row<'_>, names: &Names) -> Result<Key, Failure> {
    let (kind, job_type): (i64, i64) = (row.get(0)?, row.get(1)?);
    let (key, job): (RawText, RawText) = (row.get(2)?, row.get(3)?);
    let damaged =
        || Failure::corrupt(format!("the key {:?} of job {} is damaged", key.shown(), job.shown()));
    if key_sum(kind, job_type, &key.0, &job.0) != row.get::<_, i64>(4)? {
        return Err(damaged());
    }
    let text = String::from_utf8(key.0.clone()).map_err(|_| damaged())?;
    let type_name = || names.type_name(job_type).cloned().ok_or_else(damaged);
    Ok(match kind {
        0 => Key::Correlation(type_name()?, text),
        1 => Key::Unique(type_name()?, text),
        2 => Key::Idempotency(text),
        _ => return Err(damaged()),
    })
}
