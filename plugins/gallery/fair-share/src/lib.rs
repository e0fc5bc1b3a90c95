//! Weighted fair shares of the queue's limit: first among tenants, then among the users of each.
//!
//! A free slot goes to the tenant that uses the least for its weight, and within it to the user
//! that uses the least. So a tenant without jobs lends its share, and gets it back as jobs end.

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_plugin::{About, Answer, Decision, Dimension, Job, Round, Throttler};

/// The configuration of a queue.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The attribute that names the tenant. Jobs without it belong to a tenant without a name.
    tenant: String,
    /// The attribute that names the user. Two tenants have no user of the same name.
    user: Option<String>,
    /// Weights of tenants. Others have 1. A tenant with 0 gets only what no other tenant needs.
    #[serde(default)]
    weights: BTreeMap<String, u32>,
}

/// The throttler.
#[derive(Debug)]
pub struct FairShare;

impl Throttler for FairShare {
    type Config = Config;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        group_by: &["*"],
        ..About::new("Shares the limit among tenants by weight, and among the users of each.")
    };

    fn decide(config: &Config, round: &Round, candidates: &[Job]) -> Result<Answer, String> {
        let running = round.running.weight();
        let limit = round.concurrency.map_or(running + u64::from(round.room), u64::from);
        // Without a limit of the queue, only the room of the workers counts.
        let free = round.concurrency.map(|_| limit.saturating_sub(running));
        let (mut free, mut room) = (free.unwrap_or(u64::MAX), round.room);
        let used = |by: &String| round.running.weights(&Dimension::attribute(by));
        let mut turns: Vec<usize> = (0..candidates.len()).collect();
        if let Some(by) = &config.user {
            turns = in_turns(candidates, turns, by, &mut used(by), |_, used| used);
        }
        let by = &config.tenant;
        let mut usage = used(by);
        let mut planned = usage.clone();
        turns = in_turns(candidates, turns, by, &mut planned, |name, used| config.rank(name, used));

        let mut runs = vec![false; candidates.len()];
        for &place in &turns {
            let job = &candidates[place];
            if u64::from(job.weight) > free || room == 0 {
                // A job that does not fit after the earlier turns ends the turns of this call. It
                // is a candidate of the next call only if it fits then.
                break;
            }
            (runs[place], free, room) = (true, free - u64::from(job.weight), room - 1);
            add(&mut usage, job, by);
        }
        let all = planned.keys().map(|tenant| config.weight(tenant)).sum::<u64>().max(1);
        let wait = |tenant| {
            let (used, share) = (usage.get(tenant).unwrap_or(&0), config.weight(tenant) * limit);
            Decision::hold(format!("{tenant} uses {used} of {limit}; its share is {}", share / all))
        };
        let mut waits: BTreeMap<&str, Decision> = BTreeMap::new();
        let mut decisions = Vec::new();
        for (job, runs) in candidates.iter().zip(&runs) {
            let tenant = value(job, by);
            let mut hold = || waits.entry(tenant).or_insert_with(|| wait(tenant)).clone();
            decisions.push(if *runs { Decision::run() } else { hold() });
        }
        Ok(Answer { decisions, more: !runs.contains(&false) })
    }
}

impl Config {
    fn weight(&self, tenant: &str) -> u64 {
        self.weights.get(tenant).copied().unwrap_or(1).into()
    }

    fn rank(&self, tenant: &str, used: u64) -> u64 {
        (used << 20).checked_div(self.weight(tenant)).unwrap_or(u64::MAX)
    }
}

fn value<'a>(job: &'a Job, by: &str) -> &'a str {
    job.attribute(by).unwrap_or("")
}

/// Adds a job to what its value uses. Returns what it used before.
fn add(used: &mut BTreeMap<String, u64>, job: &Job, by: &str) -> u64 {
    let (value, weight) = (value(job, by), u64::from(job.weight));
    if let Some(used) = used.get_mut(value) {
        *used += weight;
        return *used - weight;
    }
    used.insert(value.to_owned(), weight);
    0
}

/// Sorts jobs by what their value uses when their turn comes, and adds them to `used`. The usage
/// of a value only grows, so the next job is always of the value that uses the least.
fn in_turns(
    jobs: &[Job],
    places: Vec<usize>,
    by: &str,
    used: &mut BTreeMap<String, u64>,
    rank: impl Fn(&str, u64) -> u64,
) -> Vec<usize> {
    let mut ranked: Vec<(u64, usize)> = Vec::new();
    for place in places {
        let used = add(used, &jobs[place], by);
        ranked.push((rank(value(&jobs[place], by), used), place));
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, place)| place).collect()
}

tidegate_plugin::export_throttler!(FairShare);
