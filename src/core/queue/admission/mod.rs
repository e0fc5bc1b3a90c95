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

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{
    config::{BUCKET_BYTES, Limits},
    ledger::{Bucket, Rule},
    matcher::Subject,
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
    /// It runs; its weight and tokens are taken.
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
    /// The buckets of the rates, by constraint and value; an absent one is full.
    buckets: HashMap<usize, HashMap<String, Bucket>>,
    /// How many bytes of [`MAX_BUCKET_BYTES`](super::config::MAX_BUCKET_BYTES) the buckets take.
    bucket_bytes: usize,
    reserved: Reservations,
    /// The rates without tokens and the limits of 0, by constraint and value. Later candidates of
    /// this tick and the next are held by them without a reservation.
    exhausted: HashMap<usize, HashSet<String>>,
}

impl<'a> Admission<'a> {
    /// The admissions of a tick at `now`, with `usage` granted. A bucket not in `buckets` is full.
    pub fn new(
        limits: &'a Limits,
        usage: Usage,
        buckets: BTreeMap<(String, String), Bucket>,
        now: Timestamp,
    ) -> Self {
        let mut by_constraint: HashMap<usize, HashMap<String, Bucket>> = HashMap::new();
        let mut bucket_bytes = 0;
        for ((name, value), bucket) in buckets {
            let Some(index) =
                limits.queue.constraints.iter().position(|constraint| constraint.name == name)
            else {
                continue;
            };
            if limits.queue.constraints[index]
                .rate
                .is_some_and(|rate| rate.at(Some(bucket), now).tokens < rate.capacity())
            {
                bucket_bytes += name.len() + value.len() + BUCKET_BYTES;
                by_constraint.entry(index).or_default().insert(value, bucket);
            }
        }
        Self {
            limits,
            now,
            usage,
            buckets: by_constraint,
            bucket_bytes,
            reserved: Reservations::default(),
            exhausted: HashMap::new(),
        }
    }

    /// The decision on the next candidate. [`AdmissionDecision::Run`] takes its weight and tokens.
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
                let bucket = rate.at(self.bucket(*index, value), self.now).taken();
                if self
                    .buckets
                    .entry(*index)
                    .or_default()
                    .insert(value.to_string(), bucket)
                    .is_none()
                {
                    self.bucket_bytes += self.bytes_of(*index, value);
                }
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

    /// The capacity in use, and the buckets that are not full.
    pub fn finish(self) -> (Usage, BTreeMap<(String, String), Bucket>) {
        let mut buckets = BTreeMap::new();
        for (index, values) in self.buckets {
            let constraint = &self.limits.queue.constraints[index];
            let Some(rate) = constraint.rate else {
                continue;
            };
            let open = values
                .into_iter()
                .filter(|(_, bucket)| rate.at(Some(*bucket), self.now).tokens < rate.capacity());
            buckets.extend(open.map(|(value, bucket)| ((constraint.name.clone(), value), bucket)));
        }
        (self.usage, buckets)
    }
}
