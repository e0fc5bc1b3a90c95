//! The settings of a server: plain data, read once ([`load`]) and checked once ([`validate`]).
//!
//! A later source wins over an earlier one: defaults, a TOML file, the environment, flags. A table
//! in the file is merged key by key, a list is replaced. The doc of each field is its only
//! description: [`reference()`] shows the same text to operators, so the two cannot differ.

mod defaults;
mod describe;
#[cfg(feature = "embedded")]
mod key_command;
#[cfg(feature = "embedded")]
mod keys;
#[cfg(feature = "embedded")]
mod load;
#[cfg(feature = "embedded")]
mod log;
mod reference;
mod show;
mod validate;

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use serde::{Deserialize, Serialize};
use tracing::level_filters::LevelFilter;
use url::Url;

use crate::auth::local;
use tidegate_backends::http::Guard;
#[cfg(feature = "embedded")]
use tidegate_backends::postgres::BadAddress;
#[cfg(feature = "embedded")]
use tidegate_core::error_chain::ErrorChain;
use tidegate_core::{target::Push, time::Seconds, validate::AllowedHosts};

pub use describe::Sources;
#[cfg(feature = "embedded")]
pub use keys::KeyOrigin;
#[cfg(feature = "embedded")]
pub use load::{SettingsError, unknown_variables};
pub use reference::{Reference, reference, reference_list, reference_table};
pub use validate::Fault;
#[cfg(feature = "serverless")]
pub(crate) use validate::check_confidential;

/// The prefix of environment variables.
pub const PREFIX: &str = "TIDEGATE_";

/// Defines a struct, and the constant `FIELDS` with the name and the doc of each field.
macro_rules! documented {
    (
        $(#[$attribute:meta])*
        pub struct $struct:ident { $($(#[doc = $doc:literal])+ pub $name:ident: $type:ty,)+ }
    ) => {
        $(#[$attribute])*
        pub struct $struct { $($(#[doc = $doc])+ pub $name: $type,)+ }

        impl $struct {
            const FIELDS: &[(&str, &str)] = &[$((stringify!($name), concat!($($doc),+))),+];
        }
    };
}

documented! {
    /// All settings.
    #[derive(Clone, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct Settings {
        /// Address and port to listen on. Any but a loopback address needs a token or `jwt`.
        pub listen: SocketAddr,
        /// The data directory, created if missing. One server at a time.
        pub data: PathBuf,
        /// A Postgres database instead of the data directory, which several servers may share:
        /// `postgres://USER:PASSWORD@HOST:PORT/DATABASE` with the parameters of libpq, and `schema`
        /// for the schema of the tables. Needs `encryption_key`, `encryption_key_file` or
        /// `encryption_key_command`. Its password is never shown. Default: the data directory.
        pub store: Option<String>,
        /// Where the other servers on `store` reach this one: `http://` and the address of the machine or
        /// the pod, not that of a load balancer. They forward lease requests for a queue with limits to the
        /// owner of the queue, with the tokens of workers. Default: none, and this server neither forwards
        /// nor is forwarded to.
        pub peer_url: Option<Url>,
        /// The bucket of a replicated log, which has everything that the server acknowledged:
        /// `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or
        /// `file:///dir/prefix`. `data` is a cache of it then. Needs `encryption_key`,
        /// `encryption_key_file` or `encryption_key_command`. Default: none, the data directory has
        /// everything.
        pub log: Option<Url>,
        /// Follow `log` until its leader shows no sign of life, instead of taking over at the start.
        pub standby: bool,
        /// How long after the last sign of life of the leader of `log` a standby takes over, in
        /// seconds, 1 to 600. A shorter time costs more requests.
        pub takeover_seconds: Seconds,
        /// When a record of `log` is written: `latency` as soon as there is a request, `price` once the
        /// first request has waited for `log_interval_seconds`, or has `log_record_bytes` with those
        /// after it. Either way a request is answered when it is in the bucket.
        pub log_profile: LogProfile,
        /// How long a record of `log` waits for more requests, in seconds, 0.05 to 10. Each answer to a
        /// change comes later by up to this time, and a million jobs cost less. Only with
        /// `log_profile = "price"`. Default: 0.1.
        pub log_interval_seconds: Option<Seconds>,
        /// Bytes of requests at which a record of `log` waits no longer, 1024 to 8388608. Only with
        /// `log_profile = "price"`. Default: 1048576.
        pub log_record_bytes: Option<u32>,
        /// How far back `tidegate log restore` reaches at least, in seconds, 0 to 604800. Snapshots of
        /// that time are kept, each as large as the database, and the records after them. The newest two
        /// snapshots are kept in any case.
        pub log_history_seconds: Seconds,
        /// Which objects in the bucket of `log` are encrypted with `encryption_key`: jobs, results, large
        /// bodies, plugins, snapshots. `off`: none that the server writes. `on`: all that it writes; those
        /// from before stay as they are, and are read. `required`: all; what is not encrypted is refused,
        /// because a writer without the key may have made it.
        pub log_encryption: LogEncryption,
        /// The key that encrypts the secrets of targets in the database: 32 random bytes in base64
        /// (`openssl rand -base64 32`). Several, separated by commas: the first encrypts, all
        /// decrypt. Default: the key in the file `key` of the data directory, created if missing.
        pub encryption_key: Option<String>,
        /// A file with such keys, one per line, instead of `encryption_key`.
        pub encryption_key_file: Option<PathBuf>,
        /// A program and its arguments, instead of `encryption_key`: it prints such keys. It reads them from
        /// a key management service or a secret manager, for example. It is run at the start, without a
        /// shell, for at most 30 seconds; it may print 4096 bytes, which are never shown or logged, and
        /// must end with exit status 0. In the environment, separated by commas. Default: none. Its
        /// arguments are never shown.
        pub encryption_key_command: Vec<String>,
        /// An admin token that is accepted in addition to the stored ones: its id, `:`, and the base64
        /// of its secret's SHA-256. While it is set, every caller needs a token. For a server whose
        /// first token no command can create, such as one in a container.
        pub admin_token: Option<String>,
        /// Maximum number of concurrent connections, 16 to 1000000. More get 503. Default: as many
        /// as the limit of open files allows, at most 16384.
        pub max_connections: Option<u32>,
        /// How long the head of a request may take, in seconds, 1 to 3600. A new connection must
        /// send its first request within this time.
        pub head_timeout_seconds: Seconds,
        /// How long the body of a request may take, in seconds, 1 to 3600, and one second more for
        /// each 16 KiB. A later body gets 408.
        pub body_timeout_seconds: Seconds,
        /// How long a connection may be idle between two requests, and how long a client may stop
        /// reading a response, in seconds, 1 to 86400.
        pub idle_timeout_seconds: Seconds,
        /// Prefix of callback URLs: the address that workers use. Default: `http://` and the listen
        /// address. Any host but a loopback one needs a token or `jwt`.
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
        /// The only hosts that targets may have: `api.example.com`, `*.example.com` for all hosts
        /// below it, an address, or a range such as `10.0.0.0/8` for URLs with an address. In the
        /// environment, separated by commas. Default: every host.
        pub allowed_targets: AllowedHosts,
        /// The only hosts that a `callback_url` may have, in the same form.
        pub allowed_callbacks: AllowedHosts,
        /// How long a stopping server waits for calls and responses in progress, in seconds, 0 to
        /// 3600.
        pub shutdown_seconds: Seconds,
        /// Accept requests that reached the proxy over plain HTTP (`X-Forwarded-Proto: http`).
        /// Their tokens and data can be read on the way.
        pub allow_unencrypted_proxy: bool,
        /// The operations console at `/`.
        pub console: Console,
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
        /// Accept tokens that an identity provider signs (JWT), in addition to the server's own.
        pub jwt: Jwt,
        /// Let users sign in to the console at the identity provider of `jwt`.
        pub oidc: Oidc,
    }
}

documented! {
    /// The operations console.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct Console {
        /// Title of the console, at most 100 characters.
        pub title: String,
        /// A page of your own, embedded in the console's first page.
        pub page_url: Option<Url>,
        /// Offer no changes in the console. Tokens keep their scopes: give users one with the scope
        /// `read` to forbid changes.
        pub read_only: bool,
        /// URL of a job's trace, with `{trace_id}` in place of the id, such as
        /// `https://traces.example/trace/{trace_id}`. Default: no link.
        pub trace_url: Option<String>,
        /// Consoles of other servers, by name, at most 50: the console has links to them. In the
        /// environment, `TIDEGATE_CONSOLE__SERVERS__EU=https://...` and so on.
        pub servers: BTreeMap<String, Url>,
    }
}

documented! {
    /// Metrics as lines of JSON that CloudWatch extracts from a log (embedded metric format).
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct Emf {
        /// Destination of CloudWatch metrics: `stdout`, or the path of a file to append to.
        /// Default: none.
        pub output: Option<String>,
        /// Their CloudWatch namespace: 1 to 255 of `A-Z a-z 0-9 . - _ / # :`, not starting with
        /// `AWS/`.
        pub namespace: String,
        /// Interval between writes, in seconds, 1 to 3600. The last write is at shutdown.
        pub interval_seconds: Seconds,
    }
}

documented! {
    /// The export of spans, and the sampling of traces.
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
    /// The identity provider of signed tokens (JWT). Set all but `scope_claim`, or none.
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

documented! {
    /// The console as a client of the identity provider (`OpenID` Connect).
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct Oidc {
        /// The console's client id at the identity provider whose issuer is `jwt.issuer`. Register
        /// `/console/callback` below `public_url` as its redirect URI. Default: users sign in with
        /// tokens alone.
        pub client_id: Option<String>,
        /// The client's secret, if it has one. Never shown.
        pub client_secret: Option<String>,
        /// The scopes to request, with spaces between them: `openid`, and those with which the
        /// provider puts `jwt.audience` and the scopes of this server into the token.
        pub scopes: String,
    }
}

/// Which objects of a replicated log are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogEncryption {
    /// None that this server writes.
    Off,
    /// All that this server writes.
    On,
    /// All: what is not encrypted is refused.
    Required,
}

/// What the records of a replicated log are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogProfile {
    /// Early answers: a record is written as soon as there is a request.
    Latency,
    /// Few requests to the bucket: a record waits for more requests.
    Price,
}

/// The least important level that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Faults that need an operator now.
    Error,
    /// Faults that an operator should look at later.
    Warn,
    /// Events of the server.
    Info,
    /// Events of each job.
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

/// The format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

impl Settings {
    /// Which addresses may be called.
    pub fn guard(&self) -> Guard {
        if self.allow_unsafe_targets { Guard::Off } else { Guard::On }
    }

    /// The database that other servers may share, if `store` names one.
    ///
    /// # Errors
    ///
    /// It is no address of a database.
    #[cfg(feature = "embedded")]
    pub fn database(&self) -> Result<Option<tidegate_backends::postgres::Settings>, Fault> {
        let Some(address) = &self.store else { return Ok(None) };
        let wrong = |problem: String| Fault { setting: "store", problem };
        if !["postgres://", "postgresql://"].iter().any(|scheme| address.starts_with(scheme)) {
            return Err(wrong("must begin with postgres://".into()));
        }
        let read = address.parse();
        read.map(Some)
            .map_err(|bad: BadAddress| wrong(format!("cannot be used: {}", ErrorChain(&bad))))
    }

    /// Whether only this machine reaches the server: it listens on a loopback address, and its
    /// public URL is none of another host.
    pub fn is_local(&self) -> bool {
        self.listen.ip().is_loopback() && self.public_url.as_ref().is_none_or(local::is_local)
    }

    /// The prefix of callback URLs, without a trailing slash, if the server listens on `bound`.
    ///
    /// A server that listens on every address uses loopback, because it does not know its other
    /// addresses.
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

    /// Whether the metric `name` is excluded.
    pub(crate) fn excludes_metric(&self, name: &str) -> bool {
        self.metrics_exclude.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == pattern,
        })
    }
}

#[cfg(test)]
mod tests;
