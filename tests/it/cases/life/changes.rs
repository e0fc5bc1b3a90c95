//! Changes of a waiting job, and replays of an ended one.

use std::time::Duration;

use tidegate_core::{
    calendar::window::Window,
    job::{Job, Payload, Value, type_config::TypeConfig},
};
use tidegate_engine::{
    Error, TickInput,
    memory::MemoryStore,
    request::{JobPatch, NewJob, ReplayWith},
    testkit::builders::name,
};

use crate::cases::harness::{Harness, every_store, failed, report, work};

#[tokio::test]
async fn a_replay_is_a_new_job_and_leaves_the_old_one_as_it_was() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let old =
            harness.enqueue(work().with_options(|options| options.max_attempts = Some(1))).await;
        let running = harness.lease(1).await;
        harness
            .tick(TickInput {
                reports: vec![report(&running[0], failed())],
                ..TickInput::default()
            })
            .await;
        let before = harness.job(&old.id).await;
        let replayed =
            harness.engine.replay(&old.id, None, ReplayWith::default(), None).await.unwrap();
        assert_eq!(replayed.job.spec.replay_of.as_ref(), Some(&old.id));
        let mut after = harness.job(&old.id).await;
        assert_eq!(after.life.replayed_by.take(), Some(replayed.job.id.clone()));
        after.life.revision = before.life.revision;
        assert_eq!(after, before);
        assert_eq!(harness.lease(1).await[0].id, replayed.job.id);
    }
}

#[tokio::test]
async fn a_patch_that_is_based_on_an_older_job_is_refused() {
    let harness = Harness::on(std::sync::Arc::new(MemoryStore::new()));
    harness.with_limit(1).await;
    let job = harness.enqueue(work()).await;
    let patch = JobPatch { priority: Some(Some(1)), ..JobPatch::default() };
    let seen = Some(job.life.revision.0);
    harness.engine.patch(&job.id, None, patch.clone(), seen).await.unwrap();
    assert!(matches!(
        harness.engine.patch(&job.id, None, patch, seen).await,
        Err(Error::Stale { .. })
    ));
}

#[tokio::test]
async fn new_data_replaces_the_attributes_extracted_from_it() {
    for harness in every_store() {
        let pointers = [("region", "/region"), ("tenant", "/tenant")]
            .map(|(name, at)| (name.to_owned(), at.to_owned()));
        harness
            .set_type("work", TypeConfig { attributes: pointers.into(), ..TypeConfig::default() })
            .await;
        let given = (0..14).map(|n| (format!("given{n:02}"), Value::Number(n.into()))).collect();
        let new = NewJob::new(name("work"), Payload::json(r#"{"region": "east", "tenant": "a"}"#))
            .with_options(|options| options.attributes = given);
        let job = harness.enqueue(new).await;
        assert_eq!(job.spec.attributes.len(), 16);
        let patch = |data: &'static str| JobPatch {
            data: Some(Payload::json(data)),
            ..JobPatch::default()
        };
        let (_, job) =
            harness.engine.patch(&job.id, None, patch(r#"{"tenant": "b"}"#), None).await.unwrap();
        assert_eq!(
            (job.spec.attributes.get("region"), job.spec.attributes.get("tenant")),
            (None, Some(&Value::Text("b".into())))
        );
        let more = [("more", "/more"), ("region", "/region"), ("tenant", "/tenant")]
            .map(|(name, at)| (name.to_owned(), at.to_owned()));
        harness
            .set_type("work", TypeConfig { attributes: more.into(), ..TypeConfig::default() })
            .await;
        let refused = harness
            .engine
            .patch(&job.id, None, patch(r#"{"tenant": "b", "region": "x", "more": 1}"#), None)
            .await;
        assert!(
            matches!(&refused, Err(Error::Invalid { .. })),
            "seventeen are too many: {refused:?}"
        );
    }
}

#[tokio::test]
async fn new_windows_bring_a_waiting_job_forward_to_its_due_time() {
    let windows = |spans: &[(&str, &str)]| -> Vec<Window> {
        spans
            .iter()
            .map(|(from, to)| {
                serde_json::from_value(serde_json::json!({"from": from, "to": to})).unwrap()
            })
            .collect()
    };
    for harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        let midnight = harness.now();
        let hour = |hour: u64| Some(midnight + Duration::from_hours(hour));
        let run_at = async |job: &Job, spans: &[(&str, &str)]| {
            let patch = JobPatch { windows: Some(Some(windows(spans))), ..JobPatch::default() };
            harness.engine.patch(&job.id, None, patch, None).await.unwrap().1.life.run_at()
        };
        let noon = Some(windows(&[("12:00", "13:00")]));
        let now =
            harness.enqueue(work().with_options(|options| options.windows = noon.clone())).await;
        let later = harness
            .enqueue(NewJob {
                run_at: hour(3),
                ..work().with_options(|options| options.windows = noon)
            })
            .await;
        assert_eq!((now.life.run_at(), later.life.run_at()), (hour(12), hour(12)));
        let early: &[_] = &[("01:00", "02:00"), ("04:00", "05:00")];
        assert_eq!(run_at(&now, early).await, hour(1));
        assert_eq!(run_at(&later, early).await, hour(4), "at three it was due");
        assert_eq!(run_at(&later, &[("14:00", "15:00")]).await, hour(14), "and later again");
        assert_eq!((run_at(&now, &[]).await, run_at(&later, &[]).await), (hour(0), hour(3)));
    }
}
