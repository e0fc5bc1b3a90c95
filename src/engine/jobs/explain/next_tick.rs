//! The decisions of the next tick of a queue, made without a commit.
//!
//! Everything that says why jobs wait comes from here: `explain` of a job and of a queue, and
//! `held` in the status of a queue. The rules themselves are [`Admission::try_admit`].

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use crate::{
    Engine, Error, LedgerView,
    tick::{Turns, line::place_of, throttle::explain::ThrottlerAnswer},
};
use tidegate_core::{
    job::{Job, JobId, QueueName, TypeName},
    port::{
        StoreError,
        job_store::{DueQuery, last_id},
    },
    queue::{
        Admission, AdmissionDecision, Candidate, Grant, Limits, Rule, Usage, admission::Hold,
        order::Order, rate::RateCounts,
    },
    time::Timestamp,
};

/// A queue as its next tick would find it.
pub(super) struct NextTick {
    pub(super) queue: QueueName,
    pub(super) limits: Arc<Limits>,
    pub(super) view: Option<LedgerView>,
    pub(super) now: Timestamp,
    pub(super) usage: Usage,
    /// Why it admits nothing, whatever its limits and its throttler say.
    pub(super) blocked: Option<Blocked>,
    counts: RateCounts,
}

/// Why a tick admits nothing: what runs in the queue is not known.
pub(super) struct Blocked {
    pub(super) reason: String,
    /// When that ends, if it is known.
    pub(super) until: Option<Timestamp>,
}

/// Why a job waits for a limit that has room for it, but not for all due jobs.
const BY_JOBS_BEFORE: &str = "the due jobs before it take the rest of the limit when they start";

/// How many running jobs one read returns.
const PAGE_JOBS: u32 = 1000;

/// Due jobs in the order in which a tick considers them.
#[derive(Default)]
pub(super) struct DueJobs {
    pub(super) jobs: Vec<Job>,
    /// Whether there are more.
    pub(super) more: bool,
    /// When the next job is due.
    pub(super) next_due: Option<Timestamp>,
}

/// Which candidates a call of the throttler is about, if one call cannot have all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallPart {
    First,
    Last,
}

impl NextTick {
    pub(super) async fn read(
        engine: &Engine,
        queue: &QueueName,
        now: Timestamp,
    ) -> Result<Self, Error> {
        let limits = engine.catalog().await?.limits(queue);
        let (mut view, mut blocked) = match engine.ports.store.ledger(queue).await {
            Ok(None) => (None, None),
            Ok(Some((ledger, batches))) => match LedgerView::whole(ledger, batches) {
                Ok(view) => (Some(view), None),
                Err(error) => (None, Some(Blocked::by_damage(&error))),
            },
            Err(error @ StoreError::Corrupt(_)) => {
                (None, Some(Blocked::by_damage(&Error::from(error))))
            }
            Err(error) => return Err(error.into()),
        };
        let (usage, counts) = match &mut view {
            Some(view) => (view.usage(&limits).clone(), view.ledger.rate_counts()),
            None => (Usage::default(), RateCounts::default()),
        };
        if let Some(until) = view.as_ref().and_then(|view| view.ledger.settling_until) {
            blocked = settling(engine, queue, until, now).await?;
        }
        Ok(Self { queue: queue.clone(), limits, view, now, usage, blocked, counts })
    }

    /// Whether `job` has a grant, so that it is about to start.
    pub(super) fn is_granted(&self, job: &Job) -> bool {
        self.view
            .as_ref()
            .and_then(|view| view.grant(&job.id))
            .is_some_and(|grant| grant.starts(job))
    }

    /// Those of `jobs`, in the order of a tick, that others of their partitions hold back, in a queue
    /// with strict order.
    pub(super) fn held_back(&self, jobs: &[Job]) -> HashSet<JobId> {
        let mut first: BTreeMap<String, JobId> = BTreeMap::new();
        for grant in self.view.iter().flat_map(LedgerView::live).filter(|grant| !grant.critical) {
            if let Some(place) = place_of(&self.limits, &grant.attributes) {
                first.insert(place, grant.job.clone());
            }
        }
        let mut held = HashSet::new();
        for job in jobs.iter().filter(|job| !job.spec.critical) {
            if let Some(place) = place_of(&self.limits, &job.spec.attributes)
                && *first.entry(place).or_insert_with(|| job.id.clone()) != job.id
            {
                held.insert(job.id.clone());
            }
        }
        held
    }

    /// The job that goes before `job` in a queue with strict order: one of its partition that has
    /// started, or else the first that is due.
    pub(super) async fn ahead_in_line(
        &self,
        engine: &Engine,
        job: &Job,
    ) -> Result<Option<JobId>, Error> {
        let Some(place) =
            place_of(&self.limits, &job.spec.attributes).filter(|_| !job.spec.critical)
        else {
            return Ok(None);
        };
        let is_there = |grant: &&Grant| {
            !grant.critical && place_of(&self.limits, &grant.attributes).as_ref() == Some(&place)
        };
        if let Some(started) = self.view.iter().flat_map(LedgerView::live).find(is_there) {
            return Ok(Some(started.job.clone()).filter(|id| *id != job.id));
        }
        let types = engine.catalog().await?;
        let types = types.types_of(&self.queue).map(|(name, _)| name.clone()).collect();
        let query = DueQuery {
            queue: self.queue.clone(),
            critical: false,
            types,
            partition: Some(job.spec.partition.clone()),
            order: Order::of(&self.limits.queue),
            until: self.now,
            after: None,
            limit: 1,
            granted: None,
        };
        let first = engine.ports.store.due(&[query]).await?.pop().unwrap_or_default().jobs.pop();
        Ok(first.map(|first| first.id).filter(|id| *id != job.id))
    }

    /// Since when `rule` holds a job of the queue, if the ledger knows.
    pub(super) fn held_since(&self, rule: &Rule) -> Option<Timestamp> {
        self.view.as_ref().and_then(|view| view.ledger.held.get(rule).copied())
    }

    /// The due jobs of `types` that a tick reads together, at most `most`: critical ones, or the
    /// others. In a queue with partitions, the others take turns.
    pub(super) async fn due(
        &self,
        engine: &Engine,
        types: &[TypeName],
        critical: bool,
        most: u32,
    ) -> Result<DueJobs, Error> {
        let query = DueQuery {
            queue: self.queue.clone(),
            critical,
            types: types.to_vec(),
            partition: None,
            order: Order::of(&self.limits.queue),
            until: self.now,
            after: None,
            limit: most,
            granted: None,
        };
        let queries = if self.limits.queue.partition_by.is_some() && !critical {
            // A job of another partition that goes first may reserve what a later one needs.
            let last = self.view.as_ref().and_then(|view| view.ledger.last_partition.as_deref());
            let turn = engine
                .partitions_in_turn(&self.queue, types, self.now, last, &BTreeSet::new())
                .await?;
            let limit = (most / turn.names.len().max(1) as u32).max(1);
            if turn.names.is_empty() {
                // When the next job is due.
                vec![DueQuery { limit: 1, ..query }]
            } else {
                turn.names
                    .into_iter()
                    .map(|name| DueQuery { partition: Some(name), limit, ..query.clone() })
                    .collect()
            }
        } else {
            vec![query]
        };
        let mut due = DueJobs::default();
        let mut partitions = Vec::with_capacity(queries.len());
        for page in engine.ports.store.due(&queries).await? {
            due.more |= page.next.is_some();
            due.next_due = due.next_due.into_iter().chain(page.next_due).min();
            partitions.push(page.jobs.into_iter());
        }
        due.jobs = Turns::of(&mut partitions).collect();
        Ok(due)
    }

    /// The limits, used by what runs and by what is granted, and by nothing that waits.
    pub(super) fn admission(&self) -> Admission<'_> {
        Admission::new(&self.limits, self.usage.clone(), self.counts.clone(), self.now)
    }

    /// The decision on each of `jobs`, in order, with the throttler's; and on `last`, if its turn
    /// came after them. A tick reads only jobs that a worker takes, those of `is_taken`. Of another
    /// one, the decision is the limits' once it had a worker.
    pub(super) async fn decide(
        &self,
        engine: &Engine,
        jobs: &[Job],
        is_taken: &(dyn Fn(&Job) -> bool + Sync),
        part: CallPart,
        last: Option<&Job>,
    ) -> Result<(Vec<AdmissionDecision>, Option<AdmissionDecision>), Error> {
        let mut admission = self.admission();
        let mut if_all_are_taken = (!jobs.iter().all(is_taken)).then(|| admission.clone());
        let throttled = self.limits.queue.throttler.as_ref().and(self.view.as_ref()).map(|view| {
            let asked = jobs.iter().filter(|job| !job.spec.critical && is_taken(job));
            (view, asked.collect::<Vec<_>>())
        });
        let mut answers = match throttled {
            Some((view, jobs)) => {
                let mut checks = admission.clone();
                let fits =
                    |job: &&Job| checks.check(Candidate::of(&job.spec)) == AdmissionDecision::Run;
                let fitting: Vec<Job> = jobs.into_iter().filter(fits).cloned().collect();
                engine.explain_throttler(&self.limits, view, &fitting, part, self.now).await?
            }
            None => BTreeMap::new(),
        };
        let decide = |job: &Job| {
            let candidate = Candidate::of(&job.spec);
            let if_all = if_all_are_taken.as_mut().map(|admission| admission.try_admit(candidate));
            match (if_all, answers.remove(&job.id)) {
                (Some(decision), _) if !is_taken(job) => decision,
                (_, None | Some(ThrottlerAnswer::Runs)) => {
                    admission.try_admit(Candidate::of(&job.spec))
                }
                (_, Some(ThrottlerAnswer::Holds(hold))) => AdmissionDecision::Hold(hold),
                (_, Some(ThrottlerAnswer::NotAsked(rule))) => AdmissionDecision::Hold(Hold {
                    rule,
                    reason: "the throttler decides on the jobs before it first".into(),
                    reserved: true,
                    earliest_at: None,
                }),
            }
        };
        let decisions = jobs.iter().map(decide).collect();
        let last = last.map(|job| admission.try_admit(Candidate::of(&job.spec)));
        Ok((decisions, last))
    }
}

/// What holds `job`, without the claim that due jobs before it already use a limit: they go first, but
/// they have not started. `running` is [`NextTick::admission`].
pub(super) fn by_jobs_before(running: &mut Admission<'_>, job: &Job, hold: Hold) -> Hold {
    let is_limit =
        matches!(hold.rule, Rule::Concurrency | Rule::TypeConcurrency(_) | Rule::Constraint(..));
    if !is_limit || hold.earliest_at.is_some() {
        return hold;
    }
    match running.check(Candidate::of(&job.spec)) {
        AdmissionDecision::Run => Hold { reason: BY_JOBS_BEFORE.to_owned(), ..hold },
        _ => hold,
    }
}

impl Blocked {
    fn by_damage(error: &Error) -> Self {
        let reason = format!("the record of what runs in the queue cannot be read: {error}");
        Self { reason, until: None }
    }
}

/// Why a new ledger that settles until `until` admits nothing. None if it is about to begin.
async fn settling(
    engine: &Engine,
    queue: &QueueName,
    until: Timestamp,
    now: Timestamp,
) -> Result<Option<Blocked>, Error> {
    if now < until {
        let reason = "the first limit of the queue begins: the jobs that run are counted".into();
        return Ok(Some(Blocked { reason, until: Some(until) }));
    }
    let mut after: Option<JobId> = None;
    loop {
        let page = engine.ports.store.running(queue, after.as_ref(), PAGE_JOBS).await?;
        if let Some(unreadable) = page.iter().find_map(|job| job.as_ref().err()) {
            let id = &unreadable.id;
            let reason = format!("job {id} cannot be read, and may run and count for the limits");
            return Ok(Some(Blocked { reason, until: None }));
        }
        after = last_id(&page);
        if page.len() < PAGE_JOBS as usize || after.is_none() {
            return Ok(None);
        }
    }
}
