//! A move into a table that dies at any of its writes, and goes on in another process.

use std::sync::Arc;

use tidegate_backends::dynamodb::memory::MemoryTable;
use tidegate_core::port::job_store::JobStore as _;
use tidegate_engine::{
    memory::FakeClock,
    moves::Side,
    testkit::builders::{at, name},
};

use super::{of, process};
use crate::{
    dynamodb::retention::DyingTable,
    moves::{NOW, filled, moved, side},
};

#[tokio::test]
async fn a_move_into_a_table_that_dies_at_any_write_goes_on() {
    for writes in 0.. {
        let clock = Arc::new(FakeClock::new(at(NOW)));
        let (from, table) = (filled().await, Arc::new(MemoryTable::new()));
        let dying = DyingTable::after(&table, writes);
        let first = side(process(Arc::new(dying), &clock, 1), "the table");
        let was_whole = moved(&of(&from, &first, &clock), "one").await.is_ok();
        let store = process(table, &clock, 2);
        let second = Side { store: Arc::clone(&store) as _, ..first };
        if was_whole {
            assert!(writes > 100, "the jobs alone need more writes: {writes}");
            return;
        }
        let comparison = moved(&of(&from, &second, &clock), "two").await;
        let comparison = comparison.unwrap_or_else(|error| panic!("{writes}: {error:?}"));
        assert!(comparison.is_equal(), "{writes}: {comparison:?}");
        let running = store.running(&name("mail"), None, 10).await.unwrap();
        assert_eq!(running.len(), 1, "{writes}: the running job is found");
    }
}
