//! The bucket that options name, and its clients.

use std::{io::IsTerminal as _, path::PathBuf, sync::Arc};

use anyhow::{Context as _, bail};
use object_store::ObjectStore;
use serde::{
    Deserialize as _,
    de::{IntoDeserializer as _, value::Error as UnknownValue},
};
use tracing::Level;
use url::Url;

use super::super::UsageError;
use tidegate_backends::{
    bucket_log::{BucketAddress, BucketClients, Edge, LogReader, StoreBucket},
    sealed::{Keys, ObjectEncryption},
    system::{SystemClock, SystemEntropy},
};
use tidegate_server::settings::{Fault, LogEncryption, Settings};

/// The options that name the bucket of a log.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Nothing is written, and servers may run. Exit code 1 names the object that is \
    damaged or missing, and 3 means that the store does not answer.\n\n\
    Example:\n  \
    tidegate log verify --log s3://bucket/prefix"
)]
pub struct Address {
    /// The URL of the bucket (file, s3, gs or az) [default: the server's setting `log`].
    #[arg(long, value_name = "URL", env = "TIDEGATE_LOG")]
    log: Option<Url>,
    /// A TOML file with the server's settings.
    #[arg(long, env = "TIDEGATE_CONFIG")]
    config: Option<PathBuf>,
    /// A file with the keys of objects that are encrypted [default: the server's settings].
    #[arg(long, value_name = "FILE", env = "TIDEGATE_ENCRYPTION_KEY_FILE")]
    encryption_key_file: Option<PathBuf>,
    /// The keys themselves: only as a variable, because others can see the arguments of a process.
    #[arg(long, env = "TIDEGATE_ENCRYPTION_KEY", hide = true, hide_env_values = true)]
    encryption_key: Option<String>,
    /// A program and its arguments, separated by commas, that prints the keys: as a variable, like the
    /// server's setting.
    #[arg(long, env = "TIDEGATE_ENCRYPTION_KEY_COMMAND", hide = true, value_delimiter = ',')]
    encryption_key_command: Vec<String>,
    /// Encrypt what is written (on, required), and refuse to read what is not encrypted (required)
    /// [default: the server's setting].
    #[arg(
        long,
        value_name = "off|on|required",
        env = "TIDEGATE_LOG_ENCRYPTION",
        value_parser = encryption
    )]
    log_encryption: Option<LogEncryption>,
}

/// The value of the option `--log-encryption`.
fn encryption(text: &str) -> Result<LogEncryption, UnknownValue> {
    LogEncryption::deserialize(text.into_deserializer())
}

/// A log that is there.
pub(super) struct Opened {
    pub reader: LogReader,
    pub bucket: Arc<StoreBucket>,
    pub address: BucketAddress,
    /// Its large bodies and plugin code.
    pub objects: Arc<dyn ObjectStore>,
}

/// The bucket that options name.
pub(super) struct Named {
    pub address: BucketAddress,
    /// The keys of its objects.
    keys: Option<Keys>,
    encryption: ObjectEncryption,
}

/// The clients of a bucket.
pub(super) struct Connected {
    pub edge: Edge,
    pub bucket: Arc<StoreBucket>,
    pub objects: Arc<dyn ObjectStore>,
}

impl Address {
    /// The log, to be read.
    ///
    /// # Errors
    ///
    /// No bucket is named, it cannot be used, or it has no log.
    pub(super) async fn open(&self) -> anyhow::Result<Opened> {
        let mut named = self.named()?;
        // Nothing is written, so a key is needed only where clear objects are refused.
        if named.encryption == ObjectEncryption::On {
            named.encryption = ObjectEncryption::Off;
        }
        named.open().await
    }

    /// The log, to be closed.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub(super) async fn open_to_close(&self) -> anyhow::Result<Opened> {
        self.named()?.open().await
    }

    /// The bucket and its keys.
    ///
    /// # Errors
    ///
    /// No bucket is named, or an option or a setting is wrong.
    pub(super) fn named(&self) -> anyhow::Result<Named> {
        let usage = |text: String| anyhow::Error::from(UsageError(text));
        let wrong =
            |fault: Fault| usage(format!("the setting {} {}", fault.setting, fault.problem));
        let mut settings = if self.log.is_some() && self.config.is_none() {
            Settings::default()
        } else {
            Settings::load(self.config.as_deref(), &())?
        };
        // An empty variable gives nothing.
        let command = self.encryption_key_command.iter().map(|word| word.trim().to_owned());
        let command: Vec<String> = command.filter(|word| !word.is_empty()).collect();
        let has_command = !command.is_empty();
        if self.encryption_key.is_some() || self.encryption_key_file.is_some() || has_command {
            settings.encryption_key.clone_from(&self.encryption_key);
            settings.encryption_key_file.clone_from(&self.encryption_key_file);
            settings.encryption_key_command = command;
        }
        if let Some(encryption) = self.log_encryption {
            settings.log_encryption = encryption;
        }
        let encryption = settings.object_encryption();
        let address = if let Some(url) = &self.log {
            BucketAddress::parse(url).map_err(|bad| usage(format!("--log {bad}")))?
        } else {
            let none = || usage("name the bucket of the log with --log".into());
            settings.log_address().map_err(wrong)?.ok_or_else(none)?
        };
        if !settings.gives_keys() {
            // The key in the default data directory is not that of the log.
            return Ok(Named { address, keys: None, encryption });
        }
        let keys = settings.keys().map_err(wrong)?.load().context("the keys of the log")?;
        Ok(Named { address, keys, encryption })
    }
}

impl Named {
    /// The log in the bucket.
    ///
    /// # Errors
    ///
    /// The bucket cannot be used, or has no log.
    async fn open(self) -> anyhow::Result<Opened> {
        let no_log = || UsageError(format!("{} has no log", self.address));
        // A client would create it.
        if self.address.directory().is_some_and(|dir| !dir.is_dir()) {
            return Err(no_log().into());
        }
        let Connected { edge, bucket, objects } = self.connect()?;
        let opened = LogReader::open(edge, Arc::clone(&bucket) as _).await?;
        let reader = opened.ok_or_else(no_log)?;
        Ok(Opened { reader, bucket, address: self.address, objects })
    }

    /// Connects to the bucket, and shows from now on why requests fail.
    ///
    /// # Errors
    ///
    /// The bucket cannot be used, or a key is missing.
    pub(super) fn connect(&self) -> anyhow::Result<Connected> {
        let mut clients = self.address.connect().context("log")?;
        match &self.keys {
            Some(keys) => clients = clients.with_keys(keys.clone(), self.encryption),
            None if self.encryption == ObjectEncryption::Off => {}
            None => bail!(UsageError(
                "--log-encryption needs a key: TIDEGATE_ENCRYPTION_KEY or --encryption-key-file"
                    .into()
            )),
        }
        let BucketClients { log, objects } = clients;
        let bucket = Arc::new(log);
        let edge = Edge {
            bucket: Arc::clone(&bucket) as _,
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
        };
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_max_level(Level::WARN)
            .init();
        Ok(Connected { edge, bucket, objects })
    }
}
