//! The records of a leader whose PUTs are under way, in the order of their slots.
//!
//! Several PUTs are under way at once and end in any order. A record is durable only when every one
//! before it is: until then an earlier slot may still get the seal of the next leader, and the
//! record would be behind the end of its epoch.

use std::collections::VecDeque;

use super::{
    create::Created,
    key::{Epoch, Slot},
    object::Object,
    planted::{Planted, PlantedBug},
    tail::{Durable, Tail},
};

/// Most PUTs of records under way. It is part of the protocol: see [`witness`].
pub(super) const MAX_PUTS: u64 = 4;

/// The slot whose object shows that `empty` was filled: a leader began its PUT after that of `empty` had
/// ended.
pub(super) fn witness(empty: Slot) -> Slot {
    Slot { seq: empty.seq + MAX_PUTS, ..empty }
}

/// What is known of a PUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Undecided,
    Own,
    Foreign,
}

#[derive(Debug)]
struct Entry<T> {
    object: Object,
    replies: T,
    fate: Fate,
}

/// The records under way, each with the replies that wait for it.
#[derive(Debug)]
pub(super) struct Flight<T> {
    /// The tail before the lowest record under way.
    applied: Tail,
    entries: VecDeque<Entry<T>>,
}

impl<T> Flight<T> {
    /// No record under way behind `applied`.
    pub(super) fn behind(applied: Tail) -> Self {
        Self { applied, entries: VecDeque::new() }
    }

    /// The tail that the next record continues.
    pub(super) fn tail(&self) -> Tail {
        self.entries.back().map_or(self.applied, |last| Tail::after(&last.object))
    }

    /// The epoch of its leader.
    pub(super) fn epoch(&self) -> Epoch {
        self.applied.next.epoch
    }

    /// How many records are under way.
    pub(super) fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Whether no record is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds the record of [`Self::tail`].
    pub(super) fn push(&mut self, object: Object, replies: T) {
        debug_assert_eq!(object.header.slot, self.tail().next);
        self.entries.push_back(Entry { object, replies, fate: Fate::Undecided });
    }

    /// Notes whose object is in the slot `seq` of the epoch.
    pub(super) fn decide(&mut self, seq: u64, created: &Created) {
        let fate = if *created == Created::Own { Fate::Own } else { Fate::Foreign };
        let found = self.entries.iter_mut().find(|entry| entry.object.header.slot.seq == seq);
        if let Some(entry) = found {
            entry.fate = fate;
        }
    }

    /// Removes the records that are durable now: the longest run of own ones from the lowest on.
    pub(super) fn take_durable(&mut self, planted: Planted) -> Vec<(Durable, T)> {
        let mut durable = Vec::new();
        while self.lowest_is_own(planted)
            && let Some(Entry { object, replies, .. }) = self.entries.pop_front()
        {
            let next = Tail::after(&object);
            durable.push((self.applied.own(object), replies));
            self.applied = next;
        }
        durable
    }

    fn lowest_is_own(&self, planted: Planted) -> bool {
        let is_own = |entry: &Entry<T>| entry.fate == Fate::Own;
        if planted.has(PlantedBug::AppliedOutOfOrder) {
            return self.entries.iter().any(is_own);
        }
        self.entries.front().is_some_and(is_own)
    }

    /// Whether another leader has ended the epoch: its object is in the lowest slot.
    pub(super) fn is_fenced(&self) -> bool {
        self.entries.front().is_some_and(|first| first.fate == Fate::Foreign)
    }

    /// The replies of the records that will never be in the history, after the fence.
    pub(super) fn into_lost(self) -> Vec<T> {
        self.entries.into_iter().map(|entry| entry.replies).collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::bucket_log::{
        key::Slot,
        object::{Header, Kind, LogId},
    };

    /// Three records under way, with their numbers as replies.
    fn flight() -> Flight<u64> {
        let start = Slot { epoch: Epoch::FIRST, seq: 1 };
        let mut flight = Flight::behind(Tail { next: start, ..Tail::START });
        for seq in 1..=3 {
            let Tail { next, hash, time } = flight.tail();
            let (kind, log) = (Kind::Record, LogId(1));
            let header = Header { kind, log, slot: next, nonce: 1, time, previous: hash };
            flight.push(Object::new(header, &Bytes::new()), seq);
        }
        flight
    }

    fn taken(flight: &mut Flight<u64>) -> Vec<u64> {
        let durable = flight.take_durable(Planted::default());
        durable.into_iter().map(|(_, replies)| replies).collect()
    }

    #[test]
    fn a_record_is_durable_once_those_before_it_are() {
        let mut flight = flight();
        flight.decide(2, &Created::Own);
        assert_eq!(taken(&mut flight), [0; 0]);
        flight.decide(1, &Created::Own);
        assert_eq!(taken(&mut flight), [1, 2]);
        flight.decide(3, &Created::Own);
        assert_eq!(taken(&mut flight), [3]);
        assert!(flight.is_empty() && !flight.is_fenced());
    }

    #[test]
    fn the_fence_counts_once_every_lower_slot_is_decided() {
        let mut flight = flight();
        flight.decide(2, &Created::Other(Bytes::new()));
        flight.decide(3, &Created::Own);
        assert!(taken(&mut flight).is_empty() && !flight.is_fenced());
        flight.decide(1, &Created::Own);
        assert_eq!(taken(&mut flight), [1]);
        assert!(flight.is_fenced());
        assert_eq!(flight.into_lost(), [2, 3]);
    }
}
