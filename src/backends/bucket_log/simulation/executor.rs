//! One thread runs all nodes, clients and requests in virtual time. The seed alone determines a run.
//!
//! A task is a future of one actor. A frozen actor's tasks are not polled until it thaws; a killed
//! one's are dropped. Requests that are under way live on in the events.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Wake, Waker},
};

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::sync::oneshot;

/// Who a task belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    Node(usize),
    Client,
}

type Event = Box<dyn FnOnce() + Send>;

struct Scheduled {
    at: i64,
    number: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

struct Task {
    actor: Actor,
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
}

struct Waking {
    task: u64,
    ready: Arc<Mutex<VecDeque<u64>>>,
}

impl Wake for Waking {
    fn wake(self: Arc<Self>) {
        self.ready.lock().push_back(self.task);
    }
}

struct State {
    now: i64,
    rng: StdRng,
    number: u64,
    events: BinaryHeap<Reverse<Scheduled>>,
    tasks: BTreeMap<u64, Task>,
    /// Until when each node is frozen.
    frozen: BTreeMap<usize, i64>,
}

/// The time, the tasks and the events of a run. Times are milliseconds.
pub struct Executor {
    state: Mutex<State>,
    ready: Arc<Mutex<VecDeque<u64>>>,
}

impl Executor {
    pub fn new(seed: u64) -> Arc<Self> {
        let state = State {
            now: 0,
            rng: StdRng::seed_from_u64(seed),
            number: 0,
            events: BinaryHeap::new(),
            tasks: BTreeMap::new(),
            frozen: BTreeMap::new(),
        };
        Arc::new(Self { state: state.into(), ready: Arc::default() })
    }

    pub fn now(&self) -> i64 {
        self.state.lock().now
    }

    /// A number from 0 up to 1.
    pub fn fraction(&self) -> f64 {
        self.state.lock().rng.random()
    }

    pub fn bits(&self) -> u128 {
        self.state.lock().rng.random()
    }

    /// A number from `least` up to `most`, without `most`.
    pub fn between(&self, least: i64, most: i64) -> i64 {
        self.state.lock().rng.random_range(least..most)
    }

    /// One of `these`.
    pub fn pick<T: Copy>(&self, these: &[T]) -> T {
        these[self.between(0, these.len() as i64) as usize]
    }

    pub fn happens(&self, probability: f64) -> bool {
        self.fraction() < probability
    }

    /// Calls `event` after `delay`.
    pub fn after(&self, delay: i64, event: impl FnOnce() + Send + 'static) {
        let state = &mut *self.state.lock();
        state.number += 1;
        let scheduled =
            Scheduled { at: state.now + delay, number: state.number, event: Box::new(event) };
        state.events.push(Reverse(scheduled));
    }

    /// Ends after `delay`.
    pub async fn elapse(&self, delay: i64) {
        let (done, over) = oneshot::channel();
        self.after(delay, move || {
            let _ = done.send(());
        });
        let _ = over.await;
    }

    pub fn spawn(&self, actor: Actor, future: impl Future<Output = ()> + Send + 'static) {
        let state = &mut *self.state.lock();
        state.number += 1;
        state.tasks.insert(state.number, Task { actor, future: Box::pin(future) });
        self.ready.lock().push_back(state.number);
    }

    /// Drops the tasks of a node, and thaws it.
    pub fn kill(&self, node: usize) {
        let killed: Vec<Task> = {
            let state = &mut *self.state.lock();
            state.frozen.remove(&node);
            let of_node = state.tasks.extract_if(.., |_, task| task.actor == Actor::Node(node));
            of_node.map(|(_, task)| task).collect()
        };
        drop(killed);
    }

    pub fn freeze(&self, node: usize, span: i64) {
        let state = &mut *self.state.lock();
        let until = state.now + span;
        state.frozen.insert(node, until);
    }

    pub fn thaw_all(&self) {
        let state = &mut *self.state.lock();
        let now = state.now;
        state.frozen.values_mut().for_each(|until| *until = now.min(*until));
        // What was woken while it was frozen waits for the former end.
        let frozen = &state.frozen;
        let thawed = state.tasks.iter().filter(
            |(_, task)| matches!(task.actor, Actor::Node(node) if frozen.contains_key(&node)),
        );
        self.ready.lock().extend(thawed.map(|(number, _)| *number));
    }

    /// Drops all tasks and events, which hold the world.
    pub fn clear(&self) {
        let (tasks, events) = {
            let state = &mut *self.state.lock();
            (std::mem::take(&mut state.tasks), std::mem::take(&mut state.events))
        };
        drop((tasks, events));
    }

    /// Runs until `end`, or until `is_over`.
    pub fn run(&self, end: i64, mut is_over: impl FnMut() -> bool) {
        loop {
            self.poll_ready();
            let event = {
                let state = &mut *self.state.lock();
                match state.events.pop() {
                    Some(Reverse(next)) if next.at < end => {
                        state.now = next.at.max(state.now);
                        next.event
                    }
                    _ => return,
                }
            };
            event();
            if is_over() {
                return;
            }
        }
    }

    fn poll_ready(&self) {
        loop {
            let Some(number) = self.ready.lock().pop_front() else { return };
            let task = {
                let state = &mut *self.state.lock();
                let Some(task) = state.tasks.remove(&number) else { continue };
                let thaws = match task.actor {
                    Actor::Node(node) => state.frozen.get(&node).copied(),
                    Actor::Client => None,
                };
                match thaws.filter(|until| *until > state.now) {
                    None => Ok(task),
                    Some(until) => {
                        let now = state.now;
                        state.tasks.insert(number, task);
                        Err(until - now)
                    }
                }
            };
            let ready = Arc::clone(&self.ready);
            match task {
                Ok(mut task) => {
                    let waker = Waker::from(Arc::new(Waking { task: number, ready }));
                    let polled = task.future.as_mut().poll(&mut Context::from_waker(&waker));
                    if polled.is_pending() {
                        self.state.lock().tasks.insert(number, task);
                    }
                }
                Err(frozen) => self.after(frozen, move || ready.lock().push_back(number)),
            }
        }
    }
}
