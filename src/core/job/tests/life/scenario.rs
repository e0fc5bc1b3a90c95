//! Scenarios of a job's life, as text files in `tests/scenarios/life`.
//!
//! A file starts with the settings of the job. Each further line has an instant, an event, and the
//! state of the job after it. `grant` stores the version and the instant that the next claims name.
//! `try` undoes the effect of its line. `UPDATE_EXPECT=1 cargo nextest run -p tidegate-core
//! scenario` writes the right side; read it before you commit it.

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path, time::Duration};

use super::{failed, handed_back, result, spec};
use crate::{
    calendar::window::Window,
    job::{
        Event, Lifecycle, Spec, State, Token, Version,
        lifecycle::{Failure, PluginRetry, Reason, ResultBody, RetryDecision, Waiting, word},
        retry::{Backoff, Jitter},
        spec::KeepResult,
    },
    time::{Seconds, Timestamp},
};

fn seconds(text: &str) -> Duration {
    Duration::from_secs(
        text.strip_suffix('s')
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| panic!("not seconds: {text}")),
    )
}

fn instant(text: &str) -> Timestamp {
    Timestamp::EPOCH + seconds(text)
}

fn in_seconds(at: Timestamp) -> String {
    format!("{}s", at.since(Timestamp::EPOCH).as_secs_f64())
}

struct Scenario {
    spec: Spec,
    backoff: Backoff,
    at_most_once: bool,
    life: Lifecycle,
    granted: (Version, Timestamp),
}

impl Scenario {
    fn new() -> Self {
        let life = Lifecycle::new(Timestamp::EPOCH, Waiting::Due);
        let backoff = Backoff { jitter: Jitter::None, ..Backoff::default() };
        Self {
            spec: spec(),
            backoff,
            at_most_once: false,
            granted: (life.version, Timestamp::EPOCH),
            life,
        }
    }

    /// Applies a line of settings.
    fn setting(&mut self, line: &str) {
        let words: Vec<_> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        let span = |text| Seconds::new(seconds(text).as_secs());
        match words[..] {
            ["retry", "at", "most", attempts, "times", "after", base, "doubling", "to", max] => {
                self.spec.max_attempts = attempts.parse().unwrap();
                self.backoff = Backoff {
                    base_seconds: span(base),
                    max_seconds: span(max),
                    jitter: Jitter::None,
                };
            }
            ["run", "at", at] => self.life = Lifecycle::new(instant(at), Waiting::Due),
            ["at", "most", "once"] => self.at_most_once = true,
            ["timeout", timeout] => self.spec.timeout = span(timeout),
            ["expires", "at", at] => self.spec.expires_at = Some(instant(at)),
            ["deadline", "at", at] => self.spec.deadline_at = Some(instant(at)),
            ["keep", "result", keep] => self.spec.keep_result = KeepResult::For(span(keep)),
            ["retention", keep] => self.spec.retention = span(keep),
            ["windows", ref windows @ ..] => {
                let window = |text: &&str| -> Window {
                    let (from, to) = text.split_once('-').unwrap();
                    serde_json::from_value(serde_json::json!({ "from": from, "to": to })).unwrap()
                };
                self.spec.windows = windows.iter().map(window).collect();
            }
            _ => panic!("not a setting: {line}"),
        }
    }

    fn event(&self, text: &str) -> Event {
        let (version, decided_at) = self.granted;
        let next = RetryDecision::Wait(self.backoff.after(self.life.counted_attempts(), 0.5));
        let number = |text: &str| text.parse().unwrap();
        match text.split_whitespace().collect::<Vec<_>>()[..] {
            ["claim", "for", lease] => {
                let token = Token::new(u128::from(self.life.revision.0));
                Event::Claim {
                    version,
                    token,
                    worker: None,
                    lease: seconds(lease),
                    granted: true,
                    decided_at,
                }
            }
            ["heartbeat" | "checkpoint", attempt, "until", until] => {
                Event::Heartbeat { attempt: number(attempt), until: instant(until), progress: None }
            }
            ["succeed", attempt] => {
                Event::Succeed { attempt: number(attempt), result: Some(result()) }
            }
            ["release", attempt] => handed_back(number(attempt), None, self.at_most_once, next),
            ["snooze", attempt, "until", until] => {
                handed_back(number(attempt), Some(instant(until)), self.at_most_once, next)
            }
            ["second", "start", "forbidden"] => Event::MustNotRunTwice,
            ["fail", attempt] => failed(number(attempt), next),
            ["fail", attempt, "and", "ask"] => {
                failed(number(attempt), RetryDecision::AskPlugin(Duration::ZERO))
            }
            ["fail", attempt, "and", "ask", "after", wait] => {
                failed(number(attempt), RetryDecision::AskPlugin(seconds(wait)))
            }
            ["decision", "retry", "at", at] => Event::DecideRetry {
                version: self.life.version,
                plan: PluginRetry::Retry(instant(at)),
            },
            ["old", "decision", "retry", "at", at] => {
                Event::DecideRetry { version, plan: PluginRetry::Retry(instant(at)) }
            }
            ["decision", "give", "up"] => Event::DecideRetry {
                version: self.life.version,
                plan: PluginRetry::GiveUp(Some("hopeless".into())),
            },
            ["throttle", "to", at] => Event::Move {
                version,
                run_at: instant(at),
                waiting: Waiting::Throttler,
                reason: Some("later".into()),
            },
            ["fail", attempt, "for", "good"] => failed(number(attempt), RetryDecision::GiveUp),
            ["late", "success"] => Event::SucceedLate { result: Some(result()) },
            ["late", "failure"] => Event::FailLate { failure: Failure::new(Reason::Failed, "no") },
            ["lease", "over"] => Event::LeaseExpired { next, at_most_once: self.at_most_once },
            ["revoke"] => Event::Revoke { version },
            ["move", "to", at] => {
                Event::Move { version, run_at: instant(at), waiting: Waiting::Due, reason: None }
            }
            ["move", "to", at, "for", "a", "window"] => {
                let due = self.life.run_at().unwrap_or_default();
                Event::Move {
                    version,
                    run_at: instant(at),
                    waiting: Waiting::Window { due },
                    reason: None,
                }
            }
            ["patch"] => Event::Patch { run_at: None },
            ["patch", "to", at] => Event::Patch { run_at: Some(instant(at)) },
            ["cancel"] => Event::Cancel { force: false },
            ["cancel", "by", "force"] => Event::Cancel { force: true },
            ["drop"] => Event::Drop { reason: "unwanted".into() },
            ["expire"] => Event::Expire,
            ["deadline"] => Event::Deadline,
            ["forget", "result"] => Event::ForgetResult,
            ["replay", "by", by] => Event::Replayed { by: by.parse().unwrap() },
            _ => panic!("not an event: {text}"),
        }
    }

    /// Applies a line, and returns the state of the job after it.
    fn step(&mut self, now: Timestamp, line: &str) -> String {
        let (line, taken_back) = line
            .strip_prefix("try ")
            .map_or((line, None), |line| (line, Some((self.life.clone(), self.granted))));
        let mut refused = false;
        for event in line.split(", ") {
            if event == "grant" {
                self.granted = (self.life.version, now);
            } else {
                if event.starts_with("checkpoint") {
                    let bytes = bytes::Bytes::from(format!("{}", now.millis()));
                    self.life.keep_checkpoint(ResultBody { bytes, ..result() });
                }
                match self.life.apply(&self.spec, self.event(event), now) {
                    Ok(life) => self.life = life,
                    Err(_) => refused = true,
                }
            }
        }
        let shown = if refused { "refused".to_owned() } else { self.show() };
        if let Some((life, granted)) = taken_back {
            (self.life, self.granted) = (life, granted);
        }
        shown
    }

    fn show(&self) -> String {
        let mut text = word(&self.life.state).to_owned();
        let life = &self.life;
        match &life.state {
            State::Scheduled { run_at, waiting } => {
                write!(text, " for {}", in_seconds(*run_at)).unwrap();
                match waiting {
                    Waiting::Due => {}
                    Waiting::Window { .. } => text += " (window)",
                    Waiting::Retry => text += " (retry)",
                    Waiting::Throttler => text += " (throttler)",
                    Waiting::RetryDecision => text += " (retry decision)",
                }
                if life.attempt > 0 {
                    write!(text, " after attempt {}", life.attempt).unwrap();
                }
            }
            State::Running(run) => {
                write!(text, ", attempt {}, until {}", life.attempt, in_seconds(run.lease_until))
                    .unwrap();
                if run.cancel {
                    text += ", cancel wanted";
                }
            }
            State::Ended { .. } => {
                if let Some(error) = &life.error {
                    write!(
                        text,
                        " ({})",
                        serde_json::to_value(error.reason).unwrap().as_str().unwrap()
                    )
                    .unwrap();
                }
                if let Some(last) = life.history.last() {
                    write!(
                        text,
                        ", attempt {} {}",
                        last.attempt,
                        serde_json::to_value(last.ended_as()).unwrap().as_str().unwrap()
                    )
                    .unwrap();
                }
                if life.result.is_some() {
                    text += ", with a result";
                }
                write!(text, ", next looked at {}", in_seconds(life.wake_at(&self.spec).unwrap()))
                    .unwrap();
            }
        }
        if let Some(checkpoint) = &life.checkpoint {
            write!(text, ", checkpoint {}", String::from_utf8_lossy(&checkpoint.bytes)).unwrap();
        }
        write!(text, ", version {}", life.version.0).unwrap();
        text
    }
}

/// The text with the right side that the rules produce.
fn played(text: &str) -> String {
    let mut scenario = Scenario::new();
    let mut out = String::new();
    // A line that begins with an instant has an event, also before its right side was written.
    let event = |line: &str| -> Option<String> {
        let left = line.split_once("->").map_or(line, |(left, _)| left);
        let begins = left.trim_start().starts_with(|letter: char| letter.is_ascii_digit());
        begins.then(|| left.trim_end().to_owned())
    };
    let arrow = text.lines().filter_map(event).map(|left| left.len()).max().unwrap_or(0);
    for line in text.lines() {
        match event(line) {
            None => {
                if !line.is_empty() && !line.starts_with('#') {
                    scenario.setting(line);
                }
                out += line;
            }
            Some(left) => {
                let (at, event) = left.trim().split_once(' ').unwrap();
                let shown = scenario.step(instant(at), event.trim());
                write!(out, "{left:arrow$} -> {shown}").unwrap();
            }
        }
        out.push('\n');
    }
    out
}

#[test]
fn the_right_side_of_a_new_scenario_is_written() {
    let text = "# New.\nrun at 10s\n\n9s  grant\n10s  claim for 30s\n";
    let right = [
        "# New.\nrun at 10s\n",
        "9s  grant          -> scheduled for 10s, version 1",
        "10s  claim for 30s -> running, attempt 1, until 40s, version 1\n",
    ];
    assert_eq!(played(text), right.join("\n"));
    assert_eq!(played(&played(text)), played(text));
}

#[test]
fn every_scenario_of_a_life_ends_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios/life");
    let files: BTreeSet<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let played = played(&text);
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(&file, &played).unwrap();
        } else {
            assert_eq!(text, played, "{}", file.display());
        }
    }
}
