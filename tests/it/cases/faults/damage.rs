//! Damaged records and stale caches affect no other job.

use std::{sync::Arc, time::Duration};

use tidegate_backends::sqlite::{SqliteStore, database};
use tidegate_core::{
    job::{Payload, type_config::TypeConfig},
    port::job_store::ListQuery,
    queue::QueueConfig,
};
use tidegate_engine::{
    Error, TickCache, TickInput,
    request::{NewJob, ReportOutcome},
};

use crate::cases::harness::{Harness, every_store, queue, report, work};

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
        assert!(
            harness.engine.job(&jobs[0].id, None).await.is_err(),
            "a read of the damaged job fails"
        );
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
    let loaded = harness.engine.load_each(found.into_iter().flatten().flatten().collect()).await;
    assert!(matches!(&loaded[1], Err(Error::Unreadable(_))), "{:?}", loaded[1]);
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
