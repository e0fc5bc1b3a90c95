//! A round of a queue without a head: every change is a transaction of its own, and a refused one is worked out anew alone.
//!
//! A claim goes through only while the queue is configured as it was seen: the first limit put on a queue makes a head.

use std::collections::{BTreeMap, HashSet};

use super::{
    Known, Memory, Plan, Round, TRIES, Ticked, delivery, same_claim,
    search::{Rooms, Search},
    standing_job, ticked,
};
use crate::{
    engine::{Catalog, Engine, Error, report::Settled, request::Report},
    job::{Job, QueueName},
    port::{
        Committed, Txn, Write,
        job_store::{ItemKind, Standing},
    },
    queue::{Admission, Limits},
};

impl Engine {
    /// A round of a queue without a head: every change on its own.
    pub(super) async fn tick_free(
        &self,
        queue: &QueueName,
        memory: &mut Memory,
        round: &Round,
        known: &mut Known,
        catalog: &Catalog,
        limits: &Limits,
    ) -> Result<Option<Ticked>, Error> {
        let now = self.now();
        let mut plan = Plan { look: memory.look.take(), turn: memory.turn.clone(), lap: memory.lap.take(), ..Plan::default() };
        let mut answers = self.settle_all(round, known, catalog, &mut plan, now);
        let free = Limits {
            queue: crate::queue::QueueConfig { concurrency: None, constraints: Vec::new(), ..limits.queue.clone() },
            ..Limits::default()
        };
        let admission = Admission::new(&free, crate::queue::Usage::default(), BTreeMap::new(), now);
        let rooms = Rooms::of(&round.asks);
        Search { engine: self, queue, catalog, limits, now, granted: None, admission, rooms, plan: &mut plan }.run().await?;

        let require = Write::RequireItem { kind: ItemKind::Queue, name: queue.to_string(), version: limits.version };
        let before = plan.before.len();
        let mut txns: Vec<Txn> = plan.before.iter().map(|change| self.change(change.was, &change.job, false, now)).collect();
        txns.extend(
            plan.claims.iter().map(|claim| vec![require.clone(), Write::SetJob { job: claim.job.clone(), was: claim.was, all: false }]),
        );
        let committed = if txns.is_empty() { Vec::new() } else { self.ports.store.commit(txns).await? };
        let (mut lost, mut stale) = (HashSet::new(), HashSet::new());
        for (index, outcome) in committed.into_iter().enumerate() {
            let Committed::Refused { standing, .. } = outcome else { continue };
            if index >= before {
                let job = &plan.claims[index - before].job;
                // A refused claim that finds its own token has succeeded: its first answer was lost.
                if !matches!(&standing, Standing::Job(there) if same_claim(there, job)) {
                    lost.insert(job.id.clone());
                }
                continue;
            }
            let id = &plan.before[index].job.id;
            stale.insert(id.clone());
            known.jobs.insert(id.clone(), standing_job(standing));
            self.running.lock().remove(id);
        }
        // What was not claimed because something changed is looked for anew.
        plan.again |= !lost.is_empty();
        self.adopt_plain(&plan);
        for change in plan.before.iter().chain(&plan.claims).filter(|change| !lost.contains(&change.job.id)) {
            self.remember(&change.job);
        }
        plan.claimed.retain(|claimed| !lost.contains(&claimed.job.id));
        memory.turn.clone_from(&plan.turn);
        memory.lap.clone_from(&plan.lap);
        memory.look.clone_from(&plan.look);
        plan.ended.retain(|id| !stale.contains(id));
        // What else the round did stands, whatever becomes of these.
        for (report, answer) in round.reports.iter().zip(&mut answers).filter(|(report, _)| stale.contains(&report.id)) {
            *answer = self.settle_again(report, answer, known, catalog).await;
            plan.wake(answer.as_ref().ok().and_then(|job| job.life.run_at()));
        }
        Ok(Some(ticked(plan, answers)))
    }

    /// Settles one report again, until what it was worked out from stands still.
    async fn settle_again(&self, report: &Report, answer: &Result<Job, Error>, known: &mut Known, catalog: &Catalog) -> Result<Job, Error> {
        for _ in 0..TRIES {
            let now = self.now();
            let job = known.jobs.get(&report.id).cloned().flatten().ok_or_else(|| Error::no_job(&report.id))?;
            // Somebody else's write may have led to the same revision: only the same life is ours.
            if answer.as_ref().is_ok_and(|answered| answered.life == job.life) {
                return Ok(job);
            }
            let Settled::Changed(settled) = self.settle(&job, report, delivery(catalog, &job), now)? else { return Ok(job) };
            let writes = self.change(job.life.revision, &settled, false, now);
            match self.ports.store.commit(vec![writes]).await?.pop() {
                Some(Committed::All) => {
                    self.remember(&settled);
                    known.jobs.insert(report.id.clone(), Some((*settled).clone()));
                    return Ok(*settled);
                }
                Some(Committed::Refused { standing, .. }) => drop(known.jobs.insert(report.id.clone(), standing_job(standing))),
                None => break,
            }
        }
        Err(Error::Conflict { code: "contended", message: "the job keeps changing".into(), holder: None })
    }

    /// Notes which jobs were handed on without a claim.
    fn adopt_plain(&self, plan: &Plan) {
        if plan.plain.is_empty() {
            return;
        }
        let mut plain = self.plain.lock();
        let mut running = self.running.lock();
        for change in &plan.plain {
            plain.insert(change.job.id.clone(), change.was);
            running.insert(change.job.id.clone(), change.job.clone());
        }
    }
}
