//! Large bodies in object storage: each exists exactly as long as a job names it.

use futures_util::StreamExt;
use object_store::{ObjectStoreExt, path::Path};
use tidegate_core::{
    job::{
        Body, Job, Payload,
        spec::{KeepResult, Unique, UniqueWhile},
        type_config::TypeConfig,
    },
    time::Seconds,
};
use tidegate_engine::{
    OBJECT_BYTES, TickInput,
    request::{JobPatch, NewJob, ReportOutcome},
    testkit::builders::name,
};

use super::harness::{Harness, every_store, report, work};

fn large() -> Payload {
    Payload::json(format!("\"{}\"", "x".repeat(OBJECT_BYTES)))
}

fn carrying(data: Payload) -> NewJob {
    NewJob { data, ..work() }
}

async fn objects(harness: &Harness) -> usize {
    harness.engine.ports().objects.list(None).count().await
}

/// Reports success with a large result, as the server does.
async fn succeed(harness: &mut Harness, job: &Job) -> Result<Job, tidegate_engine::Error> {
    let report = report(job, ReportOutcome::Succeeded { result: Some(Body::Inline(large())) });
    let report = harness.engine.prepare_report(report).await.unwrap();
    harness
        .tick(TickInput { reports: vec![report], ..TickInput::default() })
        .await
        .reports
        .remove(0)
}

#[tokio::test]
async fn a_removed_job_takes_its_bodies_with_it() {
    for limited in [false, true] {
        for mut harness in every_store() {
            if limited {
                harness.with_limit(5).await;
            }
            harness
                .set_type(
                    "work",
                    TypeConfig { retention_seconds: Seconds::new(0), ..TypeConfig::default() },
                )
                .await;
            harness.enqueue(carrying(large())).await;
            let run = harness.lease(1).await.remove(0);
            assert_eq!(objects(&harness).await, 1);
            succeed(&mut harness, &run).await.unwrap();
            assert_eq!(objects(&harness).await, 0, "it is removed with its end");
            let job = harness.enqueue(carrying(large())).await;
            harness.engine.cancel(&job.id, None, false).await.unwrap();
            assert_eq!(objects(&harness).await, 0, "cancelled");
            let expires = harness.now() + std::time::Duration::from_secs(1);
            harness.enqueue(NewJob { expires_at: Some(expires), ..carrying(large()) }).await;
            harness.wait(2);
            harness.engine.sweep().await.unwrap();
            assert_eq!(objects(&harness).await, 0, "expired");
            harness
                .enqueue(NewJob {
                    expires_at: Some(harness.now() + std::time::Duration::from_secs(1)),
                    ..carrying(large())
                })
                .await;
            harness.wait(2);
            assert!(harness.lease(1).await.is_empty());
            assert_eq!(objects(&harness).await, 0, "found expired by a round");
        }
    }
}

#[tokio::test]
async fn a_result_that_was_taken_or_kept_long_enough_is_removed() {
    for keep in [KeepResult::Once, KeepResult::For(Seconds::new(60))] {
        for mut harness in every_store() {
            harness
                .set_type("work", TypeConfig { keep_result: keep, ..TypeConfig::default() })
                .await;
            harness.enqueue(work()).await;
            let run = harness.lease(1).await.remove(0);
            let job = succeed(&mut harness, &run).await.unwrap();
            assert_eq!(objects(&harness).await, 1);
            assert_eq!(harness.engine.take_result(&job).await.unwrap(), Some(large()));
            if keep == KeepResult::Once {
                assert_eq!(objects(&harness).await, 0, "it was taken");
                assert_eq!(
                    harness.engine.take_result(&job).await.unwrap(),
                    None,
                    "and is not there twice"
                );
            } else {
                assert_eq!(objects(&harness).await, 1);
                harness.wait(61);
                harness.engine.sweep().await.unwrap();
                assert_eq!(objects(&harness).await, 0);
                assert_eq!(harness.engine.take_result(&job).await.unwrap(), None);
            }
        }
    }
}

#[tokio::test]
async fn a_patch_leaves_the_body_that_the_job_carries() {
    for harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        let job = harness.enqueue(carrying(large())).await;
        let with = |data| JobPatch { data: Some(data), ..JobPatch::default() };
        harness.engine.patch(&job.id, None, with(large()), None).await.unwrap();
        assert_eq!(objects(&harness).await, 1);
        assert_eq!(harness.engine.data(&harness.job(&job.id).await).await.unwrap(), large());
        assert!(harness.engine.patch(&job.id, None, with(large()), Some(99)).await.is_err());
        assert_eq!(objects(&harness).await, 1, "a refused one leaves nothing");
        assert_eq!(harness.engine.data(&harness.job(&job.id).await).await.unwrap(), large());
        harness.engine.patch(&job.id, None, with(Payload::null()), None).await.unwrap();
        assert_eq!(objects(&harness).await, 0);
    }
}

#[tokio::test]
async fn a_refused_enqueue_leaves_no_body() {
    for harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        let unique = Unique::new("u", UniqueWhile::Live);
        let first = NewJob {
            id: Some(name("a")),
            correlation_key: Some("c".into()),
            ..carrying(large()).with_options(|options| options.unique = Some(unique.clone()))
        };
        harness.enqueue(first.clone()).await;
        let again = harness.enqueue(first.clone()).await;
        assert_eq!(harness.engine.data(&again).await.unwrap(), large());
        harness
            .enqueue(carrying(large()).with_options(|options| options.unique = Some(unique)))
            .await;
        let clash = NewJob { correlation_key: Some("c".into()), ..carrying(large()) };
        assert!(harness.engine.enqueue(vec![clash]).await[0].is_err());
        assert!(
            harness
                .engine
                .enqueue(vec![first.with_options(|options| options.priority = Some(1))])
                .await[0]
                .is_err()
        );
        assert_eq!(objects(&harness).await, 1, "that of the one job");
    }
}

#[tokio::test]
async fn a_result_that_is_not_taken_leaves_nothing() {
    for limited in [false, true] {
        for mut harness in every_store() {
            if limited {
                harness.with_limit(5).await;
            }
            harness
                .set_type(
                    "work",
                    TypeConfig { keep_result: KeepResult::Once, ..TypeConfig::default() },
                )
                .await;
            harness.enqueue(work()).await;
            let run = harness.lease(1).await.remove(0);
            let job = succeed(&mut harness, &run).await.unwrap();
            succeed(&mut harness, &run).await.expect("a repeat is harmless");
            assert_eq!(objects(&harness).await, 1);
            assert_eq!(
                harness.engine.take_result(&job).await.unwrap(),
                Some(large()),
                "the first one's is kept"
            );
            harness.enqueue(work()).await;
            let mut stale = harness.lease(1).await.remove(0);
            stale.life.attempt = 7;
            succeed(&mut harness, &stale).await.expect_err("no such attempt");
            assert_eq!(objects(&harness).await, 0);
        }
    }
}

#[tokio::test]
async fn a_damaged_body_is_not_served_and_affects_no_other() {
    for mut harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        // It stays valid JSON.
        let damaged = Payload::json(format!("\"y{}\"", "x".repeat(OBJECT_BYTES - 1)));
        let cut = Payload::json("\"\"");
        for broken in [damaged, cut] {
            let jobs = harness.enqueue_many([carrying(large()), carrying(large())]).await;
            let Body::Object { key, .. } = &jobs[0].data else { panic!("it is an object") };
            let objects = &harness.engine.ports().objects;
            objects.put(&Path::from(key.as_str()), broken.bytes.into()).await.unwrap();
            let run = harness.lease(2).await;
            let loaded = harness.engine.load_each(run).await;
            let refused = loaded[0].as_ref().unwrap_err().to_string();
            assert!(refused.contains("its body is damaged"), "{refused}");
            assert_eq!(loaded[1].as_ref().unwrap().data.inline(), Some(&large()));
        }
    }
}
