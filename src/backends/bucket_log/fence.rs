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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::{ObjectStoreExt as _, path::Path};

    use super::*;
    use crate::bucket_log::{NodeSettings, key::Epoch, metered::Run};

    /// Whether and how the leader of epoch 2 has stopped after its first read of the fence. The bucket has
    /// lost this object before.
    fn stopped_without(lost: Option<ObjectKey>) -> Vec<String> {
        // An epoch is over after its start and one record.
        let settings = NodeSettings { rollover_records: 2, ..NodeSettings::default() };
        let run = Run::with_leader(1, settings);
        let (client, store) = (Arc::clone(&run), Arc::clone(&run.store));
        assert!(run.complete(async move { client.submit(0, 1).await }), "the node leads");
        // The next epoch begins, and its snapshot is made.
        run.pass(10_000);
        run.complete(async move {
            if let Some(key) = lost {
                store.delete(&Path::from(format!("log/{key}"))).await.unwrap();
            }
        });
        run.pass((INTERVAL + Duration::from_mins(1)).as_millis() as i64);
        let stopped = run.ended.lock().clone();
        run.end();
        stopped
    }

    #[test]
    fn a_leader_stops_once_its_fence_is_gone() {
        assert_eq!(stopped_without(None), [""; 0]);
        let epoch = Epoch::FIRST;
        for lost in [ObjectKey::Claim(epoch.next()), ObjectKey::Slot(Slot { epoch, seq: 2 })] {
            let stopped = stopped_without(Some(lost)).concat();
            let name = lost.to_string();
            assert!(stopped.contains(&name) && stopped.contains("lifecycle rule"), "{stopped}");
        }
    }
}
