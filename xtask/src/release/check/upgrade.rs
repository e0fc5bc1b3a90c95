//! The Debian package in use: installed, upgraded and downgraded while work is under way, removed
//! and purged.

use std::process::Command;

use super::{Checked, own_triple, write};
use crate::release::{
    Binary, Docs, Libraries, Release, archives::output, deb, older, target::TARGETS,
};

/// Runs `packaging/check_upgrade` with the package of this machine, and with one of an older build.
pub fn check(checked: &Checked) -> Result<String, String> {
    let release = &checked.release;
    let triple = own_triple()?;
    let target = TARGETS.iter().find(|target| target.triple == triple);
    let target = target.ok_or("this machine has no target")?;
    let Some(linux) = &target.linux else {
        return Err("the package needs Linux".into());
    };
    let program = older::program(&release.root, &release.version)?;
    let version = output(Command::new(&program).arg("--version"))?;
    let version = String::from_utf8_lossy(&version).trim().replacen("tidegate ", "", 1);
    let bytes = std::fs::read(&program).map_err(|error| error.to_string())?;
    let older = Release {
        root: release.root.clone(),
        version,
        time: release.time,
        binaries: vec![Binary { target, bytes }],
        docs: Docs::of(&program)?,
        libraries: Libraries::list(&release.root)?,
        licences: release.licences.clone(),
    };
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let package = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        write(&path, bytes).map(|()| path)
    };
    let made = deb::make(&older)?;
    let made = made.values().next().ok_or("there is no older package")?;
    let from = package("older.deb", made)?;
    let to = checked.file(&deb::name(&release.version, linux.arch))?;
    let to = package("newer.deb", to)?;
    let mut script = Command::new(release.root.join("packaging/check_upgrade"));
    let found = output(script.arg(from).arg(to))?;
    Ok(format!("from {}: {}", older.version, String::from_utf8_lossy(&found).trim()))
}
