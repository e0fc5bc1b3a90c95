//! The billed requests of queues, by the rules of SQS. A send, a receive and a delete of up to ten
//! messages each count once for every 64 KB of content.
//!
//! The backend's own code ([`pack`]) makes the messages and calls, so both count the same requests.
//! The test chooses how many messages a poller receives at once, because that depends on their
//! rate.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Sub,
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::sqs::pack::{self, MAX_BATCH_MESSAGES, Outgoing};
use tidegate_core::{
    job::QueueName,
    port::{Clock, Hint, StoreError, Timer, Work, WorkQueue},
    queue::GrantDigest,
    time::Timestamp,
};

/// Bytes that are billed as one request.
const BILLED_CHUNK_BYTES: usize = 64 << 10;

/// Billed requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Requests {
    /// Requests to standard queues.
    pub standard: f64,
    /// Requests to the FIFO queue.
    pub fifo: f64,
}

impl Sub for Requests {
    type Output = Self;
    fn sub(self, before: Self) -> Self {
        Self { standard: self.standard - before.standard, fifo: self.fifo - before.fifo }
    }
}

/// The messages of an invocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Hints for `tick`, of one group.
    Hints(Vec<String>),
    /// Timers for `tick`.
    Timers(Vec<String>),
    /// Messages for `deliver`.
    Deliver(Vec<String>),
}

/// Queues in memory that count requests.
pub struct MeteredQueue {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    requests: Requests,
    sent: u64,
    work: BTreeMap<(Timestamp, u64), String>,
    hints: BTreeMap<u64, Outgoing>,
    timers: BTreeMap<(Timestamp, u64), String>,
}

/// The billed requests for these bodies.
fn requests<'a>(bodies: impl IntoIterator<Item = &'a String>) -> f64 {
    let bytes: usize = bodies.into_iter().map(String::len).sum();
    bytes.div_ceil(BILLED_CHUNK_BYTES).max(1) as f64
}

impl MeteredQueue {
    /// Empty queues with the time of `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, state: Mutex::default() })
    }

    /// The requests so far.
    pub fn requests(&self) -> Requests {
        self.state.lock().requests
    }

    /// The next invocation with at most `most` due messages. It is assumed to succeed, so they are
    /// deleted. `hints` is whether hints may be received: those of a group wait while others of it
    /// are in flight.
    pub fn receive(&self, most: usize, hints: bool) -> Option<Received> {
        let (now, state) = (self.clock.now(), &mut *self.state.lock());
        if let Some(first) = state.hints.values().next().filter(|_| hints) {
            let group = first.group.clone();
            let taken: Vec<u64> = state
                .hints
                .iter()
                .filter(|(_, hint)| hint.group == group)
                .map(|(number, _)| *number)
                .take(most)
                .collect();
            let bodies: Vec<String> = taken
                .iter()
                .filter_map(|number| state.hints.remove(number))
                .map(|hint| hint.body)
                .collect();
            state.requests.fifo += requests(&bodies) + 1.0;
            return Some(Received::Hints(bodies));
        }
        for (is_work, waiting) in [(false, &mut state.timers), (true, &mut state.work)] {
            let due: Vec<(Timestamp, u64)> =
                waiting.keys().take_while(|(at, _)| *at <= now).take(most).copied().collect();
            if !due.is_empty() {
                let bodies: Vec<String> =
                    due.iter().filter_map(|key| waiting.remove(key)).collect();
                state.requests.standard += requests(&bodies) + 1.0;
                return Some(if is_work {
                    Received::Deliver(bodies)
                } else {
                    Received::Timers(bodies)
                });
            }
        }
        None
    }

    /// When the next delayed message is due.
    pub fn next_at(&self) -> Option<Timestamp> {
        let state = self.state.lock();
        state.work.keys().chain(state.timers.keys()).map(|(at, _)| *at).min()
    }

    fn post(
        &self,
        messages: Vec<Outgoing>,
        fifo: bool,
        to: fn(&mut State) -> &mut BTreeMap<(Timestamp, u64), String>,
    ) {
        let (now, state) = (self.clock.now(), &mut *self.state.lock());
        for call in messages.chunks(MAX_BATCH_MESSAGES) {
            let taken = requests(call.iter().map(|message| &message.body));
            *(if fifo { &mut state.requests.fifo } else { &mut state.requests.standard }) += taken;
        }
        for message in messages {
            state.sent += 1;
            let number = state.sent;
            if fifo {
                state.hints.insert(number, message);
            } else {
                let at =
                    now + std::time::Duration::from_secs(message.delay.unwrap_or(0).max(0) as u64);
                to(state).insert((at, number), message.body);
            }
        }
    }
}

#[async_trait]
impl WorkQueue for MeteredQueue {
    async fn send(&self, work: &[Work]) -> Result<(), StoreError> {
        self.post(pack::work(work, self.clock.now()), false, |state| &mut state.work);
        Ok(())
    }

    async fn hint(&self, hints: &[Hint]) -> Result<(), StoreError> {
        self.post(pack::hints(hints, String::new), true, |state| &mut state.work);
        Ok(())
    }

    async fn take_releases(&self, _: &QueueName) -> Result<BTreeSet<GrantDigest>, StoreError> {
        Ok(BTreeSet::new())
    }

    async fn set_timers(&self, timers: &[Timer]) -> Result<(), StoreError> {
        self.post(pack::timers(timers, self.clock.now()), false, |state| &mut state.timers);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{job::Version, port::HintKind};
    use tidegate_engine::{memory::FakeClock, testkit::builders::name};

    fn work(job: &str, at: Timestamp) -> Work {
        let (version, queue) = (Version(1), name("q"));
        Work { queue, job: name(job), version, run_at: at, granted_at: None, data_bytes: 0 }
    }

    #[tokio::test]
    async fn a_call_carries_ten_messages_and_is_billed_by_64_kb() {
        let clock = Arc::new(FakeClock::default());
        let queue = MeteredQueue::new(clock.clone());
        let many: Vec<Work> =
            (0..301).map(|number| work(&format!("j{number}"), clock.now())).collect();
        queue.send(&many).await.unwrap();
        assert_eq!(
            queue.requests(),
            Requests { standard: 2.0, fifo: 0.0 },
            "eleven messages, two calls"
        );
        assert!(
            matches!(queue.receive(10, true), Some(Received::Deliver(bodies)) if bodies.len() == 10)
        );
        assert!(
            matches!(queue.receive(10, true), Some(Received::Deliver(bodies)) if bodies.len() == 1)
        );
        assert_eq!(
            queue.requests(),
            Requests { standard: 6.0, fifo: 0.0 },
            "two receives and two deletes"
        );

        let long = "x".repeat(60);
        let hints: Vec<Hint> = (0..1500)
            .map(|number| Hint {
                queue: name("q"),
                kind: HintKind::Released(name(&format!("{long}{number:04}")), Version(1)),
            })
            .collect();
        queue.hint(&hints).await.unwrap();
        let fifo = queue.requests().fifo;
        assert!((2.0..=3.0).contains(&fifo), "three messages of some 35 KB in one call: {fifo}");
    }

    #[tokio::test]
    async fn a_delayed_message_arrives_at_its_instant() {
        let clock = Arc::new(FakeClock::default());
        let queue = MeteredQueue::new(clock.clone());
        let later = clock.now() + std::time::Duration::from_secs(30);
        queue.send(&[work("a", later)]).await.unwrap();
        queue.set_timers(&[Timer { queue: name("q"), at: later }]).await.unwrap();
        assert_eq!((queue.receive(10, true), queue.next_at()), (None, Some(later)));
        clock.set(later);
        assert!(matches!(queue.receive(10, true), Some(Received::Timers(_))));
        assert!(matches!(queue.receive(10, true), Some(Received::Deliver(_))));
    }
}
