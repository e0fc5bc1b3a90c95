//! Objects that no job names are deleted by a pass over all objects, and no others.

use std::sync::Arc;

use futures_util::StreamExt;
use object_store::{ObjectStoreExt, local::LocalFileSystem, memory::InMemory, path::Path};
use tidegate_core::{
    job::{Body, Job, Payload, spec::KeepResult, type_config::TypeConfig},
    port::job_store::{Expect, Key, Write},
    time::Seconds,
};
use tidegate_engine::{
    Engine, Error, OBJECT_BYTES, Ports, Rules, SweptObjects,
    request::{NewJob, ReportOutcome},
    testkit::{
        builders::name,
        objects::{FaultyObjects, ObjectRequest},
    },
};

use super::harness::{Harness, every_store_and_table, report, work};

const DAY: u64 = 86_400;

fn large() -> Payload {
    Payload::json(format!("\"{}\"", "x".repeat(OBJECT_BYTES)))
}

fn carrying(data: Payload) -> NewJob {
    NewJob { data, ..work() }
}

async fn keys(harness: &Harness) -> Vec<String> {
    let listed = harness.engine.ports().objects.list(None);
    let mut keys: Vec<String> =
        listed.map(|object| object.unwrap().location.to_string()).collect().await;
    keys.sort_unstable();
    keys
}

async fn swept(harness: &Harness) -> SweptObjects {
    harness.engine.sweep_objects(harness.engine.now()).await.unwrap()
}

fn found(listed: usize, deleted: usize) -> SweptObjects {
    SweptObjects { listed, deleted, failed: 0 }
}

/// A large result as an object of `job`, which no commit follows.
async fn stored_for(harness: &Harness, job: &Job) -> String {
    let outcome = ReportOutcome::Succeeded { result: Some(Body::Inline(large())) };
    let report = harness.engine.prepare_report(report(job, outcome)).await.unwrap();
    let ReportOutcome::Succeeded { result: Some(Body::Object { key, .. }) } = report.outcome else {
        panic!("it is an object")
    };
    key
}

#[tokio::test]
async fn an_object_that_no_job_names_goes_after_a_day() {
    for mut harness in every_store_and_table() {
        let (retention_seconds, keep_result) =
            (Seconds::new(90 * DAY), KeepResult::For(Seconds::new(90 * DAY)));
        let config = TypeConfig { retention_seconds, keep_result, ..TypeConfig::default() };
        harness.set_type("work", config).await;
        let named = harness.enqueue(NewJob { id: Some(name("a-b:c.")), ..carrying(large()) }).await;
        harness.enqueue(carrying(large())).await;
        let run = harness.lease(2).await;
        let second = stored_for(&harness, &run[0]).await;
        let never = Job { id: name("never-added"), ..run[0].clone() };
        let third = stored_for(&harness, &never).await;
        let outcome = ReportOutcome::Succeeded { result: Some(Body::Inline(large())) };
        let report = harness.engine.prepare_report(report(&run[1], outcome)).await.unwrap();
        let input = tidegate_engine::TickInput { reports: vec![report], ..Default::default() };
        harness.tick(input).await.reports.remove(0).unwrap();
        let all = keys(&harness).await;
        assert_eq!(all.len(), 5);
        assert_eq!(swept(&harness).await, found(5, 0));
        harness.wait(DAY - 1);
        assert_eq!(swept(&harness).await.deleted, 0, "they are too young");
        harness.wait(DAY / 2);
        assert_eq!(swept(&harness).await, found(5, 2));
        let mut left = all;
        left.retain(|key| *key != second && *key != third);
        assert_eq!(keys(&harness).await, left);
        assert_eq!(harness.engine.data(&harness.job(&named.id).await).await.unwrap(), large());
        // The next pass begins some hours later, in every process.
        assert_eq!(swept(&harness).await.listed, 0);
        assert_eq!(harness.another().sweep_objects(harness.engine.now()).await.unwrap().listed, 0);
    }
}

#[tokio::test]
async fn an_object_of_a_job_that_cannot_be_read_stays() {
    for mut harness in every_store_and_table() {
        harness.set_type("work", TypeConfig::default()).await;
        let job = harness.enqueue(carrying(large())).await;
        let objects = Arc::clone(&harness.engine.ports().objects);
        harness.damage(&job.id).await;
        harness.objects(objects);
        harness.wait(2 * DAY);
        assert_eq!(swept(&harness).await, found(1, 0));
    }
}

#[tokio::test]
async fn a_body_follows_its_job_to_the_id_of_a_slower_request() {
    for mut harness in every_store_and_table() {
        if harness.store.capabilities().atomicity.is_atomic() {
            continue;
        }
        harness.set_type("work", TypeConfig::default()).await;
        // Another request has set the key and not added its job yet.
        let slow =
            harness.enqueue(NewJob { delay_seconds: Some(Seconds::new(900)), ..work() }).await;
        let text = slow.id.as_str();
        let free = text.replacen(&text[..20], "01arz3ndektsv4rrffq6", 1).parse().unwrap();
        let key = Key::Correlation(name("work"), "c".into());
        let write = Write::SetKey { key, job: free, was: Expect::Absent };
        harness.store.commit(vec![vec![write]]).await.unwrap();
        let job = harness
            .enqueue(NewJob { correlation_key: Some("c".into()), ..carrying(large()) })
            .await;
        assert!(job.id.as_str().starts_with("01arz3ndektsv4rrffq6"));
        assert_eq!(keys(&harness).await.len(), 1);
        harness.wait(2 * DAY);
        assert_eq!(swept(&harness).await, found(1, 0));
        assert_eq!(harness.engine.data(&harness.job(&job.id).await).await.unwrap(), large());
        harness.lease(1).await;
    }
}

#[tokio::test]
async fn a_pass_goes_on_where_the_last_page_ended() {
    let folder = tempfile::tempdir().unwrap();
    let local = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
    let stores: [Arc<dyn object_store::ObjectStore>; 2] =
        [Arc::new(InMemory::new()), Arc::new(local)];
    for objects in stores {
        let mut harness = every_store_and_table().remove(0);
        harness.objects(objects);
        let objects = Arc::clone(&harness.engine.ports().objects);
        for n in 0..2300 {
            let key = format!("bodies/job-{n}-0000000000zzzzzzzzzzzzzzzz-00000000");
            objects.put(&Path::from(key), "1".into()).await.unwrap();
        }
        harness.wait(2 * DAY);
        let mut deleted = Vec::new();
        for _ in 0..3 {
            // Each page is read by another process.
            let ports: Ports = harness.engine.ports().clone();
            harness.engine = Engine::new(ports, Rules::default());
            assert_eq!(swept(&harness).await.listed, if deleted.len() == 2 { 300 } else { 1000 });
            deleted.push(2300 - keys(&harness).await.len());
            assert_eq!(swept(&harness).await, SweptObjects::default(), "one page in ten minutes");
            harness.wait(600);
        }
        assert_eq!(deleted, [1000, 2000, 2300]);
    }
}

#[tokio::test]
async fn objects_that_cannot_be_deleted_keep_no_others() {
    let mut harness = every_store_and_table().remove(0);
    let objects = Arc::new(FaultyObjects::default());
    harness.objects(Arc::clone(&objects) as _);
    for n in 0..1200 {
        let key = format!("bodies/job-{n}-0000000000zzzzzzzzzzzzzzzz-00000000");
        objects.put(&Path::from(key), "1".into()).await.unwrap();
    }
    harness.wait(2 * DAY);
    objects.fail([ObjectRequest::List]);
    harness.engine.sweep_objects(harness.engine.now()).await.unwrap_err();
    objects.fail([ObjectRequest::Delete]);
    let failed = SweptObjects { listed: 1000, deleted: 0, failed: 1000 };
    assert_eq!(swept(&harness).await, failed);
    objects.fail([]);
    harness.wait(600);
    assert_eq!(swept(&harness).await, found(200, 200), "the pass goes on behind them");
    harness.wait(DAY);
    assert_eq!(swept(&harness).await, found(1000, 1000), "the next pass repeats them");
    assert!(keys(&harness).await.is_empty());
}

#[tokio::test]
async fn a_body_that_is_deleted_while_it_is_read_is_no_fault() {
    for mut harness in every_store_and_table() {
        let keep_result = KeepResult::For(Seconds::new(60));
        let config = TypeConfig { keep_result, ..TypeConfig::default() };
        harness.set_type("work", config).await;
        let job = harness.enqueue(NewJob { id: Some(name("mine")), ..carrying(large()) }).await;
        let run = harness.lease(1).await.remove(0);
        let outcome = ReportOutcome::Succeeded { result: Some(Body::Inline(large())) };
        let report = harness.engine.prepare_report(report(&run, outcome)).await.unwrap();
        let input = tidegate_engine::TickInput { reports: vec![report], ..Default::default() };
        harness.tick(input).await.reports.remove(0).unwrap();
        // The job is read, and then its result is deleted.
        let read = harness.job(&job.id).await;
        harness.wait(61);
        harness.engine.sweep().await.unwrap();
        let loaded = harness.engine.load(vec![read.clone()]).await.unwrap().remove(0);
        assert!(loaded.life.result.is_none());
        assert_eq!(loaded.data.inline(), Some(&large()));
        // The job goes.
        harness.wait(40 * DAY);
        for _ in 0..2 {
            harness.engine.sweep().await.unwrap();
        }
        let gone = harness.engine.load(vec![read]).await.unwrap_err();
        assert!(matches!(gone, Error::NotFound { .. }), "{gone:?}");
    }
}
