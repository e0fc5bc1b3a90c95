//! Queues: their configuration, and the version of it in their ledgers.

use super::{DEFAULT_QUEUE, MAX_CONFLICT_RETRIES, bytes, contended, refuse_reserved};
use crate::{Catalog, Engine, Error, config::unreadable::Unreadable, jobs::enqueue::fault};
use tidegate_core::{
    error_code::ErrorCode,
    job::QueueName,
    port::{
        StoreError, Write,
        job_store::{Expect, ItemKind},
    },
    queue::{QueueConfig, config::QueueItem, ledger::Ledger, plugin::Role},
    validate,
};

/// A queue as it is to be, before it is written.
struct AlteredQueue {
    /// It has the stored version.
    item: QueueItem,
    /// The stored version, 0 of a new queue.
    was: u64,
    /// Whether the stored configuration cannot be read.
    replaces_unreadable: bool,
    /// The writes to commit with it.
    writes: Vec<Write>,
}

impl Catalog {
    /// The configuration of a queue. The default queue has one even if it was never set.
    ///
    /// # Errors
    ///
    /// 404 `queue_not_found`; 503 if it cannot be read.
    pub fn queue(&self, name: &QueueName) -> Result<QueueItem, Error> {
        self.refuse_unreadable(ItemKind::Queue, name.as_str())?;
        let missing =
            || Error::NotFound { code: ErrorCode::QueueNotFound, what: format!("queue {name}") };
        let implicit = (name.as_str() == DEFAULT_QUEUE).then(QueueItem::default);
        self.queues.get(name).cloned().or(implicit).ok_or_else(missing)
    }
}

impl Engine {
    /// Sets the configuration of a queue as a whole. Returns the item, and whether it is new.
    ///
    /// # Errors
    ///
    /// 400 for a bad value, also in the throttler's configuration; 403 for a name that the server
    /// reserves; 412 if `if_match` is not its version; 503 if the throttler cannot be called here.
    pub async fn put_queue(
        &self,
        name: &QueueName,
        config: QueueConfig,
        if_match: Option<u64>,
    ) -> Result<(QueueItem, bool), Error> {
        self.set_queue(name, config, if_match, Unreadable::Refuse).await
    }

    /// [`Self::put_queue`], also over a stored configuration that cannot be read. Such a queue is
    /// then paused: whether it was is not known.
    ///
    /// # Errors
    ///
    /// As [`Self::put_queue`].
    pub async fn replace_queue(
        &self,
        name: &QueueName,
        config: QueueConfig,
        if_match: Option<u64>,
    ) -> Result<(QueueItem, bool), Error> {
        self.set_queue(name, config, if_match, Unreadable::Replace).await
    }

    async fn set_queue(
        &self,
        name: &QueueName,
        config: QueueConfig,
        if_match: Option<u64>,
        unreadable: Unreadable,
    ) -> Result<(QueueItem, bool), Error> {
        validate::check_queue(&config).map_err(fault)?;
        refuse_reserved(name.is_internal())?;
        let change = |item| QueueItem { config: config.clone(), ..item };
        self.alter_queue(name, if_match, unreadable, change).await
    }

    /// What [`Self::put_queue`] would store. Nothing is changed: the version is the stored one, 0
    /// of a new queue.
    ///
    /// # Errors
    ///
    /// As [`Self::put_queue`].
    pub async fn preview_queue(
        &self,
        name: &QueueName,
        config: QueueConfig,
        if_match: Option<u64>,
    ) -> Result<QueueItem, Error> {
        validate::check_queue(&config).map_err(fault)?;
        refuse_reserved(name.is_internal())?;
        let catalog = self.catalog().await?;
        let change = |item| QueueItem { config: config.clone(), ..item };
        let altered = self.altered_queue(&catalog, name, if_match, Unreadable::Refuse, &change);
        Ok(altered.await?.item)
    }

    /// Pauses or resumes a queue.
    ///
    /// # Errors
    ///
    /// 404 `queue_not_found`.
    pub async fn pause_queue(&self, name: &QueueName, paused: bool) -> Result<QueueItem, Error> {
        self.queue(name).await?;
        let change = |item| QueueItem { paused, ..item };
        Ok(self.alter_queue(name, None, Unreadable::Refuse, change).await?.0)
    }

    async fn alter_queue(
        &self,
        name: &QueueName,
        if_match: Option<u64>,
        unreadable: Unreadable,
        change: impl Fn(QueueItem) -> QueueItem,
    ) -> Result<(QueueItem, bool), Error> {
        for _ in 0..MAX_CONFLICT_RETRIES {
            let catalog = self.catalog().await?;
            let AlteredQueue { mut item, was, replaces_unreadable, mut writes } =
                self.altered_queue(&catalog, name, if_match, unreadable, &change).await?;
            item.version = self.next_version(name, was).await?;
            writes.push(queue_write(name, was, &item)?);
            if self.write_items(writes).await? {
                self.raise_config_version(name, item.version).await?;
                if replaces_unreadable {
                    tracing::warn!(queue = %name, "an unreadable queue was replaced");
                }
                return Ok((item, was == 0));
            }
        }
        Err(contended(name.as_str()))
    }

    /// A queue after `change`, before it is written.
    async fn altered_queue(
        &self,
        catalog: &Catalog,
        name: &QueueName,
        if_match: Option<u64>,
        unreadable: Unreadable,
        change: &impl Fn(QueueItem) -> QueueItem,
    ) -> Result<AlteredQueue, Error> {
        let current = catalog.queues.get(name);
        let version = current.map(|item| item.version);
        let was =
            catalog.version_to_replace(ItemKind::Queue, name.as_str(), version, unreadable)?;
        let replaces_unreadable = was > 0 && current.is_none();
        if if_match.is_some_and(|version| version != was) {
            return Err(Error::Stale { version: was });
        }
        let missing = || QueueItem { paused: replaces_unreadable, ..QueueItem::default() };
        let item = change(current.cloned().unwrap_or_else(missing));
        let writes = self.check_throttler(catalog, current, &item).await?;
        Ok(AlteredQueue { item, was, replaces_unreadable, writes })
    }

    /// Checks a throttler that is new to its queue. Returns the writes to commit with the queue.
    async fn check_throttler(
        &self,
        catalog: &Catalog,
        current: Option<&QueueItem>,
        item: &QueueItem,
    ) -> Result<Vec<Write>, Error> {
        let before = current.and_then(|item| item.config.throttler.as_ref());
        if let Some(throttler) = &item.config.throttler
            && let Some(plugin) = catalog.plugin(&throttler.plugin, Role::Throttler)
            && let Some(description) = plugin.version.description(Role::Throttler)
            && let Some(problem) = description.waiting_problem(item.config.partition_attributes())
        {
            return Err(Error::invalid("partition_by", problem));
        }
        let Some(throttler) =
            item.config.throttler.as_ref().filter(|throttler| before != Some(throttler))
        else {
            return Ok(Vec::new());
        };
        let (name, fields) = (&throttler.plugin, ["throttler.plugin", "throttler.config"]);
        Ok(vec![
            self.check_plugin(catalog, Role::Throttler, name, &throttler.config, fields).await?,
        ])
    }

    /// The version after `was`. A queue that is created under the name of a removed one continues
    /// after the config version of its ledger, which never goes back.
    pub(super) async fn next_version(&self, name: &QueueName, was: u64) -> Result<u64, Error> {
        let seen = if was == 0 {
            self.ports.store.ledger(name).await?.map_or(0, |(ledger, _)| ledger.config_version)
        } else {
            was
        };
        Ok(seen.max(self.version_before(was).await?) + 1)
    }

    /// The configuration of a queue. The default queue has one even if it was never set.
    ///
    /// # Errors
    ///
    /// 404 `queue_not_found`.
    pub async fn queue(&self, name: &QueueName) -> Result<QueueItem, Error> {
        self.catalog().await?.queue(name)
    }

    /// Removes a queue's configuration.
    ///
    /// # Errors
    ///
    /// 404; 412; 409 `queue_has_live_jobs` or `queue_in_use`.
    pub async fn delete_queue(&self, name: &QueueName, if_match: Option<u64>) -> Result<(), Error> {
        for _ in 0..MAX_CONFLICT_RETRIES {
            let item = self.queue(name).await?;
            let catalog = self.catalog().await?;
            catalog.refuse_partial(&[ItemKind::Type])?;
            if let Some((job_type, _)) =
                catalog.types_of(name).next().filter(|_| name.as_str() != DEFAULT_QUEUE)
            {
                let message = format!("type {job_type} belongs to it");
                return Err(Error::Conflict { code: ErrorCode::QueueInUse, message, holder: None });
            }
            self.refuse_live(None, Some(name), ErrorCode::QueueHasLiveJobs).await?;
            if if_match.is_some_and(|version| version != item.version) {
                return Err(Error::Stale { version: item.version });
            }
            // A type that joins raises the version of the queue. So no type has joined since, and
            // without a type no job can enter.
            let write = Write::SetItem {
                kind: ItemKind::Queue,
                name: name.to_string(),
                was: item.version,
                version: item.version + 1,
                bytes: None,
            };
            if self.write_items(vec![write]).await? {
                return Ok(());
            }
        }
        Err(contended(name.as_str()))
    }

    /// Raises the config version of a ledger to `version`, or leaves a higher one. Creates the
    /// ledger if the queue needs one now. A ledger that cannot be read admits nothing, and stays.
    pub(super) async fn raise_config_version(
        &self,
        queue: &QueueName,
        version: u64,
    ) -> Result<(), Error> {
        for _ in 0..MAX_CONFLICT_RETRIES {
            let stored = match self.ports.store.ledger(queue).await {
                Err(StoreError::Corrupt(_)) => return Ok(()),
                stored => stored?,
            };
            let (was, ledger) = match stored {
                Some((ledger, _)) if ledger.config_version >= version => return Ok(()),
                Some((ledger, _)) => (
                    Expect::Is(ledger.version),
                    Ledger { version: ledger.version + 1, config_version: version, ..ledger },
                ),
                None => {
                    if !self.catalog().await?.limits(queue).any() {
                        return Ok(());
                    }
                    let now = self.now();
                    let settling_until =
                        Some(now + self.ports.store.capabilities().atomicity.max_in_flight_write());
                    (
                        Expect::Absent,
                        Ledger {
                            version: 1,
                            config_version: version,
                            time: now,
                            settling_until,
                            ..Ledger::default()
                        },
                    )
                }
            };
            let write = Write::SetLedger { queue: queue.clone(), ledger, was };
            if self.write_items(vec![write]).await? {
                return Ok(());
            }
        }
        Err(contended(queue.as_str()))
    }
}

pub(super) fn queue_write(name: &QueueName, was: u64, item: &QueueItem) -> Result<Write, Error> {
    Ok(Write::SetItem {
        kind: ItemKind::Queue,
        name: name.to_string(),
        was,
        version: item.version,
        bytes: Some(bytes(item)?),
    })
}
