//! Every waiting job says what it waits for.

use std::time::Duration;

use tidegate_core::{
    job::{
        Job, TypeName,
        retry::{Backoff, Jitter, Retry},
        type_config::TypeConfig,
    },
    queue::{
        QueueConfig,
        config::{Constraint, Rate},
        matcher::Matcher,
        plugin::Description,
    },
    time::{Seconds, Timestamp},
};
use tidegate_engine::{
    Dispatch, TickInput,
    request::{Explanation, JobPatch, NewJob, WorkerStatus},
    testkit::{
        FnPolicy,
        builders::name,
        policies::{each, hold, run},
    },
};

use super::harness::{Harness, demand, every_store, failed, queue, report, with, work};

async fn explain(harness: &Harness, job: &Job) -> Explanation {
    harness.explain(&job.id).await
}

/// Known workers that are busy.
fn busy() -> WorkerStatus {
    let (known, in_use) = (Some(3), 2);
    WorkerStatus {
        known,
        busy: known,
        polling: Some(0),
        in_use,
        capacity: Some(2),
        ..WorkerStatus::default()
    }
}

/// No worker.
fn no_workers() -> WorkerStatus {
    WorkerStatus { known: Some(0), polling: Some(0), ..WorkerStatus::default() }
}

/// What holds `job`, its name, and the earliest it can run.
async fn held(harness: &Harness, job: &Job) -> (&'static str, Option<String>, Option<Timestamp>) {
    let explained = explain(harness, job).await;
    assert!(!explained.reason.is_empty());
    assert!(explained.since.is_some(), "{explained:?}");
    let by = explained.held_by.expect("something holds it");
    (by.kind, by.name, explained.earliest_at)
}

#[tokio::test]
async fn a_job_that_is_not_due_waits_for_its_time() {
    for harness in every_store() {
        harness.with_limit(1).await;
        let run_at = harness.now() + Duration::from_mins(1);
        let job = harness.enqueue(NewJob { run_at: Some(run_at), ..work() }).await;
        assert_eq!(held(&harness, &job).await, ("due_time", None, Some(run_at)));
    }
}

#[tokio::test]
async fn a_job_outside_its_windows_waits_for_the_next() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let window = |from: &str, to: &str| {
            serde_json::from_value(serde_json::json!({"from": from, "to": to})).unwrap()
        };
        let job = harness
            .enqueue(
                work()
                    .with_options(|options| options.windows = Some(vec![window("08:00", "09:00")])),
            )
            .await;
        let opening = harness.now() + Duration::from_hours(8);
        assert_eq!(held(&harness, &job).await, ("window", None, Some(opening)));
        harness.clock.set(opening);
        harness
            .engine
            .patch(
                &job.id,
                None,
                JobPatch {
                    windows: Some(Some(vec![window("10:00", "11:00")])),
                    ..JobPatch::default()
                },
                None,
            )
            .await
            .unwrap();
        assert!(harness.lease(1).await.is_empty());
        assert_eq!(
            held(&harness, &job).await,
            ("window", None, Some(opening + Duration::from_hours(2)))
        );
    }
}

#[tokio::test]
async fn a_failed_job_waits_for_its_retry() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let backoff = Backoff {
            base_seconds: Seconds::new(30),
            max_seconds: Seconds::new(60),
            jitter: Jitter::None,
        };
        let job = harness
            .enqueue(
                work().with_options(|options| options.retry = Some(Retry::Exponential(backoff))),
            )
            .await;
        let running = harness.lease(1).await.remove(0);
        harness
            .tick(TickInput { reports: vec![report(&running, failed())], ..TickInput::default() })
            .await;
        assert_eq!(
            held(&harness, &job).await,
            ("retry", None, Some(harness.now() + Duration::from_secs(30)))
        );
    }
}

#[tokio::test]
async fn a_paused_queue_holds_everything() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let job = harness.enqueue(work()).await;
        let since = harness.now();
        harness.engine.pause_queue(&queue(), true).await.unwrap();
        harness.lease(1).await;
        harness.wait(10);
        harness.lease(1).await;
        assert_eq!(held(&harness, &job).await, ("paused", None, None));
        assert_eq!(explain(&harness, &job).await.since, Some(since));
    }
}

#[tokio::test]
async fn limits_hold_by_name() {
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
                concurrency: Some(2),
                constraints: vec![tenant],
                ..QueueConfig::default()
            })
            .await;
        harness.set_type("work", TypeConfig::default()).await;
        harness.enqueue(with("tenant", "a")).await;
        harness.lease(5).await;
        let second = harness.enqueue(with("tenant", "a")).await;
        assert_eq!(held(&harness, &second).await, ("constraint", Some("tenant".into()), None));
        let by = explain(&harness, &second).await.held_by.unwrap();
        assert_eq!(by.value.as_deref(), Some("a"));
        harness.enqueue(with("tenant", "b")).await;
        harness.lease(5).await;
        let third = harness.enqueue(with("tenant", "c")).await;
        assert_eq!(held(&harness, &third).await, ("concurrency", None, None));
        harness.set_queue(QueueConfig::default()).await;
        harness
            .set_type("work", TypeConfig { concurrency: Some(1), ..TypeConfig::default() })
            .await;
        assert_eq!(held(&harness, &third).await, ("type_concurrency", Some("work".into()), None));
    }
}

#[tokio::test]
async fn a_rate_says_when_the_next_start_may_be() {
    for mut harness in every_store() {
        let rate = Rate { count: 1, per_seconds: Seconds::new(10), burst: None };
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
        let jobs = harness.enqueue_many([work(), work()]).await;
        harness.lease(1).await;
        let next = harness.now() + Duration::from_secs(10);
        assert_eq!(
            held(&harness, &jobs[1]).await,
            ("constraint", Some("calls".into()), Some(next))
        );
    }
}

#[tokio::test]
async fn a_job_heavier_than_its_limit_can_never_run() {
    for harness in every_store() {
        harness.with_limit(5).await;
        let job = harness.enqueue(work().with_options(|options| options.weight = Some(5))).await;
        harness.with_limit(3).await;
        let (kind, _, earliest) = held(&harness, &job).await;
        assert_eq!((kind, earliest), ("concurrency", None));
        assert!(
            explain(&harness, &job).await.reason.contains("weight 5"),
            "{:?}",
            explain(&harness, &job).await
        );
    }
}

#[tokio::test]
async fn a_job_behind_a_reservation_waits_for_its_turn() {
    for mut harness in every_store() {
        harness.with_limit(5).await;
        harness.enqueue(work()).await;
        harness.lease(1).await;
        harness.enqueue(work().with_options(|options| options.weight = Some(5))).await;
        let light = harness.enqueue(work()).await;
        assert_eq!(held(&harness, &light).await.0, "order");
    }
}

#[tokio::test]
async fn explain_names_the_partition_whose_turn_comes_first() {
    for mut harness in every_store() {
        // Whose turn comes after `b`'s, whose job runs.
        for (heavy, light, kind) in [("a", "b", "order"), ("b", "a", "worker")] {
            let partition_by = Some("tenant".to_owned());
            harness
                .set_queue(QueueConfig {
                    concurrency: Some(10),
                    partition_by,
                    ..QueueConfig::default()
                })
                .await;
            harness.set_type("work", TypeConfig::default()).await;
            harness
                .enqueue(with("tenant", "b").with_options(|options| options.weight = Some(5)))
                .await;
            let running = harness.lease(1).await;
            let heavy = harness
                .enqueue(with("tenant", heavy).with_options(|options| options.weight = Some(10)))
                .await;
            let light = harness.enqueue(with("tenant", light)).await;
            assert_eq!(held(&harness, &light).await.0, kind, "{heavy:?}");
            assert_eq!(held(&harness, &heavy).await.0, "concurrency");
            let mut leased = harness.lease(1).await;
            assert_eq!(
                leased.len(),
                usize::from(kind == "worker"),
                "the lease confirms what explain reported"
            );
            leased.extend(running);
            harness.succeed(&leased).await;
            while let Some(next) = harness.lease(1).await.pop() {
                harness.succeed(&[next]).await;
            }
        }
    }
}

#[tokio::test]
async fn a_job_that_no_worker_requests_waits_for_a_worker() {
    for harness in every_store() {
        harness.with_limit(5).await;
        let job = harness.enqueue(work()).await;
        let explained = harness.explain_with(&job.id, &|_| no_workers()).await;
        assert_eq!(explained.held_by.unwrap().kind, "worker");
        assert_eq!(explained.workers, Some(no_workers()));
        assert!(explained.reason.starts_with("no worker is known"), "{}", explained.reason);
        let status = WorkerStatus { last_seen_at: Some(harness.now()), ..busy() };
        harness.clock.advance(Duration::from_millis(300));
        let explained = harness.explain_with(&job.id, &|_| status.clone()).await;
        assert_eq!(
            explained.reason,
            "all 3 workers of its type are busy; 2 of 2 in use; last heard 0.3 s ago"
        );
        assert_eq!(explained.workers, Some(status));
    }
}

#[tokio::test]
async fn a_limit_holds_a_job_whose_workers_are_busy() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        harness.enqueue(work()).await;
        let job = harness.enqueue(work()).await;
        assert_eq!(harness.lease(1).await.len(), 1);
        let explained = harness.explain_with(&job.id, &|_| busy()).await;
        assert_eq!(explained.held_by.unwrap().kind, "concurrency", "{}", explained.reason);
        harness.set_queue(QueueConfig { concurrency: Some(0), ..QueueConfig::default() }).await;
        let explained = harness.explain_with(&job.id, &|_| busy()).await;
        assert_eq!(explained.held_by.unwrap().kind, "concurrency", "{}", explained.reason);
    }
}

#[tokio::test]
async fn a_throttler_holds_a_job_whose_workers_are_busy() {
    for harness in every_store() {
        // One job at a time, as a throttler says it.
        let policy = FnPolicy::default().throttling(|_, call| {
            let mut busy = call.running.iter().next().is_some();
            Ok(each(call, |_| if std::mem::replace(&mut busy, true) { hold("no") } else { run() }))
        });
        let mut harness = harness.with_policy(policy);
        let says = Description { state_version: 1, ..Description::default() };
        harness.throttled(says, QueueConfig::default()).await;
        harness.enqueue(work()).await;
        let job = harness.enqueue(work()).await;
        assert_eq!(harness.lease(1).await.len(), 1);
        let explained = harness.explain_with(&job.id, &|_| busy()).await;
        assert_eq!(explained.held_by.unwrap().kind, "throttler", "{}", explained.reason);
    }
}

/// Between two lease requests a worker is known and requests nothing.
#[tokio::test]
async fn between_two_polls_a_throttler_still_holds_its_jobs() {
    for harness in every_store() {
        let policy = FnPolicy::default().throttling(|_, call| {
            let is_held = |job: &Job| job.spec.attributes.contains_key("held");
            Ok(each(call, |job| if is_held(job) { hold("no") } else { run() }))
        });
        let mut harness = harness.with_policy(policy);
        let says = Description { state_version: 1, ..Description::default() };
        harness.throttled(says, QueueConfig::default()).await;
        let held = harness.enqueue(with("held", "yes")).await;
        // The worker has called, and got nothing.
        assert!(harness.lease(1).await.is_empty());
        let status = WorkerStatus {
            known: Some(1),
            polling: Some(0),
            busy: Some(0),
            last_seen_at: Some(harness.now()),
            ..WorkerStatus::default()
        };
        harness.clock.advance(Duration::from_millis(300));
        let free = harness.enqueue(work()).await;
        let workers = |_: &TypeName| status.clone();
        let explained = harness.explain_with(&held.id, &workers).await;
        let by = explained.held_by.map(|by| (by.kind, by.name));
        assert_eq!(by, Some(("throttler", Some("guard".into()))));
        assert_eq!(explained.reason, "no");
        // Only a job that the throttler runs waits for the worker.
        let explained = harness.explain_with(&free.id, &workers).await;
        assert_eq!(explained.held_by.unwrap().kind, "worker");
        let gap = "none of the 1 workers of its type requests jobs at this moment; \
                   last heard 0.3 s ago";
        assert_eq!(explained.reason, gap);
        let of_queue = harness.explain_queue(&workers).await;
        let kinds: Vec<(&str, u64)> =
            of_queue.held.iter().map(|held| (held.by.kind, held.jobs)).collect();
        assert_eq!(kinds, [("throttler", 1), ("worker", 1)]);
    }
}

#[tokio::test]
async fn a_granted_job_waits_for_its_worker_only() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let job = harness.enqueue(work()).await;
        harness
            .tick(TickInput {
                demands: vec![demand(&["work"], 1, Dispatch::Queue)],
                ..TickInput::default()
            })
            .await;
        assert_eq!(held(&harness, &job).await.0, "worker", "its own grant does not hold it");
    }
}

#[tokio::test]
async fn explain_says_a_job_beyond_one_scan_waits_for_its_turn() {
    for harness in every_store() {
        harness.with_limit(5).await;
        for _ in 0..2 {
            harness
                .enqueue_many(
                    (0..600).map(|_| work().with_options(|options| options.weight = Some(0))),
                )
                .await;
        }
        let last = harness.enqueue(work().with_options(|options| options.weight = Some(0))).await;
        assert_eq!(held(&harness, &last).await.0, "order");
    }
}

#[tokio::test]
async fn a_running_and_an_ended_job_are_held_by_nothing() {
    for mut harness in every_store() {
        harness.with_limit(5).await;
        let job = harness.enqueue(work()).await;
        let running = harness.lease(1).await;
        assert_eq!(explain(&harness, &job).await.held_by, None);
        harness.succeed(&running).await;
        let explained = explain(&harness, &job).await;
        assert_eq!((explained.state, explained.held_by), ("succeeded", None));
    }
}

#[tokio::test]
async fn explain_ignores_jobs_that_no_worker_requests() {
    for harness in every_store() {
        harness.with_limit(1).await;
        harness.set_type("unleased", TypeConfig::default()).await;
        harness.enqueue(NewJob::new(name("unleased"), work().data)).await;
        harness.wait(120);
        let job = harness.enqueue(work()).await;
        let workers = |name: &TypeName| if name.as_str() == "work" { busy() } else { no_workers() };
        let explained = harness.explain_with(&job.id, &workers).await;
        assert_eq!(explained.held_by.unwrap().kind, "worker", "{}", explained.reason);
        assert_eq!(
            held(&harness, &job).await.0,
            "concurrency",
            "without the filter, the older job would start first"
        );
    }
}
