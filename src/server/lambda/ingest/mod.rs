//! `ingest`: records of other services become events, before any trigger receives them.
//!
//! ```text
//!   an invocation ─┬▶ records ─▶ events ─▶ Server::ingest, by the thousand ─▶ failures
//!                  │        └▶ malformed records ─▶ dead letters
//!                  └▶ an HTTP request ─▶ POST /v1/events ─▶ its answer
//! ```
//!
//! The one thing to know: only an unavailable store causes a redelivery. A malformed record is
//! malformed at every delivery, so it is kept as a dead letter with the reason, and the other
//! records proceed. A redelivered record becomes an event with the same source and id, so the
//! redelivery of a whole batch does nothing twice.
//!
//! Read in this order: [`source`] (the source of an invocation), [`record`] (a record and its
//! events), [`services`] and [`kafka`] (the event of each kind of record), [`message`] (what
//! messages have in common), [`event_builder`] (how an event is built), [`proxy`] (API Gateway).

mod event_builder;
mod kafka;
mod message;
mod proxy;
mod record;
mod services;
mod source;

use axum::Router;
use bytes::Bytes;
use serde_json::{Value, json, value::RawValue};
use tokio::sync::OnceCell;
use tower::ServiceExt;

use super::http::{ApiFunction, router};
use crate::telemetry::function::Metrics;
use crate::{auth::TokenItem, runtime::Server};
use record::{Record, RedeliveryScope, too_large};
use source::Invocation;
use tidegate_core::event::{Event, read};
use tidegate_engine::Error;

/// Handles invocations for one server, of either deployment mode.
pub struct Ingest {
    server: Server,
    first: Option<TokenItem>,
    /// The HTTP API. The first request builds it and reads the tokens.
    api: OnceCell<Router>,
}

/// Records were not stored, and the source must send the whole invocation again.
#[derive(Debug, thiserror::Error)]
#[error("{failed} of {of} records were not stored, and all must be redelivered: {why}")]
pub struct IngestFailed {
    failed: usize,
    of: usize,
    why: String,
}

/// The indices of the records that were not stored, and the error of the last of them.
#[derive(Default)]
struct FailedRecords {
    indices: Vec<usize>,
    why: String,
}

impl Ingest {
    /// Ingests into `server`. A request through API Gateway needs a stored token, or `first`.
    pub fn new(server: Server, first: Option<TokenItem>) -> Self {
        Self { server, first, api: OnceCell::new() }
    }

    /// Handles one invocation. The answer names the records to redeliver; for API Gateway it is the
    /// response of the API.
    ///
    /// After `Ok`, every record that the answer does not name is stored, if a trigger matched it. A
    /// repeat does nothing twice.
    ///
    /// # Errors
    ///
    /// [`IngestFailed`] if the source must send the whole invocation again: no record was stored,
    /// or the source cannot redeliver single records.
    pub async fn call(&self, payload: Box<RawValue>) -> Result<Value, IngestFailed> {
        match source::read(&Bytes::from(String::from(Box::<str>::from(payload)))) {
            Invocation::Request(request) => {
                let options = ApiFunction {
                    max_data_bytes: self.server.engine().rules().max_data_bytes,
                    first_token: self.first.clone(),
                    ..ApiFunction::default()
                };
                let api =
                    self.api.get_or_init(|| router(self.server.clone(), options, Metrics::off()));
                let Ok(answer) = api.await.clone().oneshot(*request).await;
                Ok(proxy::answer(answer).await)
            }
            Invocation::Records(records) => {
                let (redelivery, events): (Vec<RedeliveryScope>, Vec<_>) = records
                    .into_iter()
                    .map(|Record { redelivery, events }| (redelivery, events))
                    .unzip();
                let failed = self.store(events).await;
                // The jobs are stored: the maintenance sweep finds those of unpublished messages.
                let _ = self.server.flush().await;
                answer(&redelivery, failed)
            }
        }
    }

    /// Ingests the events of each record, and keeps malformed records as dead letters.
    async fn store(&self, records: Vec<Vec<record::EventResult>>) -> FailedRecords {
        let mut failed = FailedRecords::default();
        let (mut events, mut indices) = (Vec::new(), Vec::new());
        let (mut malformed, mut malformed_indices) = (Vec::new(), Vec::new());
        for (index, reads) in records.into_iter().enumerate() {
            let mut malformed_so_far = 0;
            for read in reads {
                match read {
                    Ok(event) => {
                        events.push(event);
                        indices.push(index);
                    }
                    Err(record) => {
                        tracing::warn!(
                            record.reason,
                            "a malformed record is kept as a dead letter"
                        );
                        malformed.push(record.kept(malformed_so_far));
                        malformed_indices.push(index);
                        malformed_so_far += 1;
                    }
                }
            }
        }
        for (batch, indices) in
            events.chunks(read::MAX_EVENTS).zip(indices.chunks(read::MAX_EVENTS))
        {
            for ((answer, event), index) in
                self.server.ingest(batch).await.into_iter().zip(batch).zip(indices)
            {
                match answer {
                    Ok(_) => {}
                    Err(Error::TooLarge { limit, .. }) => {
                        malformed.push(too_large(event, limit));
                        malformed_indices.push(*index);
                    }
                    Err(error) => failed.add([*index], &error),
                }
            }
        }
        for (batch, indices) in
            malformed.chunks(read::MAX_EVENTS).zip(malformed_indices.chunks(read::MAX_EVENTS))
        {
            if let Err(error) = self.keep(batch).await {
                failed.add(indices.iter().copied(), &error);
            }
        }
        failed
    }

    async fn keep(&self, malformed: &[(Event, String)]) -> Result<(), Error> {
        self.server.keep_malformed(malformed).await
    }
}

/// The events of an invocation with `payload`, each an event or why its record has none. A request
/// of API Gateway has no events.
pub fn events(payload: &Bytes) -> Vec<Result<Event, String>> {
    match source::read(payload) {
        Invocation::Request(_) => Vec::new(),
        Invocation::Records(records) => {
            let events = records.into_iter().flat_map(|record| record.events);
            events.map(|event| event.map_err(|malformed| malformed.reason)).collect()
        }
    }
}

impl FailedRecords {
    fn add(&mut self, indices: impl IntoIterator<Item = usize>, why: &Error) {
        self.indices.extend(indices);
        self.why = why.to_string();
    }
}

/// The answer that names the records to redeliver, if their source can redeliver single records.
///
/// If all failed, the answer is an error. The effect is the same, the invocation counts as failed,
/// and a source whose mapping lacks `ReportBatchItemFailures` redelivers as well.
fn answer(
    records: &[RedeliveryScope],
    FailedRecords { mut indices, why }: FailedRecords,
) -> Result<Value, IngestFailed> {
    indices.sort_unstable();
    indices.dedup();
    let names: Option<Vec<Value>> = indices
        .iter()
        .map(|index| Some(json!({"itemIdentifier": records[*index].name()?})))
        .collect();
    match names {
        Some(names) if names.is_empty() || names.len() < records.len() => {
            Ok(json!({ "batchItemFailures": names }))
        }
        _ => Err(IngestFailed { failed: indices.len(), of: records.len(), why }),
    }
}
