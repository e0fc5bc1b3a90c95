//! Events: ingested in every mode of CloudEvents 1.0 over HTTP; and dead letters.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    response::IntoResponse,
};
use tidegate_api::{
    AnyValue, CloudEvent, DeadLetterPage, DeadLetterView, EventAnswer, EventBatch, EventResult,
    ReplayDeadLetters, ReplayedDeadLetters,
};
use tidegate_core::error_code::ErrorCode;

use super::{
    Api, HandlerResult, MAX_BATCH_BYTES,
    access::{Admin, Enqueue, May, Read},
    body::{Body, bounded},
    convert,
    error::Problem,
    media::{self, Accept},
    params::{Name, Params},
    routes::{Routes, routes},
};
use tidegate_core::{
    event::{Event, read},
    job::{Encoding, Payload, TriggerName},
    validate::ValidationError,
};
use tidegate_engine::{
    self as engine, Error,
    events::{
        dead_letters::{DeadLetter, Replayed},
        ingest::TriggerAction,
    },
};

/// Maximum bytes of an event's attributes and framing, in addition to twice the bound of an event.
const ENVELOPE_BYTES: usize = 64 << 10;

/// The events of one request.
enum Received {
    One(Box<Event>),
    Batch(read::Batch),
}

fn one(event: Event) -> Received {
    Received::One(Box::new(event))
}

fn problem(fault: ValidationError) -> Problem {
    engine::fault(fault).into()
}

fn media_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok())
}

async fn receive(request: Request, most: usize) -> Result<Received, Problem> {
    let headers = request.headers().clone();
    let content_type = media_of(&headers);
    let media = media::essence(&headers);
    let batch = media.starts_with("application/cloudevents-batch");
    let body =
        bounded(request, if batch { MAX_BATCH_BYTES } else { 2 * most + ENVELOPE_BYTES }).await?;
    match media.as_str() {
        "application/cloudevents+json" => read::structured(&body).map(one).map_err(problem),
        "application/cloudevents-batch+json" => {
            read::batch(&body).map(Received::Batch).map_err(problem)
        }
        "application/cloudevents+msgpack" => {
            read::structured_msgpack(&body).map(one).map_err(problem)
        }
        "application/cloudevents-batch+msgpack" => {
            read::batch_msgpack(&body).map(Received::Batch).map_err(problem)
        }
        other if other.starts_with("application/cloudevents") => {
            let detail = format!(
                "Content-Type {other} is not supported; send application/cloudevents+json or \
                 application/cloudevents-batch+json"
            );
            Err(Problem::new(ErrorCode::UnsupportedMediaType, detail))
        }
        _ if !headers.contains_key("ce-specversion") => {
            let message = "is required in the binary mode; the structured mode needs \
                           Content-Type application/cloudevents+json";
            Err(Problem::invalid("ce-specversion", message))
        }
        _ => {
            let attributes = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
            read::binary(attributes, content_type, body).map(one).map_err(problem)
        }
    }
}

/// The one event in a request, which is not stored.
pub(super) async fn receive_one(api: &Api, request: Request) -> Result<Event, Problem> {
    match receive(request, api.server.engine().rules().events.max_bytes).await? {
        Received::One(event) => Ok(*event),
        Received::Batch(_) => Err(Problem::new(
            ErrorCode::InvalidBody,
            "a batch is not supported here: send one event",
        )),
    }
}

/// Publish events, in any mode of CloudEvents 1.0.
///
/// - Structured: `application/cloudevents+json` or `application/cloudevents+msgpack`.
/// - Batched: `application/cloudevents-batch+json` or `+msgpack`, up to 1000 events, each with its
///   own answer.
/// - Binary: attributes in `ce-` headers; the body is the data.
///
/// An event whose source and id were seen before changes nothing. An event that no trigger matches
/// is accepted and counted.
#[utoipa::path(
    post, path = "/v1/events", operation_id = "ingest", tag = "events",
    request_body(
        content(
            (CloudEvent = "application/cloudevents+json"),
            (Vec<CloudEvent> = "application/cloudevents-batch+json"),
            (CloudEvent = "application/cloudevents+msgpack"),
            (Vec<CloudEvent> = "application/cloudevents-batch+msgpack"),
            (AnyValue = "*/*"),
        ),
    ),
    params(
        (
            "ce-specversion" = Option<String>, Header,
            description = "In the binary mode: `1.0`. Every other attribute and extension has a \
                header too: `ce-id`, `ce-source`, `ce-type`, ...",
        ),
    ),
    responses(
        (
            status = 200,
            description = "Accepted: what each trigger did. In a batch each event has its own \
                answer",
            body = EventAnswer,
        ),
        (status = 413, description = "`too_large`: an event over the limit; `body_too_large`"),
    ),
    security(("bearer" = ["enqueue"]), ("basic" = ["enqueue"])),
)]
async fn ingest(
    State(api): State<Api>,
    accept: Accept,
    _: May<Enqueue>,
    request: Request,
) -> HandlerResult {
    let most = api.server.engine().rules().events.max_bytes;
    match receive(request, most).await.inspect_err(|_| api.server.refused_events(1))? {
        Received::One(event) => {
            let answer = api.server.ingest(std::slice::from_ref(&*event)).await.pop();
            Ok(accept
                .ok(EventAnswer::One(convert::ingested(
                    answer.ok_or_else(|| Problem::internal("an event has no answer"))??,
                )))
                .into_response())
        }
        Received::Batch(batch) => {
            let mut events = Vec::with_capacity(batch.len());
            let slots: Vec<Option<Problem>> = batch
                .into_iter()
                .map(|event| event.map(|event| events.push(event)).err().map(problem))
                .collect();
            api.server.refused_events(slots.iter().flatten().count() as u64);
            let mut answers = api.server.ingest(&events).await.into_iter();
            let results = slots.into_iter().map(|slot| {
                let answer = match slot {
                    Some(problem) => Err(problem),
                    None => answers
                        .next()
                        .ok_or_else(|| Problem::internal("an event has no answer"))
                        .and_then(|answer| Ok(answer?)),
                };
                match answer {
                    Ok(event) => EventResult {
                        status: 200,
                        event: Some(convert::ingested(event)),
                        error: None,
                    },
                    Err(problem) => EventResult {
                        status: problem.status().as_u16(),
                        event: None,
                        error: Some(problem.document()),
                    },
                }
            });
            Ok(accept
                .ok(EventAnswer::Batch(EventBatch { results: results.collect() }))
                .into_response())
        }
    }
}

fn dead_letter(letter: DeadLetter, encoding: Encoding) -> DeadLetterView {
    let event = AnyValue::new(&Payload::json(letter.event.get().to_owned()), encoding);
    DeadLetterView {
        id: letter.id,
        trigger: letter.trigger,
        reason: letter.reason,
        failed_at: letter.failed_at,
        event,
    }
}

/// Dead letters: events that a trigger could not handle, with the reason.
#[utoipa::path(
    get, path = "/v1/dead-letters", operation_id = "list_dead_letters", tag = "events",
    params(
        ("trigger" = Option<String>, Query, description = "Only this trigger's"),
        (
            "limit" = Option<u32>, Query,
            description = "Maximum number of dead letters on the page, 1 to 1000 (default 100); \
                at most 100 \
                are read",
        ),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
    ),
    responses((status = 200, description = "A page", body = DeadLetterPage)),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn list(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    mut params: Params,
) -> HandlerResult {
    let (trigger, limit, cursor) =
        (params.one::<TriggerName>("trigger")?, params.limit()?, params.one::<String>("cursor")?);
    params.done()?;
    let (letters, next_cursor) = api.server.dead_letters(trigger.as_ref(), cursor, limit).await?;
    let dead_letters = letters.into_iter().map(|dead| dead_letter(dead, accept.0)).collect();
    Ok(accept.ok(DeadLetterPage { dead_letters, next_cursor }).into_response())
}

/// One dead letter.
#[utoipa::path(
    get, path = "/v1/dead-letters/{id}", operation_id = "get_dead_letter", tag = "events",
    params(("id" = String, Path, description = "Its id")),
    responses(
        (status = 200, description = "The dead letter", body = DeadLetterView),
        (status = 404, description = "`dead_letter_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn get(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    Name(id): Name<String>,
) -> HandlerResult {
    Ok(accept.ok(dead_letter(api.server.dead_letter(&id).await?, accept.0)).into_response())
}

/// Delete a dead letter.
#[utoipa::path(
    delete, path = "/v1/dead-letters/{id}", operation_id = "delete_dead_letter", tag = "events",
    params(("id" = String, Path, description = "Its id")),
    responses(
        (status = 204, description = "Deleted"),
        (status = 404, description = "`dead_letter_not_found`"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn delete(
    State(api): State<Api>,
    _: May<Admin>,
    Name(id): Name<String>,
) -> Result<StatusCode, Problem> {
    api.server.delete_dead_letter(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Replay a dead letter: apply its trigger in its current form.
///
/// The resulting job has the id that it would have had at the event, so a repeat changes nothing.
/// Unless the trigger fails again, the letter is deleted.
#[utoipa::path(
    post, path = "/v1/dead-letters/{id}/replay", operation_id = "replay_dead_letter",
    tag = "events",
    params(("id" = String, Path, description = "Its id")),
    responses(
        (
            status = 200,
            description = "What the trigger did; `unmatched` if it no longer matches the event",
            body = tidegate_api::Replayed,
        ),
        (status = 404, description = "`dead_letter_not_found`, `trigger_not_found`"),
        (status = 409, description = "`not_replayable`: it was never a valid event"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn replay(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    Name(id): Name<String>,
) -> HandlerResult {
    let replayed = api.server.replay_dead_letter(&id).await?;
    Ok(accept.ok(convert::replayed(replayed)).into_response())
}

/// Replay many dead letters: up to 100 a call. The answer has the cursor for the next call.
#[utoipa::path(
    post, path = "/v1/dead-letters/replay", operation_id = "replay_dead_letters", tag = "events",
    request_body = ReplayDeadLetters,
    responses(
        (
            status = 200,
            description = "How many were handled, and how many remain dead letters",
            body = ReplayedDeadLetters,
        ),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn replay_many(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    body: Body,
) -> HandlerResult {
    let request: ReplayDeadLetters = body.read_or_default()?;
    let (letters, next_cursor) =
        api.server.dead_letters(request.trigger.as_ref(), request.cursor, 100).await?;
    let mut done = ReplayedDeadLetters { next_cursor, ..ReplayedDeadLetters::default() };
    for letter in letters {
        match api.server.replay_dead_letter(&letter.id).await {
            Ok(Replayed::Applied(TriggerAction::DeadLettered { .. }))
            | Err(
                Error::NotFound { code: ErrorCode::TriggerNotFound, .. }
                | Error::Conflict { code: ErrorCode::NotReplayable, .. },
            ) => done.remaining += 1,
            // A concurrent request replayed or deleted it first.
            Ok(_) | Err(Error::NotFound { .. }) => done.replayed += 1,
            // One broken letter must not stop the others.
            Err(error @ (Error::Internal(_) | Error::Unreadable(_))) => {
                tracing::error!(id = letter.id, %error, "a dead letter cannot be replayed");
                done.remaining += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(accept.ok(done).into_response())
}

/// The routes of events.
pub fn routes() -> Routes {
    routes!(ingest, list, replay_many, get, delete, replay)
}
