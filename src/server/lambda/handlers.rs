//! From messages to rounds, deliveries and ends: which message is done, and which is to come again.

use std::{collections::BTreeMap, time::Duration};

use futures_util::{StreamExt, stream};

use super::event::{Event, Failures, Record};
use crate::runtime::Server;
use crate::telemetry::function::count_sqs_requests;
use tidegate_backends::sqs::Message;
use tidegate_core::{
    job::QueueName,
    port::{HintKind, Timer, Work},
    time::Timestamp,
};

/// Queues that one call ticks side by side.
const AT_ONCE: usize = 10;
/// A wake-up that is earlier than this goes back, to arrive in time.
const SOON: Duration = Duration::from_secs(1);

/// As much of a message that nobody can read is logged: enough to see whose it is.
const BEGINNING: usize = 200;

/// Parts of the minute's round failed. The next one does again what this one did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} parts of the minute's round failed, as the log says")]
pub struct SweepFailed(pub usize);

/// What the messages of one call say of a queue.
#[derive(Default)]
struct Messages {
    news: Vec<HintKind>,
    wakes: Vec<Timestamp>,
    records: Vec<usize>,
}

/// Takes the rounds that `event` asks for, until `until`: of the queues that its messages name, or (it has none) the minute's.
///
/// # Errors
///
/// [`SweepFailed`], so that the invocation counts as failed and its alarm is heard.
pub async fn tick(
    server: &Server,
    event: &Event,
    until: Timestamp,
) -> Result<Failures, SweepFailed> {
    if !event.records.is_empty() {
        return Ok(read_messages(server, event, until).await);
    }
    let done = server.maintenance_sweep(until).await;
    tracing::info!(
        queues = done.queues,
        ahead = done.ahead,
        late = done.late,
        failed = done.failed,
        "the minute's round"
    );
    if done.failed == 0 { Ok(Failures::default()) } else { Err(SweepFailed(done.failed)) }
}

/// Takes the rounds of the queues that the messages name.
async fn read_messages(server: &Server, event: &Event, until: Timestamp) -> Failures {
    count_sqs_requests(event);
    let mut failures = Failures::default();
    let mut queues: BTreeMap<QueueName, Messages> = BTreeMap::new();
    for (index, record) in event.records.iter().enumerate() {
        match Message::parse(&record.body) {
            Ok(Message::Hints(hints)) => {
                for hint in hints {
                    let told = queues.entry(hint.queue).or_default();
                    told.news.push(hint.kind);
                    told.records.push(index);
                }
            }
            Ok(Message::Wake(wake)) => {
                let told = queues.entry(wake.queue).or_default();
                told.wakes.push(wake.at);
                told.records.push(index);
            }
            other => strange(record, &other, &mut failures),
        }
    }
    let rounds: Vec<_> =
        queues.iter().map(|(queue, told)| tick_queues(server, queue, told, until)).collect();
    let done: Vec<bool> = stream::iter(rounds).buffered(AT_ONCE).collect().await;
    let told = server.flush().await.is_ok();
    for (done, told_of) in done.into_iter().zip(queues.values()) {
        // What could not be told is worked out again, by whoever gets the messages next.
        if !done || !told {
            told_of.records.iter().for_each(|index| failures.add(&event.records[*index]));
        }
    }
    failures
}

/// The rounds of one queue: one for the news and the wake-ups that have come, one for each that is about to. Whether all were taken.
async fn tick_queues(
    server: &Server,
    queue: &QueueName,
    told: &Messages,
    until: Timestamp,
) -> bool {
    let clock = &server.engine().ports().clock;
    let now = clock.now();
    let (early, mut wakes): (Vec<Timestamp>, Vec<Timestamp>) =
        told.wakes.iter().partition(|at| **at > now + SOON);
    wakes.sort_unstable();
    wakes.dedup();
    let back: Vec<Timer> = early.into_iter().map(|at| Timer { at, queue: queue.clone() }).collect();
    let mut done = back.is_empty() || server.engine().ports().work.set_timers(&back).await.is_ok();
    let come = wakes.partition_point(|at| *at <= now);
    let mut news = told.news.clone();
    if come > 0 {
        news.push(HintKind::Due);
    }
    if !news.is_empty() {
        done &= taken(server, queue, news, until).await;
    }
    for at in &wakes[come..] {
        clock.sleep_until(*at).await;
        done &= taken(server, queue, vec![HintKind::Due], until).await;
    }
    done
}

async fn taken(server: &Server, queue: &QueueName, news: Vec<HintKind>, until: Timestamp) -> bool {
    match server.tick_queue(queue, news, until).await {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%queue, %error, "a round failed; its messages come again");
            false
        }
    }
}

/// Claims and delivers the work in `event`; what has no answer by `until` is given up.
pub async fn deliver(server: &Server, event: &Event, until: Timestamp) -> Failures {
    count_sqs_requests(event);
    let mut failures = Failures::default();
    let (work, places) = work_of(event, &mut failures);
    for (done, index) in server.deliver(work, until).await.into_iter().zip(places) {
        if !done {
            failures.add(&event.records[index]);
        }
    }
    failures
}

/// Ends as failed attempts the work that was given up, and takes the rounds that were.
pub async fn handle_dead_letter(server: &Server, event: &Event, until: Timestamp) -> Failures {
    let mut failures = Failures::default();
    let (rounds, work): (Vec<Record>, Vec<Record>) = event
        .records
        .iter()
        .cloned()
        .partition(|record| !matches!(Message::parse(&record.body), Ok(Message::Work(_))));
    if !work.is_empty() {
        let event = Event { records: work };
        let (work, places) = work_of(&event, &mut failures);
        tracing::error!(pieces = work.len(), "work was given up by its queue");
        for (done, index) in server.fail_undeliverable(work).await.into_iter().zip(places) {
            if !done {
                failures.add(&event.records[index]);
            }
        }
    }
    let (rounds, unreadable): (Vec<Record>, Vec<Record>) =
        rounds.into_iter().partition(|record| Message::parse(&record.body).is_ok());
    for record in unreadable {
        // Nobody can ever take it, and here it would come again for two weeks.
        metrics::counter!("tidegate_messages_malformed_total").increment(1);
        tracing::error!(
            message = record.id,
            body = beginning(&record.body),
            "a message that nobody can read is dropped"
        );
    }
    if !rounds.is_empty() {
        let event = Event { records: rounds };
        let failed = read_messages(server, &event, until).await;
        event
            .records
            .iter()
            .filter(|record| failed.ids().any(|id| id == record.id))
            .for_each(|record| failures.add(record));
    }
    failures
}

/// The work in the messages, and in which message each piece is.
fn work_of(event: &Event, failures: &mut Failures) -> (Vec<Work>, Vec<usize>) {
    let (mut work, mut places) = (Vec::new(), Vec::new());
    for (index, record) in event.records.iter().enumerate() {
        match Message::parse(&record.body) {
            Ok(Message::Work(pieces)) => {
                places.extend(pieces.iter().map(|_| index));
                work.extend(pieces);
            }
            other => strange(record, &other, failures),
        }
    }
    (work, places)
}

/// A message that does not belong here is given up by its queue in the end, and `dead-letter` does what can be done with it.
fn strange<E: std::fmt::Display>(
    record: &Record,
    read: &Result<Message, E>,
    failures: &mut Failures,
) {
    let why = read
        .as_ref()
        .err()
        .map_or_else(|| "it belongs in another queue".to_owned(), ToString::to_string);
    tracing::error!(message = record.id, why, "a message cannot be used");
    failures.add(record);
}

fn beginning(body: &str) -> &str {
    body.char_indices().nth(BEGINNING).map_or(body, |(end, _)| &body[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_logged_of_a_message_is_its_beginning() {
        assert_eq!(beginning("what nobody can read"), "what nobody can read");
        assert_eq!(beginning(&"ü".repeat(5000)).chars().count(), BEGINNING);
    }
}
