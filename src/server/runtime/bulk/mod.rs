//! Bulk operations: cancel, replay, purge or change all matching jobs, in the background, with
//! counts.
//!
//! An operation is an item in the store, written after each page, so it survives a restart and
//! continues from its page. A repeated job is harmless: an ended job refuses, and a job is replayed
//! once. The counts of a repeated page have a job that was cancelled or changed before as refused,
//! or not at all if it no longer matches; a replay that was made since the operation began counts
//! as its own. An operation with an `Idempotency-Key` derives its id from the key, so that a
//! repeated request finds it.

mod apply;
mod stored;
#[cfg(test)]
mod tests;

use futures_util::{StreamExt, stream};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tidegate_core::error_code::ErrorCode;

pub(super) use self::stored::StoredOperation;
use super::Server;
use tidegate_core::{
    job::Job,
    port::{
        Committed, Write,
        job_store::{ItemKind, ListQuery, MAX_UNREADABLE},
    },
    stored::UnknownNames,
    time::Timestamp,
    validate::check_windows,
};
use tidegate_engine::{
    Error, fault,
    request::{BulkKind, BulkPatch, JobFilter, MAX_SKIPPED_JOBS, Operation},
};

/// Jobs of one page.
const PAGE_SIZE: u32 = 200;
/// Jobs of a page that change at the same time.
const MAX_CONCURRENT_CHANGES: usize = 16;
/// Most ended operations that are kept.
const MAX_OPERATIONS: usize = 100;

/// What an operation does beyond its kind.
enum Change {
    None,
    /// It replays jobs that were replayed before.
    Again,
    Patch(BulkPatch),
}

impl Server {
    /// Starts a bulk operation and returns at once. A repeat with the same `idempotency_key`
    /// returns the first operation while that is kept.
    ///
    /// # Errors
    ///
    /// The store's; [`Error::Unavailable`] while the server stops; 409 `idempotency_key_reused`.
    pub async fn bulk(
        &self,
        kind: BulkKind,
        filter: JobFilter,
        idempotency_key: Option<&str>,
    ) -> Result<Operation, Error> {
        self.begin_operation(kind, filter, Change::None, idempotency_key).await
    }

    /// Starts a replay of every job that `filter` matches, as [`Server::bulk`]; `again`, also of
    /// those that were replayed before.
    ///
    /// # Errors
    ///
    /// Those of [`Server::bulk`].
    pub async fn bulk_replay(
        &self,
        filter: JobFilter,
        again: bool,
        idempotency_key: Option<&str>,
    ) -> Result<Operation, Error> {
        let change = if again { Change::Again } else { Change::None };
        self.begin_operation(BulkKind::Replay, filter, change, idempotency_key).await
    }

    /// Starts a change of every scheduled job that `filter` matches, as [`Server::bulk`].
    ///
    /// # Errors
    ///
    /// 400 for bad windows; those of [`Server::bulk`].
    pub async fn bulk_patch(
        &self,
        filter: JobFilter,
        patch: BulkPatch,
        idempotency_key: Option<&str>,
    ) -> Result<Operation, Error> {
        let windows = patch.windows.as_ref().and_then(Option::as_deref);
        check_windows(windows.unwrap_or_default()).map_err(fault)?;
        self.begin_operation(BulkKind::Patch, filter, Change::Patch(patch), idempotency_key).await
    }

    async fn begin_operation(
        &self,
        kind: BulkKind,
        filter: JobFilter,
        change: Change,
        idempotency_key: Option<&str>,
    ) -> Result<Operation, Error> {
        self.ready().await?;
        let now = self.now();
        let id = idempotency_key.map_or_else(
            || format!("{:032x}", self.inner.engine.ports().entropy.bits()),
            |key| digest(&key),
        );
        let states: Vec<String> =
            filter.states.iter().map(|state| state.as_str().to_owned()).collect();
        let request = (
            kind,
            &filter.job_type,
            &filter.queue,
            &states,
            &filter.attributes,
            filter.from,
            filter.to,
        );
        // A release without such changes has the same digest for the other requests.
        let request_digest = match &change {
            Change::None => digest(&request),
            Change::Again => digest(&(request, "again")),
            Change::Patch(patch) => digest(&(request, patch)),
        };
        let operation = Operation {
            id,
            kind,
            state: "running".into(),
            matched: 0,
            done: 0,
            refused: 0,
            skipped: 0,
            skipped_jobs: Vec::new(),
            unreadable: Vec::new(),
            created_at: now,
            ended_at: None,
            error: None,
            unknown: UnknownNames::new(),
        };
        let end = now + std::time::Duration::from_millis(1);
        let stored = StoredOperation {
            operation,
            job_type: filter.job_type,
            queue: filter.queue,
            states,
            attributes: filter.attributes,
            from: filter.from,
            to: filter.to.unwrap_or(end).min(end),
            cursor: None,
            again: matches!(change, Change::Again),
            patch: if let Change::Patch(patch) = change { Some(patch) } else { None },
            request_digest,
        };
        let stored = self.add(stored).await?;
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

    /// Records the end of an operation.
    pub(super) async fn finish_operation(
        &self,
        mut stored: StoredOperation,
        done: Result<bool, Error>,
    ) -> Result<(), Error> {
        stored.operation.ended_at = Some(self.now());
        stored.operation.state = if done.is_ok() { "done" } else { "failed" }.into();
        stored.operation.error = done.err().map(|error| error.to_string());
        self.save(&stored).await?;
        self.prune_operations().await
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
            done => self.finish_operation(stored, done).await.map(|()| true),
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

    /// Processes page after page, and stops after the first that ends past `until`. Returns whether
    /// all pages are done.
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
        let states = stored.states()?;
        loop {
            let query = ListQuery {
                job_type: stored.job_type.clone(),
                queue: stored.queue.clone(),
                states: states.clone(),
                attributes: stored.attributes.clone(),
                from: stored.from,
                to: Some(stored.to),
                cursor: stored.cursor.clone(),
                limit: PAGE_SIZE,
                ..ListQuery::default()
            };
            let list = || async { Ok(self.inner.engine.ports().store.list(&query).await?) };
            let page = self.persist(until, list).await?;
            self.apply_to_page(stored, &page.jobs, until).await?;
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
            if self.now() >= until {
                return Ok(false);
            }
        }
    }

    /// Applies the operation to the jobs of a page, several at the same time, and counts them.
    /// After an error no further job is begun.
    async fn apply_to_page(
        &self,
        stored: &mut StoredOperation,
        page: &[Job],
        until: Timestamp,
    ) -> Result<(), Error> {
        let operation = &stored.clone();
        let apply = |job| self.persist(until, move || self.apply_to(operation, job));
        let each: Vec<_> = page.iter().map(apply).collect();
        let mut results = stream::iter(each).buffered(MAX_CONCURRENT_CHANGES);
        while let Some(result) = results.next().await {
            stored.operation.matched += 1;
            match result {
                Ok(None) => stored.operation.done += 1,
                Ok(Some(skipped)) => {
                    let operation = &mut stored.operation;
                    operation.skipped += 1;
                    if operation.skipped_jobs.len() < MAX_SKIPPED_JOBS {
                        operation.skipped_jobs.push(skipped);
                    }
                }
                Err(error @ (Error::Internal(_) | Error::Unavailable { .. })) => return Err(error),
                Err(_) => stored.operation.refused += 1,
            }
        }
        Ok(())
    }

    /// Repeats a call while the store is unavailable, but not at `until` or later.
    async fn persist<T, F: Future<Output = Result<T, Error>>>(
        &self,
        until: Timestamp,
        what: impl Fn() -> F,
    ) -> Result<T, Error> {
        let clock = &self.inner.engine.ports().clock;
        loop {
            match what().await {
                Err(Error::Unavailable { retry_after, message })
                    if clock.now() + retry_after < until =>
                {
                    tracing::warn!(message, "a bulk operation waits for the store");
                    clock.sleep_until(clock.now() + retry_after).await;
                }
                done => return done,
            }
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
