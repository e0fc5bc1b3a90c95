//! Profiles: named servers in a file.
//!
//! ```toml
//! [production]
//! url = "https://abc123.lambda-url.eu-central-1.on.aws"
//! token = "tg_..."
//! ```
//!
//! A profile's token is sent only to the profile's URL.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use figment::{
    Figment,
    providers::{Format as _, Toml},
};
use serde::Deserialize;
use url::Url;

use super::{UsageError, client};

/// A named server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Profile {
    url: String,
    token: Option<String>,
}

impl Profile {
    /// The profile of this name in the user's file: `$TIDEGATE_PROFILES`, or
    /// `tidegate/profiles.toml` in the user's configuration directory.
    ///
    /// # Errors
    ///
    /// [`UsageError`] if there is no such file or profile, or it cannot be read: the message names
    /// it.
    pub(super) fn named(name: &str) -> anyhow::Result<Self> {
        let file = file().context(
            "--profile: there is no configuration directory: set TIDEGATE_PROFILES to a file",
        )?;
        Self::in_file(name, &file)
    }

    fn in_file(name: &str, file: &Path) -> anyhow::Result<Self> {
        let wrong = |problem: String| {
            UsageError(format!("--profile {name}: {}: {problem}", file.display()))
        };
        if !file.exists() {
            return Err(wrong("there is no such file".into()).into());
        }
        let read = Figment::from(Toml::file_exact(file)).extract::<BTreeMap<String, Self>>();
        let mut profiles = read.map_err(|error| wrong(error.to_string()))?;
        let known = profiles.keys().cloned().collect::<Vec<_>>().join(", ");
        profiles
            .remove(name)
            .ok_or_else(|| wrong(format!("has no such profile; it has: {known}")).into())
    }

    /// Returns the URL of the server and the token for it.
    ///
    /// # Errors
    ///
    /// [`UsageError`] if the URL is none.
    pub(super) fn server(self) -> anyhow::Result<(Url, Option<String>)> {
        let url = client::base_url(&self.url).map_err(|problem| {
            UsageError(format!("the profile's url {:?}: {problem}", self.url))
        })?;
        Ok((url, self.token))
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "the command line is the edge: it reads the environment"
)]
fn file() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("TIDEGATE_PROFILES").or_else(|| {
        let settings = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
        Some(settings.join("tidegate/profiles.toml"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_found_by_its_name_and_errors_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("profiles.toml");
        let error = |name: &str| Profile::in_file(name, &file).unwrap_err().to_string();
        assert!(error("a").ends_with("there is no such file"));
        std::fs::write(
            &file,
            "[a]\nurl = \"localhost:9\"\ntoken = \"t\"\n[b]\nurl = \"not a url\"\n",
        )
        .unwrap();
        let (url, token) = Profile::in_file("a", &file).unwrap().server().unwrap();
        assert_eq!((url.as_str(), token.as_deref()), ("http://localhost:9/", Some("t")));
        assert!(error("c").ends_with("it has: a, b"));
        assert!(
            Profile::in_file("b", &file)
                .unwrap()
                .server()
                .unwrap_err()
                .to_string()
                .contains("not a url")
        );
        std::fs::write(&file, "[a]\nurl = \"x\"\nport = 1\n").unwrap();
        assert!(error("a").contains("port"), "{}", error("a"));
    }
}
