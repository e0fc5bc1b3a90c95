//! Orphans: objects that no job names. A process died between storing an object and committing its
//! job, or between removing a job and deleting its objects.
//!
//! A [pass](super::pass) lists all objects, a page at a time, and reads the job that each was stored
//! for. What it finds to be an orphan was stored a day ago or more, so no request that stored it is
//! under way. The pages of a long pass follow each other faster, so that it ends within days. Each pass
//! begins with the objects of plugins.

use std::{collections::BTreeSet, time::Duration};

use futures_util::{StreamExt, stream};
use object_store::path::Path;

use super::objects::{BODIES, owner_of};
use crate::{Engine, Error};
use tidegate_core::{
    error_chain::ErrorChain, job::JobId, port::job_store::StoredJob, time::Timestamp,
};

/// Age from which an object may be an orphan.
const MIN_ORPHAN_AGE: Duration = Duration::from_hours(24);
/// Objects of a page: as many as one request to S3 lists.
const PAGE_OBJECTS: usize = 1000;
/// The longest time from one page to the next.
const MAX_PAGE_INTERVAL: Duration = Duration::from_mins(10);
/// This time divided by the number of the pages so far is the time to the next one, if that is shorter.
/// So the number of pages doubles every eight hours.
const PAGE_TIME: Duration = Duration::from_hours(12);
/// The name of the pass.
const PASS_NAME: &str = "objects";

/// What some pages of the pass found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweptObjects {
    /// How many objects were listed.
    pub listed: usize,
    /// How many of them were orphans, and were deleted.
    pub deleted: usize,
    /// How many of them were orphans, and could not be deleted. The next pass finds them again.
    pub failed: usize,
}

impl Engine {
    /// Reads the pages of the objects that are due, until `until`, and deletes those that no job names.
    /// At the start of a pass, deletes the objects of plugins that no version names.
    ///
    /// # Errors
    ///
    /// Those of the stores. A repeat is harmless.
    pub async fn sweep_objects(&self, until: Timestamp) -> Result<SweptObjects, Error> {
        let mut swept = SweptObjects::default();
        while let Some((version, mut pass)) = self.due_pass(PASS_NAME).await? {
            if pass.after.is_none() {
                self.sweep_plugin_objects(&mut swept).await?;
            }
            let now = self.now();
            let page = self.object_page(pass.after.as_deref()).await;
            let page = page.map_err(|error| unavailable(&error))?;
            let last = page.last().filter(|_| page.len() == PAGE_OBJECTS).map(ToString::to_string);
            swept.listed += page.len();
            let orphans = self.orphans(page, now).await?;
            self.delete_orphans(orphans, &mut swept).await;
            pass.step(last, now, page_interval(pass.steps + 1));
            if !self.record_step(PASS_NAME, version, &pass).await? || self.now() >= until {
                break;
            }
        }
        Ok(swept)
    }

    /// Deletes these objects. One that cannot be deleted does not keep the others.
    pub(crate) async fn delete_orphans(&self, orphans: Vec<Path>, swept: &mut SweptObjects) {
        if orphans.is_empty() {
            return;
        }
        let (count, before) = (orphans.len(), swept.deleted);
        let mut gone = self.ports.objects.delete_stream(stream::iter(orphans).map(Ok).boxed());
        let mut first_error = None;
        while let Some(gone) = gone.next().await {
            match gone {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => swept.deleted += 1,
                // One error may be that of many objects.
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        let deleted = swept.deleted - before;
        let failed = count.saturating_sub(deleted);
        swept.failed += failed;
        match first_error {
            None => tracing::info!(deleted, "objects that no record names were deleted"),
            Some(error) => {
                let error = ErrorChain(&error);
                tracing::warn!(deleted, failed, %error, "objects that no record names are not deleted");
            }
        }
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
        let is_orphan = |((object, _), job): ((Path, JobId), StoredJob)| {
            let is_named = match &job {
                Ok(Some(job)) => job.object_keys().any(|key| Path::from(key) == object),
                Ok(None) => false,
                // What it names is not known.
                Err(_) => true,
            };
            (!is_named).then_some(object)
        };
        Ok(owned.into_iter().zip(jobs).filter_map(is_orphan).collect())
    }
}

/// The time from page number `page` of a pass to the next one.
fn page_interval(page: u64) -> Duration {
    let page = u32::try_from(page).unwrap_or(u32::MAX).max(1);
    (PAGE_TIME / page).min(MAX_PAGE_INTERVAL)
}

fn unavailable(error: &object_store::Error) -> Error {
    Error::unavailable(
        Duration::from_mins(1),
        format!("the objects cannot be swept: {}", ErrorChain(error)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_ends_within_days_however_many_objects_there_are() {
        for (objects, days) in [(72_000, 1), (1_000_000, 2), (60_000_000, 4)] {
            let pages = 1..=objects / PAGE_OBJECTS as u64;
            let time: Duration = pages.map(page_interval).sum();
            assert!(time <= Duration::from_hours(24 * days), "{objects}: {time:?}");
        }
    }
}
