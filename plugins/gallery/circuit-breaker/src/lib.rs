//! A circuit breaker for each target: after so many failures in a row it holds the target's jobs,
//! and starts a few of them as probes from time to time. The first success closes it again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_plugin::{
    About, Answer, Decision, Ended, Job, Round, Seconds, Throttler, metrics, state_key, warn,
};

/// The configuration of a queue.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The attribute that names the target (default: the host of the target's URL).
    attribute: Option<String>,
    /// So many failures in a row open the circuit.
    failures: u32,
    /// How long an open circuit waits for the next probes.
    open_seconds: Seconds,
    /// How many jobs start at a time as probes (default 1).
    probes: Option<u32>,
}

/// What is known of a target.
#[derive(Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Circuit {
    failures: u32,
    opened_at: Option<u64>,
    probe_at: u64,
}

/// The throttler.
#[derive(Debug)]
pub struct CircuitBreaker;

impl Throttler for CircuitBreaker {
    type Config = Config;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        state_version: 1,
        needs_ended: true,
        ..About::new("Holds the jobs of a target that fails, and probes it from time to time.")
    };

    fn decide(config: &Config, round: &Round, candidates: &[Job]) -> Result<Answer, String> {
        let open = config.open_seconds.millis().max(1);
        let load = |name: &str| round.state.load(&state_key("circuit", name)).unwrap_or_default();
        let mut circuits = BTreeMap::<&str, Circuit>::new();
        for ended in &round.ended {
            let target = config.target(|name| ended.attribute(name), ended.target_host.as_deref());
            let circuit = circuits.entry(target).or_insert_with(|| load(target));
            circuit.learn(ended, config.failures, round.now + open);
        }
        let mut started: BTreeMap<&str, u32> = BTreeMap::new();
        let mut decisions = Vec::new();
        for job in candidates {
            let target = config.target(|name| job.attribute(name), job.target_host.as_deref());
            let circuit = circuits.entry(target).or_insert_with(|| load(target));
            let probes = started.entry(target).or_default();
            let probing = *probes > 0 || circuit.probe_at <= round.now;
            decisions.push(if circuit.opened_at.is_none() {
                Decision::run()
            } else if probing && *probes < config.probes.unwrap_or(1) {
                (*probes, circuit.probe_at) = (*probes + 1, round.now + open);
                Decision::run()
            } else {
                let why = format!("{target} failed {} times in a row", circuit.failures);
                Decision::hold_until(circuit.probe_at, why)
            });
        }
        for (target, circuit) in circuits {
            metrics::set("open", target, f64::from(u8::from(circuit.opened_at.is_some())));
            let key = state_key("circuit", target);
            if circuit == Circuit::default() {
                round.state.delete(&key);
            } else if circuit != load(target) {
                // A target without attempts for a day is forgotten.
                let expires = Some(circuit.probe_at.max(round.now) + 86_400_000);
                if let Err(problem) = round.state.save_until(&key, &circuit, expires) {
                    warn!("{problem}");
                }
            }
        }
        Ok(Answer { decisions, more: true })
    }
}

impl Circuit {
    /// Counts an ended attempt. A failed one may open the circuit, until `probe_at`.
    fn learn(&mut self, ended: &Ended, failures: u32, probe_at: u64) {
        // What began before the circuit opened is no probe.
        if self.opened_at.is_some_and(|opened_at| ended.started_at < opened_at) {
            return;
        }
        // The target answered a request that is wrong, or the attempt was handed back or cancelled.
        // A timeout, "too early" and "too many requests" are failures of the target.
        let is_temporary = matches!(ended.status, Some(408 | 425 | 429));
        let is_answer = ended.status.is_some_and(|status| (400..500).contains(&status));
        let is_handed_back = matches!(ended.reason.as_deref(), None | Some("released" | "snoozed"));
        if ended.succeeded || (is_answer && !is_temporary) {
            *self = Self::default();
        } else if !is_handed_back {
            self.failures += 1;
            if self.opened_at.is_some() || self.failures >= failures {
                self.opened_at = self.opened_at.or(Some(ended.ended_at));
                self.probe_at = probe_at;
            }
        }
    }
}

impl Config {
    fn target<'a>(
        &self,
        attribute: impl FnOnce(&str) -> Option<&'a str>,
        host: Option<&'a str>,
    ) -> &'a str {
        self.attribute.as_deref().map_or(host, attribute).unwrap_or("")
    }
}

tidegate_plugin::export_throttler!(CircuitBreaker);
