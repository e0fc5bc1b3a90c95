//! The address of a bucket, and the clients of its object storage.
//!
//! ```text
//!   file:///dir/prefix     s3://bucket/prefix     gs://bucket/prefix     az://container/prefix
//! ```
//!
//! Credentials, region and endpoint come from the environment variables that each vendor's own tools
//! read. The client of the log repeats nothing by itself, because [`super::create`] must see each
//! answer.

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use object_store::{
    BackoffConfig, ObjectStore, RetryConfig, aws::AmazonS3Builder, azure::MicrosoftAzureBuilder,
    gcp::GoogleCloudStorageBuilder, local::LocalFileSystem, path::Path, prefix::PrefixStore,
};
use url::{Position, Url};

use super::{bucket::StoreBucket, requests::Requests};
use crate::{
    private,
    sealed::{EncryptedObjects, Keys, ObjectEncryption},
};

/// How long a request of the log may take. It is sent again then.
const LOG_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a large body may take.
const BULK_TIMEOUT: Duration = Duration::from_mins(1);
/// How long a part of a snapshot may take. Several share the line of this machine.
const PART_TIMEOUT: Duration = Duration::from_mins(4);
/// Most retries of a request for a large body, and the time in which the last one starts.
const BODY_RETRIES: usize = 4;
const BODY_RETRY_TIME: Duration = Duration::from_secs(90);
/// The longest wait before such a retry.
const BODY_RETRY_DELAY: Duration = Duration::from_secs(1);
/// What large bodies and plugin code have before their names, below the prefix of the log.
const OBJECTS: &str = "objects";

/// Why a text is not the address of a bucket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadAddress(&'static str);

/// Why a bucket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The variables of the environment do not say how, or not all of it.
    #[error("the variables of the environment for {address} are wrong or missing")]
    Environment {
        /// The address.
        address: String,
        /// What is wrong.
        #[source]
        source: object_store::Error,
    },
    /// The HTTP client cannot start.
    #[error("the HTTP client for the bucket cannot start")]
    Client(#[source] reqwest::Error),
    /// The directory of a `file://` address cannot be used.
    #[error("the directory {} cannot be used", dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Service {
    Directory(PathBuf),
    S3(String),
    Gcs(String),
    Azure(String),
}

/// Where a log and its large bodies are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketAddress {
    service: Service,
    prefix: Path,
    text: String,
}

impl fmt::Display for BucketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The clients of a bucket.
pub struct BucketClients {
    /// The objects of the log. A request is sent once.
    pub log: StoreBucket,
    /// Large bodies and plugin code. A failed request is repeated.
    pub objects: Arc<dyn ObjectStore>,
}

impl BucketClients {
    /// The same clients, which decrypt objects with `keys`. `encryption` says whether new ones are
    /// encrypted, with the first of them, and whether clear ones are read.
    #[must_use]
    pub fn with_keys(self, keys: Keys, encryption: ObjectEncryption) -> Self {
        let objects = EncryptedObjects::new(self.objects, keys.clone(), encryption);
        Self { log: self.log.with_keys(keys, encryption), objects: Arc::new(objects) }
    }
}

impl BucketAddress {
    /// The bucket at `url`.
    ///
    /// # Errors
    ///
    /// [`BadAddress`]: a fragment that follows the name of a setting, such as `must begin with ...`.
    pub fn parse(url: &Url) -> Result<Self, BadAddress> {
        let bad = |problem| Err(BadAddress(problem));
        if !["file", "s3", "gs", "az"].contains(&url.scheme()) {
            return bad("must begin with file://, s3://, gs:// or az://");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return bad("must have no user or password: they come from the environment");
        }
        if url.query().is_some() || url.fragment().is_some() || url.port().is_some() {
            return bad("must have no query, fragment or port");
        }
        let text = url[..Position::AfterPath].trim_end_matches('/').to_owned();
        if url.scheme() == "file" {
            let Ok(dir) = url.to_file_path() else {
                return bad("must name a directory of this machine, such as file:///var/lib/log");
            };
            if dir.parent().is_none() {
                return bad("must name a directory below the root of the file system");
            }
            return Ok(Self { service: Service::Directory(dir), prefix: Path::default(), text });
        }
        let Some(name) = url.host_str().filter(|name| !name.is_empty()) else {
            return bad("must name a bucket after ://");
        };
        let name = name.to_owned();
        let Ok(prefix) = Path::from_url_path(url.path()) else {
            return bad("must have a prefix without empty parts");
        };
        let service = match url.scheme() {
            "s3" => Service::S3(name),
            "gs" => Service::Gcs(name),
            _ => Service::Azure(name),
        };
        Ok(Self { service, prefix, text })
    }

    /// The directory of a `file://` address.
    pub fn directory(&self) -> Option<&std::path::Path> {
        match &self.service {
            Service::Directory(dir) => Some(dir),
            Service::S3(_) | Service::Gcs(_) | Service::Azure(_) => None,
        }
    }

    /// The clients of the bucket. No request is sent; the directory of a `file://` address is
    /// created if it does not exist.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect(&self) -> Result<BucketClients, ConnectError> {
        self.connect_with(&[])
    }

    /// The same, with `variables` in addition to those of the environment, by their names and values.
    ///
    /// # Errors
    ///
    /// As [`Self::connect`].
    pub fn connect_with(
        &self,
        variables: &[(&str, String)],
    ) -> Result<BucketClients, ConnectError> {
        let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let repeated = RetryConfig {
            backoff: BackoffConfig { max_backoff: BODY_RETRY_DELAY, ..BackoffConfig::default() },
            max_retries: BODY_RETRIES,
            retry_timeout: BODY_RETRY_TIME,
        };
        let client = |timeout, retry| self.client(timeout, retry, variables);
        let log = StoreBucket::new(client(LOG_TIMEOUT, once.clone())?, self.prefix.clone())
            .with_parts_in(client(PART_TIMEOUT, once)?);
        let bodies = client(BULK_TIMEOUT, repeated)?;
        let objects = PrefixStore::new(bodies, self.prefix.clone().join(OBJECTS));
        Ok(BucketClients { log, objects: Arc::new(objects) })
    }

    fn client(
        &self,
        timeout: Duration,
        retry: RetryConfig,
        variables: &[(&str, String)],
    ) -> Result<Arc<dyn ObjectStore>, ConnectError> {
        let requests = Requests::new(timeout).map_err(ConnectError::Client)?;
        let wrong = |source| ConnectError::Environment { address: self.text.clone(), source };
        Ok(match &self.service {
            Service::Directory(dir) => {
                let io = |source| ConnectError::Directory { dir: dir.clone(), source };
                private::create_dir(dir).map_err(io)?;
                let files = LocalFileSystem::new_with_prefix(dir)
                    .map_err(|error| io(std::io::Error::other(error)))?;
                Arc::new(files.with_fsync(true))
            }
            Service::S3(bucket) => Arc::new(
                keyed(variables)
                    .fold(AmazonS3Builder::from_env(), |builder, (key, value)| {
                        builder.with_config(key, value)
                    })
                    .with_bucket_name(bucket)
                    .with_retry(retry)
                    .with_http_connector(requests)
                    .build()
                    .map_err(wrong)?,
            ),
            Service::Gcs(bucket) => Arc::new(
                keyed(variables)
                    .fold(GoogleCloudStorageBuilder::from_env(), |builder, (key, value)| {
                        builder.with_config(key, value)
                    })
                    .with_bucket_name(bucket)
                    .with_retry(retry)
                    .with_http_connector(requests)
                    .build()
                    .map_err(wrong)?,
            ),
            Service::Azure(container) => Arc::new(
                keyed(variables)
                    .fold(MicrosoftAzureBuilder::from_env(), |builder, (key, value)| {
                        builder.with_config(key, value)
                    })
                    .with_container_name(container)
                    .with_retry(retry)
                    .with_http_connector(requests)
                    .build()
                    .map_err(wrong)?,
            ),
        })
    }
}

/// The variables that a builder has a key for.
fn keyed<'v, K: FromStr>(variables: &'v [(&str, String)]) -> impl Iterator<Item = (K, &'v String)> {
    variables
        .iter()
        .filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value)))
}

#[cfg(test)]
mod tests {
    use object_store::{Error, ObjectStoreExt as _, PutMode, PutPayload};
    use tempfile::TempDir;

    use super::*;

    fn parsed(text: &str) -> Result<BucketAddress, BadAddress> {
        BucketAddress::parse(&text.parse().unwrap())
    }

    #[test]
    fn an_address_names_a_service_a_bucket_and_a_prefix() {
        for (text, service, prefix) in [
            ("s3://jobs/a/b/", Service::S3("jobs".into()), "a/b"),
            ("s3://jobs", Service::S3("jobs".into()), ""),
            ("gs://jobs/a%20b", Service::Gcs("jobs".into()), "a b"),
            ("az://jobs/log", Service::Azure("jobs".into()), "log"),
            ("file:///var/lib/log", Service::Directory("/var/lib/log".into()), ""),
        ] {
            let address = parsed(text).unwrap();
            assert_eq!((address.service, address.prefix.as_ref()), (service, prefix), "{text}");
        }
    }

    #[test]
    fn a_wrong_address_is_refused() {
        for (text, problem) in [
            ("https://jobs.s3.amazonaws.com/", "must begin with"),
            ("s3:///prefix", "must name a bucket"),
            ("s3://key:secret@jobs/", "no user or password"),
            ("s3://jobs/a?region=b", "no query"),
            ("gs://jobs:80/a", "port"),
            ("az://jobs/a//b", "empty parts"),
            ("file:///", "below the root"),
            ("file://host/dir", "of this machine"),
        ] {
            let error = parsed(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    #[tokio::test]
    async fn a_directory_creates_an_object_once() {
        let dir = TempDir::new().unwrap();
        let url = Url::from_file_path(dir.path().join("new/log")).unwrap();
        let address = BucketAddress::parse(&url).unwrap();
        let BucketClients { objects, .. } = address.connect().unwrap();
        let key = Path::from("bodies/a");
        let put = |text: &'static str| {
            objects.put_opts(&key, PutPayload::from_static(text.as_bytes()), PutMode::Create.into())
        };
        put("one").await.unwrap();
        assert!(matches!(put("two").await, Err(Error::AlreadyExists { .. })));
        let read = objects.get(&key).await.unwrap().bytes().await.unwrap();
        assert_eq!(read, "one");
        assert!(dir.path().join("new/log/objects/bodies/a").exists());
    }
}
