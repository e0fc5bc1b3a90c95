//! Schemas of the `OpenAPI` document for values whose form is no struct's: names, instants, spans,
//! anything at all. Structs and enums derive theirs where they are defined.

use std::borrow::Cow;

use serde_json::json;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        KnownFormat, Ref, RefOr, Schema, SchemaFormat,
        schema::{AdditionalProperties, AnyOfBuilder, ArrayBuilder, ObjectBuilder, OneOfBuilder, SchemaType, Type},
    },
};

use super::jobs::view::JobView;
use crate::{
    event::Template,
    job::{
        Attributes, JobId, PluginName, QueueName, ScheduleName, TriggerName, TypeName,
        retry::{BUILT_IN, Backoff, Retry},
        spec,
    },
    queue::{config::Secrets, window::Window},
    time::{Seconds, Timestamp},
};

/// Declares the schema of a type.
macro_rules! schema {
    ($type:ty, $name:literal, $schema:expr) => {
        impl PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                RefOr::T(Schema::from($schema))
            }
        }
        impl ToSchema for $type {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed($name)
            }
        }
    };
}

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn name(pattern: &'static str, description: &'static str) -> ObjectBuilder {
    text().min_length(Some(1)).max_length(Some(64)).pattern(Some(pattern)).description(Some(description))
}

schema!(JobId, "JobId", name("^[A-Za-z0-9_.:-]+$", "A job's id."));
schema!(TypeName, "TypeName", name("^[A-Za-z0-9_.-]+$", "The name of a job type."));
schema!(PluginName, "PluginName", name("^[A-Za-z0-9_.-]+$", "The name of a plugin."));
schema!(ScheduleName, "ScheduleName", name("^[A-Za-z0-9_.-]+$", "The name of a schedule."));
schema!(TriggerName, "TriggerName", name("^[A-Za-z0-9_.-]+$", "The name of a trigger."));
schema!(QueueName, "QueueName", name("^[A-Za-z0-9_.-]+$", "The name of a queue."));
schema!(
    Timestamp,
    "Timestamp",
    text()
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
        .description(Some("An instant, RFC 3339, to the millisecond; in MessagePack too."))
        .examples([json!("2026-01-31T08:00:00.000Z")])
);
schema!(
    Seconds,
    "Seconds",
    ObjectBuilder::new()
        .schema_type(Type::Number)
        .minimum(Some(0))
        .description(Some("A span in seconds; fractions down to a millisecond."))
);

/// Any value.
#[derive(Debug)]
pub struct AnyValue;
schema!(
    AnyValue,
    "AnyValue",
    ObjectBuilder::new().schema_type(SchemaType::AnyValue).description(Some(
        "Any JSON or MessagePack value, kept byte for byte. What only MessagePack can say is shown in JSON as an object of one key, \
         such as {\"$binary\": \"base64\"}."
    ))
);

schema!(
    Template,
    "Template",
    ObjectBuilder::new().schema_type(SchemaType::AnyValue).description(Some(
        "Any JSON value. Wherever in it an object {\"$expr\": \"...\"} stands, what that JMESPath expression yields for the event \
         takes its place: over the event's attributes and extensions by their names, and its `data`."
    ))
);

/// The value of an attribute.
#[derive(Debug)]
pub struct AttributeValue;
schema!(AttributeValue, "AttributeValue", scalar());
schema!(spec::Value, "AttributeValue", scalar());

fn scalar() -> OneOfBuilder {
    let description = Some("The value of an attribute.");
    OneOfBuilder::new().item(text()).item(ObjectBuilder::new().schema_type(Type::Number)).description(description)
}

schema!(
    spec::KeepResult,
    "KeepResult",
    OneOfBuilder::new()
        .item(text().enum_values(Some(["none", "once"])))
        .item(ObjectBuilder::new().schema_type(Type::Object).property("seconds", Seconds::schema()).required("seconds"))
        .description(Some("How long a result can be read: not at all, once, or for some time after the job's end."))
);
impl PartialSchema for Retry {
    fn schema() -> RefOr<Schema> {
        let built_in = strategy(text().enum_values(Some([BUILT_IN])), Ref::from_schema_name(Backoff::name()));
        let plugin = strategy(name("^[A-Za-z0-9_.-]+$", "A plugin's name."), ObjectBuilder::new().schema_type(Type::Object));
        let either = AnyOfBuilder::new().item(built_in).item(plugin);
        RefOr::T(either.description(Some("What follows a failed attempt: the built-in strategy, or a plugin.")).into())
    }
}

impl ToSchema for Retry {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Retry")
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((Backoff::name().into_owned(), Backoff::schema()));
        Backoff::schemas(schemas);
    }
}

fn strategy(strategy: ObjectBuilder, config: impl Into<RefOr<Schema>>) -> ObjectBuilder {
    let fields = ObjectBuilder::new().schema_type(Type::Object).property("strategy", strategy).property("config", config);
    fields.required("strategy").additional_properties(Some(AdditionalProperties::FreeForm(false)))
}

schema!(
    Secrets,
    "Secrets",
    OneOfBuilder::new()
        .item(text())
        .item(ArrayBuilder::new().items(text().build()).max_items(Some(2)))
        .description(Some("One secret, or two while one replaces the other. Never shown."))
);

schema!(
    Window,
    "Window",
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .property("from", clock_time("The opening, local time."))
        .property("to", clock_time("The closing, exclusive; at or before the opening it is the next day's."))
        .property(
            "days",
            ArrayBuilder::new()
                .items(text().enum_values(Some(DAYS)).build())
                .min_items(Some(1))
                .description(Some("The days it opens on (default every day)."))
        )
        .property("tz", text().description(Some("The IANA name of the time zone (default UTC).")))
        .required("from")
        .required("to")
        .additional_properties(Some(AdditionalProperties::FreeForm(false)))
        .description(Some("A stretch of the local day in which a job may start."))
);

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

fn clock_time(description: &'static str) -> ObjectBuilder {
    text().pattern(Some("^[0-9]{2}:[0-9]{2}(:[0-9]{2})?$")).description(Some(description))
}

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
    attempts: u16,
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
    reason: crate::job::life::Reason,
    /// For people.
    message: Option<String>,
}
