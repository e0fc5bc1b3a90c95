//! The queues that have open buckets, so that a sweep costs nothing for a queue without jobs.
//!
//! A queue is listed under the hour of each bucket before the bucket is registered. A process adds
//! no bucket of an hour that is over for longer than [`MIN_AGE`], so the listing of such an hour is
//! removed once the queue has no open bucket of that hour or an earlier one.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures_util::{StreamExt, stream};

use super::{
    DynamoStore,
    bucket::Bucket,
    entry::active,
    key::{self, Hour, Key},
    table::{Change, Item, Page, PageQuery},
};
use tidegate_core::{job::QueueName, port::StoreError, time::Timestamp};

/// Age after its hour at which a listing may be removed.
const MIN_AGE: Duration = Duration::from_mins(15);
/// Registrations that one read returns, to know whether there is any.
const FIRST_BUCKETS: u32 = 8;
/// Queues whose buckets are read at once.
const MAX_CONCURRENT_READS: usize = 16;

impl DynamoStore {
    pub(super) async fn queues_with_open_buckets(
        &self,
        until: Timestamp,
    ) -> Result<BTreeSet<QueueName>, StoreError> {
        self.complete_list().await?;
        let now = self.now();
        let last = format!("{}{}", Hour::of(until.max(now)).text(), key::LAST);
        let listed = self.all(key::ACTIVE.into(), key::FIRST.into(), last).await?;
        let mut queues = BTreeSet::new();
        let mut past: BTreeMap<QueueName, (Hour, Vec<Key>)> = BTreeMap::new();
        for item in listed {
            let Some((hour, queue)) = key::active_of(&item.key.s) else { continue };
            if hour.end() + MIN_AGE < now {
                let (last, keys) = past.entry(queue).or_insert((hour, Vec::new()));
                *last = hour.max(*last);
                keys.push(item.key);
            } else {
                queues.insert(queue);
            }
        }
        let checks = past.into_iter().map(|(queue, (last, keys))| async move {
            let closed = self.removable(&queue, last, keys).await;
            (queue, closed)
        });
        let checks: Vec<_> = checks.collect();
        let checks = stream::iter(checks).buffer_unordered(MAX_CONCURRENT_READS);
        let mut removed: Vec<Change> = Vec::new();
        for (queue, keys) in checks.collect::<Vec<_>>().await {
            match keys {
                Ok(Some(keys)) => {
                    removed.extend(keys.into_iter().map(|key| Change::Delete { key, when: None }));
                }
                Ok(None) => drop(queues.insert(queue)),
                // The other queues are not kept waiting. The next call checks this one again.
                Err(error) => {
                    tracing::warn!(%queue, %error, "a listed queue was not checked");
                    queues.insert(queue);
                }
            }
        }
        if !removed.is_empty()
            && let Err(error) = self.table.write(&removed).await
        {
            tracing::warn!(%error, "listings of queues without jobs were not removed");
        }
        Ok(queues)
    }

    /// The listings of past hours up to `last` if `queue` has no open bucket there.
    async fn removable(
        &self,
        queue: &QueueName,
        last: Hour,
        keys: Vec<Key>,
    ) -> Result<Option<Vec<Key>>, StoreError> {
        for late in [false, true] {
            if self.has_open(queue, last, late).await? {
                return Ok(None);
            }
        }
        Ok(Some(keys))
    }

    /// Whether `queue` has an open bucket.
    pub(super) async fn has_any_open(&self, queue: &QueueName) -> Result<bool, StoreError> {
        let last = Hour::of(Timestamp::MAX);
        Ok(self.has_open(queue, last, false).await? || self.has_open(queue, last, true).await?)
    }

    /// Whether `queue` has an open bucket of `last` or an hour before it.
    async fn has_open(
        &self,
        queue: &QueueName,
        last: Hour,
        late: bool,
    ) -> Result<bool, StoreError> {
        let mut query = PageQuery {
            p: key::open(queue, late),
            from: key::FIRST.to_string(),
            to: format!("{}{}", last.text(), key::LAST),
            limit: Some(FIRST_BUCKETS),
            backward: false,
            after: None,
        };
        loop {
            let Page { items, next } = self.table.query(&query).await?;
            if items.iter().any(|item| Bucket::read(item, late).is_some()) {
                return Ok(true);
            }
            query.after = next;
            if query.after.is_none() {
                return Ok(false);
            }
        }
    }

    /// Lists the queues whose buckets were opened by a release that did not list them.
    pub(super) async fn complete_list(&self) -> Result<(), StoreError> {
        if self.known.lock().active_is_complete {
            return Ok(());
        }
        let marker = key::active_is_complete();
        if self.table.get(std::slice::from_ref(&marker)).await?.pop().flatten().is_none() {
            for queue in self.queues().await? {
                for late in [false, true] {
                    let open = self.whole(key::open(&queue, late)).await?;
                    let listed: BTreeMap<Key, Item> = open
                        .iter()
                        .filter_map(active)
                        .map(|item| (item.key.clone(), item))
                        .collect();
                    let listed: Vec<Change> = listed.into_values().map(Change::Put).collect();
                    if !listed.is_empty() {
                        self.table.write(&listed).await?;
                    }
                }
            }
            self.table.write(&[Change::Put(Item::new(marker, []))]).await?;
        }
        self.known.lock().active_is_complete = true;
        Ok(())
    }
}
