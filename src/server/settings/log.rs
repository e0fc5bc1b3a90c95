//! The settings of a replicated log.

use std::{
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    LogEncryption, LogProfile, Settings,
    validate::{Fault, fault, seconds, within},
};
use tidegate_backends::{
    bucket_log::{BucketAddress, NodeSettings, Pace},
    sealed::ObjectEncryption,
};
use tidegate_core::time::Seconds;

/// The least time of a takeover in which a leader overwrites its beat less than once a second.
const MIN_TAKEOVER_OF_GCS: Duration = Duration::from_secs(2);
/// How long a record may wait for more requests, in milliseconds.
const LOG_INTERVAL_MILLIS: RangeInclusive<u64> = 50..=10_000;
/// How many bytes of requests a record may wait for.
const LOG_RECORD_BYTES: RangeInclusive<u64> = 1024..=8 << 20;
/// The longest time for which snapshots are kept. Each truncation reads a manifest of each of them.
const MAX_HISTORY: Seconds = Seconds::new(7 * 86_400);

impl Settings {
    /// Whether the settings of the log are within their bounds and fit the others.
    pub(super) fn validate_log(&self) -> Result<(), Fault> {
        seconds("takeover_seconds", self.takeover_seconds, 600)?;
        if self.log_history_seconds > MAX_HISTORY {
            return fault("log_history_seconds", "must be 0 to 604800");
        }
        self.validate_log_profile()?;
        let Some(url) = &self.log else {
            if self.log_profile != LogProfile::Latency {
                return fault("log_profile", "must not be given without log");
            }
            if self.standby {
                return fault("standby", "must not be given without log");
            }
            if self.log_encryption != LogEncryption::Off {
                return fault("log_encryption", "must not be given without log");
            }
            if self.log_history_seconds > Seconds::new(0) {
                return fault("log_history_seconds", "must not be given without log");
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
            (None, None) if self.gives_keys() => return Ok(()),
            (None, None) => {
                return fault(
                    "encryption_key",
                    "or encryption_key_file or encryption_key_command must be given with log: a key in \
                     the data directory would be lost with it, and no other server would have it",
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

    fn validate_log_profile(&self) -> Result<(), Fault> {
        if self.log_profile != LogProfile::Price {
            let needs_price = "must not be given without log_profile = \"price\"";
            if self.log_interval_seconds.is_some() {
                return fault("log_interval_seconds", needs_price);
            }
            if self.log_record_bytes.is_some() {
                return fault("log_record_bytes", needs_price);
            }
        }
        if let Some(interval) = self.log_interval_seconds
            && !LOG_INTERVAL_MILLIS.contains(&interval.millis())
        {
            return fault("log_interval_seconds", "must be 0.05 to 10");
        }
        match self.log_record_bytes {
            Some(bytes) => within("log_record_bytes", bytes.into(), &LOG_RECORD_BYTES),
            None => Ok(()),
        }
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
        let takeover = self.takeover_seconds.duration();
        let settings = NodeSettings {
            address,
            pace: self.log_pace(),
            history: self.log_history_seconds.duration(),
            leads_at_start: !self.standby,
            handover_interval: takeover * 2,
            ..NodeSettings::default()
        };
        settings.with_takeover(takeover)
    }

    /// Which objects of the log are encrypted.
    pub fn object_encryption(&self) -> ObjectEncryption {
        match self.log_encryption {
            LogEncryption::Off => ObjectEncryption::Off,
            LogEncryption::On => ObjectEncryption::On,
            LogEncryption::Required => ObjectEncryption::Required,
        }
    }

    fn log_pace(&self) -> Pace {
        match self.log_profile {
            LogProfile::Latency => Pace::LATENCY,
            LogProfile::Price => Pace::price(
                self.log_interval_seconds.map(Duration::from),
                self.log_record_bytes.map(|bytes| bytes as usize),
            ),
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
        for encryption in [LogEncryption::On, LogEncryption::Required] {
            let fault = fault_of(|settings| {
                (settings.log, settings.log_encryption) = (None, encryption);
            });
            assert_eq!(fault.unwrap().setting, "log_encryption");
        }
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
    fn snapshots_are_kept_for_a_week_at_most() {
        let week = 7 * 86_400;
        let kept = |span| move |settings: &mut Settings| settings.log_history_seconds = span;
        for seconds in [0, 60, week] {
            assert_eq!(fault_of(kept(Seconds::new(seconds))), None, "{seconds}");
        }
        let fault = fault_of(kept(Seconds::new(week + 1))).unwrap();
        assert_eq!(fault.setting, "log_history_seconds");
        let fault = fault_of(|settings| {
            settings.log_history_seconds = Seconds::new(60);
            settings.log = None;
        });
        assert_eq!(fault.unwrap().setting, "log_history_seconds");
        let settings = Settings { log_history_seconds: Seconds::new(60), ..Settings::default() };
        assert_eq!(settings.log_node(String::new()).history, Duration::from_mins(1));
    }

    fn price(settings: &mut Settings) {
        settings.log_profile = LogProfile::Price;
    }

    #[test]
    fn a_wrong_bound_of_a_record_names_its_setting() {
        assert_eq!(fault_of(price), None);
        let interval = |millis| {
            move |settings: &mut Settings| {
                price(settings);
                settings.log_interval_seconds = Some(Seconds::from_millis(millis));
            }
        };
        let bytes = |bytes| {
            move |settings: &mut Settings| {
                price(settings);
                settings.log_record_bytes = Some(bytes);
            }
        };
        for millis in [50, 100, 10_000] {
            assert_eq!(fault_of(interval(millis)), None, "{millis}");
        }
        for millis in [0, 49, 10_001] {
            let fault = fault_of(interval(millis)).unwrap();
            assert_eq!(fault.setting, "log_interval_seconds", "{millis}");
            assert_eq!(fault.problem, "must be 0.05 to 10");
        }
        for least_or_most in [1024, 8 << 20] {
            assert_eq!(fault_of(bytes(least_or_most)), None);
        }
        for wrong in [0, 1023, (8 << 20) + 1] {
            assert_eq!(fault_of(bytes(wrong)).unwrap().setting, "log_record_bytes", "{wrong}");
        }
    }

    #[test]
    fn bounds_of_a_record_need_the_profile_price_and_a_log() {
        let seconds = Some(Seconds::from_millis(100));
        let fault = fault_of(|settings| settings.log_interval_seconds = seconds).unwrap();
        assert_eq!(fault.setting, "log_interval_seconds");
        assert!(fault.problem.contains("log_profile"), "{fault}");
        let fault = fault_of(|settings| settings.log_record_bytes = Some(2048)).unwrap();
        assert_eq!(fault.setting, "log_record_bytes");
        let fault = fault_of(|settings| {
            price(settings);
            settings.log = None;
        });
        assert_eq!(fault.unwrap().setting, "log_profile");
    }

    #[test]
    fn the_profile_decides_when_a_record_is_written() {
        let mut settings = Settings::default();
        let pace = |settings: &Settings| settings.log_node(String::new()).pace;
        assert_eq!(pace(&settings), Pace::LATENCY);
        price(&mut settings);
        assert_eq!(pace(&settings), Pace::price(None, None));
        settings.log_interval_seconds = Some(Seconds::new(2));
        settings.log_record_bytes = Some(4096);
        let interval = Duration::from_secs(2);
        assert_eq!(pace(&settings), Pace::Price { interval, bytes: 4096 });
    }

    #[test]
    fn a_key_that_lies_only_in_the_data_directory_is_refused() {
        let fault = fault_of(|settings| settings.encryption_key = None);
        assert_eq!(fault.unwrap().setting, "encryption_key");
        let fault = fault_of(|settings| {
            settings.encryption_key = None;
            settings.encryption_key_command = vec!["kms".to_owned()];
        });
        assert_eq!(fault, None, "it is not run to check the settings");
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
