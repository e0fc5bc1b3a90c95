//! Messages become ticks, deliveries and failed attempts. The answer names the messages that SQS
//! must redeliver.

use std::{collections::BTreeMap, time::Duration};

use futures_util::{StreamExt, stream};

use super::event::{Failures, SqsEvent, SqsRecord};
use crate::runtime::Server;
use crate::telemetry::function::count_sqs_requests;
use tidegate_backends::sqs::Message;
use tidegate_core::{
    job::QueueName,
    port::{HintKind, Timer, Work},
    time::Timestamp,
};
use tidegate_engine::Error;

/// Most queues that one invocation ticks concurrently.
const MAX_CONCURRENT_QUEUES: usize = 10;
/// The longest wait for a timer that arrived early. An earlier one goes back to its queue.
const MAX_TIMER_WAIT: Duration = Duration::from_secs(1);
/// Most characters of a malformed message in the log: enough to recognise its sender.
const MAX_LOGGED_CHARS: usize = 200;

/// The content of an invocation's messages for one queue.
#[derive(Default)]
struct QueueMessages {
    hints: Vec<HintKind>,
    timers: Vec<Timestamp>,
    /// The indices of the messages in the event.
    records: Vec<usize>,
}

/// Ticks the queues that the messages of `event` name, until `until`.
pub async fn tick(server: &Server, event: &SqsEvent, until: Timestamp) -> Failures {
    count_sqs_requests(event);
    tick_queues(server, event, until).await
}

/// Ticks the queues that the messages name.
async fn tick_queues(server: &Server, event: &SqsEvent, until: Timestamp) -> Failures {
    let mut failures = Failures::default();
    let mut queues: BTreeMap<QueueName, QueueMessages> = BTreeMap::new();
    for (index, record) in event.records.iter().enumerate() {
        match Message::parse(&record.body) {
            Ok(Message::Hints(hints)) => {
                for hint in hints {
                    let messages = queues.entry(hint.queue).or_default();
                    messages.hints.push(hint.kind);
                    messages.records.push(index);
                }
            }
            Ok(Message::Timer(timer)) => {
                let messages = queues.entry(timer.queue).or_default();
                messages.timers.push(timer.at);
                messages.records.push(index);
            }
            other => reject(record, &other, &mut failures),
        }
    }
    let ticks: Vec<_> =
        queues.iter().map(|(queue, messages)| tick_queue(server, queue, messages, until)).collect();
    let done: Vec<bool> = stream::iter(ticks).buffered(MAX_CONCURRENT_QUEUES).collect().await;
    let published = server.flush().await.is_ok();
    for (done, messages) in done.into_iter().zip(queues.values()) {
        // Unpublished messages are computed again when these messages are redelivered.
        if !done || !published {
            messages.records.iter().for_each(|index| failures.add(&event.records[*index]));
        }
    }
    failures
}

/// Ticks one queue: once for its hints, and for its expired timers and each that expires soon unless
/// a tick has covered them. Returns whether all ticks succeeded.
async fn tick_queue(
    server: &Server,
    queue: &QueueName,
    messages: &QueueMessages,
    until: Timestamp,
) -> bool {
    let clock = &server.engine().ports().clock;
    let now = clock.now();
    let (early, mut timers): (Vec<Timestamp>, Vec<Timestamp>) =
        messages.timers.iter().partition(|at| **at > now + MAX_TIMER_WAIT);
    timers.sort_unstable();
    timers.dedup();
    let early: Vec<Timer> =
        early.into_iter().map(|at| Timer { at, queue: queue.clone() }).collect();
    let mut done =
        early.is_empty() || server.engine().ports().work.set_timers(&early).await.is_ok();
    let expired = timers.partition_point(|at| *at <= now);
    if !messages.hints.is_empty() {
        done &= is_done(queue, &server.tick_queue(queue, messages.hints.clone(), until).await);
    }
    // A tick at the last instant that has passed covers the earlier ones.
    for at in &timers[expired.saturating_sub(1)..] {
        clock.sleep_until(*at).await;
        done &= is_done(queue, &server.tick_queue_at(queue, *at, until).await);
    }
    done
}

/// Whether a tick of `queue` succeeded.
fn is_done(queue: &QueueName, ticked: &Result<(), Error>) -> bool {
    if let Err(error) = ticked {
        tracing::warn!(%queue, %error, "a tick failed; SQS redelivers its messages");
    }
    ticked.is_ok()
}

/// Claims and delivers the work in `event`. A call without a response by `until` fails.
pub async fn deliver(server: &Server, event: &SqsEvent, until: Timestamp) -> Failures {
    count_sqs_requests(event);
    let mut failures = Failures::default();
    let (work, sources) = work_in(event, &mut failures);
    for (done, index) in server.deliver(work, until).await.into_iter().zip(sources) {
        if !done {
            failures.add(&event.records[index]);
        }
    }
    failures
}

/// Fails the attempts of undeliverable work, and runs the ticks that failed messages requested.
pub async fn handle_dead_letter(server: &Server, event: &SqsEvent, until: Timestamp) -> Failures {
    let (mut work, mut requests) = (Vec::new(), Vec::new());
    for record in &event.records {
        match Message::parse(&record.body) {
            Ok(Message::Work(_)) => work.push(record.clone()),
            Ok(_) => requests.push(record.clone()),
            Err(_) => drop_malformed(record),
        }
    }
    let mut failures = Failures::default();
    if !work.is_empty() {
        let event = SqsEvent { records: work, ..SqsEvent::default() };
        let (work, sources) = work_in(&event, &mut failures);
        tracing::error!(pieces = work.len(), "work became a dead letter of its queue");
        for (done, index) in server.fail_undeliverable(work).await.into_iter().zip(sources) {
            if !done {
                failures.add(&event.records[index]);
            }
        }
    }
    if !requests.is_empty() {
        let event = SqsEvent { records: requests, ..SqsEvent::default() };
        let failed = tick_queues(server, &event, until).await;
        event
            .records
            .iter()
            .filter(|record| failed.ids().any(|id| id == record.id))
            .for_each(|record| failures.add(record));
    }
    failures
}

/// Logs and counts a malformed message, which is then deleted.
///
/// No function can ever handle it, and the dead-letter queue would redeliver it for two weeks.
fn drop_malformed(record: &SqsRecord) {
    metrics::counter!("tidegate_messages_malformed_total").increment(1);
    tracing::error!(
        message = record.id,
        body = beginning(&record.body),
        "a malformed message was dropped"
    );
}

/// The work in the messages, and for each piece the index of its message.
fn work_in(event: &SqsEvent, failures: &mut Failures) -> (Vec<Work>, Vec<usize>) {
    let (mut work, mut sources) = (Vec::new(), Vec::new());
    for (index, record) in event.records.iter().enumerate() {
        match Message::parse(&record.body) {
            Ok(Message::Work(pieces)) => {
                sources.extend(pieces.iter().map(|_| index));
                work.extend(pieces);
            }
            other => reject(record, &other, failures),
        }
    }
    (work, sources)
}

/// Logs a message that this function cannot handle. It becomes a dead letter of its queue, and then
/// the function `sweep` handles it as far as possible.
fn reject<E: std::fmt::Display>(
    record: &SqsRecord,
    parsed: &Result<Message, E>,
    failures: &mut Failures,
) {
    let why = parsed
        .as_ref()
        .err()
        .map_or_else(|| "it belongs in another queue".to_owned(), ToString::to_string);
    tracing::error!(message = record.id, why, "a message cannot be handled");
    failures.add(record);
}

fn beginning(body: &str) -> &str {
    body.char_indices().nth(MAX_LOGGED_CHARS).map_or(body, |(end, _)| &body[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_the_beginning_of_a_malformed_message() {
        assert_eq!(beginning("not a message"), "not a message");
        assert_eq!(beginning(&"ü".repeat(5000)).chars().count(), MAX_LOGGED_CHARS);
    }
}
