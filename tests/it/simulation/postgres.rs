//! Servers with the real adapter of Postgres, each with one of its own, on one schema.
//!
//! The pages of an adapter start at its places, and lack jobs that another server has scheduled before
//! them. Every five seconds it looks from the front. A run has a time of its own, which passes much faster.
//! So its adapters look by that time: the pages of one second in [`LOOK_SECONDS`] do, and no others. Thus
//! the speed of the machine does not decide what a page has.

use std::{sync::Arc, time::Duration};

use tidegate_backends::postgres::{PostgresStore, Settings, test_server};
use tidegate_core::port::{
    StoreLayer,
    job_store::{JobStore, SharedStore, StoreError},
    store_layer::Operation,
};

use super::{
    scheduler::{Scheduler, SkewedClock},
    store::at_once,
};

/// Counts the transactions that each server has committed.
pub const COMMITS: [&str; 2] = ["commits of the first server", "commits of the second server"];

/// The pages of one second in so many look from the front.
const LOOK_SECONDS: i64 = 5;
/// Longer than any run takes.
const NO_LOOK: Duration = Duration::from_hours(24);

/// One server of a schema.
pub struct Server {
    store: PostgresStore,
    scheduler: Arc<Scheduler>,
}

impl Server {
    /// The servers of a schema with empty tables, in the database that tests share.
    pub fn open_all(scheduler: &Arc<Scheduler>) -> Vec<SharedStore> {
        let (address, schema) = (test_server::address("postgres"), test_server::new_name());
        let settings: Settings = format!("{address}&schema={schema}").parse().expect("an address");
        let open = |_| {
            let clock = SkewedClock { scheduler: Arc::clone(scheduler), skew_millis: 0 };
            let opening = PostgresStore::open(settings.clone(), Arc::new(clock));
            let store = at_once(opening).expect("the store opens");
            Arc::new(Self { store, scheduler: Arc::clone(scheduler) }) as SharedStore
        };
        COMMITS.iter().map(open).collect()
    }
}

impl StoreLayer for Server {
    fn inner(&self) -> &dyn JobStore {
        &self.store
    }

    async fn around<T: Send>(
        &self,
        _: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let second = self.scheduler.now().millis().div_euclid(1000);
        let looks = second.rem_euclid(LOOK_SECONDS) == 0;
        self.store.look_after(if looks { Duration::ZERO } else { NO_LOOK });
        call.await
    }
}
