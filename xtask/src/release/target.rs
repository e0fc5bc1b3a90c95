//! The machines that a release has a binary for.

use std::{fs, path::Path, process::Command};

use crate::{package::call, zig::Zig};

/// A machine.
#[derive(Debug, PartialEq, Eq)]
pub struct Target {
    /// Its rustc target, which is in the names of files.
    pub triple: &'static str,
    /// What a Linux machine is called by others; none for macOS.
    pub linux: Option<Linux>,
}

/// Names of an architecture on Linux.
#[derive(Debug, PartialEq, Eq)]
pub struct Linux {
    /// In packages of Debian and in container images.
    pub arch: &'static str,
    /// Its number in the header of an ELF file.
    pub elf_machine: u16,
}

/// Every target of a release.
pub const TARGETS: [Target; 4] = [
    Target {
        triple: "x86_64-unknown-linux-musl",
        linux: Some(Linux { arch: "amd64", elf_machine: 62 }),
    },
    Target {
        triple: "aarch64-unknown-linux-musl",
        linux: Some(Linux { arch: "arm64", elf_machine: 183 }),
    },
    Target { triple: "x86_64-apple-darwin", linux: None },
    Target { triple: "aarch64-apple-darwin", linux: None },
];

impl Target {
    /// Returns the target with this name: a triple, or `x86_64` or `arm64` for Linux.
    ///
    /// # Errors
    ///
    /// There is no such target.
    pub fn named(name: &str) -> Result<&'static Self, String> {
        let is_it = |target: &&Self| {
            target.triple == name
                || target.linux.is_some() && target.triple.split('-').next() == Some(name)
                || target.linux.as_ref().is_some_and(|linux| linux.arch == name)
        };
        let triples = || TARGETS.map(|target| target.triple).join(", ");
        TARGETS
            .iter()
            .find(is_it)
            .ok_or_else(|| format!("there is no target {name:?}; there are: {}", triples()))
    }

    /// Whether its binary runs on this machine.
    pub fn runs_here(&self) -> bool {
        let system = if cfg!(target_os = "macos") { "apple-darwin" } else { "unknown-linux-musl" };
        self.triple == format!("{}-{system}", std::env::consts::ARCH)
    }

    /// Builds the binary into the file `to`: for Linux statically with Zig, for macOS with the tools
    /// of this machine.
    ///
    /// # Errors
    ///
    /// The build fails.
    pub fn build(&self, root: &Path, to: &Path) -> Result<(), String> {
        let mut build = if self.linux.is_some() {
            Zig::install(root)?.build(self.triple)?
        } else {
            call(Command::new("rustup").args(["target", "add", self.triple]))?;
            let mut build = Command::new("cargo");
            build.current_dir(root).args(["build", "--locked", "--target", self.triple]);
            build
        };
        // Without the table of symbols the file is a quarter smaller.
        build.env("CARGO_PROFILE_DIST_STRIP", "symbols");
        call(build.args(["--profile=dist", "--package=tidegate", "--features=aws"]))?;
        let built = root.join("target").join(self.triple).join("dist/tidegate");
        copy(&built, to)
    }
}

/// Copies a file, and makes the folder of `to`.
///
/// # Errors
///
/// `from` cannot be read or `to` not be written.
pub fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    }
    fs::copy(from, to).map_err(|error| failed(from, error)).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_a_short_name_on_linux() {
        let triple = |name| Target::named(name).map(|target| target.triple);
        assert_eq!(triple("x86_64"), Ok("x86_64-unknown-linux-musl"));
        assert_eq!(triple("arm64"), Ok("aarch64-unknown-linux-musl"));
        assert_eq!(triple("aarch64-apple-darwin"), Ok("aarch64-apple-darwin"));
        assert!(triple("riscv64").unwrap_err().contains("x86_64-apple-darwin"));
    }
}
