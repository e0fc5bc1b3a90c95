//! The operations on a set of queues, independent of the store.
//!
//! The one thing to know: an [`Engine`] keeps no state that matters. Its caches (the configuration,
//! running jobs, a queue's ledger) only save reads. Every write is conditional, so any number of
//! engines may use one store.
//!
//! Read [`tick`] first: it releases, admits and claims a queue's jobs in one commit.

pub mod bulk;
pub mod config;
pub mod error;
pub mod events;
pub mod explanation;
mod ids;
pub mod jobs;
pub mod memory;
pub mod moves;
pub mod plugins;
pub mod request;
pub mod schedules;
pub mod simulate;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod tick;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use arc_swap::ArcSwap;
use object_store::ObjectStore;
use parking_lot::Mutex;

pub use crate::config::{
    catalog::Catalog,
    schema::{self, Schema},
};
pub use crate::events::ends::{END_EVENT_QUEUE, END_EVENT_TYPE};
pub use crate::jobs::dispatch::{Dispatched, Stop, ungranted_work};
pub use crate::jobs::enqueue::fault;
pub use crate::jobs::job_writes::{CALLBACK_QUEUE, CALLBACK_TYPE};
pub use crate::jobs::lookahead::{BegunLookahead, LastSweep, Lookahead};
pub use crate::jobs::objects::check_object;
pub use crate::jobs::orphans::SweptObjects;
pub use crate::jobs::repeated_leases::RepeatableCall;
use crate::jobs::running::MAX_CACHED_JOBS;
pub use crate::jobs::sweep::Swept;
pub use crate::plugins::circuit_breaker::CircuitBreaker;
use crate::plugins::circuit_breaker::FailedThrottlers;
pub use crate::schedules::materialize::Materialized;
pub use crate::tick::view::LedgerView;
pub use error::Error;
pub use tick::{
    ByteBudget, Claimed, CountedBytes, Demand, Dispatch, ThrottlerCall, TickCache, TickInput,
    TickOutcome,
};
pub use tidegate_core::port::job_store::NO_ROOM;

use tidegate_core::{
    job::{Job, JobId, QueueName, TypeName, retry::Retry, type_config::TypeConfig},
    port::{
        Clock, Entropy, Policy, WorkQueue,
        job_store::{SharedStore, StoredJob, WakePosition, last_id},
    },
    target::{ExternalTarget, Push, TargetConfig},
    time::Timestamp,
    validate::{AcceptTarget, AllowedHosts, Guard, ValidationError, no_external_target},
};
use url::Url;

/// The ports of an engine.
#[derive(Clone)]
pub struct Ports {
    /// Jobs, ledgers and configuration.
    pub store: SharedStore,
    /// Large bodies.
    pub objects: Arc<dyn ObjectStore>,
    /// Carries granted work to the process that claims it.
    pub work: Arc<dyn WorkQueue>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The source of random numbers.
    pub entropy: Arc<dyn Entropy>,
    /// Plugins; [`NoPolicy`](tidegate_core::port::policy::NoPolicy) where nothing runs them.
    pub policy: Arc<dyn Policy>,
}

/// The settings of a server that no queue or type overrides.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Most bytes of a job's data or of a result.
    pub max_data_bytes: usize,
    /// Whether an enqueue of an unknown type creates it with defaults.
    pub create_unknown_types: bool,
    /// The target of the types that have none of their own.
    pub default_target: Option<Push>,
    /// Validates the targets that a backend sends to. By default there are none.
    pub accept_target: AcceptTarget,
    /// Refuses targets and callbacks by host. The caller of a target also checks the address that
    /// the name resolves to.
    pub guard: Guard,
    /// The hosts that targets may have.
    pub allowed_targets: AllowedHosts,
    /// The hosts that a `callback_url` may have.
    pub allowed_callbacks: AllowedHosts,
    /// The bounds of events.
    pub events: EventRules,
    /// Whether a job may start before it is written as running, if its type allows that. Only this
    /// process, or the receiver of a message, knows that such a job runs. So it must not be due for
    /// another server.
    pub start_unclaimed: bool,
    /// Bodies over this many bytes are stored as objects. Smaller ones are cheaper in the store.
    pub object_bytes: usize,
}

impl Rules {
    /// Checks the host of a `callback_url`.
    pub(crate) fn check_callback(&self, url: &Url) -> Result<(), ValidationError> {
        self.guard.check_host("callback_url", url)?;
        self.allowed_callbacks.check("callback_url", url)
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            max_data_bytes: 4 << 20,
            create_unknown_types: false,
            default_target: None,
            accept_target: no_external_target,
            guard: Guard::Off,
            allowed_targets: AllowedHosts::default(),
            allowed_callbacks: AllowedHosts::default(),
            events: EventRules::default(),
            start_unclaimed: true,
            object_bytes: OBJECT_BYTES,
        }
    }
}

/// Where a type's jobs are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PushTarget<'a> {
    /// They are posted to a URL.
    Url(&'a Push),
    /// A backend sends them to a service.
    External(&'a ExternalTarget),
}

/// The bounds of events, pending replies and dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRules {
    /// Most bytes of an event.
    pub max_bytes: usize,
    /// The longest chain of triggers that may lead to an event. An event of a longer chain enqueues
    /// nothing.
    pub max_hops: u32,
    /// How long a reply is kept whose job or attempt does not exist yet.
    pub reply_wait: Duration,
    /// How long a dead letter is kept.
    pub dead_letter_retention: Duration,
    /// Most dead letters; of more, the oldest are dropped.
    pub max_dead_letters: u64,
}

impl Default for EventRules {
    fn default() -> Self {
        Self {
            max_bytes: 256 << 10,
            max_hops: 8,
            reply_wait: Duration::from_mins(5),
            dead_letter_retention: Duration::from_hours(14 * 24),
            max_dead_letters: 10_000,
        }
    }
}

/// The default of [`Rules::object_bytes`].
pub const OBJECT_BYTES: usize = 64 << 10;

/// Running jobs that one read returns at most.
const MAX_RUNNING_PAGE: u32 = 1000;

/// The operations over one set of ports.
pub struct Engine {
    ports: Ports,
    rules: Rules,
    catalog: ArcSwap<Catalog>,
    /// The version that the store had last, and when that was read.
    catalog_checked: Mutex<Option<(u64, Timestamp)>>,
    ids: Mutex<ids::Ids>,
    running: Mutex<jobs::running::RunningJobs>,
    unclaimed: jobs::unclaimed::UnclaimedJobs,
    /// Queues that had no ledger, each with the version of the configuration at that time. Without
    /// a new version no ledger appears.
    unlimited: Mutex<HashMap<QueueName, u64>>,
    /// Retry strategies of single jobs that were valid, with the version of the configuration at
    /// that time.
    good_retries: Mutex<(u64, Vec<Retry>)>,
    /// The plugin strategies that failed.
    breaker: CircuitBreaker,
    failed_throttlers: FailedThrottlers,
    /// What waits in the queues whose throttlers need it.
    waiting: jobs::waiting::WaitingEstimates,
    /// When the batches of each queue that no ledger names were last removed.
    batches_collected: Mutex<HashMap<QueueName, Timestamp>>,
    /// Up to where sweeps have read overdue jobs, behind many that cannot be read.
    overdue_reached: Mutex<Option<WakePosition>>,
    passes_due: jobs::pass::PassesDue,
    /// The horizon of the lookahead that was read last. It may have moved on since.
    known_horizon: Mutex<Option<Timestamp>>,
    /// The schedules and the next occurrence of each.
    agenda: Mutex<schedules::agenda::Agenda>,
    /// An upper bound of the number of dead letters.
    dead_letters: AtomicU64,
    /// How many dead letters were dropped because there were too many, since the last read of this
    /// counter.
    dead_letters_dropped: AtomicU64,
    /// How many pending replies were too late for their attempts, since the last read of this
    /// counter.
    replies_late: AtomicU64,
}

impl Engine {
    /// An engine over `ports`.
    pub fn new(ports: Ports, rules: Rules) -> Self {
        Self {
            ports,
            rules,
            catalog: ArcSwap::default(),
            catalog_checked: Mutex::default(),
            ids: Mutex::default(),
            running: Mutex::default(),
            unclaimed: jobs::unclaimed::UnclaimedJobs::default(),
            unlimited: Mutex::default(),
            good_retries: Mutex::default(),
            breaker: CircuitBreaker::default(),
            failed_throttlers: FailedThrottlers::default(),
            waiting: jobs::waiting::WaitingEstimates::default(),
            batches_collected: Mutex::default(),
            overdue_reached: Mutex::default(),
            passes_due: Mutex::default(),
            known_horizon: Mutex::default(),
            agenda: Mutex::default(),
            dead_letters: AtomicU64::new(u64::MAX / 2),
            dead_letters_dropped: AtomicU64::default(),
            replies_late: AtomicU64::default(),
        }
    }

    /// The engine's ports.
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// The server's settings.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The present instant.
    pub fn now(&self) -> Timestamp {
        self.ports.clock.now()
    }

    /// The target of the jobs of a type; none if pull workers lease them.
    pub fn push_target<'a>(&'a self, config: &'a TypeConfig) -> Option<PushTarget<'a>> {
        match &config.target {
            Some(TargetConfig::Push(push)) => Some(PushTarget::Url(push)),
            Some(TargetConfig::External(target)) => Some(PushTarget::External(target)),
            Some(TargetConfig::Pull(_)) => None,
            None => self.rules.default_target.as_ref().map(PushTarget::Url),
        }
    }

    /// Whether jobs of a type are sent to a target, not leased by pull workers.
    pub fn is_pushed(&self, config: &TypeConfig) -> bool {
        self.push_target(config).is_some()
    }

    /// How many jobs each worker runs, without the attempts that `reports` finish.
    ///
    /// It counts the running jobs in this engine's cache, which may have evicted some.
    pub fn running_by_worker(&self, reports: &[request::Report]) -> BTreeMap<String, u64> {
        let finished: HashSet<(&JobId, u16)> =
            reports.iter().map(|report| (&report.id, report.attempt)).collect();
        let mut by_worker = BTreeMap::new();
        let running = self.running.lock();
        for job in running.iter().filter(|job| !finished.contains(&(&job.id, job.life.attempt))) {
            if let Some(worker) = job.life.running().and_then(|run| run.worker.as_ref()) {
                *by_worker.entry(worker.clone()).or_default() += 1;
            }
        }
        by_worker
    }

    /// How many jobs of each type of `queue` run at workers that have no name.
    ///
    /// It counts the running jobs in this engine's cache, which may have evicted some.
    pub fn running_without_worker(&self, queue: &QueueName) -> BTreeMap<TypeName, u64> {
        let mut by_type = BTreeMap::new();
        for job in self.running.lock().iter().filter(|job| job.spec.queue == *queue) {
            if job.life.running().is_some_and(|run| run.worker.is_none()) {
                *by_type.entry(job.spec.job_type.clone()).or_default() += 1;
            }
        }
        by_type
    }

    /// Caches a running job, or removes one that no longer runs from the cache.
    fn cache_job(&self, job: &Job) {
        if job.life.running().is_some() {
            self.running.lock().insert(job.clone());
        } else {
            self.unclaimed.forget(&job.id);
            self.running.lock().remove(&job.id);
        }
    }

    /// Caches the running jobs of every queue, so that a restarted process knows what each worker
    /// runs. Reads as many as the cache holds.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn load_running(&self) -> Result<(), Error> {
        self.read_running().await.map(|_| ())
    }

    /// As [`Self::load_running`]; removes the jobs from the cache that have ended. Where processes
    /// share the store, others have claimed and settled some.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn reload_running(&self) -> Result<(), Error> {
        let known: Vec<JobId> = self.running.lock().iter().map(|job| job.id.clone()).collect();
        // What was claimed meanwhile is not among these.
        if let Some(running) = self.read_running().await? {
            let mut cache = self.running.lock();
            known.iter().filter(|id| !running.contains(*id)).for_each(|id| cache.remove(id));
        }
        Ok(())
    }

    /// Caches the running jobs of every queue. Returns all of them, unless there are more than the
    /// cache holds.
    async fn read_running(&self) -> Result<Option<HashSet<JobId>>, Error> {
        let catalog = self.catalog().await?;
        let queues: BTreeSet<&QueueName> =
            catalog.types.values().map(|item| &item.config.queue).collect();
        let mut running = HashSet::new();
        for queue in queues {
            let mut after = None;
            loop {
                let page =
                    self.ports.store.running(queue, after.as_ref(), MAX_RUNNING_PAGE).await?;
                after = last_id(&page);
                for job in page.iter().flatten() {
                    if running.len() == MAX_CACHED_JOBS.get() {
                        return Ok(None);
                    }
                    self.cache_job(job);
                    running.insert(job.id.clone());
                }
                if page.len() < MAX_RUNNING_PAGE as usize || after.is_none() {
                    break;
                }
            }
        }
        Ok(Some(running))
    }

    /// The jobs with these ids, from the cache or else from the store.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn cached_jobs(&self, ids: &[JobId]) -> Result<Vec<StoredJob>, Error> {
        let any: Vec<(JobId, u16)> = ids.iter().map(|id| (id.clone(), 0)).collect();
        self.cached_attempts(&any).await
    }

    /// The jobs with these ids, from the cache if they have reached the given attempt, or else from
    /// the store. Another engine may have ended the attempt of an older cached job and started the
    /// next.
    pub(crate) async fn cached_attempts(
        &self,
        attempts: &[(JobId, u16)],
    ) -> Result<Vec<StoredJob>, Error> {
        let mut found: Vec<StoredJob> = {
            let mut running = self.running.lock();
            let mut cached = |(id, attempt): &(JobId, u16)| {
                running.get(id).filter(|job| job.life.attempt >= *attempt).cloned()
            };
            attempts.iter().map(|attempt| Ok(cached(attempt))).collect()
        };
        let missing: Vec<usize> =
            (0..attempts.len()).filter(|i| matches!(found[*i], Ok(None))).collect();
        if !missing.is_empty() {
            let wanted: Vec<JobId> = missing.iter().map(|i| attempts[*i].0.clone()).collect();
            for (i, job) in missing.into_iter().zip(self.ports.store.get(&wanted).await?) {
                found[i] = job;
            }
        }
        Ok(found)
    }
}
