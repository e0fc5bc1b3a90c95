//! `plugins`: versions of users' own throttlers and retry strategies, pushed, made live and taken back while queues run.
//!
//! The order of the writes is what makes a version usable: its objects, then the item that names them. Objects are
//! kept under the hash of their bytes and are never changed; those of a version that is gone stay behind, for another
//! name may have the same. A round commits only under the live version that it asked, so once a push is
//! answered nothing is decided by the version before.

use std::{fmt::Write as _, sync::Arc};
use tidegate_core::error_code::ErrorCode;

use bytes::Bytes;
use object_store::{ObjectStoreExt, path::Path};
use sha2::{Digest, Sha256};

use crate::{
    Catalog, Engine, Error,
    config::configure::contended,
    jobs::enqueue::{fault, is_reserved},
};
use tidegate_core::{
    job::{
        PluginName,
        retry::{BUILT_IN, Retry},
    },
    port::{
        Committed, Write,
        job_store::ItemKind,
        policy::{FaultKind, Plugin},
    },
    queue::plugin::{
        Compiled, Description, MAX_ITEM_BYTES, MAX_VERSIONS, PluginItem, PluginVersion, Role,
    },
    validate,
};

/// Most retry strategies, each with its configuration, that are checked in one request: a check may take a quarter of a second.
const STRATEGIES: usize = 20;

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
    /// Adds a version of a plugin. The same bytes again are answered with the version that has them, to which only
    /// code for other machines or engines is added.
    ///
    /// # Errors
    ///
    /// 400 for a version without a role, or a name that is taken by what is built in; 403 for a name of the server's own; 409
    /// `config_refused` or `plugin_in_use` if a queue or type that uses the plugin could not go on with a live version.
    pub async fn push_plugin(
        &self,
        name: &PluginName,
        new: NewVersion,
        stage: Stage,
    ) -> Result<Pushed, Error> {
        if is_reserved(name.as_str()) {
            return Err(Error::Forbidden(
                "names that start with tidegate. are the server's own".into(),
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
        let mut version = PluginVersion {
            number: 1,
            sha256: digest(&new.wasm),
            bytes: new.wasm.len() as u64,
            pushed_at: self.now(),
            throttler: new.throttler,
            retry: new.retry,
            compiled: Vec::with_capacity(new.code.len()),
        };
        self.put_plugin_object(version.object_key(), new.wasm).await?;
        for NewCode { target, engine, code } in new.code {
            let compiled = Compiled { target, engine, sha256: digest(&code) };
            self.put_plugin_object(compiled.object_key(), code).await?;
            version.compiled.push(compiled);
        }
        for _ in 0..TRIES {
            let catalog = self.catalog().await?;
            let mut item =
                catalog.plugins.get(name).map(|item| (**item).clone()).unwrap_or_default();
            let known = item.versions.iter().position(|there| there.sha256 == version.sha256);
            let number = if let Some(index) = known {
                let has = |code: &&Compiled| !item.versions[index].compiled.contains(code);
                let added: Vec<Compiled> = version.compiled.iter().filter(has).cloned().collect();
                let number = item.versions[index].number;
                let to_shadow =
                    stage == Stage::Shadow && number != item.live && item.shadow != Some(number);
                if added.is_empty() && !to_shadow {
                    return Ok(Pushed { item, number, new: false });
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
                number
            } else {
                let number = item.versions.last().map_or(1, |last| last.number + 1);
                let version = Arc::new(PluginVersion { number, ..version.clone() });
                if stage == Stage::Live || item.versions.is_empty() {
                    self.refuse_unfit(&catalog, name, &version).await?;
                    item.make_live(number);
                } else if stage == Stage::Shadow {
                    item.shadow = Some(number);
                }
                item.versions.push(version);
                keep_to_bounds(&mut item)?;
                number
            };
            if let Some(item) = self.set_plugin(name, item).await? {
                return Ok(Pushed { item, number, new: known.is_none() });
            }
        }
        Err(contended(name.as_str()))
    }

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

    async fn put_plugin_object(&self, key: String, bytes: Bytes) -> Result<(), Error> {
        let done = self.ports.objects.put(&Path::from(key), bytes.into()).await;
        done.map(drop).map_err(|error| {
            unavailable(format!("the object store did not take the plugin: {error}"))
        })
    }

    /// Refuses a version that a queue or type which uses the plugin could not go on with.
    async fn refuse_unfit(
        &self,
        catalog: &Catalog,
        name: &PluginName,
        version: &Arc<PluginVersion>,
    ) -> Result<(), Error> {
        for (user, role, config) in users(catalog, name) {
            if version.description(role).is_none() {
                let message =
                    format!("{user} uses it as its {}, which this version is not", word(role));
                return Err(Error::Conflict {
                    code: ErrorCode::PluginInUse,
                    message,
                    holder: None,
                });
            }
            let plugin = Plugin { name: name.clone(), version: Arc::clone(version) };
            let refused =
                |message| Error::Conflict { code: ErrorCode::ConfigRefused, message, holder: None };
            match self.ports.policy.check(&plugin, role, &config.to_string()).await {
                Ok(problems) => {
                    if let Some(problem) = problems.first() {
                        return Err(refused(format!(
                            "it refuses the config of {user}: {} {}",
                            problem.path, problem.message
                        )));
                    }
                }
                Err(fault) if fault.kind == FaultKind::Unavailable => {
                    return Err(unavailable(fault.message));
                }
                Err(fault) => {
                    return Err(refused(format!("it cannot check the config of {user}: {fault}")));
                }
            }
        }
        Ok(())
    }

    /// Checks what somebody says of a plugin in `role`: that it is there, has the role, and takes `config`. `fields` are the names of
    /// the plugin's and its config's fields.
    ///
    /// What comes back is to be written together with what makes a queue or a type use the plugin: it raises the plugin's version. So this
    /// answer still holds then, and a push, a rollback or a removal that did not see the new user is refused and looks again.
    ///
    /// # Errors
    ///
    /// 400 at the field that is to blame; 503 if the plugin cannot be asked here.
    pub(crate) async fn check_plugin(
        &self,
        catalog: &Catalog,
        role: Role,
        name: &PluginName,
        config: &serde_json::Value,
        fields: [&str; 2],
    ) -> Result<Write, Error> {
        let item = catalog.plugins.get(name).ok_or_else(|| {
            Error::invalid(fields[0], format!("must be a plugin; there is no {name}"))
        })?;
        let plugin = catalog.plugin(name, role).ok_or_else(|| {
            Error::invalid(
                fields[0],
                format!(
                    "must be a {}, which plugin {name} is not in its version {}",
                    word(role),
                    item.live
                ),
            )
        })?;
        match self.ports.policy.check(&plugin, role, &config.to_string()).await {
            Ok(problems) => match problems.into_iter().next() {
                None => set_item(
                    name,
                    &PluginItem { version: item.version + 1, ..(**item).clone() },
                    item.version,
                ),
                Some(problem) => {
                    Err(Error::invalid(format!("{}{}", fields[1], problem.path), problem.message))
                }
            },
            Err(fault) if fault.kind == FaultKind::Unavailable => Err(unavailable(fault.message)),
            Err(fault) => Err(Error::invalid(
                fields[1],
                format!("cannot be checked, for plugin {name} failed: {fault}"),
            )),
        }
    }

    /// Checks the retry strategy of a job, if it is a plugin of the job's own choice. Jobs come in their thousands with the same: each strategy
    /// with its configuration is checked once in a request (`checked`), and not again while the configuration stands.
    ///
    /// # Errors
    ///
    /// As for a throttler, at `retry.plugin` and `retry.config`; also for those beyond 20 different ones in one request.
    pub(crate) async fn check_retry(
        &self,
        catalog: &Catalog,
        retry: &Retry,
        checked: &mut Checked,
    ) -> Result<(), Error> {
        let Retry::Plugin(name, config) = retry else {
            return Ok(());
        };
        if let Some((_, answer)) = checked.0.iter().find(|(known, _)| known == retry) {
            return answer.clone();
        }
        validate::check_retry(retry).map_err(fault)?;
        {
            let mut good = self.good_retries.lock();
            if good.0 != catalog.version {
                *good = (catalog.version, Vec::new());
            }
            if good.1.contains(retry) {
                return Ok(());
            }
        }
        if checked.0.len() >= STRATEGIES {
            let message = format!(
                "must be one of at most {STRATEGIES} different ones that the jobs of one request bring; send the others in another"
            );
            return Err(Error::invalid("retry", message));
        }
        let answer =
            self.check_plugin(catalog, Role::Retry, name, config, RETRY_FIELDS).await.map(drop);
        if answer.is_ok() {
            let mut good = self.good_retries.lock();
            if good.0 == catalog.version && good.1.len() < STRATEGIES {
                good.1.push(retry.clone());
            }
        }
        checked.0.push((retry.clone(), answer.clone()));
        answer
    }

    /// Checks the retry strategy that a type is given: what is to be written with it.
    ///
    /// # Errors
    ///
    /// As for a job's.
    pub(crate) async fn take_retry(
        &self,
        catalog: &Catalog,
        retry: &Retry,
    ) -> Result<Option<Write>, Error> {
        let Retry::Plugin(name, config) = retry else {
            return Ok(None);
        };
        validate::check_retry(retry).map_err(fault)?;
        self.check_plugin(catalog, Role::Retry, name, config, RETRY_FIELDS).await.map(Some)
    }
}

/// The names of a retry strategy's fields.
const RETRY_FIELDS: [&str; 2] = ["retry.plugin", "retry.config"];

/// The strategies that the jobs of one request brought, and what was found of each.
#[derive(Default)]
pub(crate) struct Checked(Vec<(Retry, Result<(), Error>)>);

/// Writes `item` if `was` is the version that stands.
fn set_item(name: &PluginName, item: &PluginItem, was: u64) -> Result<Write, Error> {
    let bytes = Some(crate::config::configure::bytes(item)?);
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

/// Forgets versions until the item is within its bounds.
fn keep_to_bounds(item: &mut PluginItem) -> Result<(), Error> {
    while item.versions.len() > MAX_VERSIONS
        || crate::config::configure::bytes(item)?.len() > MAX_ITEM_BYTES
    {
        if !item.forget_oldest() {
            let message = format!(
                "is too long beside that of the version which decides: what is known of both has at most {MAX_ITEM_BYTES} bytes"
            );
            return Err(Error::invalid("config-schema", message));
        }
    }
    Ok(())
}

fn word(role: Role) -> &'static str {
    match role {
        Role::Throttler => "throttler",
        Role::Retry => "retry strategy",
    }
}

fn digest(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        let _ = write!(text, "{byte:02x}");
    }
    text
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
