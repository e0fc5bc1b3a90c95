//! The sources of a project, by the times of its files, and so without a service of the system. What
//! tools write (`target`, `node_modules`, hidden folders, components, pictures) is no source.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::bail;

use crate::cli::UsageError;

/// Most files of a project.
const MAX_FILES: usize = 10_000;

/// The sources of a project: the size and the time of each file.
pub(super) type Sources = BTreeMap<PathBuf, (u64, Option<SystemTime>)>;

/// The sources below `folder`.
///
/// # Errors
///
/// The folder cannot be read, or has more than [`MAX_FILES`] files.
pub(super) fn sources(folder: &Path) -> anyhow::Result<Sources> {
    let unreadable =
        |error: std::io::Error| UsageError(format!("{} cannot be read: {error}", folder.display()));
    let (mut found, mut folders) = (Sources::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        let entries = match std::fs::read_dir(&next) {
            // A tool has removed it meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound && next != folder => continue,
            entries => entries.map_err(unreadable)?,
        };
        for entry in entries {
            let entry = entry.map_err(unreadable)?;
            let path = entry.path();
            // A file may be gone again.
            let Ok(metadata) = entry.metadata() else { continue };
            if !is_source(&path) {
                continue;
            }
            if metadata.is_dir() {
                folders.push(path);
            } else {
                found.insert(path, (metadata.len(), metadata.modified().ok()));
            }
            if found.len() + folders.len() > MAX_FILES {
                let folder = folder.display();
                bail!(UsageError(format!("{folder} has more than {MAX_FILES} files")));
            }
        }
    }
    Ok(found)
}

/// Whether a file or folder belongs to the sources.
fn is_source(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let made = ["target", "node_modules", "__pycache__", "package-lock.json", "Cargo.lock"];
    let ends = ["wasm", "svg"];
    let end = path.extension().unwrap_or_default();
    !name.starts_with('.') && !made.contains(&&*name) && !ends.iter().any(|made| end == *made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tools_write_is_no_source() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("plugin.js", "1");
        write("cases/first.json", "[]");
        let before = sources(dir.path()).unwrap();
        assert_eq!(before.len(), 2);
        for made in ["a.wasm", "picture.svg", "target/x", "node_modules/a/b", ".venv/bin/python"] {
            write(made, "made");
        }
        assert_eq!(sources(dir.path()).unwrap(), before);
        write("cases/first.json", "[1]");
        assert_ne!(sources(dir.path()).unwrap(), before);
        assert!(sources(&dir.path().join("none")).is_err());
    }
}
