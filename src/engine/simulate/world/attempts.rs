//! The attempts of a simulation: how long each one takes, and how it ends.

use std::{cmp::Reverse, collections::HashMap, time::Duration};

use super::World;
use crate::{
    request::{Report, ReportOutcome},
    simulate::{
        arrivals,
        draw::{Draw, For},
        scenario::{FailureRule, Outcomes, Scenario, Service, TracedAttempt},
    },
};
use tidegate_core::{
    job::{
        Job, TypeName,
        lifecycle::{EndedAs, Failure, HandBack, Reason},
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
        let traced = match self.scenario.outcomes {
            Outcomes::Job => self.arriving[number].attempts.get(usize::from(attempt) - 1),
            Outcomes::Time => self.attempts_by_time.at(&job.spec.job_type, now),
        };
        let (seconds, outcome) = match traced {
            Some(traced) if traced.outcome.is_some() => {
                (traced.seconds, traced_outcome(traced, now + traced.seconds.duration()))
            }
            _ => self.drawn(job, number, now),
        };
        let token = job.life.running().map(|run| run.token);
        let report = Report {
            id: job.id.clone(),
            job_type: None,
            attempt,
            token,
            outcome,
            checkpoint: None,
        };
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
        let host = self.hosts.of(&spec.job_type, spec.retry_target.as_deref());
        let goes_there = |rule: &&Service| {
            let wanted = rule.host.as_deref();
            wanted.is_none_or(|wanted| host.is_some_and(|host| host.eq_ignore_ascii_case(wanted)))
        };
        let mut matching =
            self.scenario.service.iter().filter(|rule| rule.matcher.matches(subject));
        let Some(rule) = matching.find(goes_there) else {
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
                let FailureRule { reason, status, message, details, not_before_seconds, .. } =
                    failure.clone();
                let reported = Reported { reason, status, message, details, not_before_seconds };
                (arrivals::span(seconds), reported.failed(failure.retryable))
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

/// What a worker reports about a failed attempt.
struct Reported {
    reason: Reason,
    status: Option<u16>,
    message: Option<String>,
    details: Option<serde_json::Value>,
    not_before_seconds: Option<Seconds>,
}

impl Reported {
    fn failed(self, retryable: bool) -> ReportOutcome {
        let Self { reason, status, message, details, not_before_seconds } = self;
        let simulated = || match status {
            Some(status) => format!("simulated: HTTP {status}"),
            None => "simulated".to_owned(),
        };
        let failure = Failure {
            status,
            details: details.map(|details| details.to_string()),
            retry_after: not_before_seconds,
            ..Failure::new(reason, message.unwrap_or_else(simulated))
        };
        ReportOutcome::Failed { failure, retryable }
    }
}

/// The outcome of an attempt that ends at `ended_at`.
fn traced_outcome(traced: &TracedAttempt, ended_at: Timestamp) -> ReportOutcome {
    let TracedAttempt { reason, status, message, details, not_before_seconds, .. } = traced.clone();
    match traced.outcome {
        Some(outcome @ (EndedAs::Released | EndedAs::Snoozed)) => {
            let wait = not_before_seconds.unwrap_or_default().duration();
            let until = (outcome == EndedAs::Snoozed).then_some(ended_at + wait);
            ReportOutcome::HandedBack(HandBack { until, message, ..HandBack::default() })
        }
        Some(EndedAs::Failed) => {
            let reason = reason.unwrap_or(Reason::Failed);
            Reported { reason, status, message, details, not_before_seconds }.failed(true)
        }
        _ => ReportOutcome::Succeeded { result: None },
    }
}

/// The attempts of a trace by type, in the order of their starts.
#[derive(Debug, Default)]
pub(super) struct AttemptsByTime<'a>(HashMap<&'a TypeName, Vec<(Timestamp, &'a TracedAttempt)>>);

impl<'a> AttemptsByTime<'a> {
    /// The attempts of the trace in `scenario` that have ended.
    pub fn of(scenario: &'a Scenario) -> Self {
        let mut by_type: HashMap<&TypeName, Vec<_>> = HashMap::new();
        for job in &scenario.jobs {
            let ended = job.attempts.iter().filter(|attempt| attempt.outcome.is_some());
            let started = ended.filter_map(|attempt| {
                Some((scenario.start + attempt.started_seconds?.duration(), attempt))
            });
            by_type.entry(&job.job_type).or_default().extend(started);
        }
        for attempts in by_type.values_mut() {
            attempts.sort_by_key(|(at, _)| *at);
        }
        Self(by_type)
    }

    /// The attempt of this type that started last at `now` or before; else the first one.
    fn at(&self, job_type: &TypeName, now: Timestamp) -> Option<&'a TracedAttempt> {
        let attempts = self.0.get(job_type)?;
        let later = attempts.partition_point(|(at, _)| *at <= now);
        attempts.get(later.saturating_sub(1)).map(|(_, attempt)| *attempt)
    }
}
