//! The stream of changes, as server-sent events.

use std::collections::BTreeSet;

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use tidegate_api::{
    JobChange, JobTypeChange, QueueChange, RemovedJob, SkippedChanges, StreamReady, WorkerChange,
};

use super::{
    Api, HandlerResult,
    access::{Read, Recheck, Within, outside},
    error::Problem,
    params::Params,
    routes::{Routes, routes},
};
use crate::runtime::changes::ChangeFilter;
use tidegate_core::job::JobId;

/// Most ids of a stream.
const MAX_IDS: usize = 100;

/// Changes of jobs, queues, types and workers as they are committed: server-sent events.
///
/// The first event is `ready`: unless it has `resumed`, read the state that you show now, and then
/// apply what follows. Events are `job`, `removed`, `queue`, `job_type` and `worker`, each with its schema as `data`. With
/// `queue`, `type` or `id` only events of these come. A token with bounds gets only what is within
/// them, and no events of workers.
///
/// A connection ends after 15 minutes, within 15 seconds after its token was revoked or expired,
/// and when the server stops. Connect again with the id of the last event, in `Last-Event-ID` or
/// `after`: the latest 4096 changes are kept for a minute after the last reader. The event
/// `skipped` means that changes are missing: they are no longer kept, came faster than the reader
/// takes them, or were more than 1000 in a tenth of a second. Read your state again then.
///
/// Each of several servers that share a store sends the changes of all. It is `skipped`, too, if
/// changes of another server are missing: a server began or ended, was behind, or had more than about
/// 250 in a tenth of a second. An id of an event is one of the server that sent it.
///
/// A serverless deployment answers 501 `streams_not_supported`.
#[utoipa::path(
    get, path = "/v1/stream", operation_id = "stream", tag = "operate",
    params(
        ("queue" = Option<String>, Query, description = "Only changes of this queue and its jobs"),
        ("type" = Option<String>, Query, description = "Only changes of this type and its jobs"),
        (
            "id" = Option<String>, Query,
            description = "Only changes of these jobs: ids with commas between them, at most 100. \
                They are never skipped for their number, except those of other servers",
        ),
        ("after" = Option<String>, Query, description = "The id of the last event"),
        ("Last-Event-ID" = Option<String>, Header, description = "The same, as browsers send it"),
    ),
    responses(
        (
            status = 200, description = "Events", content_type = "text/event-stream",
            body = StreamEvent,
        ),
        (status = 501, description = "`streams_not_supported`"),
        (status = 503, description = "`too_many_streams`: there are 1000"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
pub async fn stream_changes(
    State(api): State<Api>,
    caller: Within<Read>,
    headers: HeaderMap,
    mut params: Params,
) -> HandlerResult {
    let mut ids = BTreeSet::new();
    for text in params.all("id").iter().flat_map(|value| value.split(',')) {
        let id = text.parse::<JobId>();
        ids.insert(id.map_err(|error| Problem::invalid("id", error.to_string()))?);
    }
    if ids.len() > MAX_IDS {
        return Err(Problem::invalid("id", format!("must have at most {MAX_IDS} entries")));
    }
    let bounds = caller.bounds().clone();
    let filter =
        ChangeFilter { queue: params.one("queue")?, job_type: params.one("type")?, ids, bounds };
    let after = params.one::<String>("after")?;
    params.done()?;
    if filter.queue.as_ref().is_some_and(|queue| !filter.bounds.allow_queue(queue))
        || filter.job_type.as_ref().is_some_and(|name| !filter.bounds.allow_type(name))
    {
        return Err(outside());
    }
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let reader = api.server.changes(filter, last.or(after.as_deref()))?;
    let recheck = Recheck::new(&caller, &headers, &api.options)?;
    let events = stream::unfold((reader, recheck), |(mut reader, recheck)| async move {
        let events = reader.next().await?;
        if reader.is_check_due() && !recheck.is_allowed().await {
            return None;
        }
        Some((Ok::<_, std::convert::Infallible>(events), (reader, recheck)))
    });
    let mut response: Response = Body::from_stream(events).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // A proxy that collects responses would hold the events back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// The `data` of an event.
#[derive(utoipa::ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it describes the events in the document")]
enum StreamEvent {
    Job(JobChange<'static>),
    Removed(RemovedJob),
    Queue(QueueChange),
    JobType(JobTypeChange),
    Worker(WorkerChange),
    Ready(StreamReady),
    Skipped(SkippedChanges),
}

/// The route of the stream.
pub fn routes() -> Routes {
    routes!(stream_changes)
}
