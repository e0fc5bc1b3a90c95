//! The libraries in the program: an SBOM, and the texts of their licences.
//!
//! Both come from `cargo metadata` for the static Linux target, with the features of a release.
//! Libraries that only build scripts and tests use are left out: they are not in the program.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde::{Deserialize, Serialize};

use super::archives::output;

/// The target whose libraries are listed.
const TARGET: &str = "x86_64-unknown-linux-musl";
/// How the files with the text of a licence begin.
const LICENCE_FILES: [&str; 6] =
    ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// A library, or the program itself.
#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    repository: Option<String>,
    /// None for a crate of this repository.
    source: Option<String>,
    manifest_path: PathBuf,
}

/// The answer of `cargo metadata`.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    root: Option<String>,
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Debug, Deserialize)]
struct Kind {
    /// None for a usual dependency, `build` or `dev`.
    kind: Option<String>,
}

/// The libraries, in the order of their names, and what each uses.
pub struct Libraries {
    root: String,
    packages: BTreeMap<String, Package>,
    uses: BTreeMap<String, BTreeSet<String>>,
}

impl Libraries {
    /// Lists the libraries of the program in the repository `root`.
    ///
    /// # Errors
    ///
    /// `cargo metadata` fails.
    pub fn list(root: &Path) -> Result<Self, String> {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(root).args([
            "metadata",
            "--locked",
            "--format-version=1",
            "--features=aws",
            "--filter-platform",
            TARGET,
        ]);
        let metadata: Metadata =
            serde_json::from_slice(&output(&mut cargo)?).map_err(|error| error.to_string())?;
        Self::of(metadata)
    }

    fn of(metadata: Metadata) -> Result<Self, String> {
        let root = metadata.resolve.root.ok_or("cargo metadata names no root package")?;
        let nodes: BTreeMap<&str, &Node> =
            metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let (mut uses, mut open) = (BTreeMap::new(), vec![root.clone()]);
        while let Some(id) = open.pop() {
            if uses.contains_key(&id) {
                continue;
            }
            let node = nodes.get(id.as_str()).ok_or_else(|| format!("{id} has no node"))?;
            let used: BTreeSet<String> = node
                .deps
                .iter()
                .filter(|dependency| dependency.dep_kinds.iter().any(|kind| kind.kind.is_none()))
                .map(|dependency| dependency.pkg.clone())
                .collect();
            open.extend(used.iter().cloned());
            uses.insert(id, used);
        }
        let packages = metadata
            .packages
            .into_iter()
            .filter(|package| uses.contains_key(&package.id))
            .map(|package| (package.id.clone(), package))
            .collect();
        Ok(Self { root, packages, uses })
    }

    /// Returns the libraries that are not of this repository, in the order of their names.
    fn foreign(&self) -> Vec<&Package> {
        let mut foreign: Vec<_> =
            self.packages.values().filter(|package| package.source.is_some()).collect();
        foreign.sort_by_key(|package| (&package.name, &package.version));
        foreign
    }

    /// Returns the texts of the licences, each with the libraries that have it.
    ///
    /// # Errors
    ///
    /// A file of a library cannot be read.
    pub fn licences(&self) -> Result<Vec<u8>, String> {
        let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut list = String::new();
        for package in self.foreign() {
            let name = format!("{} {}", package.name, package.version);
            let licence = package.license.as_deref().unwrap_or("see its text");
            let _ = writeln!(list, "{name}: {licence}");
            for text in texts_of(package)? {
                texts.entry(text).or_default().push(name.clone());
            }
        }
        let mut all = format!("Libraries in the program, and their licences:\n\n{list}");
        let mut texts: Vec<_> = texts.into_iter().map(|(text, names)| (names, text)).collect();
        texts.sort();
        for (names, text) in texts {
            let line = "-".repeat(80);
            let _ = write!(all, "\n{line}\n{}\n{line}\n\n{}\n", names.join(", "), text.trim_end());
        }
        Ok(all.into_bytes())
    }

    /// Returns the SBOM in the JSON of `CycloneDX` 1.5, made at `timestamp`.
    ///
    /// # Errors
    ///
    /// None that data in memory can cause.
    pub fn sbom(&self, timestamp: &str) -> Result<Vec<u8>, String> {
        let component = |id: &String| {
            let package = &self.packages[id];
            let is_root = *id == self.root;
            Component {
                r#type: if is_root { "application" } else { "library" },
                bom_ref: purl(package),
                name: package.name.clone(),
                version: package.version.clone(),
                licenses: package
                    .license
                    .iter()
                    .map(|expression| Licence { expression: expression.replace('/', " OR ") })
                    .collect(),
                purl: purl(package),
                external_references: package
                    .repository
                    .iter()
                    .map(|url| Reference { r#type: "vcs", url: url.clone() })
                    .collect(),
            }
        };
        let mut components: Vec<_> =
            self.packages.keys().filter(|id| **id != self.root).map(component).collect();
        components.sort_by(|a, b| a.bom_ref.cmp(&b.bom_ref));
        let mut dependencies: Vec<_> = self
            .uses
            .iter()
            .map(|(id, used)| {
                let mut depends_on: Vec<_> =
                    used.iter().map(|id| purl(&self.packages[id])).collect();
                depends_on.sort();
                Depends { r#ref: purl(&self.packages[id]), depends_on }
            })
            .collect();
        dependencies.sort_by(|a, b| a.r#ref.cmp(&b.r#ref));
        let bom = Bom {
            format: "CycloneDX",
            spec_version: "1.5",
            version: 1,
            metadata: BomMetadata {
                timestamp: timestamp.to_owned(),
                component: component(&self.root),
            },
            components,
            dependencies,
        };
        serde_json::to_vec_pretty(&bom).map_err(|error| error.to_string())
    }
}

/// Returns the texts of a library's licences.
fn texts_of(package: &Package) -> Result<Vec<String>, String> {
    let Some(folder) = package.manifest_path.parent() else { return Ok(Vec::new()) };
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        if LICENCE_FILES.iter().any(|start| name.starts_with(start)) && entry.path().is_file() {
            let bytes = fs::read(entry.path()).map_err(failed)?;
            texts.push(String::from_utf8_lossy(&bytes).replace("\r\n", "\n"));
        }
    }
    Ok(texts)
}

/// Returns the URL that names a package in all ecosystems.
fn purl(package: &Package) -> String {
    // A `+` is escaped there.
    format!("pkg:cargo/{}@{}", package.name, package.version.replace('+', "%2B"))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Bom {
    #[serde(rename = "bomFormat")]
    format: &'static str,
    spec_version: &'static str,
    version: u32,
    metadata: BomMetadata,
    components: Vec<Component>,
    dependencies: Vec<Depends>,
}

#[derive(Serialize)]
struct BomMetadata {
    timestamp: String,
    component: Component,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Component {
    r#type: &'static str,
    #[serde(rename = "bom-ref")]
    bom_ref: String,
    name: String,
    version: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    licenses: Vec<Licence>,
    purl: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    external_references: Vec<Reference>,
}

#[derive(Serialize)]
struct Licence {
    expression: String,
}

#[derive(Serialize)]
struct Reference {
    r#type: &'static str,
    url: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Depends {
    r#ref: String,
    depends_on: Vec<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn libraries() -> Libraries {
        let package = |name: &str, source: Value| {
            json!({"id": name, "name": name, "version": "1.0.0+x", "license": "MIT/Apache-2.0",
                "repository": null, "source": source, "manifest_path": "/none/Cargo.toml"})
        };
        let uses = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [package("app", Value::Null), package("lib", json!("r")),
                package("tool", json!("r"))],
            "resolve": {"root": "app", "nodes": [
                {"id": "app", "deps": [uses("lib", Value::Null), uses("tool", json!("build"))]},
                {"id": "lib", "deps": []}, {"id": "tool", "deps": []},
            ]},
        });
        Libraries::of(serde_json::from_value(metadata).unwrap()).unwrap()
    }

    #[test]
    fn the_sbom_has_what_the_program_links_and_no_more() {
        let sbom = libraries().sbom("2026-11-27T00:00:00Z").unwrap();
        let sbom: Value = serde_json::from_slice(&sbom).unwrap();
        assert_eq!(sbom["metadata"]["component"]["name"], "app");
        let names: Vec<_> =
            sbom["components"].as_array().unwrap().iter().map(|one| &one["purl"]).collect();
        assert_eq!(names, ["pkg:cargo/lib@1.0.0%2Bx"]);
        assert_eq!(sbom["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(
            sbom["dependencies"][0],
            json!({"ref": "pkg:cargo/app@1.0.0%2Bx", "dependsOn": ["pkg:cargo/lib@1.0.0%2Bx"]})
        );
    }
}
