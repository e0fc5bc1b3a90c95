//! What attempts consume in addition: checkpoints, and lease calls that can be repeated.

use std::sync::Arc;

use tidegate_backends::dynamodb::memory::MemoryTable;
use tidegate_core::{
    job::{Body, Job, Payload},
    queue::QueueConfig,
};
use tidegate_engine::{
    Demand, Dispatch, RepeatableCall, TickInput, request::Heartbeat, testkit::builders::name,
};

use super::{Shop, TYPE, queue, report};

/// What the writes of `work` consume.
async fn writes(
    shop: &mut Shop<MemoryTable>,
    work: impl AsyncFnOnce(&mut Shop<MemoryTable>),
) -> u64 {
    let before = shop.bill();
    work(shop).await;
    (shop.bill() - before).writes.round() as u64
}

async fn beat(shop: &Shop<MemoryTable>, job: &Job, checkpoint: Option<usize>) {
    let text = |bytes| Payload::json(format!("\"{}\"", "x".repeat(bytes - 2)));
    let beat = Heartbeat {
        id: job.id.clone(),
        job_type: None,
        attempt: job.life.attempt,
        token: job.life.running().map(|run| run.token),
        lease_seconds: None,
        progress: None,
        checkpoint: checkpoint.map(|bytes| Body::Inline(text(bytes))),
    };
    shop.engine.heartbeat(beat).await.unwrap();
}

#[tokio::test]
async fn a_checkpoint_costs_a_unit_per_kilobyte_and_write() {
    let mut shop = Shop::new(MemoryTable::new(), QueueConfig::default()).await;
    shop.enqueue(1, 0, false).await;
    let job = shop.tick(1, Dispatch::Claim, Vec::new()).await.claimed.remove(0).job;
    let base = writes(&mut shop, async |shop| beat(shop, &job, None).await).await;
    // A write counts the item before it, too.
    let larger = (4 << 10) + 1;
    for (bytes, first, more) in [(3 << 10, 3, 3), (4 << 10, 4, 4), (larger, 4, 0), (64 << 10, 0, 0)]
    {
        let taken = writes(&mut shop, async |shop| beat(shop, &job, Some(bytes)).await).await;
        assert_eq!(taken - base, first, "{bytes}");
        // It is part of each later write, and an object is not.
        let taken = writes(&mut shop, async |shop| beat(shop, &job, None).await).await;
        assert_eq!(taken - base, more, "{bytes}");
    }
    beat(&shop, &job, Some(3 << 10)).await;
    let reports = vec![report(&job, true)];
    let ended = writes(&mut shop, async |shop| {
        shop.tick(0, Dispatch::Claim, reports).await;
    });
    assert_eq!(ended.await, 4, "the item was larger before a success clears it");
}

#[tokio::test]
async fn a_repeatable_lease_call_costs_one_more_write() {
    let mut shop = Shop::new(MemoryTable::new(), QueueConfig::default()).await;
    shop.enqueue(60, 0, true).await;
    let mut taken = Vec::new();
    // The first tick of a queue writes more.
    for repeatable in [false, false, true] {
        let call = RepeatableCall::new("request-00000001", Some("w"), 7);
        let demand = Demand {
            min: 0,
            types: vec![name(TYPE)],
            capacity: 10,
            worker: Some("w".into()),
            lease: None,
            dispatch: Dispatch::Claim,
            call: repeatable.then(|| Arc::new(call)),
        };
        let claim = async |shop: &mut Shop<MemoryTable>| {
            let input = TickInput { demands: vec![demand], ..TickInput::default() };
            let ticked = shop.engine.tick(&queue(), &mut shop.cache, input).await.unwrap();
            assert_eq!(ticked.claimed.len(), 10);
        };
        taken.push(writes(&mut shop, claim).await);
    }
    assert_eq!(taken[2] - taken[1], 1, "{taken:?}");
}
