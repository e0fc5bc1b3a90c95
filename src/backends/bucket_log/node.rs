//! A node: it follows the log as a standby, and leads when no other node does.
//!
//! ```text
//!   standby ──no new object for a while──▶ lead ──start record is one's own──▶ leader
//!      ▲                                    │                                    │
//!      └────────another node was faster─────┴────the seal of another node────────┘
//! ```
//!
//! Time only chooses when to try. Two nodes that both try, or a leader that is alive, cost a pause
//! and nothing else.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use futures_util::future::{pending, select};
use parking_lot::Mutex;
use tidegate_core::time::Timestamp;
use tokio::sync::mpsc;

#[cfg(test)]
use super::planted::PlantedBug;
use super::{
    audit::Audit,
    bucket::Edge,
    error::LogError,
    follow::Followed,
    handle::{Handle, Leadership, LogRequest},
    handover::Intent,
    hints::{Addressee, Announcement, Beat, Hints},
    identity::identify,
    key::{Epoch, Slot},
    object::{Header, Kind, LogId, Object},
    pace::Pace,
    planted::Planted,
    replica::Replica,
    tail::Tail,
    truncate::KEPT_SNAPSHOTS,
};

/// A standby whose leader beats reads the log once in this many polls, even if the beat says that
/// nothing is new.
const POLLS_PER_FOLLOW: u64 = 15;
/// The time between two reads of the log of a leader that is about to end its epoch.
const END_POLL: Duration = Duration::from_millis(100);
/// How many such reads there are at most between two reads of the beat.
const MAX_END_POLLS: u128 = 10;
/// The slots that such a read begins with: about as many as a busy leader fills between two.
const END_READ_AHEAD: u64 = 12;

/// The bounds of a node.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// Where this node answers requests, for the others.
    pub address: String,
    /// When the PUT of a record starts.
    pub pace: Pace,
    /// The number of records at which an epoch ends.
    pub rollover_records: u64,
    /// The bytes of records at which an epoch ends, at least: half the bytes of the state if that is more.
    pub rollover_bytes: u64,
    /// The age at which an epoch with records ends, at the next event. A snapshot follows.
    pub rollover_interval: Duration,
    /// How many snapshots are kept, at least 1, and all records after the oldest of them.
    pub kept_snapshots: usize,
    /// How far back a restore reaches at least: more snapshots are kept for it.
    pub history: Duration,
    /// How often a standby reads the log.
    pub poll_interval: Duration,
    /// The least and the most time without a new object after which a standby tries to lead, if it
    /// knows of no beat.
    pub patience: (Duration, Duration),
    /// The interval of the beats of an idle leader that has a standby.
    pub beat_interval: Duration,
    /// The least and the most time that a beat may be late before a standby tries to lead.
    pub beat_patience: (Duration, Duration),
    /// Whether the node tries to lead at once, as one without a standby does. It replaces a leader
    /// that is alive.
    pub leads_at_start: bool,
    /// The least time from the beginning of a leadership until it is handed over to a node that replaces
    /// it, and between two attempts, while it is busy.
    pub handover_interval: Duration,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            address: String::new(),
            pace: Pace::LATENCY,
            rollover_records: 10_000,
            rollover_bytes: 64 << 20,
            rollover_interval: Duration::from_hours(24),
            kept_snapshots: KEPT_SNAPSHOTS,
            history: Duration::ZERO,
            poll_interval: Duration::from_secs(2),
            patience: (Duration::from_secs(8), Duration::from_secs(15)),
            beat_interval: Duration::from_secs(4),
            beat_patience: (Duration::from_millis(2_500), Duration::from_millis(3_500)),
            leads_at_start: false,
            handover_interval: Duration::from_secs(15),
        }
    }
}

impl NodeSettings {
    /// The bytes of records at which an epoch ends that begins with a state of `state` bytes. A large
    /// state is copied less often, and a restore still reads more of it than of records.
    pub(super) fn epoch_bytes(&self, state: u64) -> u64 {
        self.rollover_bytes.max(state / 2)
    }
}

/// How a life of a node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Another node leads. What this node has led is over.
    Lost,
    /// It was to stop. If it led, it has ended its epoch.
    Released,
}

/// A node of a log.
pub struct Node<R: Replica> {
    pub(super) edge: Edge,
    pub(super) log: LogId,
    pub(super) replica: Arc<R>,
    pub(super) settings: NodeSettings,
    /// The life of this process: another one after every start.
    pub(super) nonce: u128,
    /// The newest epoch that is known to be claimed.
    pub(super) known: Mutex<Option<Epoch>>,
    /// The epoch whose claim has closed the log, once it was read.
    pub(super) closed: Mutex<Option<Epoch>>,
    pub(super) leadership: Arc<Leadership>,
    pub(super) hints: Option<Arc<dyn Hints>>,
    pub(super) planted: Planted,
    pub(super) audit: Mutex<Audit>,
    requests: tokio::sync::Mutex<mpsc::Receiver<LogRequest<R::Answer>>>,
}

impl<R: Replica> Node<R> {
    /// A node of the log in the bucket, which is created if there is none; and its handle. The store
    /// has passed a [`probe`](super::probe()), because this call waits until it answers.
    ///
    /// # Errors
    ///
    /// [`LogError::Object`] if the identity of the log cannot be used.
    pub async fn open(
        edge: Edge,
        replica: Arc<R>,
        settings: NodeSettings,
    ) -> Result<(Self, Handle<R::Answer>), LogError> {
        let log = identify(&edge).await?;
        let leadership = Arc::<Leadership>::default();
        let (handle, requests) = Handle::new(edge.clone(), Arc::clone(&leadership));
        let nonce = edge.entropy.bits();
        let node = Self {
            edge,
            log,
            replica,
            settings,
            nonce,
            known: Mutex::default(),
            closed: Mutex::default(),
            leadership,
            hints: None,
            planted: Planted::default(),
            audit: Mutex::default(),
            requests: requests.into(),
        };
        Ok((node, handle))
    }

    /// The same node with hints. Without them, a standby tries to lead when a leader is idle.
    #[must_use]
    pub fn with_hints(self, hints: Arc<dyn Hints>) -> Self {
        Self { hints: Some(hints), ..self }
    }

    /// The same node with a planted bug, or without one.
    #[cfg(test)]
    pub(super) fn with(self, bug: Option<PlantedBug>) -> Self {
        Self { planted: Planted::new(bug), ..self }
    }

    /// Follows and leads, again and again, until the node must stop, or the call is dropped. After
    /// that the node serves no more requests.
    ///
    /// # Errors
    ///
    /// [`LogError`]: the node is at a position of the log that it cannot pass.
    pub async fn run(&self) -> Result<Infallible, LogError> {
        let mut running = self.begin_run().await?;
        loop {
            if self.lead_once(&mut running.requests).await? == Ended::Released {
                pending::<()>().await;
            }
            refuse_waiting(&mut running.requests);
            self.edge.pause(self.settings.poll_interval).await;
        }
    }

    /// Follows until it leads, and leads until another node does, or until it is released.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub async fn run_once(&self) -> Result<Ended, LogError> {
        let mut running = self.begin_run().await?;
        self.lead_once(&mut running.requests).await
    }

    async fn begin_run(&self) -> Result<Running<'_, R::Answer>, LogError> {
        let requests = self.requests.lock().await;
        let running = Running { leadership: &self.leadership, requests };
        self.verify_start().await?;
        Ok(running)
    }

    async fn lead_once(
        &self,
        requests: &mut mpsc::Receiver<LogRequest<R::Answer>>,
    ) -> Result<Ended, LogError> {
        self.catch_up().await?;
        if self.settings.leads_at_start
            && let Some(leading) = self.lead(Intent::Replace).await?
        {
            return self.serve(leading, requests).await;
        }
        let mut wait = self.begin_wait();
        let mut announcement = Announcement::default();
        let (mut leader, mut ending) = (None, None);
        for poll in 0_u64.. {
            let beat = self.read_beat().await;
            let here = self.replica.tail().next;
            let has_news = beat.as_ref().is_none_or(|beat| !beat.is_at(here));
            // What a leader writes before its end was read a moment ago.
            let is_read = ending.is_some() && ending == beat.as_ref().and_then(Beat::ending);
            let follows = (has_news && !is_read) || poll % POLLS_PER_FOLLOW == 0;
            if follows {
                self.catch_up().await?;
            }
            self.compare_states(poll).await?;
            let newest = *self.known.lock();
            ending = beat.as_ref().and_then(Beat::ending).filter(|ending| newest == Some(*ending));
            if leader != newest
                && let Some(epoch) = newest
            {
                self.leadership.set_leader(self.claim(epoch).await?.address);
                self.refuse_closed()?;
                leader = newest;
            }
            let difference = self.leadership.difference();
            let addressee = Addressee { epoch: newest, is_ending: ending.is_some(), difference };
            announcement.renew(self, addressee).await;
            let next = self.replica.tail().next;
            // Another node may have claimed the next epoch, and be lost since. Then the wait goes on.
            let ended = beat.as_ref().and_then(|beat| beat.ended_at(next));
            let mut ended = ended.filter(|ended| newest == Some(*ended));
            let was_read = follows || is_read;
            let is_lost = wait.is_over((next, newest, beat), was_read, self.edge.clock.now());
            refuse_waiting(requests);
            if ended.is_none() && !is_lost {
                let pause = wait.pause(self.settings.poll_interval);
                match ending {
                    Some(epoch) => ended = self.follow_to_end(epoch, pause).await?,
                    None => self.pause_unless_released(pause).await,
                }
            }
            if self.leadership.is_released() {
                break;
            }
            if ended.is_some() || is_lost {
                let leading = match ended {
                    Some(ended) => self.succeed(ended).await?,
                    None => self.lead(Intent::Succeed).await?,
                };
                if let Some(leading) = leading {
                    return self.serve(leading, requests).await;
                }
                wait = self.begin_wait();
                self.pause_unless_released(self.settings.poll_interval).await;
            }
        }
        Ok(Ended::Released)
    }

    /// Reads the log often for about `span`, until the leader has ended `epoch`: that epoch, once it has.
    async fn follow_to_end(&self, epoch: Epoch, span: Duration) -> Result<Option<Epoch>, LogError> {
        let polls = (span.as_millis() / END_POLL.as_millis()).clamp(1, MAX_END_POLLS);
        for _ in 0..polls {
            self.pause_unless_released(END_POLL).await;
            if self.leadership.is_released() {
                break;
            }
            if self.follow(END_READ_AHEAD).await? == Followed::Elsewhere {
                self.catch_up().await?;
                break;
            }
            let next = self.replica.tail().next;
            if next.epoch != epoch {
                return Ok((next == Slot::first_of(epoch.next())).then_some(epoch));
            }
        }
        Ok(None)
    }

    /// Waits for `span`, or until the node is to stop.
    async fn pause_unless_released(&self, span: Duration) {
        select(pin!(self.edge.pause(span)), pin!(self.leadership.released())).await;
    }

    fn begin_wait(&self) -> Wait {
        let NodeSettings { patience, beat_patience, poll_interval, .. } = self.settings;
        let span = |(least, most)| self.edge.span(least, most);
        Wait {
            seen: None,
            was_read: true,
            at: self.edge.clock.now(),
            quiet: Duration::ZERO,
            patience: span(patience),
            beat_patience: span(beat_patience),
            longest_step: poll_interval * 2,
        }
    }

    /// An object of this node that continues the log at `tail`.
    pub(super) fn object(&self, kind: Kind, tail: Tail, body: &bytes::Bytes) -> Object {
        let time = self.edge.clock.now().max(tail.time);
        let Tail { next: slot, hash: previous, .. } = tail;
        Object::new(Header { kind, log: self.log, slot, nonce: self.nonce, time, previous }, body)
    }
}

/// A run, which serves no request once it has ended, or was dropped.
struct Running<'n, A> {
    leadership: &'n Leadership,
    requests: tokio::sync::MutexGuard<'n, mpsc::Receiver<LogRequest<A>>>,
}

impl<A> Drop for Running<'_, A> {
    fn drop(&mut self) {
        self.leadership.set(None);
        self.requests.close();
        refuse_waiting(&mut self.requests);
    }
}

/// Refuses the requests that have arrived. None of them was in a record.
fn refuse_waiting<A>(requests: &mut mpsc::Receiver<LogRequest<A>>) {
    while let Ok(request) = requests.try_recv() {
        request.refuse();
    }
}

/// The next slot, the newest claim, and the last beat.
type Seen = (Slot, Option<Epoch>, Option<Beat>);

/// How long a standby has seen nothing new.
#[derive(Debug)]
struct Wait {
    seen: Option<Seen>,
    /// Whether the log was read for the last look.
    was_read: bool,
    at: Timestamp,
    quiet: Duration,
    /// How long it waits, if the newest leader has not beaten.
    patience: Duration,
    /// How late a beat of the newest leader may be.
    beat_patience: Duration,
    /// What counts at most between two looks. This node may have been frozen, or its bucket busy.
    longest_step: Duration,
}

impl Wait {
    /// Whether nothing has happened for long enough. `was_read`: the log was read for this look, or a moment
    /// before.
    ///
    /// Objects that are found after a look without a reading may be older than the last beat. They are no sign
    /// of life then: the wait for the next beat goes on.
    fn is_over(&mut self, seen: Seen, was_read: bool, now: Timestamp) -> bool {
        // A clock that went back only makes the wait longer.
        let step = now.since(self.at).min(self.longest_step);
        self.at = now;
        let is_quiet = self.seen.as_ref().is_some_and(|(next, newest, beat)| {
            (newest, beat) == (&seen.1, &seen.2) && (*next == seen.0 || !self.was_read)
        });
        (self.seen, self.was_read) = (Some(seen), was_read);
        if !is_quiet {
            self.quiet = Duration::ZERO;
            return false;
        }
        self.quiet += step;
        self.quiet >= self.beat_wait().unwrap_or(self.patience)
    }

    /// How long silence after the last beat of the newest leader means nothing; none without one.
    fn beat_wait(&self) -> Option<Duration> {
        let (_, newest, beat) = self.seen.as_ref()?;
        let beat = beat.as_ref().filter(|beat| newest.map(Epoch::number) == Some(beat.epoch))?;
        Some(beat.next_within() + self.beat_patience)
    }

    /// How long to pause before the next look, at most `poll_interval`. One is at the end of the wait
    /// for a beat, so that a takeover need not wait for the next poll.
    fn pause(&self, poll_interval: Duration) -> Duration {
        let left = self.beat_wait().map(|wait| wait.saturating_sub(self.quiet));
        left.map_or(poll_interval, |left| left.clamp(poll_interval / 20, poll_interval))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_has_at_least_half_the_bytes_of_its_state() {
        let settings = NodeSettings { rollover_bytes: 100, ..NodeSettings::default() };
        for (state, bytes) in [(0, 100), (200, 100), (202, 101), (4_000, 2_000)] {
            assert_eq!(settings.epoch_bytes(state), bytes, "{state}");
        }
    }

    fn wait() -> Wait {
        Wait {
            seen: None,
            was_read: true,
            at: Timestamp::from_millis(0),
            quiet: Duration::ZERO,
            patience: Duration::from_secs(8),
            beat_patience: Duration::from_secs(3),
            longest_step: Duration::from_secs(4),
        }
    }

    /// Looks at `seen` every two seconds, until the wait is over: how many seconds it took.
    fn waited(wait: &mut Wait, from: i64, seen: &Seen) -> i64 {
        let mut at = from;
        while !wait.is_over(seen.clone(), true, Timestamp::from_millis(at * 1000)) {
            at += 2;
        }
        at - from
    }

    #[test]
    fn a_standby_waits_until_nothing_has_changed_for_long() {
        let mut wait = wait();
        assert_eq!(waited(&mut wait, 0, &(Slot::FIRST, None, None)), 8);
        let second = (Slot::FIRST.next(), Some(Epoch::FIRST), None);
        assert_eq!(waited(&mut wait, 10, &second), 8, "there is a new object");
        let beat = |count| Beat { epoch: 1, count, next_within_ms: 60_000, ..Beat::default() };
        let third = (second.0, second.1, Some(beat(1)));
        assert_eq!(waited(&mut wait, 20, &third), 64, "the next beat is not due");
        let older = (second.0, Some(Epoch::FIRST.next()), Some(beat(2)));
        assert_eq!(waited(&mut wait, 90, &older), 8, "that leader is over");
    }

    #[test]
    fn a_standby_looks_once_more_when_a_beat_is_late_enough() {
        let (mut wait, poll) = (wait(), Duration::from_secs(2));
        let at = Timestamp::from_millis;
        assert_eq!(wait.pause(poll), poll);
        let beat = Beat { epoch: 1, next_within_ms: 4_000, ..Beat::default() };
        let seen = (Slot::FIRST, Some(Epoch::FIRST), Some(beat));
        for (millis, pause) in [(0, 2_000), (2_000, 2_000), (4_000, 2_000), (5_500, 1_500)] {
            assert!(!wait.is_over(seen.clone(), true, at(millis)));
            assert_eq!(wait.pause(poll), Duration::from_millis(pause), "at {millis}");
        }
        assert!(!wait.is_over(seen.clone(), true, at(6_999)));
        assert_eq!(wait.pause(poll), Duration::from_millis(100), "not at once again");
        assert!(wait.is_over(seen, true, at(7_000)));
    }

    #[test]
    fn records_read_late_do_not_prolong_the_wait_for_a_beat() {
        let at = Timestamp::from_millis;
        let beat = Beat { epoch: 1, next_within_ms: 4_000, ..Beat::default() };
        let seen = |slot| (slot, Some(Epoch::FIRST), Some(beat.clone()));
        let (mut late, mut followed) = (wait(), wait());
        for (wait, was_read) in [(&mut late, false), (&mut followed, true)] {
            assert!(!wait.is_over(seen(Slot::FIRST), true, at(0)));
            assert!(!wait.is_over(seen(Slot::FIRST), was_read, at(4_000)));
            assert!(!wait.is_over(seen(Slot::FIRST.next()), true, at(6_000)));
        }
        assert!(late.is_over(seen(Slot::FIRST.next()), true, at(7_000)), "they may be older");
        assert!(!followed.is_over(seen(Slot::FIRST.next()), true, at(7_000)), "they are new");
    }

    #[test]
    fn time_in_which_a_standby_did_not_look_does_not_count() {
        let (mut wait, seen) = (wait(), (Slot::FIRST, None, None));
        let at = Timestamp::from_millis;
        assert!(!wait.is_over(seen.clone(), true, at(0)));
        assert!(!wait.is_over(seen.clone(), true, at(60_000)), "it was frozen");
        assert!(!wait.is_over(seen.clone(), true, at(0)), "the clock went back");
        assert!(wait.is_over(seen, true, at(4_000)));
    }
}
