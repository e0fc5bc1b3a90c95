//! Results and completion callbacks: one callback for each end, results for their time.

use tidegate_core::{
    job::{Body, Encoding, Job, Payload, spec::KeepResult},
    port::job_store::{JobFilter, ListQuery},
    time::Seconds,
};
use tidegate_engine::{
    CALLBACK_QUEUE, CALLBACK_TYPE, TickInput, request::ReportOutcome, testkit::builders::name,
};

use crate::cases::harness::{Harness, every_store, failed, report, work};

async fn callbacks(harness: &Harness) -> Vec<Job> {
    let query = ListQuery {
        filter: JobFilter { queue: Some(name(CALLBACK_QUEUE)), ..JobFilter::default() },
        limit: 100,
        ..ListQuery::default()
    };
    harness.store.list(&query).await.unwrap().jobs
}

#[tokio::test]
async fn completion_callback_is_enqueued_once_for_every_end() {
    for mut harness in every_store() {
        harness.with_limit(10).await;
        let with_callback = || {
            work().with_options(|options| {
                options.callback_url = Some("http://127.0.0.1:9/callback".parse().unwrap());
                options.max_attempts = Some(2);
            })
        };
        let jobs = harness
            .enqueue_many([
                with_callback(),
                with_callback(),
                with_callback(),
                with_callback()
                    .with_options(|options| options.deadline_seconds = Some(Seconds::new(100))),
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
        assert_eq!(callbacks(&harness).await.len(), 2, "a retry sends no callback");
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
async fn a_result_is_kept_for_the_requested_time() {
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
        let with_callback = |keep| {
            work().with_options(|options| {
                options.callback_url = Some("http://127.0.0.1:9/callback".parse().unwrap());
                options.keep_result = Some(keep);
            })
        };
        harness
            .enqueue_many([
                with_callback(KeepResult::Once),
                with_callback(KeepResult::For(Seconds::new(60))),
            ])
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
