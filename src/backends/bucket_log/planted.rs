//! Bugs that the simulation plants in the rules, because they cannot be planted from outside. A
//! program without tests has none of them.

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlantedBug {
    /// A decided record makes those before it durable.
    AppliedOutOfOrder,
    /// A process that starts again goes on in its last epoch.
    EpochReused,
    /// A leader rolls over while records are under way.
    RolloverInFlight,
    /// The hash of the object before is not compared, and an emptied slot is sealed like the last
    /// one.
    ChainAndSnapshotUnchecked,
    /// A reader skips a missing slot.
    MissingSlotSkipped,
    /// A leader does not look for the claim of a process that replaces it.
    ReplacementIgnored,
}

/// The planted bug of a node, if it has one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Planted(Option<PlantedBug>);

impl Planted {
    /// A node with `bug`.
    #[cfg(test)]
    pub(super) fn new(bug: Option<PlantedBug>) -> Self {
        Self(bug)
    }

    /// Whether the node has `bug`.
    pub(super) fn has(self, bug: PlantedBug) -> bool {
        cfg!(test) && self.0 == Some(bug)
    }
}
