//! The upkeep of the store costs nothing without old waiting jobs, and goes in bounded steps.

use tidegate_core::job::QueueName;
use tidegate_engine::Dispatch;

use super::*;
use crate::cases::harness::demand;

#[tokio::test]
async fn upkeep_reads_nothing_for_queues_without_old_jobs() {
    let mut shop = Shop::new(kept()).await;
    let types: Vec<String> = (0..40).map(|n| format!("type-{n}")).collect();
    for name in &types {
        let queue: QueueName = name.parse().unwrap();
        let config = tidegate_core::queue::QueueConfig::default();
        shop.harness.engine.put_queue(&queue, config, None).await.unwrap();
        shop.harness.set_type(name, TypeConfig { queue: queue.clone(), ..kept() }).await;
        shop.harness.enqueue(NewJob { job_type: name.parse().unwrap(), ..work() }).await;
        for hours in [0, 20] {
            shop.clock.advance(Duration::from_hours(hours));
            let demands = vec![demand(&[name], 1, Dispatch::Claim)];
            let input = TickInput { demands, ..TickInput::default() };
            let (engine, cache) = (&shop.harness.engine, &mut TickCache::default());
            let ticked = engine.tick(&queue, cache, input).await.unwrap();
            let reports = ticked
                .claimed
                .iter()
                .map(|claimed| report(&claimed.job, ReportOutcome::Succeeded { result: None }));
            let input = TickInput { reports: reports.collect(), ..TickInput::default() };
            engine.tick(&queue, cache, input).await.unwrap();
        }
    }
    shop.harness.store.active_queues(shop.clock.now()).await.unwrap();
    shop.clock.advance(Duration::from_hours(24 * 200));
    shop.restart(7);
    let before = shop.requests();
    assert_eq!(shop.harness.store.upkeep(None).await.unwrap(), None);
    assert!(shop.requests() - before <= 3, "{} requests", shop.requests() - before);
}

#[tokio::test]
async fn upkeep_of_many_waiting_jobs_goes_in_bounded_steps() {
    let mut shop = Shop::new(kept()).await;
    let run_at = Some(shop.clock.now() + Duration::from_mins(1));
    for _ in 0..5 {
        shop.harness.enqueue_many((0..500).map(|_| NewJob { run_at, ..work() })).await;
    }
    shop.clock.advance(Duration::from_hours(24 * 200));
    let (mut after, mut steps) = (None, 0);
    loop {
        // Each step may be made by another process.
        shop.restart(20 + steps);
        let before = shop.requests();
        after = shop.harness.store.upkeep(after.as_deref()).await.unwrap();
        assert!(shop.requests() - before <= 25, "{} requests", shop.requests() - before);
        steps += 1;
        assert!(steps < 20);
        if after.is_none() {
            break;
        }
    }
    assert!(steps >= 3, "{steps}");
    assert!(shop.items(&["A#"]).iter().all(|item| !item.attrs.contains_key(&EXPIRES)));
}
