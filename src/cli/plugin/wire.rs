//! What the server's answers on plugins hold, as far as people are shown it. `--json` never passes through here.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cli::plugin::local;
use tidegate_core::port::policy;
use tidegate_core::time::Timestamp;

/// A plugin.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Plugin {
    pub name: String,
    pub roles: Vec<String>,
    pub live: u32,
    /// Whether there is code of that version for the server's release; none if the server does not say.
    pub runnable: Option<bool>,
    pub shadow: Option<u32>,
    /// The version that has the bytes that were sent; only the answer to a push has it.
    pub pushed: Option<u32>,
    pub throttler: Option<Description>,
    pub retry: Option<Description>,
    pub used_by: Vec<User>,
    pub health: Health,
    /// How the calls of the version in the shadow go; none without one.
    pub shadow_health: Option<Health>,
}

/// What a plugin says of itself.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Description {
    pub about: String,
}

/// A queue or a job type.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct User {
    pub kind: String,
    pub name: String,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.replace('_', " "), self.name)
    }
}

/// How a plugin's calls went.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Health {
    pub calls: u64,
    pub faults: u64,
    pub failing: bool,
    pub last_fault: Option<Fault>,
    pub last_usage: Option<Usage>,
}

/// What a call used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Usage {
    fuel: Option<u64>,
    took_seconds: f64,
    memory_bytes: u64,
    host_calls: u32,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let took = std::time::Duration::try_from_secs_f64(self.took_seconds).unwrap_or_default();
        let Self { fuel, memory_bytes, host_calls, .. } = *self;
        f.write_str(&local::used(&policy::Usage { fuel, took, memory_bytes, host_calls }))
    }
}

/// The latest faults.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Faults {
    pub faults: Vec<Fault>,
}

/// A call that gave no answer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Fault {
    pub at: Option<Timestamp>,
    pub version: u32,
    pub shadow: bool,
    pub role: String,
    pub kind: String,
    pub message: String,
    /// What was asked; null if that is not told.
    pub call: Value,
}

/// A version of a plugin.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Version {
    pub number: u32,
    pub live: bool,
    pub shadow: bool,
    pub pushed_at: Option<Timestamp>,
    pub sha256: String,
    pub bytes: u64,
    pub roles: Vec<String>,
}

/// The latest lines of a plugin's log.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Logs {
    pub logs: Vec<LogLine>,
}

/// A line that a plugin wrote.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogLine {
    pub number: u64,
    pub at: Option<Timestamp>,
    pub version: u32,
    pub role: String,
    pub level: String,
    pub message: String,
}

/// How the version in the shadow does.
#[allow(clippy::struct_field_names, reason = "the names of the API")]
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Shadow {
    /// The version; none if nothing is in the shadow.
    pub version: Option<u32>,
    pub compared: u64,
    pub different: u64,
    pub failed: u64,
    pub missed: u64,
    pub differences: Vec<Difference>,
}

/// A job of which two versions said different things.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Difference {
    pub at: Option<Timestamp>,
    pub queue: String,
    pub job: String,
    pub live: Said,
    pub shadow: Said,
}

/// What a version said of a job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Said {
    pub action: String,
    pub until: Option<Timestamp>,
    pub reason: Option<String>,
}
