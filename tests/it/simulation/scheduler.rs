//! One thread runs many processes: at every step the seed selects the next one.
//!
//! A process is a future. It yields at every store call ([`Scheduler::step`]), where it may also be
//! paused or die. A process with a timeout is killed wherever it waits then. Time is virtual and
//! advances only when all processes wait. So the seed alone determines a run.

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

/// How a process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// At any step.
    Crash,
    /// It is killed at its timeout, wherever it waits then.
    Timeout,
}

/// Called when a process dies.
type OnDeath = Box<dyn FnOnce(Death) + Send>;

struct Process {
    task: Task,
    wake_at: Timestamp,
    /// When it is killed.
    timeout_at: Option<Timestamp>,
    on_death: Option<OnDeath>,
}

impl Process {
    /// When it continues or is killed.
    fn next_at(&self) -> Timestamp {
        self.timeout_at.map_or(self.wake_at, |at| at.min(self.wake_at))
    }
}

/// The faults of a process between two steps.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessFaults {
    /// The probability that it dies.
    pub death: f64,
    /// The probability that it is paused.
    pub pause: f64,
    /// The longest pause.
    pub longest: Duration,
}

struct State {
    rng: StdRng,
    spawned: Vec<Process>,
    /// When the current process wants to continue.
    wake_at: Timestamp,
    /// When the current process is killed.
    timeout_at: Option<Timestamp>,
    dies: bool,
    /// The deadline for the commit of the current process.
    deadline: Option<Timestamp>,
    process_faults: ProcessFaults,
    steps: u64,
}

/// Selects the next process, and provides the time and the random numbers.
pub struct Scheduler {
    clock: Arc<FakeClock>,
    state: Mutex<State>,
}

impl Scheduler {
    pub fn new(seed: u64) -> Arc<Self> {
        let state = State {
            rng: StdRng::seed_from_u64(seed),
            spawned: Vec::new(),
            wake_at: Timestamp::EPOCH,
            timeout_at: None,
            dies: false,
            deadline: None,
            process_faults: ProcessFaults::default(),
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

    pub fn set_process_faults(&self, process_faults: ProcessFaults) {
        self.state.lock().process_faults = process_faults;
    }

    /// Whether something of this probability happens.
    pub fn happens(&self, probability: f64) -> bool {
        self.state.lock().rng.random::<f64>() < probability
    }

    /// A number from 0 to `below`, without `below`.
    pub fn draw(&self, below: usize) -> usize {
        self.state.lock().rng.random_range(0..below)
    }

    /// One of `these`.
    pub fn pick<T: Copy>(&self, these: &[T]) -> T {
        these[self.draw(these.len())]
    }

    /// A span up to `most` seconds.
    pub fn span(&self, most: f64) -> Duration {
        Duration::from_millis((self.state.lock().rng.random::<f64>() * most * 1000.0) as u64)
    }

    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let (task, wake_at) = (Box::pin(task), self.now());
        let process = Process { task, wake_at, timeout_at: None, on_death: None };
        self.state.lock().spawned.push(process);
    }

    /// Starts a process; `on_death` is called if it dies.
    pub fn spawn_restartable(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
        on_death: impl FnOnce(Death) + Send + 'static,
    ) {
        let (task, wake_at) = (Box::pin(task), self.now());
        let on_death: Option<OnDeath> = Some(Box::new(on_death));
        self.state.lock().spawned.push(Process { task, wake_at, timeout_at: None, on_death });
    }

    /// Sets when the current process is killed; none for never.
    pub fn set_timeout(&self, at: Option<Timestamp>) {
        self.state.lock().timeout_at = at;
    }

    /// Lets virtual time pass: other processes run until `at`. No real time passes.
    pub async fn elapse_until(&self, at: Timestamp) {
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

    /// Like [`Self::elapse_until`], for `span` from now.
    pub async fn elapse(&self, span: Duration) {
        self.elapse_until(self.now() + span).await;
    }

    /// Lets other processes run; this process may be paused or die here.
    pub async fn step(&self) {
        let at = {
            let state = &mut *self.state.lock();
            let (drawn, now) = (state.rng.random::<f64>(), self.clock.now());
            let ProcessFaults { death, pause, longest } = state.process_faults;
            state.dies = drawn < death;
            let paused = drawn >= death && drawn < death + pause;
            let pause = longest.mul_f64(if paused { state.rng.random::<f64>() } else { 0.0 });
            state.deadline.map_or(now + pause, |deadline| (now + pause).min(deadline.max(now)))
        };
        self.elapse_until(at).await;
    }

    /// Lets other processes run in the middle of a commit, which sometimes takes longer.
    pub async fn linger(&self) {
        let slow = { self.state.lock().process_faults.pause > 0.0 };
        if slow && self.happens(0.25) {
            let deadline = self.state.lock().deadline.unwrap_or_else(|| self.now());
            let left = deadline.since(self.now());
            self.elapse(left.mul_f64(0.5 + self.span(0.5).as_secs_f64())).await;
        }
        self.step().await;
    }

    /// Runs `commit`, in which the process is paused for at most `longest`: the promise of the
    /// store about its writes.
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

    /// Drops every process. They hold what holds this value.
    pub fn clear(&self) {
        let processes = std::mem::take(&mut self.state.lock().spawned);
        drop(processes);
    }

    /// Runs every process until `end`, or until `over` returns true (checked after every step).
    pub fn run(&self, end: Timestamp, mut over: impl FnMut() -> bool) {
        let mut processes: Vec<Process> = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        while !over() {
            processes.append(&mut self.state.lock().spawned);
            let now = self.now();
            let ready: Vec<usize> =
                (0..processes.len()).filter(|index| processes[*index].next_at() <= now).collect();
            if ready.is_empty() {
                let next = processes.iter().map(Process::next_at).min().unwrap_or(end);
                if next >= end {
                    self.clock.set(end);
                    break;
                }
                self.clock.set(next);
                continue;
            }
            let index = ready[self.draw(ready.len())];
            let timeout_at = processes[index].timeout_at;
            if timeout_at.is_some_and(|at| at <= now) {
                self.state.lock().steps += 1;
                end_process(processes.swap_remove(index), Death::Timeout);
                continue;
            }
            {
                let state = &mut *self.state.lock();
                (state.wake_at, state.timeout_at, state.dies) = (now, timeout_at, false);
                state.steps += 1;
            }
            let polled = processes[index].task.as_mut().poll(&mut context);
            let (wake_at, timeout_at, dies) = {
                let state = self.state.lock();
                (state.wake_at, state.timeout_at, state.dies)
            };
            if polled.is_ready() {
                processes.swap_remove(index);
            } else if dies {
                end_process(processes.swap_remove(index), Death::Crash);
            } else {
                (processes[index].wake_at, processes[index].timeout_at) = (wake_at, timeout_at);
            }
        }
        self.state.lock().spawned.append(&mut processes);
    }
}

/// Ends a process that dies: what it was about to do is dropped.
fn end_process(Process { task, on_death, .. }: Process, death: Death) {
    drop(task);
    if let Some(on_death) = on_death {
        on_death(death);
    }
}

/// The clock of a process, which is wrong by a constant.
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
        self.scheduler.elapse_until(real).await;
    }
}

/// The random numbers of the run as the entropy of the engines.
pub struct SharedEntropy(pub Arc<Scheduler>);

impl Entropy for SharedEntropy {
    fn bits(&self) -> u128 {
        self.0.state.lock().rng.random()
    }
}
