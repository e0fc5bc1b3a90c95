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
    job::JobId,
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
    pub async fn enqueue_requests(
        &self,
        jobs: Vec<(JobId, NewJob)>,
    ) -> Vec<Result<Enqueued, Error>> {
        let (ids, jobs): (Vec<JobId>, Vec<NewJob>) =
            jobs.into_iter().map(|(id, job)| (id.clone(), NewJob { id: Some(id), ..job })).unzip();
        let with = ids.iter().map(|id| EnqueueWrites {
            inbox_request: Some(id.clone()),
            ..EnqueueWrites::default()
        });
        let answers = self.enqueue_with(jobs, with.collect()).await;
        // A job that stays as it is answers without a write.
        let left: Vec<Txn> = ids
            .into_iter()
            .zip(&answers)
            .filter(|(_, answer)| answer.as_ref().is_ok_and(|enqueued| !enqueued.new))
            .map(|(id, _)| vec![Write::TakeRequest(id)])
            .collect();
        if !left.is_empty()
            && let Err(error) = self.ports.store.commit(left).await
        {
            // The next read finds the same answer, or another job.
            tracing::warn!(%error, "answered requests are still in the inbox");
        }
        answers
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
