//! Documents agree with the code: their examples run, their links resolve, and their tables match.
//!
//! One convention holds for `README.md` and every page of `docs/`:
//!
//! ````text
//! ```sh                   runs; all `sh` blocks of a page are one bash script in a new directory
//! ```text                 directly after an `sh` block: lines that its output contains
//! ```sh,no-run            does not run here: it installs or deploys
//! ```sh,typescript        runs where npm reaches its registry
//! ```python file=x.py     any language with `file=`: written to that file before the script starts
//! ````
//!
//! In expected lines `...` matches anything within the line, and any white space equals one space.
//! They may be on either stream. A line that reports an error must be expected. The binary is on
//! the `PATH`, the folders of [`CHECKOUT`] are there as in a checkout, and free ports replace 8080
//! and 9000 to 9009, so that pages run in parallel.

mod examples;
mod generated;
mod servers;
mod structure;

use std::{collections::BTreeMap, fmt, fs, path::Path, process::Command};

use crate::{e2e::serve::remove_variables, port::Port};

/// Included, so that a new page, which must be listed here, has its test generated.
const SUMMARY: &str = include_str!("../../../docs/SUMMARY.md");
/// Folders of the repository that examples read.
const CHECKOUT: [&str; 3] = ["plugins/dist", "plugins/gallery", "tests/events"];
/// Precedes the number of a step in the output of a page.
const STEP_MARK: char = '\u{1e}';

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every document: its path from the root, and its text.
fn documents() -> BTreeMap<String, String> {
    let mut paths = vec!["plugins/README.md".to_owned(), "infra/README.md".to_owned()];
    for dir in ["", "docs/", "docs/decisions/"] {
        let entries = fs::read_dir(root().join(dir)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        paths.extend(
            names
                .filter(|name| Path::new(name).extension().is_some_and(|end| end == "md"))
                .map(|name| format!("{dir}{name}")),
        );
    }
    paths
        .into_iter()
        .map(|path| (path.clone(), fs::read_to_string(root().join(path)).unwrap()))
        .collect()
}

/// A line without the white space that tables and indentation add.
fn one_spaced(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What a script of bash did.
struct Ran {
    good: bool,
    out: String,
    err: String,
    dir: tempfile::TempDir,
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |stream: &str| stream.replace(STEP_MARK, "=== step ");
        write!(f, "--- standard output\n{}\n", shown(&self.out))?;
        write!(f, "--- standard error\n{}", shown(&self.err))
    }
}

/// Runs a script of bash in a directory with `files` and the folders of [`CHECKOUT`].
#[allow(clippy::disallowed_methods, reason = "the programs of the session are found by PATH")]
fn run(script: &str, files: &[(String, String)]) -> Ran {
    let places: Vec<String> =
        std::iter::once(8080).chain(9000..=9009).map(|port: u16| port.to_string()).collect();
    let used: Vec<&String> = places
        .iter()
        .filter(|port| {
            **port == "8080"
                || script.contains(*port)
                || files.iter().any(|(_, text)| text.contains(*port))
        })
        .collect();
    let ports: Vec<_> = used.iter().map(|_| Port::new()).collect();
    let free: Vec<_> = ports.iter().map(|port| port.number.to_string()).collect();
    let moved = |text: &str| {
        let text = used
            .iter()
            .enumerate()
            .fold(text.to_owned(), |text, (n, port)| text.replace(*port, &format!("@port{n}@")));
        free.iter()
            .enumerate()
            .fold(text, |text, (n, port)| text.replace(&format!("@port{n}@"), port))
    };

    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), moved(text)).unwrap();
    }
    for folder in CHECKOUT {
        let link = dir.path().join(folder);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(root().join(folder), link).unwrap();
    }
    let programs = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let script = format!(
        "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{}",
        moved(script)
    );
    let mut command = Command::new("bash");
    remove_variables(&mut command);
    let output = command
        .args(["-c", &script])
        .env("PATH", path)
        .env("TIDEGATE_LISTEN", format!("127.0.0.1:{}", free[0]))
        .env("TIDEGATE_URL", format!("http://127.0.0.1:{}", free[0]))
        .current_dir(dir.path())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    Ran { good: output.status.success(), out, err, dir }
}
