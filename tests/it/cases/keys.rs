//! A job's id and its keys: a repeat is answered by the id, whoever holds the keys by then.

use tidegate::{
    engine::{Error, request::NewJob},
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
