//! What an operator may say about a server: plain data, read once, checked once.
//!
//! A later source wins over an earlier one: defaults, a TOML file, the environment, flags. A table in
//! the file is merged key by key, a list is replaced. The doc of each field is its only
//! description: [`reference()`] shows the same words to people, so the two cannot drift apart.

use std::{collections::BTreeMap, fmt, net::SocketAddr, ops::RangeInclusive, path::PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::level_filters::LevelFilter;
use url::Url;

use tidegate_backends::http::Guard;
use tidegate_core::{
    target::{Push, signature::Secret},
    time::Seconds,
    validate::check_headers,
};

#[cfg(feature = "embedded")]
mod load;
mod reference;

#[cfg(feature = "embedded")]
pub use load::{SettingsError, unknown_variables};
pub use reference::{Reference, reference, reference_table};

/// What the names of environment variables start with.
pub const PREFIX: &str = "TIDEGATE_";

/// Defines a struct and keeps the docs of its fields as `FIELDS`, name and words.
macro_rules! documented {
    ($(#[$attribute:meta])* pub struct $struct:ident { $($(#[doc = $doc:literal])+ pub $name:ident: $type:ty,)+ }) => {
        $(#[$attribute])*
        pub struct $struct { $($(#[doc = $doc])+ pub $name: $type,)+ }

        impl $struct {
            const FIELDS: &[(&str, &str)] = &[$((stringify!($name), concat!($($doc),+))),+];
        }
    };
}

documented! {
    /// Everything that can be set.
    #[derive(Clone, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct Settings {
        /// Address and port to listen on. Any but a loopback address needs tokens or `jwt`.
        pub listen: SocketAddr,
        /// The data directory, created if missing. One server at a time.
        pub data: PathBuf,
        /// Prefix of callback URLs: the address that workers use. Default: `http://` and the listen
        /// address. Without tokens the server also accepts requests for this URL's host.
        pub public_url: Option<Url>,
        /// Maximum size of a job's `data` and of a result, 1024 to 67108864 bytes. A larger request
        /// gets 413; a push with a larger response fails permanently.
        pub max_data_bytes: u32,
        /// Create an unknown job type with defaults at its first job, instead of refusing the job.
        pub create_unknown_types: bool,
        /// Target of types that name none, in the shape of a type's `target`
        /// (`TIDEGATE_DEFAULT_TARGET__URL` and so on). Default: pull workers.
        pub default_target: Option<Push>,
        /// Maximum size of an event, 1024 to 1048576 bytes. A larger event gets 413.
        pub max_event_bytes: u32,
        /// Maximum number of triggers in a chain of events, 1 to 1000. An event past it enqueues
        /// nothing, which stops loops.
        pub max_event_hops: u32,
        /// How long a reply without its job or attempt is kept, in seconds, 0 to 86400.
        pub reply_wait_seconds: Seconds,
        /// How long dead letters (events that a trigger failed to process) are kept, in seconds, 60
        /// to 31536000.
        pub dead_letter_retention_seconds: Seconds,
        /// Maximum number of dead letters, 1 to 1000000. Past it the oldest are dropped.
        pub max_dead_letters: u32,
        /// Maximum number of concurrent push calls per queue, 1 to 10000.
        pub push_slots: u32,
        /// Allow link-local, cloud metadata, multicast and unspecified target addresses. These can
        /// expose a machine's own credentials.
        pub allow_unsafe_targets: bool,
        /// How long a stopping server waits for calls and responses in progress, in seconds, 0 to
        /// 3600.
        pub shutdown_seconds: Seconds,
        /// Accept requests that reached the proxy over plain HTTP (`X-Forwarded-Proto: http`).
        /// Their tokens and data can be read on the way.
        pub allow_unencrypted_proxy: bool,
        /// Title of the dashboard, at most 100 characters.
        pub dashboard_title: String,
        /// A page of your own, embedded in the dashboard's first page.
        pub dashboard_page_url: Option<Url>,
        /// Least important level that is logged: `error`, `warn`, `info`, `debug` or `trace`.
        pub log_level: LogLevel,
        /// Format of a log line: `text` for people, `json` for machines.
        pub log_format: LogFormat,
        /// Log every request: id, method, path and status. Query, headers and body, which may hold
        /// secrets, are never logged.
        pub log_traffic: bool,
        /// Metrics to omit, for Prometheus and CloudWatch. A name that ends in `*` matches all
        /// names with that prefix. In the environment, separated by commas.
        pub metrics_exclude: Vec<String>,
        /// Metrics for CloudWatch.
        pub emf: Emf,
        /// Traces for OpenTelemetry.
        pub tracing: Tracing,
        /// Tokens that an identity provider signs (JWT, by its published keys) are taken beside the server's own.
        pub jwt: Jwt,
    }
}

documented! {
    /// Metrics as lines of JSON that CloudWatch takes out of a log (embedded metric format).
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct Emf {
        /// Destination of CloudWatch metrics: `stdout`, or the path of a file to append to.
        /// Default: none.
        pub output: Option<String>,
        /// Their CloudWatch namespace: 1 to 255 of `A-Z a-z 0-9 . - _ / # :`, not starting with
        /// `AWS/`.
        pub namespace: String,
        /// Interval between writes, in seconds, 1 to 3600; one more at the stop.
        pub interval_seconds: Seconds,
    }
}

documented! {
    /// Where spans go, and of which traces.
    #[derive(Clone, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct Tracing {
        /// Collector for spans, by OTLP over HTTP (protobuf), such as `http://127.0.0.1:4318`;
        /// `/v1/traces` is added if missing. Default: no tracing, and a job's `traceparent` passes
        /// unchanged to its worker. `OTEL_EXPORTER_OTLP_ENDPOINT` and
        /// `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` are equivalent.
        pub otlp_endpoint: Option<Url>,
        /// Headers of every request to the collector, such as its key. Never shown.
        /// `OTEL_EXPORTER_OTLP_HEADERS` is equivalent.
        pub otlp_headers: BTreeMap<String, String>,
        /// Name of this server in traces. `OTEL_SERVICE_NAME` is equivalent.
        pub service_name: String,
        /// Head sampling ratio for new traces, 0.0 to 1.0. Incoming traces keep the caller's
        /// sampling decision. `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG` are equivalent.
        pub sample_ratio: f64,
    }
}

documented! {
    /// Whose signed tokens (JWT) are taken. All but `scope_claim` go together.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct Jwt {
        /// URL of the provider's public keys.
        pub jwks_url: Option<Url>,
        /// Required `iss` of tokens.
        pub issuer: Option<String>,
        /// Required `aud` of tokens, alone or among others.
        pub audience: Option<String>,
        /// The claim with the token's scopes: words in one text, or a list. If it is missing, `scp`
        /// is used.
        pub scope_claim: String,
    }
}

/// The least important level that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What a person must look at.
    Error,
    /// What a person should look at some day.
    Warn,
    /// What happens to the server.
    Info,
    /// What happens to each job.
    Debug,
    /// Everything.
    Trace,
}

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}

/// How a log line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: ([127, 0, 0, 1], 8080).into(),
            data: "./tidegate-data".into(),
            public_url: None,
            max_data_bytes: 4 << 20,
            create_unknown_types: false,
            default_target: None,
            max_event_bytes: 256 << 10,
            max_event_hops: 8,
            reply_wait_seconds: Seconds::new(300),
            dead_letter_retention_seconds: Seconds::new(14 * 86_400),
            max_dead_letters: 10_000,
            push_slots: 256,
            allow_unsafe_targets: false,
            shutdown_seconds: Seconds::new(10),
            allow_unencrypted_proxy: false,
            dashboard_title: "tidegate".into(),
            dashboard_page_url: None,
            log_level: LogLevel::Info,
            log_format: LogFormat::Text,
            log_traffic: false,
            metrics_exclude: Vec::new(),
            emf: Emf::default(),
            tracing: Tracing::default(),
            jwt: Jwt::default(),
        }
    }
}

impl Default for Emf {
    fn default() -> Self {
        Self { output: None, namespace: "tidegate".into(), interval_seconds: Seconds::new(60) }
    }
}

impl Default for Tracing {
    fn default() -> Self {
        Self {
            otlp_endpoint: None,
            otlp_headers: BTreeMap::new(),
            service_name: "tidegate".into(),
            sample_ratio: 1.0,
        }
    }
}

impl Default for Jwt {
    fn default() -> Self {
        Self { jwks_url: None, issuer: None, audience: None, scope_claim: "scope".into() }
    }
}

/// A setting has a value that it must not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{setting}` {problem}")]
pub struct Fault {
    /// Which, with dots between the names of nested ones.
    pub setting: &'static str,
    /// What it must be. Never shows a secret.
    pub problem: String,
}

fn fault(setting: &'static str, problem: impl Into<String>) -> Result<(), Fault> {
    Err(Fault { setting, problem: problem.into() })
}

fn within(setting: &'static str, value: u64, bounds: &RangeInclusive<u64>) -> Result<(), Fault> {
    if bounds.contains(&value) {
        Ok(())
    } else {
        fault(setting, format!("must be {} to {}, not {value}", bounds.start(), bounds.end()))
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
        web("public_url", self.public_url.as_ref())?;
        if self
            .public_url
            .as_ref()
            .is_some_and(|url| url.query().is_some() || url.fragment().is_some())
        {
            return fault(
                "public_url",
                "must end with its path: a query or fragment would stand in the middle of callback URLs",
            );
        }
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
        if self.dashboard_title.chars().count() > 100 {
            return fault("dashboard_title", "must have at most 100 characters");
        }
        web("dashboard_page_url", self.dashboard_page_url.as_ref())?;
        self.emf.validate()?;
        self.tracing.validate()?;
        self.jwt.validate()
    }

    fn validate_target(&self, target: &Push) -> Result<(), Fault> {
        let url = target.url.replace("{type}", "type").replace("{id}", "id");
        if let Err(refused) = self.guard().url(&url) {
            return fault("default_target.url", format!("cannot be called: {refused}"));
        }
        let secrets = target.signing_secret.list();
        if secrets.len() > 2 {
            return fault(
                "default_target.signing_secret",
                "must be one secret, or two while one replaces the other",
            );
        }
        match secrets.iter().find_map(|secret| Secret::parse(secret).err()) {
            Some(bad) => fault("default_target.signing_secret", format!("cannot be used: {bad}")),
            None => Ok(()),
        }
    }

    /// Which addresses may be called.
    pub fn guard(&self) -> Guard {
        if self.allow_unsafe_targets { Guard::Off } else { Guard::On }
    }

    /// What callback URLs start with, without a slash at the end, if the server listens on `bound`.
    /// A server that listens on every address calls itself by loopback, for it cannot know its others.
    pub fn public_url(&self, mut bound: SocketAddr) -> String {
        if bound.ip().is_unspecified() {
            bound.set_ip(if bound.is_ipv4() {
                [127, 0, 0, 1].into()
            } else {
                std::net::Ipv6Addr::LOCALHOST.into()
            });
        }
        let url =
            self.public_url.as_ref().map_or_else(|| format!("http://{bound}"), Url::to_string);
        url.trim_end_matches('/').to_owned()
    }

    /// Whether the metric `name` is not to be shown.
    pub fn excludes_metric(&self, name: &str) -> bool {
        self.metrics_exclude.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == pattern,
        })
    }

    /// All settings as JSON, each secret replaced by `***`.
    fn without_secrets(&self) -> Value {
        let mut shown = self.clone();
        shown.tracing.otlp_headers.values_mut().for_each(|value| "***".clone_into(value));
        if let Some(endpoint) =
            shown.tracing.otlp_endpoint.as_mut().filter(|endpoint| endpoint.query().is_some())
        {
            endpoint.set_query(Some("***"));
        }
        if let Some(target) = &mut shown.default_target {
            let blank = || "***".to_owned();
            target.headers.values_mut().for_each(|value| *value = blank());
            if let Some(basic) = &mut target.basic_auth {
                basic.password = blank();
            }
            if !target.signing_secret.is_empty() {
                target.signing_secret = tidegate_core::target::Secrets::One(blank());
            }
            if target.url.contains(['@', '?']) {
                target.url = blank();
            }
        }
        serde_json::to_value(shown).expect("settings are plain data")
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
    fn validate(&self) -> Result<(), Fault> {
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

/// One line a setting, as TOML would have it, without secrets.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = BTreeMap::new();
        flatten(String::new(), &self.without_secrets(), &mut lines);
        lines.iter().try_for_each(|(name, value)| writeln!(f, "{name} = {value}"))
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Settings({})", self.without_secrets())
    }
}

fn flatten(name: String, value: &Value, lines: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                flatten(
                    if name.is_empty() { key.clone() } else { format!("{name}.{key}") },
                    value,
                    lines,
                );
            }
        }
        Value::Null => {}
        value => {
            lines.insert(name, value.clone());
        }
    }
}

#[cfg(test)]
mod tests;
