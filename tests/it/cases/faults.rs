//! Lost, late and duplicate messages, and crashes: limits hold, and no job is lost or run twice.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_backends::sqlite::{SqliteStore, database};
use tidegate_core::{
    job::{
        Outcome, Payload, State,
        lifecycle::Reason,
        type_config::{Delivery, TypeConfig},
    },
    port::job_store::{ListQuery, SharedStore},
    queue::QueueConfig,
    time::Seconds,
};
use tidegate_engine::{
    Dispatch, Error, TickCache, TickInput,
    memory::MemoryStore,
    request::{Heartbeat, JobPatch, NewJob, ReportOutcome},
    testkit::faults::FaultyStore,
};

use super::harness::{Harness, demand, every_store, failed, queue, report, work};

fn once() -> TypeConfig {
    TypeConfig { delivery: Delivery::AtMostOnce, ..TypeConfig::default() }
}

#[tokio::test]
async fn an_at_most_once_job_lost_before_its_send_never_starts_twice() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        harness.set_type("work", once()).await;
        let job = harness.enqueue(work()).await;
        assert_eq!(harness.lease(1).await.len(), 1, "it is claimed; and now the process dies");
        harness.restart();
        assert!(harness.lease(1).await.is_empty());
        harness.wait(31);
        assert!(
            harness.lease(1).await.is_empty(),
            "its lease is over, and it is not started again"
        );
        let job = harness.job(&job.id).await;
        assert_eq!(job.life.ended(), Some(Outcome::Failed));
        assert_eq!(job.life.error.as_ref().unwrap().reason, Reason::OutcomeUnknown);
        assert_eq!(job.life.attempt, 1);
        assert_eq!(harness.granted().await, 0, "its slot is free");
    }
}

#[tokio::test]
async fn a_type_turned_at_most_once_starts_no_waiting_retry() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let job = harness.enqueue(work()).await;
        let run = harness.lease(1).await.remove(0);
        harness
            .tick(TickInput { reports: vec![report(&run, failed())], ..TickInput::default() })
            .await;
        harness.set_type("work", once()).await;
        harness.wait(10);
        assert!(harness.lease(1).await.is_empty());
        let job = harness.job(&job.id).await;
        assert_eq!(
            (job.life.ended(), job.life.error.unwrap().reason),
            (Some(Outcome::Failed), Reason::OutcomeUnknown)
        );
    }
}

#[tokio::test]
async fn an_at_most_once_job_without_a_head_ends_unknown_too() {
    for mut harness in every_store() {
        harness.set_type("work", once()).await;
        let job = harness.enqueue(work()).await;
        assert_eq!(harness.lease(1).await.len(), 1);
        harness.restart();
        harness.wait(31);
        harness.engine.sweep().await.unwrap();
        assert!(harness.lease(1).await.is_empty());
        let job = harness.job(&job.id).await;
        assert_eq!(job.life.error.unwrap().reason, Reason::OutcomeUnknown);
    }
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
        assert!(harness.lease(1).await.is_empty(), "nobody knows yet");
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
async fn an_unclaimed_grant_uses_up_no_attempt() {
    for config in [TypeConfig::default(), once()] {
        for mut harness in every_store() {
            harness.with_limit(1).await;
            harness.set_type("work", config.clone()).await;
            let job = harness.enqueue(work()).await;
            let mut sent = 0;
            for _ in 0..20 {
                // Every message is lost.
                sent += harness.send(1).await.len();
                harness.wait(7);
            }
            assert!(sent >= 6, "it was sent again and again, and granted anew: {sent}");
            let there = harness.job(&job.id).await;
            assert_eq!((there.life.attempt, there.life.history.len()), (0, 0));
            assert!(there.life.version.0 > 1, "its unclaimed grants were revoked");
            let work = harness.send(1).await;
            let work = if work.is_empty() {
                harness.wait(7);
                harness.send(1).await
            } else {
                work
            };
            let claimed = harness.engine.claim(&work, None).await.unwrap();
            assert_eq!(claimed[0].as_ref().expect("the grant stands").job.life.attempt, 1);
        }
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
            .patch(&job.id, None, JobPatch { priority: Some(1), ..JobPatch::default() }, None)
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
        assert_eq!(outcome.sent, 1, "it is granted anew at its new version, in the same round");
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
            .patch(&job.id, None, JobPatch { priority: Some(1), ..JobPatch::default() }, None)
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

#[tokio::test]
async fn a_repeated_report_is_harmless_and_a_late_one_refused() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        harness.enqueue(work()).await;
        let first = harness.lease(1).await.remove(0);
        let again = harness.succeed(std::slice::from_ref(&first)).await;
        assert_eq!(again[0].life.ended(), Some(Outcome::Succeeded));
        assert_eq!(harness.succeed(std::slice::from_ref(&first)).await[0].life, again[0].life);
        let late = report(&first, failed());
        let outcome = harness.tick(TickInput { reports: vec![late], ..TickInput::default() }).await;
        assert!(outcome.reports[0].is_err());
    }
}

#[tokio::test]
async fn a_report_that_comes_again_is_answered_and_counts_for_nothing() {
    for limited in [true, false] {
        for mut harness in every_store() {
            if limited {
                harness.with_limit(1).await;
            } else {
                harness.set_type("work", TypeConfig::default()).await;
            }
            harness.enqueue(work()).await;
            let run = harness.lease(1).await.remove(0);
            let done = || report(&run, ReportOutcome::Succeeded { result: None });
            // Twice at once, and then once more.
            let outcome = harness
                .tick(TickInput { reports: vec![done(), done()], ..TickInput::default() })
                .await;
            assert!(outcome.reports.iter().all(Result::is_ok), "{:?}", outcome.reports);
            assert_eq!(outcome.settled().map(|job| &job.id).collect::<Vec<_>>(), [&run.id]);
            let outcome =
                harness.tick(TickInput { reports: vec![done()], ..TickInput::default() }).await;
            assert!(outcome.reports[0].is_ok());
            assert_eq!((outcome.settled().count(), outcome.repeated.contains(&0)), (0, true));
        }
    }
}

#[tokio::test]
async fn a_damaged_job_is_skipped_and_delays_no_other() {
    for limit in [Some(5), None] {
        let dir = tempfile::tempdir().unwrap();
        let mut harness = Harness::on(Arc::new(SqliteStore::open(dir.path()).unwrap()));
        harness.set_queue(QueueConfig { concurrency: limit, ..QueueConfig::default() }).await;
        harness.set_type("work", TypeConfig::default()).await;
        let expires_at = Some(harness.now() + Duration::from_mins(1));
        let jobs = harness.enqueue_many((0..3).map(|_| NewJob { expires_at, ..work() })).await;
        let db = rusqlite::Connection::open(database(dir.path())).unwrap();
        db.execute("UPDATE jobs SET life = x'0155aa' WHERE id = ?1", [jobs[0].id.as_str()])
            .unwrap();
        let (overdue, _) =
            harness.store.overdue(harness.now() + Duration::from_secs(61), 10).await.unwrap();
        assert_eq!(
            overdue.iter().map(|job| &job.id).collect::<Vec<_>>(),
            [&jobs[1].id, &jobs[2].id]
        );
        // With the smallest demand.
        for job in &jobs[1..] {
            assert_eq!(
                harness.lease(1).await.iter().map(|leased| &leased.id).collect::<Vec<_>>(),
                [&job.id]
            );
        }
        assert!(harness.lease(1).await.is_empty());
        assert!(harness.engine.job(&jobs[0].id, None).await.is_err(), "who asks for it is told");
        let all = ListQuery { limit: 1, ..ListQuery::default() };
        let first = harness.store.list(&all).await.unwrap();
        let next = harness
            .store
            .list(&ListQuery { cursor: first.next_cursor.clone(), ..all.clone() })
            .await
            .unwrap();
        let ids: Vec<_> = first.jobs.iter().chain(&next.jobs).map(|job| &job.id).collect();
        assert_eq!(ids, [&jobs[2].id, &jobs[1].id]);
    }
}

#[tokio::test]
async fn a_damaged_body_affects_no_other_job() {
    let dir = tempfile::tempdir().unwrap();
    let harness = Harness::on(Arc::new(SqliteStore::open(dir.path()).unwrap()));
    harness.set_type("work", TypeConfig::default()).await;
    let large = Payload::json(format!("\"{}\"", "x".repeat(50_000)));
    let jobs = harness.enqueue_many((0..3).map(|_| NewJob { data: large.clone(), ..work() })).await;
    // The table accepts only bytes. Without that rule it accepts what a damaged page may contain.
    let open = || rusqlite::Connection::open(database(dir.path())).unwrap();
    let ordinary = "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(sql, 'STRICT', '') WHERE name = 'bodies'";
    open().execute_batch(ordinary).unwrap();
    let damage =
        "UPDATE bodies SET bytes = 'no bytes' WHERE job = (SELECT n FROM jobs WHERE id = ?1)";
    assert_eq!(open().execute(damage, [jobs[1].id.as_str()]).unwrap(), 1);
    let found = harness
        .store
        .get(&jobs.iter().map(|job| job.id.clone()).collect::<Vec<_>>())
        .await
        .unwrap();
    let loaded = harness.engine.load_each(found.into_iter().flatten().collect()).await;
    assert!(matches!(&loaded[1], Err(Error::Internal(_))), "{:?}", loaded[1]);
    for loaded in [&loaded[0], &loaded[2]] {
        assert_eq!(loaded.as_ref().unwrap().data.inline(), Some(&large));
    }
}

#[tokio::test]
async fn an_engine_with_a_stale_job_accepts_the_current_report() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let job = harness.enqueue(work()).await;
        let first = harness.lease(1).await.remove(0);
        let (older, mut cache) = (
            std::mem::replace(&mut harness.engine, Harness::on(Arc::clone(&harness.store)).engine),
            TickCache::default(),
        );
        // The harness has a new engine with its own clock; only the store matters.
        harness.restart();
        harness.wait(31);
        harness.lease(1).await;
        harness.wait(10);
        let second = harness.lease(1).await.remove(0);
        assert_eq!((&second.id, second.life.attempt), (&job.id, first.life.attempt + 1));
        let reports = vec![report(&second, ReportOutcome::Succeeded { result: None })];
        let outcome = older
            .tick(&queue(), &mut cache, TickInput { reports, ..TickInput::default() })
            .await
            .unwrap();
        assert!(outcome.reports[0].is_ok(), "{:?}", outcome.reports[0]);
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
async fn a_queue_created_again_after_its_deletion_works() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        for _ in 0..5 {
            harness.set_queue(QueueConfig { concurrency: Some(2), ..QueueConfig::default() }).await;
        }
        harness.engine.delete_queue(&queue(), None).await.unwrap();
        harness.enqueue(work()).await;
        let job = harness.lease(1).await;
        assert_eq!(job.len(), 1, "the default queue needs no configuration");
        harness.succeed(&job).await;
        harness.set_queue(QueueConfig { concurrency: Some(1), ..QueueConfig::default() }).await;
        harness.enqueue_many([work(), work()]).await;
        harness.restart();
        assert_eq!(harness.lease(2).await.len(), 1, "and a limit set again is kept");
    }
}

#[tokio::test]
async fn a_worker_slower_than_its_lease_has_its_report_refused() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let job = harness.enqueue(work()).await;
        let slow = harness.lease(1).await.remove(0);
        harness.wait(31);
        harness.lease(1).await;
        assert!(matches!(harness.job(&job.id).await.life.state, State::Scheduled { .. }));
        harness.wait(10);
        let second = harness.lease(1).await.remove(0);
        assert_eq!(second.life.attempt, 2);
        let outcome = harness
            .tick(TickInput {
                reports: vec![report(&slow, ReportOutcome::Succeeded { result: None })],
                ..TickInput::default()
            })
            .await;
        assert!(outcome.reports[0].is_err());
        assert_eq!(harness.succeed(&[second]).await[0].life.ended(), Some(Outcome::Succeeded));
    }
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

/// A harness in which another process has changed one of two running jobs.
async fn two_run_and_one_has_changed(harness: &mut Harness) -> Vec<tidegate_core::job::Job> {
    harness.enqueue_many([work(), work()]).await;
    let run = harness.lease(2).await;
    let other = Harness::on(Arc::clone(&harness.store));
    let token = run[0].life.running().map(|run| run.token);
    let (id, attempt) = (run[0].id.clone(), run[0].life.attempt);
    let beat =
        Heartbeat { id, job_type: None, attempt, token, lease_seconds: None, progress: None };
    other.engine.heartbeat(beat).await.unwrap();
    run
}

#[tokio::test]
async fn a_report_next_to_a_conflicting_one_gets_its_own_outcome() {
    for mut harness in every_store() {
        harness
            .set_type(
                "work",
                TypeConfig { retention_seconds: Seconds::new(0), ..TypeConfig::default() },
            )
            .await;
        let run = two_run_and_one_has_changed(&mut harness).await;
        for answered in harness.succeed(&run).await {
            assert_eq!(
                answered.life.ended(),
                Some(Outcome::Succeeded),
                "removed with its end, which is no reason to say it is unknown"
            );
        }
    }
}

#[tokio::test]
async fn claimed_jobs_are_delivered_though_a_report_was_not_settled() {
    let store =
        Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), 1).with_flight(Duration::ZERO));
    let mut harness = Harness::on(Arc::clone(&store) as SharedStore);
    harness.set_type("work", TypeConfig::default()).await;
    let run = two_run_and_one_has_changed(&mut harness).await;
    let waiting = harness.enqueue(work()).await;
    // The process lives until the first commit: one refused report, and a claim.
    store.crash_after(3);
    let reports = vec![report(&run[0], ReportOutcome::Succeeded { result: None })];
    let outcome = harness
        .tick(TickInput {
            reports,
            demands: vec![demand(&["work"], 1, Dispatch::Claim)],
            ..TickInput::default()
        })
        .await;
    assert_eq!(outcome.claimed[0].job.id, waiting.id);
    assert!(
        matches!(outcome.reports[0], Err(Error::Unavailable { .. })),
        "{:?}",
        outcome.reports[0]
    );
}
