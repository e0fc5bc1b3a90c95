//! The worker's loop: it leases jobs, starts attempts, sends reports, and stops gracefully.
//!
//! At most one lease request is in flight. A report is part of the next one. While one is in
//! flight, or when none will follow, the report is a request of its own, so no result waits for a
//! long poll.

use std::{io, mem, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    WorkPlan, attempt, demand, presence,
    report::{AttemptOutcome, Lease, MAX_REPORT_TIME, Report, post, replacement},
};
use crate::cli::{
    Context, ExitCode, UsageError,
    client::{Client, Error},
    context::print_error,
    output,
};
use tidegate_api::{LeaseBody, LeaseView, LeasesView};
use tidegate_backends::system::SystemEntropy;
use tidegate_core::port::Entropy as _;

/// Most reports, and most bytes of results and log lines, in one lease request.
const MAX_LEASE_REPORTS: usize = 100;
const MAX_LEASE_REPORT_BYTES: usize = 1 << 20;
/// The backoff of a worker whose server is unreachable: the first wait doubles up to the last.
pub(super) const MIN_BACKOFF: Duration = Duration::from_millis(250);
pub(super) const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// The longest pause that a server may request.
const MAX_PAUSE: Duration = Duration::from_mins(1);

/// The result of an attempt.
struct Finished {
    lease: Lease,
    ended: attempt::AttemptEnd,
    took: Duration,
}

/// The lease request in flight: its duration and its response.
type Poll = JoinSet<(Duration, Result<LeasesView<'static>, Error>)>;

/// A pull worker.
pub struct Worker<'a> {
    plan: Arc<WorkPlan>,
    client: Client,
    ctx: &'a Context,
    /// Attempts that may run now.
    limit: usize,
    attempts: JoinSet<Finished>,
    poll: Poll,
    /// Reports in the request in flight.
    reports_in_flight: Arc<Vec<Report>>,
    /// Reports for the next lease request.
    pending_reports: Vec<Report>,
    /// Reports in requests of their own; false for a failed one.
    posts: JoinSet<bool>,
    /// What the ids of lease requests begin with, which no other process can guess, and the number of
    /// the next request. A request without an answer is repeated under its id.
    request_ids: (String, u64),
    /// Since when the next lease request repeats one without an answer.
    unanswered_since: Option<Instant>,
    /// No lease request before then.
    not_before: Instant,
    wait: Duration,
    /// Whether the server has ever answered.
    connected: bool,
    stopping: bool,
    kill: watch::Sender<bool>,
    failure: Option<anyhow::Error>,
    code: ExitCode,
}

impl<'a> Worker<'a> {
    /// Returns a worker that is not started.
    ///
    /// # Errors
    ///
    /// The machine's TLS settings are broken.
    pub fn new(plan: WorkPlan, ctx: &'a Context) -> anyhow::Result<Self> {
        Ok(Self {
            client: ctx.client()?,
            ctx,
            limit: if plan.auto { 1 } else { plan.concurrency },
            plan: Arc::new(plan),
            attempts: JoinSet::new(),
            poll: JoinSet::new(),
            reports_in_flight: Arc::default(),
            pending_reports: Vec::new(),
            posts: JoinSet::new(),
            request_ids: (format!("{:032x}", SystemEntropy.bits()), 0),
            unanswered_since: None,
            not_before: Instant::now(),
            wait: MIN_BACKOFF,
            connected: false,
            stopping: false,
            kill: watch::channel(false).0,
            failure: None,
            code: ExitCode::Ok,
        })
    }

    /// Works until a message in `stops`; a second one kills what runs.
    ///
    /// # Errors
    ///
    /// The server is unreachable at the start or rejects the lease request, or the command cannot
    /// be started, which would use up the attempts of every job.
    pub async fn run(mut self, mut stops: mpsc::Receiver<()>) -> anyhow::Result<ExitCode> {
        let (demand, mut demanded) = watch::channel(self.limit);
        let (capacity, registered) = watch::channel(self.limit);
        let (client, worker) = (self.client.clone(), self.plan.worker.clone());
        let mut registering = JoinSet::new();
        registering.spawn(presence::register(client.clone(), Arc::clone(&self.plan), registered));
        let mut leaving = JoinSet::new();
        let mut polling = JoinSet::new();
        if self.plan.auto {
            polling.spawn(demand::follow(
                self.client.clone(),
                Arc::clone(&self.plan),
                demand.clone(),
            ));
        }
        loop {
            if self.is_to_lease() && Instant::now() >= self.not_before {
                self.lease();
            }
            if self.stopping && self.poll.is_empty() && !self.is_to_lease() {
                for report in mem::take(&mut self.pending_reports) {
                    self.post(report);
                }
                if self.attempts.is_empty() && self.posts.is_empty() {
                    registering.shutdown().await;
                    if self.connected {
                        presence::leave(&self.client, &self.plan.worker).await;
                    }
                    return self.failure.map_or(Ok(self.code), Err);
                }
            } else if self.stopping
                && !self.poll.is_empty()
                && self.attempts.is_empty()
                && leaving.is_empty()
            {
                registering.shutdown().await;
                leaving.spawn(presence::end_wait(client.clone(), worker.clone()));
            }
            let idle = self.is_to_lease();
            tokio::select! {
                Some(answer) = self.poll.join_next() => {
                    let (took, answer) = answer?;
                    leaving = JoinSet::new();
                    let was_lost = self.wait > MIN_BACKOFF;
                    self.answered(took, answer);
                    // The server may have started again on data without the capacity.
                    if was_lost && self.wait == MIN_BACKOFF {
                        capacity.send_replace(self.limit);
                    }
                }
                Some(finished) = self.attempts.join_next() => self.finished(finished?)?,
                Some(sent) = self.posts.join_next() => if !sent? {
                    self.code = ExitCode::Refused;
                },
                Some(()) = stops.recv() => self.stop(),
                Ok(()) = demanded.changed() => {
                    self.limit = *demanded.borrow_and_update();
                    capacity.send_replace(self.limit);
                }
                () = sleep_until(self.not_before), if idle => {}
            }
        }
    }

    fn capacity(&self) -> usize {
        self.limit.saturating_sub(self.attempts.len())
    }

    /// Whether a lease request is to follow: for more jobs, or, before the worker ends, for those
    /// whose answer was lost.
    fn is_to_lease(&self) -> bool {
        let is_wanted = if self.stopping {
            let is_recent = |since: Instant| since.elapsed() < MAX_REPORT_TIME;
            self.failure.is_none()
                && !*self.kill.borrow()
                && self.unanswered_since.is_some_and(is_recent)
        } else {
            self.capacity() > 0
        };
        is_wanted && self.poll.is_empty()
    }

    /// Sends the next lease request. A worker that stops asks for no more jobs.
    fn lease(&mut self) {
        self.reports_in_flight = Arc::new(mem::take(&mut self.pending_reports));
        let (client, plan, riding, max) = (
            self.client.clone(),
            self.plan.clone(),
            self.reports_in_flight.clone(),
            if self.stopping { 0 } else { self.capacity() },
        );
        let (prefix, number) = &self.request_ids;
        let request_id = Some(format!("{prefix}-{number:08}"));
        self.poll.spawn(async move {
            let body = LeaseBody {
                request_id,
                queue: plan.queue.clone(),
                types: Some(plan.types.clone()).filter(|types| !types.is_empty()),
                max: u32::try_from(max).ok(),
                min: u32::try_from(max).ok().map(|max| plan.min.min(max)).filter(|min| *min > 1),
                wait_seconds: Some(plan.wait),
                max_pause_seconds: Some(plan.max_pause).filter(|pause| pause.millis() > 0),
                worker: Some(plan.worker.clone()),
                lease_seconds: plan.lease,
                reports: riding.iter().map(Report::in_lease_request).collect(),
            };
            let began = Instant::now();
            let answer =
                client.post(&["leases"]).json(&body).wait(plan.wait.duration()).send().await;
            (began.elapsed(), answer.and_then(|answer| answer.read()))
        });
    }

    fn answered(&mut self, took: Duration, answer: Result<LeasesView<'static>, Error>) {
        let reports = self.take_reports_in_flight();
        match answer {
            Ok(granted) => {
                self.request_ids.1 += 1;
                self.unanswered_since = None;
                self.connected = true;
                self.wait = MIN_BACKOFF;
                for (report, reported) in reports.into_iter().zip(granted.reports.into_owned()) {
                    match reported.error {
                        Some(problem) if reported.status >= 400 => {
                            self.rejected(report, &Error::Problem(Box::new(problem)));
                        }
                        _ => {}
                    }
                }
                // A server that does not long-poll must not be called in a hot loop.
                if granted.leases.is_empty() && took < MIN_BACKOFF {
                    self.not_before = Instant::now() + MIN_BACKOFF;
                }
                if let Some(pause) = granted.retry_after_seconds {
                    self.not_before = Instant::now() + pause.duration().min(MAX_PAUSE);
                }
                for lease in granted.leases {
                    if self.stopping {
                        let message = Some("its worker stopped before it began".to_owned());
                        let outcome = AttemptOutcome::handed_back(None, message);
                        self.report(Report::new(&lease, outcome));
                    } else {
                        self.begin(lease);
                    }
                }
                if granted.stop && !self.stopping {
                    self.stopping = true;
                    let running = self.attempts.len();
                    print_error(format_args!(
                        "the server stops this worker: it ends after {running} running jobs"
                    ));
                }
            }
            // One of the reports may be invalid: each gets its own error in a request of its own.
            Err(err) if !err.passes() && !reports.is_empty() => {
                print_error(format_args!("{err}; reporting {} results separately", reports.len()));
                for report in reports {
                    self.post(report);
                }
            }
            Err(err) => {
                self.pending_reports.splice(0..0, reports);
                if self.connected && err.passes() {
                    self.unanswered_since.get_or_insert_with(Instant::now);
                    print_error(format_args!("{err}; trying again in {}", output::took(self.wait)));
                    self.not_before = Instant::now() + self.wait;
                    self.wait = (self.wait * 2).min(MAX_BACKOFF);
                } else {
                    self.failure.get_or_insert(err.into());
                    self.stopping = true;
                }
            }
        }
    }

    /// Returns the reports of the finished request.
    fn take_reports_in_flight(&mut self) -> Vec<Report> {
        Arc::unwrap_or_clone(mem::take(&mut self.reports_in_flight))
    }

    fn begin(&mut self, lease: LeaseView<'static>) {
        let (client, plan, lease, kill) =
            (self.client.clone(), self.plan.clone(), Arc::new(lease), self.kill.subscribe());
        self.attempts.spawn(async move {
            let began = Instant::now();
            let ended = attempt::run(&client, &plan, lease.clone(), kill).await;
            Finished { lease, ended, took: began.elapsed() }
        });
    }

    fn finished(&mut self, Finished { lease, ended, took }: Finished) -> io::Result<()> {
        let outcome = match ended {
            Ok(Some(outcome)) => outcome,
            Ok(None) => return Ok(()),
            Err(err) => {
                let message = format!("{} cannot be started: {err}", self.plan.command[0]);
                self.failure.get_or_insert_with(|| UsageError(message.clone()).into());
                self.stopping = true;
                AttemptOutcome::failed(message)
            }
        };
        self.print_outcome(&lease, &outcome, took)?;
        // Its report ends a pause, but not the backoff of a server that is unreachable.
        if self.wait == MIN_BACKOFF {
            self.not_before = Instant::now();
        }
        self.report(Report::new(&lease, outcome));
        Ok(())
    }

    /// Prints the outcome: as text on standard error, or as JSON on standard output.
    fn print_outcome(
        &self,
        lease: &LeaseView<'_>,
        outcome: &AttemptOutcome,
        took: Duration,
    ) -> io::Result<()> {
        let status = outcome.status.as_str();
        if self.ctx.json() {
            let (id, job_type, attempt) = (&lease.job.id, &lease.job.r#type, lease.attempt);
            let line = serde_json::json!({
                "id": id, "type": job_type, "attempt": attempt, "status": status,
                "message": outcome.message, "seconds": took.as_secs_f64(),
            });
            return self.ctx.print(line);
        }
        let why = outcome
            .message
            .as_deref()
            .and_then(|message| message.lines().last())
            .map(|line| format!(": {line}"));
        let (job, why) = (&lease.job, why.unwrap_or_default());
        print_error(format_args!(
            "[{}] {} attempt {} {status} in {}{why}",
            job.id,
            job.r#type,
            lease.attempt,
            output::took(took)
        ));
        Ok(())
    }

    /// Sends a report with the next lease request, or in its own request.
    fn report(&mut self, report: Report) {
        let pending: usize = self.pending_reports.iter().map(Report::bytes).sum();
        let rides = !self.stopping && self.poll.is_empty() && self.capacity() > 0;
        if rides
            && self.pending_reports.len() < MAX_LEASE_REPORTS
            && pending + report.bytes() <= MAX_LEASE_REPORT_BYTES
        {
            self.pending_reports.push(report);
        } else {
            self.post(report);
        }
    }

    fn post(&mut self, report: Report) {
        let (client, kill) = (self.client.clone(), self.kill.subscribe());
        self.posts.spawn(post(client, report, kill));
    }

    /// Handles a report that the server rejected within an accepted request.
    fn rejected(&mut self, report: Report, err: &Error) {
        if err.passes() {
            self.pending_reports.push(report);
            return;
        }
        if let Some(replacement) = replacement(report, err) {
            self.post(replacement);
        }
    }

    fn stop(&mut self) {
        if self.stopping {
            print_error("killing the running jobs");
            self.code = ExitCode::Refused;
            self.kill.send_replace(true);
            // A kill does not wait for the long poll. Its reports are sent again, which is
            // idempotent.
            self.poll = JoinSet::new();
            let reports = self.take_reports_in_flight();
            self.pending_reports.extend(reports);
        } else {
            self.stopping = true;
            print_error(format_args!(
                "stopping after {} running jobs; a second signal kills them",
                self.attempts.len()
            ));
        }
    }
}
