//! Two simulations of one scenario side by side: where their plugins first decided differently.
//!
//! After the first difference the two queues are no longer the same, so of each job only its first one is told, the
//! earliest jobs first.

use serde::Serialize;

use super::{
    policies::{Decided, SeenDecisions, What},
    world::Ran,
};
use tidegate_core::time::Timestamp;

/// Most differences that are told.
pub const DIFFERENCES: usize = 20;

/// A job about which two versions decided differently.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The job.
    pub job: String,
    /// Its value of what jobs are told apart by.
    pub value: String,
    /// When, from the scenario's start.
    pub at_seconds: f64,
    /// What the first version said, or still says from before.
    pub one: String,
    /// What the other said.
    pub other: String,
}

/// The first differences between what the plugins of `one` and `other` decided, and how many jobs they differ in.
pub(super) fn differences(one: &Ran, other: &Ran) -> (Vec<Difference>, u64) {
    let mut found: Vec<(Timestamp, usize, Difference)> = Vec::new();
    for (number, id) in one.ids.iter().enumerate() {
        let of = |seen: &SeenDecisions| seen.decided.get(id).cloned().unwrap_or_default();
        let (ours, theirs) = (of(&one.seen), of(&other.seen));
        let Some(at) = first(&ours, &theirs) else {
            continue;
        };
        let value = one.record.number(id).map_or_else(String::new, |number| {
            one.record.groups[one.record.jobs[number].group].value.clone()
        });
        let difference = Difference {
            job: id.to_string(),
            value,
            at_seconds: at.since(one.record.start).as_secs_f64(),
            one: said(&one.seen, &ours, at, one.record.start),
            other: said(&other.seen, &theirs, at, one.record.start),
        };
        found.push((at, number, difference));
    }
    let count = found.len() as u64;
    found.sort_by_key(|(at, number, _)| (*at, *number));
    found.truncate(DIFFERENCES);
    (found.into_iter().map(|(.., difference)| difference).collect(), count)
}

/// When two sequences of decisions first differ.
fn first(ours: &[Decided], theirs: &[Decided]) -> Option<Timestamp> {
    let pairs = (0..ours.len().max(theirs.len())).map(|index| (ours.get(index), theirs.get(index)));
    pairs.into_iter().find_map(|pair| match pair {
        (Some(a), Some(b)) if (a.at, a.what) == (b.at, b.what) => None,
        (Some(a), Some(b)) => Some(a.at.min(b.at)),
        (a, b) => a.or(b).map(|only| only.at),
    })
}

/// What had been said of a job by `at`, in words.
fn said(seen: &SeenDecisions, decided: &[Decided], at: Timestamp, start: Timestamp) -> String {
    let Some(last) = decided.iter().take_while(|decided| decided.at <= at).last() else {
        return "not asked".to_owned();
    };
    let seconds = |at: Timestamp| at.since(start).as_secs_f64();
    let what = match last.what {
        What::Run => "run".to_owned(),
        What::Hold => "hold".to_owned(),
        What::Reschedule(at) => format!("reschedule to {} s", seconds(at)),
        What::Drop => "drop".to_owned(),
        What::Retry(at) => format!("retry at {} s", seconds(at)),
        What::GiveUp => "give up".to_owned(),
    };
    let reason = &seen.reasons[last.reason as usize];
    if reason.is_empty() { what } else { format!("{what}: {reason}") }
}
