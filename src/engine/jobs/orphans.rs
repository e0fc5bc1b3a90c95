//! Orphans: objects that no job names. A process died between storing an object and committing its
//! job, or between removing a job and deleting its objects.
//!
//! A pass lists all objects, a page at a time, and reads the job that each was stored for. What it
//! finds to be an orphan was stored a day ago or more, so no request that stored it is under way.

use std::{collections::BTreeSet, time::Duration};

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::objects::{BODIES, object_keys, owner_of};
use crate::{Engine, Error};
use tidegate_core::{
    error_chain::ErrorChain,
    job::JobId,
    port::{
        Write,
        job_store::{Committed, ItemKind},
    },
    stored::UnknownNames,
    time::Timestamp,
};

/// Age from which an object may be an orphan.
const MIN_ORPHAN_AGE: Duration = Duration::from_hours(24);
/// Objects of a page: as many as one request to S3 lists.
const PAGE_OBJECTS: usize = 1000;
/// The time from one page to the next.
const PAGE_INTERVAL: Duration = Duration::from_mins(10);
/// The time from the start of a pass to that of the next one, which may take longer.
const PASS_INTERVAL: Duration = Duration::from_hours(6);
/// The name of the item that records the pass.
const PASS_NAME: &str = "objects";

/// How far the pass has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ObjectPass {
    /// When the pass began.
    began: Timestamp,
    /// When the next page is due.
    next_at: Timestamp,
    /// The last object of the latest page; none at the start of a pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<String>,
    #[serde(flatten)]
    unknown: UnknownNames,
}

/// What a page of the pass found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweptObjects {
    /// How many objects were listed.
    pub listed: usize,
    /// How many of them were orphans, and were deleted.
    pub deleted: usize,
}

impl Engine {
    /// Reads the next page of the objects, if one is due, and deletes those that no job names.
    ///
    /// # Errors
    ///
    /// Those of the stores. A repeat is harmless.
    pub async fn sweep_objects(&self) -> Result<SweptObjects, Error> {
        let now = self.now();
        if now < *self.objects_due_at.lock() {
            return Ok(SweptObjects::default());
        }
        let (version, mut pass) = self.read_object_pass().await?;
        if now < pass.next_at {
            *self.objects_due_at.lock() = pass.next_at;
            return Ok(SweptObjects::default());
        }
        if pass.after.is_none() {
            pass.began = now;
            self.ports.store.upkeep().await?;
        }
        let page =
            self.object_page(pass.after.as_deref()).await.map_err(|error| unavailable(&error))?;
        let is_last = page.len() < PAGE_OBJECTS;
        pass.after = page.last().filter(|_| !is_last).map(ToString::to_string);
        let listed = page.len();
        let orphans = self.orphans(page, now).await?;
        let deleted = orphans.len();
        if deleted > 0 {
            let orphans = stream::iter(orphans).map(Ok).boxed();
            let gone = self.ports.objects.delete_stream(orphans);
            let gone = gone.filter(|gone| {
                let missing = matches!(gone, Err(object_store::Error::NotFound { .. }));
                std::future::ready(!missing)
            });
            gone.try_for_each(|_| std::future::ready(Ok(())))
                .await
                .map_err(|error| unavailable(&error))?;
            tracing::info!(deleted, "objects that no job names were deleted");
        }
        let next_pass = if is_last { pass.began + PASS_INTERVAL } else { now };
        pass.next_at = next_pass.max(now + PAGE_INTERVAL);
        *self.objects_due_at.lock() = pass.next_at;
        // If it is refused, another process has read the same page.
        let bytes =
            serde_json::to_vec(&pass).map_err(|error| Error::Internal(error.to_string()))?;
        let write = Write::SetItem {
            kind: ItemKind::Horizon,
            name: PASS_NAME.into(),
            was: version,
            version: version + 1,
            bytes: Some(bytes),
        };
        let _: Vec<Committed> = self.ports.store.commit(vec![vec![write]]).await?;
        Ok(SweptObjects { listed, deleted })
    }

    /// Reads how far the pass has come, and its version; version 0 if there was none.
    async fn read_object_pass(&self) -> Result<(u64, ObjectPass), Error> {
        let items = self.ports.store.items(ItemKind::Horizon).await?;
        let Some(item) = items.into_iter().find(|item| item.name == PASS_NAME) else {
            return Ok((0, ObjectPass::default()));
        };
        // An unreadable record starts the pass again.
        let pass = item.read().unwrap_or_else(|error| {
            tracing::warn!(%error, "the progress of the pass over objects cannot be read");
            ObjectPass::default()
        });
        Ok((item.version, pass))
    }

    /// The first objects after `after`, in order.
    async fn object_page(&self, after: Option<&str>) -> object_store::Result<Vec<Path>> {
        let (objects, prefix) = (&self.ports.objects, Path::from(BODIES));
        let mut listing = match after {
            Some(after) => objects.list_with_offset(Some(&prefix), &Path::from(after)),
            None => objects.list(Some(&prefix)),
        };
        let mut page = BTreeSet::new();
        let mut is_sorted = true;
        while let Some(object) = listing.next().await {
            let location = object?.location;
            is_sorted &= page.last().is_none_or(|last| *last < location);
            page.insert(location);
            if page.len() > PAGE_OBJECTS {
                page.pop_last();
            }
            // S3 lists in order. A folder does not, and is listed to its end.
            if is_sorted && page.len() == PAGE_OBJECTS {
                break;
            }
        }
        Ok(page.into_iter().collect())
    }

    /// Those of `page` that no job names.
    async fn orphans(&self, page: Vec<Path>, now: Timestamp) -> Result<Vec<Path>, Error> {
        // Objects of earlier releases do not tell their job.
        let owned = page.into_iter().filter_map(|object| {
            let (job, stored_at) = owner_of(object.as_ref())?;
            (stored_at + MIN_ORPHAN_AGE <= now).then_some((object, job))
        });
        let owned: Vec<(Path, JobId)> = owned.collect();
        if owned.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<JobId> = owned.iter().map(|(_, job)| job.clone()).collect();
        let jobs = self.ports.store.get(&ids).await?;
        let is_orphan = |((object, _), job): ((Path, JobId), _)| {
            let is_named = match &job {
                Ok(Some(job)) => object_keys(job).any(|key| Path::from(key) == object),
                Ok(None) => false,
                // What it names is not known.
                Err(_) => true,
            };
            (!is_named).then_some(object)
        };
        Ok(owned.into_iter().zip(jobs).filter_map(is_orphan).collect())
    }
}

fn unavailable(error: &object_store::Error) -> Error {
    Error::Unavailable {
        retry_after: Duration::from_mins(1),
        message: format!("the objects cannot be swept: {}", ErrorChain(error)),
    }
}
