//! What the use of the queues costs, by the rules of SQS: a request each for a send, a receive and a removal of up to ten messages, and
//! another for every 64 KB of what it carries.
//!
//! The one thing to know: messages are made and put into calls by the adapter's own code ([`pack`]), so that what is counted here is what is
//! sent there. How many messages a poller finds at once is the test's to say, since it depends on how dense they come.

use std::{collections::BTreeMap, ops::Sub, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::sqs::pack::{self, BATCH, Outgoing};
use tidegate_core::{
    port::{Clock, Hint, StoreError, Timer, Work, WorkQueue},
    time::Timestamp,
};

/// The unit that is paid for.
const CHUNK: usize = 64 << 10;

/// What was used up.
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

/// What a function is called with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Messages for `tick`.
    Tick(Vec<String>),
    /// Messages for `deliver`.
    Deliver(Vec<String>),
}

/// Queues in memory that keep account.
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
    wakes: BTreeMap<(Timestamp, u64), String>,
}

/// The requests that carrying these bodies takes.
fn requests<'a>(bodies: impl IntoIterator<Item = &'a String>) -> f64 {
    let bytes: usize = bodies.into_iter().map(String::len).sum();
    bytes.div_ceil(CHUNK).max(1) as f64
}

impl MeteredQueue {
    /// Empty queues that go by `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, state: Mutex::default() })
    }

    /// What was used up so far.
    pub fn requests(&self) -> Requests {
        self.state.lock().requests
    }

    /// The next call of a function with what has arrived: at most `most` messages. It is taken to succeed, so they are gone.
    pub fn receive(&self, most: usize) -> Option<Received> {
        let (now, state) = (self.clock.now(), &mut *self.state.lock());
        if let Some(first) = state.hints.values().next() {
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
            return Some(Received::Tick(bodies));
        }
        for (is_work, waiting) in [(false, &mut state.wakes), (true, &mut state.work)] {
            let come: Vec<(Timestamp, u64)> =
                waiting.keys().take_while(|(at, _)| *at <= now).take(most).copied().collect();
            if !come.is_empty() {
                let bodies: Vec<String> =
                    come.iter().filter_map(|key| waiting.remove(key)).collect();
                state.requests.standard += requests(&bodies) + 1.0;
                return Some(if is_work {
                    Received::Deliver(bodies)
                } else {
                    Received::Tick(bodies)
                });
            }
        }
        None
    }

    /// When the next message arrives that is not there yet.
    pub fn next_at(&self) -> Option<Timestamp> {
        let state = self.state.lock();
        state.work.keys().chain(state.wakes.keys()).map(|(at, _)| *at).min()
    }

    fn post(
        &self,
        messages: Vec<Outgoing>,
        fifo: bool,
        to: fn(&mut State) -> &mut BTreeMap<(Timestamp, u64), String>,
    ) {
        let (now, state) = (self.clock.now(), &mut *self.state.lock());
        for call in messages.chunks(BATCH) {
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

    async fn set_timers(&self, wakes: &[Timer]) -> Result<(), StoreError> {
        self.post(pack::wakes(wakes, self.clock.now()), false, |state| &mut state.wakes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{job::Version, port::HintKind};
    use tidegate_engine::{memory::FakeClock, testkit::builders::name};

    fn work(job: &str, at: Timestamp) -> Work {
        Work { queue: name("q"), job: name(job), version: Version(1), run_at: at, granted_at: None }
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
        assert!(matches!(queue.receive(10), Some(Received::Deliver(bodies)) if bodies.len() == 10));
        assert!(matches!(queue.receive(10), Some(Received::Deliver(bodies)) if bodies.len() == 1));
        assert_eq!(
            queue.requests(),
            Requests { standard: 6.0, fifo: 0.0 },
            "each was received, and removed"
        );

        let long = "x".repeat(60);
        let told: Vec<Hint> = (0..1500)
            .map(|number| Hint {
                queue: name("q"),
                kind: HintKind::Released(name(&format!("{long}{number:04}")), Version(1)),
            })
            .collect();
        queue.hint(&told).await.unwrap();
        let fifo = queue.requests().fifo;
        assert!((2.0..=3.0).contains(&fifo), "three messages of some 35 KB in one call: {fifo}");
    }

    #[tokio::test]
    async fn what_is_held_back_arrives_in_time() {
        let clock = Arc::new(FakeClock::default());
        let queue = MeteredQueue::new(clock.clone());
        let later = clock.now() + std::time::Duration::from_secs(30);
        queue.send(&[work("a", later)]).await.unwrap();
        queue.set_timers(&[Timer { queue: name("q"), at: later }]).await.unwrap();
        assert_eq!((queue.receive(10), queue.next_at()), (None, Some(later)));
        clock.set(later);
        assert!(matches!(queue.receive(10), Some(Received::Tick(_))));
        assert!(matches!(queue.receive(10), Some(Received::Deliver(_))));
    }
}
