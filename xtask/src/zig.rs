//! Zig as the linker of other machines' binaries, so that a result does not depend on this one.
//!
//! Pinned versions of Zig (a Python wheel) and `cargo-zigbuild` are installed into `target/tools`.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::package::call;

const ZIGBUILD: &str = "0.24.1";
const ZIG: &str = "0.17.0";

/// The installed tools.
pub struct Zig {
    root: PathBuf,
    tools: PathBuf,
    /// The Python that has Zig.
    python: PathBuf,
}

impl Zig {
    /// Installs what is missing below the repository's folder `root`.
    ///
    /// # Errors
    ///
    /// A tool cannot be installed.
    pub fn install(root: &Path) -> Result<Self, String> {
        let tools = root.join("target/tools");
        let env = tools.join("zig");
        let python = env.join("bin/python");
        if !python.exists() {
            call(Command::new("python3").args(["-m", "venv"]).arg(&env))?;
            let package = format!("ziglang=={ZIG}");
            call(Command::new(&python).args(["-m", "pip", "install", "--quiet", &package]))?;
        }
        if !tools.join("bin/cargo-zigbuild").exists() {
            let install =
                ["install", "cargo-zigbuild", "--version", ZIGBUILD, "--locked", "--debug"];
            call(Command::new("cargo").args(install).arg("--root").arg(&tools))?;
        }
        Ok(Self { root: root.to_owned(), tools, python })
    }

    /// Returns `cargo zigbuild` for the rustc target `target`, which may be followed by the version
    /// of a C library, as in `x86_64-unknown-linux-gnu.2.34`.
    ///
    /// # Errors
    ///
    /// The target cannot be added to the toolchain.
    pub fn build(&self, target: &str) -> Result<Command, String> {
        let rustc_target = target.split('.').next().unwrap_or(target);
        call(Command::new("rustup").args(["target", "add", rustc_target]))?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let with = std::iter::once(self.tools.join("bin"))
            .chain(self.python.parent().map(Path::to_path_buf))
            .chain(std::env::split_paths(&path));
        let path = std::env::join_paths(with).map_err(|error| error.to_string())?;
        let mut build = Command::new("cargo");
        build
            .current_dir(&self.root)
            .env("PATH", &path)
            .env("CARGO_ZIGBUILD_PYTHON_PATH", &self.python)
            .args(["zigbuild", "--locked", "--target", target]);
        Ok(build)
    }
}
