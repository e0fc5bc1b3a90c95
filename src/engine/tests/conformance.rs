//! The store in memory passes the conformance tests of job stores, with atomic transactions and
//! without.

use std::sync::Arc;

use tidegate_core::{
    job::JobId,
    port::{JobStore, StoreLayer},
};
use tidegate_engine::{job_store_conformance, memory::MemoryStore, testkit::faults::FaultyStore};

/// A store without transactions, and the one behind it.
struct OneByOne(Arc<MemoryStore>, FaultyStore);

impl OneByOne {
    fn new() -> Self {
        let memory = Arc::new(MemoryStore::new());
        Self(Arc::clone(&memory), FaultyStore::new(memory, 1))
    }

    fn damage_job(&self, id: &JobId) {
        self.0.damage_job(id);
    }
}

impl StoreLayer for OneByOne {
    fn inner(&self) -> &dyn JobStore {
        &self.1
    }
}

job_store_conformance!(memory, MemoryStore::new(), async |store, id| store.damage_job(id));
job_store_conformance!(one_by_one, OneByOne::new(), async |store, id| store.damage_job(id));
