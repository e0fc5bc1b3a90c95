//! A throttler plugin decides about a queue's candidates: its answers, state, faults and inputs.

mod answers;
mod failures;
mod inputs;
mod many;
mod pages;
mod state;
mod waiting;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use parking_lot::Mutex;
use tidegate_core::{
    job::Job,
    port::policy::{StatePage, ThrottleAnswer, ThrottleCall},
    queue::{QueueConfig, ledger::StateLocation, plugin::Description},
};
use tidegate_engine::testkit::{
    FnPolicy,
    policies::{each, fault, hold, run},
};

use super::harness::{Harness, queue};

fn limit(concurrency: u32) -> QueueConfig {
    QueueConfig { concurrency: Some(concurrency), ..QueueConfig::default() }
}

fn says() -> Description {
    Description { state_version: 1, ..Description::default() }
}

/// A policy with this throttler, and the calls it received.
fn watched(
    throttle: impl Fn(&ThrottleCall) -> ThrottleAnswer + Send + Sync + 'static,
) -> (FnPolicy, Arc<Mutex<Vec<ThrottleCall>>>) {
    let calls: Arc<Mutex<Vec<ThrottleCall>>> = Arc::default();
    let noted = Arc::clone(&calls);
    let policy = FnPolicy::default().throttling(move |_, call| {
        noted.lock().push(call.clone());
        Ok(throttle(call))
    });
    (policy, calls)
}

fn each_held(call: &ThrottleCall) -> ThrottleAnswer {
    each(call, |_| hold("no"))
}

fn region(job: &Job) -> String {
    job.spec.attributes["region"].text()
}

fn by_region(jobs: &[Job]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for job in jobs {
        *counts.entry(region(job)).or_default() += 1;
    }
    counts
}

fn counts<const N: usize>(counts: [(&str, usize); N]) -> BTreeMap<String, usize> {
    counts.into_iter().map(|(region, count)| (region.to_owned(), count)).collect()
}

/// The stored state of the plugin.
async fn remembered(harness: &Harness) -> Option<String> {
    let (ledger, batches) = harness.store.ledger(&queue()).await.unwrap()?;
    let location = ledger.policy?.state;
    let text = |page: &StatePage| page.get("ran").map(|value| value.text.clone());
    match &location {
        StateLocation::Inline(page) => text(page),
        location => location
            .pages()
            .iter()
            .find_map(|id| text(batches.iter().find(|batch| batch.id == *id)?.state.as_ref()?)),
    }
}

/// A throttler that fails while the switch is on, the switch, and the number of its calls.
fn failing() -> (FnPolicy, Arc<AtomicBool>, Arc<AtomicU32>) {
    let (fails, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
    let (switch, count) = (Arc::clone(&fails), Arc::clone(&asked));
    let policy = FnPolicy::default().throttling(move |_, call| {
        count.fetch_add(1, Ordering::Relaxed);
        if switch.load(Ordering::Relaxed) {
            Err(fault("it divided by zero"))
        } else {
            Ok(each(call, |_| run()))
        }
    });
    (policy, fails, asked)
}
