//! How many jobs of a backlog can start soon, and how many can run at once: what the number of
//! workers of a queue depends on.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use super::{
    admission::{Admission, AdmissionDecision, Candidate},
    config::{Limits, QueueConfig, Rate},
    rate::RateCounts,
    usage::{Usage, counting},
};
use crate::{job::TypeName, time::Timestamp};

/// The jobs of one type in a backlog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Startable {
    /// How many there are.
    pub examined: u64,
    /// How many the rates and windows let start within the span.
    pub starts: u64,
    /// How many the concurrency limits let run at once, if nothing else ran.
    pub at_once: u64,
}

/// What the limits and windows admit of `backlog`, by type, if nothing ran and every rate were
/// unused: starts within `span` from `now`, and jobs at once. Throttlers are not considered.
pub fn startable<'a>(
    limits: &Limits,
    backlog: impl IntoIterator<Item = Candidate<'a>>,
    span: Duration,
    now: Timestamp,
) -> BTreeMap<TypeName, Startable> {
    let mut unrated = limits.clone();
    unrated.queue = QueueConfig { throttler: None, ..unrated.queue };
    unrated.queue.constraints.iter_mut().for_each(|constraint| constraint.rate = None);
    let mut admission = Admission::new(&unrated, Usage::default(), RateCounts::default(), now);
    let mut started: HashMap<(usize, String), u64> = HashMap::new();
    let mut types: BTreeMap<TypeName, Startable> = BTreeMap::new();
    for candidate in backlog {
        let decision = admission.try_admit(candidate);
        let of_type = types.entry(candidate.subject.job_type.clone()).or_default();
        of_type.examined += 1;
        of_type.at_once += u64::from(decision == AdmissionDecision::Run);
        let has_tokens = candidate.critical || take_tokens(limits, candidate, span, &mut started);
        let is_open = !matches!(decision, AdmissionDecision::Move(_));
        of_type.starts += u64::from(is_open && has_tokens);
    }
    types
}

/// Takes a token of every rate that counts `candidate`, if each has one within `span`.
fn take_tokens(
    limits: &Limits,
    candidate: Candidate<'_>,
    span: Duration,
    started: &mut HashMap<(usize, String), u64>,
) -> bool {
    let rated: Vec<(usize, String, u64)> = counting(limits, candidate.subject)
        .filter_map(|(index, value)| {
            let rate = limits.queue.constraints[index].rate?;
            Some((index, value.into_owned(), starts_within(rate, span)))
        })
        .collect();
    let used = |index: &usize, value: &String, started: &HashMap<(usize, String), u64>| {
        started.get(&(*index, value.clone())).copied().unwrap_or(0)
    };
    if rated.iter().any(|(index, value, most)| used(index, value, started) >= *most) {
        return false;
    }
    for (index, value, _) in rated {
        *started.entry((index, value)).or_default() += 1;
    }
    true
}

/// How many attempts a rate lets start within `span`, at least one.
fn starts_within(rate: Rate, span: Duration) -> u64 {
    let periods = span.as_secs_f64() / rate.per_seconds.as_f64();
    (f64::from(rate.count) * periods).ceil().max(1.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobOptions, Spec, Value, type_config::TypeConfig};

    fn job(job_type: &str, tenant: &str) -> Spec {
        let options = JobOptions {
            attributes: [("tenant".into(), Value::Text(tenant.into()))].into(),
            ..JobOptions::default()
        };
        options.resolve(&job_type.parse().unwrap(), &TypeConfig::default(), Timestamp::EPOCH)
    }

    fn limits(config: serde_json::Value) -> Limits {
        Limits { queue: serde_json::from_value(config).unwrap(), ..Limits::default() }
    }

    fn of(limits: &Limits, jobs: &[Spec]) -> [u64; 3] {
        let backlog = jobs.iter().map(Candidate::of);
        let minute = Duration::from_mins(1);
        let found = startable(limits, backlog, minute, Timestamp::EPOCH);
        let Startable { examined, starts, at_once } = found[&jobs[0].job_type];
        [examined, starts, at_once]
    }

    #[test]
    fn limits_bound_what_starts_and_what_runs_at_once() {
        let jobs: Vec<Spec> = (0..9).map(|n| job("a", if n < 6 { "x" } else { "y" })).collect();
        let constraint = |limit: serde_json::Value| {
            let mut one = serde_json::json!({"name": "one"});
            one.as_object_mut().unwrap().extend(limit.as_object().unwrap().clone());
            limits(serde_json::json!({"constraints": [one]}))
        };
        let rate = |count, per| serde_json::json!({"count": count, "per_seconds": per});
        for (limits, wanted) in [
            (limits(serde_json::json!({})), [9, 9, 9]),
            (limits(serde_json::json!({"concurrency": 4})), [9, 9, 4]),
            (limits(serde_json::json!({"concurrency": 0})), [9, 9, 0]),
            (Limits { paused: true, ..Limits::default() }, [9, 9, 0]),
            (constraint(serde_json::json!({"concurrency": 2})), [9, 9, 2]),
            (constraint(serde_json::json!({"concurrency": 2, "per": "tenant"})), [9, 9, 4]),
            (constraint(serde_json::json!({"rate": rate(1, 60)})), [9, 1, 9]),
            (constraint(serde_json::json!({"rate": rate(1, 3600)})), [9, 1, 9]),
            (constraint(serde_json::json!({"rate": rate(1, 20)})), [9, 3, 9]),
            (constraint(serde_json::json!({"rate": rate(1, 15), "per": "tenant"})), [9, 7, 9]),
        ] {
            assert_eq!(of(&limits, &jobs), wanted, "{:?}", limits.queue);
        }
        let types = BTreeMap::from([("a".parse().unwrap(), 3)]);
        assert_eq!(of(&Limits { types, ..Limits::default() }, &jobs), [9, 9, 3]);
    }

    #[test]
    fn critical_jobs_start_and_closed_windows_do_not() {
        let full = limits(serde_json::json!({"concurrency": 0}));
        let critical = Spec { critical: true, ..job("a", "x") };
        assert_eq!(of(&full, &[critical]), [1, 1, 1]);
        let windows = serde_json::from_value(serde_json::json!([{"from": "05:00", "to": "06:00"}]));
        let night = Spec { windows: windows.unwrap(), ..job("a", "x") };
        assert_eq!(of(&Limits::default(), &[night]), [1, 0, 0]);
    }
}
