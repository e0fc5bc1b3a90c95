//! `claim`: whoever gets granted work starts it, if its grant still stands.

use super::{Engine, Error, tick};
use crate::{
    job::{Event, Job, JobId, Token},
    port::{Committed, Txn, Work, Write, job_store::Standing},
};

impl Engine {
    /// Claims granted work: one answer per piece, the running job, or none if the grant is void, was claimed
    /// before, or is not due. A piece that arrives twice is claimed once.
    ///
    /// # Errors
    ///
    /// The store's. Whether anything was claimed is not known then; what was is found again when its lease ends.
    pub async fn claim(&self, work: &[Work], worker: Option<&str>) -> Result<Vec<Option<Job>>, Error> {
        let ids: Vec<JobId> = work.iter().map(|work| work.job.clone()).collect();
        let catalog = self.catalog().await?;
        let now = self.now();
        let mut claims: Vec<Option<Job>> = Vec::with_capacity(work.len());
        let mut txns: Vec<Txn> = Vec::new();
        for (work, job) in work.iter().zip(self.ports.store.get(&ids).await?) {
            let claim = job.and_then(|job| {
                let event = Event::Claim {
                    version: work.version,
                    token: Token(self.ports.entropy.bits()),
                    worker: worker.map(str::to_owned),
                    lease: tick::push_lease(&catalog, &job),
                    granted: true,
                    decided_at: work.decided_at,
                };
                let claimed = job.apply(event, now).ok()?;
                txns.push(vec![Write::SetJob { job: claimed.clone(), was: job.life.revision, all: false }]);
                Some(claimed)
            });
            claims.push(claim);
        }
        let mut outcomes = if txns.is_empty() { Vec::new() } else { self.ports.store.commit(txns).await? }.into_iter();
        for claim in &mut claims {
            let Some(job) = claim else { continue };
            let done = match outcomes.next() {
                Some(Committed::All) => true,
                // A refused claim that finds its own token has succeeded: its first answer was lost.
                Some(Committed::Refused { standing: Standing::Job(there), .. }) => tick::same_claim(&there, job),
                _ => false,
            };
            if done { self.remember(job) } else { *claim = None }
        }
        // Whoever hears a reply that was kept for it is over. Its grant is released when its batch is looked at next.
        let keyed: Vec<&Job> = claims.iter().flatten().filter(|job| job.spec.correlation_key.is_some()).collect();
        if !keyed.is_empty() {
            let heard = Box::pin(self.hear_kept(&keyed)).await;
            for claim in
                claims.iter_mut().filter(|claim| claim.as_ref().is_some_and(|job| heard.iter().any(|(heard, _)| heard.id == job.id)))
            {
                *claim = None;
            }
        }
        Ok(claims)
    }
}
