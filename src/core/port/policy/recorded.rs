//! Recorded calls: the answer of either role, and whether a filter matches a call.

use std::collections::BTreeMap;

use super::{Action, Call, Decision, RetryAnswer, RetryOutput, ThrottleAnswer};
use crate::{
    job::{Job, Value},
    queue::plugin_calls::{CallFilter, DecidedAction},
};

/// An answer of a plugin.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The answer of a throttler.
    Throttle(ThrottleAnswer),
    /// The answer of a retry strategy.
    Retry(RetryOutput),
}

impl Answer {
    /// The number of jobs by what was decided about them.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        let mut count = |action: DecidedAction| *counts.entry(action.as_str()).or_default() += 1;
        match self {
            Self::Throttle(answer) => {
                answer.decisions.iter().for_each(|decision| count(decided(decision).0));
            }
            Self::Retry(output) => count(planned(&output.answer).0),
        }
        counts
    }
}

fn decided(Decision { action, reason }: &Decision) -> (DecidedAction, Option<&str>) {
    let action = match action {
        Action::Run => DecidedAction::Run,
        Action::Hold(_) => DecidedAction::Hold,
        Action::Reschedule(_) => DecidedAction::Reschedule,
        Action::Drop => DecidedAction::Drop,
    };
    (action, reason.as_deref())
}

fn planned(answer: &RetryAnswer) -> (DecidedAction, Option<&str>) {
    match answer {
        RetryAnswer::Retry(_) => (DecidedAction::Retry, None),
        RetryAnswer::GiveUp(message) => (DecidedAction::GiveUp, message.as_deref()),
    }
}

impl CallFilter {
    /// Whether a job of `call` meets all conditions. `answer` has the decisions.
    pub fn matches(&self, call: &Call, answer: &Answer) -> bool {
        if self.queue.as_ref().is_some_and(|queue| queue != call.queue()) {
            return false;
        }
        let is_of_queue = Self { queue: self.queue.clone(), ..Self::default() } == *self;
        match (call, answer) {
            _ if is_of_queue => true,
            (Call::Throttle(call), Answer::Throttle(answer)) => {
                let mut pairs = call.candidates.iter().zip(&answer.decisions);
                pairs.any(|(job, decision)| self.meets(job, decided(decision)))
            }
            (Call::Retry(call), Answer::Retry(output)) => {
                self.meets(&call.job, planned(&output.answer))
            }
            _ => false,
        }
    }

    fn meets(&self, job: &Job, (action, reason): (DecidedAction, Option<&str>)) -> bool {
        let has = |(name, wanted): (&String, &String)| {
            let value = job.spec.attributes.get(name);
            value.is_some_and(|value| value.is_found_by(&Value::Text(wanted.clone())))
        };
        self.action.is_none_or(|wanted| wanted == action)
            && self.job_type.as_ref().is_none_or(|wanted| *wanted == job.spec.job_type)
            && self.job.as_ref().is_none_or(|wanted| *wanted == job.id)
            && self.attributes.iter().all(has)
            && self
                .reason
                .as_ref()
                .is_none_or(|part| reason.is_some_and(|reason| reason.contains(part.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        job::{Body, JobOptions, Lifecycle, Payload, lifecycle::Waiting, type_config::TypeConfig},
        time::Timestamp,
    };

    #[test]
    fn a_filter_finds_an_attribute_by_any_text_of_its_number() {
        let attributes = serde_json::from_str(r#"{"size": 5.0, "tenant": "5.0"}"#).unwrap();
        let options = JobOptions { attributes, ..JobOptions::default() };
        let (job_type, created_at) = ("t".parse().unwrap(), Timestamp::EPOCH);
        let job = Job {
            id: "a".parse().unwrap(),
            spec: Arc::new(options.resolve(&job_type, &TypeConfig::default(), created_at)),
            data: Body::Inline(Payload::null()),
            life: Lifecycle::new(created_at, Waiting::Due),
        };
        let meets = |name: &str, wanted: &str| {
            let attributes = [(name.to_owned(), wanted.to_owned())].into();
            let filter = CallFilter { attributes, ..CallFilter::default() };
            filter.meets(&job, (DecidedAction::Run, None))
        };
        assert!(meets("size", "5") && meets("size", "5.0"));
        assert!(!meets("size", "6") && !meets("other", "5"));
        assert!(meets("tenant", "5.0") && !meets("tenant", "5"), "a text is no number");
    }
}
