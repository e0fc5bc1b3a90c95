//! Hints: they help a node to choose when to try to lead, and to notice that the bucket has lost
//! objects. Nothing else depends on one.
//!
//! ```text
//!   hint/leader     the beat of the leader: it lives, and its log ends here
//!   hint/standby    a standby is there, so beats must be frequent; its state has differed
//! ```
//!
//! A leader that writes no records would look like one that is dead. So it overwrites its beat at an
//! interval, seldom as long as no standby is known. A beat has the time until the next one, so each
//! standby knows how long silence means nothing. A read costs a twelfth of a write: between two seldom
//! beats the leader looks for a standby several times, and beats at once when there is one.
//!
//! ```text
//!   leader    stop ──▶ beat: "is ending" ┄┄ goes on ┄┄▶ answer read ──▶ finish ──▶ seal
//!   standby      next poll: beat read ──▶ hint/standby: answer ──▶ reads the log every 100 ms ──▶ lead
//! ```
//!
//! A leader that stops announces it first, and goes on until a standby has answered. So the polls of a
//! standby may be as rare as beats are, and a planned hand-over still takes less than a second.

use std::{pin::pin, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{
    StreamExt as _,
    future::{Either, pending, select},
    stream::{self, BoxStream},
};
use serde::{Deserialize, Serialize};
use tidegate_core::time::Timestamp;

use super::{
    handover::Intent,
    key::{Epoch, Slot},
    node::Node,
    replica::Replica,
};

/// The leader checks for a standby once in this many beats.
const BEATS_PER_STANDBY_CHECK: u32 = 15;
/// The interval of the beats as long as no standby is known, unless the usual one is longer.
pub(super) const SLOW_INTERVAL: Duration = Duration::from_mins(1);
/// The time between two checks for a standby as long as none is known. Until such a check, a takeover by a
/// new standby takes as long as a seldom beat may.
const STANDBY_POLL: Duration = Duration::from_secs(10);
/// The leader checks for a foreign claim once in this many beats.
const BEATS_PER_CLAIM_CHECK: u32 = 2;
/// How many checks in a row may find no new announcement of a standby before it counts as gone.
const MAX_QUIET_CHECKS: u32 = 10;
/// A standby announces itself once in this many intervals.
const ANNOUNCE_INTERVALS: u32 = 4 * BEATS_PER_STANDBY_CHECK;
/// The time between two reads of the answer to the announced end of a leadership.
const ANSWER_POLL: Duration = Duration::from_millis(100);
/// The part of an interval that a beat may take, and that passes until one that failed is repeated.
pub(super) const ATTEMPTS_PER_INTERVAL: u32 = 5;

/// An object that is overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The beat of the leader.
    Leader,
    /// The announcement of a standby.
    Standby,
}

impl Hint {
    /// Its name below the prefix of the log.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Leader => "hint/leader",
            Self::Standby => "hint/standby",
        }
    }
}

/// Object storage in which an object can be overwritten.
#[async_trait]
pub trait Hints: Send + Sync {
    /// Overwrites a hint. Returns whether the store did so.
    async fn write(&self, hint: Hint, bytes: Bytes) -> bool;

    /// Reads the first 4 KiB of a hint; none if there is none, or the store does not answer.
    async fn read(&self, hint: Hint) -> Option<Bytes>;
}

/// A sign of life of the leader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Beat {
    /// The epoch that it leads or has ended, or the next one while it rolls over. It is claimed.
    pub epoch: u64,
    /// The number of the next slot of the epoch: those before it are filled.
    pub seq: u64,
    /// Where it answers requests.
    pub address: String,
    /// One more than in the beat before.
    pub count: u64,
    /// When the next beat follows, in milliseconds. 0: the leader has ended its epoch.
    pub next_within_ms: u64,
    /// Whether the leader is about to end its epoch.
    #[serde(default)]
    pub is_ending: bool,
}

impl Beat {
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    pub(super) fn encode(&self) -> Bytes {
        serde_json::to_vec(self).expect("a beat is plain data").into()
    }

    /// Whether the log of the leader ends at `next`.
    pub(super) fn is_at(&self, next: Slot) -> bool {
        (self.epoch, self.seq) == (next.epoch.number(), next.seq)
    }

    /// Whether the log of the leader had an object in `slot`.
    pub(super) fn is_after(&self, slot: Slot) -> bool {
        self.epoch == slot.epoch.number() && self.seq > slot.seq
    }

    /// How long silence after it means nothing.
    pub(super) fn next_within(&self) -> Duration {
        Duration::from_millis(self.next_within_ms)
    }

    /// The epoch of the leader, if it is about to end it.
    pub(super) fn ending(&self) -> Option<Epoch> {
        Epoch::new(self.epoch).filter(|_| self.is_ending)
    }

    /// The epoch that the leader has ended by itself, if the log ends at `next` because of that.
    pub(super) fn ended_at(&self, next: Slot) -> Option<Epoch> {
        let has_ended = self.next_within_ms == 0 || self.is_ending;
        let ended = Epoch::new(self.epoch).filter(|_| has_ended)?;
        (Slot::first_of(ended.next()) == next).then_some(ended)
    }
}

/// Whether the leader knows of a standby.
#[derive(Debug)]
struct StandbyWatch {
    announcement: Option<Bytes>,
    quiet_checks: u32,
    /// The difference in the last announcement.
    difference: Option<Epoch>,
}

impl StandbyWatch {
    fn new(announcement: Option<Bytes>) -> Self {
        let mut standby = Self { announcement, quiet_checks: MAX_QUIET_CHECKS, difference: None };
        standby.expect();
        standby
    }

    /// Takes a standby for there until the next check: it needs some time to announce itself to a new leader,
    /// and so does one that has claimed an epoch.
    fn expect(&mut self) {
        self.quiet_checks = self.quiet_checks.min(MAX_QUIET_CHECKS - 1);
    }

    fn check(&mut self, announcement: Option<Bytes>) {
        if announcement.is_some() && self.announcement != announcement {
            self.quiet_checks = 0;
            self.difference = announcement.as_deref().and_then(announced_difference);
            self.announcement = announcement;
        } else {
            self.quiet_checks += 1;
        }
    }

    fn is_there(&self) -> bool {
        self.quiet_checks < MAX_QUIET_CHECKS
    }

    /// Whether `announcement` is newer than the last one that was checked.
    fn has_answered(&self, announcement: Option<&Bytes>) -> bool {
        announcement.is_some() && announcement != self.announcement.as_ref()
    }
}

/// What a leader knows from one beat to the next.
#[derive(Debug)]
struct Beats {
    /// How many there were.
    count: u32,
    /// Whether they announce the end of the epoch.
    is_ending: bool,
    standby: StandbyWatch,
}

impl Beats {
    fn new(announcement: Option<Bytes>) -> Self {
        Self { count: 0, is_ending: false, standby: StandbyWatch::new(announcement) }
    }
}

impl<R: Replica> Node<R> {
    /// Beats. Its items are claims of the next epoch by another process, and why it has claimed it: a leader
    /// without requests would not find out otherwise that another node has sealed its epoch.
    pub(super) fn beats(&self) -> BoxStream<'_, Intent> {
        let beats = stream::unfold(None, async |beats| {
            let mut beats = match (beats, &self.hints) {
                (Some(beats), _) => beats,
                (None, Some(hints)) => Beats::new(hints.read(Hint::Standby).await),
                (None, None) => Beats::new(None),
            };
            let intent = self.beat(&mut beats).await;
            beats.standby.expect();
            Some((intent, Some(beats)))
        });
        beats.boxed()
    }

    /// Beats until another process claims the next epoch; returns why it did.
    async fn beat(&self, beats: &mut Beats) -> Intent {
        let Some(hints) = &self.hints else {
            loop {
                self.edge.pause(self.settings.beat_interval * BEATS_PER_CLAIM_CHECK).await;
                if let Some(intent) = self.next_claim().await {
                    return intent;
                }
            }
        };
        let Beats { count, is_ending, standby } = beats;
        loop {
            *count += 1;
            let interval = self.settings.beat_interval;
            let attempt = interval / ATTEMPTS_PER_INTERVAL;
            if self.leadership.is_hurried() && !*is_ending {
                *is_ending = true;
                // What is read here is no answer to the beat that follows.
                let announcement = self.within(attempt, hints.read(Hint::Standby)).await;
                standby.check(announcement.flatten());
                if !standby.is_there() {
                    self.leadership.set_awaited();
                }
            }
            let is_slow = !standby.is_there();
            let within = if is_slow { interval.max(SLOW_INTERVAL) } else { interval };
            let written = self.within(attempt, self.write_beat(*count, within, *is_ending)).await;
            // What is read until the next beat must not delay it.
            let pause = if written == Some(true) { within } else { attempt };
            let reads = async {
                if *is_ending && !self.leadership.is_awaited() {
                    self.wait_for_answer(hints.as_ref(), standby).await;
                }
                if (is_slow || count.is_multiple_of(BEATS_PER_CLAIM_CHECK))
                    && let Some(intent) = self.next_claim().await
                {
                    return Some(intent);
                }
                if is_slow {
                    self.wait_for_standby(hints.as_ref(), standby).await;
                    return None;
                }
                if count.is_multiple_of(BEATS_PER_STANDBY_CHECK) {
                    self.check_standby(hints.as_ref(), standby).await;
                }
                pending().await
            };
            let stop = async {
                if *is_ending {
                    pending::<()>().await;
                }
                self.leadership.hurried().await;
            };
            if let Either::Left((Some(Some(intent)), _)) =
                select(pin!(self.within(pause, reads)), pin!(stop)).await
            {
                return intent;
            }
        }
    }

    /// Waits until a standby announces itself.
    async fn wait_for_standby(&self, hints: &dyn Hints, standby: &mut StandbyWatch) {
        loop {
            self.check_standby(hints, standby).await;
            if standby.is_there() {
                return;
            }
            self.edge.pause(STANDBY_POLL).await;
        }
    }

    /// Reads the announcement of a standby, and notes a difference in it.
    async fn check_standby(&self, hints: &dyn Hints, standby: &mut StandbyWatch) {
        standby.check(hints.read(Hint::Standby).await);
        if let Some(epoch) = standby.difference {
            self.leadership.note_difference(epoch);
        }
    }

    /// Waits until a standby has answered to the announced end, or is waited for no longer.
    async fn wait_for_answer(&self, hints: &dyn Hints, standby: &StandbyWatch) {
        while !self.leadership.is_awaited() {
            if standby.has_answered(hints.read(Hint::Standby).await.as_ref()) {
                self.leadership.set_awaited();
            } else {
                self.edge.pause(ANSWER_POLL).await;
            }
        }
    }

    /// The output of `work`, if it ends within `span`.
    async fn within<T>(&self, span: Duration, work: impl Future<Output = T>) -> Option<T> {
        match select(pin!(work), pin!(self.edge.pause(span))).await {
            Either::Left((output, _)) => Some(output),
            Either::Right(_) => None,
        }
    }

    /// Shows standbys that this leader has ended its epoch.
    pub(super) async fn write_release(&self, ended: Epoch) {
        let Some(hints) = &self.hints else { return };
        let beat = Beat {
            epoch: ended.number(),
            address: self.settings.address.clone(),
            ..Beat::default()
        };
        hints.write(Hint::Leader, beat.encode()).await;
    }

    async fn write_beat(&self, count: u32, within: Duration, is_ending: bool) -> bool {
        let (Some(hints), Some(led)) = (&self.hints, self.leadership.epoch()) else { return true };
        // A roll-over reads on if another process has led the next epoch. If that has ended it, the one
        // after it may have no claim.
        let Slot { epoch, seq } = self.replica.tail().next.min(Slot::first_of(led.next()));
        let beat = Beat {
            epoch: epoch.number(),
            seq,
            address: self.settings.address.clone(),
            count: count.into(),
            next_within_ms: within.as_millis() as u64,
            is_ending,
        };
        hints.write(Hint::Leader, beat.encode()).await
    }

    /// The beat of the leader, as far as it can be read.
    pub(super) async fn read_beat(&self) -> Option<Beat> {
        let bytes = self.hints.as_ref()?.read(Hint::Leader).await?;
        Beat::decode(&bytes)
    }
}

/// When a standby has announced itself.
#[derive(Debug, Default)]
pub(super) struct Announcement {
    last: Option<(Addressee, Timestamp)>,
    count: u64,
}

/// The leader that a standby announces itself to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Addressee {
    /// Its epoch.
    pub epoch: Option<Epoch>,
    /// Whether it has announced its end, which it waits for an answer to.
    pub is_ending: bool,
    /// The epoch of the snapshot that this standby has differed from, which it is to learn.
    pub difference: Option<Epoch>,
}

impl Announcement {
    /// Announces this node to a leader, unless it has done so a short time ago.
    pub(super) async fn renew<R: Replica>(&mut self, node: &Node<R>, leader: Addressee) {
        let Some(hints) = &node.hints else { return };
        let now = node.edge.clock.now();
        let interval = node.settings.beat_interval * ANNOUNCE_INTERVALS;
        if self.is_recent(leader, now, interval) {
            return;
        }
        self.last = Some((leader, now));
        self.count += 1;
        let mut announcement = format!("{:032x} {}", node.nonce, self.count);
        if let Some(epoch) = leader.difference {
            announcement = format!("{announcement} {}", epoch.number());
        }
        hints.write(Hint::Standby, announcement.into()).await;
    }

    /// Whether this node has announced itself to `leader` less than `interval` ago. A clock that went back
    /// does not show that, and the leader would count the node as gone.
    fn is_recent(&self, leader: Addressee, now: Timestamp, interval: Duration) -> bool {
        self.last.is_some_and(|(last, at)| last == leader && at <= now && now.since(at) < interval)
    }
}

/// The epoch of the snapshot that the state of an announced standby has differed from.
fn announced_difference(announcement: &[u8]) -> Option<Epoch> {
    let text = std::str::from_utf8(announcement).ok()?;
    Epoch::new(text.split(' ').nth(2)?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;

    use super::*;
    use crate::{
        bucket_log::{Edge, NodeSettings, StoreBucket, object::Kind, simulation::kv::KvReplica},
        system::{SystemClock, SystemEntropy},
    };

    #[tokio::test]
    async fn no_beat_names_an_epoch_that_is_not_claimed() {
        let bucket = Arc::new(StoreBucket::new(Arc::new(InMemory::new()), "prefix".into()));
        let edge = Edge {
            bucket: Arc::clone(&bucket) as _,
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
        };
        let replica = Arc::new(KvReplica::new(0, Arc::default(), None));
        let opened = Node::open(edge, Arc::clone(&replica), NodeSettings::default()).await;
        let (node, _handle) = opened.unwrap();
        let node = node.with_hints(bucket);
        node.leadership.set(Some(Epoch::FIRST));
        // Another process leads epoch 2 and ends it, and none claims epoch 3.
        for (kind, position) in [
            (Kind::Start, (1, 1)),
            (Kind::Seal, (2, 0)),
            (Kind::Start, (2, 0)),
            (Kind::Seal, (2, 0)),
        ] {
            let tail = replica.tail();
            let object = node.object(kind, tail, &Bytes::new());
            replica.apply(vec![tail.own(object)]).await.unwrap();
            assert!(node.write_beat(1, SLOW_INTERVAL, false).await);
            let beat = node.read_beat().await.unwrap();
            assert_eq!((beat.epoch, beat.seq), position);
        }
    }

    #[test]
    fn beats_are_frequent_while_a_standby_announces_itself() {
        let announcement = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
        let mut standby = StandbyWatch::new(announcement("old"));
        assert!(standby.is_there(), "it has had no time to announce itself");
        standby.check(announcement("old"));
        assert!(!standby.is_there());
        standby.check(announcement("new"));
        for _ in 0..MAX_QUIET_CHECKS {
            assert!(standby.is_there());
            standby.check(announcement("new"));
        }
        assert!(!standby.is_there());
        standby.check(None);
        assert!(!standby.is_there());
    }

    #[test]
    fn a_standby_whose_clock_went_back_announces_itself() {
        let (leader, interval) = (Addressee::default(), Duration::from_secs(1));
        let announced =
            Announcement { last: Some((leader, Timestamp::from_millis(5_000))), count: 1 };
        let is_recent =
            |millis| announced.is_recent(leader, Timestamp::from_millis(millis), interval);
        assert!(is_recent(5_000) && is_recent(5_999));
        assert!(!is_recent(6_000), "the interval is over");
        assert!(!is_recent(4_999), "the clock went back");
    }

    #[test]
    fn a_leader_learns_of_a_standby_that_differs() {
        for (text, epoch) in [("00ff 1 7", Epoch::new(7)), ("00ff 2", None), ("00ff 2 x", None)] {
            let mut standby = StandbyWatch::new(Some(Bytes::from_static(b"00ff 1 5")));
            assert_eq!(standby.difference, None, "of a standby before");
            standby.check(Some(Bytes::from_static(text.as_bytes())));
            assert_eq!(standby.difference, epoch, "{text}");
        }
    }

    #[test]
    fn an_answer_differs_from_what_the_leader_has_read() {
        let [old, new] = ["old", "new"].map(|text| Bytes::from_static(text.as_bytes()));
        let mut standby = StandbyWatch::new(None);
        assert!(!standby.has_answered(None) && standby.has_answered(Some(&old)));
        standby.check(Some(old.clone()));
        assert!(!standby.has_answered(Some(&old)) && !standby.has_answered(None));
        assert!(standby.has_answered(Some(&new)));
    }

    #[test]
    fn a_leader_that_ends_its_epoch_is_known_by_its_beat_and_seal() {
        let epoch = Epoch::FIRST;
        let released = Beat { epoch: 1, ..Beat::default() };
        let next = Slot::first_of(epoch.next());
        let beat = Beat { next_within_ms: 4_000, ..released.clone() };
        let ending = Beat { is_ending: true, ..beat.clone() };
        for ended in [&released, &ending] {
            assert_eq!(ended.ended_at(next), Some(epoch));
            assert_eq!(ended.ended_at(Slot::first_of(epoch)), None);
        }
        assert_eq!(beat.ended_at(next), None);
        assert_eq!([&released, &beat, &ending].map(Beat::ending), [None, None, Some(epoch)]);
        assert_eq!(Beat::decode(&ending.encode()), Some(ending));
        let earlier = r#"{"epoch":1,"seq":0,"address":"","count":0,"next_within_ms":4000}"#;
        assert_eq!(Beat::decode(earlier.as_bytes()), Some(beat), "of an earlier build");
        assert_eq!(Beat::decode(b"no beat"), None);
    }
}
