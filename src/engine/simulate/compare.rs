//! The differences of two simulations of one scenario: where their plugins first decided
//! differently.
//!
//! After the first difference the two queues develop differently. So only the first difference of
//! each job is reported, the earliest jobs first.

use serde::Serialize;

use super::{
    policies::{DecisionChange, PluginDecision, SeenDecisions},
    world::FinishedRun,
};
use tidegate_core::time::Timestamp;

/// Most differences that are reported.
pub const MAX_DIFFERENCES: usize = 20;

/// A job about which two versions decided differently.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The job.
    pub job: String,
    /// The value of the attribute by which jobs are grouped.
    pub value: String,
    /// When, from the start of the scenario.
    pub at_seconds: f64,
    /// The decision of the first version, which may be from before that time.
    pub one: String,
    /// The decision of the other version.
    pub other: String,
}

/// The first differences between the decisions of the plugins of `one` and `other`, and the number
/// of jobs that they differ in.
pub(super) fn differences(one: &FinishedRun, other: &FinishedRun) -> (Vec<Difference>, u64) {
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
            one: describe(&one.seen, &ours, at, one.record.start),
            other: describe(&other.seen, &theirs, at, one.record.start),
        };
        found.push((at, number, difference));
    }
    let count = found.len() as u64;
    found.sort_by_key(|(at, number, _)| (*at, *number));
    found.truncate(MAX_DIFFERENCES);
    (found.into_iter().map(|(.., difference)| difference).collect(), count)
}

/// When two sequences of decisions first differ.
fn first(ours: &[DecisionChange], theirs: &[DecisionChange]) -> Option<Timestamp> {
    let pairs = (0..ours.len().max(theirs.len())).map(|index| (ours.get(index), theirs.get(index)));
    pairs.into_iter().find_map(|pair| match pair {
        (Some(a), Some(b)) if (a.at, a.what) == (b.at, b.what) => None,
        (Some(a), Some(b)) => Some(a.at.min(b.at)),
        (a, b) => a.or(b).map(|only| only.at),
    })
}

/// The decision about a job by `at`, in words.
fn describe(
    seen: &SeenDecisions,
    decided: &[DecisionChange],
    at: Timestamp,
    start: Timestamp,
) -> String {
    let Some(last) = decided.iter().take_while(|decided| decided.at <= at).last() else {
        return "not called".to_owned();
    };
    let seconds = |at: Timestamp| at.since(start).as_secs_f64();
    let what = match last.what {
        PluginDecision::Run => "run".to_owned(),
        PluginDecision::Hold => "hold".to_owned(),
        PluginDecision::Reschedule(at) => format!("reschedule to {} s", seconds(at)),
        PluginDecision::Drop => "drop".to_owned(),
        PluginDecision::Retry(at) => format!("retry at {} s", seconds(at)),
        PluginDecision::GiveUp => "give up".to_owned(),
    };
    let reason = &seen.reasons[last.reason as usize];
    if reason.is_empty() { what } else { format!("{what}: {reason}") }
}
