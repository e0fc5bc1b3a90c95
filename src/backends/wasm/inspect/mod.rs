//! Checks of a component before it is compiled: its format, its imports and exports, the size of
//! its parts, and how many instances it makes of them.
//!
//! The bounds refuse simple attacks early and with a reason. They do not bound the compiler: an 85
//! KB component within all of them can keep it busy for 15 seconds. The separate process bounds
//! that.

mod instances;

use wasmparser::{Parser, Payload};

use self::instances::{Instances, MAX_DEFINITION_BYTES, MAX_INSTANCES, MAX_LEVELS};
use super::{
    bounds::{COMPONENT_BYTES, GLOBALS},
    compile::Refused,
};

/// Maximum bytes of one function; the largest of Python has 427 KB.
const MAX_BODY_BYTES: usize = 512 << 10;
/// Maximum local variables of one function; Python has up to 271.
const MAX_LOCALS: u64 = 1000;
/// Maximum functions of all modules together; Python has 13,500.
const MAX_FUNCTIONS: u64 = 30_000;
/// Bytes of a global variable in each instance of its module.
const GLOBAL_BYTES: u64 = 16;

/// The version of the contract that this program implements.
const CONTRACT_VERSION: &str = "0.2.0";
/// The package of the contract.
const PACKAGE: &str = "tidegate:plugin/";
/// The interfaces that a plugin may import.
const IMPORTS: [&str; 10] = [
    "types",
    "clock",
    "random",
    "log",
    "metrics",
    "state",
    "running",
    "waiting",
    "candidates",
    "jobs",
];
/// The interfaces that a plugin may export; it exports at least one.
const EXPORTS: [&str; 2] = ["throttle", "retry"];

const HOW_TO_BUILD: &str = "`tidegate plugin build` makes a component without WASI of a \
     project, or of a core module for WASI preview 1";

/// Whether `wasm` may be compiled.
///
/// # Errors
///
/// [`Refused`] with all problems, as sentences for its author.
pub(super) fn inspect(wasm: &[u8]) -> Result<(), Refused> {
    let refuse = |message: String| Err(Refused { messages: vec![message] });
    if wasm.len() > COMPONENT_BYTES {
        return refuse(format!(
            "it has {} bytes; at most {COMPONENT_BYTES} ({} MiB) are taken",
            wasm.len(),
            COMPONENT_BYTES >> 20
        ));
    }
    if Parser::is_core_wasm(wasm) {
        return refuse(
            "it is a core module, not a component: make one of it, with `tidegate plugin build` or \
             `wasm-tools component new`"
                .into(),
        );
    }
    if !Parser::is_component(wasm) {
        return refuse(
            "it is not WebAssembly: a component starts with the bytes 00 61 73 6d 0d 00 01 00"
                .into(),
        );
    }
    let parts = Parts::of(wasm).map_err(|error| Refused {
        messages: vec![format!("it is not a well-formed component: {error}")],
    })?;
    let messages = parts.messages();
    if messages.is_empty() { Ok(()) } else { Err(Refused { messages }) }
}

/// The inspected parts of a component.
#[derive(Default)]
struct Parts {
    imports: Vec<String>,
    exports: Vec<String>,
    functions: u64,
    instances: Instances,
    most_locals: u64,
    largest_body: usize,
}

impl Parts {
    /// The parts of a component, or of one that is nested too deeply those up to there.
    fn of(wasm: &[u8]) -> wasmparser::Result<Self> {
        let mut parts = Self::default();
        for payload in Parser::new(0).parse_all(wasm) {
            let payload = payload?;
            parts.instances.add(&payload)?;
            // Only the names of the outermost component count.
            let is_outermost = parts.instances.depth() == 1;
            match payload {
                Payload::Version { .. } if parts.instances.depth() > MAX_LEVELS => break,
                Payload::FunctionSection(section) => parts.functions += u64::from(section.count()),
                Payload::CodeSectionEntry(body) => {
                    parts.largest_body = parts.largest_body.max(body.range().len());
                    let locals = body
                        .get_locals_reader()?
                        .into_iter()
                        .map(|local| local.map(|(count, _)| u64::from(count)));
                    parts.most_locals =
                        parts.most_locals.max(locals.sum::<wasmparser::Result<u64>>()?);
                }
                Payload::ComponentImportSection(section) if is_outermost => {
                    for import in section {
                        parts.imports.push(import?.name.name.to_owned());
                    }
                }
                Payload::ComponentExportSection(section) if is_outermost => {
                    for export in section {
                        parts.exports.push(export?.name.name.to_owned());
                    }
                }
                _ => {}
            }
        }
        Ok(parts)
    }

    fn messages(&self) -> Vec<String> {
        if self.instances.depth() > MAX_LEVELS {
            return vec![format!(
                "its components and core modules are nested more than {MAX_LEVELS} levels deep"
            )];
        }
        let mut messages = Vec::new();
        let (wasi, others): (Vec<&str>, Vec<&str>) = self
            .imports
            .iter()
            .map(String::as_str)
            .filter(|name| !name.starts_with(PACKAGE))
            .partition(|name| name.starts_with("wasi:"));
        if !wasi.is_empty() {
            messages.push(format!(
                "it imports WASI, which plugins are not given ({}): {HOW_TO_BUILD}",
                wasi.join(", ")
            ));
        }
        if !others.is_empty() {
            messages.push(format!("it imports what plugins are not given: {}", others.join(", ")));
        }
        for name in self.imports.iter().filter(|name| name.starts_with(PACKAGE)) {
            messages.extend(problem_with(name, "imports", &IMPORTS));
        }
        let ours: Vec<&String> =
            self.exports.iter().filter(|name| name.starts_with(PACKAGE)).collect();
        for name in &ours {
            messages.extend(problem_with(name, "exports", &EXPORTS));
        }
        if ours.is_empty() {
            let found =
                if self.exports.is_empty() { "nothing".into() } else { self.exports.join(", ") };
            messages.push(format!(
                "it is not a plugin: it exports {found}, and should export \
                 {PACKAGE}throttle@{CONTRACT_VERSION}, {PACKAGE}retry@{CONTRACT_VERSION}, or both"
            ));
        }
        if self.functions > MAX_FUNCTIONS {
            messages.push(format!(
                "it has {} functions; at most {MAX_FUNCTIONS} are taken",
                self.functions
            ));
        }
        let made = self.instances.made();
        if made.has_foreign_components {
            messages.push(
                "it instantiates a component from an import or from an export of an instance; only \
                 components that are defined in it are taken"
                    .into(),
            );
        }
        if made.instances > MAX_INSTANCES {
            messages.push(format!(
                "it makes more than {MAX_INSTANCES} instances of components and core modules"
            ));
        }
        if made.definition_bytes > MAX_DEFINITION_BYTES {
            messages.push(format!(
                "the definitions in all instances of its components take {} bytes; at most \
                 {MAX_DEFINITION_BYTES} are taken",
                made.definition_bytes
            ));
        }
        let globals = self.instances.globals().saturating_mul(GLOBAL_BYTES);
        if globals > GLOBALS as u64 {
            messages.push(format!(
                "the global variables of its instances take {globals} bytes; at most {GLOBALS} are \
                 taken"
            ));
        }
        if self.most_locals > MAX_LOCALS {
            messages.push(format!(
                "one of its functions has {} local variables; at most {MAX_LOCALS} are taken",
                self.most_locals
            ));
        }
        if self.largest_body > MAX_BODY_BYTES {
            messages.push(format!(
                "one of its functions has {} bytes; at most {MAX_BODY_BYTES} ({} KiB) are taken",
                self.largest_body,
                MAX_BODY_BYTES >> 10
            ));
        }
        messages
    }
}

/// The problem with a name of the contract's package, if it has one.
fn problem_with(name: &str, does: &str, known: &[&str]) -> Option<String> {
    let (interface, version) = name.strip_prefix(PACKAGE)?.split_once('@').unwrap_or((name, ""));
    if !compatible(version) {
        let version =
            if version.is_empty() { "no version".into() } else { format!("version {version}") };
        return Some(format!(
            "it {does} {name}: it is built for {version} of the contract, and this server offers \
             {CONTRACT_VERSION}; take the SDK and the contract of this release (`tidegate plugin \
             new` writes both), and build it again"
        ));
    }
    (!known.contains(&interface))
        .then(|| format!("it {does} {name}, which is not in the contract ({})", known.join(", ")))
}

/// Whether a plugin for `version` runs here. Before 1.0, the minor version must be the same.
fn compatible(version: &str) -> bool {
    let series = |version: &str| {
        let mut parts = version.split(['.', '-', '+']);
        Some((parts.next()?.to_owned(), parts.next()?.to_owned()))
    };
    series(version).is_some_and(|series_of| Some(series_of) == series(CONTRACT_VERSION))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contract_version_is_that_of_the_wit_file() {
        assert!(
            include_str!("../../../../plugins/wit/plugin.wit")
                .contains(&format!("package tidegate:plugin@{CONTRACT_VERSION};"))
        );
    }

    #[test]
    fn only_patch_releases_of_the_contract_are_compatible() {
        for (version, fits) in [
            ("0.2.0", true),
            ("0.2.7", true),
            ("0.1.0", false),
            ("0.3.0", false),
            ("1.1.0", false),
            ("", false),
            ("0", false),
        ] {
            assert_eq!(compatible(version), fits, "{version}");
        }
    }
}
