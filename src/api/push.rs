//! What the server sends to a push target.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};
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
