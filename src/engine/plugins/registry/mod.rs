//! `plugins`: versions of users' own throttlers and retry strategies, pushed, made live and taken back while queues run.
//!
//! The order of the writes is what makes a version usable: its objects, then the item that names them. Objects are
//! kept under the hash of their bytes and are never changed; those of a version that is gone stay behind, for another
//! name may have the same. A round commits only under the live version that it asked, so once a push is
//! answered nothing is decided by the version before.

mod checks;
mod push;

use std::sync::Arc;

use bytes::Bytes;

pub(crate) use checks::Checked;

use crate::{
    Catalog, Engine, Error,
    config::configure::{bytes, contended},
};
use tidegate_core::{
    error_code::ErrorCode,
    job::{PluginName, retry::Retry},
    port::{Committed, Write, job_store::ItemKind},
    queue::plugin::{Description, PluginItem, Role},
};

/// How often a change is tried against others'.
const TRIES: usize = 16;

/// A version that is about to be pushed, as the trusted side described and compiled it.
#[derive(Clone, Debug)]
pub struct NewVersion {
    /// The component.
    pub wasm: Bytes,
    /// What it says as a throttler, if it is one.
    pub throttler: Option<Description>,
    /// What it says as a retry strategy, if it is one.
    pub retry: Option<Description>,
    /// What it was compiled to. The hashes are taken here.
    pub code: Vec<NewCode>,
}

/// Machine code of a component.
#[derive(Clone, Debug)]
pub struct NewCode {
    /// For what machine, as a target triple.
    pub target: String,
    /// For what engine and settings.
    pub engine: String,
    /// The code.
    pub code: Bytes,
}

/// What a pushed version is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It decides, from the next rounds on.
    Live,
    /// It is asked too, to see where it differs. A plugin's first version is live all the same.
    Shadow,
    /// It is there, and that is all: for code of a version that is known.
    Kept,
}

/// A version that is in the store.
#[derive(Clone, Debug)]
pub struct Pushed {
    /// The plugin as it stands.
    pub item: PluginItem,
    /// The version's number.
    pub number: u32,
    /// Whether this call added it; else the same bytes were there already, and nothing was made live: at most it is in the shadow now.
    pub new: bool,
}

impl Engine {
    /// Every plugin, by name.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn plugins(&self) -> Result<Vec<(PluginName, Arc<PluginItem>)>, Error> {
        let catalog = self.catalog().await?;
        let mut plugins: Vec<_> =
            catalog.plugins.iter().map(|(name, item)| (name.clone(), Arc::clone(item))).collect();
        plugins.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(plugins)
    }

    /// A plugin with all its versions.
    ///
    /// # Errors
    ///
    /// 404 `plugin_not_found`.
    pub async fn plugin(&self, name: &PluginName) -> Result<Arc<PluginItem>, Error> {
        self.catalog().await?.plugins.get(name).cloned().ok_or_else(|| no_plugin(name))
    }

    /// Makes version `to` live, or without a number the one that was live before.
    ///
    /// # Errors
    ///
    /// 404 `plugin_not_found` or `plugin_version_not_found`; 409 as for a push.
    pub async fn rollback_plugin(
        &self,
        name: &PluginName,
        to: Option<u32>,
    ) -> Result<PluginItem, Error> {
        self.alter_plugin(name, |item| {
            let number =
                to.or(item.previous()).ok_or_else(|| no_version(name, "that was live before"))?;
            item.numbered(number).ok_or_else(|| no_version(name, number))?;
            item.make_live(number);
            Ok(())
        })
        .await
    }

    /// Has version `number` asked beside the live one, or with none nothing.
    ///
    /// # Errors
    ///
    /// 404 `plugin_not_found` or `plugin_version_not_found`; 400 for the live version.
    pub async fn shadow_plugin(
        &self,
        name: &PluginName,
        number: Option<u32>,
    ) -> Result<PluginItem, Error> {
        self.alter_plugin(name, |item| {
            if let Some(number) = number {
                item.numbered(number).ok_or_else(|| no_version(name, number))?;
                if number == item.live {
                    return Err(Error::invalid(
                        "version",
                        "is the live one, which is no shadow of itself",
                    ));
                }
            }
            item.shadow = number;
            Ok(())
        })
        .await
    }

    /// Removes a plugin with all its versions.
    ///
    /// # Errors
    ///
    /// 404 `plugin_not_found`; 409 `plugin_in_use` if a queue or a type uses it.
    pub async fn delete_plugin(&self, name: &PluginName) -> Result<(), Error> {
        for _ in 0..TRIES {
            // Of one moment: whoever takes the plugin raises its version, so that what is seen here holds until the commit.
            let catalog = self.catalog().await?;
            let item = catalog.plugins.get(name).ok_or_else(|| no_plugin(name))?;
            if let Some((user, ..)) = users(&catalog, name).next() {
                return Err(Error::Conflict {
                    code: ErrorCode::PluginInUse,
                    message: format!("{user} uses it"),
                    holder: None,
                });
            }
            let write = Write::SetItem {
                kind: ItemKind::Plugin,
                name: name.to_string(),
                was: item.version,
                version: item.version + 1,
                bytes: None,
            };
            if matches!(
                self.ports.store.commit(vec![vec![write]]).await?.pop(),
                Some(Committed::All)
            ) {
                return Ok(());
            }
        }
        Err(contended(name.as_str()))
    }

    /// Changes a plugin, unless whoever uses it could not go on with the version that is live then.
    async fn alter_plugin(
        &self,
        name: &PluginName,
        change: impl Fn(&mut PluginItem) -> Result<(), Error> + Send + Sync,
    ) -> Result<PluginItem, Error> {
        for _ in 0..TRIES {
            let catalog = self.catalog().await?;
            let was = catalog.plugins.get(name).ok_or_else(|| no_plugin(name))?;
            let mut item = (**was).clone();
            change(&mut item)?;
            if let Some(version) = item.numbered(item.live).filter(|_| item.live != was.live) {
                self.refuse_unfit(&catalog, name, version).await?;
            }
            if let Some(item) = self.set_plugin(name, item).await? {
                return Ok(item);
            }
        }
        Err(contended(name.as_str()))
    }

    /// Writes `item` if it is still the one that was read; as it is stored, then.
    async fn set_plugin(
        &self,
        name: &PluginName,
        mut item: PluginItem,
    ) -> Result<Option<PluginItem>, Error> {
        let was = item.version;
        item.version += 1;
        let write = set_item(name, &item, was)?;
        let done =
            matches!(self.ports.store.commit(vec![vec![write]]).await?.pop(), Some(Committed::All));
        Ok(done.then_some(item))
    }
}

/// Writes `item` if `was` is the version that stands.
fn set_item(name: &PluginName, item: &PluginItem, was: u64) -> Result<Write, Error> {
    let bytes = Some(bytes(item)?);
    Ok(Write::SetItem {
        kind: ItemKind::Plugin,
        name: name.to_string(),
        was,
        version: item.version,
        bytes,
    })
}

/// Who uses a plugin, by name, as what, and with which configuration.
fn users<'a>(
    catalog: &'a Catalog,
    name: &'a PluginName,
) -> impl Iterator<Item = (String, Role, &'a serde_json::Value)> {
    let queues = catalog.queues.iter().filter_map(move |(queue, item)| {
        let throttler =
            item.config.throttler.as_ref().filter(|throttler| throttler.plugin == *name)?;
        Some((format!("queue {queue}"), Role::Throttler, &*throttler.config))
    });
    let types = catalog.types.iter().filter_map(move |(job_type, item)| match &item.config.retry {
        Retry::Plugin(plugin, config) if plugin == name => {
            Some((format!("type {job_type}"), Role::Retry, &**config))
        }
        _ => None,
    });
    queues.chain(types)
}

fn unavailable(message: String) -> Error {
    Error::Unavailable { retry_after: std::time::Duration::from_secs(1), message }
}

fn no_plugin(name: &PluginName) -> Error {
    Error::NotFound { code: ErrorCode::PluginNotFound, what: format!("plugin {name}") }
}

fn no_version(name: &PluginName, which: impl std::fmt::Display) -> Error {
    Error::NotFound {
        code: ErrorCode::PluginVersionNotFound,
        what: format!("version {which} of plugin {name}"),
    }
}
