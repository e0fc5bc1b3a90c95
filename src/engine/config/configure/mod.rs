//! The configuration of queues, types and their limits, changed while they run.
//!
//! The order of the writes makes a change effective: the item, then the config version of the
//! ledger, then the answer. A tick commits only under the newest configuration that it could know.
//! So after the answer nothing is admitted under the old one.
//!
//! A type moves to another queue, or is removed, only without live jobs, while jobs are being
//! added. So it takes two writes: a **mark** (`TypeItem::leaving`), then, if no job is live, the
//! change itself. Each is conditional on the version that was read.
//!
//! - An enqueue commits only at the version of the type that it read, so after the mark no older
//!   one commits.
//! - An enqueue that finds the mark removes it before it adds its job, and the change is refused.
//! - In a store without atomic transactions, a write that was in flight at the mark has landed
//!   after the longest write in flight. The change waits that long before it searches for live
//!   jobs.
//! - A process that dies between the two writes leaves a mark, which the next enqueue or change
//!   removes.

mod drains;
mod queues;
mod types;

use crate::{Engine, Error};
use tidegate_core::{
    error_code::ErrorCode,
    job::{QueueName, TypeName},
    port::{
        Committed, Write,
        job_store::{CurrentRecord, ItemKind},
    },
};

/// How often a change is tried again because another writer changed the item first.
pub(crate) const MAX_CONFLICT_RETRIES: usize = 16;

/// The queue of types that name none. It needs no configuration.
pub const DEFAULT_QUEUE: &str = "default";

impl Engine {
    /// Writes an item that is neither a queue nor a type, whatever is stored now.
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
        for _ in 0..MAX_CONFLICT_RETRIES {
            let write = Write::SetItem {
                kind,
                name: name.to_owned(),
                was,
                version: was + 1,
                bytes: bytes.clone(),
            };
            let committed = self.ports.store.commit(vec![vec![write]]).await;
            self.forget_catalog_check();
            match committed?.pop() {
                Some(Committed::All) => return Ok(()),
                Some(Committed::Conflict { current: CurrentRecord::Version(version), .. }) => {
                    was = version;
                }
                Some(Committed::Conflict { .. }) => was = 0,
                None => break,
            }
        }
        Err(contended(name))
    }

    /// The version that precedes the next version of an item. An item that is created under the
    /// name of a removed one continues after every version of that one, so that no reader confuses
    /// the two.
    async fn version_before(&self, was: u64) -> Result<u64, Error> {
        // Every change of an item raises this number, so no item has a higher version.
        if was == 0 { Ok(self.ports.store.items_version().await?) } else { Ok(was) }
    }

    /// Commits a change of items, which keep the fields of a newer release. Returns false if one of
    /// them is no longer as it was read.
    pub(crate) async fn write_items(&self, mut writes: Vec<Write>) -> Result<bool, Error> {
        // The caller has read the catalog. If a tick has discarded it since, it is read again.
        self.known_catalog().await?.keep_unknown_fields(&mut writes)?;
        let committed = self.ports.store.commit(vec![writes]).await;
        self.forget_catalog_check();
        Ok(matches!(committed?.pop(), Some(Committed::All)))
    }

    /// Refuses if a job of the type, or in the queue, has not ended.
    async fn refuse_live(
        &self,
        job_type: Option<&TypeName>,
        queue: Option<&QueueName>,
        code: ErrorCode,
    ) -> Result<(), Error> {
        let Some(live) = self.ports.store.live_job(job_type, queue).await? else { return Ok(()) };
        let holder = live.ok().map(|job| job.id);
        Err(Error::Conflict { code, message: "it has jobs that have not ended".into(), holder })
    }
}

pub(crate) fn bytes(item: &impl serde::Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(item)
        .map_err(|error| Error::Internal(format!("a configuration cannot be written: {error}")))
}

fn refuse_reserved(is_reserved: bool) -> Result<(), Error> {
    if is_reserved {
        Err(Error::Forbidden("names that start with tidegate. are reserved for the server".into()))
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
