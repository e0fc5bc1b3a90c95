//! The changes of a page of jobs by a bulk operation: one commit for all of them.

use futures_util::{StreamExt, stream};

use super::{Server, StoredOperation};
use tidegate_core::{
    error_code::ErrorCode,
    job::{Event, Job, JobId},
    port::JobFilter,
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

/// Jobs of a commit of a store that writes one by one, and how many such commits there are at once.
const SMALL_COMMIT: usize = 25;
const MAX_CONCURRENT_COMMITS: usize = 8;

/// What an operation did to one job: nothing if it is skipped.
pub(super) type ChangeOutcome = Result<Option<SkippedJob>, Error>;

impl StoredOperation {
    /// Counts what was done to a job, or what a dry run would do.
    pub(super) fn count(&mut self, id: JobId, change: ChangeOutcome) {
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

    /// What it would do to `job` at `now`, as far as the job's record shows.
    fn would_change(&self, job: &Job, now: Timestamp) -> ChangeOutcome {
        let (event, code) = match self.operation.kind {
            BulkKind::Cancel => (Event::Cancel { force: false }, ErrorCode::Ended),
            BulkKind::Purge => (Event::Drop { reason: String::new() }, ErrorCode::NotScheduled),
            BulkKind::Patch => (Event::Patch { run_at: None }, ErrorCode::NotScheduled),
            BulkKind::Replay => (Event::Replayed { by: job.id.clone() }, ErrorCode::JobNotFinished),
        };
        job.apply(event, now).map_err(|refused| Error::refused(code, &refused))?;
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
    /// Applies the operation to `jobs`, which were just read and match `filter`. Returns one answer per
    /// job, in order.
    pub(super) async fn apply_each(
        &self,
        stored: &StoredOperation,
        filter: &JobFilter,
        jobs: &[Job],
    ) -> Vec<ChangeOutcome> {
        if stored.dry_run {
            let now = self.now();
            return jobs.iter().map(|job| stored.would_change(job, now)).collect();
        }
        if self.inner.engine.ports().store.capabilities().atomicity.is_atomic() {
            return self.apply_in_one_commit(stored, filter, jobs.to_vec()).await;
        }
        // A lost answer leaves few jobs in doubt.
        let commits = jobs.chunks(SMALL_COMMIT);
        let commits: Vec<_> =
            commits.map(|jobs| self.apply_in_one_commit(stored, filter, jobs.to_vec())).collect();
        let outcomes = stream::iter(commits).buffered(MAX_CONCURRENT_COMMITS);
        outcomes.collect::<Vec<_>>().await.concat()
    }

    async fn apply_in_one_commit(
        &self,
        stored: &StoredOperation,
        filter: &JobFilter,
        jobs: Vec<Job>,
    ) -> Vec<ChangeOutcome> {
        let engine = &self.inner.engine;
        let began_at = stored.operation.created_at;
        let moves = stored.patch.as_ref().is_some_and(|patch| patch.run_at.is_some());
        // A page that is repeated must not move a job that has run since.
        let has_run = |job: &Job| moves && job.life.started_at.is_some_and(|at| at > began_at);
        let only = |job: &Job, now: Timestamp| filter.matches(job, now) && !has_run(job);
        let altered = match stored.operation.kind {
            BulkKind::Replay => return self.apply_replays(stored, jobs).await,
            BulkKind::Cancel => {
                let cancelled = engine.cancel_each(jobs, false, &only).await.into_iter();
                cancelled.map(|answer| answer.map(|(before, after)| (before, after.job))).collect()
            }
            BulkKind::Purge => engine.drop_each(jobs, "the queue was purged", &only).await,
            BulkKind::Patch => {
                let BulkPatch { run_at, windows, priority } =
                    stored.patch.clone().unwrap_or_default();
                let run_at = run_at.map(|at| at.unwrap_or(began_at));
                let patch = JobPatch { run_at, windows, priority, ..JobPatch::default() };
                let count = jobs.len();
                match engine.patch_each(jobs, patch, &only).await {
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

    async fn apply_replays(&self, stored: &StoredOperation, jobs: Vec<Job>) -> Vec<ChangeOutcome> {
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
