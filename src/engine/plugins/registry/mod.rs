//! Versions of users' own throttlers and retry strategies: pushed, made live and rolled back while
//! queues run.
//!
//! The order of the writes makes a version usable: its objects, then the item that names them. An
//! object is stored under the hash of its bytes and never changes. The objects of a removed version
//! stay for a day, and longer if another version has the same bytes (see [`unnamed`]). A tick commits
//! only under the live version that it called. So once a push is answered, the version before decides
//! nothing.

mod checks;
mod push;
mod unnamed;

use std::sync::Arc;

use bytes::Bytes;

pub(crate) use checks::Checked;

use crate::{
    Catalog, Engine, Error,
    config::configure::{MAX_CONFLICT_RETRIES, bytes, contended},
};
use tidegate_core::{
    error_code::ErrorCode,
    job::{PluginName, retry::Retry},
    port::{Write, job_store::ItemKind},
    queue::{
        plugin::{Description, PluginItem, Role},
        plugin_calls::CallRecording,
    },
};

/// A version that is about to be pushed, as the trusted process described and compiled it.
#[derive(Clone, Debug)]
pub struct NewVersion {
    /// The component.
    pub wasm: Bytes,
    /// Its description as a throttler, if it is one.
    pub throttler: Option<Description>,
    /// Its description as a retry strategy, if it is one.
    pub retry: Option<Description>,
    /// Its machine code. The engine computes the hashes.
    pub code: Vec<NewCode>,
}

/// Machine code of a component.
#[derive(Clone, Debug)]
pub struct NewCode {
    /// The machine that it is for, as a target triple.
    pub target: String,
    /// The WebAssembly engine and settings that it is for.
    pub engine: String,
    /// The code.
    pub code: Bytes,
}

/// The use of a pushed version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It decides, from the next tick on.
    Live,
    /// It is called in addition to the live version, to compare the answers. The first version of a
    /// plugin becomes live instead.
    Shadow,
    /// It is only stored. This adds machine code to a known version.
    Kept,
}

/// A version that is stored.
#[derive(Clone, Debug)]
pub struct Pushed {
    /// The plugin as it is stored.
    pub item: PluginItem,
    /// The version's number.
    pub number: u32,
    /// Whether this call added it. If not, a version with the same bytes existed. This call then
    /// made nothing live; at most it set that version as the shadow.
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
        item(&*self.catalog().await?, name).cloned()
    }

    /// Makes version `to` live; without a number, the version that was live before.
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

    /// Sets version `number` as the shadow, which is called in addition to the live version; `None`
    /// removes the shadow.
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
                    return Err(Error::invalid("version", "must not be the live version"));
                }
            }
            item.shadow = number;
            Ok(())
        })
        .await
    }

    /// Sets which calls of a plugin are stored for a time; `None` ends it.
    ///
    /// # Errors
    ///
    /// 404 `plugin_not_found`.
    pub async fn record_plugin_calls(
        &self,
        name: &PluginName,
        recording: Option<CallRecording>,
    ) -> Result<PluginItem, Error> {
        self.alter_plugin(name, |item| {
            item.recording.clone_from(&recording);
            Ok(())
        })
        .await
    }

    /// Removes the old versions of a plugin, as [`PluginItem::prune`] does. Returns the plugin
    /// after it, and the removed numbers. Only with `write` it is stored. A later sweep deletes their
    /// objects.
    ///
    /// # Errors
    ///
    /// 404 `plugin_not_found`; 400 if `keep` is 0.
    pub async fn prune_plugin(
        &self,
        name: &PluginName,
        keep: usize,
        write: bool,
    ) -> Result<(PluginItem, Vec<u32>), Error> {
        if keep == 0 {
            return Err(Error::invalid("keep", "must be at least 1"));
        }
        for _ in 0..MAX_CONFLICT_RETRIES {
            let mut pruned = (**item(&*self.catalog().await?, name)?).clone();
            let removed = pruned.prune(keep);
            if !write || removed.is_empty() {
                return Ok((pruned, removed));
            }
            if let Some(pruned) = self.set_plugin(name, pruned).await? {
                return Ok((pruned, removed));
            }
        }
        Err(contended(name.as_str()))
    }

    /// Removes a plugin with all its versions. A later sweep deletes their objects.
    ///
    /// # Errors
    ///
    /// 404 `plugin_not_found`; 409 `plugin_in_use` if a queue or a type uses it.
    pub async fn delete_plugin(&self, name: &PluginName) -> Result<(), Error> {
        for _ in 0..MAX_CONFLICT_RETRIES {
            // A queue or type that starts to use the plugin raises its version. So what this
            // snapshot shows holds until the commit.
            let catalog = self.catalog().await?;
            let item = item(&catalog, name)?;
            catalog.refuse_partial(&[ItemKind::Queue, ItemKind::Type])?;
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
            if self.write_items(vec![write]).await? {
                return Ok(());
            }
        }
        Err(contended(name.as_str()))
    }

    /// Changes a plugin, unless a queue or type that uses it refuses the version that is live then.
    async fn alter_plugin(
        &self,
        name: &PluginName,
        change: impl Fn(&mut PluginItem) -> Result<(), Error> + Send + Sync,
    ) -> Result<PluginItem, Error> {
        for _ in 0..MAX_CONFLICT_RETRIES {
            let catalog = self.catalog().await?;
            let was = item(&catalog, name)?;
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

    /// Writes `item` if the stored one is still the one that was read, and returns it as it is
    /// stored.
    async fn set_plugin(
        &self,
        name: &PluginName,
        mut item: PluginItem,
    ) -> Result<Option<PluginItem>, Error> {
        let was = item.version;
        item.version += 1;
        let write = set_item(name, &item, was)?;
        Ok(self.write_items(vec![write]).await?.then_some(item))
    }
}

/// The plugin of this name.
fn item<'a>(catalog: &'a Catalog, name: &PluginName) -> Result<&'a Arc<PluginItem>, Error> {
    catalog.refuse_unreadable(ItemKind::Plugin, name.as_str())?;
    catalog.plugins.get(name).ok_or_else(|| no_plugin(name))
}

/// The write of `item`, on the condition that the stored version is `was`.
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

/// The queues and types that use a plugin: each with its name, the role and the configuration.
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
    Error::unavailable(std::time::Duration::from_secs(1), message)
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
