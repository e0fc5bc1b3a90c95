//! The change of one job by a bulk operation.

use super::{Server, StoredOperation};
use tidegate_core::{error_code::ErrorCode, job::Job};
use tidegate_engine::{
    Error,
    request::{BulkKind, BulkPatch, JobPatch, ReplayWith, SkippedJob},
};

impl Server {
    /// Applies the operation to `job`. Returns it if it is skipped.
    pub(super) async fn apply_to(
        &self,
        stored: &StoredOperation,
        job: &Job,
    ) -> Result<Option<SkippedJob>, Error> {
        match stored.operation.kind {
            BulkKind::Cancel => self.cancel(&job.id, None, false).await.map(drop)?,
            BulkKind::Replay => return self.replay_one(stored, job).await,
            BulkKind::Purge => {
                let (before, after) =
                    self.inner.engine.drop_job(&job.id, "the queue was purged").await?;
                self.inner.on_superseded(&after, before.life.version);
            }
            BulkKind::Patch => {
                let BulkPatch { windows, priority } = stored.patch.clone().unwrap_or_default();
                let patch = JobPatch { windows, priority, ..JobPatch::default() };
                self.patch(&job.id, None, patch, None).await.map(drop)?;
            }
        }
        Ok(None)
    }

    /// Replays `job`, unless it was replayed before, or a live job has its key.
    async fn replay_one(
        &self,
        stored: &StoredOperation,
        job: &Job,
    ) -> Result<Option<SkippedJob>, Error> {
        let skipped = |code: ErrorCode, holder| {
            let (id, reason) = (job.id.clone(), code.as_str().to_owned());
            Ok(Some(SkippedJob { id, reason, holder }))
        };
        let with = ReplayWith { again: stored.again, ..ReplayWith::default() };
        // By this a repeated page finds the job that it made before.
        let key = stored.again.then(|| format!("{}#{}", stored.operation.id, job.id));
        match self.replay(&job.id, None, with, key).await {
            Ok(replay)
                if !replay.new && replay.job.spec.created_at < stored.operation.created_at =>
            {
                skipped(ErrorCode::AlreadyReplayed, replay.job.id)
            }
            Ok(_) => Ok(None),
            Err(Error::Conflict {
                code: code @ (ErrorCode::AlreadyReplayed | ErrorCode::CorrelationKeyTaken),
                holder: Some(holder),
                ..
            }) => skipped(code, holder),
            Err(error) => Err(error),
        }
    }
}
