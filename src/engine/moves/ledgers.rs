//! Ledgers for the target of a move.
//!
//! The functions on a table send granted work through a work queue, and the job is claimed by whichever
//! function receives it. If the message is lost, the work is sent again for a day. Servers have no such
//! queue: a tick of theirs claims what it grants. So no server would claim such a grant, and it would
//! hold its slot for that day.

use super::Side;
use tidegate_core::{queue::Ledger, time::Timestamp};

impl Side {
    /// `ledger` as this side needs it. On a store of servers, batches with work that was sent, or is to
    /// be sent, are checked at once: the first tick revokes what no worker has claimed.
    pub(super) fn as_moved(&self, mut ledger: Ledger) -> Ledger {
        // Servers use stores whose transactions are atomic, and functions those without.
        if !self.store.capabilities().atomicity.is_atomic() {
            return ledger;
        }
        for batch in ledger.batches.iter_mut().filter(|batch| !batch.sent || batch.sends > 0) {
            (batch.sent, batch.sends, batch.check_at) = (true, 0, Timestamp::EPOCH);
        }
        ledger
    }
}
