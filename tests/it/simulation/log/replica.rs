//! The replica of a node, which shows the [`Model`](super::super::model::Model) what it applies. Each
//! record counts once, when the first node applies it.

use std::{collections::BTreeMap, ops::RangeInclusive, sync::Arc};

use async_trait::async_trait;
use tidegate_backends::{
    bucket_log::{
        Durable, Frozen, Replica, ReplicaError, Restored, SnapshotParts, Tail,
        immediate::Immediate,
        key::{Epoch, Slot},
        object::{Hash, Object},
    },
    sqlite::{SqliteReplica, transactions},
};
use tidegate_core::port::{Txn, Write, job_store::Committed};

use super::Log;
use crate::simulation::model::Model;

/// The history of a log, as the nodes have applied it.
pub struct History {
    pub tail: Tail,
    /// The hash of each object, and which of its transactions happened.
    objects: BTreeMap<Slot, (Hash, Vec<bool>)>,
}

impl Default for History {
    fn default() -> Self {
        Self { tail: Tail::START, objects: BTreeMap::new() }
    }
}

/// The replica of a node.
pub struct ObservedReplica {
    pub inner: Immediate<SqliteReplica>,
    pub node: usize,
    pub log: Arc<Log>,
}

impl ObservedReplica {
    /// The node has applied `object`, with these answers.
    fn note(&self, object: &Object, answers: &[Committed]) {
        let (slot, hash) = (object.header.slot, object.hash());
        let happened: Vec<bool> =
            answers.iter().map(|answer| matches!(answer, Committed::All)).collect();
        let history = &mut *self.log.history.lock();
        let model = &mut *self.log.model.lock();
        let node = self.node;
        if let Some(known) = history.objects.get(&slot) {
            if *known != (hash, happened) {
                model.fault(format!("B2: node {node} applied {slot} otherwise than another node"));
            }
            return;
        }
        let Tail { next, hash: before, .. } = history.tail;
        if (next, before) != (slot, object.header.previous) {
            model.fault(format!("B2: node {node} applied {slot}, and the history is at {next}"));
            return;
        }
        let now = self.log.executor.scheduler.now();
        for (mut txn, happened) in transactions(object).unwrap().into_iter().zip(&happened) {
            if *happened {
                restore_data(&mut txn, model);
                model.observe(&txn, now);
            }
        }
        history.tail = Tail::after(object);
        history.objects.insert(slot, (hash, happened));
    }
}

/// A change of the lifecycle alone is in the log without the data of the job.
fn restore_data(txn: &mut Txn, model: &Model) {
    for write in txn {
        if let Write::SetJob { job, all: false, .. } = write
            && let Some(there) = model.jobs.get(&job.id)
        {
            job.data = there.data.clone();
        }
    }
}

#[async_trait]
impl Replica for ObservedReplica {
    type Answer = Committed;

    fn schema(&self) -> u64 {
        self.inner.schema()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn tail(&self) -> Tail {
        self.inner.tail()
    }

    async fn apply(&self, objects: Vec<Durable>) -> Result<Vec<Vec<Committed>>, ReplicaError> {
        let answers = self.inner.apply(objects.clone()).await?;
        for (object, answers) in objects.iter().zip(&answers) {
            self.note(object.object(), answers);
        }
        Ok(answers)
    }

    async fn sealed(
        &self,
        epochs: RangeInclusive<Epoch>,
    ) -> Result<BTreeMap<Epoch, u64>, ReplicaError> {
        self.inner.sealed(epochs).await
    }

    async fn freeze(&self) -> Result<Box<dyn Frozen>, ReplicaError> {
        self.inner.freeze().await
    }

    async fn restore(&self, parts: &mut dyn SnapshotParts) -> Result<Restored, ReplicaError> {
        self.inner.restore(parts).await
    }

    async fn clear(&self) -> Result<(), ReplicaError> {
        self.inner.clear().await
    }
}
