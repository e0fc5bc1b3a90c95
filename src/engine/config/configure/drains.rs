//! Drains and stops of workers, each kept whatever else changes at the same moment.

use super::{MAX_CONFLICT_RETRIES, bytes, contended};
use crate::{
    Engine, Error,
    config::drain::{Drain, DrainChange},
};
use tidegate_core::{
    error_code::ErrorCode,
    port::{
        Committed, Write,
        job_store::{Item, ItemKind},
    },
};

/// Most workers that are drained or stopped at once.
const MAX_DRAINS: usize = 1000;

impl Engine {
    /// Applies a change to why a worker gets no more jobs, and returns what it is then. Two changes
    /// at the same moment take effect one after the other: see [`Drain::after`].
    ///
    /// # Errors
    ///
    /// 409 `too_many_drains` for a further worker; 409 `concurrent_update`; the store's.
    pub async fn change_drain(
        &self,
        worker: &str,
        change: DrainChange,
    ) -> Result<Option<Drain>, Error> {
        for _ in 0..MAX_CONFLICT_RETRIES {
            let items = self.ports.store.items(ItemKind::Drain).await?;
            let stored = items.iter().find(|item| item.name == worker);
            // One that cannot be read is replaced.
            let read = stored.map(Item::read::<Drain>);
            let current = read.as_ref().and_then(|read| read.as_ref().ok()).copied();
            let after = Drain::after(current, change, self.now());
            if after == current && !matches!(read, Some(Err(_))) {
                return Ok(current);
            }
            if stored.is_none() && items.len() >= MAX_DRAINS {
                let drained = items.len();
                let message =
                    format!("{drained} workers are drained or stopped: delete those that are gone");
                let code = ErrorCode::TooManyDrains;
                return Err(Error::Conflict { code, message, holder: None });
            }
            let was = stored.map_or(0, |item| item.version);
            let write = Write::SetItem {
                kind: ItemKind::Drain,
                name: worker.to_owned(),
                was,
                version: self.version_before(was).await? + 1,
                bytes: after.as_ref().map(bytes).transpose()?,
            };
            let committed = self.ports.store.commit(vec![vec![write]]).await;
            self.forget_catalog_check();
            if matches!(committed?.pop(), Some(Committed::All)) {
                return Ok(after);
            }
        }
        Err(contended(worker))
    }
}
