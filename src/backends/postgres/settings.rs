//! How to reach the database.

use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

use tokio_postgres::config::{Config, Host, SslMode, TargetSessionAttrs};

/// The schema of the tables, unless the address names another one.
const DEFAULT_SCHEMA: &str = "tidegate";
/// Most bytes of a name in Postgres.
const MAX_NAME_BYTES: usize = 63;
/// How long a connection may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// After how long a silent connection is probed, how often, and how many probes may be unanswered.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(5), 3);
/// How long sent data may be unacknowledged before the connection is given up.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(15);

/// Where the database is, and how to sign in.
#[derive(Clone, Debug)]
pub struct Settings {
    pub(super) config: Config,
    /// The schema of the tables.
    pub(super) schema: String,
    /// The certificates that the server's must come from; none for those of public authorities.
    pub(super) root_certificates: Option<PathBuf>,
    /// Whether servers listen to notifications.
    pub(super) listens: bool,
}

/// An address that is not one of a Postgres database.
#[derive(Debug, thiserror::Error)]
pub enum BadAddress {
    /// A part of it is unknown or malformed.
    #[error("the address of the database is invalid")]
    Malformed(#[source] tokio_postgres::Error),
    /// The schema's name is not one that needs no quotes.
    #[error("the schema {0:?} must be 1 to 63 of a-z 0-9 _, and begin with a letter")]
    Schema(String),
}

impl FromStr for Settings {
    type Err = BadAddress;

    /// Reads `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, with the parameters of libpq.
    ///
    /// `sslmode` may be `disable`, `prefer`, `require`, `verify-ca` or `verify-full`. The default is
    /// `prefer`, as of libpq: a server that offers no encryption gets plain text, and so does an
    /// attacker in between. Over a network use `require`, which always verifies the certificate.
    /// `sslrootcert` names a file with the authorities in PEM. `schema` is the schema of the tables.
    ///
    /// A pooler such as `PgBouncer` must keep a session for each connection (`pool_mode=session`).
    /// In transaction mode, statements would run without the settings of the session: such a pooler is
    /// refused when the store is opened.
    fn from_str(address: &str) -> Result<Self, BadAddress> {
        let (base, query) = address.split_once('?').unwrap_or((address, ""));
        let mut schema = DEFAULT_SCHEMA.to_owned();
        let mut root_certificates = None;
        let mut rest: Vec<String> = Vec::new();
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            match (&*name, &*value) {
                ("schema", _) => schema = value.into_owned(),
                ("sslrootcert", _) => root_certificates = Some(PathBuf::from(value.into_owned())),
                ("sslmode", "verify-ca" | "verify-full") => rest.push("sslmode=require".into()),
                _ => {
                    let mut pair = url::form_urlencoded::Serializer::new(String::new());
                    // tokio-postgres reads a plus as a plus.
                    rest.push(pair.append_pair(&name, &value).finish().replace('+', "%20"));
                }
            }
        }
        let is_name = (1..=MAX_NAME_BYTES).contains(&schema.len())
            && schema.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
            && schema.as_bytes()[0].is_ascii_lowercase();
        if !is_name {
            return Err(BadAddress::Schema(schema));
        }
        let address = match &rest[..] {
            [] => base.to_owned(),
            rest => format!("{base}?{}", rest.join("&")),
        };
        let mut config: Config = address.parse().map_err(BadAddress::Malformed)?;
        let (idle, interval, retries) = KEEPALIVE;
        config.keepalives_idle(idle).keepalives_interval(interval).keepalives_retries(retries);
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(UNACKNOWLEDGED_TIMEOUT);
        }
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_application_name().is_none() {
            config.application_name("tidegate");
        }
        Ok(Self { config, schema, root_certificates, listens: true })
    }
}

/// The address without the user, the password and most parameters.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("postgres://")?;
        for (n, host) in self.config.get_hosts().iter().enumerate() {
            if n > 0 {
                f.write_str(",")?;
            }
            match host {
                Host::Tcp(name) => f.write_str(name)?,
                #[cfg(unix)]
                Host::Unix(path) => write!(f, "{}", path.display())?,
            }
            let ports = self.config.get_ports();
            if let Some(port) = ports.get(n).or(ports.first()) {
                write!(f, ":{port}")?;
            }
        }
        write!(f, "/{}?schema={}", self.config.get_dbname().unwrap_or_default(), self.schema)
    }
}

impl Settings {
    /// Whether connections may be encrypted.
    pub(super) fn may_encrypt(&self) -> bool {
        self.config.get_ssl_mode() != SslMode::Disable
    }

    /// The same database for a server that does not listen to notifications, as if the database sent
    /// none: it finds new jobs of other servers by polling.
    #[must_use]
    pub fn without_notifications(self) -> Self {
        Self { listens: false, ..self }
    }

    /// The same database with its tables in `schema`, for tests.
    #[cfg(test)]
    pub(super) fn with_schema(&self, schema: &str) -> Self {
        Self { schema: schema.to_owned(), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_the_parameters_of_libpq() {
        let text = "postgres://ann:a%20b@db.example:5433/jobs?sslmode=verify-full&schema=queue_2\
                    &sslrootcert=/etc/ca.pem&application_name=a%2Bb%20c";
        let settings: Settings = text.parse().unwrap();
        let config = &settings.config;
        assert_eq!(config.get_ssl_mode(), SslMode::Require);
        assert_eq!((config.get_user(), config.get_dbname()), (Some("ann"), Some("jobs")));
        assert_eq!(config.get_password(), Some(&b"a b"[..]));
        assert_eq!(config.get_application_name(), Some("a+b c"));
        assert_eq!(settings.schema, "queue_2");
        assert_eq!(settings.root_certificates, Some("/etc/ca.pem".into()));
        let shown = format!("{settings:?}");
        assert!(!shown.contains("a b"), "{shown}");
        assert_eq!(settings.to_string(), "postgres://db.example:5433/jobs?schema=queue_2");
    }

    #[test]
    fn a_strange_address_is_refused() {
        for text in ["", "jobs.db", "postgres://h/d?sslmode=maybe", "postgres://h/d?unknown=1"] {
            let read: Result<Settings, BadAddress> = text.parse();
            // An empty text names no host.
            assert!(text.is_empty() || matches!(read, Err(BadAddress::Malformed(_))), "{text}");
        }
        for schema in ["", "A", "1a", "a-b", "a\"b"] {
            let read = format!("postgres://h/d?schema={schema}").parse::<Settings>();
            assert!(matches!(read, Err(BadAddress::Schema(_))), "{schema}");
        }
    }
}
