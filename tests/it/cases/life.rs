//! What a job's own settings promise, from its first moment to its removal.

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

use super::place::{Place, everywhere, failed, report, work};

#[tokio::test]
async fn a_job_is_not_started_after_it_expires() {
    for mut place in everywhere() {
        place.with_limit(1).await;
        let expires_at = Some(place.now() + Duration::from_secs(10));
        let blocker = place.enqueue(work()).await;
        let swept = place.enqueue(NewJob { expires_at, ..work() }).await;
        let seen = place.enqueue(NewJob { expires_at, ..work() }).await;
        let running = place.lease(1).await;
        assert_eq!(running[0].id, blocker.id);
        place.wait(10);
        place.engine.sweep().await.unwrap();
        assert_eq!(place.job(&swept.id).await.life.ended(), Some(Outcome::Expired));
        place.succeed(&running).await;
        assert!(place.lease(1).await.is_empty());
        let there = place.job(&seen.id).await;
        assert_eq!((there.life.ended(), there.life.attempt), (Some(Outcome::Expired), 0));
    }
}

#[tokio::test]
async fn a_round_that_comes_before_the_sweep_ends_an_expired_job_itself() {
    for mut place in everywhere() {
        place.with_limit(1).await;
        let expires_at = Some(place.now() + Duration::from_secs(10));
        let job = place.enqueue(NewJob { expires_at, ..work() }).await;
        place.wait(10);
        assert!(place.lease(1).await.is_empty());
        assert_eq!(place.job(&job.id).await.life.ended(), Some(Outcome::Expired));
    }
}

#[tokio::test]
async fn a_deadline_ends_a_waiting_job_and_a_running_one_and_frees_its_slot() {
    for mut place in everywhere() {
        place.with_limit(1).await;
        let deadline_seconds = Some(Seconds::new(20));
        let running = place
            .enqueue(work().with_options(|options| options.deadline_seconds = deadline_seconds))
            .await;
        let waiting = place
            .enqueue(work().with_options(|options| options.deadline_seconds = deadline_seconds))
            .await;
        let next = place.enqueue(work()).await;
        let claimed = place.lease(1).await;
        assert_eq!(claimed[0].id, running.id);
        place.wait(20);
        let swept = place.engine.sweep().await.unwrap();
        for job in [&running, &waiting] {
            let there = place.job(&job.id).await;
            assert_eq!(there.life.ended(), Some(Outcome::Failed));
            assert_eq!(there.life.error.unwrap().reason, Reason::Deadline);
        }
        let released =
            swept.changed.iter().map(|(job, version)| (job.id.clone(), *version)).collect();
        place.tick(TickInput { released, ..TickInput::default() }).await;
        assert_eq!(place.lease(1).await[0].id, next.id);
        let late = place
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
            Some(Unique { key: "k".into(), hold, period_seconds: period.map(Seconds::new) })
    })
}

#[tokio::test]
async fn a_key_unique_while_scheduled_is_held_until_the_job_starts() {
    for mut place in everywhere() {
        place.with_limit(1).await;
        let first = place.enqueue(unique(UniqueWhile::Scheduled, None)).await;
        assert_eq!(place.enqueue(unique(UniqueWhile::Scheduled, None)).await.id, first.id);
        let running = place.lease(1).await;
        let second = place.enqueue(unique(UniqueWhile::Scheduled, None)).await;
        assert_ne!(second.id, first.id);
        // A retry of the first does not take the key back.
        place
            .tick(TickInput {
                reports: vec![report(&running[0], failed())],
                ..TickInput::default()
            })
            .await;
        assert_eq!(place.enqueue(unique(UniqueWhile::Scheduled, None)).await.id, second.id);
    }
}

#[tokio::test]
async fn a_key_unique_while_live_is_held_until_the_job_ends() {
    for mut place in everywhere() {
        place.with_limit(1).await;
        let first = place.enqueue(unique(UniqueWhile::Live, None)).await;
        let running = place.lease(1).await;
        assert_eq!(place.enqueue(unique(UniqueWhile::Live, None)).await.id, first.id);
        place.succeed(&running).await;
        assert_ne!(place.enqueue(unique(UniqueWhile::Live, None)).await.id, first.id);
    }
}

#[tokio::test]
async fn a_key_unique_for_a_period_is_held_that_long_whatever_becomes_of_the_job() {
    for mut place in everywhere() {
        place.with_limit(1).await;
        let first = place.enqueue(unique(UniqueWhile::Live, Some(60))).await;
        let running = place.lease(1).await;
        place.succeed(&running).await;
        place.wait(59);
        assert_eq!(place.enqueue(unique(UniqueWhile::Live, Some(60))).await.id, first.id);
        place.wait(1);
        assert_ne!(place.enqueue(unique(UniqueWhile::Live, Some(60))).await.id, first.id);
    }
}

#[tokio::test]
async fn a_correlation_key_is_unique_among_the_live_jobs_of_a_type() {
    for mut place in everywhere() {
        place.with_limit(1).await;
        let keyed = || NewJob { correlation_key: Some("order-7".into()), ..work() };
        let first = place.enqueue(keyed()).await;
        let clash = place.engine.enqueue(vec![keyed()]).await.pop().unwrap().unwrap_err();
        assert!(
            matches!(&clash, Error::Conflict { holder: Some(holder), .. } if *holder == first.id),
            "{clash:?}"
        );
        let running = place.lease(1).await;
        place.succeed(&running).await;
        assert_ne!(place.enqueue(keyed()).await.id, first.id);
    }
}

async fn callbacks(place: &Place) -> Vec<Job> {
    let query = ListQuery { queue: Some(name(CALLBACK_QUEUE)), limit: 100, ..ListQuery::default() };
    place.store.list(&query).await.unwrap().jobs
}

#[tokio::test]
async fn the_end_of_a_job_is_told_once_however_it_ends() {
    for mut place in everywhere() {
        place.with_limit(10).await;
        let told = || {
            work().with_options(|options| {
                options.callback_url = Some("http://127.0.0.1:9/told".parse().unwrap());
                options.max_attempts = Some(2);
            })
        };
        let jobs = place
            .enqueue_many([
                told(),
                told(),
                told(),
                told().with_options(|options| options.deadline_seconds = Some(Seconds::new(100))),
                work(),
            ])
            .await;
        place.engine.cancel(&jobs[1].id, None, false).await.unwrap();
        let running = place.lease(2).await;
        place.succeed(&running[..1]).await;
        place.succeed(&running[..1]).await;
        place
            .tick(TickInput {
                reports: vec![report(&running[1], failed())],
                ..TickInput::default()
            })
            .await;
        assert_eq!(callbacks(&place).await.len(), 2, "a retry tells nobody");
        place.wait(10);
        let again = place.lease(10).await.into_iter().find(|job| job.life.attempt == 2).unwrap();
        place
            .tick(TickInput { reports: vec![report(&again, failed())], ..TickInput::default() })
            .await;
        place.wait(100);
        place.engine.sweep().await.unwrap();
        place.engine.sweep().await.unwrap();
        let callbacks = callbacks(&place).await;
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

async fn ended_with_result(place: &mut Place, keep: KeepResult) -> Job {
    place.with_limit(10).await;
    place.enqueue(work().with_options(|options| options.keep_result = Some(keep))).await;
    let running = place.lease(1).await.remove(0);
    let result = Some(Body::Inline(Payload { encoding: Encoding::Json, bytes: "42".into() }));
    let ticked = place
        .tick(TickInput {
            reports: vec![report(&running, ReportOutcome::Succeeded { result })],
            ..TickInput::default()
        })
        .await;
    ticked.reports.into_iter().next().unwrap().unwrap()
}

async fn read(place: &Place, job: &Job) -> Option<String> {
    let there = place.job(&job.id).await;
    let result = place.engine.take_result(&there).await.unwrap();
    result.map(|payload| String::from_utf8(payload.bytes.to_vec()).unwrap())
}

#[tokio::test]
async fn a_result_is_kept_as_long_as_was_asked() {
    for mut place in everywhere() {
        let job = ended_with_result(&mut place, KeepResult::None).await;
        assert_eq!(read(&place, &job).await, None);

        let job = ended_with_result(&mut place, KeepResult::Once).await;
        assert_eq!(read(&place, &job).await.as_deref(), Some("42"));
        assert_eq!(read(&place, &job).await, None, "the first read took it");

        let unread = ended_with_result(&mut place, KeepResult::Once).await;
        let kept = ended_with_result(&mut place, KeepResult::For(Seconds::new(7200))).await;
        place.wait(3600);
        place.engine.sweep().await.unwrap();
        assert_eq!(read(&place, &unread).await, None, "unread it goes after an hour");
        assert_eq!(read(&place, &kept).await.as_deref(), Some("42"));
        assert_eq!(read(&place, &kept).await.as_deref(), Some("42"));
        place.wait(3600);
        place.engine.sweep().await.unwrap();
        assert_eq!(read(&place, &kept).await, None);
    }
}

#[tokio::test]
async fn an_end_is_not_told_again_when_the_result_goes() {
    for mut place in everywhere() {
        place.with_limit(10).await;
        let told = |keep| {
            work().with_options(|options| {
                options.callback_url = Some("http://127.0.0.1:9/told".parse().unwrap());
                options.keep_result = Some(keep);
            })
        };
        place.enqueue_many([told(KeepResult::Once), told(KeepResult::For(Seconds::new(60)))]).await;
        let result =
            || ReportOutcome::Succeeded { result: Some(Body::Inline(Payload::json("42"))) };
        let reports: Vec<_> =
            place.lease(2).await.iter().map(|job| report(job, result())).collect();
        let ended = place.tick(TickInput { reports, ..TickInput::default() }).await.reports;
        let once = ended[0].as_ref().unwrap();
        assert_eq!(read(&place, once).await.as_deref(), Some("42"));
        place.wait(60);
        place.engine.sweep().await.unwrap();
        assert_eq!(read(&place, ended[1].as_ref().unwrap()).await, None);
        assert_eq!(callbacks(&place).await.len(), 2);
    }
}

#[tokio::test]
async fn ended_jobs_are_pruned_when_their_retention_is_over_and_their_keys_with_them() {
    for mut place in everywhere() {
        place.with_limit(1000).await;
        place
            .set_type(
                "work",
                TypeConfig { retention_seconds: Seconds::new(600), ..TypeConfig::default() },
            )
            .await;
        let jobs = place
            .enqueue_many(
                (0..600).map(|n| NewJob { correlation_key: Some(n.to_string()), ..work() }),
            )
            .await;
        let running = place.lease(1000).await;
        place.succeed(&running).await;
        place.wait(599);
        assert_eq!(place.engine.sweep().await.unwrap().removed, 0);
        place.wait(1);
        let first = place.engine.sweep().await.unwrap();
        assert_eq!(
            (first.removed, first.next_at),
            (500, Some(place.now())),
            "in small batches, and there is more"
        );
        assert_eq!(place.engine.sweep().await.unwrap().removed, 100);
        assert!(place.engine.job(&jobs[0].id, None).await.is_err());
        place.enqueue(NewJob { correlation_key: Some("1".into()), ..work() }).await;
    }
}

#[tokio::test]
async fn a_job_with_retention_zero_is_gone_when_it_ends_and_its_slot_is_free() {
    for mut place in everywhere() {
        place.with_limit(1).await;
        place
            .set_type(
                "work",
                TypeConfig { retention_seconds: Seconds::new(0), ..TypeConfig::default() },
            )
            .await;
        let jobs = place.enqueue_many([work(), work()]).await;
        let running = place.lease(1).await;
        assert_eq!(place.succeed(&running).await[0].life.ended(), Some(Outcome::Succeeded));
        assert!(place.engine.job(&jobs[0].id, None).await.is_err());
        assert_eq!(place.lease(1).await[0].id, jobs[1].id);
    }
}

#[tokio::test]
async fn a_running_job_that_is_cancelled_keeps_its_slot_until_its_result() {
    for mut place in everywhere() {
        place.with_limit(1).await;
        place.enqueue_many([work(), work()]).await;
        let running = place.lease(1).await;
        let (_, cancelled) = place.engine.cancel(&running[0].id, None, false).await.unwrap();
        assert!(!cancelled.ended);
        assert!(place.lease(1).await.is_empty());
        let done = place.succeed(&running).await;
        assert_eq!(done[0].life.ended(), Some(Outcome::Cancelled));
        assert_eq!(place.lease(1).await.len(), 1);
        let again = place.engine.cancel(&running[0].id, None, false).await;
        assert!(matches!(again, Err(Error::Conflict { .. })));
    }
}

#[tokio::test]
async fn a_replay_is_a_new_job_and_leaves_the_old_one_as_it_was() {
    for mut place in everywhere() {
        place.with_limit(1).await;
        let old =
            place.enqueue(work().with_options(|options| options.max_attempts = Some(1))).await;
        let running = place.lease(1).await;
        place
            .tick(TickInput {
                reports: vec![report(&running[0], failed())],
                ..TickInput::default()
            })
            .await;
        let before = place.job(&old.id).await;
        let replayed =
            place.engine.replay(&old.id, None, ReplayWith::default(), None).await.unwrap();
        assert_eq!(replayed.job.spec.replay_of.as_ref(), Some(&old.id));
        assert_eq!(place.job(&old.id).await, before);
        assert_eq!(place.lease(1).await[0].id, replayed.job.id);
    }
}

#[tokio::test]
async fn a_patch_that_is_based_on_an_older_job_is_refused() {
    let place = Place::on(std::sync::Arc::new(MemoryStore::new()));
    place.with_limit(1).await;
    let job = place.enqueue(work()).await;
    let patch = JobPatch { priority: Some(1), ..JobPatch::default() };
    let seen = Some(job.life.revision.0);
    place.engine.patch(&job.id, None, patch.clone(), seen).await.unwrap();
    assert!(matches!(
        place.engine.patch(&job.id, None, patch, seen).await,
        Err(Error::Stale { .. })
    ));
}

#[tokio::test]
async fn new_data_brings_its_own_attributes_and_takes_the_old_ones_away() {
    for place in everywhere() {
        let pointers = [("region", "/region"), ("tenant", "/tenant")]
            .map(|(name, at)| (name.to_owned(), at.to_owned()));
        place
            .set_type("work", TypeConfig { attributes: pointers.into(), ..TypeConfig::default() })
            .await;
        let given = (0..14).map(|n| (format!("given{n:02}"), Value::Number(n.into()))).collect();
        let new = NewJob::new(name("work"), Payload::json(r#"{"region": "east", "tenant": "a"}"#))
            .with_options(|options| options.attributes = given);
        let job = place.enqueue(new).await;
        assert_eq!(job.spec.attributes.len(), 16);
        let patch = |data: &'static str| JobPatch {
            data: Some(Payload::json(data)),
            ..JobPatch::default()
        };
        let (_, job) =
            place.engine.patch(&job.id, None, patch(r#"{"tenant": "b"}"#), None).await.unwrap();
        assert_eq!(
            (job.spec.attributes.get("region"), job.spec.attributes.get("tenant")),
            (None, Some(&Value::Text("b".into())))
        );
        let more = [("more", "/more"), ("region", "/region"), ("tenant", "/tenant")]
            .map(|(name, at)| (name.to_owned(), at.to_owned()));
        place
            .set_type("work", TypeConfig { attributes: more.into(), ..TypeConfig::default() })
            .await;
        let refused = place
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
async fn a_patch_of_windows_brings_a_job_that_waits_for_one_forward_and_not_before_it_was_due() {
    let windows = |spans: &[(&str, &str)]| -> Vec<Window> {
        spans
            .iter()
            .map(|(from, to)| {
                serde_json::from_value(serde_json::json!({"from": from, "to": to})).unwrap()
            })
            .collect()
    };
    for place in everywhere() {
        place.set_type("work", TypeConfig::default()).await;
        let midnight = place.now();
        let hour = |hour: u64| Some(midnight + Duration::from_hours(hour));
        let run_at = async |job: &Job, spans: &[(&str, &str)]| {
            let patch = JobPatch { windows: Some(windows(spans)), ..JobPatch::default() };
            place.engine.patch(&job.id, None, patch, None).await.unwrap().1.life.run_at()
        };
        let noon = Some(windows(&[("12:00", "13:00")]));
        let now =
            place.enqueue(work().with_options(|options| options.windows = noon.clone())).await;
        let later = place
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
    for mut place in everywhere() {
        place.with_limit(1).await;
        place.enqueue(work()).await;
        let running = place.lease(1).await;
        place.engine.cancel(&running[0].id, None, true).await.unwrap();
        for verdict in [ReportOutcome::Succeeded { result: None }, failed()] {
            let ticked = place
                .tick(TickInput {
                    reports: vec![report(&running[0], verdict)],
                    ..TickInput::default()
                })
                .await;
            assert!(
                matches!(
                    &ticked.reports[0],
                    Err(Error::Conflict { code: ErrorCode::StaleAttempt, .. })
                ),
                "{:?}",
                ticked.reports[0]
            );
        }
    }
}

#[tokio::test]
async fn a_result_of_a_job_that_was_to_be_cancelled_may_be_repeated() {
    for mut place in everywhere() {
        place.with_limit(1).await;
        for verdict in [ReportOutcome::Succeeded { result: None }, failed()] {
            place.enqueue(work()).await;
            let running = place.lease(1).await;
            place.engine.cancel(&running[0].id, None, false).await.unwrap();
            for _ in 0..2 {
                let ticked = place
                    .tick(TickInput {
                        reports: vec![report(&running[0], verdict.clone())],
                        ..TickInput::default()
                    })
                    .await;
                assert_eq!(
                    ticked.reports[0].as_ref().unwrap().life.ended(),
                    Some(Outcome::Cancelled)
                );
            }
        }
    }
}
