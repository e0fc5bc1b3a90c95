//! The lock of the table of items, and a change without it.

use std::collections::HashSet;

use super::server::{NOW, RUNTIME, rows, store};
use crate::postgres::{group, item_lock::ItemLock, step::Step};
use tidegate_core::port::job_store::{Committed, ItemKind};

#[test]
fn a_change_without_the_lock_does_not_wait_for_others() {
    let store = store();
    assert_eq!(store.shared.item_lock, ItemLock::Table);
    RUNTIME.block_on(async {
        let connector = store.readers.connector();
        let (holder, mut link) = (connector.open().await.unwrap(), connector.open().await.unwrap());
        // As the requirement of an item does.
        let hold = "SET idle_in_transaction_session_timeout = 0; \
             BEGIN; LOCK TABLE items IN ROW SHARE MODE";
        holder.client.batch_execute(hold).await.unwrap();
        assert_eq!(ItemLock::of(&link).await.unwrap(), ItemLock::Table, "it is only in use");
        link.item_lock = ItemLock::Absent;
        let (kind, bytes) = (ItemKind::Queue, Some(b"{}".to_vec()));
        let change = [Step::SetItem { kind, name: "q".to_owned(), was: 0, version: 1, bytes }];
        let answers = group::commit(&link, &[&change[..]], &HashSet::new(), NOW).await;
        assert!(matches!(answers[..], [Ok(Committed::All)]), "{answers:?}");
        holder.client.batch_execute("ROLLBACK").await.unwrap();
    });
    let written = "SELECT FROM items WHERE kind = 'queue' AND name = 'q' AND version = 1";
    assert_eq!(rows(&store, written).len(), 1);
}
