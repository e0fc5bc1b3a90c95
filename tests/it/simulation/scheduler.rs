//! One thread, many processes: at every step the seed picks which of them goes on.
//!
//! A process is a future. It gives up its turn at every store call ([`Scheduler::step`]), where it may also be
//! paused or die. Time is virtual and moves only when everybody waits, so a run follows from its seed alone.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tidegate_core::{
    port::{Clock, Entropy},
    time::Timestamp,
};
use tidegate_engine::memory::FakeClock;

/// A process.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What is done when a process dies.
type Heir = Box<dyn FnOnce() + Send>;

struct Process {
    task: Task,
    wake_at: Timestamp,
    heir: Option<Heir>,
}

/// What goes wrong between two steps of a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mishaps {
    /// How often it dies.
    pub death: f64,
    /// How often it is paused.
    pub pause: f64,
    /// The longest pause.
    pub longest: Duration,
}

struct State {
    chance: StdRng,
    spawned: Vec<Process>,
    /// What the process that has its turn asks for.
    wake_at: Timestamp,
    dies: bool,
    /// Until when the commit of the process that has its turn must be over.
    deadline: Option<Timestamp>,
    mishaps: Mishaps,
    steps: u64,
}

/// Picks who goes on, and is the source of time and chance.
pub struct Scheduler {
    clock: Arc<FakeClock>,
    state: Mutex<State>,
}

impl Scheduler {
    pub fn new(seed: u64) -> Arc<Self> {
        let state = State {
            chance: StdRng::seed_from_u64(seed),
            spawned: Vec::new(),
            wake_at: Timestamp::EPOCH,
            dies: false,
            deadline: None,
            mishaps: Mishaps::default(),
            steps: 0,
        };
        Arc::new(Self { clock: Arc::default(), state: Mutex::new(state) })
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn steps(&self) -> u64 {
        self.state.lock().steps
    }

    pub fn set_mishaps(&self, mishaps: Mishaps) {
        self.state.lock().mishaps = mishaps;
    }

    /// Whether something of this probability happens.
    pub fn happens(&self, probability: f64) -> bool {
        self.state.lock().chance.random::<f64>() < probability
    }

    /// A number from 0 up to `below`.
    pub fn draw(&self, below: usize) -> usize {
        self.state.lock().chance.random_range(0..below)
    }

    /// One of `these`.
    pub fn pick<T: Copy>(&self, these: &[T]) -> T {
        these[self.draw(these.len())]
    }

    /// A span up to `most` seconds.
    pub fn span(&self, most: f64) -> Duration {
        Duration::from_millis((self.state.lock().chance.random::<f64>() * most * 1000.0) as u64)
    }

    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let wake_at = self.now();
        self.state.lock().spawned.push(Process { task: Box::pin(task), wake_at, heir: None });
    }

    /// A process after which `heir` is called if it dies.
    pub fn spawn_with_heir(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
        heir: impl FnOnce() + Send + 'static,
    ) {
        let wake_at = self.now();
        self.state.lock().spawned.push(Process {
            task: Box::pin(task),
            wake_at,
            heir: Some(Box::new(heir)),
        });
    }

    /// Gives up the turn until `at`.
    pub async fn sleep_until(&self, at: Timestamp) {
        let mut asked = None;
        poll_fn(move |context| {
            let state = &mut *self.state.lock();
            if asked.is_some_and(|turn| turn != state.steps) {
                return Poll::Ready(());
            }
            asked = Some(state.steps);
            state.wake_at = at;
            // A future that waits for many of these polls only the woken ones.
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    pub async fn sleep(&self, span: Duration) {
        self.sleep_until(self.now() + span).await;
    }

    /// A place where others go on, and where this process may be paused or die.
    pub async fn step(&self) {
        let at = {
            let state = &mut *self.state.lock();
            let (drawn, now) = (state.chance.random::<f64>(), self.clock.now());
            let Mishaps { death, pause, longest } = state.mishaps;
            state.dies = drawn < death;
            let paused = drawn >= death && drawn < death + pause;
            let pause = longest.mul_f64(if paused { state.chance.random::<f64>() } else { 0.0 });
            state.deadline.map_or(now + pause, |deadline| (now + pause).min(deadline.max(now)))
        };
        self.sleep_until(at).await;
    }

    /// A place in the middle of a commit: others go on, and now and then the rest of it takes its time.
    pub async fn linger(&self) {
        let slow = { self.state.lock().mishaps.pause > 0.0 };
        if slow && self.happens(0.25) {
            let deadline = self.state.lock().deadline.unwrap_or_else(|| self.now());
            let left = deadline.since(self.now());
            self.sleep(left.mul_f64(0.5 + self.span(0.5).as_secs_f64())).await;
        }
        self.step().await;
    }

    /// Runs `commit`, in which the process is not paused beyond `longest`: what the store promises of its writes.
    pub async fn bounded<T>(&self, longest: Duration, commit: impl Future<Output = T>) -> T {
        let deadline = self.now() + longest;
        let mut commit = std::pin::pin!(commit);
        poll_fn(|context| {
            self.state.lock().deadline = Some(deadline);
            let polled = commit.as_mut().poll(context);
            self.state.lock().deadline = None;
            polled
        })
        .await
    }

    /// Runs every process until `end`, or until `over` returns true (checked after every step).
    pub fn run(&self, end: Timestamp, mut over: impl FnMut() -> bool) {
        let mut processes: Vec<Process> = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        while !over() {
            processes.append(&mut self.state.lock().spawned);
            let now = self.now();
            let ready: Vec<usize> =
                (0..processes.len()).filter(|index| processes[*index].wake_at <= now).collect();
            if ready.is_empty() {
                let next = processes.iter().map(|process| process.wake_at).min().unwrap_or(end);
                if next >= end {
                    self.clock.set(end);
                    break;
                }
                self.clock.set(next);
                continue;
            }
            let index = ready[self.draw(ready.len())];
            {
                let state = &mut *self.state.lock();
                (state.wake_at, state.dies) = (now, false);
                state.steps += 1;
            }
            let polled = processes[index].task.as_mut().poll(&mut context);
            let (wake_at, dies) = {
                let state = self.state.lock();
                (state.wake_at, state.dies)
            };
            if polled.is_ready() {
                processes.swap_remove(index);
            } else if dies {
                if let Some(heir) = processes.swap_remove(index).heir {
                    heir();
                }
            } else {
                processes[index].wake_at = wake_at;
            }
        }
        self.state.lock().spawned.append(&mut processes);
    }
}

/// A process's own clock: it shows the time wrong by a little.
pub struct SkewedClock {
    pub scheduler: Arc<Scheduler>,
    pub skew_millis: i64,
}

#[async_trait::async_trait]
impl Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.scheduler.now().millis() + self.skew_millis)
    }

    async fn sleep_until(&self, at: Timestamp) {
        let real = Timestamp::from_millis(at.millis() - self.skew_millis);
        self.scheduler.sleep_until(real).await;
    }
}

/// The run's chance as the engines' entropy.
pub struct SharedEntropy(pub Arc<Scheduler>);

impl Entropy for SharedEntropy {
    fn bits(&self) -> u128 {
        self.0.state.lock().chance.random()
    }
}
