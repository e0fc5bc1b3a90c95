//! The worker's loop: ask for leases, start attempts, carry reports, stop in good order.
//!
//! At most one lease request is in flight. A report rides with the next one; while one is in flight, or
//! when none will follow, it goes on its own, so that no result waits for somebody else's long poll.

use std::{collections::BTreeSet, io, mem, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    WorkPlan, attempt,
    lease::{Body, Granted, Lease, LeaseRequest, Report, ReportResult, Status},
};
use crate::cli::{
    Context, ExitCode, UsageError,
    client::{Client, Error},
    context::{pause, print_error},
    show,
    wire::{JobType, Queue},
};

/// Most reports, and most bytes of results, that ride with one lease request.
const RIDERS: usize = 100;
const RIDER_BYTES: usize = 1 << 20;
/// The waits of a worker whose server is away: the first, doubling to the last.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LAST_WAIT: Duration = Duration::from_secs(10);
/// How long a report is tried on its own before it is given up; its lease is over by then, as a rule.
const REPORTING: Duration = Duration::from_mins(1);

/// What a finished task brings.
struct Finished {
    lease: Arc<Lease>,
    ended: attempt::Ended,
    took: Duration,
}

/// The lease request in flight: how long it took, and its answer.
type Poll = JoinSet<(Duration, Result<Granted, Error>)>;

/// A pull worker.
pub struct Worker<'a> {
    plan: Arc<WorkPlan>,
    client: Client,
    ctx: &'a Context,
    /// How many attempts may run now.
    limit: usize,
    attempts: JoinSet<Finished>,
    poll: Poll,
    /// Reports that the request in flight carries.
    riding: Arc<Vec<Report>>,
    /// Reports that the next one will carry.
    riders: Vec<Report>,
    /// Reports on their own; false for one that was given up.
    posts: JoinSet<bool>,
    /// No lease request before then.
    not_before: Instant,
    wait: Duration,
    /// Whether the server ever answered.
    met: bool,
    stopping: bool,
    kill: watch::Sender<bool>,
    failure: Option<anyhow::Error>,
    code: ExitCode,
}

impl<'a> Worker<'a> {
    /// A worker that has not begun.
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
            riding: Arc::default(),
            riders: Vec::new(),
            posts: JoinSet::new(),
            not_before: Instant::now(),
            wait: FIRST_WAIT,
            met: false,
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
    /// The server was never there, or refuses to lease; or the command cannot be started, which would
    /// spend the attempts of every job.
    pub async fn run(mut self, mut stops: mpsc::Receiver<()>) -> anyhow::Result<ExitCode> {
        let (want, mut wanted) = watch::channel(self.limit);
        let mut looking = JoinSet::new();
        if self.plan.auto {
            looking.spawn(follow_demand(self.client.clone(), Arc::clone(&self.plan), want.clone()));
        }
        loop {
            if !self.stopping
                && self.poll.is_empty()
                && self.room() > 0
                && Instant::now() >= self.not_before
            {
                self.ask();
            }
            if self.stopping && self.poll.is_empty() {
                for report in mem::take(&mut self.riders) {
                    self.post(report);
                }
                if self.attempts.is_empty() && self.posts.is_empty() {
                    return self.failure.map_or(Ok(self.code), Err);
                }
            }
            let idle = !self.stopping && self.poll.is_empty() && self.room() > 0;
            tokio::select! {
                Some(answer) = self.poll.join_next() => {
                    let (took, answer) = answer?;
                    self.answered(took, answer);
                }
                Some(finished) = self.attempts.join_next() => self.finished(finished?)?,
                Some(told) = self.posts.join_next() => if !told? {
                    self.code = ExitCode::Refused;
                },
                Some(()) = stops.recv() => self.stop(),
                Ok(()) = wanted.changed() => self.limit = *wanted.borrow_and_update(),
                () = sleep_until(self.not_before), if idle => {}
            }
        }
    }

    fn room(&self) -> usize {
        self.limit.saturating_sub(self.attempts.len())
    }

    /// Sends the next lease request.
    fn ask(&mut self) {
        self.riding = Arc::new(mem::take(&mut self.riders));
        let (client, plan, riding, max) =
            (self.client.clone(), self.plan.clone(), self.riding.clone(), self.room());
        self.poll.spawn(async move {
            let ask = LeaseRequest {
                queue: plan.queue.as_deref(),
                types: &plan.types,
                max,
                wait_seconds: plan.wait,
                worker: &plan.worker,
                lease_seconds: plan.lease,
                reports: &riding,
            };
            let began = Instant::now();
            let answer =
                client.post(&["leases"]).json(&ask).wait(plan.wait.duration()).send().await;
            (began.elapsed(), answer.and_then(|answer| answer.read()))
        });
    }

    fn answered(&mut self, took: Duration, answer: Result<Granted, Error>) {
        let riders = self.landed();
        match answer {
            Ok(granted) => {
                self.met = true;
                self.wait = FIRST_WAIT;
                for (report, told) in riders.into_iter().zip(granted.reports) {
                    match told.error {
                        Some(problem) if told.status >= 400 => {
                            self.refused(report, &Error::Problem(problem))
                        }
                        _ => {}
                    }
                }
                // A server that does not wait as asked must not be asked in a hot loop.
                if granted.leases.is_empty() && took < FIRST_WAIT {
                    self.not_before = Instant::now() + FIRST_WAIT;
                }
                granted.leases.into_iter().for_each(|lease| self.begin(lease));
            }
            // It may be a report that is refused: alone, each is told what is wrong with it.
            Err(err) if !err.passes() && !riders.is_empty() => {
                print_error(format_args!("{err}; reporting {} results on their own", riders.len()));
                for report in riders {
                    self.post(report);
                }
            }
            Err(err) => {
                self.riders.splice(0..0, riders);
                if self.met && err.passes() {
                    print_error(format_args!("{err}; trying again in {}", show::took(self.wait)));
                    self.not_before = Instant::now() + self.wait;
                    self.wait = (self.wait * 2).min(LAST_WAIT);
                } else {
                    self.failure.get_or_insert(err.into());
                    self.stopping = true;
                }
            }
        }
    }

    /// The reports that rode with the request that is over.
    fn landed(&mut self) -> Vec<Report> {
        Arc::unwrap_or_clone(mem::take(&mut self.riding))
    }

    fn begin(&mut self, lease: Lease) {
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
                ReportResult::failed(message)
            }
        };
        self.tell(&lease, &outcome, took)?;
        let (id, job_type, token) =
            (lease.job.id.clone(), lease.job.r#type.clone(), lease.token.clone());
        self.report(Report {
            id,
            r#type: job_type,
            token,
            body: Body { attempt: lease.attempt, outcome },
        });
        Ok(())
    }

    /// Tells people on standard error, programs on standard output.
    fn tell(&self, lease: &Lease, outcome: &ReportResult, took: Duration) -> io::Result<()> {
        let status = if outcome.status == Status::Succeeded { "succeeded" } else { "failed" };
        if self.ctx.json() {
            let (id, job_type, attempt) = (&lease.job.id, &lease.job.r#type, lease.attempt);
            let line = serde_json::json!({"id": id, "type": job_type, "attempt": attempt, "status": status,
                "message": outcome.message, "seconds": took.as_secs_f64()});
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
            show::took(took)
        ));
        Ok(())
    }

    /// Sends a report with the next lease request, or on its own.
    fn report(&mut self, report: Report) {
        let bytes = |report: &Report| {
            report.body.outcome.result.as_ref().map_or(0, |result| result.get().len())
        };
        let riding: usize = self.riders.iter().map(bytes).sum();
        let rides = !self.stopping && self.poll.is_empty() && self.room() > 0;
        if rides && self.riders.len() < RIDERS && riding + bytes(&report) <= RIDER_BYTES {
            self.riders.push(report);
        } else {
            self.post(report);
        }
    }

    fn post(&mut self, report: Report) {
        let (client, kill) = (self.client.clone(), self.kill.subscribe());
        self.posts.spawn(post(client, report, kill));
    }

    /// A report that the server did not take while it took the request.
    fn refused(&mut self, report: Report, err: &Error) {
        if let Some(instead) = instead(report, err) {
            self.post(instead);
        }
    }

    fn stop(&mut self) {
        if self.stopping {
            print_error("killing what runs");
            self.code = ExitCode::Refused;
            self.kill.send_replace(true);
            // Whoever kills does not wait for a long poll. Its reports are told again, which does no harm.
            self.poll = JoinSet::new();
            let riders = self.landed();
            self.riders.extend(riders);
        } else {
            self.stopping = true;
            print_error(format_args!(
                "stopping when {} running jobs have finished; once more kills them",
                self.attempts.len()
            ));
        }
    }
}

/// Reports an outcome on its own, through a server that is away for a while; false if it was given up.
async fn post(client: Client, mut report: Report, kill: watch::Receiver<bool>) -> bool {
    let until = Instant::now() + REPORTING;
    let mut wait = FIRST_WAIT;
    loop {
        let request = client
            .post(&["jobs", &report.r#type, &report.id])
            .token(&report.token)
            .json(&report.body);
        let Err(err) = request.send().await else {
            return true;
        };
        if !err.passes() {
            match instead(report, &err) {
                Some(other) => report = other,
                None => return true,
            }
        } else if *kill.borrow() || Instant::now() >= until {
            print_error(format_args!("[{}] its report is given up: {err}", report.id));
            return false;
        } else {
            pause(wait).await;
            wait = (wait * 2).min(LAST_WAIT);
        }
    }
}

/// What to report instead of a report that was refused: a job must not hang because its result is too
/// large, say. `None` when the attempt is over anyway, or nothing better is left to say.
fn instead(report: Report, err: &Error) -> Option<Report> {
    print_error(format_args!("[{}] its report was refused: {err}", report.id));
    let over = matches!(err, Error::Problem(problem) if matches!(problem.status, 404 | 409 | 410));
    if over || report.body.outcome.status == Status::Failed {
        return None;
    }
    let outcome = ReportResult {
        retryable: Some(false),
        ..ReportResult::failed(format!("the result was refused: {err}"))
    };
    Some(Report { body: Body { outcome, ..report.body }, ..report })
}

/// Follows how many workers the plan's queues ask for, between 1 and its most.
async fn follow_demand(client: Client, plan: Arc<WorkPlan>, want: watch::Sender<usize>) {
    loop {
        match demand(&client, &plan).await {
            Ok(desired) => {
                // One stays, so that the queue learns that somebody asks.
                let desired =
                    usize::try_from(desired).unwrap_or(usize::MAX).clamp(1, plan.concurrency);
                want.send_if_modified(|wanted| mem::replace(wanted, desired) != desired);
            }
            Err(err) => {
                print_error(format_args!("how many workers are asked for is unknown: {err}"))
            }
        }
        pause(plan.look).await;
    }
}

/// How many workers the plan's queue asks for, or those that its types wait in.
async fn demand(client: &Client, plan: &WorkPlan) -> Result<u64, Error> {
    let mut queues: BTreeSet<String> = plan.queue.iter().cloned().collect();
    if queues.is_empty() {
        for name in &plan.types {
            queues.insert(client.get(&["job-types", name]).send().await?.read::<JobType>()?.queue);
        }
    }
    let mut desired = 0;
    for queue in &queues {
        let found = client.get(&["queues", queue]).send().await?.read::<Queue>()?;
        desired += found.status.map_or(1, |status| status.desired_workers);
    }
    Ok(desired)
}
