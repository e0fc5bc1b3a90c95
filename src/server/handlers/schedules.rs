//! Schedules: configured, looked at, paused, run out of turn.
//!
//! `data` is kept byte for byte, as a job's is, so it is read apart from the settings, and a patch replaces it whole.

use std::borrow::Cow;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tidegate_api::{AnyValue, JobView, ScheduleBody, SchedulePage, ScheduleView};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Answer, Api,
    access::{Admin, Enqueue, May, Read},
    body::{self, Body},
    config::{Patch, patched},
    error::Problem,
    jobs::enqueue::accepted,
    media::Accept,
    params::{IdempotencyKey, IfMatch, Name, Params, page},
};
use tidegate_core::{
    job::{Payload, ScheduleName},
    schedule::{SCHEDULE_DATA_BYTES, ScheduleConfig, ScheduleItem, ScheduleState},
    time::Timestamp,
};
use tidegate_engine::Error;

/// How often a patch without `If-Match` is made again when somebody else was faster.
const TRIES: usize = 5;
/// How many of the occurrences to come are shown.
const MAX_SHOWN_OCCURRENCES: usize = 10;

fn view<'a>(
    name: &'a ScheduleName,
    item: &'a ScheduleItem,
    state: &'a ScheduleState,
    now: Timestamp,
    accept: Accept,
) -> ScheduleView<'a> {
    let recurrence = item.config.recurrence();
    ScheduleView {
        name: Cow::Borrowed(name),
        config: Cow::Borrowed(&item.config),
        data: AnyValue::new(&item.data, accept.0),
        version: item.version,
        next: recurrence
            .map(|recurrence| recurrence.all_after(now).take(MAX_SHOWN_OCCURRENCES).collect())
            .unwrap_or_default(),
        last_occurrence: state.last_occurrence,
        last_job: state.last_job.as_ref().map(Cow::Borrowed),
        last_error: state.last_error.as_ref().map(Cow::Borrowed),
        missed_count: state.missed,
    }
}

/// The schedule as it stands, with its `ETag`.
async fn shown(
    api: &Api,
    accept: Accept,
    status: StatusCode,
    name: &ScheduleName,
) -> Result<Response, Problem> {
    let (item, state) = api.server.schedule(name).await?;
    let view = view(name, &item, &state, api.server.now(), accept);
    Ok(accept.reply(status, view).etag(item.version).into_response())
}

/// What a request says of a schedule: the settings, and `data` if it is there.
fn read(api: &Api, body: &Body) -> Result<(Patch, Option<Payload>), Problem> {
    #[derive(Deserialize)]
    struct Data<'a> {
        #[serde(borrow, default, deserialize_with = "body::present")]
        data: Option<&'a RawValue>,
    }
    let mut settings: Patch = body.read()?;
    settings.remove("data");
    let Data { data } = body.read()?;
    let most = api.options.max_data_bytes.min(SCHEDULE_DATA_BYTES);
    Ok((settings, data.map(|raw| body.value(raw, "data", most)).transpose()?))
}

/// Create a schedule, or replace it; absent settings have their defaults.
///
/// Its rule applies from now on: earlier occurrences are not made up for. If neither the rule nor
/// `paused` changes, it continues where it is; jobs that were created ahead of their time are created
/// again.
#[utoipa::path(put, path = "/v1/schedules/{schedule}", operation_id = "put_schedule", tag = "schedules", request_body = ScheduleBody,
    params(
        ("schedule" = String, Path, description = "The schedule's name: 1 to 64 of `A-Z a-z 0-9 _ . -`"),
        ("If-Match" = Option<String>, Header, description = "The `ETag` that must still be current"),
    ),
    responses(
        (status = 201, description = "The schedule is new", body = ScheduleView),
        (status = 200, description = "Replaced", body = ScheduleView),
        (status = 404, description = "`job_type_not_found`"),
        (status = 409, description = "`too_many_schedules`: there are 10000 already"),
        (status = 412, description = "`precondition_failed`: it has changed since it was read"),
    ), security(("bearer" = ["admin"]), ("basic" = ["admin"])))]
async fn put(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    Name(name): Name<ScheduleName>,
    IfMatch(version): IfMatch,
    body: Body,
) -> Answer {
    let (settings, data) = read(&api, &body)?;
    let config: ScheduleConfig = body::read(Value::Object(settings).to_string().as_bytes())?;
    let (_, new) =
        api.server.put_schedule(&name, config, data.unwrap_or_else(Payload::null), version).await?;
    shown(&api, accept, if new { StatusCode::CREATED } else { StatusCode::OK }, &name).await
}

/// Change some settings of a schedule, by JSON merge patch; null resets a setting to its default. `data` is replaced whole.
#[utoipa::path(patch, path = "/v1/schedules/{schedule}", operation_id = "patch_schedule", tag = "schedules", request_body = ScheduleBody,
    params(
        ("schedule" = String, Path, description = "The schedule's name"),
        ("If-Match" = Option<String>, Header, description = "The `ETag` that must still be current"),
    ),
    responses(
        (status = 200, description = "Changed", body = ScheduleView),
        (status = 404, description = "`schedule_not_found`, `job_type_not_found`"),
        (status = 412, description = "`precondition_failed`: it has changed since it was read"),
    ), security(("bearer" = ["admin"]), ("basic" = ["admin"])))]
async fn patch(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    Name(name): Name<ScheduleName>,
    IfMatch(version): IfMatch,
    body: Body,
) -> Answer {
    let (change, data) = read(&api, &body)?;
    let mut tries = 0..TRIES;
    loop {
        let (standing, _) = api.server.schedule(&name).await?;
        let config = patched(&standing.config, change.clone())?;
        let data = data.as_ref().unwrap_or(&standing.data).clone();
        match api.server.put_schedule(&name, config, data, version.or(Some(standing.version))).await
        {
            Err(Error::Stale { .. }) if version.is_none() && tries.next().is_some() => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return shown(&api, accept, StatusCode::OK, &name).await,
        }
    }
}

/// A schedule: its settings, its state and its next ten occurrences.
#[utoipa::path(get, path = "/v1/schedules/{schedule}", operation_id = "get_schedule", tag = "schedules",
    params(("schedule" = String, Path, description = "The schedule's name")),
    responses(
        (status = 200, description = "The schedule, its `ETag` the version", body = ScheduleView),
        (status = 404, description = "`schedule_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])))]
async fn get(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    Name(name): Name<ScheduleName>,
) -> Answer {
    shown(&api, accept, StatusCode::OK, &name).await
}

/// Schedules, by name.
#[utoipa::path(get, path = "/v1/schedules", operation_id = "list_schedules", tag = "schedules",
    params(
        ("limit" = Option<u32>, Query, description = "Most schedules of the page, 1 to 1000 (default 100)"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
    ),
    responses((status = 200, description = "A page", body = SchedulePage)),
    security(("bearer" = ["read"]), ("basic" = ["read"])))]
async fn list(State(api): State<Api>, accept: Accept, _: May<Read>, mut params: Params) -> Answer {
    let (limit, cursor) = (params.limit()?, params.one::<String>("cursor")?);
    params.done()?;
    let (items, next_cursor) = page(api.server.schedules().await?, cursor.as_deref(), limit);
    let now = api.server.now();
    let schedules =
        items.iter().map(|(name, (item, state))| view(name, item, state, now, accept)).collect();
    Ok(accept.ok(SchedulePage { schedules, next_cursor }).into_response())
}

/// Delete a schedule. Its jobs stay, except those that are not due yet.
///
/// A repeat of an interrupted deletion completes it, whatever its `If-Match`.
#[utoipa::path(delete, path = "/v1/schedules/{schedule}", operation_id = "delete_schedule", tag = "schedules",
    params(
        ("schedule" = String, Path, description = "The schedule's name"),
        ("If-Match" = Option<String>, Header, description = "The `ETag` that must still be current"),
    ),
    responses(
        (status = 204, description = "Deleted"),
        (status = 404, description = "`schedule_not_found`"),
        (status = 412, description = "`precondition_failed`: it has changed since it was read"),
    ), security(("bearer" = ["admin"]), ("basic" = ["admin"])))]
async fn delete(
    State(api): State<Api>,
    _: May<Admin>,
    Name(name): Name<ScheduleName>,
    IfMatch(version): IfMatch,
) -> Result<StatusCode, Problem> {
    api.server.delete_schedule(&name, version).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Pause a schedule. Its jobs stay, except those that are not due yet.
#[utoipa::path(post, path = "/v1/schedules/{schedule}/pause", operation_id = "pause_schedule", tag = "schedules",
    params(("schedule" = String, Path, description = "The schedule's name")),
    responses((status = 200, description = "Paused", body = ScheduleView), (status = 404, description = "`schedule_not_found`")),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])))]
async fn pause(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    Name(name): Name<ScheduleName>,
) -> Answer {
    api.server.pause_schedule(&name, true).await?;
    shown(&api, accept, StatusCode::OK, &name).await
}

/// Resume a paused schedule from now. Occurrences during the pause are not made up for.
#[utoipa::path(post, path = "/v1/schedules/{schedule}/resume", operation_id = "resume_schedule", tag = "schedules",
    params(("schedule" = String, Path, description = "The schedule's name")),
    responses((status = 200, description = "Resumed", body = ScheduleView), (status = 404, description = "`schedule_not_found`")),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])))]
async fn resume(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    Name(name): Name<ScheduleName>,
) -> Answer {
    api.server.pause_schedule(&name, false).await?;
    shown(&api, accept, StatusCode::OK, &name).await
}

/// Create a job of a schedule now, in addition to its occurrences, paused or not.
#[utoipa::path(post, path = "/v1/schedules/{schedule}/run", operation_id = "run_schedule", tag = "schedules",
    params(
        ("schedule" = String, Path, description = "The schedule's name"),
        ("Idempotency-Key" = Option<String>, Header, description = "A repeat with the same key creates nothing; at most 255 bytes"),
    ),
    responses(
        (status = 201, description = "The job", body = JobView),
        (status = 200, description = "The job that an earlier request created", body = JobView),
        (status = 404, description = "`schedule_not_found`, `job_type_not_found`"),
    ), security(("bearer" = ["enqueue"]), ("basic" = ["enqueue"])))]
async fn run(
    State(api): State<Api>,
    accept: Accept,
    caller: May<Enqueue>,
    Name(name): Name<ScheduleName>,
    IdempotencyKey(key): IdempotencyKey,
) -> Answer {
    let (item, _) = api.server.schedule(&name).await?;
    if item.config.options.critical {
        caller.critical()?;
    }
    let data = tidegate_core::job::Body::Inline(item.data.clone());
    accepted(&api, accept, api.server.run_schedule(&name, key).await?, data).await
}

/// The routes of schedules.
pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(put, patch, get, delete))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(run))
}
