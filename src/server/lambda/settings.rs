//! The settings of the functions: their environment variables, read once.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use tracing::level_filters::LevelFilter;

use crate::{
    auth::TokenItem,
    settings::{self, check_confidential},
};
use serde_json::{Value, json};
use tidegate_api::SettingView;
use tidegate_backends::{http::Guard, sealed::Keys, sqs::SqsQueues};
use tidegate_core::validate::AllowedHosts;
use tidegate_engine::Rules;
use url::Url;

use super::http::MAX_DATA_BYTES;

const JWKS_URL: &str = "TIDEGATE_JWT__JWKS_URL";
const ISSUER: &str = "TIDEGATE_JWT__ISSUER";
const AUDIENCE: &str = "TIDEGATE_JWT__AUDIENCE";
const SCOPE_CLAIM: &str = "TIDEGATE_JWT__SCOPE_CLAIM";
const CLIENT_ID: &str = "TIDEGATE_OIDC__CLIENT_ID";
const CLIENT_SECRET: &str = "TIDEGATE_OIDC__CLIENT_SECRET";
const SECRET_PARAMETER: &str = "TIDEGATE_OIDC__CLIENT_SECRET_PARAMETER";
const OIDC_SCOPES: &str = "TIDEGATE_OIDC__SCOPES";
/// What the variable with the keys must be.
const BAD_KEYS: &str = "must be 1 to 10 keys of 32 random bytes in base64, separated by commas";
/// Most shards of a queue. Every tick of a queue reads all of them.
const MAX_SHARDS: u8 = 16;

/// The settings. `docs/decisions/0010-serverless-deployment-mode.md` lists the variables.
#[derive(Clone, Debug)]
pub struct CloudSettings {
    /// The table. `memory:` is a table in this process, for tests of a function.
    pub table: String,
    /// The bucket for large bodies and plugins. `memory:` is a bucket in this process.
    pub bucket: String,
    /// The prefix of its objects' names.
    pub prefix: String,
    /// The URLs of the queues.
    pub queues: SqsQueues,
    /// Where the keys are that encrypt the secrets of targets.
    pub keys: KeyLocation,
    /// The URLs of the dead-letter queues, for the function that handles their messages.
    pub dead_letter_queues: Vec<String>,
    /// How late a job may be before the maintenance sweep fails; none: it never does.
    pub max_lateness: Option<Duration>,
    /// Whether targets may have loopback and private addresses.
    pub private_targets: bool,
    /// The prefix of callback URLs, without a slash at the end.
    pub public_url: Option<String>,
    /// Most bytes of a job's data, 1024 to 4,500,000.
    pub max_data_bytes: usize,
    /// The only hosts that targets may have; empty: every host.
    pub allowed_targets: AllowedHosts,
    /// The only hosts that a `callback_url` may have; empty: every host.
    pub allowed_callbacks: AllowedHosts,
    /// Whether an enqueue of an unknown type creates it.
    pub create_unknown_types: bool,
    /// The admin token of the stack, which is valid before any token is stored.
    pub first_token: Option<TokenItem>,
    /// The lowest level that is logged.
    pub log_level: LevelFilter,
    /// The namespace of the CloudWatch metrics; `None`: no metrics are written.
    pub metrics_namespace: Option<String>,
    /// Over how many partitions of the table the waiting jobs of each queue and type are spread.
    pub shards: u8,
    /// The options of the console.
    pub console: settings::Console,
    /// The identity provider whose tokens the API accepts, too.
    pub jwt: settings::Jwt,
    /// The console as a client of that provider. Its secret may be in the parameter below.
    pub oidc: settings::Oidc,
    /// The name of the parameter with the client's secret, a `SecureString` of Systems Manager.
    pub client_secret_parameter: Option<String>,
    /// The variables that are set.
    given: BTreeSet<String>,
    /// How much memory concurrent deliveries may take, in bytes: two fifths of the function's.
    /// `None` outside of a function.
    pub delivery_bytes: Option<u64>,
}

/// Where the keys of a deployment are.
#[derive(Clone, Debug)]
pub enum KeyLocation {
    /// In the variable itself.
    Given(Keys),
    /// In the parameter of this name, a `SecureString` of Systems Manager.
    Parameter(String),
}

/// A variable that is missing or has a bad value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable} {problem}")]
pub struct BadVariable {
    /// The name of the variable.
    pub variable: &'static str,
    /// What is wrong with it.
    pub problem: Cow<'static, str>,
}

impl CloudSettings {
    /// The settings in `vars`.
    ///
    /// # Errors
    ///
    /// The first variable that is missing or has a bad value.
    pub fn from_vars(
        vars: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, BadVariable> {
        let vars = Variables(vars.into_iter().filter(|(_, value)| !value.is_empty()).collect());
        let jwt = vars.jwt()?;
        Ok(Self {
            table: vars.required("TIDEGATE_TABLE")?,
            bucket: vars.required("TIDEGATE_BUCKET")?,
            prefix: vars.text("TIDEGATE_PREFIX").unwrap_or_default().to_owned(),
            queues: SqsQueues {
                work: vars.queue_url("TIDEGATE_WORK_QUEUE_URL")?,
                hints: vars.queue_url("TIDEGATE_HINT_QUEUE_URL")?,
                timers: vars.queue_url("TIDEGATE_TIMER_QUEUE_URL")?,
            },
            keys: vars.keys()?,
            dead_letter_queues: vars.queue_urls("TIDEGATE_DEAD_LETTER_QUEUE_URLS")?,
            max_lateness: vars
                .parsed("TIDEGATE_LATENESS_SECONDS", "must be a number of seconds", |text| {
                    text.parse().ok()
                })?
                .map(Duration::from_secs),
            private_targets: vars
                .parsed("TIDEGATE_PRIVATE_TARGETS", "must be true or false", |text| {
                    text.parse().ok()
                })?
                .unwrap_or(false),
            public_url: vars
                .text("TIDEGATE_PUBLIC_URL")
                .map(|url| url.trim_end_matches('/').to_owned()),
            max_data_bytes: vars
                .parsed("TIDEGATE_MAX_DATA_BYTES", "must be 1024 to 4500000", |text| {
                    text.parse().ok().filter(|bytes| (1024..=MAX_DATA_BYTES).contains(bytes))
                })?
                .unwrap_or(Rules::default().max_data_bytes),
            allowed_targets: vars.hosts("TIDEGATE_ALLOWED_TARGETS")?,
            allowed_callbacks: vars.hosts("TIDEGATE_ALLOWED_CALLBACKS")?,
            create_unknown_types: vars
                .parsed("TIDEGATE_CREATE_UNKNOWN_TYPES", "must be true or false", |text| {
                    text.parse().ok()
                })?
                .unwrap_or(false),
            first_token: vars.parsed(
                "TIDEGATE_ADMIN_TOKEN",
                "must be a token's id, `:`, and the base64 of its secret's SHA-256",
                TokenItem::of_admin_setting,
            )?,
            log_level: vars
                .parsed(
                    "TIDEGATE_LOG_LEVEL",
                    "must be off, error, warn, info, debug or trace",
                    |text| text.parse().ok(),
                )?
                .unwrap_or(LevelFilter::INFO),
            metrics_namespace: vars.parsed(
                "TIDEGATE_EMF_NAMESPACE",
                "must not begin with AWS/, which CloudWatch reserves, or a colon",
                |name| (!name.starts_with("AWS/") && !name.starts_with(':')).then(|| name.into()),
            )?,
            shards: vars
                .parsed("TIDEGATE_SHARDS", "must be 1 to 16", |text| {
                    text.parse().ok().filter(|shards| (1..=MAX_SHARDS).contains(shards))
                })?
                .unwrap_or(1),
            console: vars.console()?,
            oidc: vars.oidc(&jwt)?,
            jwt,
            client_secret_parameter: vars.text(SECRET_PARAMETER).map(str::to_owned),
            given: vars.0.keys().cloned().collect(),
            delivery_bytes: vars.parsed(
                "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
                "must be a number of megabytes",
                |text| text.parse::<u64>().ok().map(|megabytes| (megabytes << 20) * 2 / 5),
            )?,
        })
    }

    /// The same settings, for a function that builds callback URLs.
    ///
    /// # Errors
    ///
    /// `TIDEGATE_PUBLIC_URL` is not set.
    pub fn with_public_url(self) -> Result<Self, BadVariable> {
        if self.public_url.is_some() {
            Ok(self)
        } else {
            Err(bad("TIDEGATE_PUBLIC_URL", "is not set"))
        }
    }

    /// Which addresses targets and callbacks may have. Loopback is its own runtime there, and a private network
    /// is not meant for everyone who may enqueue.
    pub fn guard(&self) -> Guard {
        if self.private_targets { Guard::On } else { Guard::Public }
    }

    /// The settings that operators set, each with its variable, its value and its source. Secrets
    /// are not shown.
    pub fn described(&self) -> Vec<SettingView> {
        let secret = |is_set: bool| if is_set { json!("***") } else { Value::Null };
        let settings::Console { title, page_url, read_only, trace_url, servers } = &self.console;
        let settings::Jwt { jwks_url, issuer, audience, scope_claim } = &self.jwt;
        let settings::Oidc { client_id, client_secret, scopes } = &self.oidc;
        let keys = match &self.keys {
            KeyLocation::Given(_) => ("TIDEGATE_ENCRYPTION_KEY", secret(true)),
            KeyLocation::Parameter(name) => ("TIDEGATE_ENCRYPTION_KEY_PARAMETER", json!(name)),
        };
        let all = [
            ("TIDEGATE_TABLE", json!(self.table), "The DynamoDB table."),
            ("TIDEGATE_BUCKET", json!(self.bucket), "The bucket for large bodies and plugins."),
            ("TIDEGATE_PREFIX", json!(self.prefix), "Prefix of the names of its objects."),
            ("TIDEGATE_WORK_QUEUE_URL", json!(self.queues.work), "The queue of work."),
            ("TIDEGATE_HINT_QUEUE_URL", json!(self.queues.hints), "The queue of hints."),
            ("TIDEGATE_TIMER_QUEUE_URL", json!(self.queues.timers), "The queue of timers."),
            (keys.0, keys.1, "The keys that encrypt the secrets of targets, or their parameter."),
            ("TIDEGATE_PUBLIC_URL", json!(self.public_url), "Prefix of callback URLs."),
            (
                "TIDEGATE_ADMIN_TOKEN",
                secret(self.first_token.is_some()),
                "The admin token of the stack.",
            ),
            (
                "TIDEGATE_MAX_DATA_BYTES",
                json!(self.max_data_bytes),
                "Maximum size of a job's `data` and of a result.",
            ),
            (
                "TIDEGATE_CREATE_UNKNOWN_TYPES",
                json!(self.create_unknown_types),
                "Create an unknown job type with defaults at its first job.",
            ),
            (
                "TIDEGATE_PRIVATE_TARGETS",
                json!(self.private_targets),
                "Whether targets may have loopback and private addresses.",
            ),
            (
                "TIDEGATE_ALLOWED_TARGETS",
                json!(self.allowed_targets),
                "The only hosts that targets may have.",
            ),
            (
                "TIDEGATE_ALLOWED_CALLBACKS",
                json!(self.allowed_callbacks),
                "The only hosts that a `callback_url` may have.",
            ),
            (
                "TIDEGATE_LATENESS_SECONDS",
                json!(self.max_lateness.map(|late| late.as_secs())),
                "How late a job may be before the maintenance sweep fails.",
            ),
            (
                "TIDEGATE_SHARDS",
                json!(self.shards),
                "Partitions of the table for the waiting jobs of each queue and type.",
            ),
            (
                "TIDEGATE_LOG_LEVEL",
                json!(self.log_level.to_string()),
                "Least important level that is logged.",
            ),
            (
                "TIDEGATE_EMF_NAMESPACE",
                json!(self.metrics_namespace),
                "Namespace of the CloudWatch metrics.",
            ),
            ("TIDEGATE_CONSOLE__TITLE", json!(title), "Title of the console."),
            ("TIDEGATE_CONSOLE__PAGE_URL", json!(page_url), "A page of your own in the console."),
            ("TIDEGATE_CONSOLE__READ_ONLY", json!(read_only), "Offer no changes in the console."),
            ("TIDEGATE_CONSOLE__TRACE_URL", json!(trace_url), "URL of a job's trace."),
            ("TIDEGATE_CONSOLE__SERVERS", json!(servers), "Consoles of other servers."),
            (JWKS_URL, json!(jwks_url), "URL of the public keys of an identity provider."),
            (ISSUER, json!(issuer), "Required `iss` of its tokens."),
            (AUDIENCE, json!(audience), "Required `aud` of its tokens."),
            (SCOPE_CLAIM, json!(scope_claim), "The claim with the scopes of its tokens."),
            (CLIENT_ID, json!(client_id), "The console's client id at the identity provider."),
            (CLIENT_SECRET, secret(client_secret.is_some()), "The secret of this client."),
            (
                SECRET_PARAMETER,
                json!(self.client_secret_parameter),
                "The parameter with that secret.",
            ),
            (OIDC_SCOPES, json!(scopes), "The scopes that a sign-in requests."),
        ];
        let one = |(name, value, about): (&str, Value, &str)| SettingView {
            name: name.into(),
            value,
            from: if self.given.contains(name) { "environment" } else { "default" }.into(),
            about: about.into(),
        };
        all.into_iter().map(one).collect()
    }

    /// The engine's rules. The bounds of events and replies have the defaults that `docs/events.md`
    /// lists.
    pub fn rules(&self) -> Rules {
        Rules {
            max_data_bytes: self.max_data_bytes,
            create_unknown_types: self.create_unknown_types,
            accept_target: tidegate_backends::aws_targets::accept,
            guard: self.guard(),
            allowed_targets: self.allowed_targets.clone(),
            allowed_callbacks: self.allowed_callbacks.clone(),
            object_bytes: tidegate_backends::cost::OBJECT_BYTES,
            ..Rules::default()
        }
    }
}

fn bad(variable: &'static str, problem: impl Into<Cow<'static, str>>) -> BadVariable {
    BadVariable { variable, problem: problem.into() }
}

/// The fault of a setting as that of its variable.
fn of_setting(fault: settings::Fault) -> BadVariable {
    let variable = match fault.setting {
        "console.title" => "TIDEGATE_CONSOLE__TITLE",
        "console.page_url" => "TIDEGATE_CONSOLE__PAGE_URL",
        "console.trace_url" => "TIDEGATE_CONSOLE__TRACE_URL",
        "console.servers" => "TIDEGATE_CONSOLE__SERVERS",
        "public_url" => "TIDEGATE_PUBLIC_URL",
        "jwt.jwks_url" => JWKS_URL,
        "jwt.issuer" => ISSUER,
        "jwt.audience" => AUDIENCE,
        "jwt.scope_claim" => SCOPE_CLAIM,
        "oidc.client_secret" => CLIENT_SECRET,
        "oidc.scopes" => OIDC_SCOPES,
        _ => CLIENT_ID,
    };
    bad(variable, fault.problem)
}

/// Servers by name: `eu=https://eu.example,us=https://us.example`.
fn servers(text: &str) -> Option<BTreeMap<String, Url>> {
    let server = |entry: &str| {
        let (name, url) = entry.split_once('=')?;
        let name = Some(name.trim()).filter(|name| !name.is_empty())?;
        Some((name.to_owned(), url.trim().parse().ok()?))
    };
    text.split(',').map(server).collect()
}

/// The environment variables that are set and not empty.
struct Variables(HashMap<String, String>);

impl Variables {
    fn text(&self, variable: &str) -> Option<&str> {
        self.0.get(variable).map(String::as_str)
    }

    fn required(&self, variable: &'static str) -> Result<String, BadVariable> {
        let text = self.text(variable);
        text.map(str::to_owned).ok_or_else(|| bad(variable, "is not set"))
    }

    /// The URLs in a variable, separated by commas.
    fn queue_urls(&self, variable: &'static str) -> Result<Vec<String>, BadVariable> {
        let parse = |text: &str| {
            let urls: Vec<String> = text.split(',').map(|url| url.trim().to_owned()).collect();
            urls.iter().all(|url| url.starts_with("http")).then_some(urls)
        };
        let problem = "must be the URLs of queues, separated by commas";
        Ok(self.parsed(variable, problem, parse)?.unwrap_or_default())
    }

    fn queue_url(&self, variable: &'static str) -> Result<String, BadVariable> {
        let url = self.required(variable)?;
        if url.starts_with("http") {
            Ok(url)
        } else {
            Err(bad(variable, "must be the URL of a queue"))
        }
    }

    /// The options of the console.
    fn console(&self) -> Result<settings::Console, BadVariable> {
        let url = |text: &str| text.parse().ok();
        let default = settings::Console::default();
        let console = settings::Console {
            title: self.text("TIDEGATE_CONSOLE__TITLE").map_or(default.title, str::to_owned),
            page_url: self.parsed("TIDEGATE_CONSOLE__PAGE_URL", "must be a URL", url)?,
            read_only: self
                .parsed("TIDEGATE_CONSOLE__READ_ONLY", "must be true or false", |text| {
                    text.parse().ok()
                })?
                .unwrap_or_default(),
            trace_url: self.text("TIDEGATE_CONSOLE__TRACE_URL").map(str::to_owned),
            servers: self
                .parsed(
                    "TIDEGATE_CONSOLE__SERVERS",
                    "must be names and URLs of servers, as eu=https://eu.example,us=...",
                    servers,
                )?
                .unwrap_or_default(),
        };
        console.validate().map_err(of_setting)?;
        Ok(console)
    }

    /// The identity provider.
    fn jwt(&self) -> Result<settings::Jwt, BadVariable> {
        let text = |variable: &str| self.text(variable).map(str::to_owned);
        let default = settings::Jwt::default();
        let jwt = settings::Jwt {
            jwks_url: self.parsed(JWKS_URL, "must be a URL", |text| text.parse().ok())?,
            issuer: text(ISSUER),
            audience: text(AUDIENCE),
            scope_claim: text(SCOPE_CLAIM).unwrap_or(default.scope_claim),
        };
        jwt.validate().map_err(of_setting)?;
        Ok(jwt)
    }

    /// The console as a client of the identity provider.
    fn oidc(&self, jwt: &settings::Jwt) -> Result<settings::Oidc, BadVariable> {
        let text = |variable: &str| self.text(variable).map(str::to_owned);
        let default = settings::Oidc::default();
        let oidc = settings::Oidc {
            client_id: text(CLIENT_ID),
            client_secret: text(CLIENT_SECRET),
            scopes: text(OIDC_SCOPES).unwrap_or(default.scopes),
        };
        oidc.validate(jwt).map_err(of_setting)?;
        let has_parameter = self.text(SECRET_PARAMETER).is_some();
        if has_parameter && oidc.client_secret.is_some() {
            return Err(bad(SECRET_PARAMETER, "must not be set with the secret itself"));
        }
        if oidc.client_id.is_none() {
            return if has_parameter {
                Err(bad(SECRET_PARAMETER, "must not be set without TIDEGATE_OIDC__CLIENT_ID"))
            } else {
                Ok(oidc)
            };
        }
        let public_url =
            self.parsed("TIDEGATE_PUBLIC_URL", "must be a URL", |url| url.parse().ok());
        let Some(public_url) = public_url? else {
            return Err(bad("TIDEGATE_PUBLIC_URL", "must be set with TIDEGATE_OIDC__CLIENT_ID"));
        };
        check_confidential(Some(&public_url), jwt).map_err(of_setting)?;
        Ok(oidc)
    }

    /// The keys, or the parameter that has them.
    fn keys(&self) -> Result<KeyLocation, BadVariable> {
        let (given, parameter) = ("TIDEGATE_ENCRYPTION_KEY", "TIDEGATE_ENCRYPTION_KEY_PARAMETER");
        let keys = self.parsed(given, BAD_KEYS, |text| Keys::parse(text).ok())?;
        match (keys, self.text(parameter)) {
            (Some(keys), None) => Ok(KeyLocation::Given(keys)),
            (None, Some(name)) => Ok(KeyLocation::Parameter(name.to_owned())),
            (None, None) => Err(bad(given, "is not set")),
            (Some(_), Some(_)) => {
                Err(bad(parameter, "must not be set with TIDEGATE_ENCRYPTION_KEY"))
            }
        }
    }

    /// The hosts in a variable, separated by commas.
    fn hosts(&self, variable: &'static str) -> Result<AllowedHosts, BadVariable> {
        let problem = "must be hosts, patterns such as *.example.com or ranges of addresses, \
                       separated by commas";
        let parse = |text: &str| {
            let entries: Vec<&str> = text.split(',').map(str::trim).collect();
            AllowedHosts::parse(&entries).ok()
        };
        Ok(self.parsed(variable, problem, parse)?.unwrap_or_default())
    }

    /// The parsed value of a variable; `None` if it is not set. `problem` describes a bad value.
    fn parsed<T>(
        &self,
        variable: &'static str,
        problem: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, BadVariable> {
        match self.text(variable) {
            None => Ok(None),
            Some(text) => parse(text).map(Some).ok_or_else(|| bad(variable, problem)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars() -> Vec<(String, String)> {
        let url = "https://sqs.eu-west-1.amazonaws.com/1/q";
        [
            ("TIDEGATE_TABLE", "jobs"),
            ("TIDEGATE_BUCKET", "bodies"),
            ("TIDEGATE_WORK_QUEUE_URL", url),
            ("TIDEGATE_HINT_QUEUE_URL", url),
            ("TIDEGATE_TIMER_QUEUE_URL", url),
            ("TIDEGATE_ENCRYPTION_KEY", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }

    #[test]
    fn the_error_names_a_missing_or_bad_variable() {
        assert_eq!(CloudSettings::from_vars(vars()).unwrap().shards, 1);
        let max_shards =
            vars().into_iter().chain([("TIDEGATE_SHARDS".to_owned(), "16".to_owned())]);
        assert_eq!(CloudSettings::from_vars(max_shards).unwrap().shards, 16);
        for (name, _) in vars() {
            let without = vars().into_iter().filter(|(of, _)| *of != name);
            assert_eq!(CloudSettings::from_vars(without).unwrap_err().variable, name);
        }
        for (name, value) in [
            ("TIDEGATE_MAX_DATA_BYTES", "12"),
            ("TIDEGATE_ADMIN_TOKEN", "x"),
            ("TIDEGATE_CREATE_UNKNOWN_TYPES", "yes"),
            ("TIDEGATE_LOG_LEVEL", "tidegate=debug"),
            ("TIDEGATE_EMF_NAMESPACE", "AWS/Lambda"),
            ("TIDEGATE_ENCRYPTION_KEY", "AAEC"),
            ("TIDEGATE_ALLOWED_TARGETS", "a.example,"),
            ("TIDEGATE_ALLOWED_CALLBACKS", "http://a.example"),
            ("TIDEGATE_SHARDS", "0"),
            ("TIDEGATE_SHARDS", "17"),
            ("TIDEGATE_PRIVATE_TARGETS", "yes"),
            ("TIDEGATE_DEAD_LETTER_QUEUE_URLS", "https://sqs.example/1/a,b"),
            ("TIDEGATE_LATENESS_SECONDS", "5m"),
            ("TIDEGATE_ENCRYPTION_KEY_PARAMETER", "/tidegate/key"),
            ("TIDEGATE_CONSOLE__TITLE", &"x".repeat(101)),
            ("TIDEGATE_CONSOLE__PAGE_URL", "javascript:alert(1)"),
            ("TIDEGATE_CONSOLE__READ_ONLY", "yes"),
            ("TIDEGATE_CONSOLE__TRACE_URL", "https://traces.example/"),
            ("TIDEGATE_CONSOLE__SERVERS", "eu"),
            ("TIDEGATE_CONSOLE__SERVERS", "eu=ftp://eu.example"),
            ("TIDEGATE_JWT__JWKS_URL", "keys"),
        ] {
            let with = vars().into_iter().chain([(name.to_owned(), value.to_owned())]);
            assert_eq!(CloudSettings::from_vars(with).unwrap_err().variable, name);
        }
    }

    fn with(more: &[(&str, &str)]) -> Result<CloudSettings, BadVariable> {
        let more = more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        CloudSettings::from_vars(vars().into_iter().chain(more))
    }

    const PROVIDER: [(&str, &str); 5] = [
        (JWKS_URL, "https://id.example/keys"),
        (ISSUER, "https://id.example"),
        (AUDIENCE, "jobs"),
        (CLIENT_ID, "console"),
        ("TIDEGATE_PUBLIC_URL", "https://jobs.example"),
    ];

    #[test]
    fn a_sign_in_needs_its_provider_and_an_encrypted_address() {
        let complete = with(&PROVIDER).unwrap();
        assert_eq!(
            (complete.oidc.client_id.as_deref(), &*complete.oidc.scopes),
            (Some("console"), "openid")
        );
        assert_eq!(complete.jwt.scope_claim, "scope");
        for (without, variable) in [
            (JWKS_URL, JWKS_URL),
            (ISSUER, ISSUER),
            (AUDIENCE, AUDIENCE),
            ("TIDEGATE_PUBLIC_URL", "TIDEGATE_PUBLIC_URL"),
        ] {
            let some: Vec<_> = PROVIDER.into_iter().filter(|(name, _)| *name != without).collect();
            assert_eq!(with(&some).unwrap_err().variable, variable, "without {without}");
        }
        for (more, variable) in [
            (("TIDEGATE_PUBLIC_URL", "http://jobs.example"), "TIDEGATE_PUBLIC_URL"),
            ((ISSUER, "http://id.example"), ISSUER),
            ((OIDC_SCOPES, "profile"), OIDC_SCOPES),
        ] {
            assert_eq!(with(&[&PROVIDER[..], &[more]].concat()).unwrap_err().variable, variable);
        }
        let secrets = [(CLIENT_SECRET, "s"), (SECRET_PARAMETER, "/tidegate/console")];
        for secret in secrets {
            assert!(with(&[&PROVIDER[..], &[secret]].concat()).is_ok());
            assert_eq!(with(&[secret]).unwrap_err().variable, secret.0, "without a client");
        }
        let both = with(&[&PROVIDER[..], &secrets].concat());
        assert_eq!(both.unwrap_err().variable, SECRET_PARAMETER);
    }

    #[test]
    fn the_console_links_to_the_servers_of_a_list() {
        let list = ("TIDEGATE_CONSOLE__SERVERS", "eu=https://eu.example, us=https://us.example/x");
        let servers = with(&[list]).unwrap().console.servers;
        let servers: Vec<_> =
            servers.iter().map(|(name, url)| (name.as_str(), url.as_str())).collect();
        assert_eq!(servers, [("eu", "https://eu.example/"), ("us", "https://us.example/x")]);
    }

    #[test]
    fn described_settings_have_no_secrets() {
        let more = [
            ("TIDEGATE_ADMIN_TOKEN", "first:K7gNU3sdo+OL0wNhqoVWhr3g6s1xYv72ol/pe/Unols="),
            ("TIDEGATE_CONSOLE__TITLE", "jobs"),
        ];
        let more = [&more[..], &PROVIDER, &[(CLIENT_SECRET, "hidden")]].concat();
        let described = with(&more).unwrap().described();
        let of = |name: &str| {
            let setting = described.iter().find(|setting| setting.name == name).unwrap();
            (setting.value.clone(), setting.from.to_string())
        };
        assert_eq!(of("TIDEGATE_TABLE"), (json!("jobs"), "environment".into()));
        assert_eq!(of("TIDEGATE_SHARDS"), (json!(1), "default".into()));
        assert_eq!(of("TIDEGATE_CONSOLE__TITLE"), (json!("jobs"), "environment".into()));
        for secret in ["TIDEGATE_ENCRYPTION_KEY", "TIDEGATE_ADMIN_TOKEN", CLIENT_SECRET] {
            assert_eq!(of(secret), (json!("***"), "environment".into()));
        }
    }

    #[test]
    fn private_targets_are_closed_unless_the_variable_opens_them() {
        let closed = CloudSettings::from_vars(vars()).unwrap();
        assert_eq!((closed.guard(), closed.rules().guard), (Guard::Public, Guard::Public));
        let open = ("TIDEGATE_PRIVATE_TARGETS".to_owned(), "true".to_owned());
        let open = CloudSettings::from_vars(vars().into_iter().chain([open])).unwrap();
        assert_eq!((open.guard(), open.rules().guard), (Guard::On, Guard::On));
    }

    #[test]
    fn a_parameter_replaces_the_variable_with_the_keys() {
        let without = vars().into_iter().filter(|(name, _)| name != "TIDEGATE_ENCRYPTION_KEY");
        let named = ("TIDEGATE_ENCRYPTION_KEY_PARAMETER".to_owned(), "/tidegate/key".to_owned());
        let settings = CloudSettings::from_vars(without.chain([named])).unwrap();
        assert!(matches!(settings.keys, KeyLocation::Parameter(name) if name == "/tidegate/key"));
    }

    #[test]
    fn a_function_with_callback_urls_needs_the_public_url() {
        let without = CloudSettings::from_vars(vars()).unwrap();
        assert_eq!(without.with_public_url().unwrap_err().variable, "TIDEGATE_PUBLIC_URL");
        let with = vars()
            .into_iter()
            .chain([("TIDEGATE_PUBLIC_URL".to_owned(), "https://api.example/".to_owned())]);
        let with = CloudSettings::from_vars(with).unwrap().with_public_url().unwrap();
        assert_eq!(with.public_url.as_deref(), Some("https://api.example"));
    }
}
