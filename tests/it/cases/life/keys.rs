//! Unique and correlation keys: how long a job holds them.

use tidegate_core::{
    job::spec::{Unique, UniqueWhile},
    time::Seconds,
};
use tidegate_engine::{Error, TickInput, request::NewJob};

use crate::cases::harness::{every_store, failed, report, work};

fn unique(hold: UniqueWhile, period: Option<u64>) -> NewJob {
    work().with_options(|options| {
        let period_seconds = period.map(Seconds::new);
        options.unique = Some(Unique { period_seconds, ..Unique::new("k", hold) });
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
