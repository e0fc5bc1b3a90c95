//! Triggers: rules that enqueue or complete a job for each event that matches.

use std::borrow::Cow;

use axum::{
    extract::{Request, State},
    http::StatusCode,
    response::IntoResponse,
};
use serde_json::Value;
use tidegate_api::{
    AnyValue, CloudEvent, Scope, TriggerPage, TriggerStatus, TriggerTrial, TriggerView,
};

use super::{
    Api, HandlerResult,
    access::{May, Read, Within},
    body::Body,
    error::Problem,
    events,
    media::Accept,
    params::{Force, IfMatch, Name, Params},
    resource::{self, Configure, Delete, Get, Item, List},
    routes::{Routes, routes},
};
use crate::runtime::MAX_TRIGGER_EVENTS;
use tidegate_core::{
    event::{TriggerConfig, template::Template, trigger::TriggerItem},
    job::TriggerName,
    time::Timestamp,
};
use tidegate_engine::events::trial::Trial;

/// How many of the latest events an answer shows by default.
const SHOWN_EVENTS: usize = 20;

impl Item for TriggerItem {
    type Name = TriggerName;
    type View = TriggerView<'static>;

    fn version(&self) -> u64 {
        self.version
    }

    fn view(self, name: TriggerName, _: Accept, _: Timestamp) -> Result<Self::View, Problem> {
        let Self { config, version } = self;
        let (name, config) = (Cow::Owned(name), Cow::Owned(config));
        Ok(TriggerView { name, config, version, status: None })
    }
}

/// A trigger with its status, as reads show it.
impl Item for (TriggerItem, Option<TriggerStatus>) {
    type Name = TriggerName;
    type View = TriggerView<'static>;

    fn version(&self) -> u64 {
        self.0.version
    }

    fn view(
        self,
        name: TriggerName,
        accept: Accept,
        now: Timestamp,
    ) -> Result<Self::View, Problem> {
        let (item, status) = self;
        Ok(TriggerView { status, ..item.view(name, accept, now)? })
    }
}

/// Hides the query of the callback URL, unless that is an expression, from a caller who may not
/// configure it: it may have a key.
fn hide_query(caller: &Within<Read>, item: &mut TriggerItem) {
    if let Some(Template(Value::String(url))) = item.config.enqueue.get_mut("callback_url")
        && let Some((start, _)) = url.split_once('?')
        && !caller.caller.may(Scope::Admin)
    {
        *url = format!("{start}?***");
    }
}

/// Configure a trigger. It is validated as a whole, and applies to every event that is sent after
/// the answer.
///
/// A stored trigger that cannot be read is replaced only if `force` is true: it may be damaged or
/// written by a newer release.
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
        (
            "force" = Option<bool>, Query,
            description = "Replace a stored configuration that cannot be read",
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
    Force(force): Force,
    body: Body,
) -> HandlerResult {
    let put = if force {
        api.server.replace_trigger(&name, body.read()?, version).await?
    } else {
        api.server.put_trigger(&name, body.read()?, version).await?
    };
    resource::stored(&api, accept, name, put)
}

/// A trigger.
#[utoipa::path(
    get, path = "/v1/triggers/{trigger}", operation_id = "get_trigger", tag = "events",
    params(
        ("trigger" = String, Path, description = "The trigger's name"),
        (
            "events" = Option<u32>, Query,
            description = "Maximum number of its latest events, 0 to 200 (default 20)",
        ),
    ),
    responses(
        (status = 200, description = "The trigger, its `ETag` the version", body = TriggerView),
        (status = 404, description = "`trigger_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn get(
    (State(api), accept, caller, Name(name)): Get<TriggerName>,
    mut params: Params,
) -> HandlerResult {
    let events = params.one("events")?.unwrap_or(SHOWN_EVENTS);
    params.done()?;
    if events > MAX_TRIGGER_EVENTS {
        return Err(Problem::invalid("events", format!("must be 0 to {MAX_TRIGGER_EVENTS}")));
    }
    let mut item = api.server.trigger(&name).await?;
    hide_query(&caller, &mut item);
    let status = api.server.trigger_statuses(std::slice::from_ref(&name), events).await?;
    let status = status.into_iter().next().flatten();
    resource::shown(&api, accept, name, (item, status))
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
async fn list((State(api), accept, caller, request): List) -> HandlerResult {
    let (mut items, next_cursor) = request.page(api.server.triggers().await?);
    for (_, item) in &mut items {
        hide_query(&caller, item);
    }
    let names: Vec<TriggerName> = items.iter().map(|(name, _)| name.clone()).collect();
    let statuses = api.server.trigger_statuses(&names, SHOWN_EVENTS).await?;
    let with_status = items.into_iter().zip(statuses);
    let with_status = with_status.map(|((name, item), status)| (name, (item, status)));
    let triggers = resource::views(&api, accept, with_status.collect())?;
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

/// What a trigger would do about an event. Nothing is done.
///
/// The request has one event, in any mode of `CloudEvents` 1.0, as for `POST /v1/events`.
#[utoipa::path(
    post, path = "/v1/triggers/{trigger}/test", operation_id = "test_trigger", tag = "events",
    request_body(
        content(
            (CloudEvent = "application/cloudevents+json"),
            (CloudEvent = "application/cloudevents+msgpack"),
            (AnyValue = "*/*"),
        ),
    ),
    params(
        ("trigger" = String, Path, description = "The trigger's name"),
        (
            "ce-specversion" = Option<String>, Header,
            description = "In the binary mode: `1.0`, and the other attributes as for \
                `POST /v1/events`",
        ),
    ),
    responses(
        (status = 200, description = "What it would do", body = TriggerTrial),
        (status = 404, description = "`trigger_not_found`"),
        (status = 413, description = "`too_large`: an event over the limit; `body_too_large`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn test(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    Name(name): Name<TriggerName>,
    request: Request,
) -> HandlerResult {
    let event = events::receive_one(&api, request).await?;
    let Trial { action, job, reason } = api.server.try_trigger(&name, &event).await?;
    Ok(accept.ok(TriggerTrial { action: action.into(), job, reason }).into_response())
}

/// The routes of triggers.
pub fn routes() -> Routes {
    routes!(list, put, get, delete, test)
}
