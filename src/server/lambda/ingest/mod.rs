//! `ingest`: what other services send becomes events, whatever it came as, before any trigger sees it.
//!
//! ```text
//!   an invocation ─▶ whose is it? ─┬▶ records, each read by itself ─▶ events ─▶ Server::ingest, a thousand at once ─▶ what is to come again
//!                                  │        └▶ what cannot be one ─▶ dead letters
//!                                  └▶ an HTTP request ─▶ POST /v1/events ─▶ its answer
//! ```
//!
//! The one thing to know: nothing but a store that does not answer makes a record come again. What is wrong with a record is wrong at every
//! delivery, so it is kept as a dead letter, with the reason, and its neighbours go on. And since a second delivery of a record
//! makes an event of the same source and id, a batch that comes again as a whole does nothing twice.
//!
//! Read in this order: [`source`] (whose an invocation is), [`record`] (what is read of it), [`services`] and [`kafka`] (which event each
//! record makes), [`message`] (what most of them have in common), [`event_builder`] (an event in the making), [`proxy`] (API Gateway).

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

use super::http::router;
use crate::telemetry::function::Metrics;
use crate::{auth::TokenItem, runtime::Server};
use record::{Record, RedeliveryScope, too_large};
use source::Invocation;
use tidegate_core::event::{Event, read};
use tidegate_engine::Error;

/// Takes invocations for one server, which may be of either home.
pub struct Ingest {
    server: Server,
    first: Option<TokenItem>,
    /// The HTTP API: made, and the tokens read, when the first request comes.
    api: OnceCell<Router>,
}

/// Not everything was taken, and its source is to send all of it again.
#[derive(Debug, thiserror::Error)]
#[error("{failed} of {of} records were not taken, and all are to come again: {why}")]
pub struct NotTaken {
    failed: usize,
    of: usize,
    why: String,
}

/// The records of an invocation that were not taken, by their place, and why the last of them was not.
#[derive(Default)]
struct Failed {
    places: Vec<usize>,
    why: String,
}

impl Ingest {
    /// One over `server`. Whoever asks through API Gateway is let in by one of the stored tokens, or by `first`.
    pub fn new(server: Server, first: Option<TokenItem>) -> Self {
        Self { server, first, api: OnceCell::new() }
    }

    /// Takes one invocation, whoever made it. The answer says which records are to come again; to API Gateway it is that of the API.
    ///
    /// After `Ok` whatever it does not name is stored, as far as a trigger was about it. A repeat does nothing twice.
    ///
    /// # Errors
    ///
    /// [`NotTaken`], when the source is to send the whole again: none of it was taken, or its source knows no other way.
    pub async fn call(&self, payload: Box<RawValue>) -> Result<Value, NotTaken> {
        match source::read(&Bytes::from(String::from(Box::<str>::from(payload)))) {
            Invocation::Request(request) => {
                let most = self.server.engine().rules().max_data_bytes;
                let api = self.api.get_or_init(|| {
                    router(self.server.clone(), most, self.first.clone(), Metrics::off())
                });
                let Ok(answer) = api.await.clone().oneshot(*request).await;
                Ok(proxy::answer(answer).await)
            }
            Invocation::Records(records) => {
                let (again, events): (Vec<RedeliveryScope>, Vec<_>) =
                    records.into_iter().map(|Record { again, events }| (again, events)).unzip();
                let failed = self.take(events).await;
                // What cannot be told is found by the minute's round: the jobs are in the store.
                let _ = self.server.flush().await;
                answer(&again, failed)
            }
        }
    }

    /// Takes the events of each record, and keeps what cannot be one.
    async fn take(&self, records: Vec<Vec<record::Read>>) -> Failed {
        let mut failed = Failed::default();
        let (mut events, mut places) = (Vec::new(), Vec::new());
        let (mut unread, mut unread_places) = (Vec::new(), Vec::new());
        for (place, reads) in records.into_iter().enumerate() {
            let mut wrong = 0;
            for read in reads {
                match read {
                    Ok(event) => {
                        events.push(event);
                        places.push(place);
                    }
                    Err(record) => {
                        tracing::warn!(
                            record.reason,
                            "what came is no event; it is kept as a dead one"
                        );
                        unread.push(record.kept(wrong));
                        unread_places.push(place);
                        wrong += 1;
                    }
                }
            }
        }
        for (batch, places) in events.chunks(read::MOST).zip(places.chunks(read::MOST)) {
            for ((answer, event), place) in
                self.server.ingest(batch).await.into_iter().zip(batch).zip(places)
            {
                match answer {
                    Ok(_) => {}
                    Err(Error::TooLarge { limit, .. }) => {
                        unread.push(too_large(event, limit));
                        unread_places.push(*place);
                    }
                    Err(error) => failed.add([*place], &error),
                }
            }
        }
        for (batch, places) in unread.chunks(read::MOST).zip(unread_places.chunks(read::MOST)) {
            if let Err(error) = self.keep(batch).await {
                failed.add(places.iter().copied(), &error);
            }
        }
        failed
    }

    async fn keep(&self, unread: &[(Event, String)]) -> Result<(), Error> {
        self.server.keep_unread(unread).await
    }
}

/// The events that an invocation with `payload` makes, or why a record makes none; none at all for a request of API Gateway.
pub fn events(payload: &Bytes) -> Vec<Result<Event, String>> {
    match source::read(payload) {
        Invocation::Request(_) => Vec::new(),
        Invocation::Records(records) => {
            let events = records.into_iter().flat_map(|record| record.events);
            events.map(|event| event.map_err(|unread| unread.reason)).collect()
        }
    }
}

impl Failed {
    fn add(&mut self, places: impl IntoIterator<Item = usize>, why: &Error) {
        self.places.extend(places);
        self.why = why.to_string();
    }
}

/// Names the records that were not taken, where their source knows them by name.
///
/// That all failed is told as an error: it comes to the same, it counts among the function's errors, and a source whose mapping was made
/// without `ReportBatchItemFailures` hears it too.
fn answer(
    records: &[RedeliveryScope],
    Failed { mut places, why }: Failed,
) -> Result<Value, NotTaken> {
    places.sort_unstable();
    places.dedup();
    let names: Option<Vec<Value>> = places
        .iter()
        .map(|place| Some(json!({"itemIdentifier": records[*place].name()?})))
        .collect();
    match names {
        Some(names) if names.is_empty() || names.len() < records.len() => {
            Ok(json!({ "batchItemFailures": names }))
        }
        _ => Err(NotTaken { failed: places.len(), of: records.len(), why }),
    }
}
