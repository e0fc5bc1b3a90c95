//! The running weight of each constraint, value by value. It is read from the ledger on request, so
//! that no tick computes it.

use crate::{Engine, Error, LedgerView, request::ConstraintUse};
use tidegate_core::{
    job::QueueName,
    port::StoreError,
    queue::{Limits, Usage},
};

/// Most values that are returned.
const MAX_VALUES: usize = 100;

impl Engine {
    /// The running weight under each constraint of the queue that limits concurrency, largest
    /// first, at most 100 values. Empty if the ledger cannot be read.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn constraints_in_use(&self, queue: &QueueName) -> Result<Vec<ConstraintUse>, Error> {
        let limits = self.catalog().await?.limits(queue);
        if limits.queue.constraints.iter().all(|constraint| constraint.concurrency.is_none()) {
            return Ok(Vec::new());
        }
        match self.ports.store.ledger(queue).await {
            Ok(Some((ledger, batches))) => {
                Ok(of(LedgerView::new(ledger, batches).usage(&limits), &limits))
            }
            // What a damaged ledger counts is not known; it admits nothing.
            Ok(None) | Err(StoreError::Corrupt(_)) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The use of the constraints of `limits` by running jobs that use them so.
pub(crate) fn of(usage: &Usage, limits: &Limits) -> Vec<ConstraintUse> {
    let constraints = &limits.queue.constraints;
    let values = usage.values().filter_map(|(index, value, running_weight)| {
        let constraint = &constraints[index];
        let per = constraint.per.clone();
        let value = per.is_some().then(|| value.to_owned());
        Some(ConstraintUse {
            name: constraint.name.clone(),
            per,
            value,
            running_weight,
            limit: constraint.concurrency?,
        })
    });
    let mut values: Vec<ConstraintUse> = values.collect();
    values.sort_unstable_by(|a, b| {
        (b.running_weight, &a.name, &a.value).cmp(&(a.running_weight, &b.name, &b.value))
    });
    values.truncate(MAX_VALUES);
    values
}
