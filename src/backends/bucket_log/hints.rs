//! Hints: they help a node to choose when to try to lead, and to notice that the bucket has lost
//! objects. Nothing else depends on one.
//!
//! ```text
//!   hint/leader     the beat of the leader: it lives, and its log ends here
//!   hint/standby    a standby is there, so beats must be frequent
//! ```
//!
//! A leader that writes no records would look like one that is dead. So it overwrites its beat at an
//! interval, seldom as long as no standby is known. A beat has the time until the next one, so each
//! standby knows how long silence means nothing.

use std::{pin::pin, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::{Either, pending, select};
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
/// The leader checks for a foreign claim once in this many beats.
const BEATS_PER_CLAIM_CHECK: u32 = 2;
/// How many checks in a row may find no new announcement of a standby before it counts as gone.
const MAX_QUIET_CHECKS: u32 = 10;
/// A standby announces itself once in this many intervals.
const ANNOUNCE_INTERVALS: u32 = 4 * BEATS_PER_STANDBY_CHECK;
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
    /// The epoch that it leads, or has ended. It is claimed.
    pub epoch: u64,
    /// The number of the next slot of the epoch: those before it are filled.
    pub seq: u64,
    /// Where it answers requests.
    pub address: String,
    /// One more than in the beat before.
    pub count: u64,
    /// When the next beat follows, in milliseconds. 0: the leader has ended its epoch.
    pub next_within_ms: u64,
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

    /// Whether the leader has ended its epoch by itself, and the log ends at `next` because of that.
    pub(super) fn is_released_at(&self, next: Slot) -> bool {
        let ended = Epoch::new(self.epoch).map(|ended| Slot::first_of(ended.next()));
        self.next_within_ms == 0 && ended == Some(next)
    }
}

/// Whether the leader knows of a standby.
#[derive(Debug)]
struct StandbyWatch {
    announcement: Option<Bytes>,
    quiet_checks: u32,
}

impl StandbyWatch {
    /// A standby that is there needs some time to announce itself to a new leader.
    fn new(announcement: Option<Bytes>) -> Self {
        Self { announcement, quiet_checks: MAX_QUIET_CHECKS - 1 }
    }

    fn check(&mut self, announcement: Option<Bytes>) {
        if announcement.is_some() && self.announcement != announcement {
            self.quiet_checks = 0;
            self.announcement = announcement;
        } else {
            self.quiet_checks += 1;
        }
    }

    fn is_there(&self) -> bool {
        self.quiet_checks < MAX_QUIET_CHECKS
    }
}

impl<R: Replica> Node<R> {
    /// Beats until another process claims the next epoch; returns why it did. A leader without
    /// requests would not find out otherwise that another node has sealed its epoch.
    pub(super) async fn beat(&self) -> Intent {
        let Some(hints) = &self.hints else {
            loop {
                self.edge.pause(self.settings.beat_interval * BEATS_PER_CLAIM_CHECK).await;
                if let Some(intent) = self.next_claim().await {
                    return intent;
                }
            }
        };
        let mut standby = StandbyWatch::new(hints.read(Hint::Standby).await);
        let mut count = 0_u32;
        loop {
            count += 1;
            let (interval, is_slow) = (self.settings.beat_interval, !standby.is_there());
            let within = if is_slow { interval.max(SLOW_INTERVAL) } else { interval };
            let attempt = interval / ATTEMPTS_PER_INTERVAL;
            let written = self.within(attempt, self.write_beat(count, within)).await;
            // What is read until the next beat must not delay it.
            let pause = if written == Some(true) { within } else { attempt };
            let reads = async {
                if (is_slow || count.is_multiple_of(BEATS_PER_CLAIM_CHECK))
                    && let Some(intent) = self.next_claim().await
                {
                    return intent;
                }
                if is_slow || count.is_multiple_of(BEATS_PER_STANDBY_CHECK) {
                    standby.check(hints.read(Hint::Standby).await);
                }
                pending().await
            };
            if let Some(intent) = self.within(pause, reads).await {
                return intent;
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

    async fn write_beat(&self, count: u32, within: Duration) -> bool {
        let (Some(hints), Some(_)) = (&self.hints, self.leadership.epoch()) else { return true };
        let Slot { epoch, seq } = self.replica.tail().next;
        let beat = Beat {
            epoch: epoch.number(),
            seq,
            address: self.settings.address.clone(),
            count: count.into(),
            next_within_ms: within.as_millis() as u64,
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
    last: Option<(Option<Epoch>, Timestamp)>,
    count: u64,
}

impl Announcement {
    /// Announces this node to the leader of `newest`, unless it has done so a short time ago.
    pub(super) async fn renew<R: Replica>(&mut self, node: &Node<R>, newest: Option<Epoch>) {
        let Some(hints) = &node.hints else { return };
        let now = node.edge.clock.now();
        let interval = node.settings.beat_interval * ANNOUNCE_INTERVALS;
        if self.last.is_some_and(|(epoch, at)| epoch == newest && now.since(at) < interval) {
            return;
        }
        self.last = Some((newest, now));
        self.count += 1;
        let announcement = format!("{:032x} {}", node.nonce, self.count);
        hints.write(Hint::Standby, announcement.into()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_release_names_the_slot_behind_the_seal() {
        let epoch = Epoch::FIRST;
        let released = Beat { epoch: 1, ..Beat::default() };
        let next = Slot::first_of(epoch.next());
        assert!(released.is_released_at(next));
        assert!(!released.is_released_at(Slot::first_of(epoch)));
        let beat = Beat { next_within_ms: 4_000, ..released.clone() };
        assert!(!beat.is_released_at(next));
        assert_eq!(Beat::decode(&beat.encode()), Some(beat));
        assert_eq!(Beat::decode(b"no beat"), None);
    }
}
