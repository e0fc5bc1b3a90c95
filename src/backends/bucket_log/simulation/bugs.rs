//! Planted bugs: each leaves out a rule, and the simulation must find it. Most are planted from
//! outside, in the connection of a node to the bucket or in the server around it.
//!
//! A claim without an answer that counts as one's own is no bug of this code, so it is not among
//! them: a reader follows the slots and not the claims, and the next leader makes the claim again.

use crate::bucket_log::planted::PlantedBug;

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A new leader seals nothing.
    NoSeal,
    /// A new leader seals only the epoch before its own.
    OneEpochSealed,
    /// An answer does not wait for the records before its own.
    AnsweredOutOfOrder,
    /// A process that starts again goes on in its last epoch.
    EpochReused,
    /// "It exists" is taken for one's own object.
    ExistsIsOwn,
    /// "It exists" is taken for the object of another leader.
    ExistsIsForeign,
    /// A record without an answer counts as not written.
    UnknownIsFailed,
    /// A repeated PUT has other bytes.
    RepeatedWithOtherBytes,
    /// Records of the open epoch are removed.
    OpenEpochTruncated,
    /// Seals are removed.
    SealsRemoved,
    /// Records are removed before the snapshot exists.
    TruncatedBeforeSnapshot,
    /// The manifest is created before the parts.
    ManifestBeforeParts,
    /// The state of a snapshot is not the one of its tail.
    SnapshotMislabelled,
    /// Commands are applied before their record is durable.
    AppliedBeforeDurable,
    /// Commands are evaluated before their record is durable.
    EvaluatedBeforeDurable,
    /// The effect of a command starts before its record is durable.
    EffectBeforeDurable,
    /// The seal goes behind the highest slot of a list.
    SealedAfterList,
    /// A lease by the clock takes the place of the seal.
    LeaseIsFence,
    /// A reader skips a missing slot.
    MissingSlotSkipped,
    /// A consistent read has no proof.
    ReadWithoutProof,
    /// A seal overwrites what is in its slot.
    SealOverwrites,
    /// A leader rolls over while records are under way.
    RolloverInFlight,
    /// The seal leaves a gap.
    SealLeavesGap,
    /// The chain is not compared, and an emptied slot is sealed like the last one.
    ChainAndSnapshotUnchecked,
}

impl Bug {
    /// Every bug, with the first seed of those that are searched for it: near one that finds it.
    pub const ALL: [(Self, u64); 24] = [
        (Self::NoSeal, 0),
        (Self::OneEpochSealed, 0),
        (Self::AnsweredOutOfOrder, 0),
        (Self::EpochReused, 50),
        (Self::ExistsIsOwn, 0),
        (Self::ExistsIsForeign, 0),
        (Self::UnknownIsFailed, 0),
        (Self::RepeatedWithOtherBytes, 0),
        (Self::OpenEpochTruncated, 0),
        (Self::SealsRemoved, 0),
        (Self::TruncatedBeforeSnapshot, 0),
        (Self::ManifestBeforeParts, 0),
        (Self::SnapshotMislabelled, 0),
        (Self::AppliedBeforeDurable, 0),
        (Self::EvaluatedBeforeDurable, 0),
        (Self::EffectBeforeDurable, 0),
        (Self::SealedAfterList, 0),
        (Self::LeaseIsFence, 0),
        (Self::MissingSlotSkipped, 0),
        (Self::ReadWithoutProof, 0),
        (Self::SealOverwrites, 0),
        (Self::RolloverInFlight, 0),
        (Self::SealLeavesGap, 0),
        (Self::ChainAndSnapshotUnchecked, 119),
    ];

    /// The bug of the rules themselves, for one that cannot be planted from outside.
    pub(in crate::bucket_log) fn within(self) -> Option<PlantedBug> {
        match self {
            Self::AnsweredOutOfOrder => Some(PlantedBug::AppliedOutOfOrder),
            Self::EpochReused => Some(PlantedBug::EpochReused),
            Self::RolloverInFlight => Some(PlantedBug::RolloverInFlight),
            Self::MissingSlotSkipped => Some(PlantedBug::MissingSlotSkipped),
            Self::ChainAndSnapshotUnchecked => Some(PlantedBug::ChainAndSnapshotUnchecked),
            _ => None,
        }
    }
}
