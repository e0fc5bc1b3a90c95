//! A queue says why it is idle or slow, in one answer and on every store.

use std::{collections::BTreeMap, time::Duration};

use tidegate_core::{
    job::{TypeName, type_config::TypeConfig},
    queue::{
        QueueConfig,
        config::{Constraint, Rate},
        matcher::Matcher,
        plugin::Description,
    },
    time::Seconds,
};
use tidegate_engine::{
    request::{HeldJobs, NewJob, QueueExplanation, TypeUse, WorkerStatus},
    testkit::{
        FnPolicy,
        builders::name,
        policies::{each, hold, run},
    },
};

use super::harness::{
    Harness, every_store, every_store_and_table, of_type, polling, queue, with, work,
};

async fn explain(harness: &Harness) -> QueueExplanation {
    harness.explain_queue(&|_| polling()).await
}

/// What holds the due jobs: kind, name, value, and how many.
fn held(explained: &QueueExplanation) -> Vec<(&str, Option<&str>, Option<&str>, u64)> {
    let parts = explained
        .held
        .iter()
        .map(|HeldJobs { by, jobs, .. }| (by.kind, by.name.as_deref(), by.value.as_deref(), *jobs));
    parts.collect()
}

#[tokio::test]
async fn an_idle_queue_says_when_the_next_job_is_due() {
    for harness in every_store_and_table() {
        harness.with_limit(1).await;
        let explained = explain(&harness).await;
        assert_eq!((explained.examined, explained.next_due_at), (0, None));
        assert_eq!(explained.reason, "nothing is scheduled");
        let run_at = harness.now() + Duration::from_mins(10);
        harness.enqueue(NewJob { run_at: Some(run_at), ..work() }).await;
        let explained = explain(&harness).await;
        assert_eq!((explained.examined, explained.next_due_at), (0, Some(run_at)));
        assert!(explained.reason.ends_with("in 600 s"), "{}", explained.reason);
    }
}

#[tokio::test]
async fn a_paused_queue_says_so_for_every_due_job() {
    for harness in every_store_and_table() {
        harness.with_limit(1).await;
        harness.enqueue_many([work(), work()]).await;
        harness.enqueue(work().with_options(|options| options.critical = true)).await;
        harness.engine.pause_queue(&queue(), true).await.unwrap();
        let explained = explain(&harness).await;
        assert_eq!(held(&explained), [("paused", None, None, 3)]);
        assert_eq!(explained.reason, "3 of 3 due jobs wait: the queue is paused");
    }
}

#[tokio::test]
async fn jobs_that_have_not_started_use_no_limit() {
    for mut harness in every_store_and_table() {
        harness.with_limit(2).await;
        harness.settle().await;
        harness.enqueue_many([work(), work(), work(), work()]).await;
        // As after the end of its leases: a worker is known, and requests nothing.
        let silent = || WorkerStatus { known: Some(1), polling: Some(0), ..polling() };
        let explained = harness.explain_queue(&|_| silent()).await;
        let holders = [("worker", None, None, 2), ("concurrency", None, None, 2)];
        assert_eq!((held(&explained), explained.running.len()), (holders.to_vec(), 0));
        let reason = &explained.held[1].reason;
        assert_eq!(reason, "the due jobs before it take the rest of the limit when they start");
    }
}

#[tokio::test]
async fn a_full_queue_says_which_types_and_values_use_its_limits() {
    for mut harness in every_store() {
        let tenant = Constraint {
            name: "tenant".into(),
            matcher: Matcher::default(),
            per: Some("tenant".into()),
            concurrency: Some(1),
            rate: None,
        };
        harness
            .set_queue(QueueConfig {
                concurrency: Some(3),
                constraints: vec![tenant],
                ..QueueConfig::default()
            })
            .await;
        harness.set_type("work", TypeConfig::default()).await;
        let heavy = TypeConfig { weight: 2, concurrency: Some(2), ..TypeConfig::default() };
        harness.set_type("heavy", heavy).await;
        harness.enqueue(with("tenant", "a")).await;
        harness.enqueue(of_type("heavy")).await;
        assert_eq!(harness.lease_of(&["work", "heavy"], 5).await.len(), 2);
        harness.enqueue_many([with("tenant", "a"), with("tenant", "b")]).await;
        let explained = explain(&harness).await;
        let full = [("concurrency", None, None, 2)];
        assert_eq!(held(&explained), full, "the queue is full before its constraint");
        let types = |jobs| BTreeMap::from([(name::<TypeName>("work"), jobs)]);
        assert_eq!(explained.held[0].types, types(2));
        let uses = |job_type: &str, weight, limit| TypeUse {
            job_type: name(job_type),
            jobs: 1,
            weight,
            limit,
        };
        assert_eq!(explained.running, [uses("heavy", 2, Some(2)), uses("work", 1, None)]);
        let values: Vec<_> =
            explained.constraints.iter().map(|one| (one.value.as_deref(), one.limit)).collect();
        assert_eq!(values, [(Some("a"), 1)]);
        // With room in the queue, the constraint holds the first, and nothing the second.
        let config = harness.engine.queue(&queue()).await.unwrap().config;
        harness.set_queue(QueueConfig { concurrency: Some(9), ..config }).await;
        let explained = explain(&harness).await;
        assert_eq!(held(&explained), [("constraint", Some("tenant"), Some("a"), 1)]);
    }
}

#[tokio::test]
async fn a_rate_says_until_when_it_holds_the_queue() {
    for mut harness in every_store() {
        let rate = Rate { count: 1, per_seconds: Seconds::new(10), burst: Some(1) };
        let constraint = Constraint {
            name: "calls".into(),
            matcher: Matcher::default(),
            per: None,
            concurrency: None,
            rate: Some(rate),
        };
        harness
            .set_queue(QueueConfig { constraints: vec![constraint], ..QueueConfig::default() })
            .await;
        harness.set_type("work", TypeConfig::default()).await;
        harness.enqueue_many([work(), work(), work()]).await;
        assert_eq!(harness.lease(1).await.len(), 1);
        let explained = explain(&harness).await;
        assert_eq!(held(&explained), [("constraint", Some("calls"), None, 2)]);
        let next = harness.now() + Duration::from_secs(10);
        assert_eq!(explained.held[0].earliest_at, Some(next));
    }
}

#[tokio::test]
async fn a_throttler_gives_its_reason_for_the_queue() {
    for harness in every_store() {
        let policy = FnPolicy::default().throttling(|_, call| {
            let mut busy = call.running.iter().next().is_some();
            let one = |_: &_| if std::mem::replace(&mut busy, true) { hold("one") } else { run() };
            Ok(each(call, one))
        });
        let mut harness = harness.with_policy(policy);
        let says = Description { state_version: 1, ..Description::default() };
        harness.throttled(says, QueueConfig::default()).await;
        harness.enqueue_many([work(), work()]).await;
        let explained = explain(&harness).await;
        assert_eq!(held(&explained), [("throttler", Some("guard"), None, 1)], "the first runs");
        assert_eq!(harness.lease(1).await.len(), 1);
        let explained = explain(&harness).await;
        assert_eq!(explained.reason, "1 of 1 due jobs wait: one");
    }
}

#[tokio::test]
async fn a_queue_without_workers_says_so_last() {
    for mut harness in every_store_and_table() {
        harness.with_limit(1).await;
        harness.settle().await;
        harness.set_type("other", TypeConfig::default()).await;
        harness.enqueue_many([of_type("other"), work(), work()]).await;
        // No worker takes `other`, so that it reserves nothing.
        let workers = |job_type: &TypeName| {
            let known = Some(u64::from(job_type.as_str() == "work"));
            WorkerStatus { known, polling: known, ..WorkerStatus::default() }
        };
        let explained = harness.explain_queue(&workers).await;
        let wanted = [("worker", None, None, 1), ("concurrency", None, None, 1)];
        assert_eq!(held(&explained), wanted);
        assert!(explained.held[0].reason.starts_with("no worker is known"), "{explained:?}");
        let between = |_: &TypeName| WorkerStatus { polling: Some(0), ..polling() };
        let explained = harness.explain_queue(&between).await;
        let wanted = [("worker", None, None, 1), ("concurrency", None, None, 2)];
        assert_eq!(held(&explained), wanted, "the limit admits one, if its worker came");
    }
}

#[tokio::test]
async fn a_long_queue_is_examined_up_to_a_bound() {
    for mut harness in every_store_and_table() {
        harness.with_limit(0).await;
        harness.settle().await;
        harness.enqueue_many((0..1200).map(|_| work())).await;
        let explained = explain(&harness).await;
        assert_eq!((explained.examined, explained.more), (1000, true));
        assert_eq!(held(&explained), [("concurrency", None, None, 1000)]);
    }
}
