//! Compiled code in a folder of the user, so that a command need not compile what an earlier
//! command has compiled.
//!
//! Compiled code is trusted (see [`super`]): who can write it can have this program run anything.
//! So the folder and its files are made for their user alone, and those of others, or that others
//! may write, are not used.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::PathBuf,
    time::SystemTime,
};

use nix::{
    fcntl::{OFlag, open, openat},
    sys::stat::Mode,
    unistd::geteuid,
};
use sha2::{Digest as _, Sha256};

use crate::wasm::runtime::{ENGINE, TARGET, hex};

/// Most files in the folder; those that were not used for the longest time go first.
const MAX_FILES: usize = 64;
/// Most bytes of these files. The code of a Python plugin has 60 MB.
const MAX_BYTES: u64 = 1 << 30;
/// The bytes of the hash in front of the code.
const HASH_BYTES: usize = 32;

/// The folder.
#[derive(Clone, Debug)]
pub struct KeptCode {
    folder: PathBuf,
}

impl KeptCode {
    /// The code in `folder`, which is created with the first code.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The code of a component for this kind of machine, if it is there and whole.
    pub(super) fn find(&self, wasm: &[u8]) -> Option<Vec<u8>> {
        let folder = self.open().ok()?;
        let fd = openat(&folder, file_name(wasm).as_str(), CLOSED | OFlag::O_RDWR, Mode::empty());
        let mut file = File::from(fd.ok()?);
        check_own(&file).ok()?;
        let mut hash = Vec::new();
        file.read_to_end(&mut hash).ok()?;
        let code = (hash.len() > HASH_BYTES).then(|| hash.split_off(HASH_BYTES))?;
        if hash != Sha256::digest(&code).as_slice() {
            return None;
        }
        // For the order in which files go.
        #[allow(clippy::disallowed_methods, reason = "it is compared with the times of files")]
        let now = SystemTime::now();
        let _ = file.set_modified(now);
        Some(code)
    }

    /// Keeps `code`, which was compiled from `wasm`. If that fails, the next command compiles again.
    pub(super) fn keep(&self, wasm: &[u8], code: &[u8]) {
        if let Err(error) = self.write(&file_name(wasm), code).and_then(|()| self.shrink()) {
            let folder = self.folder.display();
            tracing::warn!(%folder, %error, "compiled code is not kept for the next command");
        }
    }

    /// Opens the folder, which only its user may write.
    fn open(&self) -> io::Result<File> {
        let folder = open(&self.folder, CLOSED | OFlag::O_DIRECTORY, Mode::empty())?;
        let folder = File::from(folder);
        check_own(&folder)?;
        Ok(folder)
    }

    /// Writes `code` to the file `name`, which appears as a whole.
    fn write(&self, name: &str, code: &[u8]) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        self.open()?;
        let mut part = tempfile::NamedTempFile::new_in(&self.folder)?;
        part.write_all(&Sha256::digest(code))?;
        part.write_all(code)?;
        part.persist(self.folder.join(name)).map_err(|error| error.error)?;
        Ok(())
    }

    /// Removes the oldest files beyond the bounds.
    fn shrink(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let about = entry.metadata()?;
            if about.is_file() {
                files.push((about.modified()?, about.len(), entry.path()));
            }
        }
        files.sort_unstable();
        let mut count = files.len();
        let mut bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, size, path) in files {
            if count <= MAX_FILES && bytes <= MAX_BYTES {
                break;
            }
            fs::remove_file(path)?;
            (count, bytes) = (count - 1, bytes - size);
        }
        Ok(())
    }
}

/// How files and folders are opened: no links, and not for programs that this one starts.
const CLOSED: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_CLOEXEC);

/// The name of the file with the code of `wasm`, which names everything that determines the code.
fn file_name(wasm: &[u8]) -> String {
    let mut hash = Sha256::new();
    for part in [TARGET.as_bytes(), b"\0", ENGINE.as_bytes(), b"\0", wasm] {
        hash.update(part);
    }
    format!("{}.cwasm", hex(&hash.finalize()))
}

/// An error unless an open file or folder is this user's, and no other user may write it.
fn check_own(file: &File) -> io::Result<()> {
    let about = file.metadata()?;
    if about.uid() == geteuid().as_raw() && about.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::other("it belongs to another user, or others may write it"))
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::{PermissionsExt as _, symlink},
        path::Path,
    };

    use super::*;

    fn files(folder: &Path) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    #[test]
    fn whole_code_is_found_again_and_damaged_code_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/code");
        let kept = KeptCode::at(&folder);
        assert_eq!(kept.find(b"wasm"), None);
        kept.keep(b"wasm", b"code");
        assert_eq!((kept.find(b"wasm"), kept.find(b"other")), (Some(b"code".to_vec()), None));
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        let [file] = files(&folder).try_into().unwrap();
        let whole = fs::read(&file).unwrap();
        for damaged in [&whole[..whole.len() - 1], &whole[..10], b"", &[&whole[..], b"x"].concat()]
        {
            fs::write(&file, damaged).unwrap();
            assert_eq!(kept.find(b"wasm"), None, "{} bytes", damaged.len());
        }
        kept.keep(b"wasm", b"code");
        assert_eq!(kept.find(b"wasm"), Some(b"code".to_vec()));
        assert_eq!(files(&folder).len(), 1, "no other file stays");
    }

    #[test]
    fn what_others_may_write_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("code");
        let kept = KeptCode::at(&folder);
        kept.keep(b"wasm", b"code");
        let [file] = files(&folder).try_into().unwrap();
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        set(&folder, 0o777);
        assert_eq!(kept.find(b"wasm"), None, "a folder");
        kept.keep(b"more", b"code");
        assert_eq!(files(&folder).len(), 1, "nothing is written there");
        set(&folder, 0o700);
        set(&file, 0o660);
        assert_eq!(kept.find(b"wasm"), None, "a file");
        set(&file, 0o600);
        assert!(kept.find(b"wasm").is_some());
        let elsewhere = dir.path().join("elsewhere");
        fs::rename(&file, &elsewhere).unwrap();
        symlink(&elsewhere, &file).unwrap();
        assert_eq!(kept.find(b"wasm"), None, "a link");
    }

    #[test]
    fn the_oldest_files_go_first() {
        let dir = tempfile::tempdir().unwrap();
        let kept = KeptCode::at(dir.path());
        for number in 0..MAX_FILES as u64 + 3 {
            let file = dir.path().join(format!("{number}.cwasm"));
            fs::write(&file, b"code").unwrap();
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000 - number);
            File::options().write(true).open(&file).unwrap().set_modified(at).unwrap();
        }
        kept.shrink().unwrap();
        let left = files(dir.path());
        assert_eq!(left.len(), MAX_FILES);
        let oldest = MAX_FILES + 2;
        assert!(left.iter().all(|file| !file.ends_with(format!("{oldest}.cwasm"))));
        assert!(left.iter().any(|file| file.ends_with("0.cwasm")));
    }
}
