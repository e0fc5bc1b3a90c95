//! The lease requests and the slots of one handler, and its running attempts.

mod beats;
mod desired_workers;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tidegate_api::{LeaseBody, ReportedView, Timestamp, TypeName};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    attempt::{AbortReason, Attempt, Fields},
    error::Error,
    handler::{Ended, Handler, Report, perform},
    heartbeat::MAX_BEAT_WAIT,
    job::seconds,
    transport::{Request, backoff, duration, path, random_key},
    worker::{MAX_REPORT_TIME, Shared},
};

/// Most reports, and most bytes of them, in one request.
pub(crate) const MAX_REPORTS: usize = 100;
pub(crate) const MAX_REPORT_BYTES: usize = 1 << 20;
/// A server that answers at once without jobs is not called in a hot loop.
const MIN_POLL: Duration = Duration::from_millis(250);
const MAX_PAUSE: Duration = Duration::from_mins(1);

/// The answer to a lease request.
#[derive(Deserialize)]
#[allow(clippy::struct_field_names, reason = "the names are those of the API")]
pub(crate) struct Leases {
    #[serde(default)]
    pub leases: Vec<Lease>,
    #[serde(default)]
    pub reports: Vec<ReportedView>,
    retry_after_seconds: Option<f64>,
    /// Whether the server stops the worker.
    #[serde(default)]
    stop: bool,
}

/// One attempt at a job, and the right to report on it.
#[derive(Deserialize)]
pub(crate) struct Lease {
    job: Box<RawValue>,
    attempt: u16,
    pub token: String,
    expires_at: Timestamp,
}

impl Lease {
    /// The attempt, and the span from its start to the end of the lease.
    pub fn attempt(&self) -> Result<(Attempt, Duration), Error> {
        #[derive(Deserialize)]
        struct Started {
            started_at: Option<Timestamp>,
        }
        let wrong = |err: serde_json::Error| Error::UnexpectedAnswer(err.to_string());
        let fields: Fields = serde_json::from_str(self.job.get()).map_err(wrong)?;
        let started: Started = serde_json::from_str(self.job.get()).map_err(wrong)?;
        // Both are of the server's clock, so a wrong clock here does no harm.
        let span = started.started_at.map_or(Duration::ZERO, |at| self.expires_at.since(at));
        Ok((Attempt::of(fields, self.attempt), span.max(Duration::from_millis(1))))
    }
}

/// One leased attempt: what runs, and what is reported of it.
pub(crate) struct Leased {
    owner: Arc<LeaseLoop>,
    pub job: Attempt,
    pub token: String,
    pub target: String,
    lease: Duration,
    lost_at: Mutex<Instant>,
    /// Held while a heartbeat is under way.
    beating: tokio::sync::Mutex<()>,
    /// Cancelled when the report was acknowledged, or nothing is to be reported.
    reported: CancellationToken,
    is_finished: AtomicBool,
    report: Mutex<Option<(Arc<Report>, Instant)>>,
}

impl Leased {
    /// Keeps the report, with what no heartbeat has sent.
    pub fn finish(&self, report: Report) {
        let report = Arc::new(report.complete(&self.job));
        *lock(&self.report) = Some((report, Instant::now()));
    }

    pub fn report(&self) -> Option<(Arc<Report>, Instant)> {
        lock(&self.report).clone()
    }

    /// The size of the report, for the bounds of a request.
    pub fn report_bytes(&self) -> usize {
        self.report().map_or(0, |(report, _)| report.bytes())
    }

    /// Ends the attempt: there is nothing more to send.
    pub fn settle(&self) {
        self.reported.cancel();
        let attempts = &mut self.owner.state().attempts;
        attempts.retain(|other| !std::ptr::eq(Arc::as_ptr(other), self));
        self.owner.changed.notify_one();
    }
}

impl fmt::Debug for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its loop has the attempt.
        fmt::Debug::fmt(&self.job, f)
    }
}

/// The lease requests and the slots of one handler.
#[derive(Debug)]
pub(crate) struct LeaseLoop {
    shared: Arc<Shared>,
    pub handler: Handler,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    /// How many attempts may run.
    limit: usize,
    running: usize,
    is_polling: bool,
    /// Those that run, or whose report is not acknowledged.
    attempts: Vec<Arc<Leased>>,
    /// Reports for the next lease request.
    pending: Vec<Arc<Leased>>,
    pause_until: Instant,
    /// How long the leases of each type last.
    spans: HashMap<String, Duration>,
}

impl State {
    fn free(&self) -> usize {
        self.limit.saturating_sub(self.running)
    }
}

/// A lease request, and what it carries.
struct Call {
    max: usize,
    /// How long it was repeated until it was answered.
    repeated_for: Duration,
    request_id: String,
    reports: Vec<Arc<Leased>>,
}

impl LeaseLoop {
    pub fn new(shared: Arc<Shared>, handler: Handler) -> Self {
        let state = State {
            limit: if handler.is_auto { 1 } else { handler.concurrency },
            running: 0,
            is_polling: false,
            attempts: Vec::new(),
            pending: Vec::new(),
            pause_until: Instant::now(),
            spans: HashMap::new(),
        };
        Self { shared, handler, state: Mutex::new(state), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub fn is_polling(&self) -> bool {
        self.state().is_polling
    }

    pub fn limit(&self) -> usize {
        self.state().limit
    }

    pub fn abort(&self, reason: AbortReason) {
        for leased in &self.state().attempts {
            leased.job.abort(reason);
        }
    }

    /// Leases until the worker stops, and ends when every attempt is reported.
    pub async fn run(self: Arc<Self>) -> Result<(), Error> {
        let worked = self.work().await;
        if worked.is_err() {
            self.shared.stop.cancel();
        }
        let pending = std::mem::take(&mut self.state().pending);
        for leased in pending {
            self.shared.outbox.add(&self.shared, &leased, false);
        }
        while !self.state().attempts.is_empty() {
            self.changed.notified().await;
        }
        worked
    }

    /// Sends one lease request after another, each until it is answered.
    async fn work(self: &Arc<Self>) -> Result<(), Error> {
        while let Some(mut call) = self.next().await {
            let began = Instant::now();
            let answer = self.send(&mut call).await;
            self.state().is_polling = false;
            let answer = match answer {
                Ok(Some(answer)) => answer,
                ended => {
                    for leased in &call.reports {
                        self.shared.outbox.add(&self.shared, leased, false);
                    }
                    return ended.map(drop);
                }
            };
            for (leased, reported) in call.reports.iter().zip(answer.reports) {
                self.shared.reported(leased, reported.status, reported.error);
            }
            if answer.stop {
                tracing::info!("the server stops this worker");
                self.shared.stop.cancel();
            }
            let is_idle = answer.leases.is_empty();
            // One that cannot be read does not hold up the others.
            let begun = answer.leases.iter().map(|lease| self.begin(lease, call.repeated_for));
            let begun: Vec<_> = begun.collect();
            begun.into_iter().collect::<Result<(), _>>()?;
            let mut pause = Duration::ZERO;
            if is_idle && began.elapsed() < MIN_POLL {
                pause = MIN_POLL;
            }
            if let Some(seconds) = answer.retry_after_seconds {
                pause = duration(seconds).min(MAX_PAUSE);
            }
            self.state().pause_until = Instant::now() + pause;
        }
        Ok(())
    }

    /// Waits for a free slot, and returns the next request; none if the worker stops.
    async fn next(&self) -> Option<Call> {
        loop {
            let rest = {
                let mut state = self.state();
                if self.shared.is_stopping() {
                    return None;
                }
                // A finished job ends a pause: its report goes at once.
                let is_paused = state.pause_until > Instant::now() && state.pending.is_empty();
                if state.free() > 0 && !is_paused {
                    return Some(self.call(&mut state));
                }
                (state.free() > 0).then_some(state.pause_until)
            };
            let due = async {
                match rest {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = self.shared.stop.cancelled() => {}
                () = due => {}
            }
        }
    }

    /// The next request. It may wait long, so reports that do not fit go apart.
    fn call(&self, state: &mut State) -> Call {
        let (mut reports, mut size) = (Vec::new(), 0);
        for leased in std::mem::take(&mut state.pending) {
            size += leased.report_bytes();
            if reports.len() < MAX_REPORTS && size <= MAX_REPORT_BYTES {
                reports.push(leased);
            } else {
                self.shared.outbox.add(&self.shared, &leased, false);
            }
        }
        state.is_polling = true;
        let repeated_for = Duration::ZERO;
        Call { max: state.free(), repeated_for, request_id: random_key(), reports }
    }

    fn body(&self, call: &Call) -> Result<Bytes, Error> {
        let options = &self.shared.options;
        let reports: Vec<_> =
            call.reports.iter().filter_map(|leased| Some((leased, leased.report()?.0))).collect();
        let min = self.handler.min.min(call.max);
        let body = LeaseBody {
            queue: None,
            types: self.handler.job_types.iter().map(|name| name.parse().ok()).collect(),
            max: u32::try_from(call.max).ok(),
            min: u32::try_from(min).ok().filter(|min| *min > 1),
            wait_seconds: Some(seconds(options.wait)),
            max_pause_seconds: Some(seconds(options.max_pause)),
            request_id: Some(call.request_id.clone()),
            worker: Some(self.shared.name.clone()),
            lease_seconds: options.lease.map(seconds),
            reports: reports
                .iter()
                .map(|(leased, report)| report.body(Some((&leased.job, &leased.token))))
                .collect(),
        };
        let body = serde_json::to_vec(&body).map_err(Error::argument)?;
        Ok(body.into())
    }

    /// Sends a request until it is answered. Returns none if the worker stops and the server has
    /// not answered for a minute, and the error of a request that is wrong.
    async fn send(&self, call: &mut Call) -> Result<Option<Leases>, Error> {
        let (shared, since) = (&self.shared, Instant::now());
        let mut names = self.handler.job_types.iter();
        if let Some(name) = names.find(|name| name.parse::<TypeName>().is_err()) {
            return Err(Error::argument(format_args!("{name:?} is not the name of a job type")));
        }
        let mut failures = 0;
        loop {
            if failures > 0 && shared.is_stopping() {
                // It gets the leases of the request that it repeats, and no others.
                call.max = 0;
            }
            let wait = if call.max > 0 { shared.options.wait } else { Duration::ZERO };
            let request = Request::post("/v1/leases").bytes(self.body(call)?).wait(wait);
            let answer = shared.client.transport.send(&request).await;
            let err = match answer.and_then(|answer| answer.read()) {
                Ok(answer) => {
                    if failures > 0 {
                        call.repeated_for = since.elapsed();
                    }
                    return Ok(Some(answer));
                }
                Err(err) => err,
            };
            let status = err.status().unwrap_or_default();
            if !call.reports.is_empty() && matches!(status, 400 | 413) {
                // One of the reports is wrong: each gets an answer of its own.
                for leased in call.reports.drain(..) {
                    shared.outbox.add(shared, &leased, true);
                }
                continue;
            }
            if shared.is_stopping() && since.elapsed() > MAX_REPORT_TIME {
                return Ok(None);
            }
            if !err.is_retryable() && status != 500 {
                return Err(err);
            }
            failures += 1;
            let server_pause = err.retry_after().unwrap_or_default().min(MAX_PAUSE);
            let pause = backoff(failures, MIN_POLL) + server_pause;
            tracing::info!(error = %err, again_in = ?pause, "no lease");
            if shared.is_stopping() {
                sleep(pause.min(Duration::from_secs(1))).await;
            } else {
                let _ = timeout(pause, shared.stop.cancelled()).await;
            }
        }
    }

    /// How long a lease lasts without a heartbeat. `span` is from its attempt's start to its end.
    fn lease_time(&self, job: &Attempt, span: Duration, repeated_for: Duration) -> Duration {
        if let Some(lease) = self.shared.options.lease {
            return span.min(lease);
        }
        let mut state = self.state();
        if repeated_for.is_zero() {
            state.spans.insert(job.job_type().to_owned(), span);
            return span;
        }
        // A repeat renewed the lease, which may have begun with the first request.
        let least = span.saturating_sub(repeated_for).max(span / 4);
        span.min(state.spans.get(job.job_type()).copied().unwrap_or(least))
    }

    fn begin(self: &Arc<Self>, lease: &Lease, repeated_for: Duration) -> Result<(), Error> {
        let (job, span) = lease.attempt()?;
        let span = self.lease_time(&job, span, repeated_for);
        let leased = Arc::new(Leased {
            owner: Arc::clone(self),
            target: path(&["jobs", job.job_type(), job.id()]),
            job,
            token: lease.token.clone(),
            lease: span,
            lost_at: Mutex::new(Instant::now() + span),
            beating: tokio::sync::Mutex::new(()),
            reported: CancellationToken::new(),
            is_finished: AtomicBool::new(false),
            report: Mutex::new(None),
        });
        let mut state = self.state();
        state.attempts.push(Arc::clone(&leased));
        state.running += 1;
        drop(state);
        tokio::spawn(Arc::clone(self).attempt(Arc::clone(&leased)));
        tokio::spawn(Arc::clone(self).beat(leased));
        Ok(())
    }

    /// Runs the handler, and hands its report on.
    async fn attempt(self: Arc<Self>, leased: Arc<Leased>) {
        let report = if self.shared.is_stopping() {
            Some(Report::released("its worker stopped before it began"))
        } else {
            let job = &leased.job;
            let report = match perform(&self.handler.run, job, job.clone()).await {
                Ended::Reported(report) => Some(report),
                Ended::Later => Some(Report::permanent("only a push reports later")),
                Ended::Lost => None,
            };
            let outcome = report.as_ref().map_or("lost", |report| report.status.as_str());
            let why = report.as_ref().and_then(|report| report.message.as_deref());
            tracing::info!(
                job = job.id(),
                job_type = job.job_type(),
                attempt = job.number(),
                why,
                "{outcome}"
            );
            report
        };
        let Some(report) = report else {
            leased.is_finished.store(true, Ordering::Release);
            self.state().running -= 1;
            return leased.settle();
        };
        // A heartbeat that came after the report would be refused, and its lines lost.
        let beating = timeout(MAX_BEAT_WAIT, leased.beating.lock()).await;
        leased.is_finished.store(true, Ordering::Release);
        leased.finish(report);
        let mut state = self.state();
        state.running -= 1;
        let is_carried = !state.is_polling && !self.shared.is_stopping();
        if is_carried {
            state.pending.push(Arc::clone(&leased));
        }
        drop(state);
        self.changed.notify_one();
        if !is_carried {
            self.shared.outbox.add(&self.shared, &leased, false);
        }
        drop(beating);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
