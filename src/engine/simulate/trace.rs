//! Traces: the history of a live queue as a scenario, which can be simulated again and compared
//! with the history.
//!
//! A trace contains only what the server returns. So the number of workers that requested jobs is
//! unknown.

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;
use serde_json::{Value as Json, json};
use url::Url;

use super::{
    record::{By, Recording},
    scenario::{BadScenario, Scenario, Service, Span, TracedAttempt, TracedJob},
};
use crate::jobs::replay::{is_replay_id, replay_id};
use tidegate_core::{
    job::{
        Attributes, Job, JobId, Outcome, QueueName, State, TypeName,
        lifecycle::{AttemptRecord, EndedAs, Reason, word},
        type_config::TypeConfig,
    },
    queue::matcher::{Condition, Matcher},
    time::{Seconds, Timestamp},
};

/// A job as `GET /v1/jobs` returns it, with the fields that a trace needs.
#[derive(Clone, Debug, Deserialize)]
pub struct LiveJob {
    id: JobId,
    r#type: TypeName,
    state: String,
    priority: i32,
    weight: u32,
    critical: bool,
    due_at: Timestamp,
    created_at: Timestamp,
    started_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
    deadline_at: Option<Timestamp>,
    replay_of: Option<JobId>,
    correlation_key: Option<String>,
    #[serde(default)]
    data: Json,
    attributes: Attributes,
    history: Vec<LiveEntry>,
    original: Option<LiveOriginal>,
}

/// A job before a retry strategy changed it.
#[derive(Clone, Debug, Deserialize)]
struct LiveOriginal {
    priority: i32,
    attributes: Attributes,
    data: Option<Json>,
    weight: Option<u32>,
}

#[derive(Clone, Debug, Deserialize)]
struct LiveEntry {
    started_at: Timestamp,
    ended_at: Timestamp,
    outcome: EndedAs,
    error: Option<LiveError>,
    message: Option<String>,
    retry_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Deserialize)]
struct LiveError {
    reason: Option<Reason>,
    status: Option<u16>,
    message: Option<String>,
    details: Option<Json>,
    retry_after_seconds: Option<Seconds>,
}

impl LiveJob {
    /// A job as `GET /v1/jobs` shows it, without its data.
    pub fn of(job: &Job) -> Self {
        let (spec, life) = (&*job.spec, &job.life);
        let json = |text: &String| serde_json::from_str(text).ok();
        let entry = |record: &AttemptRecord| LiveEntry {
            started_at: record.started_at,
            ended_at: record.ended_at,
            outcome: record.ended_as(),
            error: record.error.as_ref().map(|failure| LiveError {
                reason: Some(failure.reason),
                status: failure.status,
                message: failure.message.clone(),
                details: failure.details.as_ref().and_then(json),
                retry_after_seconds: failure.retry_after,
            }),
            message: record.hand_back.as_ref().and_then(|hand_back| hand_back.message.clone()),
            retry_at: record.retry_at,
        };
        Self {
            id: job.id.clone(),
            r#type: spec.job_type.clone(),
            state: word(&life.state).to_owned(),
            priority: spec.priority,
            weight: spec.weight,
            critical: spec.critical,
            due_at: job.due_at(),
            created_at: spec.created_at,
            started_at: life.started_at,
            ended_at: match life.state {
                State::Ended { at, .. } => Some(at),
                _ => None,
            },
            expires_at: spec.expires_at,
            deadline_at: spec.deadline_at,
            replay_of: spec.replay_of.clone(),
            correlation_key: spec.correlation_key.clone(),
            data: Json::Null,
            attributes: spec.attributes.clone(),
            history: life.history.iter().map(entry).collect(),
            original: spec.original.as_deref().map(|original| LiveOriginal {
                priority: original.priority,
                attributes: original.attributes.clone(),
                data: None,
                weight: original.weight,
            }),
        }
    }

    /// Whether it has not ended.
    pub fn is_live(&self) -> bool {
        self.ended_at.is_none()
    }
}

/// How many of these jobs ran at the same time, at most.
pub fn most_at_once(jobs: &[TracedJob]) -> u32 {
    let mut changes: Vec<(Seconds, bool)> = Vec::new();
    for attempt in jobs.iter().flat_map(|job| &job.attempts) {
        let Some(started) = attempt.started_seconds else { continue };
        changes.push((started, true));
        let ended = Seconds::from_millis(started.millis() + attempt.seconds.millis().max(1));
        changes.push((ended, false));
    }
    // At the same instant, ends come first.
    changes.sort_unstable();
    let (mut now, mut most) = (0_u32, 0);
    for (_, starts) in changes {
        now = if starts { now + 1 } else { now.saturating_sub(1) };
        most = most.max(now);
    }
    most
}

/// The state of a live queue as it was read.
#[derive(Clone, Debug)]
pub struct Live {
    /// Its name.
    pub queue: QueueName,
    /// The queue, as `GET /v1/queues/{q}` returns it.
    pub config: Json,
    /// Job types, as `GET /v1/job-types` returns them. Those of other queues are ignored.
    pub types: Vec<Json>,
    /// Its jobs.
    pub jobs: Vec<LiveJob>,
    /// When it was read.
    pub now: Timestamp,
    /// Whether jobs keep their data.
    pub with_data: bool,
}

impl Live {
    /// The trace.
    ///
    /// # Errors
    ///
    /// The server returned a configuration that this program does not know.
    pub fn scenario(self) -> Result<Scenario, BadScenario> {
        // Idle time before the first job would only lower the means.
        let start = self.jobs.iter().map(|job| job.created_at).min().unwrap_or(self.now);
        let after = |at: Timestamp| Seconds::from_millis(at.since(start).as_millis() as u64);
        let mut types: BTreeMap<TypeName, TypeConfig> = BTreeMap::new();
        for mut shown in self.types {
            let name = shown["name"].as_str().and_then(|name| name.parse::<TypeName>().ok());
            let Some(name) = name.filter(|_| shown["queue"] == self.queue.as_str()) else {
                continue;
            };
            // Callbacks and headers have no effect in a simulation.
            without(&mut shown, &["name", "version", "secrets", "callback_url", "headers"]);
            keep_hosts(&mut shown);
            types.insert(name.clone(), read(shown, || format!("types.{name}"))?);
        }
        let traced = |job: &LiveJob| {
            let mut traced = traced(job, self.now, self.with_data, after);
            let of_type = types.get(&job.r#type).and_then(|config| config.deadline_seconds);
            let of_type = of_type.map(|deadline| job.created_at + deadline.duration());
            // Another deadline of its type applies to it too.
            traced.deadline_seconds.take_if(|_| job.deadline_at == of_type);
            traced
        };
        let mut jobs: Vec<TracedJob> = self.jobs.iter().map(traced).collect();
        jobs.sort_by(|a, b| (a.at_seconds, &a.id).cmp(&(b.at_seconds, &b.id)));
        let mut queue = self.config;
        without(&mut queue, &["name", "version", "paused", "status"]);
        let lasted = after(self.now);
        Ok(Scenario {
            about: format!("the history of queue {} until {}", self.queue, self.now),
            start,
            // A longer simulation must be visible as such, not cut off at the end of the trace.
            duration_seconds: Seconds::from_millis(
                lasted.millis().saturating_mul(2).clamp(60_000, 31_622_400_000),
            ),
            name: self.queue,
            queue: read(queue, || "queue".to_owned())?,
            types,
            service: service(&jobs),
            jobs,
            ..Scenario::default()
        })
    }
}

fn without(shown: &mut Json, fields: &[&str]) {
    if let Some(object) = shown.as_object_mut() {
        object.retain(|name, _| !fields.contains(&name.as_str()));
    }
}

/// Keeps the hosts of a type's targets. A path or a query may contain a secret, and headers may.
fn keep_hosts(shown: &mut Json) {
    let origin = |url: &Json| {
        Some(Json::from(Url::parse(url.as_str()?).ok()?.origin().ascii_serialization()))
    };
    let Some(url) = shown.get("target").and_then(|target| origin(&target["url"])) else {
        return without(shown, &["target", "retry_targets"]);
    };
    shown["target"] = json!({ "url": url });
    if let Some(others) = shown.get_mut("retry_targets").and_then(Json::as_object_mut) {
        others.retain(|_, target| {
            let kept = origin(target);
            let is_kept = kept.is_some();
            *target = kept.unwrap_or_default();
            is_kept
        });
    }
}

fn read<T: serde::de::DeserializeOwned>(
    json: Json,
    field: impl FnOnce() -> String,
) -> Result<T, BadScenario> {
    serde_json::from_value(json)
        .map_err(|error| BadScenario { field: field(), message: error.to_string() })
}

/// The id of a job in a simulation. An enqueue refuses an id of the form of a replay's, unless the
/// job replays the one that the id belongs to.
fn simulated_id(id: &JobId, replay_of: Option<&JobId>) -> JobId {
    let refused = is_replay_id(id) && replay_of.is_none_or(|of| replay_id(of) != *id);
    let renamed = refused.then(|| format!("replay.{id}").parse().ok()).flatten();
    renamed.unwrap_or_else(|| id.clone())
}

fn traced(
    job: &LiveJob,
    now: Timestamp,
    with_data: bool,
    after: impl Fn(Timestamp) -> Seconds,
) -> TracedJob {
    let span =
        |from: Timestamp, to: Timestamp| Seconds::from_millis(to.since(from).as_millis() as u64);
    let mut attempts: Vec<TracedAttempt> = job
        .history
        .iter()
        .map(|entry| {
            let error = entry.error.as_ref();
            TracedAttempt {
                seconds: span(entry.started_at, entry.ended_at),
                outcome: Some(entry.outcome),
                reason: error.and_then(|error| error.reason),
                status: error.and_then(|error| error.status),
                message: error.map_or(entry.message.clone(), |error| error.message.clone()),
                details: error.and_then(|error| error.details.clone()),
                not_before_seconds: match (entry.outcome, entry.retry_at) {
                    (EndedAs::Snoozed, Some(at)) => Some(span(entry.ended_at, at)),
                    _ => error.and_then(|error| error.retry_after_seconds),
                },
                started_seconds: Some(after(entry.started_at)),
            }
        })
        .collect();
    if let Some(started_at) = job.started_at.filter(|_| job.state == "running") {
        let open = TracedAttempt {
            seconds: span(started_at, now),
            started_seconds: Some(after(started_at)),
            ..TracedAttempt::default()
        };
        attempts.push(open);
    }
    attempts.truncate(100);
    let original = job.original.as_ref();
    let data = original.and_then(|original| original.data.as_ref()).unwrap_or(&job.data);
    TracedJob {
        id: Some(simulated_id(&job.id, job.replay_of.as_ref())),
        job_type: job.r#type.clone(),
        at_seconds: after(job.created_at),
        due_seconds: Some(job.due_at).filter(|at| *at > job.created_at).map(&after),
        expires_seconds: job.expires_at.map(&after),
        deadline_seconds: job.deadline_at.filter(|at| *at > job.created_at).map(&after),
        replay_of: job.replay_of.clone(),
        correlation_key: job.correlation_key.clone(),
        attributes: original.map_or(&job.attributes, |original| &original.attributes).clone(),
        weight: Some(original.and_then(|original| original.weight).unwrap_or(job.weight)),
        priority: Some(original.map_or(job.priority, |original| original.priority)),
        critical: job.critical,
        data: if with_data { data.clone() } else { Json::Null },
        attempts,
        ended: serde_json::from_value(Json::from(job.state.as_str())).ok(),
        ended_seconds: job.ended_at.map(&after),
    }
}

/// Attempts that the trace does not contain take as long as those of their type on average.
fn service(jobs: &[TracedJob]) -> Vec<Service> {
    let mut lengths: BTreeMap<&TypeName, (f64, u32)> = BTreeMap::new();
    for job in jobs {
        for attempt in job.attempts.iter().filter(|attempt| attempt.outcome.is_some()) {
            let (sum, count) = lengths.entry(&job.job_type).or_default();
            *sum += attempt.seconds.as_f64();
            *count += 1;
        }
    }
    let rule = |(name, (sum, count)): (&TypeName, (f64, u32))| Service {
        matcher: Matcher {
            job_type: Some(Condition::Equals(tidegate_core::job::Value::Text(name.to_string()))),
            ..Matcher::default()
        },
        host: None,
        seconds: Span::Fixed((sum / f64::from(count) * 1000.0).round() / 1000.0),
        failure: None,
    };
    lengths.into_iter().take(100).map(rule).collect()
}

/// The measurements of the live queue, and the end of the trace in milliseconds; `None` if the
/// trace has no attempts.
pub(super) fn real(scenario: &Scenario, by: &By) -> Option<(Recording, u64)> {
    let mut record = Recording::new(scenario.start, by.clone(), []);
    let at = |seconds: Seconds| scenario.start + seconds.duration();
    // The starts and ends of attempts. At the same instant, ends come first.
    let mut changes: Vec<(Timestamp, bool, usize)> = Vec::new();
    let mut ends: Vec<(Timestamp, usize, Outcome)> = Vec::new();
    for job in &scenario.jobs {
        let Some(id) = &job.id else { continue };
        let type_weight = || scenario.types.get(&job.job_type).map_or(1, |config| config.weight);
        let weight =
            if job.critical { 0 } else { u64::from(job.weight.unwrap_or_else(type_weight)) };
        let due = at(job.due_seconds.unwrap_or(job.at_seconds).max(job.at_seconds));
        let number = record.arrive(id, &job.job_type, &job.attributes, weight, due);
        for attempt in &job.attempts {
            let Some(started) = attempt.started_seconds.map(at) else {
                continue;
            };
            changes.push((started, true, number));
            if attempt.outcome.is_some() {
                // An attempt without a duration would end before it starts.
                changes.push((
                    started + attempt.seconds.duration().max(Duration::from_millis(1)),
                    false,
                    number,
                ));
            }
        }
        if let (Some(outcome), Some(ended)) = (job.ended, job.ended_seconds) {
            ends.push((at(ended), number, outcome));
        }
    }
    if changes.is_empty() {
        return None;
    }
    changes.sort_unstable();
    for (now, starts, number) in &changes {
        match (starts, record.jobs[*number].running) {
            (true, false) => record.start(*number, *now),
            (false, true) => record.leave(*number, *now),
            _ => {}
        }
    }
    ends.sort_unstable();
    for (now, number, outcome) in &ends {
        record.end(*number, *outcome, *now);
    }
    let last = changes
        .iter()
        .map(|(at, ..)| *at)
        .chain(ends.iter().map(|(at, ..)| *at))
        .max()
        .unwrap_or(scenario.start);
    Some((record, last.since(scenario.start).as_millis() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{GoesOn, Plugins, simulate};

    fn job(id: &str, created: &str, history: &Json) -> LiveJob {
        serde_json::from_value(json!({
            "id": id, "type": "t", "state": "succeeded", "attempt": 2, "priority": 100, "weight": 1,
            "critical": false, "due_at": created, "created_at": created, "started_at": null,
            "ended_at": "2026-01-01T10:00:09Z", "expires_at": null, "attributes": {},
            "history": history,
        }))
        .unwrap()
    }

    #[test]
    fn a_trace_begins_with_its_first_job_and_has_what_was_reported() {
        let error = json!({"reason": "failed", "message": "no", "details": [1], "status": 503,
                           "retry_after_seconds": 9});
        let history = json!([
            {"attempt": 1, "started_at": "2026-01-01T10:00:02Z", "ended_at": "2026-01-01T10:00:03Z",
             "outcome": "failed", "error": error},
            {"attempt": 2, "started_at": "2026-01-01T10:00:07Z", "ended_at": "2026-01-01T10:00:09Z",
             "outcome": "succeeded", "error": null},
        ]);
        let live = Live {
            queue: "q".parse().unwrap(),
            config: json!({}),
            types: Vec::new(),
            jobs: vec![
                LiveJob {
                    due_at: "2026-01-01T10:00:11Z".parse().unwrap(),
                    ..job("b", "2026-01-01T10:00:05Z", &json!([]))
                },
                job("a", "2026-01-01T10:00:01Z", &history),
            ],
            now: "2026-01-01T11:00:00Z".parse().unwrap(),
            with_data: false,
        };
        let scenario = live.scenario().unwrap();
        assert_eq!(scenario.start, "2026-01-01T10:00:01Z".parse().unwrap());
        let [a, b] = &scenario.jobs[..] else { panic!("{:?}", scenario.jobs) };
        assert_eq!((a.at_seconds, b.at_seconds), (Seconds::default(), Seconds::new(4)));
        let attempt = &a.attempts[0];
        assert_eq!((attempt.message.as_deref(), attempt.status), (Some("no"), Some(503)));
        assert_eq!(attempt.details, Some(json!([1])));
        assert_eq!(attempt.not_before_seconds, Some(Seconds::new(9)));
        assert_eq!(a.attempts[1].message, None);
        assert_eq!((a.due_seconds, b.due_seconds), (None, Some(Seconds::new(10))));
    }

    #[test]
    fn a_job_that_a_retry_strategy_changed_is_traced_as_it_came() {
        let mut changed = job("a", "2026-01-01T10:00:01Z", &json!([]));
        changed.data = json!("changed");
        changed.attributes = serde_json::from_value(json!({"region": "east"})).unwrap();
        changed.original = serde_json::from_value(
            json!({"priority": 7, "attributes": {"region": "west"}, "data": "as it came"}),
        )
        .unwrap();
        let now = "2026-01-01T11:00:00Z".parse().unwrap();
        let of = |with_data| {
            let traced = traced(&changed, now, with_data, |_| Seconds::default());
            let region = traced.attributes["region"].text();
            (traced.priority, region, traced.data)
        };
        assert_eq!(of(true), (Some(7), "west".to_owned(), json!("as it came")));
        assert_eq!(of(false), (Some(7), "west".to_owned(), Json::Null));
    }

    /// The trace of these jobs, and of the type `t` with this configuration.
    fn trace(jobs: Vec<LiveJob>, config: &Json) -> Scenario {
        let mut shown = json!({"name": "t", "version": 1, "queue": "q"});
        shown.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
        let now = "2026-01-01T11:00:00Z".parse().unwrap();
        let (queue, config, types) = ("q".parse().unwrap(), json!({}), vec![shown]);
        Live { queue, config, types, jobs, now, with_data: false }.scenario().unwrap()
    }

    async fn finished(scenario: &Scenario) -> u64 {
        let mut goes_on = |_| GoesOn::Continue(());
        let simulated = simulate(scenario, &Plugins::default(), By::Type, &mut goes_on).await;
        simulated.unwrap().summary.finished
    }

    #[tokio::test]
    async fn a_trace_with_a_replay_can_be_simulated() {
        let replay = replay_id(&"a".parse().unwrap());
        let of = |id: &str, of: Option<&str>| LiveJob {
            replay_of: of.map(|of| of.parse().unwrap()),
            ..job(id, "2026-01-01T10:00:01Z", &json!([]))
        };
        for (replay_of, kept) in [(None, false), (Some("b"), false), (Some("a"), true)] {
            let jobs = vec![of("a", None), of(replay.as_str(), replay_of)];
            let scenario = trace(jobs, &json!({}));
            let found = scenario.jobs.iter().find(|job| job.id.as_ref() == Some(&replay));
            assert_eq!(found.is_some(), kept, "{replay_of:?}");
            assert_eq!(finished(&scenario).await, 2);
        }
    }

    #[tokio::test]
    async fn a_trace_has_the_hosts_of_targets_and_no_secrets() {
        let config = json!({
            "target": {
                "url": "https://main.example:8443/{type}/secret?key=secret",
                "headers": {"x-key": "secret"},
                "signing_secret": "***",
                "complete": "on_result",
            },
            "retry_targets": {"backup": "http://Backup.example/secret?***"},
            "headers": {"x-key": "secret"},
            "retry_after_restart": true,
        });
        let live = || vec![job("a", "2026-01-01T10:00:01Z", &json!([]))];
        let scenario = trace(live(), &config);
        let text = serde_json::to_string(&scenario).unwrap();
        assert!(!text.contains("secret"), "{text}");
        let config = &scenario.types[&"t".parse::<TypeName>().unwrap()];
        assert_eq!(
            serde_json::to_value(config).unwrap()["target"]["url"],
            "https://main.example:8443"
        );
        assert_eq!(config.retry_targets["backup"], "http://backup.example");
        assert_eq!(finished(&Scenario::read(&text).unwrap()).await, 1);

        for other in [json!({"pull": true}), json!({"queue": {"url": "https://a.example"}})] {
            let scenario = trace(live(), &json!({"target": other}));
            assert_eq!(scenario.types[&"t".parse::<TypeName>().unwrap()].target, None);
        }
    }

    #[tokio::test]
    async fn a_trace_has_the_own_deadline_and_keys_of_a_job() {
        let of = |id: &str, deadline: &str| LiveJob {
            deadline_at: Some(deadline.parse().unwrap()),
            correlation_key: Some(format!("order-{id}")),
            ..job(id, "2026-01-01T10:00:01Z", &json!([]))
        };
        let jobs = vec![of("a", "2026-01-01T10:01:01Z"), of("b", "2026-01-01T10:00:31Z")];
        let scenario = trace(jobs, &json!({"deadline_seconds": 60}));
        let deadlines: Vec<_> = scenario.jobs.iter().map(|job| job.deadline_seconds).collect();
        assert_eq!(deadlines, [None, Some(Seconds::new(30))], "a has that of its type");
        assert_eq!(scenario.jobs[1].correlation_key.as_deref(), Some("order-b"));
        assert_eq!(finished(&scenario).await, 2);
    }
}
