//! An older build, from which a check upgrades to the release and to which it goes back.
//!
//! It is the latest release before this one. Until there is one, it is the commit itself with
//! another version. It is built without optimisation, because only the check runs it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{archives::output, target::copy};
use crate::package::call;

/// The folder of the older build.
const FOLDER: &str = "target/release-older";
/// The version that this commit gets as an older build.
const VERSION: &str = "0.0.0";

/// What an older build is made from.
#[derive(Debug, PartialEq, Eq)]
struct Source {
    /// A tag or a commit.
    revision: String,
    /// The version that its manifests get; none if they have an older one.
    version: Option<&'static str>,
}

/// Returns the path of an older program than `version`; builds it unless it is there from an
/// earlier check.
///
/// # Errors
///
/// The folder `root` is no repository of git, or the build fails.
pub fn program(root: &Path, version: &str) -> Result<PathBuf, String> {
    let git = |args: &[&str]| {
        let mut git = Command::new("git");
        // A check that needs root reads the repository of another user.
        let out = output(git.current_dir(root).args(["-c", "safe.directory=*"]).args(args))?;
        Ok::<_, String>(String::from_utf8_lossy(&out).trim().to_owned())
    };
    let commit = git(&["rev-parse", "HEAD"])?;
    let tags = git(&["tag", "--list", "v*", "--sort=-version:refname", "--merged", "HEAD"])?;
    let source = source(&tags, version, commit);
    let folder = root.join(FOLDER);
    let (program, made_from) = (folder.join("tidegate"), folder.join("SOURCE"));
    let wanted = format!("{source:?}");
    if program.exists() && fs::read_to_string(&made_from).is_ok_and(|made| made == wanted) {
        return Ok(program);
    }
    let sources = sources(root);
    let failed = |error: std::io::Error| format!("{}: {error}", sources.display());
    if sources.exists() {
        fs::remove_dir_all(&sources).map_err(failed)?;
    }
    fs::create_dir_all(&sources).map_err(failed)?;
    let archive = folder.join("source.tar");
    let to = format!("--output={}", archive.display());
    git(&["archive", "--format=tar", &to, &source.revision])?;
    let tar = fs::File::open(&archive).map_err(failed)?;
    tar::Archive::new(tar).unpack(&sources).map_err(failed)?;
    fs::remove_file(&archive).map_err(failed)?;
    if let Some(other) = source.version {
        let manifest = sources.join("Cargo.toml");
        let text = fs::read_to_string(&manifest).map_err(failed)?;
        fs::write(&manifest, with_version(&text, version, other)).map_err(failed)?;
    }
    let built = folder.join("build");
    let mut cargo = Command::new("cargo");
    cargo.current_dir(&sources).env("CARGO_PROFILE_DEV_DEBUG", "0");
    // Of the checks of the repository, none is for this build.
    cargo.env_remove("RUSTC_WORKSPACE_WRAPPER");
    call(cargo.args(["build", "--quiet", "--bin=tidegate", "--target-dir"]).arg(&built))?;
    copy(&built.join("debug/tidegate"), &program)?;
    fs::write(&made_from, wanted).map_err(failed)?;
    Ok(program)
}

/// Returns the folder with the sources of the older program, which [`program`] has built.
pub fn sources(root: &Path) -> PathBuf {
    root.join(FOLDER).join("source")
}

/// The source of an older build than `version`: the first of `tags`, which are sorted from the
/// latest on, that is older; else `commit`.
fn source(tags: &str, version: &str, commit: String) -> Source {
    let earlier = tags.lines().find(|tag| {
        let other = tag.trim_start_matches('v');
        // Not the tag of this release, and no pre-release.
        other != version && !other.contains('-')
    });
    match earlier {
        Some(tag) => Source { revision: tag.to_owned(), version: None },
        None => Source { revision: commit, version: Some(VERSION) },
    }
}

/// The text of the manifest of the workspace with another version of its own crates.
fn with_version(manifest: &str, version: &str, other: &str) -> String {
    let is_own = |line: &&str| line.starts_with("version = ") || line.contains("{ path = ");
    let (from, to) = (format!("\"{version}\""), format!("\"{other}\""));
    let lines = manifest.lines().map(|line| match Some(line).filter(is_own) {
        Some(line) => line.replace(&from, &to),
        None => line.to_owned(),
    });
    lines.map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_earlier_release_is_the_older_build() {
        let of = |tags: &str| source(tags, "0.3.0", "abc".into());
        let tag = |tag: &str| Source { revision: tag.into(), version: None };
        assert_eq!(of("v0.3.0\nv0.3.0-rc.1\nv0.2.1\nv0.2.0"), tag("v0.2.1"));
        assert_eq!(of("v0.2.0\n"), tag("v0.2.0"));
        let commit = Source { revision: "abc".into(), version: Some(VERSION) };
        assert_eq!((of(""), of("v0.3.0")), (commit, of("v0.3.0-rc.2")));
    }

    #[test]
    fn only_the_crates_of_the_workspace_get_the_other_version() {
        let manifest = "version = \"0.1.0\"\n\
             own = { path = \"src/own\", version = \"0.1.0\" }\n\
             other = { version = \"0.1.0\" }\n";
        let expected = "version = \"0.0.0\"\n\
             own = { path = \"src/own\", version = \"0.0.0\" }\n\
             other = { version = \"0.1.0\" }\n";
        assert_eq!(with_version(manifest, "0.1.0", VERSION), expected);
    }
}
