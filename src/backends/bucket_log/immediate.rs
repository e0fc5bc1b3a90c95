//! A replica for simulations: it works on threads of its own, and to its node every call but the wait
//! for the parts of a snapshot is over at once. So no real time decides what happens in a run.

use std::{
    collections::BTreeMap,
    future::Future,
    ops::RangeInclusive,
    pin::pin,
    task::{Context, Poll, Waker},
    vec::IntoIter,
};

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    body::StateDigest,
    key::Epoch,
    replica::{Frozen, NextPart, Replica, ReplicaError, Restored, SnapshotParts},
    tail::{Durable, Tail},
};

/// Waits for `future`, which waits for other threads only.
pub fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

/// The replica inside, whose calls are over at once. One that uses threads of a runtime must be called
/// within it.
pub struct Immediate<R>(pub R);

#[async_trait]
impl<R: Replica> Replica for Immediate<R> {
    type Answer = R::Answer;

    fn schema(&self) -> u64 {
        self.0.schema()
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn tail(&self) -> Tail {
        self.0.tail()
    }

    async fn apply(&self, objects: Vec<Durable>) -> Result<Vec<Vec<R::Answer>>, ReplicaError> {
        at_once(self.0.apply(objects))
    }

    async fn sealed(
        &self,
        epochs: RangeInclusive<Epoch>,
    ) -> Result<BTreeMap<Epoch, u64>, ReplicaError> {
        at_once(self.0.sealed(epochs))
    }

    async fn freeze(&self) -> Result<Box<dyn Frozen>, ReplicaError> {
        Ok(Box::new(ImmediateFrozen(at_once(self.0.freeze())?)))
    }

    async fn restore(&self, parts: &mut dyn SnapshotParts) -> Result<Restored, ReplicaError> {
        // The bucket takes virtual time, and the replica none.
        let mut read = Vec::new();
        loop {
            let next = parts.next().await;
            let is_last = !matches!(next, NextPart::Part(_));
            read.push(next);
            if is_last {
                break;
            }
        }
        at_once(self.0.restore(&mut ReadParts { read: read.into_iter(), parts }))
    }

    async fn clear(&self) -> Result<(), ReplicaError> {
        at_once(self.0.clear())
    }
}

struct ImmediateFrozen(Box<dyn Frozen>);

#[async_trait]
impl Frozen for ImmediateFrozen {
    fn tail(&self) -> Tail {
        self.0.tail()
    }

    async fn next(&mut self) -> Result<Option<Bytes>, ReplicaError> {
        at_once(self.0.next())
    }

    async fn digest(&mut self) -> Result<Option<StateDigest>, ReplicaError> {
        at_once(self.0.digest())
    }
}

/// Parts that were read.
struct ReadParts<'a> {
    read: IntoIter<NextPart>,
    parts: &'a mut dyn SnapshotParts,
}

#[async_trait]
impl SnapshotParts for ReadParts<'_> {
    async fn next(&mut self) -> NextPart {
        self.read.next().unwrap_or(NextPart::End)
    }

    fn accepts(&mut self, tail: &Tail) -> bool {
        self.parts.accepts(tail)
    }
}
