//! The embedded home: one process that ticks every active queue, delivers, sweeps, and answers.
//!
//! ```text
//!   callers ─▶ Server ─┬▶ one task per active queue ─▶ Engine::tick ─▶ store
//!                      │     ▲ reports, leases, wake-ups    │ claimed jobs
//!                      │     └── deliverers, handlers ◀─────┘
//!                      ├▶ sweeper (expiry, deadlines, retention, verdicts, kept replies), schedules, bulk operations
//!                      └▶ shadows (plugin versions that are asked and not obeyed)
//! ```
//!
//! The one thing to know: a queue's rounds are taken one after the other by its task, and everything
//! that arrived while one was being committed goes into the next, so that batches grow with load.

mod autoscaling;
pub(crate) mod bulk;
pub(crate) mod deliver;
mod doctor;
pub mod embedded;
mod events;
mod handler;
mod lease;
mod plugin_registry;
mod plugins;
mod schedules;
pub mod serverless;
mod shadow;
mod verbs;
mod waiters;
mod workers;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::watch;

#[cfg(feature = "embedded")]
pub use crate::runtime::embedded::open::CannotOpen;
pub use crate::runtime::plugin_registry::{CannotPush, PluginUser};
pub use crate::runtime::serverless::{NEAR, SweepReport};
pub use handler::{Call, Handled, Handler, Work};
pub use shadow::{Comparison, Difference, ShadowDecision};

use crate::runtime::embedded::queue_task::{Message, QueueHandle};
use tidegate_core::{
    job::{Job, QueueName, TypeName, Version},
    port::{HealthCheck, Policy, Spans, Target},
    time::Timestamp,
};
use tidegate_engine::{Engine, Error, Ports, Rules};

/// How a server behaves, beyond the engine's rules.
#[derive(Clone, Debug)]
pub struct Options {
    /// Most concurrent push calls per queue.
    pub push_slots: u32,
    /// What callback URLs start with, without a slash at the end.
    pub public_url: String,
    /// How long a stop waits for answers that are under way.
    pub shutdown: Duration,
    /// The most bytes that an answer to a client may have, where the home has a bound: a server that is [`away`](Builder::away) leases
    /// no more than fits.
    pub answer_bytes: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            push_slots: 256,
            public_url: "http://127.0.0.1:8080".into(),
            shutdown: Duration::from_secs(10),
            answer_bytes: None,
        }
    }
}

/// The server: every verb as a method. Cheap to clone; the last clone's drop does not stop it, [`Server::stop`] does.
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
    workers: workers::Workers,
    /// The bulk operations under way.
    operations: Mutex<HashSet<String>>,
    /// None: nobody looks at traces, and nothing is done for them.
    traces: Option<crate::telemetry::traces::Traces>,
    shadow: shadow::Shadow,
    hosted: Option<plugin_registry::Hosted>,
    /// What the home looks at when somebody asks how it is.
    health_check: Option<Arc<dyn HealthCheck>>,
    /// What it has instead of tasks, if it starts none.
    serverless: Option<serverless::Serverless>,
    /// Told when a round leaves jobs whose retry strategy is to be asked.
    pending: Arc<tokio::sync::Notify>,
    /// Told when a schedule changes.
    rescheduled: Arc<tokio::sync::Notify>,
    tokens: Mutex<Option<TokenWatch>>,
    stopping: watch::Sender<Stage>,
    /// Counts tasks and deliveries under way: a stop waits for it to close.
    busy: Mutex<Option<tokio::sync::mpsc::Sender<()>>>,
    idle: tokio::sync::Mutex<tokio::sync::mpsc::Receiver<()>>,
}

/// Who is told of the tokens when one changes.
type TokenWatch = Arc<dyn Fn(Vec<Vec<u8>>) + Send + Sync>;

/// How far a stop is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Everything is done.
    Serving,
    /// Nothing is admitted; what runs may finish and report.
    Draining,
    /// Tasks end.
    Stopped,
}

/// What a server is made of before it starts.
pub struct Builder {
    ports: Ports,
    rules: Rules,
    options: Options,
    target: Arc<dyn Target>,
    handlers: HashMap<TypeName, Handler>,
    traces: Option<crate::telemetry::traces::Traces>,
    hosted: Option<plugin_registry::Hosted>,
    health_check: Option<Arc<dyn HealthCheck>>,
    serverless: bool,
}

impl Builder {
    /// Runs jobs of `job_type`, a pull type, in this process: at most `concurrency` at once.
    #[must_use]
    pub fn handler(
        mut self,
        job_type: TypeName,
        concurrency: u32,
        handler: impl Fn(Call) -> Work + Send + Sync + 'static,
    ) -> Self {
        self.handlers.insert(job_type, Handler::new(concurrency, handler));
        self
    }

    /// Sets the engine's rules.
    #[must_use]
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// Sets how the server behaves.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Has the home looked at so when somebody asks how it is.
    #[must_use]
    pub fn health_check(mut self, checkup: Arc<dyn HealthCheck>) -> Self {
        self.health_check = Some(checkup);
        self
    }

    /// Runs plugins so.
    #[must_use]
    pub fn policy(mut self, policy: Arc<dyn Policy>) -> Self {
        self.ports.policy = policy;
        self
    }

    /// Gives `spans` the spans of each job's way. Of the traces that begin here `ratio`, 0 to 1, are recorded; of the others,
    /// those that their callers record.
    #[must_use]
    pub fn traces(mut self, spans: Arc<dyn Spans>, ratio: f64) -> Self {
        self.traces = Some(crate::telemetry::traces::Traces::new(spans, ratio));
        self
    }

    /// Starts the server: what was under way when it stopped goes on. One that is [`away`](Builder::away) has nothing to start.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn start(self) -> Result<Server, Error> {
        let (busy, idle) = tokio::sync::mpsc::channel(1);
        let (shadow, asked) = shadow::Shadow::new();
        let inner = Arc::new(Inner {
            engine: Arc::new(Engine::new(self.ports, self.rules)),
            target: self.target,
            options: self.options,
            handlers: self.handlers,
            queues: Mutex::default(),
            waiters: waiters::Waiters::default(),
            workers: workers::Workers::default(),
            operations: Mutex::default(),
            traces: self.traces,
            shadow,
            hosted: self.hosted,
            health_check: self.health_check,
            serverless: self.serverless.then(serverless::Serverless::default),
            pending: Arc::default(),
            rescheduled: Arc::default(),
            tokens: Mutex::default(),
            stopping: watch::Sender::new(Stage::Serving),
            busy: Mutex::new(Some(busy)),
            idle: tokio::sync::Mutex::new(idle),
        });
        let server = Server { inner };
        if server.inner.serverless.is_some() {
            return Ok(server);
        }
        plugin_registry::recompile(&server).await?;
        server.wake_all().await?;
        embedded::sweeper::spawn(&server.inner);
        schedules::spawn(&server.inner);
        shadow::follow(Arc::downgrade(&server.inner), asked);
        bulk::resume(&server).await?;
        Ok(server)
    }
}

impl Server {
    /// A server over `ports` that pushes to `target`.
    pub fn builder(ports: Ports, target: Arc<dyn Target>) -> Builder {
        let (rules, options) = (Rules::default(), Options::default());
        Builder {
            ports,
            rules,
            options,
            target,
            handlers: HashMap::new(),
            traces: None,
            hosted: None,
            health_check: None,
            serverless: false,
        }
    }

    /// The engine it runs on.
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// The present instant.
    pub fn now(&self) -> Timestamp {
        self.inner.engine.now()
    }

    /// How it behaves.
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// Wakes the task of every queue that is configured or has live jobs.
    async fn wake_all(&self) -> Result<(), Error> {
        let catalog = self.inner.engine.catalog().await?;
        let live = self.inner.engine.ports().store.depth().await?;
        let live = live.into_iter().filter(|depth| {
            depth.jobs > 0
                && !matches!(depth.state, tidegate_core::port::job_store::StateFilter::Ended(_))
        });
        for queue in catalog.queues.keys().cloned().chain(live.map(|depth| depth.queue)) {
            self.inner.wake(&queue);
        }
        Ok(())
    }

    /// Whether requests are served.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] while it stops, and the store's.
    pub async fn ready(&self) -> Result<(), Error> {
        if *self.inner.stopping.borrow() != Stage::Serving {
            return Err(Error::Unavailable {
                retry_after: Duration::from_secs(1),
                message: "the server is stopping".into(),
            });
        }
        self.inner.engine.catalog().await.map(|_| ())
    }

    /// Stops: admits nothing more, lets what runs here finish and report for at most `options.shutdown`, then ends
    /// every task. What did not finish is found again at the next start.
    pub async fn stop(&self) {
        self.inner.stopping.send_replace(Stage::Draining);
        let deadline = self.now() + self.inner.options.shutdown;
        self.inner.busy.lock().take();
        let mut idle = self.inner.idle.lock().await;
        tokio::select! {
            _ = idle.recv() => {}
            () = self.inner.engine.ports().clock.sleep_until(deadline) => tracing::warn!("some jobs were still running at the stop"),
        }
        self.inner.stopping.send_replace(Stage::Stopped);
    }
}

impl Inner {
    /// The queue's task, started if need be.
    fn queue(self: &Arc<Self>, queue: &QueueName) -> QueueHandle {
        let mut queues = self.queues.lock();
        if let Some(handle) = queues.get(queue) {
            return handle.clone();
        }
        let handle = embedded::queue_task::spawn(self, queue.clone());
        queues.insert(queue.clone(), handle.clone());
        handle
    }

    /// Asks for a round of every queue that has a task.
    fn wake_known(&self) {
        for handle in self.queues.lock().values() {
            handle.send(Message::Wake);
        }
    }

    /// Asks for a round of `queue`.
    fn wake(self: &Arc<Self>, queue: &QueueName) {
        match &self.serverless {
            Some(away) => away.outbox.queue_due(queue),
            None => self.queue(queue).send(Message::Wake),
        }
    }

    /// Says that jobs wait which were not there before.
    fn on_enqueued<'a>(self: &Arc<Self>, jobs: impl IntoIterator<Item = &'a Job>) {
        if let Some(away) = &self.serverless {
            jobs.into_iter().for_each(|job| away.outbox.job_changed(job, None));
            return;
        }
        let catalog = self.engine.seen_version();
        let mut told: Vec<&QueueName> = Vec::new();
        for queue in jobs.into_iter().map(|job| &job.spec.queue) {
            if told.contains(&queue) {
                continue;
            }
            told.push(queue);
            let known = self.queues.lock().get(queue).map(|handle| handle.accepted(catalog));
            if known.is_none() {
                self.queue(queue).accepted(catalog);
            }
        }
    }

    /// Says that a job left the version it may have been granted at, and that it may have ended.
    fn on_superseded(self: &Arc<Self>, queue: &QueueName, job: &Job, version: Version) {
        match &self.serverless {
            Some(away) => away.outbox.job_changed(job, Some(version)),
            None => self.queue(queue).send(Message::Left(job.id.clone(), version)),
        }
        if job.life.ended().is_some() {
            crate::telemetry::metrics::ended(job);
            self.on_attempt_finished(job);
            self.on_job_finished(job);
        }
    }

    /// An attempt or a wait of the job came to an end, and nobody reported it.
    fn on_attempt_finished(&self, job: &Job) {
        if let Some(traces) = &self.traces {
            traces.over(job);
        }
    }

    /// Tells those who wait for a job's result, and whoever sends its callback.
    fn on_job_finished(self: &Arc<Self>, job: &Job) {
        self.waiters.notify(&job.id);
        if job.spec.callback_url.is_some()
            && job.spec.job_type.as_str() != tidegate_engine::CALLBACK_TYPE
        {
            self.wake(&tidegate_engine::CALLBACK_QUEUE.parse().expect("a good name"));
        }
    }

    /// Something that a stop waits for; none while stopping.
    fn busy(&self) -> Option<tokio::sync::mpsc::Sender<()>> {
        self.busy.lock().clone()
    }
}

/// What tasks hold of the server: they end when it is gone.
type Home = Weak<Inner>;
