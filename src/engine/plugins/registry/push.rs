//! The push of a plugin version: its objects, then the item that names them.

use std::{fmt::Write as _, sync::Arc};

use bytes::Bytes;
use object_store::{ObjectStoreExt, path::Path};
use sha2::{Digest, Sha256};

use super::{NewCode, NewVersion, Pushed, Stage, unavailable};
use crate::{
    Catalog, Engine, Error,
    config::configure::{MAX_CONFLICT_RETRIES, bytes, contended},
};
use tidegate_core::{
    error_chain::ErrorChain,
    job::{PluginName, retry::BUILT_IN},
    port::job_store::ItemKind,
    queue::plugin::{Compiled, MAX_ITEM_BYTES, MAX_VERSIONS, PluginItem, PluginVersion},
};

impl Engine {
    /// Adds a version of a plugin. If a version with the same bytes exists, it is returned, and
    /// only machine code for other machines or engines is added to it.
    ///
    /// # Errors
    ///
    /// 400 for a version without a role, or a name that a built-in strategy has; 403 for a name
    /// that the server reserves; 409 `config_refused` or `plugin_in_use` if a live version does not
    /// suit a queue or type that uses the plugin.
    pub async fn push_plugin(
        &self,
        name: &PluginName,
        new: NewVersion,
        stage: Stage,
    ) -> Result<Pushed, Error> {
        check_pushed(name, &new)?;
        let version = self.put_objects(new).await?;
        for _ in 0..MAX_CONFLICT_RETRIES {
            let catalog = self.catalog().await?;
            catalog.refuse_unreadable(ItemKind::Plugin, name.as_str())?;
            let mut item =
                catalog.plugins.get(name).map(|item| (**item).clone()).unwrap_or_default();
            let known = item.versions.iter().position(|there| there.sha256 == version.sha256);
            let number = if let Some(index) = known {
                let number = item.versions[index].number;
                if !add_to_known(&mut item, index, &version, stage) {
                    return Ok(Pushed { item, number, new: false });
                }
                number
            } else {
                self.add_version(&catalog, name, &mut item, &version, stage).await?
            };
            if let Some(item) = self.set_plugin(name, item).await? {
                return Ok(Pushed { item, number, new: known.is_none() });
            }
        }
        Err(contended(name.as_str()))
    }

    /// Puts the component of a version and its machine code into the object store. Returns the
    /// version that names them, with the number 1. Within a day it must be stored.
    async fn put_objects(&self, new: NewVersion) -> Result<PluginVersion, Error> {
        let mut version = PluginVersion {
            number: 1,
            sha256: digest(&new.wasm),
            bytes: new.wasm.len() as u64,
            pushed_at: self.now(),
            throttler: new.throttler,
            retry: new.retry,
            compiled: Vec::with_capacity(new.code.len()),
        };
        let mut objects = vec![(version.object_key(), new.wasm)];
        for NewCode { target, engine, code } in new.code {
            let compiled = Compiled { target, engine, sha256: digest(&code) };
            objects.push((compiled.object_key(), code));
            version.compiled.push(compiled);
        }
        self.claim_objects(&version).await?;
        for (key, bytes) in objects {
            self.put_plugin_object(key, bytes).await?;
        }
        Ok(version)
    }

    /// Adds `version` to `item` under the next number, and returns the number. Older versions are
    /// removed while the item exceeds its bounds.
    async fn add_version(
        &self,
        catalog: &Catalog,
        name: &PluginName,
        item: &mut PluginItem,
        version: &PluginVersion,
        stage: Stage,
    ) -> Result<u32, Error> {
        let number = item.versions.last().map_or(1, |last| last.number + 1);
        let version = Arc::new(PluginVersion { number, ..version.clone() });
        if stage == Stage::Live || item.versions.is_empty() {
            self.refuse_unfit(catalog, name, &version).await?;
            item.make_live(number);
        } else if stage == Stage::Shadow {
            item.shadow = Some(number);
        }
        item.versions.push(version);
        keep_to_bounds(item)?;
        Ok(number)
    }

    async fn put_plugin_object(&self, key: String, bytes: Bytes) -> Result<(), Error> {
        let done = self.ports.objects.put(&Path::from(key), bytes.into()).await;
        done.map(drop).map_err(|error| {
            let cause = ErrorChain(&error);
            unavailable(format!("the object store did not accept the plugin: {cause}"))
        })
    }
}

/// Refuses a name that the server reserves, and a version without a role.
fn check_pushed(name: &PluginName, new: &NewVersion) -> Result<(), Error> {
    if name.is_internal() {
        return Err(Error::Forbidden(
            "names that start with tidegate. are reserved for the server".into(),
        ));
    }
    if new.throttler.is_none() && new.retry.is_none() {
        return Err(Error::invalid("wasm", "must be a throttler, a retry strategy or both"));
    }
    if name.as_str() == BUILT_IN && new.retry.is_some() {
        return Err(Error::invalid(
            "name",
            format!("must not be {BUILT_IN}, the built-in retry strategy"),
        ));
    }
    Ok(())
}

/// Adds the machine code of `version` to the stored version at `index`, which has the same
/// component. With [`Stage::Shadow`] that version also becomes the shadow. Returns false if nothing
/// changes.
fn add_to_known(
    item: &mut PluginItem,
    index: usize,
    version: &PluginVersion,
    stage: Stage,
) -> bool {
    let has = |code: &&Compiled| !item.versions[index].compiled.contains(code);
    let added: Vec<Compiled> = version.compiled.iter().filter(has).cloned().collect();
    let number = item.versions[index].number;
    let to_shadow = stage == Stage::Shadow && number != item.live && item.shadow != Some(number);
    if added.is_empty() && !to_shadow {
        return false;
    }
    if to_shadow {
        item.shadow = Some(number);
    }
    let there = Arc::make_mut(&mut item.versions[index]);
    let replaced = |old: &Compiled| {
        added.iter().any(|new| (&new.target, &new.engine) == (&old.target, &old.engine))
    };
    there.compiled.retain(|old| !replaced(old));
    there.compiled.extend(added);
    true
}

/// Removes the oldest versions until the item is within its bounds.
fn keep_to_bounds(item: &mut PluginItem) -> Result<(), Error> {
    while item.versions.len() > MAX_VERSIONS || bytes(item)?.len() > MAX_ITEM_BYTES {
        if !item.forget_oldest() {
            let message = format!(
                "is too long: the descriptions of this and the live version have at most \
                 {MAX_ITEM_BYTES} bytes together"
            );
            return Err(Error::invalid("config-schema", message));
        }
    }
    Ok(())
}

fn digest(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
