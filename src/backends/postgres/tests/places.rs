//! Pages of due jobs start at remembered places, and find what other servers schedule.

use std::time::Duration;

use futures_util::poll;
use tokio::time::Instant;
use ulid::Ulid;

use super::server::{RUNTIME, open, settings};
use crate::postgres::{PostgresNotices, PostgresStore};
use tidegate_core::{
    job::{Event, Job, Token},
    port::{
        Notice, Notices as _,
        job_store::{DueQuery, JobStore, Write},
    },
    queue::order::Order,
    time::Seconds,
};
use tidegate_engine::testkit::builders::{at, job, name};

fn query(limit: u32) -> DueQuery {
    DueQuery {
        queue: name("mail"),
        critical: false,
        types: vec![name("x")],
        partition: None,
        order: Order::Time { step_millis: 0 },
        until: at(1_000_000),
        after: None,
        limit,
        granted: None,
    }
}

fn due_at(n: i64) -> Job {
    job(&format!("job-{n:05}")).queue("mail").of_type("x").due(n).build()
}

fn add(job: &Job) -> Vec<Write> {
    vec![Write::AddJob(job.clone())]
}

/// The claim of a job.
fn claim(job: &Job) -> Write {
    let event = Event::Claim {
        version: job.life.version,
        token: Token::new(7),
        worker: None,
        lease: Seconds::new(30).duration(),
        granted: true,
        decided_at: at(i64::MAX / 2),
    };
    let next = job.apply(event, at(2_000_000)).unwrap();
    Write::SetJob { job: next, was: job.life.revision, all: false }
}

async fn ids(store: &impl JobStore, limit: u32) -> Vec<String> {
    let page = store.due(&[query(limit)]).await.unwrap().remove(0);
    page.jobs.iter().map(|job| job.id.to_string()).collect()
}

/// Adds jobs, and lets a page learn where they begin. No look follows within an hour.
async fn learned(store: &PostgresStore) {
    store.commit((100..110).map(|n| add(&due_at(n))).collect()).await.unwrap();
    // The first page looks and reads from the front.
    for _ in 0..2 {
        assert_eq!(ids(store, 2).await, ["job-00100", "job-00101"]);
    }
    store.shared.positions.look_at(Instant::now() + Duration::from_hours(1));
}

/// Another server adds a job that is due before all others. This server's pages start behind its
/// place, and one from the front finds it.
#[test]
fn a_job_of_another_server_is_found_by_a_look_from_the_front() {
    let settings = settings();
    let (ours, other) = (open(&settings), open(&settings));
    RUNTIME.block_on(async {
        learned(&ours).await;
        other.commit(vec![add(&due_at(5))]).await.unwrap();
        assert_eq!(ids(&ours, 1).await, ["job-00100"], "its pages start at a place");
        ours.shared.positions.look_at(Instant::now());
        assert_eq!(ids(&ours, 1).await, ["job-00005"]);
        // An own commit is found at once.
        ours.commit(vec![add(&due_at(3)), vec![claim(&due_at(5))]]).await.unwrap();
        assert_eq!(ids(&ours, 1).await, ["job-00003"]);
    });
}

/// A store, and the notices of its server.
type Sharing<'a> = (&'a PostgresStore, &'a PostgresNotices);

/// Another server adds a job that is due before all that this server's pages have read, and then one of
/// a stream that they do not know. This server has the notice of each, and its next page finds the job.
async fn finds_with_notices((ours, received): Sharing<'_>, (other, sent): Sharing<'_>) {
    let mail = Notice::Queue(name("mail"));
    let drawn = |n: u128| Ulid::from_parts(0, n).to_string().to_lowercase();
    let added = |n, due| job(&drawn(n)).queue("mail").of_type("x").due(due);
    for job in [added(1, 50).build(), added(2, 40).priority(7).build()] {
        let before = ids(ours, 1).await;
        other.commit(vec![add(&job)]).await.unwrap();
        assert_eq!(ids(ours, 1).await, before, "its pages do not look");
        sent.send(&[mail.clone()].into()).await.unwrap();
        while !received.receive().await.unwrap().contains(&mail) {}
        assert_eq!(ids(ours, 1).await, [job.id.to_string()]);
    }
}

#[test]
fn a_job_of_another_server_is_found_with_its_notice() {
    let settings = settings();
    let (ours, other) = (open(&settings), open(&settings));
    let (received, sent) = (ours.notices(), other.notices());
    RUNTIME.block_on(async {
        learned(&ours).await;
        // It may not listen yet.
        let mut first = received.receive();
        while poll!(&mut first).is_pending() {
            sent.send(&[Notice::Tokens].into()).await.unwrap();
        }
        drop(first);
        finds_with_notices((&ours, &received), (&other, &sent)).await;
    });
}

#[test]
fn a_job_of_another_server_is_found_by_polling() {
    let settings = settings().without_notifications();
    let (ours, other) = (open(&settings), open(&settings));
    RUNTIME.block_on(async {
        learned(&ours).await;
        finds_with_notices((&ours, &ours.notices()), (&other, &other.notices())).await;
    });
}

/// A server looks at an idle queue, and another server adds a job of a stream that was empty then.
#[test]
fn a_job_in_an_idle_queue_is_found_without_a_notice() {
    let settings = settings();
    let (ours, other) = (open(&settings), open(&settings));
    RUNTIME.block_on(async {
        learned(&ours).await;
        let claims = (100..110).map(|n| vec![claim(&due_at(n))]).collect();
        ours.commit(claims).await.unwrap();
        ours.shared.positions.look_at(Instant::now());
        assert!(ids(&ours, 1).await.is_empty(), "the queue is idle");
        ours.shared.positions.look_at(Instant::now() + Duration::from_hours(1));
        other.commit(vec![add(&due_at(200))]).await.unwrap();
        assert_eq!(ids(&ours, 1).await, ["job-00200"]);
    });
}

/// While an old transaction is open, the front of the index may take longer than a statement may.
/// Here a view sleeps on a row there.
#[test]
fn a_page_goes_on_while_the_front_cannot_be_read() {
    let settings = settings();
    let (ours, other) = (open(&settings), open(&settings));
    RUNTIME.block_on(async {
        learned(&ours).await;
        other.commit(vec![add(&due_at(1))]).await.unwrap();
        let link = ours.readers.link().await.unwrap();
        let schema = &settings.schema;
        let slow = format!(
            "CREATE SCHEMA {schema}_slow; CREATE VIEW {schema}_slow.jobs AS SELECT * FROM jobs \
             WHERE run_at IS DISTINCT FROM 1 OR pg_sleep(60) IS NULL; \
             SET search_path = {schema}_slow, {schema}; SET statement_timeout = '500ms'"
        );
        link.client.batch_execute(&slow).await.unwrap();
        drop(link);
        ours.shared.positions.look_at(Instant::now());
        for _ in 0..3 {
            assert_eq!(ids(&ours, 1).await, ["job-00100"]);
        }
        let link = ours.readers.link().await.unwrap();
        let fast = format!("SET search_path = {schema}; SET statement_timeout = '5s'");
        link.client.batch_execute(&fast).await.unwrap();
        drop(link);
        assert_eq!(ids(&ours, 1).await, ["job-00100"], "the next look comes later");
        ours.shared.positions.look_at(Instant::now());
        assert_eq!(ids(&ours, 1).await, ["job-00001"]);
    });
}

/// Jobs that must be checked are read from a place, too.
#[test]
fn overdue_jobs_of_another_server_are_found_by_a_look() {
    let settings = settings();
    let (ours, other) = (open(&settings), open(&settings));
    let overdue = async |store: &PostgresStore| {
        let page = store.overdue(at(100_000_000), None, 1).await.unwrap();
        page.jobs.iter().map(|job| job.id.to_string()).collect::<Vec<_>>()
    };
    let expires = |id: &str, at| job(id).queue("mail").of_type("x").expires(at).build();
    RUNTIME.block_on(async {
        ours.commit(vec![add(&expires("late", 5000))]).await.unwrap();
        for _ in 0..2 {
            assert_eq!(overdue(&ours).await, ["late"]);
        }
        ours.shared.positions.look_at(Instant::now() + Duration::from_hours(1));
        other.commit(vec![add(&expires("early", 1000))]).await.unwrap();
        assert_eq!(overdue(&ours).await, ["late"], "its pages start at a place");
        ours.commit(vec![add(&expires("earlier", 900))]).await.unwrap();
        assert_eq!(overdue(&ours).await, ["earlier"], "an own commit is found at once");
        ours.shared.positions.look_at(Instant::now());
        let page = ours.overdue(at(100_000_000), None, 9).await.unwrap();
        let found: Vec<&str> = page.jobs.iter().map(|job| job.id.as_str()).collect();
        assert_eq!(found, ["earlier", "early", "late"]);
    });
}
