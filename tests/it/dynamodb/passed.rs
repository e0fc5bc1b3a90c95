//! What a process remembers of entries that lead to no candidate, and what the registries of open
//! buckets cost.

use std::time::Duration;

use tidegate_core::{
    job::Event,
    port::{JobStore, job_store::DueQuery},
};

use super::streams::{ORDERS, Shop, letter, letter_with};

async fn reads(shop: &Shop, queries: &[DueQuery]) -> f64 {
    let before = shop.table.bill();
    shop.store.due(queries).await.unwrap();
    (shop.table.bill() - before).reads
}

#[tokio::test]
async fn refiled_running_jobs_are_not_read_by_every_tick() {
    let shop = Shop::new();
    let letters = (0..458).map(|n| letter(&shop, n, 100, Duration::ZERO));
    let jobs = shop.add(letters.collect()).await;
    shop.clock.advance(Duration::from_secs(20));
    for (n, job) in jobs.iter().enumerate() {
        if n < 8 {
            shop.claim(job).await;
        } else {
            shop.apply(job, Event::Cancel { force: true }).await;
        }
    }
    shop.clock.advance(Duration::from_secs(20));
    let query = [shop.query(ORDERS[0], 10)];
    reads(&shop, &query).await;
    let late = |p: &str| p.starts_with("L#mail");
    assert!(shop.table.table().items().iter().any(|item| late(&item.key.p)), "they are refiled");
    shop.clock.advance(Duration::from_secs(20));
    reads(&shop, &query).await;
    shop.clock.advance(Duration::from_secs(1));
    let warm = reads(&shop, &query).await;
    assert!(warm <= 7.0, "{warm} units for eight running jobs");
}

#[tokio::test]
async fn later_hours_are_read_once_for_all_partitions() {
    let shop = Shop::new();
    let tenant = |n: usize| format!("tenant-{n:03}");
    let letters = (0..200).map(|n| {
        let after = Duration::from_hours(n as u64 + 1);
        letter_with(&shop, n, after, |letter| letter.partition(&tenant(n)))
    });
    shop.add(letters.collect()).await;
    let of = |n| DueQuery { partition: Some(tenant(n)), ..shop.query(ORDERS[0], 10) };
    let queries: Vec<DueQuery> = (0..65).map(of).collect();
    let one = reads(&shop, &queries[..1]).await;
    let all = reads(&shop, &queries).await;
    assert!(all <= one + 2.0 * 64.0, "{all} units for 65 partitions, {one} for one");
}

#[tokio::test]
async fn a_queue_with_many_open_buckets_is_active_for_a_few_units() {
    let shop = Shop::new();
    let letters = (0..1000).map(|n| {
        letter_with(&shop, n, Duration::ZERO, |letter| letter.partition(&format!("tenant-{n}")))
    });
    shop.add(letters.collect()).await;
    shop.clock.advance(Duration::from_hours(2));
    shop.active().await;
    let before = shop.table.bill();
    assert_eq!(shop.active().await.len(), 1);
    let reads = (shop.table.bill() - before).reads;
    assert!(reads <= 4.0, "{reads} units");
}
