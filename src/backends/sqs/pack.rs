//! What is sent, as messages: which go together, and how long each is held back. Pure, so that what sending costs can be counted without it.

use std::{collections::BTreeMap, time::Duration};

use super::message;
use tidegate_core::{
    job::QueueName,
    port::{Hint, HintKind, Timer, Work, work_queue::REACH_SECONDS},
    time::Timestamp,
};

/// Messages of one call.
pub const BATCH: usize = 10;
/// Jobs of one message: a function that is called with ten has three hundred targets to wait for at once, and a call with ten, ids as long
/// as they may be, is paid for as one. What is redelivered since one of them failed is looked at again for all.
pub const JOBS: usize = 30;
/// News of one message: within 64 KB, the unit that is paid for, with ids as long as they may be.
const NEWS: usize = 500;

/// A message on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Its body.
    pub body: String,
    /// The messages that it is kept in order with, or fair among.
    pub group: String,
    /// How long it is held back, in seconds.
    pub delay: Option<i32>,
    /// What no other message has: FIFO queues drop one with the same.
    pub key: Option<String>,
}

/// Work as messages of one queue and one delay each. On a standard queue a group that waits long does not hold up the others.
pub fn work(work: &[Work], now: Timestamp) -> Vec<Outgoing> {
    let mut groups: BTreeMap<(&QueueName, i32), Vec<&Work>> = BTreeMap::new();
    for work in work {
        groups.entry((&work.queue, delay(work.run_at, now))).or_default().push(work);
    }
    let mut messages = Vec::new();
    for ((queue, delay), work) in &groups {
        messages.extend(work.chunks(JOBS).map(|jobs| Outgoing {
            body: message::work(queue, jobs),
            group: queue.to_string(),
            delay: Some(*delay),
            key: None,
        }));
    }
    messages
}

/// News as messages of one queue each. Two hints of the same words are two hints: `key` draws a new one for each.
pub fn hints(hints: &[Hint], mut key: impl FnMut() -> String) -> Vec<Outgoing> {
    let mut groups: BTreeMap<&QueueName, Vec<&HintKind>> = BTreeMap::new();
    for hint in hints {
        groups.entry(&hint.queue).or_default().push(&hint.kind);
    }
    let mut messages = Vec::new();
    for (queue, news) in &groups {
        messages.extend(news.chunks(NEWS).map(|news| Outgoing {
            body: message::hint(queue, news),
            group: queue.to_string(),
            delay: None,
            key: Some(key()),
        }));
    }
    messages
}

/// Wake-ups, a message each.
pub fn wakes(wakes: &[Timer], now: Timestamp) -> Vec<Outgoing> {
    let message = |wake: &Timer| Outgoing {
        body: message::wake(wake),
        group: wake.queue.to_string(),
        delay: Some(delay(wake.at, now)),
        key: None,
    };
    wakes.iter().map(message).collect()
}

/// The delay with which a message arrives at `at`: whole seconds, the nearest, so that the receiver waits half a second at most.
fn delay(at: Timestamp, now: Timestamp) -> i32 {
    let millis = at.since(now).min(Duration::from_hours(24)).as_millis() as u64;
    ((millis + 500) / 1000).min(REACH_SECONDS) as i32
}
