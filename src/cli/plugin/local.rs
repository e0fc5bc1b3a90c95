//! A component in a file, compiled here and called within the bounds that a server has: what `check`, `test` and
//! `bench` look at. Nothing of it reaches a server.

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use bytes::Bytes;
use object_store::memory::InMemory;
use wasmparser::{Encoding, Parser, Payload};

use super::component;
use crate::cli::Context;
use tidegate_backends::{
    system::SystemClock,
    wasm::{
        PluginHost, Run,
        compile::{CompileError, Compiler},
    },
};
use tidegate_core::{
    port::policy::{
        Call, Fault, Plugin, Policy as _, Problem, Purpose, RetryAnswer, ThrottleAnswer, Usage,
    },
    queue::plugin::{Description, Role},
};

/// A component that can be called.
pub struct Local {
    host: PluginHost,
    plugin: Plugin,
    /// What it imports, interface by interface.
    pub imports: BTreeSet<String>,
    /// Its bytes.
    pub bytes: u64,
}

/// The component cannot be a plugin.
#[derive(Debug, thiserror::Error)]
#[error("{file} cannot be used as a plugin\n  - {}", .reasons.join("\n  - "))]
pub struct Unusable {
    /// Where it was read.
    pub file: String,
    /// Everything that is wrong with it.
    pub reasons: Vec<String>,
}

/// What a plugin says to a call.
#[derive(Clone, Debug, PartialEq)]
pub enum LocalAnswer {
    /// A throttler.
    Throttle(ThrottleAnswer),
    /// A retry strategy.
    Retry(RetryAnswer),
}

impl Local {
    /// The component in `file`.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is no plugin: [`Unusable`].
    pub async fn open(file: &Path, ctx: &Context) -> anyhow::Result<Self> {
        let wasm: Bytes = component(file).await?.into();
        let objects = Arc::new(InMemory::new());
        let host = PluginHost::new(objects.clone(), Arc::new(SystemClock), Run::Here)?;
        let imports = imports(&wasm);
        let artifact = host.compile(wasm, &Compiler::Here).await.map_err(|error| match error {
            CompileError::Refused(refused) => {
                Unusable { file: file.display().to_string(), reasons: refused.messages }.into()
            }
            CompileError::Failed(error) => {
                anyhow::Error::from(error).context("the component cannot be compiled")
            }
        })?;
        artifact.put(&*objects).await.context("the compiled component cannot be kept")?;
        let version = artifact.version(1, ctx.now());
        let bytes = version.bytes;
        // Nobody sees the name; a file may be called anything.
        let plugin =
            Plugin { name: "plugin".parse().expect("a good name"), version: Arc::new(version) };
        Ok(Self { host, plugin, imports, bytes })
    }

    /// What it says of itself in each role that it has.
    pub fn roles(&self) -> impl Iterator<Item = (Role, &Description)> {
        [Role::Throttler, Role::Retry]
            .into_iter()
            .filter_map(|role| Some((role, self.plugin.version.description(role)?)))
    }

    /// What it finds wrong with a configuration, JSON text.
    ///
    /// # Errors
    ///
    /// The call's fault.
    pub async fn problems(&self, role: Role, config: &str) -> Result<Vec<Problem>, Fault> {
        self.host.check(&self.plugin, role, config).await
    }

    /// What it says to a call.
    ///
    /// # Errors
    ///
    /// The call's fault.
    pub async fn call(&self, call: &Call) -> Result<LocalAnswer, Fault> {
        match call {
            Call::Throttle(call) => self
                .host
                .throttle(&self.plugin, Arc::clone(call), Purpose::Live)
                .await
                .map(LocalAnswer::Throttle),
            Call::Retry(call) => self
                .host
                .retry(&self.plugin, Arc::clone(call), Purpose::Live)
                .await
                .map(LocalAnswer::Retry),
        }
    }

    /// What the latest call used.
    pub fn usage(&self) -> Usage {
        self.host.seen(&self.plugin.name).live.last.unwrap_or_default()
    }

    /// What was logged since this was asked last, a line each.
    pub fn take_log(&self) -> Vec<String> {
        let log = self.host.seen(&self.plugin.name).log;
        self.host.forget(&self.plugin.name);
        log.into_iter().map(|line| format!("{}: {}", line.level.as_str(), line.text)).collect()
    }
}

/// The interfaces that a component imports; none for what is none.
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

/// Usage in one line.
pub fn used(usage: &Usage) -> String {
    let fuel = usage.fuel.map_or_else(|| "unknown fuel".to_owned(), |fuel| format!("{fuel} fuel"));
    format!(
        "{fuel}, {}, {} of memory, {} host calls",
        time(usage.took),
        size(usage.memory_bytes),
        usage.host_calls
    )
}

/// A short stretch of time.
pub fn time(span: Duration) -> String {
    match span.as_micros() {
        micros @ 0..1000 => format!("{micros} us"),
        micros => format!("{:.1} ms", micros as f64 / 1000.0),
    }
}

/// A number of bytes.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// A role in words.
pub fn word(role: Role) -> &'static str {
    match role {
        Role::Throttler => "throttler",
        Role::Retry => "retry strategy",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_their_units() {
        assert_eq!([size(12), size(2048), size(3 << 20)], ["12 B", "2.0 KiB", "3.0 MiB"]);
        assert_eq!(
            [time(Duration::from_micros(17)), time(Duration::from_micros(2500))],
            ["17 us", "2.5 ms"]
        );
    }

    #[test]
    fn only_the_outermost_imports_count() {
        let wasm = wat::parse_str(
            r#"(component
                (import "tidegate:plugin/log@0.1.0" (instance))
                (component (import "inner" (instance)))
                (core module (import "a" "b" (func))))"#,
        );
        assert_eq!(
            imports(&wasm.unwrap()).into_iter().collect::<Vec<_>>(),
            ["tidegate:plugin/log@0.1.0"]
        );
        assert!(imports(b"no wasm").is_empty());
    }
}
