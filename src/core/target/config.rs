//! Where the jobs of a type go: plain data in the shapes of the API.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap as _};
use serde_json::Value;

/// Where a type's jobs go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(untagged, try_from = "TargetFields")]
pub enum TargetConfig {
    /// Pull workers lease them.
    Pull(Pull),
    /// They are posted to a URL.
    Push(Box<Push>),
    /// A backend sends them to a service.
    External(Box<ExternalTarget>),
}

impl TargetConfig {
    /// The field that only targets of this kind have.
    pub fn kind(&self) -> &str {
        match self {
            Self::Pull(_) => "pull",
            Self::Push(_) => "url",
            Self::External(target) => &target.kind,
        }
    }

    /// Whether a field of this name is one that only targets of one kind have.
    pub fn is_kind(field: &str) -> bool {
        !["headers", "basic_auth", "signing_secret", "encoding", "complete"].contains(&field)
    }
}

/// Every field of the targets that the core knows. Any other field is the kind of an external one.
#[derive(Deserialize)]
#[serde(rename = "target")]
struct TargetFields {
    pull: Option<bool>,
    url: Option<String>,
    headers: Option<BTreeMap<String, String>>,
    basic_auth: Option<BasicAuth>,
    signing_secret: Option<Secrets>,
    encoding: Option<PushEncoding>,
    complete: Option<Complete>,
    #[serde(flatten)]
    external: BTreeMap<String, Value>,
}

impl TryFrom<TargetFields> for TargetConfig {
    type Error = String;
    fn try_from(fields: TargetFields) -> Result<Self, Self::Error> {
        let TargetFields {
            pull,
            url,
            headers,
            basic_auth,
            signing_secret,
            encoding,
            complete,
            mut external,
        } = fields;
        let of_push = headers.is_some()
            || basic_auth.is_some()
            || signing_secret.is_some()
            || encoding.is_some();
        match (pull, url, external.pop_first(), complete) {
            (None, Some(url), None, complete) => Ok(Self::Push(Box::new(Push {
                url,
                headers: headers.unwrap_or_default(),
                basic_auth,
                signing_secret: signing_secret.unwrap_or_default(),
                encoding: encoding.unwrap_or_default(),
                complete: complete.unwrap_or_default(),
            }))),
            (Some(pull), None, None, None) if !of_push => Ok(Self::Pull(Pull { pull })),
            (None, None, Some((kind, config)), complete) if !of_push && external.is_empty() => {
                let complete = complete.unwrap_or(Complete::OnResult);
                Ok(Self::External(Box::new(ExternalTarget { kind, config, complete })))
            }
            (pull, url, Some((field, _)), _) if pull.is_some() || url.is_some() => {
                Err(format!("unknown field `{field}` of a target with `url` or `pull`"))
            }
            (None, None, Some((kind, _)), _) if let Some(other) = external.keys().next() => {
                Err(format!("a target is one service, and not both `{kind}` and `{other}`"))
            }
            _ => Err("a target has `url` and what goes with it, or `pull: true` alone, or the \
                      name of one service with its settings, with `complete` or without"
                .into()),
        }
    }
}

/// A service that a backend sends jobs to.
///
/// The core knows neither its settings nor its protocol: the backend validates them
/// ([`AcceptTarget`](crate::validate::AcceptTarget)) and sends
/// ([`Target::send`](crate::port::target::Target::send)). In JSON the kind is the name of the
/// settings: `{"queue": {...}, "complete": "on_result"}`.
#[derive(Clone, Debug, PartialEq)]
pub struct ExternalTarget {
    /// The kind of service.
    pub kind: String,
    /// The service's settings.
    pub config: Value,
    /// When a job ends (default `on_result`); `on_delivery` means when the service has accepted it.
    pub complete: Complete,
}

impl Serialize for ExternalTarget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(Some(2))?;
        fields.serialize_entry(&self.kind, &self.config)?;
        fields.serialize_entry("complete", &self.complete)?;
        fields.end()
    }
}

/// `{"pull": true}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Pull {
    /// Always true.
    pub pull: bool,
}

/// A URL that jobs are posted to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Push {
    /// The URL, http or https, without credentials, at most 2048 bytes; `{type}` and `{id}` in its
    /// path and query are replaced.
    pub url: String,
    /// Headers of every request, with the bounds of a job's headers. `authorization` must not be
    /// given together with `basic_auth`.
    #[serde(default, deserialize_with = "crate::strict::or_default")]
    pub headers: BTreeMap<String, String>,
    /// HTTP Basic credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basic_auth: Option<BasicAuth>,
    /// The secret that signs every request, or two during a rotation; write-only. Each is `whsec_`
    /// and the base64 of 24 to 64 bytes, or 1 to 256 bytes of text, which is the key itself.
    #[serde(
        default,
        deserialize_with = "crate::strict::or_default",
        skip_serializing_if = "Secrets::is_empty"
    )]
    pub signing_secret: Secrets,
    /// How the request's body is written.
    #[serde(default, deserialize_with = "crate::strict::or_default")]
    pub encoding: PushEncoding,
    /// When a job ends.
    #[serde(
        default,
        deserialize_with = "crate::strict::or_default",
        skip_serializing_if = "Complete::is_on_delivery"
    )]
    pub complete: Complete,
}

impl Push {
    /// A push to `url`, with defaults otherwise.
    pub fn to(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            headers: BTreeMap::new(),
            basic_auth: None,
            signing_secret: Secrets::None,
            encoding: PushEncoding::Json,
            complete: Complete::OnDelivery,
        }
    }
}

/// When a pushed job ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Complete {
    /// When its target responds with 2xx; the response is the result. 202 means that the result
    /// comes later.
    #[default]
    OnDelivery,
    /// When its result comes, by the callback or as an event. A response of 2xx only means that the
    /// target accepted the job.
    OnResult,
}

impl Complete {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "what serde asks for")]
    fn is_on_delivery(&self) -> bool {
        *self == Self::OnDelivery
    }
}

/// HTTP Basic credentials; the password is write-only.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BasicAuth {
    /// The user: at most 256 bytes, no `:`.
    pub username: String,
    /// The password: at most 1024 bytes.
    pub password: String,
}

impl std::fmt::Debug for BasicAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BasicAuth({}, ..)", self.username)
    }
}

/// One secret, or two during a rotation.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected one secret, or a list of them")]
pub enum Secrets {
    /// None.
    #[default]
    None,
    /// One.
    One(String),
    /// One or two.
    Many(Vec<String>),
}

impl Secrets {
    /// The secrets.
    pub fn list(&self) -> &[String] {
        match self {
            Self::None => &[],
            Self::One(secret) => std::slice::from_ref(secret),
            Self::Many(secrets) => secrets,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list().is_empty()
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secrets({})", self.list().len())
    }
}

/// How a push request's body is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PushEncoding {
    /// JSON.
    #[default]
    Json,
    /// MessagePack.
    Msgpack,
}
