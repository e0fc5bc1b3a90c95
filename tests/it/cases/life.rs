//! The promises of a job's own settings, from its enqueue to its removal.

use std::time::Duration;
use tidegate_core::error_code::ErrorCode;

use tidegate_core::{
    calendar::window::Window,
    job::{
        Body, Encoding, Job, Outcome, Payload, Value,
        lifecycle::Reason,
        spec::{KeepResult, Unique, UniqueWhile},
        type_config::TypeConfig,
    },
    port::job_store::ListQuery,
    time::Seconds,
};
use tidegate_engine::{
    CALLBACK_QUEUE, CALLBACK_TYPE, Error, TickInput,
    memory::MemoryStore,
    request::{JobPatch, NewJob, ReplayWith, ReportOutcome},
    testkit::builders::name,
};

use super::harness::{Harness, every_store, failed, report, work};

#[tokio::test]
async fn a_job_is_not_started_after_it_expires() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let expires_at = Some(harness.now() + Duration::from_secs(10));
        let blocker = harness.enqueue(work()).await;
        let swept = harness.enqueue(NewJob { expires_at, ..work() }).await;
        let seen = harness.enqueue(NewJob { expires_at, ..work() }).await;
        let running = harness.lease(1).await;
        assert_eq!(running[0].id, blocker.id);
        harness.wait(10);
        harness.engine.sweep().await.unwrap();
        assert_eq!(harness.job(&swept.id).await.life.ended(), Some(Outcome::Expired));
        harness.succeed(&running).await;
        assert!(harness.lease(1).await.is_empty());
        let there = harness.job(&seen.id).await;
        assert_eq!((there.life.ended(), there.life.attempt), (Some(Outcome::Expired), 0));
    }
}

#[tokio::test]
async fn a_tick_before_the_sweep_expires_the_job_itself() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let expires_at = Some(harness.now() + Duration::from_secs(10));
        let job = harness.enqueue(NewJob { expires_at, ..work() }).await;
        harness.wait(10);
        assert!(harness.lease(1).await.is_empty());
        assert_eq!(harness.job(&job.id).await.life.ended(), Some(Outcome::Expired));
    }
}

#[tokio::test]
async fn a_deadline_ends_waiting_and_running_jobs_and_frees_slots() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let deadline_seconds = Some(Seconds::new(20));
        let running = harness
            .enqueue(work().with_options(|options| options.deadline_seconds = deadline_seconds))
            .await;
        let waiting = harness
            .enqueue(work().with_options(|options| options.deadline_seconds = deadline_seconds))
            .await;
        let next = harness.enqueue(work()).await;
        let claimed = harness.lease(1).await;
        assert_eq!(claimed[0].id, running.id);
        harness.wait(20);
        let swept = harness.engine.sweep().await.unwrap();
        for job in [&running, &waiting] {
            let there = harness.job(&job.id).await;
            assert_eq!(there.life.ended(), Some(Outcome::Failed));
            assert_eq!(there.life.error.unwrap().reason, Reason::Deadline);
        }
        let released =
            swept.changed.iter().map(|(job, version)| (job.id.clone(), *version)).collect();
        harness.tick(TickInput { released, ..TickInput::default() }).await;
        assert_eq!(harness.lease(1).await[0].id, next.id);
        let late = harness
            .tick(TickInput {
                reports: vec![report(&claimed[0], ReportOutcome::Succeeded { result: None })],
                ..TickInput::default()
            })
            .await;
        assert!(late.reports[0].is_err(), "its result comes too late");
    }
}

fn unique(hold: UniqueWhile, period: Option<u64>) -> NewJob {
    work().with_options(|options| {
        options.unique =
            Some(Unique { key: "k".into(), hold, period_seconds: period.map(Seconds::new) });
    })
}

#[tokio::test]
async fn a_key_unique_while_scheduled_is_held_until_the_job_starts() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let first = harness.enqueue(unique(UniqueWhile::Scheduled, None)).await;
        assert_eq!(harness.enqueue(unique(UniqueWhile::Scheduled, None)).await.id, first.id);
        let running = harness.lease(1).await;
        let second = harness.enqueue(unique(UniqueWhile::Scheduled, None)).await;
        assert_ne!(second.id, first.id);
        // A retry of the first does not take the key back.
        harness
            .tick(TickInput {
                reports: vec![report(&running[0], failed())],
                ..TickInput::default()
            })
            .await;
        assert_eq!(harness.enqueue(unique(UniqueWhile::Scheduled, None)).await.id, second.id);
    }
}

#[tokio::test]
async fn a_key_unique_while_live_is_held_until_the_job_ends() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let first = harness.enqueue(unique(UniqueWhile::Live, None)).await;
        let running = harness.lease(1).await;
        assert_eq!(harness.enqueue(unique(UniqueWhile::Live, None)).await.id, first.id);
        harness.succeed(&running).await;
        assert_ne!(harness.enqueue(unique(UniqueWhile::Live, None)).await.id, first.id);
    }
}

#[tokio::test]
async fn a_key_unique_for_a_period_outlives_its_job() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let first = harness.enqueue(unique(UniqueWhile::Live, Some(60))).await;
        let running = harness.lease(1).await;
        harness.succeed(&running).await;
        harness.wait(59);
        assert_eq!(harness.enqueue(unique(UniqueWhile::Live, Some(60))).await.id, first.id);
        harness.wait(1);
        assert_ne!(harness.enqueue(unique(UniqueWhile::Live, Some(60))).await.id, first.id);
    }
}

#[tokio::test]
async fn a_correlation_key_is_unique_among_the_live_jobs_of_a_type() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let keyed = || NewJob { correlation_key: Some("order-7".into()), ..work() };
        let first = harness.enqueue(keyed()).await;
        let clash = harness.engine.enqueue(vec![keyed()]).await.pop().unwrap().unwrap_err();
        assert!(
            matches!(&clash, Error::Conflict { holder: Some(holder), .. } if *holder == first.id),
            "{clash:?}"
        );
        let running = harness.lease(1).await;
        harness.succeed(&running).await;
        assert_ne!(harness.enqueue(keyed()).await.id, first.id);
    }
}

async fn callbacks(harness: &Harness) -> Vec<Job> {
    let query = ListQuery { queue: Some(name(CALLBACK_QUEUE)), limit: 100, ..ListQuery::default() };
    harness.store.list(&query).await.unwrap().jobs
}

#[tokio::test]
async fn completion_callback_is_enqueued_once_for_every_end() {
    for mut harness in every_store() {
        harness.with_limit(10).await;
        let told = || {
            work().with_options(|options| {
                options.callback_url = Some("http://127.0.0.1:9/told".parse().unwrap());
                options.max_attempts = Some(2);
            })
        };
        let jobs = harness
            .enqueue_many([
                told(),
                told(),
                told(),
                told().with_options(|options| options.deadline_seconds = Some(Seconds::new(100))),
                work(),
            ])
            .await;
        harness.engine.cancel(&jobs[1].id, None, false).await.unwrap();
        let running = harness.lease(2).await;
        harness.succeed(&running[..1]).await;
        harness.succeed(&running[..1]).await;
        harness
            .tick(TickInput {
                reports: vec![report(&running[1], failed())],
                ..TickInput::default()
            })
            .await;
        assert_eq!(callbacks(&harness).await.len(), 2, "a retry tells nobody");
        harness.wait(10);
        let again = harness.lease(10).await.into_iter().find(|job| job.life.attempt == 2).unwrap();
        harness
            .tick(TickInput { reports: vec![report(&again, failed())], ..TickInput::default() })
            .await;
        harness.wait(100);
        harness.engine.sweep().await.unwrap();
        harness.engine.sweep().await.unwrap();
        let callbacks = callbacks(&harness).await;
        let mut about: Vec<String> = callbacks
            .iter()
            .map(|job| {
                serde_json::from_slice::<serde_json::Value>(&job.data.inline().unwrap().bytes)
                    .unwrap()["id"]
                    .as_str()
                    .unwrap()
                    .into()
            })
            .collect();
        about.sort_unstable();
        let mut expected: Vec<String> = jobs[..4].iter().map(|job| job.id.to_string()).collect();
        expected.sort_unstable();
        assert_eq!(about, expected, "each once");
        assert!(callbacks.iter().all(|job| job.spec.job_type.as_str() == CALLBACK_TYPE));
    }
}

async fn ended_with_result(harness: &mut Harness, keep: KeepResult) -> Job {
    harness.with_limit(10).await;
    harness.enqueue(work().with_options(|options| options.keep_result = Some(keep))).await;
    let running = harness.lease(1).await.remove(0);
    let result = Some(Body::Inline(Payload { encoding: Encoding::Json, bytes: "42".into() }));
    let outcome = harness
        .tick(TickInput {
            reports: vec![report(&running, ReportOutcome::Succeeded { result })],
            ..TickInput::default()
        })
        .await;
    outcome.reports.into_iter().next().unwrap().unwrap()
}

async fn read(harness: &Harness, job: &Job) -> Option<String> {
    let there = harness.job(&job.id).await;
    let result = harness.engine.take_result(&there).await.unwrap();
    result.map(|payload| String::from_utf8(payload.bytes.to_vec()).unwrap())
}

#[tokio::test]
async fn a_result_is_kept_as_long_as_was_asked() {
    for mut harness in every_store() {
        let job = ended_with_result(&mut harness, KeepResult::None).await;
        assert_eq!(read(&harness, &job).await, None);

        let job = ended_with_result(&mut harness, KeepResult::Once).await;
        assert_eq!(read(&harness, &job).await.as_deref(), Some("42"));
        assert_eq!(read(&harness, &job).await, None, "the first read took it");

        let unread = ended_with_result(&mut harness, KeepResult::Once).await;
        let kept = ended_with_result(&mut harness, KeepResult::For(Seconds::new(7200))).await;
        harness.wait(3600);
        harness.engine.sweep().await.unwrap();
        assert_eq!(read(&harness, &unread).await, None, "unread it goes after an hour");
        assert_eq!(read(&harness, &kept).await.as_deref(), Some("42"));
        assert_eq!(read(&harness, &kept).await.as_deref(), Some("42"));
        harness.wait(3600);
        harness.engine.sweep().await.unwrap();
        assert_eq!(read(&harness, &kept).await, None);
    }
}

#[tokio::test]
async fn dropping_the_result_enqueues_no_second_callback() {
    for mut harness in every_store() {
        harness.with_limit(10).await;
        let told = |keep| {
            work().with_options(|options| {
                options.callback_url = Some("http://127.0.0.1:9/told".parse().unwrap());
                options.keep_result = Some(keep);
            })
        };
        harness
            .enqueue_many([told(KeepResult::Once), told(KeepResult::For(Seconds::new(60)))])
            .await;
        let result =
            || ReportOutcome::Succeeded { result: Some(Body::Inline(Payload::json("42"))) };
        let reports: Vec<_> =
            harness.lease(2).await.iter().map(|job| report(job, result())).collect();
        let ended = harness.tick(TickInput { reports, ..TickInput::default() }).await.reports;
        let once = ended[0].as_ref().unwrap();
        assert_eq!(read(&harness, once).await.as_deref(), Some("42"));
        harness.wait(60);
        harness.engine.sweep().await.unwrap();
        assert_eq!(read(&harness, ended[1].as_ref().unwrap()).await, None);
        assert_eq!(callbacks(&harness).await.len(), 2);
    }
}

#[tokio::test]
async fn ended_jobs_and_their_keys_are_pruned_after_retention() {
    for mut harness in every_store() {
        harness.with_limit(1000).await;
        harness
            .set_type(
                "work",
                TypeConfig { retention_seconds: Seconds::new(600), ..TypeConfig::default() },
            )
            .await;
        let jobs = harness
            .enqueue_many(
                (0..600).map(|n| NewJob { correlation_key: Some(n.to_string()), ..work() }),
            )
            .await;
        let running = harness.lease(1000).await;
        harness.succeed(&running).await;
        harness.wait(599);
        assert_eq!(harness.engine.sweep().await.unwrap().removed, 0);
        harness.wait(1);
        let first = harness.engine.sweep().await.unwrap();
        assert_eq!(
            (first.removed, first.next_at),
            (500, Some(harness.now())),
            "in small batches, and there is more"
        );
        assert_eq!(harness.engine.sweep().await.unwrap().removed, 100);
        assert!(harness.engine.job(&jobs[0].id, None).await.is_err());
        harness.enqueue(NewJob { correlation_key: Some("1".into()), ..work() }).await;
    }
}

#[tokio::test]
async fn a_job_with_zero_retention_vanishes_and_frees_its_slot() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        harness
            .set_type(
                "work",
                TypeConfig { retention_seconds: Seconds::new(0), ..TypeConfig::default() },
            )
            .await;
        let jobs = harness.enqueue_many([work(), work()]).await;
        let running = harness.lease(1).await;
        assert_eq!(harness.succeed(&running).await[0].life.ended(), Some(Outcome::Succeeded));
        assert!(harness.engine.job(&jobs[0].id, None).await.is_err());
        assert_eq!(harness.lease(1).await[0].id, jobs[1].id);
    }
}

#[tokio::test]
async fn a_cancelled_running_job_keeps_its_slot_until_its_result() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        harness.enqueue_many([work(), work()]).await;
        let running = harness.lease(1).await;
        let (_, cancelled) = harness.engine.cancel(&running[0].id, None, false).await.unwrap();
        assert!(!cancelled.ended);
        assert!(harness.lease(1).await.is_empty());
        let done = harness.succeed(&running).await;
        assert_eq!(done[0].life.ended(), Some(Outcome::Cancelled));
        assert_eq!(harness.lease(1).await.len(), 1);
        let again = harness.engine.cancel(&running[0].id, None, false).await;
        assert!(matches!(again, Err(Error::Conflict { .. })));
    }
}

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
        assert_eq!(harness.job(&old.id).await, before);
        assert_eq!(harness.lease(1).await[0].id, replayed.job.id);
    }
}

#[tokio::test]
async fn a_patch_that_is_based_on_an_older_job_is_refused() {
    let harness = Harness::on(std::sync::Arc::new(MemoryStore::new()));
    harness.with_limit(1).await;
    let job = harness.enqueue(work()).await;
    let patch = JobPatch { priority: Some(1), ..JobPatch::default() };
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
            let patch = JobPatch { windows: Some(windows(spans)), ..JobPatch::default() };
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

#[tokio::test]
async fn a_report_after_a_forced_cancel_is_refused() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        harness.enqueue(work()).await;
        let running = harness.lease(1).await;
        harness.engine.cancel(&running[0].id, None, true).await.unwrap();
        for verdict in [ReportOutcome::Succeeded { result: None }, failed()] {
            let outcome = harness
                .tick(TickInput {
                    reports: vec![report(&running[0], verdict)],
                    ..TickInput::default()
                })
                .await;
            assert!(
                matches!(
                    &outcome.reports[0],
                    Err(Error::Conflict { code: ErrorCode::StaleAttempt, .. })
                ),
                "{:?}",
                outcome.reports[0]
            );
        }
    }
}

#[tokio::test]
async fn a_result_of_a_job_that_was_to_be_cancelled_may_be_repeated() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        for verdict in [ReportOutcome::Succeeded { result: None }, failed()] {
            harness.enqueue(work()).await;
            let running = harness.lease(1).await;
            harness.engine.cancel(&running[0].id, None, false).await.unwrap();
            for _ in 0..2 {
                let outcome = harness
                    .tick(TickInput {
                        reports: vec![report(&running[0], verdict.clone())],
                        ..TickInput::default()
                    })
                    .await;
                assert_eq!(
                    outcome.reports[0].as_ref().unwrap().life.ended(),
                    Some(Outcome::Cancelled)
                );
            }
        }
    }
}
