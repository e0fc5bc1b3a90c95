//! Schedules: configured, shown, paused, run on request.
//!
//! `data` is kept byte for byte, like that of a job. So it is read separately from the settings,
//! and a patch replaces it whole.

use std::{borrow::Cow, sync::Arc};

use axum::{extract::State, http::StatusCode, response::IntoResponse};
use serde::Deserialize;
use serde_json::value::RawValue;
use tidegate_api::{
    AnyValue, JobView, Occurrence, ScheduleBody, SchedulePage, ScheduleView, Scope, without_query,
};

use super::{
    Api, HandlerResult,
    access::{Enqueue, May, Read, Within, check_critical},
    body::Body,
    config::{Fields, patched},
    error::Problem,
    jobs::enqueue::accepted,
    media::Accept,
    params::{DryRun, IdempotencyKey, IfMatch, Name, PutMode},
    resource::{self, Configure, Delete, Get, Item, List, Pause},
    routes::{Routes, routes},
};
use tidegate_core::{
    job::{Payload, ScheduleName},
    schedule::{SCHEDULE_DATA_BYTES, ScheduleItem, ScheduleState, occurrence_id},
    strict::present,
    time::Timestamp,
};
use tidegate_engine::{
    Error,
    request::{PauseOnPut, ScheduleRequest},
};

/// How many of the next and of the previous occurrences an answer shows.
const MAX_SHOWN_OCCURRENCES: usize = 10;

impl Item for (Arc<ScheduleItem>, ScheduleState) {
    type Name = ScheduleName;
    type View = ScheduleView<'static>;

    fn version(&self) -> u64 {
        self.0.version
    }

    fn view(
        self,
        name: ScheduleName,
        accept: Accept,
        now: Timestamp,
    ) -> Result<Self::View, Problem> {
        let (item, state) = self;
        let recurrence = item.config.recurrence();
        let previous = item.previous(&state, now, MAX_SHOWN_OCCURRENCES).into_iter();
        let previous = previous.map(|at| {
            let job = Cow::Owned(occurrence_id(&name, at));
            Occurrence { at, job }
        });
        let previous = previous.collect();
        Ok(ScheduleView {
            name: Cow::Owned(name),
            config: Cow::Owned(item.config.clone()),
            data: AnyValue::new(&item.data, accept.0),
            version: item.version,
            next: recurrence
                .map(|recurrence| {
                    // After the clock was set back, earlier ones have had their jobs.
                    let next = recurrence.all_after(now.max(state.upto));
                    next.take(MAX_SHOWN_OCCURRENCES).collect()
                })
                .unwrap_or_default(),
            previous,
            last_occurrence: state.last_occurrence,
            last_job: state.last_job.map(Cow::Owned),
            last_error: state.last_error.map(Cow::Owned),
            missed_count: state.missed,
        })
    }
}

/// Hides the query of the callback URL from a caller who may not configure it: it may have a key.
fn hide_query(caller: &Within<Read>, item: &mut Arc<ScheduleItem>) {
    if let Some(url) = &item.config.options.callback_url
        && !caller.caller.may(Scope::Admin)
    {
        let url = without_query(url).into_owned();
        Arc::make_mut(item).config.options.callback_url = Some(url);
    }
}

/// The settings in a request, and `data` if it is there.
fn read(api: &Api, body: &Body) -> Result<(Fields, Option<Payload>), Problem> {
    #[derive(Deserialize)]
    struct Data<'a> {
        #[serde(borrow, default, deserialize_with = "present")]
        data: Option<&'a RawValue>,
    }
    let settings = body.read::<Fields>()?.without("data");
    let Data { data } = body.read()?;
    let most = api.options.max_data_bytes.min(SCHEDULE_DATA_BYTES);
    Ok((settings, data.map(|raw| body.value(raw, "data", most)).transpose()?))
}

/// Stores a schedule and reads it back with its state; the second value is whether it is new.
async fn stored(
    api: &Api,
    name: &ScheduleName,
    (config, data): (impl Into<ScheduleRequest>, Payload),
    if_match: Option<u64>,
) -> Result<((Arc<ScheduleItem>, ScheduleState), bool), Error> {
    let (_, new) = api.server.put_schedule(name, config, data, if_match).await?;
    Ok((api.server.schedule(name).await?, new))
}

/// Create a schedule, or replace it; absent settings have their defaults, but a paused schedule
/// stays paused unless the request has `paused`.
///
/// Its rule applies from now on: earlier occurrences create no jobs. If neither the rule nor
/// `paused` changes, the schedule continues; jobs that were created ahead of time are created
/// again.
///
/// A stored schedule that cannot be read is replaced only if `force` is true: it may be damaged or
/// written by a newer release. Jobs that it had created ahead of time stay.
#[utoipa::path(
    put, path = "/v1/schedules/{schedule}", operation_id = "put_schedule", tag = "schedules",
    request_body = ScheduleBody,
    params(
        (
            "schedule" = String, Path,
            description = "The schedule's name: 1 to 64 of `A-Z a-z 0-9 _ . -`",
        ),
        (
            "If-Match" = Option<String>, Header,
            description = "The `ETag` that must still be current",
        ),
        (
            "dry_run" = Option<bool>, Query,
            description = "Check and show the change, and store nothing: the answer has the new \
                settings and the stored version, 0 if there is none",
        ),
        (
            "force" = Option<bool>, Query,
            description = "Replace a stored configuration that cannot be read",
        ),
    ),
    responses(
        (status = 201, description = "The schedule is new", body = ScheduleView),
        (status = 200, description = "Replaced, or a dry run", body = ScheduleView),
        (status = 404, description = "`job_type_not_found`"),
        (status = 409, description = "`too_many_schedules`: there are 10000 already"),
        (status = 412, description = "`precondition_failed`: it has changed since it was read"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn put(
    (State(api), accept, _, Name(name), IfMatch(version)): Configure<ScheduleName>,
    mode: PutMode,
    body: Body,
) -> HandlerResult {
    let (settings, data) = read(&api, &body)?;
    // Operators pause a schedule; what declares its settings need not know that.
    let says_paused = settings.get("paused").is_some_and(|paused| !paused.is_null());
    let pause = if says_paused { PauseOnPut::AsConfigured } else { PauseOnPut::Keep };
    let config = ScheduleRequest { config: settings.config()?, pause };
    let data = data.unwrap_or_else(Payload::null);
    if mode.dry_run {
        let item = api.server.preview_schedule(&name, config, data, version).await?;
        return resource::shown(&api, accept, name, item);
    }
    let put = if mode.force {
        let (_, new) = api.server.replace_schedule(&name, config, data, version).await?;
        (api.server.schedule(&name).await?, new)
    } else {
        stored(&api, &name, (config, data), version).await?
    };
    resource::stored(&api, accept, name, put)
}

/// Change some settings of a schedule, by JSON merge patch; null resets a setting to its default.
/// `data` is replaced whole.
#[utoipa::path(
    patch, path = "/v1/schedules/{schedule}", operation_id = "patch_schedule", tag = "schedules",
    request_body = ScheduleBody,
    params(
        ("schedule" = String, Path, description = "The schedule's name"),
        (
            "If-Match" = Option<String>, Header,
            description = "The `ETag` that must still be current",
        ),
        (
            "dry_run" = Option<bool>, Query,
            description = "Check and show the change, and store nothing: the answer has the new \
                settings and the stored version",
        ),
    ),
    responses(
        (status = 200, description = "Changed", body = ScheduleView),
        (status = 404, description = "`schedule_not_found`, `job_type_not_found`"),
        (status = 412, description = "`precondition_failed`: it has changed since it was read"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn patch(
    (State(api), accept, _, Name(name), IfMatch(version)): Configure<ScheduleName>,
    DryRun(dry_run): DryRun,
    body: Body,
) -> HandlerResult {
    let (patch, data) = read(&api, &body)?;
    if dry_run {
        let (item, _) = api.server.schedule(&name).await?;
        let config = patched(&item.config, patch)?;
        let data = data.unwrap_or_else(|| item.data.clone());
        let item = api.server.preview_schedule(&name, config, data, version).await?;
        return resource::shown(&api, accept, name, item);
    }
    let item = resource::patch(
        version,
        || api.server.schedule(&name),
        |(item, _)| {
            let data = data.as_ref().unwrap_or(&item.data).clone();
            Ok((patched(&item.config, patch.clone())?, data))
        },
        |config, version| stored(&api, &name, config, version),
    );
    let item = item.await?;
    resource::shown(&api, accept, name, item)
}

/// A schedule: its settings, its state and its next ten occurrences.
#[utoipa::path(
    get, path = "/v1/schedules/{schedule}", operation_id = "get_schedule", tag = "schedules",
    params(("schedule" = String, Path, description = "The schedule's name")),
    responses(
        (status = 200, description = "The schedule, its `ETag` the version", body = ScheduleView),
        (status = 404, description = "`schedule_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn get((State(api), accept, caller, Name(name)): Get<ScheduleName>) -> HandlerResult {
    let mut item = api.server.schedule(&name).await?;
    hide_query(&caller, &mut item.0);
    resource::shown(&api, accept, name, item)
}

/// Schedules, by name.
#[utoipa::path(
    get, path = "/v1/schedules", operation_id = "list_schedules", tag = "schedules",
    params(
        (
            "limit" = Option<u32>, Query,
            description = "Maximum number of schedules on the page, 1 to 1000 (default 100)",
        ),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
    ),
    responses((status = 200, description = "A page", body = SchedulePage)),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn list((State(api), accept, caller, request): List) -> HandlerResult {
    let (mut items, next_cursor) = request.page(api.server.schedules().await?);
    for (_, (item, _)) in &mut items {
        hide_query(&caller, item);
    }
    let schedules = resource::views(&api, accept, items)?;
    Ok(accept.ok(SchedulePage { schedules, next_cursor }).into_response())
}

/// Delete a schedule. Its jobs stay, except those that are not due yet.
///
/// A repeat of an interrupted deletion completes it, whatever its `If-Match`.
#[utoipa::path(
    delete, path = "/v1/schedules/{schedule}", operation_id = "delete_schedule", tag = "schedules",
    params(
        ("schedule" = String, Path, description = "The schedule's name"),
        (
            "If-Match" = Option<String>, Header,
            description = "The `ETag` that must still be current",
        ),
    ),
    responses(
        (status = 204, description = "Deleted"),
        (status = 404, description = "`schedule_not_found`"),
        (status = 412, description = "`precondition_failed`: it has changed since it was read"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn delete(
    (State(api), _, Name(name), IfMatch(version)): Delete<ScheduleName>,
) -> Result<StatusCode, Problem> {
    api.server.delete_schedule(&name, version).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Pause a schedule. Its jobs stay, except those that are not due yet.
#[utoipa::path(
    post, path = "/v1/schedules/{schedule}/pause", operation_id = "pause_schedule",
    tag = "schedules",
    params(("schedule" = String, Path, description = "The schedule's name")),
    responses(
        (status = 200, description = "Paused", body = ScheduleView),
        (status = 404, description = "`schedule_not_found`"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn pause((State(api), accept, _, Name(name)): Pause<ScheduleName>) -> HandlerResult {
    api.server.pause_schedule(&name, true).await?;
    let item = api.server.schedule(&name).await?;
    resource::shown(&api, accept, name, item)
}

/// Resume a paused schedule from now. Occurrences during the pause create no jobs.
#[utoipa::path(
    post, path = "/v1/schedules/{schedule}/resume", operation_id = "resume_schedule",
    tag = "schedules",
    params(("schedule" = String, Path, description = "The schedule's name")),
    responses(
        (status = 200, description = "Resumed", body = ScheduleView),
        (status = 404, description = "`schedule_not_found`"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn resume((State(api), accept, _, Name(name)): Pause<ScheduleName>) -> HandlerResult {
    api.server.pause_schedule(&name, false).await?;
    let item = api.server.schedule(&name).await?;
    resource::shown(&api, accept, name, item)
}

/// Create a job of a schedule now, in addition to its occurrences, paused or not.
#[utoipa::path(
    post, path = "/v1/schedules/{schedule}/run", operation_id = "run_schedule", tag = "schedules",
    params(
        ("schedule" = String, Path, description = "The schedule's name"),
        (
            "Idempotency-Key" = Option<String>, Header,
            description = "A repeat with the same key creates nothing; at most 255 bytes",
        ),
    ),
    responses(
        (status = 201, description = "The job", body = JobView),
        (status = 200, description = "The job that an earlier request created", body = JobView),
        (status = 404, description = "`schedule_not_found`, `job_type_not_found`"),
    ),
    security(("bearer" = ["enqueue"]), ("basic" = ["enqueue"])),
)]
async fn run(
    State(api): State<Api>,
    accept: Accept,
    caller: May<Enqueue>,
    Name(name): Name<ScheduleName>,
    IdempotencyKey(key): IdempotencyKey,
) -> HandlerResult {
    let (item, _) = api.server.schedule(&name).await?;
    if item.config.options.critical {
        check_critical(&caller)?;
    }
    let data = tidegate_core::job::Body::Inline(item.data.clone());
    let by = caller.producer().map(str::to_owned);
    let enqueued = api.server.run_schedule(&name, key, by).await?;
    accepted(&api, accept, &caller, enqueued, data).await
}

/// The routes of schedules.
pub fn routes() -> Routes {
    routes!(list, put, patch, get, delete, pause, resume, run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{job::Encoding, schedule::ScheduleConfig, time::Seconds};
    use tidegate_engine::testkit::builders::name;

    #[test]
    fn next_leaves_out_what_had_its_jobs_before_a_step_back() {
        let hour = |hours: i64| Timestamp::from_millis(hours * 3_600_000);
        let item = Arc::new(ScheduleItem {
            config: ScheduleConfig::every(name("work"), Seconds::new(3600)),
            data: Payload::null(),
            version: 1,
            rule: 1,
            since: Timestamp::EPOCH,
            replaced: None,
        });
        let first = |now: Timestamp| {
            let state = ScheduleState { upto: hour(8), ..ScheduleState::default() };
            let item = (Arc::clone(&item), state);
            item.view(name("hourly"), Accept(Encoding::Json), now).unwrap().next[0]
        };
        assert_eq!(first(hour(10)), hour(11));
        assert_eq!(first(hour(5)), hour(9), "6 to 8 have had their jobs");
    }
}
