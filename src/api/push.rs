//! What the server sends to a push target, and how the target answers with a failure.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate_core::job::{Attributes, JobId, TypeName, Value as AttributeValue};

use crate::AnyValue;

/// The body of a request to a push target.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PushRequest<'a> {
    /// The job.
    #[schema(value_type = JobId)]
    pub id: Cow<'a, JobId>,
    /// Its type.
    #[schema(value_type = TypeName)]
    pub r#type: Cow<'a, TypeName>,
    /// The attempt, from 1.
    pub attempt: u16,
    /// Most attempts.
    pub max_attempts: u16,
    /// What it carries.
    pub data: AnyValue,
    /// What an earlier attempt has stored for this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<AnyValue>)]
    pub checkpoint: Option<AnyValue>,
    /// What limits match on.
    #[schema(value_type = BTreeMap<String, AttributeValue>)]
    pub attributes: Cow<'a, Attributes>,
    /// The key by which a reply finds the job, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub correlation_key: Option<Cow<'a, str>>,
    /// The job's headers, where the request has none of its own: to a service of AWS.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    pub headers: Option<Cow<'a, BTreeMap<String, String>>>,
    /// Where the result goes if it comes later than the response.
    pub callback: PushCallback<'a>,
}

/// The body of a failed response that gives message and details apart, with the fields of a report.
/// A body with another member, or without a message, is not of this form.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushFailure<'a> {
    /// What went wrong, for people; what exceeds 4 KiB is cut off.
    pub message: String,
    /// Details of the error, such as a stack trace: any value. One over 16 KiB is left out.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = AnyValue, required = false)]
    pub error: Option<&'a RawValue>,
}

/// Where a later result goes.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PushCallback<'a> {
    /// Where to report: as `POST /v1/jobs/{type}/{id}`.
    #[schema(value_type = String)]
    pub url: Cow<'a, str>,
    /// The attempt's token, for `Authorization: Bearer`.
    #[schema(value_type = String)]
    pub token: Cow<'a, str>,
}
