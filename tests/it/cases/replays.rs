//! Replays: one job for each replayed one, which names it.

use tidegate_core::{
    error_code::ErrorCode,
    job::{Job, JobId, Origin, Payload, type_config::TypeConfig},
    time::Seconds,
};
use tidegate_engine::{
    Error,
    request::{Enqueued, NewJob, ReplayWith},
    testkit::builders::name,
};

use super::harness::{Harness, every_store_and_table, work};

fn again() -> ReplayWith {
    ReplayWith { again: true, ..ReplayWith::default() }
}

/// An ended job of the type `work` on every store.
async fn ended(job: NewJob, retention_seconds: u64) -> Vec<(Harness, Job)> {
    let mut all = Vec::new();
    for mut harness in every_store_and_table() {
        let retention_seconds = Seconds::new(retention_seconds);
        harness.set_type("work", TypeConfig { retention_seconds, ..TypeConfig::default() }).await;
        let job = harness.enqueue(job.clone()).await;
        let run = harness.lease(1).await;
        harness.succeed(&run).await;
        all.push((harness, job));
    }
    all
}

async fn replay(harness: &Harness, job: &JobId, with: ReplayWith) -> Result<Enqueued, Error> {
    harness.engine.replay(job, None, with, None).await
}

/// The code and the holder of a conflict.
fn conflict(answer: Result<Enqueued, Error>) -> (ErrorCode, JobId) {
    match answer {
        Err(Error::Conflict { code, holder: Some(holder), .. }) => (code, holder),
        other => panic!("no conflict: {other:?}"),
    }
}

#[tokio::test]
async fn a_replay_has_the_origin_of_the_first_job() {
    let origin = Some(Box::new(Origin::schedule(name("nightly"), None)));
    for (harness, old) in ended(NewJob { origin: origin.clone(), ..work() }, 1000).await {
        let again = replay(&harness, &old.id, ReplayWith::default()).await.unwrap();
        assert_eq!(harness.job(&again.job.id).await.spec.origin, origin);
    }
}

#[tokio::test]
async fn two_replays_of_a_job_make_one_job() {
    for (harness, old) in ended(work(), 1000).await {
        let first = replay(&harness, &old.id, ReplayWith::default()).await.unwrap();
        let marked = harness.job(&old.id).await;
        assert_eq!(marked.life.replayed_by.as_ref(), Some(&first.job.id));
        let second = replay(&harness, &old.id, ReplayWith::default()).await.unwrap();
        assert_eq!((first.new, second.new, &second.job.id), (true, false, &first.job.id));
        assert_eq!(harness.job(&old.id).await, marked, "the second one writes nothing");
        let other = ReplayWith { data: Some(Payload::json("5")), ..ReplayWith::default() };
        let refused = conflict(replay(&harness, &old.id, other).await);
        assert_eq!(refused, (ErrorCode::AlreadyReplayed, first.job.id));
    }
}

#[tokio::test]
async fn no_producer_can_take_the_id_of_a_replay() {
    for (harness, old) in ended(work(), 1000).await {
        let made = replay(&harness, &old.id, ReplayWith::default()).await.unwrap().job.id;
        harness.engine.job(&made, None).await.unwrap();
        let other: JobId = format!("re-{}", "0a".repeat(20)).parse().unwrap();
        for id in [made, other] {
            let refused = harness.engine.enqueue(vec![NewJob { id: Some(id), ..work() }]).await;
            let Some(Err(Error::Invalid { field, .. })) = refused.first() else {
                panic!("{refused:?}")
            };
            assert_eq!(field, "id");
        }
        for id in ["re-0a", "re-", &format!("re-{}", "0g".repeat(20))] {
            let id = Some(id.parse().unwrap());
            harness.enqueue(NewJob { id, ..work() }).await;
        }
    }
}

#[tokio::test]
async fn two_replays_at_the_same_time_make_one_job() {
    for (harness, old) in ended(work(), 1000).await {
        let another = harness.another();
        let (one, two) = tokio::join!(
            replay(&harness, &old.id, ReplayWith::default()),
            another.replay(&old.id, None, ReplayWith::default(), None),
        );
        let (one, two) = (one.unwrap(), two.unwrap());
        assert_eq!((&one.job.id, one.new), (&two.job.id, !two.new));
    }
}

#[tokio::test]
async fn another_replay_is_made_on_request() {
    for (harness, old) in ended(work(), 1000).await {
        let first = replay(&harness, &old.id, ReplayWith::default()).await.unwrap();
        let second = replay(&harness, &old.id, again()).await.unwrap();
        let third = replay(&harness, &old.id, again()).await.unwrap();
        assert!(second.new && third.new && second.job.id != third.job.id);
        assert_eq!(harness.job(&old.id).await.life.replayed_by, Some(third.job.id));
        let repeat = replay(&harness, &old.id, ReplayWith::default()).await.unwrap();
        assert_eq!((repeat.new, repeat.job.id), (false, first.job.id));
    }
}

#[tokio::test]
async fn a_replay_keeps_the_correlation_key_unless_a_job_holds_it() {
    let keyed = NewJob { correlation_key: Some("order".into()), ..work() };
    for (harness, old) in ended(keyed.clone(), 1000).await {
        let holder = harness.enqueue(keyed.clone()).await;
        for with in [ReplayWith::default(), again()] {
            let refused = conflict(replay(&harness, &old.id, with).await);
            assert_eq!(refused, (ErrorCode::CorrelationKeyTaken, holder.id.clone()));
        }
        assert_eq!(harness.job(&old.id).await.life.replayed_by, None);
        harness.engine.cancel(&holder.id, None, false).await.unwrap();
        let made = replay(&harness, &old.id, ReplayWith::default()).await.unwrap();
        assert_eq!(made.job.spec.correlation_key.as_deref(), Some("order"));
        let repeat = replay(&harness, &old.id, ReplayWith::default()).await.unwrap();
        assert_eq!((repeat.new, &repeat.job.id), (false, &made.job.id));
    }
}

#[tokio::test]
async fn a_replay_that_is_gone_is_not_made_a_second_time() {
    for (mut harness, old) in ended(work(), 1000).await {
        harness.set_type("work", TypeConfig::default()).await;
        let config = TypeConfig { retention_seconds: Seconds::new(0), ..TypeConfig::default() };
        harness.set_type("work", config).await;
        let made = replay(&harness, &old.id, ReplayWith::default()).await.unwrap();
        let run = harness.lease(1).await;
        assert_eq!(run[0].id, made.job.id);
        harness.succeed(&run).await;
        assert!(harness.engine.job(&made.job.id, None).await.is_err(), "it is not kept");
        let refused = conflict(replay(&harness, &old.id, ReplayWith::default()).await);
        assert_eq!(refused, (ErrorCode::AlreadyReplayed, made.job.id));
        assert!(replay(&harness, &old.id, again()).await.unwrap().new);
    }
}

#[tokio::test]
async fn a_replay_is_made_of_the_job_as_it_is() {
    for (harness, old) in ended(work(), 1000).await {
        let other = replay(&harness, &old.id, again());
        let (made, taken) = tokio::join!(replay(&harness, &old.id, ReplayWith::default()), other,);
        assert!(taken.unwrap().new);
        // The first one sees the mark of the other one, or none.
        match made {
            Ok(made) => assert!(made.new),
            other => assert_eq!(conflict(other).0, ErrorCode::AlreadyReplayed),
        }
        assert!(harness.job(&old.id).await.life.replayed_by.is_some());
    }
}
