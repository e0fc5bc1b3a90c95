//! Job types as methods of the server: each changes the configuration and wakes the type's queue.

use std::collections::BTreeMap;

use super::Server;
use tidegate_core::job::{
    TypeName,
    type_config::{TypeConfig, TypeItem},
};
use tidegate_engine::Error;

impl Server {
    /// Replaces a type's configuration. The flag is `true` if the type is new.
    ///
    /// # Errors
    ///
    /// 400; 403; 404 `queue_not_found`; 409 `type_has_live_jobs`; 412; 503 if the stored
    /// configuration cannot be read.
    pub async fn put_type(
        &self,
        name: &TypeName,
        config: TypeConfig,
        if_match: Option<u64>,
    ) -> Result<(TypeItem, bool), Error> {
        let old_queue =
            self.inner.engine.job_type(name).await.ok().map(|item| item.config.queue.clone());
        let (item, new) = self.inner.engine.put_type(name, config, if_match).await?;
        self.inner.wake(&item.config.queue);
        // The type's old queue has one type less to scan.
        if let Some(queue) = old_queue.filter(|queue| *queue != item.config.queue) {
            self.inner.wake(&queue);
        }
        Ok((item, new))
    }

    /// What [`Self::put_type`] would store, at the stored version.
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
        self.inner.engine.preview_type(name, config, if_match).await
    }

    /// [`Self::put_type`], also over a stored configuration that cannot be read.
    ///
    /// # Errors
    ///
    /// 400; 403; 404 `queue_not_found`; 409 `type_has_live_jobs`; 412.
    pub async fn replace_type(
        &self,
        name: &TypeName,
        config: TypeConfig,
        if_match: Option<u64>,
    ) -> Result<(TypeItem, bool), Error> {
        let done = self.inner.engine.replace_type(name, config, if_match).await?;
        self.inner.wake_known();
        Ok(done)
    }

    /// A type's configuration.
    ///
    /// # Errors
    ///
    /// 404.
    pub async fn job_type(&self, name: &TypeName) -> Result<TypeItem, Error> {
        self.inner.engine.job_type(name).await.map(|item| (*item).clone())
    }

    /// Every type, by name, without the internal ones (`tidegate.*`).
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn job_types(&self) -> Result<Vec<(TypeName, TypeItem)>, Error> {
        let catalog = self.inner.engine.catalog().await?;
        let types = catalog.types.iter().filter(|(name, _)| !name.is_internal());
        let types: BTreeMap<TypeName, TypeItem> =
            types.map(|(name, item)| (name.clone(), (**item).clone())).collect();
        Ok(types.into_iter().collect())
    }

    /// Removes a type.
    ///
    /// # Errors
    ///
    /// 404; 409 `type_has_live_jobs`; 412.
    pub async fn delete_type(&self, name: &TypeName, if_match: Option<u64>) -> Result<(), Error> {
        let queue = self.inner.engine.job_type(name).await?.config.queue.clone();
        self.inner.engine.delete_type(name, if_match).await?;
        self.inner.wake(&queue);
        Ok(())
    }
}
