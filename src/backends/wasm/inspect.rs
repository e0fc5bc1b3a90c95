//! What can be said of a component before it is compiled: whether it is one, what it imports and exports, how large
//! its parts are.
//!
//! The bounds here refuse the crudest bombs at once and with a reason. They do not bound the compiler: an 85 KB
//! component within all of them can keep it busy for a quarter of a minute. That is what the process of its own is for.

use wasmparser::{Encoding, Parser, Payload};

use super::{bounds::COMPONENT_BYTES, compile::Refused};

/// Bytes of one function; the largest of Python's has 427 KB.
const BODY_BYTES: usize = 512 << 10;
/// Local variables of one function; Python's have up to 271.
const LOCALS: u64 = 1000;
/// Functions in all modules together; Python's has 13,500.
const FUNCTIONS: u64 = 30_000;

/// The version of the contract that this program offers.
const OFFERED: &str = "0.1.0";
/// The package of the contract.
const PACKAGE: &str = "tidegate:plugin/";
/// What a plugin may import of it.
const IMPORTS: [&str; 5] = ["types", "log", "state", "running", "jobs"];
/// What it may export of it: one of them at least.
const EXPORTS: [&str; 2] = ["throttle", "retry"];

const HOW_TO_BUILD: &str = "build Rust for wasm32-unknown-unknown (not wasip1 or wasip2), JavaScript with componentize-qjs --stub-wasi, \
                            Python with componentize-py --stub-wasi";

/// Whether `wasm` may be compiled.
///
/// # Errors
///
/// [`Refused`] with everything that is wrong, in sentences for its author.
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
            "it is a core module, not a component: make one of it, with `tidegate plugin build` or `wasm-tools component new`".into(),
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

/// What was found in a component.
#[derive(Default)]
struct Parts {
    imports: Vec<String>,
    exports: Vec<String>,
    functions: u64,
    most_locals: u64,
    largest_body: usize,
}

impl Parts {
    fn of(wasm: &[u8]) -> wasmparser::Result<Self> {
        let mut parts = Self::default();
        // Modules and components stand inside each other; only the outermost one's names count.
        let mut outer: Vec<Encoding> = Vec::new();
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::Version { encoding, .. } => outer.push(encoding),
                Payload::End(_) => {
                    outer.pop();
                }
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
                Payload::ComponentImportSection(section) if outer.len() == 1 => {
                    for import in section {
                        parts.imports.push(import?.name.name.to_owned());
                    }
                }
                Payload::ComponentExportSection(section) if outer.len() == 1 => {
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
            messages.extend(wrong(name, "imports", &IMPORTS));
        }
        let ours: Vec<&String> =
            self.exports.iter().filter(|name| name.starts_with(PACKAGE)).collect();
        for name in &ours {
            messages.extend(wrong(name, "exports", &EXPORTS));
        }
        if ours.is_empty() {
            let found =
                if self.exports.is_empty() { "nothing".into() } else { self.exports.join(", ") };
            messages.push(format!(
                "it is not a plugin: it exports {found}, and should export {PACKAGE}throttle@{OFFERED}, {PACKAGE}retry@{OFFERED}, or both"
            ));
        }
        if self.functions > FUNCTIONS {
            messages.push(format!(
                "it has {} functions; at most {FUNCTIONS} are taken",
                self.functions
            ));
        }
        if self.most_locals > LOCALS {
            messages.push(format!(
                "one of its functions has {} local variables; at most {LOCALS} are taken",
                self.most_locals
            ));
        }
        if self.largest_body > BODY_BYTES {
            messages.push(format!(
                "one of its functions has {} bytes; at most {BODY_BYTES} ({} KiB) are taken",
                self.largest_body,
                BODY_BYTES >> 10
            ));
        }
        messages
    }
}

/// What is wrong with a name of the contract's package.
fn wrong(name: &str, does: &str, known: &[&str]) -> Option<String> {
    let (interface, version) = name.strip_prefix(PACKAGE)?.split_once('@').unwrap_or((name, ""));
    if !compatible(version) {
        return Some(format!(
            "it {does} {name}: it is built for version {version} of the contract, and this server offers {OFFERED}; build it against that"
        ));
    }
    (!known.contains(&interface))
        .then(|| format!("it {does} {name}, which is not in the contract ({})", known.join(", ")))
}

/// Whether what is built for `version` runs here: before 1.0 the minor version must be the same.
fn compatible(version: &str) -> bool {
    let series = |version: &str| {
        let mut parts = version.split(['.', '-', '+']);
        Some((parts.next()?.to_owned(), parts.next()?.to_owned()))
    };
    series(version).is_some_and(|series_of| Some(series_of) == series(OFFERED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offered_version_is_the_contract_s() {
        assert!(
            include_str!("../../../plugins/wit/plugin.wit")
                .contains(&format!("package tidegate:plugin@{OFFERED};"))
        );
    }

    #[test]
    fn patch_releases_of_the_contract_are_compatible_minor_are_not() {
        for (version, fits) in [
            ("0.1.0", true),
            ("0.1.7", true),
            ("0.2.0", false),
            ("1.1.0", false),
            ("", false),
            ("0", false),
        ] {
            assert_eq!(compatible(version), fits, "{version}");
        }
    }
}
