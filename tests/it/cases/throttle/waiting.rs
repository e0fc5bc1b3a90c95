//! A throttler sees what waits in its queue, beyond its page of candidates.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::{counts, limit, region, says, watched};
use crate::cases::harness::{Harness, every_store, every_store_and_table, queue, with};
use tidegate_core::{
    job::{Job, Value, type_config::TypeConfig},
    port::{
        JobStore, StoreError, StoreLayer,
        job_store::SharedStore,
        policy::{ThrottleAnswer, ThrottleCall},
        store_layer::Operation,
    },
    queue::{
        QueueConfig,
        plugin::Description,
        waiting::{Waiting, WaitingCount},
    },
    time::Timestamp,
};
use tidegate_engine::{
    memory::FakeClock,
    testkit::policies::{each, hold, run},
};

/// A queue with this limit, whose regions take turns.
pub(super) fn by_region(concurrency: u32) -> QueueConfig {
    QueueConfig { partition_by: Some("region".into()), ..limit(concurrency) }
}

/// A throttler that groups what waits by these attributes.
fn groups_by(names: &[&str]) -> Description {
    let waiting_by = names.iter().map(|name| (*name).to_owned()).collect();
    Description { group_by: vec!["region".into()], waiting_by, ..says() }
}

async fn count(harness: &Harness) {
    harness.engine.count_waiting(Timestamp::MAX).await.unwrap();
}

/// The number of waiting jobs by the values of an attribute.
fn jobs(waiting: &Waiting, by: &str) -> BTreeMap<String, usize> {
    let groups = waiting.groups[by].iter();
    groups.map(|(value, count)| (value.clone(), count.jobs as usize)).collect()
}

/// The running jobs by region.
pub(super) fn running(call: &ThrottleCall) -> BTreeMap<String, u32> {
    let mut used = BTreeMap::new();
    for grant in call.running.iter() {
        *used.entry(grant.attributes["region"].text()).or_default() += 1;
    }
    used
}

/// Shares 5:3:2 of ten slots. What a region does not use is lent, except what its waiting jobs
/// need.
fn shared(call: &ThrottleCall) -> ThrottleAnswer {
    let share = |region: &str| BTreeMap::from([("a", 5), ("b", 3), ("c", 2)])[region];
    let mut used = running(call);
    let mut own = Vec::new();
    for job in &call.candidates {
        let used = used.entry(region(job)).or_default();
        own.push(*used < share(&region(job)));
        *used += u32::from(own[own.len() - 1]);
    }
    let started = |name: &str| {
        let jobs = call.candidates.iter().zip(&own);
        jobs.filter(|(job, own)| **own && region(job) == name).count() as u32
    };
    let claims = call.waiting.groups["region"].iter().map(|(name, count)| {
        let left = count.jobs.saturating_sub(started(name));
        left.min(share(name).saturating_sub(used.get(name).copied().unwrap_or_default()))
    });
    let mut lent = 10u32.saturating_sub(used.values().sum::<u32>() + claims.sum::<u32>());
    let mut own = own.into_iter();
    each(call, |_| {
        if own.next() == Some(true) {
            return run();
        }
        lent = match lent.checked_sub(1) {
            Some(left) => left,
            None => return hold("its share is in use"),
        };
        run()
    })
}

fn by_value(jobs: &[Job]) -> BTreeMap<String, usize> {
    super::by_region(jobs)
}

#[tokio::test]
async fn shares_with_lending_starve_no_one_behind_a_backlog() {
    for harness in every_store_and_table() {
        let (policy, calls) = watched(shared);
        let mut harness = harness.with_policy(policy);
        harness.throttled(groups_by(&["region"]), by_region(10)).await;
        harness.settle().await;
        for _ in 0..3 {
            harness.enqueue_many((0..1000).map(|_| with("region", "a"))).await;
        }
        let mut running = harness.lease(10).await;
        assert_eq!(by_value(&running), counts([("a", 10)]), "no other job waits");
        count(&harness).await;
        harness.enqueue_many((0..6).map(|_| with("region", "b"))).await;
        harness.enqueue_many((0..4).map(|_| with("region", "c"))).await;
        // The next slots belong to those that were lent away, although no sweep has counted them.
        for _ in 0..2 {
            harness.succeed(&running).await;
            harness.wait(1);
            running = harness.lease(10).await;
            assert_eq!(by_value(&running), counts([("a", 5), ("b", 3), ("c", 2)]));
        }
        let seen = jobs(&calls.lock().last().unwrap().waiting, "region");
        let is_atomic = harness.store.capabilities().atomicity.is_atomic();
        // The first count of a table stops early.
        let least = if is_atomic { 2900 } else { 400 };
        assert!(seen["a"] > least, "beyond the page of candidates: {seen:?}");
        // No other job waits any more.
        harness.succeed(&running).await;
        harness.wait(1);
        running = harness.lease(10).await;
        assert_eq!(by_value(&running), counts([("a", 10)]));
        let seen = jobs(&calls.lock().last().unwrap().waiting, "region");
        assert_eq!(seen.keys().collect::<Vec<_>>(), ["a"], "the tick has looked at the others");
    }
}

#[tokio::test]
async fn groups_are_known_beyond_what_a_tick_visits() {
    for harness in every_store_and_table() {
        let (policy, calls) = watched(super::each_held);
        let mut harness = harness.with_policy(policy);
        harness.throttled(groups_by(&["*"]), by_region(10)).await;
        harness.settle().await;
        let job = |n: usize| with("region", &format!("r{:03}", n % 200));
        harness.enqueue_many((0..400).map(job)).await;
        harness.lease(5).await;
        let before = calls.lock().last().unwrap().clone();
        assert!((64..200).contains(&jobs(&before.waiting, "region").len()));
        assert_eq!(before.waiting.counted_at, None);
        count(&harness).await;
        harness.enqueue(with("region", "r000")).await;
        calls.lock().clear();
        harness.lease(5).await;
        for call in calls.lock().iter() {
            let groups = &call.waiting.groups["region"];
            assert_eq!(groups.len(), 200);
            assert!(groups.values().all(|count| (2..=3).contains(&count.jobs)), "{groups:?}");
            for job in &call.candidates {
                assert!(groups[&region(job)].oldest_due_at <= job.life.run_at().unwrap());
            }
        }
    }
}

/// A store that takes a minute to count a page.
struct SlowCounts(SharedStore, Arc<FakeClock>);

impl StoreLayer for SlowCounts {
    fn inner(&self) -> &dyn JobStore {
        &*self.0
    }

    async fn around<T: Send>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        if operation == Operation::CountWaiting {
            self.1.advance(Duration::from_mins(1));
        }
        call.await
    }
}

#[tokio::test]
async fn a_count_that_ends_early_is_continued_by_the_next() {
    for mut harness in every_store_and_table() {
        harness.store =
            Arc::new(SlowCounts(Arc::clone(&harness.store), Arc::clone(&harness.clock)));
        let (policy, calls) = watched(super::each_held);
        let mut harness = harness.with_policy(policy);
        harness.throttled(groups_by(&["*"]), by_region(10)).await;
        harness.settle().await;
        harness.enqueue_many((0..200).map(|n| with("region", &format!("r{n:03}")))).await;
        let began_at = harness.now();
        let mut passes = 0;
        let mut first = pass(&mut harness, &calls).await;
        while let Some(others) = first.others {
            assert!(others.at_least && others.jobs == 0, "{others:?}");
            assert_eq!(first.counted_at, Some(began_at));
            passes += 1;
            assert!(passes < 100, "{passes} passes");
            first = pass(&mut harness, &calls).await;
        }
        assert!(passes > 2, "{passes} passes");
        assert_eq!(first.counted_at, Some(began_at));
        // The next count begins at the first partition. If its first pass does not reach the last
        // one, the others are still known.
        let second = pass(&mut harness, &calls).await;
        assert!(second.counted_at >= first.counted_at);
        for waiting in [first, second] {
            assert_eq!((jobs(&waiting, "region").len(), waiting.others), (200, None));
        }
    }
}

/// What a throttler sees after a pass that ends after its first page.
async fn pass(harness: &mut Harness, calls: &Mutex<Vec<ThrottleCall>>) -> Waiting {
    let until = harness.now() + Duration::from_secs(1);
    let next_at = harness.engine.count_waiting(until).await.unwrap().unwrap();
    calls.lock().clear();
    harness.enqueue(with("region", "r000")).await;
    harness.lease(1).await;
    harness.clock.set(next_at.max(harness.now()));
    let waiting = Arc::clone(&calls.lock().last().unwrap().waiting);
    Waiting::clone(&waiting)
}

#[tokio::test]
async fn a_group_counts_no_job_that_the_same_tick_started() {
    for harness in every_store_and_table() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut harness = harness.with_policy(policy);
        harness.throttled(groups_by(&["region"]), by_region(500)).await;
        harness.settle().await;
        harness.enqueue_many((0..300).map(|_| with("region", "a"))).await;
        harness.enqueue_many((0..3).map(|_| with("region", "b"))).await;
        count(&harness).await;
        let started = harness.lease(303).await.len();
        assert_eq!(started, 303);
        let mut ran = 0;
        for call in calls.lock().iter() {
            let waits: u32 = call.waiting.groups["region"].values().map(|count| count.jobs).sum();
            assert_eq!(waits, 303 - ran);
            ran += call.candidates.len() as u32;
        }
    }
}

#[tokio::test]
async fn combinations_of_two_attributes_take_turns() {
    for harness in every_store_and_table() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut harness = harness.with_policy(policy);
        let config = QueueConfig { partition_then_by: Some("user".into()), ..by_region(50) };
        harness.throttled(groups_by(&["region", "user"]), config).await;
        harness.settle().await;
        let job = |region: &str, user: Option<&str>| {
            let mut job = with("region", region);
            let user = user.map(|user| ("user".to_owned(), Value::Text(user.into())));
            job.options.attributes.extend(user);
            job
        };
        for (region, user, number) in
            [("a", Some("ann"), 40), ("a", Some("bob"), 4), ("b", Some("ann"), 4), ("b", None, 2)]
        {
            harness.enqueue_many((0..number).map(|_| job(region, user))).await;
        }
        count(&harness).await;
        let first = harness.lease(4).await;
        assert_eq!(by_value(&first), counts([("a", 2), ("b", 2)]), "each combination has one");
        let call = calls.lock()[0].clone();
        assert_eq!(jobs(&call.waiting, "region"), counts([("a", 44), ("b", 6)]));
        assert_eq!(jobs(&call.waiting, "user"), counts([("ann", 44), ("bob", 4)]));
    }
}

#[tokio::test]
async fn a_throttler_groups_only_by_what_makes_partitions() {
    for harness in every_store() {
        let (policy, _) = watched(|call| each(call, |_| run()));
        let harness = harness.with_policy(policy);
        harness.throttled(groups_by(&["region"]), by_region(10)).await;
        let config = harness.engine.queue(&queue()).await.unwrap().config;
        for partition_by in [None, Some("tenant".to_owned())] {
            let config = QueueConfig { partition_by, ..config.clone() };
            let error = harness.engine.put_queue(&queue(), config, None).await.unwrap_err();
            let shown = format!("{error:?}");
            assert!(
                shown.contains("partition_by") && shown.contains("must name region"),
                "{shown}"
            );
        }
        // Neither does a version that needs another attribute.
        let pushed = harness.push("guard", "v2", Some(groups_by(&["tenant"])), None).await;
        let error = format!("{:?}", pushed.unwrap_err());
        assert!(error.contains("the partition_by of queue default must name tenant"), "{error}");
        harness.push("guard", "v3", Some(groups_by(&["*"])), None).await.unwrap();
    }
}

#[tokio::test]
async fn an_explanation_counts_the_jobs_that_it_is_about() {
    for harness in every_store() {
        let (policy, calls) = watched(super::each_held);
        let harness = harness.with_policy(policy);
        harness.throttled(groups_by(&["region"]), by_region(10)).await;
        harness.set_type("work", TypeConfig::default()).await;
        let job = harness.enqueue(with("region", "a")).await;
        harness.explain(&job.id).await;
        let call = calls.lock().pop().unwrap();
        let expected = WaitingCount::of([&job]).unwrap();
        assert_eq!(call.waiting.groups["region"]["a"], expected);
    }
}
