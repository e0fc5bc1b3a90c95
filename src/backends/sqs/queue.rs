//! Sends messages, ten in a call and several calls concurrently, and retries failed ones.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use aws_sdk_sqs::{
    Client,
    error::{ProvideErrorMetadata, SdkError},
    types::SendMessageBatchRequestEntry,
};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::pack::{self, MAX_BATCH_MESSAGES, Outgoing};
use crate::aws::error::CallError;
use tidegate_core::{
    error_chain::ErrorChain,
    job::QueueName,
    port::{Clock, Entropy, Hint, StoreError, Timer, Work, WorkQueue},
    queue::GrantDigest,
};

/// Maximum concurrent calls.
const MAX_CONCURRENT_REQUESTS: usize = 16;
/// Maximum attempts to send a message.
const MAX_SEND_ATTEMPTS: u32 = 5;
/// The wait before the first retry, which doubles.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Bytes that are billed as one request.
const BILLED_CHUNK_BYTES: usize = 64 << 10;

/// The URLs of the three queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqsQueues {
    /// Standard: work.
    pub work: String,
    /// FIFO: hints.
    pub hints: String,
    /// Standard: timers.
    pub timers: String,
}

/// A work queue on SQS.
pub struct SqsWorkQueue {
    client: Client,
    queues: SqsQueues,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

impl SqsWorkQueue {
    /// A work queue on `queues`.
    pub fn new(
        client: Client,
        queues: SqsQueues,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self { client, queues, clock, entropy }
    }

    /// Sends every message to the queue at `url`.
    async fn send_all(&self, url: &str, messages: Vec<Outgoing>) -> Result<(), StoreError> {
        let calls: Vec<_> =
            messages.chunks(MAX_BATCH_MESSAGES).map(|batch| self.send_batch(url, batch)).collect();
        stream::iter(calls).buffer_unordered(MAX_CONCURRENT_REQUESTS).try_collect().await
    }

    /// Sends at most ten messages, and retries failed ones.
    async fn send_batch(&self, url: &str, batch: &[Outgoing]) -> Result<(), StoreError> {
        let mut left: Vec<usize> = (0..batch.len()).collect();
        let mut wait = FIRST_RETRY_DELAY;
        let mut tried = 0;
        loop {
            let entries = left
                .iter()
                .map(|index| entry(*index, &batch[*index]))
                .collect::<Result<Vec<_>, _>>()?;
            count(url, left.iter().map(|index| batch[*index].body.len()).sum());
            let failed = match self
                .client
                .send_message_batch()
                .queue_url(url)
                .set_entries(Some(entries))
                .send()
                .await
            {
                Ok(answer) => {
                    let Some(first) = answer.failed.first() else {
                        return Ok(());
                    };
                    let why = StoreError::unavailable(format!(
                        "{url} refused a message: {}: {}",
                        first.code,
                        first.message.as_deref().unwrap_or("no reason given")
                    ));
                    answer
                        .failed
                        .iter()
                        .for_each(|failed| count_refusal(is_throttle(&failed.code)));
                    if answer.failed.iter().any(|failed| failed.sender_fault) {
                        return Err(why);
                    }
                    left = answer
                        .failed
                        .iter()
                        .filter_map(|failed| failed.id.parse().ok())
                        .filter(|index| *index < batch.len())
                        .collect();
                    why
                }
                // The messages may have been received, so all are sent again.
                Err(error) if is_transient(&error) => refused(url, error),
                Err(error) => return Err(refused(url, error)),
            };
            tried += 1;
            if tried >= MAX_SEND_ATTEMPTS {
                return Err(failed);
            }
            self.clock.sleep_until(self.clock.now() + wait).await;
            wait *= 2;
        }
    }
}

/// Counts a request of `bytes` to the queue at `url` as it is billed: once for every 64 KB.
fn count(url: &str, bytes: usize) {
    let kind = if url.rsplit('.').next() == Some("fifo") { "fifo" } else { "standard" };
    metrics::counter!("tidegate_sqs_requests_total", "kind" => kind)
        .increment(bytes.div_ceil(BILLED_CHUNK_BYTES).max(1) as u64);
}

fn entry(index: usize, message: &Outgoing) -> Result<SendMessageBatchRequestEntry, StoreError> {
    SendMessageBatchRequestEntry::builder()
        .id(index.to_string())
        .message_body(&message.body)
        .message_group_id(&message.group)
        .set_message_deduplication_id(message.key.clone())
        .set_delay_seconds(message.delay.filter(|delay| *delay > 0))
        .build()
        .map_err(StoreError::corrupt)
}

/// Whether a retry may succeed.
fn is_transient<E: ProvideErrorMetadata, R>(error: &SdkError<E, R>) -> bool {
    match error {
        SdkError::ServiceError(refusal) => refusal.err().code().is_none_or(is_throttle),
        SdkError::ConstructionFailure(_) => false,
        _ => true,
    }
}

/// Whether an error code means that the service is overloaded.
fn is_throttle(code: &str) -> bool {
    [
        "Throttl",
        "TooManyRequests",
        "OverLimit",
        "RequestLimit",
        "SlowDown",
        "ServiceUnavailable",
        "InternalError",
    ]
    .iter()
    .any(|word| code.contains(word))
}

/// Counts a refused request, or a refused message of one.
fn count_refusal(throttled: bool) {
    let reason = if throttled { "throttled" } else { "other" };
    metrics::counter!("tidegate_aws_errors_total", "service" => "sqs", "reason" => reason)
        .increment(1);
}

fn refused<E, R>(url: &str, error: SdkError<E, R>) -> StoreError
where
    E: std::error::Error + ProvideErrorMetadata + Send + Sync + 'static,
    R: std::fmt::Debug + Send + Sync + 'static,
{
    let throttled =
        error.as_service_error().and_then(ProvideErrorMetadata::code).is_some_and(is_throttle);
    count_refusal(throttled);
    let error = CallError::from(error);
    if throttled {
        let message = format!("{url}: {}", ErrorChain(&error));
        StoreError::Throttled { retry_after: Duration::from_secs(1), message }
    } else {
        StoreError::unavailable_in(url, error)
    }
}

#[async_trait]
impl WorkQueue for SqsWorkQueue {
    async fn send(&self, work: &[Work]) -> Result<(), StoreError> {
        self.send_all(&self.queues.work, pack::work(work, self.clock.now())).await
    }

    async fn hint(&self, hints: &[Hint]) -> Result<(), StoreError> {
        let messages = pack::hints(hints, || format!("{:032x}", self.entropy.bits()));
        self.send_all(&self.queues.hints, messages).await
    }

    async fn take_releases(&self, _: &QueueName) -> Result<BTreeSet<GrantDigest>, StoreError> {
        Ok(BTreeSet::new())
    }

    async fn set_timers(&self, timers: &[Timer]) -> Result<(), StoreError> {
        self.send_all(&self.queues.timers, pack::timers(timers, self.clock.now())).await
    }
}
