//! What the function `sweep` does: the maintenance sweep every minute, and the dead letters of the
//! queues every five minutes.
//!
//! The one thing to know: the function is also the deployment's self-check. It fails if it finds
//! anything that an operator should know, so the one alarm on its errors covers failed parts, dead
//! letters and late jobs, and a sweep that does not run.

use std::time::Duration;

use aws_sdk_sqs::{
    Client,
    types::{DeleteMessageBatchRequestEntry, Message},
};
use futures_util::future::join_all;
use tokio::sync::OnceCell;

use super::{
    event::{SqsEvent, SqsRecord},
    handlers::handle_dead_letter,
    settings::CloudSettings,
};
use crate::runtime::Server;
use tidegate_backends::aws::{self, CallError, Calls};
use tidegate_core::{error_chain::ErrorChain, time::Timestamp};

/// The value of the field `tidegate` in the event that requests the handling of dead letters.
const DEAD_LETTERS: &str = "dead-letters";
/// Most messages of one receive.
const MAX_MESSAGES: i32 = 10;
/// The timeout of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// What an operator should know after a run. The next run repeats what failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SweepFailed {
    /// Parts of the maintenance sweep failed, or jobs are late.
    #[error(
        "parts of the maintenance sweep failed: {failed}; the oldest due job is {late_seconds} s \
         late; the log has the details"
    )]
    Sweep {
        /// Parts that failed.
        failed: usize,
        /// How late the oldest due job is, if that is too late; else 0.
        late_seconds: u64,
    },
    /// SQS had given up on messages, or their queues cannot be read.
    #[error(
        "dead letters handled: {handled}; dead-letter queues that failed: {failed}; the log has \
         the details"
    )]
    DeadLetters {
        /// Messages that were received.
        handled: usize,
        /// Queues that could not be read or written.
        failed: usize,
    },
}

/// The maintenance of a deployment. The default one has no dead-letter queues and accepts any
/// lateness.
#[derive(Default)]
pub struct Maintenance {
    dead_letter_queues: Vec<String>,
    max_lateness: Option<Duration>,
    /// Built at the first receive.
    client: OnceCell<Client>,
}

impl Maintenance {
    /// That of the deployment that `settings` describe.
    pub fn new(settings: &CloudSettings) -> Self {
        Self {
            dead_letter_queues: settings.dead_letter_queues.clone(),
            max_lateness: settings.max_lateness,
            client: OnceCell::new(),
        }
    }

    /// The same, but the sweep fails while a job of a queue without limits is later than `most`.
    #[must_use]
    pub fn with_max_lateness(self, most: Duration) -> Self {
        Self { max_lateness: Some(most), ..self }
    }

    /// Does what `event`, which has no messages, requests, until `until`.
    ///
    /// # Errors
    ///
    /// [`SweepFailed`], so that the invocation counts as failed and its alarm fires.
    pub async fn run(
        &self,
        server: &Server,
        event: &SqsEvent,
        until: Timestamp,
    ) -> Result<(), SweepFailed> {
        if event.request == DEAD_LETTERS {
            self.handle_dead_letters(server, until).await
        } else {
            self.sweep(server, until).await
        }
    }

    async fn sweep(&self, server: &Server, until: Timestamp) -> Result<(), SweepFailed> {
        let now = server.engine().ports().clock.now();
        let done = server.maintenance_sweep(until).await;
        let lateness = done.oldest_due_at.map_or(Duration::ZERO, |at| now.since(at));
        tracing::info!(
            queues = done.queues,
            ahead = done.ahead,
            late = done.late,
            oldest_due_seconds = lateness.as_secs(),
            failed = done.failed,
            "the maintenance sweep ended"
        );
        let too_late = self.max_lateness.is_some_and(|most| lateness > most);
        if done.failed == 0 && !too_late {
            return Ok(());
        }
        let late_seconds = if too_late { lateness.as_secs() } else { 0 };
        Err(SweepFailed::Sweep { failed: done.failed, late_seconds })
    }

    async fn handle_dead_letters(
        &self,
        server: &Server,
        until: Timestamp,
    ) -> Result<(), SweepFailed> {
        let (mut handled, mut failed) = (0, 0);
        let queues = self.dead_letter_queues.iter();
        for drained in join_all(queues.map(|url| self.drain(server, url, until))).await {
            match drained {
                Ok(messages) => handled += messages,
                Err(error) => {
                    failed += 1;
                    tracing::error!(error, "the dead letters of a queue were not handled");
                }
            }
        }
        if handled + failed == 0 {
            Ok(())
        } else {
            Err(SweepFailed::DeadLetters { handled, failed })
        }
    }

    /// Handles the messages of a dead-letter queue. Those that fail return after the visibility
    /// timeout of the queue. Returns how many were handled.
    async fn drain(&self, server: &Server, url: &str, until: Timestamp) -> Result<usize, String> {
        let client = self.client.get_or_try_init(client).await?;
        let mut handled = 0;
        while server.engine().ports().clock.now() < until {
            count(url);
            let receive = client.receive_message().queue_url(url);
            let received = receive.max_number_of_messages(MAX_MESSAGES).send().await;
            let records: Vec<SqsRecord> =
                received.map_err(text)?.messages.unwrap_or_default().into_iter().map(of).collect();
            if records.is_empty() {
                break;
            }
            let event = SqsEvent { records, ..SqsEvent::default() };
            let failures = handle_dead_letter(server, &event, until).await;
            let done: Vec<&SqsRecord> = event
                .records
                .iter()
                .filter(|record| failures.ids().all(|id| id != record.id))
                .collect();
            handled += event.records.len();
            if done.is_empty() {
                continue;
            }
            count(url);
            let entries = done.iter().enumerate().filter_map(|(index, record)| {
                let entry = DeleteMessageBatchRequestEntry::builder().id(index.to_string());
                entry.receipt_handle(&record.receipt).build().ok()
            });
            let delete = client.delete_message_batch().queue_url(url);
            delete.set_entries(Some(entries.collect())).send().await.map_err(text)?;
        }
        Ok(handled)
    }
}

async fn client() -> Result<Client, String> {
    let calls = Calls::new().map_err(|error| ErrorChain(&error).to_string())?;
    Ok(Client::new(&aws::config(calls, CALL_TIMEOUT).await))
}

fn count(url: &str) {
    let kind = if url.rsplit('.').next() == Some("fifo") { "fifo" } else { "standard" };
    metrics::counter!("tidegate_sqs_requests_total", "kind" => kind).increment(1);
}

fn text(error: impl Into<CallError>) -> String {
    ErrorChain(&error.into()).to_string()
}

fn of(message: Message) -> SqsRecord {
    SqsRecord {
        id: message.message_id.unwrap_or_default(),
        body: message.body.unwrap_or_default(),
        receipt: message.receipt_handle.unwrap_or_default(),
        ..SqsRecord::default()
    }
}
