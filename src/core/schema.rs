//! The `OpenAPI` schemas of values that are not structs: names, instants, spans. Structs and enums
//! derive theirs where they are defined.

use std::borrow::Cow;

use serde_json::json;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        KnownFormat, Ref, RefOr, Schema, SchemaFormat,
        schema::{
            AdditionalProperties, ArrayBuilder, ObjectBuilder, OneOfBuilder, SchemaType, Type,
        },
    },
};

use crate::{
    calendar::window::Window,
    event::Template,
    job::{
        JobId, Payload, PluginName, QueueName, ScheduleName, TriggerName, TypeName,
        retry::{BUILT_IN, Backoff, Retry},
        spec,
    },
    target::{ExternalTarget, Secrets},
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
    text()
        .min_length(Some(1))
        .max_length(Some(64))
        .pattern(Some(pattern))
        .description(Some(description))
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

schema!(
    Template,
    "Template",
    ObjectBuilder::new().schema_type(SchemaType::AnyValue).description(Some(
        "Any JSON value. Each object {\"$expr\": \"...\"} in it is replaced by the result of that \
         JMESPath expression over the event: its attributes and extensions by name, and its `data`."
    ))
);

schema!(
    Payload,
    "AnyValue",
    ObjectBuilder::new().schema_type(SchemaType::AnyValue).description(Some(
        "Any JSON or MessagePack value, kept byte for byte. A value that only MessagePack has is \
         shown in JSON as an object of one key, such as {\"$binary\": \"base64\"}."
    ))
);

schema!(spec::Value, "AttributeValue", scalar());

fn scalar() -> OneOfBuilder {
    let description = Some("The value of an attribute.");
    OneOfBuilder::new()
        .item(text())
        .item(ObjectBuilder::new().schema_type(Type::Number))
        .description(description)
}

schema!(
    spec::KeepResult,
    "KeepResult",
    OneOfBuilder::new()
        .item(text().enum_values(Some(["none", "once"])))
        .item(
            ObjectBuilder::new()
                .schema_type(Type::Object)
                .property("seconds", Seconds::schema())
                .required("seconds")
        )
        .description(Some(
            "How long a result can be read: not at all, once, or for some time after the job's end."
        ))
);
impl PartialSchema for Retry {
    fn schema() -> RefOr<Schema> {
        let built_in = named(
            "strategy",
            text().enum_values(Some([BUILT_IN])),
            Ref::from_schema_name(Backoff::name()),
        );
        let plugin = named(
            "plugin",
            name("^[A-Za-z0-9_.-]+$", "A plugin's name."),
            ObjectBuilder::new().schema_type(Type::Object),
        );
        let either = OneOfBuilder::new().item(built_in).item(plugin);
        RefOr::T(
            either
                .description(Some(
                    "What follows a failed attempt: the built-in strategy, or a plugin.",
                ))
                .into(),
        )
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

fn named(field: &str, name: ObjectBuilder, config: impl Into<RefOr<Schema>>) -> ObjectBuilder {
    let fields = ObjectBuilder::new()
        .schema_type(Type::Object)
        .property(field, name)
        .property("config", config);
    fields.required(field).additional_properties(Some(AdditionalProperties::FreeForm(false)))
}

schema!(
    Secrets,
    "Secrets",
    OneOfBuilder::new()
        .item(text())
        .item(ArrayBuilder::new().items(text().build()).max_items(Some(2)))
        .description(Some("One secret, or two during a rotation. Never shown."))
);

schema!(
    ExternalTarget,
    "ExternalTarget",
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .additional_properties(Some(AdditionalProperties::FreeForm(true)))
        .description(Some(
            "A service that jobs are sent to: its settings under the name of its kind."
        ))
);

schema!(
    Window,
    "Window",
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .property("from", clock_time("The opening, local time."))
        .property(
            "to",
            clock_time("The closing, exclusive; at or before the opening it is the next day's.")
        )
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
        .description(Some("A part of the local day in which a job may start."))
);

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

fn clock_time(description: &'static str) -> ObjectBuilder {
    text().pattern(Some("^[0-9]{2}:[0-9]{2}(:[0-9]{2})?$")).description(Some(description))
}
