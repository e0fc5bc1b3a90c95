//! A job's id and its keys: a repeat is answered by the id, whoever holds the keys by then.

use tidegate::{
    engine::{
        Error,
        request::{NewJob, ReplayWith},
    },
    job::{
        Payload,
        spec::{Unique, UniqueWhile},
    },
    queue::TypeConfig,
    testkit::builders::name,
};

use super::place::{everywhere, work};

fn with_keys(id: &str) -> NewJob {
    let unique = Unique { key: "u".into(), hold: UniqueWhile::Live, period_seconds: None };
    NewJob { id: Some(name(id)), unique: Some(unique), correlation_key: Some("c".into()), ..work() }
}

#[tokio::test]
async fn a_repeat_is_answered_by_its_id_though_its_keys_have_changed_hands() {
    for mut place in everywhere() {
        place.set_type("work", TypeConfig::default()).await;
        let first = place.enqueue(with_keys("first")).await;
        let run = place.lease(1).await;
        place.succeed(&run).await;
        let second = place.enqueue(with_keys("second")).await;
        assert_eq!(second.id.as_str(), "second", "the keys of an ended job are free");
        let again = place.engine.enqueue(vec![with_keys("first")]).await.pop().unwrap().unwrap();
        assert_eq!((&again.job.id, again.new), (&first.id, false));
        let mut other = with_keys("first");
        other.data = Payload::json("7");
        let refused = place.engine.enqueue(vec![other]).await.pop().unwrap();
        assert!(matches!(&refused, Err(Error::Conflict { code: "id_taken", .. })), "{refused:?}");
        let third = NewJob { unique: None, ..with_keys("third") };
        let refused = place.engine.enqueue(vec![third]).await.pop().unwrap();
        assert!(matches!(&refused, Err(Error::Conflict { code: "correlation_key_taken", .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn a_repeat_is_answered_as_it_was_though_it_would_be_refused_today() {
    for mut place in everywhere() {
        place.with_limit(10).await;
        let by_id = NewJob { id: Some(name("by-id")), weight: Some(5), ..work() };
        let by_key = NewJob { idempotency_key: Some("k".into()), weight: Some(5), ..work() };
        let first = place.enqueue_many([by_id.clone(), by_key.clone()]).await;
        let run = place.lease(1).await;
        place.succeed(&run).await;
        place.with_limit(2).await;
        for (sent, first) in [by_id.clone(), by_key.clone()].into_iter().zip(&first) {
            let again = place.engine.enqueue(vec![sent]).await.pop().unwrap().unwrap();
            assert_eq!((&again.job.id, again.new), (&first.id, false));
        }
        let other = NewJob { weight: Some(6), ..by_id };
        let refused = place.engine.enqueue(vec![other]).await.pop().unwrap();
        assert!(matches!(&refused, Err(Error::Invalid { code: "weight_over_limit", .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn one_key_does_not_stand_for_replays_of_two_jobs() {
    for mut place in everywhere() {
        place.set_type("work", TypeConfig::default()).await;
        let jobs = place.enqueue_many([work(), work()]).await;
        let run = place.lease(2).await;
        place.succeed(&run).await;
        let replay = |index: usize| place.engine.replay(&jobs[index].id, None, ReplayWith::default(), Some("k".into()));
        let first = replay(0).await.unwrap();
        let again = replay(0).await.unwrap();
        assert_eq!((&again.job.id, again.new), (&first.job.id, false));
        let refused = replay(1).await;
        assert!(matches!(&refused, Err(Error::Conflict { code: "idempotency_key_reused", .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn what_is_made_anew_is_not_taken_for_what_it_replaces() {
    for place in everywhere() {
        place.set_type("work", TypeConfig::default()).await;
        let (first, _) = place.engine.put_type(&name("other"), TypeConfig::default(), None).await.unwrap();
        place.engine.delete_type(&name("other"), None).await.unwrap();
        let (second, new) = place.engine.put_type(&name("other"), TypeConfig::default(), None).await.unwrap();
        assert!(new && second.version > first.version);
        let refused = place.engine.put_type(&name("other"), TypeConfig::default(), Some(first.version)).await;
        assert!(matches!(&refused, Err(Error::Stale { .. })), "{refused:?}");
    }
}
