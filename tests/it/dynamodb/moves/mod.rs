//! Moves into a table and out of it: everything arrives, ticks and sweeps find the moved jobs, and a
//! move that dies at any write goes on.

mod command;
mod found;
mod interrupted;

use std::sync::Arc;

use async_trait::async_trait;
use tidegate_backends::dynamodb::{DynamoStore, memory::MemoryTable, table::Table};
use tidegate_core::{
    port::{
        Clock,
        job_store::{Expect, ItemKind, JobStore as _, Write},
    },
    time::Timestamp,
};
use tidegate_engine::{
    memory::{FakeClock, MemoryStore, SeededEntropy},
    moves::{Move, Side, abort},
    testkit::builders::{at, name},
};

use super::emulator::EmulatedTable;
use crate::{
    every_record::every_answer,
    moves::{NOW, committed, filled, moved, sent_ledger, side},
};

/// A clock that a sleep moves to its end.
struct PassingClock(Arc<FakeClock>);

#[async_trait]
impl Clock for PassingClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    async fn sleep_until(&self, at: Timestamp) {
        if self.now() < at {
            self.0.set(at);
        }
    }
}

/// A process on `table`.
fn process(table: Arc<dyn Table>, clock: &Arc<FakeClock>, seed: u64) -> Arc<DynamoStore> {
    let (clock, entropy) = (Arc::clone(clock), Arc::new(SeededEntropy::new(seed)));
    Arc::new(DynamoStore::new(table, clock, entropy))
}

fn of(from: &Side, to: &Side, clock: &Arc<FakeClock>) -> Move {
    let clock = Arc::new(PassingClock(Arc::clone(clock)));
    Move { from: from.clone(), to: to.clone(), clock }
}

/// Moves everything into `table`, and from there into a store in memory.
async fn there_and_back(table: Arc<dyn Table>) {
    let clock = Arc::new(FakeClock::new(at(NOW)));
    let from = filled().await;
    let on_table = side(process(Arc::clone(&table), &clock, 1), "the table");
    // Another process, which remembers nothing.
    let of_table = Side { store: process(table, &clock, 2), ..on_table.clone() };
    let back = side(Arc::new(MemoryStore::new()), "the end");
    for this in [of(&from, &on_table, &clock), of(&of_table, &back, &clock)] {
        let comparison = moved(&this, "one").await.unwrap();
        assert!(comparison.is_equal(), "{comparison:?}");
        for part in comparison.parts {
            assert!(part.from > 0, "there is something of {}", part.part);
            assert_eq!(part.from, part.to, "{}", part.part);
        }
    }
    assert_eq!(every_answer(&*back.store).await, every_answer(&*from.store).await);
}

#[tokio::test]
async fn everything_goes_to_a_table_and_back() {
    there_and_back(Arc::new(MemoryTable::new())).await;
}

#[tokio::test]
async fn everything_goes_through_a_table_with_empty_pages() {
    let table = MemoryTable::new();
    table.answer_empty_pages(2);
    there_and_back(Arc::new(table)).await;
}

#[tokio::test]
async fn everything_goes_to_a_table_over_the_network_and_back() {
    there_and_back(Arc::new(EmulatedTable::new())).await;
}

#[tokio::test]
async fn work_that_was_sent_stays_sent_on_a_table() {
    let clock = Arc::new(FakeClock::new(at(NOW)));
    let (from, table) = (filled().await, Arc::new(MemoryTable::new()));
    let (queue, ledger) = (name("mail"), sent_ledger());
    let (before, _) = from.store.ledger(&queue).await.unwrap().unwrap();
    let was = Expect::Is(before.version);
    let set = Write::SetLedger { queue: queue.clone(), ledger: ledger.clone(), was };
    committed(&*from.store, vec![set]).await;
    let to = side(process(table, &clock, 1), "the table");
    moved(&of(&from, &to, &clock), "one").await.unwrap();
    let (moved, _) = to.store.ledger(&queue).await.unwrap().unwrap();
    assert_eq!(moved, ledger, "its message may be lost: it is sent again");
}

#[tokio::test]
async fn a_table_whose_functions_have_swept_it_is_empty() {
    let clock = Arc::new(FakeClock::new(at(NOW)));
    let store = process(Arc::new(MemoryTable::new()), &clock, 1);
    for kind in [ItemKind::Horizon, ItemKind::Schema] {
        let (name, bytes) = (kind.as_str().to_owned(), Some(b"{}".to_vec()));
        let item = Write::SetItem { kind, name, was: 0, version: 1, bytes };
        committed(&*store, vec![item]).await;
    }
    store.keep_counts(Timestamp::MAX).await.unwrap();
    let to = side(Arc::clone(&store) as _, "the table");
    let from = filled().await;
    let comparison = moved(&of(&from, &to, &clock), "one").await.unwrap();
    assert!(comparison.is_equal(), "{comparison:?}");
    let horizons = store.items(ItemKind::Horizon).await.unwrap();
    assert!(horizons.is_empty(), "the first sweep begins again");
}

#[tokio::test]
async fn calls_under_way_end_before_a_table_is_read() {
    let clock = Arc::new(FakeClock::new(at(NOW)));
    let on_table = side(process(Arc::new(MemoryTable::new()), &clock, 1), "the table");
    moved(&of(&filled().await, &on_table, &clock), "one").await.unwrap();
    let to = || side(Arc::new(MemoryStore::new()), "the target");
    let began = clock.now();
    of(&on_table, &to(), &clock).begin("two".into()).await.unwrap();
    assert_eq!(clock.now(), began, "no function has ever run");
    abort(&on_table).await.unwrap();
    let horizon = Write::SetItem {
        kind: ItemKind::Horizon,
        name: "free".into(),
        was: 0,
        version: 1,
        bytes: Some(b"{}".to_vec()),
    };
    committed(&*on_table.store, vec![horizon]).await;
    of(&on_table, &to(), &clock).begin("three".into()).await.unwrap();
    let waited = clock.now().since(began);
    let write = on_table.store.capabilities().atomicity.max_in_flight_write();
    assert!(waited > 2 * write, "only {waited:?}");
}
