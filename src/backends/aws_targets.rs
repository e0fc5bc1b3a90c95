//! The settings of the AWS services that jobs can be sent to, and their validation.
//!
//! Nothing here calls AWS, so every deployment mode validates these targets alike. With the feature
//! `aws`, `aws::AwsTarget` sends to them.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use url::Url;

use tidegate_core::{
    strict::strict,
    target::{Complete, ExternalTarget},
    validate::{ValidationError, check_text, check_url},
};

/// An AWS service, and its queue, topic, bus or function.
///
/// A message is the JSON of a push to a URL, with the URL and the token of the callback and the
/// job's `headers`. SQS and SNS also get message attributes: the job's `id`, `type`, `attempt` and
/// `correlation_key`, and of its headers `ce-tidegatehops`, `traceparent` and `tracestate`.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
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

impl AwsService {
    /// The service that `target` names. Absent settings have their defaults.
    ///
    /// # Errors
    ///
    /// The kind is not an AWS service, or its settings have another shape.
    pub fn read(target: &ExternalTarget) -> Result<Self, ValidationError> {
        fn settings<T: DeserializeOwned>(target: &ExternalTarget) -> Result<T, ValidationError> {
            T::deserialize(strict(&target.config)).map_err(|error| {
                ValidationError::new(&target.kind, format!("is not valid: {error}"))
            })
        }
        match target.kind.as_str() {
            "sqs" => Ok(Self::Sqs(settings(target)?)),
            "sns" => Ok(Self::Sns(settings(target)?)),
            "event_bridge" => Ok(Self::EventBridge(settings(target)?)),
            "lambda" => Ok(Self::Lambda(settings(target)?)),
            kind => Err(ValidationError::new(
                kind,
                "is not a known field: a target has `url` and what goes with it, or `pull: true`, \
                 or one of `sqs`, `sns`, `event_bridge` and `lambda`",
            )),
        }
    }

    /// It as the target of a type.
    pub fn target(&self, complete: Complete) -> ExternalTarget {
        let (kind, config) = match self {
            Self::Sqs(settings) => ("sqs", serde_json::to_value(settings)),
            Self::Sns(settings) => ("sns", serde_json::to_value(settings)),
            Self::EventBridge(settings) => ("event_bridge", serde_json::to_value(settings)),
            Self::Lambda(settings) => ("lambda", serde_json::to_value(settings)),
        };
        // Structs of texts always have a JSON form.
        let config = config.unwrap_or_default();
        ExternalTarget { kind: kind.into(), config, complete }
    }

    /// Checks the bounds of every setting.
    fn check(&self) -> Result<(), ValidationError> {
        match self {
            Self::Sqs(SqsTarget { queue_url }) => {
                let url = Url::parse(queue_url).map_err(|_| {
                    ValidationError::new("sqs.queue_url", "must be the URL of a queue")
                })?;
                check_url("sqs.queue_url", &url)
            }
            Self::Sns(SnsTarget { topic_arn }) => check_topic(topic_arn),
            Self::EventBridge(EventBridgeTarget { bus, source, detail_type }) => {
                check_text("event_bridge.bus", bus, 1600)?;
                check_text("event_bridge.source", source, 256)?;
                if source.starts_with("aws.") {
                    return Err(ValidationError::new(
                        "event_bridge.source",
                        "must not begin with `aws.`",
                    ));
                }
                detail_type
                    .as_ref()
                    .map_or(Ok(()), |text| check_text("event_bridge.detail_type", text, 128))
            }
            Self::Lambda(LambdaTarget { function, .. }) => {
                check_text("lambda.function", function, 256)
            }
        }
    }

    /// When a job ends whose target has this `complete`: what a function returns is its result.
    pub fn complete(&self, complete: Complete) -> Complete {
        match self {
            Self::Lambda(LambdaTarget { invocation: Invocation::Wait, .. }) => Complete::OnDelivery,
            _ => complete,
        }
    }
}

fn check_topic(topic_arn: &str) -> Result<(), ValidationError> {
    check_text("sns.topic_arn", topic_arn, 2048)?;
    let parts: Vec<&str> = topic_arn.splitn(6, ':').collect();
    let good = matches!(parts[..], ["arn", partition, "sns", region, account, name]
        if [partition, region, account, name].iter().all(|part| !part.is_empty()));
    if good {
        return Ok(());
    }
    Err(ValidationError::new(
        "sns.topic_arn",
        "must be the ARN of a topic, such as arn:aws:sns:eu-west-1:111122223333:jobs",
    ))
}

/// Validates the settings of an AWS service, and fills in their defaults. Any other kind is
/// refused.
///
/// # Errors
///
/// The first invalid field, by its path within the target.
pub fn accept(target: &mut ExternalTarget) -> Result<Complete, ValidationError> {
    let service = AwsService::read(target)?;
    service.check()?;
    let complete = service.complete(target.complete);
    *target = service.target(target.complete);
    Ok(complete)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};
    use tidegate_core::{
        error_code::ErrorCode,
        job::type_config::TypeConfig,
        validate::{ValidationError, accept_type},
    };

    use super::*;

    fn accepted(config: Value) -> Result<TypeConfig, ValidationError> {
        accept_type(serde_json::from_value(config).unwrap(), accept)
    }

    #[rstest]
    #[case::sqs(
        json!({"sqs": {"queue_url": "https://sqs.eu-west-1.amazonaws.com/1/jobs"}}),
        json!({
            "sqs": {"queue_url": "https://sqs.eu-west-1.amazonaws.com/1/jobs"},
            "complete": "on_result",
        }),
    )]
    #[case::sns(
        json!({"sns": {"topic_arn": "arn:aws:sns:eu-west-1:1:jobs"}, "complete": "on_delivery"}),
        json!({"sns": {"topic_arn": "arn:aws:sns:eu-west-1:1:jobs"}, "complete": "on_delivery"}),
    )]
    #[case::bus(
        json!({"event_bridge": {}}),
        json!({"event_bridge": {"bus": "default", "source": "tidegate"}, "complete": "on_result"}),
    )]
    #[case::function(
        json!({"lambda": {"function": "work:live"}}),
        json!({"lambda": {"function": "work:live", "invocation": "wait"}, "complete": "on_result"}),
    )]
    fn a_service_is_kept_with_its_defaults(#[case] target: Value, #[case] kept: Value) {
        let config = accepted(json!({ "target": target })).unwrap();
        assert_eq!(serde_json::to_value(&config.target).unwrap(), kept);
        assert_eq!(accepted(serde_json::to_value(&config).unwrap()).unwrap(), config);
    }

    #[rstest]
    #[case::sqs_url(
        json!({"sqs": {"queue_url": "jobs"}}),
        "target.sqs.queue_url",
        "must be the URL of a queue",
    )]
    #[case::sqs_scheme(
        json!({"sqs": {"queue_url": "ftp://h/q"}}),
        "target.sqs.queue_url",
        "must be an http or https URL",
    )]
    #[case::sns_arn(
        json!({"sns": {"topic_arn": "arn:aws:sqs:eu-west-1:1:jobs"}}),
        "target.sns.topic_arn",
        "must be the ARN of a topic, such as arn:aws:sns:eu-west-1:111122223333:jobs",
    )]
    #[case::bus(
        json!({"event_bridge": {"bus": ""}}),
        "target.event_bridge.bus",
        "must be 1 to 1600 bytes",
    )]
    #[case::source(
        json!({"event_bridge": {"source": "aws.sqs"}}),
        "target.event_bridge.source",
        "must not begin with `aws.`",
    )]
    #[case::detail_type(
        json!({"event_bridge": {"detail_type": "x".repeat(129)}}),
        "target.event_bridge.detail_type",
        "must be 1 to 128 bytes",
    )]
    #[case::function(
        json!({"lambda": {"function": ""}}),
        "target.lambda.function",
        "must be 1 to 256 bytes",
    )]
    #[case::missing(json!({"sqs": {}}), "target.sqs", "is not valid: missing field `queue_url`")]
    #[case::shape(
        json!({"lambda": "work"}),
        "target.lambda",
        "is not valid: invalid type: string \"work\", expected an object",
    )]
    #[case::kind(
        json!({"urll": "http://h/"}),
        "target.urll",
        "is not a known field: a target has `url` and what goes with it, or `pull: true`, or one \
         of `sqs`, `sns`, `event_bridge` and `lambda`",
    )]
    fn an_invalid_service_is_refused_by_its_field(
        #[case] target: Value,
        #[case] field: &str,
        #[case] message: &str,
    ) {
        let fault = accepted(json!({ "target": target })).unwrap_err();
        assert_eq!(
            (fault.code, fault.field.as_str(), fault.message.as_str()),
            (ErrorCode::InvalidType, field, message)
        );
    }

    #[rstest]
    #[case::in_its_answer(json!({"lambda": {"function": "work"}}), true)]
    #[case::accepted(
        json!({"sqs": {"queue_url": "https://h/q"}, "complete": "on_delivery"}),
        true,
    )]
    #[case::later(json!({"sqs": {"queue_url": "https://h/q"}}), false)]
    #[case::event(json!({"lambda": {"function": "work", "invocation": "event"}}), false)]
    fn a_plain_start_needs_a_result_in_the_answer(#[case] target: Value, #[case] good: bool) {
        let plain = accepted(json!({"start": "plain", "target": target}));
        assert_eq!(plain.map_err(|fault| fault.field).err(), (!good).then(|| "start".into()));
    }
}
