//! Batches of writes: as statements if they have conditions, as plain requests otherwise.

use std::sync::atomic::{AtomicBool, Ordering};

use aws_sdk_dynamodb::types::{
    AttributeValue, BatchStatementRequest, ReturnConsumedCapacity, WriteRequest,
};

use super::{
    SdkTable,
    convert::{value_of, write_request},
    error::{failed, outcome, refused, throttled},
    pause,
};
use crate::dynamodb::{
    repeat::max_repeats,
    table::{Change, Val},
};
use tidegate_core::port::StoreError;

impl SdkTable {
    /// Sends at most 25 conditional changes: the outcome of each, none if the table did not process
    /// it.
    async fn statements(&self, changes: &[&Change]) -> Result<Vec<Option<bool>>, StoreError> {
        let statements: Vec<BatchStatementRequest> =
            changes.iter().map(|change| self.statement(change)).collect::<Result<_, _>>()?;
        let request = self
            .client
            .batch_execute_statement()
            .set_statements(Some(statements))
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let answer = request.send().await.map_err(failed)?;
        self.count("write", answer.consumed_capacity());
        let responses = answer.responses();
        if responses.len() != changes.len() {
            return Err(StoreError::unavailable("the table did not answer every statement"));
        }
        responses.iter().map(|response| response.error().map_or(Ok(Some(true)), outcome)).collect()
    }

    fn statement(&self, change: &Change) -> Result<BatchStatementRequest, StoreError> {
        let mut values: Vec<AttributeValue> = Vec::new();
        let mut value = |val: &Val| {
            values.push(value_of(val));
            "?"
        };
        let key = change.key().clone();
        let (p, s) = (Val::S(key.p), Val::S(key.s));
        let table = &self.name;
        let text = match change {
            Change::Insert(item) => {
                let mut fields = vec![format!("'p': {}", value(&p)), format!("'s': {}", value(&s))];
                fields.extend(
                    item.attrs.iter().map(|(name, val)| format!("'{name}': {}", value(val))),
                );
                format!(r#"INSERT INTO "{table}" VALUE {{{}}}"#, fields.join(", "))
            }
            Change::Update { set, remove, when: (name, was), .. } => {
                let set: Vec<String> = set
                    .iter()
                    .map(|(name, val)| format!(r#"SET "{name}" = {}"#, value(val)))
                    .collect();
                let remove = remove.iter().map(|name| format!(r#"REMOVE "{name}""#));
                let what = set.into_iter().chain(remove).collect::<Vec<_>>().join(" ");
                format!(
                    r#"UPDATE "{table}" {what} WHERE "p" = {} AND "s" = {} AND "{name}" = {}"#,
                    value(&p),
                    value(&s),
                    value(was)
                )
            }
            Change::Delete { when: Some((name, was)), .. } => {
                format!(
                    r#"DELETE FROM "{table}" WHERE "p" = {} AND "s" = {} AND "{name}" = {}"#,
                    value(&p),
                    value(&s),
                    value(was)
                )
            }
            Change::Put(_) | Change::Delete { when: None, .. } => {
                return Err(StoreError::corrupt("an unconditional change is not a statement"));
            }
        };
        BatchStatementRequest::builder()
            .statement(text)
            .set_parameters(Some(values))
            .build()
            .map_err(StoreError::unavailable)
    }

    /// Sends at most 25 unconditional changes, and repeats those that the table did not process.
    /// `wrote` says whether the call to which they belong wrote something.
    pub(super) async fn plain(
        &self,
        changes: &[&Change],
        wrote: &AtomicBool,
    ) -> Result<(), StoreError> {
        let mut left: Vec<WriteRequest> =
            changes.iter().map(|change| write_request(change)).collect::<Result<_, _>>()?;
        for repeat in 0.. {
            if repeat > max_repeats(wrote.load(Ordering::Relaxed)) {
                break;
            }
            pause(repeat).await;
            let request = self
                .client
                .batch_write_item()
                .request_items(&self.name, left.clone())
                .return_consumed_capacity(ReturnConsumedCapacity::Total);
            match request.send().await.map_err(failed) {
                Ok(answer) => {
                    self.count("write", answer.consumed_capacity());
                    wrote.store(true, Ordering::Relaxed);
                    let mut unprocessed = answer.unprocessed_items.unwrap_or_default();
                    left = unprocessed.remove(&self.name).unwrap_or_default();
                    if left.is_empty() {
                        return Ok(());
                    }
                    refused("throttled");
                }
                Err(StoreError::Throttled { .. }) if wrote.load(Ordering::Relaxed) => {}
                Err(error) => return Err(error),
            }
        }
        Err(unfinished())
    }

    /// Sends at most 25 conditional changes, and repeats those that the table did not process.
    /// Returns whether the condition of each held. `wrote` is as for [`Self::plain`].
    pub(super) async fn conditional(
        &self,
        changes: &[&Change],
        wrote: &AtomicBool,
    ) -> Result<Vec<bool>, StoreError> {
        let mut outcomes: Vec<Option<bool>> = changes.iter().map(|_| None).collect();
        for repeat in 0.. {
            let left: Vec<usize> =
                (0..changes.len()).filter(|index| outcomes[*index].is_none()).collect();
            if left.is_empty() || repeat > max_repeats(wrote.load(Ordering::Relaxed)) {
                break;
            }
            pause(repeat).await;
            let wanted: Vec<&Change> = left.iter().map(|index| changes[*index]).collect();
            match self.statements(&wanted).await {
                Ok(found) => {
                    let is_answered = found.iter().any(Option::is_some);
                    wrote.fetch_or(is_answered, Ordering::Relaxed);
                    for (index, outcome) in left.into_iter().zip(found) {
                        outcomes[index] = outcome;
                    }
                }
                Err(StoreError::Throttled { .. }) if wrote.load(Ordering::Relaxed) => {}
                Err(error) => return Err(error),
            }
        }
        if outcomes.iter().all(Option::is_none) {
            return Err(throttled("the table is over its capacity"));
        }
        outcomes.into_iter().map(|outcome| outcome.ok_or_else(unfinished)).collect()
    }
}

fn unfinished() -> StoreError {
    StoreError::unavailable("the table processed only some of the writes")
}
