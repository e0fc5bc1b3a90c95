//! Lost, late and duplicate hints and work messages.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_backends::sqlite::SqliteStore;
use tidegate_core::{
    job::type_config::TypeConfig,
    target::{Push, TargetConfig},
    time::Seconds,
};
use tidegate_engine::{Dispatch, TickInput, request::JobPatch};

use super::once;
use crate::cases::harness::{Harness, demand, every_store, work};

/// Work is sent for the jobs of pushed types only.
fn target() -> TargetConfig {
    TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:1/")))
}

#[tokio::test]
async fn a_lost_hint_delays_a_limited_queue_by_a_minute_at_most() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        harness
            .set_type(
                "work",
                TypeConfig { lease_seconds: Seconds::new(3600), ..TypeConfig::default() },
            )
            .await;
        let first = harness.enqueue(work()).await;
        harness.enqueue(work()).await;
        assert_eq!(harness.lease(1).await[0].id, first.id);
        // Another process ends the job; its hint to this queue's ticks is lost.
        harness.engine.cancel(&first.id, None, true).await.unwrap();
        assert!(harness.lease(1).await.is_empty(), "no tick knows of the cancel yet");
        let began = harness.now();
        loop {
            let next =
                harness.tick(TickInput::default()).await.next_at.expect("the audit is planned");
            harness.clock.set(next.max(harness.now() + Duration::from_millis(1)));
            if !harness.lease(1).await.is_empty() {
                break;
            }
        }
        assert!(
            harness.now().since(began) <= Duration::from_secs(61),
            "took {:?}",
            harness.now().since(began)
        );
    }
}

#[tokio::test]
async fn lost_work_is_sent_again_and_uses_up_no_attempt() {
    for config in [TypeConfig::default(), once()] {
        for mut harness in every_store() {
            harness.with_limit(1).await;
            harness.set_type("work", TypeConfig { target: Some(target()), ..config.clone() }).await;
            let job = harness.enqueue(work()).await;
            let mut sent = 0;
            for _ in 0..200 {
                // Every message is lost.
                sent += harness.send(1).await.len();
                harness.wait(3);
            }
            // At once, and after 6, 12, 24, 48, 96, 192 and 384 s.
            assert_eq!(sent, 8);
            let there = harness.job(&job.id).await;
            assert_eq!((there.life.attempt, there.life.history.len()), (0, 0));
            let work = loop {
                harness.wait(60);
                let work = harness.send(1).await;
                if !work.is_empty() {
                    break work;
                }
            };
            let claimed = harness.engine.claim(&work, None).await.unwrap();
            assert_eq!(claimed[0].as_ref().expect("the grant is still valid").job.life.attempt, 1);
        }
    }
}

#[tokio::test]
async fn late_work_starts_under_its_first_grant() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        harness
            .set_type("work", TypeConfig { target: Some(target()), ..TypeConfig::default() })
            .await;
        let job = harness.enqueue(work()).await;
        let first = harness.send(1).await;
        let mut again = 0;
        for _ in 0..60 {
            harness.wait(60);
            again += harness.send(1).await.len();
        }
        // Most of them: 768 + 600 n seconds after the grant.
        assert!((8..=13).contains(&again), "{again}");
        let started = harness.engine.claim(&first, None).await.unwrap();
        assert_eq!(started[0].as_ref().expect("the grant is valid").job.life.attempt, 1);
        assert_eq!(harness.job(&job.id).await.life.version, first[0].version);
    }
}

#[tokio::test]
async fn work_that_is_a_day_late_has_a_new_grant() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let job = harness.enqueue(work()).await;
        let first = harness.send(1).await;
        for _ in 0..4 {
            harness.wait(12 * 3600);
            harness.send(1).await;
        }
        assert!(harness.job(&job.id).await.life.version > first[0].version);
        assert!(harness.engine.claim(&first, None).await.unwrap()[0].is_none());
    }
}

#[tokio::test]
async fn a_message_that_comes_twice_starts_one_attempt() {
    for mut harness in every_store() {
        harness.with_limit(2).await;
        harness.enqueue(work()).await;
        let work = harness.send(1).await;
        let twice: Vec<_> = work.iter().chain(&work).cloned().collect();
        let started = harness.engine.claim(&twice, None).await.unwrap();
        assert_eq!(started.iter().flatten().count(), 1);
        assert!(harness.engine.claim(&work, None).await.unwrap()[0].is_none());
    }
}

#[tokio::test]
async fn an_old_grant_does_not_start_a_changed_job() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let job = harness.enqueue(work()).await;
        let old = harness.send(1).await;
        let (_, patched) = harness
            .engine
            .patch(&job.id, None, JobPatch { priority: Some(Some(1)), ..JobPatch::default() }, None)
            .await
            .unwrap();
        assert!(harness.engine.claim(&old, None).await.unwrap()[0].is_none(), "the grant is void");
        let hint = (job.id.clone(), old[0].version);
        let outcome = harness
            .tick(TickInput {
                released: vec![hint],
                demands: vec![demand(&["work"], 1, Dispatch::Queue)],
                ..TickInput::default()
            })
            .await;
        assert_eq!(outcome.sent, 1, "the same tick grants it again at its new version");
        assert_eq!(harness.granted().await, 1);
        let there = harness.job(&job.id).await;
        assert_eq!((there.life.version, there.life.attempt), (patched.life.version, 0));
    }
}

#[tokio::test]
async fn a_changed_job_gets_a_new_grant_though_its_hint_is_lost() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let job = harness.enqueue(work()).await;
        let old = harness.send(1).await;
        harness
            .engine
            .patch(&job.id, None, JobPatch { priority: Some(Some(1)), ..JobPatch::default() }, None)
            .await
            .unwrap();
        let mut sent = Vec::new();
        for _ in 0..3 {
            sent.extend(harness.send(1).await);
            harness.wait(7);
        }
        assert!(sent.iter().any(|work| work.version > old[0].version), "{sent:?}");
    }
}

#[tokio::test]
async fn a_job_cancelled_between_grant_and_claim_never_starts() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let job = harness.enqueue(work()).await;
        let work = harness.send(1).await;
        let (_, cancelled) = harness.engine.cancel(&job.id, None, false).await.unwrap();
        assert!(cancelled.ended);
        assert!(harness.engine.claim(&work, None).await.unwrap()[0].is_none());
        harness.wait(7);
        harness.send(1).await;
        assert_eq!(harness.granted().await, 0);
        assert_eq!(harness.job(&job.id).await.life.attempt, 0);
    }
}

/// Real threads on a real file: what the simulation does one step at a time happens at once here.
#[test]
fn engines_that_tick_at_once_never_exceed_the_limit() {
    const JOBS: usize = 300;
    const LIMIT: u64 = 3;
    let dir = tempfile::tempdir().unwrap();
    let harness = Harness::on(Arc::new(SqliteStore::open(dir.path()).unwrap()));
    let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime().block_on(async {
        harness.with_limit(LIMIT as u32).await;
        harness.enqueue_many((0..JOBS).map(|_| work())).await;
    });
    let (running, most, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|threads| {
        for _ in 0..4 {
            let mut harness = Harness::on(Arc::clone(&harness.store));
            let (running, most, done) = (&running, &most, &done);
            threads.spawn(move || {
                runtime().block_on(async {
                    while done.load(Ordering::SeqCst) < JOBS as u64 {
                        let jobs = harness.lease(2).await;
                        most.fetch_max(
                            running.fetch_add(jobs.len() as u64, Ordering::SeqCst)
                                + jobs.len() as u64,
                            Ordering::SeqCst,
                        );
                        std::thread::yield_now();
                        running.fetch_sub(jobs.len() as u64, Ordering::SeqCst);
                        done.fetch_add(harness.succeed(&jobs).await.len() as u64, Ordering::SeqCst);
                    }
                });
            });
        }
    });
    assert_eq!(done.load(Ordering::SeqCst), JOBS as u64, "each ran once");
    assert!(
        (1..=LIMIT).contains(&most.load(Ordering::SeqCst)),
        "at most {LIMIT} at once: {most:?}"
    );
}

#[tokio::test]
async fn a_new_process_leaves_fresh_grants_to_their_recipients() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        harness.enqueue(work()).await;
        let sent = harness.send(1).await;
        for _ in 0..5 {
            harness.restart();
            assert!(
                harness.send(1).await.is_empty(),
                "it is not sent again before its time to be claimed is over"
            );
        }
        assert!(harness.engine.claim(&sent, None).await.unwrap()[0].is_some(), "and not revoked");
    }
}
