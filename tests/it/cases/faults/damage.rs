//! Damaged records and stale caches affect no other job.

use std::{path::Path, sync::Arc, time::Duration};

use tidegate_backends::sqlite::{SqliteStore, database, repair};
use tidegate_core::{
    job::{Job, Outcome, Payload, type_config::TypeConfig},
    port::job_store::ListQuery,
    queue::{QueueConfig, config::Constraint, matcher::Matcher},
    time::Timestamp,
};
use tidegate_engine::{
    Error, TickCache, TickInput,
    request::{NewJob, ReportOutcome},
};

use super::once;
use crate::cases::harness::{Harness, every_store, polling, queue, report, with, work};

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
        let until = harness.now() + Duration::from_secs(61);
        let overdue = harness.store.overdue(until, None, 10).await.unwrap().jobs;
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
async fn a_damaged_ledger_holds_its_queue_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut harness = Harness::on(Arc::new(SqliteStore::open(dir.path()).unwrap()));
    let constraint = Constraint {
        name: "c".into(),
        matcher: Matcher::default(),
        per: None,
        concurrency: Some(3),
        rate: None,
    };
    let limits = QueueConfig {
        concurrency: Some(5),
        constraints: vec![constraint],
        ..QueueConfig::default()
    };
    harness.set_queue(limits).await;
    harness.set_type("work", TypeConfig::default()).await;
    let jobs = harness.enqueue_many([work(), work()]).await;
    harness.lease(1).await;
    let db = rusqlite::Connection::open(database(dir.path())).unwrap();
    assert_eq!(db.execute("UPDATE heads SET head = x'0155aa'", []).unwrap(), 1);
    let explained = harness.explain(&jobs[1].id).await;
    assert_eq!(explained.held_by.unwrap().kind, "ledger");
    assert!(explained.reason.contains("cannot be read"), "{}", explained.reason);
    let explained = harness.explain_queue(&|_| polling()).await;
    assert_eq!((explained.held[0].by.kind, explained.held[0].jobs), ("ledger", 1));
    assert!(harness.engine.constraints_in_use(&queue()).await.unwrap().is_empty());
    // Its configuration can be changed.
    harness.set_queue(QueueConfig { concurrency: Some(7), ..QueueConfig::default() }).await;
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

/// Jobs that cannot be read, more than one read skips.
const MANY: usize = 2500;

/// A harness with many jobs that cannot be read, and one that is due after them.
async fn behind_unreadable(dir: &Path, config: QueueConfig, job: &NewJob) -> (Harness, Job) {
    let harness = Harness::on(Arc::new(SqliteStore::open(dir).unwrap()));
    harness.set_queue(config).await;
    harness.set_type("work", TypeConfig::default()).await;
    harness.enqueue_many((0..MANY).map(|_| job.clone())).await;
    let damage = "UPDATE jobs SET life = x'0155aa'";
    let db = rusqlite::Connection::open(database(dir)).unwrap();
    assert_eq!(db.execute(damage, []).unwrap(), MANY);
    harness.wait(1);
    let expires_at = job.expires_at.map(|at| at + Duration::from_secs(1));
    let last = harness.enqueue(NewJob { expires_at, ..job.clone() }).await;
    (harness, last)
}

#[tokio::test]
async fn a_job_behind_many_unreadable_ones_starts() {
    let queues = [(None, None), (Some(5), None), (Some(5), Some("tenant")), (None, Some("tenant"))];
    for (concurrency, partition_by) in queues {
        for critical in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let partition_by = partition_by.map(str::to_owned);
            let config = QueueConfig { concurrency, partition_by, ..QueueConfig::default() };
            let mut job = with("tenant", "a");
            job.options.critical = critical;
            let (mut harness, last) = behind_unreadable(dir.path(), config, &job).await;
            let mut leased = Vec::new();
            for _ in 0..10 {
                leased.extend(harness.lease(1).await);
            }
            assert_eq!(leased.iter().map(|job| &job.id).collect::<Vec<_>>(), [&last.id]);
        }
    }
}

#[tokio::test]
async fn a_job_behind_many_unreadable_ones_expires() {
    let dir = tempfile::tempdir().unwrap();
    let job = NewJob { expires_at: Some(Timestamp::from_millis(60_000)), ..work() };
    let (harness, last) = behind_unreadable(dir.path(), QueueConfig::default(), &job).await;
    harness.clock.set(Timestamp::from_millis(120_000));
    let mut sweeps = 0;
    while harness.engine.sweep().await.unwrap().next_at == Some(harness.now()) {
        sweeps += 1;
        assert!(sweeps < 100, "the sweeps come to an end");
    }
    assert_eq!(harness.job(&last.id).await.life.ended(), Some(Outcome::Expired));
}

#[tokio::test]
async fn a_partition_that_is_no_text_holds_its_job_alone() {
    for partition_by in [None, Some("tenant")] {
        let dir = tempfile::tempdir().unwrap();
        let mut harness = Harness::on(Arc::new(SqliteStore::open(dir.path()).unwrap()));
        let partition_by = partition_by.map(str::to_owned);
        harness.set_queue(QueueConfig { partition_by, ..QueueConfig::default() }).await;
        harness.set_type("work", TypeConfig::default()).await;
        let jobs = harness.enqueue_many(["a", "b", "c"].map(|value| with("tenant", value))).await;
        let db = rusqlite::Connection::open(database(dir.path())).unwrap();
        let damage = "UPDATE jobs SET partition = CAST(x'ff61' AS TEXT) WHERE id = ?1";
        assert_eq!(db.execute(damage, [jobs[1].id.as_str()]).unwrap(), 1);
        let mut leased = Vec::new();
        for _ in 0..4 {
            leased.extend(harness.lease(1).await.into_iter().map(|job| job.id));
        }
        for job in [&jobs[0], &jobs[2]] {
            assert!(leased.contains(&job.id), "{leased:?}");
        }
        drop((harness, db));
        let repaired = repair(dir.path(), &dir.path().join("aside")).unwrap();
        assert_eq!((repaired.left, repaired.removed), (Vec::new(), false));
        let mut harness = Harness::on(Arc::new(SqliteStore::open(dir.path()).unwrap()));
        leased.extend(harness.lease(3).await.into_iter().map(|job| job.id));
        assert!(leased.contains(&jobs[1].id), "it starts after its repair");
    }
}

#[tokio::test]
async fn a_repair_lets_no_at_most_once_job_run_twice() {
    let changes = ["bytes = zeroblob(9)", "kind = 'uype'", "name = 'wosk'"];
    for (limit, damage) in [Some(5), None].into_iter().flat_map(|limit| changes.map(|c| (limit, c)))
    {
        let dir = tempfile::tempdir().unwrap();
        let mut harness = Harness::on(Arc::new(SqliteStore::open(dir.path()).unwrap()));
        harness.set_queue(QueueConfig { concurrency: limit, ..QueueConfig::default() }).await;
        harness.set_type("work", once()).await;
        let job = harness.enqueue(work()).await;
        assert_eq!(harness.lease(1).await.len(), 1);
        drop(harness);
        let db = rusqlite::Connection::open(database(dir.path())).unwrap();
        let sql = format!("UPDATE items SET {damage} WHERE kind = 'type'");
        assert_eq!(db.execute(&sql, []).unwrap(), 1);
        drop(db);
        let repaired = repair(dir.path(), &dir.path().join("aside")).unwrap();
        assert_eq!(repaired.left, [], "{damage}");
        assert!(repaired.done.iter().any(|line| line.contains("wait: set it again")));
        let mut harness = Harness::on(Arc::new(SqliteStore::open(dir.path()).unwrap()));
        harness.rules(|rules| rules.create_unknown_types = true);
        let refused = harness.engine.enqueue(vec![work()]).await.remove(0);
        let Err(Error::Unavailable { message, .. }) = refused else { panic!("{refused:?}") };
        assert!(message.contains("set the type again"), "{message}");
        harness.wait(3600);
        for _ in 0..3 {
            harness.engine.sweep().await.unwrap();
            assert!(harness.lease(5).await.is_empty(), "{damage}");
            harness.wait(61);
        }
        let job = harness.job(&job.id).await;
        assert!(job.life.running().is_some() && job.life.attempt == 1, "{damage}: {job:?}");
    }
}
