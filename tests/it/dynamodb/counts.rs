//! The numbers of jobs that the sweep keeps: right, with their age, and for a few units.

use std::{collections::BTreeMap, time::Duration};

use tidegate_backends::{dynamodb::DynamoStore, testkit::meter::table::Bill};
use tidegate_core::{
    job::{
        Event, Job, Outcome, QueueName,
        lifecycle::{Failure, Reason, RetryDecision},
    },
    port::{
        JobStore,
        job_store::{KeptCounts, StateFilter},
    },
    time::Timestamp,
};
use tidegate_engine::testkit::builders::name;

use super::streams::{ORDERS, Shop, letter, letter_with};

/// Counts, as a sweep does, and returns what that took.
async fn sweep(shop: &Shop) -> Bill {
    let before = shop.table.bill();
    shop.store.keep_counts(Timestamp::MAX).await.unwrap();
    shop.table.bill() - before
}

/// The numbers of jobs of the queue `mail` by state, and what is known of them.
async fn mail(store: &DynamoStore) -> (BTreeMap<&'static str, u64>, Option<KeptCounts>) {
    let queue: QueueName = name("mail");
    let depths = store.depth(Some(&queue)).await.unwrap();
    let mut by_state = BTreeMap::new();
    for depth in depths.counts.iter().filter(|depth| depth.jobs > 0) {
        assert_eq!(depth.queue, queue);
        *by_state.entry(depth.state.as_str()).or_default() += depth.jobs;
    }
    let mut all = store.depth(None).await.unwrap();
    all.counts.retain(|depth| depth.queue == queue);
    assert_eq!(all.counts, depths.counts, "one queue is counted as all are");
    (by_state, depths.kept.unwrap().get(&queue).copied())
}

fn letters(shop: &Shop, from: usize, count: usize, each: Duration) -> Vec<Job> {
    (from..from + count).map(|n| letter(shop, n, 100, each * (n - from) as u32)).collect()
}

async fn end(shop: &Shop, jobs: &[Job]) {
    for job in jobs {
        shop.apply(job, Event::Cancel { force: true }).await;
    }
}

/// Reads what is due, which closes the buckets that are settled.
async fn tick(shop: &Shop) {
    shop.due(&shop.query(ORDERS[0], 10)).await;
}

#[tokio::test]
async fn counts_follow_the_jobs_with_an_age() {
    let shop = Shop::new();
    assert_eq!(mail(&shop.store).await, (BTreeMap::new(), None));
    let jobs = shop.add(letters(&shop, 0, 30, Duration::ZERO)).await;
    shop.add(vec![letter(&shop, 900, 100, Duration::from_hours(3))]).await;
    let (none, kept) = mail(&shop.store).await;
    assert!(none.is_empty() && kept.unwrap().at_least, "not counted yet: {kept:?}");
    sweep(&shop).await;
    let counted = shop.now();
    let (all, kept) = mail(&shop.store).await;
    assert_eq!(all, [("scheduled", 31)].into());
    assert_eq!(kept, Some(KeptCounts { at: counted, at_least: false, running_weight: 0 }));
    shop.clock.advance(Duration::from_secs(40));
    let running = shop.claim(&jobs[0]).await;
    end(&shop, &jobs[1..11]).await;
    let (all, kept) = mail(&shop.store).await;
    assert_eq!((all, kept.unwrap().at), ([("scheduled", 31)].into(), counted), "they are older");
    shop.clock.advance(Duration::from_secs(40));
    sweep(&shop).await;
    let (all, kept) = mail(&shop.store).await;
    assert_eq!(all, [("scheduled", 20), ("running", 1), ("cancelled", 10)].into());
    assert_eq!((kept.unwrap().at, kept.unwrap().running_weight), (shop.now(), 1));
    // The rest ends, one of them hours later.
    end(&shop, &jobs[12..]).await;
    shop.apply(&running, Event::Succeed { attempt: 1, result: None }).await;
    shop.clock.advance(Duration::from_hours(1));
    tick(&shop).await;
    sweep(&shop).await;
    shop.clock.advance(Duration::from_mins(10));
    sweep(&shop).await;
    let (all, _) = mail(&shop.store).await;
    assert_eq!(all, [("scheduled", 2), ("succeeded", 1), ("cancelled", 28)].into());
    end(&shop, &jobs[11..12]).await;
    for _ in 0..6 {
        shop.clock.advance(Duration::from_hours(1));
        tick(&shop).await;
        sweep(&shop).await;
    }
    let (all, _) = mail(&shop.store).await;
    assert_eq!(all, [("scheduled", 1), ("succeeded", 1), ("cancelled", 29)].into());
}

#[tokio::test]
async fn a_queue_without_open_buckets_has_counts_of_the_moment() {
    let shop = Shop::new();
    let jobs = shop.add(letters(&shop, 0, 50, Duration::ZERO)).await;
    shop.clock.advance(Duration::from_secs(10));
    sweep(&shop).await;
    assert_eq!(mail(&shop.store).await.0, [("scheduled", 50)].into());
    // No sweep counts what follows.
    end(&shop, &jobs).await;
    for _ in 0..3 {
        shop.clock.advance(Duration::from_hours(2));
        tick(&shop).await;
        shop.active().await;
    }
    let (all, kept) = mail(&shop.store).await;
    assert_eq!((all, kept), (BTreeMap::new(), None), "it has no live job");
    // The next one finds the ended jobs, although the queue is not listed any more.
    sweep(&shop).await;
    assert_eq!(mail(&shop.store).await.0, [("cancelled", 50)].into());
    let bill = sweep(&shop).await;
    assert!(bill.reads <= 4.0 && bill.writes == 0.0, "an idle queue is not read: {bill:?}");
}

#[tokio::test]
async fn sweeps_at_once_and_lost_ones_leave_right_counts() {
    let shop = Shop::new();
    let other = Shop::store(&shop.table, &shop.clock);
    let mut jobs = Vec::new();
    for round in 0..40 {
        let new = shop.add(letters(&shop, 100 * round, 20, Duration::from_secs(3))).await;
        let ended = &new[..10];
        shop.clock.advance(Duration::from_mins(1));
        end(&shop, ended).await;
        jobs.extend(new[10..].to_vec());
        shop.clock.advance(Duration::from_mins(round as u64 % 4 * 5));
        let both = [&shop.store, &other].map(|store| store.keep_counts(Timestamp::MAX));
        match round % 3 {
            0 => drop(futures_util::future::join_all(both).await),
            1 => shop.store.keep_counts(Timestamp::MAX).await.unwrap(),
            _ => {}
        }
        tick(&shop).await;
    }
    shop.clock.advance(Duration::from_mins(10));
    sweep(&shop).await;
    let (all, _) = mail(&shop.store).await;
    assert_eq!(all["scheduled"], 400);
    assert!(all["cancelled"] <= 400, "{all:?}");
    end(&shop, &jobs).await;
    for _ in 0..40 {
        shop.clock.advance(Duration::from_mins(47));
        tick(&shop).await;
        sweep(&shop).await;
    }
    for store in [&shop.store, &other] {
        assert_eq!(mail(store).await.0, [("cancelled", 800)].into());
    }
}

#[tokio::test]
async fn a_job_that_is_moved_or_retried_is_counted_once() {
    let shop = Shop::new();
    let job = shop.add(letters(&shop, 0, 1, Duration::ZERO)).await.remove(0);
    shop.clock.advance(Duration::from_secs(1));
    let running = shop.claim(&job).await;
    let failure = Failure::new(Reason::Failed, "no");
    let next = RetryDecision::Wait(Duration::from_mins(90));
    shop.apply(&running, Event::Fail { attempt: 1, failure, next }).await;
    // Before its hour, in it, and late.
    for _ in 0..6 {
        sweep(&shop).await;
        let (all, kept) = mail(&shop.store).await;
        assert_eq!((all, kept.unwrap().at_least), ([("scheduled", 1)].into(), false));
        shop.clock.advance(Duration::from_mins(25));
        tick(&shop).await;
    }
}

#[tokio::test]
async fn more_jobs_than_a_sweep_reads_are_counted_as_at_least() {
    let shop = Shop::new();
    for from in (0..6000).step_by(1000) {
        shop.add(letters(&shop, from, 1000, Duration::ZERO)).await;
    }
    shop.clock.advance(Duration::from_secs(20));
    let bill = sweep(&shop).await;
    assert!(bill.reads <= 1000.0, "{bill:?}");
    let (all, kept) = mail(&shop.store).await;
    assert_eq!((all["scheduled"], kept.unwrap().at_least), (2000, true));
    // They are not read each minute.
    let (mut reads, counted) = (0.0, kept.unwrap().at);
    for _ in 0..8 {
        shop.clock.advance(Duration::from_mins(1));
        reads += sweep(&shop).await.reads;
        assert_eq!(mail(&shop.store).await.1.unwrap().at, counted);
    }
    assert!(reads <= 1600.0, "{reads} units, most of them once for each row");
    shop.clock.advance(Duration::from_mins(1));
    sweep(&shop).await;
    assert_eq!(mail(&shop.store).await.1.unwrap().at, shop.now());
}

/// What a day of this many jobs costs to count, in units and dollars.
async fn day(jobs: usize) -> (Bill, f64) {
    let shop = Shop::new();
    let (mut total, mut number) = (Bill::default(), 0);
    let each = jobs / (24 * 60);
    for minute in 0..24 * 60 {
        let new = letters(&shop, number, each, Duration::from_millis(60_000 / each as u64));
        number += each;
        shop.add(new.clone()).await;
        shop.clock.advance(Duration::from_mins(1));
        // Nearly all end at once; one in a hundred after an hour.
        let (late, quick): (Vec<_>, Vec<_>) =
            new.into_iter().enumerate().partition(|(n, _)| n % 100 == 99);
        for (_, job) in quick {
            shop.apply(&job, Event::Cancel { force: true }).await;
        }
        drop(late);
        if minute % 5 == 0 {
            tick(&shop).await;
        }
        let bill = sweep(&shop).await;
        total.reads += bill.reads;
        total.writes += bill.writes;
    }
    let (all, kept) = mail(&shop.store).await;
    assert_eq!(kept.unwrap().at, shop.now());
    let ended = all[StateFilter::Ended(Outcome::Cancelled).as_str()];
    assert!(ended as usize >= number * 90 / 100, "{ended} of {number}");
    let dollars = total.reads * 0.125e-6 + total.writes * 0.625e-6;
    println!("{number} jobs a day: {total:?}, {dollars:.4} dollars");
    (total, dollars)
}

#[tokio::test]
async fn a_day_of_jobs_is_counted_for_cents() {
    let (bill, dollars) = day(14_400).await;
    assert!(dollars <= 0.01, "{bill:?} are {dollars} dollars a day");
}

#[tokio::test]
async fn a_look_reads_a_few_units_whatever_has_run() {
    let shop = Shop::new();
    for queue in 0..20 {
        let queue = format!("queue-{queue}");
        let jobs =
            (0..100).map(|n| letter_with(&shop, n, Duration::ZERO, |letter| letter.queue(&queue)));
        shop.add(jobs.collect()).await;
    }
    shop.clock.advance(Duration::from_mins(2));
    sweep(&shop).await;
    let before = shop.table.bill();
    let depths = shop.store.depth(None).await.unwrap();
    let bill = shop.table.bill() - before;
    assert_eq!(depths.counts.iter().map(|depth| depth.jobs).sum::<u64>(), 2000);
    assert!(bill.reads <= 8.0 && bill.writes == 0.0, "{bill:?}");
}
