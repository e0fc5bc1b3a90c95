//! Checks of the bodies in a data directory, one file each.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
};

use indicatif::HumanBytes;
use sha2::{Digest as _, Sha256};

use super::{
    CheckLevel, Finding,
    dir::{MAX_SHOWN, settled},
    finding,
};
use tidegate_backends::sqlite::NamedObject;
use tidegate_core::{event::trigger::hex, time::Timestamp};
use tidegate_engine::check_object;

/// Finds missing and damaged bodies, and orphaned ones. Reads every body.
pub(super) fn bodies(
    dir: &Path,
    named: &[(String, NamedObject)],
    plugins: &[String],
    now: Timestamp,
) -> Vec<Option<Finding>> {
    let root = dir.join("objects");
    let mut there = HashMap::new();
    if let Err(error) = list(&root, &mut there) {
        let unreadable = finding(
            CheckLevel::Error,
            "bodies",
            format!("{} cannot be read: {error}", root.display()),
            "see who may read it",
        );
        return vec![Some(unreadable)];
    }
    let keys: HashSet<&str> =
        named.iter().map(|(_, (key, _))| key).chain(plugins).map(String::as_str).collect();
    let known = |path: &PathBuf| {
        path.strip_prefix(&root).is_ok_and(|key| key.to_str().is_some_and(|key| keys.contains(key)))
    };
    let missing = keys.iter().filter(|key| !there.contains_key(&root.join(key))).count();
    let broken = |(job, (key, length)): &(String, NamedObject)| {
        // A missing one is counted above, and one of a job that ends meanwhile is gone.
        let bytes = fs::read(root.join(key)).ok()?;
        let why = check_object(key, *length, &bytes).err()?;
        Some(format!("the body {key} of job {job}: {why}"))
    };
    let broken: Vec<String> = named.iter().filter_map(broken).collect();
    let changed = |key: &&String| {
        let name = Path::new(key).file_stem().and_then(|name| name.to_str());
        let digest = fs::read(root.join(key)).ok().map(|bytes| Sha256::digest(&bytes));
        digest.is_some_and(|digest| Some(hex(&digest).as_str()) != name)
    };
    let plugins: Vec<&String> = plugins.iter().filter(changed).collect();
    let orphans: Vec<u64> = there
        .iter()
        .filter(|(path, about)| !known(path) && settled(about, now))
        .map(|(_, about)| about.len())
        .collect();
    let bytes = HumanBytes(orphans.iter().sum());
    vec![
        (!broken.is_empty()).then(|| {
            let first = broken.iter().take(MAX_SHOWN).map(String::as_str);
            let found =
                format!("{} damaged: {}", broken.len(), first.collect::<Vec<_>>().join("; "));
            finding(
                CheckLevel::Error,
                "bodies",
                found,
                "restore them from a backup's objects/; their jobs fail `not_delivered` until then",
            )
        }),
        (!plugins.is_empty()).then(|| {
            finding(
                CheckLevel::Error,
                "plugins",
                format!("their code is damaged: {plugins:?}"),
                "push the plugins again",
            )
        }),
        (missing > 0).then(|| {
            let found = format!("{missing} that jobs name are not in {}", root.display());
            finding(
                CheckLevel::Error,
                "bodies",
                found,
                "restore them from a backup's objects/; their jobs fail `not_delivered` until then",
            )
        }),
        (!orphans.is_empty()).then(|| {
            let found = format!("{} files ({bytes}) that no job names", orphans.len());
            finding(
                CheckLevel::Note,
                "bodies",
                found,
                "they do no harm; requests that were broken off leave them",
            )
        }),
    ]
}

/// Returns every file below `dir`, and none if it does not exist.
fn list(dir: &Path, files: &mut HashMap<PathBuf, fs::Metadata>) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let about = match entry.metadata() {
            // A running server has just removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            about => about?,
        };
        if about.is_dir() {
            list(&entry.path(), files)?;
        } else {
            files.insert(entry.path(), about);
        }
    }
    Ok(())
}
