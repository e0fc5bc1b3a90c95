//! The shape of the source: which module may know which, and what no file may have.
//!
//! ```text
//!   functions, main, cli, api, dashboard ─▶ server ─▶ engine ─▶ port ─▶ job, queue ─▶ time
//!                                                 adapter, plugin ─▶ port
//! ```
//!
//! The files are read as text: paths that start at the crate's root, and names of other crates. What
//! tests use is left out, for a test may stand anywhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What a module may know: modules of this crate, and other crates (none said: any).
struct Layer {
    name: &'static str,
    modules: &'static [&'static str],
    crates: Option<&'static [&'static str]>,
}

/// Crates that only turn values into values. `utoipa` says what a value looks like.
const PURE: &[&str] = &[
    "base64",
    "bytes",
    "chrono",
    "chrono_tz",
    "croner",
    "hmac",
    "jmespath",
    "rmpv",
    "serde",
    "serde_json",
    "sha2",
    "thiserror",
    "url",
    "utoipa",
];
/// What traits and their values are made of besides.
const PORT: &[&str] = &["async_trait", "bytes", "serde", "thiserror", "url"];
/// What the verbs are made of besides. `object_store` is a port: its trait is the one for large bodies.
const ENGINE: &[&str] = &[
    "arc_swap",
    "async_trait",
    "base64",
    "bytes",
    "futures_util",
    "metrics",
    "object_store",
    "parking_lot",
    "serde",
    "serde_json",
    "sha2",
    "thiserror",
    "tracing",
    "ulid",
    "url",
    "utoipa",
];

const fn layer(name: &'static str, modules: &'static [&'static str], crates: Option<&'static [&'static str]>) -> Layer {
    Layer { name, modules, crates }
}

/// Every module of the crate, from the core outwards. A new one gets a line.
const LAYERS: &[Layer] = &[
    layer("time", &[], Some(PURE)),
    layer("signature", &["time"], Some(PURE)),
    layer("job", &["queue", "time"], Some(PURE)),
    layer("queue", &["job", "signature", "time"], Some(PURE)),
    layer("event", &["job", "queue", "time"], Some(PURE)),
    layer("cost", &["port"], Some(PURE)),
    layer("port", &["job", "queue", "time"], Some(PORT)),
    layer("engine", &["port", "event", "job", "queue", "signature", "time"], Some(ENGINE)),
    layer("adapter", &["port", "job", "queue", "time"], None),
    layer("plugin", &["port", "job", "queue", "time"], None),
    layer("testkit", &["adapter", "port", "job", "queue", "time", "job_store_conformance", "work_queue_conformance"], None),
    layer("auth", &["adapter", "settings", "port", "job", "queue", "time"], None),
    layer("simulate", &["adapter", "engine", "plugin", "port", "job", "queue", "testkit", "time"], None),
    layer("settings", &["adapter", "queue", "job", "signature", "time"], None),
    layer("server", &["engine", "event", "plugin", "port", "job", "queue", "signature", "time"], None),
    layer("dashboard", &["server", "engine", "port", "job", "queue", "time"], None),
    layer("api", &["auth", "dashboard", "server", "engine", "event", "plugin", "port", "job", "queue", "signature", "time"], None),
    layer(
        "cloud",
        &["adapter", "api", "auth", "cost", "dashboard", "server", "engine", "event", "plugin", "port", "job", "queue", "time"],
        None,
    ),
    layer(
        "cli",
        &[
            "api",
            "adapter",
            "auth",
            "cloud",
            "cost",
            "dashboard",
            "server",
            "settings",
            "simulate",
            "engine",
            "event",
            "plugin",
            "port",
            "job",
            "queue",
            "signature",
            "testkit",
            "time",
        ],
        None,
    ),
    layer("main", &["cli"], None),
    layer("lib", &["server"], None),
];

/// The one file of `server` that chooses its ports.
const WIRING: (&str, &str) = ("src/server/open.rs", "adapter");

/// A source file: its place in the repository and its code without comments, texts and tests.
struct Source {
    path: String,
    whole: String,
    code: String,
}

impl Source {
    /// The module directly below the root that it belongs to.
    fn top(&self) -> Option<&str> {
        let inside = self.path.strip_prefix("src/")?;
        Some(inside.split('/').next()?.trim_end_matches(".rs"))
    }

    /// How many steps up from its module the root is.
    fn depth(&self) -> usize {
        self.path.matches('/').count() - usize::from(self.path.ends_with("/mod.rs"))
    }

    fn is_test(&self) -> bool {
        let path = Path::new(&self.path);
        !self.path.starts_with("src/") || path.iter().any(|part| part == "tests" || part == "tests.rs" || part == "testing.rs")
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust file of this package.
fn sources() -> Vec<Source> {
    let mut paths = Vec::new();
    for dir in ["src", "tests", "examples", "benches"] {
        files(&root().join(dir), &mut paths);
    }
    let sources: Vec<Source> = paths
        .into_iter()
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .map(|path| {
            let whole = fs::read_to_string(&path).unwrap();
            let path = path.strip_prefix(root()).unwrap().to_str().unwrap().replace('\\', "/");
            Source { path, code: code(&whole), whole }
        })
        .collect();
    assert!(sources.len() > 30, "the sources were not found");
    sources
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

/// `text` without comments, without what stands in quotes, and without its inline module of tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if rest.starts_with("//") {
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
        } else if let Some(raw) = rest.strip_prefix("r#\"") {
            rest = raw.split_once("\"#").map_or("", |(_, after)| after);
        } else if first == '"' {
            let mut escaped = false;
            let end = rest[1..].find(|letter| {
                let ends = letter == '"' && !escaped;
                escaped = letter == '\\' && !escaped;
                ends
            });
            rest = &rest[end.map_or(rest.len(), |end| end + 2)..];
            code.push_str("\"\"");
        } else if rest.starts_with("'\"'") {
            rest = &rest[3..];
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    code
}

/// The names that follow `path` (such as `crate::`) in `code`: one, or the first of each branch of a `{...}`.
fn after<'a>(code: &'a str, path: &str) -> Vec<&'a str> {
    let mut names = Vec::new();
    for (at, _) in code.match_indices(path) {
        if code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':') {
            continue;
        }
        let rest = &code[at + path.len()..];
        let Some(branches) = rest.strip_prefix('{') else {
            names.push(word(rest));
            continue;
        };
        let (mut depth, mut start) = (0, true);
        for (at, letter) in branches.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => start = true,
                letter if start && !letter.is_whitespace() => {
                    names.push(word(&branches[at..]));
                    start = false;
                }
                _ => {}
            }
        }
    }
    names
}

/// The name that `text` starts with.
fn word(text: &str) -> &str {
    &text[..text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len())]
}

fn show(faults: &BTreeSet<String>) -> String {
    faults.iter().fold(String::from("\n"), |all, fault| all + fault + "\n")
}

/// The crates that the manifest names, as code writes them.
fn dependencies() -> Vec<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let of = |line: &str| Some(line.split_once(" = ")?.0.replace('-', "_"));
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap().split("\n[").next().unwrap();
    section.lines().filter_map(of).collect()
}

#[test]
fn paths_are_found_however_they_are_written() {
    let text = "use crate::{\n    job::{Job, life::State},\n    queue,\n};\nuse crate::time::Timestamp; // crate::comment\n\
                let x = \"crate::text \\\" crate::text\"; let y = crate::port::Clock::now; mycrate::no::no;";
    assert_eq!(after(&code(text), "crate::"), ["job", "queue", "time", "port"]);
}

#[test]
fn arrows_point_one_way() {
    let layers: BTreeMap<&str, &Layer> = LAYERS.iter().map(|layer| (layer.name, layer)).collect();
    let mut faults = BTreeSet::new();
    for source in sources().iter().filter(|source| !source.is_test()) {
        let top = source.top().unwrap();
        let Some(layer) = layers.get(top) else {
            faults.insert(format!("{}: the module {top} has no line in LAYERS", source.path));
            continue;
        };
        let names = after(&source.code, "crate::").into_iter().chain(after(&source.code, "tidegate::"));
        for name in names.filter(|name| *name != top && !layer.modules.contains(name) && (source.path.as_str(), *name) != WIRING) {
            faults.insert(format!("{}: {top} must not know {name}", source.path));
        }
        // The search above does not see who climbs up to the root.
        if source.code.contains(&"super::".repeat(source.depth())) {
            faults.insert(format!("{}: what is outside of {top} is named from `crate::`", source.path));
        }
    }
    assert!(faults.is_empty(), "{}", show(&faults));
}

#[test]
fn the_core_knows_no_vendor() {
    let dependencies = dependencies();
    assert!(dependencies.iter().any(|name| name == "rusqlite") && dependencies.iter().any(|name| name == "tokio"), "{dependencies:?}");
    let mut faults = BTreeSet::new();
    for source in sources().iter().filter(|source| !source.is_test()) {
        let Some(allowed) = LAYERS.iter().find(|layer| Some(layer.name) == source.top()).and_then(|layer| layer.crates) else { continue };
        for name in dependencies.iter().filter(|name| !allowed.contains(&name.as_str())) {
            let used = after(&source.code, &format!("{name}::"));
            if !used.is_empty() {
                faults.insert(format!("{}: must not use the crate {name}", source.path));
            }
        }
        for name in after(&source.code, "std::") {
            if ["env", "fs", "net", "os", "process", "thread"].contains(&name) {
                faults.insert(format!("{}: must not use std::{name}", source.path));
            }
        }
    }
    assert!(faults.is_empty(), "{}", show(&faults));
}

#[test]
fn without_features_no_crate_that_does_io_is_built() {
    let manifest = root().join("Cargo.toml");
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--no-default-features", "--edges", "normal", "--prefix", "none", "--format", "{p} {f}"])
        .arg("--manifest-path")
        .arg(manifest)
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).unwrap();
    assert!(tree.contains("serde_json v"), "{tree}");
    let io = ["axum", "hyper", "libsqlite3-sys", "mio", "reqwest", "rusqlite", "rustls", "socket2", "tower-http", "wasmtime"];
    for line in tree.lines() {
        let name = line.split(' ').next().unwrap_or_default();
        assert!(!io.contains(&name) && !name.starts_with("aws-"), "{line}");
        let features = line.rsplit(' ').next().unwrap_or_default();
        assert!(name != "tokio" || !features.split(',').any(|one| ["fs", "net", "process", "signal"].contains(&one)), "{line}");
    }
}

#[test]
fn every_file_says_what_it_is() {
    let undocumented: BTreeSet<String> = sources()
        .into_iter()
        .filter(|source| !(source.is_test() && source.path.starts_with("src/")))
        .filter(|source| !source.whole.starts_with("//! "))
        .map(|source| source.path)
        .collect();
    assert!(undocumented.is_empty(), "these files do not start with `//! `:{}", show(&undocumented));
}

#[test]
fn nothing_is_left_to_do_and_nothing_is_called_utils() {
    // Written in two parts, so that this file does not have them.
    let words = [concat!("to", "do!("), concat!("unimple", "mented!("), concat!("TO", "DO"), concat!("FIX", "ME")];
    let mut faults = BTreeSet::new();
    for source in sources() {
        for word in words.iter().filter(|word| source.whole.contains(**word)) {
            faults.insert(format!("{}: {word}", source.path));
        }
        let name = Path::new(&source.path).iter().find(|part| {
            let name = part.to_str().unwrap().trim_end_matches(".rs");
            ["utils", "util", "common", "helpers", "misc"].contains(&name)
        });
        faults.extend(name.map(|_| format!("{}: what has no home lacks a name", source.path)));
    }
    assert!(faults.is_empty(), "{}", show(&faults));
}

#[test]
fn no_test_sleeps() {
    let mut faults = BTreeSet::new();
    for source in sources() {
        let tests = match source.whole.split_once("#[cfg(test)]\nmod tests {") {
            _ if source.is_test() || source.path.starts_with("src/testkit/") => &source.whole,
            Some((_, tests)) => tests,
            None => continue,
        };
        // A method of that name is a test's own clock, which is moved by hand.
        let real = |line: &str| {
            let call = concat!("sle", "ep(");
            line.match_indices(call).any(|(at, _)| !line[..at].ends_with(['.', '_']) && !line[..at].ends_with("fn "))
        };
        for line in code(tests).lines().filter(|line| real(line)) {
            faults.insert(format!("{}: {}", source.path, line.trim()));
        }
    }
    assert!(faults.is_empty(), "wait on a condition or on port::Clock instead:{}", show(&faults));
}
