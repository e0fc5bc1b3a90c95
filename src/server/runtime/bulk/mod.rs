//! Bulk operations: cancel, replay, purge or change all matching jobs, in the background, with
//! counts.
//!
//! An operation is an item in the store, written after each page. It survives a restart, and then
//! repeats at most one page. That changes nothing twice: an ended job refuses, a job that has the
//! values of a patch stays as it is, and a job is replayed once.
//!
//! The counts after a repeated page:
//!
//! - A job that was cancelled or purged by the first try counts as refused, or not at all if it no
//!   longer matches.
//! - A patched job counts as done. So does one whose replay was made since the operation began.
//!
//! An operation with an `Idempotency-Key` derives its id from the key, so that a repeated request
//! finds it.
//!
//! Of servers that share a store, their owner runs the operations. If the owner changes, both may
//! process one page, as after a restart.

mod apply;
mod stored;
#[cfg(test)]
mod tests;

use serde::Serialize;
use sha2::{Digest, Sha256};
use tidegate_core::error_code::ErrorCode;

pub(super) use self::stored::StoredOperation;
use super::{Server, shared::OPERATIONS};
use tidegate_core::{
    job::Job,
    port::{
        Committed, JobFilter, Write,
        job_store::{ItemKind, ListQuery, MAX_UNREADABLE, StateFilter},
    },
    time::Timestamp,
    validate::check_windows,
};
use tidegate_engine::{
    Error, fault,
    request::{BulkChange, BulkRequest, Operation},
};

/// Jobs of one page, which an atomic store changes in one commit.
const PAGE_SIZE: u32 = 500;
/// Most ended operations that are kept.
const MAX_OPERATIONS: usize = 100;

impl Server {
    /// Starts a bulk operation and returns at once. A repeat with the same `idempotency_key`
    /// returns the first operation while that is kept.
    ///
    /// # Errors
    ///
    /// 400 for bad windows; 409 `idempotency_key_reused`; the store's; [`Error::Unavailable`] while
    /// the server stops.
    pub async fn bulk(
        &self,
        mut request: BulkRequest,
        idempotency_key: Option<&str>,
    ) -> Result<Operation, Error> {
        if let BulkChange::Patch(patch) = &request.change {
            let windows = patch.windows.as_ref().and_then(Option::as_deref);
            check_windows(windows.unwrap_or_default()).map_err(fault)?;
            // Others cannot change.
            let filter = &mut request.filter;
            if filter.states.is_empty() && filter.phases.is_empty() {
                filter.states = vec![StateFilter::Scheduled];
            }
        }
        self.ready().await?;
        let id = idempotency_key.map_or_else(
            || format!("{:032x}", self.inner.engine.ports().entropy.bits()),
            |key| digest(&key),
        );
        let stored = self.add(StoredOperation::new(request, id, self.now())).await?;
        // Also for a repeat: the store's answer to the first request may be lost, and then no
        // process runs the operation yet.
        if stored.operation.ended_at.is_none() {
            self.continue_operation(stored.clone());
        }
        Ok(stored.operation)
    }

    /// Stores a new operation. Returns the stored one if the same request was made before.
    async fn add(&self, stored: StoredOperation) -> Result<StoredOperation, Error> {
        let (kind, name) = (ItemKind::Operation, stored.operation.id.clone());
        let write = Write::SetItem { kind, name, was: 0, version: 1, bytes: Some(bytes(&stored)?) };
        if let Some(Committed::All) =
            self.inner.engine.ports().store.commit(vec![vec![write]]).await?.pop()
        {
            return Ok(stored);
        }
        let existing = self.stored(&stored.operation.id).await?;
        match existing {
            Some(existing) if existing.request_digest == stored.request_digest => Ok(existing),
            Some(_) => {
                let message =
                    "another operation was requested with this idempotency key".to_owned();
                Err(Error::Conflict {
                    code: ErrorCode::IdempotencyKeyReused,
                    message,
                    holder: None,
                })
            }
            None => Err(Error::Conflict {
                code: ErrorCode::ConcurrentUpdate,
                message: "an operation with this id was just removed".into(),
                holder: None,
            }),
        }
    }

    async fn stored(&self, id: &str) -> Result<Option<StoredOperation>, Error> {
        let items = self.inner.engine.ports().store.items(ItemKind::Operation).await?;
        items.iter().find(|item| item.name == id).map(StoredOperation::decode).transpose()
    }

    /// An operation.
    ///
    /// # Errors
    ///
    /// 404 `operation_not_found`.
    pub async fn operation(&self, id: &str) -> Result<Operation, Error> {
        let found = self.stored(id).await?;
        found.map(|stored| stored.operation).ok_or_else(|| Error::NotFound {
            code: ErrorCode::OperationNotFound,
            what: format!("operation {id}"),
        })
    }

    async fn save(&self, stored: &StoredOperation) -> Result<(), Error> {
        self.inner
            .engine
            .put_item(ItemKind::Operation, &stored.operation.id, Some(bytes(stored)?))
            .await
    }

    /// Records the end of an operation, while the store is unavailable again and again until `until`.
    pub(super) async fn finish_operation(
        &self,
        mut stored: StoredOperation,
        done: Result<bool, Error>,
        until: Timestamp,
    ) -> Result<(), Error> {
        stored.operation.ended_at = Some(self.now());
        // Operations are read together, also by an older release, which knows neither.
        (stored.more, stored.dry_run) = Default::default();
        stored.operation.state = if done.is_ok() { "done" } else { "failed" }.into();
        stored.operation.error = done.err().map(|error| error.to_string());
        self.persist(until, || self.save(&stored)).await?;
        if let Err(error) = self.prune_operations().await {
            tracing::warn!(%error, "old operations were not removed");
        }
        Ok(())
    }

    /// Continues an operation until it ends or until `until`, and then requests its continuation.
    /// Returns whether it ended.
    ///
    /// # Errors
    ///
    /// The store's; a repeat continues.
    pub async fn operate(&self, id: &str, until: Timestamp) -> Result<bool, Error> {
        let Some(mut stored) =
            self.stored(id).await?.filter(|stored| stored.operation.ended_at.is_none())
        else {
            return Ok(true);
        };
        match self.run_operation(&mut stored, until).await {
            Ok(false) => {
                self.continue_operation(stored);
                Ok(false)
            }
            Err(error @ Error::Unavailable { .. }) => Err(error),
            done => self.finish_operation(stored, done, until).await.map(|()| true),
        }
    }

    /// The operations that have not ended.
    ///
    /// # Errors
    ///
    /// The store's.
    pub(super) async fn unfinished(&self) -> Result<Vec<StoredOperation>, Error> {
        let mut stored = self.decodable().await?;
        stored.retain(|stored| stored.operation.ended_at.is_none());
        Ok(stored)
    }

    /// Every operation that can be decoded. The others are logged.
    async fn decodable(&self) -> Result<Vec<StoredOperation>, Error> {
        let items = self.inner.engine.ports().store.items(ItemKind::Operation).await?;
        let decoded = items.iter().map(StoredOperation::decode);
        Ok(decoded
            .filter_map(|stored| {
                stored.inspect_err(|error| tracing::warn!(%error, "an operation is left out")).ok()
            })
            .collect())
    }

    /// Processes page after page, and stops after the first that ends past `until`, or if another
    /// server owns the operations. Returns whether all pages are done.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if the store is unavailable until `until`: a repeat continues with
    /// the page. After any other error the operation has failed.
    pub(super) async fn run_operation(
        &self,
        stored: &mut StoredOperation,
        until: Timestamp,
    ) -> Result<bool, Error> {
        let filter = stored.filter()?;
        loop {
            let query = ListQuery {
                filter: filter.clone(),
                now: self.now(),
                cursor: stored.cursor.clone(),
                limit: PAGE_SIZE,
                ..ListQuery::default()
            };
            let page = self.persist(until, || self.inner.engine.list(&query)).await?;
            self.apply_to_page(stored, &filter, page.jobs, until).await?;
            for job in page.unreadable {
                // A page of some stores repeats those of the page before.
                let unreadable = &mut stored.operation.unreadable;
                if unreadable.len() < MAX_UNREADABLE && !unreadable.contains(&job.id) {
                    unreadable.push(job.id);
                }
            }
            stored.cursor = page.next_cursor;
            if stored.cursor.is_none() {
                return Ok(true);
            }
            self.persist(until, || self.save(stored)).await?;
            // A failed flush is repeated by the next one.
            let _ = self.flush().await;
            if self.now() >= until || !self.inner.owns(OPERATIONS) {
                return Ok(false);
            }
        }
    }

    /// Applies the operation to the jobs of a page, and counts them. Those whose change is not known
    /// because the store was unavailable are tried again, but not at `until` or later.
    async fn apply_to_page(
        &self,
        stored: &mut StoredOperation,
        filter: &JobFilter,
        page: Vec<Job>,
        until: Timestamp,
    ) -> Result<(), Error> {
        stored.operation.matched += page.len() as u64;
        let mut pending = page;
        while !pending.is_empty() {
            let changes = self.apply_each(stored, filter, &pending).await;
            let (mut unresolved, mut unavailable, mut fault) = (Vec::new(), None, None);
            for (job, change) in pending.into_iter().zip(changes) {
                match change {
                    Err(error @ Error::Internal(_)) => fault = Some(error),
                    Err(error @ Error::Unavailable { .. }) => {
                        unavailable = Some(error);
                        unresolved.push(job);
                    }
                    change => stored.count(job.id, change),
                }
            }
            if let Some(error) = fault {
                return Err(error);
            }
            if let Some(error) = unavailable {
                self.wait_for_store(error, until).await?;
            }
            pending = unresolved;
        }
        Ok(())
    }

    /// Repeats a call while the store is unavailable, but not at `until` or later.
    async fn persist<T, F: Future<Output = Result<T, Error>>>(
        &self,
        until: Timestamp,
        what: impl Fn() -> F,
    ) -> Result<T, Error> {
        loop {
            match what().await {
                Err(error @ Error::Unavailable { .. }) => self.wait_for_store(error, until).await?,
                done => return done,
            }
        }
    }

    /// Waits for as long as `error`, of an unavailable store, says.
    ///
    /// # Errors
    ///
    /// The error itself, if that is not before `until`.
    async fn wait_for_store(&self, error: Error, until: Timestamp) -> Result<(), Error> {
        let clock = &self.inner.engine.ports().clock;
        match &error {
            Error::Unavailable { retry_after, message, .. }
                if clock.now() + *retry_after < until =>
            {
                tracing::warn!(message, "a bulk operation waits for the store");
                clock.sleep_until(clock.now() + *retry_after).await;
                Ok(())
            }
            _ => Err(error),
        }
    }

    async fn prune_operations(&self) -> Result<(), Error> {
        let stored = self.decodable().await?.into_iter();
        let mut ended: Vec<(Timestamp, String)> = stored
            .filter_map(|stored| Some((stored.operation.ended_at?, stored.operation.id)))
            .collect();
        ended.sort_unstable();
        let spare = ended.len().saturating_sub(MAX_OPERATIONS);
        for (_, id) in ended.into_iter().take(spare) {
            self.inner.engine.put_item(ItemKind::Operation, &id, None).await?;
        }
        Ok(())
    }
}

fn bytes(stored: &StoredOperation) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(stored).map_err(|error| Error::Internal(error.to_string()))
}

/// 32 hexadecimal digits that are the same for the same value.
fn digest(value: &impl Serialize) -> String {
    let hash = Sha256::digest(serde_json::to_vec(value).unwrap_or_default());
    format!("{:032x}", u128::from_be_bytes(*hash.first_chunk().expect("it has 32 bytes")))
}
