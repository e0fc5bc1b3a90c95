//! Every job store keeps the contract of its port.

use std::sync::Arc;

use tidegate_backends::sqlite::SqliteStore;
use tidegate_engine::{job_store_conformance, memory::MemoryStore, testkit::faults::FaultyStore};

job_store_conformance!(memory, MemoryStore::new());
job_store_conformance!(sqlite, SqliteStore::open_temporary().unwrap());
job_store_conformance!(one_write_at_a_time, FaultyStore::new(Arc::new(MemoryStore::new()), 1));
