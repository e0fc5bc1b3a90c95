//! The configurations of simulated worlds.

use std::collections::BTreeMap;

#[cfg(feature = "aws")]
use super::super::table::TableBug;
use super::super::{bugs::Bug, log::LogBug, releases::Releases, shared::SharedBug};

/// The store of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// The memory store.
    Memory,
    /// SQLite.
    Sqlite,
    /// The memory store as Postgres: every engine is a server with its own adapter on it.
    Shared,
    /// A schema of the Postgres server that tests share, with two servers of the store. The engines are on
    /// one or the other.
    Postgres,
    /// SQLite behind a replicated log; every engine is on the node that leads.
    Log,
    /// The DynamoDB store on a table in memory; every engine has its own store on it.
    #[cfg(feature = "aws")]
    Table,
    /// The same, on the emulator of the table.
    #[cfg(feature = "aws")]
    Emulator,
}

/// The configuration of a world.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is an independent option, and they combine")]
pub struct RunConfig {
    pub seed: u64,
    /// Writes arrive one by one, and a process may die between two of them.
    pub slow: bool,
    /// The queue has no limit at first, and so no ledger.
    pub late_limit: bool,
    /// Limits hold no job: a light load shows faults that a backlog hides.
    pub light: bool,
    /// The store refuses many commits for lack of capacity.
    pub throttled: bool,
    /// A tick starts when it is requested: by a message, by a timer, by a sweep now and then. In
    /// other worlds ticks follow each other.
    pub ticks_requested: bool,
    /// Ticks and sweeps are off for a day.
    pub ticks_off: bool,
    /// The run ends after the last message that is minutes late, and not when all jobs have ended.
    pub awaits_late_messages: bool,
    /// The store.
    pub store_kind: StoreKind,
    /// Its queue may have a throttler that is a plugin, and some of its types have a retry strategy
    /// that is one.
    pub plugins: bool,
    /// Its queue has strict order.
    pub strict: bool,
    pub jobs: usize,
    pub releases: Releases,
    pub bug: Option<Bug>,
    /// The bug that is planted in servers that share a store.
    pub shared_bug: Option<SharedBug>,
    /// The bug that is planted in the log, where there is one.
    pub log_bug: Option<LogBug>,
    /// The bug that is planted in the table, where there is one.
    #[cfg(feature = "aws")]
    pub table_bug: Option<TableBug>,
}

impl RunConfig {
    /// The configuration that follows from a seed.
    pub fn of(seed: u64) -> Self {
        let late_limit = seed % 4 == 3;
        Self {
            seed,
            slow: seed % 2 == 1,
            late_limit,
            light: seed % 5 == 4,
            throttled: seed % 7 == 5,
            ticks_requested: matches!(seed % 7, 2 | 6),
            ticks_off: seed % 5 == 3,
            awaits_late_messages: seed % 8 == 6,
            store_kind: StoreKind::Memory,
            strict: !late_limit && seed % 3 == 2,
            plugins: seed % 3 == 1 || seed % 8 == 6,
            jobs: if late_limit { 150 } else { [30, 60, 150][(seed / 3 % 3) as usize] },
            releases: Releases::One,
            bug: None,
            shared_bug: None,
            log_bug: None,
            #[cfg(feature = "aws")]
            table_bug: None,
        }
    }
}

/// How a job starts; the table "How a job starts" in `src/engine/tick/mod.rs` lists the ways.
#[derive(Clone, Copy)]
pub(super) enum StartPath {
    GrantedClaim,
    GrantedDispatch,
    GrantedOffer,
    UngrantedClaim,
    UnclaimedDispatch,
}

impl StartPath {
    /// The cells of the table, which the simulation reaches together. A late limit reaches the last
    /// two paths.
    const CELLS: [[&str; 2]; 5] = [
        ["granted claim, atomic store", "granted claim, other store"],
        ["granted dispatch, atomic store", "granted dispatch, other store"],
        ["granted offer, atomic store", "granted offer, other store"],
        ["ungranted claim, atomic store", "ungranted claim, other store"],
        ["unclaimed dispatch, atomic store", "unclaimed dispatch, other store"],
    ];

    pub(super) fn cell(self, is_atomic: bool) -> &'static str {
        Self::CELLS[self as usize][usize::from(!is_atomic)]
    }
}

/// Messages that arrived minutes late.
pub(super) const MESSAGES_MINUTES_LATE: &str = "messages minutes late";
/// Requests for ticks among them, and timers.
pub(super) const REQUESTS_MINUTES_LATE: &str = "requests for ticks minutes late";
/// Processes that were killed at their timeout.
pub(super) const TIMEOUTS: &str = "killed at a timeout";
/// Engines whose ticks were off for a day.
pub(super) const TICKS_OFF: &str = "ticks off for a day";

/// The faults and changes that the simulation reaches on every store.
const FAULTS: [&str; 11] = [
    MESSAGES_MINUTES_LATE,
    REQUESTS_MINUTES_LATE,
    TIMEOUTS,
    TICKS_OFF,
    "handed back",
    "leases repeated",
    "leases not received",
    "checkpoints",
    "replaced",
    "debounced",
    "held places",
];

/// The faults and the cells of [`StartPath`] that are not in `counts`.
pub fn unreached(counts: &BTreeMap<&'static str, u64>) -> Vec<&'static str> {
    let all = StartPath::CELLS.into_iter().flatten().chain(FAULTS);
    all.filter(|of| !counts.contains_key(of)).collect()
}
