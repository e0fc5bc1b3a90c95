//! What the owner of the sweep counts, and every server shows: the owner's record has it.
//!
//! So the gauges of a server that has lost the sweep keep no old numbers, and a server that takes the
//! sweep over begins with the latest ones.

use serde::{Deserialize, Serialize};

use super::Shared;
use crate::{runtime::Inner, telemetry::metrics};

/// What the latest sweeps have counted. A number is none until a sweep has counted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::runtime) struct SweptCounts {
    /// How many dead letters there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::runtime) dead_letters: Option<u64>,
    /// How many replies are pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::runtime) pending_replies: Option<u64>,
}

impl SweptCounts {
    /// Replaces the numbers that `later` has.
    fn update(&mut self, later: Self) {
        self.dead_letters = later.dead_letters.or(self.dead_letters);
        self.pending_replies = later.pending_replies.or(self.pending_replies);
    }
}

impl Shared {
    /// Shows what the owner of the sweep has counted: this server, or another one.
    pub(super) fn on_swept_counts(&self, counts: SweptCounts) {
        if let Some(count) = counts.dead_letters {
            metrics::dead_letter_count(count);
        }
        if let Some(count) = counts.pending_replies {
            metrics::pending_reply_count(count);
        }
        self.swept.lock().update(counts);
    }
}

impl Inner {
    /// Lets the other servers show what a sweep of this one has counted, if it shares its store.
    pub(in crate::runtime) fn on_swept_counts(&self, counts: SweptCounts) {
        if let Some(shared) = &self.shared {
            shared.on_swept_counts(counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_stays_until_a_later_sweep_has_another() {
        let mut counts = SweptCounts::default();
        let of = |dead_letters, pending_replies| SweptCounts { dead_letters, pending_replies };
        counts.update(of(Some(1), None));
        assert_eq!(counts, of(Some(1), None));
        counts.update(of(None, Some(2)));
        counts.update(of(Some(0), None));
        assert_eq!(counts, of(Some(0), Some(2)));
    }
}
