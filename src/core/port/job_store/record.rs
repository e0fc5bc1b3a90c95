//! Small records with an expiry, stored next to the jobs.

use crate::time::Timestamp;

/// Small data that is kept for a time and then dropped. Readers find it by a prefix of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its kind.
    pub kind: RecordKind,
    /// Its name, unique within its kind: 1 to 128 of `a-z 0-9 -`.
    pub name: String,
    /// When it expires. From then on it may be dropped; until it is, readers still find it.
    pub until: Timestamp,
    /// Its content, at most [`RECORD_BYTES`].
    pub bytes: Vec<u8>,
}

/// Most bytes of a record's content. A store with smaller items puts the rest elsewhere.
pub const RECORD_BYTES: usize = 2 << 20;

/// The kinds of [`Record`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordKind {
    /// A reply that waits for its job, or for an attempt of it.
    Reply,
    /// A dead letter: an event that a trigger could not handle.
    DeadLetter,
    /// The registration of a pull worker.
    Worker,
    /// The demand of a lease call that waits, or a message to it. Kept for seconds.
    Demand,
    /// The claims of a lease call that its worker may repeat. Kept as long as their leases.
    Lease,
    /// An entry of the audit log: a change by a caller.
    Audit,
    /// Log lines of a job's attempts.
    Log,
    /// A step of the history of queues and types.
    History,
    /// What a trigger did, with its latest events.
    Trigger,
    /// A recorded call of a plugin.
    PluginCall,
    /// The estimate of what waits in a queue.
    Waiting,
    /// A part of the state of a retry strategy in a queue.
    RetryState,
    /// That a server which shares the store is running. Kept for seconds after its end.
    Server,
    /// What one of several servers counted, until it is added to the records of all. Kept for minutes.
    Part,
}

impl RecordKind {
    /// Every kind.
    pub const ALL: [Self; 14] = [
        Self::Reply,
        Self::DeadLetter,
        Self::Worker,
        Self::Demand,
        Self::Lease,
        Self::Audit,
        Self::Log,
        Self::History,
        Self::Trigger,
        Self::PluginCall,
        Self::Waiting,
        Self::RetryState,
        Self::Server,
        Self::Part,
    ];

    /// The kind's name in stores.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reply => "reply",
            Self::DeadLetter => "dead_letter",
            Self::Worker => "worker",
            Self::Demand => "demand",
            Self::Lease => "lease",
            Self::Audit => "audit",
            Self::Log => "log",
            Self::History => "history",
            Self::Trigger => "trigger",
            Self::PluginCall => "plugin_call",
            Self::Waiting => "waiting",
            Self::RetryState => "retry_state",
            Self::Server => "server",
            Self::Part => "part",
        }
    }

    /// Whether its records are replaced again and again, and say nothing once they have expired. A
    /// store may then drop them by itself, without a time at which it does.
    pub fn is_transient(self) -> bool {
        matches!(
            self,
            Self::Demand
                | Self::Worker
                | Self::Lease
                | Self::Log
                | Self::History
                | Self::Trigger
                | Self::PluginCall
                | Self::Waiting
                | Self::RetryState
                | Self::Part
        )
    }

    /// The group of the record `name`: what is before the first dot, for a kind that has groups.
    ///
    /// A store may keep each group by itself, so that none slows down another. A query finds the
    /// records of a group if its prefix contains the group with the dot.
    pub fn group(self, name: &str) -> Option<&str> {
        let has_groups = matches!(
            self,
            Self::Demand | Self::Lease | Self::Log | Self::PluginCall | Self::RetryState
        );
        let (group, _) = name.split_once('.').filter(|_| has_groups)?;
        Some(group)
    }
}

/// A query for records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordQuery {
    /// Only records of this kind.
    pub kind: RecordKind,
    /// Only names with this prefix; empty for all.
    pub prefix: String,
    /// Only names after this one.
    pub after: Option<String>,
    /// At most this many (1 to 1000).
    pub limit: u32,
}

/// What a purge dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// How many records were dropped because they had expired.
    pub expired: u64,
    /// How many were dropped because there were too many; those that expire first go first.
    pub over: u64,
    /// How many are left.
    pub left: u64,
}
