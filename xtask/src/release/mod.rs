//! `release`: everything that a release has, in `target/release-files`.
//!
//! ```text
//! cargo xtask release [--binary TARGET=FILE]... [--functions FOLDER] [--clients FOLDER] [--complete]
//! cargo xtask release --build TARGET      one binary, in target/release-binaries
//! cargo xtask release --check [NAME]      checks what the first one has made; only the checks that
//!                                         have this text in their names
//! ```
//!
//! Without `--binary`, the Linux binaries are built here with Zig. A binary for macOS needs macOS, so
//! the workflow builds it on another machine; `--complete` fails if one is missing. Everything made
//! from the binaries has the same bytes each time: see [`tree`].

mod archives;
mod aws;
mod bucket;
mod check;
mod clients;
mod deb;
mod homebrew;
mod image;
mod kubernetes;
mod libraries;
mod older;
mod sums;
mod target;
mod tree;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use archives::Docs;
use libraries::Libraries;
use target::{TARGETS, Target, copy};

use crate::package;

/// The folder of the made files.
const FILES: &str = "target/release-files";
/// The folder of the binaries: `TARGET/tidegate`.
const BINARIES: &str = "target/release-binaries";
/// The folder of the packages of the client libraries.
const CLIENTS: &str = "target/clients";
/// The repository that releases are published in.
const REPOSITORY: &str = "https://github.com/tidegate/tidegate";
/// The time of files if neither `SOURCE_DATE_EPOCH` nor a commit gives one: the start of 2020.
const DEFAULT_TIME: u64 = 1_577_836_800;

/// Files of a release, by name.
type Files = BTreeMap<String, Vec<u8>>;

/// A program for one target.
struct Binary {
    target: &'static Target,
    bytes: Vec<u8>,
}

/// What the files of a release are made from.
struct Release {
    /// The folder of the repository.
    root: PathBuf,
    version: String,
    /// The time of every file, in seconds since the epoch.
    time: u64,
    binaries: Vec<Binary>,
    docs: Docs,
    libraries: Libraries,
    /// The licences of the libraries in the program.
    licences: Vec<u8>,
}

/// The arguments.
#[derive(Debug, Default, PartialEq, Eq)]
struct Args {
    check: bool,
    /// A text in the names of the checks; empty for all.
    only: String,
    complete: bool,
    build: Option<&'static str>,
    binaries: BTreeMap<&'static str, PathBuf>,
    functions: Option<PathBuf>,
    clients: Option<PathBuf>,
}

/// Makes a release, one of its binaries, or checks it.
///
/// # Errors
///
/// A tool fails, a file is missing, or a check finds a fault.
pub fn run(args: impl Iterator<Item = String>) -> Result<(), String> {
    let args = parse(args)?;
    let root = package::root()?;
    if let Some(triple) = args.build {
        return Target::named(triple)?.build(&root, &binary(&root, triple));
    }
    if args.check {
        return check::run(&root, &args.only);
    }
    for target in &TARGETS {
        let to = binary(&root, target.triple);
        match args.binaries.get(target.triple) {
            Some(given) => copy(given, &to)?,
            None if target.linux.is_some() || target.runs_here() => target.build(&root, &to)?,
            None if args.complete => {
                return Err(format!("there is no binary for {}", target.triple));
            }
            None => {
                let _ = fs::remove_file(&to);
                println!("left out: {}, which is built on macOS", target.triple);
            }
        }
    }
    let functions = args.functions.unwrap_or_else(|| root.join("target/functions"));
    if !functions.join("SHA256SUMS").exists() {
        package::run(std::iter::empty())?;
    }
    let time = time(&root);
    let clients = args.clients.clone().unwrap_or_else(|| root.join(CLIENTS));
    if args.clients.is_none() {
        clients::build(&root, &clients, time)?;
    }
    let files = Release::load(&root, time)?.make(&functions, &clients)?;
    write(&root.join(FILES), &files)?;
    for (name, bytes) in &files {
        println!("{:>10}  {name}", bytes.len());
    }
    Ok(())
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut parsed = Args::default();
    while let Some(flag) = args.next() {
        let mut value = || args.next().ok_or(format!("{flag} needs a value"));
        match flag.as_str() {
            "--check" => parsed.check = true,
            name if parsed.check && !name.starts_with("--") => name.clone_into(&mut parsed.only),
            "--complete" => parsed.complete = true,
            "--build" => parsed.build = Some(Target::named(&value()?)?.triple),
            "--functions" => parsed.functions = Some(value()?.into()),
            "--clients" => parsed.clients = Some(value()?.into()),
            "--binary" => {
                let value = value()?;
                let (target, file) = value
                    .split_once('=')
                    .ok_or_else(|| format!("--binary {value} must be TARGET=FILE"))?;
                parsed.binaries.insert(Target::named(target)?.triple, file.into());
            }
            _ => return Err(format!("there is no flag {flag}")),
        }
    }
    Ok(parsed)
}

/// Returns the path of the binary for `triple`.
fn binary(root: &Path, triple: &str) -> PathBuf {
    root.join(BINARIES).join(triple).join("tidegate")
}

/// Replaces the folder by `files`.
fn write(folder: &Path, files: &Files) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(failed)?;
    }
    fs::create_dir_all(folder).map_err(failed)?;
    files.iter().try_for_each(|(name, bytes)| fs::write(folder.join(name), bytes)).map_err(failed)
}

impl Release {
    /// Reads the binaries, for files of the time `time`. At least one binary must run on this machine.
    fn load(root: &Path, time: u64) -> Result<Self, String> {
        let mut binaries = Vec::new();
        for target in &TARGETS {
            let path = binary(root, target.triple);
            if path.exists() {
                let bytes = fs::read(&path).map_err(|error| format!("{error}"))?;
                binaries.push(Binary { target, bytes });
            }
        }
        let runs = binaries
            .iter()
            .find(|binary| binary.target.runs_here())
            .ok_or("no binary runs on this machine, so none can write its manual pages")?;
        let docs = Docs::of(&binary(root, runs.target.triple))?;
        let libraries = Libraries::list(root)?;
        let licences = libraries.licences()?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Self { root: root.to_owned(), version, time, binaries, docs, libraries, licences })
    }

    /// Returns every file of the release, with the zips of the folder `functions`, and the packages of
    /// the folder `clients`.
    fn make(&self, functions: &Path, clients: &Path) -> Result<Files, String> {
        let mut files = archives::make(self)?;
        files.extend(homebrew::make(self, &files));
        files.extend(deb::make(self)?);
        files.extend(image::make(self)?);
        files.extend(kubernetes::make(self)?);
        files.extend(bucket::make(self)?);
        files.extend(aws::make(self, functions)?);
        files.extend(clients::make(self, clients)?);
        files.insert("tidegate.cdx.json".to_owned(), self.libraries.sbom(&self.timestamp())?);
        files.insert("install.sh".to_owned(), self.read("packaging/install.sh")?);
        files.insert(sums::SUMS.to_owned(), sums::make(&files).into_bytes());
        Ok(files)
    }

    /// Returns a file of the repository.
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        fs::read(self.root.join(path)).map_err(|error| format!("{path}: {error}"))
    }

    /// Returns the files in and below a folder of the repository, by their paths in it.
    fn folder(&self, path: &str) -> Result<Files, String> {
        let folder = self.root.join(path);
        let mut files = Files::new();
        let mut open = vec![folder.clone()];
        while let Some(next) = open.pop() {
            let entries =
                fs::read_dir(&next).map_err(|error| format!("{}: {error}", next.display()))?;
            for entry in entries {
                let path = entry.map_err(|error| error.to_string())?.path();
                if path.is_dir() {
                    open.push(path);
                    continue;
                }
                let bytes = fs::read(&path).map_err(|error| error.to_string())?;
                let name = path.strip_prefix(&folder).map_err(|error| error.to_string())?;
                files.insert(name.to_string_lossy().replace('\\', "/"), bytes);
            }
        }
        Ok(files)
    }

    /// Returns the address of a file of this release.
    fn url(&self, file: &str) -> String {
        format!("{REPOSITORY}/releases/download/v{}/{file}", self.version)
    }

    /// Returns the time of the files as RFC 3339.
    fn timestamp(&self) -> String {
        let at = chrono::DateTime::from_timestamp(self.time.try_into().unwrap_or(0), 0);
        at.unwrap_or_default().format("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
}

/// Returns the time of the files: that of the environment, or of the commit.
#[allow(clippy::disallowed_methods, reason = "a convention of reproducible builds")]
fn time(root: &Path) -> u64 {
    let number = |text: String| text.trim().parse().ok();
    let of_commit = || {
        let mut git = Command::new("git");
        git.current_dir(root).args(["log", "-1", "--format=%ct"]);
        number(String::from_utf8_lossy(&archives::output(&mut git).ok()?).into_owned())
    };
    let given = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(number);
    given.or_else(of_commit).unwrap_or(DEFAULT_TIME)
}

#[cfg(test)]
mod tests;
