//! **Where a job is admitted**: the decision, per candidate, as a fold of values.
//!
//! ```text
//!   candidates in order ──▶ Admission::try_admit ──▶ Run | Hold (by which rule) | Move (to when)
//!                             │
//!                             ├─ windows        outside all of them: move to the next opening
//!                             ├─ pause          holds everything, critical jobs too
//!                             ├─ critical?      runs
//!                             └─ every limit that counts it: queue, type, constraints (and rates)
//! ```
//!
//! A queue's throttler, a plugin, decides within these limits: each candidate is checked alone
//! first, and admitted if the throttler runs it.
//!
//! **Reservation**: a candidate that does not fit a limit reserves it, and no later candidate that
//! the limit counts is admitted. So light jobs never starve a heavy one. A candidate that is
//! heavier than a limit itself can never fit; it is held and reserves nothing.
//!
//! The rules are in `evaluate`. `closed` has shortcuts for candidates that cannot be admitted any
//! more in the current tick.

mod closed;
mod evaluate;

use std::collections::{HashMap, HashSet};

use super::{
    config::Limits,
    ledger::Rule,
    matcher::Subject,
    rate::{RateCount, RateCounts},
    usage::Usage,
};
use crate::{
    calendar::window::Window,
    job::{Spec, TypeName},
    time::Timestamp,
};

/// A due job that waits for admission.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// What matchers compare.
    pub subject: Subject<'a>,
    /// How many capacity units it takes.
    pub weight: u32,
    /// Whether limits do not hold it; it takes no capacity then.
    pub critical: bool,
    /// When it may start; at any time without windows.
    pub windows: &'a [Window],
}

impl<'a> Candidate<'a> {
    /// The candidate for a job with this spec.
    pub fn of(spec: &'a Spec) -> Self {
        let subject = Subject {
            job_type: &spec.job_type,
            priority: spec.priority,
            attributes: &spec.attributes,
        };
        Self { subject, weight: spec.weight, critical: spec.critical, windows: &spec.windows }
    }
}

/// The answer to one candidate.
#[derive(Clone, Debug, PartialEq)]
pub enum AdmissionDecision {
    /// It runs; its weight is taken, and its rates count it.
    Run,
    /// It is held and stays due.
    Hold(Hold),
    /// It waits for another time: its windows are closed until then.
    Move(Timestamp),
}

/// Why a candidate is held.
#[derive(Clone, Debug, PartialEq)]
pub struct Hold {
    /// The first rule that it does not fit.
    pub rule: Rule,
    /// The reason, for people.
    pub reason: String,
    /// Whether it would fit without the reservation of an earlier candidate.
    pub reserved: bool,
    /// The earliest instant at which it can run, if that is known.
    pub earliest_at: Option<Timestamp>,
}

/// The limits that an earlier candidate did not fit. They admit no later candidate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    queue: bool,
    types: HashSet<TypeName>,
    /// By constraint and value.
    values: HashMap<usize, HashSet<String>>,
}

/// The admissions of one tick, over candidates in order.
#[derive(Clone, Debug)]
pub struct Admission<'a> {
    limits: &'a Limits,
    now: Timestamp,
    usage: Usage,
    /// What the rates have counted, by constraint and value, as far as it matters now.
    rates: HashMap<usize, HashMap<String, RateCount>>,
    /// How many bytes of [`MAX_RATE_BYTES`](super::config::MAX_RATE_BYTES) the counts take.
    rate_bytes: usize,
    reserved: Reservations,
    /// The rates that admit no start now and the limits of 0, by constraint and value. Later
    /// candidates of this tick and the next are held by them without a reservation.
    exhausted: HashMap<usize, HashSet<String>>,
}

impl<'a> Admission<'a> {
    /// The admissions of a tick at `now`, with `usage` granted and `counts` of the rates.
    pub fn new(limits: &'a Limits, usage: Usage, counts: RateCounts, now: Timestamp) -> Self {
        let mut rates: HashMap<usize, HashMap<String, RateCount>> = HashMap::new();
        let mut rate_bytes = 0;
        for ((name, value), count) in counts.into_counts() {
            let constraints = &limits.queue.constraints;
            let Some(index) = constraints.iter().position(|constraint| constraint.name == name)
            else {
                continue;
            };
            let rate = constraints[index].rate;
            if let Some(count) = rate.and_then(|rate| rate.current(count, now)) {
                rate_bytes += name.len() + value.len() + count.bytes();
                rates.entry(index).or_default().insert(value, count);
            }
        }
        Self {
            limits,
            now,
            usage,
            rates,
            rate_bytes,
            reserved: Reservations::default(),
            exhausted: HashMap::new(),
        }
    }

    /// The decision on the next candidate. [`AdmissionDecision::Run`] takes its weight, and its
    /// rates count it.
    ///
    /// ```
    /// use tidegate_core::{
    ///     job::{JobOptions, type_config::TypeConfig},
    ///     queue::{Admission, AdmissionDecision, Candidate, Limits, QueueConfig, Rule, Usage},
    ///     time::Timestamp,
    /// };
    ///
    /// let queue = QueueConfig { concurrency: Some(1), ..QueueConfig::default() };
    /// let limits = Limits { queue, ..Limits::default() };
    /// let now = Timestamp::EPOCH;
    /// let spec = JobOptions::default().resolve(&"mail".parse()?, &TypeConfig::default(), now);
    ///
    /// let mut admission = Admission::new(&limits, Usage::default(), Default::default(), now);
    /// assert_eq!(admission.try_admit(Candidate::of(&spec)), AdmissionDecision::Run);
    /// let AdmissionDecision::Hold(hold) = admission.try_admit(Candidate::of(&spec)) else {
    ///     panic!("one job at a time");
    /// };
    /// assert_eq!(hold.rule, Rule::Concurrency);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_admit(&mut self, candidate: Candidate<'_>) -> AdmissionDecision {
        let counted = match self.evaluate(candidate) {
            Ok(counted) => counted,
            Err(decision) => return decision,
        };
        let Some(counted) = counted else {
            return AdmissionDecision::Run;
        };
        for (index, value) in &counted {
            if let Some(rate) = self.limits.queue.constraints[*index].rate {
                let names = self.name_bytes(*index, value);
                let values = self.rates.entry(*index).or_default();
                let before = values.remove(value.as_ref());
                let bytes_before = before.as_ref().map_or(0, |count| names + count.bytes());
                let count = rate.start(before, self.now);
                self.rate_bytes = self.rate_bytes + names + count.bytes() - bytes_before;
                values.insert(value.to_string(), count);
            }
        }
        self.usage.take(self.limits, candidate.subject, candidate.weight, counted);
        AdmissionDecision::Run
    }

    /// The decision on a candidate, without admission: [`AdmissionDecision::Run`] takes nothing.
    ///
    /// For a candidate that the throttler decides on next. A held one reserves the limits that it
    /// does not fit, as in [`Admission::try_admit`].
    pub fn check(&mut self, candidate: Candidate<'_>) -> AdmissionDecision {
        self.evaluate(candidate).map_or_else(|decision| decision, |_| AdmissionDecision::Run)
    }

    /// Removes and returns the reservations of this scan of the queue. No candidate may follow.
    pub fn take_reserved(&mut self) -> Reservations {
        std::mem::take(&mut self.reserved)
    }

    /// Adds the reservations of candidates that come before the next one.
    pub fn restore_reservations(&mut self, before: &Reservations) {
        self.reserved.queue |= before.queue;
        self.reserved.types.extend(before.types.iter().cloned());
        for (index, values) in &before.values {
            self.reserved.values.entry(*index).or_default().extend(values.iter().cloned());
        }
    }

    /// The capacity in use, and what the rates have counted.
    pub fn finish(self) -> (Usage, RateCounts) {
        let mut counts = RateCounts::default();
        for (index, values) in self.rates {
            let name = &self.limits.queue.constraints[index].name;
            for (value, count) in values {
                counts.insert((name.clone(), value), count);
            }
        }
        (self.usage, counts)
    }
}
