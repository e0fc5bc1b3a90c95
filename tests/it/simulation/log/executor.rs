//! Tasks of the nodes of a log, in the time of the scheduler. Unlike its processes they wait for
//! several things at once, and for each other.
//!
//! [`Executor::turn`] runs what is due now. A process calls it whenever it has waited for the log, and
//! waits then until the next event.

use std::{
    collections::{BTreeMap, VecDeque},
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Wake, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_core::time::Timestamp;
use tokio::sync::oneshot;

use super::super::scheduler::Scheduler;

type Event = Box<dyn FnOnce() + Send>;

struct Task {
    node: usize,
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

#[derive(Default)]
struct State {
    number: u64,
    events: BTreeMap<(Timestamp, u64), Event>,
    tasks: BTreeMap<u64, Task>,
    /// Until when each node is frozen.
    frozen: BTreeMap<usize, Timestamp>,
}

/// The tasks and the events of the nodes.
pub struct Executor {
    pub scheduler: Arc<Scheduler>,
    state: Mutex<State>,
    ready: Arc<Mutex<VecDeque<u64>>>,
}

impl Executor {
    pub fn new(scheduler: Arc<Scheduler>) -> Self {
        Self { scheduler, state: Mutex::default(), ready: Arc::default() }
    }

    /// Calls `event` after `delay`.
    pub fn after(&self, delay: Duration, event: impl FnOnce() + Send + 'static) {
        let at = self.scheduler.now() + delay;
        let state = &mut *self.state.lock();
        state.number += 1;
        state.events.insert((at, state.number), Box::new(event));
    }

    /// Ends after `delay`.
    pub async fn elapse(&self, delay: Duration) {
        let (done, over) = oneshot::channel();
        self.after(delay, move || {
            let _ = done.send(());
        });
        let _ = over.await;
    }

    /// Starts a task of a node.
    pub fn spawn(&self, node: usize, future: impl Future<Output = ()> + Send + 'static) {
        let state = &mut *self.state.lock();
        state.number += 1;
        state.tasks.insert(state.number, Task { node, future: Box::pin(future) });
        self.ready.lock().push_back(state.number);
    }

    /// Drops the tasks of a node, and thaws it. Its requests that are under way live on in the events.
    pub fn kill(&self, node: usize) {
        let killed: Vec<Task> = {
            let state = &mut *self.state.lock();
            state.frozen.remove(&node);
            state.tasks.extract_if(.., |_, task| task.node == node).map(|(_, task)| task).collect()
        };
        drop(killed);
    }

    /// Stops the tasks of a node for a while.
    pub fn freeze(&self, node: usize, span: Duration) {
        let until = self.scheduler.now() + span;
        self.state.lock().frozen.insert(node, until);
    }

    /// When the next event is; at most a second from now, because another process may add one.
    pub fn next_at(&self) -> Timestamp {
        let latest = self.scheduler.now() + Duration::from_secs(1);
        let next = self.state.lock().events.keys().next().map(|(at, _)| *at);
        next.map_or(latest, |at| at.min(latest))
    }

    /// Runs the tasks that can go on, and the events that are due.
    pub fn turn(&self) {
        loop {
            self.poll_ready();
            let now = self.scheduler.now();
            let event = {
                let events = &mut self.state.lock().events;
                match events.first_entry() {
                    Some(first) if first.key().0 <= now => first.remove(),
                    _ => return,
                }
            };
            event();
        }
    }

    fn poll_ready(&self) {
        loop {
            let Some(number) = self.ready.lock().pop_front() else { return };
            let now = self.scheduler.now();
            let (mut task, thaws_at) = {
                let state = &mut *self.state.lock();
                let Some(task) = state.tasks.remove(&number) else { continue };
                let thaws_at = state.frozen.get(&task.node).copied();
                (task, thaws_at.filter(|at| *at > now))
            };
            let ready = Arc::clone(&self.ready);
            if let Some(at) = thaws_at {
                self.state.lock().tasks.insert(number, task);
                self.after(at.since(now), move || ready.lock().push_back(number));
                continue;
            }
            let waker = Waker::from(Arc::new(Waking { task: number, ready }));
            if task.future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                self.state.lock().tasks.insert(number, task);
            }
        }
    }

    /// Drops all tasks and events, which hold the log.
    pub fn clear(&self) {
        let state = std::mem::take(&mut *self.state.lock());
        drop(state);
    }
}
