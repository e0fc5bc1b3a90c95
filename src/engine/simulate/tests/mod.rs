//! What a simulation must do, on scenarios small enough to be worked out by hand.

mod plugins;
mod queues;
mod refused;

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::{plugins::registry::NewVersion, testkit::FnPolicy};
use tidegate_core::{
    port::policy::{Action, Decision, ThrottleAnswer, ThrottleCall},
    queue::plugin::{Description, OnFailure, Throttler},
};

fn scenario(json: &Value) -> Scenario {
    Scenario::read(&json.to_string()).unwrap()
}

async fn with(json: &Value, plugins: &Plugins) -> Simulation {
    simulate(&scenario(json), plugins, By::named("region"), &mut |_| GoesOn::Continue(()))
        .await
        .unwrap()
}

async fn run(json: Value) -> SimulationReport {
    with(&json, &Plugins::default()).await.report
}

fn version(throttler: bool) -> NewVersion {
    let description = Description { group_by: vec!["region".into()], ..Description::default() };
    let (throttler, retry) =
        if throttler { (Some(description), None) } else { (None, Some(description)) };
    NewVersion { wasm: Bytes::from_static(b"a closure"), throttler, retry, code: Vec::new() }
}

/// Plugins with a closure as the throttler, which decides each candidate.
fn throttled(
    decide: impl Fn(&ThrottleCall) -> Vec<(Action, String)> + Send + Sync + 'static,
) -> Plugins {
    let policy = FnPolicy::default().throttling(move |_, call| {
        let decisions = decide(call)
            .into_iter()
            .map(|(action, reason)| Decision { action, reason: Some(reason) })
            .collect();
        Ok(ThrottleAnswer { decisions, more: true, state: None })
    });
    let throttler = Throttler {
        plugin: "closure".parse().unwrap(),
        config: Arc::new(json!({})),
        on_failure: OnFailure::Hold,
    };
    Plugins {
        policy: Arc::new(policy),
        throttler: Some((version(true), throttler)),
        ..Plugins::default()
    }
}

/// Shares of a limit of 100 by region, with this share for `east`; 40 is correct.
fn shares(east: usize) -> Plugins {
    throttled(move |call| {
        let region = |attributes: &tidegate_core::job::Attributes| {
            attributes.get("region").map(tidegate_core::job::Value::text).unwrap_or_default()
        };
        let mut used = BTreeMap::<String, usize>::new();
        for grant in call.running.iter() {
            *used.entry(region(&grant.attributes)).or_default() += 1;
        }
        let decide = |job: &tidegate_core::job::Job| {
            let region = region(&job.spec.attributes);
            let share = [("east", east), ("north", 30), ("west", 30)]
                .into_iter()
                .find(|(name, _)| *name == region)
                .map_or(0, |(_, share)| share);
            let count = used.entry(region.clone()).or_default();
            if *count < share {
                *count += 1;
                (Action::Run, String::new())
            } else {
                (Action::Hold(None), format!("{region} uses {count} of {share}"))
            }
        };
        call.candidates.iter().map(decide).collect()
    })
}

fn shared_queue() -> Value {
    json!({
        "queue": {"concurrency": 100},
        "arrivals": [
            {
                "type": "t",
                "count": 600,
                "attributes": {"region": {"east": 5, "north": 3, "west": 2}},
            },
            {
                "type": "t",
                "count": 300,
                "poisson_per_second": 10,
                "attributes": {"region": {"east": 1, "north": 1, "west": 1}},
            },
        ],
        "service": [{"seconds": {"exponential": 8}}],
        "expect": {
            "max_running": {"": 100, "region=east": 40, "region=north": 30, "region=west": 30},
            "done_by_seconds": 400,
        },
    })
}

fn unmet(report: &SimulationReport) -> Vec<&str> {
    report.expectations.iter().filter(|one| !one.met).map(|one| one.name.as_str()).collect()
}
