//! The configurations of simulated worlds.

use std::collections::BTreeMap;

#[cfg(feature = "aws")]
use super::super::table::TableBug;
use super::super::{bugs::Bug, releases::Releases};

/// The store of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// The memory store.
    Memory,
    /// SQLite.
    Sqlite,
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
    /// The store.
    pub store_kind: StoreKind,
    /// Its queue may have a throttler that is a plugin, and some of its types have a retry strategy
    /// that is one.
    pub plugins: bool,
    pub jobs: usize,
    pub releases: Releases,
    pub bug: Option<Bug>,
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
            store_kind: StoreKind::Memory,
            plugins: seed % 3 == 1 || seed % 8 == 6,
            jobs: if late_limit { 150 } else { [30, 60, 150][(seed / 3 % 3) as usize] },
            releases: Releases::One,
            bug: None,
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

/// The cells of [`StartPath`] that are not in `counts`.
pub fn unreached_starts(counts: &BTreeMap<&'static str, u64>) -> Vec<&'static str> {
    StartPath::CELLS.into_iter().flatten().filter(|cell| !counts.contains_key(cell)).collect()
}
