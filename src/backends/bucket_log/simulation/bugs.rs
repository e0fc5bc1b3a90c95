//! Planted bugs: each leaves out a rule, and the simulation must find it. Most are planted from
//! outside, in the connection of a node to the bucket or in the server around it.
//!
//! That each claim has one winner is one of the rules, although a claim alone gives no right. Start
//! records of two winners could fill the same slot, the later one after a truncation.

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
    /// A claim without an answer counts as one's own.
    UnknownClaimIsOwn,
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
    /// A busy leader does not look for the claim of a node that replaces it. It breaks no invariant.
    ReplacementIgnored,
    /// A node writes to its database what no record has. Only the rows show it.
    WrittenPastLog,
}

impl Bug {
    /// Every bug that breaks an invariant of nodes without databases; the first seed of those that are
    /// searched for it, near one that finds it; and the starts of the problems that it may cause. Another
    /// problem does not count: the run has not reached the rule then.
    pub const ALL: [(Self, u64, &'static [&'static str]); 25] = [
        (Self::NoSeal, 0, &["B2: ", "B7: "]),
        (Self::OneEpochSealed, 0, &["B2: ", "B7: ", "B9: "]),
        (Self::AnsweredOutOfOrder, 0, &["B2: "]),
        (Self::EpochReused, 0, &["B1: ", "B7: ", "B8: node "]),
        (Self::ExistsIsOwn, 0, &["B2: ", "B9: "]),
        (Self::ExistsIsForeign, 0, &["B4: "]),
        (Self::UnknownClaimIsOwn, 40, &["B1: ", "B2: "]),
        (Self::UnknownIsFailed, 0, &["B4: "]),
        (Self::RepeatedWithOtherBytes, 0, &["B2: "]),
        (Self::OpenEpochTruncated, 0, &["B7: "]),
        (Self::SealsRemoved, 0, &["B1: "]),
        (Self::TruncatedBeforeSnapshot, 0, &["B7: "]),
        (Self::ManifestBeforeParts, 0, &["B7: "]),
        (Self::SnapshotMislabelled, 0, &["B7: "]),
        (Self::AppliedBeforeDurable, 0, &["B6: ", "B9: "]),
        (Self::EvaluatedBeforeDurable, 0, &["B3: "]),
        (Self::EffectBeforeDurable, 0, &["B5: "]),
        (Self::SealedAfterList, 0, &["B3: ", "B7: "]),
        (Self::LeaseIsFence, 0, &["B1: "]),
        (Self::MissingSlotSkipped, 0, &["B2: ", "B9: "]),
        (Self::ReadWithoutProof, 0, &["B6: "]),
        (Self::SealOverwrites, 0, &["B1: "]),
        (Self::RolloverInFlight, 0, &["B4: "]),
        (Self::SealLeavesGap, 0, &["B2: ", "B7: "]),
        (Self::ChainAndSnapshotUnchecked, 130, &["B2: ", "B3: ", "B9: "]),
    ];

    /// The bug of the rules themselves, for one that cannot be planted from outside.
    pub(in crate::bucket_log) fn within(self) -> Option<PlantedBug> {
        match self {
            Self::AnsweredOutOfOrder => Some(PlantedBug::AppliedOutOfOrder),
            Self::EpochReused => Some(PlantedBug::EpochReused),
            Self::RolloverInFlight => Some(PlantedBug::RolloverInFlight),
            Self::MissingSlotSkipped => Some(PlantedBug::MissingSlotSkipped),
            Self::ChainAndSnapshotUnchecked => Some(PlantedBug::ChainAndSnapshotUnchecked),
            Self::ReplacementIgnored => Some(PlantedBug::ReplacementIgnored),
            _ => None,
        }
    }
}
