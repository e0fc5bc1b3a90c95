//! The attempts of a simulation: how long each one takes, and how it ends.

use std::{cmp::Reverse, time::Duration};

use super::World;
use crate::{
    request::{Report, ReportOutcome},
    simulate::{
        arrivals,
        draw::{Draw, For},
        scenario::{FailureRule, Service, TracedAttempt},
    },
};
use tidegate_core::{
    job::{
        Job, Outcome,
        lifecycle::{Failure, Reason},
    },
    queue::matcher::Subject,
    time::{Seconds, Timestamp},
};

/// The seconds of an attempt that no rule matches.
const DEFAULT_ATTEMPT_SECONDS: f64 = 1.0;

/// A running attempt.
#[derive(Debug)]
pub(super) struct Attempt {
    pub until: Timestamp,
    /// Of attempts that end at the same time, the one that started first is reported first.
    order: u64,
    pub number: usize,
    pub report: Report,
}

impl PartialEq for Attempt {
    fn eq(&self, other: &Self) -> bool {
        (self.until, self.order) == (other.until, other.order)
    }
}

impl Eq for Attempt {}

impl PartialOrd for Attempt {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Attempt {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.until, self.order).cmp(&(other.until, other.order))
    }
}

impl World<'_> {
    /// A worker starts an attempt. Its length and its result are determined now.
    pub(super) fn start(&mut self, job: &Job, now: Timestamp) {
        let number = self.record.lock().number(&job.id).expect("it was enqueued");
        let attempt = job.life.attempt;
        let (seconds, outcome) = match self.arriving[number].attempts.get(usize::from(attempt) - 1)
        {
            Some(traced) if traced.outcome.is_some() => (traced.seconds, traced_outcome(traced)),
            _ => self.drawn(job, number, now),
        };
        let token = job.life.running().map(|run| run.token);
        let report = Report { id: job.id.clone(), job_type: None, attempt, token, outcome };
        self.started += 1;
        self.under_way.push(Reverse(Attempt {
            until: now + seconds.duration(),
            order: self.started,
            number,
            report,
        }));
    }

    /// The length and the result of an attempt, by the first rule that matches its job.
    fn drawn(&self, job: &Job, number: usize, now: Timestamp) -> (Seconds, ReportOutcome) {
        let spec = &job.spec;
        let subject = Subject {
            job_type: &spec.job_type,
            priority: spec.priority,
            attributes: &spec.attributes,
        };
        let Some(rule) = self.scenario.service.iter().find(|rule| rule.matcher.matches(subject))
        else {
            return (
                arrivals::span(DEFAULT_ATTEMPT_SECONDS),
                ReportOutcome::Succeeded { result: None },
            );
        };
        let mut draw =
            Draw::new(self.scenario.seed, For::Attempt, number as u64, u64::from(job.life.attempt));
        let (chance, seconds) = (draw.fraction(), draw.span(rule.seconds));
        let at = now.since(self.scenario.start);
        match fails(rule, chance, at) {
            None => (arrivals::span(seconds), ReportOutcome::Succeeded { result: None }),
            Some(failure) => {
                let seconds = failure.seconds.map_or(seconds, |span| draw.span(span));
                (arrivals::span(seconds), failed(failure.reason, failure.status, failure.retryable))
            }
        }
    }
}

fn fails(rule: &Service, chance: f64, at: Duration) -> Option<&FailureRule> {
    let failure = rule.failure.as_ref()?;
    let within = failure
        .during_seconds
        .is_none_or(|[from, to]| (from.duration()..to.duration()).contains(&at));
    (within && chance < failure.rate).then_some(failure)
}

fn failed(reason: Reason, status: Option<u16>, retryable: bool) -> ReportOutcome {
    let message =
        status.map_or_else(|| "simulated".to_owned(), |status| format!("simulated: HTTP {status}"));
    let failure = Failure { status, ..Failure::new(reason, message) };
    ReportOutcome::Failed { failure, retryable, least_wait: Duration::ZERO }
}

fn traced_outcome(traced: &TracedAttempt) -> ReportOutcome {
    match traced.outcome {
        Some(Outcome::Failed) => {
            failed(traced.reason.unwrap_or(Reason::Failed), traced.status, true)
        }
        _ => ReportOutcome::Succeeded { result: None },
    }
}
