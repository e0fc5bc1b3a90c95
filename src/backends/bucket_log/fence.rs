//! The fence of a leader, read again while it leads: its own claim, and the seal before it.
//!
//! Neither is ever removed by a node. A rule of the bucket that expires objects can remove them, and
//! then a leader that was frozen for long could acknowledge what no other node sees.

use std::time::Duration;

use super::{
    error::LogError,
    key::{ObjectKey, Slot},
    node::Node,
    replica::Replica,
};

/// How often the fence is read.
const INTERVAL: Duration = Duration::from_hours(12);

impl<R: Replica> Node<R> {
    /// Reads the fence of this leader twice a day. It ends when an object of it is gone, with the reason
    /// why the node stops.
    pub(super) async fn watch_fence(&self) -> LogError {
        loop {
            self.edge.pause(INTERVAL).await;
            match self.missing_fence().await {
                Ok(None) => {}
                Ok(Some(key)) => {
                    let problem = "it is gone; a lifecycle rule of the bucket may expire objects";
                    return LogError::object(&key, problem);
                }
                Err(error) => return error,
            }
        }
    }

    /// The claim of this leader, or the seal of the epoch before it, if it is not there.
    async fn missing_fence(&self) -> Result<Option<ObjectKey>, LogError> {
        let Some(epoch) = self.leadership.epoch() else { return Ok(None) };
        let claim = ObjectKey::Claim(epoch);
        if self.edge.read(&claim).await.is_none() {
            return Ok(Some(claim));
        }
        let Some(before) = epoch.previous() else { return Ok(None) };
        let sealed = self.replica.sealed(before..=before).await?;
        let Some(seq) = sealed.get(&before) else { return Ok(None) };
        let seal = ObjectKey::Slot(Slot { epoch: before, seq: *seq });
        Ok(self.edge.read(&seal).await.is_none().then_some(seal))
    }
}
