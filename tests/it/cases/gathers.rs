//! Demands for at least several jobs.

use std::time::Duration;

use tidegate_core::{job::type_config::TypeConfig, time::Seconds};
use tidegate_engine::{Demand, Dispatch, TickInput, TickOutcome, request::NewJob};

use super::harness::{Harness, demand, every_store_and_table, of_type, work};

/// A demand for `min` to `capacity` jobs.
fn at_least(min: u32, capacity: u32) -> Demand {
    Demand { min, ..demand(&["work"], capacity, Dispatch::Claim) }
}

async fn tick(harness: &mut Harness, demands: Vec<Demand>) -> TickOutcome {
    harness.tick(TickInput { demands, queue_changed: true, ..TickInput::default() }).await
}

/// Every store, with a limit of 4 and without one.
async fn with_and_without_a_limit() -> Vec<Harness> {
    let mut all = Vec::new();
    for limited in [false, true] {
        for mut harness in every_store_and_table() {
            if limited {
                harness.with_limit(4).await;
                harness.settle().await;
            } else {
                harness.set_type("work", TypeConfig::default()).await;
            }
            all.push(harness);
        }
    }
    all
}

#[tokio::test]
async fn a_demand_takes_nothing_while_there_are_too_few() {
    for mut harness in with_and_without_a_limit().await {
        let jobs = harness.enqueue_many([work(), work()]).await;
        let outcome = tick(&mut harness, vec![at_least(3, 5)]).await;
        assert_eq!(outcome.claimed.len(), 0);
        for job in &jobs {
            assert_eq!(harness.job(&job.id).await.life, job.life, "it was not touched");
        }
        harness.enqueue(work()).await;
        let outcome = tick(&mut harness, vec![at_least(3, 5)]).await;
        assert_eq!(outcome.claimed.len(), 3);
    }
}

#[tokio::test]
async fn a_demand_counts_what_the_limits_let_start() {
    for mut harness in every_store_and_table() {
        harness.with_limit(2).await;
        harness.settle().await;
        harness.enqueue_many([work(), work(), work()]).await;
        assert_eq!(tick(&mut harness, vec![at_least(3, 5)]).await.claimed.len(), 0);
        assert_eq!(harness.granted().await, 0);
        assert_eq!(tick(&mut harness, vec![at_least(2, 5)]).await.claimed.len(), 2);
        assert_eq!(harness.granted().await, 2);
    }
}

#[tokio::test]
async fn jobs_too_few_for_one_demand_go_to_another() {
    for mut harness in with_and_without_a_limit().await {
        harness.enqueue_many([work(), work()]).await;
        let demands = vec![at_least(3, 5), at_least(4, 5), at_least(0, 5)];
        let outcome = tick(&mut harness, demands).await;
        let takers: Vec<usize> = outcome.claimed.iter().map(|claimed| claimed.demand).collect();
        assert_eq!(takers, [2, 2]);
    }
}

/// The first pass serves the first demand too few jobs, and so on: without a bound, each takes a pass.
#[tokio::test]
async fn many_demands_with_too_few_jobs_end_after_some_passes() {
    for mut harness in with_and_without_a_limit().await {
        for number in 0..8 {
            harness.set_type(&format!("t{number}"), TypeConfig::default()).await;
            harness.enqueue(of_type(&format!("t{number}"))).await;
        }
        let of = |number: usize, min| {
            let job_type = format!("t{number}");
            Demand { min, ..demand(&[&job_type], 5, Dispatch::Claim) }
        };
        let mut demands: Vec<Demand> = (0..7).map(|number| of(number, 2)).collect();
        demands.push(of(7, 0));
        let outcome = tick(&mut harness, demands).await;
        let takers: Vec<usize> = outcome.claimed.iter().map(|claimed| claimed.demand).collect();
        assert_eq!(takers, [7]);
    }
}

#[tokio::test]
async fn a_demand_with_too_few_wakes_for_the_next_job() {
    for mut harness in with_and_without_a_limit().await {
        let later = NewJob { delay_seconds: Some(Seconds::new(7)), ..work() };
        harness.enqueue_many([work(), later]).await;
        let outcome = tick(&mut harness, vec![at_least(2, 5)]).await;
        assert_eq!(outcome.claimed.len(), 0);
        let at = outcome.next_start_at.expect("a job is due later");
        assert!(at <= harness.now() + Duration::from_secs(7), "{at}");
        harness.wait(7);
        assert_eq!(tick(&mut harness, vec![at_least(2, 5)]).await.claimed.len(), 2);
    }
}
