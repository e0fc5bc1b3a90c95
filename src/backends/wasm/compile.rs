//! From a component to code that this program loads.
//!
//! The compiling side is trusted: running sides load code only if it has the hash that the
//! compiling side recorded. There are three steps, and each may refuse the component. Its parts are
//! inspected, it is compiled, and it describes itself within the bounds of a call. The first two
//! happen in the [`Compiler`], the last one in this process.

use std::sync::Arc;

use object_store::{ObjectStore, ObjectStoreExt};
use sha2::{Digest, Sha256};

use super::{
    bounds,
    contract::throttler::tidegate::plugin::types,
    guest::{Guest, Subject},
    host::{self, Inner, PluginHost},
};
use crate::wasm::{
    module_cache::{code_object, component_object},
    runtime::{ENGINE, Loaded, TARGET, hex},
};
use tidegate_core::{
    port::policy::Fault,
    queue::plugin::{Compiled, Description, PluginVersion, Role},
    time::Timestamp,
};

/// The component is not a valid plugin. Repeating cannot help; its author must change it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", messages.join("; "))]
pub struct Refused {
    /// The problems, each a sentence for the author that continues "it".
    pub messages: Vec<String>,
}

impl Refused {
    pub(super) fn because(message: impl Into<String>) -> Self {
        Self { messages: vec![message.into()] }
    }
}

/// Why a component was not compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The component's author must change it.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The compiler could not be run. A repeat may succeed.
    #[error("the compiler could not be run: {0}")]
    Failed(#[from] std::io::Error),
}

/// Where components are compiled.
#[derive(Clone, Debug)]
pub enum Compiler {
    /// In this process, which a malicious component may keep busy for minutes and fill with
    /// gigabytes. Only for the machines of authors.
    #[cfg(feature = "compiler")]
    Here,
    /// In this process, unless an earlier one compiled the same and kept it in a folder.
    #[cfg(feature = "compiler")]
    Kept(super::kept_code::KeptCode),
    /// In a separate process with bounded time and memory.
    Process(super::compile_process::Process),
}

/// A compiled component, with everything to store.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// The component.
    pub wasm: bytes::Bytes,
    /// The hash of the component.
    pub sha256: String,
    /// Its description as a throttler, if it is one.
    pub throttler: Option<Description>,
    /// Its description as a retry strategy, if it is one.
    pub retry: Option<Description>,
    /// The record of the code.
    pub compiled: Compiled,
    /// The code.
    pub code: bytes::Bytes,
}

impl Artifact {
    /// The record of this as version `number` of a plugin.
    pub fn version(&self, number: u32, pushed_at: Timestamp) -> PluginVersion {
        PluginVersion {
            number,
            sha256: self.sha256.clone(),
            bytes: self.wasm.len() as u64,
            pushed_at,
            throttler: self.throttler.clone(),
            retry: self.retry.clone(),
            compiled: vec![self.compiled.clone()],
        }
    }

    /// Stores the component and its code as objects, before a record names them. A repeat writes
    /// the same objects.
    ///
    /// # Errors
    ///
    /// The error of the object store. Repeating may help.
    pub async fn put(&self, objects: &dyn ObjectStore) -> object_store::Result<()> {
        objects.put(&component_object(&self.sha256), self.wasm.clone().into()).await?;
        objects.put(&code_object(&self.compiled.sha256), self.code.clone().into()).await?;
        Ok(())
    }
}

/// The code of a component for this kind of machine.
///
/// # Errors
///
/// [`Refused`] if it is not a plugin or cannot be compiled.
#[cfg(feature = "compiler")]
pub(crate) fn code_of(wasm: &[u8]) -> Result<Vec<u8>, Refused> {
    super::inspect::inspect(wasm)?;
    code_of_inspected(wasm)
}

/// The code of a component that was inspected.
#[cfg(feature = "compiler")]
fn code_of_inspected(wasm: &[u8]) -> Result<Vec<u8>, Refused> {
    let mut config = crate::wasm::runtime::config();
    // Without an explicit target, the code would use all features of this processor, and other
    // machines would refuse it.
    let engine = config.target(TARGET).and_then(|config| wasmtime::Engine::new(config));
    let engine = engine.map_err(|error| {
        Refused::because(format!("cannot be compiled on this machine: {error:#}"))
    })?;
    engine
        .precompile_component(wasm)
        .map_err(|error| Refused::because(format!("cannot be compiled: {error:#}")))
}

impl PluginHost {
    /// Compiles `wasm` and lets it describe itself.
    ///
    /// # Errors
    ///
    /// [`CompileError::Refused`] with all problems for the author; [`CompileError::Failed`] if the
    /// compiler could not be run.
    pub async fn compile(
        &self,
        wasm: bytes::Bytes,
        compiler: &Compiler,
    ) -> Result<Artifact, CompileError> {
        let code = match compiler {
            #[cfg(feature = "compiler")]
            Compiler::Here => {
                let wasm = wasm.clone();
                self.aside(move |_| code_of(&wasm)).await?
            }
            #[cfg(feature = "compiler")]
            Compiler::Kept(kept) => {
                let (folder, component) = (kept.clone(), wasm.clone());
                let find = move |_: &Inner| {
                    super::inspect::inspect(&component)?;
                    Ok(folder.find(&component))
                };
                if let Some(code) = self.aside(find).await? {
                    let component = wasm.clone();
                    let load = move |inner: &Inner| inner.artifact(component, code.into());
                    // What does not load is compiled again.
                    if let Ok(artifact) = self.aside(load).await {
                        return Ok(artifact);
                    }
                }
                let (folder, component) = (kept.clone(), wasm.clone());
                let compile = move |_: &Inner| {
                    let code = code_of_inspected(&component)?;
                    folder.keep(&component, &code);
                    Ok(code)
                };
                self.aside(compile).await?
            }
            Compiler::Process(process) => process.code_of(&wasm).await?,
        };
        Ok(self.aside(move |inner| inner.artifact(wasm, code.into())).await?)
    }

    /// Makes sure that the plugin can check a configuration. The answer about the empty
    /// configuration does not matter.
    ///
    /// # Errors
    ///
    /// [`Refused`] without an answer, with the reason of each role.
    pub async fn answers(&self, artifact: &Artifact) -> Result<(), Refused> {
        let roles = [
            ("throttle", Role::Throttler, &artifact.throttler),
            ("retry", Role::Retry, &artifact.retry),
        ];
        let roles: Vec<_> = roles
            .into_iter()
            .filter(|(.., says)| says.is_some())
            .map(|(word, role, _)| (word, role))
            .collect();
        let (code, sha256) = (artifact.code.clone(), artifact.compiled.sha256.clone());
        self.aside(move |inner| {
            let loaded = inner
                .runtime
                .load(&code, &sha256)
                .map_err(|fault| Refused::because(fault.message))?;
            let checked = roles
                .into_iter()
                .map(|(word, role)| (word, inner.check(&loaded, role, "{}").answer));
            let failed = checked.filter_map(|(word, answer)| {
                Some(format!("`{word}.check-config` of `{{}}`: {}", answer.err()?.message))
            });
            let messages: Vec<String> = failed.collect();
            if messages.is_empty() { Ok(()) } else { Err(Refused { messages }) }
        })
        .await
    }

    async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, Refused> + Send + 'static,
    ) -> Result<T, Refused> {
        let inner = Arc::clone(&self.inner);
        host::run(self.run, move || Ok(work(&inner)))
            .await
            .unwrap_or_else(|fault| Err(Refused::because(fault.message)))
    }
}

impl Inner {
    /// Loads `code`, which was compiled from `wasm`, and lets it describe itself.
    fn artifact(&self, wasm: bytes::Bytes, code: bytes::Bytes) -> Result<Artifact, Refused> {
        let compiled = Compiled {
            target: TARGET.into(),
            engine: ENGINE.into(),
            sha256: hex(&Sha256::digest(&code)),
        };
        let loaded = self.runtime.load(&code, &compiled.sha256).map_err(|fault| {
            Refused::because(format!(
                "does not fit the contract (is it built against plugins/wit of this version?): \
                 {fault}"
            ))
        })?;
        if loaded.throttler.is_none() && loaded.retry.is_none() {
            return Err(Refused::because(
                "exports an interface of the contract without its functions: `throttle` has \
                 describe, check-config and decide; `retry` has describe, check-config and \
                 on-failure",
            ));
        }
        let [throttler, retry] = self.describe(&loaded);
        let throttler = throttler.map(|said| described("throttle", said)).transpose()?;
        let retry = retry.map(|said| described("retry", said)).transpose()?;
        Ok(Artifact { sha256: hex(&Sha256::digest(&wasm)), wasm, throttler, retry, compiled, code })
    }

    /// The description of a plugin in each of its roles.
    fn describe(&self, loaded: &Loaded) -> [Option<Result<Description, Fault>>; 2] {
        let said = |said: types::Description| Description {
            about: said.about,
            config_schema: said.config_schema,
            state_version: said.state_version,
            group_by: said.group_by,
            needs_running_jobs: said.needs_running_jobs,
            needs_data: said.needs_data,
            needs_ended: said.needs_ended,
            needs_earlier: said.needs_earlier,
            waiting_by: said.waiting_by,
        };
        let guest = |role| Guest::new(None, Subject::Itself(role));
        let throttler = loaded.throttler.as_ref().map(|throttler| {
            self.call(guest(Role::Throttler), |store| {
                throttler.instantiate(&mut *store)?.tidegate_plugin_throttle().call_describe(store)
            })
            .answer
            .map(said)
        });
        let retry = loaded.retry.as_ref().map(|retry| {
            self.call(guest(Role::Retry), |store| {
                retry.instantiate(&mut *store)?.tidegate_plugin_retry().call_describe(store)
            })
            .answer
            .map(said)
        });
        [throttler, retry]
    }
}

/// Validates the description of a plugin in one role.
fn described(role: &str, said: Result<Description, Fault>) -> Result<Description, Refused> {
    let refuse = |message: String| Refused::because(format!("`{role}.describe`: {message}"));
    let description = said.map_err(|fault| refuse(fault.message))?;
    let Description { about, config_schema, group_by, waiting_by, .. } = &description;
    if about.len() > bounds::MESSAGE_BYTES {
        return Err(refuse(format!(
            "`about` has {} bytes; at most {} are taken",
            about.len(),
            bounds::MESSAGE_BYTES
        )));
    }
    if let Some(schema) = config_schema {
        if schema.len() > bounds::SCHEMA_BYTES {
            return Err(refuse(format!(
                "`config-schema` has {} bytes; at most {} are taken",
                schema.len(),
                bounds::SCHEMA_BYTES
            )));
        }
        let object: Result<serde_json::Map<String, serde_json::Value>, _> =
            serde_json::from_str(schema);
        object.map_err(|error| refuse(format!("`config-schema` is not a JSON object: {error}")))?;
    }
    let bad =
        |name: &&String| name.is_empty() || name.len() > tidegate_core::job::extract::NAME_BYTES;
    for (field, names, most) in
        [("group-by", group_by, bounds::GROUPS), ("waiting-by", waiting_by, bounds::WAITING_GROUPS)]
    {
        if names.len() > most || names.iter().any(|name| bad(&name)) {
            return Err(refuse(format!(
                "`{field}` has at most {most} names of 1 to {} bytes",
                tidegate_core::job::extract::NAME_BYTES
            )));
        }
    }
    Ok(description)
}
