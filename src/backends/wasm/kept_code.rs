//! Compiled code in a folder of the user, so that a command need not compile what an earlier
//! command has compiled.
//!
//! Compiled code is trusted (see [`super`]): who can write into the folder can have this program
//! run anything. So the folder is made for its user alone, and one that others may write into is
//! not used.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use sha2::{Digest as _, Sha256};

use super::{
    compile::{Refused, code_of_inspected},
    inspect::inspect,
};
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

    /// The code of a component for this kind of machine: kept from before, or compiled now.
    pub(super) fn code_of(&self, wasm: &[u8]) -> Result<Vec<u8>, Refused> {
        inspect(wasm)?;
        let file = self.folder.join(file_name(wasm));
        if let Some(code) = self.read(&file) {
            return Ok(code);
        }
        let code = code_of_inspected(wasm)?;
        if let Err(error) = self.write(&file, &code) {
            let folder = self.folder.display();
            tracing::debug!(%folder, %error, "compiled code was not kept");
        }
        Ok(code)
    }

    /// The code in `file`, if it is there and whole.
    fn read(&self, file: &Path) -> Option<Vec<u8>> {
        if !is_private(&self.folder).ok()? {
            return None;
        }
        let mut hash = fs::read(file).ok()?;
        let code = (hash.len() > HASH_BYTES).then(|| hash.split_off(HASH_BYTES))?;
        if hash != Sha256::digest(&code).as_slice() {
            return None;
        }
        // For the order in which files go.
        #[allow(clippy::disallowed_methods, reason = "it is compared with the times of files")]
        let now = SystemTime::now();
        let opened = fs::File::options().write(true).open(file);
        let _ = opened.and_then(|file| file.set_modified(now));
        Some(code)
    }

    /// Writes `code` to `file`, which appears as a whole.
    fn write(&self, file: &Path, code: &[u8]) -> io::Result<()> {
        create_private(&self.folder)?;
        if !is_private(&self.folder)? {
            return Err(io::Error::other("others may write into the folder"));
        }
        let part = file.with_extension(format!("{}.part", std::process::id()));
        let written = fs::File::create(&part).and_then(|mut out| {
            out.write_all(&Sha256::digest(code))?;
            out.write_all(code)
        });
        if let Err(error) = written.and_then(|()| fs::rename(&part, file)) {
            let _ = fs::remove_file(&part);
            return Err(error);
        }
        self.shrink()
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

/// The name of the file with the code of `wasm`, which names everything that determines the code.
fn file_name(wasm: &[u8]) -> String {
    let mut hash = Sha256::new();
    for part in [TARGET.as_bytes(), b"\0", ENGINE.as_bytes(), b"\0", wasm] {
        hash.update(part);
    }
    format!("{}.cwasm", hex(&hash.finalize()))
}

/// Creates `folder` for its user alone.
fn create_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Whether only this user may write into `folder`.
fn is_private(folder: &Path) -> io::Result<bool> {
    let about = fs::metadata(folder)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let own = nix::unistd::geteuid().as_raw();
        Ok(about.is_dir() && about.uid() == own && about.mode() & 0o022 == 0)
    }
    #[cfg(not(unix))]
    Ok(about.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALLEST: &str = "(component
        (instance $empty)
        (export \"tidegate:plugin/throttle@0.1.0\" (instance $empty)))";

    fn files(folder: &Path) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    #[test]
    fn kept_code_is_used_again_and_damaged_code_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/code");
        let kept = KeptCode::at(&folder);
        let wasm = component();
        let code = kept.code_of(&wasm).unwrap();
        let [file] = files(&folder).try_into().unwrap();
        // Other code under the right hash shows that the file is what is read.
        let mut other = Sha256::digest(b"other code").to_vec();
        other.extend_from_slice(b"other code");
        fs::write(&file, &other).unwrap();
        assert_eq!(kept.code_of(&wasm).unwrap(), b"other code");
        for damaged in [&other[..other.len() - 1], &other[..10], b""] {
            fs::write(&file, damaged).unwrap();
            assert_eq!(kept.code_of(&wasm).unwrap(), code, "{} bytes", damaged.len());
            assert_eq!(fs::read(&file).unwrap()[HASH_BYTES..], code, "it is whole again");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_others_may_write_into_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("code");
        let kept = KeptCode::at(&folder);
        kept.code_of(&component()).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let [file] = files(&folder).try_into().unwrap();
        let mut planted = Sha256::digest(b"planted").to_vec();
        planted.extend_from_slice(b"planted");
        fs::write(&file, &planted).unwrap();
        assert_ne!(kept.code_of(&component()).unwrap(), b"planted");
        assert_eq!(fs::read(&file).unwrap(), planted, "nothing is written there either");
    }

    #[test]
    fn the_oldest_files_go_first() {
        let dir = tempfile::tempdir().unwrap();
        let kept = KeptCode::at(dir.path());
        for number in 0..MAX_FILES as u64 + 3 {
            let file = dir.path().join(format!("{number}.cwasm"));
            fs::write(&file, b"code").unwrap();
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000 - number);
            fs::File::options().write(true).open(&file).unwrap().set_modified(at).unwrap();
        }
        kept.shrink().unwrap();
        let left = files(dir.path());
        assert_eq!(left.len(), MAX_FILES);
        let oldest = MAX_FILES + 2;
        assert!(left.iter().all(|file| !file.ends_with(format!("{oldest}.cwasm"))));
        assert!(left.iter().any(|file| file.ends_with("0.cwasm")));
    }

    /// The smallest component that the inspection accepts.
    fn component() -> Vec<u8> {
        wat::parse_str(SMALLEST).unwrap()
    }
}
