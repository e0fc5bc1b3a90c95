//! A pull worker: it leases jobs, runs their handlers, and reports.
//!
//! For each handler one lease request is open while a slot is free. A report goes with the next
//! lease request. While one is open, reports go together in a request of their own, so that no
//! result waits for a long poll. A lease request without an answer is repeated under its
//! `request_id`, and gets the same leases.

use std::{
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tidegate_api::{Problem, RegistrationBody};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    attempt::AbortReason,
    client::Client,
    config::{Config, Plan, Resource},
    error::{Error, ErrorKind, ProblemError},
    handler::{Handler, Report},
    lease::{LeaseLoop, Leased},
    outbox::Outbox,
    transport::{Request, path},
};

/// How long a report is sent again to a server that does not answer.
pub(crate) const MAX_REPORT_TIME: Duration = Duration::from_mins(1);
const REGISTER_TIME: Duration = Duration::from_secs(30);
/// How often a stopping worker ends its waiting lease requests.
const LEAVE_TIME: Duration = Duration::from_millis(300);

/// The options of a worker. The default is ready to use.
#[derive(Clone, Debug)]
#[must_use]
pub struct WorkerOptions {
    pub(crate) name: Option<String>,
    pub(crate) wait: Duration,
    pub(crate) max_pause: Duration,
    pub(crate) lease: Option<Duration>,
    pub(crate) grace: Option<Duration>,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            name: None,
            wait: Duration::from_secs(20),
            max_pause: Duration::from_secs(10),
            lease: None,
            grace: None,
        }
    }
}

impl WorkerOptions {
    /// Sets the worker's name in lists, unique for each process (default: of process and chance).
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets how long a lease request waits for jobs, at most a minute (default 20 s).
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets the longest pause instead, where a server pays for waiting requests (default 10 s).
    pub fn max_pause(mut self, pause: Duration) -> Self {
        self.max_pause = pause;
        self
    }

    /// Replaces the lease time of the types.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets how long a stop waits for running handlers before it aborts them (default: for their
    /// end).
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }
}

/// A worker that runs the handlers that it was given.
#[derive(Debug)]
pub struct Worker {
    /// The declarations of the handlers' types, and what was added; see [`Worker::apply`].
    pub config: Config,
    shared: Arc<Shared>,
    loops: Vec<Arc<LeaseLoop>>,
}

/// What the parts of a worker have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub client: Client,
    pub options: WorkerOptions,
    pub name: String,
    pub stop: CancellationToken,
    pub outbox: Outbox,
    /// Notified when the capacity has changed.
    pub recount: Notify,
    failure: Mutex<Option<Error>>,
}

impl Shared {
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    fn failure(&self) -> MutexGuard<'_, Option<Error>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the worker with an error.
    fn fail(&self, err: Error) {
        self.failure().get_or_insert(err);
        self.stop.cancel();
    }

    /// Handles the answer to one report. One that was not recorded is sent again. Returns whether the
    /// outbox may send the next batch at once; false if this report is sent again.
    pub fn answered(
        self: &Arc<Self>,
        leased: &Arc<Leased>,
        status: u16,
        err: Option<&Error>,
    ) -> bool {
        let Some((report, since)) = leased.report() else {
            leased.settle();
            return true;
        };
        let (id, why) = (leased.job.id(), err.map(ToString::to_string).unwrap_or_default());
        let is_wrong = matches!(status, 400 | 413);
        let is_of_the_moment = matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
            || err.is_some_and(Error::is_retryable);
        match status {
            0..300 => leased.settle(),
            _ if is_of_the_moment && since.elapsed() < MAX_REPORT_TIME => {
                self.outbox.add(self, leased, false);
                return false;
            }
            404 | 409 => {
                tracing::warn!(job = id, error = why, "a result is dropped");
                leased.settle();
            }
            _ if is_wrong && report.result.is_some() => {
                // The work was done, and its result cannot be stored: another attempt would repeat
                // it.
                tracing::error!(job = id, error = why, "a result was refused");
                leased.finish(Report::permanent(&format!("its result was refused: {why}")));
                self.outbox.add(self, leased, false);
            }
            _ if is_wrong && report.has_extras() => {
                tracing::error!(job = id, error = why, "a report was refused");
                leased.finish(Report::failure(&format!("its report was refused: {why}")));
                self.outbox.add(self, leased, false);
            }
            _ => {
                tracing::error!(job = id, error = why, "a report is dropped");
                leased.settle();
            }
        }
        true
    }

    /// Handles the answer to one report of several, as [`answered`](Self::answered).
    pub fn reported(
        self: &Arc<Self>,
        leased: &Arc<Leased>,
        status: u16,
        problem: Option<Problem>,
    ) -> bool {
        let err =
            problem.map(|problem| Error::Problem(Box::new(ProblemError::new(status, problem))));
        self.answered(leased, status, err.as_ref())
    }
}

impl Worker {
    /// Returns a worker without handlers, with the default options.
    pub fn new(client: Client) -> Self {
        Self::with(client, WorkerOptions::default())
    }

    /// Returns a worker without handlers.
    pub fn with(client: Client, options: WorkerOptions) -> Self {
        let unique = || format!("rust-{}-{:06x}", process::id(), rand::random::<u32>() >> 8);
        let name = options.name.clone().unwrap_or_else(unique);
        let shared = Shared {
            client,
            options,
            name,
            stop: CancellationToken::new(),
            outbox: Outbox::default(),
            recount: Notify::new(),
            failure: Mutex::new(None),
        };
        Self { config: Config::default(), shared: Arc::new(shared), loops: Vec::new() }
    }

    /// Returns the worker's name in lists.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the client that it uses.
    pub fn client(&self) -> &Client {
        &self.shared.client
    }

    /// Adds a handler.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the type has a handler already, if a number is outside its
    /// bounds, or if the type is declared with other settings.
    pub fn handle(&mut self, handler: Handler) -> Result<&mut Self, Error> {
        handler.check()?;
        let job_types = &handler.job_types;
        for (index, job_type) in job_types.iter().enumerate() {
            let mut others = self.types().chain(job_types[..index].iter().map(String::as_str));
            if others.any(|other| other == job_type) {
                return Err(Error::argument(format_args!(
                    "the job type {job_type} has a handler already"
                )));
            }
        }
        if handler.config.is_some() || handler.queue.is_some() {
            let settings = handler.config.clone().unwrap_or(Ok(serde_json::json!({})));
            let mut settings = settings.map_err(Error::argument)?;
            if let (Some(queue), Some(settings)) = (&handler.queue, settings.as_object_mut()) {
                settings.insert("queue".to_owned(), queue.as_str().into());
            }
            for job_type in job_types {
                self.config.job_type(job_type, &settings)?;
            }
        }
        self.loops.push(Arc::new(LeaseLoop::new(Arc::clone(&self.shared), handler)));
        Ok(self)
    }

    /// Returns the types that have a handler.
    pub fn types(&self) -> impl Iterator<Item = &str> {
        self.loops.iter().flat_map(|one| one.handler.job_types.iter().map(String::as_str))
    }

    /// Applies the declared configuration, and returns what was done; see [`Config`]. A handler's
    /// type that is not declared is created with the defaults if it does not exist.
    ///
    /// # Errors
    ///
    /// As [`Client::apply`].
    pub async fn apply(&self) -> Result<Plan, Error> {
        let mut config = self.config.clone();
        for name in self.types() {
            if config.has(Resource::JobType, name) {
                continue;
            }
            match self.client().request(Request::get(path(&["job-types", name]))).await {
                Err(err) if err.kind() == ErrorKind::NotFound => {
                    config.job_type(name, serde_json::json!({}))?;
                }
                answer => drop(answer?),
            }
        }
        self.client().apply(&config, true).await
    }

    /// Returns the token that stops the worker when it is cancelled; see [`Worker::run`].
    pub fn stop_token(&self) -> CancellationToken {
        self.shared.stop.clone()
    }

    /// Works until SIGTERM or SIGINT comes, or the [stop token](Self::stop_token) is cancelled.
    /// Then it takes no more jobs, hands back what has not begun, waits for the rest, and reports
    /// it. A second signal aborts the running handlers. The process keeps receiving these signals
    /// afterwards, so end it then.
    ///
    /// # Errors
    ///
    /// What ended the worker, such as an unknown type or a token that is not valid. A server that
    /// is not there does not.
    pub async fn run(&self) -> Result<(), Error> {
        if self.loops.is_empty() {
            return Err(Error::argument("the worker has no handler"));
        }
        let (mut signals, shared) = (Signals::new()?, &self.shared);
        let mut running = JoinSet::new();
        let mut following = JoinSet::new();
        for one in &self.loops {
            running.spawn(Arc::clone(one).run());
            if one.handler.is_auto {
                following.spawn(Arc::clone(one).follow());
            }
        }
        let mut presence = Box::pin(self.keep_registered());
        while !shared.is_stopping() {
            tokio::select! {
                () = &mut presence => {}
                () = signals.next() => shared.stop.cancel(),
                () = shared.stop.cancelled() => {}
                Some(ended) = running.join_next() => self.ended(ended),
            }
        }
        drop(presence);
        drop(following);
        let deadline = shared.options.grace.and_then(|grace| Instant::now().checked_add(grace));
        let mut is_aborted = false;
        while !running.is_empty() {
            // It ends the waiting lease requests. One that has not arrived yet needs another.
            let leaving = async {
                if self.loops.iter().any(|one| one.is_polling()) {
                    self.leave().await;
                }
                sleep(LEAVE_TIME).await;
            };
            tokio::select! {
                Some(ended) = running.join_next() => self.ended(ended),
                () = signals.next() => self.abort(),
                () = until(deadline), if !is_aborted => {
                    is_aborted = true;
                    self.abort();
                }
                () = leaving => {}
            }
        }
        self.leave().await;
        shared.failure().take().map_or(Ok(()), Err)
    }

    /// Takes the end of a loop: an error ends the worker.
    fn ended(&self, ended: Result<Result<(), Error>, tokio::task::JoinError>) {
        let fault = || Error::argument("the worker has a fault: its loop panicked");
        if let Err(err) = ended.unwrap_or_else(|_| Err(fault())) {
            self.shared.fail(err);
        }
    }

    fn abort(&self) {
        for one in &self.loops {
            one.abort(AbortReason::Stopping);
        }
    }

    async fn keep_registered(&self) {
        loop {
            self.register().await;
            let _ = timeout(REGISTER_TIME, self.shared.recount.notified()).await;
        }
    }

    async fn register(&self) {
        let capacity = self.loops.iter().map(|one| one.limit()).sum::<usize>();
        let body = RegistrationBody {
            capacity: u32::try_from(capacity).ok(),
            queue: None,
            types: Some(self.types().filter_map(|name| name.parse().ok()).collect()),
        };
        let request = Request::put(path(&["workers", self.name()])).json(&body);
        if let Err(err) = self.client().transport.send(&request).await {
            tracing::info!(error = %err, "the worker is not registered");
        }
    }

    async fn leave(&self) {
        let request = Request::delete(path(&["workers", self.name()])).query("keep_drain", "true");
        match self.client().transport.send(&request).await {
            Err(err) if err.kind() != ErrorKind::NotFound => {
                tracing::info!(error = %err, "the worker is not deleted from the list");
            }
            _ => {}
        }
    }

    /// Returns the loop of a type.
    #[cfg(feature = "testing")]
    pub(crate) fn handler(&self, job_type: &str) -> Option<&Handler> {
        let is_of = |one: &&Arc<LeaseLoop>| one.handler.job_types.iter().any(|t| t == job_type);
        let found = self.loops.iter().find(is_of);
        found.map(|one| &one.handler)
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// SIGTERM and SIGINT; elsewhere Ctrl-C.
struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    fn new() -> Result<Self, Error> {
        use tokio::signal::unix::{SignalKind, signal};
        let signal = |kind| {
            signal(kind)
                .map_err(|err| Error::argument(format_args!("signals cannot be received: {err}")))
        };
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    #[cfg(not(unix))]
    fn new() -> Result<Self, Error> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
