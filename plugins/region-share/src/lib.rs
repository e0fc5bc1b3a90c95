//! Shares of a limit by the values of an attribute: of 100, 40 % for `east`, 30 % for `north`, 30 %
//! for `west`.
//!
//! A share is a whole number of weight units, rounded down. With `lend`, the other listed values
//! may borrow capacity that its owner does not need. The owner gets it back as those jobs end:
//! owners are always served before borrowers.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tidegate_plugin::{
    About, Answer, Decision, Dimension, Job, Problem, Round, Throttler, export_throttler,
};

/// The configuration of a queue.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The attribute whose values share the limit.
    attribute: String,
    /// The limit to share (default: the queue's concurrency). If both are set, the smaller applies.
    limit: Option<u32>,
    /// Percent of the limit by value, together at most 100. A value that is not listed has no
    /// share.
    shares: BTreeMap<String, u32>,
    /// Whether unused capacity is lent to the other listed values.
    #[serde(default)]
    lend: bool,
}

/// The throttler.
#[derive(Debug)]
pub struct RegionShare;

impl Throttler for RegionShare {
    type Config = Config;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        group_by: &["*"],
        ..About::new(
            "Shares a limit by the values of an attribute, and lends what is not used if it may.",
        )
    };

    fn check(config: &Config) -> Vec<Problem> {
        let mut problems = Vec::new();
        if config.attribute.is_empty() {
            problems.push(Problem::new("/attribute", "must name an attribute"));
        }
        // A sum in 64 bits cannot overflow.
        let sum: u64 = config.shares.values().copied().map(u64::from).sum();
        if sum > 100 {
            problems.push(Problem::new(
                "/shares",
                format!("must be 100 percent together at most, not {sum}"),
            ));
        }
        problems
    }

    fn decide(config: &Config, round: &Round, candidates: &[Job]) -> Result<Answer, String> {
        let limit = config.limit.into_iter().chain(round.concurrency).min();
        let limit = u64::from(
            limit.ok_or("neither the configuration nor the queue says a limit to share")?,
        );
        let mut ledger = Ledger {
            config,
            limit,
            used: round.running.weights(&Dimension::attribute(&config.attribute)),
            total: round.running.weight(),
            closed: BTreeSet::new(),
        };
        let shares: Vec<_> = candidates.iter().map(|job| ledger.share(job)).collect();
        let jobs = || candidates.iter().zip(&shares);
        // Owners first, in the queue's order. Borrowers get what is left.
        let mut decisions: Vec<Option<Decision>> =
            jobs().map(|(job, share)| ledger.own(job, *share)).collect();
        if config.lend {
            let mut left = limit.saturating_sub(ledger.total + ledger.reserved());
            for ((job, share), decision) in jobs().zip(&mut decisions) {
                if decision.is_none() && left > 0 {
                    *decision = ledger.borrow(job, *share, &mut left);
                }
            }
        }
        let room = ledger.total < limit
            && (config.lend || ledger.shares().any(|(value, share)| ledger.used(value) < share));
        // Many jobs of a value wait for the same reason, which is formatted once.
        let mut waits: BTreeMap<&str, Decision> = BTreeMap::new();
        let mut wait = |share: Option<(_, _)>| {
            let (value, share) = share.unwrap_or_default();
            waits.entry(value).or_insert_with(|| ledger.wait(value, share)).clone()
        };
        let decisions = shares
            .iter()
            .zip(decisions)
            .map(|(share, decision)| decision.unwrap_or_else(|| wait(*share)))
            .collect();
        Ok(Answer { decisions, more: room })
    }
}

/// The used weight by value, including the jobs that this call runs.
struct Ledger<'a> {
    config: &'a Config,
    limit: u64,
    used: BTreeMap<String, u64>,
    total: u64,
    /// Values with a job that did not fit into its share. No later job of the same value overtakes
    /// it.
    closed: BTreeSet<&'a str>,
}

impl<'a> Ledger<'a> {
    fn shares(&self) -> impl Iterator<Item = (&'a str, u64)> {
        let limit = self.limit;
        self.config
            .shares
            .iter()
            .map(move |(value, percent)| (value.as_str(), limit * u64::from(*percent) / 100))
    }

    fn used(&self, value: &str) -> u64 {
        self.used.get(value).copied().unwrap_or(0)
    }

    /// The job's value as the configuration lists it, and its share.
    fn share(&self, job: &Job) -> Option<(&'a str, u64)> {
        let (value, percent) =
            self.config.shares.get_key_value(job.attribute(&self.config.attribute)?)?;
        Some((value, self.limit * u64::from(*percent) / 100))
    }

    fn run(&mut self, value: &str, job: &Job) -> Decision {
        let weight = u64::from(job.weight);
        self.total += weight;
        if let Some(used) = self.used.get_mut(value) {
            *used += weight;
        } else {
            self.used.insert(value.to_owned(), weight);
        }
        Decision::run()
    }

    /// Runs a job within its own share. Holds it if its value has no share, or if it can never fit.
    /// None if it has to wait.
    fn own(&mut self, job: &Job, share: Option<(&'a str, u64)>) -> Option<Decision> {
        let Some((value, share)) = share else {
            let attribute = &self.config.attribute;
            let value = job.attribute(attribute);
            return Some(Decision::hold(match value {
                Some(value) => format!("{attribute} {value} has no share"),
                None => format!("it has no {attribute}"),
            }));
        };
        let weight = u64::from(job.weight);
        if weight > share {
            // It is heavier than its share and may wait forever. It therefore does not close its
            // value.
            let ever = self.config.lend && weight <= self.limit;
            let never = || {
                Decision::hold(format!(
                    "weighs {weight}, more than {} {value} can ever have",
                    self.config.attribute
                ))
            };
            return (!ever).then(never);
        }
        if self.closed.contains(value) {
            return None;
        }
        if self.used(value) + weight <= share && self.total + weight <= self.limit {
            return Some(self.run(value, job));
        }
        self.closed.insert(value);
        None
    }

    /// The unused shares of owners that have a waiting job. No other value may borrow them.
    fn reserved(&self) -> u64 {
        self.shares()
            .filter(|(value, _)| self.closed.contains(value))
            .map(|(value, share)| share.saturating_sub(self.used(value)))
            .sum()
    }

    /// Runs a job on unused capacity, if it fits. The first job that does not fit ends the lending,
    /// so that lighter jobs do not overtake it forever. A job heavier than the share of its value
    /// does not end the lending.
    fn borrow(
        &mut self,
        job: &Job,
        share: Option<(&'a str, u64)>,
        left: &mut u64,
    ) -> Option<Decision> {
        let (value, share) = share?;
        // The job may also use what is reserved for its own value.
        let own =
            if self.closed.contains(value) { share.saturating_sub(self.used(value)) } else { 0 };
        let weight = u64::from(job.weight);
        if weight <= *left + own && self.total + weight <= self.limit {
            *left -= weight.saturating_sub(own);
            return Some(self.run(value, job));
        }
        if weight <= share {
            *left = 0;
        }
        None
    }

    fn wait(&self, value: &str, share: u64) -> Decision {
        let attribute = &self.config.attribute;
        Decision::hold(format!(
            "{attribute} {value} uses {} of its {share}; {} of {} are used",
            self.used(value),
            self.total,
            self.limit
        ))
    }
}

export_throttler!(RegionShare);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cases_hold() {
        tidegate_plugin::testing::throttler_cases::<RegionShare>("cases");
    }

    /// All combinations of three values on a small limit, with every backlog: the guarantees of the
    /// README.
    #[test]
    fn owners_precede_borrowers_and_no_capacity_idles() {
        let shares = [("east", 40), ("north", 30), ("west", 30)];
        for mask in 0..5 * 5 * 5 * 4 * 4 * 4 {
            let mut digits = mask;
            let mut digit = |base: u32| {
                let digit = digits % base;
                digits /= base;
                digit
            };
            let running: Vec<u32> = (0..3).map(|_| digit(5)).collect();
            let waiting: Vec<u32> = (0..3).map(|_| digit(4) * 4).collect();
            let list = |counts: &[u32]| {
                let one = |(times, (value, _)): (&u32, &(&str, u32))| {
                    format!(r#"{{"attributes": {{"region": "{value}"}}, "times": {times}}}"#)
                };
                counts.iter().zip(&shares).map(one).collect::<Vec<_>>().join(",")
            };
            let text = format!(
                r#"{{"name": "", "role": "throttler", "concurrency": 10,
                    "running": [{}], "candidates": [{}]}}"#,
                list(&running),
                list(&waiting)
            );
            let case = tidegate_plugin::testing::Case::read(&text).unwrap().remove(0);
            let config = Config {
                attribute: "region".into(),
                limit: None,
                shares: shares.map(|(value, share)| (value.to_owned(), share)).into(),
                lend: true,
            };
            let jobs = case.jobs();
            let answer = RegionShare::decide(&config, &case.round(), &jobs).unwrap();
            let ran = |value: &str| {
                let runs = jobs.iter().zip(&answer.decisions).filter(|(job, decision)| {
                    **decision == Decision::run() && job.attribute("region") == Some(value)
                });
                runs.count() as u32
            };
            let total: u32 = running.iter().sum();
            let runs: u32 = shares.iter().map(|(value, _)| ran(value)).sum();
            let owned = |place: usize| {
                (shares[place].1 / 10).saturating_sub(running[place]).min(waiting[place])
            };
            assert!(runs == 0 || total + runs <= 10, "{text}");
            assert_eq!(
                runs,
                10u32.saturating_sub(total).min(waiting.iter().sum()),
                "nothing idles: {text}"
            );
            for place in 0..3 {
                let borrowed = (0..3)
                    .filter(|other| *other != place)
                    .map(|other| ran(shares[other].0).saturating_sub(owned(other)));
                let short = owned(place).saturating_sub(ran(shares[place].0));
                assert!(
                    short == 0 || borrowed.sum::<u32>() == 0,
                    "{} waits for its own while others borrow: {text}",
                    shares[place].0
                );
            }
        }
    }
}
