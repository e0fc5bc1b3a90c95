//! A clock of tests that moves from the end of one sleep to the next, so that a run of minutes takes no
//! longer than the work in it.

use std::{
    collections::BTreeSet,
    ops::Bound,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::watch;

use tidegate_core::{port::Clock, time::Timestamp};

/// The longest time that a call may take.
const MAX_TIME: Duration = Duration::from_hours(1);
/// How often other tasks run before it counts that all of them wait.
const QUIET_YIELDS: u32 = 30;

/// A clock that a test moves from the end of one sleep to the next.
pub struct Timeline {
    now: watch::Sender<Timestamp>,
    /// The ends of all sleeps, each with a number.
    ends: Mutex<BTreeSet<(Timestamp, u64)>>,
    /// How many have begun.
    begun: AtomicU64,
}

/// A sleep, until it ends or is dropped.
struct Sleep<'t> {
    timeline: &'t Timeline,
    end: (Timestamp, u64),
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        self.timeline.ends.lock().remove(&self.end);
    }
}

#[async_trait]
impl Clock for Timeline {
    fn now(&self) -> Timestamp {
        *self.now.borrow()
    }

    async fn sleep_until(&self, at: Timestamp) {
        let sleep = Sleep { timeline: self, end: (at, self.begun.fetch_add(1, Ordering::Relaxed)) };
        self.ends.lock().insert(sleep.end);
        let mut now = self.now.subscribe();
        now.wait_for(|now| *now >= at).await.expect("the clock lives as long as this call");
    }
}

impl Timeline {
    /// A clock that is at `now`.
    pub fn new(now: Timestamp) -> Self {
        Self { now: watch::Sender::new(now), ends: Mutex::default(), begun: AtomicU64::new(0) }
    }

    /// Lets other tasks run until all of them wait.
    async fn settle(&self) {
        let (mut begun, mut quiet) = (self.begun.load(Ordering::Relaxed), 0);
        while quiet < QUIET_YIELDS {
            tokio::task::yield_now().await;
            let before = std::mem::replace(&mut begun, self.begun.load(Ordering::Relaxed));
            quiet = if begun == before { quiet + 1 } else { 0 };
        }
    }

    /// Lets `span` pass.
    pub async fn pass(&self, span: Duration) {
        let end = self.now() + span;
        while self.now() < end {
            self.settle().await;
            let after = (Bound::Excluded((self.now(), u64::MAX)), Bound::Unbounded);
            let next = self.ends.lock().range(after).next().map(|(at, _)| *at);
            self.now.send_replace(next.map_or(end, |next| next.min(end)));
        }
        self.settle().await;
    }

    /// The output of `work`, while time passes.
    pub async fn complete<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            output = work => output,
            () = self.pass(MAX_TIME) => panic!("it never came to its end"),
        }
    }
}
