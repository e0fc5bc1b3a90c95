//! Tables of one tick each, and properties of every tick.

mod closed;
mod concurrency;
mod constraint;
mod properties;
mod rate;
mod usage;

use serde_json::{Value, json};

use crate::{
    job::{Attributes, Spec, Version},
    queue::{
        Admission, AdmissionDecision, Candidate, Grant, Limits, Rule, Usage, config::QueueConfig,
        rate::RateCounts,
    },
    stored::UnknownFields,
    time::Timestamp,
};

fn limits(queue: Value, types: Value) -> Limits {
    let queue: QueueConfig = serde_json::from_value(queue).unwrap();
    crate::validate::check_queue(&queue).unwrap();
    Limits { queue, types: serde_json::from_value(types).unwrap(), ..Limits::default() }
}

/// A job of type `name`.
fn job(name: &str, weight: u32, attributes: Value) -> Spec {
    let attributes: Attributes = serde_json::from_value(attributes).unwrap();
    Spec { job_type: name.parse().unwrap(), weight, attributes, ..crate::job::tests::spec() }
}

fn grant(spec: &Spec) -> Grant {
    Grant {
        waits_until: None,
        job: "j".parse().unwrap(),
        version: Version(1),
        job_type: spec.job_type.clone(),
        priority: spec.priority,
        weight: if spec.critical { 0 } else { spec.weight },
        critical: spec.critical,
        attributes: spec.attributes.clone(),
        granted_at: Timestamp::EPOCH,
        unknown: UnknownFields::default(),
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

/// One tick over `jobs` with `running` granted: a word per job, and what the rates have counted.
fn tick(
    limits: &Limits,
    running: &[Spec],
    counts: RateCounts,
    now: Timestamp,
    jobs: &[Spec],
) -> (Vec<String>, RateCounts) {
    let running: Vec<_> = running.iter().map(grant).collect();
    let mut admission = Admission::new(limits, Usage::of(limits, &running), counts, now);
    let words = jobs.iter().map(|job| said(&admission.try_admit(Candidate::of(job)))).collect();
    (words, admission.finish().1)
}

fn said(decision: &AdmissionDecision) -> String {
    match decision {
        AdmissionDecision::Run => "run".into(),
        AdmissionDecision::Move(to) => format!("move to {}", to.millis() / 1000),
        AdmissionDecision::Hold(hold) => match &hold.rule {
            Rule::Paused => "paused".into(),
            Rule::Concurrency => "queue".into(),
            Rule::TypeConcurrency(name) => format!("type {name}"),
            Rule::Constraint(name, None) => name.clone(),
            Rule::Constraint(name, Some(value)) => format!("{name}:{value}"),
            Rule::Throttler(name) => format!("throttler {name}"),
        },
    }
}

fn words(limits: &Limits, running: &[Spec], jobs: &[Spec]) -> Vec<String> {
    tick(limits, running, RateCounts::default(), at(0), jobs).0
}

fn weighing(weights: &[u32]) -> Vec<Spec> {
    weights.iter().map(|weight| job("a", *weight, json!({}))).collect()
}
