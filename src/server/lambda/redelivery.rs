//! A message that failed comes again within seconds, and only then as late as its queue has it come.
//!
//! The one thing to know: hints of a queue are kept in order, so that one that is waited for holds up all that come after it.

use std::time::Duration;

use aws_sdk_sqs::{
    Client,
    config::{Builder, retry::RetryConfig},
    error::DisplayErrorContext,
    types::ChangeMessageVisibilityBatchRequestEntry,
};
use tokio::sync::OnceCell;

use super::{
    event::{Event, Failures, Record},
    settings::CloudSettings,
};
use tidegate_backends::{
    aws::{self, Calls, SdkConfig},
    sqs::SqsQueues,
};

/// The waits after the first receives. A throttle is mostly over by then; what fails for longer is left to the queue, which gives it up in the end.
const WAITS: [Duration; 3] =
    [Duration::from_secs(2), Duration::from_secs(10), Duration::from_mins(1)];
/// Messages of one call.
const BATCH: usize = 10;
/// How long the queue may take to answer, which it is asked once: less than what a call keeps of its time for its end.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long after its receive number `receives` a message that failed comes again; none if its queue is to say.
pub fn after(receives: usize) -> Option<Duration> {
    WAITS.get(receives.checked_sub(1)?).copied()
}

/// Tells the queues of a deployment when what failed is to come again.
pub struct Redelivery {
    queues: SqsQueues,
    /// Made when something fails: most calls need none.
    client: OnceCell<Client>,
}

impl Redelivery {
    /// For the queues that `settings` name.
    pub fn new(settings: &CloudSettings) -> Self {
        Self { queues: settings.queues.clone(), client: OnceCell::new() }
    }

    /// Has the `failures` among the messages of `event` come again soon. What cannot be told comes when its visibility timeout is over.
    pub async fn schedule(&self, event: &Event, failures: &Failures) {
        let failed: Vec<(&Record, i32)> = failures
            .ids()
            .filter_map(|id| event.records.iter().find(|record| record.id == id))
            .filter_map(wait_of)
            .collect();
        // All messages of a call are of one queue.
        let Some(url) = failed.first().and_then(|(record, _)| self.url(&record.queue)) else {
            return;
        };
        let made = self
            .client
            .get_or_try_init(async || Ok(client(&aws::config(Calls::new()?, PATIENCE).await)))
            .await;
        let client = match made {
            Ok(client) => client,
            Err::<_, reqwest::Error>(error) => return not_told(&error.to_string()),
        };
        for batch in failed.chunks(BATCH) {
            let entries = batch.iter().enumerate().filter_map(|(index, (record, seconds))| {
                let entry =
                    ChangeMessageVisibilityBatchRequestEntry::builder().id(index.to_string());
                entry.receipt_handle(&record.receipt).visibility_timeout(*seconds).build().ok()
            });
            let asked = client
                .change_message_visibility_batch()
                .queue_url(url)
                .set_entries(Some(entries.collect()));
            metrics::counter!("tidegate_sqs_requests_total", "kind" => if is_fifo(url) { "fifo" } else { "standard" }).increment(1);
            match asked.send().await {
                Ok(answer) => answer.failed.iter().for_each(|failed| not_told(&failed.code)),
                Err(error) => not_told(&DisplayErrorContext(&error).to_string()),
            }
        }
    }

    /// The URL of the queue with this ARN: both end in its name.
    fn url(&self, arn: &str) -> Option<&str> {
        let name = arn.rsplit(':').next().filter(|name| !name.is_empty())?;
        let urls = [&self.queues.work, &self.queues.hints, &self.queues.wakes];
        urls.into_iter().find(|url| url.rsplit('/').next() == Some(name)).map(String::as_str)
    }
}

fn client(config: &SdkConfig) -> Client {
    Client::from_conf(Builder::from(config).retry_config(RetryConfig::disabled()).build())
}

/// A message with the seconds until it is to come again.
fn wait_of(record: &Record) -> Option<(&Record, i32)> {
    Some((record, i32::try_from(after(record.attributes.receives.parse().ok()?)?.as_secs()).ok()?))
}

fn is_fifo(url: &str) -> bool {
    url.rsplit('.').next() == Some("fifo")
}

fn not_told(why: &str) {
    tracing::warn!(
        why,
        "a message that failed comes again only when its visibility timeout is over"
    );
}
