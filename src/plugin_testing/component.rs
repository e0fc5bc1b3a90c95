//! A component, compiled and called within the limits of a server, without a server.

use std::{collections::BTreeSet, sync::Arc};

use anyhow::Context as _;
use bytes::Bytes;
use object_store::memory::InMemory;
use wasmparser::{Encoding, Parser, Payload};

use tidegate_backends::{
    system::SystemClock,
    wasm::{
        PluginHost, Run,
        compile::{CompileError, Compiler},
    },
};
use tidegate_core::{
    port::policy::{Answer, Call, Fault, Plugin, Policy as _, Problem, Purpose, Usage},
    queue::plugin::{Description, Role},
    time::Timestamp,
};

/// A compiled plugin.
pub struct Component {
    host: PluginHost,
    plugin: Plugin,
    /// The interfaces that it imports.
    pub imports: BTreeSet<String>,
    /// The size of the component in bytes.
    pub bytes: u64,
}

/// The component cannot be a plugin.
#[derive(Debug, thiserror::Error)]
#[error("{name} cannot be used as a plugin\n  - {}", .reasons.join("\n  - "))]
pub struct Unusable {
    /// The name of the component.
    pub name: String,
    /// All problems.
    pub reasons: Vec<String>,
}

impl Component {
    /// Compiles a component at `now` with `compiler`; `name` is its name in errors, such as the path
    /// of its file.
    ///
    /// # Errors
    ///
    /// It is no plugin ([`Unusable`]), or cannot be compiled.
    pub async fn compile(
        name: &str,
        wasm: Bytes,
        compiler: &Compiler,
        now: Timestamp,
    ) -> anyhow::Result<Self> {
        let objects = Arc::new(InMemory::new());
        let host = PluginHost::new(objects.clone(), Arc::new(SystemClock), Run::Here)?;
        let imports = imports(&wasm);
        let artifact = host.compile(wasm, compiler).await.map_err(|error| match error {
            CompileError::Refused(refused) => {
                Unusable { name: name.to_owned(), reasons: refused.messages }.into()
            }
            CompileError::Failed(error) => {
                anyhow::Error::from(error).context("the component cannot be compiled")
            }
        })?;
        artifact.put(&*objects).await.context("the compiled component cannot be kept")?;
        let version = artifact.version(1, now);
        let bytes = version.bytes;
        // The host needs a valid name, which a file may lack. It is not visible.
        let plugin =
            Plugin { name: "plugin".parse().expect("a good name"), version: Arc::new(version) };
        Ok(Self { host, plugin, imports, bytes })
    }

    /// Returns its description in each of its roles.
    pub fn roles(&self) -> impl Iterator<Item = (Role, &Description)> {
        [Role::Throttler, Role::Retry]
            .into_iter()
            .filter_map(|role| Some((role, self.plugin.version.description(role)?)))
    }

    /// Returns the problems that it finds in a configuration, which is JSON text.
    ///
    /// # Errors
    ///
    /// The call's fault.
    pub async fn problems(&self, role: Role, config: &str) -> Result<Vec<Problem>, Fault> {
        self.host.check(&self.plugin, role, config).await
    }

    /// Calls the plugin within the limits of a server.
    ///
    /// # Errors
    ///
    /// The call's fault.
    pub async fn call(&self, call: &Call) -> Result<Answer, Fault> {
        match call {
            Call::Throttle(call) => self
                .host
                .throttle(&self.plugin, Arc::clone(call), Purpose::Live)
                .await
                .map(Answer::Throttle),
            Call::Retry(call) => self
                .host
                .retry(&self.plugin, Arc::clone(call), Purpose::Live)
                .await
                .map(Answer::Retry),
        }
    }

    /// Returns the resources that the latest call used.
    pub fn usage(&self) -> Usage {
        self.host.seen(&self.plugin.name).live.last.unwrap_or_default()
    }

    /// Returns the lines that the plugin logged since the last call of this function.
    pub fn take_log(&self) -> Vec<String> {
        let log = self.host.seen(&self.plugin.name).log;
        self.host.forget(&self.plugin.name);
        log.into_iter().map(|line| format!("{}: {}", line.level.as_str(), line.text)).collect()
    }
}

/// Returns the interfaces that a component imports, and none for other bytes.
fn imports(wasm: &[u8]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(wasm).map_while(Result::ok) {
        match payload {
            Payload::Version { encoding, .. } if depth == 0 && encoding != Encoding::Component => {
                return names;
            }
            Payload::Version { .. } => depth += 1,
            Payload::End(_) => depth -= 1,
            Payload::ComponentImportSection(section) if depth == 1 => {
                names.extend(
                    section.into_iter().flatten().map(|import| import.name.name.to_owned()),
                );
            }
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_outermost_imports_count() {
        let wasm = wat::parse_str(
            r#"(component
                (import "tidegate:plugin/log@0.2.0" (instance))
                (component (import "inner" (instance)))
                (core module (import "a" "b" (func))))"#,
        );
        assert_eq!(
            imports(&wasm.unwrap()).into_iter().collect::<Vec<_>>(),
            ["tidegate:plugin/log@0.2.0"]
        );
        assert!(imports(b"no wasm").is_empty());
    }
}
