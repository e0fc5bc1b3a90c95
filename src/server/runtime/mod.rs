//! The server: every verb as a method, on the engine, in two deployment modes.
//!
//! ```text
//!   callers ─▶ Server (jobs, queues, job_types, events, schedules, plugins, tokens, workers, ...)
//!                │
//!              mode ─┬▶ embedded: one task per active queue ─▶ Engine::tick ─▶ store
//!                    │     ▲ reports, leases, wake-ups    │ claimed jobs
//!                    │     └──── pushes, handlers ◀───────┘
//!                    │   sweeper, schedules, bulk operations, shadow plugin versions
//!                    └▶ serverless: an outbox of messages, published before the answer
//! ```
//!
//! The verbs are one file per resource and the same in both modes; [`mode`] has every function that
//! differs. In the embedded mode, the task of a queue runs its ticks one after the other. What
//! arrives during a commit goes into the next tick, so batches grow with load.

mod audit;
mod autoscaling;
mod builder;
pub(crate) mod bulk;
pub(crate) mod changes;
pub(crate) mod deliver;
mod doctor;
pub mod embedded;
mod events;
mod history;
mod job_types;
mod jobs;
mod leadership;
mod lease;
mod lease_calls;
mod logs;
mod measurement;
mod mode;
mod overview;
mod plugin_calls;
mod plugin_registry;
mod plugin_seen;
mod plugins;
mod queues;
mod registrations;
mod schedules;
pub mod serverless;
mod shadow;
mod shared;
#[cfg(feature = "embedded")]
mod simulation;
mod stop;
#[cfg(test)]
pub(crate) mod testing;
mod tokens;
mod trigger_status;
mod waiters;
mod workers;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

pub use crate::runtime::builder::Builder;
pub use crate::runtime::embedded::handler::{Call, Handled, Handler, Work};
#[cfg(feature = "embedded")]
pub use crate::runtime::embedded::open::{
    DatabaseOpenError, DirectoryOpenError, StartError, key_file,
};
#[cfg(feature = "embedded")]
pub use crate::runtime::embedded::place::{
    BadSecret, Place, PlaceError, check_secrets, open_in_use, unsealed_engine,
};
pub use crate::runtime::leadership::Leadership;
pub use crate::runtime::plugin_registry::CannotPush;
pub use crate::runtime::serverless::{NEAR, SweepReport};
pub(crate) use crate::runtime::{
    embedded::unwritten::{LeaseClaim, UnwrittenLeases},
    lease::MAX_LEASES,
    logs::AttemptLog,
    shared::forward::{CLAIMS, FORWARDED_BY, FORWARDED_TO, ReceivedRequest},
};
pub use overview::QueueOverview;
pub use plugin_calls::{ShownCall, Wanted};
pub use plugin_seen::{PluginSeen, SeenCalls};
pub use shadow::Comparison;
#[cfg(feature = "embedded")]
pub use simulation::{Simulated, WhatIf};
pub use tidegate_api::{Difference, PluginUser, ShadowDecision};
pub use tokens::TokenRemoval;
pub(crate) use trigger_status::{MAX_EVENTS as MAX_TRIGGER_EVENTS, action_view};

use crate::{
    auth::TokenItem,
    runtime::embedded::queue_task::{QueueHandle, QueueSnapshot, TaskMessage},
};
use tidegate_core::{
    job::{Job, QueueName, TypeName, Version},
    port::{HealthCheck, Target},
    time::Timestamp,
};
use tidegate_engine::{
    Engine, Error,
    request::{Enqueued, QueueExplanation},
};

/// The options of a server, in addition to the engine's rules.
#[derive(Clone, Debug)]
pub struct Options {
    /// Most concurrent push calls per queue.
    pub push_slots: u32,
    /// The prefix of callback URLs, without a slash at the end.
    pub public_url: String,
    /// How long a stop waits for running attempts.
    pub shutdown: Duration,
    /// Most bytes of a response, if the deployment mode has a bound. A
    /// [serverless](Builder::serverless) server leases no more jobs than fit.
    pub answer_bytes: Option<usize>,
    /// How much memory the concurrent deliveries of a [serverless](Builder::serverless) server may
    /// take, in bytes. Others wait, before they are claimed.
    pub delivery_bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            push_slots: 256,
            public_url: "http://127.0.0.1:8080".into(),
            shutdown: Duration::from_secs(10),
            answer_bytes: None,
            delivery_bytes: None,
        }
    }
}

/// The server: every verb as a method. Cheap to clone. Only [`Server::stop`] stops it, not a drop.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    engine: Arc<Engine>,
    target: Arc<dyn Target>,
    options: Options,
    handlers: HashMap<TypeName, Handler>,
    queues: Mutex<HashMap<QueueName, QueueHandle>>,
    waiters: waiters::Waiters,
    history: history::History,
    /// What the sweeper of an embedded server counted last.
    measurement: measurement::LatestMeasurement,
    changes: Arc<changes::Changes>,
    workers: Arc<workers::Workers>,
    /// The lease calls that their workers may repeat.
    lease_calls: lease_calls::LeaseCalls,
    /// The registered workers of a serverless deployment, and when they were read.
    stored_workers: Mutex<Option<(Timestamp, Arc<workers::Workers>)>>,
    /// What the triggers did.
    trigger_statuses: trigger_status::TriggerStatuses,
    /// What the status of a queue said last, and when.
    explanations: Mutex<HashMap<QueueName, (Timestamp, Arc<QueueExplanation>)>>,
    /// The bulk operations under way.
    operations: Mutex<HashSet<String>>,
    /// `None`: tracing is off.
    traces: Option<crate::telemetry::traces::Traces>,
    shadow: shadow::Shadow,
    hosted: Option<plugin_registry::Hosted>,
    /// Recorded calls of plugins.
    recorded_calls: plugin_calls::RecordedCalls,
    /// The checks that the deployment mode adds to `doctor`.
    health_checks: Vec<Arc<dyn HealthCheck>>,
    /// Proves that no other server leads; none without a log.
    leadership: Option<Arc<dyn Leadership>>,
    /// The outbox and caches of a serverless server, which runs no tasks.
    serverless: Option<serverless::Serverless>,
    /// Whether it answers the reads of a standby: it is serverless then, and changes nothing.
    is_standby: bool,
    /// What this server shares with others on its store; none if there are no others.
    shared: Option<Arc<shared::Shared>>,
    /// Held while a simulation runs.
    #[cfg(feature = "embedded")]
    simulation: Arc<tokio::sync::Mutex<()>>,
    /// Notified when a tick leaves jobs that await a retry decision.
    pending: Arc<tokio::sync::Notify>,
    /// Notified when a schedule changes.
    rescheduled: Arc<tokio::sync::Notify>,
    tokens: Mutex<Option<TokenListener>>,
    /// Held while tokens are read and published.
    token_reads: tokio::sync::Mutex<()>,
    /// Held while a token is removed.
    token_removal: tokio::sync::Mutex<()>,
    stopping: watch::Sender<StopPhase>,
    /// Until when a stop that has begun waits for `busy`.
    stop_deadline: OnceLock<Timestamp>,
    /// Set once it was logged that `busy` has not ended until then.
    late_at_stop: OnceLock<()>,
    /// All tasks. They end with a stop.
    tasks: TaskTracker,
    /// What a stop waits for as long as [`Options::shutdown`]: running attempts, and the tasks that
    /// leave something behind.
    busy: TaskTracker,
}

/// Receives all tokens when one changes.
type TokenListener = Arc<dyn Fn(Vec<TokenItem>) + Send + Sync>;

/// The phase of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StopPhase {
    /// No stop was requested.
    Serving,
    /// No job is admitted; running attempts may finish and report.
    Draining,
    /// Waits for results end as well, because requests are refused from now on.
    Refusing,
    /// Tasks end.
    Stopped,
}

impl Server {
    /// The engine of the server.
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        self.inner.engine.now()
    }

    /// Whether the server runs no tasks: see [`Builder::serverless`].
    pub fn is_serverless(&self) -> bool {
        self.inner.is_serverless()
    }

    /// Whether the server is that of a standby, which another server's process leads: see
    /// [`Builder::standby`].
    pub fn is_standby(&self) -> bool {
        self.inner.is_standby
    }

    /// Whether other processes may use its store: those of a serverless deployment, or [other
    /// servers](Builder::shared).
    pub fn shares_store(&self) -> bool {
        self.inner.shares_store()
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// Wakes the task of every queue of this server that is configured or has live jobs.
    async fn wake_all(&self) -> Result<(), Error> {
        for queue in self.owned_queues().await? {
            self.inner.wake(&queue);
        }
        Ok(())
    }

    /// The queues of this server that are configured or have live jobs.
    async fn owned_queues(&self) -> Result<BTreeSet<QueueName>, Error> {
        let catalog = self.inner.engine.catalog().await?;
        let live = self.inner.engine.ports().store.depth(None).await?.counts;
        let live = live.into_iter().filter(|depth| {
            depth.jobs > 0
                && !matches!(depth.state, tidegate_core::port::job_store::StateFilter::Ended(_))
        });
        let queues = catalog.queues.keys().cloned().chain(live.map(|depth| depth.queue));
        Ok(queues.filter(|queue| self.inner.owns(queue.as_str())).collect())
    }

    /// `Ok` if the server serves requests. One with a [leadership](Builder::leadership) serves them until it
    /// has stopped: no other server is ready before it has ended its part of the log.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] while the server stops or a health check refuses work, and the store's.
    pub async fn ready(&self) -> Result<(), Error> {
        let refuses_from =
            if self.inner.leadership.is_some() { StopPhase::Stopped } else { StopPhase::Draining };
        if *self.inner.stopping.borrow() >= refuses_from {
            return Err(Error::unavailable(Duration::from_secs(1), "the server is stopping"));
        }
        if let Some(why) = self.inner.health_checks.iter().find_map(|check| check.refusal()) {
            return Err(Error::unavailable(Duration::from_secs(1), why));
        }
        self.inner.engine.catalog().await.map(|_| ())
    }
}

impl Inner {
    /// The queue's task, started if it does not run.
    fn queue(self: &Arc<Self>, queue: &QueueName) -> QueueHandle {
        let mut queues = self.queues.lock();
        if let Some(handle) = queues.get(queue) {
            return handle.clone();
        }
        let handle = embedded::queue_task::spawn(self, queue.clone());
        queues.insert(queue.clone(), handle.clone());
        handle
    }

    /// What the latest ticks of `queue` showed, if it has a task.
    fn known_snapshot(&self, queue: &QueueName) -> QueueSnapshot {
        self.queues.lock().get(queue).map(QueueHandle::snapshot).unwrap_or_default()
    }

    /// Requests a tick of every queue that has a task.
    fn wake_known(&self) {
        for handle in self.queues.lock().values() {
            handle.send(TaskMessage::Wake);
        }
    }

    /// Wakes the tasks of the queues of new jobs, each once.
    fn notify_queues<'a>(self: &Arc<Self>, queues: impl Iterator<Item = &'a QueueName>) {
        let catalog = self.engine.seen_version();
        let mut notified: Vec<&QueueName> = Vec::new();
        for queue in queues {
            if notified.contains(&queue) {
                continue;
            }
            notified.push(queue);
            let known = self.queues.lock().get(queue).map(|handle| handle.on_enqueued(catalog));
            if known.is_none() {
                self.queue(queue).on_enqueued(catalog);
            }
        }
    }

    /// Announces the jobs that an enqueue added, and those that it changed.
    fn on_accepted<'a>(self: &Arc<Self>, accepted: impl Iterator<Item = &'a Enqueued> + Clone) {
        let new = accepted.clone().filter(|enqueued| enqueued.new);
        self.on_enqueued(new.map(|enqueued| &enqueued.job));
        for Enqueued { job, merged, .. } in accepted {
            // A request that changed nothing leaves the job its grant.
            if let Some(merged) = merged.filter(|merged| merged.left != job.life.version) {
                self.on_superseded(job, merged.left);
            }
        }
    }

    /// Announces that a job left `version`, at which it may hold a grant, and its end if it ended.
    fn on_superseded(self: &Arc<Self>, job: &Job, version: Version) {
        self.on_version_left(job, version);
        if job.life.ended().is_some() {
            self.count_finished(job);
            self.on_attempt_finished(job);
            self.on_job_finished(job);
        }
    }

    /// Announces the jobs that a sweep changed.
    fn on_swept(self: &Arc<Self>, changed: &[(Job, Version)]) {
        for (job, version) in changed {
            // Of the changes of a sweep, only the end of a lease leaves a job that continues.
            if job.life.ended().is_none() {
                self.on_attempt_finished(job);
            }
            self.on_superseded(job, *version);
        }
    }

    /// Records the end of an attempt or a wait that had no report.
    fn on_attempt_finished(&self, job: &Job) {
        self.count_attempt_without_report(job);
        if let Some(traces) = &self.traces {
            traces.over(job);
        }
    }

    /// Notifies the waiters for a job's result, and the queues of its completion callback and of the
    /// event about its end.
    fn on_job_finished(self: &Arc<Self>, job: &Job) {
        self.waiters.notify(&job.id);
        if job.spec.callback_url.is_some()
            && job.spec.job_type.as_str() != tidegate_engine::CALLBACK_TYPE
        {
            self.wake(&tidegate_engine::CALLBACK_QUEUE.parse().expect("a valid name"));
        }
        if self.engine.handles_ends_of(&job.spec.job_type) {
            self.wake(&tidegate_engine::END_EVENT_QUEUE.parse().expect("a valid name"));
        }
    }

    /// A guard that a stop waits for; `None` while stopping.
    fn busy(&self) -> Option<StopGuard> {
        // In this order, a stop that begins in between waits for the guard.
        let guard = self.busy.token();
        (!self.busy.is_closed()).then_some(guard)
    }

    /// Runs `task` until it ends or the server has stopped, and returns its output if it ended.
    fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<Option<T>> {
        let mut stopping = self.stopping.subscribe();
        // Some have kilobytes, and each layer around a task would copy them.
        let mut task = Box::pin(task);
        self.tasks.spawn(async move {
            let stopped = stopping.wait_for(|phase| *phase == StopPhase::Stopped);
            tokio::select! {
                // One that ends at once needs no place among those that wait for the stop.
                biased;
                output = &mut task => Some(output),
                // A task that is always busy leaves it no part of what a poll may do.
                _ = tokio::task::unconstrained(stopped) => None,
            }
        })
    }
}

/// Delays a stop until it is dropped, which happens when the report that it belongs to is settled.
type StopGuard = TaskTrackerToken;

/// How a task refers to the server: it ends when the server is gone.
type WeakServer = Weak<Inner>;
