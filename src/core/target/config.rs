//! Where the jobs of a type go: plain data in the shapes of the API.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Where a type's jobs go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(untagged, try_from = "TargetFields")]
pub enum TargetConfig {
    /// Pull workers lease them.
    Pull(Pull),
    /// They are posted to a URL.
    Push(Box<Push>),
    /// They are sent to an AWS service.
    Aws(Box<AwsTarget>),
}

/// Every field of every kind of target, so that an unknown one is refused by its name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename = "target")]
struct TargetFields {
    pull: Option<bool>,
    url: Option<String>,
    headers: Option<BTreeMap<String, String>>,
    basic_auth: Option<BasicAuth>,
    signing_secret: Option<Secrets>,
    encoding: Option<PushEncoding>,
    sqs: Option<SqsTarget>,
    sns: Option<SnsTarget>,
    event_bridge: Option<EventBridgeTarget>,
    lambda: Option<LambdaTarget>,
    complete: Option<Complete>,
}

impl TryFrom<TargetFields> for TargetConfig {
    type Error = &'static str;
    fn try_from(fields: TargetFields) -> Result<Self, Self::Error> {
        let TargetFields {
            pull,
            url,
            headers,
            basic_auth,
            signing_secret,
            encoding,
            sqs,
            sns,
            event_bridge,
            lambda,
            complete,
        } = fields;
        let services = [
            sqs.map(AwsService::Sqs),
            sns.map(AwsService::Sns),
            event_bridge.map(AwsService::EventBridge),
            lambda.map(AwsService::Lambda),
        ];
        let mut services = services.into_iter().flatten();
        let (service, second) = (services.next(), services.next());
        let bare =
            (&headers, &basic_auth, &signing_secret, &encoding) == (&None, &None, &None, &None);
        match (pull, url, service, second, complete) {
            (None, Some(url), None, None, complete) => {
                let (headers, signing_secret) =
                    (headers.unwrap_or_default(), signing_secret.unwrap_or_default());
                let (encoding, complete) =
                    (encoding.unwrap_or_default(), complete.unwrap_or_default());
                Ok(Self::Push(Box::new(Push {
                    url,
                    headers,
                    basic_auth,
                    signing_secret,
                    encoding,
                    complete,
                })))
            }
            (Some(pull), None, None, None, None) if bare => Ok(Self::Pull(Pull { pull })),
            (None, None, Some(service), None, complete) if bare => {
                Ok(Self::Aws(Box::new(AwsTarget {
                    service,
                    complete: complete.unwrap_or(Complete::OnResult),
                })))
            }
            _ => Err(
                "a target has `url` and what goes with it, or `pull: true` alone, or one of `sqs`, \
                 `sns`, `event_bridge` and `lambda`, with `complete` or without",
            ),
        }
    }
}

/// An AWS service that receives jobs.
///
/// A message is the JSON of a push to a URL, with the URL and the token of the callback and the
/// job's `headers`. SQS and SNS also get message attributes: the job's `id`, `type`, `attempt` and
/// `correlation_key`, and of its headers `ce-tidegatehops`, `traceparent` and `tracestate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AwsTarget {
    /// The service.
    #[serde(flatten)]
    pub service: AwsService,
    /// When a job ends (default `on_result`); `on_delivery` means when the service has accepted it.
    pub complete: Complete,
}

/// The service, and its queue, topic, bus or function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AwsService {
    /// A queue of SQS.
    Sqs(SqsTarget),
    /// A topic of SNS.
    Sns(SnsTarget),
    /// A bus of `EventBridge`.
    EventBridge(EventBridgeTarget),
    /// A Lambda function.
    Lambda(LambdaTarget),
}

/// A queue of SQS. In a FIFO queue the job's id is the message group, and repeats of one attempt
/// are one message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SqsTarget {
    /// Its URL, at most 2048 bytes.
    pub queue_url: String,
}

/// A topic of SNS. A FIFO topic is used like a FIFO queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnsTarget {
    /// Its ARN, at most 2048 bytes.
    pub topic_arn: String,
}

/// A bus of `EventBridge`: the JSON is the event's `detail`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EventBridgeTarget {
    /// Its name or ARN (default `default`; 1 to 1600 bytes).
    #[serde(default = "default_bus")]
    pub bus: String,
    /// The event's `source` (default `tidegate`; 1 to 256 bytes).
    #[serde(default = "default_source")]
    pub source: String,
    /// The event's `detail-type` (default: the job's type; 1 to 128 bytes).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail_type: Option<String>,
}

fn default_bus() -> String {
    "default".into()
}

fn default_source() -> String {
    "tidegate".into()
}

/// A Lambda function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LambdaTarget {
    /// Its name or ARN, optionally with a version or an alias (1 to 256 bytes).
    pub function: String,
    /// How it is called (default `wait`).
    #[serde(default)]
    pub invocation: Invocation,
}

/// How a Lambda function is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Invocation {
    /// Its return value is the result, an error a failure. `complete` has no effect then.
    #[default]
    Wait,
    /// It is called without waiting for its result.
    Event,
}

impl AwsTarget {
    /// Whether the result comes after the service has accepted the job.
    pub fn is_later(&self) -> bool {
        let waits = matches!(
            &self.service,
            AwsService::Lambda(LambdaTarget { invocation: Invocation::Wait, .. })
        );
        !waits && self.complete == Complete::OnResult
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
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// HTTP Basic credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basic_auth: Option<BasicAuth>,
    /// The secret that signs every request, or two during a rotation; write-only. Each is `whsec_`
    /// and the base64 of 24 to 64 bytes, or 1 to 256 bytes of text, which is the key itself.
    #[serde(default, skip_serializing_if = "Secrets::is_empty")]
    pub signing_secret: Secrets,
    /// How the request's body is written.
    #[serde(default)]
    pub encoding: PushEncoding,
    /// When a job ends.
    #[serde(default, skip_serializing_if = "Complete::is_on_delivery")]
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
