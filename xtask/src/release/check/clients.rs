//! The packages of the client libraries, installed and in use: `packaging/check_clients.py`.

use std::{path::Path, process::Command};

use super::{Checked, install::Installation};
use crate::release::{FILES, archives::output, older};

/// Reads each package.
pub fn contents(checked: &Checked) -> Result<String, String> {
    run(checked, "contents", &[])
}

/// Installs the packages, and runs the programs of `clients/README.md` against the program that the
/// install script has installed.
pub fn first_jobs(checked: &Checked) -> Result<String, String> {
    let installation = Installation::new(checked)?;
    installation.install()?;
    run(checked, "jobs", &[&installation.program()])
}

/// Runs the conformance kit of the older build with its server and the Python client of the
/// release, and with its client and the server of the release.
pub fn versions(checked: &Checked) -> Result<String, String> {
    let release = &checked.release;
    let older = older::program(&release.root, &release.version)?;
    let installation = Installation::new(checked)?;
    installation.install()?;
    let sources = older::sources(&release.root);
    run(checked, "versions", &[&installation.program(), &older, &sources])
}

fn run(checked: &Checked, task: &str, args: &[&Path]) -> Result<String, String> {
    let root = &checked.release.root;
    let mut python = Command::new("python3");
    python.arg(root.join("packaging/check_clients.py")).arg(task).arg(root.join(FILES));
    let found = output(python.args(args))?;
    Ok(String::from_utf8_lossy(&found).trim().to_owned())
}
