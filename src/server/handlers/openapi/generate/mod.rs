//! Makes the `OpenAPI` document from the annotations of the handlers and what all operations share.
//! A test compares it with the committed file, so no server contains this code.
//!
//! Every operation with a body shares the errors of reading it. Every operation that needs a scope
//! shares the errors of authentication. Those answers, both encodings and the schema of problems
//! are added here once.

mod bounds;
mod requests;
mod schemas;

use serde_json::{Map, Value, json};
use tidegate_core::job::end_notice::{EndError, EndNotice};
use utoipa::{OpenApi, openapi};

use crate::handlers::routes::Routes;

/// The document without its operations.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "tidegate",
        description = "A durable job queue for work that must happen at the right time and at the \
            right rate. Every route accepts and returns JSON and MessagePack, by `Content-Type` \
            and `Accept`; unknown fields are refused; lists have cursors. Of servers on a log in a \
            bucket, a standby answers reads, with the header `Tidegate-Standby: true`, and refuses \
            the rest with 503 `not_leader`; answers have `Tidegate-Position`, the first record that \
            they may lack; a read with the `Tidegate-Position` of an answer waits until the server has \
            the log up to it, or gets 503 `unavailable` after five seconds; and a read with \
            `Tidegate-Consistent: true`, on the leader, sees every change that was acknowledged \
            before it.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    tags(
        (name = "jobs", description = "Units of work"),
        (name = "queues", description = "Where jobs wait, and how they are admitted"),
        (name = "job types", description = "How jobs of one kind are run"),
        (name = "schedules", description = "Jobs that recur"),
        (
            name = "events",
            description = "Events of other systems, and the triggers that turn them into jobs and \
                results",
        ),
        (name = "workers", description = "Pull workers: leases, reports, heartbeats"),
        (name = "plugins", description = "Custom throttlers and retry strategies"),
        (name = "tokens", description = "Access tokens and their scopes"),
        (name = "operate", description = "Health, metrics and diagnostics")
    ),
    components(schemas(
        tidegate_core::job::JobOptions,
        tidegate_api::HistoryRange,
        tidegate_api::Problem,
        tidegate_api::PushFailure,
        tidegate_api::PushRequest,
        tidegate_api::PushCallback,
        tidegate_backends::aws_targets::AwsService,
        EndNotice,
        EndError
    ))
)]
struct Base;

/// The whole document of `routes`.
pub fn document(routes: &Routes) -> Value {
    let mut document = Base::openapi();
    document.info.version = env!("CARGO_PKG_VERSION").into();
    routes.describe(&mut document);
    complete(document)
}

/// `document` with what all operations share.
fn complete(document: openapi::OpenApi) -> Value {
    let mut document = serde_json::to_value(document).expect("a document has a JSON form");
    embed_options(&mut document["components"]["schemas"]);
    describe_external_target(&mut document["components"]["schemas"]);
    let operations = document["paths"].as_object_mut().into_iter().flatten();
    for (path, operations) in operations {
        for (method, operation) in operations.as_object_mut().into_iter().flatten() {
            complete_parameters(path, operation);
            complete_operation(method, operation);
        }
    }
    document["paths"]["/openapi.json"] = json!({"get": {
        "tags": ["operate"], "summary": "This document.", "operationId": "openapi", "security": [],
        "responses": {"200": {
            "description": "OpenAPI 3.1",
            "content": {"application/json": {"schema": {"type": "object"}}},
        }},
    }});
    add_common_errors(&mut document["paths"]["/openapi.json"]["get"], false, false);
    document["servers"] = json!([{"url": "/", "description": "This server"}]);
    document["components"]["securitySchemes"] = json!({
        "bearer": {
            "type": "http", "scheme": "bearer",
            "description": "A token with the scopes that the operation names, or `admin`.",
        },
        "basic": {
            "type": "http", "scheme": "basic",
            "description": "The same token as the password, with any user.",
        },
        "attempt": {
            "type": "http", "scheme": "bearer",
            "description": "The token of the attempt, from its lease or its delivery.",
        },
    });
    document["webhooks"] = webhooks();
    schemas::complete(&mut document);
    document
}

/// Whether a parameter of this name is the first or the last instant of a range.
fn is_instant(name: &str) -> bool {
    matches!(name.rsplit('_').next(), Some("from" | "to"))
}

/// Gives the parameters of an operation their bounds.
fn complete_parameters(path: &str, operation: &mut Value) {
    let name = json!({
        "type": "string", "minLength": 1, "maxLength": 64, "pattern": schemas::NAME_PATTERN,
    });
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    for parameter in parameters.into_iter().flatten() {
        let place = parameter["in"].as_str().unwrap_or_default();
        let schema = match (place, parameter["name"].as_str().unwrap_or_default()) {
            ("path" | "query", "type" | "queue" | "schedule" | "trigger" | "plugin") => {
                name.clone()
            }
            ("path", "id") if path.starts_with("/v1/jobs/") => json!({
                "type": "string", "minLength": 1, "maxLength": 64, "pattern": schemas::ID_PATTERN,
            }),
            ("path" | "query", "worker") => {
                json!({"type": "string", "minLength": 1, "maxLength": 128})
            }
            ("path", "number") => {
                json!({"type": "integer", "format": "int64", "minimum": 0, "maximum": u32::MAX})
            }
            ("query", "limit") => json!({"type": "integer", "minimum": 1, "maximum": 1000}),
            ("query", "wait") => json!({"type": "number", "minimum": 0, "maximum": 60}),
            ("query", name) if is_instant(name) => json!({"type": "string", "format": "date-time"}),
            ("query", "attribute" | "data") => {
                parameter["style"] = "deepObject".into();
                parameter["explode"] = true.into();
                json!({"type": "object", "additionalProperties": {"type": "string"}})
            }
            ("header", "Idempotency-Key") => {
                json!({"type": "string", "minLength": 1, "maxLength": 255})
            }
            ("header", _) => json!({"type": "string"}),
            _ => continue,
        };
        parameter["schema"] = schema;
    }
}

/// Adds the options of a job to the properties of each object that embeds them. Clients send one
/// flat object, and code generators handle it better than a composition.
fn embed_options(schemas: &mut Value) {
    let options = schemas.as_object_mut().and_then(|schemas| schemas.remove("JobOptions"));
    let properties = options.as_ref().and_then(|options| options["properties"].as_object());
    for embedding in ["NewJob", "ScheduleConfig"] {
        if let Some(own) = schemas[embedding]["properties"].as_object_mut() {
            own.extend(
                properties
                    .into_iter()
                    .flatten()
                    .map(|(name, schema)| (name.clone(), schema.clone())),
            );
        }
    }
}

/// Gives the target of a backend the settings of the services that there are: the core, which has
/// the type, does not know them.
fn describe_external_target(schemas: &mut Value) {
    schemas["ExternalTarget"] = json!({
        "description": "A service that jobs are sent to.",
        "allOf": [
            {"$ref": "#/components/schemas/AwsService"},
            {"type": "object", "properties": {"complete": {
                "allOf": [{"$ref": "#/components/schemas/Complete"}],
                "description": "When a job ends (default `on_result`); `on_delivery` means when \
                    the service has accepted it.",
            }}},
        ],
    });
}

/// Adds the errors that operations like this share, and the other encoding of its bodies.
fn complete_operation(method: &str, operation: &mut Value) {
    let body = operation.get("requestBody").is_some();
    let guarded = operation["security"]
        .as_array()
        .is_some_and(|schemes| schemes.iter().any(|scheme| scheme.get("bearer").is_some()));
    let Some(responses) = operation["responses"].as_object_mut() else {
        return;
    };
    if guarded && method != "get" {
        let conflict = responses.entry("409").or_insert_with(|| json!({"description": ""}));
        let special = conflict["description"].as_str().unwrap_or_default().to_owned();
        let comma = if special.is_empty() { "" } else { "; " };
        conflict["description"] = format!(
            "{special}{comma}`concurrent_update`: concurrent requests keep changing it; retry"
        )
        .into();
    }
    add_common_errors(operation, body, guarded);
    if let Some(content) = operation.get_mut("requestBody").and_then(|body| body.get_mut("content"))
    {
        both(content);
    }
}

/// Adds the errors that operations share: those with a body, and with a scope (`guarded`).
fn add_common_errors(operation: &mut Value, body: bool, guarded: bool) {
    let Some(responses) = operation["responses"].as_object_mut() else {
        return;
    };
    for (status, description) in common_errors(body, guarded) {
        responses.entry(status).or_insert_with(|| json!({"description": description}));
    }
    for (status, response) in responses.iter_mut() {
        if status.as_str() >= "400" {
            let problem = json!({"schema": {"$ref": "#/components/schemas/Problem"}});
            response["content"] = json!({
                "application/problem+json": problem, "application/problem+msgpack": problem,
            });
        } else if let Some(content) = response.get_mut("content") {
            both(content);
        }
    }
    let sorted: std::collections::BTreeMap<_, _> = std::mem::take(responses).into_iter().collect();
    responses.extend(sorted);
}

/// The errors that operations share: those with a body, and with a scope (`guarded`).
fn common_errors(body: bool, guarded: bool) -> Vec<(&'static str, &'static str)> {
    let mut common = vec![
        (
            "400",
            "`invalid_request`, `invalid_header`, `invalid_path`, `invalid_field`, \
             `unknown_field`, `unknown_parameter`, `invalid_body`, `nesting_too_deep`, and codes \
             of single fields; `field` names the field",
        ),
        ("406", "`not_acceptable`: neither JSON nor MessagePack is accepted"),
        ("414", "`uri_too_long`"),
        ("415", "`unsupported_media_type`"),
        ("431", "`headers_too_large`"),
        ("500", "`internal`"),
    ];
    if body {
        common.push(("408", "`body_timeout`: the body came too slowly"));
        common.push(("413", "`data_too_large`, `body_too_large`, `response_too_large`"));
    } else {
        common.push((
            "413",
            "`response_too_large`: a function answers with 4.7 MB at most; request fewer at a time",
        ));
    }
    if guarded {
        common.push(("401", "`unauthorized`"));
        common.push((
            "403",
            "`forbidden`: the token lacks the scope, or does not concern the queue or type; \
             `cross_site`, `host_not_allowed`, `insecure_request`",
        ));
        common.push(("503", "`unavailable`: try again after `Retry-After`"));
    } else {
        common.push((
            "403",
            "`cross_site`, `host_not_allowed`, `insecure_request`: not for this server",
        ));
        common.push(("503", "`unavailable`: not ready, or too many connections"));
    }
    common
}

/// Adds MessagePack to `content` where it has JSON.
fn both(content: &mut Value) {
    if let Some(json) = content.get("application/json").cloned() {
        content["application/msgpack"] = json;
    }
}

/// The requests that the server sends.
fn webhooks() -> Value {
    let header = |name: &str, description: &str| {
        json!({
            "name": name, "in": "header", "required": false, "schema": {"type": "string"},
            "description": description,
        })
    };
    let parameters = json!([
        header("webhook-id", "The same for every repeat of one delivery (Standard Webhooks)"),
        header("webhook-timestamp", "When it was signed, in seconds since the epoch"),
        header(
            "webhook-signature",
            "`v1,` and the signature; one per secret, with spaces between them"
        ),
        header(
            "traceparent",
            "The trace in which the job was enqueued; its span is the attempt if the server \
             exports spans"
        ),
    ]);
    let body = |schema: &str| {
        let mut content = Map::new();
        for media in ["application/json", "application/msgpack"] {
            content.insert(
                media.into(),
                json!({"schema": {"$ref": format!("#/components/schemas/{schema}")}}),
            );
        }
        json!({"required": true, "content": content})
    };
    json!({
        "delivery": {"post": {
            "summary": "A job is delivered to the target of its type.",
            "operationId": "delivery", "security": [],
            "parameters": parameters, "requestBody": body("PushRequest"),
            "responses": {
                "2XX": {"description": "Succeeded; the body is the result"},
                "202": {"description": "Accepted: the result comes to the callback's URL"},
                "429": {"description": "Not now: retried after `Retry-After`"},
                "489": {"description": "Failed, and not retried"},
                "503": {"description": "Not now: retried after `Retry-After`"},
                "default": {
                    "description": "Failed; retried unless `Tidegate-Retryable: false`. A body of \
                        this form gives a message and details apart; one of any other form is both",
                    "content": {"application/json": {"schema": {
                        "$ref": "#/components/schemas/PushFailure",
                    }}},
                },
            },
        }},
        "ended": {"post": {
            "summary": "A job with a `callback_url` has ended.",
            "operationId": "ended", "security": [],
            "parameters": parameters, "requestBody": body("Ended"),
            "responses": {
                "2XX": {"description": "Received"}, "default": {"description": "Retried later"},
            },
        }},
    })
}
