//! Ingestion: triggers create jobs and replies from events.
//!
//! ```text
//!   events ─▶ every trigger on every event ─┬▶ one batch of enqueues ─┐
//!                                           ├▶ one batch of replies ──┼▶ dead letters ─▶ answers
//!                                           └▶ unmappable events ─────┘
//! ```
//!
//! The one thing to know: an event may be delivered any number of times. The trigger and the
//! event's source and id determine the id of its job, and the names of its reply and its dead
//! letter. So a repeat finds what the first delivery stored. If the store did not answer, the event
//! is answered with that error, and its sender must send it again.

mod tasks;

use std::sync::Arc;

use self::tasks::Task;
use crate::{Catalog, Engine, Error, request::Enqueued};
use tidegate_core::{
    event::{Decision, Event, Trigger},
    job::{Job, JobId, TriggerName, TypeName, Version},
    port::job_store::ItemKind,
    time::Timestamp,
};

/// The header that tells a worker how many triggers led to its job. In the binary mode of
/// CloudEvents it is the extension attribute of the event. A worker that copies it to its own
/// events keeps the count.
pub const HOPS_HEADER: &str = "ce-tidegatehops";

/// The result of an event: one entry per trigger that matched it.
#[derive(Clone, Debug, PartialEq)]
pub struct Ingested {
    /// The event's id.
    pub id: String,
    /// Its source.
    pub source: String,
    /// Its type.
    pub event_type: String,
    /// The result of each trigger, by name; empty if none matched.
    pub outcomes: Vec<Applied>,
}

/// The result of one trigger for an event.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The trigger.
    pub trigger: TriggerName,
    /// The result.
    pub action: TriggerAction,
}

/// What a trigger did with an event.
#[derive(Clone, Debug, PartialEq)]
pub enum TriggerAction {
    /// A job was enqueued, or a waiting job with its unique key took the request.
    Enqueued {
        /// The job.
        job: JobId,
        /// Its type.
        job_type: TypeName,
    },
    /// The same event enqueued the job before.
    AlreadyEnqueued {
        /// The job.
        job: JobId,
    },
    /// The attempt of a job ended as the event reported.
    Completed {
        /// The job.
        job: JobId,
    },
    /// A retry of the job waits; the failure was recorded, and changes nothing.
    Recorded {
        /// The job.
        job: JobId,
    },
    /// The job had processed the same event before.
    AlreadyProcessed {
        /// The job.
        job: JobId,
    },
    /// The job, or the attempt that the event names, had ended. Nothing changed.
    Late {
        /// The job.
        job: JobId,
    },
    /// The job does not exist yet, or its attempt has not started: the reply is pending.
    Pending {
        /// When it expires.
        until: Timestamp,
    },
    /// The trigger could not handle the event. It is a dead letter, which can be replayed after the
    /// trigger is corrected.
    DeadLettered {
        /// The dead letter.
        letter: String,
        /// Why.
        reason: String,
    },
    /// Too many triggers led to the event: it would loop forever.
    Dropped {
        /// Why.
        reason: String,
    },
}

impl TriggerAction {
    /// The value of `action` in JSON, and of the label `action` in metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Enqueued { .. } => "enqueued",
            Self::AlreadyEnqueued { .. } => "already_enqueued",
            Self::Completed { .. } => "completed",
            Self::Recorded { .. } => "recorded",
            Self::AlreadyProcessed { .. } => "already_processed",
            Self::Late { .. } => "late",
            Self::Pending { .. } => "pending",
            Self::DeadLettered { .. } => "dead_lettered",
            Self::Dropped { .. } => "dropped",
        }
    }
}

/// The outcome of a batch of events: the answers for its sender, and the changes to publish to the
/// queues.
#[derive(Debug, Default)]
pub struct Ingestion {
    /// One answer per event, in order. After an error the sender must send the event again.
    pub answers: Vec<Result<Ingested, Error>>,
    /// The jobs of the enqueues, new or not.
    pub enqueued: Vec<Enqueued>,
    /// Jobs that a reply changed, with the version that they left.
    pub changed: Vec<(Job, Version)>,
}

impl Engine {
    /// Applies every trigger that matches to each event. After an `Ok` answer all its results are
    /// durable.
    ///
    /// An event over the size limit is refused with 413. No other property of an event is an error
    /// here.
    pub async fn ingest(&self, events: &[Event]) -> Ingestion {
        // An event that passes a trigger which cannot be read would be lost to it.
        let readable =
            |catalog: Arc<Catalog>| catalog.refuse_partial(&[ItemKind::Trigger]).map(|()| catalog);
        let catalog = match self.catalog().await.and_then(readable) {
            Ok(catalog) => catalog,
            Err(error) => {
                return Ingestion {
                    answers: events.iter().map(|_| Err(error.clone())).collect(),
                    ..Ingestion::default()
                };
            }
        };
        let limit = self.rules.events.max_bytes;
        let large = |event: &Event| event.size() > limit;
        let mut tasks = Vec::new();
        if !catalog.rules.is_empty() {
            for (index, event) in events.iter().enumerate().filter(|(_, event)| !large(event)) {
                let decided = catalog.rules.decide(event);
                tasks.extend(decided.into_iter().map(|(trigger, decision)| Task {
                    event: index,
                    trigger,
                    decision,
                    action: None,
                }));
            }
        }
        let mut ingestion = self.apply(events, &mut tasks).await;
        let unanswered = |event: &Event| {
            if large(event) {
                return Err(Error::TooLarge { field: "event", limit });
            }
            Ok(Ingested {
                id: event.id.clone(),
                source: event.source.clone(),
                event_type: event.event_type.clone(),
                outcomes: Vec::new(),
            })
        };
        ingestion.answers = events.iter().map(unanswered).collect();
        answer(&mut ingestion.answers, tasks);
        ingestion
    }

    /// Carries out what triggers decided about `event`.
    pub(crate) async fn ingest_decided(
        &self,
        event: Event,
        decided: Vec<(&Trigger, Decision)>,
    ) -> Ingestion {
        let task = |(trigger, decision)| Task { event: 0, trigger, decision, action: None };
        let mut tasks: Vec<Task<'_>> = decided.into_iter().map(task).collect();
        let events = [event];
        let mut ingestion = self.apply(&events, &mut tasks).await;
        let [Event { id, source, event_type, .. }] = events;
        ingestion.answers = vec![Ok(Ingested { id, source, event_type, outcomes: Vec::new() })];
        answer(&mut ingestion.answers, tasks);
        ingestion
    }

    /// Carries out the decision of one trigger, in its current configuration, on one event.
    pub(crate) async fn ingest_by(
        &self,
        trigger: &Trigger,
        decision: Decision,
        event: &Event,
    ) -> (Result<TriggerAction, Error>, Ingestion) {
        let mut tasks = [Task { event: 0, trigger, decision, action: None }];
        let ingestion = self.apply(std::slice::from_ref(event), &mut tasks).await;
        let [task] = tasks;
        (
            task.action.unwrap_or_else(|| Err(Error::Internal("a trigger has no result".into()))),
            ingestion,
        )
    }
}

/// Adds the results of `tasks` to the answers of their events.
fn answer(answers: &mut [Result<Ingested, Error>], tasks: Vec<Task<'_>>) {
    for Task { event, trigger, action, .. } in tasks {
        let answer = &mut answers[event];
        match (
            action.unwrap_or_else(|| Err(Error::Internal("a trigger has no result".into()))),
            &mut *answer,
        ) {
            (Ok(action), Ok(ingested)) => {
                ingested.outcomes.push(Applied { trigger: trigger.name.clone(), action });
            }
            (Err(error), Ok(_)) => *answer = Err(error),
            (_, Err(_)) => {}
        }
    }
}
