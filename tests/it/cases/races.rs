//! Rounds that lose their race: what they were told is not forgotten, and what they free is used at once.

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

use super::place::{Place, ask, everywhere, queue, report, with, work};

#[tokio::test]
async fn a_round_that_loses_every_race_leaves_its_hints_to_the_next() {
    // Others have a turn before each commit.
    let behind = Arc::new(MemoryStore::new()) as SharedStore;
    let store = FaultyStore::new(Arc::clone(&behind), 1).with_flight(Duration::ZERO);
    let mut place = Place::on(Arc::new(store));
    place.with_limit(2).await;
    place.enqueue(work()).await;
    let sent = place.send(1).await;
    place
        .engine
        .patch(&sent[0].job, None, JobPatch { priority: Some(200), ..JobPatch::default() }, None)
        .await
        .unwrap();
    place.enqueue_many([work(), work(), work()]).await;
    let run = place.lease(1).await.remove(0);
    let hint = (sent[0].job.clone(), sent[0].version);
    let own = (run.id.clone(), run.life.version);

    let other = Place::on(behind);
    let (of, mut memory) = (queue(), TickCache::default());
    let round = TickInput {
        reports: vec![report(&run, ReportOutcome::Succeeded { result: None })],
        released: vec![hint.clone()],
        ..TickInput::default()
    };
    let ticked = {
        let mut tick = pin!(place.engine.tick(&of, &mut memory, round));
        loop {
            if let std::task::Poll::Ready(ticked) = poll!(&mut tick) {
                break ticked.unwrap();
            }
            // The head moves each time.
            other.with_limit(2).await;
        }
    };
    assert_eq!(
        ticked.reports[0].as_ref().unwrap().life.ended(),
        Some(Outcome::Succeeded),
        "the report is settled all the same"
    );
    assert!(
        ticked.again && ticked.left.contains(&hint) && ticked.left.contains(&own),
        "{:?}",
        ticked.left
    );
    let round = TickInput {
        released: ticked.left,
        demands: vec![ask(&["work"], 9, Dispatch::Claim)],
        ..TickInput::default()
    };
    let ticked = place.engine.tick(&of, &mut memory, round).await.unwrap();
    assert_eq!(ticked.claimed.len(), 2, "both slots are free at once");
}

#[tokio::test]
async fn a_slot_that_the_search_finds_free_is_used_at_once() {
    for mut place in everywhere() {
        let constraint = Constraint {
            name: "tenant".into(),
            matcher: Matcher::default(),
            per: Some("tenant".into()),
            concurrency: Some(1),
            rate: None,
        };
        place.with_limit(5).await;
        place
            .set_queue(QueueConfig {
                concurrency: Some(5),
                constraints: vec![constraint],
                ..QueueConfig::default()
            })
            .await;
        let job = place.enqueue(with("tenant", "a")).await;
        place.send(1).await;
        place
            .engine
            .patch(&job.id, None, JobPatch { priority: Some(1), ..JobPatch::default() }, None)
            .await
            .unwrap();
        // The hint is lost: the search comes upon the job.
        let asks = || vec![ask(&["work"], 1, Dispatch::Claim)];
        let ticked = place.tick(TickInput { demands: asks(), ..TickInput::default() }).await;
        assert!(
            ticked.claimed.is_empty() && ticked.again,
            "what it held is released with this round, for the next"
        );
        let ticked = place.tick(TickInput { demands: asks(), ..TickInput::default() }).await;
        assert_eq!(ticked.claimed.len(), 1);
    }
}
