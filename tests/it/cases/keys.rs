//! A job's id and its keys: a repeat matches by id, even if another job holds the keys by then.

use std::sync::Arc;
use tidegate_core::error_code::ErrorCode;

use futures_util::poll;
use tidegate_core::{
    job::{
        Body, Payload,
        spec::{Unique, UniqueWhile},
        type_config::TypeConfig,
    },
    port::job_store::{Key, SharedStore},
};
use tidegate_engine::{
    Error,
    request::{Enqueued, NewJob, ReplayWith},
    testkit::{builders::name, faults::FaultyStore},
};

use super::harness::{Harness, every_store, every_store_and_table, work};

fn with_keys(id: &str) -> NewJob {
    let unique = Unique::new("u", UniqueWhile::Live);
    NewJob {
        id: Some(name(id)),
        correlation_key: Some("c".into()),
        ..work().with_options(|options| options.unique = Some(unique))
    }
}

#[tokio::test]
async fn a_repeated_enqueue_matches_by_id_after_its_keys_moved() {
    for mut harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        let first = harness.enqueue(with_keys("first")).await;
        let run = harness.lease(1).await;
        harness.succeed(&run).await;
        let second = harness.enqueue(with_keys("second")).await;
        assert_eq!(second.id.as_str(), "second", "the keys of an ended job are free");
        let again = harness.engine.enqueue(vec![with_keys("first")]).await.pop().unwrap().unwrap();
        assert_eq!((&again.job.id, again.new), (&first.id, false));
        let mut other = with_keys("first");
        other.data = Payload::json("7");
        let refused = harness.engine.enqueue(vec![other]).await.pop().unwrap();
        assert!(
            matches!(&refused, Err(Error::Conflict { code: ErrorCode::IdTaken, .. })),
            "{refused:?}"
        );
        let third = with_keys("third").with_options(|options| options.unique = None);
        let refused = harness.engine.enqueue(vec![third]).await.pop().unwrap();
        assert!(
            matches!(&refused, Err(Error::Conflict { code: ErrorCode::CorrelationKeyTaken, .. })),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn a_repeated_enqueue_succeeds_though_now_it_would_be_refused() {
    for mut harness in every_store() {
        harness.with_limit(10).await;
        let by_id = NewJob {
            id: Some(name("by-id")),
            ..work().with_options(|options| options.weight = Some(5))
        };
        let by_key = NewJob {
            idempotency_key: Some("k".into()),
            ..work().with_options(|options| options.weight = Some(5))
        };
        let first = harness.enqueue_many([by_id.clone(), by_key.clone()]).await;
        let run = harness.lease(1).await;
        harness.succeed(&run).await;
        harness.with_limit(2).await;
        for (sent, first) in [by_id.clone(), by_key.clone()].into_iter().zip(&first) {
            let again = harness.engine.enqueue(vec![sent]).await.pop().unwrap().unwrap();
            assert_eq!((&again.job.id, again.new), (&first.id, false));
        }
        let other = by_id.with_options(|options| options.weight = Some(6));
        let refused = harness.engine.enqueue(vec![other]).await.pop().unwrap();
        assert!(
            matches!(&refused, Err(Error::Invalid { code: ErrorCode::WeightOverLimit, .. })),
            "{refused:?}"
        );
    }
}

/// A request without an id, with this correlation key.
fn unnamed(data: &'static str) -> NewJob {
    NewJob { correlation_key: Some("c".into()), data: Payload::json(data), ..work() }
}

/// A harness on `behind` whose writes are separate; other processes run between them.
async fn one_by_one(behind: SharedStore) -> Harness {
    let harness = Harness::on(Arc::new(FaultyStore::new(behind, 1)));
    harness.set_type("work", TypeConfig::default()).await;
    harness
}

/// Begins to enqueue `job`, as far as its correlation key.
async fn begun(harness: &Harness, job: NewJob) -> impl Future<Output = Result<Enqueued, Error>> {
    let mut enqueue = Box::pin(harness.engine.enqueue(vec![job]));
    let key = [Key::Correlation(name("work"), "c".into())];
    while harness.store.keys(&key).await.unwrap()[0] == Ok(None) {
        assert!(poll!(&mut enqueue).is_pending(), "it ends after its key is written");
    }
    async move { enqueue.await.pop().unwrap() }
}

#[tokio::test]
async fn only_one_of_two_requests_gets_a_correlation_key() {
    for behind in every_store_and_table().into_iter().map(|harness| harness.store) {
        let harness = one_by_one(behind).await;
        let slow = begun(&harness, unnamed("1")).await;
        let fast = harness.another().enqueue(vec![unnamed("2")]).await.pop().unwrap();
        let slow = slow.await;
        let accepted: Vec<_> = [slow, fast].into_iter().flatten().collect();
        assert_eq!(accepted.len(), 1, "one of them has the key: {accepted:?}");
        let job = harness.job(&accepted[0].job.id).await;
        assert_eq!(job.data, accepted[0].job.data, "what was accepted is what is done");
    }
}

#[tokio::test]
async fn a_client_id_that_looks_generated_is_never_shared() {
    for behind in every_store_and_table().into_iter().map(|harness| harness.store) {
        let harness = one_by_one(behind).await;
        let named = || NewJob { id: Some(name("01jcz0000000000000000000aa")), ..unnamed("1") };
        // The process dies between the write of the key and that of the job.
        drop(begun(&harness, named()).await);
        let other = harness.another().enqueue(vec![unnamed("2")]).await.pop().unwrap();
        assert!(matches!(&other, Err(Error::Unavailable { .. })), "{other:?}");
        let again = harness.engine.enqueue(vec![named()]).await.pop().unwrap().unwrap();
        assert_eq!((again.new, &again.job.data), (true, &Body::Inline(Payload::json("1"))));
    }
}

#[tokio::test]
async fn one_key_does_not_stand_for_replays_of_two_jobs() {
    for mut harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        let jobs = harness.enqueue_many([work(), work()]).await;
        let run = harness.lease(2).await;
        harness.succeed(&run).await;
        let replay = |index: usize| {
            harness.engine.replay(&jobs[index].id, None, ReplayWith::default(), Some("k".into()))
        };
        let first = replay(0).await.unwrap();
        let again = replay(0).await.unwrap();
        assert_eq!((&again.job.id, again.new), (&first.job.id, false));
        let refused = replay(1).await;
        assert!(
            matches!(&refused, Err(Error::Conflict { code: ErrorCode::IdempotencyKeyReused, .. })),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn a_recreated_type_refuses_the_version_of_the_deleted_one() {
    for harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        let (first, _) =
            harness.engine.put_type(&name("other"), TypeConfig::default(), None).await.unwrap();
        harness.engine.delete_type(&name("other"), None).await.unwrap();
        let (second, new) =
            harness.engine.put_type(&name("other"), TypeConfig::default(), None).await.unwrap();
        assert!(new && second.version > first.version);
        let refused = harness
            .engine
            .put_type(&name("other"), TypeConfig::default(), Some(first.version))
            .await;
        assert!(matches!(&refused, Err(Error::Stale { .. })), "{refused:?}");
    }
}
