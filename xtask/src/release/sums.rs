//! `SHA256SUMS`: the checksum of each other file of a release.

use std::{collections::BTreeMap, fmt::Write as _};

use sha2::{Digest as _, Sha256};

use super::Files;

/// The file with the checksums.
pub const SUMS: &str = "SHA256SUMS";

/// Returns the SHA-256 of `bytes` in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the text of `SHA256SUMS`, as `sha256sum` writes it.
pub fn make(files: &Files) -> String {
    files.iter().fold(String::new(), |mut text, (name, bytes)| {
        let _ = writeln!(text, "{}  {name}", sha256(bytes));
        text
    })
}

/// Compares `files` with the list among them.
///
/// # Errors
///
/// The list is missing, or a file is damaged, missing or not in the list: each is named.
pub fn check(files: &Files) -> Result<(), String> {
    let sums = files.get(SUMS).ok_or_else(|| format!("{SUMS} is missing"))?;
    let sums = String::from_utf8_lossy(sums);
    let mut listed: BTreeMap<&str, &str> = sums
        .lines()
        .filter_map(|line| line.split_once("  ").map(|(sum, name)| (name, sum)))
        .collect();
    let mut wrong = Vec::new();
    for (name, bytes) in files.iter().filter(|(name, _)| *name != SUMS) {
        match listed.remove(name.as_str()) {
            None => wrong.push(format!("{name} is not in {SUMS}")),
            Some(sum) if sum != sha256(bytes) => wrong.push(format!("{name} has another sum")),
            Some(_) => {}
        }
    }
    wrong.extend(listed.keys().map(|name| format!("{name} is missing")));
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_from_the_sums_is_named() {
        let mut files: Files =
            [("a".to_owned(), b"abc".to_vec()), ("b".to_owned(), b"b".to_vec())].into();
        let sums = make(&files);
        let first = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a\n";
        assert!(sums.starts_with(first), "{sums}");
        assert_eq!(check(&files), Err("SHA256SUMS is missing".into()));
        files.insert(SUMS.to_owned(), sums.into_bytes());
        assert_eq!(check(&files), Ok(()));

        files.insert("a".to_owned(), b"abd".to_vec());
        files.insert("c".to_owned(), Vec::new());
        files.remove("b");
        let wrong = check(&files).unwrap_err();
        assert_eq!(wrong, "a has another sum; c is not in SHA256SUMS; b is missing");
    }
}
