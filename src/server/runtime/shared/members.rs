//! Which servers share the store, and which of them owns what.
//!
//! Each server renews a record. Another one measures with its own clock how long the record has not
//! changed, so no two clocks are compared. The owner of a queue follows from the names of the servers
//! alone. While two servers see different ones, both may do the same work: the condition of each write
//! decides, and the loser has only wasted its time.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::SweptCounts;
use crate::runtime::changes::Forwarded;
use tidegate_core::time::Timestamp;

/// How long a record may stay unchanged before its server counts as gone.
const MAX_SILENCE: Duration = Duration::from_secs(10);

/// How long nothing is forwarded to a server after it did not answer, at least.
const MIN_PAUSE: Duration = Duration::from_secs(5);

/// A server's record.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ServerRecord {
    /// How often it was renewed.
    pub(super) beat: u64,
    pub(super) release: String,
    /// Where the other servers reach it, if they may forward requests to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) peer_url: Option<String>,
    /// Whether it has readers of the stream, to whom the others forward their changes.
    #[serde(default)]
    pub(super) has_readers: bool,
    /// How far it has forwarded its changes.
    #[serde(default)]
    pub(super) changes: Forwarded,
    /// What it has counted, if it owns the sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) swept: Option<SweptCounts>,
    /// Whether a later server has its `peer_url`, as after a restart: then it is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) replaced: bool,
}

/// Another server that takes forwarded requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) url: String,
}

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
#[derive(Debug)]
struct Seen {
    beat: u64,
    at: Timestamp,
    peer_url: Option<String>,
    replaced: bool,
    pause: Option<Pause>,
}

/// What must come before a server that did not answer gets another forwarded request: it renews its
/// record, so that a frozen one is not called again, and some time passes.
#[derive(Debug)]
struct Pause {
    /// Its beat when it did not answer.
    beat: u64,
    until: Timestamp,
}

impl Seen {
    fn is_paused(&self, now: Timestamp) -> bool {
        self.pause.as_ref().is_some_and(|pause| pause.beat == self.beat || now < pause.until)
    }
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

    /// Whether the server `name` is another one that counts.
    pub(super) fn is_other(&self, name: &str) -> bool {
        name != self.own && self.alive.iter().any(|alive| alive == name)
    }

    /// How many servers there are.
    pub(super) fn count(&self) -> usize {
        self.alive.len()
    }

    /// Whether the server `name` has a record and does not renew it.
    pub(super) fn is_silent(&self, name: &str) -> bool {
        self.seen.contains_key(name) && !self.alive.iter().any(|alive| alive == name)
    }

    /// Learns all records with the names of their servers, as they were at `now` of the machine's time.
    /// Returns whether a server came or went.
    pub(super) fn observe(
        &mut self,
        records: impl IntoIterator<Item = (String, ServerRecord)>,
        now: Timestamp,
    ) -> bool {
        let mut known = std::mem::take(&mut self.seen);
        for (name, ServerRecord { beat, peer_url, replaced, .. }) in records {
            if name == self.own {
                continue;
            }
            let (at, pause) = match known.remove(&name) {
                Some(seen) if seen.beat == beat => (seen.at, seen.pause),
                Some(seen) => (now, seen.pause),
                None => (now, None),
            };
            self.seen.insert(name, Seen { beat, at, peer_url, replaced, pause });
        }
        let is_alive = |seen: &Seen| !seen.replaced && now.since(seen.at) < MAX_SILENCE;
        let mut alive: Vec<String> = self
            .seen
            .iter()
            .filter(|(_, seen)| is_alive(seen))
            .map(|(name, _)| name.clone())
            .collect();
        alive.push(self.own.clone());
        alive.sort_unstable();
        std::mem::replace(&mut self.alive, alive) != self.alive
    }

    /// Whether this server owns `what`.
    pub(super) fn owns(&self, what: &str) -> bool {
        self.owner(what) == Some(&self.own)
    }

    /// The one other server that owns all of `queues`, if it takes forwarded requests at `now` of the
    /// machine's time.
    pub(super) fn peer<'a>(
        &self,
        queues: impl IntoIterator<Item = &'a str>,
        now: Timestamp,
    ) -> Option<Peer> {
        let mut queues = queues.into_iter();
        let owner = self.owner(queues.next()?)?;
        // This server is not among those that it has seen.
        let seen = self.seen.get(owner).filter(|seen| !seen.is_paused(now))?;
        let url = seen.peer_url.clone()?;
        queues
            .all(|queue| self.owner(queue) == Some(owner))
            .then(|| Peer { name: owner.clone(), url })
    }

    /// Pauses the server `name`, which did not answer at `now` of the machine's time. Returns whether it
    /// took forwarded requests until then.
    pub(super) fn pause(&mut self, name: &str, now: Timestamp) -> bool {
        let Some(seen) = self.seen.get_mut(name) else { return false };
        let was_paused = seen.is_paused(now);
        seen.pause = Some(Pause { beat: seen.beat, until: now + MIN_PAUSE });
        !was_paused
    }

    /// The name of the server that owns `what`.
    pub(super) fn owner(&self, what: &str) -> Option<&String> {
        let weight = |name: &String| Sha256::new().chain_update(name).chain_update(what).finalize();
        self.alive.iter().max_by_key(|name| weight(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
    }

    fn records(beats: &[(&str, u64)]) -> Vec<(String, ServerRecord)> {
        let record = |beat| ServerRecord { beat, ..ServerRecord::default() };
        beats.iter().map(|(name, beat)| ((*name).to_owned(), record(*beat))).collect()
    }

    /// The records of servers that take forwarded requests.
    fn peers(beats: &[(&str, u64)]) -> Vec<(String, ServerRecord)> {
        let mut records = records(beats);
        for (name, record) in &mut records {
            record.peer_url = Some(format!("http://{name}"));
        }
        records
    }

    /// A queue that the server `owner` owns.
    fn queue_of(members: &Members, owner: &str) -> String {
        let queues = (0..).map(|number| format!("q{number}"));
        let mut owned = queues.filter(|queue| members.owner(queue).is_some_and(|of| of == owner));
        owned.next().expect("there are always more")
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

    #[test]
    fn a_server_that_another_one_replaced_is_gone_at_once() {
        let mut members = Members::new("a".to_owned());
        members.observe(peers(&[("b", 7)]), at(0));
        let mut replaced = peers(&[("b", 7)]);
        replaced[0].1.replaced = true;
        assert!(members.observe(replaced, at(1)));
        assert_eq!((members.count(), members.is_silent("b")), (1, true));
        assert!(members.observe(peers(&[("b", 8)]), at(2)), "it was there all the time");
        assert_eq!(members.count(), 2);
    }

    #[test]
    fn requests_go_to_the_owner_of_all_their_queues() {
        let mut members = Members::new("a".to_owned());
        members.observe(peers(&[("a", 1), ("b", 1), ("c", 1)]), at(0));
        let [own, of_b, of_c] = ["a", "b", "c"].map(|name| queue_of(&members, name));
        let peer = |queues: &[&String]| {
            let names = queues.iter().map(|name| name.as_str());
            members.peer(names, at(0))
        };
        let b = Peer { name: "b".into(), url: "http://b".into() };
        assert_eq!(peer(&[&of_b]), Some(b.clone()));
        assert_eq!(peer(&[&of_b, &of_b]), Some(b));
        for mixed in [&[][..], &[&own], &[&of_b, &of_c], &[&own, &of_b], &[&of_b, &own]] {
            assert_eq!(peer(mixed), None, "{mixed:?}");
        }
    }

    #[test]
    fn a_record_of_an_older_release_has_no_peer_url() {
        let older: ServerRecord =
            serde_json::from_str(r#"{"beat": 7, "release": "0.1.0"}"#).unwrap();
        assert_eq!((older.beat, &older.peer_url), (7, &None));
        let mut members = Members::new("a".to_owned());
        members.observe([("b".to_owned(), older)], at(0));
        let of_b = queue_of(&members, "b");
        assert_eq!(members.peer([&*of_b], at(0)), None);
    }

    /// The part of the record that releases without `peer_url` read.
    #[test]
    fn an_older_release_reads_a_record_with_a_peer_url() {
        #[derive(Deserialize)]
        struct Older {
            beat: u64,
            release: String,
        }
        let (_, record) = peers(&[("b", 7)]).pop().unwrap();
        let bytes = serde_json::to_vec(&record).unwrap();
        let older: Older = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((older.beat, older.release), (7, String::new()));
        let newer: ServerRecord = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(newer.peer_url.as_deref(), Some("http://b"));
    }

    #[test]
    fn a_server_that_did_not_answer_is_paused_until_it_beats() {
        let mut members = Members::new("a".to_owned());
        members.observe(peers(&[("b", 1)]), at(0));
        let of_b = queue_of(&members, "b");
        let is_paused = |members: &Members, now| members.peer([&*of_b], at(now)).is_none();
        assert!(members.pause("b", at(1)));
        assert!(!members.pause("b", at(1)), "another call fails");
        members.observe(peers(&[("b", 1)]), at(8));
        assert!(is_paused(&members, 8), "it may be frozen");
        members.observe(peers(&[("b", 2)]), at(9));
        assert!(!is_paused(&members, 9));

        assert!(members.pause("b", at(9)));
        members.observe(peers(&[("b", 3)]), at(10));
        assert!(is_paused(&members, 10), "it lives, and may not be reached");
        assert!(is_paused(&members, 13));
        assert!(!is_paused(&members, 14));
    }

    #[test]
    fn only_servers_that_are_alive_are_others() {
        let mut members = Members::new("b".to_owned());
        members.observe(records(&[("c", 1), ("a", 1), ("b", 1)]), at(0));
        members.observe(records(&[("c", 1), ("a", 2), ("b", 2)]), at(10));
        let others = ["a", "b", "c"].map(|name| members.is_other(name));
        assert_eq!(others, [true, false, false]);
        let silent = |members: &Members| ["a", "b", "c"].map(|name| members.is_silent(name));
        assert_eq!(silent(&members), [false, false, true]);
        members.observe(records(&[("b", 2)]), at(11));
        assert_eq!(silent(&members), [false; 3], "those that stop in order remove their records");
    }
}
