//! The plugins of a simulation, and the observation of their decisions and of the resources of each
//! call.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use object_store::{ObjectStore, memory::InMemory};
use parking_lot::Mutex;
use serde::Serialize;

use super::report::Spread;
use crate::plugins::registry::NewVersion;
use tidegate_core::{
    job::{JobId, PluginName},
    port::{
        Policy,
        policy::{
            Action, Call, Fault, NoPolicy, Plugin, Problem, Purpose, RetryAnswer, RetryCall,
            RetryOutput, ThrottleAnswer, ThrottleCall, Usage,
        },
    },
    queue::plugin::{Role, Throttler},
    time::Timestamp,
};

/// Most reasons that are counted separately.
const MAX_REASONS: usize = 200;
/// The reason that replaces further ones.
const OTHER_REASONS: &str = "(other reasons)";

/// Most lines of a plugin's log that the report of a simulation keeps.
pub const MAX_LOG_LINES: usize = 200;
/// Most bytes of these lines.
const MAX_LOG_BYTES: usize = 64 << 10;
/// Most lines of the log of the call with the first fault.
const MAX_FAULT_LINES: usize = 20;

/// Returns what the host knows of the last call of a plugin, if it measures calls.
pub type Meter = Arc<dyn Fn(&Plugin) -> Option<Measured> + Send + Sync>;

/// The last call of a plugin.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The resources that it used.
    pub usage: Usage,
    /// What the plugin logged since the call before: levels and texts.
    pub log: Vec<(&'static str, String)>,
}

/// A line of a plugin's log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoggedLine {
    /// When the plugin was called, from the start.
    pub at_seconds: f64,
    /// `debug`, `info`, `warn` or `error`.
    pub level: &'static str,
    /// The text.
    pub message: String,
}

/// The first call of a plugin without an answer that counts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FirstFault {
    /// When it was made, from the start.
    pub at_seconds: f64,
    /// The kind of the fault.
    pub kind: String,
    /// The message of the fault.
    pub message: String,
    /// What the plugin logged in this call: the last 20 lines.
    pub log: Vec<LoggedLine>,
}

/// The plugins of a simulation.
#[derive(Clone)]
pub struct Plugins {
    /// Runs them.
    pub policy: Arc<dyn Policy>,
    /// Where their code is put, for `policy` to find.
    pub objects: Arc<dyn ObjectStore>,
    /// The throttler, and its use by the queue.
    pub throttler: Option<(NewVersion, Throttler)>,
    /// The retry strategy of every type, with the configuration for types that have none for a
    /// plugin.
    pub retry: Option<(NewVersion, Arc<serde_json::Value>)>,
    /// Further retry strategies, by the names that types use.
    pub strategies: BTreeMap<PluginName, NewVersion>,
    /// Called after each call of a plugin.
    pub meter: Option<Meter>,
}

impl Default for Plugins {
    /// No plugins.
    fn default() -> Self {
        Self {
            policy: Arc::new(NoPolicy),
            objects: Arc::new(InMemory::new()),
            throttler: None,
            retry: None,
            strategies: BTreeMap::new(),
            meter: None,
        }
    }
}

/// The calls of plugins in one role.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Calls {
    /// How many.
    pub calls: u64,
    /// The number of calls without an answer, by the kind of fault.
    pub faults: BTreeMap<String, u64>,
    /// The first fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_fault: Option<FirstFault>,
    /// The number of lines that the plugin logged.
    pub logged: u64,
    /// The first of these lines, at most 200 lines or 64 KiB.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<LoggedLine>,
    /// Fuel of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fuel: Option<Spread>,
    /// Bytes of memory at the end of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<Spread>,
    /// How long a call took on this machine, in microseconds. It is not part of the reproducible
    /// report.
    #[serde(skip)]
    pub took_micros: Option<Spread>,
}

impl Calls {
    fn fail(&mut self, fault: &Fault, at_seconds: f64, log: Vec<LoggedLine>) {
        let kind = fault.kind.as_str().to_owned();
        *self.faults.entry(kind.clone()).or_default() += 1;
        self.first_fault.get_or_insert_with(|| FirstFault {
            at_seconds,
            kind,
            message: fault.message.clone(),
            log,
        });
    }

    fn add_log(&mut self, lines: Vec<LoggedLine>) {
        self.logged += lines.len() as u64;
        let mut bytes: usize = self.log.iter().map(|line| line.message.len()).sum();
        for line in lines {
            bytes += line.message.len();
            // Once a line is left out, so are the later ones.
            if self.log.len() >= MAX_LOG_LINES || bytes > MAX_LOG_BYTES {
                break;
            }
            self.log.push(line);
        }
    }
}

/// The measurements of calls during the simulation.
#[derive(Debug, Default)]
struct Tally {
    calls: Calls,
    fuel: Vec<u64>,
    memory: Vec<u64>,
    took: Vec<u64>,
}

impl Tally {
    fn calls(self) -> Calls {
        Calls {
            fuel: Spread::of(self.fuel),
            memory_bytes: Spread::of(self.memory),
            took_micros: Spread::of(self.took),
            ..self.calls
        }
    }
}

/// A decision of a plugin about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PluginDecision {
    Run,
    Hold,
    Reschedule(Timestamp),
    Drop,
    Retry(Timestamp),
    GiveUp,
}

/// A decision about a job that differs from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DecisionChange {
    pub at: Timestamp,
    pub what: PluginDecision,
    /// The reason: an index into [`SeenDecisions::reasons`].
    pub reason: u32,
}

/// The observed decisions and calls of plugins.
#[derive(Debug, Default)]
pub(super) struct SeenDecisions {
    throttler: Tally,
    retry: Tally,
    /// The changes of the decision about each job.
    pub decided: HashMap<JobId, Vec<DecisionChange>>,
    pub reasons: Vec<String>,
    known: HashMap<String, u32>,
    /// The decisions of the current tick. If a job is evaluated again, the last decision counts.
    tick: HashMap<JobId, (PluginDecision, u32)>,
}

impl SeenDecisions {
    fn reason(&mut self, text: &str) -> u32 {
        let text = without_numbers(text);
        if let Some(index) = self.known.get(&text) {
            return *index;
        }
        let text = if self.reasons.len() < MAX_REASONS { text } else { OTHER_REASONS.to_owned() };
        let index = self.known.get(&text).copied().unwrap_or(self.reasons.len() as u32);
        if index as usize == self.reasons.len() {
            self.reasons.push(text.clone());
            self.known.insert(text, index);
        }
        index
    }

    fn decide(&mut self, id: &JobId, at: Timestamp, what: PluginDecision, reason: u32) {
        let decided = self.decided.entry(id.clone()).or_default();
        if decided.last().is_none_or(|last| last.what != what) {
            decided.push(DecisionChange { at, what, reason });
        }
    }

    /// Ends the tick at `now`. Returns the jobs that the throttler held, with the reasons.
    pub(crate) fn tick_over(&mut self, now: Timestamp) -> Vec<(JobId, String)> {
        let mut held = Vec::new();
        for (id, (what, reason)) in std::mem::take(&mut self.tick) {
            self.decide(&id, now, what, reason);
            if what == PluginDecision::Hold {
                held.push((id, self.reasons[reason as usize].clone()));
            }
        }
        held
    }

    /// The calls of the throttler and of the retry strategy, if there were any.
    pub fn calls(&mut self) -> BTreeMap<&'static str, Calls> {
        let (throttler, retry) =
            (std::mem::take(&mut self.throttler).calls(), std::mem::take(&mut self.retry).calls());
        [("throttler", throttler), ("retry", retry)]
            .into_iter()
            .filter(|(_, calls)| calls.calls > 0)
            .collect()
    }
}

/// A policy whose decisions are observed.
pub(super) struct ObservedPolicy {
    pub policy: Arc<dyn Policy>,
    pub meter: Option<Meter>,
    /// The start of the simulation.
    pub start: Timestamp,
    pub seen: Arc<Mutex<SeenDecisions>>,
}

impl ObservedPolicy {
    fn observe<T>(
        &self,
        plugin: &Plugin,
        now: Timestamp,
        tally: impl FnOnce(&mut SeenDecisions) -> &mut Tally,
        answer: &Result<T, Fault>,
    ) {
        let measured = self.meter.as_ref().and_then(|meter| meter(plugin));
        let at_seconds = self.seconds(now);
        let mut seen = self.seen.lock();
        let tally = tally(&mut seen);
        tally.calls.calls += 1;
        let mut log = Vec::new();
        if let Some(Measured { usage, log: lines }) = measured {
            let Usage { fuel, took, memory_bytes, .. } = usage;
            tally.fuel.extend(fuel);
            tally.memory.push(memory_bytes);
            tally.took.push(took.as_micros() as u64);
            let line = |(level, message)| LoggedLine { at_seconds, level, message };
            log.extend(lines.into_iter().map(line));
        }
        if let Err(fault) = answer {
            let skipped = log.len().saturating_sub(MAX_FAULT_LINES);
            tally.calls.fail(fault, at_seconds, log[skipped..].to_vec());
        }
        tally.calls.add_log(log);
    }

    /// The time from the start to `now`.
    fn seconds(&self, now: Timestamp) -> f64 {
        now.since(self.start).as_secs_f64()
    }
}

#[async_trait]
impl Policy for ObservedPolicy {
    async fn throttle(
        &self,
        plugin: &Plugin,
        call: Arc<ThrottleCall>,
        purpose: Purpose,
    ) -> Result<ThrottleAnswer, Fault> {
        let answer = self.policy.throttle(plugin, Arc::clone(&call), purpose).await;
        self.observe(plugin, call.now, |seen| &mut seen.throttler, &answer);
        let mut seen = self.seen.lock();
        // Many candidates of a call have one reason.
        let mut reasons: Vec<(&str, u32)> = Vec::new();
        for (job, decision) in
            call.candidates.iter().zip(answer.iter().flat_map(|answer| &answer.decisions))
        {
            let what = match decision.action {
                Action::Run => PluginDecision::Run,
                Action::Hold(_) => PluginDecision::Hold,
                Action::Reschedule(at) => PluginDecision::Reschedule(at),
                Action::Drop => PluginDecision::Drop,
            };
            let text = decision.reason.as_deref().unwrap_or_default();
            let known = reasons
                .iter()
                .rev()
                .take(8)
                .find(|(known, _)| *known == text)
                .map(|(_, reason)| *reason);
            let reason = known.unwrap_or_else(|| {
                let reason = seen.reason(text);
                reasons.push((text, reason));
                reason
            });
            seen.tick.insert(job.id.clone(), (what, reason));
        }
        answer
    }

    async fn retry(
        &self,
        plugin: &Plugin,
        call: Arc<RetryCall>,
        purpose: Purpose,
    ) -> Result<RetryOutput, Fault> {
        let answer = self.policy.retry(plugin, Arc::clone(&call), purpose).await;
        self.observe(plugin, call.now, |seen| &mut seen.retry, &answer);
        if let Ok(output) = &answer {
            let (what, reason) = match &output.answer {
                RetryAnswer::Retry(plan) => (PluginDecision::Retry(plan.at), ""),
                RetryAnswer::GiveUp(message) => {
                    (PluginDecision::GiveUp, message.as_deref().unwrap_or_default())
                }
            };
            let mut seen = self.seen.lock();
            let reason = seen.reason(reason);
            seen.decide(&call.job.id, call.now, what, reason);
        }
        answer
    }

    async fn check(
        &self,
        plugin: &Plugin,
        role: Role,
        config: &str,
    ) -> Result<Vec<Problem>, Fault> {
        self.policy.check(plugin, role, config).await
    }

    fn report_fault(&self, plugin: &Plugin, call: &Call, fault: &Fault) {
        let mut seen = self.seen.lock();
        let (tally, now) = match call {
            Call::Throttle(call) => (&mut seen.throttler, call.now),
            Call::Retry(call) => (&mut seen.retry, call.now),
        };
        tally.calls.fail(fault, self.seconds(now), Vec::new());
        self.policy.report_fault(plugin, call, fault);
    }
}

/// `text` with each number as `#`, so that reasons which differ only in numbers are counted as one.
fn without_numbers(text: &str) -> String {
    let mut short = String::with_capacity(text.len());
    let mut number = false;
    for letter in text.chars() {
        let more = letter.is_ascii_digit() || (number && letter == '.');
        if !more {
            short.push(letter);
        } else if !number {
            short.push('#');
        }
        number = more;
    }
    short
}
