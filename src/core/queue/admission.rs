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
//! A queue's throttler, a plugin, decides within these limits: each candidate is evaluated alone
//! first, and admitted if the throttler runs it.
//!
//! The one thing to know is **reservation**: a candidate that does not fit a limit reserves it, and
//! no later candidate passes it in that limit, so that light jobs never starve a heavy one. One
//! that is heavier than a limit itself can never fit; it is held and reserves nothing.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use super::{
    config::{BUCKET_BYTES, Constraint, Limits, MAX_BUCKET_BYTES, MAX_RUNNING},
    ledger::{Bucket, Rule},
    matcher::Subject,
    usage::{Usage, counting},
};
use crate::calendar::window::{self, Window};
use crate::{
    job::{Spec, TypeName},
    time::Timestamp,
};

/// How soon a candidate is evaluated again that was held because all buckets were taken.
const BUCKET_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A due job that waits for admission.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// What limits compare.
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
    /// Whether it would fit but for what is kept for a candidate before it.
    pub reserved: bool,
    /// The earliest it can run, where that is known.
    pub earliest_at: Option<Timestamp>,
}

/// The limits that an earlier candidate did not fit and that no later one may pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    queue: bool,
    types: HashSet<TypeName>,
    values: HashMap<usize, HashSet<String>>,
}

/// A concurrency limit that counts a candidate.
struct Level {
    limit: Limit,
    most: u64,
    used: u64,
    reserved: bool,
}

/// The constraints that count a candidate, each with the value under which it does.
type Counted<'a> = Vec<(usize, Cow<'a, str>)>;

/// Which limit: a constraint by its place among those that count the candidate.
#[derive(Clone, Copy)]
enum Limit {
    Queue,
    Type,
    Counted(usize),
}

impl Level {
    fn fits(&self, weight: u64) -> bool {
        self.most > 0 && !self.reserved && self.used + weight <= self.most
    }

    /// Whether no free capacity would help.
    fn never_fits(&self, weight: u64) -> bool {
        self.most > 0 && weight > self.most
    }
}

/// The admissions of one tick, over candidates in order.
#[derive(Clone, Debug)]
pub struct Admission<'a> {
    limits: &'a Limits,
    now: Timestamp,
    usage: Usage,
    /// The buckets of the rates, by constraint and value; an absent one is full.
    buckets: HashMap<usize, HashMap<String, Bucket>>,
    /// How many bytes they take of [`MAX_BUCKET_BYTES`].
    bucket_bytes: usize,
    reserved: Reservations,
    /// The rates without tokens and the limits of 0, by constraint and value. Later candidates of
    /// this tick and the next are held by them without a reservation.
    exhausted: HashMap<usize, HashSet<String>>,
}

impl<'a> Admission<'a> {
    /// The admissions of a tick at `now`, with `usage` granted and `buckets` not full.
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
            Err(verdict) => return verdict,
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

    /// The verdict on a candidate that a throttler is still to be asked about: a `Run` takes nothing. One that is held
    /// reserves what it does not fit, as in an offer.
    pub fn check(&mut self, candidate: Candidate<'_>) -> AdmissionDecision {
        self.evaluate(candidate).map_or_else(|verdict| verdict, |_| AdmissionDecision::Run)
    }

    /// The constraints that count a candidate that may run (none for a critical one, which takes nothing), or why it may not.
    fn evaluate<'c>(
        &mut self,
        candidate: Candidate<'c>,
    ) -> Result<Option<Counted<'c>>, AdmissionDecision>
    where
        'a: 'c,
    {
        let opening = window::next_opening(candidate.windows, self.now);
        if opening > self.now {
            return Err(AdmissionDecision::Move(opening));
        }
        if self.limits.paused {
            return Err(hold(Rule::Paused, "the queue is paused".into()));
        }
        if candidate.critical {
            return Ok(None);
        }
        if self.usage.live() >= MAX_RUNNING {
            return Err(hold(
                Rule::Concurrency,
                format!("{MAX_RUNNING} jobs of the queue run, and no queue runs more"),
            ));
        }
        let counted: Vec<_> = counting(self.limits, candidate.subject).collect();
        let weight = u64::from(candidate.weight);
        let missed: Vec<_> =
            self.levels(candidate, &counted).filter(|level| !level.fits(weight)).collect();
        // Reserved for a job that can never fit, a limit would be closed for good.
        if let Some(never) = missed.iter().find(|level| level.never_fits(weight)) {
            return Err(AdmissionDecision::Hold(self.full(never, candidate, &counted)));
        }
        if let Some(first) = missed.first() {
            let hold = self.full(first, candidate, &counted);
            for level in &missed {
                self.reserve(level.limit, candidate, &counted);
            }
            return Err(AdmissionDecision::Hold(hold));
        }
        if let Some((hold, index, value)) = self.lacking_token(&counted) {
            self.exhausted.entry(index).or_default().insert(value);
            return Err(AdmissionDecision::Hold(hold));
        }
        if let Some(hold) = self.over_bytes(&counted) {
            return Err(AdmissionDecision::Hold(hold));
        }
        Ok(Some(counted))
    }

    /// Every concurrency limit that counts `candidate`, what is used of it, and whether somebody reserved it.
    fn levels<'c>(
        &'c self,
        candidate: Candidate<'c>,
        counted: &'c [(usize, Cow<'c, str>)],
    ) -> impl Iterator<Item = Level> + 'c {
        let Self { limits, usage, reserved, .. } = self;
        let job_type = candidate.subject.job_type;
        let queue = limits
            .queue
            .concurrency
            .map(|most| (Limit::Queue, most.into(), usage.weight(), reserved.queue));
        let of_type = limits.types.get(job_type).map(|most| {
            let reserved = !reserved.types.is_empty() && reserved.types.contains(job_type);
            (Limit::Type, (*most).into(), usage.of_type(job_type), reserved)
        });
        let constraints = counted.iter().enumerate().filter_map(|(place, (index, value))| {
            let most = limits.queue.constraints[*index].concurrency?;
            let reserved =
                reserved.values.get(index).is_some_and(|values| values.contains(value.as_ref()));
            Some((Limit::Counted(place), most.into(), usage.of_value(*index, value), reserved))
        });
        let levels = queue.into_iter().chain(of_type).chain(constraints);
        levels.map(|(limit, most, used, reserved)| Level { limit, most, used, reserved })
    }

    fn reserve(
        &mut self,
        limit: Limit,
        candidate: Candidate<'_>,
        counted: &[(usize, Cow<'_, str>)],
    ) {
        match limit {
            Limit::Queue => self.reserved.queue = true,
            Limit::Type => {
                self.reserved.types.insert(candidate.subject.job_type.clone());
            }
            Limit::Counted(place) => {
                let (index, value) = &counted[place];
                let none = self.limits.queue.constraints[*index].concurrency == Some(0);
                // A backlog may have any number of values, and a reservation lasts for the whole scan. A limit that is full has no more of
                // them than what runs.
                let values = if none { &mut self.exhausted } else { &mut self.reserved.values };
                values.entry(*index).or_default().insert(value.to_string());
            }
        }
    }

    /// The hold of a candidate that lacks a token, until the last of its rates has one, and the rate that lacks it. Needs no
    /// reservation, since whoever comes later in this round needs the same token.
    fn lacking_token(&self, counted: &[(usize, Cow<'_, str>)]) -> Option<(Hold, usize, String)> {
        let rates = counted.iter().filter_map(|(index, value)| {
            Some((index, value, self.limits.queue.constraints[*index].rate?))
        });
        let mut spent = rates.filter_map(|(index, value, rate)| {
            let bucket = rate.at(self.bucket(*index, value), self.now);
            (!bucket.has_token())
                .then(|| (*index, value, rate, rate.wait(bucket).map(|wait| self.now + wait)))
        });
        let (index, value, rate, first_at) = spent.next()?;
        let earliest_at = spent.fold(first_at, |latest, (_, _, _, at)| Some(latest?.max(at?)));
        let reason = format!("at most {} attempts per {} s", rate.count, rate.per_seconds.as_f64());
        Some((
            Hold { rule: self.constraint(index, value), reason, reserved: false, earliest_at },
            index,
            value.to_string(),
        ))
    }

    /// The hold of a candidate whose tokens would be counted under a new value, while as many values as are kept have spent theirs.
    fn over_bytes(&self, counted: &[(usize, Cow<'_, str>)]) -> Option<Hold> {
        let is_new = |(index, value): &&(usize, Cow<'_, str>)| {
            self.limits.queue.constraints[*index].rate.is_some()
                && self.bucket(*index, value).is_none()
        };
        let bytes: usize =
            counted.iter().filter(is_new).map(|(index, value)| self.bytes_of(*index, value)).sum();
        let (index, value) =
            counted.iter().find(is_new).filter(|_| self.bucket_bytes + bytes > MAX_BUCKET_BYTES)?;
        let reason = "the rate counts as many values as it can; a new one is counted when one of them has all its tokens back".into();
        Some(Hold {
            rule: self.constraint(*index, value),
            reason,
            reserved: false,
            earliest_at: Some(self.now + BUCKET_RETRY_INTERVAL),
        })
    }

    /// What a bucket takes of [`MAX_BUCKET_BYTES`].
    fn bytes_of(&self, index: usize, value: &str) -> usize {
        self.limits.queue.constraints[index].name.len() + value.len() + BUCKET_BYTES
    }

    fn bucket(&self, index: usize, value: &str) -> Option<Bucket> {
        self.buckets.get(&index)?.get(value).copied()
    }

    fn constraint(&self, index: usize, value: &str) -> Rule {
        let constraint = &self.limits.queue.constraints[index];
        Rule::Constraint(
            constraint.name.clone(),
            constraint.per.is_some().then(|| value.to_owned()),
        )
    }

    /// The hold of a candidate that does not fit `level`.
    fn full(
        &self,
        level: &Level,
        candidate: Candidate<'_>,
        counted: &[(usize, Cow<'_, str>)],
    ) -> Hold {
        let rule = match level.limit {
            Limit::Queue => Rule::Concurrency,
            Limit::Type => Rule::TypeConcurrency(candidate.subject.job_type.clone()),
            Limit::Counted(place) => self.constraint(counted[place].0, &counted[place].1),
        };
        let whose = match &rule {
            Rule::Paused | Rule::Concurrency | Rule::Throttler(_) => "the queue".to_owned(),
            Rule::TypeConcurrency(name) => format!("type {name}"),
            Rule::Constraint(name, None) => format!("constraint {name}"),
            Rule::Constraint(name, Some(value)) => format!("constraint {name} for {value}"),
        };
        let (weight, most, used) = (u64::from(candidate.weight), level.most, level.used);
        let reserved = most > 0 && used + weight <= most;
        let reason = if most == 0 {
            format!("the limit of {whose} is 0 and admits nothing")
        } else if level.never_fits(weight) {
            format!("its weight {weight} is over the limit {most} of {whose}")
        } else if reserved {
            format!(
                "{used} of {most} of {whose} is in use, and the rest is kept for a job before it"
            )
        } else {
            format!("{used} of {most} of {whose} is in use, and it needs {weight}")
        };
        Hold { rule, reason, reserved, earliest_at: None }
    }

    /// Whether no further candidate (or none that is not critical) can be admitted in this round.
    pub fn closed(&self, critical: bool) -> bool {
        let over = self
            .limits
            .queue
            .concurrency
            .is_some_and(|most| most == 0 || self.usage.weight() > most.into());
        let full = || {
            over || self.reserved.queue
                || self.usage.live() >= MAX_RUNNING
                || self.stops(|constraint| constraint.matcher.is_empty())
        };
        self.limits.paused || (!critical && full())
    }

    /// Whether no further candidate of this type that is not critical can be admitted in this round: one was held by what counts
    /// them all.
    pub fn closed_to(&self, job_type: &TypeName) -> bool {
        self.reserved.types.contains(job_type)
            || self.stops(|constraint| constraint.matcher.is_every(job_type))
    }

    /// The same of the candidates whose attribute `name` has this value.
    pub fn closed_to_value(&self, name: &str, value: &str) -> bool {
        let whose = |constraint: &Constraint| {
            constraint.per.as_deref() == Some(name) && constraint.matcher.is_empty()
        };
        self.stopped().any(|(index, values)| {
            values.contains(value) && whose(&self.limits.queue.constraints[index])
        })
    }

    /// Whether one of the constraints that count some jobs together, and all that `which` asks for, held a candidate.
    fn stops(&self, which: impl Fn(&Constraint) -> bool) -> bool {
        let constraint = |index: usize| &self.limits.queue.constraints[index];
        self.stopped().any(|(index, _)| constraint(index).per.is_none() && which(constraint(index)))
    }

    /// The constraints that held a candidate, each with the values for which they did.
    fn stopped(&self) -> impl Iterator<Item = (usize, &HashSet<String>)> {
        self.reserved.values.iter().chain(&self.exhausted).map(|(index, values)| (*index, values))
    }

    /// Gives away what candidates of this round and of those before it have reserved: nobody is offered after that.
    pub fn take_reserved(&mut self) -> Reservations {
        std::mem::take(&mut self.reserved)
    }

    /// Keeps what candidates have reserved that come before those which are offered from here on.
    pub fn restore_reservations(&mut self, before: &Reservations) {
        self.reserved.queue |= before.queue;
        self.reserved.types.extend(before.types.iter().cloned());
        for (index, values) in &before.values {
            self.reserved.values.entry(*index).or_default().extend(values.iter().cloned());
        }
    }

    /// What is used now, and the buckets that are not full.
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

fn hold(rule: Rule, reason: String) -> AdmissionDecision {
    AdmissionDecision::Hold(Hold { rule, reason, reserved: false, earliest_at: None })
}
