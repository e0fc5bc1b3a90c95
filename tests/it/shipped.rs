//! The plugins in `plugins/dist`: small, with the imports of the contract only, and built from the
//! current sources.
//!
//! A stage of `./test` compares them byte for byte with a build, which needs a compiler for their
//! target. Here a digest shows a source that was changed and not built.

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

const COMMON: [&str; 4] = ["Cargo.lock", "Cargo.toml", "sdk", "wit"];
const ENDS: [&str; 5] = [".rs", ".toml", ".lock", ".wit", ".schema.json"];

fn plugins() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins")
}

/// The sources of a plugin, which may be a model of the gallery.
fn folder(name: &str) -> PathBuf {
    let model = plugins().join("gallery").join(name);
    if model.is_dir() { model } else { plugins().join(name) }
}

/// By name: the digest of the component, and that of its sources, as `dist/BUILT` has them.
fn built() -> BTreeMap<String, (String, String)> {
    let text = fs::read_to_string(plugins().join("dist/BUILT")).unwrap();
    let mut lines = text.lines();
    assert!(lines.next().unwrap().starts_with("rustc "));
    lines
        .map(|line| {
            let [name, component, sources] =
                line.split(' ').collect::<Vec<_>>().try_into().unwrap();
            (name.to_owned(), (component.to_owned(), sources.to_owned()))
        })
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn files(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            files(&entry.unwrap().path(), found);
        }
    } else {
        found.push(path.to_owned());
    }
}

/// The same digest as in `plugins/xtask/src/sources.rs`.
fn digest_of_sources(name: &str) -> String {
    let mut found = Vec::new();
    for part in COMMON {
        files(&plugins().join(part), &mut found);
    }
    files(&folder(name), &mut found);
    let mut named: Vec<(String, PathBuf)> = found
        .into_iter()
        .map(|file| {
            (file.strip_prefix(plugins()).unwrap().to_str().unwrap().replace('\\', "/"), file)
        })
        .collect();
    named.retain(|(path, _)| ENDS.iter().any(|end| path.ends_with(end)));
    named.sort();
    let mut hash = Sha256::new();
    for (path, file) in named {
        let bytes = fs::read(file).unwrap();
        hash.update(format!("{path}\0{}\0", bytes.len()));
        hash.update(bytes);
    }
    hex(&hash.finalize())
}

#[test]
fn each_shipped_component_is_what_its_sources_were_built_into() {
    let built = built();
    assert_eq!(built.len(), 18);
    for (name, (component, sources)) in built {
        let bytes = fs::read(plugins().join("dist").join(format!("{name}.wasm"))).unwrap();
        assert_eq!(
            hex(&Sha256::digest(&bytes)),
            component,
            "{name}.wasm was not written by plugins/build"
        );
        assert_eq!(
            digest_of_sources(&name),
            sources,
            "{name} was changed and not built: run plugins/build"
        );
    }
}

#[test]
fn a_shipped_component_is_small_and_imports_only_its_queue() {
    use wasmparser::{Parser, Payload};

    for name in built().into_keys() {
        let bytes = fs::read(plugins().join("dist").join(format!("{name}.wasm"))).unwrap();
        assert!(bytes.len() < 100_000, "{name} has {} bytes", bytes.len());
        wasmparser::Validator::new().validate_all(&bytes).unwrap();
        let (mut depth, mut exports) = (0, Vec::new());
        for payload in Parser::new(0).parse_all(&bytes) {
            match payload.unwrap() {
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
                Payload::End(_) => depth -= 1,
                Payload::ComponentImportSection(imports) if depth == 0 => {
                    for import in imports {
                        let import = import.unwrap();
                        assert!(
                            import.name.name.starts_with("tidegate:plugin/"),
                            "{name} imports {}",
                            import.name.name
                        );
                    }
                }
                Payload::ComponentExportSection(found) if depth == 0 => {
                    exports.extend(
                        found.into_iter().map(|export| export.unwrap().name.name.to_owned()),
                    );
                }
                _ => {}
            }
        }
        let is_retry = ["by-error", "error-details", "exponential", "fallback-target", "rewrite"]
            .contains(&name.as_str());
        assert_eq!(
            exports,
            [if is_retry {
                "tidegate:plugin/retry@0.2.0"
            } else {
                "tidegate:plugin/throttle@0.2.0"
            }],
            "{name}"
        );
    }
}

#[test]
fn every_shipped_plugin_has_cases_and_a_page() {
    for name in built().into_keys() {
        let folder = folder(&name);
        let readme = fs::read_to_string(folder.join("README.md"))
            .unwrap_or_else(|error| panic!("{name}/README.md: {error}"));
        let schema: serde_json::Value =
            serde_json::from_slice(&fs::read(folder.join("config.schema.json")).unwrap()).unwrap();
        for setting in schema["properties"].as_object().unwrap().keys() {
            assert!(
                readme.contains(&format!("`{setting}`")),
                "{name}/README.md says nothing of {setting}"
            );
        }
        assert!(fs::read_dir(folder.join("cases")).unwrap().count() > 0, "{name} has no cases");
    }
}
