//! The ticks of a lease call: when it looks at which queue, and how long it waits.

use std::time::Duration;

use super::{
    super::super::workers::{Presence, is_drained},
    CONTENTION, CalledQueue, LeaseCall, MAX_DEMANDS, MIN_CONTENDED_WAIT,
};
use tidegate_core::{
    job::{Job, JobId, TypeName, Version},
    time::Timestamp,
};
use tidegate_engine::{ByteBudget, Demand, Dispatch, Error, TickInput};

/// How often refused claims are repeated at once.
const MAX_REPEATS: usize = 4;
/// The time between two looks of a call that has a demand there, and of one that has none.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
const LOOK_INTERVAL_WITHOUT_DEMAND: Duration = Duration::from_secs(1);
/// The shortest time between two looks; it doubles this often.
const MIN_LOOK_INTERVAL: Duration = Duration::from_millis(50);
const MAX_LOOK_DOUBLINGS: u32 = 5;
/// How often a call for several jobs looks at its end, if others write the ledger meanwhile.
const MAX_LAST_LOOKS: u32 = 5;
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

impl LeaseCall<'_> {
    /// Looks and waits until the call is over. A call for several jobs takes what is there at its
    /// end.
    pub(super) async fn run(&mut self, presence: &mut Presence) -> Result<(), Error> {
        self.look_and_wait(presence).await?;
        if self.gathers() {
            self.takes_any = true;
            for repeat in 0..MAX_LAST_LOOKS {
                if !self.jobs.is_empty() || presence.has_left() {
                    break;
                }
                if repeat > 0 {
                    let clock = &self.server.engine().ports().clock;
                    let delay = self.spread(MIN_LOOK_INTERVAL * 2u32.pow(repeat));
                    clock.sleep_until(self.server.now() + delay).await;
                }
                let now = self.server.now();
                for queue in &mut self.queues {
                    (queue.look_at, queue.is_left) = (Some(now), false);
                }
                self.look().await?;
                // Others wrote the ledger meanwhile, so what is there was not seen.
                if !self.queues.iter().any(|queue| queue.is_left) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Whether it waits for several jobs. It posts no demand then: what others offered it would be
    /// granted while it waits for the rest.
    pub(super) fn gathers(&self) -> bool {
        self.request.min > 1
    }

    async fn look_and_wait(&mut self, presence: &mut Presence) -> Result<(), Error> {
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

    pub(super) fn is_contended(&self, queue: &CalledQueue) -> bool {
        let until = self.serverless.seen(&queue.name).contended_until;
        until.is_some_and(|until| self.server.now() < until)
    }

    pub(super) fn room(&self) -> u32 {
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
            if !queue.is_left && !self.gathers() && self.is_contended(queue) {
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
            let can_post =
                !self.gathers() && posts < MAX_DEMANDS && self.until > now + MIN_CONTENDED_WAIT / 2;
            let queue = &self.queues[index];
            let interval = if queue.posted.is_some() || (look.lost && !self.gathers()) {
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
    pub(super) fn take(&mut self, jobs: Vec<Job>) {
        self.space = self.space.map(|space| {
            jobs.iter().fold(space, |space, job| {
                space.after(job).unwrap_or(ByteBudget { left: 0, ..space })
            })
        });
        self.jobs.extend(jobs);
    }

    /// The demand of the call for jobs of `queue`; none if the worker gets none of it.
    pub(super) async fn demand(&self, queue: &CalledQueue) -> Result<Option<Demand>, Error> {
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
            min: if self.takes_any { 0 } else { self.request.min },
            worker: self.request.worker.clone(),
            lease: self.request.lease_seconds,
            dispatch: Dispatch::Claim,
            call: self.request.call.clone(),
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

    /// How long the worker pauses before its next call: the longer, the longer its queues have had
    /// nothing for the workers that call here. It ends no later than a job may start.
    pub(super) fn pause(&self) -> Option<Duration> {
        let longest = self.request.max_pause;
        if longest.is_zero() || !self.jobs.is_empty() || self.gathers() {
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
}
