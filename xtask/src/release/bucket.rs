//! The files for servers with a bucket: a folder for each platform, and the compose example.

use super::{Files, Release, tree::Tree};

/// The file name of the archive.
pub const NAME: &str = "tidegate-bucket.tar.gz";
/// The folder in the archive.
pub const FOLDER: &str = "tidegate-bucket";

/// Returns `packaging/bucket` as [`NAME`]. Its files have the paths of the repository, so the commands of
/// the pages run in [`FOLDER`] as they do in a checkout.
///
/// # Errors
///
/// A file of the repository is missing.
pub fn make(release: &Release) -> Result<Files, String> {
    let source = "packaging/bucket";
    let mut tree = Tree::default();
    for (path, text) in release.folder(source)? {
        tree.file(format!("{source}/{path}"), 0o644, text);
    }
    Ok([(NAME.to_owned(), tree.tar_gz(&format!("{FOLDER}/"), release.time)?)].into())
}
