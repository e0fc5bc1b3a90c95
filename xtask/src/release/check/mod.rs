//! `release --check`: every file of `target/release-files`, as its users get it.
//!
//! `packaging/tools` finds the tools that read images and formulas, or unpacks Debian's. A check whose
//! tool cannot be had fails: a release has no gaps.

mod archive;
mod clients;
mod deb;
mod image;
pub mod install;
mod process;
mod texts;
mod upgrade;

use std::{fs, path::Path, process::Command};

use serde_json::Value;

use super::{
    FILES, Files, Release, archives::output, clients as packages, package, sums, target::TARGETS,
};

/// What the checks look at.
struct Checked {
    release: Release,
    files: Files,
}

impl Checked {
    /// Returns a file of the release.
    fn file(&self, name: &str) -> Result<&[u8], String> {
        self.files.get(name).map(Vec::as_slice).ok_or_else(|| format!("{name} is missing"))
    }
}

/// Returns the target of the binary that runs on this machine.
fn own_triple() -> Result<&'static str, String> {
    let runs = TARGETS.iter().find(|target| target.runs_here());
    runs.map(|target| target.triple).ok_or_else(|| "no binary runs on this machine".into())
}

/// A check: what it shows, and how. It returns what is worth printing.
type Check = (&'static str, fn(&Checked) -> Result<String, String>);

const CHECKS: [Check; 22] = [
    ("checksums", |checked| sums::check(&checked.files).map(|()| String::new())),
    ("the same bytes a second time", same_bytes),
    ("archives", archive::check),
    ("start of the program", archive::starts),
    ("SBOM", texts::sbom),
    ("Debian packages", deb::check),
    ("Debian package in use", upgrade::check),
    ("image layout", image::layout),
    ("image in other tools", image::tools),
    ("image in a container", image::runs),
    ("development image in a container", image::development_runs),
    ("install script", install::check),
    ("client packages", clients::contents),
    ("first job from each client", clients::first_jobs),
    ("clients and servers of other versions", clients::versions),
    ("manifests for Kubernetes", texts::manifests),
    ("Helm chart", texts::chart),
    ("compose example", texts::compose),
    ("files for a bucket", texts::bucket),
    ("Homebrew formula", texts::formula),
    ("module for Terraform", texts::terraform),
    ("functions, as `tidegate aws deploy` takes them", functions),
];

/// Runs every check whose name has the text `only`, also after a failed one.
///
/// # Errors
///
/// There is no release, no check has that name, or a check failed.
pub fn run(root: &Path, only: &str) -> Result<(), String> {
    let mut files = Files::new();
    let entries = fs::read_dir(root.join(FILES))
        .map_err(|error| format!("{FILES}: {error}; `cargo xtask release` makes it"))?;
    for entry in entries {
        let entry = entry.map_err(|error| error.to_string())?;
        let bytes = fs::read(entry.path()).map_err(|error| error.to_string())?;
        files.insert(entry.file_name().to_string_lossy().into_owned(), bytes);
    }
    let time = time(&files)?;
    let checked = Checked { release: Release::load(root, time)?, files };
    let checks: Vec<_> = CHECKS.iter().filter(|(name, _)| name.contains(only)).collect();
    if checks.is_empty() {
        return Err(format!("no check has {only:?} in its name"));
    }
    let mut failed = Vec::new();
    for (name, check) in checks {
        match check(&checked) {
            Ok(found) if found.is_empty() => println!("ok      {name}"),
            Ok(found) => println!("ok      {name}: {found}"),
            Err(why) => {
                println!("FAILED  {name}: {why}");
                failed.push(*name);
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// Returns the time of the files, as their SBOM has it: there may be a commit since.
fn time(files: &Files) -> Result<u64, String> {
    let bom: Value = files
        .get("tidegate.cdx.json")
        .and_then(|bytes| serde_json::from_slice(bytes).ok())
        .ok_or("tidegate.cdx.json is missing or no JSON")?;
    let time = bom["metadata"]["timestamp"].as_str().unwrap_or("");
    let time = chrono::DateTime::parse_from_rfc3339(time)
        .map_err(|error| format!("the time of tidegate.cdx.json: {error}"))?;
    Ok(time.timestamp().try_into().unwrap_or(0))
}

/// Makes everything again and compares.
fn same_bytes(checked: &Checked) -> Result<String, String> {
    let functions = tempfile::tempdir().map_err(|error| error.to_string())?;
    let clients = tempfile::tempdir().map_err(|error| error.to_string())?;
    let client_packages = packages::names(&checked.release.version);
    for (name, bytes) in &checked.files {
        // The zips are made by `cargo xtask package`, and only their place differs.
        let is_zip = Path::new(name).extension().is_some_and(|end| end == "zip");
        if (is_zip && !client_packages.contains(name)) || name == "VERSION" {
            write(&functions.path().join(name.replacen('-', "/", 1)), bytes)?;
        }
    }
    package::write_sums(functions.path())?;
    packages::build(&checked.release.root, clients.path(), checked.release.time)?;
    let again = checked.release.make(functions.path(), clients.path())?;
    let differ: Vec<_> = again
        .iter()
        .filter(|(name, bytes)| checked.files.get(*name) != Some(bytes))
        .map(|(name, _)| name.as_str())
        .collect();
    if !differ.is_empty() {
        return Err(format!("other bytes: {}", differ.join(", ")));
    }
    Ok(format!("{} files", again.len()))
}

/// Lets the program of this release read the functions from the folder of its files.
fn functions(checked: &Checked) -> Result<String, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let program = archive::own_program(checked, folder.path())?;
    let root = &checked.release.root;
    let mut script = Command::new(root.join("packaging/check_functions"));
    output(script.arg(program).arg(root.join(FILES))).map(|_| String::new())
}

/// Writes a file, and makes its folder.
fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
    fs::write(path, bytes).map_err(failed)
}

/// Unpacks a compressed tar into `folder`.
fn unpack(bytes: &[u8], folder: &Path) -> Result<(), String> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes));
    archive.unpack(folder).map_err(|error| error.to_string())
}

/// Returns the command `program`, as `packaging/tools` finds it.
fn tool(root: &Path, program: &str) -> Result<Command, String> {
    let found = output(Command::new(root.join("packaging/tools")).arg(program))?;
    let found = String::from_utf8_lossy(&found);
    let mut lines = found.lines();
    let path = lines.next().ok_or_else(|| format!("packaging/tools finds no {program}"))?;
    let mut command = Command::new(path);
    if let Some(libraries) = lines.next() {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    Ok(command)
}
