//! Sending: ten messages a call, several calls side by side, and each again until it is taken.

use std::{collections::BTreeMap, fmt::Display, sync::Arc, time::Duration};

use async_trait::async_trait;
use aws_sdk_sqs::{
    Client,
    error::{DisplayErrorContext, ProvideErrorMetadata, SdkError},
    types::SendMessageBatchRequestEntry,
};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::message;
use crate::{
    job::QueueName,
    port::{Clock, Entropy, Hint, News, StoreError, Wake, Work, WorkQueue, work_queue::REACH_SECONDS},
    time::Timestamp,
};

/// Messages of one call.
const BATCH: usize = 10;
/// Jobs of one message. What is redelivered since one of them failed is done again for all.
const JOBS: usize = 10;
/// News of one message: within 64 KB, the unit that is paid for, with ids as long as they may be.
const NEWS: usize = 500;
/// Calls side by side.
const AT_ONCE: usize = 16;
/// How often a message is tried that was not taken.
const TRIES: u32 = 5;
/// The wait before the first of them; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(50);

/// The URLs of the three queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqsQueues {
    /// Standard: work.
    pub work: String,
    /// FIFO: hints.
    pub hints: String,
    /// Standard: wake-ups.
    pub wakes: String,
}

/// A work queue on SQS.
pub struct SqsWorkQueue {
    client: Client,
    queues: SqsQueues,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

/// A message on its way.
struct Outgoing {
    body: String,
    group: String,
    delay: Option<i32>,
    key: Option<String>,
}

impl SqsWorkQueue {
    /// The work queue that `queues` are.
    pub fn new(client: Client, queues: SqsQueues, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        Self { client, queues, clock, entropy }
    }

    /// Sends every message to the queue at `url`.
    async fn send_all(&self, url: &str, messages: Vec<Outgoing>) -> Result<(), StoreError> {
        let calls: Vec<_> = messages.chunks(BATCH).map(|batch| self.send_batch(url, batch)).collect();
        stream::iter(calls).buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Sends at most ten messages, those that were not taken again.
    async fn send_batch(&self, url: &str, batch: &[Outgoing]) -> Result<(), StoreError> {
        let mut left: Vec<usize> = (0..batch.len()).collect();
        let mut wait = FIRST_WAIT;
        let mut tried = 0;
        loop {
            let entries = left.iter().map(|index| entry(*index, &batch[*index])).collect::<Result<Vec<_>, _>>()?;
            let failed = match self.client.send_message_batch().queue_url(url).set_entries(Some(entries)).send().await {
                Ok(answer) => {
                    let Some(first) = answer.failed.first() else { return Ok(()) };
                    let why = StoreError::Unavailable(format!(
                        "{url} did not take a message: {}: {}",
                        first.code,
                        first.message.as_deref().unwrap_or("no reason given")
                    ));
                    if answer.failed.iter().any(|failed| failed.sender_fault) {
                        return Err(why);
                    }
                    left = answer.failed.iter().filter_map(|failed| failed.id.parse().ok()).filter(|index| *index < batch.len()).collect();
                    why
                }
                // Whether it was taken is not known: all of it again.
                Err(error) if is_passing(&error) => refused(url, &error),
                Err(error) => return Err(refused(url, &error)),
            };
            tried += 1;
            if tried >= TRIES {
                return Err(failed);
            }
            self.clock.sleep_until(self.clock.now() + wait).await;
            wait *= 2;
        }
    }

    /// The delay with which a message arrives at `at`: whole seconds, the nearest, so that whoever gets it waits half a second at most.
    fn delay(&self, at: Timestamp) -> i32 {
        let millis = at.since(self.clock.now()).as_millis() as u64;
        ((millis + 500) / 1000).min(REACH_SECONDS) as i32
    }
}

fn entry(index: usize, message: &Outgoing) -> Result<SendMessageBatchRequestEntry, StoreError> {
    SendMessageBatchRequestEntry::builder()
        .id(index.to_string())
        .message_body(&message.body)
        .message_group_id(&message.group)
        .set_message_deduplication_id(message.key.clone())
        .set_delay_seconds(message.delay.filter(|delay| *delay > 0))
        .build()
        .map_err(|error| StoreError::Corrupt(error.to_string()))
}

/// Whether another try may go better.
fn is_passing<E: ProvideErrorMetadata, R>(error: &SdkError<E, R>) -> bool {
    match error {
        SdkError::ServiceError(refusal) => refusal.err().code().is_none_or(is_throttle),
        SdkError::ConstructionFailure(_) => false,
        _ => true,
    }
}

/// Whether the service said that it has too much to do.
fn is_throttle(code: &str) -> bool {
    ["Throttl", "TooManyRequests", "OverLimit", "RequestLimit", "SlowDown", "ServiceUnavailable", "InternalError"]
        .iter()
        .any(|word| code.contains(word))
}

fn refused<E, R>(url: impl Display, error: &SdkError<E, R>) -> StoreError
where
    E: std::error::Error + ProvideErrorMetadata + 'static,
    R: std::fmt::Debug,
{
    let throttled = error.as_service_error().and_then(ProvideErrorMetadata::code).is_some_and(is_throttle);
    let message = format!("{url}: {}", DisplayErrorContext(error));
    if throttled { StoreError::Throttled { retry_after: Duration::from_secs(1), message } } else { StoreError::Unavailable(message) }
}

#[async_trait]
impl WorkQueue for SqsWorkQueue {
    async fn send(&self, work: &[Work]) -> Result<(), StoreError> {
        let mut groups: BTreeMap<(&QueueName, i32), Vec<&Work>> = BTreeMap::new();
        for work in work {
            groups.entry((&work.queue, self.delay(work.run_at))).or_default().push(work);
        }
        let messages = groups.iter().flat_map(|((queue, delay), work)| {
            let outgoing = move |jobs: &[&Work]| Outgoing {
                body: message::work(queue, jobs),
                // On a standard queue: one that waits long does not hold up the others.
                group: queue.to_string(),
                delay: Some(*delay),
                key: None,
            };
            work.chunks(JOBS).map(outgoing)
        });
        self.send_all(&self.queues.work, messages.collect()).await
    }

    async fn hint(&self, hints: &[Hint]) -> Result<(), StoreError> {
        let mut groups: BTreeMap<&QueueName, Vec<&News>> = BTreeMap::new();
        for hint in hints {
            groups.entry(&hint.queue).or_default().push(&hint.news);
        }
        let messages = groups.iter().flat_map(|(queue, news)| {
            let outgoing = move |news: &[&News]| Outgoing {
                body: message::hint(queue, news),
                group: queue.to_string(),
                delay: None,
                // Two hints of the same words are two hints.
                key: Some(format!("{:032x}", self.entropy.bits())),
            };
            news.chunks(NEWS).map(outgoing)
        });
        self.send_all(&self.queues.hints, messages.collect()).await
    }

    async fn wake(&self, wakes: &[Wake]) -> Result<(), StoreError> {
        let outgoing = |wake: &Wake| Outgoing {
            body: message::wake(wake),
            group: wake.queue.to_string(),
            delay: Some(self.delay(wake.at)),
            key: None,
        };
        self.send_all(&self.queues.wakes, wakes.iter().map(outgoing).collect()).await
    }
}
