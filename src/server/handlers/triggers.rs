//! Triggers: rules that enqueue or complete a job for each event that matches.

use std::borrow::Cow;

use axum::{extract::State, http::StatusCode, response::IntoResponse};
use tidegate_api::{TriggerPage, TriggerView};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Api, HandlerResult,
    body::Body,
    error::Problem,
    media::Accept,
    params::{IfMatch, Name},
    resource::{self, Configure, Delete, Get, Item, List},
};
use tidegate_core::{
    event::{TriggerConfig, trigger::TriggerItem},
    job::TriggerName,
    time::Timestamp,
};

impl Item for TriggerItem {
    type Name = TriggerName;
    type View = TriggerView<'static>;

    fn version(&self) -> u64 {
        self.version
    }

    fn view(self, name: TriggerName, _: Accept, _: Timestamp) -> Result<Self::View, Problem> {
        let Self { config, version } = self;
        Ok(TriggerView { name: Cow::Owned(name), config: Cow::Owned(config), version })
    }
}

/// Configure a trigger. It is validated as a whole, and applies to every event that is sent after
/// the answer.
#[utoipa::path(
    put, path = "/v1/triggers/{trigger}", operation_id = "put_trigger", tag = "events",
    request_body = TriggerConfig,
    params(
        (
            "trigger" = String, Path,
            description = "The trigger's name: 1 to 64 of `A-Z a-z 0-9 _ . -`",
        ),
        (
            "If-Match" = Option<String>, Header,
            description = "The `ETag` that must still be current",
        ),
    ),
    responses(
        (status = 201, description = "The trigger is new", body = TriggerView),
        (status = 200, description = "Replaced", body = TriggerView),
        (
            status = 400,
            description = "`invalid_trigger`, `invalid_expression`, `unknown_field`; `field` \
                names the field",
        ),
        (status = 409, description = "`too_many_triggers`"),
        (status = 412, description = "`precondition_failed`: it has changed since it was read"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn put(
    (State(api), accept, _, Name(name), IfMatch(version)): Configure<TriggerName>,
    body: Body,
) -> HandlerResult {
    let put = api.server.put_trigger(&name, body.read()?, version).await?;
    resource::stored(&api, accept, name, put)
}

/// A trigger.
#[utoipa::path(
    get, path = "/v1/triggers/{trigger}", operation_id = "get_trigger", tag = "events",
    params(("trigger" = String, Path, description = "The trigger's name")),
    responses(
        (status = 200, description = "The trigger, its `ETag` the version", body = TriggerView),
        (status = 404, description = "`trigger_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn get((State(api), accept, _, Name(name)): Get<TriggerName>) -> HandlerResult {
    let item = api.server.trigger(&name).await?;
    resource::shown(&api, accept, name, item)
}

/// Triggers, by name.
#[utoipa::path(
    get, path = "/v1/triggers", operation_id = "list_triggers", tag = "events",
    params(
        (
            "limit" = Option<u32>, Query,
            description = "Maximum number of triggers on the page, 1 to 1000 (default 100)",
        ),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
    ),
    responses((status = 200, description = "A page", body = TriggerPage)),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn list((State(api), accept, _, request): List) -> HandlerResult {
    let (items, next_cursor) = request.page(api.server.triggers().await?);
    let triggers = resource::views(&api, accept, items)?;
    Ok(accept.ok(TriggerPage { triggers, next_cursor }).into_response())
}

/// Delete a trigger. Its dead letters stay.
#[utoipa::path(
    delete, path = "/v1/triggers/{trigger}", operation_id = "delete_trigger", tag = "events",
    params(
        ("trigger" = String, Path, description = "The trigger's name"),
        (
            "If-Match" = Option<String>, Header,
            description = "The `ETag` that must still be current",
        ),
    ),
    responses(
        (status = 204, description = "Deleted"),
        (status = 404, description = "`trigger_not_found`"),
        (status = 412, description = "`precondition_failed`: it has changed since it was read"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn delete(
    (State(api), _, Name(name), IfMatch(version)): Delete<TriggerName>,
) -> Result<StatusCode, Problem> {
    api.server.delete_trigger(&name, version).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The routes of triggers.
pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(put, get, delete))
}
