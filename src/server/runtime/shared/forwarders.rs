//! How far this server knows the changes that others forward to it, and whether some are missing.
//!
//! Changes come in notices, which may be lost, and have numbers. A batch that does not begin where the
//! one before ended shows a loss at once. The record of each server says how far it is, so the loss of
//! its latest batch is found, too. What is missing is not repeated: readers get the event `skipped`,
//! and read their state again.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::Duration,
};

use crate::runtime::changes::Forwarded;
use tidegate_core::{port::ChangeBatch, time::Timestamp};

/// How much later than the record that tells of it a batch may come.
const MAX_LATE: Duration = Duration::from_secs(2);

/// The servers that forward their changes to this one.
#[derive(Debug, Default)]
pub(super) struct Forwarders {
    forwarding: BTreeMap<String, Forwarder>,
    /// All other servers that count.
    others: BTreeSet<String>,
}

/// A server that forwards its changes.
#[derive(Clone, Copy, Debug)]
struct Forwarder {
    run: u64,
    /// The number of the next change.
    next: u64,
    /// The number of the next change in its record, and when that was read; the earliest one that was
    /// not reached when the record was last read.
    announced: Option<(u64, Timestamp)>,
}

impl Forwarder {
    /// Learns from its record, read at `now`, that its next change is `next`. Returns whether changes
    /// are missing.
    fn learn(&mut self, next: u64, now: Timestamp) -> bool {
        match self.announced {
            Some((announced, at)) if self.next < announced => {
                let is_late = now.since(at) >= MAX_LATE;
                if is_late {
                    self.next = announced;
                    self.announced = Some((next, now));
                }
                is_late
            }
            _ => {
                self.announced = Some((next, now));
                false
            }
        }
    }
}

impl Forwarders {
    /// Whether all other servers forward their changes to this one.
    pub(super) fn is_complete(&self) -> bool {
        self.others.iter().all(|name| self.forwarding.contains_key(name))
    }

    /// Takes a batch. Returns whether changes before it may be missing.
    pub(super) fn take(&mut self, batch: &ChangeBatch) -> bool {
        let &ChangeBatch { ref server, run, first, count, .. } = batch;
        let end = first.saturating_add(count);
        match self.forwarding.get_mut(server) {
            Some(peer) if peer.run == run => {
                let is_missing = first > peer.next;
                peer.next = peer.next.max(end);
                is_missing
            }
            // It is late.
            Some(peer) if peer.run > run => false,
            // What happened before the run was not forwarded.
            _ => {
                self.forwarding
                    .insert(server.clone(), Forwarder { run, next: end, announced: None });
                true
            }
        }
    }

    /// Learns how far the other servers are by their records, which were read at `now` of the machine's
    /// time. Returns whether changes may be missing: those of a server that does not forward them,
    /// or that is gone, among them.
    pub(super) fn observe<'a>(
        &mut self,
        records: impl IntoIterator<Item = (&'a str, Forwarded)>,
        now: Timestamp,
    ) -> bool {
        let mut known = mem::take(&mut self.forwarding);
        self.others.clear();
        let mut is_missing = false;
        for (name, Forwarded { run, next, goes_on }) in records {
            self.others.insert(name.to_owned());
            let peer = match known.remove(name) {
                // A batch of a later run has come before the record.
                Some(peer) if peer.run > run => peer,
                Some(mut peer) if peer.run == run && goes_on => {
                    is_missing |= peer.learn(next, now);
                    peer
                }
                _ if goes_on => {
                    is_missing = true;
                    Forwarder { run, next, announced: None }
                }
                _ => continue,
            };
            self.forwarding.insert(name.to_owned(), peer);
        }
        is_missing || !known.is_empty() || !self.is_complete()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
    }

    fn batch(run: u64, first: u64, count: u64) -> ChangeBatch {
        ChangeBatch { server: "a".to_owned(), run, first, count, json: "[]".to_owned() }
    }

    fn record(run: u64, next: u64) -> [(&'static str, Forwarded); 1] {
        [("a", Forwarded { run, next, goes_on: true })]
    }

    /// A server that has taken the first batch of another one's first run.
    fn joined() -> Forwarders {
        let mut forwarders = Forwarders::default();
        assert!(forwarders.is_complete(), "it is alone");
        assert!(forwarders.observe([("a", Forwarded::default())], at(0)));
        assert!(!forwarders.is_complete());
        assert!(forwarders.take(&batch(1, 0, 0)), "what was before the run");
        assert!(forwarders.is_complete());
        forwarders
    }

    #[test]
    fn a_batch_that_does_not_follow_shows_a_loss() {
        let mut forwarders = joined();
        assert!(!forwarders.take(&batch(1, 0, 3)));
        assert!(!forwarders.take(&batch(1, 3, 1)));
        assert!(forwarders.take(&batch(1, 5, 1)));
        assert!(!forwarders.take(&batch(1, 6, 1)), "only once");
        assert!(!forwarders.take(&batch(1, 3, 1)), "it comes twice");
        assert!(!forwarders.take(&batch(1, 7, 1)));
        assert!(forwarders.take(&batch(2, 0, 0)), "a new run");
        assert!(!forwarders.take(&batch(1, 8, 1)), "a late one of the run before");
        assert!(!forwarders.take(&batch(2, 0, 1)));
        assert!(forwarders.take(&batch(2, u64::MAX, 1)), "no server sends it");
    }

    #[test]
    fn the_loss_of_the_latest_batch_is_found_by_the_record() {
        let mut forwarders = joined();
        assert!(!forwarders.observe(record(1, 0), at(0)));
        assert!(!forwarders.observe(record(1, 4), at(2)), "they may be on their way");
        assert!(!forwarders.observe(record(1, 6), at(3)));
        assert!(forwarders.observe(record(1, 6), at(4)), "the first four are lost");
        assert!(!forwarders.take(&batch(1, 4, 2)), "the others are not");
        assert!(!forwarders.observe(record(1, 6), at(9)));
        assert!(!forwarders.observe(record(1, 7), at(10)));
        assert!(!forwarders.take(&batch(1, 6, 1)));
        assert!(!forwarders.observe(record(1, 7), at(20)));
    }

    #[test]
    fn a_record_from_before_the_run_changes_nothing() {
        let mut forwarders = joined();
        assert!(!forwarders.observe([("a", Forwarded::default())], at(1)));
        assert!(forwarders.is_complete());
        assert!(forwarders.take(&batch(2, 0, 0)));
        assert!(!forwarders.observe(record(1, 9), at(2)));
    }

    #[test]
    fn a_server_that_does_not_forward_may_hide_changes() {
        let mut forwarders = joined();
        let stopped = Forwarded { run: 1, next: 0, goes_on: false };
        assert!(forwarders.observe([("a", stopped)], at(1)));
        assert!(forwarders.observe([("a", stopped)], at(2)), "as long as it does not");
        assert!(!forwarders.is_complete());
        assert!(forwarders.observe(record(2, 5), at(3)), "its first batch was lost");
        assert!(forwarders.is_complete());
        assert!(!forwarders.take(&batch(2, 5, 1)));
        assert!(!forwarders.observe(record(2, 6), at(4)));
        assert!(forwarders.observe([], at(5)), "it may have died with changes");
        assert!(!forwarders.observe([], at(6)));
    }
}
