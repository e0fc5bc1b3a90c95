//! The steps of an ingestion: enqueues, then replies, then dead letters.

use std::time::Duration;

use super::{HOPS_HEADER, Ingestion, TriggerAction};
use crate::{
    Engine, Error,
    events::{
        dead_letters::DeadLetter,
        reply::{Replied, ReplyMatches},
    },
    request::NewJob,
};
use tidegate_core::{
    error_code::ErrorCode,
    event::{
        Decision, Event, Trigger,
        trigger::{Reply, RequestedJob},
        value::{Extension, HOPS},
    },
    job::Origin,
    port::{Txn, Write},
};

/// Most jobs of one enqueue.
const MAX_ENQUEUE_JOBS: usize = 1000;

/// What a trigger must do with an event.
pub(super) struct Task<'a> {
    pub event: usize,
    pub trigger: &'a Trigger,
    pub decision: Decision,
    /// The result, once it is known.
    pub action: Option<Result<TriggerAction, Error>>,
}

impl Engine {
    /// Performs `tasks` and records the result of each.
    pub(super) async fn apply(&self, events: &[Event], tasks: &mut [Task<'_>]) -> Ingestion {
        let mut ingestion = Ingestion::default();
        self.drop_endless(events, tasks);
        self.enqueue_all(events, tasks, &mut ingestion).await;
        self.reply_all(tasks, &mut ingestion).await;
        self.bury(events, tasks).await;
        ingestion
    }

    /// The loop guard: an event that too many triggers led to enqueues nothing.
    fn drop_endless(&self, events: &[Event], tasks: &mut [Task<'_>]) {
        let most = self.rules.events.max_hops;
        for task in tasks.iter_mut().filter(|task| matches!(task.decision, Decision::Enqueue(_))) {
            let (event, name) = (&events[task.event], &task.trigger.name);
            if event.hops() >= most {
                tracing::warn!(
                    trigger = %name,
                    source = event.source,
                    id = event.id,
                    hops = event.hops(),
                    "an event loops through triggers; it was dropped"
                );
                let reason = format!(
                    "{} triggers led to it ({HOPS}), and at most {most} are allowed",
                    event.hops()
                );
                task.action = Some(Ok(TriggerAction::Dropped { reason }));
            }
        }
    }

    async fn enqueue_all(
        &self,
        events: &[Event],
        tasks: &mut [Task<'_>],
        ingestion: &mut Ingestion,
    ) {
        let (mut jobs, mut indexes) = (Vec::new(), Vec::new());
        for (index, task) in tasks.iter().enumerate().filter(|(_, task)| task.action.is_none()) {
            if let Decision::Enqueue(wanted) = &task.decision {
                jobs.push(new_job((**wanted).clone(), task.trigger, &events[task.event]));
                indexes.push(index);
            }
        }
        let mut indexes = indexes.into_iter();
        while !jobs.is_empty() {
            let batch = jobs.drain(..jobs.len().min(MAX_ENQUEUE_JOBS)).collect();
            for answer in self.enqueue(batch).await {
                let Some(index) = indexes.next() else { break };
                let task = &mut tasks[index];
                task.action = match answer {
                    Ok(enqueued) => {
                        let job = enqueued.job.id.clone();
                        let job_type = enqueued.job.spec.job_type.clone();
                        let action = if enqueued.new || enqueued.merged.is_some() {
                            TriggerAction::Enqueued { job, job_type }
                        } else {
                            TriggerAction::AlreadyEnqueued { job }
                        };
                        ingestion.enqueued.push(enqueued);
                        Some(Ok(action))
                    }
                    // The trigger enqueued this job before, for the same event: the trigger was
                    // changed since, or the repeat differs from the event that came first.
                    Err(Error::Conflict {
                        code: ErrorCode::IdTaken, holder: Some(job), ..
                    }) => Some(Ok(TriggerAction::AlreadyEnqueued { job })),
                    Err(error) => refused(task, error),
                };
            }
        }
    }

    async fn reply_all(&self, tasks: &mut [Task<'_>], ingestion: &mut Ingestion) {
        let (mut replies, mut indexes): (Vec<Reply>, Vec<usize>) = (Vec::new(), Vec::new());
        for (index, task) in tasks.iter().enumerate() {
            if let (Decision::Complete(reply), None) = (&task.decision, &task.action) {
                replies.push((**reply).clone());
                indexes.push(index);
            }
        }
        if replies.is_empty() {
            return;
        }
        let ReplyMatches { answers, changed } = self.reply(&replies).await;
        ingestion.changed = changed;
        for (index, answer) in indexes.into_iter().zip(answers) {
            tasks[index].action = match answer {
                Ok(replied) => Some(Ok(match replied {
                    Replied::Settled(job) => TriggerAction::Completed { job },
                    Replied::Recorded(job) => TriggerAction::Recorded { job },
                    Replied::AlreadyProcessed(job) => TriggerAction::AlreadyProcessed { job },
                    Replied::Late(job) => TriggerAction::Late { job },
                    Replied::Pending(until) => TriggerAction::Pending { until },
                })),
                Err(error) => refused(&mut tasks[index], error),
            };
        }
    }

    /// Stores events that could not be mapped, or were refused, as dead letters.
    async fn bury(&self, events: &[Event], tasks: &mut [Task<'_>]) {
        let (mut txns, mut indexes): (Vec<Txn>, Vec<(usize, TriggerAction)>) =
            (Vec::new(), Vec::new());
        for (index, task) in tasks.iter().enumerate() {
            if let (Decision::Failed(reason), None) = (&task.decision, &task.action) {
                let dead = DeadLetter::new(
                    Some(&task.trigger.name),
                    reason.clone(),
                    &events[task.event],
                    self.now(),
                );
                let letter = dead.id.clone();
                match self.letter(dead) {
                    Ok(record) => txns.push(vec![Write::PutRecord(record)]),
                    Err(error) => {
                        tracing::error!(
                            trigger = %task.trigger.name,
                            %error,
                            "a dead letter cannot be written"
                        );
                    }
                }
                indexes
                    .push((index, TriggerAction::DeadLettered { letter, reason: reason.clone() }));
            }
        }
        if txns.is_empty() {
            return;
        }
        let stored = match self.make_room(txns.len() as u64).await {
            Ok(()) => self.ports.store.commit(txns).await.map(drop).map_err(Error::from),
            Err(error) => Err(error),
        };
        for (index, action) in indexes {
            tasks[index].action = Some(stored.clone().map(|()| action));
        }
    }
}

/// The result of a refused task. After a temporary error the event must be sent again. After a
/// permanent error it becomes a dead letter, which is written later.
fn refused(task: &mut Task<'_>, error: Error) -> Option<Result<TriggerAction, Error>> {
    match error {
        Error::Unavailable { .. } | Error::Unreadable(_) | Error::Internal(_) => Some(Err(error)),
        Error::Stale { .. } | Error::Conflict { code: ErrorCode::ConcurrentUpdate, .. } => {
            Some(Err(Error::unavailable(Duration::from_secs(1), error.to_string())))
        }
        error => {
            task.decision = Decision::Failed(error.to_string());
            None
        }
    }
}

/// The job that a trigger creates from an event.
fn new_job(wanted: RequestedJob, trigger: &Trigger, event: &Event) -> NewJob {
    let RequestedJob { id, job_type, data, fields } = wanted;
    let mut options = fields.options;
    options.headers.insert(HOPS_HEADER.to_owned(), event.hops().saturating_add(1).to_string());
    let text = |name: &str| match event.extensions.get(name) {
        Some(Extension::Text(text)) if text.len() <= 512 => Some((name.to_owned(), text.clone())),
        _ => None,
    };
    // A `tracestate` without a `traceparent` has no meaning.
    let parent = text("traceparent");
    let trace = parent
        .map(|parent| [Some(parent), text("tracestate")].into_iter().flatten().collect())
        .unwrap_or_default();
    NewJob {
        id: Some(id),
        run_at: fields.run_at,
        delay_seconds: fields.delay_seconds,
        expires_at: fields.expires_at,
        correlation_key: fields.correlation_key,
        options,
        trace,
        origin: Some(Box::new(Origin::trigger(trigger.name.clone(), &event.source, &event.id))),
        ..NewJob::new(job_type, data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::builders::name;
    use tidegate_core::event::TriggerConfig;

    #[test]
    fn temporary_errors_are_sent_again_others_become_dead_letters() {
        let config: TriggerConfig =
            serde_json::from_str(r#"{"enqueue": {"type": "work"}}"#).unwrap();
        let trigger = Trigger::new(&name("t"), &config).unwrap();
        let conflict = |code| Error::Conflict { code, message: "no".into(), holder: None };
        let busy = || Error::unavailable(Duration::from_secs(1), "busy");
        for (error, passes) in [
            (busy(), true),
            (Error::Stale { version: 7 }, true),
            (conflict(ErrorCode::ConcurrentUpdate), true),
            (conflict(ErrorCode::ConcurrentUpdate), true),
            (conflict(ErrorCode::CorrelationKeyTaken), false),
            (Error::invalid("max_attempts", "must be 1 to 65535"), false),
            (
                Error::NotFound { code: ErrorCode::JobTypeNotFound, what: "job type work".into() },
                false,
            ),
        ] {
            let mut task = Task {
                event: 0,
                trigger: &trigger,
                decision: Decision::Failed(String::new()),
                action: None,
            };
            let said = error.to_string();
            let answer = refused(&mut task, error);
            assert_eq!(matches!(answer, Some(Err(Error::Unavailable { .. }))), passes, "{said}");
            assert_eq!(task.decision == Decision::Failed(said.clone()), !passes, "{said}");
        }
    }
}
