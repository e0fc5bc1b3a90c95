//! Leases of the serverless mode.
//!
//! A call *looks* at each queue: it ticks it once, claims what is due, and gives way if another
//! process writes the ledger at the same time. If there is nothing for it and it waits, or if it
//! gave way, it posts a *demand*, and reads only the answer: a tick offers it granted jobs, or an
//! enqueue has it look again. The version of the ledger keeps the limit, whichever process ticks.
//!
//! If the response has a byte bound, jobs are claimed only while their bodies fit: a claimed job
//! that does not fit would run until its lease ends.

use std::time::Duration;

use super::{
    super::{
        Server, deliver,
        lease::QueueSelection,
        workers::{Presence, is_drained},
    },
    Serverless,
    demands::{MAX_RELEASES, MAX_WOKEN, Posted},
};
use tidegate_core::{
    job::{Job, JobId, QueueName, TypeName, Version},
    port::Work,
    time::Timestamp,
};
use tidegate_engine::{
    ByteBudget, Claimed, CountedBytes, Demand, Dispatch, Error, TickInput,
    request::{LeaseRequest, Leased, Report},
};

/// Bytes of a bounded response that the answer to one report takes.
const REPORT_ANSWER_BYTES: usize = 480;
/// How long a call leaves a queue to others after it gave way to them.
const CONTENTION: Duration = Duration::from_secs(30);
/// How long a call that gave way waits at least for an offer.
const MIN_CONTENDED_WAIT: Duration = Duration::from_secs(1);
/// How often refused claims are repeated at once.
const MAX_REPEATS: usize = 4;
/// Demands of a call at most. It looks at further queues more often.
const MAX_DEMANDS: usize = 16;
/// The time between two looks of a call that has a demand there, and of one that has none.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
const LOOK_INTERVAL_WITHOUT_DEMAND: Duration = Duration::from_secs(1);
/// The shortest time between two looks; it doubles this often.
const MIN_LOOK_INTERVAL: Duration = Duration::from_millis(50);
const MAX_LOOK_DOUBLINGS: u32 = 5;
/// The wait before the first read of the answers, while others serve the queue and while nothing is
/// due. It grows up to [`MAX_READ_DELAY`].
const FIRST_READ_DELAY: Duration = Duration::from_millis(40);
const FIRST_IDLE_READ_DELAY: Duration = Duration::from_millis(400);
const MAX_READ_DELAY: Duration = Duration::from_secs(1);
const CONTENDED_GROWTH: f64 = 1.08;
const IDLE_GROWTH: f64 = 1.5;

/// The first pause of a worker without jobs. It grows by the part of the time without jobs.
const MIN_PAUSE: Duration = Duration::from_secs(1);
const IDLE_PER_PAUSE: u32 = 4;

/// What the lease calls of this process have seen of a queue.
#[derive(Clone, Copy, Default)]
pub(super) struct SeenQueue {
    /// Until then, calls leave its ticks to others.
    contended_until: Option<Timestamp>,
    /// Since when no call has got a job.
    idle_since: Option<Timestamp>,
}

impl Serverless {
    fn seen(&self, queue: &QueueName) -> SeenQueue {
        self.seen.lock().get(queue).copied().unwrap_or_default()
    }

    fn note(&self, queue: &QueueName, change: impl FnOnce(&mut SeenQueue)) {
        change(self.seen.lock().entry(queue.clone()).or_default());
    }
}

/// A queue of a call.
struct CalledQueue {
    name: QueueName,
    types: Option<Vec<TypeName>>,
    /// Jobs whose reports released a slot that no tick knows of.
    freed: Vec<(JobId, Version)>,
    /// When to tick it; none: a tick of others is awaited.
    look_at: Option<Timestamp>,
    posted: Option<Posted>,
    /// Whether the worker gets no jobs of it.
    closed: bool,
    /// Whether its ticks are left to others, except after a long wait.
    is_left: bool,
    looks: u32,
    /// When the next job may start, as far as a tick has seen.
    next_start_at: Option<Timestamp>,
}

/// What a tick of a call did.
#[derive(Default)]
struct Look {
    jobs: Vec<Job>,
    /// Whether others wrote the ledger.
    lost: bool,
    /// Whether claims were refused, or a scan goes on.
    again: bool,
    next_start_at: Option<Timestamp>,
    closed: bool,
}

/// A lease call.
struct LeaseCall<'a> {
    server: &'a Server,
    serverless: &'a Serverless,
    request: &'a LeaseRequest,
    queues: Vec<CalledQueue>,
    until: Timestamp,
    place: u16,
    space: Option<ByteBudget>,
    jobs: Vec<Job>,
}

impl Server {
    /// Settles reports of jobs of one queue, and adds their follow-up messages to the outbox.
    pub(crate) async fn settle_serverless(
        &self,
        queue: &QueueName,
        reports: Vec<Report>,
    ) -> Vec<Result<Job, Error>> {
        let Some(serverless) = &self.inner.serverless else {
            return Vec::new();
        };
        let count = reports.len();
        let ticked = match self.engine().report(queue, reports).await {
            Ok(ticked) => ticked,
            Err(error) => return (0..count).map(|_| Err(error.clone())).collect(),
        };
        crate::telemetry::metrics::settled(queue.as_str(), &ticked);
        ticked
            .settled()
            .filter(|job| job.life.ended().is_some())
            .for_each(crate::telemetry::metrics::job_finished);
        for job in ticked.reports.iter().flatten() {
            let Some((_, version)) = ticked.left.iter().find(|(id, _)| *id == job.id) else {
                continue;
            };
            serverless.outbox.job_changed(job, Some(*version));
            if job.life.ended().is_some() {
                self.inner.on_job_finished(job);
            }
        }
        ticked.reports
    }

    /// Leases from `selections` until there is a job, the worker leaves this process, or `until`.
    /// The reports are settled first, and the tick that leases reuses what they released.
    pub(crate) async fn lease_serverless(
        &self,
        selections: Vec<QueueSelection>,
        request: LeaseRequest,
        until: Timestamp,
        mut presence: Presence,
    ) -> Result<Leased, Error> {
        let before: Vec<(JobId, Version)> = self.versions(&request.reports).await?;
        let reports = Box::pin(self.report(request.reports.clone())).await;
        let serverless = self.inner.serverless.as_ref().expect("only a serverless server leases");
        if request.max == 0 {
            return Ok(Leased { jobs: Vec::new(), reports, pause: None });
        }
        let mut freed = left_versions(&before, reports.iter().flatten());
        freed.truncate(MAX_RELEASES);
        serverless.outbox.take_released(&freed);
        let most = self
            .inner
            .options
            .answer_bytes
            .map(|bytes| bytes.saturating_sub(REPORT_ANSWER_BYTES * reports.len()));
        let counts = CountedBytes::Shown;
        let now = self.now();
        let queue = |(name, types): QueueSelection| CalledQueue {
            freed: freed.extract_if(.., |(of, _)| *of == name).map(|(_, left)| left).collect(),
            look_at: Some(now),
            posted: None,
            closed: false,
            is_left: false,
            looks: 0,
            next_start_at: None,
            name,
            types,
        };
        let queues = selections.into_iter().map(queue).collect();
        for (queue, left) in freed {
            serverless.outbox.released(&queue, &[left]);
        }
        let mut call = LeaseCall {
            server: self,
            serverless,
            request: &request,
            queues,
            until: if request.max_pause.is_zero() { until } else { now },
            place: serverless.places.take(),
            space: most.map(|most| ByteBudget { left: most, most, counts }),
            jobs: Vec::new(),
        };
        let ended = call.run(&mut presence).await;
        call.finish().await;
        let pause = call.pause();
        serverless.places.free(call.place);
        let jobs = call.jobs;
        if jobs.is_empty() {
            ended?;
        }
        Ok(Leased { jobs: self.loaded(jobs).await, reports, pause })
    }

    /// Leaves `count` free slots of `queue` to others.
    async fn leave_slots(&self, queue: &QueueName, count: usize) {
        let engine = self.engine();
        let woken = async {
            let catalog = engine.known_catalog().await?;
            if catalog.types_of(queue).any(|(_, item)| engine.is_pushed(&item.config)) {
                return Ok(false);
            }
            let board = self.board(queue, MAX_WOKEN).await?;
            if !board.is_served {
                self.wake_up(&board, count, self.now()).await?;
            }
            Ok::<_, Error>(true)
        };
        if !woken.await.unwrap_or(false) {
            self.inner.wake(queue);
        }
    }

    /// The versions at which the jobs of `reports` run.
    async fn versions(&self, reports: &[Report]) -> Result<Vec<(JobId, Version)>, Error> {
        if reports.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<JobId> = reports.iter().map(|report| report.id.clone()).collect();
        let jobs = self.engine().cached_jobs(&ids).await?;
        Ok(jobs
            .into_iter()
            .flatten()
            .flatten()
            .filter(|job| job.life.running().is_some())
            .map(|job| (job.id, job.life.version))
            .collect())
    }

    /// The jobs with their bodies. One whose body cannot be read ends its attempt at once.
    async fn loaded(&self, jobs: Vec<Job>) -> Vec<Job> {
        let mut whole = Vec::with_capacity(jobs.len());
        let mut failed = Vec::new();
        for (job, loaded) in jobs.iter().zip(self.engine().load_each(jobs.clone()).await) {
            match loaded {
                Ok(job) => whole.push(job),
                Err(error) => {
                    failed.push(deliver::not_delivered(job, error.to_string(), true));
                }
            }
        }
        if !failed.is_empty() {
            Box::pin(self.report(failed)).await;
        }
        whole
    }
}

impl LeaseCall<'_> {
    /// Looks and waits until the call is over.
    async fn run(&mut self, presence: &mut Presence) -> Result<(), Error> {
        // A call that finds nothing is likely to find nothing again: what comes meanwhile wakes it.
        let now = self.server.now();
        let is_idle = |queue: &CalledQueue| {
            self.serverless.seen(&queue.name).idle_since.is_some() && self.until > now
        };
        if self.queues.iter().all(is_idle) {
            self.post_demands().await?;
        }
        let mut delay = None;
        loop {
            self.look().await?;
            if self.is_over(presence) {
                return Ok(());
            }
            self.post_demands().await?;
            let now = self.server.now();
            let look_at = self.queues.iter().filter_map(|queue| queue.look_at).min();
            if look_at.is_some_and(|at| at <= now) {
                continue;
            }
            let (first, growth) = if self.queues.iter().any(|queue| self.is_contended(queue)) {
                (FIRST_READ_DELAY, CONTENDED_GROWTH)
            } else {
                (FIRST_IDLE_READ_DELAY, IDLE_GROWTH)
            };
            let next = delay.map_or(first, |delay: Duration| delay.mul_f64(growth));
            delay = Some(next.min(MAX_READ_DELAY));
            let read_at = now + self.spread(next.min(MAX_READ_DELAY)).mul_f64(4.0 / 3.0);
            let wake_at = look_at.into_iter().chain([read_at, self.until]).min();
            tokio::select! {
                () = self.server.engine().ports().clock.sleep_until(wake_at.unwrap_or(now)) => {}
                () = presence.left() => {}
            }
            self.read_answers().await?;
            if self.is_over(presence) {
                return Ok(());
            }
        }
    }

    fn is_over(&self, presence: &Presence) -> bool {
        !self.jobs.is_empty() || self.server.now() >= self.until || presence.has_left()
    }

    fn is_contended(&self, queue: &CalledQueue) -> bool {
        let until = self.serverless.seen(&queue.name).contended_until;
        until.is_some_and(|until| self.server.now() < until)
    }

    fn room(&self) -> u32 {
        self.request.max - self.jobs.len() as u32
    }

    /// Ticks the queues whose time has come, in turn.
    async fn look(&mut self) -> Result<(), Error> {
        // A queue that fails keeps no worker from the others.
        let (mut failed, mut looked, mut failure) = (0, 0, None);
        for index in 0..self.queues.len() {
            let now = self.server.now();
            let queue = &self.queues[index];
            if self.room() == 0 || queue.look_at.is_none_or(|at| at > now) {
                continue;
            }
            if !queue.is_left && self.is_contended(queue) {
                let look_at = now + self.spread(LOOK_INTERVAL);
                let queue = &mut self.queues[index];
                (queue.is_left, queue.look_at) = (true, Some(look_at));
                self.until = self.until.max(now + MIN_CONTENDED_WAIT);
                continue;
            }
            looked += 1;
            match self.look_at(index).await {
                Ok(()) => {}
                Err(error) => {
                    let queue = &mut self.queues[index];
                    tracing::warn!(queue = %queue.name, %error, "a tick for a lease failed");
                    queue.look_at = Some(self.server.now() + LOOK_INTERVAL_WITHOUT_DEMAND);
                    failed += 1;
                    failure = Some(error);
                }
            }
        }
        match failure.filter(|_| failed == looked && failed == self.queues.len()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Ticks the queue at `index`, and sets when to do it again.
    async fn look_at(&mut self, index: usize) -> Result<(), Error> {
        for repeat in 1.. {
            let released = std::mem::take(&mut self.queues[index].freed);
            let freed = released.len();
            let ticked = self.tick(&self.queues[index], released.clone()).await;
            let queue = &mut self.queues[index];
            let look = match ticked {
                Ok(look) => look,
                Err(error) => {
                    queue.freed = released;
                    return Err(error);
                }
            };
            let now = self.server.now();
            queue.closed = look.closed;
            if look.lost {
                queue.freed = released;
                self.serverless
                    .note(&queue.name, |seen| seen.contended_until = Some(now + CONTENTION));
                self.until = self.until.max(now + MIN_CONTENDED_WAIT);
                queue.is_left = true;
            }
            let again = look.again && !look.lost;
            let unused = if look.lost { 0 } else { freed.saturating_sub(look.jobs.len()) };
            self.take(look.jobs);
            if unused > 0 {
                self.server.leave_slots(&self.queues[index].name, unused).await;
            }
            if again && self.jobs.is_empty() && repeat < MAX_REPEATS {
                continue;
            }
            let now = self.server.now();
            let posts = self.queues.iter().filter(|queue| queue.posted.is_some()).count();
            let can_post = posts < MAX_DEMANDS && self.until > now + MIN_CONTENDED_WAIT / 2;
            let queue = &self.queues[index];
            let interval = if queue.posted.is_some() || look.lost {
                self.spread(LOOK_INTERVAL)
            } else if queue.closed || !can_post {
                self.spread(LOOK_INTERVAL_WITHOUT_DEMAND)
            } else {
                // Once more after the demand is posted: for jobs that came before it.
                Duration::ZERO
            };
            let queue = &mut self.queues[index];
            queue.looks += 1;
            let least = MIN_LOOK_INTERVAL * 2u32.pow(queue.looks.min(MAX_LOOK_DOUBLINGS));
            let next = look.next_start_at.map(|at| at.max(now + least));
            queue.next_start_at = look.next_start_at;
            queue.look_at = Some(now + interval).into_iter().chain(next).min();
            break;
        }
        Ok(())
    }

    /// Half of `interval`, and a random part of the other half.
    fn spread(&self, interval: Duration) -> Duration {
        interval.mul_f64(0.5 + self.server.engine().ports().entropy.fraction() / 2.0)
    }

    /// Takes claimed jobs.
    fn take(&mut self, jobs: Vec<Job>) {
        self.space = self.space.map(|space| {
            jobs.iter().fold(space, |space, job| {
                space.after(job).unwrap_or(ByteBudget { left: 0, ..space })
            })
        });
        self.jobs.extend(jobs);
    }

    /// The demand of the call for jobs of `queue`; none if the worker gets none of it.
    async fn demand(&self, queue: &CalledQueue) -> Result<Option<Demand>, Error> {
        // The call has just read it, and a tick decides under the current one.
        let engine = self.server.engine();
        let catalog = engine.known_catalog().await?;
        if is_drained(&catalog, self.request.worker.as_deref()) {
            return Ok(None);
        }
        let pulled = catalog
            .types_of(&queue.name)
            .filter(|(_, item)| !engine.is_pushed(&item.config))
            .map(|(name, _)| name.clone());
        let types = pulled
            .filter(|name| queue.types.as_ref().is_none_or(|types| types.contains(name)))
            .collect::<Vec<TypeName>>();
        Ok((!types.is_empty()).then(|| Demand {
            types,
            capacity: self.room(),
            worker: self.request.worker.clone(),
            lease: self.request.lease_seconds,
            dispatch: Dispatch::Claim,
        }))
    }

    /// Ticks a queue once for the call.
    async fn tick(
        &self,
        queue: &CalledQueue,
        released: Vec<(JobId, Version)>,
    ) -> Result<Look, Error> {
        let (server, name) = (self.server, &queue.name);
        // The worker may be drained by now.
        server.engine().catalog().await?;
        let Some(demand) = self.demand(queue).await? else {
            self.serverless.outbox.released(name, &released);
            return Ok(Look { closed: true, ..Look::default() });
        };
        let (began, mut cache) = (server.now(), self.serverless.take_cache(name));
        let queue_changed = !released.is_empty();
        let input = TickInput {
            released,
            demands: vec![demand],
            queue_changed,
            byte_budget: self.space,
            yields: true,
            ..TickInput::default()
        };
        let ticked = server.engine().tick(name, &mut cache, input).await;
        self.serverless.keep_cache(name, cache);
        let mut ticked = ticked?;
        if let Err(error) = server.follow(name, &mut ticked, began).await {
            // The claimed jobs must be returned whatever else fails.
            tracing::warn!(
                queue = %name,
                %error,
                "the follow-up of a lease failed; the maintenance sweep repairs it"
            );
        }
        Ok(Look {
            jobs: ticked.claimed.into_iter().map(|claimed| claimed.job).collect(),
            lost: ticked.lost,
            again: ticked.again,
            next_start_at: ticked.next_start_at,
            closed: false,
        })
    }

    /// Posts a demand in each queue that has none. If others tick the queue, they are sent a hint,
    /// unless one of them serves it.
    async fn post_demands(&mut self) -> Result<(), Error> {
        let mut hinted = false;
        for index in 0..self.queues.len() {
            let queue = &self.queues[index];
            let posted = self.queues.iter().filter(|queue| queue.posted.is_some()).count();
            let is_late = self.until <= self.server.now() + MIN_CONTENDED_WAIT / 2;
            if queue.posted.is_some() || queue.closed || posted >= MAX_DEMANDS || is_late {
                continue;
            }
            let contended = self.is_contended(queue);
            let Some(demand) = self.demand(queue).await? else { continue };
            let bytes = self.space.map(|space| space.left);
            let released = queue.freed.clone();
            let name = queue.name.clone();
            let post =
                self.server.post_demand(&name, self.place, &demand, bytes, released, self.until);
            let posted = post.await?;
            self.queues[index].posted = Some(posted);
            if contended && !self.server.is_served(&name).await? {
                self.serverless.outbox.queue_due(&name);
                hinted = true;
            }
        }
        if hinted {
            // If it fails, the next flush repeats it.
            let _ = self.server.flush().await;
        }
        Ok(())
    }

    /// Reads the answers to the demands, and claims what was offered.
    async fn read_answers(&mut self) -> Result<(), Error> {
        let mut posted: Vec<&mut Posted> =
            self.queues.iter_mut().filter_map(|queue| queue.posted.as_mut()).collect();
        if posted.is_empty() {
            return Ok(());
        }
        let answers = self.server.answers(&mut posted).await?;
        let indices: Vec<usize> =
            (0..self.queues.len()).filter(|index| self.queues[*index].posted.is_some()).collect();
        for (index, answer) in indices.into_iter().zip(answers) {
            let now = self.server.now();
            let queue = &mut self.queues[index];
            queue.look_at = queue.look_at.into_iter().chain(answer.look_at).min();
            if !answer.offers.is_empty() {
                // Its releases are known: a tick has answered it.
                queue.freed.clear();
                let name = queue.name.clone();
                if !answer.is_lost {
                    queue.posted = None;
                }
                self.serverless.note(&name, |seen| {
                    seen.contended_until = seen.contended_until.map(|_| now + CONTENTION);
                });
                self.claim(index, answer.offers).await?;
            } else if answer.is_lost
                && now < self.until
                && let Some(posted) = &queue.posted
            {
                self.server.post_again(posted).await?;
            }
        }
        Ok(())
    }

    /// Claims offered jobs, as many as fit. The others are given back.
    async fn claim(&mut self, index: usize, mut offers: Vec<Work>) -> Result<(), Error> {
        let queue = &self.queues[index];
        let mut left = self.space.map_or(usize::MAX, |space| space.left);
        let mut room = self.room() as usize;
        let is_first = self.jobs.is_empty();
        let mut fits = |work: &Work, is_first: bool| {
            let bytes = work.data_bytes as usize;
            let fits = room > 0 && (bytes <= left || is_first);
            if fits {
                (room, left) = (room - 1, left.saturating_sub(bytes));
            }
            fits
        };
        let mut number = 0;
        let mut declined: Vec<Work> = offers
            .extract_if(.., |work| {
                number += 1;
                !fits(work, is_first && number == 1)
            })
            .collect();
        let name = queue.name.clone();
        if let Some(demand) = self.demand(queue).await? {
            let claimed = self.server.engine().claim_offers(&offers, &demand).await?;
            self.take(claimed.into_iter().flatten().map(|Claimed { job, .. }| job).collect());
        } else {
            declined.append(&mut offers);
        }
        if !declined.is_empty() {
            for (job, version) in self.server.engine().decline(&declined).await? {
                self.serverless.outbox.job_changed(&job, Some(version));
            }
            self.serverless.outbox.queue_due(&name);
        }
        Ok(())
    }

    /// How long the worker pauses before its next call: the longer, the longer its queues have had
    /// nothing for the workers that call here. It ends no later than a job may start.
    fn pause(&self) -> Option<Duration> {
        let longest = self.request.max_pause;
        if longest.is_zero() || !self.jobs.is_empty() {
            return None;
        }
        let now = self.server.now();
        let idle_since = |queue: &CalledQueue| self.serverless.seen(&queue.name).idle_since;
        let idle =
            self.queues.iter().map(|queue| now.since(idle_since(queue).unwrap_or(now))).min();
        let next = self.queues.iter().filter_map(|queue| queue.next_start_at).min();
        let pause = (idle.unwrap_or_default() / IDLE_PER_PAUSE).max(MIN_PAUSE).min(longest);
        Some(next.map_or(pause, |at| pause.min(now.max(at).since(now).max(MIN_PAUSE.min(longest)))))
    }

    /// Leaves to others what the call did not take.
    async fn finish(&mut self) {
        let (now, idle) = (self.server.now(), self.jobs.is_empty());
        for queue in &mut self.queues {
            self.serverless.outbox.released(&queue.name, &queue.freed);
            self.serverless.note(&queue.name, |seen| {
                seen.idle_since = if idle { seen.idle_since.or(Some(now)) } else { None };
            });
        }
        let open: Vec<&Posted> = self
            .queues
            .iter()
            .filter_map(|queue| queue.posted.as_ref())
            .filter(|_| now < self.until)
            .collect();
        if let Err(error) = self.server.withdraw(&open).await {
            // What it is offered now is revoked after a while.
            tracing::debug!(%error, "the demands of a lease call were not withdrawn");
        }
    }
}

/// The versions of `before` that jobs left, each with the queue of its job.
fn left_versions<'a>(
    before: &[(JobId, Version)],
    after: impl Iterator<Item = &'a Job>,
) -> Vec<(QueueName, (JobId, Version))> {
    let left = |job: &Job| {
        before.iter().find(|(id, version)| *id == job.id && job.life.version > *version).cloned()
    };
    after.filter_map(|job| Some((job.spec.queue.clone(), left(job)?))).collect()
}
