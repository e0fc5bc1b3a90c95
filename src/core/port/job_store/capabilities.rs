//! What a store guarantees beyond the port.

use std::time::Duration;

/// What a store guarantees beyond the port, so that the engine can skip what is then unnecessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreCapabilities {
    /// How much of a transaction is visible when it is cut short.
    pub atomicity: Atomicity,
    /// Whether other processes may write at the same time.
    pub shared: bool,
    /// Whether the store itself drops results and ended jobs at the end of their retention. Then
    /// [`JobStore::overdue`](super::JobStore::overdue) omits ended jobs that name no object, and
    /// reads hide whatever is past its retention.
    pub expires_natively: bool,
    /// The largest bound of [`JobStore::count_due`](super::JobStore::count_due). A store that reads
    /// each job that it counts has a small one.
    pub max_counted_due: u32,
    /// How many jobs, in all partitions of a queue,
    /// [`JobStore::count_waiting`](super::JobStore::count_waiting) may read in one pass, and how long
    /// the next pass waits for each of them ([`WaitingPage::read`](super::WaitingPage::read)).
    /// After these, the pass reads only a few jobs of each partition.
    pub waiting_pass: (u32, Duration),
    /// Whether [`JobStore::list`](super::JobStore::list) goes from the newest job to the oldest by
    /// creation. A store without an index for it goes by when jobs were first due: from the present
    /// back to the earliest, and then those due later, soonest first.
    pub lists_by_creation: bool,
}

impl StoreCapabilities {
    /// Whether this process alone writes, and learns the outcome of each commit. Otherwise what it
    /// remembers may be old, and the answer to a commit may be lost on its way.
    pub fn is_exclusive(&self) -> bool {
        self.atomicity.is_atomic() && !self.shared
    }
}

/// How much of a transaction is visible when it is cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomicity {
    /// Every write of a transaction happens, or none.
    Atomic,
    /// Writes happen one by one in their order, so that any prefix of a transaction may remain.
    Steps {
        /// The longest time between the check of a write's condition and the write. Not zero.
        max_in_flight_write: Duration,
    },
}

impl Atomicity {
    /// Atomic if `max_in_flight_write` is zero, otherwise in steps.
    pub fn from_max_in_flight_write(max_in_flight_write: Duration) -> Self {
        if max_in_flight_write.is_zero() {
            Self::Atomic
        } else {
            Self::Steps { max_in_flight_write }
        }
    }

    /// Whether transactions are atomic.
    pub fn is_atomic(self) -> bool {
        self == Self::Atomic
    }

    /// The longest time between the check of a write's condition and the write; zero if atomic.
    pub fn max_in_flight_write(self) -> Duration {
        match self {
            Self::Atomic => Duration::ZERO,
            Self::Steps { max_in_flight_write } => max_in_flight_write,
        }
    }
}
