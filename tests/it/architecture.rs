//! The structure of the source: which crate and module may use which, and what no file may contain.
//!
//! ```text
//!   functions, main ─▶ server ─▶ engine ─▶ core        backends ─▶ core        cli, server ─▶ api ─▶ core
//! ```
//!
//! Cargo enforces the arrows between crates, and a test compares the manifests with them. Inside
//! the core, a module uses only the modules before it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::words::lexeme;

/// The crates below `src`, each with its allowed dependencies.
const CRATES: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("engine", &["core"]),
    ("backends", &["core"]),
    ("api", &["core"]),
    ("server", &["core", "engine", "backends", "api"]),
];

/// The modules of the core: each may use those before it.
const CORE: &[&str] = &[
    "lib",
    "checksum",
    "error_chain",
    "error_code",
    "parsed",
    "ruled",
    "stored",
    "strict",
    "time",
    "calendar",
    "target",
    "job",
    "queue",
    "schedule",
    "validate",
    "event",
    "document",
    "port",
    "schema",
];

/// A source file: its path in the repository, and its text.
pub struct Source {
    pub path: String,
    pub whole: String,
}

impl Source {
    /// Its code without comments, strings and tests.
    fn code(&self) -> String {
        code(&self.whole)
    }

    fn is_test(&self) -> bool {
        let outside = ["tests/", "benches/", "examples/"];
        let inside = ["tests", "testing", "testkit", "fuzz"];
        outside.iter().any(|folder| self.path.starts_with(folder))
            || Path::new(&self.path)
                .iter()
                .filter_map(|part| part.to_str())
                .any(|part| inside.contains(&part.trim_end_matches(".rs")))
    }
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust file but the plugins', which have a workspace of their own.
pub fn sources() -> Vec<Source> {
    let mut paths = Vec::new();
    for dir in ["src", "functions", "tests", "examples", "benches", "xtask"] {
        files(&root().join(dir), &mut paths);
    }
    let sources: Vec<Source> = paths
        .into_iter()
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .map(|path| {
            let whole = fs::read_to_string(&path).unwrap();
            let path = path.strip_prefix(root()).unwrap().to_str().unwrap().replace('\\', "/");
            Source { path, whole }
        })
        .collect();
    assert!(sources.len() > 30, "the sources were not found");
    sources
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

/// `text` without comments, string literals and its inline test module.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let (lexeme, after) = rest.split_at(lexeme(rest));
        code.push_str(match lexeme {
            comment if comment.starts_with("//") => "",
            string if string.contains('"') => "\"\"",
            other => other,
        });
        rest = after;
    }
    code
}

/// The names that follow `path` (such as `crate::`) in `code`: one, or the first of each branch of
/// a `{...}`.
fn after<'a>(code: &'a str, path: &str) -> Vec<&'a str> {
    let mut names = Vec::new();
    for (at, _) in code.match_indices(path) {
        if code[..at]
            .ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':')
        {
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
    &text[..text
        .find(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .unwrap_or(text.len())]
}

fn show(faults: &BTreeSet<String>) -> String {
    faults.iter().fold(String::from("\n"), |all, fault| all + fault + "\n")
}

#[test]
fn paths_are_found_however_they_are_written() {
    let text = "use crate::{\n    job::{Job, lifecycle::State},\n    queue,\n};\nuse crate::time::Timestamp; // crate::comment\n\
                let x = \"crate::text \\\" crate::text\"; let y = crate::port::Clock::now; mycrate::no::no;";
    assert_eq!(after(&code(text), "crate::"), ["job", "queue", "time", "port"]);
}

#[test]
fn a_crate_depends_on_inner_crates_alone() {
    for (name, inner) in CRATES {
        let manifest = fs::read_to_string(root().join(format!("src/{name}/Cargo.toml"))).unwrap();
        let section =
            manifest.split("\n[dependencies]\n").nth(1).unwrap().split("\n[").next().unwrap();
        for line in section.lines() {
            let Some(other) = line.strip_prefix("tidegate-").map(word) else {
                continue;
            };
            assert!(inner.contains(&other), "tidegate-{name} must not depend on tidegate-{other}");
        }
    }
}

#[test]
fn a_module_of_the_core_knows_earlier_ones_alone() {
    let place = |name: &str| CORE.iter().position(|module| *module == name);
    let mut faults = BTreeSet::new();
    for source in sources().iter().filter(|source| !source.is_test()) {
        let Some(inside) = source.path.strip_prefix("src/core/") else {
            continue;
        };
        let top = word(inside);
        let here = place(top)
            .unwrap_or_else(|| panic!("{}: the module {top} has no place in CORE", source.path));
        let code = source.code();
        for name in after(&code, "crate::")
            .into_iter()
            .filter(|name| place(name).is_some_and(|place| place > here))
        {
            faults.insert(format!("{}: {top} must not know {name}", source.path));
        }
    }
    assert!(faults.is_empty(), "{}", show(&faults));
}

#[test]
fn the_core_and_the_engine_use_no_system() {
    let mut faults = BTreeSet::new();
    let inner = |path: &str| {
        path.starts_with("src/core/")
            || (path.starts_with("src/engine/") && !path.starts_with("src/engine/testkit/"))
    };
    for source in sources().iter().filter(|source| !source.is_test() && inner(&source.path)) {
        let code = source.code();
        for name in after(&code, "std::") {
            if ["env", "fs", "net", "os", "process", "thread"].contains(&name) {
                faults.insert(format!("{}: must not use std::{name}", source.path));
            }
        }
    }
    assert!(faults.is_empty(), "{}", show(&faults));
}

#[test]
fn the_core_depends_on_no_crate_that_does_io() {
    let tree = tree("tidegate-core");
    assert!(tree.contains("serde_json v"), "{tree}");
    assert!(!tree.contains("tokio v") && !tree.contains("rand v"), "{tree}");
    holds_no_io(&tree);
    holds_no_io(&self::tree("tidegate-engine"));
}

/// What the crate `name` is built from.
fn tree(name: &str) -> String {
    let tree = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--offline",
            "--locked",
            "--package",
            name,
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--format",
            "{p} {f}",
        ])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    String::from_utf8(tree.stdout).unwrap()
}

fn holds_no_io(tree: &str) {
    let io = [
        "axum",
        "hyper",
        "libsqlite3-sys",
        "mio",
        "reqwest",
        "rusqlite",
        "rustls",
        "socket2",
        "tower-http",
        "wasmtime",
    ];
    for line in tree.lines() {
        let name = line.split(' ').next().unwrap_or_default();
        assert!(!io.contains(&name) && !name.starts_with("aws-"), "{line}");
        let features = line.rsplit(' ').next().unwrap_or_default();
        assert!(
            name != "tokio"
                || !features
                    .split(',')
                    .any(|one| ["fs", "net", "process", "signal"].contains(&one)),
            "{line}"
        );
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
    assert!(
        undocumented.is_empty(),
        "these files do not start with `//! `:{}",
        show(&undocumented)
    );
}

#[test]
fn nothing_is_left_to_do_and_nothing_is_called_utils() {
    // Written in two parts, so that this file does not contain them.
    let words = [
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
    ];
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

/// Functions of tests that let real time pass: what takes time there is the work of another system,
/// or the interval at which a condition is read.
const PASS_TIME: [&str; 3] = [
    "tests/it/e2e/crash/load.rs",
    "src/cli/work/tests/mod.rs",
    "src/backends/tests/bucket_faults.rs",
];

#[test]
fn tests_are_told_from_code() {
    let sources = sources();
    let is_test = |path: &str| {
        let source = sources.iter().find(|source| source.path == path);
        source.unwrap_or_else(|| panic!("there is no {path}")).is_test()
    };
    for test in [
        "tests/it/main.rs",
        "src/core/validate/tests/mod.rs",
        "src/cli/testing/mod.rs",
        "src/server/lambda/testkit.rs",
        "src/engine/testkit/mod.rs",
        "src/core/fuzz/mod.rs",
        "functions/enqueue/tests/runtime/main.rs",
    ] {
        assert!(is_test(test), "{test}");
    }
    for code in ["src/engine/tick/mod.rs", "functions/enqueue/src/main.rs", "xtask/src/main.rs"] {
        assert!(!is_test(code), "{code}");
    }
}

#[test]
fn no_test_sleeps() {
    let mut faults = BTreeSet::new();
    for source in sources().iter().filter(|source| !PASS_TIME.contains(&source.path.as_str())) {
        let tests = match source.whole.split_once("#[cfg(test)]\nmod tests {") {
            _ if source.is_test() => &source.whole,
            Some((_, tests)) => tests,
            None => continue,
        };
        let tests = code(tests);
        let is_call = |line: &&str| line.contains("sleep(") || line.contains("pause(Duration");
        // A clock of a test may have a wait of its own.
        for line in tests.lines().filter(|line| !line.contains("fn sleep(")).filter(is_call) {
            faults.insert(format!("{}: {}", source.path, line.trim()));
        }
        // A timeout over what never ends is a sleep in disguise.
        let dense: String = tests.split_whitespace().collect();
        if dense.split("timeout(").skip(1).any(|call| {
            call.split("await").next().is_some_and(|call| call.contains("pending::<()>"))
        }) {
            faults.insert(format!("{}: a timeout over what never ends", source.path));
        }
    }
    assert!(faults.is_empty(), "wait on a condition or on port::Clock instead:{}", show(&faults));
}
