//! The table behind a network: DynamoDB, or what speaks its protocol at another endpoint.
//!
//! The one thing to know: conditional writes go out as statements, 25 to a request, each with its own condition and answer;
//! that costs no more than one by one. The client repeats requests, so the first try of a write may cause the refusal of the second:
//! the caller then reads the current item.

mod convert;
mod error;

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use aws_sdk_dynamodb::{
    Client,
    config::{self, retry::RetryConfig, timeout::TimeoutConfig},
    types::{
        AttributeDefinition, AttributeValue, BatchStatementRequest, BillingMode, ConsumedCapacity,
        KeySchemaElement, KeyType, KeysAndAttributes, ReturnConsumedCapacity, ScalarAttributeType,
        TimeToLiveSpecification, WriteRequest,
    },
};
use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;

use super::{
    key::Key,
    table::{Change, EXPIRES, Item, Page, PageQuery, Table, Val},
};
use convert::{item_of, key_of, value_of, write_request};
use error::{cancelled, failed, outcome, refused, throttled};
use tidegate_core::port::StoreError;

/// Writes, and statements, that one request takes.
const MAX_BATCH_WRITES: usize = 25;
/// Keys that one request reads.
const MAX_BATCH_KEYS: usize = 100;
/// Requests of one call that are under way at once.
const MAX_CONCURRENT_REQUESTS: usize = 8;
/// How often what the table did not take for lack of capacity is sent again, and after how long.
const MAX_RETRIES: u32 = 4;
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(40);
/// How long one try of a request may take, and all of them.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

/// Capacity units as the table itself counts them, and requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Consumed {
    /// Units, of writes and reads together.
    pub units: f64,
    /// Requests.
    pub requests: u64,
}

/// A table reached by the SDK.
pub struct SdkTable {
    client: Client,
    name: String,
    consumed: Option<Arc<Mutex<Consumed>>>,
}

impl SdkTable {
    /// The table `name` in the account and region of `config`. It bounds its own requests: how long a write may be under way is a promise
    /// of the store's.
    pub fn open(config: &aws_config::SdkConfig, name: impl Into<String>) -> Self {
        let timeouts = TimeoutConfig::builder()
            .operation_attempt_timeout(ATTEMPT_TIMEOUT)
            .operation_timeout(REQUEST_TIMEOUT)
            .build();
        let config = config::Builder::from(config)
            .timeout_config(timeouts)
            .retry_config(RetryConfig::standard());
        Self::new(Client::from_conf(config.build()), name)
    }

    /// The table `name` that `client` reaches.
    pub fn new(client: Client, name: impl Into<String>) -> Self {
        Self { client, name: name.into(), consumed: None }
    }

    /// The same, with what the table says of its capacity added up in `consumed`.
    #[must_use]
    pub fn counted(mut self, consumed: Arc<Mutex<Consumed>>) -> Self {
        self.consumed = Some(consumed);
        self
    }

    /// Makes the table, which must not be there: paid by request, with forgetting.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] with what DynamoDB said.
    pub async fn create(&self) -> Result<(), StoreError> {
        let mut request = self
            .client
            .create_table()
            .table_name(&self.name)
            .billing_mode(BillingMode::PayPerRequest);
        for (name, role) in [("p", KeyType::Hash), ("s", KeyType::Range)] {
            let attribute = AttributeDefinition::builder()
                .attribute_name(name)
                .attribute_type(ScalarAttributeType::S);
            let element = KeySchemaElement::builder().attribute_name(name).key_type(role);
            request = request
                .attribute_definitions(attribute.build().map_err(StoreError::unavailable)?)
                .key_schema(element.build().map_err(StoreError::unavailable)?);
        }
        request.send().await.map_err(failed)?;
        let forgets =
            TimeToLiveSpecification::builder().enabled(true).attribute_name(EXPIRES).build();
        let forgets = forgets.map_err(StoreError::unavailable)?;
        self.client
            .update_time_to_live()
            .table_name(&self.name)
            .time_to_live_specification(forgets)
            .send()
            .await
            .map_err(failed)?;
        Ok(())
    }

    /// Counts a request of a `kind`, `write` or `read`, by what the table says that it consumed, which it says for nothing.
    fn count<'a>(
        &self,
        kind: &'static str,
        capacity: impl IntoIterator<Item = &'a ConsumedCapacity>,
    ) {
        let units: f64 = capacity.into_iter().filter_map(|capacity| capacity.capacity_units).sum();
        metrics::counter!("tidegate_dynamodb_requests_total", "kind" => kind).increment(1);
        metrics::counter!("tidegate_dynamodb_units_total", "kind" => kind)
            .increment(units.ceil() as u64);
        if let Some(consumed) = &self.consumed {
            let mut consumed = consumed.lock();
            consumed.units += units;
            consumed.requests += 1;
        }
    }

    /// Takes at most 25 conditional changes; what came of each, none if the table took it not.
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
                return Err(StoreError::corrupt("no statement says this"));
            }
        };
        BatchStatementRequest::builder()
            .statement(text)
            .set_parameters(Some(values))
            .build()
            .map_err(StoreError::unavailable)
    }

    /// Takes at most 25 changes without conditions; what the table did not take is sent again.
    async fn plain(&self, changes: &[&Change]) -> Result<(), StoreError> {
        let mut left: Vec<WriteRequest> =
            changes.iter().map(|change| write_request(change)).collect::<Result<_, _>>()?;
        for again in 0..=MAX_RETRIES {
            pause(again).await;
            let request = self
                .client
                .batch_write_item()
                .request_items(&self.name, left)
                .return_consumed_capacity(ReturnConsumedCapacity::Total);
            let answer = request.send().await.map_err(failed)?;
            self.count("write", answer.consumed_capacity());
            left =
                answer.unprocessed_items.unwrap_or_default().remove(&self.name).unwrap_or_default();
            if left.is_empty() {
                return Ok(());
            }
            refused("throttled");
        }
        Err(StoreError::unavailable("the table took only a part of the writes"))
    }

    async fn conditional(&self, changes: &[&Change]) -> Result<Vec<bool>, StoreError> {
        let mut outcomes: Vec<Option<bool>> = changes.iter().map(|_| None).collect();
        for again in 0..=MAX_RETRIES {
            let left: Vec<usize> =
                (0..changes.len()).filter(|index| outcomes[*index].is_none()).collect();
            if left.is_empty() {
                break;
            }
            pause(again).await;
            let wanted: Vec<&Change> = left.iter().map(|index| changes[*index]).collect();
            let found = match self.statements(&wanted).await {
                Err(StoreError::Throttled { message, .. }) if again > 0 => {
                    return Err(StoreError::unavailable(message));
                }
                found => found?,
            };
            for (index, outcome) in left.into_iter().zip(found) {
                outcomes[index] = outcome;
            }
        }
        if outcomes.iter().all(Option::is_none) {
            return Err(throttled("the table is over its capacity"));
        }
        outcomes
            .into_iter()
            .map(|outcome| {
                outcome.ok_or_else(|| {
                    StoreError::unavailable("the table took only a part of the writes")
                })
            })
            .collect()
    }

    async fn get_some(&self, keys: &[Key]) -> Result<Vec<Item>, StoreError> {
        let mut found = Vec::with_capacity(keys.len());
        let mut left = Some(keys.iter().map(key_of).collect::<Vec<_>>());
        for again in 0..=MAX_RETRIES {
            let Some(wanted) = left.take().filter(|wanted| !wanted.is_empty()) else {
                return Ok(found);
            };
            pause(again).await;
            let wanted = KeysAndAttributes::builder()
                .set_keys(Some(wanted))
                .consistent_read(true)
                .build()
                .map_err(StoreError::unavailable)?;
            let request = self
                .client
                .batch_get_item()
                .request_items(&self.name, wanted)
                .return_consumed_capacity(ReturnConsumedCapacity::Total);
            let answer = request.send().await.map_err(failed)?;
            self.count("read", answer.consumed_capacity());
            for item in answer.responses.unwrap_or_default().remove(&self.name).unwrap_or_default()
            {
                found.push(item_of(item)?);
            }
            left = answer
                .unprocessed_keys
                .unwrap_or_default()
                .remove(&self.name)
                .map(|keys| keys.keys);
        }
        if left.is_some_and(|left| !left.is_empty()) {
            refused("throttled");
            return Err(throttled("the table answered only a part of the reads"));
        }
        Ok(found)
    }
}

#[async_trait]
impl Table for SdkTable {
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, StoreError> {
        let mut unique = keys.to_vec();
        unique.sort_unstable();
        unique.dedup();
        let chunks: Vec<Vec<Key>> = unique.chunks(MAX_BATCH_KEYS).map(<[Key]>::to_vec).collect();
        let requests = chunks.into_iter().map(|keys| async move { self.get_some(&keys).await });
        let found: Vec<Vec<Item>> =
            stream::iter(requests).buffered(MAX_CONCURRENT_REQUESTS).try_collect().await?;
        let found: HashMap<Key, Item> =
            found.into_iter().flatten().map(|item| (item.key.clone(), item)).collect();
        Ok(keys.iter().map(|key| found.get(key).cloned()).collect())
    }

    async fn query(&self, ask: &PageQuery) -> Result<Page, StoreError> {
        if ask.from > ask.to {
            return Ok(Page::default());
        }
        let request = self
            .client
            .query()
            .table_name(&self.name)
            .key_condition_expression("p = :p AND s BETWEEN :from AND :to")
            .expression_attribute_values(":p", AttributeValue::S(ask.p.clone()))
            .expression_attribute_values(":from", AttributeValue::S(ask.from.clone()))
            .expression_attribute_values(":to", AttributeValue::S(ask.to.clone()))
            .consistent_read(true)
            .scan_index_forward(!ask.backward)
            .set_limit(ask.limit.map(|limit| limit as i32))
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let answer = request.send().await.map_err(failed)?;
        self.count("read", answer.consumed_capacity());
        let items = answer
            .items
            .unwrap_or_default()
            .into_iter()
            .map(item_of)
            .collect::<Result<Vec<Item>, _>>()?;
        let more =
            answer.last_evaluated_key.is_some_and(|key| !key.is_empty()) && !items.is_empty();
        Ok(Page { items, more })
    }

    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        let (conditional, plain): (Vec<usize>, Vec<usize>) =
            (0..changes.len()).partition(|index| changes[*index].is_conditional());
        let chunks = conditional
            .chunks(MAX_BATCH_WRITES)
            .chain(plain.chunks(MAX_BATCH_WRITES))
            .map(<[usize]>::to_vec)
            .collect::<Vec<_>>();
        let requests = chunks.into_iter().map(|chunk| async move {
            let some: Vec<&Change> = chunk.iter().map(|index| &changes[*index]).collect();
            let done = if some[0].is_conditional() {
                self.conditional(&some).await
            } else {
                self.plain(&some).await.map(|()| vec![true; some.len()])
            };
            (chunk, done)
        });
        let done: Vec<(Vec<usize>, Result<Vec<bool>, StoreError>)> =
            stream::iter(requests).buffered(MAX_CONCURRENT_REQUESTS).collect().await;
        let wrote = done.iter().any(|(_, done)| !matches!(done, Err(StoreError::Throttled { .. })));
        let mut outcomes = vec![false; changes.len()];
        for (chunk, done) in done {
            let done = match done {
                Err(StoreError::Throttled { message, .. }) if wrote => {
                    return Err(StoreError::unavailable(message));
                }
                done => done?,
            };
            for (index, outcome) in chunk.into_iter().zip(done) {
                outcomes[index] = outcome;
            }
        }
        Ok(outcomes)
    }

    async fn together(&self, changes: &[Change]) -> Result<bool, StoreError> {
        let items =
            changes.iter().map(|change| self.action(change)).collect::<Result<Vec<_>, _>>()?;
        let request = self
            .client
            .transact_write_items()
            .set_transact_items(Some(items))
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        match request.send().await {
            Ok(answer) => {
                self.count("write", answer.consumed_capacity());
                Ok(true)
            }
            Err(error) => {
                let service = error.as_service_error();
                let reasons = service.and_then(|error| match error {
                    aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError::TransactionCanceledException(canceled) => {
                        Some(canceled.cancellation_reasons())
                    }
                    _ => None,
                });
                let refused = reasons.is_some_and(|reasons| {
                    reasons.iter().any(|reason| reason.code() == Some("ConditionalCheckFailed"))
                });
                if refused {
                    self.count("write", []);
                    return Ok(false);
                }
                match reasons {
                    Some(reasons) => Err(cancelled(reasons)),
                    None => Err(failed(error)),
                }
            }
        }
    }
}

/// Waits before a repeat.
#[allow(
    clippy::disallowed_methods,
    reason = "the table is out of capacity for a moment of the real world"
)]
async fn pause(again: u32) {
    if again > 0 {
        tokio::time::sleep(FIRST_RETRY_DELAY * (1 << (again - 1))).await;
    }
}
