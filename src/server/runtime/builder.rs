//! The parts of a server, and its start.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::{
    Inner, Options, Server, StopPhase,
    changes::{self, Changes, WatchedStore},
    embedded::handler::{Call, Handler, Work},
    history::History,
    leadership::Leadership,
    lease_calls::LeaseCalls,
    measurement::LatestMeasurement,
    plugin_calls, plugin_registry, serverless, shadow,
    shared::{NoticingStore, Peers, Shared},
    trigger_status::TriggerStatuses,
    waiters,
};
use crate::telemetry::traces::Traces;
use tidegate_core::{
    job::TypeName,
    port::{Clock, HealthCheck, Inbox, Notices, Policy, Spans, Target},
};
use tidegate_engine::{Engine, Error, Ports, Rules};

/// The parts of a server before its start.
pub struct Builder {
    pub(super) ports: Ports,
    pub(super) rules: Rules,
    pub(super) options: Options,
    pub(super) target: Arc<dyn Target>,
    pub(super) handlers: HashMap<TypeName, Handler>,
    pub(super) traces: Option<Traces>,
    pub(super) hosted: Option<plugin_registry::Hosted>,
    pub(super) health_checks: Vec<Arc<dyn HealthCheck>>,
    pub(super) leadership: Option<Arc<dyn Leadership>>,
    pub(super) serverless: bool,
    /// Whether another process changes the store, and this one only reads it.
    pub(super) is_standby: bool,
    /// The notices between this server and the others on its store; none if there are no others.
    pub(super) notices: Option<Arc<dyn Notices>>,
    pub(super) inbox: Option<Arc<dyn Inbox>>,
    /// How those servers reach each other.
    pub(super) peers: Option<Peers>,
}

impl Builder {
    /// Runs jobs of `job_type`, a pull type, in this process, at most `concurrency` at once.
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

    /// Sets the options.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Adds checks to `doctor`, behind those that were added before.
    #[must_use]
    pub fn health_check(mut self, check: Arc<dyn HealthCheck>) -> Self {
        self.health_checks.push(check);
        self
    }

    /// Makes each push of a claimed job need a proof of this leadership.
    #[must_use]
    pub fn leadership(self, leadership: Arc<dyn Leadership>) -> Self {
        Self { leadership: Some(leadership), ..self }
    }

    /// Sets the clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.ports.clock = clock;
        self
    }

    /// Sets the policy that runs plugins.
    #[must_use]
    pub fn policy(mut self, policy: Arc<dyn Policy>) -> Self {
        self.ports.policy = policy;
        self
    }

    /// Sends the spans of each job to `spans`. `ratio`, 0 to 1, is the share of new traces that are
    /// recorded; incoming traces keep the sampling decision of their caller.
    #[must_use]
    pub fn traces(mut self, spans: Arc<dyn Spans>, ratio: f64) -> Self {
        self.traces = Some(Traces::new(spans, ratio));
        self
    }

    /// Makes the server one that only reads, on a store that another process changes. It starts no task,
    /// like a [serverless](Builder::serverless) server. The caller sends it no request that changes
    /// anything.
    #[must_use]
    pub fn standby(self) -> Self {
        Self { serverless: true, is_standby: true, ..self }
    }

    /// Whether the server will be one that [only reads](Builder::standby).
    pub fn is_standby(&self) -> bool {
        self.is_standby
    }

    /// The engine alone, without the tasks of a server: to change what is stored while no server
    /// runs.
    pub fn engine(self) -> Engine {
        Engine::new(self.ports, self.rules)
    }

    /// Starts the server and resumes what was under way at its stop. A
    /// [serverless](Builder::serverless) server has nothing to start.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn start(self) -> Result<Server, Error> {
        #[cfg_attr(
            not(any(test, feature = "embedded")),
            expect(unused_variables, reason = "only its tasks take them")
        )]
        let (shadow, shadow_calls) = shadow::Shadow::new();
        let mut ports = self.ports;
        // A function has no readers.
        let run = if self.serverless { 0 } else { changes::draw_run(&*ports.entropy) };
        let seen = Arc::new(Changes::new(run));
        if !self.serverless {
            let (clock, seen) = (Arc::clone(&ports.clock), Arc::clone(&seen));
            ports.store = Arc::new(WatchedStore::new(ports.store, seen, clock));
        }
        let mut rules = self.rules;
        rules.start_unclaimed &= self.notices.is_none();
        let shared = self.notices.map(|notices| {
            let outgoing = Arc::default();
            let store = Arc::clone(&ports.store);
            ports.store = Arc::new(NoticingStore::new(store, Arc::clone(&outgoing)));
            let name = format!("{:032x}", ports.entropy.bits());
            Arc::new(Shared::new(notices, self.inbox, self.peers, outgoing, name))
        });
        let started_at = ports.clock.now();
        let inner = Arc::new(Inner {
            engine: Arc::new(Engine::new(ports, rules)),
            target: self.target,
            options: self.options,
            handlers: self.handlers,
            queues: Mutex::default(),
            waiters: waiters::Waiters::default(),
            history: History::default(),
            measurement: LatestMeasurement::default(),
            changes: seen,
            workers: Arc::default(),
            lease_calls: LeaseCalls::default(),
            stored_workers: Mutex::default(),
            trigger_statuses: TriggerStatuses::new(started_at),
            explanations: Mutex::default(),
            operations: Mutex::default(),
            traces: self.traces,
            shadow,
            hosted: self.hosted,
            recorded_calls: plugin_calls::RecordedCalls::default(),
            health_checks: self.health_checks,
            leadership: self.leadership,
            serverless: self.serverless.then(serverless::Serverless::default),
            is_standby: self.is_standby,
            shared,
            #[cfg(feature = "embedded")]
            simulation: Arc::default(),
            pending: Arc::default(),
            rescheduled: Arc::default(),
            tokens: Mutex::default(),
            token_reads: tokio::sync::Mutex::default(),
            token_removal: tokio::sync::Mutex::default(),
            stopping: watch::Sender::new(StopPhase::Serving),
            stop_deadline: OnceLock::new(),
            late_at_stop: OnceLock::new(),
            tasks: TaskTracker::new(),
            busy: TaskTracker::new(),
        });
        let server = Server { inner };
        server.inner.start_recording();
        #[cfg(any(test, feature = "embedded"))]
        if !server.inner.is_serverless() {
            server.start_tasks(shadow_calls).await?;
        }
        Ok(server)
    }
}

impl Server {
    /// A builder of a server on `ports` that pushes to `target`.
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
            health_checks: Vec::new(),
            leadership: None,
            serverless: false,
            is_standby: false,
            notices: None,
            inbox: None,
            peers: None,
        }
    }
}
