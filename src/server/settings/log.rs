//! The settings of a replicated log.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    Settings,
    validate::{Fault, fault, seconds},
};
use tidegate_backends::bucket_log::{BucketAddress, NodeSettings};

/// The least time of a takeover in which a leader overwrites its beat less than once a second.
const MIN_TAKEOVER_OF_GCS: Duration = Duration::from_secs(2);

impl Settings {
    /// Whether the settings of the log are within their bounds and fit the others.
    pub(super) fn validate_log(&self) -> Result<(), Fault> {
        seconds("takeover_seconds", self.takeover_seconds, 600)?;
        let Some(url) = &self.log else {
            if self.standby {
                return fault("standby", "must not be given without log");
            }
            if self.log_encryption {
                return fault("log_encryption", "must not be given without log");
            }
            return Ok(());
        };
        if self.store.is_some() {
            return fault("log", "must not be given with store: the data is in one of them");
        }
        BucketAddress::parse(url)
            .map_err(|bad| Fault { setting: "log", problem: bad.to_string() })?;
        if url.scheme() == "gs" && self.takeover_seconds.duration() < MIN_TAKEOVER_OF_GCS {
            return fault(
                "takeover_seconds",
                "must be 2 or more with gs: Google Cloud Storage overwrites an object once a second",
            );
        }
        let file = match (&self.encryption_key, &self.encryption_key_file) {
            (Some(_), _) => return Ok(()),
            (None, Some(file)) => file,
            (None, None) => {
                return fault(
                    "encryption_key",
                    "or encryption_key_file must be given with log: a key in the data directory \
                     would be lost with it, and no other server would have it",
                );
            }
        };
        if real(file).starts_with(real(&self.data)) {
            return fault(
                "encryption_key_file",
                "must not be in the data directory with log: it would be lost with it, and no \
                 other server would have it",
            );
        }
        Ok(())
    }

    /// The bucket of the log, if there is one.
    ///
    /// # Errors
    ///
    /// The setting is no address.
    pub fn log_address(&self) -> Result<Option<BucketAddress>, Fault> {
        let address = self.log.as_ref().map(BucketAddress::parse).transpose();
        address.map_err(|bad| Fault { setting: "log", problem: bad.to_string() })
    }

    /// The bounds of a node of the log that answers requests at `address`.
    pub fn log_node(&self, address: String) -> NodeSettings {
        // The rest of the time is for a beat that is late.
        let takeover = self.takeover_seconds.duration();
        let (beat_interval, late) = (takeover * 4 / 7, takeover * 3 / 7);
        NodeSettings {
            address,
            poll_interval: (beat_interval / 2).min(Duration::from_secs(2)),
            patience: (takeover, takeover * 2),
            beat_interval,
            beat_patience: (late * 5 / 6, late * 7 / 6),
            leads_at_start: !self.standby,
            handover_interval: takeover * 2,
            ..NodeSettings::default()
        }
    }
}

/// The path without links, as far as it exists.
fn real(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for ancestor in path.ancestors() {
        if let Ok(real) = ancestor.canonicalize() {
            let rest = path.strip_prefix(ancestor).unwrap_or(Path::new(""));
            return real.join(rest);
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use tidegate_core::time::Seconds;

    use super::*;

    const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

    fn fault_of(change: impl FnOnce(&mut Settings)) -> Option<Fault> {
        let mut settings = Settings {
            log: Some("s3://jobs/log".parse().unwrap()),
            encryption_key: Some(KEY.into()),
            ..Settings::default()
        };
        change(&mut settings);
        settings.validate().err()
    }

    #[test]
    fn a_wrong_address_names_the_setting() {
        assert_eq!(fault_of(|_| ()), None);
        let fault = fault_of(|settings| settings.log = Some("ftp://jobs".parse().unwrap()));
        assert_eq!(fault.unwrap().setting, "log");
        let fault = fault_of(|settings| (settings.log, settings.standby) = (None, true));
        assert_eq!(fault.unwrap().setting, "standby");
        let fault = fault_of(|settings| (settings.log, settings.log_encryption) = (None, true));
        assert_eq!(fault.unwrap().setting, "log_encryption");
        let store = "postgres://db.example/jobs".to_owned();
        let fault = fault_of(|settings| settings.store = Some(store));
        assert_eq!(fault.unwrap().setting, "log");
        let fault = fault_of(|settings| settings.takeover_seconds = Seconds::from_millis(0));
        assert_eq!(fault.unwrap().setting, "takeover_seconds");
        let soon = |settings: &mut Settings| settings.takeover_seconds = Seconds::from_millis(1000);
        assert_eq!(fault_of(soon), None);
        let fault = fault_of(|settings| {
            soon(settings);
            settings.log = Some("gs://jobs/log".parse().unwrap());
        });
        assert_eq!(fault.unwrap().setting, "takeover_seconds");
    }

    #[test]
    fn a_key_that_lies_only_in_the_data_directory_is_refused() {
        let fault = fault_of(|settings| settings.encryption_key = None);
        assert_eq!(fault.unwrap().setting, "encryption_key");
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        let in_file = |file: &Path| {
            fault_of(|settings| {
                settings.encryption_key = None;
                settings.data = dir.path().join("data");
                settings.encryption_key_file = Some(file.to_owned());
            })
        };
        for inside in [dir.path().join("data/key"), link.join("data/deeper/key")] {
            assert_eq!(in_file(&inside).unwrap().setting, "encryption_key_file", "{inside:?}");
        }
        assert_eq!(in_file(&dir.path().join("key")), None);
    }
}
