//! Builds what is committed here but not written by hand: the shipped components, and the SDK's bindings.
//!
//! Each is built into memory and then written, or compared: with `--check`, a difference is an error.

mod bindings;
mod components;
mod sources;

use std::{env, fs, path::Path};

use anyhow::{Context, Result, bail};

const USAGE: &str = "cargo run -p xtask -- bindings [--check]
cargo run -p xtask -- build [--check] [PLUGIN...]";

/// What becomes of a thing that was built.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It is written to its place.
    Write,
    /// It is compared with what stands there.
    Check,
}

impl Outcome {
    /// Puts `made` at `path`, or says that something else is there.
    fn settle(self, path: &Path, made: &[u8]) -> Result<()> {
        match self {
            Self::Write => {
                fs::write(path, made).with_context(|| format!("writing {}", path.display()))
            }
            Self::Check if fs::read(path).is_ok_and(|stands| stands == made) => Ok(()),
            Self::Check => bail!("{} is not what its source makes", path.display()),
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
