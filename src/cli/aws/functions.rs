//! The zips of the functions, from a folder or a URL, each compared with its checksum.
//!
//! `SHA256SUMS` lists them as `sha256sum` does. A name is `ARCHITECTURE/FUNCTION.zip`, or
//! `ARCHITECTURE-FUNCTION.zip` where files have no folders, as in a release of GitHub. All zips are
//! read and compared before anything is created. `VERSION`, if it is listed, is the release of the
//! zips: this program has the template of its own release only.

use std::{fmt::Write as _, path::PathBuf, time::Duration};

use anyhow::Context as _;
use bytes::{Bytes, BytesMut};
use sha2::{Digest as _, Sha256};
use url::Url;

use super::template::TEMPLATE;
use crate::cli::UsageError;

/// The functions whose zips the template names. The function `sweep` is the program of `tick`.
pub const NAMES: [&str; 5] = ["enqueue", "tick", "deliver", "ingest", "plugins"];
/// The list of checksums.
const SUMS: &str = "SHA256SUMS";
/// The file with the version of the zips.
const VERSION: &str = "VERSION";
/// Maximum bytes of the file with the version.
const MAX_VERSION_BYTES: u64 = 100;
/// Maximum bytes of the list of checksums.
const MAX_SUMS_BYTES: u64 = 64 * 1024;
/// Maximum bytes of a zip: Lambda refuses larger functions.
const MAX_ZIP_BYTES: u64 = 250 * 1024 * 1024;
/// The first bytes of every zip.
const ZIP_MAGIC: &[u8] = b"PK\x03\x04";
/// The timeout of a download.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_mins(10);
/// Letters of the digest in the prefix of a release.
const DIGEST_LETTERS: usize = 12;

/// Where the zips are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A folder of this machine.
    Folder(PathBuf),
    /// A URL that ends with a slash.
    Url(Url),
}

impl Source {
    /// The published zips of this release.
    pub fn of_this_release() -> Self {
        let url = concat!(
            env!("CARGO_PKG_REPOSITORY"),
            "/releases/download/v",
            env!("CARGO_PKG_VERSION"),
            "/"
        );
        Self::Url(Url::parse(url).expect("the repository is a URL"))
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Folder(path) => path.display().fmt(f),
            Self::Url(url) => url.fmt(f),
        }
    }
}

/// Reads a folder, or a URL with `https` or, on this machine, `http`.
///
/// # Errors
///
/// A message for the user.
pub fn source(text: &str) -> Result<Source, String> {
    let Some((scheme, _)) = text.split_once("://") else {
        return Ok(Source::Folder(text.into()));
    };
    let mut url = Url::parse(text).map_err(|error| error.to_string())?;
    let local = matches!(url.host_str(), Some("127.0.0.1" | "[::1]" | "localhost"));
    if scheme != "https" && !(scheme == "http" && local) {
        return Err("the URL must begin with https://".into());
    }
    if !url.path().ends_with('/') {
        url.set_path(&format!("{}/", url.path()));
    }
    Ok(Source::Url(url))
}

/// The zips of one architecture, compared with their checksums.
#[derive(Debug)]
pub struct Functions {
    /// Each function with its zip.
    pub zips: Vec<(&'static str, Bytes)>,
    /// The prefix of their keys, which differs if a zip or the template does.
    pub prefix: String,
}

impl Functions {
    /// Reads the zips for `architecture`.
    ///
    /// # Errors
    ///
    /// The list of checksums or a zip is missing, too large, or not what the list says.
    pub async fn read(source: &Source, architecture: &str) -> anyhow::Result<Self> {
        let reader = Reader::new(source)?;
        let sums = reader.read(SUMS, MAX_SUMS_BYTES).await?;
        let sums = std::str::from_utf8(&sums)
            .map_err(|_| UsageError(format!("{SUMS} of {source} is not text")))?;
        if let Some(listed) = listed(sums, &[VERSION.into()]) {
            let (version, _) = reader.listed(listed, MAX_VERSION_BYTES).await?;
            let (version, own) = (String::from_utf8_lossy(&version), env!("CARGO_PKG_VERSION"));
            if version.trim() != own {
                let version = version.trim();
                return Err(UsageError(format!(
                    "the functions of {source} are those of tidegate {version}, and this program is \
                     {own}: use the program of that release"
                ))
                .into());
            }
        }
        let (mut zips, mut digest) = (Vec::new(), Sha256::new());
        for name in NAMES {
            let names =
                [format!("{architecture}/{name}.zip"), format!("{architecture}-{name}.zip")];
            let (file, expected) = listed(sums, &names).ok_or_else(|| {
                UsageError(format!("{SUMS} of {source} lists no {architecture}/{name}.zip"))
            })?;
            let (zip, found) = reader.listed((file, expected), MAX_ZIP_BYTES).await?;
            if !zip.starts_with(ZIP_MAGIC) {
                return Err(UsageError(format!("{file} of {source} is no zip")).into());
            }
            digest.update(format!("{architecture}/{name} {found}\n"));
            zips.push((name, zip));
        }
        digest.update(TEMPLATE);
        let digest = hex(&digest.finalize());
        let prefix =
            format!("tidegate/{}-{}", env!("CARGO_PKG_VERSION"), &digest[..DIGEST_LETTERS]);
        Ok(Self { zips, prefix })
    }
}

/// The first file that has one of these names, and its checksum.
fn listed<'a>(sums: &'a str, names: &[String]) -> Option<(&'a str, &'a str)> {
    sums.lines().find_map(|line| {
        let (sum, file) = line.split_once(char::is_whitespace)?;
        // A star marks a file that was read as binary.
        let file = file.trim().trim_start_matches('*').trim_start_matches("./");
        names.iter().any(|name| name == file).then_some((file, sum))
    })
}

/// The bytes in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Reads files of a source.
struct Reader<'a> {
    source: &'a Source,
    http: reqwest::Client,
}

impl<'a> Reader<'a> {
    fn new(source: &'a Source) -> anyhow::Result<Self> {
        // A redirect leads to no URL without TLS, except from one on this machine.
        let is_secure = matches!(source, Source::Url(url) if url.scheme() == "https");
        let http =
            reqwest::Client::builder().timeout(DOWNLOAD_TIMEOUT).https_only(is_secure).build()?;
        Ok(Self { source, http })
    }

    /// A listed file, compared with its checksum, and the checksum.
    async fn listed(
        &self,
        (file, expected): (&str, &str),
        max: u64,
    ) -> anyhow::Result<(Bytes, String)> {
        let bytes = self.read(file, max).await?;
        let found = hex(&Sha256::digest(&bytes));
        if found.eq_ignore_ascii_case(expected) {
            return Ok((bytes, found));
        }
        let source = self.source;
        Err(UsageError(format!(
            "{file} of {source} has the SHA-256 {found}, and {SUMS} says {expected}: the file is \
             damaged or not the one that was published"
        ))
        .into())
    }

    /// The file `name`, of at most `max` bytes.
    async fn read(&self, name: &str, max: u64) -> anyhow::Result<Bytes> {
        match self.source {
            Source::Folder(folder) => {
                let path = folder.join(name);
                let failed = |error: std::io::Error| {
                    UsageError(format!("{} cannot be read: {error}", path.display()))
                };
                let size = tokio::fs::metadata(&path).await.map_err(failed)?.len();
                within(size, max, &path.display())?;
                Ok(tokio::fs::read(&path).await.map_err(failed)?.into())
            }
            Source::Url(url) => {
                let url = url.join(name).context("the name of a file is no path of a URL")?;
                let failed = |error: &dyn std::fmt::Display| {
                    UsageError(format!("{url} cannot be read: {error}"))
                };
                let answer = self.http.get(url.clone()).send().await;
                let mut answer = answer
                    .and_then(reqwest::Response::error_for_status)
                    .map_err(|error| failed(&error.without_url()))?;
                let mut bytes = BytesMut::new();
                while let Some(chunk) =
                    answer.chunk().await.map_err(|error| failed(&error.without_url()))?
                {
                    within((bytes.len() + chunk.len()) as u64, max, &url)?;
                    bytes.extend_from_slice(&chunk);
                }
                Ok(bytes.freeze())
            }
        }
    }
}

fn within(size: u64, max: u64, file: &dyn std::fmt::Display) -> Result<(), UsageError> {
    if size <= max {
        return Ok(());
    }
    Err(UsageError(format!("{file} has more than {max} bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_folder_or_a_secure_url() {
        assert_eq!(source("target/functions"), Ok(Source::Folder("target/functions".into())));
        let url = source("https://example.com/v1").unwrap();
        assert_eq!(url.to_string(), "https://example.com/v1/");
        assert!(source("http://127.0.0.1:8000/").is_ok());
        assert!(source("http://example.com/").is_err() && source("ftp://a/").is_err());
        let released = Source::of_this_release().to_string();
        assert!(released.starts_with("https://github.com/tidegate/tidegate/releases/download/v"));
    }

    #[test]
    fn a_checksum_is_found_under_either_name() {
        let sums = "aa  arm64/enqueue.zip\nbb *./x86_64/enqueue.zip\ncc  arm64-tick.zip\n";
        let listed = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            listed(sums, &names)
        };
        let enqueue = ["arm64/enqueue.zip", "arm64-enqueue.zip"];
        assert_eq!(listed(&enqueue), Some(("arm64/enqueue.zip", "aa")));
        assert_eq!(listed(&["x86_64/enqueue.zip"]), Some(("x86_64/enqueue.zip", "bb")));
        assert_eq!(listed(&["arm64/tick.zip", "arm64-tick.zip"]), Some(("arm64-tick.zip", "cc")));
        assert_eq!(listed(&["x86_64/tick.zip"]), None);
    }
}
