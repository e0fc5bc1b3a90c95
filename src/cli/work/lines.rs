//! What a command writes to standard error, line by line: messages, progress, and hand-backs.

use std::{collections::VecDeque, io, sync::Arc};

use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    sync::watch,
};

use crate::cli::{args, context::print_error};
use tidegate_api::{NewLogLine, Progress};
use tidegate_backends::system::SystemClock;
use tidegate_core::{port::Clock as _, time::Seconds};

/// Largest message, in bytes: the end of standard error.
const MAX_MESSAGE_BYTES: usize = 4 << 10;
/// Longest line on standard error, in bytes. A longer one is split.
const MAX_LINE_BYTES: usize = 4 << 10;

/// Longest line with a checkpoint: 64 KiB, and what is before it.
const MAX_CHECKPOINT_LINE_BYTES: usize = (64 << 10) + 64;
/// Most bytes and lines that wait for a heartbeat or a report: no more of an attempt are kept.
const MAX_LOG_BYTES: usize = 64 << 10;
const MAX_LOG_LINES: usize = 1000;
/// The beginning of a line with a checkpoint.
const CHECKPOINT: &[u8] = b"::checkpoint ";

/// What a command reports while it runs.
pub(super) struct News {
    pub(super) progress: watch::Sender<Option<Progress>>,
    pub(super) checkpoint: watch::Sender<Option<Box<RawValue>>>,
    /// Its log lines, if they are sent to the server.
    pub(super) log: Option<Log>,
}

/// The log lines of a command that the server has not accepted yet: the latest.
#[derive(Clone, Debug, Default)]
pub(super) struct Log(Arc<Mutex<Unsent>>);

#[derive(Debug, Default)]
struct Unsent {
    lines: VecDeque<NewLogLine>,
    bytes: usize,
    /// How many lines are no longer here.
    gone: u64,
}

impl Log {
    /// Adds a line, and drops the oldest ones of too many.
    fn add(&self, line: &[u8]) {
        let text = String::from_utf8_lossy(line).into_owned();
        let time = Some(SystemClock.now());
        let mut unsent = self.0.lock();
        unsent.bytes += text.len();
        unsent.lines.push_back(NewLogLine { time, text, ..NewLogLine::default() });
        while unsent.bytes > MAX_LOG_BYTES || unsent.lines.len() > MAX_LOG_LINES {
            unsent.drop_first();
        }
    }

    /// The lines, and the number of the one after them for [`Log::accepted`].
    pub(super) fn lines(&self) -> (Vec<NewLogLine>, u64) {
        let unsent = self.0.lock();
        (unsent.lines.iter().cloned().collect(), unsent.gone + unsent.lines.len() as u64)
    }

    /// The server has the lines before number `next`.
    pub(super) fn accepted(&self, next: u64) {
        let mut unsent = self.0.lock();
        while unsent.gone < next && !unsent.lines.is_empty() {
            unsent.drop_first();
        }
    }
}

impl Unsent {
    fn drop_first(&mut self) {
        if let Some(line) = self.lines.pop_front() {
            self.bytes -= line.text.len();
            self.gone += 1;
        }
    }
}

/// What a command wrote to standard error.
#[derive(Default)]
pub(super) struct Said {
    /// The end of its lines, without those that are for the worker.
    pub(super) tail: Vec<u8>,
    /// The last request to hand the attempt back.
    pub(super) hand_back: Option<HandBack>,
    /// The last checkpoint.
    pub(super) checkpoint: Option<Box<RawValue>>,
}

/// A request to hand the attempt back.
#[derive(Debug, PartialEq)]
pub(super) struct HandBack {
    pub(super) delay: Option<Seconds>,
    pub(super) message: Option<String>,
}

/// Reads lines: extracts progress and hand-backs, prints the others, and keeps their end.
pub(super) async fn read_messages(
    mut from: impl AsyncRead + Unpin,
    id: String,
    said: Arc<Mutex<Said>>,
    news: News,
) -> io::Result<()> {
    let mut pending = Vec::new();
    let take = |line: &[u8]| {
        if let Some(reported) = progress(line) {
            news.progress.send_replace(Some(reported));
            return;
        }
        if let Some(checkpoint) = checkpoint(line) {
            said.lock().checkpoint = Some(checkpoint.clone());
            news.checkpoint.send_replace(Some(checkpoint));
            return;
        }
        if let Some(hand_back) = hand_back(line) {
            said.lock().hand_back = Some(hand_back);
            return;
        }
        print_error(format_args!("[{id}] {}", String::from_utf8_lossy(line)));
        if let Some(log) = &news.log {
            log.add(line);
        }
        let tail = &mut said.lock().tail;
        tail.extend_from_slice(line);
        tail.push(b'\n');
        let over = tail.len().saturating_sub(MAX_MESSAGE_BYTES);
        tail.drain(..over);
    };
    loop {
        let read = from.read_buf(&mut pending).await?;
        while let Some(end) = pending
            .iter()
            .position(|byte| *byte == b'\n')
            .or((pending.len() >= longest(&pending)).then_some(longest(&pending) - 1))
        {
            let line: Vec<u8> = pending.drain(..=end).collect();
            take(line.strip_suffix(b"\n").unwrap_or(&line));
        }
        if read == 0 {
            if !pending.is_empty() {
                take(&pending);
            }
            return Ok(());
        }
    }
}

/// The longest line that may begin with `start`.
fn longest(start: &[u8]) -> usize {
    if start.starts_with(CHECKPOINT) { MAX_CHECKPOINT_LINE_BYTES } else { MAX_LINE_BYTES }
}

/// Parses a line such as `::checkpoint {"page": 7}`.
fn checkpoint(line: &[u8]) -> Option<Box<RawValue>> {
    serde_json::from_slice(line.strip_prefix(CHECKPOINT)?).ok()
}

/// Parses a line such as `::progress 40 halfway`.
fn progress(line: &[u8]) -> Option<Progress> {
    let reported = std::str::from_utf8(line).ok()?.strip_prefix("::progress ")?.trim();
    let (percent, note) = reported
        .split_once(' ')
        .map_or((reported, None), |(percent, note)| (percent, Some(note.trim().to_owned())));
    let percent: f64 = percent.trim_end_matches('%').parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some(Progress { percent, note })
}

/// Parses a line such as `::release shutting down` or `::snooze 5m not ready`.
fn hand_back(line: &[u8]) -> Option<HandBack> {
    let line = std::str::from_utf8(line).ok()?.strip_prefix("::")?;
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    let (delay, message) = match verb {
        "release" => (None, rest),
        "snooze" => {
            let (delay, message) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
            (Some(args::span(delay).ok()?), message)
        }
        _ => return None,
    };
    let message = Some(message.trim()).filter(|message| !message.is_empty());
    Some(HandBack { delay, message: message.map(str::to_owned) })
}

/// Returns the bytes as text, without a character that was cut at the front.
pub(super) fn text(bytes: &[u8]) -> String {
    let whole = bytes.iter().position(|byte| *byte & 0xC0 != 0x80).unwrap_or(0);
    let mut text = String::from_utf8_lossy(&bytes[whole..]).trim().to_owned();
    // Invalid bytes grow when they are replaced.
    while text.len() > MAX_MESSAGE_BYTES {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_lines_are_parsed() {
        assert_eq!(
            progress(b"::progress 40 half way"),
            Some(Progress { percent: 40.0, note: Some("half way".to_owned()) })
        );
        assert_eq!(progress(b"::progress 99.5%"), Some(Progress { percent: 99.5, note: None }));
        for other in
            [&b"::progress"[..], b"::progress x", b"::progress 101", b" ::progress 4", b"hello"]
        {
            assert_eq!(progress(other), None);
        }
    }

    #[test]
    fn lines_that_hand_an_attempt_back_are_parsed() {
        let back = |seconds: Option<u64>, message: Option<&str>| {
            let delay = seconds.map(Seconds::new);
            Some(HandBack { delay, message: message.map(str::to_owned) })
        };
        for (line, expected) in [
            ("::release", back(None, None)),
            ("::release going away ", back(None, Some("going away"))),
            ("::snooze 5m", back(Some(300), None)),
            ("::snooze 90s not ready", back(Some(90), Some("not ready"))),
            ("::snooze", None),
            ("::snooze soon", None),
            ("::released", None),
            (" ::release", None),
        ] {
            assert_eq!(hand_back(line.as_bytes()), expected, "{line}");
        }
    }

    #[tokio::test]
    async fn message_is_the_end_of_standard_error() {
        let said = Arc::new(Mutex::new(Said::default()));
        let (progress, reported) = watch::channel(None);
        let (checkpoint, stored) = watch::channel(None);
        let log = Log::default();
        let news = News { progress, checkpoint, log: Some(log.clone()) };
        let mut input = "é".repeat(MAX_MESSAGE_BYTES).into_bytes();
        input.extend_from_slice(b"x\n::progress 7\n::checkpoint [1]\n::checkpoint {\n");
        let long = format!("::checkpoint \"{}\"\nlast", "x".repeat(60 << 10));
        input.extend_from_slice(long.as_bytes());
        read_messages(&input[..], "j".to_owned(), said.clone(), news).await.unwrap();
        let kept = text(&said.lock().tail);
        assert!(
            kept.len() <= MAX_MESSAGE_BYTES
                && kept.ends_with("x\n::checkpoint {\nlast")
                && !kept.contains('\u{fffd}'),
            "{kept}"
        );
        assert_eq!(stored.borrow().as_ref().unwrap().get().len(), (60 << 10) + 2);
        assert!(said.lock().checkpoint.is_some());
        let (lines, next) = log.lines();
        let texts: Vec<_> = lines.iter().rev().take(2).map(|line| line.text.as_str()).collect();
        assert_eq!(texts, ["last", "::checkpoint {"]);
        log.accepted(next - 1);
        assert_eq!(log.lines().0.len(), 1);
        assert_eq!(*reported.borrow(), Some(Progress { percent: 7.0, note: None }));
    }
}
