//! Writes to the target, which may have been written before.

use super::{MoveError, Side, error::Damage};
use tidegate_core::port::{
    Committed, StoreError, Txn, Write,
    job_store::{CurrentRecord, Expect, Item, ItemKind},
};

impl Side {
    /// A failure of the store as one of the move.
    pub(super) fn failed(&self, error: StoreError) -> MoveError {
        let place = self.place.clone();
        match error {
            StoreError::Corrupt(_) => {
                let what = Damage::Other(error.chain().to_string());
                MoveError::Damaged { place, what }
            }
            error => MoveError::Store { place, error },
        }
    }

    /// A failure of the objects as one of the move.
    pub(super) fn failed_objects(&self, error: object_store::Error) -> MoveError {
        MoveError::Objects { place: self.place.clone(), error }
    }

    /// Something of the store is damaged.
    pub(super) fn damaged(&self, what: impl Into<Damage>) -> MoveError {
        MoveError::Damaged { place: self.place.clone(), what: what.into() }
    }

    /// The items of a kind.
    pub(super) async fn items(&self, kind: ItemKind) -> Result<Vec<Item>, MoveError> {
        self.store.items(kind).await.map_err(|error| self.failed(error))
    }

    /// Commits `txns`.
    pub(super) async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, MoveError> {
        self.store.commit(txns).await.map_err(|error| self.failed(error))
    }

    /// Writes `txns`. What an interrupted call has written already counts as written.
    pub(super) async fn write(&self, txns: Vec<Txn>) -> Result<(), MoveError> {
        if txns.is_empty() {
            return Ok(());
        }
        let answers = self.commit(txns.clone()).await?;
        for (txn, answer) in txns.into_iter().zip(answers) {
            if let Committed::Conflict { step, current } = answer {
                self.complete(txn, step, current).await?;
            }
        }
        Ok(())
    }

    /// Writes what is missing of `txn`, whose write `step` was refused because of `current`.
    async fn complete(
        &self,
        mut txn: Txn,
        mut step: usize,
        mut current: CurrentRecord,
    ) -> Result<(), MoveError> {
        // Each turn takes one write away, or expects the key that it sets.
        loop {
            let written = txn.get_mut(step).filter(|write| is_written(write, &current));
            match written {
                // With its keys, the job is added by a transaction like any other.
                Some(Write::SetKey { job, was: was @ Expect::Absent, .. }) => {
                    *was = Expect::Is(job.clone());
                }
                Some(_) => drop(txn.remove(step)),
                None => {
                    return Err(MoveError::refused(format!(
                        "{} has other data than this move has written: give it an empty target",
                        self.place
                    )));
                }
            }
            if txn.is_empty() {
                return Ok(());
            }
            match self.commit(vec![txn.clone()]).await?.pop() {
                Some(Committed::Conflict { step: next, current: now }) => {
                    (step, current) = (next, now);
                }
                Some(Committed::All) | None => return Ok(()),
            }
        }
    }
}

/// Whether `current`, which refused `write`, is what it writes. The comparison decides it exactly.
fn is_written(write: &Write, current: &CurrentRecord) -> bool {
    match (write, current) {
        (Write::AddJob(job), CurrentRecord::Job(now)) => job.life.revision == now.life.revision,
        (Write::SetKey { job, .. }, CurrentRecord::Key { job: now, .. }) => job == now,
        (Write::SetLedger { ledger, .. }, CurrentRecord::Version(now)) => ledger.version == *now,
        (Write::SetItem { version, .. }, CurrentRecord::Version(now)) => version == now,
        _ => false,
    }
}
