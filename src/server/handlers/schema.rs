//! Schemas of the `OpenAPI` document for what handlers read and write by hand.

use std::borrow::Cow;

use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr, Schema,
        schema::{ObjectBuilder, SchemaType},
    },
};

use super::jobs::view::JobView;
use tidegate_core::{
    job::{Attributes, JobId, TypeName},
    time::Timestamp,
};

/// Any value.
#[derive(Debug)]
pub struct AnyValue;

impl PartialSchema for AnyValue {
    fn schema() -> RefOr<Schema> {
        RefOr::T(Schema::from(ObjectBuilder::new().schema_type(SchemaType::AnyValue).description(Some(
            "Any JSON or MessagePack value, kept byte for byte. What only MessagePack can say is shown in JSON as an object of one key, \
         such as {\"$binary\": \"base64\"}.",
        ))))
    }
}

impl ToSchema for AnyValue {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("AnyValue")
    }
}

/// The value of an attribute.
pub use tidegate_core::job::spec::Value as AttributeValue;

/// Why a request was not done (RFC 9457).
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "describes what error::Problem writes")]
pub struct Problem {
    /// A name for this kind of problem: `urn:tidegate:problem:` and the code.
    r#type: String,
    /// The kind in words.
    title: String,
    /// The HTTP status.
    status: u16,
    /// What is to be said of this case.
    detail: String,
    /// A stable word for programs to act on.
    code: String,
    /// The path that was asked for.
    instance: Option<String>,
    /// The field, parameter or header that is to blame, with its path: `constraints[2].rate.count`.
    field: Option<String>,
    /// The job that a clash is with.
    holder: Option<String>,
    /// Everything that is wrong, where one sentence does not say it.
    reasons: Option<Vec<String>>,
}

/// An event, in the JSON format of CloudEvents 1.0. Beside these it may have up to 32 extensions: names of small letters and digits, values
/// texts, whole numbers, true or false.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "describes what event::read takes")]
pub struct CloudEvent {
    /// `1.0`.
    specversion: String,
    /// Its id, unique within its source; at most 1024 bytes, as every text here.
    id: String,
    /// Where it happened: a URI reference.
    source: String,
    /// What kind of thing happened.
    r#type: String,
    /// What it is about.
    subject: Option<String>,
    /// When it happened.
    time: Option<String>,
    /// The media type of its data.
    datacontenttype: Option<String>,
    /// The schema of its data.
    dataschema: Option<String>,
    /// Its data, kept byte for byte.
    #[schema(value_type = Option<AnyValue>)]
    data: Option<AnyValue>,
    /// Binary data, in place of `data`.
    data_base64: Option<String>,
}

/// What became of one job of a batch.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "describes what a batch answers")]
pub struct BatchResult {
    /// 201 if it is new, 200 if it was there, else as the problem says.
    status: u16,
    /// The job.
    job: Option<JobView<'static>>,
    /// Why there is none.
    error: Option<Problem>,
}

/// What a push target is sent.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "describes what delivery sends")]
pub struct PushRequest {
    /// The job.
    id: JobId,
    /// Its type.
    r#type: TypeName,
    /// Which attempt, from 1.
    attempt: u16,
    /// Most attempts.
    max_attempts: u16,
    /// What it carries.
    #[schema(value_type = AnyValue)]
    data: AnyValue,
    /// What limits look at.
    #[schema(value_type = BTreeMap<String, AttributeValue>)]
    attributes: Attributes,
    /// What the reply is to be found by, if the job has it.
    correlation_key: Option<String>,
    /// The job's headers, where a request has none beside it: to a service of AWS.
    headers: Option<std::collections::BTreeMap<String, String>>,
    /// Where the result goes if it comes later than the answer.
    callback: PushCallback,
}

/// Where a later result goes.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "describes what delivery sends")]
pub struct PushCallback {
    /// Where to report: as `POST /v1/jobs/{type}/{id}`.
    url: String,
    /// The attempt's token, for `Authorization: Bearer`.
    token: String,
}

/// What a `callback_url` is told.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "describes what the engine sends")]
#[schema(as = Ended)]
pub struct EndNotice {
    /// The job.
    id: JobId,
    /// Its type.
    r#type: TypeName,
    /// How it ended: `succeeded`, `failed`, `expired`, `cancelled` or `dropped`.
    state: String,
    /// Its latest attempt.
    attempt: u16,
    /// What the request and a later reply can build.
    correlation_key: Option<String>,
    /// Its result, unless that is too large to be kept beside it.
    #[schema(value_type = AnyValue)]
    result: AnyValue,
    /// When it ended.
    ended_at: Timestamp,
    /// What went wrong last.
    error: Option<EndError>,
}

/// What went wrong with a job that ended.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "describes what the engine sends")]
#[schema(as = EndError)]
pub struct EndError {
    /// Why, as one of a few words.
    reason: tidegate_core::job::lifecycle::Reason,
    /// For people.
    message: Option<String>,
}
