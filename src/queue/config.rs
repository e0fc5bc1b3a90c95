//! What an owner says of a queue and of a job type: plain data in the shapes of the API.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use url::Url;

use super::{
    matcher::Matcher,
    plugin::{PluginVersion, Throttler},
    window::Window,
};
use crate::{
    job::{QueueName, TypeName, retry::Retry, spec::KeepResult},
    time::Seconds,
};

/// Most candidates that one tick looks at.
pub const SCAN_BOUND: u32 = 1000;
/// Most live grants of a queue; critical jobs are exempt.
pub const MAX_RUNNING: u64 = 10_000;
/// Most bytes of a queue's token buckets that are not full, each taken as its constraint's name, its value and
/// [`BUCKET_BYTES`]: they are part of the head, which is one item of a table, and that takes 400 KB.
pub const MAX_BUCKET_BYTES: usize = 200_000;
/// What a bucket takes beside its names, at most.
pub const BUCKET_BYTES: usize = 32;
/// Most constraints of a queue.
pub const MAX_CONSTRAINTS: usize = 32;

/// How a queue admits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct QueueConfig {
    /// Most weight that runs at once; absent means unlimited, 0 admits nothing.
    pub concurrency: Option<u32>,
    /// Which candidate goes first (default `time`).
    pub order: OrderKind,
    /// The step in which `order: time` looks at due times (default 60; 0 to 300, 0 means exact).
    pub order_step_seconds: Seconds,
    /// With `order: priority`, this long a wait counts as one step of priority (0.001 to 31536000).
    pub ageing_seconds: Option<Seconds>,
    /// The attribute whose values take turns: a name of 1 to 64 bytes. A job's turn is that of its value at the enqueue; a change here holds
    /// for jobs that come, or whose data is changed, afterwards.
    pub partition_by: Option<String>,
    /// Limits on what matches a condition: at most 32, at most one of a name.
    pub constraints: Vec<Constraint>,
    /// The plugin that decides over what the limits leave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttler: Option<Throttler>,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            concurrency: None,
            order: OrderKind::Time,
            order_step_seconds: Seconds::new(60),
            ageing_seconds: None,
            partition_by: None,
            constraints: Vec::new(),
            throttler: None,
        }
    }
}

/// Which candidate goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum OrderKind {
    /// Due time in steps, then priority, then exact time, then id.
    #[default]
    Time,
    /// Priority, then due time, then id.
    Priority,
}

/// A limit on the jobs that match a condition, each distinct value of an attribute apart if `per` is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Constraint {
    /// Its name in explanations: unique in its queue, 1 to 64 bytes.
    pub name: String,
    /// Which jobs it counts (default: every job). At most 8 levels and 64 conditions.
    #[serde(default, rename = "match")]
    pub matcher: Matcher,
    /// The attribute each value of which has the limit to itself; a job without it is not counted.
    /// A name of 1 to 64 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<String>,
    /// Most weight that runs at once. This or `rate` must be given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Most attempts that start in a stretch of time. With `per`, a queue counts as many values at once as 200,000 bytes hold with 32 and the
    /// constraint's name each; a new one then waits until another has all its tokens back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

/// A token bucket: `count` attempts per `per_seconds`, `burst` at once. A token is an attempt, whatever its weight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Tokens that come back in `per_seconds` (1 to 1000000).
    pub count: u32,
    /// The stretch (0.001 to 2592000).
    pub per_seconds: Seconds,
    /// The bucket's capacity (default `count`; 1 to 1000000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

/// How jobs of one kind are run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct TypeConfig {
    /// The queue its jobs wait in (default `default`).
    pub queue: QueueName,
    /// Where its jobs go (default: the server's default target, or pull workers).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetConfig>,
    /// Whether a job may be started twice (default `at_least_once`).
    pub delivery: Delivery,
    /// Most attempts (default 3, with `at_most_once` 1; 1 to 65535).
    pub attempts: Option<u16>,
    /// Most weight of this type that runs at once.
    pub concurrency: Option<u32>,
    /// From claim to result (default 86400; 0.001 to 31536000).
    pub timeout_seconds: Seconds,
    /// How long a push target may take to answer (default 30; 0.001 to 31536000).
    pub response_timeout_seconds: Seconds,
    /// How long a pull worker may be silent (default 30; 0.001 to 31536000).
    pub lease_seconds: Seconds,
    /// From a job's creation to its end, at most (0.001 to 315360000).
    pub deadline_seconds: Option<Seconds>,
    /// What follows a failed attempt.
    pub retry: Retry,
    /// Its jobs' priority (default 100).
    pub priority: i32,
    /// Its jobs' weight (default 1).
    pub weight: u32,
    /// Attributes extracted from the data: at most 16, a name of 1 to 64 bytes to a JSON pointer of at most 1024 bytes.
    pub attributes: BTreeMap<String, String>,
    /// When on the clock its jobs may start: at most 32.
    pub windows: Vec<Window>,
    /// How long a result can be read (default 86400 s; 0 to 315360000).
    pub keep_result: KeepResult,
    /// How long an ended job is kept (default 30 days; 0 to 315360000, 0 deletes it at its end). One with a correlation key is kept
    /// for `reply_wait_seconds` at least, so that a second delivery of its reply is known for one.
    pub retention_seconds: Seconds,
    /// What frees a job's slot (default `at_lease_end`).
    pub release: Release,
    /// Whether a push is claimed before it is sent (default `claim`). `plain` goes only with a push target, `at_least_once`,
    /// `on_no_answer: fail` and no `concurrency`.
    pub start: Start,
    /// What an answer that does not come in time means (default `fail`).
    pub on_no_answer: OnNoAnswer,
    /// Who is told when a job ends: an http or https URL without credentials, at most 2048 bytes.
    pub callback_url: Option<Url>,
    /// Passed on to the worker: at most 32, names of 1 to 128 bytes, values of at most 4096 bytes of visible ASCII. Those
    /// that frame the request, `webhook-` and `tidegate-` ones are refused.
    pub headers: BTreeMap<String, String>,
}

impl Default for TypeConfig {
    fn default() -> Self {
        Self {
            queue: "default".parse().expect("a good name"),
            target: None,
            delivery: Delivery::AtLeastOnce,
            attempts: None,
            concurrency: None,
            timeout_seconds: Seconds::new(86_400),
            response_timeout_seconds: Seconds::new(30),
            lease_seconds: Seconds::new(30),
            deadline_seconds: None,
            retry: Retry::default(),
            priority: 100,
            weight: 1,
            attributes: BTreeMap::new(),
            windows: Vec::new(),
            keep_result: KeepResult::default(),
            retention_seconds: Seconds::new(30 * 86_400),
            release: Release::AtLeaseEnd,
            start: Start::Claim,
            on_no_answer: OnNoAnswer::Fail,
            callback_url: None,
            headers: BTreeMap::new(),
        }
    }
}

/// Whether a job may be started twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// Tried again until it succeeds or its attempts are spent.
    #[default]
    AtLeastOnce,
    /// Started at most one time, ever; any doubt ends it `failed` with reason `unknown`.
    AtMostOnce,
}

/// What frees the slot of a worker that is not heard of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Release {
    /// The end of its lease.
    #[default]
    AtLeaseEnd,
    /// A report or `timeout_seconds`, so that work which ignores its lease is never overlapped.
    OnReport,
}

/// Whether a push is claimed before it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// Yes: the job is `running` while its target works.
    #[default]
    Claim,
    /// No: one write less for synchronous push without limits. Where its queue has limits, a rate or a pause, or had once,
    /// a job is claimed all the same, for what is not written down cannot be counted.
    ///
    /// The first limit on a queue counts the jobs that are on their way: the process that handed them on claims them in its
    /// first round under the limit. Of several processes on one store, each does so in its own next round, 5 s away at most;
    /// until then the limit is kept without the jobs of the others.
    Plain,
}

/// What an answer that does not come in time means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnNoAnswer {
    /// The attempt failed with reason `timeout`.
    #[default]
    Fail,
    /// The attempt goes on until its callback or its timeout.
    Wait,
}

/// Where a type's jobs go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
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
        let TargetFields { pull, url, headers, basic_auth, signing_secret, encoding, sqs, sns, event_bridge, lambda, complete } = fields;
        let services =
            [sqs.map(AwsService::Sqs), sns.map(AwsService::Sns), event_bridge.map(AwsService::EventBridge), lambda.map(AwsService::Lambda)];
        let mut services = services.into_iter().flatten();
        let (service, second) = (services.next(), services.next());
        let bare = (&headers, &basic_auth, &signing_secret, &encoding) == (&None, &None, &None, &None);
        match (pull, url, service, second, complete) {
            (None, Some(url), None, None, complete) => {
                let (headers, signing_secret) = (headers.unwrap_or_default(), signing_secret.unwrap_or_default());
                let (encoding, complete) = (encoding.unwrap_or_default(), complete.unwrap_or_default());
                Ok(Self::Push(Box::new(Push { url, headers, basic_auth, signing_secret, encoding, complete })))
            }
            (Some(pull), None, None, None, None) if bare => Ok(Self::Pull(Pull { pull })),
            (None, None, Some(service), None, complete) if bare => {
                Ok(Self::Aws(Box::new(AwsTarget { service, complete: complete.unwrap_or(Complete::OnResult) })))
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct AwsTarget {
    /// Which.
    #[serde(flatten)]
    pub service: AwsService,
    /// When a job is over (default `on_result`); `on_delivery` is when the service has taken it.
    pub complete: Complete,
}

/// Which service, and what of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SqsTarget {
    /// Its URL, at most 2048 bytes.
    pub queue_url: String,
}

/// A topic of SNS; a FIFO topic as a FIFO queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SnsTarget {
    /// Its ARN, at most 2048 bytes.
    pub topic_arn: String,
}

/// A bus of `EventBridge`: the JSON is the event's `detail`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LambdaTarget {
    /// Its name or ARN, with a version or alias or without (1 to 256 bytes).
    pub function: String,
    /// How it is called (default `wait`).
    #[serde(default)]
    pub invocation: Invocation,
}

/// How a Lambda function is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
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
        let waits = matches!(&self.service, AwsService::Lambda(LambdaTarget { invocation: Invocation::Wait, .. }));
        !waits && self.complete == Complete::OnResult
    }
}

/// `{"pull": true}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Pull {
    /// Always true.
    pub pull: bool,
}

/// A URL that jobs are posted to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
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
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum PushEncoding {
    /// JSON.
    #[default]
    Json,
    /// MessagePack.
    Msgpack,
}

/// A queue as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueItem {
    /// What its owner said.
    pub config: QueueConfig,
    /// Whether it holds everything.
    pub paused: bool,
    /// Raised by every change of the queue or of a limit of one of its types.
    pub version: u64,
}

/// A job type as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TypeItem {
    /// What its owner said.
    pub config: TypeConfig,
    /// Raised by every change.
    pub version: u64,
    /// Somebody looks whether it has live jobs, to move or remove it. Whoever means to add one takes this mark away
    /// first, which refuses the change.
    #[serde(default)]
    pub leaving: bool,
}

/// All that decides a queue's admissions, as one tick sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// The queue's version that this was read at.
    pub version: u64,
    /// The queue's own configuration.
    pub queue: QueueConfig,
    /// Whether it holds everything.
    pub paused: bool,
    /// The limits of its types that have one.
    pub types: BTreeMap<TypeName, u32>,
    /// The live version of its throttler's plugin; none also if there is no such plugin.
    pub throttler: Option<Arc<PluginVersion>>,
}

impl Limits {
    /// Whether anything is limited, so that the queue needs a head.
    pub fn any(&self) -> bool {
        let Self { queue, paused, types, .. } = self;
        *paused || queue.concurrency.is_some() || !queue.constraints.is_empty() || !types.is_empty() || queue.throttler.is_some()
    }

    /// The attributes that constraints and the throttler look at: what a grant must remember of its job.
    pub fn declared(&self) -> BTreeSet<&str> {
        let mut names = BTreeSet::new();
        for constraint in &self.queue.constraints {
            constraint.matcher.declare(&mut names);
            names.extend(constraint.per.as_deref());
        }
        let declared = self.throttler.as_ref().and_then(|version| version.throttler.as_ref());
        names.extend(declared.into_iter().flat_map(|declared| &declared.group_by).map(String::as_str));
        names
    }
}
