//! Doing something to many jobs, as an operation in the background whose count can be looked at.

use axum::{extract::State, http::StatusCode, response::IntoResponse};
use serde::{Deserialize, Serialize};

use super::super::{
    Answer, Api,
    access::{Admin, May, Read},
    body::Body,
    error::Problem,
    media::Accept,
    params::{IdempotencyKey, NO_STATE, Name, states_of},
    schema::AttributeValue,
};
use tidegate_core::{
    job::{Attributes, QueueName, TypeName},
    time::Timestamp,
};
use tidegate_engine::request::{BulkKind, JobFilter, Operation};

/// Which jobs.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Bulk)]
pub struct BulkBody {
    /// What the jobs have in common; an empty filter means every job.
    filter: FilterBody,
}

/// Conditions that all hold for a job that is meant.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = JobFilter)]
pub struct FilterBody {
    /// Only this type.
    #[serde(rename = "type")]
    #[schema(value_type = Option<String>)]
    job_type: Option<TypeName>,
    /// Only this queue.
    #[schema(value_type = Option<String>)]
    queue: Option<QueueName>,
    /// Only these states: a word or a list of words, `ended` among them.
    state: Option<Words>,
    /// Only with these attribute values.
    #[schema(value_type = Option<BTreeMap<String, AttributeValue>>)]
    attribute: Option<Attributes>,
    /// Only created at this instant or later.
    from: Option<Timestamp>,
    /// Only created before this instant.
    to: Option<Timestamp>,
}

/// A word or a list of words.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(untagged, expecting = "expected a state or a list of states")]
pub enum Words {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl FilterBody {
    fn into_filter(self) -> Result<JobFilter, Problem> {
        let words = match self.state {
            None => Vec::new(),
            Some(Words::One(word)) => vec![word],
            Some(Words::Many(words)) => words,
        };
        let mut states = Vec::new();
        for word in words {
            states.extend(
                states_of(&word).ok_or_else(|| Problem::invalid("filter.state", NO_STATE))?,
            );
        }
        let attributes = self.attribute.unwrap_or_default();
        Ok(JobFilter {
            job_type: self.job_type,
            queue: self.queue,
            states,
            attributes,
            from: self.from,
            to: self.to,
        })
    }
}

/// A background operation.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = OperationAnswer)]
pub struct OperationView {
    /// How it stands.
    operation: Operation,
}

/// Starts an operation, or finds the one that `key` started before, and answers where it can be looked at.
///
/// # Errors
///
/// As the server refuses it.
pub async fn start(
    api: &Api,
    accept: Accept,
    kind: BulkKind,
    filter: JobFilter,
    IdempotencyKey(key): IdempotencyKey,
) -> Answer {
    let operation = api.server.bulk(kind, filter, key.as_deref()).await?;
    let place = format!("/v1/operations/{}", operation.id);
    let reply = accept.reply(StatusCode::ACCEPTED, OperationView { operation });
    Ok(reply.header(axum::http::header::LOCATION, &place).into_response())
}

/// Cancel every job that a filter matches.
///
/// The server's own jobs, which tell of others' ends, are left alone unless the filter names their type or queue.
#[utoipa::path(post, path = "/v1/jobs/cancel", operation_id = "cancel_jobs", tag = "jobs", request_body = BulkBody,
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeat under the same key starts nothing, while the operation is kept; at most 255 bytes")),
    responses(
        (status = 202, description = "Under way, or the operation that the key started before", body = OperationView),
        (status = 409, description = "`idempotency_key_reused`"),
    ), security(("bearer" = ["admin"]), ("basic" = ["admin"])))]
pub async fn cancel(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    key: IdempotencyKey,
    body: Body,
) -> Answer {
    start(&api, accept, BulkKind::Cancel, body.read::<BulkBody>()?.filter.into_filter()?, key).await
}

/// Replay every job that a filter matches.
///
/// The server's own jobs, which tell of others' ends, are left alone unless the filter names their type or queue.
#[utoipa::path(post, path = "/v1/jobs/replay", operation_id = "replay_jobs", tag = "jobs", request_body = BulkBody,
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeat under the same key starts nothing, while the operation is kept; at most 255 bytes")),
    responses(
        (status = 202, description = "Under way, or the operation that the key started before", body = OperationView),
        (status = 409, description = "`idempotency_key_reused`"),
    ), security(("bearer" = ["admin"]), ("basic" = ["admin"])))]
pub async fn replay(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    key: IdempotencyKey,
    body: Body,
) -> Answer {
    start(&api, accept, BulkKind::Replay, body.read::<BulkBody>()?.filter.into_filter()?, key).await
}

/// How a background operation stands.
#[utoipa::path(get, path = "/v1/operations/{id}", operation_id = "get_operation", tag = "jobs",
    params(("id" = String, Path, description = "The operation's id")),
    responses((status = 200, description = "How it stands", body = OperationView), (status = 404, description = "`operation_not_found`")),
    security(("bearer" = ["read"]), ("basic" = ["read"])))]
pub async fn operation(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    Name(id): Name<String>,
) -> Answer {
    Ok(accept.ok(OperationView { operation: api.server.operation(&id).await? }).into_response())
}
