//! Jobs of clients under an occurrence's id, unique keys, manual runs and refused configurations.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tidegate_core::{
    error_code::ErrorCode,
    job::{
        Origin, Payload,
        spec::{Unique, UniqueWhile},
        type_config::TypeConfig,
    },
    port::{Write, job_store::ItemKind},
    schedule::{MAX_SCHEDULES, SCHEDULE_DATA_BYTES, ScheduleConfig, occurrence_id},
    time::Seconds,
};
use tidegate_engine::{
    Error,
    memory::MemoryStore,
    request::{JobPatch, NewJob},
    testkit::builders::name,
};

use super::{Change, at_seconds, beat, made, second, tens, waiting};
use crate::cases::harness::{Harness, every_store_and_table};

#[tokio::test]
async fn a_job_that_a_client_made_or_changed_is_never_withdrawn() {
    let minute = Duration::from_mins(1);
    for harness in every_store_and_table() {
        let harness = harness.scheduled(tens()).await;
        let id = |at| occurrence_id(&beat(), second(at));
        let mine = NewJob {
            id: Some(id(20)),
            run_at: Some(second(20)),
            ..NewJob::new(name("work"), Payload::json("\"mine\""))
        };
        harness.enqueue(mine).await;
        harness.engine.materialize(minute).await.unwrap();
        let patch = async |at, patch: JobPatch| {
            harness.engine.patch(&id(at), None, patch, None).await.map(drop).unwrap();
        };
        patch(30, JobPatch { data: Some(Payload::json("\"patched\"")), ..JobPatch::default() })
            .await;
        patch(40, JobPatch { run_at: Some(second(45)), ..JobPatch::default() }).await;
        patch(50, JobPatch { priority: Some(Some(3)), ..JobPatch::default() }).await;
        let kept = [(20, "\"mine\""), (30, "\"patched\""), (45, "{\"n\":1}"), (50, "{\"n\":1}")];
        let kept: BTreeSet<(u64, String)> =
            kept.into_iter().map(|(at, data)| (at, data.to_owned())).collect();
        harness.engine.pause_schedule(&beat(), true).await.unwrap();
        assert_eq!(waiting(&harness).await, kept, "paused");
        harness.engine.pause_schedule(&beat(), false).await.unwrap();
        harness.engine.materialize(minute).await.unwrap();
        let resumed: BTreeSet<_> =
            kept.iter().cloned().chain([10, 60].map(|at| (at, "{\"n\":1}".to_owned()))).collect();
        assert_eq!(waiting(&harness).await, resumed);
        for change in [Change::Data, Change::Rule, Change::Delete] {
            change.make(&harness.engine).await.unwrap();
            assert_eq!(waiting(&harness).await, kept, "{change:?}");
            if !matches!(change, Change::Delete) {
                harness.engine.materialize(minute).await.unwrap();
                assert!(waiting(&harness).await.is_superset(&kept), "{change:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_client_job_with_an_occurrence_id_replaces_the_occurrence() {
    for harness in every_store_and_table() {
        let harness = harness.scheduled(tens()).await;
        let id = occurrence_id(&beat(), second(10));
        harness
            .enqueue(NewJob {
                id: Some(id.clone()),
                ..NewJob::new(name("work"), Payload::json("\"mine\""))
            })
            .await;
        let occurred = harness.occur_at(second(20)).await;
        assert_eq!(
            (made(&occurred), occurred.errors.len()),
            (vec![occurrence_id(&beat(), second(20)).to_string()], 0)
        );
        assert_eq!(harness.ids().await, at_seconds([10, 20]));
    }
}

#[tokio::test]
async fn a_unique_key_keeps_an_occurrence_from_overlapping_the_last() {
    for harness in every_store_and_table() {
        let unique = Some(Unique::new("beat", UniqueWhile::Live));
        let mut harness =
            harness.scheduled(tens().with_options(|options| options.unique = unique)).await;
        harness.occur_at(second(40)).await;
        assert_eq!(harness.ids().await, at_seconds([10]), "it has not ended");
        assert_eq!(
            harness.state().await.last_job,
            Some(occurrence_id(&beat(), second(10))),
            "the running job replaces them"
        );
        let leased = harness.lease(1).await;
        harness.succeed(&leased).await;
        harness.occur_at(second(50)).await;
        assert_eq!(harness.ids().await, at_seconds([10, 50]));
    }
}

#[tokio::test]
async fn a_manual_run_is_made_once_per_key_and_moves_no_occurrence() {
    for harness in every_store_and_table() {
        let harness = harness
            .scheduled(ScheduleConfig { expires_after_seconds: Some(Seconds::new(60)), ..tens() })
            .await;
        harness.engine.pause_schedule(&beat(), true).await.unwrap();
        let run = async |key: Option<&str>| {
            harness.engine.run_schedule(&beat(), key.map(str::to_owned), None).await.unwrap()
        };
        let first = run(Some("k")).await;
        harness.wait(1);
        let again = run(Some("k")).await;
        assert_eq!((first.new, again.new, &again.job.id), (true, false, &first.job.id));
        assert!(run(Some("other")).await.new && run(None).await.new && run(None).await.new);
        assert_eq!(first.job.data.inline(), Some(&Payload::json("{\"n\":1}")));
        let state = harness.state().await;
        assert_eq!((state.last_occurrence, state.last_job), (None, None));
    }
}

#[tokio::test]
async fn a_job_names_the_schedule_that_made_it() {
    for harness in every_store_and_table() {
        let harness = harness.scheduled(tens()).await;
        harness.occur_at(second(10)).await;
        let occurred = harness.job(&occurrence_id(&beat(), second(10))).await;
        let origin = Origin::schedule(beat(), Some(second(10)));
        assert_eq!(occurred.spec.origin.as_deref(), Some(&origin));
        let run = harness.engine.run_schedule(&beat(), None, None).await.unwrap().job;
        let origin = Origin::schedule(beat(), None);
        assert_eq!(harness.job(&run.id).await.spec.origin.as_deref(), Some(&origin));
        // A client's job of such an id is no job of the schedule.
        let id = occurrence_id(&beat(), second(20));
        let own = NewJob { id: Some(id), ..NewJob::new(name("work"), Payload::null()) };
        assert_eq!(harness.enqueue(own).await.spec.origin, None);
    }
}

#[tokio::test]
async fn a_dry_run_is_refused_where_one_more_schedule_is() {
    let harness = Harness::on(Arc::new(MemoryStore::default())).scheduled(tens()).await;
    let (item, _) = harness.engine.schedule(&beat()).await.unwrap();
    let bytes = serde_json::to_vec(&*item).unwrap();
    let add = |number: usize| Write::SetItem {
        kind: ItemKind::Schedule,
        name: format!("s{number}"),
        was: 0,
        version: 1,
        bytes: Some(bytes.clone()),
    };
    let preview = async |schedule: &str| {
        harness.engine.preview_schedule(&name(schedule), tens(), Payload::null(), None).await
    };
    harness.store.commit(vec![(2..MAX_SCHEDULES).map(add).collect()]).await.unwrap();
    assert!(preview("new").await.is_ok(), "there may be one more");
    harness.store.commit(vec![vec![add(1)]]).await.unwrap();
    let refused = preview("new").await.unwrap_err();
    let put = harness.engine.put_schedule(&name("new"), tens(), Payload::null(), None).await;
    for refused in [refused, put.unwrap_err()] {
        assert!(matches!(refused, Error::Conflict { code: ErrorCode::TooManySchedules, .. }));
    }
    assert!(preview("s7").await.is_ok(), "it replaces one");
}

#[tokio::test]
async fn a_schedule_with_invalid_job_options_is_refused() {
    for harness in every_store_and_table() {
        harness.set_type("work", TypeConfig::default()).await;
        let put = async |config: ScheduleConfig, data: Payload| {
            harness.engine.put_schedule(&beat(), config, data, None).await.unwrap_err()
        };
        let blame = async |config: ScheduleConfig| match put(config, Payload::null()).await {
            Error::Invalid { field, .. } => field,
            Error::NotFound { code, .. } => code.to_string(),
            error => panic!("{error}"),
        };
        assert_eq!(blame(ScheduleConfig { every_seconds: None, ..tens() }).await, "cron");
        assert_eq!(
            blame(tens().with_options(|options| options.max_attempts = Some(0))).await,
            "max_attempts"
        );
        assert_eq!(
            blame(tens().with_options(|options| options.timeout_seconds = Some(Seconds::new(0))))
                .await,
            "timeout_seconds"
        );
        assert_eq!(
            blame(tens().with_options(|options| options.deadline_seconds = Some(Seconds::new(0))))
                .await,
            "deadline_seconds"
        );
        assert_eq!(
            blame(tens().with_options(
                |options| options.headers = [("tidegate-x".into(), "1".into())].into()
            ))
            .await,
            "headers.tidegate-x"
        );
        assert_eq!(
            blame(ScheduleConfig { job_type: name("gone"), ..tens() }).await,
            "job_type_not_found"
        );
        assert_eq!(
            blame(ScheduleConfig { job_type: name("tidegate.callback"), ..tens() }).await,
            "job_type_not_found"
        );
        assert!(
            matches!(put(tens(), Payload::json("{")).await, Error::Invalid { field, .. } if field == "data")
        );
        let large = Payload::json(format!("\"{}\"", "x".repeat(SCHEDULE_DATA_BYTES)));
        assert!(matches!(put(tens(), large).await, Error::TooLarge { field: "data", .. }));
        assert!(harness.engine.schedules().await.unwrap().is_empty(), "nothing was stored");
    }
}
