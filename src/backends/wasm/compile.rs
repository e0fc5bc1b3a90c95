//! From a component to code that this program loads: what is refused, and why.
//!
//! The compiling side is trusted: the hash of what comes out is what running sides compare before they load it.
//! Three steps, each of which may refuse: the component's parts are looked at, it is compiled, and it describes itself
//! under the bounds of every call. The first two happen where [`Compiler`] says; the last one here.

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

/// The component is no plugin that can be taken. Repeating cannot help; its author must change it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", messages.join("; "))]
pub struct Refused {
    /// What is wrong, each in a sentence for its author that goes on from "it".
    pub messages: Vec<String>,
}

impl Refused {
    pub(super) fn because(message: impl Into<String>) -> Self {
        Self { messages: vec![message.into()] }
    }
}

/// Why nothing was compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The component's author must change it.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The compiler could not be run. It may go well later.
    #[error("the compiler could not be run: {0}")]
    Failed(#[from] std::io::Error),
}

/// Where components are compiled.
#[derive(Clone, Debug)]
pub enum Compiler {
    /// In this process, which a bad component may keep busy for minutes and fill with gigabytes: for authors' own
    /// machines.
    #[cfg(feature = "compiler")]
    Here,
    /// In a process of its own that is ended when it takes too long or too much.
    Process(super::compile_process::Process),
}

/// A component that was compiled, with all that is to be kept of it.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// The component.
    pub wasm: bytes::Bytes,
    /// The hash of the component.
    pub sha256: String,
    /// What it says as a throttler, if it is one.
    pub throttler: Option<Description>,
    /// What it says as a retry strategy, if it is one.
    pub retry: Option<Description>,
    /// What it was compiled to.
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

    /// Puts the component and its code among the objects, which is to be done before a record names them. A repeat
    /// writes the same.
    ///
    /// # Errors
    ///
    /// Whatever the object store says. Repeating may help.
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
/// [`Refused`] if it is no plugin or cannot be compiled.
#[cfg(feature = "compiler")]
pub fn code_of(wasm: &[u8]) -> Result<Vec<u8>, Refused> {
    super::inspect::inspect(wasm)?;
    let mut config = crate::wasm::runtime::config();
    // Named even though it is this machine: else the code would use all that this processor can do, and be refused by another.
    let engine = config.target(TARGET).and_then(|config| wasmtime::Engine::new(config));
    let engine = engine.map_err(|error| {
        Refused::because(format!("cannot be compiled on this machine: {error:#}"))
    })?;
    engine
        .precompile_component(wasm)
        .map_err(|error| Refused::because(format!("cannot be compiled: {error:#}")))
}

impl PluginHost {
    /// Compiles `wasm` and has it describe itself.
    ///
    /// # Errors
    ///
    /// [`CompileError::Refused`] with everything its author should know; [`CompileError::Failed`] if the compiler could not be run.
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
            Compiler::Process(process) => process.code_of(&wasm).await?,
        };
        Ok(self.aside(move |inner| inner.artifact(wasm, code.into())).await?)
    }

    /// Makes sure that the plugin answers when it is asked to check a configuration. What it says of the empty one, which is asked
    /// about, makes no difference.
    ///
    /// # Errors
    ///
    /// [`Refused`] if it gave no answer, with each role's reason.
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
                .machine
                .load(&code, &sha256)
                .map_err(|fault| Refused::because(fault.message))?;
            let asked = roles
                .into_iter()
                .map(|(word, role)| (word, inner.check(&loaded, role, "{}").answer));
            let failed = asked.filter_map(|(word, answer)| {
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
    /// Loads `code`, made from `wasm`, and has it describe itself.
    fn artifact(&self, wasm: bytes::Bytes, code: bytes::Bytes) -> Result<Artifact, Refused> {
        let compiled = Compiled {
            target: TARGET.into(),
            engine: ENGINE.into(),
            sha256: hex(&Sha256::digest(&code)),
        };
        let loaded = self.machine.load(&code, &compiled.sha256).map_err(|fault| {
            Refused::because(format!("does not fit the contract (is it built against plugins/wit of this version?): {fault}"))
        })?;
        let [throttler, retry] = self.describe(&loaded);
        let throttler = throttler.map(|said| described("throttle", said)).transpose()?;
        let retry = retry.map(|said| described("retry", said)).transpose()?;
        Ok(Artifact { sha256: hex(&Sha256::digest(&wasm)), wasm, throttler, retry, compiled, code })
    }

    /// What a plugin says about itself in each role that it has.
    fn describe(&self, loaded: &Loaded) -> [Option<Result<Description, Fault>>; 2] {
        let said = |said: types::Description| Description {
            about: said.about,
            config_schema: said.config_schema,
            state_version: said.state_version,
            group_by: said.group_by,
            needs_running_jobs: said.needs_running_jobs,
            needs_data: said.needs_data,
            needs_ended: said.needs_ended,
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

/// What a plugin said about itself in one role, held against what it may say.
fn described(role: &str, said: Result<Description, Fault>) -> Result<Description, Refused> {
    let refuse = |message: String| Refused::because(format!("`{role}.describe`: {message}"));
    let description = said.map_err(|fault| refuse(fault.message))?;
    let Description { about, config_schema, group_by, .. } = &description;
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
    if group_by.len() > bounds::GROUPS || group_by.iter().any(|name| bad(&name)) {
        return Err(refuse(format!(
            "`group-by` has at most {} names of 1 to {} bytes",
            bounds::GROUPS,
            tidegate_core::job::extract::NAME_BYTES
        )));
    }
    Ok(description)
}
