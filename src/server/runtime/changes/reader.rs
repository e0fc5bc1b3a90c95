//! Readers of the stream.

use std::{
    mem,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::watch;

use super::{
    Changes,
    log::{ChangeFilter, frame, id},
};
use crate::runtime::{Server, StopPhase};
use tidegate_api::{SkippedChanges, StreamReady};
use tidegate_core::{error_code::ErrorCode, port::Clock, time::Timestamp};
use tidegate_engine::Error;

/// Most readers.
pub(super) const MAX_READERS: usize = 1000;
/// Most events that a reader takes at once.
pub(super) const MAX_EVENTS: usize = 100;
/// How much longer each reader waits between two reads of the log for each other one, so that all of
/// them together take a small share of the processor.
const PAUSE_PER_READER: Duration = Duration::from_millis(2);
/// The longest time without an event or a comment.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long a reader may read.
pub(super) const MAX_STREAM: Duration = Duration::from_mins(15);
/// How long a reader may read with one authentication.
const MAX_UNCHECKED: Duration = KEEP_ALIVE;
/// How long a reader waits for other servers to forward their changes, before it begins without them.
const MAX_WAIT_FOR_OTHERS: Duration = Duration::from_secs(2);

/// A reader of changes.
pub(crate) struct ChangeReader {
    changes: Arc<Changes>,
    filter: ChangeFilter,
    /// The number of the next change.
    next: u64,
    /// How it begins, until it has.
    start: Option<Start>,
    /// Whether the changes of all jobs that it names are kept, so that gaps do not concern it.
    ignores_gaps: bool,
    published: watch::Receiver<u64>,
    /// Whether all servers forward their changes to this one.
    is_complete: watch::Receiver<bool>,
    stopping: watch::Receiver<StopPhase>,
    clock: Arc<dyn Clock>,
    /// When it ends, in the time of the machine.
    until: Timestamp,
    /// When its caller was authenticated last, in the time of the machine.
    checked_at: Timestamp,
    /// Whether it has read the log since its last pause.
    has_read: bool,
}

/// How a reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// After the event that it names.
    Resumed,
    /// At the end of the log, because it names no event.
    New,
    /// At the end of the log, because the event that it names is not of this log.
    Lost,
}

impl Server {
    /// A reader of the changes that `filter` matches: after the event with this id, or from now on.
    ///
    /// # Errors
    ///
    /// 501 `streams_not_supported` of a serverless deployment; 503 `too_many_streams`, and
    /// [`Error::Unavailable`] while the server stops.
    pub(crate) fn changes(
        &self,
        filter: ChangeFilter,
        after: Option<&str>,
    ) -> Result<ChangeReader, Error> {
        let refused = |code, message: &str| {
            Err(Error::Conflict { code, message: message.to_owned(), holder: None })
        };
        if self.inner.is_serverless() {
            let message = "this process does not see what others change: poll GET /v1/jobs";
            return refused(ErrorCode::StreamsNotSupported, message);
        }
        if *self.inner.stopping.borrow() != StopPhase::Serving {
            return Err(Error::unavailable(Duration::from_secs(1), "the server is stopping"));
        }
        let changes = Arc::clone(&self.inner.changes);
        if changes.readers.fetch_add(1, Ordering::AcqRel) >= MAX_READERS {
            changes.readers.fetch_sub(1, Ordering::AcqRel);
            return refused(ErrorCode::TooManyStreams, "there are 1000 readers");
        }
        {
            let mut pending = changes.pending.lock();
            for id in &filter.ids {
                *pending.watched.entry(id.clone()).or_default() += 1;
            }
        }
        let published = changes.published.subscribe();
        let is_complete = changes.is_complete.subscribe();
        let log = changes.log.write();
        let is_first = !changes.has_readers.swap(true, Ordering::AcqRel);
        changes.begins.notify_one();
        let (run, now) = (log.run, log.next());
        drop(log);
        if is_first {
            self.inner.on_first_reader();
        }
        let resumed = after.and_then(|after| {
            let (of_run, number) = after.split_once('-')?;
            let of_run = u64::from_str_radix(of_run, 16).ok()?;
            let next = number.parse::<u64>().ok()?.checked_add(1)?;
            (of_run == run && next <= now).then_some(next)
        });
        let start = match (resumed, after) {
            (Some(_), _) => Start::Resumed,
            (None, None) => Start::New,
            (None, Some(_)) => Start::Lost,
        };
        let ignores_gaps = !filter.ids.is_empty() && after.is_none();
        let clock = Arc::clone(&self.inner.engine.ports().clock);
        Ok(ChangeReader {
            changes,
            filter,
            next: resumed.unwrap_or(now),
            start: Some(start),
            ignores_gaps,
            published,
            is_complete,
            stopping: self.inner.stopping.subscribe(),
            until: clock.machine_now() + MAX_STREAM,
            checked_at: clock.machine_now(),
            clock,
            has_read: false,
        })
    }
}

impl ChangeReader {
    /// The next events, or a comment if nothing happens for a while. None at the end of the stream:
    /// the server stops, or the reader must authenticate again.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        if let Some(start) = self.start.take() {
            return Some(self.begin(start).await);
        }
        self.pause().await;
        let check_at = self.checked_at + MAX_UNCHECKED;
        let alive_until = self.until.min(check_at).min(self.clock.machine_now() + KEEP_ALIVE);
        loop {
            let now = self.clock.machine_now();
            if *self.stopping.borrow_and_update() != StopPhase::Serving || now >= self.until {
                return None;
            }
            self.published.borrow_and_update();
            let (frames, event_id) = {
                let log = self.changes.log.read();
                let (filter, ignores_gaps) = (&self.filter, self.ignores_gaps);
                self.has_read = log.next() > self.next;
                let (frames, next) = log.read(self.next, filter, MAX_EVENTS, ignores_gaps);
                self.next = next;
                (frames, id(log.run, next - 1))
            };
            if !frames.is_empty() {
                return Some(frames.concat().into());
            }
            if now >= alive_until {
                // The id without data is the place to resume from, and no event.
                return Some(format!(": keep-alive\nid: {event_id}\n\n").into());
            }
            self.pause().await;
            let wake_at = self.clock.at_machine_time(alive_until);
            tokio::select! {
                _ = self.published.changed() => {}
                _ = self.stopping.changed() => {}
                () = self.clock.sleep_until(wake_at) => {}
            }
        }
    }

    /// What is sent before the first change. It waits until all servers forward their changes: what
    /// is committed after this event is seen.
    async fn begin(&mut self, start: Start) -> Bytes {
        if !*self.is_complete.borrow() {
            let until = self.clock.machine_now() + MAX_WAIT_FOR_OTHERS;
            let wake_at = self.clock.at_machine_time(until);
            tokio::select! {
                _ = self.is_complete.wait_for(|is_complete| *is_complete) => {}
                _ = self.stopping.wait_for(|phase| *phase != StopPhase::Serving) => {}
                () = self.clock.sleep_until(wake_at) => {}
            }
            if start != Start::Resumed {
                self.next = self.changes.log.read().next();
            }
        }
        let event_id = id(self.changes.log.read().run, self.next - 1);
        let is_resumed = start == Start::Resumed;
        let ready = frame("ready", &event_id, &StreamReady { resumed: is_resumed });
        if start == Start::Lost {
            let skipped = frame("skipped", &event_id, &SkippedChanges { changes: None });
            return [ready, skipped].concat().into();
        }
        ready
    }

    /// Whether its caller must be authenticated again before it gets what was read last, because
    /// [`MAX_UNCHECKED`] has passed. It counts as done.
    pub(crate) fn is_check_due(&mut self) -> bool {
        let now = self.clock.machine_now();
        let is_due = self.checked_at + MAX_UNCHECKED <= now;
        if is_due {
            self.checked_at = now;
        }
        is_due
    }

    /// Waits for as long as its share of the processor demands, if it has read since the last pause.
    async fn pause(&mut self) {
        if mem::take(&mut self.has_read) {
            let others = self.changes.readers.load(Ordering::Relaxed).saturating_sub(1);
            let pause = PAUSE_PER_READER * u32::try_from(others).unwrap_or(u32::MAX);
            let end = self.clock.machine_now() + pause;
            self.clock.sleep_until(self.clock.at_machine_time(end)).await;
        }
    }
}

impl Drop for ChangeReader {
    fn drop(&mut self) {
        self.changes.readers.fetch_sub(1, Ordering::AcqRel);
        let mut pending = self.changes.pending.lock();
        for id in &self.filter.ids {
            if let Some(count) = pending.watched.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    pending.watched.remove(id);
                }
            }
        }
    }
}
