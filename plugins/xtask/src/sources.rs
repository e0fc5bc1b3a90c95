//! The sources of a component as one digest. It reveals a changed source that was not built,
//! without a compiler.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// The sources of every plugin, in addition to its own folder.
const COMMON: [&str; 4] = ["Cargo.lock", "Cargo.toml", "sdk", "wit"];

/// SHA-256 of the sources of `plugin`, sorted by path: path, length, bytes.
pub fn digest(plugins: &Path, plugin: &str) -> Result<String> {
    let mut files = Vec::new();
    for part in COMMON {
        collect(&plugins.join(part), &mut files)?;
    }
    let model = plugins.join("gallery").join(plugin);
    let folder = if model.is_dir() { model } else { plugins.join(plugin) };
    collect(&folder, &mut files)?;
    let mut named: Vec<(String, PathBuf)> = Vec::new();
    for file in files {
        let path = file
            .strip_prefix(plugins)?
            .to_str()
            .context("a path that is not UTF-8")?
            .replace('\\', "/");
        if [".rs", ".toml", ".lock", ".wit", ".schema.json"].iter().any(|end| path.ends_with(end)) {
            named.push((path, file));
        }
    }
    named.sort();
    let mut hash = Sha256::new();
    for (path, file) in named {
        let bytes = fs::read(&file)?;
        hash.update(format!("{path}\0{}\0", bytes.len()));
        hash.update(bytes);
    }
    Ok(hex(&hash.finalize()))
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        collect(&entry?.path(), files)?;
    }
    Ok(())
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
