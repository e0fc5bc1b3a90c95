//! Builds the generated files that are committed: the shipped components, and the bindings of the
//! SDK.
//!
//! Each is built in memory and then written or, with `--check`, compared. A difference is an error.

mod bindings;
mod components;
mod sources;

use std::{env, fs, path::Path};

use anyhow::{Context, Result, bail};

const USAGE: &str = "cargo run -p xtask -- bindings [--check]
cargo run -p xtask -- build [--check] [PLUGIN...]";

/// What to do with a built file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Write it.
    Write,
    /// Compare it with the existing file.
    Check,
}

impl Outcome {
    /// Writes `made` to `path`, or fails if the existing file differs.
    fn settle(self, path: &Path, made: &[u8]) -> Result<()> {
        match self {
            Self::Write => {
                fs::write(path, made).with_context(|| format!("writing {}", path.display()))
            }
            Self::Check if fs::read(path).is_ok_and(|stored| stored == made) => Ok(()),
            Self::Check => bail!("{} differs from the build of its source", path.display()),
        }
    }
}

fn main() -> Result<()> {
    let mut words: Vec<String> = env::args().skip(1).collect();
    let given = words.len();
    words.retain(|word| word != "--check");
    let outcome = if words.len() < given { Outcome::Check } else { Outcome::Write };

    // Cargo names the folder of this crate to the program that it runs.
    let here = env::var_os("CARGO_MANIFEST_DIR").context("run this by cargo")?;
    let plugins = Path::new(&here).parent().context("this crate is a folder of the workspace")?;
    match words.split_first() {
        Some((verb, [])) if verb == "bindings" => bindings::make(plugins, outcome),
        Some((verb, names)) if verb == "build" => components::make(plugins, names, outcome),
        _ => bail!("one of these:\n{USAGE}"),
    }
}
