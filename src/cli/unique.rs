//! The options of `tidegate enqueue` about a job's unique key.

use clap::ValueEnum;
use tidegate_core::{
    job::{
        spec::{self, Unique},
        unique::{Debounce, MergePolicy, OnConflict},
    },
    time::Seconds,
};

use super::args;

/// The options about the unique key.
#[derive(Debug, clap::Args)]
pub struct UniqueArgs {
    /// Prevents duplicates: while a job of this type holds the key, the server returns that job.
    #[arg(long, value_name = "KEY")]
    unique_key: Option<String>,
    /// The states in which a job holds the unique key.
    #[arg(long, value_name = "STATES", requires = "unique_key", default_value = "live")]
    unique_while: UniqueWhile,
    /// Minimum time for which the unique key is held.
    #[arg(long, value_name = "SPAN", requires = "unique_key", value_parser = args::span)]
    unique_period: Option<Seconds>,
    /// What happens to a job that holds the key and has not started.
    #[arg(long, value_name = "WHAT", requires = "unique_key", default_value = "keep")]
    on_conflict: Conflict,
    /// Starts the job when no enqueue with its key has come for this long; needs `--debounce-max`.
    #[arg(long, value_name = "SPAN", requires_all = ["unique_key", "debounce_max"],
        conflicts_with_all = ["delay", "run_at", "spread"], value_parser = args::span)]
    debounce: Option<Seconds>,
    /// The longest time from the first enqueue to the start of a debounced job.
    #[arg(long, value_name = "SPAN", requires = "debounce", value_parser = args::span)]
    debounce_max: Option<Seconds>,
    /// The enqueue whose data and options a debounced job has.
    #[arg(long, value_name = "WHICH", requires = "debounce", default_value = "last")]
    debounce_merge: Merge,
}

/// The states in which a unique key is held.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum UniqueWhile {
    /// Until the job's first attempt starts.
    Scheduled,
    /// Until the job ends.
    Live,
}

/// What happens to the job that holds the key.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Conflict {
    /// It stays as it is.
    Keep,
    /// It takes data, options and due time of this enqueue.
    Replace,
}

/// Which enqueue of a debounced job counts.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Merge {
    /// The latest one.
    Last,
    /// The first one.
    First,
}

impl UniqueArgs {
    /// The rule that they describe; none without a key.
    pub fn unique(self) -> Option<Unique> {
        let hold = match self.unique_while {
            UniqueWhile::Scheduled => spec::UniqueWhile::Scheduled,
            UniqueWhile::Live => spec::UniqueWhile::Live,
        };
        let on_conflict = match self.on_conflict {
            Conflict::Keep => OnConflict::Keep,
            Conflict::Replace => OnConflict::Replace,
        };
        let merge = match self.debounce_merge {
            Merge::Last => MergePolicy::Last,
            Merge::First => MergePolicy::First,
        };
        let spans = self.debounce.zip(self.debounce_max);
        let debounce = spans.map(|(seconds, max_seconds)| Debounce { seconds, max_seconds, merge });
        let period_seconds = self.unique_period;
        self.unique_key.map(|key| Unique {
            period_seconds,
            on_conflict,
            debounce,
            ..Unique::new(key, hold)
        })
    }
}
