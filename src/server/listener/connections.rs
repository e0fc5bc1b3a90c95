//! The open connections: how many there are, what each waits for, and since when.
//!
//! ```text
//!   accepted ─▶ Head ─▶ Request ─▶ Response ─▶ Idle
//!                 ▲                             │        Closing: the client still sends a body
//!                 └──────── first byte ─────────┘                 that no route has read
//! ```
//!
//! One sweep a second closes what has waited too long, so a request sets no timer. If all
//! connections are taken, those that wait for a request make room, the oldest first; if none waits,
//! those whose clients do not read on. So silent clients cannot shut out the others.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use metrics::{counter, gauge};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Limits;
use crate::runtime::UnwrittenLeases;

/// Connections over the bound that are accepted to be refused in words, and for the health checks.
const MAX_SURPLUS: usize = 32;
/// How long the client of a response reads nothing before its connection can make room, in seconds.
const STALLED_SECONDS: u64 = 5;
/// How long a connection is read on after its last response, in seconds.
const CLOSING_SECONDS: u64 = 5;
/// The least interval of two log lines about closed connections, in seconds.
const LOG_INTERVAL_SECONDS: u64 = 10;

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// Waits for the rest of a request's head; a new connection for all of it.
    Head,
    /// Waits for a request.
    Idle,
    /// A route answers a request. The routes bound the time of its body.
    Request,
    /// The response is being written.
    Response,
    /// The last response is written, and the client still sends.
    Closing,
    /// Closed by the sweep, or to make room.
    Closed,
}

impl Phase {
    const ALL: [Self; 6] =
        [Self::Head, Self::Idle, Self::Request, Self::Response, Self::Closing, Self::Closed];
}

/// Why the server closed a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Idle,
    HeadTimeout,
    ResponseTimeout,
    MadeRoom,
}

impl Reason {
    const ALL: [Self; 4] = [Self::Idle, Self::HeadTimeout, Self::ResponseTimeout, Self::MadeRoom];

    fn count(self) {
        let counter = match self {
            Self::Idle => counter!("tidegate_connections_closed_total", "reason" => "idle"),
            Self::HeadTimeout => {
                counter!("tidegate_connections_closed_total", "reason" => "head_timeout")
            }
            Self::ResponseTimeout => {
                counter!("tidegate_connections_closed_total", "reason" => "response_timeout")
            }
            Self::MadeRoom => {
                counter!("tidegate_connections_closed_total", "reason" => "made_room")
            }
        };
        counter.increment(1);
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// Its [`Phase`] in the lowest three bits; above them the second in which that began.
    state: AtomicU64,
    /// The seconds of the [`Connections`].
    second: Arc<AtomicU64>,
    closed: Notify,
    /// Whether it is over the bound.
    pub surplus: bool,
    /// Whether the client may still send what no route reads.
    pub unread: AtomicBool,
    /// Whether the response has no known end, so that the connection is not idle between its parts.
    pub streams: AtomicBool,
    /// The leases in a response that is not written yet.
    pub leases: Mutex<Option<UnwrittenLeases>>,
}

impl Connection {
    /// Its phase.
    pub fn phase(&self) -> Phase {
        phase_of(self.state.load(Ordering::Acquire))
    }

    /// Begins `phase`. Returns false if the connection is closed.
    pub fn begin(&self, phase: Phase) -> bool {
        let next = self.second.load(Ordering::Relaxed) << 3 | phase as u64;
        let begin = |state| (phase_of(state) != Phase::Closed).then_some(next);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, begin).is_ok()
    }

    /// Closes it, unless it is no longer in `state`: a request may just have come.
    fn close(&self, state: u64) -> bool {
        let closed = self.state.compare_exchange(
            state,
            Phase::Closed as u64,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if closed.is_ok() {
            self.closed.notify_one();
        }
        closed.is_ok()
    }
}

fn phase_of(state: u64) -> Phase {
    Phase::ALL[(state & 7) as usize]
}

/// All connections.
pub(super) struct Connections {
    limits: Limits,
    /// Counts the sweeps. A clock could be set.
    second: Arc<AtomicU64>,
    open: Mutex<HashMap<u64, Arc<Connection>>>,
    /// A connection ended, or may now make room.
    changed: Notify,
    log: Mutex<Log>,
}

impl Connections {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            second: Arc::default(),
            open: Mutex::default(),
            changed: Notify::new(),
            log: Mutex::default(),
        }
    }

    /// Waits for room for another connection, within the bound or a little over it.
    pub async fn room(&self) {
        loop {
            let changed = self.changed.notified();
            let open = self.open.lock().len();
            if open < self.limits.connections
                || (self.make_room() == 0 && open < self.limits.connections + MAX_SURPLUS)
            {
                return;
            }
            changed.await;
        }
    }

    /// A connection that was just accepted. Whether it is over the bound is decided now: since
    /// [`Connections::room`], it may have taken hours until a client came.
    pub fn new_connection(&self) -> Arc<Connection> {
        let is_full = self.open.lock().len() >= self.limits.connections;
        let surplus = is_full && self.make_room() == 0;
        if surplus {
            self.log.lock().refused += 1;
            counter!("tidegate_connections_refused_total").increment(1);
        }
        let state = self.second.load(Ordering::Relaxed) << 3 | Phase::Head as u64;
        Arc::new(Connection {
            state: AtomicU64::new(state),
            second: Arc::clone(&self.second),
            closed: Notify::new(),
            surplus,
            unread: AtomicBool::new(false),
            streams: AtomicBool::new(false),
            leases: Mutex::default(),
        })
    }

    /// Counts `connection` as open until the guard is dropped.
    pub fn keep(self: &Arc<Self>, connection: Arc<Connection>) -> Guard {
        let mut log = self.log.lock();
        let id = log.accepted;
        log.accepted += 1;
        drop(log);
        self.open.lock().insert(id, Arc::clone(&connection));
        Guard { connections: Arc::clone(self), id, connection }
    }

    /// Counts a connection that could not be accepted, and makes room.
    pub fn not_accepted(&self, error: &std::io::Error) {
        counter!("tidegate_accept_errors_total").increment(1);
        self.make_room();
        self.log.lock().accept_error = Some(error.to_string());
    }

    /// Closes those of the connections that wait for a request which have waited longest, or else
    /// those whose clients have not read on for [`STALLED_SECONDS`]: a sixteenth of them, so that a
    /// flood of connections does not cost a search for each. The request of one that has not waited
    /// since the last sweep may be on its way. Returns the number of those that are closed and
    /// about to leave.
    fn make_room(&self) -> usize {
        let is_leaving = |connection: &&Arc<Connection>| connection.phase() == Phase::Closed;
        let leaving = self.open.lock().values().filter(is_leaving).count();
        if leaving > 0 {
            return leaving;
        }
        let mut waiting = self.waiting(&[Phase::Head, Phase::Idle], 1);
        if waiting.is_empty() {
            waiting = self.waiting(&[Phase::Response], STALLED_SECONDS);
        }
        waiting.sort_unstable_by_key(|(state, id, _)| (state >> 3, *id));
        let most = (waiting.len() / 16).max(1);
        let oldest = waiting.into_iter().filter(|(state, _, connection)| connection.close(*state));
        let closed = oldest.take(most).count();
        (0..closed).for_each(|_| self.closed(Reason::MadeRoom));
        closed
    }

    /// The connections, with their states and ids, that have been in one of `phases` for at least
    /// this many seconds.
    fn waiting(&self, phases: &[Phase], seconds: u64) -> Vec<(u64, u64, Arc<Connection>)> {
        let now = self.second.load(Ordering::Relaxed);
        self.open
            .lock()
            .iter()
            .map(|(id, connection)| (connection.state.load(Ordering::Acquire), *id, connection))
            .filter(|(state, ..)| phases.contains(&phase_of(*state)))
            .filter(|(state, ..)| (state >> 3) + seconds <= now)
            .map(|(state, id, connection)| (state, id, Arc::clone(connection)))
            .collect()
    }

    /// Closes what has waited too long. It is called once a second.
    pub fn sweep(&self) {
        let now = self.second.fetch_add(1, Ordering::Relaxed) + 1;
        let (head, idle) = (self.limits.head.as_secs(), self.limits.idle.as_secs());
        let open: Vec<Arc<Connection>> = self.open.lock().values().map(Arc::clone).collect();
        gauge!("tidegate_connections").set(open.len() as f64);
        for connection in open {
            let state = connection.state.load(Ordering::Acquire);
            let (most, reason) = match phase_of(state) {
                Phase::Head => (head, Reason::HeadTimeout),
                Phase::Idle => (idle, Reason::Idle),
                Phase::Response => (idle, Reason::ResponseTimeout),
                Phase::Closing => (CLOSING_SECONDS, Reason::Idle),
                Phase::Request | Phase::Closed => continue,
            };
            if now - (state >> 3) > most && connection.close(state) {
                self.closed(reason);
            }
        }
        self.changed.notify_one();
        self.log.lock().write(now, &self.limits);
    }

    /// Closes the connections whose clients have nothing to get, at the end of the server.
    pub fn close_silent(&self) {
        for connection in self.open.lock().values() {
            let state = connection.state.load(Ordering::Acquire);
            if matches!(phase_of(state), Phase::Head | Phase::Closing) {
                connection.close(state);
            }
        }
    }

    fn closed(&self, reason: Reason) {
        reason.count();
        self.log.lock().closed[reason as usize] += 1;
    }
}

/// An open connection. Its drop makes room for another one.
pub(super) struct Guard {
    connections: Arc<Connections>,
    id: u64,
    connection: Arc<Connection>,
}

impl Guard {
    /// Returns when the server closes the connection.
    pub async fn closed(&self) {
        self.connection.closed.notified().await;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.connections.open.lock().remove(&self.id);
        self.connections.changed.notify_one();
    }
}

/// What happened since the last line in the log.
#[derive(Debug, Default)]
struct Log {
    accepted: u64,
    closed: [u64; Reason::ALL.len()],
    refused: u64,
    accept_error: Option<String>,
    written: Option<u64>,
}

impl Log {
    /// Writes a line, unless there is nothing to say or the last one was a moment ago.
    fn write(&mut self, now: u64, limits: &Limits) {
        if self.written.is_some_and(|written| now - written < LOG_INTERVAL_SECONDS) {
            return;
        }
        let [idle, head_timeout, response_timeout, made_room] = self.closed;
        if idle > 0 {
            tracing::debug!(idle, "closed idle connections");
        }
        if head_timeout + response_timeout > 0 {
            tracing::info!(
                head_timeout,
                response_timeout,
                "closed connections whose clients did not send a request, or did not read a \
                 response, in time"
            );
        }
        if made_room + self.refused > 0 {
            tracing::warn!(
                closed = made_room,
                refused = self.refused,
                max_connections = limits.connections,
                "all connections are taken: closed those that waited longest for a request or for \
                 their client to read, and refused new ones where none waited"
            );
        }
        if let Some(error) = &self.accept_error {
            tracing::warn!(error, "connections cannot be accepted");
        }
        if self.accept_error.is_some() || self.refused > 0 || self.closed.iter().any(|n| *n > 0) {
            *self = Self { accepted: self.accepted, written: Some(now), ..Self::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn connections(most: usize) -> Arc<Connections> {
        with_idle(most, 4)
    }

    fn with_idle(most: usize, idle: u64) -> Arc<Connections> {
        let (head, idle) = (Duration::from_secs(2), Duration::from_secs(idle));
        Arc::new(Connections::new(Limits { connections: most, head, idle }))
    }

    fn accepted(all: &Arc<Connections>) -> Guard {
        all.keep(all.new_connection())
    }

    fn phases(guards: &[Guard]) -> Vec<Phase> {
        guards.iter().map(|guard| guard.connection.phase()).collect()
    }

    #[test]
    fn a_sweep_closes_what_has_waited_too_long() {
        let all = connections(10);
        let guards: Vec<Guard> = (0..5).map(|_| accepted(&all)).collect();
        let begun = [Phase::Head, Phase::Idle, Phase::Request, Phase::Response, Phase::Closing];
        for (guard, phase) in guards.iter().zip(begun) {
            assert!(guard.connection.begin(phase));
        }
        (0..2).for_each(|_| all.sweep());
        assert_eq!(phases(&guards), begun, "nothing is over yet");
        all.sweep();
        assert_eq!(phases(&guards)[0], Phase::Closed);
        assert_eq!(phases(&guards)[1..], begun[1..]);
        (0..3).for_each(|_| all.sweep());
        let left: Vec<Phase> =
            phases(&guards).into_iter().filter(|phase| *phase != Phase::Closed).collect();
        assert_eq!(left, [Phase::Request], "a route may take its time");
        assert!(!guards[0].connection.begin(Phase::Request), "closed is closed");
    }

    #[tokio::test]
    async fn those_that_waited_longest_make_room() {
        let all = connections(3);
        let guards: Vec<Guard> = (0..3).map(|_| accepted(&all)).collect();
        guards[0].connection.begin(Phase::Request);
        all.sweep();
        guards[1].connection.begin(Phase::Idle);
        let room = tokio::spawn({
            let all = Arc::clone(&all);
            async move { all.room().await }
        });
        guards[2].closed().await;
        assert_eq!(phases(&guards), [Phase::Request, Phase::Idle, Phase::Closed]);
        drop(guards);
        room.await.unwrap();
        assert!(!all.new_connection().surplus, "there is room within the bound");
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_makes_room_after_the_others() {
        let all = with_idle(4, 60);
        let mut guards: Vec<Guard> = (0..4).map(|_| accepted(&all)).collect();
        for (guard, phase) in guards.iter().zip([Phase::Response, Phase::Response, Phase::Request])
        {
            assert!(guard.connection.begin(phase));
        }
        for _ in 1..STALLED_SECONDS {
            all.sweep();
            guards[3].connection.begin(Phase::Idle);
        }
        all.sweep();
        // This client has read a part.
        guards[1].connection.begin(Phase::Response);
        let others = [Phase::Response, Phase::Response, Phase::Request];
        assert_eq!(all.make_room(), 1);
        assert_eq!(phases(&guards), [&others[..], &[Phase::Closed]].concat());
        guards.pop();
        assert_eq!(all.make_room(), 1);
        assert_eq!(phases(&guards), [Phase::Closed, Phase::Response, Phase::Request]);
        guards.remove(0);
        assert_eq!(all.make_room(), 0);
    }

    #[test]
    fn a_client_that_comes_late_is_not_over_the_bound() {
        let all = connections(1);
        let guard = accepted(&all);
        guard.connection.begin(Phase::Request);
        assert!(all.new_connection().surplus);
        guard.connection.begin(Phase::Idle);
        all.sweep();
        assert!(!all.new_connection().surplus, "the first makes room");
        drop(guard);
        assert!(!all.new_connection().surplus, "the first is gone");
    }

    #[tokio::test]
    async fn a_few_connections_over_the_bound_are_accepted_to_be_refused() {
        let all = connections(2);
        let mut guards = Vec::new();
        for _ in 0..2 {
            all.room().await;
            guards.push(accepted(&all));
            assert!(!guards.last().unwrap().connection.surplus);
            guards.last().unwrap().connection.begin(Phase::Request);
        }
        for _ in 0..MAX_SURPLUS {
            all.room().await;
            guards.push(accepted(&all));
            assert!(guards.last().unwrap().connection.surplus);
            guards.last().unwrap().connection.begin(Phase::Request);
        }
        let waiting = tokio::spawn({
            let all = Arc::clone(&all);
            async move { all.room().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        guards.truncate(1);
        waiting.await.unwrap();
        assert!(!all.new_connection().surplus);
    }
}
