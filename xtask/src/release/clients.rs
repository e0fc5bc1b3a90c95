//! The packages of the client libraries, as the registries of their languages take them.

use std::{fs, path::Path, process::Command};

use super::{Files, Release};
use crate::package::call;

/// Returns the file names of the packages.
pub fn names(version: &str) -> [String; 7] {
    [
        format!("tidegate-{version}-py3-none-any.whl"),
        format!("tidegate-{version}.tar.gz"),
        format!("tidegate-npm-{version}.tgz"),
        format!("tidegate-core-{version}.crate"),
        format!("tidegate-api-{version}.crate"),
        format!("tidegate-client-{version}.crate"),
        format!("tidegate-go-{version}.zip"),
    ]
}

/// Lets `clients/package` make them in `folder`, for files of the time `time`.
///
/// # Errors
///
/// A tool of a language is missing or fails.
pub fn build(root: &Path, folder: &Path, time: u64) -> Result<(), String> {
    let mut script = Command::new(root.join("clients/package"));
    call(script.arg(folder).env("SOURCE_DATE_EPOCH", time.to_string()))
}

/// Returns the packages in `folder`.
///
/// # Errors
///
/// One is missing, such as after a change of the version.
pub fn make(release: &Release, folder: &Path) -> Result<Files, String> {
    let read = |name: String| {
        let path = folder.join(&name);
        let bytes = fs::read(&path)
            .map_err(|error| format!("{}: {error}; `clients/package` makes it", path.display()))?;
        Ok((name, bytes))
    };
    names(&release.version).into_iter().map(read).collect()
}
