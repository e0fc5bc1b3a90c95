//! Timers: none is lost, a long run leaves few of them, and a sweep reads those that are due.

use std::time::Duration;

use tidegate_core::{
    job::{
        Event, Job, Token,
        lifecycle::{Failure, Reason, RetryDecision},
    },
    port::JobStore,
};
use tidegate_engine::testkit::builders::job;

use super::streams::{Shop, letter, letter_with};

/// The timers of jobs that the table has.
fn timers(shop: &Shop) -> usize {
    shop.table.table().items().iter().filter(|item| item.key.p.starts_with("T#")).count()
}

/// Adds jobs that expire this long from now, all with one timer.
async fn add_expiring(shop: &Shop, first: usize, count: usize, after: Duration) {
    let expires = (shop.now() + after).millis();
    let letters = (first..first + count)
        .map(|number| letter_with(shop, number, Duration::ZERO, |letter| letter.expires(expires)));
    shop.add(letters.collect()).await;
}

#[tokio::test]
async fn heartbeats_of_a_long_run_leave_few_timers() {
    let shop = Shop::new();
    let waiting = shop.add(vec![letter(&shop, 1, 100, Duration::ZERO)]).await.remove(0);
    let claim = Event::Claim {
        version: waiting.life.version,
        token: Token::new(1),
        worker: None,
        lease: Duration::from_secs(30),
        granted: false,
        decided_at: shop.now(),
    };
    let mut run = shop.apply(&waiting, claim).await;
    for beat in 1..=180 {
        shop.clock.advance(Duration::from_secs(10));
        let until = shop.now() + Duration::from_secs(30);
        run = shop.apply(&run, Event::Heartbeat { attempt: 1, until, progress: None }).await;
        if beat % 6 == 0 {
            let page = shop.store.overdue(shop.now(), None, 100).await.unwrap();
            assert!(page.jobs.is_empty(), "{page:?}");
        }
    }
    assert!((1..=12).contains(&timers(&shop)), "{} timers", timers(&shop));
    shop.clock.advance(Duration::from_secs(31));
    let page = shop.store.overdue(shop.now(), None, 100).await.unwrap();
    assert_eq!(page.jobs, [run], "the lease has ended");
}

#[tokio::test]
async fn a_job_that_is_retried_after_it_expired_is_found() {
    let shop = Shop::new();
    let expires = (shop.now() + Duration::from_mins(1)).millis();
    let built = job("late").queue("mail").of_type("letter").due(shop.now().millis());
    let waiting: Job = shop.add(vec![built.expires(expires).build()]).await.remove(0);
    shop.clock.advance(Duration::from_secs(50));
    let run = shop.claim(&waiting).await;
    shop.clock.advance(Duration::from_secs(30));
    let page = shop.store.overdue(shop.now(), None, 100).await.unwrap();
    assert!(page.jobs.is_empty(), "it runs");
    let failed = Event::Fail {
        attempt: 1,
        failure: Failure::new(Reason::Failed, "no"),
        next: RetryDecision::Wait(Duration::from_hours(1)),
    };
    let retried = shop.apply(&run, failed).await;
    shop.clock.advance(Duration::from_secs(1));
    let page = shop.store.overdue(shop.now(), None, 100).await.unwrap();
    assert_eq!(page.jobs, [retried]);
}

#[tokio::test]
async fn a_sweep_reads_no_jobs_of_timers_that_are_not_due() {
    let reads = async |processes: usize, due: usize| {
        let mut shop = Shop::new();
        for process in 1..=processes {
            // Each process writes to one of sixteen partitions.
            shop.store = Shop::store(&shop.table, &shop.clock);
            for later in 0..20 {
                let after = Duration::from_secs(600 + 60 * later as u64);
                add_expiring(&shop, 10_000 * process + 100 * later, 12, after).await;
            }
        }
        shop.store = Shop::store(&shop.table, &shop.clock);
        add_expiring(&shop, 0, due, Duration::from_secs(5)).await;
        shop.clock.advance(Duration::from_secs(20));
        let before = shop.table.bill();
        let page = shop.store.overdue(shop.now(), None, 2000).await.unwrap();
        assert_eq!((page.jobs.len(), page.next_at.is_some()), (due, processes > 0));
        (shop.table.bill() - before).reads
    };
    let (alone, others) = (reads(0, 1200).await, reads(30, 1200).await);
    assert!(others <= alone * 1.2, "{others} units, and {alone} without other timers");
    let idle = reads(30, 0).await;
    assert!(idle <= 20.0, "{idle} units while nothing is due");
}

#[tokio::test]
async fn a_sweep_reads_few_more_jobs_than_it_returns() {
    let mut shop = Shop::new();
    for process in 0..16 {
        // Each process writes to one of sixteen partitions.
        shop.store = Shop::store(&shop.table, &shop.clock);
        for timer in 0..20 {
            // The stores draw the same names for the timers of a second.
            let after = Duration::from_secs((5 + 20 * process + timer) as u64);
            add_expiring(&shop, 10_000 * process + 100 * timer, 12, after).await;
        }
    }
    shop.store = Shop::store(&shop.table, &shop.clock);
    shop.clock.advance(Duration::from_mins(10));
    let before = shop.table.bill();
    let page = shop.store.overdue(shop.now(), None, 500).await.unwrap();
    assert_eq!(page.jobs.len(), 500);
    let reads = (shop.table.bill() - before).reads;
    assert!(reads <= 1300.0, "{reads} units");
    // Nothing is left out.
    let page = shop.store.overdue(shop.now(), None, 5000).await.unwrap();
    assert_eq!(page.jobs.len(), 16 * 20 * 12);
}
