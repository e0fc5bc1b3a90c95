//! `configure`: queues, types and their limits, changed while they run.
//!
//! The order of the writes is what makes a change hold: the item, then the head's config version, then
//! the answer. A tick commits only under the newest configuration it could know of, so after the
//! answer nothing is admitted under the old one.
//!
//! A type moves to another queue, or is removed, only without live jobs, and jobs are being added meanwhile. So it takes
//! two writes: a **mark** ([`TypeItem::leaving`]), then, if no job is live, the change itself, each at the version that
//! was read. An enqueue commits only at the version it was resolved under: after the mark no older one can. One that
//! finds the mark takes it away before it adds its job, and that refuses the change. What a store without atomic
//! transactions had under way at the mark has landed after its longest write in flight, which is waited
//! for before the look. Whoever dies between the two leaves a mark that the next enqueue or change takes away.

mod queues;
mod types;

use crate::{Engine, Error, jobs::enqueue::is_reserved};
use tidegate_core::{
    error_code::ErrorCode,
    job::{QueueName, TypeName},
    port::{
        Committed, Write,
        job_store::{CurrentRecord, ItemKind, ListQuery, StateFilter},
    },
};

/// How often a change is tried against others'.
const TRIES: usize = 16;

/// The queue that types belong to unless they say otherwise; it needs no configuration.
pub const DEFAULT_QUEUE: &str = "default";

impl Engine {
    /// Writes an item that is no queue and no type, whatever stood there.
    ///
    /// # Errors
    ///
    /// The store's; 409 `concurrent_update`.
    pub async fn put_item(
        &self,
        kind: ItemKind,
        name: &str,
        bytes: Option<Vec<u8>>,
    ) -> Result<(), Error> {
        let items = self.ports.store.items(kind).await?;
        let mut was = items.iter().find(|item| item.name == name).map_or(0, |item| item.version);
        for _ in 0..TRIES {
            let write = Write::SetItem {
                kind,
                name: name.to_owned(),
                was,
                version: was + 1,
                bytes: bytes.clone(),
            };
            match self.ports.store.commit(vec![vec![write]]).await?.pop() {
                Some(Committed::All) => return Ok(()),
                Some(Committed::Conflict { standing: CurrentRecord::Version(version), .. }) => {
                    was = version;
                }
                Some(Committed::Conflict { .. }) => was = 0,
                None => break,
            }
        }
        Err(contended(name))
    }

    /// The version that an item's next one follows: what is made anew under a name that was given up goes on after every version
    /// that its forerunner had, so that nobody takes the one for the other.
    async fn version_before(&self, was: u64) -> Result<u64, Error> {
        // This number is raised by every change of an item, so none has a higher version.
        if was == 0 { Ok(self.ports.store.items_version().await?) } else { Ok(was) }
    }

    async fn write_items(&self, writes: Vec<Write>) -> Result<bool, Error> {
        Ok(matches!(self.ports.store.commit(vec![writes]).await?.pop(), Some(Committed::All)))
    }

    /// Refuses if a job of the type, or in the queue, has not ended.
    async fn refuse_live(
        &self,
        job_type: Option<&TypeName>,
        queue: Option<&QueueName>,
        code: ErrorCode,
    ) -> Result<(), Error> {
        let live = [StateFilter::Scheduled, StateFilter::Running];
        let depth = self.ports.store.depth().await?;
        let found = depth.iter().any(|depth| {
            depth.jobs > 0
                && live.contains(&depth.state)
                && job_type.is_none_or(|name| *name == depth.job_type)
                && queue.is_none_or(|name| *name == depth.queue)
        });
        if !found {
            return Ok(());
        }
        let query = ListQuery {
            job_type: job_type.cloned(),
            queue: queue.cloned(),
            states: live.to_vec(),
            limit: 1,
            ..ListQuery::default()
        };
        let holder = self.ports.store.list(&query).await?.jobs.pop().map(|job| job.id);
        Err(Error::Conflict { code, message: "it has jobs that have not ended".into(), holder })
    }
}

pub(crate) fn bytes(item: &impl serde::Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(item)
        .map_err(|error| Error::Internal(format!("a configuration cannot be written: {error}")))
}

fn refuse_reserved(name: &str) -> Result<(), Error> {
    if is_reserved(name) {
        Err(Error::Forbidden("names that start with tidegate. are the server's own".into()))
    } else {
        Ok(())
    }
}

pub(crate) fn contended(name: &str) -> Error {
    Error::Conflict {
        code: ErrorCode::ConcurrentUpdate,
        message: format!("{name} keeps changing"),
        holder: None,
    }
}
