//! Virtual time: when every process waits, it moves to the earliest awaited instant.
//!
//! One thread polls every process, and a flag says whether any was woken since. If none was, only
//! time can move on.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use tidegate_core::{port::Clock, time::Timestamp};

type Process = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The clock, and the processes that use it.
pub struct Virtual {
    now: Mutex<Timestamp>,
    sleepers: Mutex<BTreeMap<(Timestamp, u64), Waker>>,
    spawned: Mutex<Vec<Process>>,
    next: AtomicU64,
}

impl Virtual {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            now: Mutex::new(Timestamp::from_millis(1_767_225_600_000)),
            sleepers: Mutex::default(),
            spawned: Mutex::default(),
            next: AtomicU64::default(),
        })
    }

    pub fn spawn(&self, process: impl Future<Output = ()> + Send + 'static) {
        self.spawned.lock().push(Box::pin(process));
    }

    /// Runs all processes until `end`.
    pub fn run(&self, end: Timestamp) {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let mut processes: FuturesUnordered<Process> = FuturesUnordered::new();
        loop {
            let spawned = std::mem::take(&mut *self.spawned.lock());
            let fresh = !spawned.is_empty();
            processes.extend(spawned);
            if woken.0.swap(false, Ordering::SeqCst) || fresh {
                while let Poll::Ready(Some(())) = processes.poll_next_unpin(&mut context) {}
                continue;
            }
            let next = self.sleepers.lock().first_key_value().map(|((at, _), _)| *at);
            let Some(at) = next.filter(|at| *at <= end) else {
                break;
            };
            *self.now.lock() = at;
            loop {
                let mut sleepers = self.sleepers.lock();
                let Some(first) = sleepers.first_entry().filter(|first| first.key().0 <= at) else {
                    break;
                };
                let waker = first.remove();
                drop(sleepers);
                waker.wake();
            }
        }
        *self.now.lock() = end;
        self.spawned.lock().extend(processes);
    }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[async_trait::async_trait]
impl Clock for Virtual {
    fn now(&self) -> Timestamp {
        *self.now.lock()
    }

    async fn sleep_until(&self, at: Timestamp) {
        let id = self.next.fetch_add(1, Ordering::SeqCst);
        poll_fn(|context| {
            if self.now() >= at {
                return Poll::Ready(());
            }
            self.sleepers.lock().insert((at, id), context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
