//! Strict order: the jobs of a partition start one after another.

use std::time::Duration;

use tidegate_core::{
    calendar::window::Window,
    job::{
        Job,
        lifecycle::HandBack,
        retry::{Backoff, Jitter, Retry},
        type_config::TypeConfig,
    },
    queue::{QueueConfig, config::OrderKind},
    time::Seconds,
};
use tidegate_engine::{
    Error, TickInput,
    request::{JobPatch, NewJob, ReportOutcome},
    testkit::builders::name,
};

use crate::cases::harness::{
    Harness, every_store_and_table, failed, of_type, polling, queue, report, with,
};

/// A retry 8 s after a failure.
fn later() -> Retry {
    let (base_seconds, max_seconds) = (Seconds::new(8), Seconds::new(8));
    Retry::Exponential(Backoff { base_seconds, max_seconds, jitter: Jitter::None })
}

/// Harnesses whose queue has strict order by tenant.
async fn in_line() -> Vec<Harness> {
    let mut all = every_store_and_table();
    for harness in &mut all {
        let config = QueueConfig {
            partition_by: Some("tenant".into()),
            strict_order: true,
            ..QueueConfig::default()
        };
        harness.set_queue(config).await;
        for job_type in ["work", "other"] {
            harness
                .set_type(job_type, TypeConfig { retry: later(), ..TypeConfig::default() })
                .await;
        }
        harness.settle().await;
    }
    all
}

fn of(tenant: &str) -> NewJob {
    with("tenant", tenant)
}

/// Enqueues jobs of these tenants, a millisecond apart.
async fn enqueued<const N: usize>(harness: &Harness, tenants: [&str; N]) -> [Job; N] {
    let mut jobs = Vec::new();
    for tenant in tenants {
        jobs.push(harness.enqueue(of(tenant)).await);
        harness.clock.advance(Duration::from_millis(1));
    }
    jobs.try_into().unwrap()
}

async fn lease(harness: &mut Harness) -> Vec<Job> {
    let mut leased = harness.lease(10).await;
    // A tick may leave a rest to the next one.
    leased.extend(harness.lease(10).await);
    leased.sort_by(|a, b| a.id.cmp(&b.id));
    leased
}

fn ids(jobs: &[Job]) -> Vec<&str> {
    let mut ids: Vec<&str> = jobs.iter().map(|job| job.id.as_str()).collect();
    ids.sort_unstable();
    ids
}

async fn settle(harness: &mut Harness, job: &Job, outcome: ReportOutcome) {
    let reports = vec![report(job, outcome)];
    let outcome = harness.tick(TickInput { reports, ..TickInput::default() }).await;
    assert!(outcome.reports.iter().all(Result::is_ok), "{:?}", outcome.reports);
}

#[tokio::test]
async fn one_job_of_each_partition_starts_in_its_order() {
    for mut harness in in_line().await {
        let [a1, a2, b1, a3] = enqueued(&harness, ["a", "a", "b", "a"]).await;
        let first = lease(&mut harness).await;
        assert_eq!(ids(&first), ids(&[a1.clone(), b1]));
        assert!(lease(&mut harness).await.is_empty(), "the others wait");
        let a1 = first.into_iter().find(|job| job.id == a1.id).unwrap();
        harness.succeed(&[a1]).await;
        let second = lease(&mut harness).await;
        assert_eq!(ids(&second), ids(&[a2]));
        harness.succeed(&second).await;
        assert_eq!(ids(&lease(&mut harness).await), ids(&[a3]));
    }
}

#[tokio::test]
async fn a_job_that_waits_for_its_retry_holds_back_the_rest() {
    for mut harness in in_line().await {
        let [a1, a2] = enqueued(&harness, ["a", "a"]).await;
        let run = lease(&mut harness).await;
        settle(&mut harness, &run[0], failed()).await;
        harness.wait(4);
        assert!(lease(&mut harness).await.is_empty(), "it waits for its retry");
        let explained = harness.explain(&a2.id).await;
        let by = explained.held_by.unwrap();
        assert_eq!((by.kind, by.name.as_deref()), ("order", Some(a1.id.as_str())));
        let explained = harness.explain_queue(&|_| polling()).await;
        assert_eq!(explained.running.len(), 0, "{:?}", explained.running);
        let held = explained.held;
        let held: Vec<_> = held.iter().map(|held| (held.by.kind, held.jobs)).collect();
        assert_eq!(held, [("order", 1)]);
        // Another process finds the same ledger.
        harness.restart();
        assert!(lease(&mut harness).await.is_empty());
        harness.wait(5);
        let again = lease(&mut harness).await;
        assert_eq!((ids(&again), again[0].life.attempt), (ids(&[a1]), 2));
        let until = Some(harness.now() + Duration::from_secs(30));
        let snooze = HandBack { until, ..HandBack::default() };
        settle(&mut harness, &again[0], ReportOutcome::HandedBack(snooze)).await;
        harness.wait(20);
        assert!(lease(&mut harness).await.is_empty(), "it is snoozed");
        harness.wait(11);
        let last = lease(&mut harness).await;
        assert_eq!(last[0].life.attempt, 3);
        harness.succeed(&last).await;
        assert_eq!(ids(&lease(&mut harness).await), ids(&[a2]));
    }
}

#[tokio::test]
async fn jobs_that_started_before_strict_order_retry_one_by_one() {
    for mut harness in in_line().await {
        let config = |strict_order| QueueConfig {
            partition_by: Some("tenant".into()),
            concurrency: Some(5),
            strict_order,
            ..QueueConfig::default()
        };
        harness.set_queue(config(false)).await;
        let [first, second] = enqueued(&harness, ["a", "a"]).await;
        let runs = lease(&mut harness).await;
        assert_eq!(runs.len(), 2);
        harness.set_queue(config(true)).await;
        for run in &runs {
            settle(&mut harness, run, failed()).await;
        }
        harness.wait(9);
        for job in [first, second] {
            let run = lease(&mut harness).await;
            assert_eq!(ids(&run), ids(&[job]));
            harness.succeed(&run).await;
        }
    }
}

#[tokio::test]
async fn a_job_that_is_moved_aside_frees_its_partition() {
    for mut harness in in_line().await {
        for cancels in [true, false] {
            let tenant = if cancels { "a" } else { "b" };
            let [first, second] = enqueued(&harness, [tenant, tenant]).await;
            let run = lease(&mut harness).await;
            settle(&mut harness, &run[0], failed()).await;
            assert!(lease(&mut harness).await.is_empty());
            let (before, after) = if cancels {
                let (before, cancelled) =
                    harness.engine.cancel(&first.id, None, false).await.unwrap();
                (before, cancelled.job)
            } else {
                let run_at = Some(harness.now() + Duration::from_mins(1));
                let patch = JobPatch { run_at, ..JobPatch::default() };
                harness.engine.patch(&first.id, None, patch, None).await.unwrap()
            };
            let released = vec![(after.id.clone(), before.life.version)];
            harness.tick(TickInput { released, ..TickInput::default() }).await;
            let next = lease(&mut harness).await;
            assert_eq!(ids(&next), ids(&[second]));
            harness.succeed(&next).await;
        }
    }
}

/// Windows of the first minute of each hour of the harness's first day, without the first `closed`
/// ones.
fn windows(closed: usize) -> Vec<Window> {
    let hours =
        (closed..24).map(|hour| format!(r#"{{"from":"{hour:02}:00","to":"{hour:02}:01"}}"#));
    serde_json::from_str(&format!("[{}]", hours.collect::<Vec<_>>().join(","))).unwrap()
}

/// Changes `job`, which has failed, and returns what the next lease gets.
async fn leased_after(harness: &mut Harness, job: &Job, patch: JobPatch) -> Vec<Job> {
    let (before, after) = harness.engine.patch(&job.id, None, patch, None).await.unwrap();
    let released = vec![(after.id, before.life.version)];
    harness.tick(TickInput { released, ..TickInput::default() }).await;
    lease(harness).await
}

#[tokio::test]
async fn a_change_that_postpones_nothing_keeps_the_place() {
    let run_at =
        |harness: &Harness| JobPatch { run_at: Some(harness.now()), ..JobPatch::default() };
    for mut harness in in_line().await {
        let [first, second] = enqueued(&harness, ["a", "a"]).await;
        let run = lease(&mut harness).await;
        settle(&mut harness, &run[0], failed()).await;
        harness.wait(9);
        let now = run_at(&harness);
        let again = leased_after(&mut harness, &first, now).await;
        assert_eq!(ids(&again), ids(std::slice::from_ref(&first)), "it was due, and is to run now");
        settle(&mut harness, &again[0], failed()).await;
        let closed = JobPatch { windows: Some(Some(windows(1))), ..JobPatch::default() };
        assert!(leased_after(&mut harness, &first, closed).await.is_empty());
        harness.wait(9);
        let priority = JobPatch { priority: Some(Some(3)), ..JobPatch::default() };
        assert!(leased_after(&mut harness, &first, priority).await.is_empty());
        let open = JobPatch { windows: Some(Some(Vec::new())), ..JobPatch::default() };
        let again = leased_after(&mut harness, &first, open).await;
        assert_eq!(ids(&again), ids(&[first]), "its windows are gone");
        harness.succeed(&again).await;
        assert_eq!(ids(&lease(&mut harness).await), ids(&[second]));
    }
}

#[tokio::test]
async fn a_started_job_that_a_tick_finds_gets_its_place() {
    for mut harness in in_line().await {
        let strict = harness.engine.queue(&name("default")).await.unwrap().config.clone();
        let partition_by = Some("tenant".into());
        harness.set_queue(QueueConfig { partition_by, ..QueueConfig::default() }).await;
        let first = harness
            .enqueue(of("a").with_options(|options| options.windows = Some(windows(0))))
            .await;
        let run = lease(&mut harness).await;
        let of_minute = harness.now().millis() as u64 % 60_000;
        harness.clock.advance(Duration::from_millis(40_000 - of_minute));
        settle(&mut harness, &run[0], failed()).await;
        harness.wait(25);
        // It was due within its window, and the window has closed since.
        let [second] = enqueued(&harness, ["a"]).await;
        harness.set_queue(strict).await;
        harness.settle().await;
        assert!(lease(&mut harness).await.is_empty());
        let explained = harness.explain(&second.id).await;
        let by = explained.held_by.as_ref().and_then(|by| by.name.as_deref());
        assert_eq!(by, Some(first.id.as_str()), "{explained:?}");
    }
}

#[tokio::test]
async fn a_type_without_a_worker_holds_its_partition() {
    for mut harness in in_line().await {
        let mut job = of_type("other");
        job.options.attributes = of("a").options.attributes;
        let other = harness.enqueue(job).await;
        harness.clock.advance(Duration::from_millis(1));
        let [waits] = enqueued(&harness, ["a"]).await;
        assert!(lease(&mut harness).await.is_empty(), "{} goes first", other.id);
        let explained = harness.explain(&waits.id).await.held_by.unwrap();
        assert_eq!(explained.name.as_deref(), Some(other.id.as_str()));
        let run = harness.lease_of(&["other"], 1).await;
        harness.succeed(&run).await;
        assert_eq!(ids(&lease(&mut harness).await), ids(&[waits]));
    }
}

#[tokio::test]
async fn jobs_without_the_attribute_have_no_order() {
    for mut harness in in_line().await {
        harness.enqueue_many([of_type("work"), of_type("work")]).await;
        assert_eq!(lease(&mut harness).await.len(), 2);
    }
}

#[tokio::test]
async fn a_waiting_grant_ends_with_the_strict_order() {
    for mut harness in in_line().await {
        let [first, second] = enqueued(&harness, ["a", "a"]).await;
        let run = lease(&mut harness).await;
        settle(&mut harness, &run[0], failed()).await;
        let partition_by = Some("tenant".into());
        harness
            .set_queue(QueueConfig { partition_by, concurrency: Some(5), ..QueueConfig::default() })
            .await;
        let free = lease(&mut harness).await;
        assert_eq!(ids(&free), ids(&[second]));
        harness.wait(9);
        let again = lease(&mut harness).await;
        assert_eq!((ids(&again), again[0].life.attempt), (ids(&[first]), 2));
        assert_eq!(harness.granted().await, 2);
        harness.wait(20);
        harness.lease(1).await;
        assert_eq!(harness.granted().await, 2, "its grant is the running one");
    }
}

#[tokio::test]
async fn strict_order_needs_partitions_and_no_other_order() {
    for harness in every_store_and_table() {
        let by_tenant = || Some("tenant".to_owned());
        for (partition_by, order, is_valid) in [
            (by_tenant(), OrderKind::Time, true),
            (None, OrderKind::Time, false),
            (by_tenant(), OrderKind::Priority, false),
        ] {
            let config =
                QueueConfig { partition_by, order, strict_order: true, ..QueueConfig::default() };
            let put = harness.engine.put_queue(&queue(), config, None).await;
            let refused =
                matches!(&put, Err(Error::Invalid { field, .. }) if field == "strict_order");
            assert_eq!((put.is_ok(), refused), (is_valid, !is_valid), "{put:?}");
        }
    }
}
