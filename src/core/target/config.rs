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
    /// They are handed to a service of AWS.
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
                "a target has `url` and what goes with it, or `pull: true` alone, or one of `sqs`, `sns`, `event_bridge` and `lambda`, \
                      with `complete` or without",
            ),
        }
    }
}

/// A service of AWS that jobs are handed to. What it is given is the JSON that a URL would be posted, with the callback's URL
/// and token in it, and the job's `headers`; SQS and SNS have the job's `id`, `type`, `attempt` and `correlation_key` as message
/// attributes beside it, and of its headers `ce-tidegatehops`, `traceparent` and `tracestate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AwsTarget {
    /// Which.
    #[serde(flatten)]
    pub service: AwsService,
    /// When a job is over (default `on_result`); `on_delivery` is when the service has taken it.
    pub complete: Complete,
}

/// Which service, and what of it.
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

/// A queue of SQS. In a FIFO queue the job's id is the message group, and each attempt is one message however often it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SqsTarget {
    /// Its URL, at most 2048 bytes.
    pub queue_url: String,
}

/// A topic of SNS; a FIFO topic as a FIFO queue.
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
    /// Its name or ARN, with a version or alias or without (1 to 256 bytes).
    pub function: String,
    /// How it is called (default `wait`).
    #[serde(default)]
    pub invocation: Invocation,
}

/// How a Lambda function is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Invocation {
    /// What it returns is the result, what it throws a failure. `complete` says nothing then.
    #[default]
    Wait,
    /// It is told, and not waited for.
    Event,
}

impl AwsTarget {
    /// Whether the result comes after the service has taken the job.
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
    /// The URL, http or https, without credentials, at most 2048 bytes; `{type}` and `{id}` in its path and query are replaced.
    pub url: String,
    /// Sent with every request; bounds as of a job's headers, and no `authorization` beside `basic_auth`.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// HTTP Basic credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basic_auth: Option<BasicAuth>,
    /// Secrets that sign every request; write-only. Two while one replaces the other. Each is `whsec_` and the base64 of 24
    /// to 64 bytes, or 1 to 256 bytes of text, which are the key themselves.
    #[serde(default, skip_serializing_if = "Secrets::is_empty")]
    pub signing_secret: Secrets,
    /// How the request's body is written.
    #[serde(default)]
    pub encoding: PushEncoding,
    /// When a job is over.
    #[serde(default, skip_serializing_if = "Complete::is_on_delivery")]
    pub complete: Complete,
}

impl Push {
    /// A push to `url`, everything else by default.
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

/// When a pushed job is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Complete {
    /// When its delivery is answered with 2xx: the answer is the result. 202 says that it comes later.
    #[default]
    OnDelivery,
    /// When its result comes, by the callback or as an event. An answer of 2xx only says that the job was taken.
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

/// One secret, or two while one replaces the other.
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
