//! Failed messages are redelivered within seconds at first, and later after the visibility timeout
//! of their queue.
//!
//! The one thing to know: a FIFO queue delivers the hints of a queue in order. A failed hint holds
//! up all later ones until it is redelivered.

use std::time::Duration;

use aws_sdk_sqs::{
    Client,
    config::{Builder, retry::RetryConfig},
    types::ChangeMessageVisibilityBatchRequestEntry,
};
use tokio::sync::OnceCell;

use super::{
    event::{Failures, SqsEvent, SqsRecord},
    settings::CloudSettings,
};
use tidegate_backends::{
    aws::{self, CallError, Calls, SdkConfig},
    sqs::SqsQueues,
};
use tidegate_core::error_chain::ErrorChain;

/// The waits after the first receives. Throttling is usually over by then. A message that still
/// fails waits for its visibility timeout, and becomes a dead letter in the end.
const REDELIVERY_WAITS: [Duration; 3] =
    [Duration::from_secs(2), Duration::from_secs(10), Duration::from_mins(1)];
/// Most messages of one `ChangeMessageVisibilityBatch` call.
const MAX_ENTRIES: usize = 10;
/// The timeout of a call, which is not retried: less than the time that an invocation reserves for
/// its end.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// The wait before the redelivery of a message that failed at its receive number `receives`.
/// `None`: the visibility timeout of its queue decides.
pub fn after(receives: usize) -> Option<Duration> {
    REDELIVERY_WAITS.get(receives.checked_sub(1)?).copied()
}

/// Sets when the queues of a deployment redeliver failed messages.
pub struct Redelivery {
    queues: SqsQueues,
    /// Built at the first failure: most processes need none.
    client: OnceCell<Client>,
}

impl Redelivery {
    /// For the queues that `settings` name.
    pub fn new(settings: &CloudSettings) -> Self {
        Self { queues: settings.queues.clone(), client: OnceCell::new() }
    }

    /// Shortens the wait of the `failures` among the messages of `event`. If that fails, a message
    /// is redelivered after the visibility timeout of its queue.
    pub async fn schedule(&self, event: &SqsEvent, failures: &Failures) {
        let failed: Vec<(&SqsRecord, i32)> = failures
            .ids()
            .filter_map(|id| event.records.iter().find(|record| record.id == id))
            .filter_map(wait_of)
            .collect();
        // All messages of an invocation come from one queue.
        let Some(url) = failed.first().and_then(|(record, _)| self.url(&record.queue)) else {
            return;
        };
        let client = self
            .client
            .get_or_try_init(async || Ok(client(&aws::config(Calls::new()?, CALL_TIMEOUT).await)))
            .await;
        let client = match client {
            Ok(client) => client,
            Err::<_, reqwest::Error>(error) => {
                return not_shortened(&ErrorChain(&error).to_string());
            }
        };
        for batch in failed.chunks(MAX_ENTRIES) {
            let entries = batch.iter().enumerate().filter_map(|(index, (record, seconds))| {
                let entry =
                    ChangeMessageVisibilityBatchRequestEntry::builder().id(index.to_string());
                entry.receipt_handle(&record.receipt).visibility_timeout(*seconds).build().ok()
            });
            let call = client
                .change_message_visibility_batch()
                .queue_url(url)
                .set_entries(Some(entries.collect()));
            let kind = if is_fifo(url) { "fifo" } else { "standard" };
            metrics::counter!("tidegate_sqs_requests_total", "kind" => kind).increment(1);
            match call.send().await {
                Ok(answer) => answer.failed.iter().for_each(|failed| not_shortened(&failed.code)),
                Err(error) => not_shortened(&ErrorChain(&CallError::from(error)).to_string()),
            }
        }
    }

    /// The URL of the queue with this ARN. Both end in its name.
    fn url(&self, arn: &str) -> Option<&str> {
        let name = arn.rsplit(':').next().filter(|name| !name.is_empty())?;
        let urls = [&self.queues.work, &self.queues.hints, &self.queues.timers];
        urls.into_iter().find(|url| url.rsplit('/').next() == Some(name)).map(String::as_str)
    }
}

fn client(config: &SdkConfig) -> Client {
    Client::from_conf(Builder::from(config).retry_config(RetryConfig::disabled()).build())
}

/// A message with the seconds until its redelivery.
fn wait_of(record: &SqsRecord) -> Option<(&SqsRecord, i32)> {
    Some((record, i32::try_from(after(record.attributes.receives.parse().ok()?)?.as_secs()).ok()?))
}

fn is_fifo(url: &str) -> bool {
    url.rsplit('.').next() == Some("fifo")
}

fn not_shortened(why: &str) {
    tracing::warn!(why, "a failed message waits for the visibility timeout of its queue");
}
