//! The task of one queue: it gathers what arrived, takes a round, and hands out what was claimed.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering, fence},
    },
    time::Duration,
};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::{
    runtime::{
        Home, Inner, Stage, deliver, handler,
        lease::{Handed, not_delivered},
        workers::is_drained,
    },
    telemetry::metrics,
};
use tidegate_core::{
    job::{
        Job, JobId, QueueName, TypeName, Version,
        lifecycle::{Failure, Reason},
    },
    time::{Seconds, Timestamp},
};
use tidegate_engine::{
    Catalog, Demand, Dispatch, Error, TickCache, TickInput, TickOutcome, View,
    request::{Heartbeat, Report, ReportOutcome},
};

/// Most messages that one round takes.
const MAX_BATCH: usize = 2048;
/// A queue is looked at this often even if nothing says so: another process may have written to the store.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How long a handler's lease lasts if its type is gone.
const LEASE: Duration = Duration::from_secs(30);
/// The wait after a round that the store failed.
const ERROR_BACKOFF: Duration = Duration::from_millis(250);
/// No version of the configuration.
const BUSY: u64 = u64::MAX;

/// What a queue's task is told.
pub(crate) enum Message {
    /// Something may be due.
    Wake,
    /// A job left the version it may have been granted at.
    Left(JobId, Version),
    /// What became of attempts.
    Reports(Vec<Report>, oneshot::Sender<Vec<Result<Job, Error>>>),
    /// An attempt that this process made is over, or (no report) goes on elsewhere. A stop waits until what makes it wait is
    /// dropped, which is when the report is settled. No lane: a worker was to have it, and it was not handed over.
    Done(Option<JobSource>, Option<Report>, Option<mpsc::Sender<()>>),
    /// A worker wants jobs.
    Lease(LeaseCall),
    /// A worker that asks several queues wants jobs of this one too.
    Watch(Weak<QueueWatch>),
}

/// Where this process runs an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum JobSource {
    /// A push.
    Push,
    /// A handler of this type.
    Handler(TypeName),
}

impl JobSource {
    fn handler(&self) -> Option<&TypeName> {
        match self {
            Self::Push => None,
            Self::Handler(name) => Some(name),
        }
    }
}

/// A worker's call, waiting.
pub(crate) struct LeaseCall {
    pub(crate) types: Option<Vec<TypeName>>,
    pub(crate) max: u32,
    pub(crate) until: Timestamp,
    pub(crate) worker: Option<String>,
    pub(crate) lease: Option<Seconds>,
    pub(crate) reports: Vec<Report>,
    pub(crate) reply: oneshot::Sender<Result<Answered, Error>>,
}

/// What a call got: jobs that find their way back if nobody takes them, and what became of its reports.
pub(crate) type Answered = (Handed, Vec<Result<Job, Error>>);

/// What a worker that waits for several queues wants of one of them. The queue rings when there may be something, and the
/// worker looks.
pub(crate) struct QueueWatch {
    pub(crate) types: Option<Vec<TypeName>>,
    pub(crate) max: u32,
    /// Whether this queue rang since the worker looked.
    pub(crate) notified: AtomicBool,
    pub(crate) waker: Arc<Notify>,
}

impl QueueWatch {
    fn notify(&self) {
        self.notified.store(true, Ordering::Release);
        self.waker.notify_one();
    }
}

/// The way to a queue's task, and what it showed last.
#[derive(Clone)]
pub(crate) struct QueueHandle {
    sender: mpsc::UnboundedSender<Message>,
    idle_under: Arc<AtomicU64>,
    pub(crate) shown: Arc<Mutex<QueueSnapshot>>,
}

/// What a queue's task shows of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueSnapshot {
    /// How many candidates each rule held in the latest round that looked.
    pub(crate) held: BTreeMap<String, u64>,
    /// The granted weight.
    pub(crate) running_weight: u64,
    /// Jobs that workers wait for, by type.
    pub(crate) wanted: HashMap<TypeName, u32>,
    /// Free push slots, once a round has counted them.
    pub(crate) push_free: Option<u32>,
    /// Jobs that handlers run, by type.
    pub(crate) handling: HashMap<TypeName, u32>,
    /// How long an attempt takes, a moving mean.
    pub(crate) mean_run_seconds: f64,
    /// How long after their due time attempts start, a moving mean.
    pub(crate) mean_lateness_seconds: f64,
}

impl QueueHandle {
    /// Tells the task; a task that ended with its server needs no telling.
    pub(crate) fn send(&self, message: Message) {
        let _ = self.sender.send(message);
    }

    /// Tells the task that a job is in the store which was not there before, and that was accepted under version `catalog` of the
    /// configuration; nothing is sent while nobody takes jobs of the queue.
    ///
    /// The fences here and in [`Task::listen`] order the two: either the task hears of the job, or it finds it when it looks.
    pub(crate) fn accepted(&self, catalog: u64) {
        fence(Ordering::SeqCst);
        if self.idle_under.load(Ordering::Relaxed) != catalog {
            self.send(Message::Wake);
        }
    }
}

/// Starts the task of `queue`.
pub(crate) fn spawn(inner: &Arc<Inner>, queue: QueueName) -> QueueHandle {
    let (sender, receiver) = mpsc::unbounded_channel();
    let shown = Arc::new(Mutex::new(QueueSnapshot::default()));
    let idle_under = Arc::new(AtomicU64::new(BUSY));
    let handle = QueueHandle {
        sender: sender.clone(),
        idle_under: Arc::clone(&idle_under),
        shown: Arc::clone(&shown),
    };
    let task = Task {
        home: Arc::downgrade(inner),
        queue,
        receiver,
        sender,
        idle_under,
        shown,
        memory: TickCache::default(),
        leases: VecDeque::new(),
        watches: Vec::new(),
        next_at: None,
        scanning: false,
        left: Vec::new(),
        unsettled: Vec::new(),
        running: HashMap::new(),
    };
    let stopping = inner.stopping.subscribe();
    tokio::spawn(task.run(stopping));
    handle
}

struct Task {
    home: Home,
    queue: QueueName,
    receiver: mpsc::UnboundedReceiver<Message>,
    sender: mpsc::UnboundedSender<Message>,
    /// Under which version of the configuration nobody takes jobs of the queue, so that a new one changes nothing; else [`BUSY`].
    idle_under: Arc<AtomicU64>,
    shown: Arc<Mutex<QueueSnapshot>>,
    memory: TickCache,
    leases: VecDeque<Waiting>,
    /// Workers that wait for this queue and others.
    watches: Vec<Weak<QueueWatch>>,
    /// When the next round is due.
    next_at: Option<Timestamp>,
    /// Whether the next round only goes on with the scan of the last.
    scanning: bool,
    /// Hints that no commit has taken yet.
    left: Vec<(JobId, Version)>,
    /// Reports of this process's own attempts that the store has not taken yet.
    unsettled: Vec<Unsettled>,
    /// What this process runs, by lane.
    running: HashMap<JobSource, u32>,
}

/// A report of this process's own, and what keeps a stop waiting for it.
type Unsettled = (Report, Option<mpsc::Sender<()>>);

/// A lease call whose reports may be settled already.
struct Waiting {
    call: LeaseCall,
    answers: Vec<Result<Job, Error>>,
}

/// Whose a report of the round is.
enum Source {
    Lease(usize),
    Caller(usize),
    Own,
}

/// Callers that wait for the answers to their reports.
type Callers = Vec<(oneshot::Sender<Vec<Result<Job, Error>>>, Vec<Result<Job, Error>>)>;

/// Where the answers to a round's reports go.
struct Answers {
    /// Whose each is, in order.
    sources: Vec<Source>,
    callers: Callers,
    own: Vec<Unsettled>,
    /// When the round began and when it was committed.
    took: (Timestamp, Timestamp),
}

impl Task {
    async fn run(mut self, mut stopping: tokio::sync::watch::Receiver<Stage>) {
        loop {
            let Some(clock) =
                self.home.upgrade().map(|inner| Arc::clone(&inner.engine.ports().clock))
            else {
                return;
            };
            let mut inbox = Vec::new();
            let wake_at = self.next_at.unwrap_or(Timestamp::MAX).min(clock.now() + POLL_INTERVAL);
            tokio::select! {
                biased;
                count = self.receiver.recv_many(&mut inbox, MAX_BATCH) => if count == 0 { return },
                changed = stopping.changed() => if changed.is_err() || *stopping.borrow() == Stage::Stopped {
                    // Whoever waits has an answer coming: what its reports became, and no jobs.
                    self.expire_leases(clock.now(), true);
                    self.notify();
                    return;
                },
                () = clock.sleep_until(wake_at) => {}
            }
            // Whoever is about to finish or to ask goes into this round rather than the next.
            tokio::task::yield_now().await;
            while let Ok(message) = self.receiver.try_recv() {
                inbox.push(message);
                if inbox.len() >= MAX_BATCH {
                    break;
                }
            }
            let Some(inner) = self.home.upgrade() else {
                return;
            };
            let draining = *stopping.borrow() != Stage::Serving;
            self.next_at = self.tick(&inner, inbox, draining).await;
        }
    }

    /// One round. When the next is due.
    async fn tick(
        &mut self,
        inner: &Arc<Inner>,
        inbox: Vec<Message>,
        draining: bool,
    ) -> Option<Timestamp> {
        // What a failed round could not settle of this process's own attempts goes into this one: nobody else repeats it.
        let mut own = std::mem::take(&mut self.unsettled);
        let mut reports: Vec<Report> = own.iter().map(|(report, _)| report.clone()).collect();
        let mut sources: Vec<Source> = own.iter().map(|_| Source::Own).collect();
        let mut callers: Callers = Vec::new();
        // Whoever only asks brings nothing to those who wait here and elsewhere; anything else may.
        let asks = |message: &Message| match message {
            Message::Lease(call) => call.reports.is_empty(),
            message => matches!(message, Message::Watch(_)),
        };
        let (came, news) = (!inbox.is_empty(), inbox.is_empty() || !inbox.iter().all(asks));
        for message in inbox {
            match message {
                Message::Wake => {}
                Message::Left(job, version) => self.left.push((job, version)),
                Message::Reports(batch, reply) => {
                    sources.extend(batch.iter().map(|_| Source::Caller(callers.len())));
                    reports.extend(batch);
                    callers.push((reply, Vec::new()));
                }
                Message::Done(lane, report, busy) => {
                    if let Some(count) = lane.and_then(|lane| self.running.get_mut(&lane)) {
                        *count = count.saturating_sub(1);
                    }
                    if let Some(report) = report {
                        sources.push(Source::Own);
                        reports.push(report.clone());
                        own.push((report, busy));
                    }
                }
                Message::Lease(mut call) => {
                    let batch = std::mem::take(&mut call.reports);
                    sources.extend(batch.iter().map(|_| Source::Lease(self.leases.len())));
                    reports.extend(batch);
                    self.leases.push_back(Waiting { call, answers: Vec::new() });
                }
                Message::Watch(watch) => self.watches.push(watch),
            }
        }
        let now = inner.engine.now();
        let catalog = match inner.engine.catalog().await {
            Ok(catalog) => catalog,
            Err(error) => return Some(self.failed(inner, &error, own, callers, &sources)),
        };
        let (asked, lanes) =
            if draining { Default::default() } else { self.demands(inner, &catalog, &reports) };
        self.listen(&asked.demands, &catalog);
        let came = came || !self.scanning;
        let round = TickInput { reports, released: self.left.clone(), news: came, ..asked };
        let mut ticked = match inner.engine.tick(&self.queue, &mut self.memory, round).await {
            Ok(ticked) => ticked,
            Err(error) => return Some(self.failed(inner, &error, own, callers, &sources)),
        };
        self.left.clone_from(&ticked.left);
        let ended_at = inner.engine.now();
        metrics::round(&self.queue, &ticked, now, ended_at.since(now));
        let again = ticked.again;
        // A scan that finds nobody leaves half of the processor to others.
        let pause =
            if came || !ticked.claimed.is_empty() { Duration::ZERO } else { ended_at.since(now) };
        if ticked.pending {
            inner.pending.notify_one();
        }
        inner.note_round(
            &self.queue,
            std::mem::take(&mut ticked.asked),
            std::mem::take(&mut ticked.faults),
        );
        let mut next_at = ticked.next_at;
        self.distribute(
            inner,
            ticked,
            &catalog,
            &lanes,
            Answers { sources, callers, own, took: (now, ended_at) },
        );
        self.expire_leases(now, draining);
        self.show(inner, &catalog);
        if !self.unsettled.is_empty() {
            next_at = next_at.into_iter().chain([now + ERROR_BACKOFF]).min();
        }
        let lease_end = self.leases.iter().map(|waiting| waiting.call.until).min();
        next_at = next_at.into_iter().chain(lease_end).min();
        if !self.watches.is_empty() {
            // This round looked for some types only: what an earlier one saw ahead for others is not forgotten.
            next_at = next_at.into_iter().chain(self.next_at.filter(|at| *at > now)).min();
            if news {
                self.notify();
            }
        }
        self.scanning = again;
        if again { Some(ended_at + pause) } else { next_at }
    }

    /// Listens to new jobs from here on if somebody takes jobs, and else not.
    ///
    /// Whoever asks from now on sends a message, and the round that takes it looks at what is in the store. A type that comes to be
    /// pushed, or to have a handler, changes the configuration.
    fn listen(&self, asks: &[Demand], catalog: &Catalog) {
        let idle = asks.iter().all(|ask| ask.capacity == 0)
            && self.leases.iter().all(|waiting| waiting.call.max == 0)
            && self.watches.is_empty();
        self.idle_under.store(if idle { catalog.version } else { BUSY }, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Rings up those who wait for this queue and others.
    fn notify(&self) {
        self.watches.iter().filter_map(Weak::upgrade).for_each(|demand| demand.notify());
    }

    /// A round for everybody who takes jobs now, once `reports` are settled, and where each ask's jobs go.
    fn demands(
        &self,
        inner: &Inner,
        catalog: &Catalog,
        reports: &[Report],
    ) -> (TickInput, Vec<Requester>) {
        let (mut asks, mut places) = (Vec::new(), Vec::new());
        let (mut push, mut pull) = (Vec::new(), Vec::new());
        for (name, item) in catalog.types_of(&self.queue) {
            if let Some(handler) = inner.handlers.get(name) {
                let lane = JobSource::Handler(name.clone());
                let room = handler
                    .concurrency
                    .saturating_sub(self.running.get(&lane).copied().unwrap_or(0));
                asks.push(Demand {
                    types: vec![name.clone()],
                    capacity: room,
                    worker: None,
                    lease: None,
                    dispatch: Dispatch::Claim,
                });
                places.push(Requester::Lane(lane));
            } else if inner.engine.is_pushed(&item.config) {
                push.push(name.clone());
            } else {
                pull.push(name.clone());
            }
        }
        if !push.is_empty() {
            let room = inner
                .options
                .push_slots
                .saturating_sub(self.running.get(&JobSource::Push).copied().unwrap_or(0));
            asks.push(Demand {
                types: push,
                capacity: room,
                worker: None,
                lease: None,
                dispatch: Dispatch::Claim,
            });
            places.push(Requester::Lane(JobSource::Push));
        }
        let (mut running, mut workers) = (None, BTreeMap::new());
        for (index, waiting) in self.leases.iter().enumerate() {
            let call = &waiting.call;
            if call.reply.is_closed() || is_drained(catalog, call.worker.as_deref()) {
                continue;
            }
            if let Some(name) = call.worker.as_deref()
                && let Some(most) = inner.workers.capacity(name)
            {
                let running =
                    running.get_or_insert_with(|| inner.engine.running_by_worker(reports));
                let runs = running.get(name).copied().unwrap_or_default();
                workers.insert(name.to_owned(), u64::from(most).saturating_sub(runs) as u32);
            }
            let types: Vec<TypeName> = match &call.types {
                Some(types) => types.iter().filter(|name| pull.contains(name)).cloned().collect(),
                None => pull.clone(),
            };
            asks.push(Demand {
                types,
                capacity: call.max,
                worker: call.worker.clone(),
                lease: call.lease,
                dispatch: Dispatch::Claim,
            });
            places.push(Requester::Lease(index));
        }
        (TickInput { demands: asks, workers, ..TickInput::default() }, places)
    }

    /// Answers reports and leases, starts deliveries and handlers.
    fn distribute(
        &mut self,
        inner: &Arc<Inner>,
        ticked: TickOutcome,
        catalog: &Arc<Catalog>,
        places: &[Requester],
        Answers { sources, mut callers, own, took: (from, to) }: Answers,
    ) {
        let mut own = own.into_iter();
        self.count(&ticked);
        ticked
            .settled()
            .chain(&ticked.ended)
            .filter(|job| job.life.ended().is_some())
            .for_each(metrics::ended);
        for (source, answer) in sources.into_iter().zip(ticked.reports) {
            if let (Some(traces), Ok(job)) = (&inner.traces, &answer) {
                traces.reported(job, !matches!(source, Source::Own), from, to);
            }
            if let Ok(job) = &answer
                && job.life.ended().is_some()
            {
                inner.on_job_finished(job);
            }
            match source {
                Source::Lease(index) => self.leases[index].answers.push(answer),
                Source::Caller(index) => callers[index].1.push(answer),
                Source::Own => match (own.next(), answer) {
                    // Nobody else repeats it.
                    (Some(unsettled), Err(Error::Unavailable { .. })) => {
                        self.unsettled.push(unsettled)
                    }
                    (_, Err(error)) => {
                        tracing::debug!(queue = %self.queue, %error, "a result came too late")
                    }
                    _ => {}
                },
            }
        }
        for (reply, answers) in callers {
            let _ = reply.send(answers);
        }
        ticked.lapsed.iter().for_each(|job| inner.on_attempt_finished(job));
        for job in &ticked.ended {
            inner.on_attempt_finished(job);
            inner.on_job_finished(job);
        }
        let mut leased: HashMap<usize, Vec<Job>> = HashMap::new();
        for mut claimed in ticked.claimed {
            if let Some(traces) = &inner.traces {
                traces.claimed(&mut claimed.job, claimed.run_at);
            }
            match &places[claimed.demand] {
                Requester::Lease(index) => leased.entry(*index).or_default().push(claimed.job),
                Requester::Lane(lane) => {
                    *self.running.entry(lane.clone()).or_default() += 1;
                    self.start(inner, lane.clone(), claimed.job, catalog);
                }
            }
        }
        let mut waiting = VecDeque::with_capacity(self.leases.len());
        for (index, lease) in std::mem::take(&mut self.leases).into_iter().enumerate() {
            match leased.remove(&index) {
                None if lease.call.max > 0 => waiting.push_back(lease),
                jobs => answer_lease(inner, lease, jobs.unwrap_or_default()),
            }
        }
        self.leases = waiting;
    }

    /// Shows what the round held and how long attempts take.
    fn count(&self, ticked: &TickOutcome) {
        let mut shown = self.shown.lock();
        shown.held = ticked.held.iter().map(|(rule, count)| (rule.to_string(), *count)).collect();
        for job in ticked.settled() {
            if let Some(entry) = job.life.history.last() {
                let took = entry.ended_at.since(entry.started_at).as_secs_f64();
                shown.mean_run_seconds = moving_mean(shown.mean_run_seconds, took);
            }
        }
        for claimed in &ticked.claimed {
            let late = claimed
                .job
                .life
                .started_at
                .map_or(0.0, |at| at.since(claimed.run_at).as_secs_f64());
            shown.mean_lateness_seconds = moving_mean(shown.mean_lateness_seconds, late);
        }
    }

    /// Runs a claimed job here.
    fn start(&self, inner: &Arc<Inner>, lane: JobSource, job: Job, catalog: &Arc<Catalog>) {
        let (inner, sender, catalog, busy) =
            (Arc::clone(inner), self.sender.clone(), Arc::clone(catalog), inner.busy());
        tokio::spawn(async move {
            let report = match &lane {
                // Much larger than a handler's call, which would otherwise take as much room.
                JobSource::Push => {
                    Box::pin(deliver::push(&inner, job, &catalog, Timestamp::MAX)).await
                }
                JobSource::Handler(name) => match inner.handlers.get(name) {
                    Some(handler) => {
                        let alive = Box::pin(keep_alive(&inner, &job, &catalog));
                        tokio::select! {
                            biased;
                            report = handle(&inner, handler, job.clone()) => Some(report),
                            () = alive => None,
                        }
                    }
                    None => None,
                },
            };
            let report = match report {
                Some(report) if report.is_large() => Some(Box::pin(bounded(&inner, report)).await),
                report => report,
            };
            let _ = sender.send(Message::Done(Some(lane), report, busy));
        });
    }

    /// Answers calls whose wait is over.
    fn expire_leases(&mut self, now: Timestamp, draining: bool) {
        let mut index = 0;
        while index < self.leases.len() {
            let call = &self.leases[index].call;
            if draining || call.until <= now || call.reply.is_closed() {
                if let Some(Waiting { call, answers }) = self.leases.remove(index) {
                    let _ = call.reply.send(Ok((Handed::default(), answers)));
                }
            } else {
                index += 1;
            }
        }
    }

    /// The store failed: everybody who can ask again is told, and the task tries again soon.
    fn failed(
        &mut self,
        inner: &Inner,
        error: &Error,
        own: Vec<Unsettled>,
        callers: Callers,
        sources: &[Source],
    ) -> Timestamp {
        self.unsettled = own;
        tracing::warn!(queue = %self.queue, %error, "a round failed");
        for (reply, _) in callers {
            // Dropping the channel tells the caller that the answer is unknown.
            drop(reply);
        }
        let reported: Vec<usize> = sources
            .iter()
            .filter_map(
                |source| {
                    if let Source::Lease(index) = source { Some(*index) } else { None }
                },
            )
            .collect();
        let mut kept = VecDeque::new();
        for (index, waiting) in std::mem::take(&mut self.leases).into_iter().enumerate() {
            if reported.contains(&index) {
                let _ = waiting.call.reply.send(Err(error.clone()));
            } else {
                kept.push_back(waiting);
            }
        }
        self.leases = kept;
        self.expire_leases(inner.engine.now(), false);
        inner.engine.now() + ERROR_BACKOFF
    }

    fn show(&mut self, inner: &Inner, catalog: &Catalog) {
        let mut shown = self.shown.lock();
        shown.wanted.clear();
        let mut want = |types: Option<&Vec<TypeName>>, max| match types {
            Some(types) => {
                types.iter().for_each(|name| *shown.wanted.entry(name.clone()).or_default() += max)
            }
            None => catalog
                .types_of(&self.queue)
                .for_each(|(name, _)| *shown.wanted.entry(name.clone()).or_default() += max),
        };
        self.leases.iter().for_each(|waiting| want(waiting.call.types.as_ref(), waiting.call.max));
        self.watches.retain(|demand| {
            let demand = demand.upgrade();
            demand.as_ref().inspect(|demand| want(demand.types.as_ref(), demand.max)).is_some()
        });
        shown.push_free = Some(
            inner
                .options
                .push_slots
                .saturating_sub(self.running.get(&JobSource::Push).copied().unwrap_or(0)),
        );
        shown.handling = self
            .running
            .iter()
            .filter_map(|(lane, count)| lane.handler().map(|name| (name.clone(), *count)))
            .collect();
        shown.running_weight = self.memory.view().map_or(0, View::weight);
        metrics::queue(&self.queue, shown.running_weight, &shown.held);
    }
}

/// A moving mean with one more value; the first value is the mean.
fn moving_mean(mean: f64, value: f64) -> f64 {
    if mean == 0.0 { value } else { mean + (value - mean) / 16.0 }
}

/// Where an ask's jobs go.
enum Requester {
    Lane(JobSource),
    Lease(usize),
}

fn answer_lease(inner: &Arc<Inner>, waiting: Waiting, jobs: Vec<Job>) {
    let Waiting { call, answers } = waiting;
    // Whatever is not taken from here on goes back.
    let mut handed = Handed::new(inner, Vec::new());
    if jobs.iter().all(|job| job.data.inline().is_some()) {
        handed.add(jobs);
        let _ = call.reply.send(Ok((handed, answers)));
        return;
    }
    let inner = Arc::clone(inner);
    tokio::spawn(async move {
        let loaded = inner.engine.load_each(jobs.clone()).await;
        for (job, loaded) in jobs.into_iter().zip(loaded) {
            match loaded {
                Ok(job) => handed.add([job]),
                Err(error) => not_delivered(&inner, &job, error.to_string()),
            }
        }
        let _ = call.reply.send(Ok((handed, answers)));
    });
}

/// Sends a handler's signs of life, so that its lease ends soon after this process does; returns when the attempt is over.
async fn keep_alive(inner: &Inner, job: &Job, catalog: &Catalog) {
    let Some(run) = job.life.running() else {
        return;
    };
    let lease = catalog
        .types
        .get(&job.spec.job_type)
        .map_or(LEASE, |item| item.config.lease_seconds.duration());
    loop {
        let clock = &inner.engine.ports().clock;
        clock.sleep_until(clock.now() + lease / 3).await;
        let beat = Heartbeat {
            id: job.id.clone(),
            job_type: None,
            attempt: job.life.attempt,
            token: Some(run.token),
            lease_seconds: Some(Seconds::from_millis(lease.as_millis() as u64)),
            progress: None,
        };
        match inner.engine.heartbeat(beat).await {
            Ok(_) | Err(Error::Unavailable { .. } | Error::Internal(_)) => {}
            // Somebody ended it, or its time is over: what the handler still does is for nobody.
            Err(_) => return,
        }
    }
}

/// A report of work done here, its result within the server's bound and put where large ones go.
async fn bounded(inner: &Inner, report: Report) -> Report {
    loop {
        match inner.engine.prepare_report(report.clone()).await {
            Ok(report) => return report,
            // The work is done, and must not be done again for want of a place for its result. When its lease is over, that is
            // found by whoever looks.
            Err(Error::Unavailable { retry_after, .. })
                if *inner.stopping.borrow() < Stage::Stopped =>
            {
                inner.engine.ports().clock.sleep_until(inner.engine.now() + retry_after).await;
            }
            Err(error) => {
                let failure =
                    Failure::new(Reason::Failed, format!("its result cannot be kept: {error}"));
                let verdict =
                    ReportOutcome::Failed { failure, retryable: false, least_wait: Duration::ZERO };
                return Report { outcome: verdict, ..report };
            }
        }
    }
}

/// Runs a handler; a panic is a failure of the attempt.
async fn handle(inner: &Inner, handler: &handler::Handler, job: Job) -> Report {
    let (id, attempt) = (job.id.clone(), job.life.attempt);
    let token = job.life.running().map(|run| run.token);
    let loaded = match job.data.inline() {
        Some(_) => Ok(Some(job)),
        None => Box::pin(inner.engine.load(vec![job])).await.map(|mut jobs| jobs.pop()),
    };
    let handled = match loaded {
        Ok(Some(job)) => {
            let work = AssertUnwindSafe(async { (handler.run)(handler::Call { job }).await })
                .catch_unwind();
            work.await.unwrap_or_else(|_| handler::Handled::failed("the handler panicked"))
        }
        Ok(None) => handler::Handled::failed("the job vanished"),
        Err(error) => handler::Handled::failed(error.to_string()),
    };
    let verdict = match handled {
        handler::Handled::Succeeded(result) => {
            ReportOutcome::Succeeded { result: result.map(tidegate_core::job::Body::Inline) }
        }
        handler::Handled::Failed { failure, retryable } => {
            ReportOutcome::Failed { failure, retryable, least_wait: Duration::ZERO }
        }
    };
    Report { id, job_type: None, attempt, token, outcome: verdict }
}

#[cfg(test)]
mod tests;
