//! Files and directories that only their owner may use, whatever the umask of the process.
//!
//! A file is opened without following a symbolic link at its end: otherwise another user who may
//! write into its directory could have another file overwritten.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::unix::fs::{
        DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
    },
    path::Path,
};

use nix::fcntl::OFlag;

/// The bits of other users.
const OTHERS: u32 = 0o077;
/// The permissions of a directory.
const DIR: u32 = 0o700;
/// The permissions of a file.
const FILE: u32 = 0o600;

/// Creates `dir` for its owner alone, and its parents as the umask says. An existing directory is
/// not changed.
///
/// # Errors
///
/// The operating system's.
pub fn create_dir(dir: &Path) -> io::Result<()> {
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(DIR).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        created => created,
    }
}

/// Opens the file at `path` to read and write. A new one is for its owner alone; an existing one is
/// not truncated.
///
/// # Errors
///
/// The operating system's; `path` is a symbolic link.
pub fn open(path: &Path) -> io::Result<File> {
    let opened = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(FILE)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(path);
    let file = opened.map_err(|error| as_link(path, error))?;
    close(path)?;
    Ok(file)
}

/// Opens the file at `path` to read.
///
/// # Errors
///
/// The operating system's; `path` is a symbolic link.
pub fn read(path: &Path) -> io::Result<File> {
    let opened = File::options().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path);
    opened.map_err(|error| as_link(path, error))
}

fn as_link(path: &Path, error: io::Error) -> io::Error {
    if path.is_symlink() {
        io::Error::other("it is a symbolic link, which is not followed")
    } else {
        error
    }
}

/// Creates an empty file for its owner alone, if there is none. Unlike [`open`], it accepts a link
/// to another place.
///
/// # Errors
///
/// The operating system's.
pub fn create_file(path: &Path) -> io::Result<()> {
    match File::options().write(true).create_new(true).mode(FILE).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        created => created.map(drop),
    }
}

/// Takes the permissions of other users away from an existing file or directory.
///
/// # Errors
///
/// The operating system's, for example that it belongs to another user.
pub fn close(path: &Path) -> io::Result<()> {
    let about = fs::metadata(path)?;
    if about.mode() & OTHERS == 0 {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(if about.is_dir() { DIR } else { FILE }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn new_and_old_files_are_closed_to_other_users() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("parent/data");
        create_dir(&inside).unwrap();
        create_dir(&inside).unwrap();
        assert_eq!(mode(&inside), 0o700);
        let file = inside.join("file");
        open(&file).unwrap();
        assert_eq!(mode(&file), 0o600);
        fs::set_permissions(&file, Permissions::from_mode(0o664)).unwrap();
        open(&file).unwrap();
        assert_eq!(mode(&file), 0o600);
        fs::set_permissions(&inside, Permissions::from_mode(0o755)).unwrap();
        close(&inside).unwrap();
        assert_eq!(mode(&inside), 0o700);
    }

    #[test]
    fn a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        for refused in [open(&link), read(&link)] {
            assert!(refused.unwrap_err().to_string().contains("symbolic link"));
        }
        assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
        assert!(create_dir(&target).is_err(), "it is a file");
    }
}
