//! Jobs whose attempts were handed back are due again.

use super::{add, claim, done, get, step};
use crate::testkit::builders::{at, job, name};
use tidegate_core::{
    job::{
        Event,
        lifecycle::{HandBack, RetryDecision},
    },
    port::job_store::{DueQuery, JobStore},
    queue::order::Order,
};

/// A job whose attempt was handed back is due when it was before, in the past too, or at the time
/// that its worker asked for.
pub async fn a_job_that_is_handed_back_has_its_place_again(store: &dyn JobStore) {
    let of = |id: &str, due| job(id).queue("mail").of_type("x").due(due).build();
    let (first, second, third) = (of("one", 100), of("two", 200), of("three", 300));
    add(store, [first.clone(), second.clone(), third.clone()]).await;
    let due = async |until| {
        let query = DueQuery {
            queue: name("mail"),
            critical: false,
            types: vec![name("x")],
            partition: None,
            order: Order::Time { step_millis: 0 },
            until: at(until),
            after: None,
            limit: 10,
            granted: None,
        };
        let page = store.due(&[query]).await.expect("the store answers").remove(0);
        page.jobs.iter().map(|job| job.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(due(1_000).await, ["one", "two", "three"]);
    for (job, until) in [(&first, None), (&second, Some(at(9_000_000)))] {
        let (write, running) = step(job, claim(job, true), at(5_000));
        done(store, vec![write]).await;
        let message = Some("no time".to_owned());
        let back = Event::HandBack {
            attempt: 1,
            received: true,
            hand_back: HandBack { until, message, ..HandBack::default() },
            at_most_once: until.is_some(),
            max_in_a_row: 1,
            next: RetryDecision::GiveUp,
        };
        let (write, waiting) = step(&running, back, at(6_000));
        done(store, vec![write]).await;
        assert_eq!(get(store, job).await, waiting);
    }
    assert_eq!(due(8_000_000).await, ["one", "three"]);
    assert_eq!(due(10_000_000).await, ["one", "three", "two"]);
}
