//! Job types: their configuration, and their move from one queue to another.

use std::sync::Arc;

use super::{MAX_CONFLICT_RETRIES, bytes, contended, queues::queue_write, refuse_reserved};
use crate::{Catalog, Engine, Error, Rules, jobs::enqueue::fault};
use tidegate_core::{
    error_code::ErrorCode,
    job::{
        QueueName, TypeName,
        type_config::{TypeConfig, TypeItem},
    },
    port::{Write, job_store::ItemKind},
    time::Timestamp,
    validate,
};

impl Engine {
    /// Sets the configuration of a type as a whole. Returns the item, and whether it is new.
    ///
    /// # Errors
    ///
    /// 400 for a bad value; 403 for a name that the server reserves; 404 `queue_not_found`; 409
    /// `type_has_live_jobs` if its queue changes while jobs are live; 412 if `if_match` is not its
    /// version.
    pub async fn put_type(
        &self,
        name: &TypeName,
        config: TypeConfig,
        if_match: Option<u64>,
    ) -> Result<(TypeItem, bool), Error> {
        let config = self.accepted_type(name, config)?;
        for _ in 0..MAX_CONFLICT_RETRIES {
            let catalog = self.catalog().await?;
            catalog.refuse_unreadable(ItemKind::Type, name.as_str())?;
            let current = catalog.types.get(name).cloned();
            let mut was = current.as_ref().map_or(0, |item| item.version);
            if if_match.is_some_and(|version| version != was) {
                return Err(Error::Stale { version: was });
            }
            self.expect_queue(&config.queue).await?;
            let new_retry = current.as_ref().is_none_or(|item| item.config.retry != config.retry);
            let taken =
                if new_retry { self.take_retry(&catalog, &config.retry).await? } else { None };
            if let Some(item) = current.as_deref().filter(|item| item.config.queue != config.queue)
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
            if self.write_type(name, &catalog, was, current.as_deref(), Some(&item), taken).await? {
                return Ok((item, current.is_none()));
            }
        }
        Err(contended(name.as_str()))
    }

    /// What [`Self::put_type`] would store. Nothing is changed: the version is the stored one, 0 of
    /// a new type.
    ///
    /// # Errors
    ///
    /// As [`Self::put_type`].
    pub async fn preview_type(
        &self,
        name: &TypeName,
        config: TypeConfig,
        if_match: Option<u64>,
    ) -> Result<TypeItem, Error> {
        let config = self.accepted_type(name, config)?;
        let catalog = self.catalog().await?;
        catalog.refuse_unreadable(ItemKind::Type, name.as_str())?;
        let current = catalog.types.get(name);
        let version = current.map_or(0, |item| item.version);
        if if_match.is_some_and(|if_match| if_match != version) {
            return Err(Error::Stale { version });
        }
        self.expect_queue(&config.queue).await?;
        if current.is_none_or(|item| item.config.retry != config.retry) {
            self.take_retry(&catalog, &config.retry).await?;
        }
        if current.is_some_and(|item| item.config.queue != config.queue) {
            self.refuse_live(Some(name), None, ErrorCode::TypeHasLiveJobs).await?;
        }
        Ok(TypeItem { config, version, leaving: false })
    }

    /// Sets the configuration of a type whose stored one cannot be read, for example because the
    /// key of its secrets is lost. Another type is set as by [`Self::put_type`].
    ///
    /// # Errors
    ///
    /// As [`Self::put_type`]; 409 `type_has_live_jobs` if it has live jobs in another queue than
    /// the new one.
    pub async fn replace_type(
        &self,
        name: &TypeName,
        config: TypeConfig,
        if_match: Option<u64>,
    ) -> Result<(TypeItem, bool), Error> {
        let accepted = self.accepted_type(name, config.clone())?;
        for _ in 0..MAX_CONFLICT_RETRIES {
            let catalog = self.catalog().await?;
            let Some(was) = catalog.unreadable_version(ItemKind::Type, name.as_str()) else {
                return self.put_type(name, config, if_match).await;
            };
            if if_match.is_some_and(|version| version != was) {
                return Err(Error::Stale { version: was });
            }
            self.expect_queue(&accepted.queue).await?;
            for queue in self.ports.store.active_queues(Timestamp::MAX).await? {
                if queue != accepted.queue {
                    let code = ErrorCode::TypeHasLiveJobs;
                    self.refuse_live(Some(name), Some(&queue), code).await?;
                }
            }
            let taken = self.take_retry(&catalog, &accepted.retry).await?;
            let version = self.version_before(was).await? + 1;
            let item = TypeItem { config: accepted.clone(), version, leaving: false };
            if self.write_type(name, &catalog, was, None, Some(&item), taken).await? {
                tracing::warn!(job_type = %name, "a type that could not be read was replaced");
                return Ok((item, false));
            }
        }
        Err(contended(name.as_str()))
    }

    /// The configuration as it is stored, if it may be.
    fn accepted_type(&self, name: &TypeName, config: TypeConfig) -> Result<TypeConfig, Error> {
        let config = validate::accept_type(config, self.rules.accept_target).map_err(fault)?;
        validate::check_type_hosts(&config, self.rules.guard).map_err(fault)?;
        let Rules { allowed_targets, allowed_callbacks, .. } = &self.rules;
        validate::check_allowed_hosts(&config, allowed_targets, allowed_callbacks)
            .map_err(fault)?;
        refuse_reserved(name.is_internal())?;
        refuse_reserved(config.queue.is_internal())?;
        Ok(config)
    }

    /// Checks that the queue of a type exists.
    ///
    /// # Errors
    ///
    /// 404 `queue_not_found`, with the ways to one that exists.
    async fn expect_queue(&self, queue: &QueueName) -> Result<(), Error> {
        let Err(error) = self.queue(queue).await else { return Ok(()) };
        Err(match error {
            Error::NotFound { code, what } => {
                let what = format!(
                    "{what}: create it with PUT /v1/queues/{queue}, or leave out queue: the queue \
                     default always exists"
                );
                Error::NotFound { code, what }
            }
            other => other,
        })
    }

    /// The configuration of a type.
    ///
    /// # Errors
    ///
    /// 404 `job_type_not_found`; 503 if it cannot be read.
    pub async fn job_type(&self, name: &TypeName) -> Result<Arc<TypeItem>, Error> {
        self.catalog().await?.job_type(name).cloned()
    }

    /// Removes a type.
    ///
    /// # Errors
    ///
    /// 404; 412; 409 `type_has_live_jobs`.
    pub async fn delete_type(&self, name: &TypeName, if_match: Option<u64>) -> Result<(), Error> {
        for _ in 0..MAX_CONFLICT_RETRIES {
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

    /// Marks a type as about to leave its queue, then checks that it has no live jobs. Returns the
    /// version of the marked item, or `None` if another writer changed it.
    async fn mark_leaving(&self, name: &TypeName, item: &TypeItem) -> Result<Option<u64>, Error> {
        // A type that certainly has live jobs is not even marked.
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

    /// The catalog, after removing the mark of a type that is about to leave its queue. A
    /// concurrent move or removal is then refused.
    pub(crate) async fn keep_type(&self, name: &TypeName) -> Result<Arc<Catalog>, Error> {
        for _ in 0..MAX_CONFLICT_RETRIES {
            let catalog = self.catalog().await?;
            let Some(item) = catalog.types.get(name).filter(|item| item.leaving) else {
                return Ok(catalog);
            };
            let kept = TypeItem { version: item.version + 1, leaving: false, ..(**item).clone() };
            self.write_items(vec![type_write(name, item.version, Some(&kept))?]).await?;
        }
        Err(contended(name.as_str()))
    }

    /// Writes a type at version `was`. The same transaction raises the versions of the queues that
    /// it joins or whose limits it changes, and of the plugin that it uses. Returns false if
    /// another writer changed one of them.
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
        // A queue that exists when a type joins it gets a new version, so that a concurrent
        // removal, which found no types in it, is refused.
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
            self.raise_config_version(queue, version).await?;
        }
        Ok(true)
    }
}

fn type_write(name: &TypeName, was: u64, item: Option<&TypeItem>) -> Result<Write, Error> {
    let version = item.map_or(was + 1, |item| item.version);
    let bytes = item.map(bytes).transpose()?;
    Ok(Write::SetItem { kind: ItemKind::Type, name: name.to_string(), was, version, bytes })
}
