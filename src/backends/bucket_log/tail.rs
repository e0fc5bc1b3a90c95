//! How far a node has followed the log: the next slot, and the hash that its object must name.
//!
//! A [`Durable`] object is one that was read at the tail, or whose PUT was decided there. Only such
//! an object can be applied, and this module alone makes one.

use bytes::Bytes;
use tidegate_core::time::Timestamp;

use super::{
    key::{ObjectKey, Slot},
    object::{Hash, Kind, LogId, NotReadable, Object},
};

/// The end of the part of the log that a node has applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The next slot.
    pub next: Slot,
    /// The hash of the object before it.
    pub hash: Hash,
    /// The time of the object before it.
    pub time: Timestamp,
}

/// An object that is in the log for ever, in the order of the log.
#[derive(Clone, Debug)]
pub struct Durable(Object);

impl Durable {
    /// The object.
    pub fn object(&self) -> &Object {
        &self.0
    }
}

/// Why an object does not continue the log at a tail.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotNext {
    /// It follows another object than the one before the tail: the node is behind a truncation, or
    /// its local state is wrong.
    #[error("it follows another object")]
    Unchained,
    /// It is not what was written, or a later release wrote it.
    #[error(transparent)]
    NotReadable(#[from] NotReadable),
    /// It is an object of another log or of another slot.
    #[error("it belongs elsewhere")]
    Misplaced,
}

impl Tail {
    /// The tail of an empty log.
    pub const START: Self =
        Self { next: Slot::FIRST, hash: Hash::NONE, time: Timestamp::from_millis(0) };

    /// The key of the next slot.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::Slot(self.next)
    }

    /// The object of the next slot, from the bytes that were read there.
    ///
    /// # Errors
    ///
    /// [`NotNext`] if it cannot be the next one of this log.
    pub fn read(&self, log: LogId, bytes: Bytes) -> Result<Durable, NotNext> {
        let object = Object::decode(bytes)?;
        let kind = match object.header.kind {
            Kind::Start => self.next.seq == 0,
            Kind::Record => self.next.seq > 0,
            Kind::Seal => true,
            Kind::Claim | Kind::Manifest => false,
        };
        if object.header.log != log || object.header.slot != self.next || !kind {
            return Err(NotNext::Misplaced);
        }
        if object.header.previous != self.hash {
            return Err(NotNext::Unchained);
        }
        Ok(Durable(object))
    }

    /// One's own object of the next slot, after its PUT was decided.
    pub(super) fn own(&self, object: Object) -> Durable {
        debug_assert_eq!((object.header.slot, object.header.previous), (self.next, self.hash));
        Durable(object)
    }

    /// The tail behind `object`.
    #[must_use]
    pub fn after(object: &Object) -> Self {
        let slot = object.header.slot;
        let next = match object.header.kind {
            Kind::Seal => Slot::first_of(slot.epoch.next()),
            _ => slot.next(),
        };
        Self { next, hash: object.hash(), time: object.header.time }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket_log::{key::Epoch, object::Header};

    const LOG: LogId = LogId(1);

    fn object(kind: Kind, at: &Tail) -> Object {
        let header =
            Header { kind, log: LOG, slot: at.next, nonce: 1, time: at.time, previous: at.hash };
        Object::new(header, &Bytes::new())
    }

    #[test]
    fn a_seal_leads_to_the_next_epoch_and_a_record_to_the_next_slot() {
        let start = Tail::START.read(LOG, object(Kind::Start, &Tail::START).bytes().clone());
        let tail = Tail::after(start.unwrap().object());
        assert_eq!(tail.next, Slot { epoch: Epoch::FIRST, seq: 1 });
        let seal = object(Kind::Seal, &tail);
        let tail = Tail::after(tail.read(LOG, seal.bytes().clone()).unwrap().object());
        assert_eq!((tail.next, tail.hash), (Slot::first_of(Epoch::FIRST.next()), seal.hash()));
    }

    #[test]
    fn an_object_that_does_not_continue_the_log_is_refused() {
        let start = object(Kind::Start, &Tail::START);
        let tail = Tail::after(&start);
        let right = object(Kind::Record, &tail);
        tail.read(LOG, right.bytes().clone()).unwrap();
        let with = |change: &dyn Fn(&mut Header)| {
            let mut header = right.header.clone();
            change(&mut header);
            Object::new(header, &Bytes::new()).bytes().clone()
        };
        let refused = |bytes| tail.read(LOG, bytes).unwrap_err();
        assert_eq!(refused(with(&|header| header.previous = Hash::NONE)), NotNext::Unchained);
        assert_eq!(refused(with(&|header| header.log = LogId(2))), NotNext::Misplaced);
        assert_eq!(refused(with(&|header| header.slot.seq = 7)), NotNext::Misplaced);
        for kind in [Kind::Claim, Kind::Start, Kind::Manifest] {
            assert_eq!(refused(with(&|header| header.kind = kind)), NotNext::Misplaced);
        }
        assert!(matches!(refused(Bytes::new()), NotNext::NotReadable(_)));
    }
}
