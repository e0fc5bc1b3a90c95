//! `claim`: the receiver of work starts it, if its grant is still valid or its queue still needs
//! none.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use crate::{
    Catalog, Engine, Error,
    jobs::repeated_leases::lease_records,
    tick::{self, Claimed, Demand, Dispatch},
};
use tidegate_core::{
    job::{Event, Job, JobId, QueueName, Token, Version},
    port::{
        Committed, StoreError, Txn, Work, Write,
        job_store::{CurrentRecord, ItemKind},
    },
};

/// How often ungranted jobs are offered again because their queue's configuration changed.
const MAX_CLAIM_RETRIES: usize = 3;
/// How often claims are written again whose outcome is unknown.
pub(super) const MAX_REPEATS: u32 = 6;
/// The longest wait before the first repeat, which doubles.
const FIRST_REPEAT_DELAY: Duration = Duration::from_millis(400);
/// The longest wait before any repeat.
const MAX_REPEAT_DELAY: Duration = Duration::from_secs(2);

impl Engine {
    /// Claims work for one worker. Returns per piece the running job, or none if the piece is void,
    /// was claimed before, or is not due. A piece that arrives twice is claimed once.
    ///
    /// # Errors
    ///
    /// The store's. Then it is unknown what was claimed; those jobs are found when their lease
    /// ends.
    pub async fn claim(
        &self,
        work: &[Work],
        worker: Option<&str>,
    ) -> Result<Vec<Option<Claimed>>, Error> {
        let mut claims: Vec<Option<Claimed>> = work.iter().map(|_| None).collect();
        let (granted, free): (Vec<_>, Vec<_>) =
            work.iter().enumerate().partition(|(_, work)| work.granted_at.is_some());
        if !granted.is_empty() {
            let lease = |catalog: &Catalog, job: &Job| Some(tick::push_lease(catalog, job));
            self.claim_granted(&granted, worker, &lease, None, &mut claims).await?;
        }
        let mut queues: BTreeMap<&QueueName, Vec<(usize, &Work)>> = BTreeMap::new();
        for (index, work) in free {
            queues.entry(&work.queue).or_default().push((index, work));
        }
        // One for all queues: the version of the configuration is read by all processes.
        let mut catalog = None;
        for (queue, work) in queues {
            let named = work.iter().map(|(_, work)| (*work).clone()).collect();
            let mut claimed = self.claim_unlimited(queue, named, worker, &mut catalog).await?;
            for (index, work) in work {
                // A piece that is there twice is claimed by the first.
                claims[index] = claimed.remove(&work.job);
            }
        }
        self.drop_replied(&mut claims).await;
        Ok(claims)
    }

    /// Claims jobs that were offered to the worker of `demand`. Returns per piece the running job,
    /// or none if the offer is void, its type is not in the demand, or its worker is drained.
    ///
    /// # Errors
    ///
    /// As [`Engine::claim`].
    pub async fn claim_offers(
        &self,
        work: &[Work],
        demand: &Demand,
    ) -> Result<Vec<Option<Claimed>>, Error> {
        let mut claims: Vec<Option<Claimed>> = work.iter().map(|_| None).collect();
        let offers: Vec<(usize, &Work)> = work.iter().enumerate().collect();
        let worker = demand.worker.as_deref();
        let lease = |catalog: &Catalog, job: &Job| {
            let config = catalog.types.get(&job.spec.job_type).map(|item| &item.config);
            let drained = worker.is_some_and(|worker| catalog.drains.contains_key(worker));
            let is_wanted = demand.types.contains(&job.spec.job_type);
            (is_wanted && !drained).then(|| tick::lease::lease(config, false, demand, job))
        };
        self.claim_granted(&offers, worker, &lease, Some(demand), &mut claims).await?;
        self.drop_replied(&mut claims).await;
        Ok(claims)
    }

    /// Revokes grants that their receiver does not claim, which uses up no attempt. Returns the
    /// jobs that changed, each with the version that it left.
    ///
    /// # Errors
    ///
    /// The store's. Grants that are not revoked here are revoked at their next check.
    pub async fn decline(&self, work: &[Work]) -> Result<Vec<(Job, Version)>, Error> {
        let ids: Vec<JobId> = work.iter().map(|work| work.job.clone()).collect();
        let now = self.now();
        let mut revoked = Vec::with_capacity(work.len());
        let mut txns: Vec<Txn> = Vec::with_capacity(work.len());
        for (work, job) in work.iter().zip(self.ports.store.get(&ids).await?) {
            let Ok(Some(job)) = job else { continue };
            if let Ok(changed) = job.apply(Event::Revoke { version: work.version }, now) {
                txns.push(self.change_writes(job.life.revision, &changed, false, now));
                revoked.push((changed, work.version));
            }
        }
        let committed =
            if txns.is_empty() { Vec::new() } else { self.ports.store.commit(txns).await? };
        let done = revoked.into_iter().zip(committed);
        Ok(done.filter(|(_, done)| matches!(done, Committed::All)).map(|(job, _)| job).collect())
    }

    /// Applies pending replies to the jobs that were just claimed: one ends the attempt of its job.
    /// The grant is released at its batch's next check.
    async fn drop_replied(&self, claims: &mut [Option<Claimed>]) {
        let keyed: Vec<&Job> = claims
            .iter()
            .flatten()
            .map(|claimed| &claimed.job)
            .filter(|job| job.spec.correlation_key.is_some())
            .collect();
        if !keyed.is_empty() {
            let changed = Box::pin(self.apply_pending_replies(&keyed)).await;
            let is_over =
                |claimed: &Claimed| changed.iter().any(|(job, _)| job.id == claimed.job.id);
            for claim in claims.iter_mut().filter(|claim| claim.as_ref().is_some_and(is_over)) {
                *claim = None;
            }
        }
    }

    /// Claims granted work; `lease` is how long the worker may go without a heartbeat, and none if it
    /// gets no jobs. `demand` is that of the worker, if the work was offered to it.
    async fn claim_granted(
        &self,
        work: &[(usize, &Work)],
        worker: Option<&str>,
        lease: &(dyn Fn(&Catalog, &Job) -> Option<Duration> + Sync),
        demand: Option<&Demand>,
        claims: &mut [Option<Claimed>],
    ) -> Result<(), Error> {
        let ids: Vec<JobId> = work.iter().map(|(_, work)| work.job.clone()).collect();
        let catalog = self.catalog();
        let (catalog, jobs) =
            futures_util::try_join!(catalog, async { Ok(self.ports.store.get(&ids).await?) })?;
        let now = self.now();
        let mut claiming: Vec<(usize, Claimed)> = Vec::with_capacity(work.len());
        let mut txns: Vec<Txn> = Vec::new();
        for ((index, work), job) in work.iter().zip(jobs) {
            // The grant of a job that cannot be read keeps its slot.
            let Ok(Some(job)) = job else { continue };
            // It is left to a release that can read its type: a tick of that sends it again.
            if catalog.is_unreadable(ItemKind::Type, job.spec.job_type.as_str()) {
                continue;
            }
            let Some(lease) = lease(&catalog, &job) else { continue };
            let event = Event::Claim {
                version: work.version,
                token: match demand.and_then(|demand| demand.call.as_ref()) {
                    Some(call) => call.next_token(&job),
                    None => Token::new(self.ports.entropy.bits()),
                },
                worker: worker.map(str::to_owned),
                lease,
                granted: true,
                decided_at: work.granted_at.unwrap_or(now),
            };
            let Ok(claimed) = job.apply(event, now) else {
                continue;
            };
            txns.push(vec![Write::SetJob {
                job: claimed.clone(),
                was: job.life.revision,
                all: false,
            }]);
            claiming.push((
                *index,
                Claimed { demand: 0, run_at: job.life.run_at().unwrap_or(now), job: claimed },
            ));
        }
        if let Some(demand) = demand {
            let claimed = claiming.iter().map(|(_, claimed)| (claimed.demand, &claimed.job));
            let records = lease_records(std::slice::from_ref(demand), &claimed);
            self.write_lease_records(records, &mut txns).await?;
        }
        let outcomes = if txns.is_empty() { Vec::new() } else { self.write_claims(txns).await? };
        for ((index, claimed), outcome) in claiming.into_iter().zip(outcomes) {
            let done = match outcome {
                Committed::All => true,
                // A refused claim that finds its own token has succeeded: its first answer was
                // lost.
                Committed::Conflict { current: CurrentRecord::Job(there), .. } => {
                    tick::same_claim(&there, &claimed.job)
                }
                Committed::Conflict { .. } => false,
            };
            if done {
                self.cache_job(&claimed.job);
                claims[index] = Some(claimed);
            }
        }
        Ok(())
    }

    /// Waits before a commit whose answer was lost is repeated for the time of this number.
    pub(super) async fn pause_before(&self, repeat: u32) {
        let longest = MAX_REPEAT_DELAY.min(FIRST_REPEAT_DELAY * (1 << repeat));
        let pause = longest.mul_f64(self.ports.entropy.fraction());
        self.ports.clock.sleep_until(self.now() + pause).await;
    }

    /// Commits claims, and repeats the commit if some of them may have happened: a claimed job
    /// whose claim is not known runs nowhere until its lease ends.
    ///
    /// A repeated claim that had happened is refused, and its refusal has the job with the token
    /// of the claim ([`tick::same_claim`]).
    ///
    /// # Errors
    ///
    /// The store's. After [`StoreError::Throttled`] and [`StoreError::NotLeader`] nothing was claimed;
    /// otherwise that is unknown.
    pub(super) async fn write_claims(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        let store = &self.ports.store;
        // A store of one process answers, and its commits are not worth a copy.
        if store.capabilities().is_exclusive() {
            return store.commit(txns).await;
        }
        for repeat in 0..MAX_REPEATS {
            match store.commit(txns.clone()).await {
                Err(StoreError::Unavailable(_) | StoreError::OutcomeUnknown { .. }) => {}
                // The table refused a repeat, but an earlier try may have claimed some.
                Err(StoreError::Throttled { .. } | StoreError::NotLeader { .. }) if repeat > 0 => {}
                done => return done,
            }
            self.pause_before(repeat).await;
        }
        match store.commit(txns).await {
            Err(StoreError::Throttled { message, .. }) => Err(StoreError::unavailable(message)),
            Err(refused @ StoreError::NotLeader { .. }) => Err(StoreError::unavailable(refused)),
            done => done,
        }
    }

    /// Claims jobs of a queue that had no ledger when they were sent. If it has one now, they have
    /// no grant, and its ticks find them. `read` is the configuration, once it was read.
    async fn claim_unlimited(
        &self,
        queue: &QueueName,
        named: Vec<Work>,
        worker: Option<&str>,
        read: &mut Option<Arc<Catalog>>,
    ) -> Result<HashMap<JobId, Claimed>, Error> {
        let mut claimed = HashMap::new();
        let mut named = named;
        for attempt in 0..MAX_CLAIM_RETRIES {
            let catalog = match read.take().filter(|_| attempt == 0) {
                Some(catalog) => catalog,
                None => self.catalog().await?,
            };
            *read = Some(Arc::clone(&catalog));
            let limits = catalog.limits(queue);
            if !self.is_unlimited_under(queue, &catalog, &limits).await? {
                break;
            }
            let types = catalog.types_of(queue).map(|(name, _)| name.clone()).collect();
            let demand = Demand {
                min: 0,
                types,
                capacity: named.len() as u32,
                worker: worker.map(str::to_owned),
                lease: None,
                dispatch: Dispatch::Claim,
                call: None,
            };
            let outcome = self.tick_named(queue, &named, demand, &catalog, &limits).await?;
            claimed.extend(
                outcome.claimed.into_iter().map(|claimed| (claimed.job.id.clone(), claimed)),
            );
            named.retain(|work| !claimed.contains_key(&work.job));
            if !outcome.again || named.is_empty() {
                break;
            }
        }
        Ok(claimed)
    }
}
