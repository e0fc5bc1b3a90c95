//! Lists of everything, for a move of the whole store.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;

use super::{
    PostgresStore,
    look::record,
    names::Known,
    read::RECORDS,
    row::{self, job_columns},
    text,
};
use tidegate_core::{
    job::{Job, JobId, QueueName},
    port::{
        AllJobsPage, AllRecordsPage, Movable,
        job_store::{Key, RecordKind, StoreError, UnreadableJob},
    },
};

const LIVE: &str =
    concat!("SELECT ", job_columns!("j"), " FROM jobs j WHERE j.id > $1 ORDER BY j.id LIMIT $2");
/// Those that are forgotten too, so that a page reads a bounded number of rows.
const ENDED: &str = concat!(
    "SELECT ",
    job_columns!("e"),
    ", e.forget_at FROM ended e WHERE e.id > $1 ORDER BY e.id LIMIT $2"
);
const KEYS_OF: &str = "SELECT kind, type, key, job FROM keys WHERE job = ANY($1::text[])";
/// Each queue that had a ledger has the row of version 0.
const LEDGER_QUEUES: &str = "SELECT DISTINCT queue FROM heads WHERE queue > $1 AND version > 0";
const RAISE: &str = "UPDATE item_changes SET n = $1 WHERE n < $1";

/// The statements above, whose plans are tested.
#[cfg(test)]
pub(super) const ALL: [&str; 5] = [LIVE, ENDED, KEYS_OF, LEDGER_QUEUES, RAISE];

#[async_trait]
impl Movable for PostgresStore {
    async fn all_jobs(&self, after: Option<&str>, limit: u32) -> Result<AllJobsPage, StoreError> {
        // No id is empty, so all ids follow the empty text.
        let (after, most) = (after.unwrap_or_default(), i64::from(limit));
        let now = self.clock.now();
        // The first rows of both tables together have the first ones of all.
        let mut found: BTreeMap<String, Option<Result<Job, UnreadableJob>>> = BTreeMap::new();
        for row in self.readers.query(ENDED, &[&after, &most]).await? {
            let is_hidden = row::column::<i64>(&row, 6)? <= now.millis();
            let job = (!is_hidden).then(|| row::stored(&row, now));
            found.insert(row::column(&row, 0)?, job);
        }
        for row in self.readers.query(LIVE, &[&after, &most]).await? {
            // It may have taken the id of one that is forgotten.
            found.insert(row::column(&row, 0)?, Some(row::stored(&row, now)));
        }
        let page: Vec<_> = found.into_iter().take(limit as usize).collect();
        let next = page.last().filter(|_| page.len() == limit as usize);
        let next = next.map(|(id, _)| id.clone());
        Ok(AllJobsPage { jobs: page.into_iter().filter_map(|(_, job)| job).collect(), next })
    }

    async fn keys_of(&self, jobs: &[JobId]) -> Result<Vec<(Key, JobId)>, StoreError> {
        let ids: Vec<&str> = jobs.iter().map(JobId::as_str).collect();
        let rows = self.readers.query(KEYS_OF, &[&ids]).await?;
        let mut names = self.names.known();
        let mut keys = Vec::with_capacity(rows.len());
        for row in &rows {
            let (kind, number): (i16, i32) = (row::column(row, 0)?, row::column(row, 1)?);
            let (text, job): (&str, &str) = (row::column(row, 2)?, row::column(row, 3)?);
            if kind != 2 && names.type_name(number).is_none() {
                names = self.names.refresh(&self.readers).await?;
            }
            let text = text::original(text).into_owned();
            let damaged =
                || StoreError::corrupt(format!("the key {text:?} of job {job} is damaged"));
            let key = key(kind, number, &text, &names).ok_or_else(damaged)?;
            keys.push((key, job.parse().map_err(|_| damaged())?));
        }
        Ok(keys)
    }

    async fn all_records(
        &self,
        kind: RecordKind,
        after: Option<&str>,
        limit: u32,
    ) -> Result<AllRecordsPage, StoreError> {
        let (kind, prefix, end) = (kind.as_str(), "", "~");
        let (after, most) = (after.unwrap_or_default(), i64::from(limit));
        let rows = self.readers.query(RECORDS, &[&kind, &prefix, &end, &after, &most]).await?;
        let (mut page, mut last) = (AllRecordsPage::default(), None);
        for row in &rows {
            let (name, until): (&str, i64) = (row::column(row, 0)?, row::column(row, 1)?);
            match record(kind, name, until, row::column(row, 2)?) {
                Some(record) => page.records.push(record),
                None => page.damaged.push(name.to_owned()),
            }
            last = Some(name);
        }
        page.next = last.filter(|_| rows.len() == limit as usize).map(str::to_owned);
        Ok(page)
    }

    async fn ledger_queues(&self) -> Result<Vec<QueueName>, StoreError> {
        let names: Arc<Known> = self.names.refresh(&self.readers).await?;
        let rows = self.readers.query(LEDGER_QUEUES, &[&i32::MIN]).await?;
        let mut queues = Vec::with_capacity(rows.len());
        for row in &rows {
            let number: i32 = row::column(row, 0)?;
            let name = names.queue_name(number).ok_or_else(|| {
                StoreError::corrupt(format!("the ledger of queue number {number} has no queue"))
            })?;
            queues.push(name.clone());
        }
        queues.sort_unstable();
        Ok(queues)
    }

    async fn complete_move(&self, least: u64) -> Result<(), StoreError> {
        self.readers.query(RAISE, &[&i64::try_from(least).unwrap_or(i64::MAX)]).await?;
        Ok(())
    }
}

/// The key of a row; none if it is damaged.
fn key(kind: i16, number: i32, text: &str, names: &Known) -> Option<Key> {
    let job_type = || names.type_name(number).cloned();
    Some(match kind {
        0 => Key::Correlation(job_type()?, text.to_owned()),
        1 => Key::Unique(job_type()?, text.to_owned()),
        2 => Key::Idempotency(text.to_owned()),
        _ => return None,
    })
}
