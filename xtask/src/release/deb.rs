//! A Debian package per Linux target, with the systemd unit of `packaging/debian`.
//!
//! A package is an `ar` archive of three files: the version of the format, and a tar each of the
//! package's description and of its files. So it needs no tool of Debian.

use super::{
    Files, Release,
    target::Linux,
    tree::{Tree, gzip},
};

/// The files of `packaging/debian` that dpkg runs, all executable.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];
/// The file that an upgrade keeps if the administrator has changed it.
const CONFIGURATION: &str = "etc/tidegate/tidegate.toml";

/// Returns the package of each Linux binary: `tidegate_VERSION_ARCH.deb`.
///
/// # Errors
///
/// A file of the repository is missing.
pub fn make(release: &Release) -> Result<Files, String> {
    let mut files = Files::new();
    for binary in &release.binaries {
        let Some(linux) = &binary.target.linux else { continue };
        let data = data(release, &binary.bytes)?;
        let mut control = Tree::default();
        control.file("control", 0o644, description(release, linux, data.size()));
        control.file("conffiles", 0o644, format!("/{CONFIGURATION}\n"));
        for script in SCRIPTS {
            control.file(script, 0o755, release.read(&format!("packaging/debian/{script}"))?);
        }
        let package = ar(
            release.time,
            &[
                ("debian-binary", b"2.0\n"),
                ("control.tar.gz", &control.tar_gz("", release.time)?),
                ("data.tar.gz", &data.tar_gz("", release.time)?),
            ],
        );
        files.insert(name(&release.version, linux.arch), package);
    }
    Ok(files)
}

/// Returns the file name of the package.
pub fn name(version: &str, arch: &str) -> String {
    format!("tidegate_{}_{arch}.deb", debian_version(version))
}

/// Returns `version` so that Debian sorts a pre-release before its release.
fn debian_version(version: &str) -> String {
    version.replacen('-', "~", 1)
}

/// Returns the files of the package.
fn data(release: &Release, binary: &[u8]) -> Result<Tree, String> {
    let source = |file: &str| release.read(&format!("packaging/debian/{file}"));
    let mut tree = Tree::default();
    tree.file("usr/bin/tidegate", 0o755, binary);
    tree.file(CONFIGURATION, 0o640, source("tidegate.toml")?);
    tree.file("usr/lib/systemd/system/tidegate.service", 0o644, source("tidegate.service")?);
    tree.file("usr/lib/sysusers.d/tidegate.conf", 0o644, source("sysusers.conf")?);
    let docs = &release.docs;
    for (path, file) in [
        ("usr/share/bash-completion/completions/tidegate", "tidegate.bash"),
        ("usr/share/zsh/vendor-completions/_tidegate", "_tidegate"),
        ("usr/share/fish/vendor_completions.d/tidegate.fish", "tidegate.fish"),
    ] {
        tree.file(path, 0o644, docs.completion(file)?);
    }
    for (page, text) in &docs.pages {
        tree.file(format!("usr/share/man/man1/{page}.gz"), 0o644, gzip(text)?);
    }
    let about = "usr/share/doc/tidegate";
    tree.file(format!("{about}/copyright"), 0o644, copyright(release)?);
    tree.file(format!("{about}/changelog.gz"), 0o644, gzip(&release.read("CHANGELOG.md")?)?);
    Ok(tree)
}

/// Returns the licence of tidegate and those of the libraries in it.
fn copyright(release: &Release) -> Result<Vec<u8>, String> {
    let mut text = release.read("LICENSE")?;
    text.extend(b"\n\nLicences of the libraries in the program:\n\n");
    text.extend(&release.licences);
    Ok(text)
}

/// Returns the description of the package, whose files have `bytes`.
fn description(release: &Release, linux: &Linux, bytes: u64) -> String {
    format!(
        "Package: tidegate\n\
         Version: {}\n\
         Architecture: {}\n\
         Maintainer: The tidegate maintainers <noreply@users.noreply.github.com>\n\
         Installed-Size: {}\n\
         Depends: ca-certificates, systemd | adduser\n\
         Section: net\n\
         Priority: optional\n\
         Homepage: https://github.com/tidegate/tidegate\n\
         Description: durable job queue for work at the right time and rate\n \
         tidegate starts each job when it is due and never exceeds the limits that are\n \
         set per queue, job type, tenant or attribute. It is one server on SQLite for\n \
         workers in every language, over HTTP.\n",
        debian_version(&release.version),
        linux.arch,
        bytes.div_ceil(1024)
    )
}

/// Returns an `ar` archive of `files`, with the time `at` in seconds since the epoch.
fn ar(at: u64, files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = b"!<arch>\n".to_vec();
    for (name, bytes) in files {
        let header =
            format!("{name:<16}{at:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, "100644", bytes.len());
        archive.extend(header.as_bytes());
        archive.extend(*bytes);
        // Each header begins at an even offset.
        if bytes.len() % 2 == 1 {
            archive.push(b'\n');
        }
    }
    archive
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_odd_length_is_padded() {
        let archive = ar(1, &[("odd", b"abc"), ("even", b"ab")]);
        let text = String::from_utf8(archive).unwrap();
        let odd = "odd             1           0     0     100644  3         `\nabc\n";
        assert!(text.starts_with(&format!("!<arch>\n{odd}even            ")), "{text}");
    }

    #[test]
    fn a_pre_release_sorts_before_its_release() {
        assert_eq!(name("0.2.0-rc.1", "arm64"), "tidegate_0.2.0~rc.1_arm64.deb");
        assert_eq!(name("0.2.0", "amd64"), "tidegate_0.2.0_amd64.deb");
    }
}
