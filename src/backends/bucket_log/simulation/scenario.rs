//! What the nodes of a world are like, and what their clients do.

use std::time::Duration;

use crate::bucket_log::{NodeSettings, Pace};

/// The bounds of a node, small enough to be met often. No node is started to replace a leader.
pub fn settings(node: usize) -> NodeSettings {
    NodeSettings {
        address: format!("node {node}"),
        pace: Pace::Latency { interval: Duration::from_millis(20) },
        rollover_records: 6,
        kept_snapshots: 1,
        poll_interval: Duration::from_millis(500),
        patience: (Duration::from_secs(4), Duration::from_secs(10)),
        handover_interval: Duration::from_hours(1),
        ..NodeSettings::default()
    }
}

/// What the nodes of a world are like.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// The bounds of a node, by its number.
    pub settings: fn(usize) -> NodeSettings,
    pub has_hints: bool,
    /// Whether nodes are stopped as servers are, which announce their end.
    pub has_stops: bool,
    /// Whether the replica of each node is a database.
    pub has_databases: bool,
    /// Writes that each client makes.
    pub writes: u64,
}

/// Nodes without hints. A standby tries to lead whenever the leader is idle, so there are many
/// takeovers.
pub const WITHOUT_HINTS: Scenario =
    Scenario { settings, has_hints: false, has_stops: false, has_databases: false, writes: 45 };
/// Nodes with hints.
pub const WITH_HINTS: Scenario = Scenario { has_hints: true, ..WITHOUT_HINTS };
/// Nodes with hints. Some are stopped, and hand over.
pub const STOPPED: Scenario = Scenario { has_stops: true, ..WITH_HINTS };
/// Nodes with hints and databases. A check of them takes longer, so there are fewer writes.
pub const WITH_DATABASES: Scenario = Scenario { has_databases: true, writes: 20, ..WITH_HINTS };
