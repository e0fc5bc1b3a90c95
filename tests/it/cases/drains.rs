//! A drain and a stop of a worker at the same moment: each is kept, whichever is written first.

use std::{sync::Arc, time::Duration};

use futures_util::future::join;
use tidegate_core::port::job_store::SharedStore;
use tidegate_engine::config::drain::{Drain, DrainChange};

use crate::cases::harness::{Harness, Yielding, every_store_and_table};

#[tokio::test]
async fn a_drain_and_a_stop_at_once_are_both_kept() {
    for harness in every_store_and_table() {
        let store: SharedStore = Arc::new(Yielding(Arc::clone(&harness.store)));
        let harness = Harness::at(store, Arc::clone(&harness.clock));
        let other = harness.another();
        for (number, changes) in
            [(DrainChange::Drain, DrainChange::Stop), (DrainChange::Stop, DrainChange::Drain)]
                .into_iter()
                .enumerate()
        {
            harness.clock.advance(Duration::from_secs(1));
            let now = harness.now();
            let worker = format!("worker-{number}");
            let one = harness.engine.change_drain(&worker, changes.0);
            let both = join(one, other.change_drain(&worker, changes.1)).await;
            assert!(both.0.is_ok() && both.1.is_ok(), "{both:?}");
            let catalog = harness.another().catalog().await.unwrap();
            let expected = Drain::Stopping { stopping_since: now, drained_since: Some(now) };
            assert_eq!(catalog.drains.get(&worker), Some(&expected));
            // A worker that leaves and comes back is drained still.
            let leave = DrainChange::Leave { keep_drain: true };
            let (left, drained) = join(
                harness.engine.change_drain(&worker, leave),
                other.change_drain(&worker, DrainChange::Drain),
            )
            .await;
            assert_eq!(drained.unwrap().and_then(Drain::drained_since), Some(now));
            assert_eq!(left.unwrap(), Some(Drain::Drained(now)));
        }
    }
}
