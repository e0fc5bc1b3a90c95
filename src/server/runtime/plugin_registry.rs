//! The plugin host of a server: it compiles, stores and shows pushed plugins.
//!
//! A server without a host runs and accepts no plugins. Everything else works.

use std::sync::Arc;
use tidegate_core::error_code::ErrorCode;

use bytes::Bytes;
use object_store::ObjectStoreExt as _;
use tidegate_api::PluginUser;

use super::{Builder, Server};
use tidegate_backends::wasm::{
    ENGINE, PluginHost, TARGET,
    compile::{Artifact, CompileError, Compiler},
};
use tidegate_core::{
    error_chain::ErrorChain,
    job::{PluginName, retry::Retry},
    port::policy::Policy,
    queue::plugin::{Compiled, PluginItem},
};
use tidegate_engine::{
    Error,
    plugins::registry::{NewCode, NewVersion, Pushed, Stage},
};

/// The host that runs plugins, and the compiler of pushed plugins, if there is one.
#[derive(Clone)]
pub(super) struct Hosted {
    pub host: Arc<PluginHost>,
    pub compiler: Option<Compiler>,
}

/// Why a component was not pushed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CannotPush {
    /// The component is no valid plugin; each sentence names one thing to change.
    #[error("the component cannot be used as a plugin: {}", .0.join("; "))]
    Refused(Vec<String>),
    /// The engine or the compiler failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl Builder {
    /// Runs plugins on `host`, and compiles pushed plugins with `compiler`.
    #[must_use]
    pub fn plugins(self, host: Arc<PluginHost>, compiler: Compiler) -> Self {
        self.run_plugins(host).compiler(compiler)
    }

    /// Runs plugins on `host` that another process compiled.
    #[must_use]
    pub fn run_plugins(mut self, host: Arc<PluginHost>) -> Self {
        self.hosted = Some(Hosted { host: Arc::clone(&host), compiler: None });
        self.policy(host as Arc<dyn Policy>)
    }

    /// Compiles pushed plugins with `compiler`, on the host that is set.
    #[must_use]
    pub fn compiler(mut self, compiler: Compiler) -> Self {
        if let Some(hosted) = &mut self.hosted {
            hosted.compiler = Some(compiler);
        }
        self
    }
}

/// Compiles the live and shadow versions that have no code for this release.
///
/// A start awaits it before the first tick: with `on_failure: run`, a plugin that cannot be called
/// yet would let every job run.
pub(super) async fn recompile(server: &Server) -> Result<(), Error> {
    if server.inner.hosted.is_none() {
        return Ok(());
    }
    for (name, item) in server.plugins().await? {
        for number in [Some(item.live), item.shadow].into_iter().flatten() {
            if let Err(error) = server.prepare(&name, |_| Some(number)).await {
                tracing::error!(
                    plugin = %name,
                    version = number,
                    %error,
                    "a plugin cannot be compiled for this release; push it again"
                );
            }
        }
    }
    Ok(())
}

/// A compiled component as a version to push or to run.
fn new_version(artifact: Artifact) -> NewVersion {
    let Artifact { wasm, throttler, retry, compiled, code, .. } = artifact;
    let code = vec![NewCode { target: compiled.target, engine: compiled.engine, code }];
    NewVersion { wasm, throttler, retry, code }
}

fn uncompilable(number: u32, refused: &CannotPush) -> Error {
    let message = format!("version {number} cannot be compiled for this release: {refused}");
    Error::Conflict { code: ErrorCode::PluginRefused, message, holder: None }
}

impl Server {
    /// Compiles the live and shadow versions that have no code for this release, as an embedded
    /// server does at its start.
    ///
    /// # Errors
    ///
    /// The store's. Versions that cannot be compiled are logged.
    pub async fn recompile(&self) -> Result<(), Error> {
        recompile(self).await
    }

    /// Compiles the version that `which` selects, unless it has code for this release and machine.
    pub(super) async fn prepare(
        &self,
        name: &PluginName,
        which: impl FnOnce(&PluginItem) -> Option<u32>,
    ) -> Result<(), Error> {
        let item = self.plugin(name).await?;
        let fits = |code: &Compiled| code.target == TARGET && code.engine == ENGINE;
        let version = which(&item).and_then(|number| item.numbered(number));
        let Some(version) = version.filter(|version| !version.compiled.iter().any(fits)) else {
            return Ok(());
        };
        if self.inner.hosted.is_none() {
            return Ok(());
        }
        tracing::info!(
            plugin = %name,
            version = version.number,
            "compiling a plugin for this release"
        );
        let wasm = self.plugin_component(name, version.number).await?;
        match self.push_component(name, wasm, Stage::Kept).await {
            Ok(_) => Ok(()),
            Err(CannotPush::Failed(error)) => Err(error),
            Err(refused @ CannotPush::Refused(_)) => Err(uncompilable(version.number, &refused)),
        }
    }

    /// Compiles the component `wasm` and adds it as the plugin's next version: live at the next
    /// tick of every queue, or as the shadow version. A repeat with the same bytes changes nothing.
    ///
    /// # Errors
    ///
    /// [`CannotPush::Refused`] with all errors of the component; else as for
    /// [`Server::push_plugin`].
    pub async fn push_component(
        &self,
        name: &PluginName,
        wasm: Bytes,
        stage: Stage,
    ) -> Result<Pushed, CannotPush> {
        let (hosted, artifact) = self.compile(wasm).await?;
        if stage != Stage::Kept {
            hosted
                .host
                .answers(&artifact)
                .await
                .map_err(|refused| CannotPush::Refused(refused.messages))?;
        }
        Ok(self.push_plugin(name, new_version(artifact), stage).await?)
    }

    /// The component `wasm`, compiled for this release and machine. Nothing is stored.
    ///
    /// # Errors
    ///
    /// As for [`Server::push_component`]; 503 if this server has no compiler.
    async fn compile(&self, wasm: Bytes) -> Result<(&Hosted, Artifact), CannotPush> {
        let unavailable =
            |message: String| Error::unavailable(std::time::Duration::from_secs(1), message);
        let hosted = self
            .inner
            .hosted
            .as_ref()
            .ok_or_else(|| unavailable("this server runs no plugins".into()))?;
        let compiler = hosted.compiler.as_ref().ok_or_else(|| {
            Error::unavailable(
                std::time::Duration::from_mins(1),
                "this server has no compiler for plugins; on AWS, push them to the URL in the \
                 output PluginsUrl of the stack",
            )
        })?;
        let artifact = hosted.host.compile(wasm, compiler).await.map_err(|error| match error {
            CompileError::Refused(refused) => CannotPush::Refused(refused.messages),
            CompileError::Failed(error) => {
                unavailable(format!("the compiler could not be run: {error}")).into()
            }
        })?;
        Ok((hosted, artifact))
    }

    /// The version `number` of a plugin with its code for this release and machine, which is
    /// compiled if none is stored. Nothing is stored.
    ///
    /// # Errors
    ///
    /// 404 `plugin_not_found` or `plugin_version_not_found`; 409 `plugin_refused` if it cannot be
    /// compiled; 503 if it cannot be read, or this server has no compiler.
    pub(super) async fn runnable_version(
        &self,
        name: &PluginName,
        number: u32,
    ) -> Result<NewVersion, Error> {
        let item = self.plugin(name).await?;
        let wasm = self.plugin_component(name, number).await?;
        let stored = item.numbered(number).and_then(|version| {
            let fits = |code: &&Compiled| code.target == TARGET && code.engine == ENGINE;
            Some((version, version.compiled.iter().find(fits)?))
        });
        let Some((version, compiled)) = stored else {
            return match self.compile(wasm).await {
                Ok((_, artifact)) => Ok(new_version(artifact)),
                Err(CannotPush::Failed(error)) => Err(error),
                Err(refused @ CannotPush::Refused(_)) => Err(uncompilable(number, &refused)),
            };
        };
        let objects = &self.inner.engine.ports().objects;
        let key = compiled.object_key();
        let read = async { objects.get(&key.into()).await?.bytes().await };
        let code = read.await.map_err(|error| {
            Error::unavailable(
                std::time::Duration::from_secs(1),
                format!("the code of plugin {name} cannot be read: {}", ErrorChain(&error)),
            )
        })?;
        let (target, engine) = (compiled.target.clone(), compiled.engine.clone());
        Ok(NewVersion {
            wasm,
            throttler: version.throttler.clone(),
            retry: version.retry.clone(),
            code: vec![NewCode { target, engine, code }],
        })
    }

    /// The pushed component of a version.
    ///
    /// # Errors
    ///
    /// 404 `plugin_not_found` or `plugin_version_not_found`; 503 if it cannot be read.
    pub async fn plugin_component(&self, name: &PluginName, number: u32) -> Result<Bytes, Error> {
        let item = self.plugin(name).await?;
        let missing = || Error::NotFound {
            code: ErrorCode::PluginVersionNotFound,
            what: format!("version {number} of plugin {name}"),
        };
        let version = item.numbered(number).ok_or_else(missing)?;
        let objects = &self.inner.engine.ports().objects;
        let read = async { objects.get(&version.object_key().into()).await?.bytes().await };
        read.await.map_err(|error| {
            Error::unavailable(
                std::time::Duration::from_secs(1),
                format!("the component cannot be read: {}", ErrorChain(&error)),
            )
        })
    }

    /// The queues and types that use a plugin, by name.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn plugin_users(&self, plugin: &PluginName) -> Result<Vec<PluginUser>, Error> {
        let catalog = self.inner.engine.catalog().await?;
        let queues = catalog.queues.iter().filter(|(_, item)| {
            item.config.throttler.as_ref().is_some_and(|used| used.plugin == *plugin)
        });
        let types = catalog.types.iter().filter(
            |(_, item)| matches!(&item.config.retry, Retry::Plugin(used, _) if used == plugin),
        );
        let queues =
            queues.map(|(name, _)| PluginUser { kind: "queue".into(), name: name.to_string() });
        let types =
            types.map(|(name, _)| PluginUser { kind: "job_type".into(), name: name.to_string() });
        let mut users: Vec<_> = queues.chain(types).collect();
        users.sort_unstable_by(|a, b| (&a.kind, &a.name).cmp(&(&b.kind, &b.name)));
        Ok(users)
    }
}
