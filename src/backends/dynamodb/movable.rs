//! Lists of everything, for a move of the whole store.
//!
//! **The jobs are found by a scan of the table**, not by registrations: some of those expire. A job that
//! is added by a move gets the entries, timers and registrations of any other new job
//! ([`mod@super::write`]), so that ticks and sweeps find it. What remains is that no sweep counts the
//! jobs of a queue whose jobs have all ended.

use std::{collections::BTreeSet, time::Duration};

use async_trait::async_trait;

use super::{
    DynamoStore,
    key::{self, Hour, Key},
    retention, row,
    table::{Change, Item},
};
use tidegate_core::{
    job::{JobId, QueueName},
    port::{
        AllJobsPage, AllRecordsPage, Movable, StoreError,
        job_store::{self, ItemKind, JobStore as _, RecordKind},
    },
};

/// How long after a move the queues without live jobs are listed to be counted.
const LISTED: Duration = Duration::from_hours(24);

#[async_trait]
impl Movable for DynamoStore {
    async fn all_jobs(&self, after: Option<&str>, limit: u32) -> Result<AllJobsPage, StoreError> {
        let after = after.map(position).transpose()?;
        let page = self.table.scan(key::BUCKETS, after.as_ref(), limit).await?;
        let now = self.now();
        let is_shown = |item: &&Item| item.key.is_row() && !row::is_over(item, now);
        let job = |item: &Item| row::job(item).map_err(|error| row::unreadable_row(item, &error));
        Ok(AllJobsPage {
            jobs: page.items.iter().filter(is_shown).map(job).collect(),
            next: page.next.map(|key| text(&key)).transpose()?,
        })
    }

    async fn keys_of(&self, jobs: &[JobId]) -> Result<Vec<(job_store::Key, JobId)>, StoreError> {
        let rows = self.rows(&jobs.iter().collect::<Vec<_>>()).await?;
        let possible = jobs.iter().zip(&rows).flat_map(|(id, row)| {
            let keys = row.iter().flat_map(retention::possible_keys);
            keys.map(move |key| (key, id))
        });
        let possible: Vec<(job_store::Key, &JobId)> = possible.collect();
        let names: Vec<Key> = possible.iter().map(|(key, _)| key::name(key)).collect();
        let found = if names.is_empty() { Vec::new() } else { self.table.get(&names).await? };
        let mut keys = Vec::new();
        for ((key, id), item) in possible.into_iter().zip(found) {
            let Some(item) = item else { continue };
            let damaged =
                |_| StoreError::corrupt(format!("the key {key:?} of job {id} is damaged"));
            // It may have gone to another job.
            if row::holder(&item, &key).map_err(damaged)? == *id {
                keys.push((key, id.clone()));
            }
        }
        Ok(keys)
    }

    async fn all_records(
        &self,
        kind: RecordKind,
        after: Option<&str>,
        limit: u32,
    ) -> Result<AllRecordsPage, StoreError> {
        self.records_of_all_groups(kind, after, limit).await
    }

    /// A queue with a ledger has a configuration, or has had jobs.
    async fn ledger_queues(&self) -> Result<Vec<QueueName>, StoreError> {
        let configured = self.items(ItemKind::Queue).await?;
        let configured = configured.iter().filter_map(|item| item.name.parse().ok());
        let queues: BTreeSet<QueueName> =
            self.queues().await?.into_iter().chain(configured).collect();
        let queues: Vec<QueueName> = queues.into_iter().collect();
        let ledgers: Vec<Key> = queues.iter().map(key::ledger).collect();
        let found = if ledgers.is_empty() { Vec::new() } else { self.table.get(&ledgers).await? };
        Ok(queues.into_iter().zip(found).filter_map(|(queue, item)| item.map(|_| queue)).collect())
    }

    /// The queues that have had jobs are listed as if they had a bucket of a later hour. So a sweep
    /// counts them in turn, until the hour is over, also those without a live job.
    ///
    /// The version of the configuration is a time. The end of the mark makes another one, which is
    /// greater than those of all stores before.
    async fn complete_move(&self, _: u64) -> Result<(), StoreError> {
        let hour = Hour::of(self.now() + LISTED);
        let queues = self.queues().await?;
        let listing = |queue: &QueueName| {
            Change::Put(Item::new(Key::new(key::ACTIVE, key::active(hour, queue.as_str())), []))
        };
        let changes: Vec<Change> = queues.iter().map(listing).collect();
        if !changes.is_empty() {
            self.table.write(&changes).await?;
        }
        Ok(())
    }
}

/// The text of a position in a scan.
fn text(key: &Key) -> Result<String, StoreError> {
    serde_json::to_string(&(&key.p, &key.s))
        .map_err(|error| StoreError::corrupt_in("a position cannot be encoded", error))
}

/// The position with this text.
fn position(text: &str) -> Result<Key, StoreError> {
    let (p, s): (String, String) = serde_json::from_str(text)
        .map_err(|error| StoreError::corrupt_in("a position of another store", error))?;
    Ok(Key::new(p, s))
}
