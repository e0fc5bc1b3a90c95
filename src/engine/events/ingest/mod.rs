//! `ingest`: events come in, and triggers make jobs and replies of them.
//!
//! ```text
//!   events ─▶ every trigger on every event ─┬▶ one batch of enqueues ─┐
//!                                           ├▶ one batch of replies ──┼▶ dead letters ─▶ one answer per event
//!                                           └▶ what cannot be mapped ─┘
//! ```
//!
//! The one thing to know: an event may come any number of times. The id of the job that it makes, and the name of its reply and of
//! its dead letter, follow from the trigger and the event's source and id, so that a repeat finds what the first one did. An
//! event that could not be dealt with because the store did not answer is answered with that error, and is to be sent again.

mod tasks;

use serde::Serialize;

use self::tasks::Task;
use crate::{Engine, Error, request::Enqueued};
use tidegate_core::{
    event::{Decision, Event, Trigger},
    job::{Job, JobId, TriggerName, TypeName, Version},
    time::Timestamp,
};

/// The header by which a job tells its worker through how many triggers it has come to be. In the binary mode of CloudEvents it is
/// the extension that says so of an event: a worker that passes it on keeps the count.
pub const HOPS_HEADER: &str = "ce-tidegatehops";

/// What became of an event: one entry per trigger that was about it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ingested {
    /// The event's id.
    pub id: String,
    /// Its source.
    pub source: String,
    /// What each trigger did, by name; empty if none was about it.
    pub outcomes: Vec<Applied>,
}

/// What a trigger did about an event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Applied {
    /// The trigger.
    pub trigger: TriggerName,
    /// What it did.
    #[serde(flatten)]
    pub did: Did,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "did", rename_all = "snake_case")]
pub enum Did {
    /// A job was enqueued.
    Enqueued {
        /// It.
        job: JobId,
        /// Its type.
        #[serde(rename = "type")]
        job_type: TypeName,
    },
    /// The job was enqueued before, by the same event.
    Repeated {
        /// It.
        job: JobId,
    },
    /// The attempt of a job ended, as the event said.
    Completed {
        /// The job.
        job: JobId,
    },
    /// A retry of the job waits; the failure was recorded, and changes nothing.
    Recorded {
        /// The job.
        job: JobId,
    },
    /// The job heard the same event before.
    Known {
        /// The job.
        job: JobId,
    },
    /// The job, or the attempt that the event is about, was over. Nothing was changed.
    Late {
        /// The job.
        job: JobId,
    },
    /// There is no such job yet, or its attempt has not started: the reply is kept.
    Kept {
        /// Until then.
        until: Timestamp,
    },
    /// Nothing could be made of the event: it is a dead letter, to be replayed when the trigger is mended.
    Dead {
        /// The dead letter.
        letter: String,
        /// Why.
        reason: String,
    },
    /// It has come to be through too many triggers: they would go round for ever.
    Dropped {
        /// Why.
        reason: String,
    },
}

impl Did {
    /// The word for it, as it is serialised.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Enqueued { .. } => "enqueued",
            Self::Repeated { .. } => "repeated",
            Self::Completed { .. } => "completed",
            Self::Recorded { .. } => "recorded",
            Self::Known { .. } => "known",
            Self::Late { .. } => "late",
            Self::Kept { .. } => "kept",
            Self::Dead { .. } => "dead",
            Self::Dropped { .. } => "dropped",
        }
    }
}

/// What a batch of events did: the answers for whoever sent them, and what the home must tell its queues.
#[derive(Debug, Default)]
pub struct Ingestion {
    /// One answer per event, in order. An error means: send it again.
    pub answers: Vec<Result<Ingested, Error>>,
    /// The jobs of the enqueues, new or not.
    pub enqueued: Vec<Enqueued>,
    /// Jobs that a reply changed, with the version that they left.
    pub changed: Vec<(Job, Version)>,
}

impl Engine {
    /// Takes events: every trigger that is about one is applied. After an `Ok` answer all that it says is durable.
    ///
    /// An event over the size limit is refused with 413; nothing else of an event is an error here.
    pub async fn ingest(&self, events: &[Event]) -> Ingestion {
        let catalog = match self.catalog().await {
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
                    did: None,
                }));
            }
        }
        let mut ingestion = self.apply(events, &mut tasks).await;
        let answer = |event: &Event| {
            if large(event) {
                return Err(Error::TooLarge { field: "event", limit });
            }
            Ok(Ingested {
                id: event.id.clone(),
                source: event.source.clone(),
                outcomes: Vec::new(),
            })
        };
        ingestion.answers = events.iter().map(answer).collect();
        for Task { event, trigger, did, .. } in tasks {
            let answer = &mut ingestion.answers[event];
            match (
                did.unwrap_or_else(|| Err(Error::Internal("a trigger did nothing".into()))),
                &mut *answer,
            ) {
                (Ok(did), Ok(ingested)) => {
                    ingested.outcomes.push(Applied { trigger: trigger.name.clone(), did });
                }
                (Err(error), Ok(_)) => *answer = Err(error),
                (_, Err(_)) => {}
            }
        }
        ingestion
    }

    /// Applies one trigger as it stands now to one event; none if its filter does not let it pass any more.
    pub(crate) async fn ingest_by(
        &self,
        trigger: &Trigger,
        decision: Decision,
        event: &Event,
    ) -> (Result<Did, Error>, Ingestion) {
        let mut tasks = [Task { event: 0, trigger, decision, did: None }];
        let ingestion = self.apply(std::slice::from_ref(event), &mut tasks).await;
        let [task] = tasks;
        (
            task.did.unwrap_or_else(|| Err(Error::Internal("a trigger did nothing".into()))),
            ingestion,
        )
    }
}
