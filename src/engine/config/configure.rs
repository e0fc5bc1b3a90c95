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

use std::sync::Arc;
use tidegate_core::error_code::ErrorCode;

use crate::{
    Catalog, Engine, Error,
    jobs::enqueue::{fault, is_reserved},
};
use tidegate_core::{
    job::{
        QueueName, TypeName,
        type_config::{TypeConfig, TypeItem},
    },
    port::{
        Committed, Write,
        job_store::{CurrentRecord, Expect, ItemKind, ListQuery, StateFilter},
    },
    queue::{QueueConfig, config::QueueItem, ledger::Ledger, plugin::Role},
    validate,
};

/// How often a change is tried against others'.
const TRIES: usize = 16;

/// The queue that types belong to unless they say otherwise; it needs no configuration.
pub const DEFAULT_QUEUE: &str = "default";

impl Engine {
    /// Sets a queue's configuration as a whole. The item, and whether it is new.
    ///
    /// # Errors
    ///
    /// 400 for a bad value, of the throttler's configuration too; 403 for a name of the server's own; 412 if `if_match` is
    /// not its version; 503 if the throttler cannot be asked here.
    pub async fn put_queue(
        &self,
        name: &QueueName,
        config: QueueConfig,
        if_match: Option<u64>,
    ) -> Result<(QueueItem, bool), Error> {
        validate::check_queue(&config).map_err(fault)?;
        refuse_reserved(name.as_str())?;
        self.alter_queue(name, if_match, |item| QueueItem { config: config.clone(), ..item }).await
    }

    /// Pauses or resumes a queue.
    ///
    /// # Errors
    ///
    /// 404 `queue_not_found`.
    pub async fn pause_queue(&self, name: &QueueName, paused: bool) -> Result<QueueItem, Error> {
        self.queue(name).await?;
        Ok(self.alter_queue(name, None, |item| QueueItem { paused, ..item }).await?.0)
    }

    async fn alter_queue(
        &self,
        name: &QueueName,
        if_match: Option<u64>,
        change: impl Fn(QueueItem) -> QueueItem,
    ) -> Result<(QueueItem, bool), Error> {
        for _ in 0..TRIES {
            let catalog = self.catalog().await?;
            let standing = catalog.queues.get(name);
            let was = standing.map_or(0, |item| item.version);
            if if_match.is_some_and(|version| version != was) {
                return Err(Error::Stale { version: was });
            }
            let mut item = change(standing.cloned().unwrap_or_default());
            let mut writes = self.check_throttler(&catalog, standing, &item).await?;
            item.version = self.next_version(name, was).await?;
            writes.push(queue_write(name, was, &item)?);
            if self.write_items(writes).await? {
                self.move_head(name, item.version).await?;
                return Ok((item, standing.is_none()));
            }
        }
        Err(contended(name.as_str()))
    }

    /// Checks a throttler that is new to its queue: what is to be written with it.
    async fn check_throttler(
        &self,
        catalog: &Catalog,
        standing: Option<&QueueItem>,
        item: &QueueItem,
    ) -> Result<Vec<Write>, Error> {
        let before = standing.and_then(|item| item.config.throttler.as_ref());
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

    /// The version after `was`. A queue made anew goes on after what its head has seen, which never goes back.
    async fn next_version(&self, name: &QueueName, was: u64) -> Result<u64, Error> {
        let seen = if was == 0 {
            self.ports.store.ledger(name).await?.map_or(0, |(head, _)| head.config_version)
        } else {
            was
        };
        Ok(seen.max(self.version_before(was).await?) + 1)
    }

    /// The version that an item's next one follows: what is made anew under a name that was given up goes on after every version
    /// that its forerunner had, so that nobody takes the one for the other.
    async fn version_before(&self, was: u64) -> Result<u64, Error> {
        // This number is raised by every change of an item, so none has a higher version.
        if was == 0 { Ok(self.ports.store.items_version().await?) } else { Ok(was) }
    }

    /// A queue's configuration; that of the default queue even if nobody set it.
    ///
    /// # Errors
    ///
    /// 404 `queue_not_found`.
    pub async fn queue(&self, name: &QueueName) -> Result<QueueItem, Error> {
        let catalog = self.catalog().await?;
        let missing =
            || Error::NotFound { code: ErrorCode::QueueNotFound, what: format!("queue {name}") };
        let implicit = (name.as_str() == DEFAULT_QUEUE).then(QueueItem::default);
        catalog.queues.get(name).cloned().or(implicit).ok_or_else(missing)
    }

    /// Removes a queue's configuration.
    ///
    /// # Errors
    ///
    /// 404; 412; 409 `queue_has_live_jobs` or `queue_in_use`.
    pub async fn delete_queue(&self, name: &QueueName, if_match: Option<u64>) -> Result<(), Error> {
        for _ in 0..TRIES {
            let item = self.queue(name).await?;
            let catalog = self.catalog().await?;
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
            // A type that joins raises the queue's version, so none has since, and without a type no job comes in.
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

    /// Sets a type's configuration as a whole. The item, and whether it is new.
    ///
    /// # Errors
    ///
    /// 400 for a bad value; 403 for a name of the server's own; 404 `queue_not_found`; 409 `type_has_live_jobs`
    /// if its queue changes while jobs wait; 412 if `if_match` is not its version.
    pub async fn put_type(
        &self,
        name: &TypeName,
        config: TypeConfig,
        if_match: Option<u64>,
    ) -> Result<(TypeItem, bool), Error> {
        validate::check_type(&config).map_err(fault)?;
        if self.rules.refuse_unsafe_hosts {
            validate::check_type_hosts(&config).map_err(fault)?;
        }
        refuse_reserved(name.as_str())?;
        refuse_reserved(config.queue.as_str())?;
        for _ in 0..TRIES {
            let catalog = self.catalog().await?;
            let standing = catalog.types.get(name).cloned();
            let mut was = standing.as_ref().map_or(0, |item| item.version);
            if if_match.is_some_and(|version| version != was) {
                return Err(Error::Stale { version: was });
            }
            self.queue(&config.queue).await?;
            let new_retry = standing.as_ref().is_none_or(|item| item.config.retry != config.retry);
            let taken =
                if new_retry { self.take_retry(&catalog, &config.retry).await? } else { None };
            if let Some(item) = standing.as_deref().filter(|item| item.config.queue != config.queue)
            {
                let Some(marked) = self.mark_leaving(name, item).await? else {
                    continue;
                };
                was = marked;
            }
            let item = TypeItem {
                config: config.clone(),
                version: self.version_before(was).await? + 1,
                leaving: false,
            };
            if self.write_type(name, &catalog, was, standing.as_deref(), Some(&item), taken).await?
            {
                return Ok((item, standing.is_none()));
            }
        }
        Err(contended(name.as_str()))
    }

    /// A type's configuration.
    ///
    /// # Errors
    ///
    /// 404 `job_type_not_found`.
    pub async fn job_type(&self, name: &TypeName) -> Result<Arc<TypeItem>, Error> {
        let missing = || Error::NotFound {
            code: ErrorCode::JobTypeNotFound,
            what: format!("job type {name}"),
        };
        self.catalog()
            .await?
            .types
            .get(name)
            .filter(|_| !is_reserved(name.as_str()))
            .cloned()
            .ok_or_else(missing)
    }

    /// Removes a type.
    ///
    /// # Errors
    ///
    /// 404; 412; 409 `type_has_live_jobs`.
    pub async fn delete_type(&self, name: &TypeName, if_match: Option<u64>) -> Result<(), Error> {
        for _ in 0..TRIES {
            let item = self.job_type(name).await?;
            if if_match.is_some_and(|version| version != item.version) {
                return Err(Error::Stale { version: item.version });
            }
            let Some(marked) = self.mark_leaving(name, &item).await? else {
                continue;
            };
            let catalog = self.catalog().await?;
            if self.write_type(name, &catalog, marked, Some(&item), None, None).await? {
                return Ok(());
            }
        }
        Err(contended(name.as_str()))
    }

    /// Marks a type as about to leave its queue, then looks whether it has live jobs. The version of the marked item;
    /// none if somebody else changed it.
    async fn mark_leaving(&self, name: &TypeName, item: &TypeItem) -> Result<Option<u64>, Error> {
        // A type that has them for sure is not even marked.
        self.refuse_live(Some(name), None, ErrorCode::TypeHasLiveJobs).await?;
        let marked = TypeItem { version: item.version + 1, leaving: true, ..item.clone() };
        if !self.write_items(vec![type_write(name, item.version, Some(&marked))?]).await? {
            return Ok(None);
        }
        let flight = self.ports.store.capabilities().atomicity.max_in_flight_write();
        if !flight.is_zero() {
            self.ports.clock.sleep_until(self.now() + flight).await;
        }
        self.refuse_live(Some(name), None, ErrorCode::TypeHasLiveJobs).await?;
        Ok(Some(marked.version))
    }

    /// The catalog in which the type, if it is there, stays where it is: whoever means to move or remove it is refused.
    pub(crate) async fn keep_type(&self, name: &TypeName) -> Result<Arc<Catalog>, Error> {
        for _ in 0..TRIES {
            let catalog = self.catalog().await?;
            let Some(item) = catalog.types.get(name).filter(|item| item.leaving) else {
                return Ok(catalog);
            };
            let kept = TypeItem { version: item.version + 1, leaving: false, ..(**item).clone() };
            self.write_items(vec![type_write(name, item.version, Some(&kept))?]).await?;
        }
        Err(contended(name.as_str()))
    }

    /// Writes a type at version `was` together with the versions of the queues that it joins or whose limits it changes, and of the plugin
    /// that it takes. False if something stood in the way.
    async fn write_type(
        &self,
        name: &TypeName,
        catalog: &Catalog,
        was: u64,
        before: Option<&TypeItem>,
        after: Option<&TypeItem>,
        taken: Option<Write>,
    ) -> Result<bool, Error> {
        let limit = |item: Option<&TypeItem>| {
            item.and_then(|item| {
                item.config.concurrency.map(|most| (item.config.queue.clone(), most))
            })
        };
        let (old, new) = (limit(before), limit(after));
        let mut moved: Vec<QueueName> = Vec::new();
        if old != new {
            moved.extend([old, new].into_iter().flatten().map(|(queue, _)| queue));
        }
        // A queue that is there when a type joins it is so that its removal, which looked for types before, is refused.
        let queue = |item: &TypeItem| item.config.queue.clone();
        let joined = after.map(queue).filter(|joined| before.map(queue).as_ref() != Some(joined));
        moved.extend(joined.filter(|joined| catalog.queues.contains_key(joined)));
        moved.sort_unstable();
        moved.dedup();
        let mut writes = vec![type_write(name, was, after)?];
        writes.extend(taken);
        let mut versions = Vec::new();
        for queue in &moved {
            let was = catalog.queues.get(queue).map_or(0, |item| item.version);
            let mut item = catalog.queues.get(queue).cloned().unwrap_or_default();
            item.version = self.next_version(queue, was).await?;
            writes.push(queue_write(queue, was, &item)?);
            versions.push(item.version);
        }
        if !self.write_items(writes).await? {
            return Ok(false);
        }
        for (queue, version) in moved.iter().zip(versions) {
            self.move_head(queue, version).await?;
        }
        Ok(true)
    }

    async fn write_items(&self, writes: Vec<Write>) -> Result<bool, Error> {
        Ok(matches!(self.ports.store.commit(vec![writes]).await?.pop(), Some(Committed::All)))
    }

    /// Moves a queue's head to config version `version`, or further; makes one if the queue needs one now.
    async fn move_head(&self, queue: &QueueName, version: u64) -> Result<(), Error> {
        for _ in 0..TRIES {
            let (was, head) = match self.ports.store.ledger(queue).await? {
                Some((head, _)) if head.config_version >= version => return Ok(()),
                Some((head, _)) => (
                    Expect::Is(head.version),
                    Ledger { version: head.version + 1, config_version: version, ..head },
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
            let write = Write::SetLedger { queue: queue.clone(), head, was };
            if self.write_items(vec![write]).await? {
                return Ok(());
            }
        }
        Err(contended(queue.as_str()))
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
}

fn queue_write(name: &QueueName, was: u64, item: &QueueItem) -> Result<Write, Error> {
    Ok(Write::SetItem {
        kind: ItemKind::Queue,
        name: name.to_string(),
        was,
        version: item.version,
        bytes: Some(bytes(item)?),
    })
}

fn type_write(name: &TypeName, was: u64, item: Option<&TypeItem>) -> Result<Write, Error> {
    let version = item.map_or(was + 1, |item| item.version);
    let bytes = item.map(bytes).transpose()?;
    Ok(Write::SetItem { kind: ItemKind::Type, name: name.to_string(), was, version, bytes })
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
