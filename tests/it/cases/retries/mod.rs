//! Retry strategies of users: after a failed attempt the job waits for the decision of the
//! strategy.

mod decisions;
mod fallback;
mod state;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::json;
use tidegate_core::{
    job::{Job, retry::Retry, type_config::TypeConfig},
    port::policy::{RetryAnswer, RetryCall, RetryPlan},
    queue::{QueueConfig, plugin::Description},
};
use tidegate_engine::{
    TickInput, TickOutcome,
    plugins::retry_decisions::RetryDecisions,
    request::{NewJob, ReportOutcome},
    testkit::{FnPolicy, builders::name},
};

use super::harness::{Harness, every_store, failed, report};

/// Harnesses whose type `work` has this retry strategy, with the calls it received. Half of them
/// have a limit.
async fn places(
    says: Description,
    answer: impl Fn(&RetryCall) -> RetryAnswer + Send + Sync + 'static,
) -> Vec<(Harness, Arc<Mutex<Vec<RetryCall>>>)> {
    let answer = Arc::new(answer);
    let mut places = Vec::new();
    for (harness, limit) in every_store()
        .into_iter()
        .zip([Some(1), None])
        .chain(every_store().into_iter().zip([None, Some(1)]))
    {
        let calls: Arc<Mutex<Vec<RetryCall>>> = Arc::default();
        let (noted, answer) = (Arc::clone(&calls), Arc::clone(&answer));
        let harness = harness.with_policy(FnPolicy::default().retrying(move |_, call| {
            noted.lock().push(call.clone());
            Ok(answer(call))
        }));
        harness.set_queue(QueueConfig { concurrency: limit, ..QueueConfig::default() }).await;
        harness.push("planner", "v1", None, Some(says.clone())).await.unwrap();
        harness.set_type("work", TypeConfig { retry: planner(), ..TypeConfig::default() }).await;
        places.push((harness, calls));
    }
    places
}

fn planner() -> Retry {
    Retry::Plugin(name("planner"), Arc::new(json!({"k": 1})))
}

fn after(seconds: u64) -> impl Fn(&RetryCall) -> RetryAnswer + Send + Sync + 'static {
    move |call| RetryAnswer::Retry(RetryPlan::new(call.now + Duration::from_secs(seconds)))
}

/// Fails the running attempt.
async fn fail(harness: &mut Harness, running: &Job, outcome: ReportOutcome) -> TickOutcome {
    harness
        .tick(TickInput { reports: vec![report(running, outcome)], ..TickInput::default() })
        .await
}

/// Enqueues `job`, runs it, fails it.
async fn failed_once(harness: &mut Harness, job: NewJob) -> (Job, TickOutcome) {
    let job = harness.enqueue(job).await;
    let running = harness.lease(1).await.remove(0);
    let outcome = fail(harness, &running, failed()).await;
    (harness.job(&job.id).await, outcome)
}

/// Acts as the sweeper: finds jobs that await a retry decision and calls the strategy.
async fn sweep(harness: &Harness) -> RetryDecisions {
    let swept = harness.engine.sweep().await.unwrap();
    harness.engine.decide_retries(swept.pending).await.unwrap()
}
