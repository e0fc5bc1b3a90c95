//! The changes of a page of jobs by a bulk operation: one commit for all of them.

use super::{Server, StoredOperation};
use tidegate_core::{
    error_code::ErrorCode,
    job::{Job, JobId, State},
    time::Timestamp,
};
use tidegate_engine::{
    Error,
    jobs::list::chunks_of_bytes,
    request::{
        BulkKind, BulkPatch, JobPatch, MAX_SAMPLE, MAX_SKIPPED_JOBS, Replay, ReplayWith, SkippedJob,
    },
};

/// Bytes of data that are replayed at once, unless one job has more.
const MAX_REPLAYED_BYTES: usize = 16 << 20;

/// What an operation did to one job: nothing if it is skipped.
pub(super) type Change = Result<Option<SkippedJob>, Error>;

impl StoredOperation {
    /// Counts what was done to a job, or what a dry run would do.
    pub(super) fn count(&mut self, id: JobId, change: Change) {
        let operation = &mut self.operation;
        match change {
            Ok(None) => {
                operation.done += 1;
                if self.dry_run && operation.sample.len() < MAX_SAMPLE {
                    operation.sample.push(id);
                }
            }
            Ok(Some(skipped)) => {
                operation.skipped += 1;
                if operation.skipped_jobs.len() < MAX_SKIPPED_JOBS {
                    operation.skipped_jobs.push(skipped);
                }
            }
            Err(_) => operation.refused += 1,
        }
    }

    /// What it would do to `job`, as far as the job's record shows.
    fn would_change(&self, job: &Job) -> Change {
        let is_scheduled = matches!(job.life.state, State::Scheduled { .. });
        let (applies, code) = match self.operation.kind {
            BulkKind::Cancel => (job.life.ended().is_none(), ErrorCode::Ended),
            BulkKind::Purge | BulkKind::Patch => (is_scheduled, ErrorCode::NotScheduled),
            BulkKind::Replay => (!is_scheduled, ErrorCode::JobNotFinished),
        };
        if !applies {
            let message = "the state of the job does not allow it".to_owned();
            return Err(Error::Conflict { code, message, holder: None });
        }
        let replay = job
            .life
            .replayed_by
            .clone()
            .filter(|_| self.operation.kind == BulkKind::Replay && !self.again);
        Ok(replay.map(|holder| skipped(job.id.clone(), ErrorCode::AlreadyReplayed, holder)))
    }
}

fn skipped(id: JobId, code: ErrorCode, holder: JobId) -> SkippedJob {
    SkippedJob { id, reason: code.as_str().to_owned(), holder }
}

impl Server {
    /// Applies the operation to `jobs`, which were just read. Returns one answer per job, in order.
    pub(super) async fn apply_each(&self, stored: &StoredOperation, jobs: &[Job]) -> Vec<Change> {
        if stored.dry_run {
            return jobs.iter().map(|job| stored.would_change(job)).collect();
        }
        let (engine, jobs) = (&self.inner.engine, jobs.to_vec());
        let altered = match stored.operation.kind {
            BulkKind::Replay => return self.apply_replays(stored, jobs).await,
            BulkKind::Cancel => {
                let cancelled = engine.cancel_each(jobs, false).await.into_iter();
                cancelled.map(|answer| answer.map(|(before, after)| (before, after.job))).collect()
            }
            BulkKind::Purge => engine.drop_each(jobs, "the queue was purged").await,
            BulkKind::Patch => {
                let BulkPatch { run_at, windows, priority } =
                    stored.patch.clone().unwrap_or_default();
                let run_at = run_at.map(|at| at.unwrap_or(Timestamp::EPOCH));
                let patch = JobPatch { run_at, windows, priority, ..JobPatch::default() };
                let count = jobs.len();
                match engine.patch_each(jobs, patch).await {
                    Ok(altered) => altered,
                    Err(error) => vec![Err(error); count],
                }
            }
        };
        let announce = |answer: Result<(Job, Job), Error>| {
            let (before, after) = answer?;
            if before.life.version != after.life.version {
                self.inner.on_superseded(&after, before.life.version);
            }
            Ok(None)
        };
        altered.into_iter().map(announce).collect()
    }

    async fn apply_replays(&self, stored: &StoredOperation, jobs: Vec<Job>) -> Vec<Change> {
        let with = ReplayWith { again: stored.again, ..ReplayWith::default() };
        let mut changes = Vec::with_capacity(jobs.len());
        for jobs in chunks_of_bytes(jobs, MAX_REPLAYED_BYTES, |job| job.data.len()) {
            let ids: Vec<JobId> = jobs.iter().map(|job| job.id.clone()).collect();
            let replay = |job: Job| {
                // By this a repeated page finds the job that it made before.
                let key = stored.again.then(|| format!("{}#{}", stored.operation.id, job.id));
                Replay { job, with: with.clone(), idempotency_key: key }
            };
            let answers = self.replay_each(jobs.into_iter().map(replay).collect()).await;
            let began_at = stored.operation.created_at;
            changes.extend(ids.into_iter().zip(answers).map(|(id, answer)| match answer {
                Ok(replay) if !replay.new && replay.job.spec.created_at < began_at => {
                    Ok(Some(skipped(id, ErrorCode::AlreadyReplayed, replay.job.id)))
                }
                Ok(_) => Ok(None),
                Err(Error::Conflict {
                    code: code @ (ErrorCode::AlreadyReplayed | ErrorCode::CorrelationKeyTaken),
                    holder: Some(holder),
                    ..
                }) => Ok(Some(skipped(id, code, holder))),
                Err(error) => Err(error),
            }));
        }
        changes
    }
}
