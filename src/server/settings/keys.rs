//! The keys that encrypt the secrets of targets and the objects of a log: where they come from.

use std::{fmt, path::PathBuf};

use async_trait::async_trait;

use super::{Fault, Settings, key_command};
use tidegate_backends::sealed::{KeySource, Keys};
use tidegate_core::port::{HealthCheck, health_check::Check};

/// Where the keys come from. As a health check, it names that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyOrigin {
    /// The setting `encryption_key`.
    Setting,
    /// The file that `encryption_key_file` names.
    File(PathBuf),
    /// The program that `encryption_key_command` names.
    Command(String),
    /// The file of the data directory, which is created with the first secret.
    DataDirectory(PathBuf),
}

impl fmt::Display for KeyOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting => f.write_str("the setting `encryption_key`"),
            Self::File(file) => write!(f, "the file {} (`encryption_key_file`)", file.display()),
            Self::Command(program) => {
                write!(f, "the program {program} (`encryption_key_command`)")
            }
            Self::DataDirectory(file) => {
                write!(f, "the file {} in the data directory", file.display())
            }
        }
    }
}

#[async_trait]
impl HealthCheck for KeyOrigin {
    async fn checks(&self) -> Vec<Check> {
        vec![Check::ok("encryption key", format!("it comes from {self}"))]
    }
}

impl Settings {
    /// Whether a setting gives the keys, or says where they are.
    pub fn gives_keys(&self) -> bool {
        self.encryption_key.is_some()
            || self.encryption_key_file.is_some()
            || !self.encryption_key_command.is_empty()
    }

    /// Where the keys come from that encrypt the secrets of targets.
    pub fn key_origin(&self) -> KeyOrigin {
        match (&self.encryption_key, &self.encryption_key_file, &self.encryption_key_command[..]) {
            (Some(_), ..) => KeyOrigin::Setting,
            (None, Some(file), _) => KeyOrigin::File(file.clone()),
            (None, None, [program, ..]) => KeyOrigin::Command(program.clone()),
            (None, None, []) => KeyOrigin::DataDirectory(crate::runtime::key_file(&self.data)),
        }
    }

    /// The keys that encrypt the secrets of targets, or the file in which they are or will be. The
    /// program that prints them has ended then.
    ///
    /// # Errors
    ///
    /// The named file cannot be read, or has no keys. The program fails, takes over 30 seconds, or prints
    /// no keys. A store that servers share needs keys that all of them have.
    pub fn keys(&self) -> Result<KeySource, Fault> {
        let (setting, text) = match self.key_origin() {
            KeyOrigin::Setting => {
                ("encryption_key", self.encryption_key.clone().unwrap_or_default())
            }
            KeyOrigin::File(file) => {
                let setting = "encryption_key_file";
                let text = std::fs::read_to_string(&file).map_err(|error| Fault {
                    setting,
                    problem: format!("{} cannot be read: {error}", file.display()),
                })?;
                (setting, text)
            }
            KeyOrigin::Command(_) => {
                ("encryption_key_command", key_command::printed(&self.encryption_key_command)?)
            }
            KeyOrigin::DataDirectory(_) if self.store.is_some() => {
                let problem = "must be given with `store`, or encryption_key_file, or \
                               encryption_key_command: a key in the data directory of one server would \
                               be lost with it, and others would not have it";
                return Err(Fault { setting: "encryption_key", problem: problem.into() });
            }
            KeyOrigin::DataDirectory(file) => return Ok(KeySource::File(file)),
        };
        let keys = Keys::parse(&text).map_err(|bad| Fault { setting, problem: bad.to_string() })?;
        Ok(KeySource::Given(keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn of_command(command: &[&str]) -> Settings {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        Settings { encryption_key_command: command, ..Settings::default() }
    }

    #[test]
    fn a_program_prints_the_keys_in_the_form_of_the_file() {
        let settings = of_command(&["printf", "%s\\n", KEY, KEY]);
        let KeySource::Given(keys) = settings.keys().unwrap() else {
            panic!("a program prints them")
        };
        assert_eq!(
            format!("{keys:?}"),
            format!("{:?}", Keys::parse(&format!("{KEY},{KEY}")).unwrap())
        );
        let shared = Settings { store: Some("postgres://h/d".into()), ..settings };
        assert!(matches!(shared.keys(), Ok(KeySource::Given(_))));
    }

    #[test]
    fn servers_of_one_store_need_a_given_key() {
        let shared = Settings { store: Some("postgres://h/d".into()), ..Settings::default() };
        let fault = shared.keys().map(drop).unwrap_err();
        assert_eq!(fault.setting, "encryption_key");
        for other in ["encryption_key_file", "encryption_key_command"] {
            assert!(fault.problem.contains(other), "{fault}");
        }
        let given = Settings { encryption_key: Some(KEY.into()), ..shared };
        assert!(matches!(given.keys(), Ok(KeySource::Given(_))));
        assert!(matches!(Settings::default().keys(), Ok(KeySource::File(_))));
    }

    #[test]
    fn what_a_program_prints_is_not_shown() {
        let fault = of_command(&["echo", "hunter2"]).keys().map(drop).unwrap_err();
        assert_eq!(fault.setting, "encryption_key_command");
        assert!(!fault.to_string().contains("hunter2"), "{fault}");
    }

    #[tokio::test]
    async fn doctor_names_the_origin_of_the_keys() {
        let none = Settings { data: "/data".into(), ..Settings::default() };
        let given = Settings { encryption_key: Some(KEY.into()), ..Settings::default() };
        let file = Settings { encryption_key_file: Some("/etc/key".into()), ..Settings::default() };
        for (settings, origin) in [
            (none, "the file /data/key in the data directory"),
            (given, "the setting `encryption_key`"),
            (file, "the file /etc/key (`encryption_key_file`)"),
            (of_command(&["aws", "kms"]), "the program aws (`encryption_key_command`)"),
        ] {
            let checks = settings.key_origin().checks().await;
            assert_eq!(checks, [Check::ok("encryption key", format!("it comes from {origin}"))]);
            assert!(!format!("{checks:?}").contains(KEY));
        }
    }
}
