//! Checkpoints: what an attempt stores, the next one gets, until the job succeeds.

use tidegate_core::{
    error_code::ErrorCode,
    job::{
        Body, Job, Outcome, Payload,
        lifecycle::{HandBack, ResultBody},
        retry::{Backoff, Jitter, Retry},
        type_config::TypeConfig,
    },
    time::Seconds,
};
use tidegate_engine::{
    Error, TickInput,
    request::{Heartbeat, HeartbeatAnswer, MAX_CHECKPOINT_BYTES, Report, ReportOutcome},
};

use crate::cases::harness::{Harness, every_store_and_table as every_store, failed, report, work};

fn released() -> ReportOutcome {
    ReportOutcome::HandedBack(HandBack::default())
}

/// A checkpoint of `bytes`, at least 3, which begins with `letter`.
fn state(letter: &str, bytes: usize) -> Body {
    Body::Inline(Payload::json(format!("\"{letter}{}\"", "x".repeat(bytes - 3))))
}

async fn beat(harness: &Harness, job: &Job, checkpoint: Body) -> Result<HeartbeatAnswer, Error> {
    let beat = Heartbeat {
        id: job.id.clone(),
        job_type: None,
        attempt: job.life.attempt,
        token: job.life.running().map(|run| run.token),
        lease_seconds: None,
        progress: None,
        checkpoint: Some(checkpoint),
    };
    harness.engine.heartbeat(beat).await
}

/// Reports `outcome`, with a checkpoint.
async fn reported(
    harness: &mut Harness,
    job: &Job,
    outcome: ReportOutcome,
    checkpoint: Option<Body>,
) -> Result<Job, Error> {
    let report = Report { checkpoint, ..report(job, outcome) };
    let report = harness.engine.prepare_report(report).await?;
    let ticked = harness.tick(TickInput { reports: vec![report], ..TickInput::default() }).await;
    ticked.reports.into_iter().next().unwrap()
}

/// The next lease, with its checkpoint.
async fn leased(harness: &mut Harness) -> (Job, Option<Body>) {
    let job = harness.lease(1).await.remove(0);
    let job = harness.engine.load(vec![job]).await.unwrap().remove(0);
    let checkpoint = job.life.checkpoint.as_ref().map(ResultBody::body);
    (job, checkpoint)
}

/// How many objects the object store has.
async fn objects(harness: &Harness) -> usize {
    use futures_util::TryStreamExt as _;
    harness.engine.ports().objects.list(None).try_collect::<Vec<_>>().await.unwrap().len()
}

async fn with_type(harness: &Harness, max_releases: u16) {
    let retry = Retry::Exponential(Backoff {
        base_seconds: Seconds::new(1),
        max_seconds: Seconds::new(1),
        jitter: Jitter::None,
    });
    let config = TypeConfig { retry, max_releases, max_attempts: Some(9), ..TypeConfig::default() };
    harness.set_type("work", config).await;
}

#[tokio::test]
async fn the_next_attempt_gets_what_the_last_one_stored() {
    for mut harness in every_store() {
        with_type(&harness, 100).await;
        for large in [false, true] {
            let bytes = if large { MAX_CHECKPOINT_BYTES } else { 100 };
            let job = harness.enqueue(work()).await;
            let (run, none) = leased(&mut harness).await;
            assert_eq!(none, None);
            beat(&harness, &run, state("a", bytes)).await.unwrap();
            beat(&harness, &run, state("b", bytes)).await.unwrap();
            assert_eq!(objects(&harness).await, usize::from(large), "the older one is deleted");
            reported(&mut harness, &run, failed(), None).await.unwrap();
            harness.wait(1);
            let (run, kept) = leased(&mut harness).await;
            assert_eq!(kept, Some(state("b", bytes)), "of a heartbeat");
            reported(&mut harness, &run, failed(), Some(state("c", bytes))).await.unwrap();
            harness.wait(1);
            let (run, kept) = leased(&mut harness).await;
            assert_eq!(kept, Some(state("c", bytes)), "of a failure");
            assert_eq!(objects(&harness).await, usize::from(large));
            reported(&mut harness, &run, released(), Some(state("d", bytes))).await.unwrap();
            let (run, kept) = leased(&mut harness).await;
            assert_eq!(kept, Some(state("d", bytes)), "of a hand-back");
            // A restart forgets what was cached.
            harness.restart();
            harness.succeed(&[run]).await;
            let there = harness.job(&job.id).await;
            assert_eq!(
                (there.life.ended(), there.life.checkpoint),
                (Some(Outcome::Succeeded), None)
            );
            assert_eq!(objects(&harness).await, 0, "a success clears it");
        }
    }
}

#[tokio::test]
async fn a_checkpoint_of_an_older_attempt_or_too_large_is_refused() {
    for mut harness in every_store() {
        with_type(&harness, 100).await;
        harness.enqueue(work()).await;
        let (old, _) = leased(&mut harness).await;
        reported(&mut harness, &old, released(), Some(state("a", 9))).await.unwrap();
        let (run, _) = leased(&mut harness).await;
        for late in [
            beat(&harness, &old, state("z", 9000)).await.map(drop),
            reported(&mut harness, &old, failed(), Some(state("z", 9000))).await.map(drop),
        ] {
            let stale = matches!(late, Err(Error::Conflict { code: ErrorCode::StaleAttempt, .. }));
            assert!(stale, "{late:?}");
        }
        let long = || state("z", MAX_CHECKPOINT_BYTES + 1);
        for long in [
            beat(&harness, &run, long()).await.map(drop),
            reported(&mut harness, &run, failed(), Some(long())).await.map(drop),
        ] {
            assert!(matches!(long, Err(Error::TooLarge { field: "checkpoint", .. })), "{long:?}");
        }
        assert_eq!(objects(&harness).await, 0, "what was refused is deleted");
        reported(&mut harness, &run, released(), None).await.unwrap();
        assert_eq!(leased(&mut harness).await.1, Some(state("a", 9)));
    }
}

#[tokio::test]
async fn a_new_checkpoint_is_progress_and_the_same_one_is_none() {
    for mut harness in every_store() {
        with_type(&harness, 1).await;
        let job = harness.enqueue(work()).await;
        for bytes in [9, 9000] {
            for letter in ["a", "b", "c"] {
                let (run, _) = leased(&mut harness).await;
                let there = reported(&mut harness, &run, released(), Some(state(letter, bytes)));
                assert!(there.await.unwrap().life.error.is_none(), "it goes on");
            }
        }
        for expected in [false, true] {
            let (run, _) = leased(&mut harness).await;
            let there = reported(&mut harness, &run, released(), Some(state("c", 9000))).await;
            assert_eq!(there.unwrap().life.error.is_some(), expected);
        }
        assert_eq!(harness.job(&job.id).await.life.counted_attempts(), 1);
    }
}

#[tokio::test]
async fn a_checkpoint_that_is_lost_costs_no_attempt() {
    for mut harness in every_store() {
        with_type(&harness, 100).await;
        harness.enqueue(work()).await;
        let (run, _) = leased(&mut harness).await;
        let back = reported(&mut harness, &run, released(), Some(state("a", 9000))).await.unwrap();
        let (key, _) = back.life.checkpoint.unwrap().object.unwrap();
        let path = object_store::path::Path::from(key);
        object_store::ObjectStoreExt::delete(&*harness.engine.ports().objects, &path)
            .await
            .unwrap();
        assert_eq!(leased(&mut harness).await.1, None, "it begins at the beginning");
    }
}
