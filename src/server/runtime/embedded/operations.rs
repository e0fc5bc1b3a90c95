//! Bulk operations of the embedded mode: each runs in a task, and a start resumes what is left.

use crate::runtime::{Server, bulk::StoredOperation};
use tidegate_core::{port::job_store::ItemKind, time::Timestamp};
use tidegate_engine::Error;

/// Resumes the operations that a stop interrupted.
pub(in crate::runtime) async fn resume(server: &Server) -> Result<(), Error> {
    for item in server.inner.engine.ports().store.items(ItemKind::Operation).await? {
        match serde_json::from_slice::<StoredOperation>(&item.bytes) {
            Ok(stored) if stored.operation.ended_at.is_none() => server.spawn_operation(stored),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(
                    operation = item.name,
                    %error,
                    "a stored operation cannot be decoded"
                );
            }
        }
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
        tokio::spawn(async move {
            let mut stopping = server.inner.stopping.subscribe();
            let outcome = tokio::select! {
                outcome = server.run_operation(&mut stored, Timestamp::MAX) => outcome,
                // The next start resumes it.
                _ = stopping.changed() => return,
            };
            let id = stored.operation.id.clone();
            if let Err(error) = server.finish_operation(stored, outcome).await {
                tracing::warn!(operation = id, %error, "the end of an operation was not recorded");
            }
            server.inner.operations.lock().remove(&id);
        });
    }
}
