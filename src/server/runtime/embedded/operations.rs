//! Bulk operations of the embedded mode: each runs in a task, and a start resumes what is left.

use crate::runtime::{Server, bulk::StoredOperation};
use tidegate_core::time::Timestamp;
use tidegate_engine::Error;

/// Resumes the operations that a stop interrupted.
pub(in crate::runtime) async fn resume(server: &Server) -> Result<(), Error> {
    for stored in server.unfinished().await? {
        server.spawn_operation(stored);
    }
    Ok(())
}

impl Server {
    /// Runs an operation in a task, unless this process runs it already.
    pub(in crate::runtime) fn spawn_operation(&self, mut stored: StoredOperation) {
        if !self.inner.operations.lock().insert(stored.operation.id.clone()) {
            return;
        }
        let server = self.clone();
        self.inner.spawn(async move {
            let mut stopping = server.inner.stopping.subscribe();
            let outcome = tokio::select! {
                outcome = server.run_operation(&mut stored, Timestamp::MAX) => outcome,
                // The next start resumes it.
                _ = stopping.changed() => return,
            };
            let id = stored.operation.id.clone();
            if let Ok(false) = outcome {
                // Another server continues it.
                server.inner.operations.lock().remove(&id);
                return;
            }
            if let Err(error) = server.finish_operation(stored, outcome, Timestamp::MAX).await {
                tracing::warn!(operation = id, %error, "the end of an operation was not recorded");
            }
            server.inner.operations.lock().remove(&id);
        });
    }
}
