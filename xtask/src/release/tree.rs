//! A tree of files, and its archive: the same entries make the same bytes.

use std::{collections::BTreeMap, io::Write as _};

use flate2::{Compression, GzBuilder};

/// The mode of a folder that all users may read.
const FOLDER: u32 = 0o755;

/// The files and folders of an archive or of a root file system, by path, without a leading slash.
#[derive(Clone, Default)]
pub struct Tree(BTreeMap<String, Entry>);

#[derive(Clone)]
struct Entry {
    /// The bytes of a file; none for a folder.
    bytes: Option<Vec<u8>>,
    mode: u32,
    /// The owner and the group.
    owner: u64,
}

impl Tree {
    /// Adds a file of root. Missing folders above it are added.
    pub fn file(&mut self, path: impl Into<String>, mode: u32, bytes: impl Into<Vec<u8>>) {
        self.add(path.into(), Entry { bytes: Some(bytes.into()), mode, owner: 0 });
    }

    /// Adds a folder that belongs to the user and the group `owner`.
    pub fn folder(&mut self, path: impl Into<String>, mode: u32, owner: u64) {
        self.add(path.into(), Entry { bytes: None, mode, owner });
    }

    fn add(&mut self, path: String, entry: Entry) {
        for (end, _) in path.match_indices('/') {
            self.0.entry(path[..end].to_owned()).or_insert(Entry {
                bytes: None,
                mode: FOLDER,
                owner: 0,
            });
        }
        self.0.insert(path, entry);
    }

    /// Returns each file with its path.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().filter_map(|(path, entry)| Some((path.as_str(), entry.bytes.as_deref()?)))
    }

    /// Returns the sum of the files' sizes in bytes.
    pub fn size(&self) -> u64 {
        self.files().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// Returns the tree as a tar, with `prefix` before each path. All entries have the time `at`, in
    /// seconds since the epoch.
    ///
    /// # Errors
    ///
    /// A path is too long for a tar.
    pub fn tar(&self, prefix: &str, at: u64) -> Result<Vec<u8>, String> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, entry) in &self.0 {
            let mut header = tar::Header::new_ustar();
            header.set_mtime(at);
            header.set_mode(entry.mode);
            header.set_uid(entry.owner);
            header.set_gid(entry.owner);
            let bytes = entry.bytes.as_deref().unwrap_or_default();
            header.set_size(bytes.len() as u64);
            let (kind, slash) = match entry.bytes {
                Some(_) => (tar::EntryType::Regular, ""),
                None => (tar::EntryType::Directory, "/"),
            };
            header.set_entry_type(kind);
            archive
                .append_data(&mut header, format!("{prefix}{path}{slash}"), bytes)
                .map_err(|error| format!("{path}: {error}"))?;
        }
        archive.into_inner().map_err(|error| error.to_string())
    }

    /// Returns the tree as a compressed tar: see [`tar`](Self::tar).
    ///
    /// # Errors
    ///
    /// As of `tar`.
    pub fn tar_gz(&self, prefix: &str, at: u64) -> Result<Vec<u8>, String> {
        gzip(&self.tar(prefix, at)?)
    }
}

/// Returns `bytes` compressed, without a time and a name in the header.
///
/// # Errors
///
/// None that a buffer in memory can cause.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>, String> {
    // 255: of no particular system.
    let mut gzip =
        GzBuilder::new().mtime(0).operating_system(255).write(Vec::new(), Compression::default());
    gzip.write_all(bytes).and_then(|()| gzip.finish()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let mut tree = Tree::default();
        tree.file("usr/bin/tidegate", 0o755, "program");
        tree.folder("data", 0o700, 65_532);
        tree
    }

    #[test]
    fn the_same_tree_makes_the_same_bytes() {
        let mut other = Tree::default();
        other.folder("data", 0o700, 65_532);
        other.file("usr/bin/tidegate", 0o755, "program");
        assert_eq!(tree().tar_gz("", 1).unwrap(), other.tar_gz("", 1).unwrap());
        assert_ne!(tree().tar_gz("", 1).unwrap(), tree().tar_gz("", 2).unwrap());
    }

    #[test]
    fn entries_are_sorted_with_their_folders_and_owners() {
        let bytes = tree().tar("of/", 7).unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let entries: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                (
                    entry.path().unwrap().display().to_string(),
                    header.mode().unwrap(),
                    header.uid().unwrap(),
                    header.mtime().unwrap(),
                )
            })
            .collect();
        let expected = [
            ("of/data/", 0o700, 65_532),
            ("of/usr/", 0o755, 0),
            ("of/usr/bin/", 0o755, 0),
            ("of/usr/bin/tidegate", 0o755, 0),
        ];
        assert_eq!(entries, expected.map(|(path, mode, owner)| (path.to_owned(), mode, owner, 7)));
    }

    #[test]
    fn a_compressed_file_has_no_time_and_no_system() {
        let bytes = gzip(b"text").unwrap();
        assert_eq!(bytes[4..10], [0, 0, 0, 0, 0, 255]);
    }
}
