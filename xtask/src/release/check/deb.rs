//! The Debian packages: read by dpkg, and their unit by systemd.

use std::{fs, path::Path, process::Command};

use super::{Checked, write};
use crate::release::{archives::output, deb, target::TARGETS};

/// Files that a package must have.
const FILES: [&str; 7] = [
    "/usr/bin/tidegate",
    "/usr/lib/systemd/system/tidegate.service",
    "/usr/lib/sysusers.d/tidegate.conf",
    "/etc/tidegate/tidegate.toml",
    "/usr/share/man/man1/tidegate.1.gz",
    "/usr/share/bash-completion/completions/tidegate",
    "/usr/share/doc/tidegate/copyright",
];

/// Checks each package with `dpkg-deb`, and the unit with `systemd-analyze`.
pub fn check(checked: &Checked) -> Result<String, String> {
    let mut found = Vec::new();
    for linux in TARGETS.iter().filter_map(|target| target.linux.as_ref()) {
        let name = deb::name(&checked.release.version, linux.arch);
        let Ok(bytes) = checked.file(&name) else { continue };
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let package = folder.path().join(&name);
        write(&package, bytes)?;
        let field = |field: &str| {
            let out = output(Command::new("dpkg-deb").arg("--field").arg(&package).arg(field))?;
            Ok::<_, String>(String::from_utf8_lossy(&out).trim().to_owned())
        };
        for (name, expected) in [("Package", "tidegate"), ("Architecture", linux.arch)] {
            let is = field(name)?;
            if is != expected {
                return Err(format!("{name} is {is}, not {expected}"));
            }
        }
        let root = folder.path().join("root");
        output(Command::new("dpkg-deb").arg("--raw-extract").arg(&package).arg(&root))?;
        if let Some(file) = FILES.iter().find(|file| !root.join(&file[1..]).is_file()) {
            return Err(format!("{name} lacks {file}"));
        }
        let kept = fs::read_to_string(root.join("DEBIAN/conffiles"));
        if kept.as_deref().ok() != Some("/etc/tidegate/tidegate.toml\n") {
            return Err(format!("{name} does not keep the configuration at an upgrade"));
        }
        let unit = root.join("usr/lib/systemd/system/tidegate.service");
        verify(&unit)?;
        installs(&package, folder.path(), linux.arch)?;
        found.push(format!("{name} {} MB", bytes.len() / 1_000_000));
    }
    Ok(found.join(", "))
}

/// Lets dpkg unpack the package into a root of its own, and systemd make its user there.
/// The scripts of the package do not run: they need the shell of an installed system.
fn installs(package: &Path, folder: &Path, arch: &str) -> Result<(), String> {
    let root = folder.join("installed");
    write(&root.join("var/lib/dpkg/status"), b"")?;
    write(&root.join("var/lib/dpkg/arch"), format!("{arch}\n").as_bytes())?;
    fs::create_dir_all(root.join("var/lib/dpkg/updates")).map_err(|error| error.to_string())?;
    fs::create_dir_all(root.join("var/lib/dpkg/info")).map_err(|error| error.to_string())?;
    let dpkg = |args: &[&str], last: &Path| {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", root.display())).args(["--force-all", "--force-not-root"]);
        output(dpkg.args(args).arg(last)).map(|_| ())
    };
    dpkg(&["--unpack"], package)?;
    let mut sysusers = Command::new("systemd-sysusers");
    output(sysusers.arg(format!("--root={}", root.display())).arg("tidegate.conf"))?;
    let users = fs::read_to_string(root.join("etc/passwd")).map_err(|error| error.to_string())?;
    if !users.contains("tidegate:x:") || !users.contains(":/var/lib/tidegate:/usr/sbin/nologin") {
        return Err(format!("systemd makes no user tidegate: {users}"));
    }
    let program = root.join("usr/bin/tidegate");
    if !program.is_file() {
        return Err("dpkg does not install the program".into());
    }
    Ok(())
}

/// Most that `systemd-analyze security` may find, in tenths: 0 is closed, 100 open.
const MAX_EXPOSURE: &str = "--threshold=20";

/// Verifies a unit whose program is not installed on this machine, and how closed it is.
fn verify(unit: &Path) -> Result<(), String> {
    let text = fs::read_to_string(unit).map_err(|error| error.to_string())?;
    fs::write(unit, text.replace("/usr/bin/tidegate ", "/bin/true "))
        .map_err(|error| error.to_string())?;
    // It also reports faults of other units of this machine.
    let mut verify = Command::new("systemd-analyze");
    let result = verify
        .args(["verify", "--man=no"])
        .arg(unit)
        .output()
        .map_err(|error| format!("systemd-analyze: {error}"))?;
    let errors = String::from_utf8_lossy(&result.stderr);
    let of_unit: Vec<_> = errors.lines().filter(|line| line.contains("tidegate")).collect();
    if !of_unit.is_empty() {
        return Err(of_unit.join("; "));
    }
    let mut security = Command::new("systemd-analyze");
    output(security.args(["security", "--offline=true", "--no-pager", MAX_EXPOSURE]).arg(unit))
        .map(|_| ())
}
