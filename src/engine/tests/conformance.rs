//! The store in memory passes the conformance tests of job stores, with atomic transactions and
//! without.

use std::sync::Arc;

use tidegate_engine::{job_store_conformance, memory::MemoryStore, testkit::faults::FaultyStore};

job_store_conformance!(memory, MemoryStore::new());
job_store_conformance!(one_write_at_a_time, FaultyStore::new(Arc::new(MemoryStore::new()), 1));
