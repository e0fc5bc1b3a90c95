//! Ticks of a queue after a hint or a timer. They dispatch pushed jobs, and offer pulled ones to the
//! lease calls that wait.
//!
//! If several calls wait, a tick *serves* them for a while: it reads new demands and ticks again,
//! with the ledger in memory and no other process in its way. Meanwhile no call needs to send a
//! hint.

use std::{
    collections::{BTreeSet, HashSet},
    mem,
    time::Duration,
};

use super::{
    super::Server,
    LatestTick, NEAR, Serverless,
    demands::{Board, MAX_WAITING, WaitingDemand},
    outbox::shared_instant,
};
use tidegate_core::{
    job::{JobId, QueueName, TypeName, Version},
    port::HintKind,
    queue::{GrantDigest, Rule},
    time::Timestamp,
};
use tidegate_engine::{Catalog, Demand, Dispatch, Error, Stop, TickCache, TickInput, TickOutcome};

/// Most jobs that one tick dispatches.
const MAX_DISPATCHED: u32 = 1000;
/// Most ticks of a queue in one invocation that serves no demands; a hint continues them.
const MAX_TICKS: usize = 64;
/// The time from a tick to the next one that a hint requests. What happens meanwhile shares a tick:
/// its writes of the ledger are most of what a job of a busy queue would cost.
const TICK_INTERVAL: Duration = Duration::from_millis(500);
/// The same while a rule holds due jobs, so that a free slot is used soon.
const HELD_TICK_INTERVAL: Duration = Duration::from_millis(100);
/// The same while due jobs wait for rates only: until the next of them may start, if that is so soon.
/// A timer is late by its rounding and its way, and a rate loses what its ticks are late.
const PACED_TICK_INTERVAL: Duration = Duration::from_secs(1);
/// How long before that instant such a tick begins: about as long as it reads before it decides.
const PACED_LEAD: Duration = Duration::from_millis(40);
/// How far back a hint about an unlimited queue scans for undispatched jobs.
const HINT_LOOKBACK: Duration = Duration::from_secs(5);
/// New demands in one tick that show that more will follow soon.
const SERVED_FROM: usize = 2;
/// How long a tick waits for further demands.
const LINGER: Duration = Duration::from_millis(400);
/// The time between two reads of the demands.
const SERVICE_INTERVAL: Duration = Duration::from_millis(10);
/// The longest time between two ticks while demands wait.
const REFRESH: Duration = Duration::from_millis(200);
/// How long a service is shown at a time.
const SERVICE_SHOWN: Duration = Duration::from_secs(3);
/// How long an invocation serves demands at most; a hint continues it. Hints of the queue wait
/// meanwhile.
const MAX_SERVICE: Duration = Duration::from_secs(20);
/// The same for a queue with pushed jobs, whose hints release slots.
const MAX_MIXED_SERVICE: Duration = Duration::from_secs(1);

/// The ticks of one invocation on a queue with a ledger.
struct Ticks<'a> {
    server: &'a Server,
    queue: &'a QueueName,
    cache: &'a mut TickCache,
    /// Whether it may stay to serve demands.
    serves: bool,
    /// Hints for the next tick.
    released: Vec<(JobId, Version)>,
    /// Hints for all ticks, each by the digest of a grant.
    released_digests: BTreeSet<GrantDigest>,
    /// The rules that held due jobs in the latest tick.
    held: BTreeSet<Rule>,
    /// When the next job may start, as the latest tick has seen it.
    next_start_at: Option<Timestamp>,
    /// The calls whose demands a tick has seen.
    seen: HashSet<String>,
    /// Whether a scan is in progress.
    again: bool,
    next_at: Option<Timestamp>,
    count: usize,
    /// Until when others know that it serves the demands.
    shown: Option<Timestamp>,
}

impl Server {
    /// Ticks `queue` for its `hints` until nothing is due, or until `until`. Without hints, the time
    /// of a tick has come.
    ///
    /// # Errors
    ///
    /// The store's and the work queue's: the hints must be delivered again.
    pub async fn tick_queue(
        &self,
        queue: &QueueName,
        hints: Vec<HintKind>,
        until: Timestamp,
    ) -> Result<(), Error> {
        self.tick_for(queue, hints, until, true).await
    }

    /// Ticks `queue` at a timer's instant, unless this process has ticked it since.
    ///
    /// # Errors
    ///
    /// As [`Self::tick_queue`].
    pub async fn tick_queue_at(
        &self,
        queue: &QueueName,
        at: Timestamp,
        until: Timestamp,
    ) -> Result<(), Error> {
        let ticked = |serverless: &Serverless| serverless.latest_tick(queue).began >= at;
        if self.inner.serverless.as_ref().is_some_and(ticked) {
            return Ok(());
        }
        self.tick_queue(queue, Vec::new(), until).await
    }

    /// The same; `serves` is whether it may stay to serve demands.
    pub(super) async fn tick_for(
        &self,
        queue: &QueueName,
        hints: Vec<HintKind>,
        until: Timestamp,
        serves: bool,
    ) -> Result<(), Error> {
        let Some(serverless) = &self.inner.serverless else {
            return Ok(());
        };
        self.inner.refresh_recording_rules().await?;
        let is_time = hints.is_empty();
        let (mut released, mut undecided, mut due) = (Vec::new(), Vec::new(), false);
        for hint in hints {
            match hint {
                HintKind::Due => due = true,
                HintKind::Released(job, version) => released.push((job, version)),
                HintKind::RetryDecision(job) => undecided.push(job),
                HintKind::Operation(id) => {
                    Box::pin(self.operate(&id, until)).await?;
                }
            }
        }
        if !undecided.is_empty() {
            let jobs = self.engine().ports().store.get(&undecided).await?;
            self.decide_retries(jobs.into_iter().flatten().flatten().collect()).await?;
        }
        if self.engine().is_unlimited(queue).await? {
            if due || is_time {
                let now = self.now();
                let stop = Stop { at: until, jobs: MAX_DISPATCHED as usize };
                self.engine().dispatch(queue, now - HINT_LOOKBACK, now, stop).await?;
            }
            return Ok(());
        }
        let released_digests = if is_time {
            // What is requested has a hint of its own.
            BTreeSet::new()
        } else {
            self.await_tick(serverless, queue, until).await?;
            self.engine().ports().work.take_releases(queue).await?
        };
        let began = self.now();
        let mut cache = serverless.take_cache(queue);
        let mut ticks = Ticks {
            server: self,
            queue,
            cache: &mut cache,
            serves,
            released,
            released_digests,
            held: BTreeSet::new(),
            next_start_at: None,
            seen: HashSet::new(),
            again: true,
            next_at: None,
            count: 0,
            shown: None,
        };
        let ticked = ticks.run(until).await;
        let (is_held, paced) = (!ticks.held.is_empty(), ticks.paced_start().await?);
        if ticks.shown.is_some()
            && let Err(error) = self.show_service(queue, None).await
        {
            tracing::debug!(%queue, %error, "others take a queue for served until that expires");
        }
        serverless.keep_cache(queue, cache);
        ticked?;
        let interval = if is_held { HELD_TICK_INTERVAL } else { TICK_INTERVAL };
        let paced = paced.filter(|at| *at <= began + PACED_TICK_INTERVAL);
        let next_at = paced.map_or(began, |at| at - PACED_LEAD).max(began + interval);
        serverless.note_tick(queue, LatestTick { began, next_at });
        Ok(())
    }

    /// Waits until `queue` may tick again for a hint. Lease calls that wait for its jobs are not kept
    /// waiting: their demands are served together.
    async fn await_tick(
        &self,
        serverless: &Serverless,
        queue: &QueueName,
        until: Timestamp,
    ) -> Result<(), Error> {
        let catalog = self.engine().known_catalog().await?;
        if catalog.types_of(queue).all(|(_, item)| self.engine().is_pushed(&item.config)) {
            let next_at = serverless.latest_tick(queue).next_at.min(until);
            self.engine().ports().clock.sleep_until(next_at).await;
        }
        Ok(())
    }
}

impl Ticks<'_> {
    /// Ticks the queue until nothing is due and no demands follow.
    async fn run(&mut self, until: Timestamp) -> Result<(), Error> {
        let (server, began) = (self.server, self.server.now());
        let outbox = &server.inner.serverless.as_ref().expect("a serverless server").outbox;
        // Until when further demands are awaited.
        let (mut linger, mut ticked_at) = (None, None);
        let ended = loop {
            // Each tick reads the current one.
            let catalog = server.engine().known_catalog().await?;
            let (pushed, pulled) = self.types(&catalog);
            let board = if pulled.is_empty() {
                Board::default()
            } else {
                server.board(self.queue, MAX_WAITING).await?
            };
            let board = if let Some(served_until) = board.served_until
                && self.shown.is_none()
            {
                // Its ticks see what this one would, and two would only disturb each other.
                let has_releases = !self.released.is_empty() || !self.released_digests.is_empty();
                if pushed.is_empty() && !has_releases {
                    // If it died, this is made up for.
                    outbox.timer(self.queue, served_until);
                    return Ok(());
                }
                Board::default()
            } else {
                board
            };
            let new = self.take_new(&board);
            let now = server.now();
            let is_due = self.next_at.is_some_and(|at| at <= now);
            // While a tick serves them, no process sends a hint for a new job.
            let is_old =
                !board.waiting.is_empty() && ticked_at.is_some_and(|at| at + REFRESH <= now);
            if self.again || new > 0 || is_due || is_old || !self.released.is_empty() {
                self.tick(&pushed, &board.waiting, new > 0).await?;
                ticked_at = Some(now);
                let soon = server.now() + PACED_LEAD;
                if let Some(at) = self.paced_start().await?.filter(|at| *at <= soon)
                    && self.count == 1
                {
                    // It decided before the instant for which it began early.
                    server.engine().ports().clock.sleep_until(at).await;
                    self.again = true;
                }
                if self.serves && (new >= SERVED_FROM || (new > 0 && linger.is_some())) {
                    linger = Some(server.now() + LINGER);
                }
            }
            let now = server.now();
            let most = if pushed.is_empty() { MAX_SERVICE } else { MAX_MIXED_SERVICE };
            let serves = linger.is_some_and(|at| now < at) && now < until.min(began + most);
            if serves {
                if self.shown.is_none_or(|at| at < now + SERVICE_SHOWN / 2) {
                    self.shown = Some(now + SERVICE_SHOWN);
                    server.show_service(self.queue, self.shown).await?;
                }
                if new == 0 {
                    let pause = server.now() + SERVICE_INTERVAL;
                    server.engine().ports().clock.sleep_until(pause).await;
                }
            } else if self.shown.is_some() {
                // Demands and jobs that came before this write are seen once more.
                server.show_service(self.queue, None).await?;
                self.shown = None;
                self.again = true;
            } else if !self.again && self.released.is_empty() {
                break linger.is_none_or(|at| at <= now);
            } else if self.count >= MAX_TICKS || now >= until {
                break false;
            }
        };
        if let Some(at) = self.next_at.filter(|at| *at <= server.now() + NEAR) {
            // The next start of a rate is exact.
            outbox.timer(self.queue, if self.held.is_empty() { shared_instant(at) } else { at });
        }
        if !ended {
            // Another invocation continues.
            outbox.queue_due(self.queue);
        }
        Ok(())
    }

    /// When the next due job may start, if due jobs wait for rates only.
    async fn paced_start(&self) -> Result<Option<Timestamp>, Error> {
        if self.held.is_empty() {
            return Ok(None);
        }
        let limits = self.server.engine().known_catalog().await?.limits(self.queue);
        let is_paced = self.held.iter().all(|rule| limits.is_rate(rule));
        Ok(self.next_start_at.filter(|_| is_paced))
    }

    /// The types of the queue that are pushed, and those that are pulled.
    fn types(&self, catalog: &Catalog) -> (Vec<TypeName>, Vec<TypeName>) {
        let engine = self.server.engine();
        let types = catalog.types_of(self.queue);
        let types = types.map(|(name, item)| (name.clone(), engine.is_pushed(&item.config)));
        let (pushed, pulled): (Vec<_>, Vec<_>) = types.partition(|(_, is_pushed)| *is_pushed);
        let names = |types: Vec<(TypeName, bool)>| types.into_iter().map(|(name, _)| name);
        (names(pushed).collect(), names(pulled).collect())
    }

    /// Takes the releases of demands that were not seen yet, and returns how many there are.
    fn take_new(&mut self, board: &Board) -> usize {
        let mut new = 0;
        for waiting in &board.waiting {
            if self.seen.insert(waiting.stored.call.clone()) {
                new += 1;
                self.released.extend(waiting.stored.released.iter().cloned());
            }
        }
        new
    }

    /// Ticks once for the pushed types, and once for the demands that wait. They take turns in
    /// going first.
    async fn tick(
        &mut self,
        pushed: &[TypeName],
        waiting: &[WaitingDemand],
        is_new: bool,
    ) -> Result<(), Error> {
        self.count += 1;
        let mut kinds = vec![false];
        if !waiting.is_empty() {
            let at = if pushed.is_empty() { 0 } else { self.count % 2 };
            kinds.insert(at, true);
            kinds.retain(|offers| *offers || !pushed.is_empty());
        }
        (self.again, self.next_at, self.next_start_at) = (false, None, None);
        self.held.clear();
        let first = self.count == 1;
        for offers in kinds {
            let push = || Demand {
                min: 0,
                types: pushed.to_vec(),
                capacity: MAX_DISPATCHED,
                worker: None,
                lease: None,
                dispatch: Dispatch::Queue,
                call: None,
            };
            let (demands, budgets) = if offers {
                (waiting.iter().map(WaitingDemand::demand).collect(), {
                    waiting.iter().map(WaitingDemand::budget).collect()
                })
            } else {
                (vec![push()], Vec::new())
            };
            let input = TickInput {
                released: mem::take(&mut self.released),
                released_digests: self.released_digests.clone(),
                demands,
                budgets,
                queue_changed: first || is_new,
                ..TickInput::default()
            };
            let mut outcome = self.tick_once(input).await?;
            self.server.answer(waiting, mem::take(&mut outcome.offers)).await?;
        }
        Ok(())
    }

    async fn tick_once(&mut self, input: TickInput) -> Result<TickOutcome, Error> {
        let began = self.server.now();
        let mut outcome = self.server.engine().tick(self.queue, self.cache, input).await?;
        self.server.follow(self.queue, &mut outcome, began).await?;
        self.released = mem::take(&mut outcome.left);
        self.again |= outcome.again;
        self.held.extend(outcome.held.keys().cloned());
        self.next_at = self.next_at.into_iter().chain(outcome.next_at).min();
        self.next_start_at = self.next_start_at.into_iter().chain(outcome.next_start_at).min();
        Ok(outcome)
    }
}
