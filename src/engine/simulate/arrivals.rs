//! The jobs of a scenario in the order of their arrival.

use std::borrow::Cow;

use serde_json::Value as Json;

use super::{
    draw::{Draw, For},
    scenario::{Arrival, BadScenario, Choice, Scenario, TracedAttempt},
};
use crate::request::NewJob;
use tidegate_core::{
    job::{Attributes, Encoding, JobId, JobOptions, Payload, TypeName, Value},
    time::{Seconds, Timestamp},
};

/// A job that arrives.
#[derive(Clone, Debug)]
pub(super) struct ArrivingJob<'a> {
    /// When.
    pub at: Timestamp,
    pub id: Option<&'a JobId>,
    pub job_type: &'a TypeName,
    pub attributes: Attributes,
    pub weight: Option<u32>,
    pub priority: Option<i32>,
    pub critical: bool,
    pub data: &'a Json,
    pub due: Option<Timestamp>,
    pub expires: Option<Timestamp>,
    /// From its arrival to its end, at the latest.
    pub deadline: Option<Seconds>,
    pub replay_of: Option<&'a JobId>,
    pub correlation_key: Option<Cow<'a, str>>,
    pub attempts: &'a [TracedAttempt],
}

impl ArrivingJob<'_> {
    /// The request that enqueues it as job `id`.
    pub fn request(&self, id: JobId) -> NewJob {
        let payload = Payload { encoding: Encoding::Json, bytes: self.data.to_string().into() };
        NewJob {
            id: Some(id),
            run_at: self.due,
            expires_at: self.expires,
            correlation_key: self.correlation_key.as_deref().map(str::to_owned),
            replay_of: self.replay_of.cloned(),
            options: JobOptions {
                deadline_seconds: self.deadline,
                weight: self.weight,
                priority: self.priority,
                critical: self.critical,
                attributes: self.attributes.clone(),
                ..JobOptions::default()
            },
            ..NewJob::new(self.job_type.clone(), payload)
        }
    }
}

/// Every job of `scenario`, in the order of arrival. Jobs that arrive at the same time keep the
/// order of the scenario.
pub(super) fn arriving(scenario: &Scenario) -> Vec<ArrivingJob<'_>> {
    let mut jobs: Vec<ArrivingJob<'_>> = Vec::with_capacity(scenario.job_count() as usize);
    for (stream, arrival) in scenario.arrivals.iter().enumerate() {
        let mut values = Draw::new(scenario.seed, For::Attributes, stream as u64, 0);
        let times = times(arrival, Draw::new(scenario.seed, For::Arrivals, stream as u64, 0));
        jobs.extend(times.zip(1..).map(|(seconds, n): (f64, u32)| {
            let at = scenario.start + arrival.from_seconds.duration() + span(seconds).duration();
            ArrivingJob {
                at,
                id: None,
                job_type: &arrival.job_type,
                attributes: attributes(arrival, &mut values),
                weight: arrival.weight,
                priority: arrival.priority,
                critical: arrival.critical,
                data: &arrival.data,
                due: arrival.delay_seconds.map(|delay| at + delay.duration()),
                expires: None,
                deadline: arrival.deadline_seconds,
                replay_of: arrival.replay_of.as_ref(),
                correlation_key: arrival
                    .correlation_key
                    .as_ref()
                    .map(|key| key.replace("{n}", &n.to_string()).into()),
                attempts: &[],
            }
        }));
    }
    jobs.extend(scenario.jobs.iter().map(|job| ArrivingJob {
        at: scenario.start + job.at_seconds.duration(),
        id: job.id.as_ref(),
        job_type: &job.job_type,
        attributes: job.attributes.clone(),
        weight: job.weight,
        priority: job.priority,
        critical: job.critical,
        data: &job.data,
        due: job.due_seconds.map(|due| scenario.start + due.duration()),
        expires: job.expires_seconds.map(|expires| scenario.start + expires.duration()),
        deadline: job.deadline_seconds.map(|deadline| {
            Seconds::from_millis(deadline.millis().saturating_sub(job.at_seconds.millis()))
        }),
        replay_of: job.replay_of.as_ref(),
        correlation_key: job.correlation_key.as_deref().map(Cow::Borrowed),
        attempts: &job.attempts,
    }));
    jobs.sort_by_key(|job| job.at);
    jobs
}

/// Ids for `jobs`: the given ones, and numbered ones in the order of arrival, which determines the
/// order of the queue.
pub(super) fn ids(jobs: &[ArrivingJob<'_>]) -> Result<Vec<JobId>, BadScenario> {
    let width = jobs.len().to_string().len();
    let numbered =
        |index: usize| format!("job-{:0width$}", index + 1).parse().expect("it is a valid id");
    let ids: Vec<JobId> = jobs
        .iter()
        .enumerate()
        .map(|(index, job)| job.id.cloned().unwrap_or_else(|| numbered(index)))
        .collect();
    let mut sorted: Vec<&JobId> = ids.iter().collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(BadScenario {
            field: "jobs".into(),
            message: format!("two jobs have the id {}", pair[0]),
        }),
        None => Ok(ids),
    }
}

/// When the jobs of a stream arrive, in seconds from its start.
fn times(arrival: &Arrival, mut draw: Draw) -> Box<dyn Iterator<Item = f64>> {
    let count = 0..arrival.count;
    if let Some(every) = arrival.every_seconds {
        let every = every.as_f64();
        return Box::new(count.map(move |n| f64::from(n) * every));
    }
    if let Some(rate) = arrival.per_second {
        return Box::new(count.map(move |n| f64::from(n) / rate));
    }
    if let Some(rate) = arrival.poisson_per_second {
        let mut at = 0.0;
        return Box::new(count.map(move |_| {
            at += draw.exponential(1.0 / rate);
            at
        }));
    }
    if let Some(burst) = arrival.burst {
        let every = burst.every_seconds.as_f64();
        return Box::new(count.map(move |n| f64::from(n / burst.jobs) * every));
    }
    Box::new(count.map(|_| 0.0))
}

fn attributes(arrival: &Arrival, draw: &mut Draw) -> Attributes {
    let value = |choice: &Choice, draw: &mut Draw| match choice {
        Choice::Fixed(value) => value.clone(),
        Choice::Weighted(weights) => Value::Text(draw.pick(weights).to_owned()),
    };
    arrival.attributes.iter().map(|(name, choice)| (name.clone(), value(choice, draw))).collect()
}

/// `seconds` rounded to the nearest millisecond. A number that does not fit becomes one that is far
/// beyond the end of every scenario.
pub(super) fn span(seconds: f64) -> Seconds {
    Seconds::from_millis((seconds * 1000.0).round().clamp(0.0, 1e14) as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// When the jobs of one stream arrive, in seconds.
    fn seconds(arrival: &Json) -> Vec<f64> {
        let scenario: Scenario = serde_json::from_value(json!({"arrivals": [arrival]})).unwrap();
        arriving(&scenario).iter().map(|job| job.at.since(scenario.start).as_secs_f64()).collect()
    }

    #[test]
    fn each_pattern_has_its_arrival_times() {
        assert_eq!(seconds(&json!({"type": "t", "count": 3})), [0.0, 0.0, 0.0]);
        assert_eq!(
            seconds(&json!({"type": "t", "count": 2, "at_once": true, "from_seconds": 5})),
            [5.0, 5.0]
        );
        assert_eq!(
            seconds(&json!({"type": "t", "count": 3, "every_seconds": 2, "from_seconds": 1})),
            [1.0, 3.0, 5.0]
        );
        assert_eq!(seconds(&json!({"type": "t", "count": 3, "per_second": 4})), [0.0, 0.25, 0.5]);
        assert_eq!(
            seconds(&json!({"type": "t", "count": 5, "burst": {"jobs": 2, "every_seconds": 10}})),
            [0.0, 0.0, 10.0, 10.0, 20.0]
        );
    }

    #[test]
    fn a_poisson_process_has_its_rate_and_variance() {
        let times = seconds(&json!({"type": "t", "count": 20_000, "poisson_per_second": 4}));
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 0.25).abs() < 0.01, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05, "{}", variance.sqrt());
    }

    #[test]
    fn streams_are_merged_by_arrival_time() {
        let scenario: Scenario = serde_json::from_value(json!({"arrivals": [
            {"type": "late", "count": 1, "from_seconds": 3},
            {"type": "often", "count": 3, "every_seconds": 2},
        ]}))
        .unwrap();
        let types: Vec<&str> =
            arriving(&scenario).iter().map(|job| job.job_type.as_str()).collect();
        assert_eq!(types, ["often", "often", "late", "often"]);
        let ids = ids(&arriving(&scenario)).unwrap();
        assert_eq!(ids[3].as_str(), "job-4");
    }
}
