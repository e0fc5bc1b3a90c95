//! Ticks that lose a race: their reports are settled, and the capacity they free is used at once.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::poll;
use tidegate_core::{
    job::Outcome,
    port::job_store::SharedStore,
    queue::{QueueConfig, config::Constraint, matcher::Matcher},
};
use tidegate_engine::{
    Dispatch, TickCache, TickInput,
    memory::MemoryStore,
    request::{JobPatch, ReportOutcome},
    testkit::faults::FaultyStore,
};

use super::harness::{Harness, demand, every_store, on_a_table, queue, report, with, work};

#[tokio::test]
async fn a_round_that_loses_every_race_leaves_its_hints_to_the_next() {
    // Other processes run before each commit.
    let behind = Arc::new(MemoryStore::new()) as SharedStore;
    let store = FaultyStore::new(Arc::clone(&behind), 1).with_flight(Duration::ZERO);
    let mut harness = Harness::on(Arc::new(store));
    harness.with_limit(2).await;
    harness.enqueue(work()).await;
    let sent = harness.send(1).await;
    harness
        .engine
        .patch(
            &sent[0].job,
            None,
            JobPatch { priority: Some(Some(200)), ..JobPatch::default() },
            None,
        )
        .await
        .unwrap();
    harness.enqueue_many([work(), work(), work()]).await;
    let run = harness.lease(1).await.remove(0);
    let hint = (sent[0].job.clone(), sent[0].version);
    let own = (run.id.clone(), run.life.version);

    let other = Harness::on(behind);
    let (of, mut cache) = (queue(), TickCache::default());
    let input = TickInput {
        reports: vec![report(&run, ReportOutcome::Succeeded { result: None })],
        released: vec![hint.clone()],
        ..TickInput::default()
    };
    let outcome = {
        let mut tick = pin!(harness.engine.tick(&of, &mut cache, input));
        loop {
            if let std::task::Poll::Ready(outcome) = poll!(&mut tick) {
                break outcome.unwrap();
            }
            // The ledger changes each time.
            other.with_limit(2).await;
        }
    };
    assert_eq!(
        outcome.reports[0].as_ref().unwrap().life.ended(),
        Some(Outcome::Succeeded),
        "the report is settled all the same"
    );
    assert!(
        outcome.again && outcome.left.contains(&hint) && outcome.left.contains(&own),
        "{:?}",
        outcome.left
    );
    let input = TickInput {
        released: outcome.left,
        demands: vec![demand(&["work"], 9, Dispatch::Claim)],
        ..TickInput::default()
    };
    let outcome = harness.engine.tick(&of, &mut cache, input).await.unwrap();
    assert_eq!(outcome.claimed.len(), 2, "both slots are free at once");
}

#[tokio::test]
async fn a_slot_that_the_search_finds_free_is_used_at_once() {
    for mut harness in every_store() {
        let constraint = Constraint {
            name: "tenant".into(),
            matcher: Matcher::default(),
            per: Some("tenant".into()),
            concurrency: Some(1),
            rate: None,
        };
        harness.with_limit(5).await;
        harness
            .set_queue(QueueConfig {
                concurrency: Some(5),
                constraints: vec![constraint],
                ..QueueConfig::default()
            })
            .await;
        let job = harness.enqueue(with("tenant", "a")).await;
        harness.send(1).await;
        harness
            .engine
            .patch(&job.id, None, JobPatch { priority: Some(Some(1)), ..JobPatch::default() }, None)
            .await
            .unwrap();
        // The hint is lost: the search finds the job.
        let demands = || vec![demand(&["work"], 1, Dispatch::Claim)];
        let outcome = harness.tick(TickInput { demands: demands(), ..TickInput::default() }).await;
        assert!(
            outcome.claimed.is_empty() && outcome.again,
            "what it held is released with this round, for the next"
        );
        let outcome = harness.tick(TickInput { demands: demands(), ..TickInput::default() }).await;
        assert_eq!(outcome.claimed.len(), 1);
    }
}

#[tokio::test]
async fn a_tick_on_an_old_view_uses_a_slot_that_became_free() {
    let Some(mut harness) = on_a_table() else { return };
    harness.with_limit(1).await;
    harness.settle().await;
    harness.enqueue(work()).await;
    let run = harness.lease(1).await.remove(0);
    // Another process settles the report.
    let frozen = std::mem::take(&mut harness.cache);
    harness.succeed(&[run]).await;
    let waiting = harness.enqueue(work()).await;
    harness.cache = frozen;
    let started = harness.lease(1).await;
    assert_eq!(started.iter().map(|job| &job.id).collect::<Vec<_>>(), [&waiting.id]);
}
