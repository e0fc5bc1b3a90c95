//! What a change of the configuration locks first: the table of items, if the database can.
//!
//! The lock decides nothing, because each change compares versions. Without it a change waits for the rows
//! that busy servers share, for seconds under load. Some databases that speak the protocol of Postgres
//! refuse it, so a store tries it when it is opened.

use tokio_postgres::error::SqlState;

use super::{
    connect::{Link, answer},
    error::Fault,
    plan::Call,
    statements::LOCK_ITEMS,
};
use tidegate_core::port::StoreError;

/// What a change of items locks before anything else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ItemLock {
    /// The table of items.
    #[default]
    Table,
    /// Nothing: the database has no such lock.
    Absent,
}

impl ItemLock {
    /// That of the database of `link`. It waits for no other server.
    ///
    /// # Errors
    ///
    /// The connection breaks.
    pub(super) async fn of(link: &Link) -> Result<Self, StoreError> {
        let attempt = format!("BEGIN; {LOCK_ITEMS} NOWAIT; ROLLBACK");
        let tried = answer(link.client.batch_execute(&attempt)).await;
        let Err(error) = tried.map_err(Fault::into_error)? else { return Ok(Self::Table) };
        if link.is_closed() {
            return Err(StoreError::unavailable(error));
        }
        link.run("ROLLBACK").await.map_err(Fault::into_error)?;
        if error.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED) {
            tracing::warn!(%error, "changes of the configuration may wait for seconds under load");
            return Ok(Self::Absent);
        }
        // Another server uses the table; or the first change meets the error again.
        Ok(Self::Table)
    }

    /// The statement that locks; none if there is no lock.
    pub(super) fn call<'a>(self) -> Option<Call<'a>> {
        (self == Self::Table).then(|| Call::new(LOCK_ITEMS))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{
        super::{look, plan::plan, step::Step},
        *,
    };
    use tidegate_core::port::job_store::ItemKind;

    fn change(kind: ItemKind) -> Vec<Step> {
        vec![Step::SetItem { kind, name: "n".to_owned(), was: 1, version: 2, bytes: None }]
    }

    /// What a group sends that writes `txn` at once, and one that looks first.
    fn sent(txn: &[Step], lock: ItemLock) -> [Vec<&'static str>; 2] {
        let written = plan([txn], None, &HashSet::new(), lock);
        let looked = look::calls(&[txn], lock);
        [written, looked].map(|calls| calls.iter().map(|call| call.sql).collect())
    }

    #[test]
    fn a_change_sends_no_lock_that_the_database_lacks() {
        let queue = change(ItemKind::Queue);
        let with = sent(&queue, ItemLock::Table);
        let without = sent(&queue, ItemLock::Absent);
        for (with, without) in with.iter().zip(&without) {
            assert_eq!(with[0], LOCK_ITEMS);
            assert_eq!(with[1..], without[..]);
            assert!(!without.is_empty());
        }
        // No group requires a token.
        let token = change(ItemKind::Token);
        assert_eq!(sent(&token, ItemLock::Table), sent(&token, ItemLock::Absent));
    }
}
