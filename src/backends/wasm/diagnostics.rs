//! Diagnostics of plugins for operators and authors: logs, faults with their calls, usage.
//!
//! They are in memory and bounded for each plugin, and the oldest entries are dropped first. What
//! outlives the process is stored by the server ([`recording`](super::recording)). Metrics have the
//! counters that last.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use metrics::{counter, histogram};
use parking_lot::{Mutex, RwLock};
use serde::Serialize;

use super::{
    contract::throttler::tidegate::plugin::log,
    guest::MetricChange,
    plugin_series::{MetricChanges, PluginSeries},
    recording::{Reason, RecordedCall, RecordingRules, Recordings, Unstored},
};
use tidegate_core::{
    job::PluginName,
    port::policy::{
        Answer, Call, Fault, Plugin, Problem, Purpose, RetryOutput, ThrottleAnswer, Usage,
    },
    queue::plugin::Role,
    time::Timestamp,
};

/// Maximum recorded lines of a plugin's log.
const MAX_LOG_LINES: usize = 500;
/// Maximum recorded bytes of a plugin's log.
const MAX_LOG_BYTES: usize = 256 << 10;
/// Maximum recorded faults of a plugin's live version, and of its shadow version, each with its
/// call.
const MAX_FAULTS: usize = 8;

/// The level of a line of a plugin's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// For debugging.
    Debug,
    /// For information.
    Info,
    /// A warning: an operator should check it.
    Warn,
    /// An error: an operator must act. The last one before a trap counts as its reason.
    Error,
}

impl LogLevel {
    /// The level's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

impl From<log::Level> for LogLevel {
    fn from(level: log::Level) -> Self {
        match level {
            log::Level::Debug => Self::Debug,
            log::Level::Info => Self::Info,
            log::Level::Warn => Self::Warn,
            log::Level::Error => Self::Error,
        }
    }
}

/// A line that a plugin logged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LogLine {
    /// The number of the line, counted from 1 for each plugin.
    pub number: u64,
    /// When the call was made that logged it.
    pub at: Timestamp,
    /// The number of the plugin's version.
    pub version: u32,
    /// The role in which it was called.
    pub role: Role,
    /// Its level.
    pub level: LogLevel,
    /// Its text.
    pub text: String,
}

/// The diagnostics of a plugin in this process.
#[derive(Clone, Debug, Default)]
pub struct PluginDiagnostics {
    /// Calls whose answers took effect.
    pub live: Calls,
    /// Shadow calls of the latest version that ran in addition to the live one.
    pub shadow: Calls,
    /// The number of logged lines.
    pub logged: u64,
    /// The latest lines of its log, oldest first.
    pub log: VecDeque<LogLine>,
}

impl PluginDiagnostics {
    /// Takes what was counted and logged since the latest call, if there is any.
    fn take_new(&mut self) -> Option<Self> {
        if self.log.is_empty() && !self.live.is_new() && !self.shadow.is_new() {
            return None;
        }
        let taken = Self { log: std::mem::take(&mut self.log), ..self.clone() };
        self.live.restart();
        self.shadow.restart();
        Some(taken)
    }
}

/// Statistics of calls.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    /// The version that was called last.
    pub version: u32,
    /// How often it was called.
    pub calls: u64,
    /// The number of failed calls by the kind of fault.
    pub faults: BTreeMap<&'static str, u64>,
    /// Whether the latest call failed.
    pub failing: bool,
    /// The usage of the latest call.
    pub last: Option<Usage>,
    /// The latest failed calls, oldest first.
    pub failed: VecDeque<Arc<RecordedCall>>,
}

impl Calls {
    /// Whether something was counted since the start, or the latest [`Self::restart`].
    fn is_new(&self) -> bool {
        self.calls > 0 || !self.faults.is_empty()
    }

    /// Counts from zero again.
    fn restart(&mut self) {
        self.calls = 0;
        self.faults.clear();
    }

    fn fail(&mut self, fault: &Fault, failed: Arc<RecordedCall>) {
        *self.faults.entry(fault.kind.as_str()).or_default() += 1;
        self.failing = true;
        if self.failed.len() == MAX_FAULTS {
            self.failed.pop_front();
        }
        self.failed.push_back(failed);
    }
}

/// What a call returns.
pub(super) trait ToAnswer {
    /// It as an answer; none for the check of a configuration.
    fn to_answer(&self) -> Option<Answer>;
}

impl ToAnswer for ThrottleAnswer {
    fn to_answer(&self) -> Option<Answer> {
        Some(Answer::Throttle(self.clone()))
    }
}

impl ToAnswer for RetryOutput {
    fn to_answer(&self) -> Option<Answer> {
        Some(Answer::Retry(self.clone()))
    }
}

impl ToAnswer for Vec<Problem> {
    fn to_answer(&self) -> Option<Answer> {
        None
    }
}

/// A completed call.
pub(super) struct CompletedCall<'a> {
    pub plugin: &'a Plugin,
    pub role: Role,
    pub purpose: Purpose,
    pub at: Timestamp,
    pub usage: Usage,
    pub log: Vec<(log::Level, String)>,
    pub log_dropped: u32,
    pub metrics: Vec<MetricChange>,
    pub metrics_dropped: u32,
    /// The answer, or the fault.
    pub answer: Result<&'a dyn ToAnswer, &'a Fault>,
    /// None for the check of a configuration.
    pub call: Option<Call>,
}

/// The diagnostics of each called plugin.
#[derive(Debug)]
pub(super) struct Diagnostics {
    /// Whether calls count in the metrics of the process.
    counts: bool,
    plugins: Mutex<HashMap<PluginName, PluginDiagnostics>>,
    series: PluginSeries,
    rules: RwLock<Arc<RecordingRules>>,
    recordings: Mutex<Recordings>,
}

impl Diagnostics {
    /// Diagnostics whose calls count in the metrics of the process, or do not.
    pub(super) fn counting(counts: bool) -> Self {
        Self {
            counts,
            plugins: Mutex::default(),
            series: PluginSeries::default(),
            rules: RwLock::default(),
            recordings: Mutex::default(),
        }
    }

    pub(super) fn seen(&self, plugin: &PluginName) -> PluginDiagnostics {
        self.plugins.lock().get(plugin).cloned().unwrap_or_default()
    }

    pub(super) fn take_new(&self) -> Vec<(PluginName, PluginDiagnostics)> {
        let mut plugins = self.plugins.lock();
        let new = plugins.iter_mut();
        new.filter_map(|(plugin, seen)| Some((plugin.clone(), seen.take_new()?))).collect()
    }

    pub(super) fn last(&self, plugin: &PluginName) -> Option<Usage> {
        self.plugins.lock().get(plugin).and_then(|seen| seen.live.last)
    }

    pub(super) fn log_after(&self, plugin: &PluginName, number: u64) -> Vec<LogLine> {
        let plugins = self.plugins.lock();
        let Some(seen) = plugins.get(plugin) else { return Vec::new() };
        let new = seen.log.iter().rev().take_while(|line| line.number > number).count();
        seen.log.range(seen.log.len() - new..).cloned().collect()
    }

    pub(super) fn forget(&self, plugin: &PluginName) {
        self.plugins.lock().remove(plugin);
        self.series.forget(plugin);
        self.recordings.lock().forget(plugin);
    }

    pub(super) fn set_rules(&self, rules: RecordingRules) {
        *self.rules.write() = Arc::new(rules);
    }

    pub(super) fn latest(&self, plugin: &PluginName) -> Vec<Arc<RecordedCall<Call>>> {
        self.recordings.lock().latest(plugin)
    }

    pub(super) fn take_unstored(&self) -> Vec<Unstored> {
        self.recordings.lock().take_unstored()
    }

    /// Records a failed call, and returns the record.
    fn record_fault(&self, plugin: &PluginName, failed: &RecordedCall<Call>) -> Arc<RecordedCall> {
        let is_stored = self.rules.read().faults;
        let mut call = failed.written();
        let mut recordings = self.recordings.lock();
        call.number = recordings.next_number();
        let call = Arc::new(call);
        if is_stored && recordings.may_store(plugin, Reason::Fault, call.at) {
            let (plugin, call) = (plugin.clone(), Arc::clone(&call));
            recordings.add_unstored(Unstored { plugin, reason: Reason::Fault, call });
        }
        call
    }

    /// Records a live call that was answered, as the rules say.
    fn record_answer(
        &self,
        plugin: &PluginName,
        made: impl FnOnce() -> Option<RecordedCall<Call>>,
    ) {
        let rules = Arc::clone(&self.rules.read());
        let may_select = rules.sample.is_some() || rules.filters.contains_key(plugin);
        if !(rules.latest || may_select) {
            return;
        }
        let Some(mut call) = made() else { return };
        let Ok(answer) = &call.answer else { return };
        let matches = rules.selects(plugin, &call.call, answer, call.at);
        let mut recordings = self.recordings.lock();
        call.number = recordings.next_number();
        let now = call.at;
        let is_sample =
            rules.sample.is_some_and(|span| recordings.is_sample(plugin, &call.queue, span, now));
        let reason = if matches && recordings.may_store(plugin, Reason::Filter, now) {
            Some(Reason::Filter)
        } else {
            is_sample.then_some(Reason::Sample)
        };
        let call = Arc::new(call);
        if rules.latest {
            recordings.add_latest(plugin, Arc::clone(&call));
        }
        if let Some(reason) = reason {
            drop(recordings);
            // A large call takes a millisecond to write.
            let unstored =
                Unstored { plugin: plugin.clone(), reason, call: Arc::new(call.written()) };
            self.recordings.lock().add_unstored(unstored);
        }
    }

    /// Records a live call that the host could not make, or whose valid answer the engine could not
    /// apply.
    pub(super) fn add_fault(&self, plugin: &Plugin, call: &Call, fault: &Fault, at: Timestamp) {
        if self.counts {
            count_fault(&plugin.name, Purpose::Live, fault);
        }
        let role = match call {
            Call::Throttle(_) => Role::Throttler,
            Call::Retry(_) => Role::Retry,
        };
        let failed = RecordedCall {
            number: 0,
            at,
            version: plugin.version.number,
            role,
            shadow: false,
            queue: call.queue().clone(),
            usage: Usage::default(),
            answer: Err(fault.clone()),
            log: Vec::new(),
            call: call.clone(),
        };
        let failed = self.record_fault(&plugin.name, &failed);
        self.plugins.lock().entry(plugin.name.clone()).or_default().live.fail(fault, failed);
    }

    pub(super) fn add(&self, called: CompletedCall<'_>) {
        let CompletedCall {
            plugin,
            role,
            purpose,
            at,
            usage,
            log,
            log_dropped,
            metrics,
            metrics_dropped,
            answer,
            call,
        } = called;
        let fault = answer.err();
        if self.counts {
            measure(&plugin.name, role, purpose, usage);
            if let Some(fault) = fault {
                count_fault(&plugin.name, purpose, fault);
            } else if purpose == Purpose::Live
                && let Some(call) = &call
            {
                self.series.add(MetricChanges {
                    plugin: &plugin.name,
                    version: plugin.version.number,
                    queue: call.queue(),
                    at,
                    changes: metrics,
                    dropped: metrics_dropped,
                });
            }
        }
        if purpose == Purpose::Explain {
            // The caller of `explain` receives the answer, and the queue is not affected.
            return;
        }
        let version = plugin.version.number;
        let record = |answer: Result<Answer, Fault>, call: &Call| RecordedCall {
            number: 0,
            at,
            version,
            role,
            shadow: purpose == Purpose::Shadow,
            queue: call.queue().clone(),
            usage,
            answer,
            log: log.iter().map(|(level, text)| ((*level).into(), text.clone())).collect(),
            call: call.clone(),
        };
        let mut failed = None;
        match (answer, &call) {
            (Err(fault), Some(call)) => {
                let recorded = self.record_fault(&plugin.name, &record(Err(fault.clone()), call));
                failed = Some((fault, recorded));
            }
            (Ok(answer), Some(call)) if purpose == Purpose::Live => {
                self.record_answer(&plugin.name, || Some(record(Ok(answer.to_answer()?), call)));
            }
            _ => {}
        }
        let mut plugins = self.plugins.lock();
        let seen = plugins.entry(plugin.name.clone()).or_default();
        // The check of a configuration answers its caller. It does not count as a call of a queue.
        if call.is_some() {
            let calls = if purpose == Purpose::Shadow { &mut seen.shadow } else { &mut seen.live };
            if purpose == Purpose::Shadow && calls.version != version {
                *calls = Calls::default();
            }
            calls.version = version;
            calls.calls += 1;
            calls.last = Some(usage);
            calls.failing = false;
            if let Some((fault, failed)) = failed {
                calls.fail(fault, failed);
            }
        }
        let mut line = |level, text| {
            seen.logged += 1;
            seen.log.push_back(LogLine { number: seen.logged, at, version, role, level, text });
        };
        for (level, text) in log {
            line(level.into(), text);
        }
        if log_dropped > 0 {
            line(LogLevel::Warn, format!("{log_dropped} more lines of this call were not kept"));
        }
        let mut bytes: usize = seen.log.iter().map(|line| line.text.len()).sum();
        while seen.log.len() > MAX_LOG_LINES || bytes > MAX_LOG_BYTES {
            bytes -= seen.log.pop_front().map_or(bytes, |line| line.text.len());
        }
    }
}

fn measure(plugin: &PluginName, role: Role, purpose: Purpose, usage: Usage) {
    let (plugin, purpose) = (|| plugin.as_str().to_owned(), purpose.as_str());
    let role = match role {
        Role::Throttler => "throttler",
        Role::Retry => "retry",
    };
    counter!(
        "tidegate_plugin_calls_total",
        "plugin" => plugin(), "role" => role, "purpose" => purpose
    )
    .increment(1);
    histogram!(
        "tidegate_plugin_seconds",
        "plugin" => plugin(), "role" => role, "purpose" => purpose
    )
    .record(usage.took.as_secs_f64());
    if let Some(fuel) = usage.fuel {
        counter!(
            "tidegate_plugin_fuel_total",
            "plugin" => plugin(), "role" => role, "purpose" => purpose
        )
        .increment(fuel);
    }
}

fn count_fault(plugin: &PluginName, purpose: Purpose, fault: &Fault) {
    let (plugin, kind, purpose) =
        (plugin.as_str().to_owned(), fault.kind.as_str(), purpose.as_str());
    counter!(
        "tidegate_plugin_faults_total",
        "plugin" => plugin, "kind" => kind, "purpose" => purpose
    )
    .increment(1);
}
