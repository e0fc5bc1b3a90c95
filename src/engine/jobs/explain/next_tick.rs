//! The decisions of the next tick of a queue, made without a commit.
//!
//! Everything that says why jobs wait comes from here: `explain` of a job and of a queue, and
//! `held` in the status of a queue. The rules themselves are [`Admission::try_admit`].

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    Engine, Error, LedgerView,
    tick::{Turns, throttle::explain::ThrottlerAnswer},
};
use tidegate_core::{
    job::{Job, QueueName, TypeName},
    port::job_store::DueQuery,
    queue::{
        Admission, AdmissionDecision, Candidate, Limits, Rule, Usage, admission::Hold,
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
    counts: RateCounts,
}

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
        let mut view = engine
            .ports
            .store
            .ledger(queue)
            .await?
            .map(|(ledger, batches)| LedgerView::new(ledger, batches));
        let (usage, counts) = match &mut view {
            Some(view) => (view.usage(&limits).clone(), view.ledger.rate_counts()),
            None => (Usage::default(), RateCounts::default()),
        };
        Ok(Self { queue: queue.clone(), limits, view, now, usage, counts })
    }

    /// Whether `job` has a grant, so that it is about to start.
    pub(super) fn is_granted(&self, job: &Job) -> bool {
        self.view.as_ref().is_some_and(|view| view.granted(&job.id) == Some(job.life.version))
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
        };
        let queries = if self.limits.queue.partition_by.is_some() && !critical {
            // A job of another partition that goes first may reserve what a later one needs.
            let last = self.view.as_ref().and_then(|view| view.ledger.last_partition.as_deref());
            let names = engine.partitions_in_turn(&self.queue, types, last).await?;
            let limit = (most / names.len().max(1) as u32).max(1);
            names
                .into_iter()
                .map(|name| DueQuery { partition: Some(name), limit, ..query.clone() })
                .collect()
        } else {
            vec![query]
        };
        let mut due = DueJobs::default();
        let mut partitions = Vec::with_capacity(queries.len());
        for page in engine.ports.store.due(&queries).await? {
            due.more |= page.more;
            due.next_due = due.next_due.into_iter().chain(page.next_due).min();
            partitions.push(page.jobs.into_iter());
        }
        due.jobs = Turns::of(&mut partitions).collect();
        Ok(due)
    }

    fn admission(&self) -> Admission<'_> {
        Admission::new(&self.limits, self.usage.clone(), self.counts.clone(), self.now)
    }

    /// The decision on each of `candidates`, in order, with the throttler's; and on `last`, if its
    /// turn came after them.
    pub(super) async fn decide(
        &self,
        engine: &Engine,
        candidates: &[Job],
        part: CallPart,
        last: Option<&Job>,
    ) -> Result<(Vec<AdmissionDecision>, Option<AdmissionDecision>), Error> {
        let mut admission = self.admission();
        let throttled = self.limits.queue.throttler.as_ref().and(self.view.as_ref()).map(|view| {
            (view, candidates.iter().filter(|job| !job.spec.critical).collect::<Vec<_>>())
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
        let decisions = candidates
            .iter()
            .map(|job| match answers.remove(&job.id) {
                None | Some(ThrottlerAnswer::Runs) => admission.try_admit(Candidate::of(&job.spec)),
                Some(ThrottlerAnswer::Holds(hold)) => AdmissionDecision::Hold(hold),
                Some(ThrottlerAnswer::NotAsked(rule)) => AdmissionDecision::Hold(Hold {
                    rule,
                    reason: "the throttler decides on the jobs before it first".into(),
                    reserved: true,
                    earliest_at: None,
                }),
            })
            .collect();
        let last = last.map(|job| admission.try_admit(Candidate::of(&job.spec)));
        Ok((decisions, last))
    }
}
