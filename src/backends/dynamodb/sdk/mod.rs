//! The table over the network: DynamoDB, or a compatible service at another endpoint.
//!
//! Conditional writes are sent as statements, 25 in a request, each with its own condition and
//! answer. This costs no more than single requests. The client repeats requests, so the first
//! attempt of a write may cause the refusal of the second one. The caller then reads the current
//! item.

mod convert;
mod error;
mod write;

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use async_trait::async_trait;
use aws_sdk_dynamodb::{
    Client,
    config::{self, retry::RetryConfig, timeout::TimeoutConfig},
    operation::{
        describe_table::DescribeTableError, transact_write_items::TransactWriteItemsError,
    },
    types::{
        AttributeDefinition, AttributeValue, BillingMode, ConsumedCapacity, KeySchemaElement,
        KeyType, KeysAndAttributes, ReturnConsumedCapacity, ReturnValue, ScalarAttributeType,
        TimeToLiveSpecification,
    },
};
use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;

use super::{
    key::Key,
    repeat::{FIRST_DELAY, MAX_REPEATS, max_delay, max_repeats},
    table::{Change, EXPIRES, Exchange, Item, Page, PageQuery, Table},
};
use crate::system::SystemEntropy;
use convert::{exchange_expression, item_of, key_of};
use error::{cancelled, failed, refused, throttled};
use tidegate_core::port::{Entropy as _, StoreError};

/// Maximum writes or statements of one request.
const MAX_BATCH_WRITES: usize = 25;
/// Maximum keys that one request reads.
const MAX_BATCH_KEYS: usize = 100;
/// Maximum concurrent requests of one call.
const MAX_CONCURRENT_REQUESTS: usize = 8;
/// Timeout of one attempt of a request.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of all attempts of a request, and of the repeats of what it left.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

/// The attributes of an item, or those of a key.
type Attributes = HashMap<String, AttributeValue>;

/// The capacity that the table reports as consumed, and the number of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Consumed {
    /// Capacity units of writes and reads.
    pub units: f64,
    /// The number of requests.
    pub requests: u64,
}

/// A table accessed with the SDK.
pub struct SdkTable {
    client: Client,
    name: String,
    consumed: Option<Arc<Mutex<Consumed>>>,
}

impl SdkTable {
    /// The table `name` in the account and region of `config`. It sets its own timeouts, because
    /// the store promises a maximum duration of a write.
    pub fn open(config: &aws_config::SdkConfig, name: impl Into<String>) -> Self {
        let timeouts = TimeoutConfig::builder()
            .operation_attempt_timeout(ATTEMPT_TIMEOUT)
            .operation_timeout(REQUEST_TIMEOUT)
            .build();
        let config = config::Builder::from(config).timeout_config(timeouts).retry_config(retries());
        Self::new(Client::from_conf(config.build()), name)
    }

    /// The table `name` in the account of `client`.
    pub fn new(client: Client, name: impl Into<String>) -> Self {
        Self { client, name: name.into(), consumed: None }
    }

    /// Adds the reported capacity to `consumed`.
    #[must_use]
    pub fn counted(mut self, consumed: Arc<Mutex<Consumed>>) -> Self {
        self.consumed = Some(consumed);
        self
    }

    /// Creates the table, which must not exist: billed by request, with expiry.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] with the error of DynamoDB.
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
        let expiry =
            TimeToLiveSpecification::builder().enabled(true).attribute_name(EXPIRES).build();
        let expiry = expiry.map_err(StoreError::unavailable)?;
        self.client
            .update_time_to_live()
            .table_name(&self.name)
            .time_to_live_specification(expiry)
            .send()
            .await
            .map_err(failed)?;
        Ok(())
    }

    /// Whether the table exists.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] with the error of DynamoDB, such as a missing permission.
    pub async fn exists(&self) -> Result<bool, StoreError> {
        match self.client.describe_table().table_name(&self.name).send().await {
            Ok(_) => Ok(true),
            Err(error) => {
                let service = error.as_service_error();
                if service.is_some_and(DescribeTableError::is_resource_not_found_exception) {
                    return Ok(false);
                }
                Err(failed(error))
            }
        }
    }

    /// Counts a request of a `kind`, `write` or `read`, and the capacity that the table reports for
    /// it at no cost.
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

    async fn get_some(&self, keys: &[Key]) -> Result<Vec<Item>, StoreError> {
        let mut found = Vec::with_capacity(keys.len());
        let mut left = Some(keys.iter().map(key_of).collect::<Vec<_>>());
        let mut retry = 0;
        while retry <= max_repeats(!found.is_empty()) {
            let Some(wanted) = left.take().filter(|wanted| !wanted.is_empty()) else {
                return Ok(found);
            };
            pause(retry).await;
            retry += 1;
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
            return Err(throttled("the table answered only some of the reads"));
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
        let requests =
            chunks.into_iter().map(|keys| async move { within(self.get_some(&keys)).await });
        let found: Vec<Vec<Item>> =
            stream::iter(requests).buffered(MAX_CONCURRENT_REQUESTS).try_collect().await?;
        let found: HashMap<Key, Item> =
            found.into_iter().flatten().map(|item| (item.key.clone(), item)).collect();
        Ok(keys.iter().map(|key| found.get(key).cloned()).collect())
    }

    async fn query(&self, query: &PageQuery) -> Result<Page, StoreError> {
        if query.from > query.to {
            return Ok(Page::default());
        }
        let request = self
            .client
            .query()
            .table_name(&self.name)
            .key_condition_expression("p = :p AND s BETWEEN :from AND :to")
            .expression_attribute_values(":p", AttributeValue::S(query.p.clone()))
            .expression_attribute_values(":from", AttributeValue::S(query.from.clone()))
            .expression_attribute_values(":to", AttributeValue::S(query.to.clone()))
            .consistent_read(true)
            .scan_index_forward(!query.backward)
            .set_exclusive_start_key(query.after.as_ref().map(key_of))
            .set_limit(query.limit.map(|limit| limit as i32))
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let answer = request.send().await.map_err(failed)?;
        self.count("read", answer.consumed_capacity());
        page(answer.items, answer.last_evaluated_key)
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: u32,
    ) -> Result<Page, StoreError> {
        let request = self
            .client
            .scan()
            .table_name(&self.name)
            .filter_expression("begins_with(p, :prefix)")
            .expression_attribute_values(":prefix", AttributeValue::S(prefix.to_owned()))
            .consistent_read(true)
            .set_exclusive_start_key(after.map(key_of))
            .limit(limit as i32)
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let answer = request.send().await.map_err(failed)?;
        self.count("read", answer.consumed_capacity());
        page(answer.items, answer.last_evaluated_key)
    }

    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        let (conditional, plain): (Vec<usize>, Vec<usize>) =
            (0..changes.len()).partition(|index| changes[*index].is_conditional());
        let chunks = conditional
            .chunks(MAX_BATCH_WRITES)
            .chain(plain.chunks(MAX_BATCH_WRITES))
            .map(<[usize]>::to_vec)
            .collect::<Vec<_>>();
        let wrote = &AtomicBool::new(false);
        let requests = chunks.into_iter().map(|chunk| async move {
            let some: Vec<&Change> = chunk.iter().map(|index| &changes[*index]).collect();
            let done = if some[0].is_conditional() {
                within(self.conditional(&some, wrote)).await
            } else {
                within(self.plain(&some, wrote)).await.map(|()| vec![true; some.len()])
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
                let reasons = match error.as_service_error() {
                    Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                        Some(cancelled.cancellation_reasons())
                    }
                    _ => None,
                };
                let Some(reasons) = reasons else { return Err(failed(error)) };
                if reasons.iter().any(|reason| reason.code() == Some("ConditionalCheckFailed")) {
                    self.count("write", []);
                    return Ok(false);
                }
                Err(cancelled(reasons))
            }
        }
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Option<Item>, StoreError> {
        let (mut names, mut values) = (HashMap::new(), HashMap::new());
        let text = exchange_expression(&exchange.step, &mut names, &mut values);
        let request = self
            .client
            .update_item()
            .table_name(&self.name)
            .set_key(Some(key_of(&exchange.key)))
            .update_expression(text)
            .set_expression_attribute_names(Some(names))
            .set_expression_attribute_values(Some(values))
            .return_values(ReturnValue::AllOld)
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let answer = request.send().await.map_err(failed)?;
        self.count("write", answer.consumed_capacity());
        answer.attributes.filter(|attributes| !attributes.is_empty()).map(item_of).transpose()
    }
}

/// A page of `items`, which ends at the key `last` unless it is the last one.
fn page(items: Option<Vec<Attributes>>, last: Option<Attributes>) -> Result<Page, StoreError> {
    let items = items.unwrap_or_default().into_iter().map(item_of).collect::<Result<_, _>>()?;
    let next = last.filter(|key| !key.is_empty());
    let next = next.map(|key| item_of(key).map(|item| item.key)).transpose()?;
    Ok(Page { items, next })
}

/// How the client repeats requests: by itself, it would wait up to a second before the first repeat.
fn retries() -> RetryConfig {
    RetryConfig::standard().with_max_attempts(MAX_REPEATS + 1).with_initial_backoff(FIRST_DELAY)
}

/// The result of `request`, with its repeats, within [`REQUEST_TIMEOUT`].
#[allow(
    clippy::disallowed_methods,
    reason = "the time depends on the real table, not on the engine's clock"
)]
async fn within<T>(request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(answer) => answer,
        Err(_) => Err(StoreError::unavailable("the table did not answer in time")),
    }
}

/// Waits a random time before a repeat; not before the first attempt.
#[allow(
    clippy::disallowed_methods,
    reason = "the wait depends on the real table, not on the engine's clock"
)]
async fn pause(repeat: u32) {
    if repeat > 0 {
        tokio::time::sleep(max_delay(repeat).mul_f64(SystemEntropy.fraction())).await;
    }
}
