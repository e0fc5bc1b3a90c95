//! Scenarios of a job's life, as text files in `tests/scenarios/life`, and what holds in every life.
//!
//! A file opens with what the job is. Then each line has an instant, what happens, and where that takes the
//! job. `grant` remembers the version and the instant that the next claims name. `try` takes the line's effect
//! back. `UPDATE_EXPECT=1 cargo nextest run scenarios` fills in the right side, for you to read.

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path, time::Duration};

use proptest::prelude::*;

use super::spec;
use crate::{
    calendar::window::Window,
    job::{
        Encoding, Event, Lifecycle, Outcome, Spec, State, Token, Version,
        lifecycle::{
            AttemptRecord, Failure, MAX_HISTORY, MAX_HISTORY_BYTES, PluginRetry, Reason,
            ResultBody, RetryDecision, Waiting, word,
        },
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

fn result() -> ResultBody {
    ResultBody { encoding: Encoding::Json, bytes: bytes::Bytes::from_static(b"1"), object: None }
}

fn failed(attempt: u16, next: RetryDecision) -> Event {
    Event::Fail { attempt, failure: Failure::new(Reason::Failed, "no"), next }
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

    /// Takes a line of what the job is.
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
        let next = RetryDecision::Wait(self.backoff.after(self.life.attempt, 0.5));
        let number = |text: &str| text.parse().unwrap();
        match text.split_whitespace().collect::<Vec<_>>()[..] {
            ["claim", "for", lease] => {
                let token = Token(u128::from(self.life.revision.0));
                Event::Claim {
                    version,
                    token,
                    worker: None,
                    lease: seconds(lease),
                    granted: true,
                    decided_at,
                }
            }
            ["heartbeat", attempt, "until", until] => {
                Event::Heartbeat { attempt: number(attempt), until: instant(until), progress: None }
            }
            ["succeed", attempt] => {
                Event::Succeed { attempt: number(attempt), result: Some(result()) }
            }
            ["fail", attempt] => failed(number(attempt), next),
            ["fail", attempt, "and", "ask"] => {
                failed(number(attempt), RetryDecision::AskPlugin(Duration::ZERO))
            }
            ["fail", attempt, "and", "ask", "after", wait] => {
                failed(number(attempt), RetryDecision::AskPlugin(seconds(wait)))
            }
            ["verdict", "retry", "at", at] => Event::DecideRetry {
                version: self.life.version,
                plan: PluginRetry::Retry(instant(at)),
            },
            ["old", "verdict", "retry", "at", at] => {
                Event::DecideRetry { version, plan: PluginRetry::Retry(instant(at)) }
            }
            ["verdict", "give", "up"] => Event::DecideRetry {
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
            _ => panic!("not an event: {text}"),
        }
    }

    /// Where the line takes the job.
    fn step(&mut self, now: Timestamp, line: &str) -> String {
        let (line, taken_back) = line
            .strip_prefix("try ")
            .map_or((line, None), |line| (line, Some((self.life.clone(), self.granted))));
        let mut refused = false;
        for event in line.split(", ") {
            if event == "grant" {
                self.granted = (self.life.version, now);
            } else {
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
                    Waiting::RetryDecision => text += " (verdict)",
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
                        serde_json::to_value(last.outcome).unwrap().as_str().unwrap()
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
        write!(text, ", version {}", life.version.0).unwrap();
        text
    }
}

/// The text with its right side as it comes out.
fn played(text: &str) -> String {
    let mut scenario = Scenario::new();
    let mut out = String::new();
    let arrow = text
        .lines()
        .filter_map(|line| line.split_once("->"))
        .map(|(left, _)| left.trim_end().len())
        .max()
        .unwrap_or(0);
    for line in text.lines() {
        match line.split_once("->") {
            None => {
                if !line.is_empty() && !line.starts_with('#') {
                    scenario.setting(line);
                }
                out += line;
            }
            Some((left, _)) => {
                let (at, event) = left.trim().split_once(' ').unwrap();
                let shown = scenario.step(instant(at), event.trim());
                write!(out, "{:arrow$} -> {shown}", left.trim_end()).unwrap();
            }
        }
        out.push('\n');
    }
    out
}

#[test]
fn every_scenario_of_a_life_goes_as_written() {
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

fn attempt() -> impl Strategy<Value = u16> {
    0u16..4
}

fn event() -> impl Strategy<Value = Event> {
    let version = || (1u64..8).prop_map(Version);
    let at = || (0i64..300).prop_map(Timestamp::from_millis);
    let wait = || (0u64..50).prop_map(Duration::from_millis);
    let next = move || {
        prop_oneof![
            wait().prop_map(RetryDecision::Wait),
            wait().prop_map(RetryDecision::AskPlugin),
            Just(RetryDecision::GiveUp)
        ]
    };
    let plan = || prop_oneof![at().prop_map(PluginRetry::Retry), Just(PluginRetry::GiveUp(None))];
    prop_oneof![
        4 => (version(), any::<u128>(), 0u64..50, at()).prop_map(|(version, token, lease, decided_at)| Event::Claim {
            version,
            token: Token(token),
            worker: None,
            lease: Duration::from_millis(lease),
            granted: true,
            decided_at,
        }),
        1 => (attempt(), at()).prop_map(|(attempt, until)| Event::Heartbeat { attempt, until, progress: None }),
        1 => attempt().prop_map(|attempt| Event::Succeed { attempt, result: Some(result()) }),
        2 => (attempt(), next()).prop_map(|(attempt, next)| failed(attempt, next)),
        1 => (next(), any::<bool>()).prop_map(|(next, at_most_once)| Event::LeaseExpired { next, at_most_once }),
        1 => version().prop_map(|version| Event::Revoke { version }),
        2 => (version(), plan()).prop_map(|(version, plan)| Event::DecideRetry { version, plan }),
        1 => (version(), at())
            .prop_map(|(version, run_at)| Event::Move { version, run_at, waiting: Waiting::Window { due: run_at }, reason: None }),
        1 => prop::option::of(at()).prop_map(|run_at| Event::Patch { run_at }),
        1 => any::<bool>().prop_map(|force| Event::Cancel { force }),
        1 => prop_oneof![Just(Event::Expire), Just(Event::Deadline), Just(Event::ForgetResult), Just(Event::Drop { reason: String::new() })],
    ]
}

/// The attempt that an event speaks of, if it is a worker's word.
fn speaks_of(event: &Event) -> Option<u16> {
    match event {
        Event::Heartbeat { attempt, .. }
        | Event::Succeed { attempt, .. }
        | Event::Fail { attempt, .. } => Some(*attempt),
        _ => None,
    }
}

/// The version that an event was decided on, if it was decided on one.
fn decided_on(event: &Event) -> Option<Version> {
    match event {
        Event::Claim { version, .. }
        | Event::Revoke { version }
        | Event::Move { version, .. }
        | Event::DecideRetry { version, .. } => Some(*version),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_holds_in_every_life(
        events in prop::collection::vec((event(), 0i64..20), 0..60),
        max_attempts in 1u16..4,
        expires in prop::option::of(0i64..300),
        deadline in prop::option::of(0i64..300),
    ) {
        let spec = Spec {
            max_attempts,
            expires_at: expires.map(Timestamp::from_millis),
            deadline_at: deadline.map(Timestamp::from_millis),
            timeout: Seconds::from_millis(40),
            ..spec()
        };
        let (mut life, mut now) = (Lifecycle::new(Timestamp::EPOCH, Waiting::Due), 0);
        for (event, gap) in events {
            now += gap;
            let at = Timestamp::from_millis(now);
            let next = match life.apply(&spec, event.clone(), at) {
                Err(refused) => {
                    prop_assert_eq!((&refused.state, refused.attempt), (&life.state, life.attempt));
                    continue;
                }
                Ok(next) => next,
            };
            prop_assert_eq!(next.revision.0, life.revision.0 + 1, "every write is told apart");

            let claims = matches!(event, Event::Claim { .. });
            prop_assert_eq!(next.attempt, life.attempt + u16::from(claims), "only a claim raises the attempt");
            prop_assert!(next.attempt <= max_attempts);
            prop_assert_eq!(next.history.len(), (life.history.len() + usize::from(life.running().is_some() && next.running().is_none())).min(MAX_HISTORY));

            let marks = matches!(event, Event::Cancel { force: false }) && life.running().is_some();
            let keeps = claims || marks || matches!(event, Event::Heartbeat { .. } | Event::ForgetResult);
            prop_assert_eq!(next.version.0, life.version.0 + u64::from(!keeps), "{:?}", event);

            if let Some(attempt) = speaks_of(&event) {
                prop_assert!(life.running().is_some() && attempt == life.attempt, "another attempt's word is refused");
            }
            if let Some(version) = decided_on(&event) {
                prop_assert!(life.run_at().is_some() && version == life.version, "a void decision is refused");
            }
            if life.ended().is_some() {
                prop_assert_eq!(event, Event::ForgetResult, "a terminal job never changes");
                prop_assert_eq!(Lifecycle { result: life.result.clone(), revision: life.revision, ..next.clone() }, life);
            }
            if let Some(run) = next.running() {
                prop_assert!(run.lease_until <= run.timeout_at);
                prop_assert_eq!(run.timeout_at, run.started_at + spec.timeout.duration());
                prop_assert!(!claims || expires.into_iter().chain(deadline).all(|end| now < end), "nothing starts too late");
            }
            // A job that is not over is looked at again when its expiry or deadline comes.
            let end = if next.run_at().is_some() { expires.into_iter().chain(deadline).min() } else { deadline };
            // One whose strategy is to be asked is looked at at once.
            let failed_at = next.history.last().filter(|_| next.awaits_retry_decision()).map(|entry| entry.ended_at.millis());
            let end = end.into_iter().chain(failed_at).min();
            if next.ended().is_none() {
                prop_assert_eq!(next.wake_at(&spec).map(Timestamp::millis), end);
            }
            life = next;
        }
    }
}

#[test]
fn the_history_keeps_its_first_entry_and_the_latest() {
    let spec = Spec { max_attempts: 1000, ..spec() };
    let mut life = Lifecycle::new(Timestamp::EPOCH, Waiting::Due);
    for attempt in 1..=MAX_HISTORY as u16 + 20 {
        let claim = Event::Claim {
            version: life.version,
            token: Token(1),
            worker: None,
            lease: Duration::ZERO,
            granted: false,
            decided_at: Timestamp::EPOCH,
        };
        life = life.apply(&spec, claim, Timestamp::EPOCH).unwrap();
        assert_eq!(life.wake_at(&spec), Some(Timestamp::EPOCH), "no head watches the lease");
        life = life
            .apply(&spec, failed(attempt, RetryDecision::Wait(Duration::ZERO)), Timestamp::EPOCH)
            .unwrap();
    }
    let kept: Vec<_> = life.history.iter().map(|entry| entry.attempt).collect();
    assert_eq!((kept[0], kept[1], kept[MAX_HISTORY - 1], kept.len()), (1, 22, 120, MAX_HISTORY));
}

#[test]
fn a_history_of_long_failures_stays_short_and_keeps_the_latest_whole() {
    let spec = Spec { max_attempts: 1000, ..spec() };
    let mut life = Lifecycle::new(Timestamp::EPOCH, Waiting::Due);
    for attempt in 1..=MAX_HISTORY as u16 {
        let claim = Event::Claim {
            version: life.version,
            token: Token(1),
            worker: None,
            lease: Duration::ZERO,
            granted: false,
            decided_at: Timestamp::EPOCH,
        };
        life = life.apply(&spec, claim, Timestamp::EPOCH).unwrap();
        let failure = Failure {
            details: Some("x".repeat(16 << 10)),
            ..Failure::new(Reason::Failed, "y".repeat(1024))
        };
        life = life
            .apply(
                &spec,
                Event::Fail { attempt, failure, next: RetryDecision::Wait(Duration::ZERO) },
                Timestamp::EPOCH,
            )
            .unwrap();
    }
    let said = |entry: &AttemptRecord| {
        entry.error.as_ref().map_or((0, 0), |error| {
            (
                error.details.iter().map(String::len).sum(),
                error.message.iter().map(String::len).sum(),
            )
        })
    };
    let (latest, older) = life.history.split_last().unwrap();
    assert_eq!(said(latest), (16 << 10, 1024));
    let kept: usize =
        older.iter().map(said).map(|(details, message): (usize, usize)| details + message).sum();
    assert!(kept <= MAX_HISTORY_BYTES && kept > MAX_HISTORY_BYTES - 2048, "{kept}");
    assert_eq!(said(&older[0]), (0, 0), "the oldest lost what it had first");
    assert_eq!(said(&older[98]), (0, 1024), "messages outlive details");
    assert!(
        older.iter().all(|entry| entry.outcome == Outcome::Failed),
        "what became of each attempt stays"
    );
}

#[test]
fn a_result_is_kept_as_its_job_says() {
    let end = |keep_result| {
        let spec = Spec { keep_result, retention: Seconds::new(1_000_000), ..spec() };
        let mut life = Lifecycle::new(Timestamp::EPOCH, Waiting::Due);
        let claim = Event::Claim {
            version: life.version,
            token: Token(1),
            worker: None,
            lease: Duration::ZERO,
            granted: false,
            decided_at: Timestamp::EPOCH,
        };
        life = life.apply(&spec, claim, Timestamp::EPOCH).unwrap();
        life = life
            .apply(&spec, Event::Succeed { attempt: 1, result: Some(result()) }, Timestamp::EPOCH)
            .unwrap();
        assert_eq!(life.ended(), Some(Outcome::Succeeded));
        (life.result.is_some(), life.wake_at(&spec).unwrap().since(Timestamp::EPOCH).as_secs())
    };
    assert_eq!(end(KeepResult::None), (false, 1_000_000));
    assert_eq!(end(KeepResult::Once), (true, 3600));
    assert_eq!(end(KeepResult::For(Seconds::new(60))), (true, 60));
}
