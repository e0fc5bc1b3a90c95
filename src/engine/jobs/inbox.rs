//! Requests of the inbox become jobs, or dead letters if they are refused.
//!
//! The transaction that adds a job removes its request. So a server that was frozen for days, or two
//! that read the same page, add no job twice.

use crate::{
    Engine, Error,
    events::dead_letters::DeadLetter,
    jobs::enqueue::EnqueueWrites,
    request::{Enqueued, NewJob},
};
use tidegate_core::{
    error_code::ErrorCode,
    event::Event,
    job::{JobId, spec::Unique},
    port::{Committed, Txn, Write},
};

/// A request of the inbox that is refused.
#[derive(Debug)]
pub struct RefusedRequest {
    /// The id that its job would have had.
    pub id: JobId,
    /// Why.
    pub reason: String,
    /// The request as an event, which its dead letter shows.
    pub event: Event,
}

impl Engine {
    /// Adds the jobs of requests that are in the inbox under the same ids, and removes the requests.
    /// Returns one answer per job, in order. A request that another server has taken is answered with
    /// [`Error::Stale`]; after another error it stays in the inbox.
    ///
    /// A request whose job another one answers, because they share a unique key, is removed after
    /// that. A repeat after a crash between the two finds the same answer.
    ///
    /// # Errors
    ///
    /// The store's, for the removal of those requests.
    pub async fn enqueue_requests(
        &self,
        jobs: Vec<(JobId, NewJob)>,
    ) -> Result<Vec<Result<Enqueued, Error>>, Error> {
        let (ids, jobs): (Vec<JobId>, Vec<NewJob>) =
            jobs.into_iter().map(|(id, job)| (id.clone(), NewJob { id: Some(id), ..job })).unzip();
        // A job with writes of its own cannot change one that waits.
        let merging: Vec<bool> = jobs
            .iter()
            .map(|job| job.options.unique.as_ref().is_some_and(Unique::merges))
            .collect();
        let take = |id: &JobId| vec![Write::TakeRequest(id.clone())];
        let with = ids.iter().zip(&merging).map(|(id, merges)| EnqueueWrites {
            require: if *merges { Vec::new() } else { take(id) },
            ..EnqueueWrites::default()
        });
        let answers = self.enqueue_with(jobs, with.collect()).await;
        let left: Vec<Txn> = ids
            .iter()
            .zip(&merging)
            .zip(&answers)
            .filter(|((_, merges), answer)| {
                answer.as_ref().is_ok_and(|enqueued| **merges || !enqueued.new)
            })
            .map(|((id, _), _)| take(id))
            .collect();
        if !left.is_empty() {
            // Another server may have removed some.
            self.ports.store.commit(left).await?;
        }
        Ok(answers)
    }

    /// Removes requests from the inbox, each with a dead letter. Those that another server has taken
    /// are left out. Returns how many were refused.
    ///
    /// # Errors
    ///
    /// The store's: some may be refused, and the others are still in the inbox.
    pub async fn refuse_requests(&self, refused: Vec<RefusedRequest>) -> Result<u64, Error> {
        if refused.is_empty() {
            return Ok(0);
        }
        let now = self.now();
        self.make_room(refused.len() as u64).await?;
        let letter = |RefusedRequest { id, reason, event }: RefusedRequest| {
            let letter = self.letter(DeadLetter::new(None, reason, &event, now))?;
            Ok(vec![Write::TakeRequest(id), Write::PutRecord(letter)])
        };
        let txns = refused.into_iter().map(letter).collect::<Result<Vec<Txn>, Error>>()?;
        let committed = self.ports.store.commit(txns).await?;
        let all = committed.iter().filter(|one| matches!(one, Committed::All));
        Ok(all.count() as u64)
    }
}

/// Whether a repeat of an enqueue that failed with `error` would fail too, until someone changes the
/// request or the configuration.
pub fn is_final(error: &Error) -> bool {
    match error {
        Error::Conflict { code, .. } => *code != ErrorCode::ConcurrentUpdate,
        Error::Invalid { .. }
        | Error::NotFound { .. }
        | Error::TooLarge { .. }
        | Error::Forbidden(_) => true,
        Error::Stale { .. }
        | Error::Unavailable { .. }
        | Error::Unreadable(_)
        | Error::Internal(_) => false,
    }
}
