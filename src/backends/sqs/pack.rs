//! Groups work, hints and timers into messages with delays. Pure, so that tests can compute the
//! cost of sending.

use std::{collections::BTreeMap, time::Duration};

use super::message;
use tidegate_core::{
    job::QueueName,
    port::{Hint, HintKind, Timer, Work, work_queue::REACH_SECONDS},
    time::Timestamp,
};

/// Maximum messages of one call.
pub const MAX_BATCH_MESSAGES: usize = 10;
/// Maximum jobs of one message. An invocation with ten messages then waits for at most 300 targets,
/// and a call with ten messages is billed as one request, even with the longest ids. If one job
/// fails, its whole message is redelivered.
pub const MAX_MESSAGE_JOBS: usize = 30;
/// Maximum hints of one message, which fit into 64 KB, the billed unit, even with the longest ids.
const MAX_MESSAGE_HINTS: usize = 500;

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The body.
    pub body: String,
    /// The message group, which FIFO queues keep in order and standard queues treat fairly.
    pub group: String,
    /// The delay in seconds.
    pub delay: Option<i32>,
    /// The deduplication id: FIFO queues drop a second message with the same one.
    pub key: Option<String>,
}

/// Work as messages, each for one queue and one delay. On a standard queue, a long backlog of one
/// group does not delay the others.
pub fn work(work: &[Work], now: Timestamp) -> Vec<Outgoing> {
    let mut groups: BTreeMap<(&QueueName, i32), Vec<&Work>> = BTreeMap::new();
    for work in work {
        groups.entry((&work.queue, delay(work.run_at, now))).or_default().push(work);
    }
    let mut messages = Vec::new();
    for ((queue, delay), work) in &groups {
        messages.extend(work.chunks(MAX_MESSAGE_JOBS).map(|jobs| Outgoing {
            body: message::work(queue, jobs),
            group: queue.to_string(),
            delay: Some(*delay),
            key: None,
        }));
    }
    messages
}

/// Hints as messages, each for one queue. `key` draws a new deduplication id for each message,
/// because two equal hints are two hints.
pub fn hints(hints: &[Hint], mut key: impl FnMut() -> String) -> Vec<Outgoing> {
    let mut groups: BTreeMap<&QueueName, Vec<&HintKind>> = BTreeMap::new();
    for hint in hints {
        groups.entry(&hint.queue).or_default().push(&hint.kind);
    }
    let mut messages = Vec::new();
    for (queue, hints) in &groups {
        messages.extend(hints.chunks(MAX_MESSAGE_HINTS).map(|hints| Outgoing {
            body: message::hint(queue, hints),
            group: queue.to_string(),
            delay: None,
            key: Some(key()),
        }));
    }
    messages
}

/// Timers, one message each.
pub fn timers(timers: &[Timer], now: Timestamp) -> Vec<Outgoing> {
    let message = |timer: &Timer| Outgoing {
        body: message::timer(timer),
        group: timer.queue.to_string(),
        delay: Some(delay(timer.at, now)),
        key: None,
    };
    timers.iter().map(message).collect()
}

/// The delay of a message that should arrive at `at`, rounded to seconds, so that the receiver
/// waits at most half a second.
fn delay(at: Timestamp, now: Timestamp) -> i32 {
    let millis = at.since(now).min(Duration::from_hours(24)).as_millis() as u64;
    ((millis + 500) / 1000).min(REACH_SECONDS) as i32
}
