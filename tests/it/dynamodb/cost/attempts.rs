//! What attempts consume in addition: checkpoints, lease calls that can be repeated, places in a
//! queue with strict order. What a request consumes that a waiting job takes.

use std::sync::Arc;

use tidegate_backends::dynamodb::memory::MemoryTable;
use tidegate_core::{
    job::{
        Body, Job, Payload,
        spec::{Unique, UniqueWhile},
        unique::{Debounce, MergePolicy},
    },
    port::Clock,
    queue::QueueConfig,
    time::Seconds,
};
use tidegate_engine::{
    Demand, Dispatch, RepeatableCall, TickInput,
    request::{Heartbeat, JobPatch, NewJob},
    testkit::builders::name,
};

use super::{Shop, TYPE, queue, report, settle};

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

#[tokio::test]
async fn a_debounced_request_writes_what_a_patch_writes() {
    let mut shop = Shop::new(MemoryTable::new(), QueueConfig::default()).await;
    let (seconds, max_seconds) = (Seconds::new(600), Seconds::new(6000));
    let debounce = Some(Debounce { seconds, max_seconds, merge: MergePolicy::Last });
    let unique = Unique { debounce, ..Unique::new("k", UniqueWhile::Scheduled) };
    let job = || {
        let data = Payload::json(format!("\"{}\"", "x".repeat(300)));
        NewJob::new(name(TYPE), data).with_options(|options| options.unique = Some(unique.clone()))
    };
    let id = shop.engine.enqueue(vec![job()]).await.pop().unwrap().unwrap().job.id;
    let mut taken = Vec::new();
    for _ in 0..2 {
        shop.clock.advance(std::time::Duration::from_secs(30));
        let debounced = async |shop: &mut Shop<MemoryTable>| {
            let answer = shop.engine.enqueue(vec![job()]).await.pop().unwrap().unwrap();
            assert!(answer.merged.is_some() && answer.job.id == id);
        };
        taken.push(writes(&mut shop, debounced).await);
        let patched = async |shop: &mut Shop<MemoryTable>| {
            let run_at = Some(shop.clock.now() + std::time::Duration::from_secs(700));
            let data = Some(Payload::json(format!("\"{}\"", "y".repeat(300))));
            let patch = JobPatch { run_at, data, ..JobPatch::default() };
            shop.engine.patch(&id, None, patch, None).await.unwrap();
        };
        taken.push(writes(&mut shop, patched).await);
    }
    // The last two: an hour's first entry registers its bucket.
    assert_eq!(taken[2], taken[3], "{taken:?}");
}

#[tokio::test]
async fn a_waiting_grant_costs_the_write_of_its_batch() {
    let mut taken = Vec::new();
    for strict_order in [false, true] {
        let partition_by = Some("region".to_owned());
        let concurrency = Some(50);
        let config =
            QueueConfig { concurrency, partition_by, strict_order, ..QueueConfig::default() };
        let mut shop = Shop::new(MemoryTable::new(), config).await;
        settle(&mut shop).await;
        shop.enqueue(1, 0, false).await;
        let job = shop.tick(1, Dispatch::Claim, Vec::new()).await.claimed.remove(0).job;
        let reports = vec![report(&job, false)];
        let failed = async |shop: &mut Shop<MemoryTable>| {
            shop.tick(0, Dispatch::Claim, reports).await;
        };
        taken.push(writes(&mut shop, failed).await);
    }
    assert_eq!(taken[1] - taken[0], 1, "{taken:?}");
}
