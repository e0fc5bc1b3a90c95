//! One job of each customer at a time, in turn. A free slot goes to the customer whose last job
//! started the longest ago, and of it to the first job of the queue.

use std::collections::BTreeSet;

use serde::Deserialize;
use tidegate_plugin::{About, Answer, Decision, Dimension, Job, Round, Throttler, state_key, warn};

/// A customer without starts for this time is forgotten, in milliseconds. Its next job goes first.
const DAY: u64 = 86_400_000;

/// The configuration of a queue.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The attribute that names the customer. Jobs without it belong to a customer without a name.
    attribute: String,
}

/// The throttler.
#[derive(Debug)]
pub struct OneAtATime;

impl Throttler for OneAtATime {
    type Config = Config;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        state_version: 1,
        group_by: &["*"],
        ..About::new("Runs one job of each customer at a time, and the customers take turns.")
    };

    fn decide(config: &Config, round: &Round, candidates: &[Job]) -> Result<Answer, String> {
        let customer = |place: usize| candidates[place].attribute(&config.attribute).unwrap_or("");
        let groups = round.running.groups(&Dimension::attribute(&config.attribute));
        let mut taken: BTreeSet<&str> = groups.iter().map(|group| group.value.as_str()).collect();
        let named: u32 = groups.iter().map(|group| group.count).sum();
        if round.running.count() > named {
            taken.insert("");
        }
        // The first candidate of each customer without a running job, by the time of its last start.
        let mut turns: Vec<(u64, usize)> = Vec::new();
        for place in 0..candidates.len() {
            if taken.insert(customer(place)) {
                let began = round.state.load(&state_key("began", customer(place)));
                turns.push((began.unwrap_or(0), place));
            }
        }
        turns.sort_unstable();
        let one = format!("one job of each {} at a time", config.attribute);
        let mut decisions = vec![Decision::hold(one); candidates.len()];
        // Without a limit of the queue, only the room of the workers counts.
        let limit = round.concurrency.map_or(u64::MAX, u64::from);
        let mut free = limit.saturating_sub(round.running.weight());
        let mut room = round.room;
        for (_, place) in turns {
            let weight = u64::from(candidates[place].weight);
            if weight > free || room == 0 {
                decisions[place] = Decision::hold("free slots go to other customers first");
                continue;
            }
            (free, room, decisions[place]) = (free - weight, room - 1, Decision::run());
            let key = state_key("began", customer(place));
            if let Err(problem) = round.state.save_until(&key, &round.now, Some(round.now + DAY)) {
                warn!("{problem}");
            }
        }
        Ok(Answer { decisions, more: free > 0 && room > 0 })
    }
}

tidegate_plugin::export_throttler!(OneAtATime);
