//! Which servers share the store, and which of them owns what.
//!
//! Each server renews a record. Another one measures with its own clock how long the record has not
//! changed, so no two clocks are compared. The owner of a queue follows from the names of the servers
//! alone. While two servers see different ones, both may do the same work: the condition of each write
//! decides, and the loser has only wasted its time.

use std::{collections::BTreeMap, time::Duration};

use sha2::{Digest as _, Sha256};

use tidegate_core::time::Timestamp;

/// How long a record may stay unchanged before its server counts as gone.
const MAX_SILENCE: Duration = Duration::from_secs(10);

/// The servers that this one knows.
#[derive(Debug)]
pub(super) struct Members {
    /// The name of this server.
    own: String,
    /// The records of others.
    seen: BTreeMap<String, Seen>,
    /// The servers that count, this one among them.
    alive: Vec<String>,
}

/// A record as it was when it last changed.
#[derive(Clone, Copy, Debug)]
struct Seen {
    beat: u64,
    at: Timestamp,
}

impl Members {
    /// The server `own` alone.
    pub(super) fn new(own: String) -> Self {
        Self { alive: vec![own.clone()], own, seen: BTreeMap::new() }
    }

    /// The name of this server.
    pub(super) fn own(&self) -> &str {
        &self.own
    }

    /// How many servers there are.
    pub(super) fn count(&self) -> usize {
        self.alive.len()
    }

    /// Learns the names and beats of all records, as they were at `now` of the machine's time.
    /// Returns whether a server came or went.
    pub(super) fn observe(
        &mut self,
        records: impl IntoIterator<Item = (String, u64)>,
        now: Timestamp,
    ) -> bool {
        let others = records.into_iter().filter(|(name, _)| *name != self.own);
        let seen: BTreeMap<String, Seen> = others
            .map(|(name, beat)| {
                let known = self.seen.get(&name).filter(|seen| seen.beat == beat).copied();
                (name, known.unwrap_or(Seen { beat, at: now }))
            })
            .collect();
        let is_alive = |seen: &Seen| now.since(seen.at) < MAX_SILENCE;
        let mut alive: Vec<String> =
            seen.iter().filter(|(_, seen)| is_alive(seen)).map(|(name, _)| name.clone()).collect();
        alive.push(self.own.clone());
        alive.sort_unstable();
        self.seen = seen;
        std::mem::replace(&mut self.alive, alive) != self.alive
    }

    /// Whether this server owns `what`.
    pub(super) fn owns(&self, what: &str) -> bool {
        let weight = |name: &String| Sha256::new().chain_update(name).chain_update(what).finalize();
        self.alive.iter().max_by_key(|name| weight(name)) == Some(&self.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
    }

    fn records(beats: &[(&str, u64)]) -> Vec<(String, u64)> {
        beats.iter().map(|(name, beat)| ((*name).to_owned(), *beat)).collect()
    }

    #[test]
    fn each_queue_has_one_owner_among_those_who_see_the_same() {
        let names = ["a", "b", "c"];
        let all = records(&names.map(|name| (name, 1)));
        let members: Vec<Members> = names
            .iter()
            .map(|name| {
                let mut members = Members::new((*name).to_owned());
                members.observe(all.clone(), at(0));
                members
            })
            .collect();
        let mut owned = [0; 3];
        for number in 0..300 {
            let queue = format!("q{number}");
            let owners: Vec<usize> = (0..3).filter(|index| members[*index].owns(&queue)).collect();
            assert_eq!(owners.len(), 1, "{queue}");
            owned[owners[0]] += 1;
        }
        assert!(owned.iter().all(|count| (70..=130).contains(count)), "{owned:?}");
    }

    #[test]
    fn a_server_that_goes_leaves_the_queues_of_others_alone() {
        let mut members = Members::new("a".to_owned());
        members.observe(records(&[("a", 1), ("b", 1), ("c", 1)]), at(0));
        let queues: Vec<String> = (0..100).map(|number| format!("q{number}")).collect();
        let before: Vec<&String> = queues.iter().filter(|queue| members.owns(queue)).collect();
        assert!(members.observe(records(&[("a", 1), ("b", 2)]), at(1)));
        assert!(before.iter().all(|queue| members.owns(queue)));
        assert!(queues.iter().filter(|queue| members.owns(queue)).count() > before.len());
    }

    #[test]
    fn a_record_that_does_not_change_is_of_a_server_that_is_gone() {
        let mut members = Members::new("a".to_owned());
        assert!(members.observe(records(&[("b", 7)]), at(0)));
        assert!(!members.observe(records(&[("b", 7)]), at(9)));
        assert_eq!(members.count(), 2);
        assert!(members.observe(records(&[("b", 7)]), at(10)), "it is silent for too long");
        assert_eq!(members.count(), 1);
        assert!(!members.observe(records(&[("b", 7)]), at(11)));
        assert!(members.observe(records(&[("b", 8)]), at(12)), "it was frozen only");
        assert!(members.observe(records(&[]), at(13)), "it has removed its record");
        assert_eq!(members.count(), 1);
    }
}
