//! A budget of cost for each day, in cents, tokens or any other whole unit. An attempt counts with
//! the cost that an attribute of its job states. If it fails, the cost in its report replaces that.

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_plugin::{
    About, Answer, Decision, Job, Problem, Round, Throttler,
    calendar::{date, day_number},
    clock::{self, LocalTime},
    parse, state_key,
};

/// The configuration of a queue.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The attribute whose values have a budget each (default: one budget for all jobs).
    attribute: Option<String>,
    /// The budget of a day.
    per_day: u64,
    /// Budgets that differ, by value.
    #[serde(default)]
    budgets: BTreeMap<String, u64>,
    /// What a job costs whose attribute `cost` is no whole number.
    default_cost: u64,
    /// The IANA name of the time zone whose midnight begins a day (default UTC).
    #[serde(default = "utc")]
    zone: String,
}

fn utc() -> String {
    "UTC".to_owned()
}

/// The details of a failure that a worker reports.
#[derive(Deserialize)]
struct Details {
    cost: u64,
}

/// The throttler.
#[derive(Debug)]
pub struct CostBudget;

impl Throttler for CostBudget {
    type Config = Config;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        state_version: 1,
        needs_ended: true,
        ..About::new("Starts jobs until the day's budget of cost is spent.")
    };

    fn check(config: &Config) -> Vec<Problem> {
        let problem = |_| Problem::new("/zone", "must be the IANA name of a time zone");
        clock::local(&config.zone, 0).err().map(problem).into_iter().collect()
    }

    fn decide(config: &Config, round: &Round, candidates: &[Job]) -> Result<Answer, String> {
        let (day_began, day_ends) = config.day(round.now)?;
        let load = |payer: &str| round.state.load(&state_key("spent", payer)).unwrap_or(0);
        let mut spent: BTreeMap<&str, u64> = BTreeMap::new();
        // What an attempt of today really cost replaces what it was expected to cost. One that was
        // handed back cost nothing, unless its details name a cost.
        for ended in round.ended.iter().filter(|ended| ended.started_at >= day_began) {
            let details = ended.details.as_deref().and_then(|text| parse(text).ok());
            let is_handed_back = matches!(ended.reason.as_deref(), Some("released" | "snoozed"));
            let nothing = is_handed_back.then_some(Details { cost: 0 });
            let Some(Details { cost }) = details.or(nothing) else { continue };
            let payer = config.payer(|name| ended.attribute(name));
            let spent = spent.entry(payer).or_insert_with(|| load(payer));
            let expected = config.cost(ended.attribute("cost"));
            *spent = spent.saturating_sub(expected).saturating_add(cost);
        }
        let mut decisions = Vec::new();
        for job in candidates {
            let payer = config.payer(|name| job.attribute(name));
            let budget = config.budgets.get(payer).copied().unwrap_or(config.per_day);
            let spent = spent.entry(payer).or_insert_with(|| load(payer));
            let cost = config.cost(job.attribute("cost"));
            let total = spent.saturating_add(cost);
            decisions.push(if total <= budget {
                *spent = total;
                Decision::run()
            } else if cost > budget {
                // Another day does not help, but another budget may.
                Decision::hold(format!("it costs {cost}, more than the budget of a day: {budget}"))
            } else {
                let why = format!("{payer} spent {spent} of {budget} today, and this costs {cost}");
                Decision::hold_until(day_ends, why)
            });
        }
        for (payer, spent) in spent {
            if spent != load(payer) {
                round.state.save_until(&state_key("spent", payer), &spent, Some(day_ends))?;
            }
        }
        Ok(Answer { decisions, more: true })
    }
}

impl Config {
    fn payer<'a>(&self, attribute: impl FnOnce(&str) -> Option<&'a str>) -> &'a str {
        self.attribute.as_deref().and_then(attribute).unwrap_or("")
    }

    fn cost(&self, written: Option<&str>) -> u64 {
        written.and_then(|cost| cost.parse().ok()).unwrap_or(self.default_cost)
    }

    /// The midnights before and after `now`.
    fn day(&self, now: u64) -> Result<(u64, u64), String> {
        let shown = clock::local(&self.zone, now)?.time;
        let today = day_number(shown.year.into(), shown.month.into(), shown.day.into());
        let midnight = |number| {
            let (year, month, day) = date(number);
            let (year, month, day) = (year as i32, month as u8, day as u8);
            let at = LocalTime { year, month, day, hour: 0, minute: 0, second: 0, millisecond: 0 };
            clock::instant(&self.zone, at)
        };
        Ok((midnight(today)?, midnight(today + 1)?))
    }
}

tidegate_plugin::export_throttler!(CostBudget);
