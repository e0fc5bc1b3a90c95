//! The rules: which limits a candidate fits, and why it is held.

use std::{borrow::Cow, time::Duration};

use super::{Admission, AdmissionDecision, Candidate, Hold};
use crate::{
    calendar::window,
    queue::{
        config::{MAX_RATE_BYTES, MAX_RUNNING, Rate},
        ledger::Rule,
        rate::RateCount,
        usage::counting,
    },
};

/// How soon a candidate is evaluated again that was held because the rates had no room to count it.
const NO_ROOM_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A concurrency limit that counts a candidate.
struct Level {
    limit: Limit,
    most: u64,
    used: u64,
    reserved: bool,
}

/// The constraints that count a candidate, by index, each with the candidate's value.
pub(super) type Counted<'a> = Vec<(usize, Cow<'a, str>)>;

/// A limit: a constraint by its index among those that count the candidate.
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

    /// Whether the candidate does not fit even if nothing runs.
    fn never_fits(&self, weight: u64) -> bool {
        self.most > 0 && weight > self.most
    }
}

impl<'a> Admission<'a> {
    /// The constraints that count a candidate, if it may run; otherwise why it may not.
    ///
    /// None for a critical candidate, which takes nothing.
    pub(super) fn evaluate<'c>(
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
        if let Some(reason) = self.limits.pause_reason() {
            return Err(hold(Rule::Paused, reason.into()));
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
        // A reservation for a job that can never fit would close the limit permanently.
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
        if let Some((hold, index, value)) = self.over_rate(&counted) {
            self.exhausted.entry(index).or_default().insert(value);
            return Err(AdmissionDecision::Hold(hold));
        }
        if let Some(hold) = self.over_bytes(&counted) {
            return Err(AdmissionDecision::Hold(hold));
        }
        Ok(Some(counted))
    }

    /// Every concurrency limit that counts `candidate`, with its use and its reservation.
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
                // A reservation lasts for the whole scan, and a backlog may have any number of
                // values. Full limits have at most as many values as jobs run; limits of 0 have no
                // such bound.
                let values = if none { &mut self.exhausted } else { &mut self.reserved.values };
                values.entry(*index).or_default().insert(value.to_string());
            }
        }
    }

    /// The rates among the constraints that count a candidate, each with its value.
    fn rates<'c>(
        &'c self,
        counted: &'c [(usize, Cow<'c, str>)],
    ) -> impl Iterator<Item = (usize, &'c str, Rate)> + 'c {
        counted.iter().filter_map(|(index, value)| {
            Some((*index, value.as_ref(), self.limits.queue.constraints[*index].rate?))
        })
    }

    /// The hold of a candidate until the last of its rates admits a start, with the first rate that
    /// does not admit one now.
    ///
    /// It needs no reservation, because later candidates of this tick need the same rate.
    fn over_rate(&self, counted: &[(usize, Cow<'_, str>)]) -> Option<(Hold, usize, String)> {
        let mut over = self.rates(counted).filter_map(|(index, value, rate)| {
            let next = rate.next_start(self.rate_count(index, value), self.now);
            (next != Some(self.now)).then_some((index, value, rate, next))
        });
        let (index, value, rate, first_at) = over.next()?;
        let earliest_at = over.fold(first_at, |latest, (_, _, _, at)| Some(latest?.max(at?)));
        let (count, per) = (rate.count, rate.per_seconds.as_f64());
        let reason = match rate.burst {
            None => format!("at most {count} attempts start in any {per} s"),
            Some(burst) => format!("at most {count} attempts per {per} s, {burst} at once"),
        };
        let rule = self.constraint(index, value);
        Some((Hold { rule, reason, reserved: false, earliest_at }, index, value.to_owned()))
    }

    /// The hold of a candidate whose start the rates have no room to count.
    fn over_bytes(&self, counted: &[(usize, Cow<'_, str>)]) -> Option<Hold> {
        let growth = |(index, value, rate): (usize, &str, Rate)| {
            let count = self.rate_count(index, value);
            let names = if count.is_none() { self.name_bytes(index, value) } else { 0 };
            names + rate.growth(count, self.now)
        };
        let bytes: usize = self.rates(counted).map(growth).sum();
        if bytes == 0 || self.rate_bytes + bytes <= MAX_RATE_BYTES {
            return None;
        }
        let (index, value, _) = self.rates(counted).find(|rate| growth(*rate) > 0)?;
        let reason = format!(
            "the rates of the queue count in at most {MAX_RATE_BYTES} bytes; this start is counted \
             when older ones need no room any more"
        );
        Some(Hold {
            rule: self.constraint(index, value),
            reason,
            reserved: false,
            earliest_at: Some(self.now + NO_ROOM_RETRY_INTERVAL),
        })
    }

    /// How many bytes of [`MAX_RATE_BYTES`] the names of a value take.
    pub(super) fn name_bytes(&self, index: usize, value: &str) -> usize {
        self.limits.queue.constraints[index].name.len() + value.len()
    }

    fn rate_count(&self, index: usize, value: &str) -> Option<&RateCount> {
        self.rates.get(&index)?.get(value)
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
}

fn hold(rule: Rule, reason: String) -> AdmissionDecision {
    AdmissionDecision::Hold(Hold { rule, reason, reserved: false, earliest_at: None })
}
