//! What operators and authors see of plugins: their logs, their faults with the calls that led to them, what they use.
//!
//! It is kept in memory and bounded for each plugin, the oldest going first: a fault that nobody looks at costs no
//! write. Counters that last are metrics.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use metrics::{counter, histogram};
use parking_lot::Mutex;
use serde::{Serialize, Serializer};

use super::{contract::throttler::tidegate::plugin::log, record};
use tidegate_core::{
    job::PluginName,
    port::policy::{Call, Fault, Plugin, Purpose, Usage},
    queue::plugin::Role,
    time::Timestamp,
};

/// Lines of a plugin's log that are kept.
const LINES: usize = 500;
/// Bytes of a plugin's log that are kept.
const LINE_BYTES: usize = 256 << 10;
/// Faults of a plugin's live version, and of the one in its shadow, that are kept, each with its call.
const FAULTS: usize = 8;

/// How much a line of a plugin's log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// For debugging.
    Debug,
    /// For information.
    Info,
    /// A warning: an operator should look.
    Warn,
    /// An error: an operator must look. The last one before a trap is taken for its reason.
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
    /// Counted up from 1 for each plugin.
    pub number: u64,
    /// When the call was that logged it.
    pub at: Timestamp,
    /// The number of the plugin's version.
    pub version: u32,
    /// The role in which it was called.
    pub role: Role,
    /// How much it matters.
    pub level: LogLevel,
    /// What it says.
    pub text: String,
}

/// A call that gave no answer.
#[derive(Clone, Debug, Serialize)]
pub struct Failed {
    /// When.
    pub at: Timestamp,
    /// The number of the plugin's version.
    pub version: u32,
    /// The role in which it was called.
    pub role: Role,
    /// What went wrong.
    #[serde(serialize_with = "fault")]
    pub fault: Fault,
    /// The call as JSON, to repeat it: without data that is too much to be kept, and saying so.
    #[serde(skip)]
    pub call: Arc<str>,
}

fn fault<S: Serializer>(fault: &Fault, serializer: S) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeMap as _;
    let mut map = serializer.serialize_map(Some(2))?;
    map.serialize_entry("kind", fault.kind.as_str())?;
    map.serialize_entry("message", &fault.message)?;
    map.end()
}

/// What is known of a plugin's calls in this process.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PluginDiagnostics {
    /// The calls whose answers were done.
    pub live: Calls,
    /// The calls of the latest version that was asked beside the live one.
    pub shadow: Calls,
    /// How many lines it has logged.
    pub logged: u64,
    /// The latest lines of its log, oldest first.
    pub log: VecDeque<LogLine>,
}

/// How calls went.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Calls {
    /// The number of the version that was called last.
    pub version: u32,
    /// How often it was called.
    pub calls: u64,
    /// How many calls gave no answer, by the kind of fault.
    pub faults: BTreeMap<&'static str, u64>,
    /// Whether its latest call gave no answer.
    pub failing: bool,
    /// What its latest call used.
    pub last: Option<Usage>,
    /// Its latest faults, oldest first.
    pub failed: VecDeque<Failed>,
}

impl Calls {
    fn fail(&mut self, failed: Failed) {
        *self.faults.entry(failed.fault.kind.as_str()).or_default() += 1;
        self.failing = true;
        if self.failed.len() == FAULTS {
            self.failed.pop_front();
        }
        self.failed.push_back(failed);
    }
}

/// One call, as the host saw it.
pub(super) struct Called<'a> {
    pub plugin: &'a Plugin,
    pub role: Role,
    pub purpose: Purpose,
    pub at: Timestamp,
    pub usage: Usage,
    pub log: Vec<(log::Level, String)>,
    pub log_dropped: u32,
    pub fault: Option<&'a Fault>,
    /// None for the check of a configuration.
    pub call: Option<Call>,
}

/// What was seen of each plugin that was called.
#[derive(Debug, Default)]
pub(super) struct Diagnostics(Mutex<HashMap<PluginName, PluginDiagnostics>>);

impl Diagnostics {
    pub(super) fn seen(&self, plugin: &PluginName) -> PluginDiagnostics {
        self.0.lock().get(plugin).cloned().unwrap_or_default()
    }

    pub(super) fn last(&self, plugin: &PluginName) -> Option<Usage> {
        self.0.lock().get(plugin).and_then(|seen| seen.live.last)
    }

    pub(super) fn forget(&self, plugin: &PluginName) {
        self.0.lock().remove(plugin);
    }

    /// A live call had no answer that can be followed, though the host saw nothing wrong with it; or it could not be made.
    pub(super) fn found(&self, plugin: &Plugin, call: &Call, fault: &Fault, at: Timestamp) {
        count_fault(&plugin.name, Purpose::Live, fault);
        let role = match call {
            Call::Throttle(_) => Role::Throttler,
            Call::Retry(_) => Role::Retry,
        };
        let failed = Failed {
            at,
            version: plugin.version.number,
            role,
            fault: fault.clone(),
            call: record::to_bounded_json(call).into(),
        };
        self.0.lock().entry(plugin.name.clone()).or_default().live.fail(failed);
    }

    pub(super) fn add(&self, called: Called<'_>) {
        let Called { plugin, role, purpose, at, usage, log, log_dropped, fault, call } = called;
        measure(&plugin.name, role, purpose, usage);
        if let Some(fault) = fault {
            count_fault(&plugin.name, purpose, fault);
        }
        if purpose == Purpose::Explain {
            // Whoever asks why a job waits is told; nothing happened to the queue.
            return;
        }
        let version = plugin.version.number;
        let failed = |(fault, call): (&Fault, &Call)| Failed {
            at,
            version,
            role,
            fault: fault.clone(),
            call: record::to_bounded_json(call).into(),
        };
        let failed = fault.zip(call.as_ref()).map(failed);
        let mut journal = self.0.lock();
        let seen = journal.entry(plugin.name.clone()).or_default();
        // Whoever gives a configuration is told what came of its check, which says nothing of how the queues' calls go.
        if call.is_some() {
            let calls = if purpose == Purpose::Shadow { &mut seen.shadow } else { &mut seen.live };
            if purpose == Purpose::Shadow && calls.version != version {
                *calls = Calls::default();
            }
            calls.version = version;
            calls.calls += 1;
            calls.last = Some(usage);
            calls.failing = false;
            if let Some(failed) = failed {
                calls.fail(failed);
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
        while seen.log.len() > LINES || bytes > LINE_BYTES {
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
    counter!("tidegate_plugin_calls_total", "plugin" => plugin(), "role" => role, "purpose" => purpose).increment(1);
    histogram!("tidegate_plugin_seconds", "plugin" => plugin(), "role" => role, "purpose" => purpose).record(usage.took.as_secs_f64());
    if let Some(fuel) = usage.fuel {
        counter!("tidegate_plugin_fuel_total", "plugin" => plugin(), "role" => role, "purpose" => purpose).increment(fuel);
    }
}

fn count_fault(plugin: &PluginName, purpose: Purpose, fault: &Fault) {
    let (plugin, kind, purpose) =
        (plugin.as_str().to_owned(), fault.kind.as_str(), purpose.as_str());
    counter!("tidegate_plugin_faults_total", "plugin" => plugin, "kind" => kind, "purpose" => purpose).increment(1);
}
