//! Jobs that are handed on without a claim: of a hand-on and a change of the same job one comes first, and nobody is told otherwise.

use std::{pin::pin, sync::Arc, task::Poll, time::Duration};
use tidegate_core::error_code::ErrorCode;

use futures_util::poll;
use tidegate_core::{
    job::{
        Outcome,
        type_config::{Start, TypeConfig},
    },
    port::job_store::SharedStore,
    target::{Push, TargetConfig},
    time::Seconds,
};
use tidegate_engine::{
    Dispatch, Error, TickCache, TickInput,
    memory::MemoryStore,
    request::{Heartbeat, JobPatch, NewJob},
    testkit::{builders::name, faults::FaultyStore},
};

use super::place::{Place, ask, everywhere, queue, work};

/// A push type whose jobs are handed on without a claim.
fn plain() -> TypeConfig {
    let target = TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:1/")));
    TypeConfig { target: Some(target), start: Start::Plain, ..TypeConfig::default() }
}

/// A place where others have a turn before each write, with a plain job and one that is claimed: its claim is a write.
async fn with_turns() -> (Place, tidegate_core::job::Job) {
    let store = FaultyStore::new(Arc::new(MemoryStore::new()) as SharedStore, 1)
        .with_flight(Duration::ZERO);
    let place = Place::on(Arc::new(store));
    place.set_type("work", plain()).await;
    place.set_type("claimed", TypeConfig::default()).await;
    let job = place.enqueue(work()).await;
    place.enqueue(NewJob::new(name("claimed"), work().data)).await;
    (place, job)
}

fn both() -> TickInput {
    TickInput {
        demands: vec![ask(&["work", "claimed"], 2, Dispatch::Claim)],
        ..TickInput::default()
    }
}

#[tokio::test]
async fn what_changes_between_the_look_and_the_hand_on_is_not_handed_on() {
    for change in ["cancel", "patch", "pause"] {
        let (place, job) = with_turns().await;
        let (of, mut memory) = (queue(), TickCache::default());
        let ticked = {
            let mut tick = pin!(place.engine.tick(&of, &mut memory, both()));
            assert!(
                poll!(&mut tick).is_pending(),
                "it has looked, and is to write the other's claim"
            );
            match change {
                "cancel" => drop(place.engine.cancel(&job.id, None, false).await.unwrap()),
                "patch" => {
                    let patch = JobPatch {
                        run_at: Some(place.now() + Duration::from_mins(1)),
                        ..JobPatch::default()
                    };
                    place.engine.patch(&job.id, None, patch, None).await.unwrap();
                }
                _ => drop(place.engine.pause_queue(&queue(), true).await.unwrap()),
            }
            tick.await.unwrap()
        };
        assert!(
            ticked.claimed.iter().all(|claimed| claimed.job.id != job.id),
            "{change} was answered"
        );
        assert!(ticked.again, "who was left out is looked for again");
    }
}

#[tokio::test]
async fn a_job_is_not_handed_on_while_somebody_cancels_it() {
    let (place, job) = with_turns().await;
    let (of, mut memory) = (queue(), TickCache::default());
    let mut cancel = pin!(place.engine.cancel(&job.id, None, false));
    assert!(poll!(&mut cancel).is_pending(), "it has looked, and is to write");
    let ticked = place.engine.tick(&of, &mut memory, both()).await.unwrap();
    assert!(ticked.again && ticked.claimed.iter().all(|claimed| claimed.job.id != job.id));
    let Poll::Ready(cancelled) = poll!(&mut cancel) else { panic!("its turn has come") };
    assert!(cancelled.unwrap().1.ended);
}

#[tokio::test]
async fn a_job_that_was_handed_on_and_then_changed_elsewhere_is_free_again() {
    for mut place in everywhere() {
        place.set_type("work", plain()).await;
        place.enqueue(work()).await;
        let run = place.lease(1).await.remove(0);
        let other = Place::on(Arc::clone(&place.store));
        other
            .engine
            .patch(&run.id, None, JobPatch { priority: Some(1), ..JobPatch::default() }, None)
            .await
            .unwrap();
        let beat = Heartbeat {
            id: run.id.clone(),
            job_type: None,
            attempt: 1,
            token: run.life.running().map(|run| run.token),
            lease_seconds: Some(Seconds::from_millis(60_000)),
            progress: None,
        };
        let refused = place.engine.heartbeat(beat).await;
        assert!(
            matches!(refused, Err(Error::Conflict { code: ErrorCode::StaleAttempt, .. })),
            "{refused:?}"
        );
        assert_eq!(place.lease(1).await.len(), 1, "nobody has it, so it is to be had");
    }
}

#[tokio::test]
async fn a_sweep_looks_past_what_is_handed_on() {
    for mut place in everywhere() {
        place.set_type("work", plain()).await;
        place.set_type("claimed", TypeConfig::default()).await;
        let soon = Some(place.now() + Duration::from_secs(10));
        place.enqueue_many((0..600).map(|_| NewJob { expires_at: soon, ..work() })).await;
        assert_eq!(place.lease(600).await.len(), 600);
        let later = Some(place.now() + Duration::from_secs(20));
        let other = place
            .enqueue(NewJob { expires_at: later, ..NewJob::new(name("claimed"), work().data) })
            .await;
        place.wait(30);
        let swept = place.engine.sweep().await.unwrap();
        assert_eq!(place.job(&other.id).await.life.ended(), Some(Outcome::Expired));
        assert_ne!(
            swept.next_at,
            Some(place.now()),
            "there is nothing else to do about those that are on their way"
        );
    }
}
