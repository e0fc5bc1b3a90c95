//! The bounds of the settings, and the settings that need each other.

use std::ops::RangeInclusive;

use url::Url;

use super::{Console, Emf, Jwt, Oidc, Settings, Tracing};
use crate::auth::{TokenItem, local::is_confidential};
use tidegate_backends::sealed::Keys;
use tidegate_core::{
    target::{Push, signature::Secret},
    time::Seconds,
    validate::check_headers,
};

/// Most other servers that a console has links to.
const MAX_SERVERS: usize = 50;

/// A setting has an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{setting}` {problem}")]
pub struct Fault {
    /// Its name, with dots between the names of nested settings.
    pub setting: &'static str,
    /// What it must be. Never shows a secret.
    pub problem: String,
}

pub(super) fn fault(setting: &'static str, problem: impl Into<String>) -> Result<(), Fault> {
    Err(Fault { setting, problem: problem.into() })
}

pub(super) fn within(
    setting: &'static str,
    value: u64,
    bounds: &RangeInclusive<u64>,
) -> Result<(), Fault> {
    if bounds.contains(&value) {
        Ok(())
    } else {
        fault(setting, format!("must be {} to {}, not {value}", bounds.start(), bounds.end()))
    }
}

/// Whether a time limit is 1 to `most` seconds.
pub(super) fn seconds(setting: &'static str, value: Seconds, most: u64) -> Result<(), Fault> {
    let bounds = 1000..=most * 1000;
    if bounds.contains(&value.millis()) {
        Ok(())
    } else {
        fault(setting, format!("must be 1 to {most}"))
    }
}

fn web(setting: &'static str, url: Option<&Url>) -> Result<(), Fault> {
    match url {
        Some(url) if !matches!(url.scheme(), "http" | "https") => {
            fault(setting, "must begin with http:// or https://")
        }
        Some(url) if !url.username().is_empty() || url.password().is_some() => {
            fault(setting, "must not have a user or password in it")
        }
        _ => Ok(()),
    }
}

impl Settings {
    /// Whether every setting is within its bounds and they fit each other.
    ///
    /// # Errors
    ///
    /// The first [`Fault`].
    pub fn validate(&self) -> Result<(), Fault> {
        if self.data.as_os_str().is_empty() {
            return fault("data", "must name a directory");
        }
        #[cfg(feature = "embedded")]
        self.database()?;
        self.validate_keys()?;
        #[cfg(feature = "embedded")]
        self.validate_log()?;
        if let Some(token) = &self.admin_token
            && TokenItem::of_admin_setting(token).is_none()
        {
            let form = "must be a token's id, `:`, and the base64 of its secret's SHA-256";
            return fault("admin_token", form);
        }
        web("public_url", self.public_url.as_ref())?;
        if self
            .public_url
            .as_ref()
            .is_some_and(|url| url.query().is_some() || url.fragment().is_some())
        {
            return fault(
                "public_url",
                "must have no query or fragment, because callback paths are appended to it",
            );
        }
        self.validate_peer_url()?;
        if let Some(connections) = self.max_connections {
            within("max_connections", connections.into(), &(16..=1_000_000))?;
        }
        seconds("head_timeout_seconds", self.head_timeout_seconds, 3600)?;
        seconds("body_timeout_seconds", self.body_timeout_seconds, 3600)?;
        seconds("idle_timeout_seconds", self.idle_timeout_seconds, 86_400)?;
        within("max_data_bytes", self.max_data_bytes.into(), &(1024..=64 << 20))?;
        within("max_event_bytes", self.max_event_bytes.into(), &(1024..=1 << 20))?;
        within("max_event_hops", self.max_event_hops.into(), &(1..=1000))?;
        within(
            "reply_wait_seconds",
            self.reply_wait_seconds.millis().div_ceil(1000),
            &(0..=86_400),
        )?;
        within(
            "dead_letter_retention_seconds",
            self.dead_letter_retention_seconds.millis().div_ceil(1000),
            &(60..=31_536_000),
        )?;
        within("max_dead_letters", self.max_dead_letters.into(), &(1..=1_000_000))?;
        within("push_slots", self.push_slots.into(), &(1..=10_000))?;
        within("shutdown_seconds", self.shutdown_seconds.millis().div_ceil(1000), &(0..=3600))?;
        if let Some(target) = &self.default_target {
            self.validate_target(target)?;
        }
        self.console.validate()?;
        self.emf.validate()?;
        self.tracing.validate()?;
        self.jwt.validate()?;
        self.validate_sign_in()?;
        self.oidc.validate(&self.jwt)
    }

    /// Whether one setting at most gives the keys that encrypt secrets.
    fn validate_keys(&self) -> Result<(), Fault> {
        let sources = [
            ("encryption_key", self.encryption_key.is_some()),
            ("encryption_key_file", self.encryption_key_file.is_some()),
            ("encryption_key_command", !self.encryption_key_command.is_empty()),
        ];
        let mut given = sources.into_iter().filter_map(|(name, given)| given.then_some(name));
        if let (Some(first), Some(second)) = (given.next(), given.next()) {
            return fault(first, format!("must not be given with {second}"));
        }
        if let Some(keys) = &self.encryption_key
            && let Err(bad) = Keys::parse(keys)
        {
            return fault("encryption_key", bad.to_string());
        }
        match self.encryption_key_command.first() {
            Some(program) if program.is_empty() => {
                fault("encryption_key_command", "must begin with the name of a program")
            }
            _ => Ok(()),
        }
    }

    fn validate_peer_url(&self) -> Result<(), Fault> {
        let Some(url) = &self.peer_url else { return Ok(()) };
        web("peer_url", Some(url))?;
        if url.query().is_some() || url.fragment().is_some() {
            let problem = "must have no query or fragment, because paths are appended to it";
            return fault("peer_url", problem);
        }
        if self.store.is_none() {
            return fault("peer_url", "must not be given without store");
        }
        Ok(())
    }

    fn validate_target(&self, target: &Push) -> Result<(), Fault> {
        let url = target.url.replace("{type}", "type").replace("{id}", "id");
        if let Err(refused) = self.guard().url(&url) {
            return fault("default_target.url", format!("cannot be called: {refused}"));
        }
        if url.parse::<Url>().is_ok_and(|url| !self.allowed_targets.allow(&url)) {
            return fault("default_target.url", "has a host that allowed_targets does not allow");
        }
        let secrets = target.signing_secret.list();
        if secrets.len() > 2 {
            return fault(
                "default_target.signing_secret",
                "must be one secret, or two during a rotation",
            );
        }
        match secrets.iter().find_map(|secret| Secret::parse(secret).err()) {
            Some(bad) => fault("default_target.signing_secret", format!("cannot be used: {bad}")),
            None => Ok(()),
        }
    }
}

impl Console {
    /// Whether every option is within its bounds.
    ///
    /// # Errors
    ///
    /// The first [`Fault`].
    pub(crate) fn validate(&self) -> Result<(), Fault> {
        if self.title.chars().count() > 100 {
            return fault("console.title", "must have at most 100 characters");
        }
        web("console.page_url", self.page_url.as_ref())?;
        if let Some(pattern) = &self.trace_url {
            let setting = "console.trace_url";
            if !pattern.contains("{trace_id}") {
                return fault(setting, "must contain {trace_id}");
            }
            match pattern.replace("{trace_id}", "0").parse::<Url>() {
                Ok(url) => web(setting, Some(&url))?,
                Err(_) => return fault(setting, "must be a URL"),
            }
        }
        if self.servers.len() > MAX_SERVERS {
            return fault("console.servers", format!("must have at most {MAX_SERVERS} entries"));
        }
        self.servers.values().try_for_each(|url| web("console.servers", Some(url)))
    }
}

impl Emf {
    fn validate(&self) -> Result<(), Fault> {
        let letters = |letter: char| letter.is_ascii_alphanumeric() || ".-_/#:".contains(letter);
        if !(1..=255).contains(&self.namespace.len()) || !self.namespace.chars().all(letters) {
            return fault("emf.namespace", "must be 1 to 255 of A-Z a-z 0-9 . - _ / # :");
        }
        if self.namespace.starts_with("AWS/") {
            return fault("emf.namespace", "must not begin with AWS/, which is CloudWatch's own");
        }
        if self.output.as_ref().is_some_and(String::is_empty) {
            return fault("emf.output", "must be `stdout` or the path of a file");
        }
        within("emf.interval_seconds", self.interval_seconds.millis().div_ceil(1000), &(1..=3600))
    }
}

impl Tracing {
    fn validate(&self) -> Result<(), Fault> {
        web("tracing.otlp_endpoint", self.otlp_endpoint.as_ref())?;
        if let Err(wrong) = check_headers(&self.otlp_headers) {
            return fault("tracing.otlp_headers", wrong.message);
        }
        if self.service_name.is_empty() || self.service_name.len() > 255 {
            return fault("tracing.service_name", "must have 1 to 255 bytes");
        }
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            return fault("tracing.sample_ratio", "must be 0 to 1");
        }
        Ok(())
    }
}

impl Jwt {
    /// Whether the provider is named whole.
    ///
    /// # Errors
    ///
    /// The first [`Fault`].
    pub(crate) fn validate(&self) -> Result<(), Fault> {
        web("jwt.jwks_url", self.jwks_url.as_ref())?;
        let given = [self.jwks_url.is_some(), self.issuer.is_some(), self.audience.is_some()];
        let names = ["jwt.jwks_url", "jwt.issuer", "jwt.audience"];
        match given.iter().position(|given| !given) {
            Some(missing) if given.contains(&true) => {
                fault(names[missing], "must be given if any other of `jwt` is")
            }
            _ if self.scope_claim.is_empty() => fault("jwt.scope_claim", "must name a claim"),
            _ => Ok(()),
        }
    }
}

impl Settings {
    /// Whether sign-ins send cookies, codes and secrets encrypted, or on this machine alone.
    fn validate_sign_in(&self) -> Result<(), Fault> {
        if self.oidc.client_id.is_none() {
            return Ok(());
        }
        if self.public_url.is_none() && !self.is_local() {
            return fault("public_url", "must be given with oidc.client_id");
        }
        check_confidential(self.public_url.as_ref(), &self.jwt)
    }
}

/// Whether the addresses of a sign-in are encrypted, or of this machine.
///
/// # Errors
///
/// The first [`Fault`].
pub(crate) fn check_confidential(public_url: Option<&Url>, jwt: &Jwt) -> Result<(), Fault> {
    let issuer = jwt.issuer.as_ref().and_then(|issuer| issuer.parse().ok());
    for (name, url) in [
        ("public_url", public_url),
        ("jwt.issuer", issuer.as_ref()),
        ("jwt.jwks_url", jwt.jwks_url.as_ref()),
    ] {
        if url.is_some_and(|url| !is_confidential(url)) {
            return fault(name, "must begin with https:// with oidc.client_id");
        }
    }
    Ok(())
}

impl Oidc {
    /// Whether the client is described whole, for the provider `jwt`.
    ///
    /// # Errors
    ///
    /// The first [`Fault`].
    pub(crate) fn validate(&self, jwt: &Jwt) -> Result<(), Fault> {
        let is_text = |text: &str| (1..=1024).contains(&text.len());
        match &self.client_id {
            Some(id) if !is_text(id) => fault("oidc.client_id", "must have 1 to 1024 bytes"),
            Some(_) if jwt.issuer.is_none() => {
                fault("oidc.client_id", "needs the settings of `jwt`")
            }
            None if self.client_secret.is_some() => {
                fault("oidc.client_secret", "must not be given without oidc.client_id")
            }
            _ if self.client_secret.as_deref().is_some_and(|secret| !is_text(secret)) => {
                fault("oidc.client_secret", "must have 1 to 1024 bytes")
            }
            _ if !self.scopes.split(' ').any(|scope| scope == "openid") => {
                fault("oidc.scopes", "must have the scope openid")
            }
            _ => Ok(()),
        }
    }
}
