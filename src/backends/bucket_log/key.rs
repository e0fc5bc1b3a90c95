//! Where an object is stored, and the order of the log.
//!
//! Numbers in names have a fixed width, so names sort as their numbers count, and a person can read
//! them.

use std::{
    fmt::{self, Display, Formatter},
    str::FromStr,
};

/// The number of one leadership. Numbers have no gaps: a process claims `n + 1` only after it has
/// read the claim of `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

impl Epoch {
    /// The first epoch of a log.
    pub const FIRST: Self = Self(1);

    /// The epoch with this number; none for zero.
    pub fn new(number: u64) -> Option<Self> {
        (number > 0).then_some(Self(number))
    }

    /// Its number, from 1 on.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The next epoch.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The epoch before it.
    pub fn previous(self) -> Option<Self> {
        Self::new(self.0 - 1)
    }
}

impl Display for Epoch {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A place of the log that is filled once: with a record, or with the seal of its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// The epoch.
    pub epoch: Epoch,
    /// The number in the epoch, from 0 on.
    pub seq: u64,
}

impl Slot {
    /// The first slot of a log.
    pub const FIRST: Self = Self::first_of(Epoch::FIRST);

    /// The first slot of `epoch`.
    pub const fn first_of(epoch: Epoch) -> Self {
        Self { epoch, seq: 0 }
    }

    /// The next slot of the same epoch.
    #[must_use]
    pub fn next(self) -> Self {
        Self { seq: self.seq + 1, ..self }
    }
}

impl Display for Slot {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.seq)
    }
}

/// A text is not a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be the number of an epoch, from 1 on, and a number in it, such as 3.1204")]
pub struct BadSlot;

impl FromStr for Slot {
    type Err = BadSlot;

    /// The slot that is written as `text`: without signs and leading zeros.
    fn from_str(text: &str) -> Result<Self, BadSlot> {
        let (epoch, seq) = text.split_once('.').ok_or(BadSlot)?;
        let epoch = epoch.parse().ok().and_then(Epoch::new).ok_or(BadSlot)?;
        let slot = Self { epoch, seq: seq.parse().map_err(|_| BadSlot)? };
        (slot.to_string() == text).then_some(slot).ok_or(BadSlot)
    }
}

/// The name of an object that is created once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKey {
    /// The identity of the log.
    Identity,
    /// The claim of an epoch.
    Claim(Epoch),
    /// A record or a seal.
    Slot(Slot),
    /// The manifest of the snapshot behind the seal of an epoch.
    Manifest(Epoch),
    /// A part of a snapshot.
    Part {
        /// The epoch of the snapshot.
        epoch: Epoch,
        /// The nonce of the process that made it, because two may try.
        nonce: u128,
        /// Its number, from 0 on.
        index: u32,
    },
    /// An object with this nonce that shows what the store can do.
    Probe(u128),
}

impl ObjectKey {
    /// The manifest or the part of a snapshot with this name; none if it is the name of another object.
    pub(super) fn of_snapshot(name: &str) -> Option<Self> {
        let (epoch, rest) = name.strip_prefix("snap/")?.split_once('/')?;
        let epoch = Epoch::new(epoch.parse().ok()?)?;
        let key = match rest.split_once('/') {
            None => Self::Manifest(epoch),
            Some((nonce, index)) => {
                let nonce = u128::from_str_radix(nonce, 16).ok()?;
                Self::Part { epoch, nonce, index: index.parse().ok()? }
            }
        };
        (key.to_string() == name).then_some(key)
    }
}

impl Display for ObjectKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Identity => f.write_str("log.json"),
            Self::Claim(epoch) => write!(f, "epoch/{:010}", epoch.0),
            Self::Slot(slot) => write!(f, "log/{:010}/{:012}", slot.epoch.0, slot.seq),
            Self::Manifest(epoch) => write!(f, "snap/{:010}/manifest", epoch.0),
            Self::Part { epoch, nonce, index } => {
                write!(f, "snap/{:010}/{nonce:032x}/{index:05}", epoch.0)
            }
            Self::Probe(nonce) => write!(f, "probe/{nonce:032x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_as_their_numbers_count() {
        let slot = |epoch, seq| Slot { epoch: Epoch(epoch), seq };
        let slots = [slot(1, 0), slot(1, 9), slot(1, 10), slot(9, 3), slot(10, 0), slot(2_000, 7)];
        let names = slots.map(|slot| ObjectKey::Slot(slot).to_string());
        assert!(slots.is_sorted() && names.is_sorted(), "{names:?}");
        assert_eq!(names[2], "log/0000000001/000000000010");
    }

    #[test]
    fn a_slot_is_read_from_what_it_is_written_as() {
        let last = Slot { epoch: Epoch(u64::MAX), seq: u64::MAX };
        for slot in [Slot::FIRST, Slot { epoch: Epoch(3), seq: 1204 }, last] {
            assert_eq!(slot.to_string().parse(), Ok(slot));
        }
        for text in
            ["", ".", "x", "3", "3.", ".3", "0.3", "+3.1", "3.+1", "3.01", "03.1", "3.1.2", "3.-1"]
        {
            assert_eq!(text.parse::<Slot>(), Err(BadSlot), "{text}");
        }
        assert_eq!("1.18446744073709551616".parse::<Slot>(), Err(BadSlot), "more than 64 bits");
    }

    #[test]
    fn an_object_of_a_snapshot_is_known_by_its_name() {
        let epoch = Epoch(7);
        let part = ObjectKey::Part { epoch, nonce: 0xab, index: 3 };
        for key in [ObjectKey::Manifest(epoch), part] {
            assert_eq!(ObjectKey::of_snapshot(&key.to_string()), Some(key));
        }
        let slot = ObjectKey::Slot(Slot::first_of(epoch)).to_string();
        let name = part.to_string();
        for other in [
            "snap/7/manifest",
            "snap/0000000000/manifest",
            "snap/0000000007/manifest.old",
            "snap/0000000007",
            name.replace("ab", "AB").as_str(),
            name.replace("00003", "3").as_str(),
            format!("{name}/1").as_str(),
            slot.as_str(),
        ] {
            assert_eq!(ObjectKey::of_snapshot(other), None, "{other}");
        }
    }

    #[test]
    fn every_object_has_its_own_name() {
        let epoch = Epoch::FIRST.next();
        let names = [
            ObjectKey::Identity,
            ObjectKey::Claim(epoch),
            ObjectKey::Slot(Slot::first_of(epoch)),
            ObjectKey::Manifest(epoch),
            ObjectKey::Part { epoch, nonce: 0xab, index: 3 },
        ]
        .map(|key| key.to_string());
        assert_eq!(
            names,
            [
                "log.json",
                "epoch/0000000002",
                "log/0000000002/000000000000",
                "snap/0000000002/manifest",
                "snap/0000000002/000000000000000000000000000000ab/00003"
            ]
        );
    }
}
