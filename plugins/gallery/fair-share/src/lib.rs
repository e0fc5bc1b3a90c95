//! Weighted fair shares of the queue's limit: first among tenants, then among the users of each.
//!
//! A free slot goes to the tenant that uses the least for its weight, and within it to the user
//! that uses the least. So a tenant without jobs lends its share, and gets it back as jobs end. No
//! tenant borrows what another one waits for within its share, even if the other one has no candidate
//! in this call.

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

/// A weight by the value of an attribute.
type Weights = BTreeMap<String, u64>;

/// The throttler.
#[derive(Debug)]
pub struct FairShare;

impl Throttler for FairShare {
    type Config = Config;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        group_by: &["*"],
        waiting_by: &["*"],
        ..About::new("Shares the limit among tenants by weight, and among the users of each.")
    };

    fn decide(config: &Config, round: &Round, candidates: &[Job]) -> Result<Answer, String> {
        let running = round.running.weight();
        let limit = round.concurrency.map_or(running + u64::from(round.room), u64::from);
        // Without a limit of the queue, only the room of the workers counts.
        let free = round.concurrency.map(|_| limit.saturating_sub(running));
        let (mut free, mut room) = (free.unwrap_or(u64::MAX), u64::from(round.room));
        let used = |by: &String| round.running.weights(&Dimension::attribute(by));
        let mut turns: Vec<usize> = (0..candidates.len()).collect();
        if let Some(by) = &config.user {
            turns = in_turns(candidates, turns, by, &mut used(by), |_, used| used);
        }
        let by = &config.tenant;
        let (waiting, mut usage) = (round.waiting.groups(by), used(by));
        let weight = |of: &str| config.weights.get(of).map_or(1, |weight| u64::from(*weight));
        let mut planned = usage.clone();
        turns = in_turns(candidates, turns, by, &mut planned, |of, used| {
            (used << 20).checked_div(weight(of)).unwrap_or(u64::MAX)
        });
        // The tenants that run or wait share the limit.
        let absent = waiting.iter().map(|of| &of.value).filter(|of| !planned.contains_key(*of));
        let all = absent.chain(planned.keys()).map(|of| weight(of)).sum::<u64>().max(1);
        let share = |of: &str| weight(of) * limit / all;
        let left = |of: &str| share(of).saturating_sub(*usage.get(of).unwrap_or(&0));
        // What a tenant waits for within its share is kept from all others. The last is for those
        // that are in no group.
        let mut kept: Vec<u64> = waiting.iter().map(|of| of.weight.min(left(&of.value))).collect();
        kept.push(0);
        let mut all_kept: u64 = kept.iter().sum();

        let mut runs = vec![false; candidates.len()];
        for &place in &turns {
            let (job, weight) = (&candidates[place], u64::from(candidates[place].weight));
            if weight > free || room == 0 {
                // A job that does not fit after the earlier turns ends the turns of this call. It
                // is a candidate of the next call only if it fits then.
                break;
            }
            let group = waiting.binary_search_by(|of| of.value.as_str().cmp(value(job, by)));
            let own = &mut kept[group.unwrap_or(waiting.len())];
            // Kept for the other tenants.
            let others = all_kept - *own;
            if weight > *own && others > 0 && weight + others > free.min(room) {
                continue;
            }
            all_kept -= weight.min(*own);
            *own = own.saturating_sub(weight);
            (runs[place], free, room) = (true, free - weight, room - 1);
            add(&mut usage, job, by);
        }
        let mut waits: BTreeMap<&str, Decision> = BTreeMap::new();
        let decisions = candidates.iter().zip(&runs).map(|(job, runs)| {
            let of = value(job, by);
            let (used, share) = (usage.get(of).unwrap_or(&0), share(of));
            let why = || format!("{of} uses {used} of {limit}; its share is {share}");
            let mut hold = || waits.entry(of).or_insert_with(|| Decision::hold(why())).clone();
            if *runs { Decision::run() } else { hold() }
        });
        // Candidates of the tenants for which something is kept may be behind these.
        let more = !runs.contains(&false) || (all_kept > 0 && free > 0);
        Ok(Answer { decisions: decisions.collect(), more })
    }
}

fn value<'a>(job: &'a Job, by: &str) -> &'a str {
    job.attribute(by).unwrap_or("")
}

/// Adds a job to what its value uses. Returns what it used before.
fn add(used: &mut Weights, job: &Job, by: &str) -> u64 {
    let used = used.entry(value(job, by).to_owned()).or_default();
    *used += u64::from(job.weight);
    *used - u64::from(job.weight)
}

/// Sorts jobs by what their value uses when their turn comes, and adds them to `used`. The usage
/// of a value only grows, so the next job is always of the value that uses the least.
fn in_turns(
    jobs: &[Job],
    places: Vec<usize>,
    by: &str,
    used: &mut Weights,
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
