//! The contract of the job store on both tables, at the time when jobs are due and a day later,
//! when every job is late.

use std::sync::Arc;

use tidegate_backends::dynamodb::{DynamoStore, memory::MemoryTable, table::Table};
use tidegate_core::time::Timestamp;
use tidegate_engine::{
    job_store_conformance,
    memory::{FakeClock, SeededEntropy},
};

use super::emulator::EmulatedTable;

/// A store on `table`, with the clock at `now`.
fn store(table: impl Table + 'static, now: Timestamp) -> DynamoStore {
    DynamoStore::new(
        Arc::new(table),
        Arc::new(FakeClock::new(now)),
        Arc::new(SeededEntropy::new(7)),
    )
}

/// A table that answers two empty pages before each page with items.
fn with_empty_pages() -> MemoryTable {
    let table = MemoryTable::new();
    table.answer_empty_pages(2);
    table
}

/// When the suites' jobs are due.
const THEN: Timestamp = Timestamp::EPOCH;
/// A day later.
const LATER: Timestamp = Timestamp::from_millis(86_400_000);

job_store_conformance!(in_memory, store(MemoryTable::new(), THEN), DynamoStore::damage_job);
job_store_conformance!(
    in_memory_when_all_is_late,
    store(MemoryTable::new(), LATER),
    DynamoStore::damage_job
);
job_store_conformance!(
    in_memory_on_several_shards,
    store(MemoryTable::new(), THEN).with_shards(3),
    DynamoStore::damage_job
);
job_store_conformance!(
    in_memory_with_empty_pages,
    store(with_empty_pages(), LATER),
    DynamoStore::damage_job
);
job_store_conformance!(emulated, store(EmulatedTable::new(), THEN), DynamoStore::damage_job);
