//! **Where a job is admitted**: the decision, per candidate, as a fold of values.
//!
//! ```text
//!   candidates in order ──▶ Admission::offer ──▶ Run | Hold (by which rule) | Move (to when)
//!                             │
//!                             ├─ windows        outside all of them: move to the next opening
//!                             ├─ pause          holds everything, critical jobs too
//!                             ├─ critical?      runs
//!                             └─ every limit that counts it: queue, type, constraints (and rates)
//! ```
//!
//! The one thing to know is **reservation**: a candidate that does not fit a limit reserves it, and
//! no later candidate passes it in that limit, so that light jobs never starve a heavy one. One
//! that is heavier than a limit itself can never fit; it is held and reserves nothing.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{
    config::{Constraint, Limits, MAX_RUNNING},
    head::{Bucket, Grant, Rule},
    matcher::Subject,
    window::{self, Window},
};
use crate::{job::Spec, time::Timestamp};

/// A due job that asks for admission.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// What limits look at.
    pub subject: Subject<'a>,
    /// Capacity units it takes.
    pub weight: u32,
    /// Not held by limits, takes no capacity.
    pub critical: bool,
    /// When on the clock it may start.
    pub windows: &'a [Window],
}

impl<'a> Candidate<'a> {
    /// The candidate that a job is.
    pub fn of(spec: &'a Spec) -> Self {
        let subject = Subject { job_type: &spec.job_type, priority: spec.priority, attributes: &spec.attributes };
        Self { subject, weight: spec.weight, critical: spec.critical, windows: &spec.windows }
    }
}

/// The answer to one candidate.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It runs; its weight and tokens are taken.
    Run,
    /// It waits where it is.
    Hold(Hold),
    /// It waits for another time: its windows are closed until then.
    Move(Timestamp),
}

/// Why a candidate is held.
#[derive(Clone, Debug, PartialEq)]
pub struct Hold {
    /// The first rule that it does not fit.
    pub rule: Rule,
    /// For people.
    pub reason: String,
    /// The earliest it can run, where that is known.
    pub earliest_at: Option<Timestamp>,
}

/// The weight that live grants take, by limit. Derived from the grants; see [`Usage::of`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    weight: u64,
    live: u64,
    types: HashMap<String, u64>,
    values: HashMap<(usize, Option<String>), u64>,
}

impl Usage {
    /// What `grants` take of `limits`.
    pub fn of<'a>(limits: &Limits, grants: impl IntoIterator<Item = &'a Grant>) -> Self {
        let mut usage = Self::default();
        for grant in grants {
            usage.add(limits, grant);
        }
        usage
    }

    /// Counts `grant`.
    pub fn add(&mut self, limits: &Limits, grant: &Grant) {
        self.change(limits, grant, |count, by| *count += by);
    }

    /// Counts `grant` no more. It must have been counted under the same limits.
    pub fn remove(&mut self, limits: &Limits, grant: &Grant) {
        self.change(limits, grant, |count, by| *count = count.saturating_sub(by));
    }

    fn change(&mut self, limits: &Limits, grant: &Grant, change: impl Fn(&mut u64, u64)) {
        if grant.critical {
            return;
        }
        let weight = u64::from(grant.weight);
        change(&mut self.weight, weight);
        change(&mut self.live, 1);
        if limits.types.contains_key(&grant.job_type) {
            change(self.types.entry(grant.job_type.as_str().to_owned()).or_default(), weight);
        }
        let subject = Subject { job_type: &grant.job_type, priority: grant.priority, attributes: &grant.attributes };
        for (index, _, value) in counting(limits, subject).filter(|(_, constraint, _)| constraint.concurrency.is_some()) {
            let slot = (index, value);
            let count = self.values.entry(slot.clone()).or_default();
            change(count, weight);
            if *count == 0 {
                self.values.remove(&slot);
            }
        }
    }

    /// The granted weight.
    pub fn weight(&self) -> u64 {
        self.weight
    }
}

/// The constraints that count `subject`: index, constraint, and the value it is counted under.
fn counting<'a>(limits: &'a Limits, subject: Subject<'a>) -> impl Iterator<Item = (usize, &'a Constraint, Option<String>)> + 'a {
    limits.queue.constraints.iter().enumerate().filter_map(move |(index, constraint)| {
        let value = match &constraint.per {
            None => None,
            Some(name) => Some(subject.attributes.get(name)?.text()),
        };
        constraint.matcher.matches(subject).then_some((index, constraint, value))
    })
}

/// A limit that a candidate did not fit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Limit {
    Queue,
    Type(String),
    Constraint(usize, Option<String>),
    Rate(usize, Option<String>),
}

/// One round of admission: offer it candidates in order.
#[derive(Debug)]
pub struct Admission<'a> {
    limits: &'a Limits,
    now: Timestamp,
    usage: Usage,
    buckets: BTreeMap<(String, String), Bucket>,
    reserved: HashSet<Limit>,
}

impl<'a> Admission<'a> {
    /// A round at `now`, with `usage` granted and `buckets` not full.
    pub fn new(limits: &'a Limits, usage: Usage, buckets: BTreeMap<(String, String), Bucket>, now: Timestamp) -> Self {
        Self { limits, now, usage, buckets, reserved: HashSet::new() }
    }

    /// The verdict on the next candidate; a `Run` takes what it needs.
    pub fn offer(&mut self, candidate: Candidate<'_>) -> Verdict {
        let opening = window::next_opening(candidate.windows, self.now);
        if opening > self.now {
            return Verdict::Move(opening);
        }
        if self.limits.paused {
            return hold(Rule::Paused, "the queue is paused".into(), None);
        }
        if candidate.critical {
            return Verdict::Run;
        }
        let mut missed = Vec::new();
        let mut first: Option<Hold> = None;
        let mut never = false;
        for (limit, rule, most, used) in self.levels(candidate) {
            let weight = u64::from(candidate.weight);
            let over = weight > most;
            if over || most == 0 || used + weight > most || self.reserved.contains(&limit) {
                never |= over && most > 0;
                first.get_or_insert_with(|| Hold { reason: full(&rule, weight, used, most), rule, earliest_at: None });
                missed.push(limit);
            }
        }
        for (index, constraint, value) in counting(self.limits, candidate.subject) {
            let Some(rate) = &constraint.rate else { continue };
            let bucket = rate.at(self.bucket(constraint, value.as_deref()), self.now);
            let limit = Limit::Rate(index, value.clone());
            if !bucket.has_token() || self.reserved.contains(&limit) {
                let earliest_at = rate.wait(bucket).map(|wait| self.now + wait);
                let reason = format!("at most {} attempts per {} s", rate.count, rate.per_seconds.as_f64());
                first.get_or_insert(Hold { rule: Rule::Constraint(constraint.name.clone(), value), reason, earliest_at });
                missed.push(limit);
            }
        }
        match first {
            Some(hold) => {
                if !never {
                    self.reserved.extend(missed);
                }
                Verdict::Hold(hold)
            }
            None => {
                self.take(candidate);
                Verdict::Run
            }
        }
    }

    /// Every concurrency limit that counts `candidate`: which, its name, its most, what is used of it.
    fn levels(&self, candidate: Candidate<'_>) -> Vec<(Limit, Rule, u64, u64)> {
        let mut levels = Vec::with_capacity(4);
        if let Some(most) = self.limits.queue.concurrency {
            levels.push((Limit::Queue, Rule::Concurrency, most.into(), self.usage.weight));
        }
        if self.usage.live >= MAX_RUNNING {
            levels.push((Limit::Queue, Rule::Concurrency, 0, self.usage.live));
        }
        let job_type = candidate.subject.job_type;
        if let Some(most) = self.limits.types.get(job_type) {
            let used = self.usage.types.get(job_type.as_str()).copied().unwrap_or(0);
            levels.push((Limit::Type(job_type.to_string()), Rule::TypeConcurrency(job_type.clone()), (*most).into(), used));
        }
        for (index, constraint, value) in counting(self.limits, candidate.subject) {
            if let Some(most) = constraint.concurrency {
                let used = self.usage.values.get(&(index, value.clone())).copied().unwrap_or(0);
                let rule = Rule::Constraint(constraint.name.clone(), value.clone());
                levels.push((Limit::Constraint(index, value), rule, most.into(), used));
            }
        }
        levels
    }

    fn bucket(&self, constraint: &Constraint, value: Option<&str>) -> Option<Bucket> {
        self.buckets.get(&(constraint.name.clone(), value.unwrap_or_default().to_owned())).copied()
    }

    /// Takes the weight and the tokens of an admitted candidate.
    fn take(&mut self, candidate: Candidate<'_>) {
        let subject = candidate.subject;
        let tokens: Vec<_> = counting(self.limits, subject)
            .filter_map(|(_, constraint, value)| Some((constraint, constraint.rate?, value)))
            .map(|(constraint, rate, value)| {
                let mut bucket = rate.at(self.bucket(constraint, value.as_deref()), self.now);
                bucket.tokens = (bucket.tokens - 1.0).max(0.0);
                ((constraint.name.clone(), value.unwrap_or_default()), bucket)
            })
            .collect();
        self.buckets.extend(tokens);
        let grant = Grant {
            job: "admitted".parse().expect("a good id"),
            version: crate::job::Version(0),
            job_type: subject.job_type.clone(),
            priority: subject.priority,
            weight: candidate.weight,
            critical: false,
            attributes: subject.attributes.clone(),
        };
        self.usage.add(self.limits, &grant);
    }

    /// Whether no further candidate (or none that is not critical) can be admitted in this round.
    pub fn closed(&self, critical: bool) -> bool {
        let full = self.limits.queue.concurrency.is_some_and(|most| self.usage.weight > u64::from(most) || most == 0);
        self.limits.paused || (!critical && (full || self.reserved.contains(&Limit::Queue)))
    }

    /// What is used now, and the buckets that are not full.
    pub fn finish(mut self) -> (Usage, BTreeMap<(String, String), Bucket>) {
        let (limits, now) = (self.limits, self.now);
        self.buckets.retain(|(name, _), bucket| {
            let rate = limits.queue.constraints.iter().find(|constraint| constraint.name == *name).and_then(|c| c.rate);
            rate.is_some_and(|rate| rate.at(Some(*bucket), now).tokens < rate.capacity())
        });
        (self.usage, self.buckets)
    }
}

fn hold(rule: Rule, reason: String, earliest_at: Option<Timestamp>) -> Verdict {
    Verdict::Hold(Hold { rule, reason, earliest_at })
}

fn full(rule: &Rule, weight: u64, used: u64, most: u64) -> String {
    let whose = match rule {
        Rule::Paused | Rule::Concurrency => "the queue".to_owned(),
        Rule::TypeConcurrency(name) => format!("type {name}"),
        Rule::Constraint(name, None) => format!("constraint {name}"),
        Rule::Constraint(name, Some(value)) => format!("constraint {name} for {value}"),
    };
    if most == 0 {
        format!("{whose} admits nothing: its limit is 0 or spent")
    } else if weight > most {
        format!("its weight {weight} is over the limit {most} of {whose}")
    } else {
        format!("{used} of {most} of {whose} is in use, and it needs {weight}")
    }
}
